"""Trees on top of the line of an estimator: in predictions, probabilities, folders and tables in blocks."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from safetensors.numpy import load_file, save_file
from sklearn.metrics import log_loss, roc_auc_score

from sidelight import PrivateClassifier, PrivateRegressor
from sidelight.data import partitions, record_storage
from sidelight.errors import InputError
from sidelight.privacy import events
from sidelight.tables import fit_tables


def frame(n: int, seed: int) -> tuple[pd.DataFrame, np.ndarray]:
    """A number, a category and a score that is the sign of their interaction."""
    rng = np.random.default_rng(seed)
    X = pd.DataFrame({"a": rng.uniform(-1, 1, n), "b": rng.choice(list("uvwx"), n), "c": rng.normal(size=n)})
    f = 3.0 * np.sign(X.a) * np.where(X.b.isin(["u", "v"]), 1, -1) + X.c
    return X, f.to_numpy()


def records(n: int, seed: int, *, regression: bool = False) -> tuple[pd.DataFrame, np.ndarray]:
    X, f = frame(n, seed)
    rng = np.random.default_rng(seed + 100)
    if regression:
        return X, f + rng.normal(size=n)
    return X, np.where(rng.random(n) < 1 / (1 + np.exp(-f)), "yes", "no")


@pytest.fixture(scope="module")
def fitted() -> PrivateClassifier:
    model = PrivateClassifier(epsilon=1.0, delta=1e-6, random_state=0, public_model=None)
    return model.fit(*records(12_000, 0), *records(300, 1))


def test_trees_are_in_scores_probabilities_and_history(fitted: PrivateClassifier) -> None:
    X, y = records(3000, 2)
    line = PrivateClassifier(epsilon=1.0, delta=1e-6, random_state=0, public_model=None, trees=False)
    line.fit(*records(12_000, 0), *records(300, 1))
    assert line._trees is None and fitted._trees is not None
    assert roc_auc_score(y, fitted.decision_function(X)) > roc_auc_score(y, line.decision_function(X)) + 0.1
    assert log_loss(y, fitted.predict_proba(X)) < log_loss(y, line.predict_proba(X)) - 0.05
    assert [entry["released"] for entry in fitted.history_ if "released" in entry].count("leaf sums") == 40
    assert fitted.privacy_.details["trees"] == 320


def test_regression_has_them_too() -> None:
    model = PrivateRegressor(epsilon=1.0, delta=1e-6, random_state=0, public_model=None)
    model.fit(*records(12_000, 0, regression=True), *records(300, 1, regression=True))
    X, y = records(3000, 2, regression=True)
    assert model.score(X, y) > 0.5


def test_a_folder_keeps_the_trees(fitted: PrivateClassifier, tmp_path: Path) -> None:
    X, _ = records(200, 3)
    fitted.save(tmp_path / "model")
    again = PrivateClassifier.load(tmp_path / "model")
    np.testing.assert_array_equal(again.predict_proba(X), fitted.predict_proba(X))
    again.save(tmp_path / "copy")
    copy = PrivateClassifier.load(tmp_path / "copy")
    np.testing.assert_array_equal(copy.decision_function(X), fitted.decision_function(X))


def test_a_folder_with_changed_trees_is_refused(fitted: PrivateClassifier, tmp_path: Path) -> None:
    fitted.save(tmp_path / "model")
    path = tmp_path / "model" / "weights.safetensors"
    arrays: dict[str, Any] = load_file(path)
    save_file(arrays | {"leaves.values": 2 * arrays["leaves.values"]}, path)
    with pytest.raises(InputError, match="checksum"):
        PrivateClassifier.load(tmp_path / "model")


def test_a_table_in_blocks_has_trees(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partitions, "_NUMBERS", 1 << 15)
    monkeypatch.setattr(record_storage, "fits_in_memory", lambda n, p, memory: memory is None)
    (X, y), (Xp, yp) = records(12_000, 0), records(300, 1)
    X.assign(target=y).to_parquet(tmp_path / "private.parquet")
    model = fit_tables(
        tmp_path / "private.parquet", Xp.assign(target=yp), target="target", epsilon=4.0, delta=1e-6,
        validation=0, memory="2GB", random_state=0,
    )  # fmt: skip
    truth = records(3000, 2)
    assert roc_auc_score(truth[1], model.predict_proba(truth[0])[:, 1]) > 0.8
    assert [entry.get("released") for entry in model.estimator.history_].count("leaf sums") == 40
    planned, released = model.privacy_.plan, events.compose(*model.privacy_.events)
    assert events.elementary(planned) == events.elementary(released)


def test_persons_have_trees() -> None:
    (X, y), (Xp, yp) = records(16_000, 0), records(300, 1)
    people = np.arange(len(y)) // 2
    model = PrivateClassifier(epsilon=1.0, delta=1e-6, random_state=0, public_model=None)
    model.fit(X, y, Xp, yp, persons=people)
    truth = records(3000, 2)
    assert roc_auc_score(truth[1], model.decision_function(truth[0])) > 0.75


def test_classes_with_a_square_loss_have_trees() -> None:
    """Its scores are no log-odds: they are not scaled as such before trees are added."""
    model = PrivateClassifier(epsilon=2.0, delta=1e-6, random_state=0, public_model=None, loss="square")
    model.fit(*records(12_000, 0), *records(300, 1))
    truth = records(3000, 2)
    assert model._trees is not None
    assert roc_auc_score(truth[1], model.decision_function(truth[0])) > 0.8


def test_softmax_over_two_classes_keeps_the_difference() -> None:
    model = PrivateClassifier(epsilon=2.0, delta=1e-6, random_state=0, public_model=None, loss="softmax")
    model.fit(*records(12_000, 0), *records(300, 1))
    truth = records(3000, 2)
    assert roc_auc_score(truth[1], model.decision_function(truth[0])) > 0.8
