"""The noise source: cryptographic unless seeded, resumable, Gaussian; and the exact discrete Gaussian."""

import json
import math
import pickle

import numpy as np
import pytest
from scipy import stats

from sidelight.errors import InputError
from sidelight.privacy.noise import SEED_ASSUMPTION, Noise, discrete_gaussian


def test_the_default_is_cryptographic_and_never_repeats():
    a, b = Noise(), Noise()
    assert type(a.generator.bit_generator).__name__ == "AESCounter"
    assert not a.reproducible and a.assumptions == ()
    assert not np.array_equal(a.normal(8), b.normal(8))


def test_a_seed_reproduces_and_is_recorded():
    assert np.array_equal(Noise(7).normal(100), Noise(7).normal(100))
    assert not np.array_equal(Noise(7).normal(100), Noise(8).normal(100))
    assert Noise(7).assumptions == (SEED_ASSUMPTION,)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_noise_is_gaussian_of_the_right_size(dtype):
    draws = Noise(1).normal(200_000, std=3.0, dtype=dtype)
    assert draws.dtype == dtype
    assert stats.kstest(draws / 3.0, "norm").pvalue > 1e-4


def test_one_draw_a_coordinate():
    """A single scalar shared by all coordinates would give no privacy orthogonal to the ones vector."""
    draws = Noise(1).normal((500, 40))
    assert np.linalg.matrix_rank(draws) == 40
    assert np.abs(np.corrcoef(draws.T) - np.eye(40)).max() < 0.25


def test_state_round_trips_through_json():
    noise = Noise(3)
    noise.normal(5, dtype=np.float32)
    state = json.loads(json.dumps(noise.get_state()))
    expected = noise.normal(9), noise.normal(3, dtype=np.float32), noise.generator.integers(0, 10, 5)
    other = Noise()
    other.set_state(state)
    assert other.reproducible
    assert np.array_equal(other.normal(9), expected[0])
    assert np.array_equal(other.normal(3, dtype=np.float32), expected[1])
    assert np.array_equal(other.generator.integers(0, 10, 5), expected[2])


def test_a_state_does_not_tell_the_draws_before_it():
    """Whoever finds it can foretell later noise, and remove none from what was released."""
    noise = Noise(repeatable=True)
    value = np.arange(3.0)
    drawn = [*noise.normal(4), *noise.bound("release", value).normal(4)]
    found = Noise()
    found.set_state(noise.get_state())
    told = [*found.normal(8), *found.bound("release", value).normal(8)]
    assert not set(drawn) & set(told)
    with pytest.raises(InputError, match="not repeatable"):
        Noise().get_state()


def test_a_source_depends_on_everything_that_it_is_bound_to():
    def draw(*about):
        return tuple(Noise(3).bind(*about).normal(2))

    bound = [(), ("a",), ("a", "b"), ("ab",), ("a", 1), ("a", 1.0), ("a", b"1"), ("a", None), (np.ones(2),)]
    bound += [(np.ones(2, dtype=np.float32),), (np.ones((1, 2)),), (np.ones(2), "a"), (-np.ones(2),)]
    assert len({draw(*one) for one in bound}) == len(bound)
    assert draw("a", 1) == draw("a", 1)
    plain = Noise()
    assert plain.bind("a") is plain and plain.bound("a") is plain


@pytest.mark.parametrize("seed", [-1, 1.5, "1", True, np.random.RandomState(0), np.random.default_rng(0)])
def test_a_seed_is_a_whole_number(seed):
    with pytest.raises(InputError, match="whole number"):
        Noise(seed)
    assert np.array_equal(Noise(np.int64(3)).normal(2), Noise(3).normal(2))


def test_a_source_is_not_copied():
    with pytest.raises(TypeError, match="same noise"):
        pickle.dumps(Noise())


def test_torch_noise_has_the_tensor_s_type():
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    for dtype in (torch.float32, torch.float64):
        draws = Noise(1).normal_like(torch.zeros(3, 5, dtype=dtype), std=2.0)
        assert draws.dtype == dtype and draws.shape == (3, 5)
    assert torch.equal(Noise(4).normal_like(torch.zeros(6)), Noise(4).normal_like(torch.zeros(6)))


@pytest.mark.parametrize("scale", [1, 3, 50])
def test_discrete_gaussian_has_its_exact_law(scale):
    draws = discrete_gaussian(200_000, scale=scale, noise=Noise(5))
    support = np.arange(-12 * scale, 12 * scale + 1)
    law = np.exp(-(support**2) / (2 * scale**2))
    law /= law.sum()
    expected = law * draws.size
    keep = expected > 20
    observed = np.array([(draws == k).sum() for k in support[keep]])
    rest = draws.size - observed.sum()
    chi2 = ((observed - expected[keep]) ** 2 / expected[keep]).sum() + (
        rest - (draws.size - expected[keep].sum())
    ) ** 2 / (draws.size - expected[keep].sum() + 1e-9)
    assert stats.chi2.sf(chi2, keep.sum()) > 1e-4


def test_discrete_gaussian_is_in_whole_numbers_at_the_scale_used():
    draws = discrete_gaussian(50_000, scale=2**20, noise=Noise(6))
    assert draws.dtype == np.int64
    assert draws.std() == pytest.approx(2**20, rel=0.02)
    assert stats.kstest((draws + 0.0) / 2**20, "norm").pvalue > 1e-4
    assert math.isclose(draws.mean() / 2**20, 0.0, abs_tol=0.02)


def test_a_scale_out_of_range_is_refused():
    with pytest.raises(ValueError, match="scale"):
        discrete_gaussian(5, scale=2**40, noise=Noise(1))
