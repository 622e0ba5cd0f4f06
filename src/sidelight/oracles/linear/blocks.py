"""Rows, block by block in float64: what every oracle of a linear model reads."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from scipy.sparse import csr_array

from sidelight.arrays import Array, Floats, Matrix, is_sparse
from sidelight.data.rows import BLOCK, blocks_of

__all__ = ["Block", "RowReader"]


class Block(NamedTuple):
    """Some rows in float64 (dense or CSR), their targets, upper bounds of their norms, and their indices."""

    X: Matrix
    y: Array
    norms: Floats
    where: Array | slice


class RowReader:
    """A full pass copies nothing that is float64 already; a batch copies a block of its rows at a time."""

    def __init__(self, X: Matrix, y: Array, norms: Floats) -> None:
        self._X, self._y, self._norms = X, y, norms
        self.n, self.p = X.shape
        # Slicing CSR costs a copy, so its blocks are cut once, on the same memory.
        self._cut = [(s, _csr_slice(X, s)) for s in _csr_blocks(X)] if is_sparse(X) else None

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

    def _block(self, X: Matrix, where: Array | slice) -> Block:
        return Block(X.astype(np.float64, copy=False), self._y[where], self._norms[where], where)


def _csr_blocks(X: csr_array) -> Iterator[slice]:
    """Slices of rows with about BLOCK entries each."""
    density = int(X.indptr[-1]) // max(1, X.shape[0]) + 1
    rows = max(256, BLOCK // density)
    for start in range(0, X.shape[0], rows):
        yield slice(start, min(X.shape[0], start + rows))


def _csr_slice(X: csr_array, rows: slice) -> csr_array:
    """These rows of X, on the memory of X."""
    start, stop = int(X.indptr[rows.start]), int(X.indptr[rows.stop])
    pointers = X.indptr[rows.start : rows.stop + 1] - start
    shape = (rows.stop - rows.start, X.shape[1])
    return csr_array((X.data[start:stop], X.indices[start:stop], pointers), shape=shape)
