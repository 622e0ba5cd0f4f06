"""A schema from public rows. Nothing here ever sees a private one.

What a column is, is decided by `data.recognising`. There are knots only with at least 2 public rows for every
column of numbers: a hundred numbers that each bend three times are more than fifty rows can guide.

The target is a number to predict if it is numeric with more than min(20, rows/4) values (and more than 2);
otherwise its values are classes.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from sidelight.arrays import Array
from sidelight.data.frames import Frame, as_pandas
from sidelight.data.recognising import FEW_VALUES, HUGE, recognise, recognise_as
from sidelight.data.schema import Column, Schema, TargetColumn, Task
from sidelight.data.values import as_number, as_text
from sidelight.errors import InputError

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["learn", "learn_columns"]

_ROWS_PER_NUMBER = 2


def learn(
    public: Frame,
    target: str,
    *,
    task: Task | None = None,
    ignore: tuple[str, ...] = (),
    types: Mapping[str, str] | None = None,
) -> Schema:
    """The schema of a public frame."""
    frame = as_pandas(public, "the public table")
    names = list(frame.columns)
    if target not in names:
        near = difflib.get_close_matches(target, names, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"it has {_names(names)}"
        raise InputError(f"the public table has no column {target!r} to predict; {hint}")
    kinds = {**(types or {}), **dict.fromkeys(ignore, "ignore")}
    if unknown := [name for name in kinds if name not in names]:
        what = "ignore" if unknown[0] in ignore else f"read as {kinds[unknown[0]]}"
        raise InputError(f"the public table has no column {unknown[0]!r} to {what}; it has {_names(names)}")
    if target in kinds:
        what = "ignored" if target in ignore else "given the type of a feature; task says what it is"
        raise InputError(f"{target!r} is the target and cannot be {what}")
    columns = learn_columns(frame.drop(columns=target), kinds)
    return Schema(_target(frame[target], target, task), columns, "learned from the public table")


def learn_columns(public: pd.DataFrame, kinds: Mapping[str, str] = MappingProxyType({})) -> dict[str, Column]:
    """What the columns of public features are; `kinds` says it for some."""
    if not len(public):
        raise InputError("the public table has no rows to learn from; declare a schema instead")
    columns = {
        name: recognise_as(public[name], name, kinds[name])
        if name in kinds
        else recognise(public[name], name)
        for name in public.columns
    }
    if all(column.kind == "ignore" for column in columns.values()):
        name, column = next(iter(columns.items()), ("", Column("ignore")))
        why = f" ({name}: {column.note})" if name else ""
        raise InputError(f"no column of the public table can be used: all are ignored{why}")
    few = len(public) < _ROWS_PER_NUMBER * _numbers(columns)
    return _without_knots(columns) if few else columns


def _numbers(columns: dict[str, Column]) -> int:
    return sum(column.kind == "number" for column in columns.values())


def _without_knots(columns: dict[str, Column]) -> dict[str, Column]:
    """Straight lines: few public rows cannot guide the four pieces of every number."""
    return {
        name: replace(column, knots=(), note="" if column.note == FEW_VALUES else column.note)
        for name, column in columns.items()
    }


def _target(values: pd.Series, name: str, task: Task | None) -> TargetColumn:
    texts = as_text(values)
    empty = [i for i, text in enumerate(texts) if text is None]
    if empty:
        raise InputError(f"the public table has no {name!r} in record {empty[0] + 1}; remove or fill it")
    numbers = as_number(values)
    numeric = not np.isnan(numbers).any() and not set(texts) <= {"False", "True"}
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
    if not (np.abs(numbers) <= HUGE).all():
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


def _names(names: list[str], most: int = 8) -> str:
    listed = ", ".join(repr(name) for name in names[:most])
    return listed if len(names) <= most else f"{listed} and {len(names) - most} more"
