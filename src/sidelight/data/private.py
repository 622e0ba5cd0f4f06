"""Private tables and targets as arrays, value by value.

Public are the type of a container (an array and its dtype, a frame and the types of its columns, a list) and
its shape: how many records, how many values each. They decide what is refused. Its contents decide nothing.
NumPy would let them: one None in a list makes an array of objects, one text turns all numbers into texts, one
nested list is an error. So lists and arrays of objects are read here value by value: a number, or a text that
is one, is that number, and anything else is NaN, which makes a null record.
"""

from __future__ import annotations

import array
from collections.abc import Sequence
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from sidelight.data import checks
from sidelight.data.values import guarded, number_of
from sidelight.errors import InputError

__all__ = ["private_array", "private_table", "private_targets", "read_off"]

_NUMBERS = "biuf"
_FLOATS = (np.float32, np.float64)
_ROWS = (list, tuple, np.ndarray, range, array.array)


def read_off(what: str) -> str:
    """The line of a statement for what `assume_public` allowed."""
    named = what.replace("_", " ")
    return f"the {named} were read off the private records, as if they were public knowledge"


def private_table(X: Any, *, name: str = "X") -> Any:
    """A sparse matrix as it is, or a matrix of floats."""
    if sp.issparse(X):
        checks.check_type(X.dtype, name)
        return X
    found = private_array(X, name=name)
    checks.check_matrix(found, name)
    return found


def private_array(X: Any, *, name: str = "X") -> NDArray[Any]:
    """Floats of any dimension, from an array, a frame or nested lists."""
    if checks.is_frame(X):
        checks.check_columns(X, name)
        if hasattr(X, "iloc"):
            return _of_frame(X)
    if _is_list(X):
        return _of_lists(list(X), name)
    found = checks.as_array(X, name)
    if found.dtype == object:
        return _numbers(found.ravel().tolist(), found.shape)
    checks.check_type(found.dtype, name)
    if np.ma.isMaskedArray(X):
        found = np.where(np.ma.getmaskarray(X), np.nan, _floats(found))
    return _floats(found)


def private_targets(y: Any, *, rows: int, real: bool) -> NDArray[Any]:
    """One target a record: floats if `real`, else labels as they are (objects, if they come in a list)."""
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


def _of_frame(X: Any) -> NDArray[Any]:
    """A column by its type: floats, with NaN for what is missing."""
    kinds = set(X.dtypes)
    if len(kinds) == 1 and isinstance(next(iter(kinds)), np.dtype):
        return _floats(X.to_numpy())
    found = np.empty(X.shape, dtype=np.float64)
    with np.errstate(all="ignore"):
        for i in range(X.shape[1]):
            found[:, i] = X.iloc[:, i].to_numpy(dtype=np.float64, na_value=np.nan)
    return found


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


def _of_lists(X: list[Any], name: str) -> NDArray[Any]:
    """A list of rows. Its shape is what all rows agree on; values that are no numbers are NaN."""
    if not any(_is_row(row) for row in X):
        return _numbers(X, (len(X),))
    rows = [_cells(row) if _is_row(row) else [] for row in X]
    if len({len(row) for row in rows}) > 1:
        raise InputError(f"{name} must be an array; its rows are not all of one length")
    cells = [cell for row in rows for cell in row]
    if cells and all(_is_row(cell) for cell in cells):
        return _deeper(X, name)
    return _numbers(cells, (len(rows), len(rows[0])))


def _deeper(X: list[Any], name: str) -> NDArray[Any]:
    """Records that are lists of lists."""
    found: NDArray[Any] | None = guarded(np.asarray, X, None)
    if found is None or found.dtype.kind not in _NUMBERS:
        raise InputError(f"{name} must be an array if a record has more than one dimension, not lists")
    return _floats(found)


def _column(y: list[Any]) -> Any:
    """A list of targets; one of columns, if every target is a row."""
    if len(y) and all(_is_row(one) for one in y):
        cells = [_cells(one) for one in y]
        if len({len(row) for row in cells}) > 1:
            raise InputError("y should be a 1d array, and not rows of several lengths")
        flat = [one for row in cells for one in row]
        return np.fromiter(flat, dtype=object, count=len(flat)).reshape(len(cells), -1)
    return np.fromiter(y, dtype=object, count=len(y))


def _is_list(container: Any) -> bool:
    return issubclass(type(container), Sequence) and not issubclass(type(container), str | bytes | bytearray)


def _is_row(value: Any) -> bool:
    kind = type(value)
    if issubclass(kind, np.ndarray):
        return bool(value.ndim > 0)
    return issubclass(kind, _ROWS) or (hasattr(kind, "__array__") and not issubclass(kind, np.generic))


def _cells(row: Any) -> list[Any]:
    kind = type(row)
    if issubclass(kind, list | tuple):
        base: Any = list if issubclass(kind, list) else tuple
        return list(base.__getitem__(row, slice(None)))
    return guarded(lambda some: list(np.asarray(some)), row, [])
