"""What a reviewer signs: declared facts, what NIST SP 800-226 asks to evaluate, and an entry of a registry.

Facts come from whoever is responsible, in a TOML file (`sidelight fit --facts facts.toml`):

    title = "Screening, 2026"
    purpose = "Whom to invite to screening"
    controller = "St Mary's Hospital"
    legal_basis = "GDPR Art. 6(1)(e)"
    public_source = "published case reports, 2015 to 2020"
    public_is_public = true
    records_per_person = 1
    retention = "the model: two years"
    recipients = ["screening unit"]

What is missing is shown as not declared. Nothing here is read off the private records.
"""

from __future__ import annotations

import functools
import json
import math
import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from decimal import ROUND_CEILING
from pathlib import Path
from typing import Literal

from sidelight.arrays import Json
from sidelight.errors import InputError, SidelightError, nearest
from sidelight.numbers import percent, pretty, rounded, up
from sidelight.privacy import accountants, conversions, events
from sidelight.privacy.noise import SEED_ASSUMPTION
from sidelight.report.card import Card, number
from sidelight.report.figures import charged
from sidelight.report.guarantee import changed, several

__all__ = [
    "FACTS", "NOT_PUBLIC", "Evaluated", "check_facts", "declared", "evaluation", "gaussian_mu", "profile",
    "read_facts", "registry_entry", "with_audits",
]  # fmt: skip

Kind = Literal["text", "yes or no", "whole number", "texts"]

FACTS: dict[str, tuple[str, Kind]] = {
    "title": ("what the model is called", "text"),
    "purpose": ("purpose of the model", "text"),
    "intended_use": ("intended use", "text"),
    "controller": ("controller of the data", "text"),
    "operator": ("who ran the training", "text"),
    "legal_basis": ("legal basis", "text"),
    "public_source": ("where the public records come from", "text"),
    "public_is_public": ("the public records are public or their owners consented", "yes or no"),
    "records_per_person": ("records that one person has, at most", "whole number"),
    "collection": ("how the private records were collected", "text"),
    "retention": ("retention of data and model", "text"),
    "recipients": ("recipients of the model", "texts"),
    "region": ("region", "text"),
    "sector": ("sector", "text"),
    "reviewer": ("reviewer", "text"),
}
_LONGEST, _MOST = 2000, 1 << 16  # characters of a text, bytes of a file
_MOST_AUDITS = 1 << 24
_DELTAS = (1e-3, 1e-5, 1e-6, 1e-8, 1e-10)


