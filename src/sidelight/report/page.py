"""The report: a card as one HTML file that opens offline and asks nothing of any network."""

from __future__ import annotations

import base64
import datetime
import functools
import hashlib
import os
import re
from collections.abc import Sequence
from importlib import resources

from jinja2 import Environment, StrictUndefined, Template
from markupsafe import Markup, escape

from sidelight.arrays import Json
from sidelight.files import write_text
from sidelight.numbers import count, down, percent, percent_up, up
from sidelight.privacy import events
from sidelight.report.audits import audit_row
from sidelight.report.card import Card, number
from sidelight.report.charts import Chart, drawing, legend_mark, read_out, table
from sidelight.report.comparison_figures import comparison_figures, comparison_rows
from sidelight.report.decision import ADDS_UP, page_one
from sidelight.report.effect_figures import effect_figures
from sidelight.report.effects import Effects
from sidelight.report.facts import declared
from sidelight.report.figures import (
    attack_chart,
    charged,
    filter_unit,
    gradient_route,
    reliability_chart,
    training_charts,
    training_constants,
)
from sidelight.report.guarantee import Guarantee, Source, changed, guarantee, protected, source_of
from sidelight.report.review import evaluation, gaussian_mu, profile
from sidelight.report.score_tables import WEAK, confusion_table, group_table, measure_table, score_table
from sidelight.report.tradeoff import attack_on
from sidelight.report.words import in_words, label

_POWER = re.compile("10([⁻⁰¹²³⁴⁵⁶⁷⁸⁹]+)")
_LOWERED = str.maketrans("⁻⁰¹²³⁴⁵⁶⁷⁸⁹", "−0123456789")


def html(card: Card, files_changed: Sequence[str] = ()) -> str:
    """The whole report. Every text from the card is escaped; no script but ours may run."""
    shown = view(card)
    if files_changed and shown["sheet"]:
        names = ", ".join(files_changed)
        shown["sheet"]["alarms"].append(
            f"Changed since the card was written, so no longer described by it: {names}."
        )
    css, js = _css(), _read("report.js")
    policy = (
        f"default-src 'none'; script-src {_hash(js)}; style-src {_hash(css)}; "
        "base-uri 'none'; form-action 'none'"
    )
    return _template().render(policy=policy, css=Markup(css), js=Markup(js), **shown)


def write_report(card: Card, path: str | os.PathLike[str], files_changed: Sequence[str] = ()) -> None:
    """Write the report, whole or not at all; `files_changed` are not those of the card."""
    write_text(path, html(card, files_changed))


@functools.cache
def _template() -> Template:
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.globals.update(label=label, in_words=in_words)
    environment.filters["raised"] = raised
    return environment.from_string(_read("report.html.j2"))


def raised(text: object) -> Markup:
    """Escaped text for HTML, with 10⁻⁵ as a raised exponent, which every font has."""
    whole = str(escape(text)).replace(" × 10", "\u00a0×\u00a010")
    return Markup(_POWER.sub(lambda m: f"10<sup>{m[1].translate(_LOWERED)}</sup>", whole))


@functools.cache
def _read(name: str) -> str:
    return resources.files("sidelight.report").joinpath("template", name).read_text(encoding="utf-8")


def _css() -> str:
    """The style sheet; its dark colors are written once and used by the system's wish and by the switch."""
    return _read("report.css").replace("/*dark*/", _read("dark.css"))


