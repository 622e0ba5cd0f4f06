"""The structure of a sparse private matrix, checked before SciPy reads it: it trusts every index, in C.

Where an entry stands is as private as its value: one beyond the last column makes its record null. What is no
matrix at all (pointers that go back, entries beyond the last record) is refused.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp

from sidelight.errors import InputError

__all__ = ["sound_sparse"]

_FLOATS = (np.float32, np.float64)


def sound_sparse(X: Any, name: str) -> Any:
    """X itself, or a CSR copy in which a record with an impossible column is NaN."""
    if X.format not in ("csr", "csc", "bsr"):
        return X  # the others are checked by SciPy when they are made, or converted
    if X.ndim != 2 or not _pointers_are_sound(X):
        raise InputError(f"{name} is no sparse matrix: its index pointers do not fit its entries")
    columns = X.shape[1] if X.format == "csr" else _inner(X)
    used = slice(0, int(X.indptr[-1]))  # there may be room behind
    bad = np.zeros(len(X.indices), dtype=bool)
    bad[used] = (X.indices[used] < 0) | (X.indices[used] >= columns)
    if not bad.any():
        return X
    if X.format != "csr":
        raise InputError(f"{name} is no sparse matrix: it has entries beyond its last row or column")
    # Whole numbers become float64 in any case: here too, or one record would decide how others are rounded.
    data = X.data.astype(X.dtype if X.dtype in _FLOATS else np.float64)
    indices = X.indices.copy()
    data[bad], indices[bad] = np.nan, 0
    return sp.csr_array((data, indices, X.indptr), shape=X.shape)


def _inner(X: Any) -> int:
    """How many places an index may name: rows of a CSC matrix, blocks in a row of a BSR one."""
    return int(X.shape[0] if X.format == "csc" else X.shape[1] // X.blocksize[1])


def _pointers_are_sound(X: Any) -> bool:
    outer = {"csr": X.shape[0], "csc": X.shape[1]}.get(X.format)
    if outer is None:
        outer = X.shape[0] // X.blocksize[0]
    pointers = np.asarray(X.indptr)
    if pointers.shape != (outer + 1,) or pointers[0] != 0 or (np.diff(pointers) < 0).any():
        return False
    return int(pointers[-1]) <= min(len(X.indices), len(X.data))
