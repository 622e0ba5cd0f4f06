"""The private side of a linear model whose records lie in blocks: every question is asked of every block.

A block answers with the oracle that rows in memory have (`LinearOracle`, `MomentOracle`), and the shares are
added in the order of the blocks (`data.partitions`). So the guarantee is that of the one oracle: a record is
in one block, and what it contributes is a function of that record.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Generic, TypeVar, cast

import numpy as np

from sidelight.arrays import Array, Floats, Vector, floats
from sidelight.clipping import Clip, FeatureMetric, Metric
from sidelight.data.partitions import BlockRows, BlockSample, PartitionedRows, Sample
from sidelight.losses import Loss
from sidelight.oracles.linear.linear_oracle import LinearOracle
from sidelight.oracles.linear.row_sums import MomentOracle
from sidelight.privacy.events import Relation
from sidelight.privacy.release import BoundedSum, share_of

__all__ = ["PartitionMoments", "PartitionOracle"]

T = TypeVar("T")


# ---------------------------------------------------------------------------------------------------
# questions, as they are sent to whoever holds a block


_numbers = itertools.count()


@dataclass(frozen=True, eq=False)
class _Known(Generic[T]):
    """A thing that many questions are about, with a number by which a block knows it again.

    A copy that was sent elsewhere is another object, and an oracle remembers by objects what it measured.
    """

    number: int
    thing: T

    def here(self, rows: BlockRows, role: str) -> T:
        """The first copy that the block was sent; one thing for each role is kept."""
        for number, thing in rows.kept.values():
            if number == self.number:
                return cast("T", thing)
        rows.kept[role] = (self.number, self.thing)
        return self.thing


@dataclass(frozen=True, eq=False)
class _Subject:
    """A loss, and the metric that its rows are brought to length 1 under."""

    number: int
    loss: Loss
    unit: _Known[FeatureMetric | None]

    def oracle(self, rows: BlockRows) -> LinearOracle:
        """That of the block: made once, as it remembers lengths of rows."""
        number, known = rows.kept.get("oracle", (None, None))
        if number != self.number or not isinstance(known, LinearOracle):
            known = LinearOracle(rows, self.loss, unit_under=self.unit.here(rows, "unit"))
            rows.kept["oracle"] = (self.number, known)
        return known


@dataclass(frozen=True, eq=False)
class _ClippedSum:
    subject: _Subject
    params: Vector
    batch: BlockSample | None
    clip: Clip
    origin: Vector | None
    metric: _Known[Metric]
    relation: Relation

    def __call__(self, rows: BlockRows) -> BoundedSum:
        return self.subject.oracle(rows).clipped_sum(
            self.params,
            _within(self.batch, rows),
            clip=self.clip,
            origin=self.origin,
            metric=self.metric.here(rows, "metric"),
            relation=self.relation,
        )


@dataclass(frozen=True, eq=False)
class _ClippedLosses:
    subject: _Subject
    candidates: Array
    batch: BlockSample | None
    bound: float
    relation: Relation

    def __call__(self, rows: BlockRows) -> BoundedSum:
        oracle, chosen = self.subject.oracle(rows), _within(self.batch, rows)
        return oracle.clipped_losses(self.candidates, chosen, bound=self.bound, relation=self.relation)


@dataclass(frozen=True, eq=False)
class _Moments:
    loss: Loss
    params: Array | None
    relation: Relation

    def __call__(self, rows: BlockRows) -> BoundedSum:
        return MomentOracle(rows, self.loss).matrix(self.params, relation=self.relation)


def _within(batch: BlockSample | None, rows: BlockRows) -> Array | None:
    return None if batch is None else batch.indices(rows.block, rows.start, rows.n)


# ---------------------------------------------------------------------------------------------------
# who asks them


class PartitionOracle(LinearOracle):
    """Answers questions about private rows in blocks with bounded sums.

    Guarantee: that of `LinearOracle`. A batch is a `BlockSample`, of which each block draws its own records.
    """

    def __init__(self, rows: PartitionedRows, loss: Loss, *, unit_under: FeatureMetric | None = None) -> None:
        self.loss, self.size = loss, rows.n
        self.dimension = loss.outputs * rows.p
        self._p, self._rows = rows.p, rows
        self._unit = unit_under
        self._subject = _Subject(next(_numbers), loss, _Known(next(_numbers), unit_under))
        self._metric: _Known[Metric] = _Known(next(_numbers), None)

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
        question = _ClippedSum(
            self._subject, self._checked_params(params), self._batch(indices), clip, origin,
            self._known(metric), relation,
        )  # fmt: skip
        return self._rows.summed(question)

    def clipped_losses(
        self, candidates: Array, indices: Sample = None, *, bound: float, relation: Relation
    ) -> BoundedSum:
        batch = self._batch(indices)
        return self._rows.summed(_ClippedLosses(self._subject, candidates, batch, bound, relation))

    def _known(self, metric: Metric) -> _Known[Metric]:
        """The metric under the number of the last one, or of the unit metric, if it is the same."""
        if metric is not None and metric is self._unit:
            return _Known(self._subject.unit.number, metric)
        if metric is not self._metric.thing:
            self._metric = _Known(next(_numbers), metric)
        return self._metric

    def _batch(self, indices: Sample) -> BlockSample | None:
        if indices is None or isinstance(indices, BlockSample):
            return indices
        checked = self._checked(indices)
        return None if checked is None else BlockSample(b"", None, np.sort(checked))

    def _checked_params(self, params: Vector) -> Floats:
        self._weights(params)  # raises for another number of them
        return floats(params)


class PartitionMoments(MomentOracle):
    """Answers second-order questions about private rows in blocks.

    Guarantee: that of `MomentOracle`; the matrices of the blocks are added before an eigenvalue is taken.
    """

    def __init__(self, rows: PartitionedRows, loss: Loss) -> None:
        self._hold(rows, loss)
        self._rows = rows

    def _total(self, weights: Floats | None) -> Floats:
        question = _Moments(self.loss, weights, "add-or-remove-one")
        return np.asarray(share_of(self._rows.summed(question)))
