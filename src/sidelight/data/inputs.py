"""X and y as users pass them, private or public, as arrays.

Public are the kind of a container (an array, a frame and the names of its columns, a list) and its shape: how
many records, how many values each. They decide what is refused. scikit-learn's own messages quote the array
for some faults (one dimension, complex numbers, text), and so a private value: those faults are found here
first.

The contents of a private container decide nothing. NumPy would let them: one None in a list makes an array of
objects, one text turns all numbers into texts, one complex number makes all of them complex, one nested list
is an error. So lists and arrays of objects, texts or complex numbers are read here value by value: a number,
or a text that is one, is that number, true and false are 1 and 0, and anything else is NaN, which makes a
null record. The shape of a record in a list is the one that more than half of them have; a record of another
shape is a null record. A frame's column of objects or texts is read likewise, and never refused for what it
holds: that half of its values are no numbers is up to one of them. A public column that is no number is
refused, and so is a type that no number can take, such as dates.

Where an entry of a sparse matrix stands is as private as its value: one beyond the last column makes its
record null. What is no matrix at all (pointers that go back, entries beyond the last record) is refused.
"""

from __future__ import annotations

import array
import math
import warnings
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeGuard

import numpy as np
import scipy.sparse as sp
from numpy.typing import ArrayLike
from sklearn.exceptions import DataConversionWarning

from sidelight.arrays import Array, Floats, Matrix, TableLike
from sidelight.data.frames import Frame, column_of, is_frame, objects_of, series_values, storage
from sidelight.data.values import as_number, guarded, is_a, number_of, text_of
from sidelight.errors import INTERRUPTS, InputError, listed

if TYPE_CHECKING:
    import pandas as pd
    from scipy.sparse import csr_array

__all__ = [
    "ENCODE",
    "check_same_columns",
    "check_table",
    "check_targets",
    "private_array",
    "private_table",
    "private_targets",
    "read_off",
]


ENCODE = (
    "Convert or encode it first, with categories that are known and not learned from the private rows "
    "(X.astype(float) if it holds numbers)"
)
_NUMBERS = "biuf"
_LOOSE_KINDS = "OSUTcmM"  # what one odd value makes of numbers, or of what no type holds beside it
_DATES = "mM"  # no numbers, also where NumPy would make some of them
_TRUTHS = {"false": 0.0, "true": 1.0}
_FLOATS = (np.float32, np.float64)
_LISTS: tuple[type[Sequence[object]], ...] = (list, tuple, range, array.array)
_DEEPEST = 16  # dimensions of a record
_EXACT, _LOOSE = ("number", "truth"), ("text", "any")  # columns of polars


def read_off(what: str) -> str:
    """The line of a statement for what `assume_public` allowed."""
    named = what.replace("_", " ")
    return f"the {named} were read off the private records, as if they were public knowledge"


def private_table(X: TableLike, *, name: str = "X", advice: str = ENCODE) -> Matrix:
    """A sparse matrix as it is, or a matrix of floats; `advice` is for columns that are no numbers."""
    if sp.issparse(X):
        sparse: csr_array = X
        if sparse.dtype.kind == "c":
            sparse = _real_sparse(sparse)
        _check_type(sparse.dtype, name)
        with np.errstate(all="ignore"):  # a long double beyond float64 becomes infinite
            sound = _sound_sparse(sparse, name)
            return sound if sound.dtype in _FLOATS else sound.astype(np.float64)
    found = private_array(X, name=name, advice=advice)
    _check_matrix(found, name)
    return found


def private_array(X: TableLike, *, name: str = "X", advice: str = ENCODE) -> Array:
    """Floats of any dimension, from an array, a frame or nested lists."""
    if is_frame(X):
        return _of_frame(X, name, advice) if hasattr(type(X), "iloc") else _of_other_frame(X, name, advice)
    if _is_list(X):
        return _of_lists(list(X), name)
    found = as_array(X, name)
    if found.dtype == object and found.ndim == 1:  # what NumPy makes of rows of which one is odd
        return _of_lists(found.tolist(), name)
    if found.dtype.kind in _LOOSE_KINDS:
        found = _loose_numbers(found)
    _check_type(found.dtype, name)
    if np.ma.isMaskedArray(X):
        found = np.where(np.ma.getmaskarray(X), np.nan, _floats(found))
    return _floats(found)


