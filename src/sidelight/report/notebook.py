"""A budget and what was spent of it: one line for a terminal, a small table for a notebook."""

from __future__ import annotations

import html
import math
from collections.abc import Mapping
from decimal import ROUND_CEILING

from sidelight.numbers import rounded
from sidelight.privacy.statement import PrivacyStatement
from sidelight.report.card import number
from sidelight.report.gain import gain_over_public

_DEFAULT = "the default"
_CELL = 'style="text-align: left; padding: 0 1em 0 0;"'


def budget_words(
    statement: PrivacyStatement | None,
    *,
    epsilon: object,
    delta: object,
    relation: object,
    method: object,
) -> dict[str, str]:
    """ε and δ of the budget, relation, method and what was spent; of a fit, as its statement has them."""
    if statement is None:
        return {
            "ε": _number(epsilon),
            "δ": "min(1e-5, 1/(100·n))" if delta is None else _number(delta),
            "relation": _DEFAULT if relation is None else str(relation),
            "method": str(method),
            "spent": "nothing yet",
        }
    chosen = statement.details.get("chosen")
    return {
        "ε": _number(statement.details.get("epsilon_requested", epsilon)),
        "δ": _number(statement.delta),
        "relation": statement.relation,
        "method": statement.method
        + (f", which chose {chosen}" if chosen not in (None, statement.method) else ""),
        "spent": _spent(statement),
    }


def budget_line(words: Mapping[str, str]) -> str:
    """[ε = 1, δ = 1e-05, replace-one, auto: spent ε = 1]"""
    last = words["spent"]
    spent = "nothing spent yet" if last == "nothing yet" else f"spent {last}"
    relation = f"{words['relation']} relation" if words["relation"] == _DEFAULT else words["relation"]
    return f"[ε = {words['ε']}, δ = {words['δ']}, {relation}, {words['method']}: {spent}]"


def budget_box(
    title: str, words: Mapping[str, str], statement: PrivacyStatement | None = None, report: str = ""
) -> str:
    """The same as HTML, safe on any page; of a fit also what the budget bought, and a link to its report."""
    rows = "".join(
        f"<tr><th {_CELL}>{html.escape(name)}</th><td {_CELL}>{html.escape(text)}</td></tr>"
        for name, text in words.items()
    )
    table = f"<table><caption {_CELL}>{html.escape(title)}</caption><tbody>{rows}</tbody></table>"
    if statement is None:
        return table
    link = f'<p><a href="{html.escape(report)}">privacy report</a></p>' if report else ""
    return table + _bought(statement) + link


def _bought(statement: PrivacyStatement) -> str:
    """What the budget bought, as bars with 95 % whiskers; nothing if that was not measured."""
    gain = gain_over_public({}, statement.details)
    found = statement.details.get("compared_with_public")
    names = ("accuracy_public", "accuracy", "accuracy_error")
    values = [number(found.get(name)) for name in names] if isinstance(found, Mapping) else [None]
    if gain is None or not all(value is not None and 0 <= value <= 1 for value in values):
        return "" if gain is None else f"<p>{html.escape(str(gain))}</p>"
    public, mine, error = (100 * (value or 0.0) for value in values)
    bars = [
        _bar(place, name, value, 1.96 * error, look)
        for place, (name, value, look) in enumerate(
            (("public records alone", public, "#d2632f"), ("this model", mine, "#2f88b5"))
        )
    ]
    return (
        f'<svg width="420" height="56" role="img" aria-label="{html.escape(str(gain))}">{"".join(bars)}</svg>'
        f"<p>{html.escape(str(gain))}</p>"
    )


def _bar(place: int, name: str, value: float, around: float, color: str) -> str:
    """A bar of up to 200 pixels, its whisker and its number."""
    y = 14 + 26 * place
    low, high = (150 + 2 * min(max(end, 0.0), 100.0) for end in (value - around, value + around))
    return (
        f'<text x="0" y="{y + 4}" font-size="13" fill="currentColor">{html.escape(name)}</text>'
        f'<rect x="150" y="{y - 7}" width="{2 * value:.1f}" height="14" fill="{color}"/>'
        f'<path d="M{low:.1f} {y}H{high:.1f}" stroke="currentColor" stroke-width="2"/>'
        f'<text x="358" y="{y + 4}" font-size="13" fill="currentColor">{value:.1f}\u202f%</text>'
    )


def _spent(statement: PrivacyStatement) -> str:
    if not math.isfinite(statement.epsilon):
        return "no guarantee: the private records were used without protection"
    if statement.epsilon == 0:
        return "nothing: no private record was used"
    receipt = statement.ledger
    paid = "" if receipt is None else f", run {receipt['run']} of dataset {receipt['dataset']}"
    return f"ε = {_number(statement.epsilon)}{paid}"


def _number(value: object) -> str:
    """A number as text, rounded upwards."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    return f"{rounded(value, 4, ROUND_CEILING):.4g}"
