import math
import sys
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.contracts import replay
from tests.methods.convex_tools import Account, assert_public_records_join, fitter, rows_of, task_of
from tests.private_values import value_of

from sidelight.audit.subjects import ADD_REMOVE, REPLACE, neighboring, scene
from sidelight.data.rows import contents
from sidelight.errors import AssumptionError, InputError
from sidelight.losses import Square
from sidelight.methods.adassp import adaptive_ridge, adassp, solve
from sidelight.oracles.linear.row_sums import MomentOracle
from sidelight.privacy import accountants, events
from sidelight.privacy.noise import Noise
from sidelight.privacy.release import BoundedSum

BOTH = (ADD_REMOVE, REPLACE)


fit = fitter(adassp)


def test_the_ridge_is_that_of_the_paper() -> None:
    """Lines 2 and 3 of Algorithm 2, with s = √log(6/δ)·‖X‖²/(ε/3)."""
    p, delta, failure, s = 5, 1e-6, 0.05, 12.0
    wanted = math.sqrt(p * math.log(2 * p**2 / failure)) * s
    options = {"least_std": s, "std": s, "p": p, "delta": delta, "failure": failure}
    assert adaptive_ridge(noisy_least=0.0, **options) == pytest.approx(wanted)
    lower = 3.0 + s * math.sqrt(math.log(6 / delta))
    assert adaptive_ridge(noisy_least=lower, **options) == pytest.approx(wanted - 3.0)
    assert adaptive_ridge(noisy_least=1e9, **options) == 0.0


def test_a_matrix_that_noise_made_indefinite_is_solved() -> None:
    matrix, vector = np.diag([4.0, -1.0]), np.array([8.0, 3.0])
    np.testing.assert_allclose(solve(matrix, vector, 0.0), [2.0, 0.0])
    np.testing.assert_allclose(solve(matrix, vector, 1.0), [1.6, 3.0])


@pytest.mark.parametrize("scale", [0.5, 1.0])
def test_without_noise_it_is_least_squares_with_the_regularizer_of_the_task(scale: float) -> None:
    task = task_of(Square(scale), n=3000, regularization=2.0, n_public=0, epsilon=300.0)
    found = fit(task, replay.SilentNoise(0)).coef[0]
    X, y = contents(task.rows).X, contents(task.rows).y
    gradient = 2 * scale * X.T @ (X @ found - y) / len(y) + 2.0 * found
    np.testing.assert_allclose(gradient, 0, atol=1e-9)


@pytest.mark.parametrize("relation", BOTH)
def test_learns_with_enough_records(relation: Any) -> None:
    fitted = fit(task_of("square", n=20_000, epsilon=3.0, relation=relation))
    X, y = rows_of(2000, seed=5, kind="regression")
    assert np.mean((X @ fitted.coef[0] - y) ** 2) < 0.1 * y.var()


def test_public_records_join_the_sums_dense_or_sparse_or_not_at_all() -> None:
    assert_public_records_join(fit)
    assert not adassp().plan(task_of("square", n_public=0)).details["public_pooled"]


@pytest.mark.parametrize("relation", BOTH)
def test_neighbors_move_its_sums_within_sensitivity_and_nothing_else(relation: Any) -> None:
    replay.assert_private(adassp(), scene("square"), relation, at_least=0.9)


def test_contract_catches_a_ridge_made_of_the_private_eigenvalue(monkeypatch: pytest.MonkeyPatch) -> None:
    """The eigenvalue as a note, without noise: nothing moves at the doors, and something does outside."""
    honest = MomentOracle.least_eigenvalue
    seen: list[float] = []

    def told(self: MomentOracle, *, relation: Any) -> BoundedSum:
        total = honest(self, relation=relation)
        seen.append(float(value_of(total)[0]))
        return total

    monkeypatch.setattr(MomentOracle, "least_eigenvalue", told)
    monkeypatch.setattr(sys.modules[adassp.__module__], "adaptive_ridge", lambda **_: seen[-1])
    first, others = neighboring(scene("square"), REPLACE)
    tape = replay.record(adassp(), first.task(REPLACE))
    with pytest.raises(AssertionError):
        for other in others:
            replay.assert_same_outside(tape, replay.record(adassp(), other.task(REPLACE), like=tape))


def test_three_releases_cost_the_budget() -> None:
    task, account = task_of("square"), Account()
    plan = adassp().plan(task)
    fitted = adassp().run(task, plan, account=account, noise=Noise(0))
    assert [one["released"] for one in fitted.history] == [
        "least eigenvalue", "second moment", "products with targets",
    ]  # fmt: skip
    assert events.elementary(events.compose(*account.events)) == events.elementary(plan.event)
    cost = accountants.epsilon(plan.event, delta=task.delta, relation=task.relation)
    assert 0.999 * task.epsilon < cost <= task.epsilon * (1 + 1e-9)


def test_a_target_beyond_its_bound_is_clipped() -> None:
    X, y = rows_of(200, kind="regression")
    y = y.copy()
    y[3] = 1e6
    task = task_of("square", X=X, y=y)
    assert np.linalg.norm(fit(task).coef) < 100


@pytest.mark.parametrize("loss", ["logistic", "hinge", "softmax"])
def test_other_losses_are_refused_by_name(loss: str) -> None:
    with pytest.raises(AssumptionError, match=f"the {loss} loss"):
        adassp().plan(task_of(loss))


def test_wrong_settings_are_refused_before_anything_is_charged() -> None:
    with pytest.raises(InputError, match="failure must"):
        adassp(failure=0.0).plan(task_of("square"))
    with pytest.raises(AssumptionError, match="bound"):
        adassp().plan(replace(task_of("square"), target_bound=None))
