"""Which private records take part in a step, and the event that this makes.

A sampler draws from the cryptographic source alone, and says itself what it performed, so that nothing else
can be accounted. Drawing costs time in proportion to the batch, not to the number of records. Shuffled
epochs are neither Poisson nor fixed-size sampling and are not offered.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from sidelight.errors import InputError
from sidelight.privacy import events
from sidelight.privacy.events import Event, Relation, check_relation
from sidelight.privacy.noise import Noise

__all__ = ["FixedSize", "FullBatch", "Indices", "Poisson", "Sampler"]

Indices = NDArray[np.int64]


class Sampler(Protocol):
    """One way to choose the records of a step."""

    @property
    def relation(self) -> Relation:
        """The neighbouring relation under which `event` is accounted."""

    def indices(self, n: int, noise: Noise) -> Indices | None:
        """The records of one step, ascending and distinct; None stands for all of them."""

    def event(self, n: int, noise_multiplier: float) -> Event:
        """What one step performs. noise_multiplier = std of the noise on the sum / its sensitivity."""

    def expected_batch_size(self, n: int) -> float:
        """The public constant to divide a sum by; never the realised batch size."""


@dataclass(frozen=True)
class Poisson:
    """Each record independently with probability q. Accounted under add-or-remove-one."""

    sampling_probability: float
    relation: ClassVar[Relation] = "add-or-remove-one"

    def __post_init__(self) -> None:
        if not (math.isfinite(self.sampling_probability) and 0 < self.sampling_probability <= 1):
            raise InputError(f"sampling_probability must be in (0, 1], not {self.sampling_probability!r}")

    def indices(self, n: int, noise: Noise) -> Indices:
        # A binomial count, then that many distinct records uniformly: the same law as n coins.
        return _distinct(n, int(noise.generator.binomial(n, self.sampling_probability)), noise)

    def event(self, n: int, noise_multiplier: float) -> Event:
        return events.poisson(self.sampling_probability, noise_multiplier)

    def expected_batch_size(self, n: int) -> float:
        return self.sampling_probability * n


@dataclass(frozen=True)
class FixedSize:
    """`size` of the n records, uniformly without replacement. Accounted under replace-one."""

    size: int
    relation: ClassVar[Relation] = "replace-one"

    def __post_init__(self) -> None:
        if int(self.size) != self.size or self.size < 1:
            raise InputError(f"size must be an integer of at least 1, not {self.size!r}")

    def indices(self, n: int, noise: Noise) -> Indices:
        self._check(n)
        return _distinct(n, int(self.size), noise)

    def event(self, n: int, noise_multiplier: float) -> Event:
        self._check(n)
        return events.fixed_size(n, int(self.size), noise_multiplier)

    def expected_batch_size(self, n: int) -> float:
        self._check(n)
        return float(self.size)

    def _check(self, n: int) -> None:
        if self.size > n:
            raise InputError(f"a batch of {self.size} was asked for, but there are {n} records; lower size")


@dataclass(frozen=True)
class FullBatch:
    """Every record in every step; nothing is copied. Accounted under either relation."""

    relation: Relation = "add-or-remove-one"

    def __post_init__(self) -> None:
        check_relation(self.relation)

    def indices(self, n: int, noise: Noise) -> None:
        return None

    def event(self, n: int, noise_multiplier: float) -> Event:
        return events.gaussian(noise_multiplier)

    def expected_batch_size(self, n: int) -> float:
        return float(n)


def _distinct(n: int, count: int, noise: Noise) -> Indices:
    """`count` distinct integers below n, uniform over all such sets, ascending.

    NumPy draws them by Floyd's algorithm in O(count); above n/20 of them it shuffles the tail of an array
    of n, which is O(count) as well. Ascending order reads memory forwards and lets an oracle see at a glance
    that no record is there twice.
    """
    drawn = noise.generator.choice(n, size=count, replace=False, shuffle=False)
    drawn.sort()
    return drawn.astype(np.int64, copy=False)