def private_targets(y: ArrayLike, *, rows: int, real: bool) -> Array:
    """One target a record: floats if `real`, else labels as they are (objects, if they come in a list)."""
    given = series_values(y)
    if isinstance(given, np.ma.MaskedArray):
        given = np.ma.filled(given.astype(object), None)
    if _is_list(given):
        given = _column(list(given))
    elif _is_extension(given):
        given = _of_extension(given)
    targets = _check_vector(given, rows=None, stacklevel=5)
    if len(targets) != rows:  # how many rows persons have is private, and so no number is stated
        raise InputError("y must have one target for each row of X")
    if not real:
        return targets
    if targets.dtype.kind in _LOOSE_KINDS:
        return _loose_numbers(targets)
    return _floats(check_real(targets))


def _floats(found: Array) -> Array:
    with np.errstate(all="ignore"):  # a long double beyond float64 becomes infinite
        return found if found.dtype in _FLOATS else found.astype(np.float64)


def _loose_numbers(found: Array) -> Floats:
    if found.dtype.kind in _DATES:
        return np.full(found.shape, np.nan)
    return _numbers(found.ravel().tolist(), found.shape)


def _numbers(values: list[object], shape: tuple[int, ...]) -> Floats:
    return np.fromiter(map(_number, values), dtype=np.float64, count=len(values)).reshape(shape)


def _number(value: object) -> float:
    """`number_of`, and the words that NumPy and polars make of truth values beside a text."""
    found = number_of(value)
    if math.isnan(found) and (is_a(value, str) or is_a(value, bytes)):
        return _TRUTHS.get((text_of(value) or "").lower(), found)
    return found


# ---------------------------------------------------------------------------------------------------
# frames


def _of_frame(X: pd.DataFrame, name: str, advice: str) -> Array:
    """A column by its type: floats, with NaN for what is missing or, among objects and texts, no number.

    Always in float64: a record of odd cells turns columns of float32 into objects, and would otherwise decide
    how all others are rounded.
    """
    loose = [_is_loose(kind) for kind in X.dtypes]
    _check_columns(X.iloc[:, [i for i, one in enumerate(loose) if not one]], name, advice)
    kinds = set(X.dtypes)
    if len(kinds) == 1 and not any(loose) and isinstance(next(iter(kinds)), np.dtype):
        return _floats(X.to_numpy()).astype(np.float64, copy=False)
    found = np.empty(X.shape, dtype=np.float64)
    with np.errstate(all="ignore"):
        for i in range(X.shape[1]):
            column = X.iloc[:, i]
            if loose[i]:
                values = _of_extension(column) if _is_extension(column) else column.to_numpy()
                found[:, i] = _loose_numbers(values)
            else:
                found[:, i] = column.to_numpy(dtype=np.float64, na_value=np.nan)
    return found


def _of_other_frame(X: Frame, name: str, advice: str) -> Floats:
    """The same of a frame of polars: by the types of its columns, and texts and objects value by value."""
    kinds = storage(X)
    _refuse_columns([one for one, kind in kinds.items() if kind not in _LOOSE + _EXACT], name, advice)
    found = np.empty((len(X), len(kinds)))
    for i, kind in enumerate(kinds.values()):
        if kind in _EXACT:
            found[:, i] = as_number(column_of(X, i, slice(None)))
        else:
            values = objects_of(X, i)
            found[:, i] = _numbers(values, (len(values),))
    return found


def _is_loose(kind: object) -> bool:
    """One odd cell is enough to make a column of numbers one of objects or texts."""
    return getattr(kind, "kind", "f") in _LOOSE_KINDS and str(kind) != "category"


