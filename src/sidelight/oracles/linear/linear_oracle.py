"""The private side of a linear model: sums of clipped gradients, never a gradient of one record.

The gradient of record i is s_i ⊗ x_i (flat, outputs × p in C order). Rows are read block by block: a block
goes forward (z = Wx), gets its slopes, norms and factors, and is added to the sum while it is still in cache.
So a full batch is one pass over memory, and what is allocated does not grow with the number of records.

All arithmetic is in float64, whatever the rows are stored in. The declared sensitivity is that of the exact
sum of the clipped contributions; adding n of them in float64 rounds by at most n²·1e-16 of the clip bound in
the worst case, and by about √n·1e-16 as a rule.

How long a contribution is, is known without forming the gradient (`row_lengths`).

Where a slope passes 0 (a record that a start predicts exactly), what is left of it is the rounding of its
score, and BLAS rounds by a row's place in its block. A clip that normalizes would make that a whole
contribution. So for such a clip no length is below that of a slope of `_least_slopes`, the geometric mean of
its rounding and its size.
"""

from __future__ import annotations

import math

import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.linalg import LinearOperator, eigsh

from sidelight.arrays import Array, Floats, Mask, Matrix, Vector, dense, floats, is_sparse
from sidelight.clipping import (
    Clip,
    FeatureMetric,
    Metric,
    ThinFeatures,
)
from sidelight.data.partitions import BlockSample, Sample
from sidelight.data.rows import Contents, PrivateRows, PublicRows, contents, row_norms
from sidelight.errors import AssumptionError, InputError, positive
from sidelight.losses import Loss
from sidelight.oracles.linear.row_lengths import UNIT, Geometry, RowNorms, lengths_for
from sidelight.oracles.linear.row_sums import Block, RowReader, RowSums, weights_of
from sidelight.privacy.events import Relation, check_relation
from sidelight.privacy.release import BoundedSum

_MAX_WEIGHT = 1e100  # of weights: with rows of bounded norm, nothing up to here overflows