def _hash(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


# ---------------------------------------------------------------------------------------------------
# what the template shows, worked out from a card: no HTML here, and no maths in the template

_RATES = (1e-4, 1e-3, 1e-2, 0.05, 0.1, 0.5)
_SHOWN_ELSEWHERE = {"notes", "reasons", "chosen", "epsilon_requested", "health_check"}
_SHOWN_ELSEWHERE |= {"returned", "compared_with_public", "stopped"}


def view(card: Card) -> Json:
    """Everything that the template names."""
    promise = guarantee(card)
    details = card.statement["details"]
    rehearsal = card.method == "compare"
    page = {
        "title": card.title or "A private model",
        "created": card.created,
        "created_words": _date(card.created),
        "method": card.method,
        "rehearsal": rehearsal,
        "sheet": None if rehearsal else page_one(card, promise.kind),
        "chosen": str(details.get("chosen") or ""),
        "g": promise,
        "relation": card.relation,
        "relation_words": changed(card),
        "epsilon": up(card.epsilon),
        "delta": up(card.delta, 3),
        "composed": _composed(card),
        "recomputed": "" if promise.recomputed is None else up(promise.recomputed),
        "asked": _requested(details),
        "attack": _attack(card, promise),
        "profile": _profile(card, promise),
        **_charges(card),
        "assumptions": [str(line) for line in card.statement["assumptions"]],
        "sources": _sources(card),
        "health": _health(details),
        **_quality(card),
        **_course(card),
        "audits": [audit_row(row) for row in card.audits],
        "data": {key: value for key, value in card.data.items() if key != "public_table_sha256"},
        "choices": {k: v for k, v in details.items() if k not in _SHOWN_ELSEWHERE and k not in card.data},
        "versions": card.versions,
        "hashes": card.hashes,
        "declared": declared(card.facts),
        "special": _special(card),
        "review": evaluation(card) if promise.kind == "private" else [],
    }
    contents = _contents(page)
    letters = dict.fromkeys((anchor for anchor, _, _ in _sections(page)), "")
    if not rehearsal:
        letters |= {anchor: f"{chr(ord('A') + k)}. " for k, (anchor, _) in enumerate(contents)}
    return page | {"contents": contents, "letters": letters}


def _contents(page: Json) -> list[tuple[str, str]]:
    return [(anchor, name) for anchor, name, present in _sections(page) if present]


def _sections(page: Json) -> list[tuple[str, str, object]]:
    made = not page["rehearsal"]
    return [
        ("promise", "The promise", made),
        ("charges", "Charges", made),
        ("assumptions", "Assumptions", made),
        ("review", "Impact assessment", page["review"]),
        ("scores", "Scores", page["scores"]),
        ("comparison", "Methods compared", page["comparison"]["rows"]),
        ("effects", "Columns", page["effects"]["charts"]),
        (
            "training",
            "Training" if made else "How it was rehearsed",
            page["training"] or page["reasons"] or page["notes"],
        ),
        ("health", "Health check", page["health"] and made),
        ("audit", "Audits", page["audits"]),
        ("data", "Data and settings", page["data"] or page["choices"]),
        ("versions", "Versions", True),
    ]


def _charges(card: Card) -> Json:
    return {
        "charged": charged(card),
        "candidates": _candidates(card),
        "receipt": _receipt(card),
        "total": _total(card),
        "adds_up": ADDS_UP,
        "ledger": [_ledger_row(row) for row in card.ledger],
    }


def _quality(card: Card) -> Json:
    """What is known of the model's scores."""
    chart, rows = reliability_chart(card), comparison_rows(card)
    figures, found = comparison_figures(card), Effects.from_dict(card.effects)
    return {
        "scores": score_table(card),
        "measures": measure_table(card.scores),
        "groups": group_table(card.scores),
        "weak": WEAK,
        "confusion": confusion_table(card),
        "reliability": _drawn(chart) if chart else None,
        # what has no place in a chart stays a table
        "comparison": {
            "charts": figures,
            "rows": rows,
            "listed": [r for r in rows if r["note"] or not figures],
        },
        "effects": {"charts": effect_figures(found), "over": found.averaged_over},
    }


def _course(card: Card) -> Json:
    """How the training went."""
    details = card.statement["details"]
    reasons, told = _lines(details.get("reasons")), details.get("returned")
    notes = [note for note in _lines(details.get("notes")) if note not in reasons]
    return {
        "training": [_drawn(chart) for chart in training_charts(card)],
        "constants": training_constants(card),
        "route": gradient_route(card),
        "reasons": reasons,
        "notes": [*([f"returned: {told}"] if told else []), *notes],
    }


def _special(card: Card) -> str:
    """Which of the columns that were declared special the model uses."""
    named, columns = card.facts.get("special_categories"), card.data.get("columns")
    if not isinstance(named, list) or not isinstance(columns, list):
        return ""
    known = [str(name) for name in named if name in columns]
    other = [str(name) for name in named if name not in columns]
    lines = [f"The model reads these special categories of data: {', '.join(known)}." if known else
             "The model reads no column that was declared a special category of data."]  # fmt: skip
    if other:
        lines.append(f"Declared, but no column of the model: {', '.join(other)}.")
    return " ".join(lines)


def _composed(card: Card) -> str:
    k = protected(card).records
    return "" if k == 1 else f"{count(k)} records"


def _health(details: Json) -> Json | None:
    """What the health check found; None in a report of before there was one."""
    found = details.get("health_check")
    if not isinstance(found, dict):
        return None
    share = number(found.get("share_of_budget"))
    rows = [
        (str(row["column"]), f"{percent(row['low'])} to {percent(row['high'])}", _public_share(row))
        for row in found.get("misfits") or ()
    ]
    return {
        "summary": str(found.get("summary", "")),
        "share": "" if share is None else percent_up(share),
        "rows": rows,
    }


def _public_share(row: Json) -> str:
    return "–" if row.get("public") is None else percent(row["public"])


def _profile(card: Card, promise: Guarantee) -> Json | None:
    """The guarantee in other numbers; None where there is none."""
    if promise.kind != "private":
        return None
    mu = gaussian_mu(card)
    return {
        "mu": None if mu is None else (up(mu[0]), mu[1]),
        "rows": [(up(delta, 3), up(epsilon)) for delta, epsilon in profile(card)],
    }


def _date(text: str) -> str:
    try:
        when = datetime.datetime.fromisoformat(text)
    except ValueError:
        return text
    zone = " UTC" if when.tzinfo is not None else ""
    return f"{when.day} {when:%B %Y, %H:%M}{zone}"


def _requested(details: Json) -> str:
    requested = number(details.get("epsilon_requested"))
    return "" if requested is None else up(requested)


# ---------------------------------------------------------------------------------------------------
# the reviewer's part


def _attack(card: Card, promise: Guarantee) -> Json | None:
    if promise.kind in ("unused", "false"):
        return None
    add = card.relation == "add-or-remove-one"
    whose = "record" if card.unit == "record" else "person"
    bound = attack_on(card)
    if bound is None:
        return None
    if promise.kind == "none":
        exactness = "Nothing is protected here: the attacker may always be right."
    elif filter_unit(card) or any(isinstance(part, _BOUNDED) for part in events.elementary(card.plan)):
        exactness = "The curve follows from what the charge guarantees; the truth may be lower."
    else:
        exactness = "The curve is computed exactly from the charge, and rounded up."
    return {
        "chart": _drawn(attack_chart(bound)),
        "rows": [(percent(a), percent_up(float(bound.power(a)))) for a in _RATES],
        "advantage": percent_up(bound.advantage),
        "right": percent_up(bound.right_guesses),
        "question": f"whether a certain {whose} was used"
        if add
        else f"which of two certain {whose}s was used",
        "exactness": exactness,
        "whose": whose,
    }


_BOUNDED = (
    events.ZeroConcentrated,
    events.TruncatedConcentrated,
    events.RenyiBound,
    events.ApproximateDp,
    events.ObjectivePerturbation,
    events.SampledWithoutReplacement,
)


def _candidates(card: Card) -> str:
    """Why a private selection is charged for more steps than the charts show; "" for anything else."""
    if "private_selection" not in (card.method, card.statement["details"].get("chosen")):
        return ""
    steps = sum("noise_multiplier" in entry and "released" not in entry for entry in card.history)
    times = max(events.elementary(card.plan).values(), default=0)
    if not steps or times <= steps or times % steps:
        return ""
    return (
        f"{times // steps} candidates were trained, with {steps} steps each, and one of them was selected "
        "privately. All of it is charged; the charts show the candidate that was selected."
    )


def _receipt(card: Card) -> dict[str, str] | None:
    """Where the charge is written; None if it is nowhere."""
    receipt = card.statement.get("ledger")
    if not receipt:
        return None
    lines = {key: in_words(receipt.get(key)) for key in ("ledger", "dataset", "run")}
    lines["ledger"] = lines["ledger"].removeprefix("Ledger(").removesuffix(")")
    return {**lines, "records": in_words(receipt["records"]) if "records" in receipt else ""}


def _total(card: Card) -> list[tuple[str, str]]:
    total = (card.statement.get("ledger") or {}).get("total")
    if not isinstance(total, dict):
        return []
    names = {
        "budget": "budget ε",
        "delta": "at δ",
        "epsilon": "spent ε",
        "epsilon_adaptive": "used of the budget",
        "remaining": "left",
    }
    values = {key: number(total.get(key)) for key in names}
    return [(name, _side(key, value)) for key, name in names.items() if (value := values[key]) is not None]


def _side(key: str, value: float) -> str:
    """What is left is rounded down, everything else up."""
    return down(value) if key == "remaining" else up(value)


def _ledger_row(row: Json) -> Json:
    epsilon = number(row.get("epsilon"))
    return {
        "run": in_words(row.get("run")),
        "when": str(row.get("when", ""))[:19].replace("T", " "),
        "method": in_words(row.get("method")),
        "event": in_words(row.get("event")) + (" (lowered)" if row.get("lowered") is True else ""),
        "epsilon": "–" if epsilon is None else up(epsilon),
        "note": str(row.get("note", "")),
        "this": row.get("this") is True,
    }


def _sources(card: Card) -> list[tuple[str, Source | None]]:
    chosen = str(card.statement["details"].get("chosen") or "")
    names = [name for name in (chosen, card.method) if name and not (name == "auto" and chosen)]
    names = [name for name in names if name != "compare"]  # a rehearsal is not a method
    return [(name, source_of(name)) for name in dict.fromkeys(names)]


def _lines(value: object) -> list[str]:
    return [str(line) for line in value] if isinstance(value, list) else []


def _drawn(chart: Chart) -> Json:
    return {
        "title": chart.title,
        "summary": chart.summary,
        "plots": [{"svg": drawing(chart), "read": read_out(chart)}],
        "legend": [(legend_mark(series), series.name) for series in chart.series],
        "table": table(chart),
    }
