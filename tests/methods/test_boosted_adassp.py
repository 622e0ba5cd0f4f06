from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.contracts import replay
from tests.methods.convex_tools import Account, assert_public_records_join, fitter, rows_of, task_of

from sidelight.audit.subjects import ADD_REMOVE, REPLACE, neighboring, scene
from sidelight.data.rows import contents
from sidelight.errors import AssumptionError, InputError
from sidelight.losses import Square
from sidelight.methods.adassp import adassp
from sidelight.methods.boosted_adassp import Residuals, boosted_adassp
from sidelight.methods.parts import Flat
from sidelight.privacy import accountants, events
from sidelight.privacy.noise import Noise

BOTH = (ADD_REMOVE, REPLACE)


fit = fitter(boosted_adassp)


def test_one_round_without_noise_is_adassp() -> None:
    """Same matrix, same ridge, same products: both solve (A + λI) w = b."""
    task = task_of("square", n=500, epsilon=300.0, regularization=0.3)
    third = {"round_share": 1 / 3, "eigenvalue_share": 1 / 3}
    one = fit(task, replay.SilentNoise(0), rounds=1, residual_bound=1.0, **third)
    method = adassp()
    other = method.run(task, method.plan(task), account=Account(), noise=replay.SilentNoise(0))
    np.testing.assert_allclose(one.coef, other.coef)


@pytest.mark.parametrize("scale", [0.5, 1.0])
def test_rounds_undo_the_ridge_and_keep_the_regularizer_of_the_task(scale: float) -> None:
    """Without noise every round comes closer to least squares, whatever λ expects of the noise."""
    task = task_of(Square(scale), n=3000, regularization=0.05, n_public=0, epsilon=1.0)
    X, y = contents(task.rows).X, contents(task.rows).y

    def left(rounds: int) -> float:
        found = fit(task, replay.SilentNoise(0), rounds=rounds).coef[0]
        gradient = 2 * scale * X.T @ (X @ found - y) / len(y) + 0.05 * found
        return float(np.linalg.norm(gradient))

    assert left(5) < 0.7 * left(1) and left(300) < 1e-6


@pytest.mark.parametrize("relation", BOTH)
def test_learns_with_enough_records(relation: Any) -> None:
    fitted = fit(task_of("square", n=20_000, epsilon=3.0, relation=relation))
    X, y = rows_of(2000, seed=5, kind="regression")
    assert np.mean((X @ fitted.coef[0] - y) ** 2) < 0.05 * y.var()


def test_public_records_join_the_sums_dense_or_sparse_or_not_at_all() -> None:
    assert_public_records_join(fit)


@pytest.mark.parametrize("relation", BOTH)
def test_neighbors_move_its_sums_within_sensitivity_and_nothing_else(relation: Any) -> None:
    method = boosted_adassp(rounds=3)
    replay.assert_private(method, scene("square"), relation, at_least=0.9)


def test_contract_catches_residuals_that_are_not_clipped(monkeypatch: pytest.MonkeyPatch) -> None:
    """A target is bounded and a residual is not: after a wild round it may be as large as the model."""
    honest = Residuals.__init__

    def careless(self: Residuals, task: Any, bound: float, *, public: bool) -> None:
        honest(self, task, bound, public=public)
        oracle, clip = self._oracle.clipped_sum, self._clip

        def sum_of_all(w: Any, **options: Any) -> Any:
            total = oracle(w, **{**options, "clip": Flat(1e9)})
            total.sensitivity = clip.bound * (1 if task.relation == ADD_REMOVE else 2)
            return total

        monkeypatch.setattr(self._oracle, "clipped_sum", sum_of_all)

    monkeypatch.setattr(Residuals, "__init__", careless)
    first, others = neighboring(scene("square"), REPLACE)
    method = boosted_adassp(residual_bound=0.5)
    tape = replay.record(method, first.task(REPLACE))
    with pytest.raises(AssertionError, match="sensitivity"):
        for other in others:
            replay.assert_within_sensitivity(tape, replay.record(method, other.task(REPLACE), like=tape))


def test_the_releases_cost_the_budget() -> None:
    task, account = task_of("square"), Account()
    plan = boosted_adassp(rounds=4).plan(task)
    fitted = boosted_adassp(rounds=4).run(task, plan, account=account, noise=Noise(0))
    assert [one["released"] for one in fitted.history] == [
        "least eigenvalue", "second moment", *4 * ["products with residuals"],
    ]  # fmt: skip
    assert events.elementary(events.compose(*account.events)) == events.elementary(plan.event)
    cost = accountants.epsilon(plan.event, delta=task.delta, relation=task.relation)
    assert 0.999 * task.epsilon < cost <= task.epsilon * (1 + 1e-9)


@pytest.mark.parametrize("loss", ["logistic", "hinge", "softmax"])
def test_other_losses_are_refused_by_name(loss: str) -> None:
    with pytest.raises(AssumptionError, match=f"boosted_adassp is linear regression.*the {loss} loss"):
        boosted_adassp().plan(task_of(loss))


@pytest.mark.parametrize(
    "settings",
    [{"rounds": 0}, {"rounds": 1.5}, {"round_share": 0.9, "eigenvalue_share": 0.1}, {"round_share": 0.0},
     {"failure": 0.0}, {"residual_bound": -1.0}],
    ids=str,
)  # fmt: skip
def test_wrong_settings_are_refused_before_anything_is_charged(settings: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        boosted_adassp(**settings).plan(task_of("square"))
    with pytest.raises(AssumptionError, match="bound"):
        boosted_adassp().plan(replace(task_of("square"), target_bound=None))
