"""The constants that proofs use, sums over records, and the exact solver."""

import numpy as np
import pytest
import scipy.sparse as sp
from tests.methods.convex_tools import rows_of, task_of

from sidelight import solvers
from sidelight.data.rows import PublicRows
from sidelight.errors import AssumptionError, InputError
from sidelight.losses import Hinge, Huber, Logistic, Softmax, Square
from sidelight.methods.baselines import solve
from sidelight.methods.smooth import ClippedSquare, StraightBeyond, batch_sizes, contraction, smooth
from sidelight.oracles.linear.row_sums import RowSums
from sidelight.solvers import minimize

LOSSES = [Logistic(), Huber(0.5), ClippedSquare(0.7), Square(), Softmax(3)]


def records_of(loss, n=60, *, store="dense", seed=0):
    X, y = rows_of(n, 4, seed, kind=loss.task)
    X = {"dense": X, "single": X.astype(np.float32), "csr": sp.csr_array(X)}[store]
    return RowSums(X, y, loss), X, y


def test_clipped_square_is_the_integral_of_its_clipped_slope():
    loss, z = ClippedSquare(0.7, 0.5), np.linspace(-3, 3, 601)
    y = np.full_like(z, 0.3)
    step = 1e-6
    slope = (loss.value(z + step, y) - loss.value(z - step, y)) / (2 * step)
    assert loss.slope(z, y) == pytest.approx(slope, abs=1e-6)
    assert np.abs(loss.slope(z, y)).max() == loss.lipschitz == 0.7
    jumps = np.diff(loss.slope(z, y)) / np.diff(z)
    assert jumps.min() > -1e-12 and jumps.max() <= loss.smoothness + 1e-9  # convex and smooth
    inside = np.abs(z - y) < 0.7
    assert loss.value(z, y)[inside] == pytest.approx(Square(0.5).value(z, y)[inside])
    away = np.abs(np.abs(z - y) - 0.7) > 1e-5  # from the knee, where the curvature is a ramp
    assert set(np.unique(loss.curvature(z, y)[away])) == {0.0, 1.0}


@pytest.mark.parametrize("y", [-1.0, 1.0])
@pytest.mark.parametrize(
    "loss", [ClippedSquare(0.7, 0.5), StraightBeyond(Logistic(), 0.35), StraightBeyond(Huber(0.5), 0.35)]
)
def test_the_last_bit_of_a_score_decides_about_no_curvature(loss, y):
    """BLAS rounds a score by its place in a block: at a jump, one record less moved a Hessian by 3 bounds."""
    knees = [y - 0.7, y + 0.7] if loss.task == "regression" else [y * loss.knee]
    for knee in knees:
        z = knee + np.arange(-20, 21) * 1e-16 * max(1.0, abs(knee))
        for function in (loss.slope, loss.curvature):
            assert np.ptp(function(z, np.full_like(z, y))) < 1e-7
        far = loss.curvature(knee + np.array([-1e-3, 1e-3]), np.full(2, y))
        assert min(far) == 0 < max(far) <= loss.smoothness  # on the ramp's two sides it is what it was


@pytest.mark.parametrize("store", ["dense", "single", "csr"])
@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: f"{loss.name}-{type(loss).__name__}")
def test_sums_over_records_are_what_they_say(loss, store):
    records, X, y = records_of(loss, store=store)
    X = np.asarray(X.toarray() if store == "csr" else X, dtype=float)
    w = 0.3 * np.random.default_rng(1).standard_normal(records.dimension)
    weights = w.reshape(loss.outputs, 4).T if loss.outputs > 1 else w
    slopes = loss.slope(X @ weights, y).reshape(60, -1)
    assert records.gradient(w) == pytest.approx((slopes.T @ X).ravel())
    some = np.array([3, 50, 7])
    assert records.gradient(w, some) == pytest.approx((slopes[some].T @ X[some]).ravel())
    assert records.value(w) == pytest.approx(loss.value(X @ weights, y).sum())
    step, direction = 1e-5, np.random.default_rng(2).standard_normal(records.dimension)
    bent = (records.gradient(w + step * direction) - records.gradient(w - step * direction)) / (2 * step)
    assert records.hessian_times(w, direction) == pytest.approx(bent, abs=2e-4)
    if loss.outputs == 1:
        assert records.hessian(w) @ direction == pytest.approx(records.hessian_times(w, direction))


