"""Records that take turns: every record has a place in a cycle of steps, and may be drawn at no other.

Its place is drawn once for the run, from the cryptographic source, uniformly and independently of everything
else, and never shown: one record more or less then changes nobody else's place. A step draws each record of
its place with probability q, which may be 1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sidelight.errors import InputError, PrivacyConditionError, RelationError
from sidelight.privacy import correlated
from sidelight.privacy.correlated import CorrelatedGaussian
from sidelight.privacy.events import Event, Indices, Relation, check_relation, distinct
from sidelight.privacy.noise import Noise, keyed_generator
from sidelight.privacy.strategies import Strategy


@dataclass(frozen=True)
class Turns:
    """The sampler of a run of `steps` steps with correlated noise; `Places` draws its batches.

    largest: a batch has no more records than that; of more, so many are drawn uniformly.
    secret: whether the price of turns without sampling counts on nobody seeing who takes part.
    """

    sampling_probability: float
    cycle: int
    steps: int
    strategy: Strategy
    largest: int | None = None
    relation: Relation = "add-or-remove-one"
    secret: bool = False

    def __post_init__(self) -> None:
        check_relation(self.relation)
        q = self.sampling_probability
        if not (math.isfinite(q) and 0 < q <= 1):
            raise InputError(f"sampling_probability must be in (0, 1], not {q!r}")
        if self.cycle < 1 or self.steps < 1:
            raise InputError("a cycle, and a run, has at least one step")
        if q < 1 and self.relation != "add-or-remove-one":
            raise RelationError("turns that are sampled are accounted under add-or-remove-one")
        if self.secret and (q < 1 or self.relation != "add-or-remove-one"):
            raise RelationError("secret places are for turns without sampling, under add-or-remove-one")
        if self.largest is not None and not (q < 1 and self.largest >= 1):
            raise InputError("a largest batch, of at least 1 record, is for turns that are sampled")

    def event(self, n: int, noise_multiplier: float) -> Event:
        """What the whole run performs; noise_multiplier = std of a draw / sensitivity of a step's sum."""
        return self.run(n, noise_multiplier)

    def run(self, n: int, noise_multiplier: float) -> CorrelatedGaussian:
        q = self.sampling_probability
        full = 0.0
        if self.largest is not None:
            full = correlated.overflow(n, sampling_probability=q / self.cycle, largest=self.largest)
        return CorrelatedGaussian(
            noise_multiplier, self.strategy.coefficients, int(self.strategy.inverse), self.steps, self.cycle,
            -(-self.steps // self.cycle), q, full, int(self.secret),
        )  # fmt: skip

    def expected_batch_size(self, n: int) -> float:
        return n * self.sampling_probability / self.cycle

    def indices(self, n: int, noise: Noise) -> Indices | None:
        raise PrivacyConditionError(
            "records that take turns are drawn step by step: Places.turn(step).indices"
        )


@dataclass(frozen=True)
class Turn:
    """The sampler of one step: the records whose turn it is, each with probability q."""

    members: Indices
    turns: Turns

    @property
    def relation(self) -> Relation:
        return self.turns.relation

    def indices(self, n: int, noise: Noise) -> Indices:
        count, q, largest = len(self.members), self.turns.sampling_probability, self.turns.largest
        if q < 1:
            count = int(noise.generator.binomial(count, q))
            count = count if largest is None else min(count, largest)
        if count == len(self.members):
            return self.members
        return self.members[distinct(len(self.members), count, noise.generator)]

    def event(self, n: int, noise_multiplier: float) -> Event:
        raise PrivacyConditionError("one step of a run with correlated noise has no event of its own")

    def expected_batch_size(self, n: int) -> float:
        """That of all steps: how many records have their turn now is a secret."""
        return self.turns.expected_batch_size(n)


class Places:
    """Whose turn it is, step by step: a secret of the run."""

    def __init__(self, turns: Turns, n: int, *, key: bytes) -> None:
        self._turns, self._n, self._key = turns, n, key

    @cached_property
    def _place(self) -> NDArray[np.integer[Any]]:
        cycle = self._turns.cycle
        kind = np.uint16 if cycle <= 1 << 16 else np.int64
        return keyed_generator(self._key, "places").integers(cycle, size=self._n, dtype=np.int64).astype(kind)

    @cached_property
    def _members(self) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        """Records by place, in their order, and where each place begins: sorted once."""
        order = np.argsort(self._place, kind="stable")
        starts = np.searchsorted(self._place[order], np.arange(self._turns.cycle + 1))
        return order, starts

    def turn(self, step: int) -> Turn:
        """The sampler of this step."""
        (order, starts), place = self._members, step % self._turns.cycle
        return Turn(order[starts[place] : starts[place + 1]].copy(), self._turns)  # theirs to change
