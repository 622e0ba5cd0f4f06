"""The two estimators: guarantee, interface, and the places where private data could slip out."""

from __future__ import annotations

import json
import math
import pickle
import struct
import warnings
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

from sidelight.data import coordinates
from sidelight.data.bounding import Bounds
from sidelight.erm.output_perturbation import output_perturbation
from sidelight.erm.rsgd_ar import rsgd_ar
from sidelight.errors import (
    BudgetExceeded,
    InputError,
    NotPrivateWarning,
    PrivacyWarning,
    RelationError,
    UnboundedSensitivity,
)
from sidelight.estimators import PrivateClassifier, PrivateRegressor
from sidelight.privacy import accountants
from sidelight.privacy.ledger import Ledger
from sidelight.privacy.noise import SEED_ASSUMPTION

pandas = pytest.importorskip("pandas")
WEIGHTS = np.array([1.0, -2.0, 0.5, 0.0, 1.0])
FAST = output_perturbation(iterations=3)


def features(n: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).uniform(-1, 1, (n, 5))


X, X_PUBLIC, X_TEST = features(1500), features(100, seed=1), features(500, seed=2)
SCORE, SCORE_PUBLIC, SCORE_TEST = X @ WEIGHTS, X_PUBLIC @ WEIGHTS, X_TEST @ WEIGHTS
Y, Y_PUBLIC, Y_TEST = (np.where(s > 0, "yes", "no") for s in (SCORE, SCORE_PUBLIC, SCORE_TEST))


def classifier(**changes: Any) -> PrivateClassifier:
    fixed: dict[str, Any] = {"bounds": (-1, 1), "classes": ["no", "yes"], "random_state": 0}
    return PrivateClassifier(FAST, **{**fixed, **changes})


def ledger_with(epsilon: float, relation: Any = "replace-one") -> Ledger:
    ledger = Ledger.in_memory()
    ledger.register("people", relation=relation, epsilon=epsilon, delta=1e-5)
    return ledger


# ---------------------------------------------------------------------------------------------------
# what a fit gives


@pytest.mark.parametrize("method", ["auto", "dp_sgd", "ppsgd", "public_whitening", "rsgd_ar", "only_public"])
def test_classifier_learns_and_states_its_guarantee(method: str) -> None:
    model = PrivateClassifier(method, epsilon=1.0).fit(X, Y, X_PUBLIC, Y_PUBLIC)
    assert model.score(X_TEST, Y_TEST) > 0.8
    assert model.coef_.shape == (1, 5) and model.intercept_.shape == (1,)
    assert model.classes_.tolist() == ["no", "yes"]
    told = model.privacy_
    assert told.epsilon <= 1 + 1e-6 and told.delta == 1e-5 and told.method == method
    spent = accountants.epsilon(told.plan, delta=told.delta, relation=told.relation)
    assert told.epsilon == pytest.approx(spent)
    assert json.loads(json.dumps(told.to_dict()))["details"]["private_records"] == 1500
    assert isinstance(model.history_, list) and "differential privacy" in str(told)


@pytest.mark.parametrize("method", ["auto", "dp_sgd", "only_public"])
def test_regressor_learns(method: str) -> None:
    shift = 100 + 7 * SCORE_TEST
    model = PrivateRegressor(method).fit(X, 100 + 7 * SCORE, X_PUBLIC, 100 + 7 * SCORE_PUBLIC)
    assert model.score(X_TEST, shift) > 0.8
    assert model.coef_.shape == (5,) and isinstance(model.intercept_, float)


def test_more_than_two_classes() -> None:
    three = np.digitize(SCORE, [-1, 1])
    model = PrivateClassifier(epsilon=3.0, bounds=(-1, 1), classes=[0, 1, 2]).fit(X, three)
    assert model.score(X_TEST, np.digitize(SCORE_TEST, [-1, 1])) > 0.7
    assert model.coef_.shape == (3, 5) and model.decision_function(X_TEST).shape == (500, 3)
    np.testing.assert_allclose(model.predict_proba(X_TEST).sum(axis=1), 1)


