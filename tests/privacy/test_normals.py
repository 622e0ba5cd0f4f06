"""Gaussian numbers in float32: the textbook's, of no smaller scale, with tails that do not end early."""

import math

import numpy as np
import pytest
from randomgen import AESCounter
from scipy import stats

from sidelight.privacy import noise, normals
from sidelight.privacy.noise import Noise
from sidelight.privacy.normals import float32_normals

COUNT = 50_000  # of one block


def bits(key: int = 5) -> AESCounter:
    return AESCounter(key=key, counter=0)


def in_float64(key: int) -> np.ndarray:
    """The same pairs by the same words, in float64 and with u in the middle of its step."""
    words = bits(key).random_raw(COUNT // 2).view(np.uint32)
    radii = np.sqrt(-2 * np.log((words[: COUNT // 2] + 0.5) / 2**32))
    angles = words[COUNT // 2 :].view(np.int32) * (math.pi / 2**31)
    return np.concatenate([radii * np.cos(angles), radii * np.sin(angles)])


@pytest.mark.parametrize("scale", [1.0, 0.1, 1 / 3, 1e-30, 3e37])
def test_they_are_the_textbooks_and_never_of_a_smaller_scale(scale: float) -> None:
    exact, drawn = in_float64(5), float32_normals(bits(), COUNT, scale).astype(np.float64) / scale
    np.testing.assert_allclose(drawn, exact, rtol=3e-6, atol=2e-6)
    radii = np.hypot(*exact.reshape(2, -1))
    larger = np.hypot(*drawn.reshape(2, -1)) / radii
    assert (larger[radii > 0.2] >= 1).all() and np.median(larger) < 1.000003


class Words:
    """Bits that are zeros, or ones, at first, and random afterwards."""

    def __init__(self, first: int) -> None:
        self.first, self.after = first, bits()

    def random_raw(self, size: int) -> np.ndarray:
        if self.first >= 0:
            words, self.first = np.full(size, self.first, dtype=np.uint64), -1
            return words
        return self.after.random_raw(size)


def test_tails_go_beyond_what_32_bits_reach() -> None:
    radii = np.hypot(*float32_normals(Words(0), 20_000).reshape(2, -1).astype(np.float64))
    reach = math.sqrt(2 * 32 * math.log(2))
    assert np.isfinite(radii).all() and radii.min() > reach and len(set(radii)) > 9000
    beyond = np.exp((reach**2 - radii**2) / 2)  # what of the last step is further out
    assert stats.kstest(beyond, "uniform").pvalue > 1e-4


def test_near_the_center_numbers_are_as_many() -> None:
    radii = np.hypot(*float32_normals(Words(2**64 - 1), 20_000).reshape(2, -1).astype(np.float64))
    assert radii.min() > 0 and radii.max() < 2.2e-5 and len(set(radii)) > 9000


def test_far_numbers_are_as_frequent_as_they_should_be() -> None:
    drawn, source = np.zeros(3), bits(11)
    for _ in range(10):
        far = np.abs(float32_normals(source, 1_000_000))
        drawn += [(far > t).sum() for t in (3.0, 4.0, 4.5)]
    wanted = 1e7 * 2 * stats.norm.sf([3.0, 4.0, 4.5])
    assert (np.abs(drawn - wanted) < 4 * np.sqrt(wanted)).all()


@pytest.mark.parametrize("count", [0, 1, 2, 65_535, 65_536, 65_537, 131_075])
def test_any_number_of_them(count: int) -> None:
    drawn = float32_normals(bits(), count)
    assert drawn.shape == (count,) and len(set(drawn.tolist())) >= 0.99 * count


def test_a_seed_draws_nothing_alike_where_a_processor_rounds_otherwise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Noise that differs in its last bits alone would tell what it hides, from two releases of one value."""
    here = Noise(3).normal(50, dtype=np.float32)
    assert (here == Noise(3).normal(50, dtype=np.float32)).all()
    normals.kernels.cache_clear()
    monkeypatch.setattr(noise, "kernels", lambda: b"another processor")
    there = Noise(3).normal(50, dtype=np.float32)
    assert not np.isclose(here, there, rtol=1e-3).any()
