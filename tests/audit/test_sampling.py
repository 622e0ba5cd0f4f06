"""Samplers against their events: honest ones pass on many seeds, and each way to cheat is named."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from tests.audit.broken import FixedSizeClaimedPoisson

from sidelight.audit.sampling import performs_its_event
from sidelight.privacy import events
from sidelight.privacy.events import FixedSize, FullBatch, Poisson


@pytest.mark.parametrize("sampler", [Poisson(0.5), Poisson(0.05), FixedSize(22), FixedSize(3), FullBatch()])
def test_honest_samplers_pass(sampler: Any) -> None:
    for seed in range(10):
        assert performs_its_event(sampler, 44, seed=seed) == []


@dataclass(frozen=True)
class PoissonClaimedFixed(Poisson):
    def event(self, n: int, noise_multiplier: float) -> Any:
        return events.fixed_size(n, round(n * self.sampling_probability), noise_multiplier)


class FirstRecords(FixedSize):
    def indices(self, n: int, noise: Any) -> Any:
        return np.arange(self.size)


class Twice(FixedSize):
    def indices(self, n: int, noise: Any) -> Any:
        return np.sort(noise.generator.integers(0, n, self.size))


class Some(FullBatch):
    def indices(self, n: int, noise: Any) -> Any:
        return np.arange(n - 1)


@dataclass(frozen=True)
class HigherRate(Poisson):
    def indices(self, n: int, noise: Any) -> Any:
        return Poisson(1.3 * self.sampling_probability).indices(n, noise)


@dataclass(frozen=True)
class ShuffledEpochs(FixedSize):
    """Every record once an epoch: no fresh sample, and not what is accounted."""

    left: list[Any] = field(default_factory=list)

    def indices(self, n: int, noise: Any) -> Any:
        if not self.left:
            self.left.extend(np.array_split(noise.generator.permutation(n), n // self.size))
        return np.sort(self.left.pop())


@pytest.mark.parametrize(
    ("sampler", "words"),
    [
        (FixedSizeClaimedPoisson(22), "do not vary"),
        (PoissonClaimedFixed(0.5), "sizes differ"),
        (FirstRecords(22), "more often than others"),
        (Twice(22), "twice"),
        (Some(), "left out"),
        (HigherRate(0.3), "do not vary"),
        (ShuffledEpochs(11), "depends on the one before"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_sampler_that_does_something_else_is_caught(sampler: Any, words: str) -> None:
    (finding,) = performs_its_event(sampler, 44)
    assert words in finding.seen and finding.promise == "batches are drawn as the event says"
