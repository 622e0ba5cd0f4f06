"""For a reviewer: what NIST SP 800-226 asks to evaluate, the guarantee in other numbers, a registry's entry.

Nothing here is read off the private records.
"""

from __future__ import annotations

import functools
import json
import math
from dataclasses import dataclass
from decimal import ROUND_CEILING
from typing import Literal

from sidelight.arrays import Json
from sidelight.errors import SidelightError
from sidelight.numbers import pretty, rounded, up
from sidelight.privacy import accountants, conversions, events
from sidelight.privacy.noise import SEED_ASSUMPTION
from sidelight.report.card import Card, number
from sidelight.report.decision import lifetime, vouched_facts
from sidelight.report.facts import FACTS, declared_text
from sidelight.report.figures import charged
from sidelight.report.gain import gain_over_public
from sidelight.report.guarantee import Protected, changed, protected, uses_public
from sidelight.report.score_tables import group_table

_DELTAS = (1e-3, 1e-5, 1e-6, 1e-8, 1e-10)
State = Literal["answered", "declared", "open"]


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
    `profile`, nor at the card's own: at other δ it is not a bound.
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
    state: State = "answered"


def evaluation(card: Card) -> list[Evaluated]:
    """Each topic of the publication, answered from the card, from facts, or marked as open.

    One more than there: whether the public records are public, on which everything here rests.
    """
    side, unit = declared_text(card.facts, "side_channels"), protected(card)
    known: State = "answered" if card.unit != "record" else "declared" if unit.whose == "person" else "open"
    return [
        Evaluated("Definition and parameters", _definition(card)),
        Evaluated("Unit of privacy", _unit(card), known),
        Evaluated("Neighboring datasets", f"{card.relation}: {changed(card)}"),
        Evaluated(
            "Composition over releases", " ".join(line for line, _ in lifetime(card)),
            "answered" if card.statement.get("ledger") else "open",
        ),
        Evaluated("Mechanism and sensitivity", _mechanism(card)),
        _utility(card),
        _subgroups(card),
        Evaluated("Trust model", _trust(card)),
        Evaluated("Implementation", _implementation(card)),
        Evaluated("Side channels", side or "not covered by the proof", "declared" if side else "open"),
        Evaluated(
            "Security of files",
            "The model folder holds no private record. Checkpoints of an unfinished run hold keys of its "
            "noise and are secret. A ledger must not be rolled back.",
        ),
        _public_records(card),
        _collection(card),
    ]  # fmt: skip


def _definition(card: Card) -> str:
    text = f"(ε, δ)-differential privacy, ε = {up(card.epsilon)}, δ = {up(card.delta, 3)}"
    mu = gaussian_mu(card)
    if mu is None:
        return text
    return f"{text}; μ = {up(mu[0])} in Gaussian terms{'' if mu[1] else ', as a bound at the δ listed'}"


def _unit(card: Card) -> str:
    if card.unit != "record":
        return f"a person: all rows that share a value of {card.unit!r}"
    who = protected(card)
    if who.whose == "record":
        return "one record; how many a person may have was not declared"
    if who.records == 1:
        return "one record, which is declared to be all of a person's"
    return (
        f"one record; a person has at most {who.records}, as declared, and is promised ε = {up(who.epsilon)} "
        f"at δ = {up(who.delta, 3)}"
    )


def _trust(card: Card) -> str:
    """Central; or who else saw private records: a server of clients, workers of a cluster, ranks."""
    others = [str(line) for line in card.statement["assumptions"] if " trusted" in str(line)]
    return "; ".join(others or ["central: whoever ran the training saw the private records"])


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
    gain = gain_over_public(card.scores, card.statement["details"])
    topic = "Utility and its uncertainty"
    if gain is None:
        return Evaluated(topic, "The model was not compared with public records alone.", "open")
    return Evaluated(topic, f"{gain}")


def _subgroups(card: Card) -> Evaluated:
    table = group_table(card.scores)
    if table is None:
        text = "No subgroup was scored. Score held-out public rows by the values of a column when fitting."
        return Evaluated("Subgroups", text, "open")
    rates = "; ".join(
        f"{row['group']} {row['score'][0]} ({row['score'][1]}, {row['rows']} rows)" for row in table["rows"]
    )
    return Evaluated("Subgroups", f"{table['name']} on public rows by {table['column']!r}: {rates}")


