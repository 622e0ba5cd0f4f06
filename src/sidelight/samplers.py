"""Which private records take part in a step, and the event that this makes.

A sampler draws from the cryptographic source alone, and says itself what it performed, so that nothing else
can be accounted. Drawing costs time in proportion to the batch, not to the number of records. Shuffled
epochs are neither Poisson nor fixed-size sampling and are not offered.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from sidelight.errors import InputError
from sidelight.privacy import events
from sidelight.privacy.events import Event, Relation, check_relation
from sidelight.privacy.noise import Noise, keyed_generator

__all__ = [
    "BlockSample",
    "FixedSize",
    "FullBatch",
    "Indices",
    "Poisson",
    "Sample",
    "Sampler",
    "sample_blocks",
]

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
        return _distinct(n, int(noise.generator.binomial(n, self.sampling_probability)), noise.generator)

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
        return _distinct(n, int(self.size), noise.generator)

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


# ---------------------------------------------------------------------------------------------------
# records that lie in blocks, each of which draws its own share


@dataclass(frozen=True, eq=False)
class BlockSample:
    """The records of one step where records lie in blocks, which may be in other processes.

    The records of a block are a function of `key`, which the sampler's noise drew for this step, and of the
    number of the block: whoever computes the share of a block a second time takes the same records.

    Args:
        key: secret, and new for every step.
        share: what each block takes: a probability for each of its records, or its number of records.
        chosen: the records themselves by their place among all, for a sampler of another kind.
    """

    key: bytes
    share: float | tuple[int, ...] | None
    chosen: Indices | None = None

    def indices(self, block: int, start: int, size: int) -> Indices:
        """Of the records of this block, which begins at `start` among all; counted within the block."""
        if self.chosen is not None:
            low, high = np.searchsorted(self.chosen, [start, start + size])
            return self.chosen[low:high] - start
        generator = keyed_generator(self.key, "block", block)
        if isinstance(self.share, float):
            return _distinct(size, int(generator.binomial(size, self.share)), generator)
        return _distinct(size, 0 if self.share is None else self.share[block], generator)

    def __repr__(self) -> str:
        return "BlockSample(private)"


def sample_blocks(sampler: Sampler, sizes: tuple[int, ...], noise: Noise) -> BlockSample | None:
    """The records of one step, from blocks of these sizes; None stands for all of them.

    The law is that of `sampler.indices`. Poisson: records are independent, so blocks are. Fixed size: how
    many of a uniform set lie in each block is multivariate hypergeometric, and given these numbers the sets
    within blocks are uniform and independent.
    """
    if type(sampler) is FullBatch:
        return None
    n, key = sum(sizes), noise.generator.bytes(32)
    if type(sampler) is Poisson:
        return BlockSample(key, float(sampler.sampling_probability))
    if type(sampler) is FixedSize and n < _MOST_SPLIT:
        sampler.expected_batch_size(n)
        counts = noise.generator.multivariate_hypergeometric(sizes, int(sampler.size), method="marginals")
        return BlockSample(key, tuple(int(count) for count in counts))
    chosen = sampler.indices(n, noise)
    return None if chosen is None else BlockSample(key, None, chosen)


_MOST_SPLIT = 10**9  # records that NumPy splits; of more, the set is drawn as a whole

Sample: TypeAlias = "Indices | BlockSample | None"  # the records of a step; None stands for all


def _distinct(n: int, count: int, generator: np.random.Generator) -> Indices:
    """`count` distinct integers below n, uniform over all such sets, ascending.

    NumPy draws them by Floyd's algorithm in O(count); above n/20 of them it shuffles the tail of an array
    of n, which is O(count) as well. Ascending order reads memory forwards and lets an oracle see at a glance
    that no record is there twice.
    """
    drawn = generator.choice(n, size=count, replace=False, shuffle=False)
    drawn.sort()
    return drawn.astype(np.int64, copy=False)
