"""`auto` as users run it (public models, paid comparison, health check) on neighboring tables.

A fit is recorded at the doors, and replayed on its neighbors with the values that it released. No private
sum moves by more than its sensitivity, and nothing else differs: model, history, statement, warnings.
"""

from typing import Any

import numpy as np
import pytest
from tests.contracts import fit_replay
from tests.private_values import value_of

from sidelight import PrivateClassifier, PrivateRegressor
from sidelight.audit.subjects import ADD_REMOVE, REPLACE
from sidelight.data import guide
from sidelight.methods.paid_comparison import _Judge
from sidelight.privacy import accountants, events
from sidelight.privacy.release import BoundedSum

pytestmark = pytest.mark.usefixtures("same_noise")

N, EPSILON, DELTA = 1_200, 4.0, 1e-6
PROBLEMS = ("regression", "two classes", "three classes", "square loss")
CHANGED = 777
HOSTILE_ROWS = [
    np.full(4, np.nan),
    np.array([np.inf, -np.inf, 0.0, 0.0]),
    np.array([1e300, -1e300, 1e300, -1e300]),
    np.array([-1.0, 1.0, -1.0, 1.0]),
    np.zeros(4),
]


def table(n: int, seed: int, problem: str) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    X = rng.uniform(-1, 1, size=(n, 4))
    t = X[:, 0] * X[:, 1] + 0.3 * X[:, 2] + rng.normal(0, 0.1, n)
    if problem == "regression":
        return X, t
    return X, (t > 0).astype(float) + (t > 0.3) * (problem == "three classes")


def estimator(problem: str, relation: str) -> Any:
    common = {"epsilon": EPSILON, "delta": DELTA, "relation": relation, "random_state": 0}
    if problem == "regression":
        return PrivateRegressor(**common)
    return PrivateClassifier(**common, loss="square" if problem == "square loss" else None)


def neighbors(problem: str, relation: str) -> tuple[tuple[np.ndarray, np.ndarray], list[Any]]:
    """A table, and others in which one record is broken (as good as gone), or another one."""
    X, y = table(N, 0, problem)
    targets = [y[CHANGED], -y[CHANGED], 1e300, -1e300, np.nan, np.inf, 7.0]
    rows = HOSTILE_ROWS[:2] if relation == ADD_REMOVE else HOSTILE_ROWS
    pairs = [(row, target) for row in rows for target in (targets if relation == REPLACE else targets[:1])]
    others = []
    for row, target in pairs[:: 1 if relation == ADD_REMOVE else 6]:
        Z, t = X.copy(), y.copy()
        Z[CHANGED], t[CHANGED] = row, target
        others.append((Z, t))
    return (X, y), others


def check(problem: str, relation: str) -> tuple[fit_replay.Recorded, float]:
    def fit(X: Any, y: Any) -> Any:
        return estimator(problem, relation).fit(X, y, *table(120, 1, problem))

    base, others = neighbors(problem, relation)
    return fit_replay.check(fit, base, others, table(50, 2, problem)[0])


@pytest.mark.parametrize("relation", [ADD_REMOVE, REPLACE])
@pytest.mark.parametrize("problem", PROBLEMS)
def test_a_fit_with_everything_keeps_its_promises(problem: str, relation: str) -> None:
    run, moved = check(problem, relation)
    assert moved > 0.1, "no neighbor moved anything: this test would not notice a fault"
    released = [line["released"] for line in run.model.history_ if "released" in line]
    assert {"mean loss of the public model", "gain over public rows alone", "health check"} <= set(released)
    assert run.model.privacy_.details["public_models"]
    spent = events.compose(*run.tape.events)
    assert events.elementary(spent) == events.elementary(run.model.privacy_.plan)
    assert accountants.epsilon(spent, delta=DELTA, relation=relation) <= EPSILON
    assert run.model.privacy_.epsilon <= EPSILON
    assert not any(call.early_noise for call in run.tape.calls)


# ---------------------------------------------------------------------------------------------------
# seen red


def test_contract_catches_a_guide_that_looks_at_all_records(monkeypatch: pytest.MonkeyPatch) -> None:
    """Columns around the mean of the records at hand: one record moves the rows of all others."""
    honest = guide.PublicGuide.of

    def leaking(self: Any, X: np.ndarray) -> guide.GuideColumns:
        said = honest(self, X)
        return guide.GuideColumns(np.clip(said.columns - X.mean(), -1, 1), said.offset)

    monkeypatch.setattr(guide.PublicGuide, "of", leaking)
    with pytest.raises(AssertionError):
        check("regression", REPLACE)


def test_contract_catches_a_comparison_that_decides_by_the_sum(monkeypatch: pytest.MonkeyPatch) -> None:
    """The released number replaced by the private one."""
    honest = _Judge._means

    def unhidden(judge: _Judge, total: BoundedSum, z: float) -> tuple[np.ndarray, float]:
        return np.asarray(value_of(total)) / judge.task.n, honest(judge, total, z)[1]

    monkeypatch.setattr(_Judge, "_means", unhidden)
    with pytest.raises(AssertionError):
        check("two classes", REPLACE)