def test_softmax_over_two_classes_looks_binary() -> None:
    model = classifier(loss="softmax").fit(X, Y)
    assert model.coef_.shape == (1, 5) and model.decision_function(X_TEST).shape == (500,)
    likely = model.classes_[model.predict_proba(X_TEST).argmax(axis=1)]
    np.testing.assert_array_equal(likely, model.predict(X_TEST))


def test_probabilities_where_the_loss_has_them() -> None:
    assert not hasattr(classifier(loss="huber"), "predict_proba")
    model = classifier().fit(X, Y)
    chance = model.predict_proba(X_TEST)[:, 1]
    np.testing.assert_allclose(np.log(chance / (1 - chance)), model.decision_function(X_TEST))


def test_coefficients_are_in_the_users_units() -> None:
    scale, shift = np.array([1, 10, 0.1, 3, 2]), np.array([0, 5, -1, 2, 9])
    raw, bounds = X * scale + shift, (shift - scale, shift + scale)
    model = classifier(bounds=bounds, max_norm=3.0).fit(raw, Y)  # √6 < 3: nothing is clipped
    line = raw @ model.coef_[0] + model.intercept_[0]
    np.testing.assert_allclose(model.decision_function(raw), line, rtol=1e-9, atol=1e-12)
    kind = PrivateRegressor("dp_sgd", bounds=bounds, max_norm=3.0, target_bounds=(50, 150), random_state=0)
    model = kind.fit(raw, 100 + 7 * SCORE)
    np.testing.assert_allclose(model.predict(raw), raw @ model.coef_ + model.intercept_, rtol=1e-9)


def test_scaled_rows_keep_the_class_of_the_line() -> None:
    model = classifier().fit(X, Y)
    line = X_TEST @ model.coef_[0] + model.intercept_[0]
    scores = model.decision_function(X_TEST)
    assert (np.sign(scores) == np.sign(line)).all()
    assert (np.abs(scores) <= np.abs(line)).all() and not np.allclose(scores, line)


def test_prediction_clips_as_training_does() -> None:
    model = classifier().fit(X, Y)
    np.testing.assert_array_equal(
        model.decision_function(X_TEST * 50), model.decision_function(np.clip(X_TEST * 50, -1, 1))
    )


# ---------------------------------------------------------------------------------------------------
# ε, δ, relation, randomness


def test_default_delta_and_its_warning() -> None:
    assert classifier().fit(X, Y).privacy_.delta == 1e-5
    kind = classifier(bounds=(np.full(1, -1), np.full(1, 1)))
    big = np.zeros((200_000, 1), dtype=np.float32)
    assert kind.fit(big, np.repeat("no", 200_000)).privacy_.delta == pytest.approx(200_000**-1.1)
    with pytest.warns(PrivacyWarning, match="at least 1/n"):
        classifier(delta=1 / 1500).fit(X, Y)


def test_relation_is_the_methods_own_unless_asked() -> None:
    assert classifier().fit(X, Y).privacy_.relation == "replace-one"
    assert PrivateClassifier().fit(X, Y, X_PUBLIC, Y_PUBLIC).privacy_.relation == "replace-one"
    other = PrivateClassifier("dp_sgd", relation="replace-one").fit(X, Y, X_PUBLIC, Y_PUBLIC)
    assert other.privacy_.relation == "replace-one"
    with pytest.raises(RelationError, match="not add-or-remove-one"):
        classifier(relation="add-or-remove-one").fit(X, Y)


def test_seed_repeats_a_fit_and_is_an_assumption() -> None:
    one, two = classifier().fit(X, Y), classifier().fit(X, Y)
    np.testing.assert_array_equal(one.coef_, two.coef_)
    assert SEED_ASSUMPTION in one.privacy_.assumptions
    free = [classifier(random_state=None).fit(X, Y) for _ in range(2)]
    assert SEED_ASSUMPTION not in free[0].privacy_.assumptions
    assert not np.allclose(free[0].coef_, free[1].coef_)


def test_statement_names_what_is_treated_as_public() -> None:
    lines = " | ".join(classifier().fit(X, Y, X_PUBLIC, Y_PUBLIC).privacy_.assumptions)
    assert "number of private records (1500)" in lines
    assert "public records do not depend on the private ones" in lines
    assert "only this fit is covered" in lines and "read off the private records" not in lines