def read_facts(path: str | os.PathLike[str]) -> Json:
    """Declared facts from a TOML file; an error names the line or the fact that is wrong."""
    file = Path(path)
    try:
        if not file.is_file():  # a pipe or a device would not end
            raise InputError(f"{file} is not a file; facts are a mapping, or a TOML file")
        if file.stat().st_size > _MOST:
            raise InputError(f"{file} is larger than {_MOST // 1024} KB; facts are a few lines of TOML")
        return check_facts(tomllib.loads(file.read_bytes().decode("utf-8")))
    except OSError as error:
        raise InputError(f"{file} cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise InputError(f"{file} is not a text file; facts are a few lines of TOML") from None
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise InputError(f"{file} is not valid TOML: {error}") from None


def check_facts(facts: object) -> Json:
    """The facts, if each is known and of its kind."""
    if not isinstance(facts, Mapping):
        raise InputError("facts are names and values")
    for name, value in facts.items():
        if name not in FACTS:
            raise InputError(
                f"there is no fact {name!r}.{nearest(str(name), tuple(FACTS))} Facts are: {', '.join(FACTS)}"
            )
        kind = FACTS[name][1]
        if not _is(value, kind):
            raise InputError(f"the fact {name!r} is {_SAID[kind]}, not {str(value)[:60]!r}")
    return dict(facts)


_SAID: dict[Kind, str] = {
    "text": f"a text of at most {_LONGEST} characters",
    "yes or no": "true or false",
    "whole number": "a whole number of at least 1",
    "texts": "a list of texts",
}


def _is(value: object, kind: Kind) -> bool:
    if kind == "text":
        return isinstance(value, str) and 0 < len(value) <= _LONGEST
    if kind == "yes or no":
        return isinstance(value, bool)
    if kind == "whole number":
        return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= 10**9
    return isinstance(value, list) and 0 < len(value) <= 100 and all(_is(one, "text") for one in value)


def declared(card: Card) -> list[tuple[str, str | None]]:
    """Every fact in words; None where it was not declared."""
    return [(label, _said(card.facts.get(name))) for name, (label, _) in FACTS.items()]


def _said(value: object) -> str | None:
    if value is None:
        return None
    if isinstance(value, bool):
        return "yes" if value else "no"
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def with_audits(card: Card, path: str | os.PathLike[str] | None) -> Card:
    """The card with the audits of its method in a file that `sidelight audit --out` wrote; None: as it is."""
    if path is None:
        return card
    file = Path(path)
    try:
        if not file.is_file() or file.stat().st_size > _MOST_AUDITS:
            raise InputError(f"{file} is not what `sidelight audit --out` wrote")
        found = json.loads(file.read_bytes().decode("utf-8"))
    except OSError as error:
        raise InputError(f"{file} cannot be read: {error.strerror or error}") from None
    except (ValueError, RecursionError):
        raise InputError(f"{file} is not what `sidelight audit --out` wrote: it is not valid JSON") from None
    results = found.get("results") if isinstance(found, dict) else None
    if not isinstance(results, list) or not all(isinstance(one, dict) and "passed" in one for one in results):
        raise InputError(f"{file} is not what `sidelight audit --out` wrote: it has no results")
    mine = {card.method, str(card.statement["details"].get("chosen") or card.method)}
    kept = [one for one in results if str(one.get("method")).partition(",")[0] in mine]
    if not kept:
        raise InputError(
            f"{file} holds no audit of {' or '.join(sorted(mine))}, by which this model was made"
        )
    return replace(card, audits=kept)


# ---------------------------------------------------------------------------------------------------
# the guarantee in other numbers


@functools.lru_cache(maxsize=64)
def _cost(events_json: str, relation: events.Relation, delta: float) -> float | None:
    plan = events.compose(*(events.from_json(event) for event in json.loads(events_json)))
    try:
        return accountants.epsilon(plan, delta=delta, relation=relation)
    except SidelightError:
        return None


def profile(card: Card) -> list[tuple[float, float]]:
    """ε at other δ, computed from the events that were charged."""
    text = json.dumps(card.statement["events"], sort_keys=True)
    found = [(delta, _cost(text, card.relation, delta)) for delta in _DELTAS]
    return [(delta, cost) for delta, cost in found if cost is not None and math.isfinite(cost)]


def gaussian_mu(card: Card) -> tuple[float, bool] | None:
    """μ of the Gaussian that tells as much (arXiv:2503.10945), and whether it is exact.

    For Gaussian releases it is their own. For others, the least μ whose ε is not below ours at any δ of
    `profile`, nor at the card's own: at other δ it is no bound.
    """
    if not events.elementary(card.plan) or not math.isfinite(card.epsilon):
        return None
    if (mu := accountants.gdp(card.plan)) is not None:
        return mu, True
    pairs = [(cost, delta) for delta, cost in profile(card)]
    if card.delta > 0:
        pairs.append((card.epsilon, card.delta))
    found = [conversions.gdp_mu(cost, delta) for cost, delta in pairs if cost > 0]
    return (max(found), False) if found else None


# ---------------------------------------------------------------------------------------------------
# what NIST SP 800-226 asks to evaluate


@dataclass(frozen=True)
class Evaluated:
    """One topic; `state`: from the run itself, declared by somebody, or open."""

    topic: str
    text: str
    state: Literal["answered", "declared", "open"] = "answered"


def evaluation(card: Card) -> list[Evaluated]:
    """Each topic of the publication, answered from the card, from facts, or marked as open.

    One more than there: whether the public records are public, on which everything here rests.
    """
    return [
        Evaluated("Definition and parameters", _definition(card)),
        _unit(card),
        Evaluated("Neighbouring datasets", f"{card.relation}: {changed(card)}"),
        _composition(card),
        Evaluated("Mechanism and sensitivity", _mechanism(card)),
        _utility(card),
        _subgroups(card),
        Evaluated("Trust model", _trust(card)),
        Evaluated("Implementation", _implementation(card)),
        Evaluated(
            "Side channels",
            "running time, memory and energy are not covered; where others share the machine, review this",
            "open",
        ),
        Evaluated(
            "Security of files",
            "the model folder holds no private record and needs no protection for their sake; checkpoints "
            "of a run that is not finished hold keys of its noise and are secret; a ledger must not be "
            "rolled back",
        ),
        _public_records(card),
        _collection(card),
    ]


def _subgroups(card: Card) -> Evaluated:
    groups = card.scores.get("groups")
    if not isinstance(groups, dict) or not isinstance(rows := groups.get("rows"), list) or not rows:
        text = "no subgroup was scored; by=COLUMN (--by) scores public rows for each value of one"
        return Evaluated("Subgroups", text, "open")
    name = str(card.scores.get("name", "score")).replace("_", " ")
    figure = percent if name == "accuracy" else pretty
    rates = "; ".join(
        f"{row['group']} {figure(row['value'], 3)} ({figure(row['low'], 3)} to {figure(row['high'], 3)}, "
        f"{row['rows']:,} rows)"
        for row in rows
    )
    return Evaluated("Subgroups", f"{name} on public rows by {groups['column']!r}: {rates}")


def _definition(card: Card) -> str:
    text = f"(ε, δ)-differential privacy, ε = {up(card.epsilon)}, δ = {up(card.delta, 3)}"
    mu = gaussian_mu(card)
    if mu is None:
        return text
    exact = "exactly" if mu[1] else "by the least Gaussian above it at the δ listed"
    return f"{text}; μ = {up(mu[0])} in Gaussian terms, {exact}"


def _unit(card: Card) -> Evaluated:
    if card.unit != "record":
        return Evaluated("Unit of privacy", f"a person: all rows that share a value of {card.unit!r}")
    most = card.facts.get("records_per_person")
    if not isinstance(most, int):
        return Evaluated("Unit of privacy", "one record; how many a person may have was not declared", "open")
    if most == 1:
        return Evaluated(
            "Unit of privacy", "one record, which is declared to be all of a person's", "declared"
        )
    epsilon, delta = several(card, most)
    return Evaluated(
        "Unit of privacy",
        f"one record; a person is declared to have at most {most}, and is promised ε = {up(epsilon)} at "
        f"δ = {up(delta, 3)}",
        "declared",
    )


def _trust(card: Card) -> str:
    """Central; or who else saw private records: a server of clients, workers of a cluster, ranks."""
    others = [str(line) for line in card.statement["assumptions"] if " trusted" in str(line)]
    return "; ".join(
        others
        or ["central: whoever ran the training saw the private records; the promise is about what leaves it"]
    )


def _composition(card: Card) -> Evaluated:
    receipt = card.statement.get("ledger")
    topic = "Composition over releases"
    if not receipt:
        return Evaluated(
            topic, "this fit is in no ledger: other fits on the same records are not counted", "open"
        )
    total = receipt.get("total") or {}
    spent, budget = number(total.get("epsilon")), number(total.get("budget"))
    words = (
        ""
        if spent is None or budget is None
        else f"; ε = {up(spent)} of {up(budget)} was spent by all runs together when this card was written"
    )
    return Evaluated(
        topic, f"run {receipt.get('run')} of dataset {receipt.get('dataset')!r} in a ledger{words}"
    )


def _mechanism(card: Card) -> str:
    said = [words for _, words in charged(card)]
    if not said:
        return "nothing private was released"
    unit = "record" if card.unit == "record" else "person"
    clip = number(card.statement["details"].get("clip_norm"))
    bound = "" if clip is None else f" What one {unit} adds to a sum is clipped to length {pretty(clip)}."
    chosen = card.statement["details"].get("chosen")
    name = f"{chosen}, chosen by {card.method}" if chosen and chosen != card.method else card.method
    return f"{name}. {' '.join(said)}{bound}"


def _utility(card: Card) -> Evaluated:
    score, name = number(card.scores.get("public_validation")), card.scores.get("name")
    topic = "Utility and its uncertainty"
    if score is None:
        told = card.statement["details"].get("returned")
        if isinstance(card.scores.get("private"), dict) and isinstance(told, str):
            return Evaluated(topic, f"measured on private records, with noise, inside the plan: {told}")
        return Evaluated(topic, "this model was not measured on records that it has not seen", "open")
    error = number(card.scores.get("public_validation_error"))
    share = name == "accuracy"
    around = "" if error is None else f" ± {percent(error, 2) if share else pretty(error, 2)}"
    rows = card.scores.get("rows")
    on = f" on {rows:,} public rows held out" if isinstance(rows, int) else " on public rows held out"
    found = percent(score) if share else pretty(score)
    return Evaluated(topic, f"{name} {found}{around}{on}; more under Scores")


def _implementation(card: Card) -> str:
    seeded = SEED_ASSUMPTION in card.statement["assumptions"]
    noise = (
        "noise came from a FIXED SEED: whoever knows it can remove the noise"
        if seeded
        else "noise and samples came from AES-128 in counter mode, keyed by the operating system"
    )
    return (
        f"sidelight {card.versions.get('sidelight', '')}; {noise}; floating-point noise, whose last bits are "
        "not part of the proof"
    )


def _collection(card: Card) -> Evaluated:
    named = [FACTS[name][0] for name in ("collection", "retention") if name not in card.facts]
    topic = "Collection and retention"
    if named:
        return Evaluated(topic, f"not declared: {', '.join(named)}", "open")
    said = f"collection: {card.facts['collection']}; retention: {card.facts['retention']}"
    return Evaluated(topic, said, "declared")


def _public_records(card: Card) -> Evaluated:
    topic = "Public records"
    if card.data.get("public_records", card.statement["details"].get("public_records")) == 0:
        return Evaluated(topic, "none were used")
    public, source = card.facts.get("public_is_public"), _said(card.facts.get("public_source"))
    if public is False:
        return Evaluated(topic, NOT_PUBLIC, "open")
    if public is None or source is None:
        missing = [FACTS[name][0] for name in ("public_source", "public_is_public") if name not in card.facts]
        return Evaluated(topic, f"used without protection; not declared: {', '.join(missing)}", "open")
    return Evaluated(topic, f"declared public, or used with their owners' consent: {source}", "declared")


NOT_PUBLIC = (
    "declared not to be public, and used without protection: the promise does not cover the persons in them"
)


# ---------------------------------------------------------------------------------------------------
# an entry for the differential privacy deployments registry (arXiv:2509.13509)


def registry_entry(card: Card) -> Json:
    """A draft of an entry, by the registry's names; what nobody declared is left for a person to add."""
    return _filled(
        {
            "url_slug": _slug(card.title),
            "status": "Draft",
            "tier": 2,
            "deployment": {
                "product": {
                    "name": card.title,
                    "data_curators": _only(card.facts.get("controller")),
                    "intended_use": card.facts.get("intended_use") or card.facts.get("purpose"),
                    "data_product_type": "Machine learning model",
                    "data_product_region": card.facts.get("region"),
                    "data_product_sector": card.facts.get("sector"),
                    "description": card.facts.get("purpose"),
                    "publication_date": card.created[:10],
                },
                "dp_flavor": {
                    "name": "Approximate DP" if card.delta > 0 else "Pure DP",
                    "data_domain": _said(card.facts.get("collection")),
                    "unprotected_quantities": "; ".join(str(line) for line in card.statement["assumptions"]),
                },
                "privacy_loss": {
                    "privacy_unit": "record-level" if card.unit == "record" else "user-level",
                    "privacy_unit_description": f"{card.relation}: {changed(card)}",
                    "privacy_parameters": {
                        name: rounded(value, 4, ROUND_CEILING)
                        for name, value in (("epsilon", card.epsilon), ("delta", card.delta))
                    },
                    "privacy_parameters_description": _definition(card),
                },
                "model": {
                    "model_name": "Central",
                    "release_type": "One release",
                    "data_source_type": "Static",
                    "access_type": "Non-interactive",
                },
                "accounting": {
                    "composition": _composition(card).text,
                    "post_processing": "everything that is computed from the released model",
                },
                "implementation": {
                    "pre_processing_eda_hyperparameter_tuning": _guided(card),
                    "mechanisms": _mechanism(card),
                    "justification": _said(card.statement["details"].get("reasons")),
                },
                "resources": {"registry_authors": _only(card.facts.get("operator"))},
            },
        }
    )


def _guided(card: Card) -> str | None:
    source = _said(card.facts.get("public_source"))
    return None if source is None else f"guided by public records: {source}"


def _only(value: object) -> list[str] | None:
    return [str(value)] if value else None


def _slug(title: str) -> str:
    words = "".join(letter if letter.isalnum() else " " for letter in title.lower()).split()
    return "-".join(words[:8]) or "model"


def _filled(entry: Json) -> Json:
    """The entry without what is empty or not known."""
    kept = {name: _filled(value) if isinstance(value, dict) else value for name, value in entry.items()}
    return {name: value for name, value in kept.items() if value not in (None, "", {}, [])}
