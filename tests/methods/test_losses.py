"""Slopes and curvatures against finite differences, and constants that are true and tight."""

import math

import numpy as np
import pytest

from sidelight.errors import InputError
from sidelight.losses import Hinge, Huber, Logistic, Loss, Softmax, Square, get_loss

SCALAR: list[Loss] = [Hinge(), Huber(), Huber(0.1), Logistic(), Square(), Square(0.5)]
GRID = np.linspace(-40, 40, 160_001)


def sample(loss: Loss, n: int = 400, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    if isinstance(loss, Softmax):
        return 3 * rng.standard_normal((n, loss.classes)), rng.integers(0, loss.classes, n)
    y = rng.standard_normal(n) if loss.task == "regression" else rng.choice([-1.0, 1.0], n)
    z = 2 * rng.standard_normal(n)
    kinks = {"hinge": (1.0,), "huber": (1 - getattr(loss, "h", 0), 1 + getattr(loss, "h", 0))}.get(
        loss.name, ()
    )
    for kink in kinks:
        z = np.where(np.abs(y * z - kink) < 1e-3, z + 0.01 * y, z)
    return z, y


@pytest.mark.parametrize("loss", SCALAR, ids=repr)
def test_slope_is_the_derivative_of_the_value(loss: Loss) -> None:
    z, y = sample(loss)
    step = 1e-6
    numeric = (loss.value(z + step, y) - loss.value(z - step, y)) / (2 * step)
    np.testing.assert_allclose(loss.slope(z, y), numeric, atol=2e-8 * max(1, abs(numeric).max()))


@pytest.mark.parametrize("loss", SCALAR, ids=repr)
def test_curvature_is_the_derivative_of_the_slope(loss: Loss) -> None:
    z, y = sample(loss)
    step = 1e-6
    numeric = (loss.slope(z + step, y) - loss.slope(z - step, y)) / (2 * step)
    np.testing.assert_allclose(loss.curvature(z, y), numeric, atol=2e-8)


@pytest.mark.parametrize("classes", [2, 3, 10])
def test_softmax_slope_and_curvature_are_derivatives(classes: int) -> None:
    loss = Softmax(classes)
    z, y = sample(loss)
    rng = np.random.default_rng(1)
    direction, step = rng.standard_normal(z.shape), 1e-5
    along = (loss.value(z + step * direction, y) - loss.value(z - step * direction, y)) / (2 * step)
    np.testing.assert_allclose((loss.slope(z, y) * direction).sum(axis=1), along, atol=1e-8)
    bent = (loss.slope(z + step * direction, y) - loss.slope(z - step * direction, y)) / (2 * step)
    np.testing.assert_allclose(loss.curvature_times(z, direction), bent, atol=1e-8)


@pytest.mark.parametrize("loss", SCALAR, ids=repr)
@pytest.mark.parametrize("label", [-1.0, 1.0])
def test_lipschitz_constant_holds_and_is_tight(loss: Loss, label: float) -> None:
    largest = np.abs(loss.slope(GRID, np.full_like(GRID, label))).max()
    if loss.lipschitz is None:
        assert np.abs(loss.slope(GRID * 1e6, np.full_like(GRID, label))).max() > 1e6
    else:
        assert largest <= loss.lipschitz
        assert largest >= loss.lipschitz * (1 - 1e-6)


@pytest.mark.parametrize("loss", SCALAR, ids=repr)
def test_smoothness_constant_holds_and_is_tight(loss: Loss) -> None:
    """The slope never rises faster than `smoothness`, and somewhere it rises that fast."""
    y = np.ones_like(GRID)
    steepest = (np.diff(loss.slope(GRID, y)) / np.diff(GRID)).max()
    if loss.smoothness is None:
        assert steepest > 1e3  # a jump
    else:
        assert steepest <= loss.smoothness * (1 + 1e-9)
        assert steepest >= loss.smoothness * (1 - 1e-5)
        assert loss.curvature(GRID, y).max() <= loss.smoothness


@pytest.mark.parametrize("classes", [2, 5])
def test_softmax_constants_hold_and_are_tight(classes: int) -> None:
    loss = Softmax(classes)
    rng = np.random.default_rng(0)
    z, y = 10 * rng.standard_normal((20_000, classes)), rng.integers(0, classes, 20_000)
    lengths = np.linalg.norm(loss.slope(z, y), axis=1)
    assert lengths.max() <= loss.lipschitz * (1 + 1e-15)
    assert lengths.max() >= loss.lipschitz * (1 - 1e-6)
    halves = np.full((1, classes), -1e3)
    halves[0, :2] = 0  # the probabilities ½, ½, 0, …: the steepest place
    hessian = np.vstack([loss.curvature_times(halves, e[None, :]) for e in np.eye(classes)])
    assert np.linalg.eigvalsh(hessian)[-1] == pytest.approx(loss.smoothness, rel=1e-12)
    others = loss.probabilities(z[:200])
    top = max(np.linalg.eigvalsh(np.diag(pi) - np.outer(pi, pi))[-1] for pi in others)
    assert top <= loss.smoothness


@pytest.mark.parametrize("loss", [Hinge(), Huber(), Logistic()], ids=repr)
def test_margin_losses_depend_on_yz_alone(loss: Loss) -> None:
    z = np.linspace(-3, 3, 61)
    np.testing.assert_array_equal(loss.value(z, np.ones(61)), loss.value(-z, -np.ones(61)))
    np.testing.assert_array_equal(loss.slope(z, np.ones(61)), -loss.slope(-z, -np.ones(61)))


def test_huber_has_the_values_of_its_definition() -> None:
    z = np.array([2.0, 1.5, 1.2, 1.0, 0.5, 0.0, -1.0])
    expected = [0, 0, 0.3**2 / 2, 0.5**2 / 2, 0.5, 1, 2]
    np.testing.assert_allclose(Huber(0.5).value(z, np.ones(7)), expected, atol=1e-15)


@pytest.mark.parametrize("loss", SCALAR, ids=repr)
def test_extreme_outputs_give_finite_slopes_and_no_warnings(loss: Loss) -> None:
    z = np.array([-1e150, -800.0, 0.0, 800.0, 1e150])
    for label in (-1.0, 1.0):
        assert np.isfinite(loss.slope(z, np.full(5, label))).all()
        assert np.isfinite(loss.value(z[1:4], np.full(3, label))).all()
    assert Logistic().value(np.array([800.0]), np.array([-1.0]))[0] == 800.0
    assert Logistic().slope(np.array([800.0]), np.array([1.0]))[0] == pytest.approx(-math.exp(-800), abs=0)


def test_softmax_is_stable_far_out() -> None:
    z = np.array([[1e4, 0.0, -1e4], [0.0, 1e4, 0.0]])
    np.testing.assert_allclose(Softmax(3).value(z, np.array([2, 1])), [2e4, 0.0])
    np.testing.assert_allclose(Softmax(3).slope(z, np.array([0, 0])), [[0, 0, 0], [-1, 1, 0]])


@pytest.mark.parametrize("loss", [*SCALAR, Softmax(3)], ids=repr)
def test_a_nan_output_is_a_nan_slope(loss: Loss) -> None:
    z = np.zeros((2, 3)) if loss.outputs > 1 else np.zeros(2)
    z[0] = np.nan
    slope = loss.slope(z, np.ones(2, dtype=int if loss.outputs > 1 else float)).reshape(2, -1)
    assert np.isnan(slope[0]).all()
    assert np.isfinite(slope[1]).all()


@pytest.mark.parametrize("loss", [*SCALAR, Softmax(3)], ids=repr)
def test_single_precision_stays_single(loss: Loss) -> None:
    z, y = sample(loss)
    labels = y if loss.outputs > 1 else y.astype(np.float32)
    assert loss.slope(z.astype(np.float32), labels).dtype == np.float32
    assert loss.value(z.astype(np.float32), labels).dtype == np.float32


def test_targets_that_a_loss_admits() -> None:
    y = np.array([-1.0, 1.0, 0.0, 2.0, 0.5, np.nan, np.inf])
    assert Hinge().admits(y).tolist() == [True, True, False, False, False, False, False]
    assert Softmax(3).admits(y).tolist() == [False, True, True, True, False, False, False]
    assert Square().admits(y).tolist() == [True] * 5 + [False] * 2


def test_get_loss_knows_five_names() -> None:
    assert get_loss("softmax", classes=7).outputs == 7
    assert [get_loss(name).name for name in ("hinge", "logistic", "square")] == [
        "hinge",
        "logistic",
        "square",
    ]
    with pytest.raises(InputError, match="huber"):
        get_loss("cosine")


@pytest.mark.parametrize("make", [lambda: Huber(0.0), lambda: Square(-1.0), lambda: Softmax(1)])
def test_senseless_losses_are_refused(make: object) -> None:
    with pytest.raises(InputError):
        make()  # type: ignore[operator]
