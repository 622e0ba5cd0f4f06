"""Private tables and targets as arrays, value by value.

Public are the type of a container (an array and its dtype, a frame and the types of its columns, a list) and
its shape: how many records, how many values each. They decide what is refused. Its contents decide nothing.
NumPy would let them: one None in a list makes an array of objects, one text turns all numbers into texts, one
nested list is an error. So lists and arrays of objects are read here value by value: a number, or a text that
is one, is that number, and anything else is NaN, which makes a null record. The shape of a record in a list
is the one that more than half of them have; a record of another shape is a null record. A frame's column of
objects or texts is read likewise, and never refused for what it holds: that half of its values are no numbers
is up to one of them. A public column that is no number is refused, and so is a type that no number has.
"""

from __future__ import annotations

import array
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from sidelight.data import cells, checks
from sidelight.data.frames import cells_of, is_frame, objects_of, series_values, storage
from sidelight.data.sparse_rows import sound_sparse
from sidelight.data.values import guarded, number_of
from sidelight.errors import InputError

__all__ = ["private_array", "private_table", "private_targets", "read_off"]

_NUMBERS = "biuf"
_FLOATS = (np.float32, np.float64)
_LISTS: tuple[Any, ...] = (list, tuple, range, array.array)
_DEEPEST = 16  # dimensions of a record
_EXACT, _LOOSE = ("number", "truth"), ("text", "any")  # columns of polars


def read_off(what: str) -> str:
    """The line of a statement for what `assume_public` allowed."""
    named = what.replace("_", " ")
    return f"the {named} were read off the private records, as if they were public knowledge"


def private_table(X: Any, *, name: str = "X", advice: str = checks.ENCODE) -> Any:
    """A sparse matrix as it is, or a matrix of floats; `advice` is for columns that are no numbers."""
    if sp.issparse(X):
        checks.check_type(X.dtype, name)
        return sound_sparse(X, name)
    found = private_array(X, name=name, advice=advice)
    checks.check_matrix(found, name)
    return found


def private_array(X: Any, *, name: str = "X", advice: str = checks.ENCODE) -> NDArray[Any]:
    """Floats of any dimension, from an array, a frame or nested lists."""
    if is_frame(X):
        return _of_frame(X, name, advice) if hasattr(type(X), "iloc") else _of_other_frame(X, name, advice)
    if _is_list(X):
        return _of_lists(list(X), name)
    found = checks.as_array(X, name)
    if found.dtype == object and found.ndim == 1:  # what NumPy makes of rows of which one is odd
        return _of_lists(found.tolist(), name)
    if found.dtype == object:
        return _numbers(found.ravel().tolist(), found.shape)
    checks.check_type(found.dtype, name)
    if np.ma.isMaskedArray(X):
        found = np.where(np.ma.getmaskarray(X), np.nan, _floats(found))
    return _floats(found)


def private_targets(y: Any, *, rows: int, real: bool) -> NDArray[Any]:
    """One target a record: floats if `real`, else labels as they are (objects, if they come in a list)."""
    y = series_values(y)
    if _is_list(y):
        y = _column(list(y))
    elif _is_extension(y):
        y = _of_extension(y)
    targets = checks.check_vector(y, rows=rows, stacklevel=5)
    if not real:
        return checks.check_real(targets) if targets.dtype.kind == "c" else targets
    if targets.dtype == object:
        return _numbers(targets.tolist(), targets.shape)
    return _floats(checks.check_real(targets))


def _floats(found: NDArray[Any]) -> NDArray[Any]:
    with np.errstate(all="ignore"):  # a long double beyond float64 becomes infinite
        return found if found.dtype in _FLOATS else found.astype(np.float64)


def _numbers(values: list[Any], shape: tuple[int, ...]) -> NDArray[np.float64]:
    return np.fromiter((number_of(one) for one in values), dtype=np.float64, count=len(values)).reshape(shape)


# ---------------------------------------------------------------------------------------------------
# frames


def _of_frame(X: Any, name: str, advice: str) -> NDArray[Any]:
    """A column by its type: floats, with NaN for what is missing or, among objects and texts, no number.

    Always in float64: a record of odd cells turns columns of float32 into objects, and would otherwise decide
    how all others are rounded.
    """
    loose = [_is_loose(kind) for kind in X.dtypes]
    checks.check_columns(X.iloc[:, [i for i, one in enumerate(loose) if not one]], name, advice)
    kinds = set(X.dtypes)
    if len(kinds) == 1 and not any(loose) and isinstance(next(iter(kinds)), np.dtype):
        return _floats(X.to_numpy()).astype(np.float64, copy=False)
    found = np.empty(X.shape, dtype=np.float64)
    with np.errstate(all="ignore"):
        for i in range(X.shape[1]):
            column = X.iloc[:, i]
            if loose[i]:
                values = (_of_extension(column) if _is_extension(column) else column.to_numpy()).tolist()
                found[:, i] = _numbers(values, (len(values),))
            else:
                found[:, i] = column.to_numpy(dtype=np.float64, na_value=np.nan)
    return found


