"""The private side of second-order methods: sums of x xᵀ over records, and the least eigenvalue of one.

A symmetric matrix is packed into its upper triangle with √2 times the entries off the diagonal: the length of
the packed vector is then the Frobenius norm of the matrix. Noise of variance s² on it is noise of s² on the
diagonal of the matrix and of s²/2 elsewhere.
"""

from __future__ import annotations

import math

import numpy as np

from sidelight.arrays import Array, Floats
from sidelight.data.rows import PrivateRows, contents
from sidelight.errors import AssumptionError, InputError
from sidelight.losses import Loss
from sidelight.oracles.linear.row_sums import Block, RowReader, weighted_gram
from sidelight.privacy.events import Relation, check_relation
from sidelight.privacy.release import BoundedSum

__all__ = ["MomentOracle", "check_features", "pack", "unpack"]

_MOST = 4096  # features of which a matrix is written out: 128 MB
_SHORT = 1 - 64 * float(
    np.finfo(np.float64).eps
)  # a sum ends a few ulp below its bound, as a clipped one does


def check_features(p: int, *, method: str) -> None:
    """Refuse more features than a matrix is written out for; p is public."""
    if p > _MOST:
        raise AssumptionError(
            f"{method} writes out a matrix of {p} × {p} numbers, and {_MOST} features are the most it does. "
            "Use dp_sgd or objective_perturbation, or fewer features"
        )


def pack(matrix: Array) -> Floats:
    """The upper triangle of a symmetric matrix, as long as the matrix is in Frobenius norm."""
    scaled = math.sqrt(2) * np.asarray(matrix, dtype=np.float64)
    np.fill_diagonal(scaled, np.diagonal(matrix))
    return scaled[np.triu_indices(len(matrix))]


def unpack(vector: Array, p: int) -> Floats:
    """The symmetric matrix that `pack` made this of."""
    matrix = np.zeros((p, p))
    matrix[np.triu_indices(p)] = np.asarray(vector, dtype=np.float64) / math.sqrt(2)
    return matrix + np.triu(matrix, 1).T + (math.sqrt(2) - 1) * np.diag(np.diagonal(matrix))


class MomentOracle:
    """Answers second-order questions about private rows with bounded sums.

    A record contributes c_i·x_i x_iᵀ with 0 ≤ c_i ≤ the loss's smoothness, or exactly zero if it is null or
    its target is none that the loss knows.
    """

    def __init__(self, rows: PrivateRows, loss: Loss) -> None:
        self._hold(rows, loss)
        X, y, norms, null = contents(rows)
        self._ignored = null | ~loss.admits(y)
        self._reader = RowReader(X, y, norms)

    def _hold(self, rows: PrivateRows, loss: Loss) -> None:
        if loss.smoothness is None:
            raise AssumptionError(f"the {loss.name} loss has no second derivative")
        self.loss, self.p = loss, rows.p
        self.bound = float(loss.smoothness) * rows.max_norm**2
        self._top = float(loss.smoothness)
        self._plain: Floats | None = None

    def second_moment(self, params: Array | None = None, *, relation: Relation) -> BoundedSum:
        """Σ c_i x_i x_iᵀ, packed: the Hessian at `params`, or with None its bound, c_i the smoothness.

        Guarantee: a record contributes a matrix of rank one, c x xᵀ, of Frobenius norm c‖x‖² ≤ bound. One
        more or less moves the sum by that. One replaced: ‖a − b‖² = ‖a‖² + ‖b‖² − 2⟨a, b⟩, and ⟨a, b⟩ =
        c c′(x·x′)² is not negative, so that it moves by at most √2 times the bound.
        """
        total = self._sum(None) if params is None else self._sum(self._weights(params))
        return BoundedSum(pack(total), sensitivity=self._reach(relation), relation=relation)

    def matrix(self, params: Array | None = None, *, relation: Relation) -> BoundedSum:
        """The same as a matrix: for `release_sketch`, whose noise multiplies."""
        total = self._sum(None if params is None else self._weights(params))
        return BoundedSum(total, sensitivity=self._reach(relation), relation=relation)

    def _reach(self, relation: Relation) -> float:
        removed = check_relation(relation) == "add-or-remove-one"
        return self.bound if removed else math.sqrt(2) * self.bound

    def least_eigenvalue(self, *, relation: Relation) -> BoundedSum:
        """λ_min of Σ c x_i x_iᵀ with c the smoothness.

        Guarantee: a matrix that gains c x xᵀ ⪰ 0 gains between 0 and c‖x‖² ≤ bound in every eigenvalue
        (Weyl), so that one record more or less moves this one by at most the bound. One replaced: both values
        lie between that without the record and that plus the bound, and they differ by no more either.
        """
        try:
            least = float(np.linalg.eigvalsh(self._sum(None))[0])
        except np.linalg.LinAlgError:  # never seen; whether it happens must not be an output
            least = 0.0
        return BoundedSum(
            np.array([max(least, 0.0)]), sensitivity=self.bound, relation=check_relation(relation)
        )

    def _sum(self, weights: Floats | None) -> Floats:
        if weights is None and self._plain is not None:
            return self._plain
        total = self._total(weights)
        if weights is None:
            self._plain = total
        return total

    def _total(self, weights: Floats | None) -> Floats:
        total = np.zeros((self.p, self.p))
        with np.errstate(all="ignore"):  # a warning about a value would be an output as well
            for block in self._reader.blocks():
                curvatures = self._curvatures(block, weights)
                total += weighted_gram(block.X, curvatures)
        return np.asarray((total + total.T) * (_SHORT / 2))

    def _curvatures(self, block: Block, weights: Floats | None) -> Floats:
        """c_i: within its bound whatever the loss computes, and 0 for what is not a number."""
        if weights is None:
            curvatures = np.full(len(block.y), self._top)
        else:
            curvatures = np.nan_to_num(self.loss.curvature(block.X @ weights, block.y), nan=0.0, posinf=0.0)
            curvatures = np.clip(curvatures, 0.0, self._top)
        curvatures[self._ignored[block.where]] = 0
        return np.asarray(curvatures, dtype=np.float64)

    def _weights(self, params: Array) -> Floats:
        flat = np.asarray(params, dtype=np.float64).reshape(-1)
        if self.loss.outputs > 1 or flat.size != self.p:
            raise InputError(f"a Hessian is for one output with {self.p} weights; {flat.size} were given")
        return flat