def test_non_private_warns_once_and_says_infinity() -> None:
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        model = PrivateClassifier("non_private").fit(X, Y, X_PUBLIC, Y_PUBLIC)
    assert [w.category for w in seen] == [NotPrivateWarning]
    assert seen[0].filename == __file__
    assert model.privacy_.epsilon == math.inf and model.privacy_.to_dict()["epsilon"] == "infinity"
    assert "no privacy" in str(model.privacy_)


# ---------------------------------------------------------------------------------------------------
# what may be learned from what


def test_nothing_is_learned_from_private_records_unasked() -> None:
    with pytest.raises(InputError, match="classes are not known"):
        PrivateClassifier(FAST, bounds=(-1, 1)).fit(X, Y)
    with pytest.raises(UnboundedSensitivity, match="features have no bounds"):
        PrivateClassifier(FAST, classes=["no", "yes"]).fit(X, Y)
    with pytest.raises(UnboundedSensitivity, match="targets have no bounds"):
        PrivateRegressor(FAST, bounds=(-1, 1)).fit(X, SCORE)


def test_what_is_assumed_public_is_on_record() -> None:
    model = PrivateClassifier(FAST, assume_public=("classes", "bounds")).fit(X, Y)
    lines = " | ".join(model.privacy_.assumptions)
    assert "the classes were read off the private records" in lines
    assert "the bounds were read off the private records" in lines
    assert model.privacy_.details["bounds_from"] == "private records"
    both = PrivateRegressor(FAST, assume_public=("bounds", "target_bounds")).fit(X, SCORE)
    assert "the target bounds were read off" in " | ".join(both.privacy_.assumptions)
    # What is declared, or shown by public records, is not assumed.
    told = classifier(assume_public=("classes", "bounds")).fit(X, Y).privacy_
    assert "read off" not in " | ".join(told.assumptions) and told.details["bounds_from"] == "declared"


def test_bounds_and_classes_come_from_public_records_alone() -> None:
    far = X.copy()
    far[0] = 1e6
    labels = Y.copy()
    labels[0] = "perhaps"
    one = PrivateClassifier(FAST, random_state=0).fit(far, labels, X_PUBLIC, Y_PUBLIC)
    assert one.classes_.tolist() == ["no", "yes"]
    np.testing.assert_array_equal(one._coordinates.bounds.upper, X_PUBLIC.max(axis=0))


def test_unusable_records_are_null_records() -> None:
    """NaN, infinity and an unknown label all have the effect of a record that says nothing."""
    models = []
    for spoil in (np.nan, np.inf, -np.inf, None):
        changed, labels = X.copy(), Y.astype(object)
        if spoil is None:
            labels[7] = "perhaps"
        else:
            changed[7, 2] = spoil
        models.append(classifier().fit(changed, labels))
    for model in models[1:]:
        np.testing.assert_array_equal(model.coef_, models[0].coef_)
    assert np.isfinite(models[0].coef_).all()
    assert not np.allclose(models[0].coef_, classifier().fit(X, Y).coef_, atol=0)


def test_fitted_model_holds_no_private_record() -> None:
    secret = 0.123456789123
    hidden = X.copy()
    hidden[3] = secret
    model = PrivateClassifier("rsgd_ar", random_state=0).fit(hidden, Y, X_PUBLIC, Y_PUBLIC)
    stored = pickle.dumps(model)
    assert struct.pack("<d", secret) not in stored and stored
    assert struct.pack("<d", X_PUBLIC.max()) in stored  # the bounds are there, so this test can see
    np.testing.assert_array_equal(pickle.loads(stored).predict(X_TEST), model.predict(X_TEST))


# ---------------------------------------------------------------------------------------------------
# the ledger


def test_charge_is_written_before_rows_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "people.ledger"
    Ledger.create(path).register("people", relation="replace-one", epsilon=1.0, delta=1e-5)

    def fail(*_: Any, **__: Any) -> Any:
        raise OSError("the machine stops")

    monkeypatch.setattr(coordinates, "PrivateRows", fail)
    with pytest.raises(OSError, match="the machine stops"):
        classifier(ledger=path, dataset="people").fit(X, Y)
    (charge,) = Ledger.open(path).charges("people")
    assert charge.method == "output_perturbation" and charge.details["private_records"] == 1500