def _is_extension(y: object) -> TypeGuard[pd.Series]:
    """A column of pandas that is no array of NumPy: nullable numbers, categories, Arrow."""
    kind = getattr(y, "dtype", None)
    return kind is not None and not isinstance(kind, np.dtype) and hasattr(y, "to_numpy")


def _of_extension(y: pd.Series) -> Array:
    if getattr(y.dtype, "kind", "O") in "iuf":  # truth values stay such, as they are among objects
        return np.asarray(y.to_numpy(dtype=np.float64, na_value=np.nan))
    found: Array | None = guarded(lambda some: some.to_numpy(dtype=object), y, None)
    if found is None:  # a value that cannot be taken out of its column
        found = np.fromiter((guarded(lambda i: y[i], i, None) for i in range(len(y))), object, count=len(y))
    return found


# ---------------------------------------------------------------------------------------------------
# lists


def _of_lists(X: list[object], name: str) -> Floats:
    """A list of records, each read alone in the shape of most; one of another shape is all NaN."""
    shape = _shape_of_most(X)
    if shape is None:
        raise InputError(f"{name} must be an array; its rows are not all of one length")
    found = np.full((len(X), *shape), np.nan)
    for index, record in enumerate(X):
        _read(record, found[index : index + 1].reshape(shape, copy=False), shape)
    return found


def _read(record: object, into: Floats, shape: tuple[int, ...]) -> None:
    """Fill in the numbers of a record of this shape; what is not of it stays NaN."""
    if not shape:
        into[...] = _number(record)
    elif type(record) is np.ndarray and record.dtype.kind in _NUMBERS:
        if record.shape == shape:
            into[...] = _floats(record)
    elif (values := _values_in(record, shape[0])) is not None:
        if len(shape) == 1:
            into[:] = [_number(value) for value in values]
        else:
            for part, value in zip(into, values, strict=True):
                _read(value, part, shape[1:])


def _column(y: list[object]) -> Array:
    """A list of targets; one of columns, if most targets are rows."""
    shape = _shape_of_most(y)
    if shape is None and 2 * sum(_length(target) is not None for target in y) > len(y):
        raise InputError("y should be a 1d array, and not rows of several lengths")
    if not shape:
        return np.fromiter(y, dtype=object, count=len(y))
    found = np.full((len(y), shape[0]), None, dtype=object)
    for index, target in enumerate(y):
        for column, value in enumerate(_values_in(target, shape[0]) or ()):
            found[index, column] = value
    return found


def _shape_of_most(records: list[object]) -> tuple[int, ...] | None:
    """The shape that more than half of the records have, which no single odd one decides; None if none."""
    counts = Counter(_shape(record) for record in records)
    if not counts:
        return ()
    shape, count = counts.most_common(1)[0]
    return shape if 2 * count > len(records) else None


def _shape(record: object) -> tuple[int, ...]:
    """Of one record: (p,) for a row of p values, (h, w) for h rows of which the first has w, () for a value.

    Only the first of several rows is looked into, so that a record which holds itself, or a thousand copies
    of another list at every level, takes no longer than its depth.
    """
    shape: list[int] = []
    while len(shape) < _DEEPEST and (length := _length(record)) is not None:
        shape.append(length)
        values = _values_in(record, length) if _may_hold_rows(record) else None
        if not values or not all(_length(value) is not None for value in values):
            break
        record = values[0]
    return tuple(shape)


def _is_list(container: object) -> TypeGuard[Sequence[object]]:
    return issubclass(type(container), Sequence) and not issubclass(type(container), str | bytes | bytearray)


def _may_hold_rows(row: object) -> bool:
    return not issubclass(type(row), range | array.array)


def _length(value: object) -> int | None:
    """How many values a row has; None for what is no row."""
    for base in _LISTS:
        if is_a(value, base):
            return guarded(base.__len__, value, None)
    found = _array_of(value)
    return None if found is None or found.ndim == 0 else len(found)


