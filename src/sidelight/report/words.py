"""Single values of a card as words."""

from __future__ import annotations

from sidelight.numbers import pretty
from sidelight.report.card import number


def label(key: object) -> str:
    """A key of a dictionary as words."""
    return str(key).replace("_", " ")


def in_words(value: object) -> str:
    """A single value as words."""
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, str) and (parsed := number(value)) is not None:
        return pretty(parsed)
    return pretty(value)