def test_budget_is_refused_when_spent(monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = ledger_with(1.0)
    model = classifier(ledger=ledger, delta=1e-5).fit(X, Y)
    assert model.privacy_.ledger is not None and model.privacy_.ledger["dataset"] == "people"
    assert "the ledger adds this fit" in model.privacy_.assumptions[-1]
    monkeypatch.setattr(coordinates, "PrivateRows", None)  # would fail if a row were read
    with pytest.raises(BudgetExceeded, match="is left for dataset 'people'"):
        classifier(ledger=ledger, delta=1e-5).fit(X, Y)
    assert len(ledger.charges("people")) == 1


def test_fits_that_fail_early_cost_nothing() -> None:
    ledger = ledger_with(5.0)
    for bad in (classifier(ledger=ledger, loss="hinge"), classifier(ledger=ledger, classes=[0, 1])):
        with pytest.raises(ValueError):
            bad.fit(X, Y)
    assert ledger.charges("people") == []
    PrivateClassifier("only_public", ledger=ledger).fit(X, Y, X_PUBLIC, Y_PUBLIC)
    assert ledger.total("people").epsilon == 0


def test_ledger_refuses_a_method_that_is_not_private() -> None:
    with pytest.warns(NotPrivateWarning), pytest.raises(BudgetExceeded):
        PrivateClassifier("non_private", ledger=ledger_with(5.0)).fit(X, Y, X_PUBLIC, Y_PUBLIC)


def test_every_fit_of_a_grid_search_is_charged(tmp_path: Path) -> None:
    path = tmp_path / "people.ledger"
    ledger = Ledger.create(path)
    ledger.register("people", relation="replace-one", epsilon=5.0, delta=1e-5)
    search = GridSearchCV(
        classifier(ledger=path, epsilon=0.5, random_state=None), {"method__iterations": [1, 5]}, cv=2
    )
    search.fit(X, Y)
    charges = ledger.charges("people")
    assert [c.details["iterations"] for c in charges[:4]] == [1, 1, 5, 5] and len(charges) == 5
    assert [c.details["private_records"] for c in charges] == [750] * 4 + [1500]
    assert search.best_estimator_.privacy_.ledger["run"] == charges[-1].number
    assert "does not cover scores on private records" in search.best_estimator_.privacy_.assumptions[-1]


def test_grid_search_past_the_budget_is_refused() -> None:
    ledger = ledger_with(1.0)
    search = GridSearchCV(
        classifier(ledger=ledger, delta=1e-5), {"max_norm": [1, 2]}, cv=2, error_score="raise"
    )
    with pytest.raises(BudgetExceeded):
        search.fit(X, Y)
    assert len(ledger.charges("people")) == 1


# ---------------------------------------------------------------------------------------------------
# scikit-learn


def test_parameters_of_the_method_are_nested() -> None:
    model = PrivateClassifier(rsgd_ar(epochs=3))
    assert model.get_params()["method__epochs"] == 3
    assert model.get_params()["method__step_size"] == 0.5
    assert "method__epochs" not in model.get_params(deep=False)
    model.set_params(method__epochs=7, epsilon=2.0)
    assert model.method == replace(rsgd_ar(), epochs=7) and model.epsilon == 2.0
    by_name = PrivateClassifier("rsgd_ar")
    assert by_name.get_params()["method__epochs"] == 20
    assert by_name.set_params(method__epochs=2).method == rsgd_ar(epochs=2)
    assert by_name.set_params(method="nsgd", method__epochs=4).method.name == "nsgd"
    assert "method__epochs" not in PrivateClassifier("no such method").get_params()
    with pytest.raises(InputError, match="has no parameter 'epoch'"):
        model.set_params(method__epoch=1)
    with pytest.raises(ValueError, match="Invalid parameter 'epslon'"):
        model.set_params(epslon=1)


def test_clone_keeps_the_method_and_shares_the_ledger() -> None:
    ledger = ledger_with(1.0)
    model = PrivateClassifier(rsgd_ar(epochs=3), ledger=ledger, bounds=Bounds.declared(-1, 1, features=5))
    copy = clone(model)
    assert copy.method == model.method and copy.ledger is ledger and not hasattr(copy, "privacy_")
    assert "rsgd_ar" in repr(PrivateClassifier("rsgd_ar")) and "<div" in model._repr_html_()


def test_metadata_is_routed_through_a_search_and_a_pipeline() -> None:
    with sklearn.config_context(enable_metadata_routing=True):
        model = PrivateClassifier("only_public").set_fit_request(X_public=True, y_public=True)
        halve = FunctionTransformer(lambda Z: Z / 2)
        pipe = Pipeline([("halve", halve), ("fit", model)], transform_input=["X_public"])
        search = GridSearchCV(pipe, {"fit__regularization": [0.01, 0.1]}, cv=2)
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
    model = PrivateClassifier(FAST, random_state=0).fit(
        frame, pandas.Series(Y), public, pandas.Series(Y_PUBLIC)
    )
    assert model.feature_names_in_.tolist() == names and model.n_features_in_ == 5
    plain = PrivateClassifier(FAST, random_state=0).fit(X, Y, X_PUBLIC, Y_PUBLIC)
    np.testing.assert_array_equal(model.coef_, plain.coef_)
    with pytest.raises(InputError, match="feature names should match"):
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
    model = PrivateClassifier(FAST, bounds=((0, 0, -1), (1, 2, 1)), classes=[0, 1]).fit(frame, labels)
    assert np.isfinite(model.coef_).all() and model.predict(frame.drop(index=5)).dtype.kind == "i"
    mixed = PrivateClassifier(FAST, bounds=(-1, 1), classes=[0, 1]).fit(frame[["flag", "size"]], labels)
    assert mixed.n_features_in_ == 2


@pytest.mark.parametrize("low", [-1.0, 0.0])
@pytest.mark.parametrize("method", ["dp_sgd", "public_whitening", "output_perturbation"])
def test_sparse_equals_dense(method: str, low: float) -> None:
    def thin(Z: Any) -> Any:
        return np.where(Z > 0.5, np.maximum(Z, low), 0.0)

    settings: dict[str, Any] = {"bounds": (low, 1), "centre": "zero", "random_state": 0}
    dense = PrivateClassifier(method, **settings).fit(thin(X), Y, thin(X_PUBLIC), Y_PUBLIC)
    for form in (sp.csr_array, sp.csr_matrix, sp.csc_array):
        sparse = PrivateClassifier(method, **settings).fit(form(thin(X)), Y, form(thin(X_PUBLIC)), Y_PUBLIC)
        np.testing.assert_allclose(sparse.coef_, dense.coef_, rtol=1e-9, atol=1e-10)
        np.testing.assert_allclose(
            sparse.decision_function(sp.csr_array(X_TEST)), dense.decision_function(X_TEST), atol=1e-9
        )


def test_sparse_and_dense_may_be_mixed() -> None:
    settings: dict[str, Any] = {"random_state": 0}
    both = PrivateClassifier(FAST, **settings).fit(sp.csr_array(X), Y, sp.csr_array(X_PUBLIC), Y_PUBLIC)
    one = PrivateClassifier(FAST, **settings).fit(sp.csr_array(X), Y, X_PUBLIC, Y_PUBLIC)
    np.testing.assert_allclose(one.coef_, both.coef_)
    dense = PrivateClassifier(FAST, **settings).fit(X, Y, sp.csr_array(X_PUBLIC), Y_PUBLIC)
    plain = PrivateClassifier(FAST, **settings).fit(X, Y, X_PUBLIC, Y_PUBLIC)
    np.testing.assert_array_equal(dense.coef_, plain.coef_)
    # The middle of the bounds is not 0 here, and a sparse X is predicted all the same.
    shifted = classifier(bounds=(-1, 3)).fit(X, Y)
    np.testing.assert_allclose(
        shifted.decision_function(sp.csr_array(X_TEST)), shifted.decision_function(X_TEST)
    )


def test_float32_stays_close_to_float64() -> None:
    narrow, wide = classifier().fit(X.astype(np.float32), Y), classifier().fit(X, Y)
    np.testing.assert_allclose(narrow.coef_, wide.coef_, rtol=1e-3, atol=1e-4)
