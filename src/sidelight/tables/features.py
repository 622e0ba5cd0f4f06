"""Records of a table as rows of numbers, through a schema.

    number    one ramp for each piece between its bounds and knots: 0 below the piece, 1 above it, a line
              within (all ½ if it is missing), and a 0/1 column that says so
    category  one 0/1 column for each category, one for any other value, one for a missing one

What a record becomes depends on that record and the schema alone, and no value is an error.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from sidelight.arrays import Array
from sidelight.data.bounding import Bounds
from sidelight.data.schema import Column, Schema
from sidelight.data.values import as_number, of_text

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["FeaturePlan", "encode_target"]


class FeaturePlan:
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

    def encode(self, frame: pd.DataFrame) -> NDArray[np.float32]:
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
        return [*(f"{low:g} to {high:g}" for low, high in _pieces(column)), "missing"]
    return [*(f"= {category}" for category in column.categories), "other", "missing"]


def _pieces(column: Column) -> list[tuple[float, float]]:
    """Of a number; ends are the bounds, which may be the same."""
    low, high = column.bounds or (0.0, 0.0)  # a number has bounds, or a schema refuses it
    return list(pairwise((low, *column.knots, high)))


def _limits(column: Column) -> list[tuple[float, float, float]]:
    """(lower, upper, centre) of each part; wider than needed for ramps, so that k of them weigh 1/√k each."""
    indicator = (0.0, 1.0, 0.0)
    if column.kind == "category":
        return [indicator] * len(_parts(column))
    pieces = len(_pieces(column))
    half = math.sqrt(pieces) / 2
    return [*([(0.5 - half, 0.5 + half, 0.5)] * pieces), indicator]


def _fill_number(out: NDArray[np.float32], values: pd.Series, column: Column) -> None:
    numbers = as_number(values)
    missing = np.isnan(numbers)
    for i, (low, high) in enumerate(_pieces(column)):
        width = high / 2 - low / 2  # halves: the difference of two large bounds may overflow
        ramp = (np.clip(numbers, low, high) / 2 - low / 2) / width if width > 0 else 0.5
        out[:, i] = np.where(missing, 0.5, np.clip(ramp, 0, 1))
    out[:, -1] = missing


def _fill_category(out: NDArray[np.float32], values: pd.Series, column: Column) -> None:
    other = len(column.categories)
    positions: dict[str | None, int] = {category: i for i, category in enumerate(column.categories)}
    positions[None] = other + 1
    hot = np.array(of_text(values, lambda text: positions.get(text, other)), dtype=np.intp)
    out[np.arange(len(out)), hot] = 1


def encode_target(schema: Schema, values: pd.Series) -> Array:
    """Labels or numbers as the estimator takes them; None or NaN for what is neither, which is no error."""
    target = schema.target
    if target.task == "regression":
        return as_number(values)
    if not isinstance(target.classes[0], str):
        numbers = as_number(values)
        return np.where(np.isin(numbers, np.asarray(target.classes, dtype=np.float64)), numbers, np.nan)
    known = set(target.classes)
    labels = np.empty(len(values), dtype=object)
    labels[:] = of_text(values, lambda text: text if text in known else None)
    return labels