def _values_in(row: object, length: int) -> list[object] | None:
    """The values of a row of this length; None for anything else."""
    if _length(row) != length:
        return None
    for base in _LISTS:
        if is_a(row, base):
            return list(base.__getitem__(row, slice(None)))
    found = _array_of(row)
    return None if found is None or len(found) != length else list(found)


def _array_of(value: object) -> Array | None:
    """An array, or what makes itself one (a tensor, a column of a frame)."""
    kind = type(value)
    if issubclass(kind, np.generic) or not hasattr(kind, "__array__"):
        return None
    found = guarded(np.asarray, value, None)
    return found if type(found) is np.ndarray else None


# ---------------------------------------------------------------------------------------------------
# is this a table? Decided by shapes, types and names alone, which are public


def check_table(X: TableLike, *, name: str = "X") -> Array | pd.DataFrame | csr_array:
    """X itself (a frame, a sparse matrix) or as an array, if it is a table of real numbers."""
    if sp.issparse(X):
        sparse: csr_array = X
        _check_type(sparse.dtype, name)
        return sparse
    if is_frame(X) and hasattr(X, "dtypes"):
        _check_columns(X, name)
        return X
    array = as_array(X, name)
    _check_type(array.dtype, name)
    _check_matrix(array, name)
    return array


def _check_matrix(array: Array, name: str) -> None:
    if array.ndim != 2:
        raise InputError(
            f"expected 2D {name}, one record per row, got {array.ndim} dimension(s). Reshape your data: "
            f"{name}.reshape(-1, 1) if it has one feature, {name}.reshape(1, -1) if it has one record"
        )


def check_targets(y: object, *, rows: int, of: str = "X", name: str = "y", real: bool = False) -> Array:
    """y as a vector with one target per record, of real numbers if `real`."""
    array = _check_vector(_without_masks(y), rows=rows, of=of, name=name)
    return check_real(array, name=name) if real or array.dtype.kind == "c" else array


def _check_vector(
    y: object, *, rows: int | None, of: str = "X", name: str = "y", stacklevel: int = 5
) -> Array:
    """y as a vector with one target per record, whatever they are; rows=None does not count them."""
    if sp.issparse(y):
        raise InputError(f"{name} must be an array with one target per record, not a sparse matrix")
    array = as_array(y, name)
    if array.ndim == 2 and array.shape[1] == 1:
        warnings.warn(
            f"A column-vector {name} was passed when a 1d array was expected",
            DataConversionWarning,
            stacklevel=stacklevel,
        )
        array = array[:, 0]
    if array.ndim != 1:
        raise InputError(f"{name} should be a 1d array, got an array of {array.ndim} dimension(s) instead")
    if rows is not None and len(array) != rows:
        raise InputError(f"{of} has {rows:,} rows, but {name} has {len(array):,} targets")
    return array


def check_real(array: Array, *, name: str = "y") -> Array:
    """The same array, of real numbers."""
    if array.dtype.kind not in _NUMBERS:
        raise InputError(f"{name} must be real numbers, but its type is {array.dtype}")
    return array


def check_same_columns(X: Matrix | pd.DataFrame, X_public: Matrix | pd.DataFrame) -> None:
    """The same number of columns and, where both have names, the same names in the same order."""
    if X_public.shape[1] != X.shape[1]:
        raise InputError(
            f"X_public must have the columns of X: X has {X.shape[1]} features, X_public {X_public.shape[1]}"
        )
    private, public = (getattr(frame, "columns", None) for frame in (X, X_public))
    if private is None or public is None or list(private) == list(public):
        return
    missing = [str(name) for name in private if name not in set(public)]
    unknown = [str(name) for name in public if name not in set(private)]
    if missing or unknown:
        raise InputError(
            f"X_public must have the columns of X. Missing: {listed(missing) or 'none'}; "
            f"unknown: {listed(unknown) or 'none'}"
        )
    raise InputError("X_public must have the columns of X in the same order; pass X_public[X.columns]")