def _of_other_frame(X: Any, name: str, advice: str) -> NDArray[np.float64]:
    """The same of a frame of polars: by the types of its columns, and texts and objects value by value."""
    kinds = storage(X)
    checks.refuse_columns([one for one, kind in kinds.items() if kind not in _LOOSE + _EXACT], name, advice)
    found = np.empty((len(X), len(kinds)))
    for i, kind in enumerate(kinds.values()):
        if kind in _EXACT:
            found[:, i] = cells.numbers(cells_of(X, i, slice(None)))
        else:
            values = objects_of(X, i)
            found[:, i] = _numbers(values, (len(values),))
    return found


def _is_loose(kind: Any) -> bool:
    """One odd cell is enough to make a column of numbers one of objects or texts."""
    return getattr(kind, "kind", "f") in "OSUT" and str(kind) != "category"


def _is_extension(y: Any) -> bool:
    """A column of pandas that is no array of NumPy: nullable numbers, categories, Arrow."""
    kind = getattr(y, "dtype", None)
    return kind is not None and not isinstance(kind, np.dtype) and hasattr(y, "to_numpy")


def _of_extension(y: Any) -> NDArray[Any]:
    if getattr(y.dtype, "kind", "O") in _NUMBERS:
        return np.asarray(y.to_numpy(dtype=np.float64, na_value=np.nan))
    found: NDArray[Any] | None = guarded(lambda some: some.to_numpy(dtype=object), y, None)
    if found is None:  # a value that cannot be taken out of its column
        found = np.fromiter((guarded(lambda i: y[i], i, None) for i in range(len(y))), object, count=len(y))
    return found


# ---------------------------------------------------------------------------------------------------
# lists


def _of_lists(X: list[Any], name: str) -> NDArray[np.float64]:
    """A list of records, each read alone in the shape of most; one of another shape is all NaN."""
    shape = _shape_of_most(X)
    if shape is None:
        raise InputError(f"{name} must be an array; its rows are not all of one length")
    found = np.full((len(X), *shape), np.nan)
    for place, record in enumerate(X):
        _read(record, found[place : place + 1].reshape(shape, copy=False), shape)
    return found


def _read(record: Any, into: NDArray[np.float64], shape: tuple[int, ...]) -> None:
    """Fill in the numbers of a record of this shape; what is not of it stays NaN."""
    if not shape:
        into[...] = number_of(record)
    elif type(record) is np.ndarray and record.dtype.kind in _NUMBERS:
        if record.shape == shape:
            into[...] = _floats(record)
    elif (cells := _cells(record, shape[0])) is not None:
        if len(shape) == 1:
            into[:] = [number_of(cell) for cell in cells]
        else:
            for part, cell in zip(into, cells, strict=True):
                _read(cell, part, shape[1:])


def _column(y: list[Any]) -> Any:
    """A list of targets; one of columns, if most targets are rows."""
    shape = _shape_of_most(y)
    if shape is None and 2 * sum(_length(target) is not None for target in y) > len(y):
        raise InputError("y should be a 1d array, and not rows of several lengths")
    if not shape:
        return np.fromiter(y, dtype=object, count=len(y))
    found = np.full((len(y), shape[0]), None, dtype=object)
    for place, target in enumerate(y):
        for column, cell in enumerate(_cells(target, shape[0]) or ()):
            found[place, column] = cell
    return found


def _shape_of_most(records: list[Any]) -> tuple[int, ...] | None:
    """The shape that more than half of the records have, which no single odd one decides; None if none."""
    counts = Counter(_shape(record) for record in records)
    if not counts:
        return ()
    shape, count = counts.most_common(1)[0]
    return shape if 2 * count > len(records) else None


def _shape(record: Any) -> tuple[int, ...]:
    """Of one record: (p,) for a row of p values, (h, w) for h rows of which the first has w, () for a value.

    Only the first of several rows is looked into, so that a record which holds itself, or a thousand copies
    of another list at every level, takes no longer than its depth.
    """
    shape: list[int] = []
    while len(shape) < _DEEPEST and (length := _length(record)) is not None:
        shape.append(length)
        cells = _cells(record, length) if _may_hold_rows(record) else None
        if not cells or not all(_length(cell) is not None for cell in cells):
            break
        record = cells[0]
    return tuple(shape)


def _is_list(container: Any) -> bool:
    return issubclass(type(container), Sequence) and not issubclass(type(container), str | bytes | bytearray)


def _may_hold_rows(row: Any) -> bool:
    return not issubclass(type(row), range | array.array)


def _length(value: Any) -> int | None:
    """How many values a row has; None for what is no row."""
    kind = type(value)
    for base in _LISTS:
        if issubclass(kind, base):
            length: int | None = guarded(base.__len__, value, None)
            return length
    found = _as_array(value)
    return None if found is None or found.ndim == 0 else len(found)


def _cells(row: Any, length: int) -> list[Any] | None:
    """The values of a row of this length; None for anything else."""
    if _length(row) != length:
        return None
    kind = type(row)
    for base in _LISTS:
        if issubclass(kind, base):
            return list(base.__getitem__(row, slice(None)))
    found = _as_array(row)
    return None if found is None or len(found) != length else list(found)


def _as_array(value: Any) -> NDArray[Any] | None:
    """An array, or what makes itself one (a tensor, a column of a frame)."""
    kind = type(value)
    if issubclass(kind, np.generic) or not hasattr(kind, "__array__"):
        return None
    found = guarded(np.asarray, value, None)
    return found if type(found) is np.ndarray else None
