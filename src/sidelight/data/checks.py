"""Is this a table? Decided by shapes, types and names alone, which are public.

scikit-learn's own messages quote the array for some faults (one dimension, complex numbers, text), and so a
private value. Those faults are found here first.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, TypeGuard

import numpy as np
import scipy.sparse as sp
from sklearn.exceptions import DataConversionWarning

from sidelight.arrays import Array, Matrix, TableLike
from sidelight.errors import INTERRUPTS, InputError

if TYPE_CHECKING:
    import pandas as pd
    from scipy.sparse import csr_array

__all__ = [
    "ENCODE",
    "as_array",
    "check_columns",
    "check_matrix",
    "check_real",
    "check_same_columns",
    "check_table",
    "check_targets",
    "check_type",
    "check_vector",
    "is_frame",
]

_NUMBERS = "biuf"
ENCODE = (
    "Convert or encode it first, with categories that are known and not learned from the private rows "
    "(X.astype(float) if it holds numbers)"
)


def check_table(X: TableLike, *, name: str = "X") -> Array | pd.DataFrame | csr_array:
    """X itself (a frame, a sparse matrix) or as an array, if it is a table of real numbers."""
    if sp.issparse(X):
        sparse: csr_array = X
        check_type(sparse.dtype, name)
        return sparse
    if is_frame(X):
        check_columns(X, name)
        return X
    array = as_array(X, name)
    check_type(array.dtype, name)
    check_matrix(array, name)
    return array


def check_matrix(array: Array, name: str) -> None:
    if array.ndim != 2:
        raise InputError(
            f"expected 2D {name}, one record per row, got {array.ndim} dimension(s). Reshape your data: "
            f"{name}.reshape(-1, 1) if it has one feature, {name}.reshape(1, -1) if it has one record"
        )


def check_targets(y: object, *, rows: int, of: str = "X", name: str = "y", real: bool = False) -> Array:
    """y as a vector with one target per record, of real numbers if `real`."""
    array = check_vector(_without_masks(y), rows=rows, of=of, name=name)
    return check_real(array, name=name) if real or array.dtype.kind == "c" else array


def check_vector(y: object, *, rows: int, of: str = "X", name: str = "y", stacklevel: int = 5) -> Array:
    """y as a vector with one target per record, whatever they are."""
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
        raise InputError(f"{name} should be a 1d array, got an array of shape {array.shape} instead")
    if len(array) != rows:
        raise InputError(f"{of} has {rows} rows, but {name} has {len(array)} targets")
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
            f"X_public must have the columns of X. Missing: {_first_few(missing)}; "
            f"unknown: {_first_few(unknown)}"
        )
    raise InputError("X_public must have the columns of X in the same order; pass X_public[X.columns]")


def is_frame(X: object) -> TypeGuard[pd.DataFrame]:
    return hasattr(X, "dtypes") and hasattr(X, "columns")


def as_array(values: object, name: str) -> Array:
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


def check_columns(X: pd.DataFrame, name: str, advice: str = ENCODE) -> None:
    types = {str(column): kind for column, kind in zip(X.columns, X.dtypes, strict=True)}
    # What has no kind (polars) is judged as an array, by scikit-learn.
    bad = [column for column, kind in types.items() if getattr(kind, "kind", "f") not in _NUMBERS]
    refuse_columns(bad, name, advice)


def refuse_columns(bad: list[str], name: str, advice: str = ENCODE) -> None:
    """One error for columns that are not numbers, if there are any."""
    if bad:
        raise InputError(f"these columns of {name} are not real numbers: {_first_few(bad)}. {advice}")


def check_type(kind: np.dtype[np.generic], name: str) -> None:
    if kind.kind == "c":
        raise InputError(f"Complex data not supported: {name} must be real numbers")
    if kind.kind not in _NUMBERS:
        raise InputError(f"{name} must be real numbers, but its type is {kind}. {ENCODE}")


def _first_few(names: list[str], most: int = 5) -> str:
    listed = ", ".join(repr(name) for name in names[:most]) or "none"
    return listed if len(names) <= most else f"{listed} and {len(names) - most} more"
