"""Output perturbation: vector E7, and how far one record can move the result."""

import numpy as np
import pytest
from tests.methods.convex_tools import AR, Account, computed, rows_of, saturated, task_of
from tests.privacy.vectors import vector

from sidelight.errors import AssumptionError, InputError, PrivacyConditionError, PrivacyWarning, RelationError
from sidelight.losses import Huber, Logistic, Softmax
from sidelight.methods.output_perturbation import descend, output_perturbation, sensitivity, zhang_sensitivity
from sidelight.methods.smooth import ClippedSquare
from sidelight.oracles.linear.row_sums import RowSums
from sidelight.privacy.noise import Noise


def test_e7_sensitivities():
    i, o, rtol = vector("E7")
    shape = {"n": i["n"], "iterations": i["T"], "step_size": i["eta"], "data_bound": i["R"]}
    strong = shape | {"smoothness": i["L"], "strong_convexity": i["mu"]}
    convex = shape | {"smoothness": i["L"], "strong_convexity": 0.0}
    assert sensitivity(**strong) == pytest.approx(o["recursion_T_steps"], rel=rtol)
    assert sensitivity(**convex) == pytest.approx(o["convex_tight"], rel=rtol)
    assert zhang_sensitivity(**convex) == pytest.approx(o["zhang_convex"], rel=rtol)
    long = strong | {"iterations": 10**6, "step_size": 2 / (i["L"] + i["mu"])}
    assert zhang_sensitivity(**long) == pytest.approx(o["zhang_strongly_convex"], rel=rtol)
    assert sensitivity(**long) == pytest.approx(o["prop2_eta_opt"], rel=rtol)


@pytest.mark.parametrize(("smoothness", "mu", "eta"), [(0.25, 0.0, 4.0), (1.0, 1.0, 1.0), (1.0, 0.0, 3.0)])
def test_sensitivity_is_the_sum_of_its_steps(smoothness, mu, eta):
    kappa, moved = max(abs(1 - eta * mu), abs(1 - eta * smoothness)), 0.0
    for _ in range(7):
        moved = kappa * moved + 2 * eta / 10
    found = sensitivity(
        n=10, iterations=7, step_size=eta, data_bound=1.0, smoothness=smoothness, strong_convexity=mu
    )
    assert found == pytest.approx(moved)


def check_moves(bound=sensitivity, change=lambda g: g):
    rng = np.random.default_rng(0)
    for loss in (Logistic(), Huber(0.5), ClippedSquare(1.0), Softmax(3)):
        for lam in (0.0, 0.05):
            X, y = rows_of(6, 3, int(rng.integers(100)), kind=loss.task)
            other_X, other_y = X.copy(), y.copy()
            other_X[2] *= -1 / np.linalg.norm(X[2])
            start = np.zeros(3 * loss.outputs)
            shape = {"iterations": 8, "step_size": 0.4, "regularization": lam, "start": start}

            def run(X, y, loss=loss, shape=shape):
                records = RowSums(X, y, loss)
                return descend(lambda w: change(records.gradient(w) / len(y)), **shape)

            limit = bound(
                n=6, iterations=8, step_size=0.4, data_bound=loss.lipschitz,
                smoothness=loss.smoothness + lam, strong_convexity=lam,
            )  # fmt: skip
            assert np.linalg.norm(run(X, y) - run(other_X, other_y)) <= limit * (1 + 1e-9)


def test_one_record_moves_the_result_at_most_by_the_sensitivity():
    check_moves()
    check_moves(zhang_sensitivity)


def test_contract_catches_normalized_gradients():
    with pytest.raises(AssertionError):
        check_moves(change=lambda g: g / np.linalg.norm(g))


@pytest.mark.parametrize("lam", [0.0, 0.1])
def test_saturated_records_attain_the_sensitivity(lam):
    loss, X = ClippedSquare(1.0, scale=0.05), np.array([[1.0], [1.0]])
    ends = []
    for y in ([1e6, 1e6], [-1e6, 1e6]):
        records = RowSums(X, np.array(y), loss)
        ends.append(
            descend(
                lambda w, r=records: r.gradient(w) / 2,
                start=np.zeros(1), iterations=9, step_size=1.5, regularization=lam,
            )
        )  # fmt: skip
    limit = sensitivity(
        n=2, iterations=9, step_size=1.5, data_bound=1.0, smoothness=0.1 + lam, strong_convexity=lam
    )
    assert abs(float(ends[0][0] - ends[1][0])) == pytest.approx(limit, rel=1e-9)


def test_declared_sensitivity_covers_the_computed_result_and_is_attained(monkeypatch):
    method = output_perturbation(iterations=7)
    (value, limit), (other, _) = (computed(method, saturated(5, one), monkeypatch) for one in (None, 3))
    assert np.linalg.norm(value - other) == pytest.approx(limit, rel=1e-9)


def test_published_sensitivity_needs_more_noise():
    task = task_of(n=1000)
    exact = output_perturbation(iterations=20).plan(task)
    paper = output_perturbation(iterations=20, accounting="paper").plan(task)
    assert paper.state["std"] == pytest.approx(1.5 * exact.state["std"], rel=0.05)
    assert paper.event == exact.event


def test_iterations_follow_the_budget_and_the_size():
    def chosen(**kwargs):
        return output_perturbation().plan(task_of(**kwargs)).details["iterations"]

    assert chosen(n=100) == 5
    assert chosen(n=4000) < chosen(n=4000, epsilon=4.0) < chosen(n=16000, epsilon=4.0) <= 1000


def test_what_the_proof_does_not_cover_is_refused():
    with pytest.raises(AssumptionError, match="huber"):
        output_perturbation().plan(task_of("hinge"))
    with pytest.raises(RelationError):
        output_perturbation().plan(task_of(relation=AR))
    with pytest.raises(PrivacyConditionError, match="published"), pytest.warns(PrivacyWarning):
        output_perturbation(accounting="paper", step_size=9.0).plan(task_of())
    with pytest.raises(InputError, match="accounting"):
        output_perturbation(accounting="none").plan(task_of())


def test_noise_is_on_every_coordinate():
    task = task_of(n=50)
    method = output_perturbation(iterations=1)
    plan = method.plan(task)
    ends = [method.run(task, plan, account=Account(), noise=Noise(s)).coef.ravel() for s in range(300)]
    spread = np.std(ends, axis=0)
    assert spread == pytest.approx(np.full(4, plan.state["std"]), rel=0.2)
    correlation = np.corrcoef(np.array(ends).T)
    assert np.abs(correlation - np.eye(4)).max() < 0.25
