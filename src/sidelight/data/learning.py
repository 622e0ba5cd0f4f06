"""A schema from public rows. Nothing here ever sees a private one.

The rules, in order, for a column of the public table:

    dates and lists                     ignored: write them as numbers or texts first
    no value, or a constant number      ignored: nothing to learn bounds from
    every value is a number             a number: bounds are the range of the values, knots their quartiles
    more than half of the values are    an error: more likely a slip than a text
    text, nearly all values different   ignored: an identifier
    other text, truth values            a category: the values seen, at most the 100 most frequent

There are knots only with at least 2 public rows for every column of numbers: a hundred numbers that each bend
three times are more than fifty rows can guide.

The target is a number to predict if it is numeric with more than min(20, rows/4) values (and more than 2);
otherwise its values are classes.
"""

from __future__ import annotations

import difflib
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from sidelight.arrays import Array
from sidelight.data.schema import Column, Schema, TargetColumn, Task
from sidelight.data.values import as_number, as_text
from sidelight.errors import InputError

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["learn"]

_MOST_CATEGORIES = 100
_HUGE = 1e300
_ROWS_PER_NUMBER = 2
_QUARTILES = (0.25, 0.5, 0.75)


def learn(
    public: pd.DataFrame, target: str, *, task: Task | None = None, ignore: tuple[str, ...] = ()
) -> Schema:
    """The schema of a public frame."""
    names = [str(name) for name in public.columns]
    if len(set(names)) < len(names):
        raise InputError("the public table has two columns of one name")
    if target not in names:
        near = difflib.get_close_matches(target, names, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"it has {_names(names)}"
        raise InputError(f"the public table has no column {target!r} to predict; {hint}")
    if unknown := [name for name in ignore if name not in names]:
        raise InputError(f"the public table has no column {unknown[0]!r} to ignore; it has {_names(names)}")
    if target in ignore:
        raise InputError(f"{target!r} is the target and cannot be ignored")
    if not len(public):
        raise InputError("the public table has no rows to learn from; declare a schema instead")
    columns = {
        name: Column("ignore", note="as you asked") if name in ignore else _column(public.iloc[:, i], name)
        for i, name in enumerate(names)
        if name != target
    }
    columns = _without_knots(columns) if len(public) < _ROWS_PER_NUMBER * _numbers(columns) else columns
    found = _target(public.iloc[:, names.index(target)], target, task)
    schema = Schema(found, columns, "learned from the public table")
    if not schema.used:
        raise InputError("no column of the public table can be used: all are ignored, empty or constant")
    return schema


def _numbers(columns: dict[str, Column]) -> int:
    return sum(column.kind == "number" for column in columns.values())


def _without_knots(columns: dict[str, Column]) -> dict[str, Column]:
    """Straight lines: few public rows cannot guide the four pieces of every number."""
    return {name: replace(column, knots=()) for name, column in columns.items()}


def _column(values: pd.Series, name: str) -> Column:
    if _is_date_or_nested(values):
        return Column("ignore", note="dates and lists are not used; write them as numbers or texts")
    texts = as_text(values)
    there = np.array([text is not None for text in texts], dtype=bool)
    if not there.any():
        return Column("ignore", note="no value in the public table; declare it, if it matters")
    if getattr(values.dtype, "kind", "O") != "b":
        numbers = as_number(values)[there]
        good = ~np.isnan(numbers)
        if good.all():
            return _number(numbers, name)
        if good.mean() > 0.5:
            row = int(np.flatnonzero(there)[np.flatnonzero(~good)[0]])
            raise InputError(
                f"column {name!r} of the public table holds numbers, but {texts[row]!r} in record {row + 1}; "
                "correct it, or declare the column in a schema file"
            )
    return _category([text for text in texts if text is not None])


def _number(numbers: NDArray[np.float64], name: str) -> Column:
    if not (np.abs(numbers) <= _HUGE).all():
        raise InputError(f"column {name!r} of the public table holds an infinite or huge number; correct it")
    low, high = float(numbers.min()), float(numbers.max())
    if low == high:
        return Column("ignore", note="constant in the public table; declare its bounds, if it matters")
    knots = np.unique(np.quantile(numbers, _QUARTILES)).tolist()
    return Column("number", (low, high), tuple(knot for knot in knots if low < knot < high))


def _category(texts: list[str]) -> Column:
    counts = Counter(texts)
    if len(texts) >= 20 and len(counts) > 0.9 * len(texts):
        return Column("ignore", note="looks like an identifier: nearly every value is its own")
    kept = sorted(text for text, _ in counts.most_common(_MOST_CATEGORIES))
    note = "" if len(counts) == len(kept) else f"the {len(kept)} most frequent of {len(counts)}"
    return Column("category", categories=tuple(kept), note=note)


def _target(values: pd.Series, name: str, task: Task | None) -> TargetColumn:
    texts = as_text(values)
    empty = [i for i, text in enumerate(texts) if text is None]
    if empty:
        raise InputError(f"the public table has no {name!r} in record {empty[0] + 1}; remove or fill it")
    numbers = as_number(values)
    numeric = not np.isnan(numbers).any() and getattr(values.dtype, "kind", "O") != "b"
    distinct = len(np.unique(numbers)) if numeric else len(set(texts))
    if task is None:
        many = distinct > max(2, min(20, len(texts) / 4))
        task = "regression" if numeric and many else "classification"
    if task == "regression":
        return _real_target(numbers, name, numeric)
    if distinct < 2:
        raise InputError(f"{name!r} has one value in the public table; a classifier needs two, or a schema")
    if numeric and not np.isfinite(numbers).all():
        raise InputError(f"{name!r} holds an infinite number in the public table; correct it")
    if distinct > len(texts) / 2 and distinct > 20:
        raise InputError(f"{name!r} has {distinct} values in {len(texts)} public rows: too many for classes")
    return TargetColumn(name, "classification", _labels(numbers if numeric else texts))


def _real_target(numbers: NDArray[np.float64], name: str, numeric: bool) -> TargetColumn:
    if not numeric:
        raise InputError(f"{name!r} is not a number in every public row, as a regression needs")
    if not (np.abs(numbers) <= _HUGE).all():
        raise InputError(f"{name!r} holds an infinite or huge number in the public table; correct it")
    low, high = float(numbers.min()), float(numbers.max())
    if low == high:
        raise InputError(f"{name!r} is the same in every public row; declare its bounds in a schema file")
    return TargetColumn(name, "regression", bounds=(low, high))


def _labels(values: Array) -> tuple[str | float, ...]:
    labels = sorted(set(values.tolist()))
    if not isinstance(labels[0], float):
        return tuple(labels)
    return tuple(int(label) if label.is_integer() else label for label in labels)


def _is_date_or_nested(values: pd.Series) -> bool:
    if getattr(values.dtype, "kind", "O") in "mM":
        return True
    return any(
        isinstance(value, list | dict | tuple | set | np.ndarray) for value in values.head(100).tolist()
    )


def _names(names: list[str], most: int = 8) -> str:
    listed = ", ".join(repr(name) for name in names[:most])
    return listed if len(names) <= most else f"{listed} and {len(names) - most} more"
