"""`public_model=` as an estimator of the user's own: what it gains, what is refused, and its folder."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.base import BaseEstimator, RegressorMixin, clone
from sklearn.compose import ColumnTransformer
from sklearn.ensemble import HistGradientBoostingRegressor, RandomForestClassifier, RandomForestRegressor
from sklearn.linear_model import LogisticRegression, RidgeClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, OneHotEncoder, StandardScaler

from sidelight import PrivateClassifier, PrivateRegressor
from sidelight.data.own_model import OwnModel, load_estimator, stored_estimator
from sidelight.errors import InputError, MissingDependency, PrivacyWarning
from sidelight.methods.own_guide import own_guide
from sidelight.tables import Schema, TableModel, fit_tables


def rows(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    X = rng.uniform(-1, 1, size=(n, 4))
    return X, 10 * np.sin(3 * X[:, 0]) * X[:, 1] + X[:, 2] + rng.normal(0, 0.3, n)


def people(n: int, seed: int) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame({"age": rng.integers(20, 80, n), "job": rng.choice(["a", "b", "c"], n)})
    frame["since"] = pd.Timestamp("2015-01-01") + pd.to_timedelta(rng.integers(0, 3000, n), unit="D")
    old = (frame.age > 50) == (frame.job == "b")
    frame["sick"] = np.where(rng.random(n) < np.where(old, 0.85, 0.15), "yes", "no")
    return frame


def error(model: Any, X: Any, y: Any) -> float:
    return float(np.mean((model.predict(X) - y) ** 2) / np.var(y))


OLD = HistGradientBoostingRegressor(random_state=0).fit(*rows(20_000, 9))  # last year's, of many rows


# ---------------------------------------------------------------------------------------------------
# what it gains


@pytest.mark.parametrize("public", [0, 25, 150])
def test_a_regression_begins_with_the_model(public: int) -> None:
    X, y = rows(2_000, 0)
    Xp, yp = rows(public, 1)
    common: dict[str, Any] = {
        "epsilon": 0.5, "random_state": 0, "bounds": (-1, 1), "target_bounds": (-11.0, 11.0),
    }  # fmt: skip
    given = (Xp, yp) if public else ()
    with_it = PrivateRegressor(**{"epsilon": 1.0, **common}, public_model=OLD).fit(X, y, *given)
    without = PrivateRegressor(**{"epsilon": 1.0, **common}).fit(X, y, *given)
    new = rows(2_000, 2)
    assert error(with_it, *new) < 0.05
    assert error(with_it, *new) < 0.5 * error(without, *new)


def test_two_classes_in_another_order_are_matched_by_value() -> None:
    X, t = rows(4_000, 0)
    Xp, tp = rows(150, 1)
    y, yp = np.where(t > 0, "up", "down"), np.where(tp > 0, "up", "down")
    Xo, to = rows(5_000, 9)
    old = RandomForestClassifier(50, random_state=0).fit(Xo, np.where(to > 0, 1, 2))
    old.classes_ = np.array(["up", "down"])  # as of a model whose order is its own
    model = PrivateClassifier(epsilon=0.5, public_model=old, random_state=0).fit(X, y, Xp, yp)
    Xn, tn = rows(2_000, 2)
    assert model.score(Xn, np.where(tn > 0, "up", "down")) > 0.9


def test_scores_of_several_classes_without_probabilities() -> None:
    X, t = rows(4_000, 0)
    Xp, tp = rows(200, 1)
    Xo, to = rows(5_000, 9)
    cut = [-2.0, 2.0]

    def curved(A: np.ndarray) -> np.ndarray:
        return np.hstack([A, np.sin(3 * A[:, :1]) * A[:, 1:2]])

    old = make_pipeline(FunctionTransformer(curved), RidgeClassifier()).fit(Xo, np.digitize(to, cut))
    model = PrivateClassifier(epsilon=0.5, public_model=old, random_state=0)
    model.fit(X, np.digitize(t, cut), Xp, np.digitize(tp, cut))
    Xn, tn = rows(2_000, 2)
    assert model.score(Xn, np.digitize(tn, cut)) > 0.75


def test_public_alone_may_be_the_model_alone() -> None:
    """With few public rows, the model is better than what they can fit beside its column."""
    X, t = rows(400, 0)
    Xp, tp = rows(30, 1)
    Xo, to = rows(20_000, 9)
    old = RandomForestClassifier(50, min_samples_leaf=5, random_state=0).fit(Xo, to > 0)
    model = PrivateClassifier("only_public", epsilon=1.0, public_model=old, random_state=0)
    model.fit(X, t > 0, Xp, tp > 0)
    Xn, tn = rows(2_000, 2)
    assert model.score(Xn, tn > 0) >= old.score(Xn, tn > 0) - 0.01


def test_a_model_that_has_seen_the_public_rows_does_no_harm() -> None:
    """Its residuals there are too short: they are clipped at no less than half of those in folds."""
    X, y = rows(4_000, 0)
    Xp, yp = rows(200, 1)
    seen = RandomForestRegressor(100, random_state=0).fit(Xp, yp)
    with pytest.warns(PrivacyWarning, match="disagree"):
        model = PrivateRegressor(epsilon=1.0, public_model=seen, random_state=0).fit(X, y, Xp, yp)
    other = PrivateRegressor(epsilon=1.0, public_model=None, random_state=0).fit(X, y, Xp, yp)
    new = rows(2_000, 2)
    assert error(model, *new) < 1.15 * error(other, *new)
    assert error(model, *new) < error(seen, *new)


def test_a_bad_model_is_only_a_column() -> None:
    X, y = rows(4_000, 0)
    Xp, yp = rows(200, 1)
    bad = RandomForestRegressor(20, random_state=0).fit(Xp, -yp)
    model = PrivateRegressor(epsilon=1.0, public_model=bad, random_state=0).fit(X, y, Xp, yp)
    assert model._coordinates.guide is not None
    assert model._coordinates.guide.offset != "RandomForestRegressor (yours)"
    assert error(model, *rows(2_000, 2)) < error(bad, *rows(2_000, 2))


# ---------------------------------------------------------------------------------------------------
# tables


def last_year(frame: pd.DataFrame) -> Any:
    encode = ColumnTransformer(
        [("job", OneHotEncoder(handle_unknown="ignore"), ["job"])], remainder="passthrough"
    )
    return make_pipeline(encode, RandomForestClassifier(50, min_samples_leaf=5, random_state=0)).fit(
        frame[["age", "job"]], frame["sick"]
    )


def test_tables_of_all_kinds_give_one_model(tmp_path: Path) -> None:
    private, public = people(2_000, 0), people(200, 1)
    old = last_year(people(5_000, 9))
    private.to_csv(tmp_path / "private.csv", index=False)
    private.to_parquet(tmp_path / "private.parquet", index=False)
    odd = private.astype({"age": object, "job": "category"})
    models = [
        fit_tables(source, public, target="sick", epsilon=1.0, public_model=old, random_state=0, validation=0)
        for source in (private, tmp_path / "private.csv", tmp_path / "private.parquet", odd)
    ]
    for other in models[1:]:
        np.testing.assert_allclose(
            other.estimator._weights, models[0].estimator._weights, rtol=1e-6, atol=1e-9
        )
    new = people(500, 2)
    assert np.mean(models[0].predict(new) == new["sick"]) > 0.8
    estimator = PrivateClassifier(epsilon=1.0, public_model=old, random_state=0)
    estimator.fit(private.drop(columns="sick"), private["sick"], public.drop(columns="sick"), public["sick"])
    assert np.mean(estimator.predict(new.drop(columns="sick")) == new["sick"]) > 0.8


def test_a_column_that_the_schema_ignores_still_reaches_the_model(tmp_path: Path) -> None:
    private, public = people(2_000, 0), people(200, 1)
    model = fit_tables(
        private, public, target="sick", epsilon=1.0, public_model=last_year(people(5_000, 9)), ignore=["job"],
        random_state=0,
    )  # fmt: skip
    assert "job" in model.schema.ignored
    new = people(500, 2)
    assert np.mean(model.predict(new) == new["sick"]) > 0.8
    model.save(tmp_path / "model")
    assert (TableModel.load(tmp_path / "model").predict(new) == model.predict(new)).all()
    with pytest.raises(InputError, match="job"):
        model.predict(new.drop(columns="job"))


@pytest.mark.usefixtures("same_noise")
def test_blocks_on_disk_give_the_same_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from sidelight.data import record_storage

    private, public = people(2_000, 0), people(200, 1)
    private.to_parquet(tmp_path / "p.parquet")
    old = last_year(people(3_000, 9))
    common: Any = {"target": "sick", "epsilon": 1.0, "public_model": old, "random_state": 0, "trees": False}
    here = fit_tables(tmp_path / "p.parquet", public, **common)
    monkeypatch.setattr(record_storage, "fits_in_memory", lambda n, p, memory: memory is None)
    there = fit_tables(tmp_path / "p.parquet", public, memory="1GB", **common)
    np.testing.assert_allclose(here.estimator._weights, there.estimator._weights, rtol=1e-5, atol=1e-7)


def test_the_command_takes_a_file_of_skops(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from sidelight.cli import main

    monkeypatch.chdir(tmp_path)
    people(1_000, 0).to_csv("private.csv", index=False)
    people(200, 1).to_csv("public.csv", index=False)
    Path("old.skops").write_bytes(stored_estimator(last_year(people(3_000, 9))))
    fit = "fit private.csv --public public.csv --target sick --epsilon 1 --out model --public-model old.skops"
    assert main(fit.split()) == 0
    assert Path("model/public_model.skops").exists()
    assert main(["predict", "model", "public.csv", "--out", "predictions.csv"]) == 0
    found = pd.read_csv("predictions.csv")["sick"]
    assert (found == people(200, 1)["sick"]).mean() > 0.75
    Path("old.skops").write_bytes(b"no zip")
    assert main(fit.replace("model ", "other ").split()) == 2
    assert not Path("other").exists()


def test_a_schema_is_enough() -> None:
    private, public = people(3_000, 0), people(200, 1)
    schema = Schema.learn(public, "sick")
    old = last_year(people(5_000, 9))
    model = fit_tables(private, schema=schema, epsilon=1.0, public_model=old, random_state=0)
    new = people(500, 2)
    assert np.mean(model.predict(new) == new["sick"]) > 0.75


# ---------------------------------------------------------------------------------------------------
# refused before the charge


class Batchwise(RegressorMixin, BaseEstimator):  # type: ignore[misc]
    def fit(self, X: Any, y: Any) -> "Batchwise":
        self.fitted_ = True
        return self

    def predict(self, X: Any) -> np.ndarray:
        return np.asarray((X[:, 0] - X[:, 0].mean()) / (X[:, 0].std() + 1e-3))


class Random(Batchwise):
    def predict(self, X: Any) -> np.ndarray:
        return np.random.default_rng().normal(size=len(X))


class TwoNumbers(Batchwise):
    def predict(self, X: Any) -> np.ndarray:
        return np.asarray(X[:, :2])


X0, y0 = rows(100, 5)
REFUSED = {
    "unfitted": (RandomForestRegressor(), "not fitted"),
    "a classifier": (LogisticRegression().fit(X0, y0 > 0), "classification"),
    "by the batch": (Batchwise().fit(X0, y0), "alone"),
    "random": (Random().fit(X0, y0), "alone"),
    "two outputs": (TwoNumbers().fit(X0, y0), "shape"),
    "other features": (RandomForestRegressor(5).fit(X0[:, :3], y0), "features"),
    "no estimator": (object(), "public_model"),
    "a class": (RandomForestRegressor, "public_model"),
    "a scaler": (StandardScaler().fit(X0), "public_model"),
}


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize("public", [0, 60])
def test_a_regression_refuses(name: str, public: int) -> None:
    given, words = REFUSED[name]
    X, y = rows(300, 0)
    model = PrivateRegressor(
        epsilon=1.0, public_model=given, bounds=(-1, 1), target_bounds=(-11.0, 11.0), random_state=0
    )
    with pytest.raises(InputError, match=words):
        model.fit(X, y, *(rows(public, 1) if public else ()))
    assert not hasattr(model, "privacy_")


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (RandomForestRegressor(5).fit(X0, y0), "regression"),
        (LogisticRegression().fit(X0, np.where(y0 > 0, "a", "b")), "classes"),
        (LogisticRegression().fit(X0, np.digitize(y0, [-2, 2])), "classes"),
        (LogisticRegression(), "classes_|not fitted"),
    ],
)
def test_a_classification_refuses(given: Any, words: str) -> None:
    X, t = rows(300, 0)
    Xp, tp = rows(60, 1)
    with pytest.raises(InputError, match=words):
        PrivateClassifier(epsilon=1.0, public_model=given, random_state=0).fit(X, t > 0, Xp, tp > 0)


def test_a_model_of_columns_that_are_not_there_is_refused() -> None:
    old = last_year(people(500, 9))
    with pytest.raises(InputError, match="job"):
        fit_tables(
            people(300, 0).drop(columns="job"), people(60, 1).drop(columns="job"), target="sick", epsilon=1.0,
            public_model=old,
        )  # fmt: skip


def test_most_public_rows_must_work() -> None:
    own = OwnModel(OLD, "regression")
    X = np.hstack([rows(60, 1)[0], np.full((60, 1), np.nan)])
    with pytest.raises(InputError, match="60"):
        own_guide(
            own, X, rows(60, 1)[1], lower=-np.ones(4), upper=np.ones(4), limits=(-11.0, 11.0), labels=None
        )


# ---------------------------------------------------------------------------------------------------
# what else an estimator does


def test_a_clone_keeps_the_fitted_model() -> None:
    model = clone(
        PrivateRegressor(epsilon=1.0, public_model=OLD, bounds=(-1, 1), target_bounds=(-11.0, 11.0))
    )
    assert model.public_model is OLD
    X, y = rows(1_000, 0)
    model.set_params(random_state=0).fit(X, y)
    assert "yours" in repr(model.privacy_.details) or model.privacy_.details["public_model"]
    assert any("public_model" in line for line in model.privacy_.assumptions)


def test_a_folder_holds_the_model_without_pickle(tmp_path: Path) -> None:
    X, y = rows(1_000, 0)
    model = PrivateRegressor(epsilon=1.0, public_model=OLD, random_state=0).fit(X, y, *rows(100, 1))
    model.save(tmp_path / "model")
    assert (tmp_path / "model" / "public_model.skops").exists()
    assert b"pickle" not in (tmp_path / "model" / "model.json").read_bytes()
    again = PrivateRegressor.load(tmp_path / "model")
    assert (again.predict(X[:50]) == model.predict(X[:50])).all()
    again.save(tmp_path / "again")
    content = (tmp_path / "model" / "public_model.skops").read_bytes()
    (tmp_path / "model" / "public_model.skops").write_bytes(content[:-1] + b"!")
    with pytest.raises(InputError, match="changed"):
        PrivateRegressor.load(tmp_path / "model")


class Mine(Batchwise):
    def predict(self, X: Any) -> np.ndarray:
        return np.asarray(X[:, 0] * 5.0)


def test_types_that_are_not_scikit_learn_s_must_be_trusted(tmp_path: Path) -> None:
    X, y = rows(1_000, 0)
    mine = Mine().fit(X0, y0)
    sys.modules.setdefault(Mine.__module__, sys.modules[__name__])
    model = PrivateRegressor(epsilon=1.0, public_model=mine, random_state=0).fit(X, y, *rows(100, 1))
    model.save(tmp_path / "model")
    with pytest.raises(InputError, match="trust"):
        PrivateRegressor.load(tmp_path / "model")
    again = PrivateRegressor.load(tmp_path / "model", trusted=[f"{Mine.__module__}.Mine"])
    assert (again.predict(X[:50]) == model.predict(X[:50])).all()


def test_a_function_of_scikit_learn_s_modules_is_not_its_type() -> None:
    from sklearn.datasets._base import urlretrieve

    content = stored_estimator(FunctionTransformer(urlretrieve))
    with pytest.raises(InputError, match="trust"):
        load_estimator(content)


def test_without_skops_the_error_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    X, y = rows(1_000, 0)
    model = PrivateRegressor(epsilon=1.0, public_model=OLD, random_state=0).fit(X, y, *rows(100, 1))
    monkeypatch.setitem(sys.modules, "skops", None)
    monkeypatch.setitem(sys.modules, "skops.io", None)
    with pytest.raises(MissingDependency, match="skops"):
        model.save(tmp_path / "model")
    assert not (tmp_path / "model").exists()


class BySize(RegressorMixin, BaseEstimator):  # type: ignore[misc]
    """The last bits of a prediction depend on the size of the block, or the place in it, as with BLAS."""

    def __init__(self, places: bool = False) -> None:
        self.places = places
        self.fitted_ = True

    def predict(self, X: Any) -> np.ndarray:
        rows = np.asarray(X)
        changed = np.arange(len(rows)) if self.places and len(rows) > 1 else len(rows)
        return np.asarray(rows.sum(axis=1) * (1 + 1e-9 * changed))


@pytest.mark.parametrize("places", [False, True])
def test_a_prediction_is_the_same_to_the_last_bit_beside_any_other_rows(places: bool) -> None:
    X = np.random.default_rng(0).normal(size=(1_500, 3))
    own = OwnModel(BySize(places), "regression").check(X[:60])
    assert own.alone == places
    found = own.of_matrix(X)
    for first in (1, 2, 1_030):
        np.testing.assert_array_equal(own.of_matrix(X[first:]), found[first:])
        np.testing.assert_array_equal(own.of_matrix(X[:-first]), found[:-first])