class LinearOracle:
    """Answers questions about private rows with bounded sums.

    Guarantee: one record more or less moves `clipped_sum` by at most clip.bound, one replaced by at most
    twice that. A record whose gradient is not finite, whose target the loss does not know, or whose row is
    null contributes exactly zero, after the origin is subtracted.
    """

    def __init__(self, rows: PrivateRows, loss: Loss, *, unit_under: FeatureMetric | None = None) -> None:
        """`unit_under`: the loss sees x/‖Mx‖ in place of x, for a metric M that is fixed for the run."""
        self._hold(contents(rows), rows, loss, unit_under)

    def _hold(self, held: Contents, rows: PrivateRows, loss: Loss, unit_under: FeatureMetric | None) -> None:
        X, y, norms, null = held
        self.loss = loss
        self.size = rows.n
        self.dimension = loss.outputs * rows.p
        self._p = rows.p
        ignored = null | ~loss.admits(y)
        if loss.task == "multiclass":
            y = np.where(ignored, 0, y).astype(np.intp)
        self._ignored: Mask | None = ignored if ignored.any() else None
        self._reader = RowReader(X, y, norms)
        self._remembered: tuple[Metric, RowNorms] = (None, lengths_for(None, outputs=1, n=0, p=0))
        self._unit, self._max_norm = unit_under, rows.max_norm
        self._scales = None if unit_under is None else self._unit_scales(unit_under)

    def clipped_sum(
        self,
        params: Vector,
        indices: Sample = None,
        *,
        clip: Clip,
        origin: Vector | None = None,
        metric: Metric = None,
        relation: Relation,
    ) -> BoundedSum:
        """Σ_i f_i·M(g_i − o) over the records at `indices` (None: all), f_i = clip.factors(‖M(g_i − o)‖).

        `params`, `origin` and `metric` must be functions of public data and of released values.
        """
        weights = self._weights(params)
        indices = self._checked(indices)
        geometry = Geometry(metric, origin, self._lengths(metric), self.loss.outputs, self._p)
        if origin is None and self._never_clips(clip, metric, weights):
            plain = self._unclipped(weights, indices)
            return self._bounded(geometry.total(plain.T, 0.0), clip.bound, relation)
        total, mass = np.zeros(weights.shape), 0.0
        with np.errstate(all="ignore"):  # a warning about a value would be an output as well
            for block in self._reader.blocks(indices):
                slopes = self._slopes(block, weights)
                least = self._least_slopes(block, weights, clip)
                factors = self._factors(geometry.norms(block, slopes, least), slopes, block.where, clip)
                total += block.X.T @ (factors * slopes if slopes.ndim == 1 else factors[:, None] * slopes)
                mass += float(factors.sum())
        return self._bounded(geometry.total(total.T, mass), clip.bound, relation)

    def _never_clips(self, clip: Clip, metric: Metric, weights: Array) -> bool:
        """Whether the loss alone keeps every contribution within a flat clip: then norms are not needed.

        Weights so large that a product might overflow take the long way, which drops what is not finite. That
        is decided by the weights: looking for an overflow would let one record choose the path of all.
        """
        flat = getattr(clip, "flat", False)
        if not flat or self.loss.lipschitz is None or not np.abs(weights).max() < _MAX_WEIGHT:
            return False
        if self._unit is not None:
            return metric is self._unit and self.loss.lipschitz <= clip.bound
        return metric is None and self.loss.lipschitz * self._max_norm <= clip.bound

    def _unclipped(self, weights: Array, indices: Array | None) -> Floats:
        """Σ_i g_i over the records that may contribute, a few ulp short as a clipped sum is.

        The bound of the loss holds for targets that it admits. Others are ignored,
        though their rows need not be 0.
        """
        total = np.zeros(weights.shape)
        with np.errstate(all="ignore"):
            for block in self._reader.blocks(indices):
                slopes = self._slopes(block, weights)
                if self._ignored is not None:
                    slopes[self._ignored[block.where]] = 0
                total += block.X.T @ slopes
        return total * (1 - 64 * float(np.finfo(np.float64).eps))

    def clipped_losses(
        self, candidates: Array, indices: Sample = None, *, bound: float, relation: Relation
    ) -> BoundedSum:
        """Σ_i min(ℓ_i, bound) for each row of `candidates` (flat parameter vectors).

        Guarantee: one record more or less moves every score by a number in [0, bound], in the same direction
        (scores are monotone); the sensitivity declared is `bound`, that of one score. A record without a
        finite loss below the bound counts `bound` if the loss is infinite and 0 if it is not a number.
        """
        positive("the bound on a loss", bound)
        candidates = np.atleast_2d(np.asarray(candidates, dtype=np.float64))
        indices = self._checked(indices)
        scores = np.zeros(len(candidates))
        with np.errstate(all="ignore"):
            for block in self._reader.blocks(indices):
                for k, params in enumerate(candidates):
                    values = self.loss.value(block.X @ self._weights(params), block.y)
                    values = np.where(np.isnan(values), 0.0, np.clip(values, 0.0, bound))
                    scores[k] += (
                        values.sum() if self._ignored is None else values @ ~self._ignored[block.where]
                    )
        return BoundedSum(scores, sensitivity=bound, relation=relation)

    def _slopes(self, block: Block, weights: Array) -> Array:
        """dℓ/dz, and under a unit metric times the scale of the row."""
        z = block.X @ weights
        if self._scales is None:
            return self.loss.slope(z, block.y)
        scale = self._scales[block.where] if z.ndim == 1 else self._scales[block.where][:, None]
        return np.asarray(self.loss.slope(z * scale, block.y) * scale)

    def _least_slopes(self, block: Block, weights: Array, clip: Clip) -> Floats | None:
        """Slopes that are √(rounding/size) of their size; None for a clip or a loss that does not need them.

        A score is off by at most (p + 64)·UNIT·‖w‖‖x‖ and a slope by `steepness_at_zero` times that, so that
        normalized by this length the rounding of a slope is at most √(rounding/size) of a contribution.
        """
        steep = self.loss.steepness_at_zero
        if steep is None or getattr(clip, "flat", False):
            return None
        scale = 1.0 if self._scales is None else self._scales[block.where]
        reach = float(np.linalg.norm(weights)) * block.norms * scale + np.abs(block.y)
        size = steep * reach if self.loss.lipschitz is None else self.loss.lipschitz
        return np.asarray(scale * np.sqrt(4 * (self._p + 64) * UNIT * steep * reach * size))

    def _unit_scales(self, metric: FeatureMetric) -> Floats:
        """1/‖Mx_i‖ for every record, from lengths that are rounded upwards.

        Shorter rows than 1e-150 stay shorter than 1: if they were left out, the last bit of a length, which
        other rows of its block have a say in, would decide about a whole contribution.
        """
        lengths = self._lengths(metric)
        scales = np.empty(self._reader.n)
        with np.errstate(all="ignore"):
            for block in self._reader.blocks():
                length = lengths(block, np.ones(len(block.y)))
                scales[block.where] = np.where(np.isfinite(length), 1 / np.maximum(length, 1e-150), 0.0)
        return scales

    def _factors(self, norms: Floats, slopes: Array, where: Array | slice, clip: Clip) -> Floats:
        """Clip factors; records that must not contribute get factor and slope 0."""
        factors = np.asarray(clip.factors(norms))
        drop = ~np.isfinite(norms)
        if self._ignored is not None:
            drop |= self._ignored[where]
        if drop.any():
            factors[drop] = 0
            slopes[drop] = 0  # 0·∞ is not 0
        return factors

    def _bounded(self, value: Array, bound: float, relation: Relation) -> BoundedSum:
        removed = check_relation(relation) == "add-or-remove-one"
        return BoundedSum(value, sensitivity=bound if removed else 2 * bound, relation=relation)

    def _weights(self, params: Vector) -> Floats:
        return weights_of(params, self.loss.outputs, self._p)

    def _lengths(self, metric: Metric) -> RowNorms:
        """The length rule of the metric, with what it remembers if it is the one of the last call."""
        if metric is not self._remembered[0]:
            rule = lengths_for(metric, outputs=self.loss.outputs, n=self._reader.n, p=self._p)
            self._remembered = (metric, rule)
        return self._remembered[1]

    def _checked(self, indices: Sample) -> Array | None:
        """Indices that name each record at most once: a record there twice would count twice."""
        if indices is None:
            return None
        if isinstance(indices, BlockSample):
            raise InputError("a sample of blocks is for records that lie in blocks")
        indices = np.asarray(indices)
        if indices.ndim != 1 or not (np.issubdtype(indices.dtype, np.integer) or indices.size == 0):
            raise InputError("indices must be a vector of integers")
        indices = indices.astype(np.intp, copy=False)
        ascending = indices if (indices[1:] > indices[:-1]).all() else np.sort(indices)
        if indices.size and (ascending[0] < 0 or ascending[-1] >= self.size):
            raise InputError(f"indices must be from 0 to {self.size - 1}")
        if (ascending[1:] == ascending[:-1]).any():
            raise InputError("indices must be distinct: a record that is there twice counts twice")
        return indices


