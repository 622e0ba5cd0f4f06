import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from tests.contracts import replay
from tests.methods.convex_tools import Account, accuracy, fitter, rows_of, task_of

from sidelight.audit.subjects import ADD_REMOVE, REPLACE, neighboring, scene
from sidelight.data.rows import PrivateRows, PublicRows, contents
from sidelight.errors import AssumptionError, InputError
from sidelight.methods.baselines import solve
from sidelight.methods.pmt import pmt, public_root, truncation_radius
from sidelight.privacy import accountants, events
from sidelight.privacy.noise import Noise

BOTH = (ADD_REMOVE, REPLACE)
LOSSES = ("square", "logistic", "huber")


fit = fitter(pmt)


def test_rows_like_the_public_ones_have_second_moments_near_one() -> None:
    rng = np.random.default_rng(0)
    shape = np.array([[1.0, 0.9, 0.0], [0.0, 0.1, 0.0], [0.0, 0.0, 5.0]])
    public, private = (rng.standard_normal((n, 3)) @ shape for n in (2000, 5000))
    white = private @ public_root(public)
    np.testing.assert_allclose(white.T @ white / 5000, np.eye(3), atol=0.15)
    np.testing.assert_allclose(public_root(sp.csr_array(public)), public_root(public))


def test_few_rows_of_a_gaussian_are_beyond_the_radius() -> None:
    rng = np.random.default_rng(0)
    for n, p in ((1000, 3), (5000, 50)):
        lengths = np.linalg.norm(rng.standard_normal((n, p)), axis=1)
        assert (lengths > truncation_radius(n, p)).sum() <= 1
        assert truncation_radius(n, p) < math.sqrt(p) + 5


@pytest.mark.parametrize("loss", LOSSES)
def test_without_noise_it_is_the_minimum_in_the_original_coordinates(loss: str) -> None:
    """The regularizer is (λ/2)‖w‖² and not that of whitened weights; no row is beyond the radius here."""
    task = task_of(loss, n=600, regularization=0.05, epsilon=300.0, delta=0.5)
    steps = 1 if loss == "square" else 80
    found = fit(task, replay.SilentNoise(0), steps=steps, radius=5.0).coef[0]
    rows = contents(task.rows)
    if loss == "square":
        # one step from 0 is exact where no residual is clipped: targets are inside of their bound
        second = 2 * rows.X.T @ rows.X + 600 * 0.05 * np.eye(4)
        exact = np.linalg.solve(second, 2 * rows.X.T @ rows.y)
    else:
        exact = solve([task.rows], task.loss, 0.05)
    np.testing.assert_allclose(found, exact, atol=1e-5)


@pytest.mark.parametrize("relation", BOTH)
def test_learns_with_enough_records(relation: Any) -> None:
    task = task_of("logistic", n=20_000, epsilon=3.0, relation=relation)
    assert accuracy(fit(task).coef, *rows_of(2000, seed=5)) > 0.93
    fitted = fit(task_of("square", n=20_000, epsilon=3.0, relation=relation))
    X, y = rows_of(2000, seed=5, kind="regression")
    assert np.mean((X @ fitted.coef[0] - y) ** 2) < 0.1 * y.var()


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("relation", BOTH)
def test_neighbors_move_its_sums_within_sensitivity_and_nothing_else(loss: str, relation: Any) -> None:
    method = pmt(steps=2, radius=1.0)  # so small that rows are truncated, and sensitivities attained
    replay.assert_private(method, scene(loss), relation, at_least=0.49)


def test_contract_catches_rows_that_are_not_truncated(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = PrivateRows.mapped

    def careless(self: PrivateRows, matrix: Any, *, max_norm: float, normalize: bool = False) -> PrivateRows:
        rows = honest(self, matrix, max_norm=1e6)
        rows.max_norm = max_norm
        return rows

    monkeypatch.setattr(PrivateRows, "mapped", careless)
    first, others = neighboring(scene("logistic"), REPLACE)
    method = pmt(steps=1, radius=0.5)
    tape = replay.record(method, first.task(REPLACE))
    with pytest.raises(AssertionError, match="sensitivity"):
        for other in others:
            replay.assert_within_sensitivity(tape, replay.record(method, other.task(REPLACE), like=tape))


def test_the_releases_cost_the_budget() -> None:
    task, account = task_of("logistic"), Account()
    plan = pmt(steps=3).plan(task)
    fitted = pmt(steps=3).run(task, plan, account=account, noise=Noise(0))
    assert [one["released"] for one in fitted.history] == 3 * ["curvature", "gradient"]
    assert events.elementary(events.compose(*account.events)) == events.elementary(plan.event)
    cost = accountants.epsilon(plan.event, delta=task.delta, relation=task.relation)
    assert 0.999 * task.epsilon < cost <= task.epsilon * (1 + 1e-9)


def test_what_it_needs_is_asked_for() -> None:
    with pytest.raises(InputError, match="public records"):
        pmt().plan(replace(task_of("logistic"), public=PublicRows.empty(4)))
    with pytest.raises(AssumptionError, match="huber"):
        pmt().plan(task_of("hinge"))
    with pytest.raises(AssumptionError, match="one linear"):
        pmt().plan(task_of("softmax"))
    for settings in ({"steps": 0}, {"curvature_share": 1.0}, {"radius": 0.0}):
        with pytest.raises(InputError):
            pmt(**settings).plan(task_of("logistic"))  # type: ignore[arg-type]
