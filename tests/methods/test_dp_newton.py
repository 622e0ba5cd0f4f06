import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.contracts import replay
from tests.methods.convex_tools import Account, accuracy, fitter, rows_of, task_of

from sidelight.audit.subjects import ADD_REMOVE, REPLACE, neighboring, scene
from sidelight.data.rows import PublicRows
from sidelight.errors import AssumptionError, InputError
from sidelight.methods.baselines import solve
from sidelight.methods.dp_newton import dp_newton, least_curvature, modified, multipliers
from sidelight.oracles.linear.row_sums import MomentOracle
from sidelight.privacy import accountants, events
from sidelight.privacy.noise import Noise

LOSSES = ("logistic", "huber", "softmax", "square")
BOTH = (ADD_REMOVE, REPLACE)


fit = fitter(dp_newton)


@pytest.mark.parametrize("share", [0.1, 0.5])
@pytest.mark.parametrize("matrices", [1, 7])
def test_the_parts_of_a_plan_cost_the_budget_and_no_more(share: float, matrices: int) -> None:
    z_matrix, z_gradient = multipliers(epsilon=1.0, delta=1e-6, steps=7, matrices=matrices, share=share)
    event = events.compose(
        events.repeat(events.gaussian(z_matrix), matrices), events.repeat(events.gaussian(z_gradient), 7)
    )
    cost = accountants.epsilon(event, delta=1e-6, relation=REPLACE)
    assert 0.999 < cost <= 1 + 1e-9


def test_eigenvalues_are_clipped_or_shifted() -> None:
    matrix = np.diag([4.0, -3.0, 0.5])
    assert sorted(modified(matrix, 1.0, "clip")[1]) == pytest.approx([1, 1, 4])
    assert sorted(modified(matrix, 1.0, "add")[1]) == pytest.approx([1, 1.5, 5])


def test_the_least_eigenvalue_is_above_the_noise_of_a_matrix() -> None:
    rng, p, std = np.random.default_rng(0), 60, 2.0
    least = least_curvature(matrix_std=std, gradient_std=0.0, steps=4, p=p, dimension=p, norm_guess=1.0)
    noise = rng.normal(size=(p, p))
    symmetric = std * (np.triu(noise, 1) + np.triu(noise, 1).T) / math.sqrt(2) + std * np.diag(np.diag(noise))
    assert 0.8 * least < np.linalg.norm(symmetric, 2) < 1.2 * least


@pytest.mark.parametrize("loss", LOSSES)
def test_without_noise_it_finds_the_minimum(loss: str) -> None:
    task = task_of(loss, n=400, regularization=0.05, n_public=0)
    found = fit(task, replay.SilentNoise(0), steps=120, least_eigenvalue=1e-6).coef
    data = [task.rows]
    problem = dp_newton().plan(task).state["problem"]
    exact = solve(data, problem.loss, 0.05).reshape(found.shape)
    np.testing.assert_allclose(found, exact, atol=1e-4)


def test_a_hessian_of_its_own_at_every_step_takes_fewer_of_them() -> None:
    task = task_of("logistic", n=400, regularization=0.05, n_public=0)
    exact = solve([task.rows], task.loss, 0.05)
    found = fit(
        task, replay.SilentNoise(0), steps=10, curvature="hessian", modification="add", least_eigenvalue=1e-9
    )
    np.testing.assert_allclose(found.coef[0], exact, atol=1e-6)


@pytest.mark.parametrize("settings", [{}, {"curvature": "hessian"}, {"modification": "add"}], ids=str)
@pytest.mark.parametrize("relation", BOTH)
def test_learns_at_a_moderate_budget(settings: dict[str, Any], relation: Any) -> None:
    task = task_of("logistic", n=4000, epsilon=2.0, relation=relation)
    assert accuracy(fit(task, **settings).coef, *rows_of(2000, seed=5)) > 0.93


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("relation", BOTH)
def test_neighbors_move_its_sums_within_sensitivity_and_nothing_else(loss: str, relation: Any) -> None:
    curvatures = ("bound",) if loss == "softmax" else ("bound", "hessian")
    for curvature in curvatures:
        method = dp_newton(steps=3, curvature=curvature)  # type: ignore[arg-type]
        replay.assert_private(method, scene(loss), relation, at_least=0.49)


