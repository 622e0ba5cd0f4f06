"""The private side of a linear model: sums of clipped gradients, never a gradient of one record.

The gradient of record i is s_i ⊗ x_i (flat, outputs × p in C order). Rows are read block by block: a block
goes forward (z = Wx), gets its slopes, norms and factors, and is added to the sum while it is still in cache.
So a full batch is one pass over memory, and what is allocated does not grow with the number of records.

All arithmetic is in float64, whatever the rows are stored in. The declared sensitivity is that of the exact
sum of the clipped contributions; adding n of them in float64 rounds by at most n²·1e-16 of the clip bound in
the worst case, and by about √n·1e-16 as a rule.

Where the unit of privacy is a person with rows R, a person contributes clip_C(M(ḡ − o)), where
ḡ = (1/|R|) Σ_{i∈R} s_i ⊗ x_i is the mean gradient of these rows. It is written out, a block of persons at a
time: unlike the gradient of one row it has no closed form for its length. The length is that of the vector
which enters the sum, rounded upwards.

Gradients of a person may cancel each other, or the origin. What is left is then the rounding of sums, in
which the rows of others have a say: they decide where a block ends. A clip that normalises would make it a
whole contribution, so a length counts what rounding may leave, about 1e-7 of the lengths that went into it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from sidelight.arrays import Array, Floats, Mask, Vector, dense, floats, is_sparse
from sidelight.clipping import Clip, Diagonal, FeatureMetric, Features, LinearMetric, Metric, ThinFeatures
from sidelight.data.rows import BLOCK, Contents, PersonRows, PrivateRows, contents, person_contents
from sidelight.errors import InputError, PrivacyConditionError
from sidelight.losses import Loss
from sidelight.oracles.linear.geometry import TINY, UNIT, Geometry, RowNorms, known, lengths_for, slope_norms
from sidelight.oracles.linear.row_sums import Block, RowReader, weights_of
from sidelight.privacy.events import Relation, check_relation
from sidelight.privacy.release import BoundedSum

__all__ = ["LinearOracle", "PersonOracle"]


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
        return weights_of(params, self.loss.outputs, self._p)

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


# ---------------------------------------------------------------------------------------------------
# persons with several rows


class PersonOracle(LinearOracle):
    """Answers questions about persons with bounded sums.

    Guarantee: one person more or less, with any rows, moves `clipped_sum` by at most clip.bound, one replaced
    by at most twice that. A row that cannot be used counts for nothing, and a person without a usable row
    contributes exactly zero, after the origin is subtracted.
    """

    def __init__(self, rows: PersonRows, loss: Loss, *, unit_under: FeatureMetric | None = None) -> None:
        held = person_contents(rows)
        self._hold(held.rows, rows, loss, unit_under)
        self._order, self._offsets = held.order, held.offsets
        usable = ~(held.rows.null | ~loss.admits(held.rows.y))[self._order]
        counts = np.concatenate([[0], np.cumsum(usable)])[self._offsets]
        self._usable = np.diff(counts)  # rows of each person

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
        """Σ_k f_k·M(ḡ_k − o) over the persons at `indices` (None: all), f_k = clip.factors(‖M(ḡ_k − o)‖).

        `params`, `origin` and `metric` must be functions of public data and of released values.
        """
        weights = self._weights(params)
        indices = self._checked(indices)
        centre = self._centre(origin)
        linear = known(metric)
        total = _image(linear, np.zeros((1, self.dimension)))[0]
        dust = math.sqrt((4 * (self.dimension + len(total)) + 64) * UNIT) * _stretch(linear)
        with np.errstate(all="ignore"):  # a warning about a value would be an output as well
            for some in self._blocks(np.arange(self.size) if indices is None else indices):
                gradients, sizes = self._gradients(some, weights)
                apart = _image(linear, gradients - centre)
                norms = np.hypot(_lengths(apart), dust * (sizes + np.linalg.norm(centre))) * (1 + 8 * UNIT)
                factors = np.asarray(clip.factors(norms))
                drop = ~np.isfinite(norms) | (self._usable[some] == 0)
                factors[drop], apart[drop] = 0, 0  # 0·∞ is not 0
                total += factors @ apart
        return self._bounded(total, clip.bound, relation)

    def clipped_losses(
        self, candidates: Array, indices: Array | None = None, *, bound: float, relation: Relation
    ) -> BoundedSum:
        raise PrivacyConditionError("losses are bounded row by row, and a person has several rows")

    def _centre(self, origin: Vector | None) -> Floats | float:
        if origin is None:
            return 0.0
        flat = floats(origin).reshape(-1)
        if flat.size != self.dimension or not np.isfinite(flat).all():
            raise InputError(f"the origin must be a finite vector of {self.dimension} numbers")
        return flat

    def _blocks(self, persons: NDArray[np.intp]) -> Iterator[NDArray[np.intp]]:
        """Persons whose gradients fit in cache together, and whose rows are not many more than that."""
        most = max(1, BLOCK // max(1, self.dimension))
        rows = np.cumsum(np.diff(self._offsets)[persons])
        first = 0
        while first < len(persons):
            before = int(rows[first - 1]) if first else 0
            by_rows = int(np.searchsorted(rows, before + 4 * max(1, BLOCK // max(1, self._p)), side="right"))
            last = min(first + most, max(by_rows, first + 1), len(persons))
            yield persons[first:last]
            first = last

    def _gradients(self, persons: NDArray[np.intp], weights: Floats) -> tuple[Floats, Floats]:
        """(persons, outputs·p): the mean gradient of each, and the mean length of its rows' gradients.

        Rows are read a block at a time.
        """
        sizes = self._offsets[persons + 1] - self._offsets[persons]
        owner = np.repeat(np.arange(len(persons)), sizes)
        inside = np.arange(len(owner)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        rows = self._order[np.repeat(self._offsets[persons], sizes) + inside]
        share = 1 / np.maximum(self._usable[persons], 1)
        found, lengths = np.zeros((len(persons), self.dimension)), np.zeros(len(persons))
        for block in self._reader.blocks(rows):
            slopes = self._slopes(block, weights).reshape(len(block.y), -1)
            slopes[~np.isfinite(slopes).all(axis=1)] = 0
            if self._ignored is not None:
                slopes[self._ignored[block.where]] = 0
            mine, owner = owner[: len(slopes)], owner[len(slopes) :]
            each = slope_norms(slopes) * block.norms * share[mine]
            lengths += np.bincount(mine, weights=each, minlength=len(persons))
            for k in range(slopes.shape[1]):
                sums = csr_array(
                    (slopes[:, k] * share[mine], (mine, np.arange(len(mine)))), (len(persons), len(mine))
                )
                found[:, k * self._p : (k + 1) * self._p] += dense(sums @ block.X)
        return found, lengths


def _stretch(metric: LinearMetric) -> float:
    """A number that M makes no vector longer by."""
    match metric:
        case None:
            return 1.0
        case Diagonal():
            return float(np.abs(floats(metric.scale)).max())
        case Features():
            return float(np.linalg.norm(floats(metric.matrix)))
        case ThinFeatures():
            rows = metric.rows.data if is_sparse(metric.rows) else metric.rows
            return metric.floor + float(np.linalg.norm(metric.core)) * float(np.linalg.norm(rows)) ** 2
    return float(np.linalg.norm(floats(metric.basis)))


def _image(metric: LinearMetric, vectors: Floats) -> Floats:
    """M v of every row of `vectors`."""
    match metric:
        case None:
            return vectors
        case Diagonal():
            return np.asarray(vectors * floats(metric.scale))
        case Features() | ThinFeatures():  # act on each output's weights, one row after the other
            return floats(metric.apply(vectors.reshape(-1))).reshape(len(vectors), -1)
    return np.asarray(vectors @ floats(metric.basis))


def _lengths(vectors: Floats) -> Floats:
    """The length of every row, never below the true one."""
    squares = np.einsum("ij,ij->i", vectors, vectors) + TINY
    return np.asarray(np.sqrt(squares) * (1 + (vectors.shape[1] + 8) * UNIT * 2))
