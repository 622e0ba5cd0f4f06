"""Clips keep their bound after rounding, on arrays and tensors; metrics are linear and frozen."""

from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from sidelight.clipping import Clip, Diagonal, Features, Projection
from sidelight.errors import InputError
from sidelight.methods.parts import Automatic, Flat

CLIPS = [
    Flat(1.0),
    Flat(0.1),
    Flat(3e-7),
    Flat(12345.678),
    Automatic(),
    Automatic(0.3, 0.01),
    Automatic(7.0, 0.0),
]


def norms_of(dtype: Any) -> np.ndarray:
    rng = np.random.default_rng(0)
    wide = 10.0 ** rng.uniform(-12, 12, 3000)
    near = np.array([c.bound * (1 + k * 2.0**-52) for c in CLIPS for k in range(-20, 21)])
    return np.r_[0.0, wide, near].astype(dtype)


def assert_bounded_exactly(clip: Clip, norms: np.ndarray) -> None:
    for factor, norm in zip(clip.factors(norms), norms, strict=True):
        assert Fraction(float(factor)) * Fraction(float(norm)) <= Fraction(clip.bound)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("clip", CLIPS, ids=repr)
def test_factor_times_norm_never_exceeds_the_bound(clip: Clip, dtype: Any) -> None:
    norms = norms_of(dtype)
    assert_bounded_exactly(clip, norms)
    factors = clip.factors(norms)
    assert factors.dtype == dtype
    assert np.isfinite(factors).all()
    assert (factors * norms <= np.nextafter(dtype(clip.bound), dtype(0))).all()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_contract_catches_the_formula_of_the_textbook(dtype: Any) -> None:
    class Naive:
        bound = 0.1

        def factors(self, norms: np.ndarray) -> np.ndarray:
            return np.minimum(1, dtype(0.1) / np.maximum(norms, dtype(1e-30)))

    with pytest.raises(AssertionError):
        assert_bounded_exactly(Naive(), norms_of(dtype))


@pytest.mark.parametrize("clip", CLIPS, ids=repr)
@pytest.mark.parametrize("kind", ["float32", "float64", "bfloat16"])
def test_tensors_are_clipped_like_arrays(clip: Clip, kind: str) -> None:
    torch = pytest.importorskip("torch")
    tensor = torch.tensor(norms_of(np.float64)[1:500]).to(getattr(torch, kind))
    factors = clip.factors(tensor)
    assert factors.dtype == tensor.dtype
    exact = factors.double() * tensor.double()
    assert (exact <= clip.bound).all()
    expected = clip.factors(tensor.double().numpy())
    np.testing.assert_allclose(factors.double().numpy(), expected, rtol=0.05 if kind == "bfloat16" else 1e-5)


def test_flat_leaves_short_vectors_alone_and_shortens_long_ones() -> None:
    np.testing.assert_allclose(Flat(2.0).factors(np.array([0.0, 1.0, 2.0, 8.0])), [1, 1, 1, 0.25], rtol=1e-14)
    assert Flat(2.0).factors(np.array([0.0, 1.99]))[1] == 1.0


def test_automatic_clipping_has_the_reference_value() -> None:
    """Vector G11: g = (3, 4), γ = R = 1."""
    factor = Automatic(1.0, 1.0).factors(np.array([5.0]))[0]
    assert factor == pytest.approx(1 / 6, rel=1e-14)
    np.testing.assert_allclose(factor * np.array([3, 4]), [0.5, 2 / 3])


def test_normalizing_maps_zero_to_zero() -> None:
    factors = Automatic(1.0, 0.0).factors(np.array([0.0, 1e-310, 4.0]))
    assert (factors * np.array([0.0, 1e-310, 4.0])).tolist()[0] == 0
    assert np.isfinite(factors).all()


def test_infinite_norms_get_factor_zero() -> None:
    for clip in CLIPS:
        assert clip.factors(np.array([np.inf]))[0] == 0


@pytest.mark.parametrize(
    "metric",
    [
        Diagonal(np.array([1.0, 2, 3, 4, 5, 6])),
        Features(np.arange(6.0).reshape(2, 3)),
        Projection(np.arange(12.0).reshape(6, 2)),
    ],
    ids=lambda m: type(m).__name__,
)
def test_metrics_are_linear_and_lift_is_the_transpose(metric: Any) -> None:
    rng = np.random.default_rng(0)
    u, v = rng.standard_normal(6), rng.standard_normal(6)
    np.testing.assert_allclose(metric.apply(2 * u - v), 2 * metric.apply(u) - metric.apply(v))
    t = rng.standard_normal(len(metric.apply(u)))
    assert t @ metric.apply(u) == pytest.approx(metric.lift(t) @ u)
    assert (metric.absolute().apply(abs(u)) >= abs(metric.apply(u)) - 1e-12).all()
    torch = pytest.importorskip("torch")
    (name,) = metric.__dataclass_fields__
    twin = type(metric)(torch.tensor(getattr(metric, name)))
    np.testing.assert_allclose(twin.apply(torch.tensor(u)).numpy(), metric.apply(u))
    np.testing.assert_allclose(twin.lift(torch.tensor(t)).numpy(), metric.lift(t))


def test_features_act_on_every_output() -> None:
    matrix = np.array([[1.0, 0, 1]])
    np.testing.assert_allclose(Features(matrix).apply(np.array([1.0, 2, 3, 10, 20, 30])), [4, 40])


def test_a_metric_cannot_change_behind_the_oracle() -> None:
    scale = np.ones(3)
    metric = Diagonal(scale)
    scale[:] = 100
    np.testing.assert_array_equal(metric.scale, 1)
    with pytest.raises(ValueError, match="read-only"):
        metric.scale[0] = 5


@pytest.mark.parametrize(
    "make",
    [
        lambda: Flat(0.0),
        lambda: Flat(np.inf),
        lambda: Flat(np.nan),
        lambda: Automatic(-1.0),
        lambda: Automatic(1.0, -1.0),
        lambda: Diagonal(np.eye(2)),
        lambda: Diagonal(np.array([1.0, np.nan])),
        lambda: Features(np.ones(3)),
        lambda: Projection(np.array([[np.inf]])),
    ],
)
def test_senseless_parts_are_refused(make: Any) -> None:
    with pytest.raises(InputError):
        make()
