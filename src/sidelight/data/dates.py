"""The columns of a date: one or more for each of its parts (`data.calendar`), and one for a missing one.

Parts are weighted by 1/√k if there are k of them, so that a date is no longer than a number or a category.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from sidelight.data.calendar import Part, hours, seasons, spanned_years, weekdays, years
from sidelight.data.date_values import iso_of
from sidelight.data.schema import Column

__all__ = ["date_limits", "date_names", "fill_date"]

_DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")


def date_names(column: Column) -> list[str]:
    return [*(name for part in column.parts for name in _names(part, column)), "missing"]


def date_limits(column: Column) -> list[tuple[float, float, float]]:
    """(lower, upper, centre) of each column."""
    wide = math.sqrt(len(column.parts))
    shapes = {
        "position": (0.5 - wide / 2, 0.5 + wide / 2, 0.5),
        "year": (0.0, wide, 0.0),
        "month": (-wide, wide, 0.0),
        "weekday": (0.0, wide, 0.0),
        "hour": (-wide, wide, 0.0),
    }
    parts = [shapes[part] for part in column.parts for _ in _names(part, column)]
    return [*parts, (0.0, 1.0, 0.0)]


def fill_date(out: NDArray[np.float32], moments: NDArray[np.float64], column: Column) -> None:
    """`out` is zeros. A missing date is the middle of its range, and in no year, season, day or hour."""
    there = ~np.isnan(moments)
    known, at = moments[there], 0
    for part in column.parts:
        width = len(_names(part, column))
        out[there, at : at + width] = _values(part, known, column)
        if part == "position":
            out[~there, at] = 0.5
        at += width
    out[:, -1] = ~there


def _values(part: Part, known: NDArray[np.float64], column: Column) -> NDArray[np.float64]:
    low, high = column.bounds or (0.0, 1.0)
    if part == "position":
        return np.clip((known - low) / (high - low), 0, 1)[:, None]
    if part == "year":
        first = spanned_years((low, high))
        return _one_hot(years(np.clip(known, low, high)) - first[0], len(first))
    if part == "weekday":
        return _one_hot(weekdays(known), 7)
    angle = seasons(known) if part == "month" else hours(known)
    return np.column_stack([np.sin(angle), np.cos(angle)])


def _one_hot(places: NDArray[np.int64], size: int) -> NDArray[np.float64]:
    return np.asarray(places[:, None] == np.arange(size), dtype=np.float64)


def _names(part: Part, column: Column) -> list[str]:
    low, high = column.bounds or (0.0, 1.0)
    if part == "position":
        return [f"{iso_of(low)} to {iso_of(high)}"]
    if part == "year":
        return [f"in {year}" for year in spanned_years((low, high))]
    if part == "weekday":
        return [f"on {day}" for day in _DAYS]
    return [f"sine of the {part}", f"cosine of the {part}"]
