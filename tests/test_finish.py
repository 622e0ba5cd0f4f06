"""Model reuse against its vectors, its optimality conditions, and its dual."""

import numpy as np
import pytest
import scipy.sparse as sp
from scipy.optimize import lsq_linear

from sidelight import solvers
from sidelight.errors import AssumptionError, InputError
from sidelight.losses import Hinge, Huber, Logistic, Loss, Softmax, Square
from sidelight.solvers import reuse

XHAT = np.array([[1.0, 0.0], [0.0, 1.0], [0.6, -0.8]])
YHAT = np.array([1.0, -1.0, 1.0])
W = np.array([0.2, 0.1])

SMOOTH: list[Loss] = [Square(), Square(0.5), Logistic(), Huber(), Huber(0.05), Softmax(4)]


# Vectors D4 to D7: λ = 0.1, three public rows, w = (0.2, 0.1). The hinge solution is exact: its multipliers
# are (0.48, 0.66, 0).
@pytest.mark.parametrize(
    ("loss", "expected"),
    [
        (Square(), [0.7929096989966555, -0.7161872909698996]),
        (Hinge(), [1.0, -1.0]),
        (Logistic(), [0.916237034712217, -0.7534777186410263]),
        (Huber(0.5), [1.0523076923076926, -0.9530769230769229]),
    ],
    ids=lambda v: getattr(v, "name", ""),
)
def test_reuse_gives_the_reference_solution(loss: Loss, expected: list[float]) -> None:
    np.testing.assert_allclose(reuse(loss, XHAT, YHAT, W, 0.1), expected, rtol=1e-9)
    np.testing.assert_allclose(reuse(loss, sp.csr_matrix(XHAT), YHAT, W, 0.1), expected, rtol=1e-9)


def problem(loss: Loss, n: int, p: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, p))
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    truth = rng.standard_normal(p)
    if isinstance(loss, Softmax):
        return X, rng.integers(0, loss.classes, n).astype(float), rng.standard_normal(loss.classes * p)
    noisy = X @ truth + 0.1 * rng.standard_normal(n)
    return X, noisy if loss.task == "regression" else np.sign(noisy), rng.standard_normal(p)


def gradient(
    loss: Loss, X: np.ndarray, y: np.ndarray, w: np.ndarray, lam: float, u: np.ndarray
) -> np.ndarray:
    """∇ of (1/n) Σ ℓ + λ‖u − w‖², flat."""
    weights = u.reshape(loss.outputs, -1)
    z = X @ (weights.T if loss.outputs > 1 else weights[0])
    slopes = loss.slope(z, y.astype(int) if loss.outputs > 1 else y)
    return (slopes.reshape(len(X), -1).T @ X).ravel() / len(X) + 2 * lam * (u - w)


@pytest.mark.parametrize("lam", [1e-3, 0.1, 10.0])
@pytest.mark.parametrize(("n", "p"), [(26, 123), (300, 20), (5, 5), (1, 3)])
@pytest.mark.parametrize("loss", SMOOTH, ids=repr)
def test_reuse_has_a_vanishing_gradient(loss: Loss, n: int, p: int, lam: float) -> None:
    X, y, w = problem(loss, n, p)
    u = reuse(loss, X, y, w, lam)
    assert np.linalg.norm(gradient(loss, X, y, w, lam, u)) <= 2e-10 * max(1, lam * np.linalg.norm(u))


def kkt_residual(X: np.ndarray, y: np.ndarray, w: np.ndarray, lam: float, u: np.ndarray) -> float:
    """How far u − w is from Σ a_j y_j x_j/(2λn) with a = 1 inside the margin, 0 outside, [0, 1] on it."""
    signed, margins = X * y[:, None], y * (X @ u)
    on = np.abs(margins - 1) < 1e-7
    rest = 2 * lam * len(y) * (u - w) - signed[(margins < 1) & ~on].sum(axis=0)
    if not on.any():
        return float(np.linalg.norm(rest))
    return float(np.linalg.norm(lsq_linear(signed[on].T, rest, bounds=(0, 1), tol=1e-14).fun))


