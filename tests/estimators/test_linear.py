"""The two estimators: what a fit gives, what it guarantees, and what it may learn from what."""

import json
import math
import pickle
import re
import struct
import warnings

import numpy as np
import pytest
from tests.estimator_tools import (
    FAST,
    SCORE,
    SCORE_PUBLIC,
    SCORE_TEST,
    X_PUBLIC,
    X_TEST,
    Y_PUBLIC,
    Y_TEST,
    X,
    Y,
    classifier,
)

from sidelight.errors import (
    InputError,
    NotPrivateWarning,
    PrivacyWarning,
    RelationError,
    UnboundedSensitivity,
)
from sidelight.estimators import PrivateClassifier, PrivateRegressor
from sidelight.methods.declare import METHODS, get_method
from sidelight.privacy import accountants
from sidelight.privacy.contract import relation_of
from sidelight.privacy.ledger import Ledger
from sidelight.privacy.noise import SEED_ASSUMPTION

# ---------------------------------------------------------------------------------------------------
# what a fit gives


@pytest.mark.parametrize("method", ["auto", "dp_sgd", "ppsgd", "public_whitening", "rsgd_ar", "only_public"])
def test_classifier_learns_and_states_its_guarantee(method: str) -> None:
    model = PrivateClassifier(method, epsilon=1.0).fit(X, Y, X_PUBLIC, Y_PUBLIC)
    assert model.score(X_TEST, Y_TEST) > 0.8
    assert model.coef_.shape == (1, 5) and model.intercept_.shape == (1,)
    assert model.classes_.tolist() == ["no", "yes"]
    told = model.privacy_
    assert told.epsilon <= 1 + 1e-6 and told.delta == 0.01 / 1500 and told.method == method
    spent = accountants.epsilon(told.plan, delta=told.delta, relation=told.relation)
    assert told.epsilon == pytest.approx(spent)
    assert json.loads(json.dumps(told.to_dict()))["details"]["private_records"] == 1500
    assert isinstance(model.history_, list) and "differential privacy" in str(told)


@pytest.mark.parametrize("method", ["auto", "dp_sgd", "only_public"])
def test_regressor_learns(method: str) -> None:
    shift = 100 + 7 * SCORE_TEST
    model = PrivateRegressor(method, epsilon=3.0).fit(X, 100 + 7 * SCORE, X_PUBLIC, 100 + 7 * SCORE_PUBLIC)
    assert model.score(X_TEST, shift) > 0.8
    assert model.coef_.shape == (5,) and isinstance(model.intercept_, float)


def test_more_than_two_classes() -> None:
    three = np.digitize(SCORE, [-1, 1])
    model = PrivateClassifier(epsilon=3.0, bounds=(-1, 1), classes=[0, 1, 2], random_state=0).fit(X, three)
    assert model.score(X_TEST, np.digitize(SCORE_TEST, [-1, 1])) > 0.7
    assert model.coef_.shape == (3, 5) and model.decision_function(X_TEST).shape == (500, 3)
    np.testing.assert_allclose(model.predict_proba(X_TEST).sum(axis=1), 1)


def test_softmax_over_two_classes_looks_binary() -> None:
    model = classifier(loss="softmax").fit(X, Y)
    assert model.coef_.shape == (1, 5) and model.decision_function(X_TEST).shape == (500,)
    likely = model.classes_[model.predict_proba(X_TEST).argmax(axis=1)]
    np.testing.assert_array_equal(likely, model.predict(X_TEST))


@pytest.mark.parametrize("loss", ["logistic", "huber"])
def test_probabilities_are_scaled_scores(loss: str) -> None:
    model = classifier(loss=loss).fit(X, Y)
    chance = model.predict_proba(X_TEST)[:, 1]
    log_odds = model.probability_scale_ * model.decision_function(X_TEST)
    np.testing.assert_allclose(np.log(chance / (1 - chance)), log_odds, atol=1e-9)
    assert (model.probability_scale_ == pytest.approx(1.0)) is (loss == "logistic")  # no public records