@pytest.mark.parametrize("loss", [*LOSSES, Hinge()], ids=lambda loss: f"{loss.name}-{type(loss).__name__}")
def test_line_values_are_clipped_losses_along_a_line(loss):
    records, X, y = records_of(loss)
    rng = np.random.default_rng(3)
    w, d = rng.standard_normal(records.dimension), rng.standard_normal(records.dimension)
    steps = np.linspace(0, 2, 5)
    want = []
    for step in steps:
        v = w - step * d
        values = loss.value(X @ (v.reshape(loss.outputs, 4).T if loss.outputs > 1 else v), y)
        want.append(np.clip(values, 0, 0.8).sum())
    assert records.line_values(w, d, steps, bound=0.8) == pytest.approx(want, rel=1e-6)


def test_a_record_with_a_foreign_target_contributes_nothing():
    X, y = rows_of(20, 4)
    strange = y.copy()
    strange[5] = 40.0  # not a label: with it the slope would be 40 times the bound
    w, keep = np.ones(4), np.arange(20) != 5
    records, clean = RowSums(X, strange, Logistic()), RowSums(X[keep], y[keep], Logistic())
    assert records.gradient(w) == pytest.approx(clean.gradient(w))
    assert records.value(w) == pytest.approx(clean.value(w))
    assert records.hessian(w) == pytest.approx(clean.hessian(w))


@pytest.mark.parametrize(
    ("loss", "bound", "curvature"),
    [("logistic", 2.0, 1.0), ("huber", 2.0, 4.0), ("softmax", 2 * np.sqrt(2), 2.0), ("square", 4.0, 8.0)],
)
def test_constants_grow_with_the_norm_of_rows(loss, bound, curvature):
    problem = smooth(task_of(loss, max_norm=2.0), method="m", regularization=0.01)
    assert problem.data_bound == pytest.approx(bound)
    assert problem.curvature == pytest.approx(curvature)
    assert (problem.smoothness, problem.strong_convexity) == pytest.approx((curvature + 0.01, 0.01))


def test_a_gradient_never_exceeds_the_data_bound_whatever_the_target():
    problem = smooth(task_of("square"), method="m", regularization=0.0)
    records = RowSums(np.array([[1.0, 0.0]]), np.array([1e9]), problem.loss)
    assert np.linalg.norm(records.gradient(np.array([5.0, 0.0]))) <= problem.data_bound
    assert any("clipped" in note for note in problem.assumptions)


def test_the_tasks_regularization_wins_over_the_methods():
    task = task_of(regularization=0.2)
    assert smooth(task, method="m", regularization=0.01).regularization == 0.2


def test_what_cannot_be_proved_is_refused():
    with pytest.raises(AssumptionError, match="huber"):
        smooth(task_of("hinge"), method="m", regularization=0.0)
    with pytest.raises(AssumptionError, match="one linear"):
        smooth(task_of("softmax"), method="m", regularization=0.0, scalar=True)
    with pytest.raises(InputError, match="regularization"):
        smooth(task_of(), method="m", regularization=-1.0)


def test_contraction_is_the_factor_of_quadratics():
    for eta in (0.1, 1.0, 3.0):
        factors = [abs(1 - eta * h) for h in np.linspace(0.2, 0.9, 50)]
        found = contraction(eta, smoothness=0.9, strong_convexity=0.2)
        assert found == pytest.approx(max(factors))


def test_batches_are_balanced_and_complete():
    assert batch_sizes(26048, None) == [2605] * 8 + [2604] * 2
    assert batch_sizes(5, 2) == [3, 2]
    assert batch_sizes(3, None) == [1, 1, 1]
    with pytest.raises(InputError, match="batch_size"):
        batch_sizes(5, 6)


@pytest.mark.parametrize("dense", [True, False])
@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: f"{loss.name}-{type(loss).__name__}")
def test_minimize_finds_the_point_without_gradient(loss, dense, monkeypatch):
    if not dense:
        monkeypatch.setattr(solvers, "_DENSE", 0)
    records, _, _ = records_of(loss, n=80)
    linear = 3 * np.random.default_rng(4).standard_normal(records.dimension)
    w, length = minimize([records], ridge=0.5, linear=linear, tolerance=1e-9)
    assert length <= 1e-9
    assert np.linalg.norm(records.gradient(w) + 0.5 * w + linear) <= 1e-9


def test_a_solver_that_fails_says_nothing_of_the_data(monkeypatch):
    monkeypatch.setattr(solvers, "_MOST_STEPS", 1)
    X, y = rows_of(60, 4)
    with pytest.raises(AssumptionError) as error:
        solve([PublicRows(X, y)], Logistic(), 0.01)
    assert not any(c.isdigit() for c in str(error.value))