def as_array(values: object, name: str) -> Array:
    """The values as an array; InputError for rows of several lengths."""
    try:
        return np.asarray(values)
    except INTERRUPTS:
        raise
    except BaseException:
        # The original message may quote a value.
        raise InputError(f"{name} must be an array; its rows are not all of one length") from None


def _without_masks(y: object) -> object:
    """pandas' nullable numbers as floats: a missing one is NaN and not an object of pandas."""
    kind = getattr(y, "dtype", None)
    if isinstance(kind, np.dtype) or getattr(kind, "kind", "O") not in _NUMBERS or not hasattr(y, "to_numpy"):
        return y
    return y.to_numpy(dtype=np.float64, na_value=np.nan)


def _check_columns(X: pd.DataFrame, name: str, advice: str = ENCODE) -> None:
    types = {str(column): kind for column, kind in zip(X.columns, X.dtypes, strict=True)}
    # What has no kind (polars) is judged as an array, by scikit-learn.
    bad = [column for column, kind in types.items() if getattr(kind, "kind", "f") not in _NUMBERS]
    _refuse_columns(bad, name, advice)


def _refuse_columns(bad: list[str], name: str, advice: str = ENCODE) -> None:
    """One error for columns that are not numbers, if there are any."""
    if bad:
        raise InputError(f"these columns of {name} are not real numbers: {listed(bad)}. {advice}")


def _check_type(kind: np.dtype[np.generic], name: str) -> None:
    if kind.kind == "c":
        raise InputError(f"Complex data not supported: {name} must be real numbers")
    if kind.kind not in _NUMBERS:
        raise InputError(f"{name} must be real numbers, but its type is {kind}. {ENCODE}")


# ---------------------------------------------------------------------------------------------------
# the structure of a sparse private matrix, checked before SciPy reads it: it trusts every index, in C


def _real_sparse(X: csr_array) -> csr_array:
    """One complex entry makes all of them complex: those that are real numbers are these, others NaN."""
    found: csr_array = X.tocsr().copy()
    found.data = np.where(found.data.imag == 0, found.data.real, np.nan)
    return found


def _sound_sparse(X: csr_array, name: str) -> csr_array:
    """X itself, or a CSR copy in which a record with an impossible column is NaN."""
    if X.format not in ("csr", "csc", "bsr"):
        return X  # the others are checked by SciPy when they are made, or converted
    if X.ndim != 2 or not _pointers_are_sound(X):
        raise InputError(f"{name} is not a valid sparse matrix: its index pointers do not fit its entries")
    columns = X.shape[1] if X.format == "csr" else _inner(X)
    used = slice(0, int(X.indptr[-1]))  # there may be room behind
    bad = np.zeros(len(X.indices), dtype=bool)
    bad[used] = (X.indices[used] < 0) | (X.indices[used] >= columns)
    if not bad.any():
        return X
    if X.format != "csr":
        raise InputError(f"{name} is not a valid sparse matrix: it has entries beyond its last row or column")
    # Whole numbers become float64 in any case: here too, or one record would decide how others are rounded.
    data = X.data.astype(X.dtype if X.dtype in _FLOATS else np.float64)
    indices = X.indices.copy()
    data[bad], indices[bad] = np.nan, 0
    return sp.csr_array((data, indices, X.indptr), shape=X.shape)


def _inner(X: csr_array) -> int:
    """How many places an index may name: rows of a CSC matrix, blocks in a row of a BSR one."""
    return int(X.shape[0] if X.format == "csc" else X.shape[1] // X.blocksize[1])


def _pointers_are_sound(X: csr_array) -> bool:
    outer = {"csr": X.shape[0], "csc": X.shape[1]}.get(X.format)
    if outer is None:
        outer = X.shape[0] // X.blocksize[0]
    pointers = np.asarray(X.indptr)
    if pointers.shape != (outer + 1,) or pointers[0] != 0 or (np.diff(pointers) < 0).any():
        return False
    return int(pointers[-1]) <= min(len(X.indices), len(X.data))
