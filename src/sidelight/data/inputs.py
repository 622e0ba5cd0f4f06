"""Convert X and y, private or public, to arrays.

The type of a container (an array, a frame with its column names, a list) and its shape are public, and only
they decide what is refused. scikit-learn's own messages quote the array for some faults (one dimension,
complex numbers, text), which would reveal a private value, so those faults are found here first.

The contents of a private container never decide anything. In NumPy they would: one None in a list makes an
array of objects, one text turns all numbers into texts, one complex number makes all of them complex, and
one nested list is an error. So lists and arrays of objects, texts or complex numbers are read value by
value. A number, or a text that holds one, becomes that number; true and false become 1 and 0; anything else
becomes NaN, which makes a null record. In a list, more than half of the records set the shape; a record of
another shape is a null record. A frame's column of objects or texts is read in the same way and never
refused for its contents, since a single value may decide whether most of them are numbers. A public column
that is not numeric is refused, and so is a type that cannot hold numbers, such as dates.
"""

from __future__ import annotations

import math
import warnings
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeGuard

import numpy as np
import scipy.sparse as sp
from numpy.typing import ArrayLike
from sklearn.exceptions import DataConversionWarning

from sidelight.arrays import Array, Floats, Matrix, TableLike
from sidelight.data.frames import as_pandas, is_frame, series_values, storage_of
from sidelight.data.values import as_number, number_of, text_of
from sidelight.errors import InputError, guarded, listed

if TYPE_CHECKING:
    import pandas as pd
    from scipy.sparse import csr_array


ENCODE = (
    "Convert or encode it first, with categories that are known and not learned from the private rows "
    "(X.astype(float) if it holds numbers)"
)
_NUMBERS = "biuf"
_LOOSE_KINDS = "OSUTcmM"  # what one odd value makes of numbers, or of what no type holds beside it
_DATES = "mM"  # no numbers, also where NumPy would make some of them
_TRUTHS = {"false": 0.0, "true": 1.0}
_FLOATS = (np.float32, np.float64)


def read_off(what: str) -> str:
    """The line of a statement for what `assume_public` allowed."""
    named = what.replace("_", " ")
    return f"the {named} were read off the private records, as if they were public knowledge"


def private_table(X: TableLike, *, name: str = "X", advice: str = ENCODE) -> Matrix:
    """A sparse matrix as it is, or a matrix of floats; `advice` is for columns that are not numbers."""
    if sp.issparse(X):
        sparse: csr_array = X
        if sparse.dtype.kind == "c":  # one complex entry makes all of them complex
            sparse = sparse.tocsr().copy()
            sparse.data = np.where(sparse.data.imag == 0, sparse.data.real, np.nan)
        _check_type(sparse.dtype, name)
        with np.errstate(all="ignore"):  # a long double beyond float64 becomes infinite
            return sparse if sparse.dtype in _FLOATS else sparse.astype(np.float64)
    found = private_array(X, name=name, advice=advice)
    _check_matrix(found, name)
    return found


def private_array(X: TableLike, *, name: str = "X", advice: str = ENCODE) -> Array:
    """Floats of any dimension, from an array, a frame or nested lists."""
    if is_frame(X):
        return _of_frame(as_pandas(X, name), name, advice)
    if _is_list(X):
        return _of_lists(X, name)
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
    """One target per record: floats if `real`, else labels unchanged (objects, if they come in a list)."""
    given = series_values(y)
    if isinstance(given, np.ma.MaskedArray):
        given = np.ma.filled(given.astype(object), None)
    if _is_list(given):
        given = _column(given)
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
    """`number_of`, which also reads the words that NumPy and polars write for booleans in a text column."""
    found = number_of(value)
    if math.isnan(found) and (isinstance(value, str | bytes)):
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
                found[:, i] = as_number(column)
    return found


def _is_loose(kind: object) -> bool:
    """Whether the type is one that a single odd cell gives a numeric column: objects or texts."""
    if hasattr(kind, "pyarrow_dtype"):
        return storage_of(kind) in ("text", "any")
    return getattr(kind, "kind", "f") in _LOOSE_KINDS and str(kind) != "category"


def _is_extension(y: object) -> TypeGuard[pd.Series]:
    """A column of pandas that is not an array of NumPy: nullable numbers, categories, Arrow."""
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


