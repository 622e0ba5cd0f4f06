"""The private side of a linear model whose unit of privacy is a person with several rows.

A person with rows R contributes clip_C(M(ḡ − o)), where ḡ = (1/|R|) Σ_{i∈R} s_i ⊗ x_i is the mean gradient of
these rows. It is written out, a block of persons at a time: unlike the gradient of one row it has no closed
form for its length. The length is that of the vector which enters the sum, rounded upwards.

Gradients of a person may cancel each other, or the origin. What is left is then the rounding of sums, in
which the rows of others have a say: they decide where a block ends. A clip that normalizes would make it a
whole contribution, so a length counts what rounding may leave, about 1e-7 of the lengths that went into it,
and is not below that of the least slopes that the oracle of single rows counts.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from sidelight.arrays import Array, Floats, Vector, dense, floats, is_sparse
from sidelight.clipping import (
    Clip,
    Diagonal,
    FeatureMetric,
    Features,
    LinearMetric,
    Metric,
    ThinFeatures,
    checked_origin,
)
from sidelight.data.partitions import Sample
from sidelight.data.persons import PersonRows, person_contents
from sidelight.data.rows import BLOCK, row_norms
from sidelight.errors import PrivacyConditionError
from sidelight.losses import Loss
from sidelight.oracles.linear.linear_oracle import LinearOracle
from sidelight.oracles.linear.row_lengths import UNIT, check_linear_metric, slope_norms
from sidelight.privacy.events import Relation
from sidelight.privacy.release import BoundedSum


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
        indices: Sample = None,
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
        center = 0.0 if origin is None else checked_origin(origin, self.dimension)
        linear = check_linear_metric(metric)
        total = _image(linear, np.zeros((1, self.dimension)))[0]
        stretch = _stretch(linear)
        dust = math.sqrt((4 * (self.dimension + len(total)) + 64) * UNIT) * stretch
        with np.errstate(all="ignore"):  # a warning about a value would be an output as well
            for some in self._blocks(np.arange(self.size) if indices is None else indices):
                gradients, sizes, least = self._gradients(some, weights, clip)
                apart = _image(linear, gradients - center)
                norms = np.hypot(row_norms(apart), dust * (sizes + np.linalg.norm(center))) * (1 + 8 * UNIT)
                norms = np.maximum(norms, stretch * least)
                factors = np.asarray(clip.factors(norms))
                drop = ~np.isfinite(norms) | (self._usable[some] == 0)
                factors[drop], apart[drop] = 0, 0  # 0·∞ is not 0
                total += factors @ apart
        return self._bounded(total, clip.bound, relation)

    def clipped_losses(
        self, candidates: Array, indices: Sample = None, *, bound: float, relation: Relation
    ) -> BoundedSum:
        raise PrivacyConditionError("losses are bounded row by row, and a person has several rows")

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

    def _gradients(
        self, persons: NDArray[np.intp], weights: Floats, clip: Clip
    ) -> tuple[Floats, Floats, Floats]:
        """(persons, outputs·p): the mean gradient of each, the mean length of its rows' gradients, and the
        least that this counts for.

        Rows are read a block at a time.
        """
        sizes = self._offsets[persons + 1] - self._offsets[persons]
        owner = np.repeat(np.arange(len(persons)), sizes)
        inside = np.arange(len(owner)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        rows = self._order[np.repeat(self._offsets[persons], sizes) + inside]
        share = 1 / np.maximum(self._usable[persons], 1)
        found, lengths, least = (np.zeros((len(persons), *shape)) for shape in ((self.dimension,), (), ()))
        for block in self._reader.blocks(rows):
            slopes = self._slopes(block, weights).reshape(len(block.y), -1)
            slopes[~np.isfinite(slopes).all(axis=1)] = 0
            if self._ignored is not None:
                slopes[self._ignored[block.where]] = 0
            mine, owner = owner[: len(slopes)], owner[len(slopes) :]
            each = slope_norms(slopes) * block.norms * share[mine]
            lengths += np.bincount(mine, weights=each, minlength=len(persons))
            if (slope := self._least_slopes(block, weights, clip)) is not None:
                least += np.bincount(mine, weights=slope * block.norms * share[mine], minlength=len(persons))
            for k in range(slopes.shape[1]):
                sums = csr_array(
                    (slopes[:, k] * share[mine], (mine, np.arange(len(mine)))), (len(persons), len(mine))
                )
                found[:, k * self._p : (k + 1) * self._p] += dense(sums @ block.X)
        return found, lengths, least


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
