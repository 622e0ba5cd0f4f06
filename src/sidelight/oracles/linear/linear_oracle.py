"""The private side of a linear model: sums of clipped gradients, never a gradient of one record.

The gradient of record i is s_i ⊗ x_i (flat, outputs × p in C order). Rows are read block by block: a block
goes forward (z = Wx), gets its slopes, norms and factors, and is added to the sum while it is still in cache.
So a full batch is one pass over memory, and what is allocated does not grow with the number of records.

All arithmetic is in float64, whatever the rows are stored in. The declared sensitivity is that of the exact
sum of the clipped contributions; adding n of them in float64 rounds by at most n²·1e-16 of the clip bound in
the worst case, and by about √n·1e-16 as a rule.
"""

from __future__ import annotations

import numpy as np

from sidelight.arrays import Array, Floats, Mask, Vector, floats
from sidelight.clipping import Clip, FeatureMetric, Metric
from sidelight.data.rows import Contents, PrivateRows, contents
from sidelight.errors import InputError
from sidelight.losses import Loss
from sidelight.oracles.linear.blocks import Block, RowReader
from sidelight.oracles.linear.geometry import Geometry, RowNorms, lengths_for
from sidelight.privacy.events import Relation, check_relation
from sidelight.privacy.release import BoundedSum

__all__ = ["LinearOracle"]

_HUGE = 1e100  # of weights: with rows of bounded norm, nothing up to here overflows


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
        indices: Array | None = None,
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
                factors = self._factors(geometry.norms(block, slopes), slopes, block.where, clip)
                total += block.X.T @ (factors * slopes if slopes.ndim == 1 else factors[:, None] * slopes)
                mass += float(factors.sum())
        return self._bounded(geometry.total(total.T, mass), clip.bound, relation)

    def _never_clips(self, clip: Clip, metric: Metric, weights: Array) -> bool:
        """Whether the loss alone keeps every contribution within a flat clip: then norms are not needed.

        Weights so large that a product might overflow take the long way, which drops what is not finite. That
        is decided by the weights: looking for an overflow would let one record choose the path of all.
        """
        flat = getattr(clip, "flat", False)
        if not flat or self.loss.lipschitz is None or not np.abs(weights).max() < _HUGE:
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
        self, candidates: Array, indices: Array | None = None, *, bound: float, relation: Relation
    ) -> BoundedSum:
        """Σ_i min(ℓ_i, bound) for each row of `candidates` (flat parameter vectors).

        Guarantee: one record more or less moves every score by a number in [0, bound], in the same direction
        (scores are monotone); the sensitivity declared is `bound`, that of one score. A record without a
        finite loss below the bound counts `bound` if the loss is infinite and 0 if it is not a number.
        """
        if not (np.isfinite(bound) and bound > 0):
            raise InputError(f"the bound on a loss must be a positive number, not {bound!r}")
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
        """(p,) for one output, (p, outputs) for several."""
        flat = floats(params).reshape(-1)
        if flat.size != self.dimension:
            raise InputError(f"the model has {self.dimension} parameters, but {flat.size} were given")
        return flat if self.loss.outputs == 1 else np.ascontiguousarray(flat.reshape(-1, self._p).T)

    def _lengths(self, metric: Metric) -> RowNorms:
        """The length rule of the metric, with what it remembers if it is the one of the last call."""
        if metric is not self._remembered[0]:
            rule = lengths_for(metric, outputs=self.loss.outputs, n=self._reader.n, p=self._p)
            self._remembered = (metric, rule)
        return self._remembered[1]

    def _checked(self, indices: Array | None) -> Array | None:
        """Indices that name each record at most once: a record there twice would count twice."""
        if indices is None:
            return None
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