@pytest.mark.parametrize("lam", [1e-3, 0.1, 10.0])
@pytest.mark.parametrize(("n", "p"), [(26, 123), (300, 8)])
def test_hinge_reuse_meets_its_optimality_conditions(n: int, p: int, lam: float) -> None:
    X, y, w = problem(Hinge(), n, p)
    u = reuse(Hinge(), X, y, w, lam)
    assert kkt_residual(X, y, w, lam, u) <= 1e-8 * n
    assert kkt_residual(X, y, w, lam, u + 1e-4) > 1e-6 * n  # and the check can fail


@pytest.mark.parametrize("seed", range(4))
def test_hinge_reuse_copes_with_repeated_rows(seed: int) -> None:
    """Indicators, duplicates and an empty row: multipliers are not unique, the solution is."""
    rng = np.random.default_rng(seed)
    X = (rng.random((60, 8)) < 0.3).astype(float)
    X[:20], X[0] = X[20:40], 0
    y, w = rng.choice([-1.0, 1.0], 60), rng.standard_normal(8)
    u = reuse(Hinge(), X, y, w, 0.01)

    def objective(v: np.ndarray) -> float:
        return float(np.maximum(1 - y * (X @ v), 0).mean() + 0.01 * np.sum((v - w) ** 2))

    steps = rng.standard_normal((2000, 8)) * 10.0 ** rng.uniform(-9, 0, (2000, 1))
    assert min(objective(u + step) for step in steps) >= objective(u) - 1e-14


def test_hinge_reuse_by_coordinate_ascent_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without its shortcut the dual sweep arrives at the same place."""
    X, y, w = problem(Hinge(), 40, 6)
    direct = reuse(Hinge(), X, y, w, 0.1)
    monkeypatch.setattr(solvers._HingeDual, "polished", lambda self, a: a)
    np.testing.assert_allclose(reuse(Hinge(), X, y, w, 0.1), direct, atol=1e-6)


def test_contract_catches_newton_without_backtracking(monkeypatch: pytest.MonkeyPatch) -> None:
    """Vector D7: the undamped iteration cycles."""
    monkeypatch.setattr(solvers, "_backtrack", lambda *_: 1.0)
    with pytest.raises(AssumptionError, match="converge"):
        reuse(Huber(0.5), XHAT, YHAT, W, 0.1)


def test_few_rows_and_many_rows_are_solved_alike() -> None:
    """The same rows with unused features added: the reduced problem has the same answer."""
    for loss in [*SMOOTH, Hinge()]:
        X, y, w = problem(loss, 12, 4)
        wide = np.hstack([X, np.zeros((12, 30))])
        start = np.hstack([w.reshape(loss.outputs, 4), np.ones((loss.outputs, 30))])
        narrow, widened = reuse(loss, X, y, w, 0.05), reuse(loss, wide, y, start, 0.05)
        np.testing.assert_allclose(widened[:, :4].ravel(), narrow, atol=1e-8)
        np.testing.assert_allclose(widened[:, 4:], 1)


def test_limits_of_reuse() -> None:
    X, y, w = problem(Logistic(), 50, 5)
    np.testing.assert_allclose(reuse(Logistic(), X, y, w, 1e8), w, atol=1e-7)
    np.testing.assert_array_equal(reuse(Logistic(), X[:0], y[:0], w, 0.1), w)
    assert reuse(Logistic(), X, y, w.reshape(1, 5), 0.1).shape == (1, 5)


@pytest.mark.parametrize("loss", [*SMOOTH, Hinge()], ids=repr)
def test_reuse_bears_badly_scaled_features(loss: Loss) -> None:
    X, y, w = problem(loss, 80, 6)
    u = reuse(loss, X * np.logspace(-3, 3, 6), y, w, 0.01)
    assert np.isfinite(u).all()


@pytest.mark.parametrize("lam", [0.0, -1.0, np.nan, np.inf])
def test_reuse_needs_a_positive_weight(lam: float) -> None:
    with pytest.raises(AssumptionError, match="lam > 0"):
        reuse(Square(), XHAT, YHAT, W, lam)


def test_reuse_refuses_what_does_not_fit() -> None:
    for X, y, w in (
        (XHAT, YHAT[:2], W),
        (XHAT, YHAT, np.ones(3)),
        (XHAT, YHAT * 2, W),
        (XHAT * np.nan, YHAT, W),
    ):
        with pytest.raises(InputError):
            reuse(Hinge(), X, y, w, 0.1)