def test_class_weights_move_labels_and_nothing_else() -> None:
    plain = classifier().fit(X, Y)
    heavy = classifier(class_weight={"yes": 20.0}).fit(X, Y)
    np.testing.assert_array_equal(plain.predict_proba(X_TEST), heavy.predict_proba(X_TEST))
    np.testing.assert_array_equal(plain.decision_function(X_TEST), heavy.decision_function(X_TEST))
    yes = heavy.predict_proba(X_TEST)[:, 1] > 1 / 21
    np.testing.assert_array_equal(heavy.predict(X_TEST) == "yes", yes)
    assert (heavy.predict(X_TEST) == "yes").sum() > (plain.predict(X_TEST) == "yes").sum()


def test_balanced_weights_come_from_public_labels() -> None:
    few = np.where(np.arange(100) % 5 == 0, "yes", "no")
    model = classifier(class_weight="balanced").fit(X, Y, X_PUBLIC, few)
    np.testing.assert_allclose(model.class_weights_, [100 / 160, 100 / 40])


@pytest.mark.parametrize(
    ("weight", "words"),
    [
        ("balanced", "there is none of class"),
        ({"maybe": 1.0}, "'maybe', which is not among the classes"),
        ({"yes": 0.0}, "'yes' must be a positive number"),
        ({"yes": "much"}, "'yes' must be a positive number"),
        ({"yes": float("nan")}, "'yes' must be a positive number"),
    ],
)
def test_bad_class_weights_are_refused_before_anything_is_charged(weight: object, words: str) -> None:
    with pytest.raises(InputError, match=words):
        classifier(class_weight=weight).fit(X, Y)


def test_coefficients_are_in_the_users_units() -> None:
    scale, shift = np.array([1, 10, 0.1, 3, 2]), np.array([0, 5, -1, 2, 9])
    raw, bounds = X * scale + shift, (shift - scale, shift + scale)
    model = classifier(bounds=bounds, max_norm=3.0).fit(raw, Y)  # √6 < 3: nothing is clipped
    line = raw @ model.coef_[0] + model.intercept_[0]
    np.testing.assert_allclose(model.decision_function(raw), line, rtol=1e-9, atol=1e-12)
    kind = PrivateRegressor(
        "dp_sgd", epsilon=1.0, bounds=bounds, max_norm=3.0, target_bounds=(50, 150), random_state=0
    )
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
    assert classifier().fit(X[:900], Y[:900]).privacy_.delta == 1e-5
    kind = classifier(bounds=(np.full(1, -1), np.full(1, 1)))
    big = np.zeros((200_000, 1), dtype=np.float32)
    assert kind.fit(big, np.repeat("no", 200_000)).privacy_.delta == pytest.approx(0.01 / 200_000)
    with pytest.warns(PrivacyWarning, match="1/n"):
        classifier(delta=1 / 1500).fit(X, Y)


@pytest.mark.parametrize("name", METHODS)
def test_every_method_has_one_default_relation(name: str) -> None:
    method = get_method(name)
    only = ("replace-one",)
    expected = "replace-one" if method.relations == only else "add-or-remove-one"
    assert relation_of(method, None) == expected
    assert relation_of(method, "replace-one") == "replace-one"


def test_relation_and_delta_are_the_ledgers_unless_asked() -> None:
    ledger = Ledger.in_memory()
    ledger.register("people", relation="replace-one", epsilon=5, delta=1e-7)
    told = PrivateClassifier(epsilon=1.0, ledger=ledger).fit(X, Y, X_PUBLIC, Y_PUBLIC).privacy_
    assert (told.relation, told.delta) == ("replace-one", 1e-7)
    with pytest.raises(InputError, match="'persons'"):
        PrivateClassifier(epsilon=1.0, ledger=ledger, dataset="persons").fit(X, Y, X_PUBLIC, Y_PUBLIC)


def test_relation_is_the_default_unless_asked() -> None:
    assert classifier().fit(X, Y).privacy_.relation == "replace-one"  # rsgd_ar is proved for nothing else
    assert (
        PrivateClassifier(epsilon=1.0).fit(X, Y, X_PUBLIC, Y_PUBLIC).privacy_.relation == "add-or-remove-one"
    )
    other = PrivateClassifier("dp_sgd", epsilon=1.0, relation="replace-one").fit(X, Y, X_PUBLIC, Y_PUBLIC)
    assert other.privacy_.relation == "replace-one"
    with pytest.raises(RelationError, match="replace-one only"):
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
    assert "number of private records (1,500)" in lines
    assert "public records do not depend on the private ones" in lines
    assert "only this fit is covered" in lines and "read off the private records" not in lines


