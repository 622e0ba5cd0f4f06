"""A model of the user's own (`public_model=`) on neighboring tables, with the mistakes that it may make.

As in `test_guided_estimators`: a fit is recorded at the doors, and replayed on its neighbors with the values
that it released. No private sum moves by more than its sensitivity, and nothing else differs.
"""

import sys
import warnings
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from tests.contracts import fit_replay

from sidelight import PrivateClassifier, PrivateRegressor
from sidelight.audit.subjects import ADD_REMOVE, REPLACE
from sidelight.data import own_model

pytestmark = pytest.mark.usefixtures("same_noise")

N, EPSILON, DELTA, CHANGED = 1_200, 4.0, 1e-6, 777
PROBLEMS = ("regression", "two classes", "three classes", "a frame")


def table(n: int, seed: int, problem: str) -> tuple[Any, np.ndarray]:
    rng = np.random.default_rng(seed)
    X = rng.uniform(-1, 1, size=(n, 4))
    t = X[:, 0] * X[:, 1] + 0.3 * X[:, 2] + rng.normal(0, 0.1, n)
    if problem == "a frame":
        frame = pd.DataFrame(X, columns=["a", "b", "c", "d"])
        frame["kind"] = np.where(X[:, 3] > 0, "x", "y")
        return frame, t
    if problem == "regression":
        return X, t
    return X, (t > 0).astype(float) + (t > 0.3) * (problem == "three classes")


class Clumsy(BaseEstimator):  # type: ignore[misc]
    """It fails on some rows, gives NaN or infinity on others, prints, and warns of what it sees."""

    def fit(self, X: Any, y: Any) -> "Clumsy":
        self.fitted_ = True
        return self

    def score_of(self, X: Any) -> np.ndarray:
        rows = X[["a", "b", "c"]].to_numpy() if hasattr(X, "columns") else np.asarray(X)
        if (rows[:, 0] > 0.97).any() or (hasattr(X, "columns") and (X["kind"] == "boom").any()):
            print("a row that I cannot take:", rows[:, 0].max())
            print("the same on stderr", file=sys.stderr)
            raise ValueError("0.97")
        if (rows[:, 0] < -0.9).any():
            warnings.warn(f"strange: {rows[:, 0].min()}", UserWarning, stacklevel=2)
        z = rows[:, 0] * rows[:, 1] + 0.3 * rows[:, 2]
        z[rows[:, 1] > 0.97], z[rows[:, 1] < -0.97] = np.nan, np.inf
        return np.asarray(z)


class ClumsyRegressor(RegressorMixin, Clumsy):  # type: ignore[misc]
    def predict(self, X: Any) -> np.ndarray:
        return self.score_of(X)


class ClumsyClassifier(ClassifierMixin, Clumsy):  # type: ignore[misc]
    def __init__(self, classes: tuple[float, ...] = (1.0, 0.0)) -> None:
        self.classes = classes

    def fit(self, X: Any, y: Any) -> "ClumsyClassifier":
        self.classes_ = np.array(self.classes)
        return self

    def predict_proba(self, X: Any) -> np.ndarray:
        z = 8 * self.score_of(X)
        if len(self.classes) == 2:
            p = 1 / (1 + np.exp(-z))
            return np.stack([p, 1 - p], axis=1)
        scores = np.exp(np.stack([np.zeros_like(z), z, 2 * z - 2.4], axis=1))
        return np.asarray(scores / scores.sum(axis=1, keepdims=True))

    def predict(self, X: Any) -> np.ndarray:
        return np.asarray(self.classes_[self.predict_proba(X).argmax(axis=1)])


def estimator(problem: str, relation: str) -> Any:
    common = {"epsilon": EPSILON, "delta": DELTA, "relation": relation, "random_state": 0}
    if problem in ("regression", "a frame"):
        return PrivateRegressor(**common, public_model=ClumsyRegressor().fit(None, None))
    classes = (0.0, 1.0, 2.0) if problem == "three classes" else (1.0, 0.0)
    return PrivateClassifier(**common, public_model=ClumsyClassifier(classes).fit(None, None))


