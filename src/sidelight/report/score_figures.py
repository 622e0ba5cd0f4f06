"""The scores of a card beyond the first: every measure with its interval, confusion, and reliability.

A card may have been edited by hand: what does not have the shape that `tables.fitting` writes is left out.
"""

from __future__ import annotations

import math

from sidelight.arrays import Json
from sidelight.numbers import percent, pretty
from sidelight.report.card import Card, number
from sidelight.report.charts import Chart, Series
from sidelight.scoring import NAMES

__all__ = ["confusion_table", "measure_table", "reliability_chart"]

_SHARES = ("accuracy", "balanced_accuracy")
_WHO = {"model": "this model", "only_public": "public records alone"}
_MOST_CLASSES = 20


def measure_table(card: Card) -> Json | None:
    """A row for each score, a column for each model: the value, and its 95 % interval."""
    measures = card.scores.get("measures")
    if not isinstance(measures, dict):
        return None
    known = {name: found for name, found in measures.items() if isinstance(found, dict) and name in NAMES}
    who = [one for one in _WHO if any(one in found for found in known.values())]
    rows = [(NAMES[name], [_cell(name, found.get(one)) for one in who]) for name, found in known.items()]
    return {"head": [_WHO[one] for one in who], "rows": rows} if rows and who else None


def _cell(name: str, found: object) -> tuple[str, str]:
    """The value, and what is known of its error."""
    if not isinstance(found, dict):
        return "–", ""
    value, low, high, chance = (number(found.get(key)) for key in ("value", "low", "high", "by_chance"))
    if value is None:
        return "–", ""
    if chance is not None:
        return _text(name, value), f"by chance up to {_text(name, chance)}"
    if low is None or high is None:
        return _text(name, value), ""
    return _text(name, value), f"{_text(name, low)} to {_text(name, high)}"


def _text(name: str, value: float) -> str:
    return percent(value, 3) if name in _SHARES else pretty(value, 3)


def confusion_table(card: Card) -> Json | None:
    """Counts of public records: a row for each true label, a column for each predicted one."""
    found = card.scores.get("confusion")
    if not isinstance(found, dict):
        return None
    labels, counts = found.get("labels"), found.get("counts")
    if not (isinstance(labels, list) and isinstance(counts, list) and 2 <= len(labels) <= _MOST_CLASSES):
        return None
    square = len(counts) == len(labels) and all(
        isinstance(row, list) and len(row) == len(labels) and all(number(c) is not None for c in row)
        for row in counts
    )
    if not square:
        return None
    rows = [
        (str(label), [(pretty(count), i == k) for k, count in enumerate(row)])
        for i, (label, row) in enumerate(zip(labels, counts, strict=True))
    ]
    return {"labels": [str(label) for label in labels], "rows": rows}


def reliability_chart(card: Card) -> Chart | None:
    """How often it is so, against how likely the model says it is; true probabilities are on the diagonal."""
    rows = card.scores.get("reliability")
    points = [_point(row) for row in rows] if isinstance(rows, list) else []
    known = sorted(point for point in points if point is not None)
    if not known:
        return None
    xs, ys, errors = ([point[k] for point in known] for k in range(3))
    worst = max(known, key=lambda point: abs(point[0] - point[1]))
    summary = f"Where it says {percent(worst[0], 3)}, it is {percent(worst[1], 3)}: the largest distance."
    return Chart(
        "reliability", "Are the probabilities true?", summary, "probability that the model gives",
        "how often it is so",
        (
            Series("this model", xs, ys, errors, look=0, markers=True),
            Series("true probabilities", [0.0, 1.0], [0.0, 1.0], look="guide"),
        ),
        x_range=(0, 1), y_range=(0, 1), x_percent=True, y_percent=True, size=(360, 320),
    )  # fmt: skip


def _point(row: object) -> tuple[float, float, float] | None:
    if not isinstance(row, dict):
        return None
    x, y, low, high = (number(row.get(key)) for key in ("predicted", "observed", "low", "high"))
    if x is None or y is None or not (0 <= x <= 1 and 0 <= y <= 1):
        return None
    error = 0.0 if low is None or high is None else (high - low) / 2
    return x, y, error if math.isfinite(error) and error >= 0 else 0.0
