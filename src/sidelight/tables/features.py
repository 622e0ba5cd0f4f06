"""Records of a table as rows of numbers, through a schema.

    number    its value (clipped into the bounds, scaled, `typical` at 0), what is above each knot, and 1 if
              it is missing (its value is then `typical`)
    category  one 0/1 column for each category, one for any other value, one for a missing one

What a record becomes depends on that record and the schema alone, and no value is an error.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from sidelight.data.bounding import Bounds
from sidelight.data.schema import Column, Schema
from sidelight.data.tables import as_number, as_text

__all__ = ["Features", "encode_target"]

Floats = NDArray[np.float64]


class Features:
    """The encoding that a schema describes."""

    def __init__(self, schema: Schema) -> None:
        self.schema = schema
        self.names = [f"{name}: {part}" for name, column in schema.used.items() for part in _parts(column)]

    @property
    def size(self) -> int:
        return len(self.names)

    def bounds(self) -> Bounds:
        """Of every encoded column, and what maps to 0."""
        rows = [limit for column in self.schema.used.values() for limit in _limits(column)]
        lower, upper, centre = (np.array(side, dtype=np.float64) for side in zip(*rows, strict=True))
        return Bounds(lower, upper, centre)

    def encode(self, frame: Any) -> NDArray[np.float32]:
        """(n, size) numbers of a frame that has the columns of the schema, in any order."""
        out = np.zeros((len(frame), self.size), dtype=np.float32)
        at = 0
        for name, column in self.schema.used.items():
            width = len(_parts(column))
            fill = _fill_number if column.kind == "number" else _fill_category
            fill(out[:, at : at + width], frame[name], column)
            at += width
        return out


def _parts(column: Column) -> list[str]:
    if column.kind == "number":
        return ["value", *(f"above {knot:g}" for knot in column.knots), "missing"]
    return [*(f"= {one}" for one in column.categories), "other", "missing"]


def _limits(column: Column) -> list[tuple[float, float, float]]:
    """(lower, upper, centre) of each part."""
    if column.kind == "category":
        return [(0.0, 1.0, 0.0)] * len(_parts(column))
    value = (-1.0, 1.0, 0.0)
    return [value, *([(0.0, 1.0, 0.0)] * len(column.knots)), (0.0, 1.0, 0.0)]


def _fill_number(out: NDArray[np.float32], values: Any, column: Column) -> None:
    assert column.bounds is not None
    low, high = column.bounds
    typical = low / 2 + high / 2 if column.typical is None else column.typical
    numbers = as_number(values)
    missing = np.isnan(numbers)
    x = _scaled(np.clip(np.where(missing, typical, numbers), low, high), column)
    low, high, middle = (float(_scaled(np.array(one), column)) for one in (low, high, typical))
    reach = max(high - middle, middle - low)
    if reach > 0:
        out[:, 0] = np.clip((x - middle) / reach, -1, 1)
    for i, knot in enumerate(column.knots, 1):
        start = float(_scaled(np.array(knot), column))
        out[:, i] = np.clip((x - start) / (high - start), 0, 1)
    out[:, -1] = missing


def _scaled(x: Any, column: Column) -> Any:
    return np.sign(x) * np.log1p(np.abs(x)) if column.scale == "log" else np.asarray(x, dtype=np.float64)


def _fill_category(out: NDArray[np.float32], values: Any, column: Column) -> None:
    other = len(column.categories)
    places: dict[str | None, int] = {one: i for i, one in enumerate(column.categories)}
    places[None] = other + 1
    found = np.fromiter((places.get(one, other) for one in as_text(values)), dtype=np.intp, count=len(out))
    out[np.arange(len(out)), found] = 1


def encode_target(schema: Schema, values: Any) -> NDArray[Any]:
    """Labels or numbers as the estimator takes them; None or NaN for what is neither, which is no error."""
    target = schema.target
    if target.task == "regression":
        return as_number(values)
    if not isinstance(target.classes[0], str):
        numbers = as_number(values)
        return np.where(np.isin(numbers, np.asarray(target.classes, dtype=np.float64)), numbers, np.nan)
    known = set(target.classes)
    labels = np.empty(len(values), dtype=object)
    labels[:] = [one if one in known else None for one in as_text(values)]
    return labels
