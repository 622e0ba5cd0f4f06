"""Raw sums over rows, for algorithms with a proof of their own: output and objective perturbation, RSGD-AR,
PNSGD, and whatever is fitted without privacy.
"""

from __future__ import annotations

import math

import numpy as np

from sidelight.arrays import Array, Floats, Matrix, is_sparse
from sidelight.data.rows import PrivateRows, PublicRows, contents
from sidelight.losses import Logistic, Loss, Softmax
from sidelight.oracles.linear.blocks import RowReader
from sidelight.privacy.events import Relation
from sidelight.privacy.release import BoundedSum

__all__ = ["RowSums", "label_counts"]

_PIECE = 1024  # records whose gradients are added at once where rounding matters


class RowSums:
    """Sums over records, block by block in float64: no copy of X that is larger than a block.

    A record whose target the loss is not defined for contributes nothing. Everything returned is raw; on
    private rows it must stay inside `PrivateRows.compute` or a function of `privacy.release`.
    """

    @classmethod
    def of(cls, rows: PrivateRows | PublicRows, loss: Loss) -> RowSums:
        """Sums over these records."""
        X, y = (rows.X, rows.y) if isinstance(rows, PublicRows) else contents(rows)[:2]
        return cls(X, y, loss)

    def __init__(self, X: Matrix, y: Floats, loss: Loss) -> None:
        self.loss = loss
        self.n, self.p = X.shape
        self.dimension = loss.outputs * self.p
        ignored = ~loss.admits(y)
        self._ignored = ignored if ignored.any() else None
        targets: Array = np.where(ignored, 0, y).astype(np.intp) if loss.task == "multiclass" else y
        self._reader = RowReader(X, targets, np.zeros(self.n))  # norms are not asked for

    def gradient(self, w: Floats, indices: Array | None = None) -> Floats:
        """Σ ∇ℓ_i(w), flat, over the records at `indices` (None: all)."""
        weights = self._weights(w)
        total = np.zeros(weights.shape)
        for block in self._reader.blocks(indices):
            total += block.X.T @ self._masked(self.loss.slope(block.X @ weights, block.y), block.where)
        return total.T.reshape(-1)

    @property
    def outputs(self) -> int:
        """How many linear outputs a record has."""
        return self.loss.outputs

    def precise_gradient(self, w: Floats) -> Floats:
        """`gradient`, added up in pieces of some hundred records: long sums round, and a solver sees that."""
        weights = self._weights(w)
        total = np.zeros(weights.shape, dtype=np.longdouble)
        for block in self._reader.blocks():
            slopes = self._masked(self.loss.slope(block.X @ weights, block.y), block.where)
            for low in range(0, len(slopes), _PIECE):
                total += block.X[low : low + _PIECE].T @ slopes[low : low + _PIECE]
        return np.asarray(total.T.reshape(-1), dtype=np.float64)

    def value(self, w: Floats) -> float:
        """Σ ℓ_i(w)."""
        weights = self._weights(w)
        return math.fsum(
            float(self._masked(self.loss.value(block.X @ weights, block.y), block.where).sum())
            for block in self._reader.blocks()
        )

    def line_values(self, w: Floats, direction: Floats, steps: Floats, *, bound: float) -> Floats:
        """Σ min(ℓ_i(w − η·direction), bound) for every η in `steps`: two products with X for all of them.

        Losses are in single precision, which costs a quarter of the time and no privacy: each is a function
        of its own record, in [0, bound], and they are added in double.
        """
        weights, slide = self._weights(w), self._weights(direction)
        totals = np.zeros(len(steps))
        top = np.nextafter(np.float32(bound), np.float32(0))  # rounding must not lift the bound
        for block in self._reader.blocks():
            start, moved = ((block.X @ v).astype(np.float32) for v in (weights, slide))
            targets = block.y if self.loss.task == "multiclass" else block.y.astype(np.float32)
            for k, step in enumerate(steps):
                values = _fast_value(self.loss, start - np.float32(step) * moved, targets)
                values = np.fmin(np.fmax(values, 0), top)  # not a number counts as 0
                totals[k] += self._masked(values, block.where).sum(dtype=np.float64)
        return totals

    def hessian(self, w: Floats) -> Floats:
        """Σ ∇²ℓ_i(w) as a matrix, for one output."""
        total = np.zeros((self.p, self.p))
        for block in self._reader.blocks():
            curvatures = self._masked(self.loss.curvature(block.X @ w, block.y), block.where)
            if is_sparse(block.X):
                total += (block.X.T @ block.X.multiply(curvatures[:, None]).tocsr()).toarray()
            else:
                total += (block.X.T * curvatures) @ block.X
        return total

    def hessian_times(self, w: Floats, direction: Floats) -> Floats:
        """Σ ∇²ℓ_i(w)·direction, flat."""
        weights, slide = self._weights(w), self._weights(direction)
        total = np.zeros(weights.shape)
        for block in self._reader.blocks():
            z, moved = block.X @ weights, block.X @ slide
            if isinstance(self.loss, Softmax):
                bent = self.loss.curvature_times(z, moved)
            else:
                bent = self.loss.curvature(z, block.y) * moved
            total += block.X.T @ self._masked(bent, block.where)
        return total.T.reshape(-1)

    def _masked(self, values: Array, where: Array | slice) -> Array:
        """The values, 0 for records that must not contribute."""
        if self._ignored is not None:
            values[self._ignored[where]] = 0
        return values

    def _weights(self, w: Floats) -> Floats:
        return w if self.loss.outputs == 1 else np.ascontiguousarray(w.reshape(-1, self.p).T)


def _fast_value(loss: Loss, z: Array, y: Array) -> Array:
    """loss.value, with a logistic loss that vectorises in single precision."""
    if not isinstance(loss, Logistic):
        return loss.value(z, y)
    margin = y * z
    tail = np.exp(-np.abs(margin))
    tail += 1
    value: Array = np.log(tail, out=tail)
    value -= np.minimum(margin, 0)
    return value


def label_counts(rows: PrivateRows, classes: Array, *, relation: Relation) -> BoundedSum:
    """How many records have each label: one record moves one count, or two if it is replaced."""
    counted = ~contents(rows).null
    return rows.compute(
        lambda X, y: ((y[:, None] == classes) & counted[:, None]).sum(axis=0).astype(float),
        sensitivity=1.0,
        relation=relation,
    )
