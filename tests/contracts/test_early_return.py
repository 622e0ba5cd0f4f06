"""A run that returns the public model without training, since nothing can be gained, on neighboring tables.

Whether it ends is decided by a release. Replayed on a neighbor with the values that it released it ends at
the same place, and a run that goes on goes on. What was not released is taken back where the ledger's filter
admitted the run, and nothing else is.
"""

import os
import signal
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from tests.contracts import fit_replay
from tests.privacy.test_ledger_kill import drain, fork
from tests.private_values import value_of

from sidelight import Ledger, PrivateClassifier, PrivateRegressor
from sidelight.audit.subjects import ADD_REMOVE, REPLACE
from sidelight.errors import LedgerError
from sidelight.methods import paid_comparison, public_alone
from sidelight.methods.paid_comparison import _Judge
from sidelight.methods.public_alone import PublicAlone
from sidelight.privacy import events
from sidelight.privacy.ledger_book import check_settlement
from sidelight.privacy.release import BoundedSum, Run

pytestmark = pytest.mark.usefixtures("same_noise")

N, EPSILON, DELTA, CHANGED = 3_000, 8.0, 1e-6, 777
LIFETIME = 100.0  # so that a filter admits the run
COMPARED = "gain over public rows alone"


class Exact(RegressorMixin, BaseEstimator):  # type: ignore[misc]
    """Knows the target."""

    def fit(self, X: Any, y: Any) -> "Exact":
        self.fitted_ = True
        return self

    def predict(self, X: Any) -> np.ndarray:
        return np.asarray(X[:, 0] * X[:, 1] + 0.3 * X[:, 2])


class ExactClasses(ClassifierMixin, Exact):  # type: ignore[misc]
    def fit(self, X: Any, y: Any) -> "ExactClasses":
        self.classes_ = np.array([0.0, 1.0])
        return self

    def predict_proba(self, X: Any) -> np.ndarray:
        p = np.where(Exact.predict(self, X) > 0, 0.9999, 0.0001)
        return np.stack([1 - p, p], axis=1)

    def predict(self, X: Any) -> np.ndarray:
        return (Exact.predict(self, X) > 0).astype(float)


def table(n: int, seed: int, problem: str, noise: float = 0.0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    X = rng.uniform(-1, 1, size=(n, 4))
    t = Exact().predict(X) + rng.normal(0, 1, n) * noise
    return X, t if problem == "regression" else (t > 0).astype(float)


def fitted(X: Any, y: Any, problem: str = "regression", relation: str = ADD_REMOVE, **options: Any) -> Any:
    common = {"epsilon": EPSILON, "delta": DELTA, "relation": relation, "random_state": 0, "trees": False}
    if problem == "regression":
        estimator = PrivateRegressor(
            **common | {"public_model": Exact().fit(X, y), "target_bounds": (-1.5, 1.5)} | options
        )
    else:
        estimator = PrivateClassifier(**common | {"public_model": ExactClasses().fit(X, y)} | options)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return estimator.fit(X, y, *table(120, 1, problem))


def released(model: Any) -> list[str]:
    return [line["released"] for line in model.history_ if "released" in line]


def neighbors(problem: str, relation: str, noise: float) -> tuple[tuple[Any, Any], list[tuple[Any, Any]]]:
    X, y = table(N, 0, problem, noise)
    rows = [np.full(4, np.nan), np.array([1e300, -np.inf, 0.0, 0.0])]
    rows += [np.array([-1.0, 1.0, -1.0, 1.0]), X[CHANGED]] if relation == REPLACE else []
    others = []
    for k, row in enumerate(rows):
        Z, t = X.copy(), y.copy()
        Z[CHANGED] = row
        if relation == REPLACE:
            t[CHANGED] = [np.nan, 1e300, 7.0, -y[CHANGED]][k]
        others.append((Z, t))
    return (X, y), others


@pytest.mark.parametrize("relation", [ADD_REMOVE, REPLACE])
@pytest.mark.parametrize(("problem", "noise"), [("regression", 0.0), ("regression", 0.3), ("classes", 0.5)])
def test_a_neighbor_ends_or_goes_on_where_the_run_did(problem: str, noise: float, relation: str) -> None:
    base, others = neighbors(problem, relation, noise)
    run, moved = fit_replay.check(
        lambda X, y: fitted(X, y, problem, relation), base, others, table(50, 2, problem)[0]
    )
    assert moved > 0.05
    assert (COMPARED in released(run.model)) == (noise > 0)
    assert bool(run.model.privacy_.stopped) == (noise == 0)


def test_classes_that_are_known_end_the_run_too() -> None:
    X, y = table(60_000, 0, "classes")
    model = fitted(X, y, "classes", loss="logistic")
    assert COMPARED not in released(model) and model.privacy_.stopped
    assert model.score(*table(2_000, 5, "classes")) > 0.98
    assert model.probability_scale_ != 1.0 and model._trees is None


def test_the_public_model_is_what_is_returned() -> None:
    model = fitted(*table(N, 0, "regression"))
    X, y = table(500, 2, "regression")
    np.testing.assert_allclose(model.predict(X), y, atol=0.15)
    assert not model._weights.any() and model._trees is None


def test_the_statement_says_what_was_planned_what_ran_and_why() -> None:
    statement = fitted(*table(N, 0, "regression"), trees=True).privacy_
    said: Any = statement.details["stopped"]
    planned = events.elementary(statement.plan)
    assert said["planned"] == events.describe(statement.plan)
    assert said["ran"] != said["planned"] and not said["refunded"]
    assert "no model gains more" in said["why"] and said["why"] in statement.returned
    assert "the whole plan stays charged" in statement.stopped and "stopped: " in str(statement)
    assert sum(planned.values()) > 100, "trees and a line were planned"
    assert statement.epsilon == pytest.approx(EPSILON, rel=1e-2)


@pytest.mark.parametrize(("lifetime", "refunded"), [(LIFETIME, True), (EPSILON * 1.001, False)])
def test_a_ledger_is_charged_for_what_was_released(lifetime: float, refunded: bool) -> None:
    """By a filter step by step; a plan that exact accounting admitted is certain only as a whole."""
    ledger = Ledger.in_memory()
    ledger.register("d", relation=ADD_REMOVE, epsilon=lifetime, delta=DELTA)
    spent: list[events.Event] = []
    charge = Run.charge

    def heard(run: Run, event: events.Event) -> None:
        charge(run, event)
        spent.append(event)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Run, "charge", heard)
        model = fitted(*table(N, 0, "regression"), ledger=ledger, dataset="d", delta=None)
    (entry,) = ledger.charges("d")
    whole, ran = events.elementary(model.privacy_.plan), events.elementary(events.compose(*spent))
    assert ran < whole
    assert events.elementary(entry.plan) == whole
    assert events.elementary(entry.event) == (ran if refunded else whole)
    assert model.privacy_.details["stopped"]["refunded"] is refunded
    assert ("for what ran alone" in model.privacy_.stopped) == refunded


