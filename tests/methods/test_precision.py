"""Precision weighting: the weight is the ratio of two precisions, and everything it asks for is public."""

from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse as sp
from tests.methods.test_auto import Book, a_task

from sidelight import PrivateClassifier
from sidelight.data.rows import PrivateRows, PublicRows
from sidelight.errors import InputError
from sidelight.losses import get_loss
from sidelight.methods import only_public
from sidelight.methods.parts import NoiseAware
from sidelight.methods.precision import Precision, _folds, precision_weighting, public_precision, spread_of
from sidelight.methods.task import NOTHING
from sidelight.privacy.conversions import gdp_mu
from sidelight.privacy.noise import Noise


def test_the_weight_is_that_of_least_variance():
    """Simulated: two noisy means of one vector, mixed by κ, have the least error there."""
    m, n, p, f, noise = 40, 500, 20, 0.3, 0.02
    kappa = public_precision(
        n_public=m, n_private=n, dimension=p, noise_multiplier=noise * n, sensitivity_factor=1, batch=n,
        steps=1, spread=f,
    )  # fmt: skip
    rng = np.random.default_rng(0)
    public = rng.normal(size=(4000, p)) * np.sqrt(f / (m * p))
    private = rng.normal(size=(4000, p)) * np.sqrt(f / (n * p) + noise**2)

    def error(k: float) -> float:
        return float(np.square((private + k * public) / (1 + k)).sum(axis=1).mean())

    assert error(kappa) < min(error(kappa / 2), error(kappa * 2))


def test_few_public_rows_in_many_coordinates_are_worth_less():
    """m rows tell about m directions: beyond that many coordinates f grows as p/m, and 1 is its most."""

    def f(m: int, loss: str, **options: bool) -> float:
        task = a_task(p=40, n_public=m, loss=loss, **options)
        problem = task.problem(guided=True, joined=False, half_square=True)
        setting = precision_weighting().setting(problem, epsilon=1.0, delta=1e-6, relation="replace-one")
        found = _folds(setting)
        told = 1.0 if found is None else found.spread(0.35)
        return spread_of(setting, 0.35) / told

    assert [f(m, "logistic") for m in (200, 40, 32)] == pytest.approx([1.0, 1.0, 1.25])
    assert f(25, "hinge") == f(10, "logistic") == 1.0  # folds cannot tell
    assert [f(m, "square", regression=True) for m in (200, 20)] == pytest.approx([0.3, 0.3])


def test_the_way_is_no_longer_than_the_noise_leaves_worth():
    """Σ η over the steps that count: n′ + m under strong noise; what is stable under little."""
    for n, p, epsilon, by_noise in ((5_000, 60, 0.1, True), (20_000, 6, 50.0, False)):
        task = a_task(n=n, p=p, n_public=30, loss="logistic", epsilon=epsilon)
        way = precision_weighting().plan(task).details["step_size"] * 5 * 48
        worth = 1 / (p * (2 / (n * gdp_mu(epsilon, task.delta))) ** 2)
        assert way <= (worth + 30) * (1 + 1e-6)
        assert (way == pytest.approx(worth + 30, rel=1e-3)) is by_noise


def test_a_longer_way_is_mostly_noise_where_public_rows_say_nothing():
    """60 directions that are alike, 30 public rows, ε = 0.1: the direction of the model over ten draws."""
    cosines: dict[bool, list[float]] = {True: [], False: []}
    truth = np.linspace(1, -1, 60) / np.linalg.norm(np.linspace(1, -1, 60))
    for seed in range(10):
        task = a_task(n=10_000, p=60, n_public=30, loss="logistic", epsilon=0.1, seed=seed)
        for short in (True, False):
            method = precision_weighting()
            method = method if short else method.with_parts(step=NoiseAware(cap=8.0))
            fitted = method.run(task, method.plan(task), account=Book(), noise=Noise(seed))
            cosines[short].append(float(fitted.coef[0] @ truth / np.linalg.norm(fitted.coef[0])))
    assert np.mean(cosines[True]) > np.mean(cosines[False]) + 0.02


def test_the_clip_norm_follows_the_slope_at_zero():
    """Under strong noise it is 0.7 of it; else public folds choose (test_public_folds)."""
    for loss, first in (("logistic", 0.5), ("hinge", 1.0), ("huber", 1.0)):
        task = a_task(loss=loss, n_public=15)
        assert precision_weighting().plan(task).details["clip_norm"] == pytest.approx(0.7 * first)
    task = a_task(loss="square", regression=True)
    want = np.abs(task.public.y).mean()
    assert precision_weighting().plan(task).details["clip_norm"] == pytest.approx(want)
    three = replace(
        a_task(), loss=get_loss("softmax", classes=3), public=PublicRows(np.eye(6), np.arange(6) % 3.0)
    )
    assert precision_weighting().plan(three).details["clip_norm"] == pytest.approx(0.7 * np.sqrt(2 / 3))