HOSTILE = [
    {"a": 0.99}, {"b": 0.99}, {"b": -0.99}, {"a": -0.99}, {"a": np.nan}, {"a": 1e300}, {"kind": "boom"},
    {"kind": None, "a": "a word"}, {"a": -1.0, "b": 1.0, "c": -1.0},
]  # fmt: skip


def neighbors(problem: str, relation: str) -> tuple[tuple[Any, np.ndarray], list[Any]]:
    X, y = table(N, 0, problem)
    changes = HOSTILE[4:5] if relation == ADD_REMOVE else HOSTILE
    others = []
    for k, change in enumerate(changes):
        t = y.copy()
        if relation == REPLACE:
            t[CHANGED] = [y[CHANGED], -y[CHANGED], 1e300, np.nan][k % 4]
        elif problem == "a frame":
            t[CHANGED] = np.nan  # a row with missing values is no null record there
        Z = X.astype({"a": object}) if isinstance(X, pd.DataFrame) else X.copy()
        for name, value in change.items():
            if isinstance(Z, pd.DataFrame):
                Z.iloc[CHANGED, list(Z.columns).index(name)] = value
            elif name != "kind" and not isinstance(value, str):
                Z[CHANGED, "abcd".index(name)] = value
        others.append((Z, t))
    return (X, y), others


def check(problem: str, relation: str) -> tuple[fit_replay.Recorded, float]:
    def fit(X: Any, y: Any) -> Any:
        return estimator(problem, relation).fit(X, y, *table(120, 1, problem))

    base, others = neighbors(problem, relation)
    return fit_replay.check(fit, base, others, table(50, 2, problem)[0])


@pytest.mark.parametrize("relation", [ADD_REMOVE, REPLACE])
@pytest.mark.parametrize("problem", PROBLEMS)
def test_a_fit_with_a_clumsy_model_keeps_its_promises(
    problem: str, relation: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run, moved = check(problem, relation)
    assert moved > 0.1, "no neighbor moved anything: this test would not notice a fault"
    assert any("yours" in name for name in run.model.privacy_.details["public_models"])
    released = [line["released"] for line in run.model.history_ if "released" in line]
    assert {"mean loss of the public model", "gain over public rows alone"} <= set(released)
    heard = capsys.readouterr()
    assert "cannot take" not in heard.out and "stderr" not in heard.err


# ---------------------------------------------------------------------------------------------------
# seen red


def test_contract_catches_a_block_that_fails_as_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """One row on which the model fails takes the predictions of its block away."""

    def careless(self: Any, block: Any) -> np.ndarray:
        found = self._quietly(block)
        return np.full((len(block), self.outputs), np.nan, np.float32) if found is None else found

    monkeypatch.setattr(own_model.OwnModel, "_safe", careless)
    monkeypatch.setattr(own_model, "_ROWS", 64)
    table_of = table(N, 0, "regression")
    table_of[0][:, 0] = np.clip(table_of[0][:, 0], -0.9, 0.9)  # so that no block fails but by the neighbor
    monkeypatch.setitem(globals(), "table", lambda n, seed, p: table_of if seed == 0 else _calm(n, seed))
    with pytest.raises(AssertionError):
        check("regression", REPLACE)


def _calm(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    X = rng.uniform(-0.9, 0.9, size=(n, 4))
    return X, X[:, 0] * X[:, 1] + 0.3 * X[:, 2] + rng.normal(0, 0.1, n)


@pytest.mark.filterwarnings("ignore:strange")
def test_contract_catches_a_model_that_is_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    """Warnings of the user's code go out."""

    def loud(self: Any, block: Any) -> np.ndarray | None:
        try:
            return np.asarray(self._outputs(block), dtype=np.float32)
        except ValueError:
            return None

    monkeypatch.setattr(own_model.OwnModel, "_quietly", loud)
    with pytest.raises(AssertionError):
        check("regression", REPLACE)