@pytest.mark.parametrize("relation", BOTH)
def test_contract_catches_the_bound_of_a_typical_record(
    relation: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A curvature of 0.15 is what most records have; the sensitivity is that of the worst."""
    honest = MomentOracle.__init__

    def typical(self: MomentOracle, rows: Any, loss: Any) -> None:
        honest(self, rows, loss)
        self.bound = 0.15 * rows.max_norm**2

    monkeypatch.setattr(MomentOracle, "__init__", typical)
    first, others = neighboring(scene("logistic"), relation)
    tape = replay.record(dp_newton(steps=2), first.task(relation))
    with pytest.raises(AssertionError, match="sensitivity"):
        for other in others:
            again = replay.record(dp_newton(steps=2), other.task(relation), like=tape)
            replay.assert_within_sensitivity(tape, again)


def test_public_records_give_the_start_and_are_named_as_an_assumption() -> None:
    task = task_of("logistic", n_public=30)
    plan = dp_newton().plan(task)
    assert np.linalg.norm(plan.state["start"]) > 0 and plan.details["start"] == "public"
    assert "the public records do not depend on the private ones" in plan.assumptions
    alone = dp_newton().plan(replace(task, public=PublicRows.empty(task.p)))
    assert not alone.state["start"].any() and alone.event == plan.event


def test_every_release_is_in_the_history_and_the_account_may_refuse() -> None:
    task, method = task_of("logistic"), dp_newton(steps=3)
    account = Account()
    fitted = method.run(task, method.plan(task), account=account, noise=Noise(0))
    assert [one["released"] for one in fitted.history] == ["curvature", *["gradient"] * 3]
    assert events.elementary(events.compose(*account.events)) == events.elementary(method.plan(task).event)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"steps": 0}, "steps must be"),
        ({"steps": 1.5}, "steps must be"),
        ({"curvature": "none"}, "curvature must be"),
        ({"modification": "none"}, "modification 'clip' or 'add'"),
        ({"curvature_share": 1.0}, "curvature_share must be between 0 and 1"),
        ({"least_eigenvalue": 0.0}, "least_eigenvalue must be a positive"),
        ({"norm_guess": math.nan}, "norm_guess must be a positive"),
    ],
)
def test_wrong_settings_are_refused_before_anything_is_charged(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        dp_newton(**settings).plan(task_of("logistic"))


def test_losses_that_it_cannot_do_are_refused_by_name() -> None:
    with pytest.raises(AssumptionError, match="corner"):
        dp_newton().plan(task_of("hinge"))
    with pytest.raises(AssumptionError, match="softmax"):
        dp_newton(curvature="hessian").plan(task_of("softmax"))


@pytest.mark.parametrize("loss", ["logistic", "huber", "square"])
def test_clipped_slopes_take_noise_from_gradients_and_not_from_the_matrix(loss: str) -> None:
    task = task_of(loss, n=4000, epsilon=1.0)
    plans = [dp_newton(slope_share=share).plan(task) for share in (1.0, 0.35)]
    bounds = [plan.state["problem"].data_bound for plan in plans]
    assert bounds[1] == pytest.approx(0.35 * bounds[0])
    assert plans[0].event == plans[1].event
    clipped = fit(task, slope_share=0.35)
    stds = {one["released"]: one["noise_std"] for one in clipped.history}
    whole = {one["released"]: one["noise_std"] for one in fit(task).history}
    assert stds["gradient"] == pytest.approx(0.35 * whole["gradient"])
    assert stds["curvature"] == pytest.approx(whole["curvature"])
    X, y = rows_of(2000, seed=5, kind=task.loss.task)
    assert np.mean(np.sign(X @ clipped.coef[0]) == np.sign(y)) > 0.9


def test_clipped_slopes_are_for_one_output() -> None:
    with pytest.raises(AssumptionError, match="one output"):
        dp_newton(slope_share=0.5).plan(task_of("softmax"))
    with pytest.raises(InputError, match="slope_share"):
        dp_newton(slope_share=1.5).plan(task_of("logistic"))
