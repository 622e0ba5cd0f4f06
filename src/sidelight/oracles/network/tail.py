"""A metric that projects the last parameters and leaves the others: M g = (g_rest, basisᵀ g_tail).

For AdaMix on a network, whose last layer has a gradient of low rank while the others' has not. The clip sees
the length of both together, and noise has as many coordinates as M g.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from sidelight.arrays import Vector
from sidelight.clipping import Clip
from sidelight.errors import InputError
from sidelight.oracles.network.flat import tensor
from sidelight.oracles.network.lengths import Answer, Layout, ProjectedNorms, RunningSum, ScaledNorms
from sidelight.oracles.network.pieces import Piece

__all__ = ["Tail", "TailProjection"]


@dataclass(frozen=True, eq=False)
class TailProjection:
    """Coordinates `start` … of a flat vector in a basis (their number × k), the others as they are."""

    basis: Tensor
    start: int

    def apply(self, vector: Vector) -> Tensor:
        """M v."""
        whole = tensor(vector)
        return torch.cat([whole[: self.start], self.basis.T @ whole[self.start :]])

    def lift(self, vector: Vector) -> Tensor:
        """Mᵀ v."""
        whole = tensor(vector)
        return torch.cat([whole[: self.start], self.basis @ whole[self.start :]])


@dataclass
class TailTotal(RunningSum):
    """Both sums."""

    tail: RunningSum


def _both(total: RunningSum) -> TailTotal:
    if not isinstance(total, TailTotal):
        raise TypeError("a tail projection adds up in a TailTotal")
    return total


class Tail:
    """Norms of a TailProjection: scaled for the first parameters, projected for the last."""

    def __init__(self, layout: Layout, origin: Tensor | None, metric: TailProjection) -> None:
        first, last = layout.split(metric.start)
        if last is None or last.dimension != len(metric.basis):
            raise InputError(
                "the basis must have one row for each number of the last parameters, and no more"
            )
        begin, end = (None, None) if origin is None else (origin[: metric.start], origin[metric.start :])
        self.rest = None if first is None else ScaledNorms(first, begin, None)
        self.tail = ProjectedNorms(last, end, metric.basis)
        self.last = frozenset(last.parameters)

    def answer(self, count: int) -> Answer:
        return _Both(self, count)

    def new_total(self, records: int, clip: Clip) -> TailTotal:
        tail = self.tail.new_total(records, clip)
        if self.rest is None:
            return TailTotal(tail.value.new_zeros(0), tail.weight, tail.terms, tail)
        rest = self.rest.new_total(records, clip)
        return TailTotal(rest.value, rest.weight, rest.terms, tail)

    def finished(self, total: RunningSum) -> Tensor:
        tail = self.tail.finished(_both(total).tail)
        return tail if self.rest is None else torch.cat([self.rest.finished(total), tail])


class _Both:
    def __init__(self, question: Tail, count: int) -> None:
        self._last = question.last
        self._rest = None if question.rest is None else question.rest.answer(count)
        self._tail = question.tail.answer(count)

    def receive(self, parameter: Tensor, piece: Piece) -> None:
        answer = self._tail if parameter in self._last or self._rest is None else self._rest
        answer.receive(parameter, piece)

    def norms(self) -> Tensor:
        tail = self._tail.norms()
        return tail if self._rest is None else torch.hypot(self._rest.norms(), tail) * (1 + 1e-12)

    def silence(self, records: Tensor) -> None:
        self._tail.silence(records)
        if self._rest is not None:
            self._rest.silence(records)

    def add(self, factors: Tensor, total: RunningSum) -> None:
        self._tail.add(factors, _both(total).tail)
        if self._rest is not None:
            self._rest.add(factors, total)
