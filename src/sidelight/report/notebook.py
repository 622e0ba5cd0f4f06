"""A budget and what was spent of it: one line for a terminal, a small table for a notebook."""

from __future__ import annotations

import html
import math
from collections.abc import Mapping
from decimal import ROUND_CEILING

from sidelight.numbers import rounded
from sidelight.privacy.statement import PrivacyStatement

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
            "δ": "min(1e-5, n^-1.1)" if delta is None else _number(delta),
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


def budget_box(title: str, words: Mapping[str, str]) -> str:
    """The same as HTML, safe wherever a page shows it."""
    rows = "".join(
        f"<tr><th {_CELL}>{html.escape(name)}</th><td {_CELL}>{html.escape(text)}</td></tr>"
        for name, text in words.items()
    )
    return f"<table><caption {_CELL}>{html.escape(title)}</caption><tbody>{rows}</tbody></table>"


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
