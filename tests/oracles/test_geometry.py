"""The norm of a contribution is never too small, least of all near a large origin."""

from typing import Any

import numpy as np
import pytest
from tests.oracles.reference import LOSSES, METRICS, P, make_data, make_metric

from sidelight.clipping import Diagonal, Features, Projection
from sidelight.data.rows import row_norms
from sidelight.losses import Logistic, Loss, Softmax
from sidelight.methods.parts import Automatic, Flat
from sidelight.oracles.linear.row_lengths import Geometry, lengths_for
from sidelight.oracles.linear.row_sums import Block


def near_origin(
    loss: Loss, dtype: Any, size: float, name: str
) -> tuple[np.ndarray, np.ndarray, Geometry, Block]:
    """Rows whose gradients nearly equal a large origin: the difference of squares cancels to nothing."""
    rng = np.random.default_rng(11)
    p, n = 40, 60
    dimension = p * loss.outputs
    X = rng.standard_normal((1, p)) * (1 + 10.0 ** -rng.uniform(3, 17, (n, 1)) * rng.standard_normal((n, p)))
    X = (size * X).astype(dtype)
    slopes = rng.standard_normal((1, loss.outputs)) * np.ones((n, 1))
    metric = {
        "none": None,
        "diagonal": Diagonal(rng.uniform(1e-3, 1e3, dimension)),
        "features": Features(rng.standard_normal((7, p)) * np.logspace(-3, 3, p)),
        "projection": Projection(rng.standard_normal((dimension, 5))),
    }[name]
    origin = (slopes[0][:, None] * X[0].astype(np.float64)).ravel()
    exact = (slopes.astype(np.longdouble)[:, :, None] * X.astype(np.longdouble)[:, None, :]).reshape(
        n, -1
    ) - origin
    moved = exact if metric is None else np.array([metric.apply(v) for v in exact])
    truth = np.sqrt((moved * moved).sum(axis=1))
    slopes = slopes if loss.outputs > 1 else slopes[:, 0]
    lengths = lengths_for(metric, outputs=loss.outputs, n=n, p=p)
    block = Block(X.astype(np.float64), np.zeros(n), row_norms(X), slice(0, n))
    return truth, slopes, Geometry(metric, origin, lengths, loss.outputs, p), block


@pytest.mark.parametrize("name", METRICS)
@pytest.mark.parametrize("size", [1.0, 1e8])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("loss", [Logistic(), Softmax(3)], ids=lambda v: v.name)
def test_no_clipped_row_exceeds_the_bound_near_a_large_origin(
    loss: Loss, dtype: Any, size: float, name: str
) -> None:
    truth, slopes, geometry, block = near_origin(loss, dtype, size, name)
    norms = geometry.norms(block, slopes)
    assert (norms >= truth).all()
    scale = float(np.max(lengths_scale(block, slopes, geometry)))
    assert (norms <= truth + 1e-6 * scale).all()  # and not much too large either
    for clip in (Flat(1e-9 * size), Flat(0.1), Automatic(1.0, 0.0), Automatic(1.0, 1e-3)):
        assert (clip.factors(norms) * truth <= clip.bound).all()


def lengths_scale(block: Block, slopes: np.ndarray, geometry: Geometry) -> np.ndarray:
    return np.sqrt(np.square(geometry._lengths(block, slopes)) + geometry._offset_error) + np.sqrt(
        geometry._cross_error * np.abs(slopes).max() * block.norms
    )


@pytest.mark.parametrize("name", METRICS)
def test_contract_catches_a_norm_without_its_rounding_error(name: str) -> None:
    """The closed form as one would write it down: right in exact arithmetic, too short here."""
    truth, slopes, geometry, block = near_origin(Logistic(), np.float64, 1e8, name)
    identity = np.eye(block.X.shape[1])
    image = block.X @ (
        identity if name == "none" else np.array([geometry._metric.apply(e) for e in identity])
    )
    geometry._lengths = lambda block, slopes: np.abs(slopes) * np.linalg.norm(image, axis=1)  # type: ignore
    geometry._slack = 0.0
    with pytest.raises(AssertionError):
        assert (geometry.norms(block, slopes) >= truth).all()


@pytest.mark.parametrize("loss", LOSSES, ids=lambda v: v.name)
def test_norms_without_origin_are_upper_bounds_to_the_last_digits(loss: Loss) -> None:
    rng = np.random.default_rng(4)
    X, y = make_data(loss, 300, rng)
    dimension = P * loss.outputs
    for name in METRICS:
        metric = make_metric(name, dimension, rng)
        block = Block(X, y, row_norms(X), slice(0, 300))
        slopes = rng.standard_normal((300, loss.outputs)) if loss.outputs > 1 else rng.standard_normal(300)
        lengths = lengths_for(metric, outputs=loss.outputs, n=300, p=P)
        flat = (slopes.reshape(300, -1).astype(np.longdouble)[:, :, None] * X[:, None, :]).reshape(300, -1)
        moved = flat if metric is None else np.array([metric.apply(v) for v in flat])
        truth = np.sqrt((moved * moved).sum(axis=1))
        norms = Geometry(metric, None, lengths, loss.outputs, P).norms(block, slopes)
        assert (norms >= truth).all()
        assert (norms <= truth * (1 + 1e-12)).all()


def test_tiny_slopes_are_not_taken_for_zero() -> None:
    """Squares underflow at 1e-162; a length of 0 would earn an enormous factor from automatic clipping."""
    block = Block(np.ones((1, 2)), np.zeros(1), row_norms(np.ones((1, 2))), slice(0, 1))
    for name in ("none", "projection", "diagonal"):
        metric = {"none": None, "diagonal": Diagonal(np.ones(4)), "projection": Projection(np.eye(4))}[name]
        geometry = Geometry(metric, None, lengths_for(metric, outputs=2, n=1, p=2), 2, 2)
        slopes = np.array([[1e-170, 1e-170]])
        factor = Automatic(1.0, 0.0).factors(geometry.norms(block, slopes))[0]
        assert factor * 2e-170 <= 1.0