@pytest.mark.parametrize(
    ("tail", "epsilon", "factor"), [(False, 50.0, 1.0), (True, 0.1, 1.0), (True, 50.0, 4.0)]
)
def test_heavy_tails_are_clipped_less_where_the_noise_is_weak(
    tail: bool, epsilon: float, factor: float
) -> None:
    task = a_task(n=500, n_public=200, loss="square", regression=True, epsilon=epsilon)
    y = np.random.default_rng(0).normal(size=200) * 0.05
    y = np.where(np.arange(200) % 20 == 0, 0.9, y) if tail else y
    task = replace(task, public=PublicRows(task.public.X, y))
    plan = precision_weighting().plan(task)
    assert plan.details["clip_norm"] == pytest.approx(factor * np.abs(y).mean())


def test_a_correction_of_a_guide_starts_at_zero_and_stays_there_under_strong_noise() -> None:
    """Public residuals are noise that a line of few rows would fit: they have no say as to where it goes."""
    task = a_task(n=300, p=40, n_public=60, loss="square", regression=True, epsilon=0.05)
    wild = PublicRows(task.public.X, np.random.default_rng(0).choice([-1.0, 1.0], 60))
    lengths = []
    for residual in (True, False):
        given = np.zeros((1, task.p)) if residual else None
        asked = replace(task, public=replace(wild, given=given), residual=residual)
        method = precision_weighting()
        fitted = method.run(asked, method.plan(asked), account=Book(), noise=Noise(1))
        lengths.append(float(np.std(wild.X @ fitted.coef[0])))
    assert lengths[0] < 0.1 < 0.3 < lengths[1]
    task = replace(task, public=replace(wild, given=np.zeros((1, task.p))), residual=True)
    assert not only_public().run(task, NOTHING, account=Book(), noise=Noise(1)).coef.any()


def test_without_private_information_it_is_the_public_model():
    task = a_task(n=50, n_public=400, epsilon=0.01, loss="logistic")
    fitted = precision_weighting().run(
        task, plan := precision_weighting().plan(task), account=Book(), noise=Noise(1)
    )
    assert plan.details["weight"] > 0.99
    X = np.random.default_rng(5).normal(size=(1000, 6))
    assert np.mean((X @ fitted.coef[0] >= 0) == (X @ np.linspace(1, -1, 6) >= 0)) > 0.9


def test_momentum_is_that_of_the_mixed_direction():
    """A public gradient of weight near 1 takes part in the heavy ball: the path is that of public descent."""
    task = a_task(n=50, n_public=400, epsilon=0.01, loss="logistic")
    method = precision_weighting(steps=8, step_size=0.5)
    plain = precision_weighting(steps=8, step_size=0.5, momentum=0.0)
    moved = [
        np.linalg.norm(m.run(task, m.plan(task), account=Book(), noise=Noise(1)).coef)
        for m in (method, plain)
    ]
    assert moved[0] != pytest.approx(moved[1], rel=1e-3)


def test_a_million_sparse_columns_take_seconds():
    rng = np.random.default_rng(0)
    columns = 1_000_000
    where = rng.integers(0, columns, size=(1300, 20)) ** 2 // columns
    X = sp.csr_array((np.ones(26_000), where.reshape(-1), np.arange(0, 26_001, 20)), shape=(1300, columns))
    X.sum_duplicates()
    y = (where < 60_000).sum(axis=1) > 4
    for method in ("auto", precision_weighting(steps=4)):
        model = PrivateClassifier(method, epsilon=8.0, bounds=(0, 1), classes=[False, True], random_state=1)
        model.fit(X[300:], y[300:], X[:300], y[:300])
        assert model.coef_.shape == (1, columns) and np.isfinite(model.coef_).all()


def test_wide_rows_are_whitened_without_a_square_matrix_and_learned_from():
    rng = np.random.default_rng(3)
    basis = rng.normal(size=(8, 3000)) / 60
    hidden = rng.normal(size=(5060, 8))
    X = hidden @ basis + 1e-3 * rng.normal(size=(5060, 3000))
    y = hidden[:, 0] > 0
    model = PrivateClassifier(epsilon=2.0, bounds=(-1, 1), random_state=1).fit(X[60:], y[60:], X[:60], y[:60])
    assert np.mean(model.predict(X) == y) > 0.85


def test_wide_rows_of_which_few_columns_are_used_are_learned_from():
    """A solver writes out what has few columns, and what is whitened in a thin way is no array."""
    rng = np.random.default_rng(3)
    X = sp.random(400, 4000, density=0.002, format="csr", random_state=3)
    X.data[:] = rng.normal(size=X.nnz)
    y = (np.asarray(X.sum(axis=1)).ravel() > 0).astype(int)
    model = PrivateClassifier("precision_weighting", epsilon=5.0, bounds=(-3.0, 3.0), fit_intercept=False)
    model.fit(X[40:], y[40:], X[:40], y[:40])
    assert np.isfinite(model.coef_).all() and model.coef_.any()


def test_a_spread_that_is_no_number_is_refused():
    with pytest.raises(InputError, match="spread"):
        Precision(spread=0.0)


def test_the_plan_does_not_depend_on_private_rows():
    task = a_task(loss="logistic")
    other = replace(task, rows=PrivateRows(np.full((2000, 6), np.nan), np.ones(2000), max_norm=1.0))
    first, second = (precision_weighting().plan(t) for t in (task, other))
    assert first.details == second.details and first.event == second.event
