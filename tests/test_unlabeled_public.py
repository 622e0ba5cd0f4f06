"""Public rows with labels, with some, and with none."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.frame_tools import NEW, PRIVATE, PUBLIC, pd

from sidelight import PrivateClassifier, PrivateRegressor
from sidelight.data.rows import PublicRows
from sidelight.errors import InputError
from sidelight.methods.public_whitening import Whitening
from sidelight.privacy.ledger import Ledger
from sidelight.tables import Schema, fit_tables

RNG = np.random.default_rng(0)
MIX = np.array([[1.0, 0.9, 0.0], [0.9, 1.0, 0.0], [0.0, 0.0, 0.02]])
X = RNG.normal(size=(3000, 3)) @ MIX
Y = np.where(X @ [1.0, -1.0, 30.0] + RNG.logistic(size=3000) / 4 > 0, "yes", "no")
X_PUBLIC, Y_PUBLIC, X_NEW, Y_NEW = X[:150], Y[:150], X[2000:], Y[2000:]
X, Y = X[150:2000], Y[150:2000]


def classifier(**options: Any) -> PrivateClassifier:
    return PrivateClassifier(**{"epsilon": 1.0, "random_state": 0} | options)


def test_rows_without_labels_are_better_than_none() -> None:
    bounds = (X_PUBLIC.min(axis=0), X_PUBLIC.max(axis=0))
    without = classifier(epsilon=0.3, classes=["no", "yes"], bounds=bounds).fit(X, Y)
    model = classifier(epsilon=0.3, classes=["no", "yes"]).fit(X, Y, X_PUBLIC)
    assert model.score(X_NEW, Y_NEW) > max(without.score(X_NEW, Y_NEW) - 0.01, 0.7)
    details = model.privacy_.details
    assert details["chosen"] == "public_whitening" and details["bounds_from"] == "public records"
    assert details["public_records"] == 0 and details["public_records_unlabeled"] == 150
    assert any("no labels" in note and "off" in note for note in details["notes"])
    assert "public_models" not in details and "comparison_share" not in details


@pytest.mark.parametrize("missing", [None, np.nan, pd.NA, "?"])
def test_some_labels_serve_and_the_other_rows_too(missing: Any) -> None:
    labels = Y_PUBLIC.astype(object)
    labels[60:] = missing
    model = classifier().fit(X, Y, X_PUBLIC, labels)
    details = model.privacy_.details
    assert details["public_records"] == 60 and details["public_records_unlabeled"] == 90
    assert model.score(X_NEW, Y_NEW) > 0.75
    assert (model._coordinates.bounds.upper == X_PUBLIC.max(axis=0)).all()


def test_second_moments_are_those_of_all_public_rows() -> None:
    rows = PublicRows(X_PUBLIC[:60], np.ones(60), X_PUBLIC[60:])
    np.testing.assert_array_equal(rows.every, X_PUBLIC)
    model = classifier(method="public_whitening", classes=["no", "yes"], trees=False)
    labels = Y_PUBLIC.astype(object)
    labels[60:] = None
    some, none = (model.fit(X, Y, X_PUBLIC, given).coef_ for given in (labels, None))
    assert np.isfinite(some).all() and np.isfinite(none).all()
    metric = Whitening.metric(X_PUBLIC, unit=True)
    assert not np.allclose(metric.matrix, Whitening.metric(X_PUBLIC[:60], unit=True).matrix)


def test_regression_without_public_targets() -> None:
    target = X @ [1.0, -1.0, 30.0]
    model = PrivateRegressor(epsilon=1.0, target_bounds=(-3, 3), random_state=0).fit(X, target, X_PUBLIC)
    assert model.privacy_.details["chosen"] == "public_whitening"
    assert model.score(X_NEW, X_NEW @ [1.0, -1.0, 30.0]) > 0.8


def test_what_needs_labels_is_refused_before_the_charge(tmp_path: Path) -> None:
    ledger = Ledger.create(tmp_path / "ledger")
    ledger.register("people", epsilon=3.0, delta=1e-5, relation="add-or-remove-one")
    options = {"ledger": ledger, "dataset": "people", "classes": ["no", "yes"]}
    for method in ("precision_weighting", "only_public", "ppsgd"):
        with pytest.raises(InputError, match="targets"):
            classifier(method=method, **options).fit(X, Y, X_PUBLIC)
    with pytest.raises(InputError, match="classes"):
        classifier(ledger=ledger, dataset="people").fit(X, Y, X_PUBLIC)
    with pytest.raises(InputError, match="y_public"):
        classifier(**options).fit(X, Y, None, Y_PUBLIC)
    labels = Y_PUBLIC.astype(object)
    labels[0] = "perhaps"
    with pytest.raises(InputError, match="perhaps"):
        classifier(**options).fit(X, Y, X_PUBLIC, labels)
    assert not ledger.charges("people")


# ---------------------------------------------------------------------------------------------------
# tables


FEW = PUBLIC.assign(sick=PUBLIC.sick.where(PUBLIC.index < 60))


def test_tables_without_a_target_column_give_the_model_of_estimators() -> None:
    features = PUBLIC.drop(columns="sick")
    model = fit_tables(PRIVATE, features, target="sick", classes=["no", "yes"], epsilon=2.0, random_state=0)
    assert model.scores == {} and model.data["public_records"] == len(PUBLIC)
    assert model.privacy_.details["classes_from"] == "declared"
    frames = classifier(epsilon=2.0, classes=["no", "yes"])
    frames.fit(PRIVATE.drop(columns="sick"), PRIVATE.sick, features)
    assert frames.schema_.interactions == model.schema.interactions
    np.testing.assert_array_equal(frames.coef_, model.estimator.coef_)
    assert (model.predict(NEW) == NEW.sick).mean() > 0.6


def test_tables_with_some_labels() -> None:
    model = fit_tables(PRIVATE, FEW, target="sick", epsilon=2.0, random_state=0, validation=0.0)
    frames = classifier(epsilon=2.0)
    frames.fit(PRIVATE.drop(columns="sick"), PRIVATE.sick, FEW.drop(columns="sick"), FEW.sick)
    np.testing.assert_array_equal(frames.coef_, model.estimator.coef_)
    assert model.schema == Schema.learn(FEW, "sick", classes=["no", "yes"]) or model.schema.interactions
    held = fit_tables(PRIVATE, FEW, target="sick", epsilon=2.0, random_state=0, validation=0.2)
    assert held.scores["rows"] == 12  # a fifth of the rows with labels


def test_a_table_without_targets_says_what_to_declare() -> None:
    with pytest.raises(InputError, match=r"classes=\[\.\.\.\]"):
        fit_tables(PRIVATE, PUBLIC.drop(columns="sick"), target="sick", epsilon=1.0)
    with pytest.raises(InputError, match=r"classes=\[\.\.\.\]"):
        fit_tables(PRIVATE, PUBLIC.assign(sick=None), target="sick", epsilon=1.0)
    with pytest.raises(InputError, match="one of"):
        fit_tables(PRIVATE, PUBLIC, target="sick", epsilon=1.0, classes=["a", "b"], target_bounds=(0, 1))
    with pytest.raises(InputError, match="'sick'"):
        fit_tables(PRIVATE, PUBLIC, target="sick", epsilon=1.0, classes=["no", "perhaps"])
    schema = Schema.learn(PUBLIC, "sick")
    with pytest.raises(InputError, match="declared there"):
        fit_tables(PRIVATE, PUBLIC, schema=schema, epsilon=1.0, classes=["no", "yes"])
    assert len(fit_tables(PRIVATE, PUBLIC.drop(columns="sick"), schema=schema, epsilon=1.0).predict(NEW))
