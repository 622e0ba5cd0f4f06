"""The estimators among others: a ledger, a grid search, a pipeline, frames, sparse matrices."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import sklearn
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import FunctionTransformer
from tests.estimator_tools import (
    FAST,
    SCORE,
    X_PUBLIC,
    X_TEST,
    Y_PUBLIC,
    Y_TEST,
    X,
    Y,
    classifier,
    ledger_with,
)

from sidelight.data import coordinates
from sidelight.data.coordinates import Bounds
from sidelight.errors import (
    BudgetExceeded,
    InputError,
    NotPrivateWarning,
)
from sidelight.estimators import PrivateClassifier
from sidelight.methods.rsgd_ar import rsgd_ar
from sidelight.privacy.ledger import Ledger

pandas = pytest.importorskip("pandas")


# ---------------------------------------------------------------------------------------------------
# the ledger


def test_charge_is_written_before_rows_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "people.ledger"
    Ledger.create(path).register("people", relation="replace-one", epsilon=1.0, delta=1e-5)

    def fail(*_: Any, **__: Any) -> Any:
        raise OSError("the machine stops")

    monkeypatch.setattr(coordinates, "PrivateRows", fail)
    with pytest.raises(OSError, match="stops"):
        classifier(ledger=path, dataset="people").fit(X, Y)
    (charge,) = Ledger.open(path).charges("people")
    assert charge.method == "output_perturbation" and charge.details["private_records"] == 1500


def test_budget_is_refused_when_spent(monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = ledger_with(1.0)
    model = classifier(ledger=ledger, delta=1e-5).fit(X, Y)
    assert model.privacy_.ledger is not None and model.privacy_.ledger["dataset"] == "people"
    assert "the ledger adds this fit" in model.privacy_.assumptions[-1]
    monkeypatch.setattr(coordinates, "PrivateRows", None)  # would fail if a row were read
    with pytest.raises(BudgetExceeded, match="'people'"):
        classifier(ledger=ledger, delta=1e-5).fit(X, Y)
    assert len(ledger.charges("people")) == 1


def test_fits_that_fail_early_cost_nothing() -> None:
    ledger = ledger_with(5.0)
    for bad in (classifier(ledger=ledger, loss="hinge"), classifier(ledger=ledger, classes=[0])):
        with pytest.raises(ValueError):
            bad.fit(X, Y)
    assert ledger.charges("people") == []
    PrivateClassifier("only_public", epsilon=1.0, ledger=ledger).fit(X, Y, X_PUBLIC, Y_PUBLIC)
    assert ledger.total("people").epsilon == 0


def test_ledger_refuses_a_method_that_is_not_private() -> None:
    with pytest.warns(NotPrivateWarning), pytest.raises(BudgetExceeded):
        PrivateClassifier("non_private", epsilon=1.0, ledger=ledger_with(5.0)).fit(X, Y, X_PUBLIC, Y_PUBLIC)


def test_every_fit_of_a_grid_search_is_charged(tmp_path: Path) -> None:
    path = tmp_path / "people.ledger"
    ledger = Ledger.create(path)
    ledger.register("people", relation="replace-one", epsilon=5.0, delta=1e-5, any_size=True)
    search = GridSearchCV(
        classifier(ledger=path, epsilon=0.5, random_state=None), {"method__iterations": [1, 5]}, cv=2
    )
    with pytest.warns(NotPrivateWarning, match="covered"):
        search.fit(X, Y)
    charges = ledger.charges("people")
    assert [c.details["iterations"] for c in charges[:4]] == [1, 1, 5, 5] and len(charges) == 5
    assert [c.details["private_records"] for c in charges] == [750] * 4 + [1500]
    assert search.best_estimator_.privacy_.ledger["run"] == charges[-1].order
    assert "does not cover scores on private records" in search.best_estimator_.privacy_.assumptions[-1]


def test_grid_search_past_the_budget_is_refused() -> None:
    ledger = ledger_with(1.0)
    search = GridSearchCV(
        classifier(ledger=ledger, delta=1e-5), {"max_norm": [1, 2]}, cv=2, error_score="raise"
    )
    with pytest.raises(BudgetExceeded), pytest.warns(NotPrivateWarning, match="covered"):
        search.fit(X, Y)
    assert len(ledger.charges("people")) == 1


# ---------------------------------------------------------------------------------------------------
# scikit-learn


def test_parameters_of_the_method_are_nested() -> None:
    model = PrivateClassifier(rsgd_ar(epochs=3), epsilon=1.0)
    assert model.get_params()["method__epochs"] == 3
    assert model.get_params()["method__step_size"] == 0.5
    assert "method__epochs" not in model.get_params(deep=False)
    model.set_params(method__epochs=7, epsilon=2.0)
    assert model.method == replace(rsgd_ar(), epochs=7) and model.epsilon == 2.0
    by_name = PrivateClassifier("rsgd_ar", epsilon=1.0)
    assert by_name.get_params()["method__epochs"] == 20
    assert by_name.set_params(method__epochs=2).method == rsgd_ar(epochs=2)
    assert by_name.set_params(method="nsgd", method__epochs=4).method.name == "nsgd"
    assert "method__epochs" not in PrivateClassifier("no such method", epsilon=1.0).get_params()
    with pytest.raises(InputError, match="'epoch'"):
        model.set_params(method__epoch=1)
    with pytest.raises(ValueError, match="'epslon'"):
        model.set_params(epslon=1)


def test_clone_keeps_the_method_and_shares_the_ledger() -> None:
    ledger = ledger_with(1.0)
    model = PrivateClassifier(
        rsgd_ar(epochs=3), epsilon=1.0, ledger=ledger, bounds=Bounds.declared(-1, 1, features=5)
    )
    copy = clone(model)
    assert copy.method == model.method and copy.ledger is ledger and not hasattr(copy, "privacy_")
    assert "rsgd_ar" in repr(PrivateClassifier("rsgd_ar", epsilon=1.0)) and "<div" in model._repr_html_()


def test_metadata_is_routed_through_a_search_and_a_pipeline() -> None:
    with sklearn.config_context(enable_metadata_routing=True):
        model = PrivateClassifier("only_public", epsilon=1.0).set_fit_request(X_public=True, y_public=True)
        halve = FunctionTransformer(lambda Z: Z / 2)
        pipe = Pipeline([("halve", halve), ("fit", model)], transform_input=["X_public"])
        search = GridSearchCV(pipe, {"fit__regularization": [0.01, 0.1]}, cv=2)
        with pytest.warns(NotPrivateWarning, match="covered"):
            search.fit(X, Y, X_public=X_PUBLIC, y_public=Y_PUBLIC)
    assert search.score(X_TEST, Y_TEST) > 0.8
    seen = search.best_estimator_["fit"]._coordinates.bounds.upper
    np.testing.assert_allclose(seen, X_PUBLIC.max(axis=0) / 2)


def test_pipeline_passes_public_records_by_name() -> None:
    pipe = Pipeline([("fit", PrivateClassifier(epsilon=2.0))])
    pipe.fit(X, Y, fit__X_public=X_PUBLIC, fit__y_public=Y_PUBLIC)
    assert pipe.score(X_TEST, Y_TEST) > 0.8


def test_frames_keep_their_names() -> None:
    names = ["age", "hours", "gain", "loss", "weight"]
    frame, public = (pandas.DataFrame(Z, columns=names) for Z in (X, X_PUBLIC))
    model = PrivateClassifier(FAST, epsilon=1.0, random_state=0).fit(
        frame, pandas.Series(Y), public, pandas.Series(Y_PUBLIC)
    )
    assert model.feature_names_in_.tolist() == names and model.n_features_in_ == 5
    np.testing.assert_array_equal(model.predict(frame[names[::-1]]), model.predict(frame))


def test_a_frame_of_numbers_with_bounds_is_taken_as_it_is() -> None:
    names = ["age", "hours", "gain", "loss", "weight"]
    frame, public = (pandas.DataFrame(Z, columns=names) for Z in (X, X_PUBLIC))
    model = PrivateClassifier(FAST, epsilon=1.0, bounds=(-3.0, 3.0), random_state=0).fit(
        frame, Y, public, Y_PUBLIC
    )
    plain = PrivateClassifier(FAST, epsilon=1.0, bounds=(-3.0, 3.0), random_state=0).fit(
        X, Y, X_PUBLIC, Y_PUBLIC
    )
    assert model.schema_ is None and model.feature_names_in_.tolist() == names
    np.testing.assert_array_equal(model.coef_, plain.coef_)
    with pytest.raises(InputError, match="match"):
        model.predict(frame[names[::-1]])


def test_frames_of_mixed_and_nullable_columns() -> None:
    frame = pandas.DataFrame(
        {
            "flag": X[:, 0] > 0,
            "count": pandas.array(np.arange(1500) % 3, dtype="Int64"),
            "size": X[:, 1].astype(np.float32),
        }
    )
    frame.loc[5, "count"] = pandas.NA
    labels = pandas.Series(pandas.array((SCORE > 0).astype(int), dtype="Int64"))
    labels[6] = pandas.NA
    model = PrivateClassifier(FAST, epsilon=1.0, bounds=((0, 0, -1), (1, 2, 1)), classes=[0, 1]).fit(
        frame, labels
    )
    assert np.isfinite(model.coef_).all() and model.predict(frame.drop(index=5)).dtype.kind == "i"
    mixed = PrivateClassifier(FAST, epsilon=1.0, bounds=(-1, 1), classes=[0, 1]).fit(
        frame[["flag", "size"]], labels
    )
    assert mixed.n_features_in_ == 2


@pytest.mark.parametrize("low", [-1.0, 0.0])
@pytest.mark.parametrize("method", ["dp_sgd", "public_whitening", "output_perturbation"])
@pytest.mark.usefixtures("same_noise")
def test_sparse_equals_dense(method: str, low: float) -> None:
    def thin(Z: Any) -> Any:
        return np.where(Z > 0.5, np.maximum(Z, low), 0.0)

    settings: dict[str, Any] = {"bounds": (low, 1), "center": "zero", "random_state": 0}
    settings["health_check"] = False  # which counts the values of dense features alone
    dense = PrivateClassifier(method, **{"epsilon": 1.0, **settings}).fit(
        thin(X), Y, thin(X_PUBLIC), Y_PUBLIC
    )
    for form in (sp.csr_array, sp.csr_matrix, sp.csc_array):
        sparse = PrivateClassifier(method, **{"epsilon": 1.0, **settings}).fit(
            form(thin(X)), Y, form(thin(X_PUBLIC)), Y_PUBLIC
        )
        np.testing.assert_allclose(sparse.coef_, dense.coef_, rtol=1e-9, atol=1e-10)
        np.testing.assert_allclose(
            sparse.decision_function(sp.csr_array(X_TEST)), dense.decision_function(X_TEST), atol=1e-9
        )


def test_sparse_and_dense_may_be_mixed() -> None:
    settings: dict[str, Any] = {"random_state": 0}
    both = PrivateClassifier(FAST, **{"epsilon": 1.0, **settings}).fit(
        sp.csr_array(X), Y, sp.csr_array(X_PUBLIC), Y_PUBLIC
    )
    one = PrivateClassifier(FAST, **{"epsilon": 1.0, **settings}).fit(sp.csr_array(X), Y, X_PUBLIC, Y_PUBLIC)
    np.testing.assert_allclose(one.coef_, both.coef_)
    dense = PrivateClassifier(FAST, **{"epsilon": 1.0, **settings}).fit(
        X, Y, sp.csr_array(X_PUBLIC), Y_PUBLIC
    )
    plain = PrivateClassifier(FAST, **{"epsilon": 1.0, **settings}).fit(X, Y, X_PUBLIC, Y_PUBLIC)
    np.testing.assert_array_equal(dense.coef_, plain.coef_)
    # The middle of the bounds is not 0 here, and a sparse X is predicted all the same.
    shifted = classifier(bounds=(-1, 3)).fit(X, Y)
    np.testing.assert_allclose(
        shifted.decision_function(sp.csr_array(X_TEST)), shifted.decision_function(X_TEST)
    )


@pytest.mark.usefixtures("same_noise")
def test_float32_stays_close_to_float64() -> None:
    narrow, wide = classifier().fit(X.astype(np.float32), Y), classifier().fit(X, Y)
    np.testing.assert_allclose(narrow.coef_, wide.coef_, rtol=1e-3, atol=1e-4)
