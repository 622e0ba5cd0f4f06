"""Scores of a model on a screen: what it must beat, every score with its interval, the confusion table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sidelight.numbers import percent, pretty
from sidelight.scoring import NAMES

if TYPE_CHECKING:
    from sidelight.arrays import Json

__all__ = ["score_lines"]

_SHARES = ("accuracy", "balanced_accuracy")
_MOST_CLASSES = 8  # of a confusion table that fits a screen
_WHO = {"model": "this model", "only_public": "only_public"}


def score_lines(scores: Json) -> list[str]:
    """The scores of `tables.fitting`, in lines; never more digits than the rows allow."""
    if not scores:
        return ["not known: no public rows were held out (--validation)"]
    lines = [_without_features(scores), *_measures(scores)]
    if "difference" in scores:
        lines.append(_difference(scores))
    lines += _confusion(scores.get("confusion"))
    return lines


def _without_features(scores: Json) -> str:
    rows = f"{scores['rows']} public rows held out"
    if "majority" in scores:
        return f"{percent(scores['majority'], 3)} of the {rows} are {scores['majority_label']!r}: beat that"
    mean = pretty(scores["always_the_mean"], 3)
    return f"always the mean has a root mean squared error of {mean} on the {rows}: beat that"


def _measures(scores: Json) -> list[str]:
    who = [name for name in _WHO if any(name in found for found in scores["measures"].values())]
    cells = [["", *(_WHO[name] for name in who)]]
    for name, found in scores["measures"].items():
        cells.append([NAMES[name], *(_value(name, found.get(one)) for one in who)])
    return _aligned(cells)


def _value(name: str, found: Json | None) -> str:
    if found is None:
        return "–"
    value = _number(name, found["value"])
    if "by_chance" in found:
        return f"{value} (by chance up to {_number(name, found['by_chance'])})"
    return f"{value} ({_number(name, found['low'])} to {_number(name, found['high'])})"


def _number(name: str, value: float) -> str:
    return percent(value, 3) if name in _SHARES else pretty(value, 3)


def _difference(scores: Json) -> str:
    name = scores["name"]
    value, error = scores["difference"], scores["difference_error"]
    sign, unit = ("+" if value >= 0 else "−"), ""
    if name in _SHARES:
        value, error, unit = 100 * value, 100 * error, " points"
    return f"{NAMES[name]} over only_public: {sign}{pretty(abs(value), 3)} ± {pretty(error, 2)}{unit}"


def _confusion(found: Json | None) -> list[str]:
    if found is None or len(found["labels"]) > _MOST_CLASSES:
        return []
    labels = [str(label) for label in found["labels"]]
    cells = [["true \\ predicted", *labels]]
    cells += [[label, *map(str, row)] for label, row in zip(labels, found["counts"], strict=True)]
    return _aligned(cells)


def _aligned(cells: list[list[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return ["  ".join(f"{c:<{w}}" for c, w in zip(row, widths, strict=True)).rstrip() for row in cells]
