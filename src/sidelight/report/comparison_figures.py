"""Methods compared: a panel for each ε, a row with an interval for each method, and the rest as a table."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from sidelight.arrays import Json
from sidelight.numbers import percent, pretty
from sidelight.report.card import Card, number
from sidelight.report.gain import lower_is_better
from sidelight.report.row_chart import Mark, Row, formatted, row_figure
from sidelight.report.words import in_words, label

_LOOKS = {"only_public": 1, "non_private": 7}  # as in every chart; private methods share the first color


@dataclass(frozen=True)
class _Score:
    method: str
    epsilon: float  # infinity: the same at every ε
    value: float
    interval: tuple[float, float] | None
    rank: float | None  # on synthetic rows, of a rehearsal


def comparison_figures(card: Card) -> list[Json]:
    """None of a card without scores over ε."""
    found = [score for row in card.comparison if (score := _read(row)) is not None]
    epsilons = sorted({one.epsilon for one in found if math.isfinite(one.epsilon) and one.epsilon > 0})
    name = str(card.scores.get("name", "score"))
    lower = lower_is_better(name)
    share = name == "accuracy" and all(0 <= one.value <= 1 for one in found)
    values = [v for one in found for v in (one.value, *(one.interval or ()))]
    panels = [[one for one in found if one.epsilon in (epsilon, math.inf)] for epsilon in epsilons]
    ends = (min(values), max(values)) if values and min(values) < max(values) else None
    return [
        row_figure(
            f"comparison-{place}", f"ε = {pretty(epsilon)}", _summary(panel, lower=lower, share=share),
            label(name), [_row(one) for one in _ordered(panel, found, lower=lower)], [label(name)],
            ends=ends, share=share, what="method",
        )
        for place, (epsilon, panel) in enumerate(zip(epsilons, panels, strict=True))
    ]  # fmt: skip


def _read(row: Json) -> _Score | None:
    value, epsilon = number(row.get("score")), number(row.get("epsilon"))
    if value is None or not math.isfinite(value):
        return None
    low, high, error = (number(row.get(key)) for key in ("low", "high", "error"))
    interval = None
    if low is not None and high is not None and math.isfinite(low) and math.isfinite(high):
        interval = (low, high)
    elif error is not None and math.isfinite(error) and error > 0:
        interval = (value - 2 * error, value + 2 * error)
    infinite = math.inf if epsilon is None else epsilon
    return _Score(str(row.get("method", "")), infinite, value, interval, number(row.get("on_synthetic_rows")))


def _ordered(panel: Sequence[_Score], every: Sequence[_Score], *, lower: bool) -> list[_Score]:
    """Private methods first, the best on average before the others: the same order in each panel."""
    values: dict[str, list[float]] = {}
    for one in every:
        values.setdefault(one.method, []).append(one.value)
    mean = {method: sum(found) / len(found) for method, found in values.items()}
    sign = 1 if lower else -1
    return sorted(panel, key=lambda one: (one.method in _LOOKS, sign * mean[one.method]))


def _row(one: _Score) -> Row:
    return Row(one.method, (Mark(one.value, one.interval, _LOOKS.get(one.method, 0)),))


def _summary(panel: Sequence[_Score], *, lower: bool, share: bool) -> str:
    """The best private method; of a rehearsal, by the rank on synthetic rows, and without a number."""
    private = [one for one in panel if one.method not in _LOOKS]
    if not private:
        return "No private method was tried."
    ranked = [one for one in private if one.rank is not None]
    if ranked:
        return f"{max(ranked, key=lambda one: one.rank or 0).method} is ahead on synthetic rows."
    best = (min if lower else max)(private, key=lambda one: one.value)
    which = "lowest" if lower else "highest"
    return f"The {which} private score is {formatted(best.value, share)}, by {best.method}."


def comparison_rows(card: Card) -> list[dict[str, str]]:
    """Every row of the comparison as text; a method whose score is the same at every ε is one row."""
    share = card.scores.get("name") == "accuracy"
    merged: dict[tuple[str, str, str], dict[str, str]] = {}
    for row in card.comparison:
        texts = {
            "method": in_words(row.get("method")),
            "epsilon": in_words(row.get("epsilon")),
            "score": _score_or_range(row, share),
            "error": _value(row.get("error"), share, 2),
            "note": str(row.get("note") or ""),
        }
        same = merged.setdefault((texts["method"], texts["score"], texts["note"]), texts)
        if same is not texts:
            same["epsilon"] = "any"
    return list(merged.values())


def _score_or_range(row: Json, share: bool) -> str:
    low, high = number(row.get("low")), number(row.get("high"))
    if low is None or high is None:
        return _value(row.get("score"), share, 4)
    return f"{_value(low, share, 2)} to {_value(high, share, 2)}"


def _value(value: object, share: bool, digits: int) -> str:
    parsed = number(value)
    if parsed is None:
        return in_words(value)
    return percent(parsed, digits) if share else pretty(parsed, digits)
