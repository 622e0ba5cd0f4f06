"""Samplers: the law they claim, the event they emit, at the cost of the batch."""

import itertools
import tracemalloc
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from sidelight.errors import InputError, RelationError
from sidelight.privacy import events
from sidelight.privacy.events import FixedSize, FullBatch, Poisson, Sampler
from sidelight.privacy.noise import Noise


def inclusions(sampler: Any, n: int, draws: int) -> np.ndarray:
    noise, taken = Noise(random_state=5), np.zeros((draws, n))
    for row in taken:
        row[sampler.indices(n, noise)] = 1
    return taken


def assert_independent_coins(sampler: Any, q: float) -> None:
    """Every record with probability q, and any two of them independently: counts vary like a binomial's."""
    n, draws = 12, 20_000
    taken = inclusions(sampler, n, draws)
    error = 5 * np.sqrt(q * (1 - q) / draws)
    assert (np.abs(taken.mean(axis=0) - q) < error).all()
    pairs = taken.T @ taken / draws
    off = pairs[~np.eye(n, dtype=bool)]
    assert (np.abs(off - q * q) < 5 * np.sqrt(q * q * (1 - q * q) / draws)).all()
    assert taken.sum(axis=1).var() == pytest.approx(n * q * (1 - q), rel=0.06)


@pytest.mark.parametrize("q", [0.03, 0.4])
def test_poisson_tosses_an_independent_coin_for_every_record(q: float) -> None:
    assert_independent_coins(Poisson(q), q)


def test_contract_catches_a_fixed_count_accounted_as_poisson() -> None:
    with pytest.raises(AssertionError):
        assert_independent_coins(FixedSize(4), 4 / 12)


@dataclass
class Epochs:
    """Consecutive pieces of a permutation, as shuffled training does."""

    size: int

    def indices(self, n: int, noise: Noise) -> np.ndarray:
        self.left = getattr(self, "left", np.zeros(0, dtype=int))
        if len(self.left) == 0:
            self.left = noise.generator.permutation(n)
        batch, self.left = self.left[: self.size], self.left[self.size :]
        return batch


def test_contract_catches_shuffled_epochs_accounted_as_poisson() -> None:
    with pytest.raises(AssertionError):
        assert_independent_coins(Epochs(4), 4 / 12)


def test_fixed_size_draws_every_subset_equally_often() -> None:
    noise, n, size, draws = Noise(random_state=1), 6, 3, 20_000
    counts = dict.fromkeys(itertools.combinations(range(n), size), 0)
    for _ in range(draws):
        counts[tuple(FixedSize(size).indices(n, noise).tolist())] += 1
    expected = draws / len(counts)
    statistic = sum((c - expected) ** 2 / expected for c in counts.values())
    assert statistic < 50  # χ² with 19 degrees of freedom exceeds it once in 10,000


@pytest.mark.parametrize("n", [50, 20_000])  # NumPy changes its algorithm above 10,000
@pytest.mark.parametrize("part", [0.001, 0.04, 0.3, 1.0])
def test_indices_are_distinct_ascending_and_in_range(n: int, part: float) -> None:
    noise = Noise(random_state=2)
    for sampler in (Poisson(part), FixedSize(max(1, int(part * n)))):
        drawn = sampler.indices(n, noise)
        assert drawn.dtype == np.int64
        assert (np.diff(drawn) > 0).all()
        assert drawn.size == 0 or (drawn[0] >= 0 and drawn[-1] < n)


@pytest.mark.parametrize("sampler", [Poisson(1e-10), FixedSize(100)], ids=repr)
def test_cost_does_not_grow_with_the_number_of_records(sampler: Any) -> None:
    """A trillion records: anything that touches each of them would not end, nor fit."""
    tracemalloc.start()
    try:
        drawn = sampler.indices(10**12, Noise(random_state=3))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert 50 < drawn.size < 200
    assert peak < 1e6


def test_draws_differ_and_come_from_the_noise_source() -> None:
    one, other = Noise(random_state=9), Noise(random_state=9)
    first, second = Poisson(0.5).indices(100, one), Poisson(0.5).indices(100, one)
    assert first.tolist() != second.tolist()
    assert first.tolist() == Poisson(0.5).indices(100, other).tolist()


def test_full_batch_names_all_records_without_listing_them() -> None:
    assert FullBatch().indices(10**9, Noise(random_state=0)) is None
    assert FullBatch().expected_batch_size(10) == 10


def test_each_sampler_emits_the_event_that_it_performs() -> None:
    assert Poisson(0.1).event(50, 2.0) == events.PoissonSampled(0.1, events.Gaussian(2.0))
    assert FixedSize(5).event(50, 2.0) == events.SampledWithoutReplacement(50, 5, events.Gaussian(2.0))
    assert FullBatch().event(50, 2.0) == events.Gaussian(2.0)
    assert (Poisson(0.1).relation, FixedSize(5).relation) == ("add-or-remove-one", "replace-one")
    assert FullBatch("replace-one").relation == "replace-one"


def test_expected_batch_size_is_a_constant_of_public_things() -> None:
    assert Poisson(0.1).expected_batch_size(50) == pytest.approx(5)
    assert FixedSize(7).expected_batch_size(50) == 7


def test_no_records_and_no_draws() -> None:
    noise = Noise(random_state=0)
    assert Poisson(0.5).indices(0, noise).size == 0
    assert Poisson(1.0).indices(4, noise).tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize(
    "make",
    [
        lambda: Poisson(0.0),
        lambda: Poisson(1.5),
        lambda: Poisson(float("nan")),
        lambda: FixedSize(0),
        lambda: FixedSize(2.5),
        lambda: FixedSize(9).indices(8, Noise(0)),
        lambda: FixedSize(9).event(8, 1.0),
    ],
)
def test_senseless_sampling_is_refused(make: Any) -> None:
    with pytest.raises(InputError):
        make()


def test_an_unknown_relation_is_refused() -> None:
    with pytest.raises(RelationError):
        FullBatch("neighborly")  # type: ignore[arg-type]


def test_samplers_are_samplers() -> None:
    samplers: list[Sampler] = [Poisson(0.1), FixedSize(1), FullBatch()]
    assert len({repr(s) for s in samplers}) == 3