def test_non_private_warns_once_and_says_infinity() -> None:
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        model = PrivateClassifier("non_private", epsilon=1.0).fit(X, Y, X_PUBLIC, Y_PUBLIC)
    assert [w.category for w in seen] == [NotPrivateWarning]
    assert seen[0].filename == __file__
    assert model.privacy_.epsilon == math.inf and model.privacy_.to_dict()["epsilon"] == "infinity"
    assert "no privacy" in str(model.privacy_)


# ---------------------------------------------------------------------------------------------------
# what may be learned from what


def test_nothing_is_learned_from_private_records_unasked() -> None:
    with pytest.raises(InputError, match="classes"):
        PrivateClassifier(FAST, epsilon=1.0, bounds=(-1, 1)).fit(X, Y)
    with pytest.raises(UnboundedSensitivity, match="features"):
        PrivateClassifier(FAST, epsilon=1.0, classes=["no", "yes"]).fit(X, Y)
    with pytest.raises(UnboundedSensitivity, match="targets"):
        PrivateRegressor(FAST, epsilon=1.0, bounds=(-1, 1)).fit(X, SCORE)


def test_what_is_assumed_public_is_on_record() -> None:
    model = PrivateClassifier(FAST, epsilon=1.0, assume_public=("classes", "bounds")).fit(X, Y)
    lines = " | ".join(model.privacy_.assumptions)
    assert "the classes were read off the private records" in lines
    assert "the bounds were read off the private records" in lines
    assert model.privacy_.details["bounds_from"] == "private records"
    both = PrivateRegressor(FAST, epsilon=1.0, assume_public=("bounds", "target_bounds")).fit(X, SCORE)
    assert "the target bounds were read off" in " | ".join(both.privacy_.assumptions)
    # What is declared, or shown by public records, is not assumed.
    told = classifier(assume_public=("classes", "bounds")).fit(X, Y).privacy_
    assert "read off" not in " | ".join(told.assumptions) and told.details["bounds_from"] == "declared"


def test_bounds_and_classes_come_from_public_records_alone() -> None:
    far = X.copy()
    far[0] = 1e6
    labels = Y.copy()
    labels[0] = "perhaps"
    one = PrivateClassifier(FAST, epsilon=1.0, random_state=0).fit(far, labels, X_PUBLIC, Y_PUBLIC)
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
        models.append(classifier(health_check=False).fit(changed, labels))
    for model in models[1:]:
        np.testing.assert_array_equal(model.coef_, models[0].coef_)
    assert np.isfinite(models[0].coef_).all()
    assert not np.allclose(models[0].coef_, classifier().fit(X, Y).coef_, atol=0)


def test_fitted_model_holds_no_private_record() -> None:
    secret = 0.123456789123
    hidden = X.copy()
    hidden[3] = secret
    model = PrivateClassifier("rsgd_ar", epsilon=1.0, random_state=0).fit(hidden, Y, X_PUBLIC, Y_PUBLIC)
    stored = pickle.dumps(model)
    assert struct.pack("<d", secret) not in stored and stored
    assert struct.pack("<d", X_PUBLIC.max()) in stored  # the bounds are there, so this test can see
    np.testing.assert_array_equal(pickle.loads(stored).predict(X_TEST), model.predict(X_TEST))


@pytest.mark.parametrize("delta", [1.2344e-5, 3.0001e-6, 1e-5, 9.999e-7])
def test_a_printed_statement_promises_no_more_than_holds(delta: float) -> None:
    statement = PrivateClassifier(
        "output_perturbation", epsilon=1.0, delta=delta, classes=["no", "yes"], bounds=(-1, 1)
    )
    text = str(statement.fit(np.zeros((50, 2)), ["no", "yes"] * 25).privacy_)
    epsilon, printed = re.match(r"\((\S+), (\S+)\)-differential privacy", text).groups()  # type: ignore[union-attr]
    assert float(printed) >= delta and float(epsilon) >= statement.privacy_.epsilon
