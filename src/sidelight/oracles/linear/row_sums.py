"""Sums over the rows of a linear model, block by block in float64.

`RowReader` is how every oracle of this room reads rows. `RowSums` are raw sums, for algorithms with a proof
of their own (output and objective perturbation, RSGD-AR, PNSGD) and for whatever is fitted without privacy.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from scipy.sparse import csr_array

from sidelight.arrays import Array, Floats, Matrix, Vector, floats, is_sparse
from sidelight.data.rows import BLOCK, PrivateRows, PublicRows, blocks_of, contents, tally_of
from sidelight.errors import AssumptionError, InputError
from sidelight.losses import Logistic, Loss, Softmax
from sidelight.privacy.events import Relation, check_relation
from sidelight.privacy.release import BoundedSum


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


def weights_of(params: Vector, outputs: int, p: int) -> Floats:
    """Flat parameters as (p,) for one output, (p, outputs) for several."""
    flat = floats(params).reshape(-1)
    if flat.size != outputs * p:
        raise InputError(f"the model has {outputs * p} parameters, but {flat.size} were given")
    return flat if outputs == 1 else np.ascontiguousarray(flat.reshape(-1, p).T)


def weighted_gram(X: Matrix, factors: Floats) -> Floats:
    """Σ_i factors_i x_i x_iᵀ, written out."""
    if is_sparse(X):
        return np.asarray((X.T @ X.multiply(factors[:, None]).tocsr()).toarray())
    return np.asarray((X.T * factors) @ X)


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


# ---------------------------------------------------------------------------------------------------
# sums over records


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

    def __init__(self, X: Matrix, y: Floats, loss: Loss, norms: Floats | None = None) -> None:
        self.loss = loss
        self.n, self.p = X.shape
        self.dimension = loss.outputs * self.p
        ignored = ~loss.admits(y)
        self._ignored = ignored if ignored.any() else None
        self.targets: Array = np.where(ignored, 0, y).astype(np.intp) if loss.task == "multiclass" else y
        # Most sums do not ask for norms.
        self.reader = RowReader(X, self.targets, np.zeros(self.n) if norms is None else norms)

    def gradient(self, w: Floats, indices: Array | None = None) -> Floats:
        """Σ ∇ℓ_i(w), flat, over the records at `indices` (None: all)."""
        weights = self._weights(w)
        total = np.zeros(weights.shape)
        for block in self.reader.blocks(indices):
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
        for block in self.reader.blocks():
            slopes = self._masked(self.loss.slope(block.X @ weights, block.y), block.where)
            for low in range(0, len(slopes), _PIECE):
                total += block.X[low : low + _PIECE].T @ slopes[low : low + _PIECE]
        return np.asarray(total.T.reshape(-1), dtype=np.float64)

    def value(self, w: Floats) -> float:
        """Σ ℓ_i(w)."""
        weights = self._weights(w)
        return math.fsum(
            float(self._masked(self.loss.value(block.X @ weights, block.y), block.where).sum())
            for block in self.reader.blocks()
        )

    def line_values(self, w: Floats, direction: Floats, steps: Floats, *, bound: float) -> Floats:
        """Σ min(ℓ_i(w − η·direction), bound) for every η in `steps`: two products with X for all of them.

        Losses are in single precision, which costs a quarter of the time and no privacy: each is a function
        of its own record, in [0, bound], and they are added in double.
        """
        weights, slide = self._weights(w), self._weights(direction)
        totals = np.zeros(len(steps))
        top = np.nextafter(np.float32(bound), np.float32(0))  # rounding must not lift the bound
        for block in self.reader.blocks():
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
        for block in self.reader.blocks():
            curvatures = self._masked(self.loss.curvature(block.X @ w, block.y), block.where)
            total += weighted_gram(block.X, curvatures)
        return total

    def hessian_times(self, w: Floats, direction: Floats) -> Floats:
        """Σ ∇²ℓ_i(w)·direction, flat."""
        weights, slide = self._weights(w), self._weights(direction)
        total = np.zeros(weights.shape)
        for block in self.reader.blocks():
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

    def _weights(self, w: Vector) -> Floats:
        return weights_of(w, self.loss.outputs, self.p)


def _fast_value(loss: Loss, z: Array, y: Array) -> Array:
    """loss.value, with a logistic loss that vectorizes in single precision."""
    if not isinstance(loss, Logistic):
        return loss.value(z, y)
    margin = y * z
    tail = np.exp(-np.abs(margin))
    tail += 1
    value: Array = np.log(tail, out=tail)
    value -= np.minimum(margin, 0)
    return value


# ---------------------------------------------------------------------------------------------------
# counts of private records


def usable_rows(rows: PrivateRows, loss: Loss) -> tuple[Matrix, Array]:
    """The records themselves, for a model without privacy: those that are sound and that the loss takes."""
    X, y, _, null = contents(rows)
    usable = ~null & loss.admits(y)
    return X[usable], y[usable]


def label_counts(rows: PrivateRows, classes: Array, *, relation: Relation) -> BoundedSum:
    """How many records have each label: one record moves one count, or two if it is replaced."""
    counted = ~contents(rows).null
    return rows.compute(
        lambda X, y: ((y[:, None] == classes) & counted[:, None]).sum(axis=0).astype(float),
        sensitivity=1.0,
        relation=relation,
    )


_IGNORED, _MISFIT = 5 / 8, 3 / 8  # squares, the second times MISFITS_IN_FULL, add up to less than 1


def count_ignored(rows: PrivateRows, *, relation: Relation) -> BoundedSum:
    """Records that contribute nothing, then misfits by column, each times `ignored_scales`.

    Guarantee: a record or a person adds a vector of length at most 1, none of whose entries is negative
    (`data.rows.tally`). One more or less moves the sum by at most 1; one replaced by √2, or by 1 if there are
    no columns.
    """
    total = tally_of(rows)
    added = check_relation(relation) == "add-or-remove-one" or len(total) == 1
    reach = 1.0 if added else math.sqrt(2)
    return BoundedSum(total * ignored_scales(len(total) - 1), sensitivity=reach, relation=relation)


def ignored_scales(columns: int) -> Floats:
    """What the count of ignored records and those of misfits are multiplied by: exact in binary."""
    return np.array([_IGNORED, *[_MISFIT] * columns]) if columns else np.ones(1)


# ---------------------------------------------------------------------------------------------------
# the private side of second-order methods: sums of x xᵀ over records, and the least eigenvalue of one
#
# A symmetric matrix is packed into its upper triangle with √2 times the entries off the diagonal: the length
# of the packed vector is then the Frobenius norm of the matrix. Noise of variance s² on it is noise of s² on
# the diagonal of the matrix and of s²/2 elsewhere.


_MAX_FEATURES = 4096  # features of which a matrix is written out: 128 MB
_BOUND_SHARE = 1 - 64 * float(
    np.finfo(np.float64).eps
)  # a sum ends a few ulp below its bound, as a clipped one does


def check_features(p: int, *, method: str) -> None:
    """Refuse more features than a matrix is written out for; p is public."""
    if p > _MAX_FEATURES:
        raise AssumptionError(
            f"{method} writes out a matrix of {p} × {p} numbers, and {_MAX_FEATURES} features are the most "
            "it does. Use dp_sgd or objective_perturbation, or fewer features"
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
        return np.asarray((total + total.T) * (_BOUND_SHARE / 2))

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