def test_a_ledger_that_cannot_be_read_afterwards_loses_no_result(monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = Ledger.in_memory()
    ledger.register("d", relation=ADD_REMOVE, epsilon=LIFETIME, delta=DELTA)
    finish = Run.finish

    def lost(run: Run) -> None:
        finish(run)
        monkeypatch.setattr(ledger, "charges", unreadable)

    def unreadable(name: str) -> Any:
        raise LedgerError("the disk is gone")

    monkeypatch.setattr(Run, "finish", lost)
    model = fitted(*table(N, 0, "regression"), ledger=ledger, dataset="d", delta=None)
    assert model.privacy_.details["stopped"]["refunded"] is False


def test_a_run_that_is_killed_between_keeps_its_whole_charge(tmp_path: Path) -> None:
    """After the release that decides, before the charge is lowered."""
    ledger = Ledger.create(tmp_path / "book")
    ledger.register("d", relation=ADD_REMOVE, epsilon=LIFETIME, delta=DELTA)

    def work(pipe: int) -> None:
        def killed(judge: Any, *args: Any, **how: Any) -> None:
            os.write(pipe, b"decided")
            os.kill(os.getpid(), signal.SIGKILL)

        _Judge.ended = killed  # type: ignore[method-assign]
        fitted(*table(N, 0, "regression"), ledger=Ledger.open(tmp_path / "book"), dataset="d", delta=None)

    child, pipe = fork(work)
    assert drain(pipe) == b"decided"
    os.waitpid(child, 0)
    (entry,) = Ledger.open(tmp_path / "book").charges("d")
    assert not entry.lowered and sum(events.elementary(entry.event).values()) > 40


def test_an_error_after_the_decision_keeps_the_whole_charge(monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = Ledger.in_memory()
    ledger.register("d", relation=ADD_REMOVE, epsilon=LIFETIME, delta=DELTA)
    monkeypatch.setattr(_Judge, "ended", lambda *_, **__: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        fitted(*table(N, 0, "regression"), ledger=ledger, dataset="d", delta=None)
    (entry,) = ledger.charges("d")
    assert not entry.lowered


# ---------------------------------------------------------------------------------------------------
# the rule


def public(expected: float, *, constant: float = 1.0, loss: str = "square", bound: float = 1.0) -> Any:
    from sidelight.losses import get_loss

    return PublicAlone(np.zeros((1, 2)), get_loss(loss), bound, 1.0, expected, 0.0, constant)


def test_a_run_ends_only_if_public_and_private_records_both_say_so() -> None:
    """To three standard errors: 0.2 % of the loss of a constant is left, or less."""
    assert public(0.0005).ends(0.0005, 0.0004)
    assert not public(0.0011).ends(0.0, 0.0)  # public rows see something to gain
    assert not public(0.0).ends(0.0017, 0.0002)  # private records may
    assert not public(0.0).ends(-1.0, 0.0006)  # a lucky draw of strong noise
    assert not public(0.0, constant=0.0).ends(-1.0, 0.1)


def test_of_numbers_few_records_may_be_beyond_the_largest_loss() -> None:
    """A residual is clipped: what is far beyond counts as much as what is just there."""
    assert public(0.0, constant=50.0).room == 0.005
    assert public(0.0, constant=50.0, loss="logistic").room == 0.1


@pytest.mark.parametrize("share", [0.01, 0.1])
def test_some_records_of_another_kind_let_the_run_go_on(share: float) -> None:
    X, y = table(N, 0, "regression")
    y[: int(share * N)] *= -1
    assert COMPARED in released(fitted(X, y))


def test_more_is_spent_on_the_question_only_if_that_lets_it_be_answered() -> None:
    def share(epsilon: float, **options: Any) -> float:
        model = fitted(*table(N, 0, "regression"), epsilon=epsilon, **options)
        return float(model.privacy_.details["comparison_share"])

    assert share(32.0) == paid_comparison.SHARE
    assert share(4.0) == pytest.approx(paid_comparison._LARGER_SHARE + paid_comparison.SHARE / 2)
    assert share(1.0) == share(4.0, public_model="auto") == paid_comparison.SHARE


# ---------------------------------------------------------------------------------------------------
# seen red


def test_contract_catches_an_end_that_is_decided_by_a_private_value(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sum itself instead of the noisy one: a record of another kind lets one run end and another not."""
    honest = _Judge._means

    def peeking(judge: _Judge, total: BoundedSum, z: float) -> tuple[np.ndarray, float]:
        means, error = honest(judge, total, z)
        judge.peeked = float(value_of(total)[0])  # type: ignore[attr-defined]
        return means, error

    monkeypatch.setattr(_Judge, "_means", peeking)
    monkeypatch.setattr(_Judge, "ends", lambda judge, before: judge.peeked < 0.5)
    base, others = neighbors("regression", REPLACE, 0.0)
    with pytest.raises((AssertionError, ValueError)):  # it trains with what the other run released
        fit_replay.check(
            lambda X, y: fitted(X, y, "regression", REPLACE), base, others, table(50, 2, "regression")[0]
        )


def test_contract_catches_a_release_that_is_not_charged(monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = Ledger.in_memory()
    ledger.register("d", relation=ADD_REMOVE, epsilon=LIFETIME, delta=DELTA)

    def free(judge: _Judge, total: BoundedSum, z: float) -> tuple[np.ndarray, float]:
        return np.asarray(value_of(total)) / judge.task.n, 0.0

    fitted(*table(N, 0, "regression"), ledger=ledger, dataset="d", delta=None)
    monkeypatch.setattr(_Judge, "_means", free)
    fitted(*table(N, 0, "regression"), ledger=ledger, dataset="d", delta=None)
    honest, faulty = (sum(events.elementary(one.event).values()) for one in ledger.charges("d"))
    assert faulty == honest - 1


def test_no_more_is_taken_back_than_was_left() -> None:
    """A ledger lowers a charge once, to a part of its plan, and only if its filter admitted the run."""
    ledger = Ledger.in_memory()
    ledger.register("d", relation=ADD_REMOVE, epsilon=LIFETIME, delta=DELTA)
    fitted(*table(N, 0, "regression"), ledger=ledger, dataset="d", delta=None)
    (entry,) = ledger.charges("d")
    whole = replace(entry, event=entry.plan)
    assert entry.lowered
    with pytest.raises(Exception, match="cannot be lowered"):
        check_settlement(entry, events.NoOp())
    with pytest.raises(Exception, match="cannot be lowered"):
        check_settlement(whole, events.gaussian(1e9))
    with pytest.raises(Exception, match="cannot be lowered"):
        check_settlement(replace(whole, rule="exact"), entry.event)


def test_contract_catches_a_rule_without_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the released mean alone strong noise would end runs that can gain."""
    monkeypatch.setattr(public_alone, "CERTAIN", 0.0)
    assert public(0.0).ends(0.0019, 0.001)