def _of_lists(X: Sequence[object], name: str) -> Floats:
    """A list of records, each read alone; a record whose shape differs from most is all NaN."""
    records = [guarded(_record, record, _UNREADABLE) for record in X]
    shape = _most_common([record.shape for record in records])
    if shape is None:
        raise InputError(f"{name} must be an array; its rows are not all of one length")
    found = np.full((len(records), *shape), np.nan)
    for index, record in enumerate(records):
        if record.shape == shape:
            found[index] = record
    return found


_UNREADABLE = np.array(np.nan)


def _record(record: object) -> Floats:
    """The numbers of one record, in its own shape."""
    if isinstance(record, np.ma.MaskedArray):
        record = np.ma.filled(record.astype(object), None)
    if isinstance(record, np.ndarray) and record.dtype.kind in _NUMBERS:
        return _floats(record)
    found: Array | None = guarded(lambda one: np.asarray(one, dtype=object), record, None)
    if found is None:  # a value of it has values of its own
        found = np.array([*map(_number, record)])  # type: ignore[call-overload]
    return _numbers(found.ravel().tolist(), found.shape)


def _most_common(shapes: list[tuple[int, ...]]) -> tuple[int, ...] | None:
    """The shape of more than half of the records, which no single record decides; None if there is none."""
    ((shape, count),) = Counter(shapes).most_common(1) or [((), 1)]
    return shape if 2 * count > len(shapes) else None


def _column(y: Sequence[object]) -> Array:
    """A list of targets; a matrix of one column, if most targets are rows of one value."""
    sizes = [_size(target) for target in y]
    if 2 * sum(size is not None for size in sizes) <= len(y):
        return np.fromiter(y, dtype=object, count=len(y))
    if 2 * sizes.count(1) <= len(y):
        raise InputError("y should be a 1d array, and not rows of several values")
    pairs = zip(y, sizes, strict=True)
    values: Any = (guarded(_first, target, None) if size == 1 else None for target, size in pairs)
    return np.fromiter(values, dtype=object, count=len(y)).reshape(-1, 1)


def _first(row: Any) -> object:
    return next(iter(row))


def _size(target: object) -> int | None:
    """How many values a row has; None if it is not a row."""
    is_row = isinstance(target, list | tuple) or getattr(target, "ndim", 0) > 0
    return guarded(len, target, None) if is_row else None  # type: ignore[arg-type]


def _is_list(container: object) -> TypeGuard[Sequence[object]]:
    return isinstance(container, Sequence) and not isinstance(container, str | bytes | bytearray)


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
    """y as a vector with one target per record, of any type; rows=None does not count them."""
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
    """The array with real numbers."""
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
    found: Array | None = guarded(np.asarray, values, None)
    if found is None:  # NumPy's own message may quote a value
        raise InputError(f"{name} must be an array; its rows are not all of one length")
    return found


def _without_masks(y: object) -> object:
    """pandas' nullable numbers as floats: a missing one is NaN and not an object of pandas."""
    kind = getattr(y, "dtype", None)
    if isinstance(kind, np.dtype) or getattr(kind, "kind", "O") not in _NUMBERS or not hasattr(y, "to_numpy"):
        return y
    return y.to_numpy(dtype=np.float64, na_value=np.nan)


def _check_columns(X: pd.DataFrame, name: str, advice: str = ENCODE) -> None:
    types = {str(column): kind for column, kind in zip(X.columns, X.dtypes, strict=True)}
    bad = [column for column, kind in types.items() if not _is_number(kind)]
    if bad:
        raise InputError(f"these columns of {name} are not real numbers: {listed(bad)}. {advice}")


def _is_number(kind: object) -> bool:
    if hasattr(kind, "pyarrow_dtype"):
        return storage_of(kind) in ("number", "truth")
    return getattr(kind, "kind", "f") in _NUMBERS


def _check_type(kind: np.dtype[np.generic], name: str) -> None:
    if kind.kind == "c":
        raise InputError(f"Complex data not supported: {name} must be real numbers")
    if kind.kind not in _NUMBERS:
        raise InputError(f"{name} must be real numbers, but its type is {kind}. {ENCODE}")