# ---------------------------------------------------------------------------------------------------
# means over public records: nothing is secret, so the answers are plain arrays


def check_public(public: PublicRows, loss: Loss) -> None:
    """Public targets that the loss is not defined for are an error: nothing is secret there."""
    if not loss.admits(public.y).all():
        raise InputError(f"y_public holds targets that the {loss.name} loss is not defined for")


class PublicOracle:
    """Gradients, norms and curvature of a linear model on public rows (flat vectors, as in LinearOracle).

    residual: targets are what a model of these same rows gets wrong of them, out of fold. That model knows
    what they say, so as a whole they do not speak for a correction: `mean_gradient` is 0 at w = 0.
    """

    def __init__(self, rows: PublicRows, loss: Loss, *, residual: bool = False) -> None:
        check_public(rows, loss)
        self.loss, self.residual = loss, residual
        self.rows = rows
        self.refresh = 1  # every gradient is cheap
        self.size = rows.n
        self.dimension = loss.outputs * rows.p
        self._sums = RowSums(rows.X, rows.y, loss, row_norms(rows.X))
        self._X, self._p, self._y = rows.X, rows.p, self._sums.targets
        self._remembered: tuple[Metric, RowNorms] = (None, lengths_for(None, outputs=1, n=0, p=0))

    def under(self, metric: FeatureMetric) -> PublicOracle:
        """The same records for a loss that takes x/‖Mx‖ in place of x."""
        rows = self.rows
        more = None if rows.unlabeled is None else _of_unit_length(rows.unlabeled, metric)
        public = PublicRows(_of_unit_length(rows.X, metric), rows.y, more)
        return PublicOracle(public, self.loss, residual=self.residual)

    def hessian(self, params: Vector) -> Floats:
        """The second derivative of the mean loss of a scalar model, p × p."""
        return np.asarray(self._sums.hessian(floats(params)) / self._count(None))

    def mean_gradient(self, params: Vector, indices: Array | None = None) -> Floats:
        """The mean gradient, not clipped; over the rows at `indices` if given."""
        gradient = self._sums.gradient(floats(params), indices)
        if self.residual:
            gradient = gradient - self._sums.gradient(np.zeros(self.dimension), indices)
        return np.asarray(gradient / self._count(indices))

    def gradient_norms(
        self, params: Vector, *, metric: Metric = None, origin: Vector | None = None
    ) -> Floats:
        """‖M(g_j − o)‖ for every public record."""
        if metric is not self._remembered[0]:
            rule = lengths_for(metric, outputs=self.loss.outputs, n=self.size, p=self._p)
            self._remembered = (metric, rule)
        geometry = Geometry(metric, origin, self._remembered[1], self.loss.outputs, self._p)
        weights = self._weights(params)
        norms = [
            geometry.norms(block, self.loss.slope(block.X @ weights, block.y))
            for block in self._sums.reader.blocks()
        ]
        return np.concatenate(norms) if norms else np.zeros(0)

    def weighted_gradient(self, params: Vector, weights: Floats) -> Floats:
        """The mean of w_j g_j."""
        slopes = self.loss.slope(self._X @ self._weights(params), self._y).reshape(self.size, -1)
        return np.asarray((weights[:, None] * slopes).T @ self._X / self._count(None)).reshape(-1)

    def gradients(self, params: Vector) -> Floats:
        """The gradient of every record, size × dimension. For small public sets."""
        slopes = self.loss.slope(self._X @ self._weights(params), self._y).reshape(self.size, -1)
        return np.asarray(slopes[:, :, None] * dense(self._X)[:, None, :], dtype=np.float64).reshape(
            self.size, -1
        )

    def losses(self, params: Vector) -> Floats:
        """The loss of every public record."""
        return np.asarray(self.loss.value(self._X @ self._weights(params), self._y), dtype=np.float64)

    def mean_loss(self, params: Vector) -> float:
        """The mean loss, without a regularizer."""
        return float(self.losses(params).sum() / self._count(None))

    def smoothness(self) -> float:
        """A bound on the Hessian of the mean loss at any parameters: sup ℓ'' · λ_max(XᵀX/n)."""
        if self.loss.smoothness is None:
            raise AssumptionError(f"the {self.loss.name} loss is not smooth; use huber instead")
        return self.loss.smoothness * self._top()

    def hessian_times(self, params: Vector, direction: Vector) -> Floats:
        """The Hessian of the mean loss at `params`, times a flat vector."""
        return np.asarray(self._sums.hessian_times(floats(params), floats(direction)) / self._count(None))

    def _top(self) -> float:
        """λ_max(XᵀX / n)."""
        X: Matrix = self._X * math.sqrt(1 / self._count(None))
        if min(X.shape) > 2000:
            return _largest_eigenvalue(X)
        gram: Matrix = X @ X.T if X.shape[0] < X.shape[1] else X.T @ X
        return float(max(np.linalg.eigvalsh(dense(gram))[-1], 0.0))

    def _weights(self, params: Vector) -> Floats:
        return weights_of(params, self.loss.outputs, self._p)

    def _count(self, indices: Array | None) -> int:
        count = self.size if indices is None else len(indices)
        if count == 0:
            raise InputError("there are no public rows to take a mean over; pass X_public and y_public")
        return count


def _of_unit_length(X: Matrix, metric: FeatureMetric) -> Matrix:
    """x/‖Mx‖ for every row."""
    if isinstance(metric, ThinFeatures):
        lengths = metric.lengths(X)
    else:
        X = dense(X)
        lengths = np.linalg.norm(X @ floats(metric.matrix).T, axis=1)
    scales = np.where(lengths > 1e-150, 1 / np.maximum(lengths, 1e-150), 0.0)[:, None]
    return csr_array(X.multiply(scales)) if is_sparse(X) else X * scales


def _largest_eigenvalue(X: Matrix) -> float:
    """λ_max(XᵀX) of a large matrix, from a start that is the same every time."""
    dimension = X.shape[1]
    start = np.random.default_rng(0).standard_normal(dimension)
    operator = LinearOperator((dimension, dimension), matvec=lambda v: X.T @ (X @ v), dtype=np.float64)
    return float(eigsh(operator, k=1, which="LA", v0=start, return_eigenvectors=False)[0])
