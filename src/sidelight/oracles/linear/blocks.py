"""Rows, block by block in float64: what every oracle of a linear model reads."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from sidelight.data.rows import BLOCK, Floats, blocks_of

__all__ = ["Block", "RowReader"]

Array = NDArray[Any]


class Block(NamedTuple):
    """Some rows in float64 (dense or CSR), their targets, upper bounds of their norms, and their places."""

    X: Any
    y: Array
    norms: Floats
    where: Any


class RowReader:
    """A full pass copies nothing that is float64 already; a batch copies a block of its rows at a time."""

    def __init__(self, X: Any, y: Array, norms: Floats) -> None:
        self._X, self._y, self._norms = X, y, norms
        self.n, self.p = X.shape
        # Slicing CSR costs a copy, so its blocks are cut once, on the same memory.
        self._cut = [(s, _csr_slice(X, s)) for s in _csr_blocks(X)] if sp.issparse(X) else None

    def blocks(self, indices: Array | None = None) -> Iterator[Block]:
        """All rows, or those at these indices."""
        if indices is not None:
            for part in blocks_of(len(indices), self.p):
                chosen = indices[part]
                yield self._block(self._X[chosen], chosen)
        elif self._cut is not None:
            for part, X in self._cut:
                yield self._block(X, part)
        else:
            for part in blocks_of(self.n, self.p):
                yield self._block(self._X[part], part)

    def _block(self, X: Any, where: Any) -> Block:
        return Block(X.astype(np.float64, copy=False), self._y[where], self._norms[where], where)


def _csr_blocks(X: Any) -> Iterator[slice]:
    """Slices of rows with about BLOCK entries each."""
    density = int(X.indptr[-1]) // max(1, X.shape[0]) + 1
    rows = max(256, BLOCK // density)
    for start in range(0, X.shape[0], rows):
        yield slice(start, min(X.shape[0], start + rows))


def _csr_slice(X: Any, rows: slice) -> Any:
    """These rows of X, on the memory of X."""
    start, stop = int(X.indptr[rows.start]), int(X.indptr[rows.stop])
    pointers = X.indptr[rows.start : rows.stop + 1] - start
    shape = (rows.stop - rows.start, X.shape[1])
    return sp.csr_array((X.data[start:stop], X.indices[start:stop], pointers), shape=shape)
