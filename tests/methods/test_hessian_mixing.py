from typing import Any

import numpy as np
import pytest
from tests.contracts import replay
from tests.methods.convex_tools import Account, assert_public_records_join, fitter, rows_of, task_of

from sidelight.audit.subjects import ADD_REMOVE, REPLACE, scene
from sidelight.data.rows import contents
from sidelight.errors import AssumptionError, InputError, PrivacyConditionError
from sidelight.methods.hessian_mixing import hessian_mixing, sketch_size
from sidelight.oracles.linear.row_sums import MomentOracle
from sidelight.privacy import accountants, events
from sidelight.privacy.noise import Noise

BOTH = (ADD_REMOVE, REPLACE)


fit = fitter(hessian_mixing)


class QuietSums(Noise):
    """Sketches as usual, and sums without noise."""

    def bound(self, *about: object) -> Any:
        return self if about[0] == "release sketch" else replay.SilentNoise(0)


def test_the_sketch_has_the_size_of_the_paper() -> None:
    assert sketch_size(p=100, rounds=3, delta=1e-6) == 600
    assert sketch_size(p=5, rounds=3, delta=1e-6) == int(np.ceil(6 * np.log(120e6)))


def test_sketches_alone_lead_to_least_squares() -> None:
    """The noise of a sketch multiplies: rounds remove what it leaves, and the ridge with it."""
    task = task_of("square", n=3000, n_public=0, epsilon=5.0, regularization=0.02)
    X, y = contents(task.rows).X, contents(task.rows).y
    left = []
    for rounds in (1, 5, 60):
        found = fit(task, QuietSums(1), rounds=rounds).coef[0]
        left.append(np.linalg.norm(2 * X.T @ (X @ found - y) / len(y) + 0.02 * found))
    assert left[1] < 0.5 * left[0] and left[2] < 1e-6


@pytest.mark.parametrize("relation", BOTH)
def test_learns_with_enough_records(relation: Any) -> None:
    fitted = fit(task_of("square", n=20_000, epsilon=3.0, relation=relation))
    X, y = rows_of(2000, seed=5, kind="regression")
    assert np.mean((X @ fitted.coef[0] - y) ** 2) < 0.05 * y.var()


def test_public_records_join_the_sums_dense_or_sparse_or_not_at_all() -> None:
    assert_public_records_join(fit)


@pytest.mark.parametrize("relation", BOTH)
def test_neighbors_move_its_sums_within_sensitivity_and_nothing_else(relation: Any) -> None:
    method = hessian_mixing(rounds=2, sketch_rows=60)
    tape = replay.assert_private(method, scene("square"), relation, at_least=0.9)
    assert {call.kind for call in tape.calls} == {"release", "release_sketch"}


def test_contract_catches_records_longer_than_the_sketch_expects(monkeypatch: pytest.MonkeyPatch) -> None:
    """A ridge for the typical record: the door knows the bound of all of them, and refuses."""
    honest = MomentOracle.__init__

    def longer(self: MomentOracle, rows: Any, loss: Any) -> None:
        honest(self, rows, loss)
        self.bound = 1.2 * rows.max_norm**2

    monkeypatch.setattr(MomentOracle, "__init__", longer)
    with pytest.raises(PrivacyConditionError, match="ridge"):
        fit(task_of("square"))


@pytest.mark.parametrize("relation", BOTH)
def test_sketches_and_sums_cost_the_budget(relation: Any) -> None:
    task, account = task_of("square", relation=relation), Account()
    method = hessian_mixing(rounds=3)
    plan = method.plan(task)
    fitted = method.run(task, plan, account=account, noise=Noise(0))
    assert [one["released"] for one in fitted.history] == 3 * ["sketch", "products with residuals"]
    assert events.elementary(events.compose(*account.events)) == events.elementary(plan.event)
    cost = accountants.epsilon(plan.event, delta=task.delta, relation=relation)
    assert 0.999 * task.epsilon < cost <= task.epsilon


def test_gamma_grows_as_the_root_of_the_rows() -> None:
    task = task_of("square", epsilon=0.5)
    gammas = [hessian_mixing(sketch_rows=k).plan(task).details["gamma"] for k in (50, 200)]
    assert 1.8 < gammas[1] / gammas[0] < 2.2  # type: ignore[operator]


@pytest.mark.parametrize("loss", ["logistic", "hinge", "softmax"])
def test_other_losses_are_refused_by_name(loss: str) -> None:
    with pytest.raises(AssumptionError, match=f"hessian_mixing is linear regression.*the {loss} loss"):
        hessian_mixing().plan(task_of(loss))


@pytest.mark.parametrize(
    "settings",
    [{"rounds": 0}, {"sketch_rows": 0}, {"sketch_rows": 15}, {"sketch_rows": 10**6}, {"round_share": 1.0},
     {"round_share": 1 - 1e-9}, {"residual_bound": 0.0}],
    ids=str,
)  # fmt: skip
def test_wrong_settings_are_refused_before_anything_is_charged(settings: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        hessian_mixing(**settings).plan(task_of("square"))
