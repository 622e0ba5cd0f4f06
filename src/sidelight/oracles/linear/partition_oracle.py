"""The private side of a linear model whose records lie in blocks: every question is asked of every block.

A block answers with the oracle that rows in memory have (`LinearOracle`, `MomentOracle`), and the shares are
added in the order of the blocks (`data.partitions`). So the guarantee is that of the one oracle: a record is
in one block, and what it contributes is a function of that record.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import partial
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


def _clipped_sum(
    rows: BlockRows, *, subject: _Subject, params: Vector, batch: BlockSample | None, clip: Clip,
    origin: Vector | None, metric: _Known[Metric], relation: Relation,
) -> BoundedSum:  # fmt: skip
    return subject.oracle(rows).clipped_sum(
        params, _within(batch, rows), clip=clip, origin=origin, metric=metric.here(rows, "metric"),
        relation=relation,
    )  # fmt: skip


def _clipped_losses(
    rows: BlockRows, *, subject: _Subject, candidates: Array, batch: BlockSample | None, bound: float,
    relation: Relation,
) -> BoundedSum:  # fmt: skip
    chosen = _within(batch, rows)
    return subject.oracle(rows).clipped_losses(candidates, chosen, bound=bound, relation=relation)


def _matrix(rows: BlockRows, *, loss: Loss, params: Array | None, relation: Relation) -> BoundedSum:
    return MomentOracle(rows, loss).matrix(params, relation=relation)


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
        self._weights(params)  # raises for another number of them
        return self._rows.summed(partial(
            _clipped_sum, subject=self._subject, params=floats(params), batch=self._batch(indices), clip=clip,
            origin=origin, metric=self._known(metric), relation=relation,
        ))  # fmt: skip

    def clipped_losses(
        self, candidates: Array, indices: Sample = None, *, bound: float, relation: Relation
    ) -> BoundedSum:
        return self._rows.summed(partial(
            _clipped_losses, subject=self._subject, candidates=candidates, batch=self._batch(indices),
            bound=bound, relation=relation,
        ))  # fmt: skip

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


class PartitionMoments(MomentOracle):
    """Answers second-order questions about private rows in blocks.

    Guarantee: that of `MomentOracle`; the matrices of the blocks are added before an eigenvalue is taken.
    """

    def __init__(self, rows: PartitionedRows, loss: Loss) -> None:
        self._hold(rows, loss)
        self._rows = rows

    def _total(self, weights: Floats | None) -> Floats:
        question = partial(_matrix, loss=self.loss, params=weights, relation="add-or-remove-one")
        return np.asarray(share_of(self._rows.summed(question)))