def _implementation(card: Card) -> str:
    seeded = SEED_ASSUMPTION in card.statement["assumptions"]
    noise = (
        "noise came from a FIXED SEED: anybody who knows it can remove the noise"
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
    if not uses_public(card):
        return Evaluated("Public records", "none were used")
    lines = [line for line in vouched_facts(card) if "public record" in line.text]
    said = all(line.state == "declared" for line in lines)
    text = "; ".join(f"{line.text}: {line.state}" for line in lines)
    return Evaluated("Public records", f"used without protection. {text}", "declared" if said else "open")


# ---------------------------------------------------------------------------------------------------
# an entry for the registry of deployments (its schema of 15 July 2026, opendp/deployments-registry-data)


def registry_entry(card: Card) -> Json:
    """A draft of an entry, by the registry's names; what nobody declared is left for a person to add.

    data_domain is every table that could have been given, and unprotected_quantities what the product shows
    without noise. A registry author is whoever files the entry, so none is named.
    """
    who, facts = protected(card), card.facts
    entry = {
        "basic": {
            "name": card.title,
            "data_curators": [str(facts["controller"])] if facts.get("controller") else None,
            "intended_use": facts.get("intended_use") or facts.get("purpose"),
            "data_product_type": "Machine learning model",
            "data_product_region": facts.get("region"),
            "data_product_sector": facts.get("sector") if facts.get("sector") in SECTORS else None,
            "description": facts.get("purpose"),
            "publication_date": card.created[:10],
        },
        "dp_variant": {
            "variant_name": "Approximate DP" if card.delta > 0 else "Pure DP",
            "data_domain": _domain(card),
            "unprotected_quantities": _public_facts(card),
        },
        "privacy_loss": {
            "privacy_unit": "person" if who.whose == "person" else "record",
            "privacy_unit_details": _adjacent(card, who),
            "privacy_parameters": {
                name: rounded(value, 4, ROUND_CEILING)
                for name, value in (("epsilon", who.epsilon), ("delta", who.delta))
            },
            "privacy_parameters_details": _parameters(card, who),
        },
        "deployment_model": {
            "model_name": "Federated" if " clients" in _public_facts(card) else "Central",
            "actors": _trust(card),
            "release_type": "One release",
            "release_type_details": " ".join(line for line, _ in lifetime(card)),
            "data_source_type": "Static",
            "access_type": "Non-interactive",
        },
        "accounting": {
            "post_processing": "predictions, and everything else that is computed from the model",
            "composition": f"sequential, of all releases of the fit: {events.describe(card.plan)}",
        },
        "implementation": {
            "preprocessing_and_hyperparameter_tuning": _guided(card),
            "mechanisms": f"{_mechanism(card)} {_implementation(card)}",
            "justification": "; ".join(map(str, card.statement["details"].get("reasons") or ())),
        },
    }
    return {"url_slug": _slug(card.title), "status": "Draft", "tier": 3, "deployment": _filled(entry)}


_IN_THE_CLEAR = (" is public", " are public")
SECTORS = ("Technology", "Healthcare", "Education", "Government", "Energy", "Finance")


def _adjacent(card: Card, who: Protected) -> str:
    """What adjacent datasets are, for the parameters of the entry."""
    if who.records == 1:
        return f"Adjacent datasets: {changed(card)} ({card.relation})"
    one = "added or removed" if card.relation == "add-or-remove-one" else "replaced by any others"
    return f"Adjacent datasets: all records of one person, of whom there are at most {who.records}, {one}"


def _parameters(card: Card, who: Protected) -> str:
    if who.records == 1:
        return _definition(card)
    return f"One record: {_definition(card)}. Composed over {who.records} records of one person"


def _domain(card: Card) -> str | None:
    columns = card.data.get("columns")
    if not isinstance(columns, list):
        return None
    return f"tables with the columns {', '.join(map(str, columns))} and a target, and any values in them"


def _public_facts(card: Card) -> str:
    """What the model and its report show of the private records without noise."""
    return (
        "; ".join(str(line) for line in card.statement["assumptions"] if str(line).endswith(_IN_THE_CLEAR))
        or "none known"
    )


def _guided(card: Card) -> str:
    source = declared_text(card.facts, "public_source")
    rows = f"public records ({source})" if source else "public records"
    return (
        f"column types, bounds and settings come from {rows} and declarations, never from private ones; "
        "choices made by private records are part of the plan and of ε"
    )


def _slug(title: str) -> str:
    words = "".join(letter if letter.isalnum() else " " for letter in title.lower()).split()
    return "-".join(words[:8]) or "model"


def _filled(entry: Json) -> Json:
    """The entry without what is empty or not known."""
    kept = {name: _filled(value) if isinstance(value, dict) else value for name, value in entry.items()}
    return {name: value for name, value in kept.items() if value not in (None, "", {}, [])}
