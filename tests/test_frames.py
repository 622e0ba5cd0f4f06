"""Estimators on frames of pandas and polars: types, missing values, scikit-learn, the ledger."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sklearn
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import FunctionTransformer
from tests.frame_tools import (
    KINDS,
    LIBRARIES,
    NEW,
    PRIVATE,
    PUBLIC,
    classifier,
    fitted,
    mixed,
    pd,
    regressor,
    split,
    to_polars,
)

from sidelight.data.features import FeaturePlan
from sidelight.errors import DatasetMismatch, InputError, NotPrivateWarning
from sidelight.estimators import PrivateClassifier, PrivateRegressor
from sidelight.privacy.ledger import Ledger
from sidelight.tables import Schema, fit_tables

BOTH = pytest.mark.parametrize("library", LIBRARIES)


# ---------------------------------------------------------------------------------------------------
# columns


@BOTH
def test_every_type_of_column_is_recognized_and_learned_from(library: str) -> None:
    model = PrivateClassifier(epsilon=5.0, random_state=0).fit(
        *split(PRIVATE, library), *split(PUBLIC, library)
    )
    assert {name: column.kind for name, column in model.schema_.columns.items()} == KINDS
    assert model.schema_.target.name == "sick" and model.schema_.source == "learned from the public records"
    X, y = split(NEW, library)
    assert model.score(X, y) > max(np.mean(NEW.sick == "yes"), np.mean(NEW.sick == "no")) + 0.1
    shares = model.predict_proba(X)
    assert shares.shape == (400, 2) and ((shares[:, 1] > 0.5) == (model.predict(X) == "yes")).all()
    assert model.n_features_in_ == 13 and model.feature_names_in_.tolist() == list(KINDS)
    assert len(model.features_) == model.coef_.shape[1] and model.features_[0].startswith("age: ")


@pytest.mark.parametrize("column", [name for name, kind in KINDS.items() if kind != "ignore"])
@BOTH
def test_a_column_alone_is_what_tables_make_of_it(library: str, column: str) -> None:
    """The same encoding as that of `fit_tables`, whichever library holds it."""
    names = [*dict.fromkeys([column, "level"]), "sick"]  # with a category: numbers alone go without a schema
    tables = [frame[names] for frame in (PRIVATE, PUBLIC)]
    expected = fit_tables(*tables, target="sick", epsilon=5.0, delta=1e-6, method="only_public", validation=0)
    (X, y), (Xp, yp), (new, _) = (split(frame[names], library) for frame in (*tables, NEW))
    model = PrivateClassifier("only_public", epsilon=5.0, delta=1e-6).fit(X, y, Xp, yp)
    assert model.schema_.columns == expected.schema.columns
    np.testing.assert_allclose(model.coef_, expected.estimator.coef_, atol=1e-12)
    np.testing.assert_array_equal(model.predict(new), expected.predict(NEW))


def test_both_libraries_give_one_model() -> None:
    pytest.importorskip("polars")
    one = fitted("pandas")
    for private, public in (("polars", "polars"), ("polars", "pandas"), ("pandas", "polars")):
        other = classifier().fit(*split(PRIVATE, private), *split(PUBLIC, public))
        np.testing.assert_array_equal(other.coef_, one.coef_)
        np.testing.assert_array_equal(
            other.predict(split(NEW, private)[0]), one.predict(split(NEW, public)[0])
        )


def test_fit_tables_takes_frames_of_both() -> None:
    pytest.importorskip("polars")
    given: dict[str, Any] = {"target": "sick", "epsilon": 1.0, "method": "dp_sgd", "random_state": 0}
    one = fit_tables(PRIVATE, PUBLIC, **given)
    other = fit_tables(to_polars(PRIVATE), to_polars(PUBLIC), **given)
    np.testing.assert_array_equal(one.estimator.coef_, other.estimator.coef_)
    np.testing.assert_array_equal(one.predict(NEW), other.predict(to_polars(NEW)))
    assert one.scores == other.scores and one.schema == other.schema
    assert Schema.learn(to_polars(PUBLIC), "sick").columns == one.schema.columns


MISMATCHES: dict[str, Any] = {
    "numbers as texts": lambda frame: frame.assign(age=frame.age.astype(str), pay=frame.pay.astype(str)),
    "numbers as objects": lambda frame: frame.assign(age=frame.age.astype(object)),
    "whole numbers as floats": lambda frame: frame.assign(age=frame.age.astype(float)),
    "truth as words": lambda frame: frame.assign(insured=np.where(frame.insured, "Yes", "no")),
    "truth as numbers": lambda frame: frame.assign(insured=frame.insured.astype(np.int8)),
    "categories as texts": lambda frame: frame.assign(level=frame.level.astype(str)),
    "texts as categories": lambda frame: frame.assign(job=frame.job.astype("category")),
    "dates as texts": lambda frame: frame.assign(born=[str(day) for day in frame.born]),
    "dates as timestamps": lambda frame: frame.assign(born=pd.to_datetime(frame.born)),
    "codes without zeros": lambda frame: frame.assign(zip=frame.zip.astype(int)),
    "another order": lambda frame: frame[frame.columns[::-1]],
}


def test_a_private_column_of_gaps_alone_is_missing_whatever_pandas_calls_it() -> None:
    """With one value in it, it would be of objects: so its type must not decide."""
    models = []
    for gaps in (np.full(len(PRIVATE), np.nan), np.full(len(PRIVATE), None), pd.NA, ""):
        X, y = split(PRIVATE.assign(born=gaps, job=gaps, insured=gaps, pay=gaps, zip=gaps), "pandas")
        models.append(classifier(health_check=False).fit(X, y, *split(PUBLIC, "pandas")).coef_)
    for coef in models[1:]:
        np.testing.assert_array_equal(coef, models[0])


@BOTH
def test_unknown_categories_are_one_bucket_and_missing_values_another(library: str) -> None:
    model = fitted(library)
    names = ["king", "queen", None, None, "smith"]
    new = mixed(5).assign(job=pd.Series(names, dtype=object))
    for column in new.columns.drop("job"):
        new[column] = new[column].iloc[[4] * 5].to_numpy()
    scores = model.decision_function(split(new, library)[0])
    assert scores[0] == scores[1] and scores[2] == scores[3]
    assert len({scores[0], scores[2], scores[4]}) == 3


def test_missing_targets_are_null_records() -> None:
    expected = None
    for missing in (None, "maybe", np.nan, 7, [1]):
        y = pd.Series(PRIVATE.sick, dtype=object).copy()
        y.array[5] = missing
        coef = classifier().fit(split(PRIVATE, "pandas")[0], y, *split(PUBLIC, "pandas")).coef_
        np.testing.assert_array_equal(coef, coef if expected is None else expected)
        expected = coef


@BOTH
def test_numbers_to_predict(library: str) -> None:
    (X, _), (Xp, _), (new, _) = (split(frame, library) for frame in (PRIVATE, PUBLIC, NEW))
    y, yp, truth = (
        frame.age if library == "pandas" else to_polars(frame)["age"] for frame in (PRIVATE, PUBLIC, NEW)
    )
    model = PrivateRegressor(epsilon=20.0, random_state=0).fit(X, y, Xp, yp)
    assert model.schema_.target.bounds == (18.0, 79.0) and model.score(new, truth) > 0.9


@BOTH
def test_frames_of_numbers_give_the_model_of_fit_tables(library: str) -> None:
    """The same coordinates, public models and noise from both interfaces."""
    names = ["age", "children", "insured"]
    private, public = (frame[3:][[*names, "sick"]] for frame in (PRIVATE, PUBLIC))
    expected = fit_tables(private, public, target="sick", epsilon=2.0, validation=0.0, random_state=0)
    (X, y), (Xp, yp), (new, _) = (split(frame, library) for frame in (private, public, NEW[[*names, "sick"]]))
    model = PrivateClassifier(epsilon=2.0, random_state=0).fit(X, y, Xp, yp)
    assert model.feature_names_in_.tolist() == names and model.schema_ == expected.schema
    np.testing.assert_array_equal(model.coef_, expected.estimator.coef_)
    np.testing.assert_array_equal(model.predict_proba(new), expected.predict_proba(new))
    assert model.privacy_.details == expected.privacy_.details


def test_a_regression_of_numbers_gives_the_model_of_fit_tables() -> None:
    names = ["children", "insured", "age"]
    private, public = (frame[3:][names] for frame in (PRIVATE, PUBLIC))
    expected = fit_tables(private, public, target="age", epsilon=2.0, validation=0.0, random_state=0)
    X, Xp, new = (frame.drop(columns="age") for frame in (private, public, NEW[names]))
    model = PrivateRegressor(epsilon=2.0, random_state=0).fit(X, private.age, Xp, public.age)
    np.testing.assert_array_equal(model.predict(new), expected.predict(new))


# ---------------------------------------------------------------------------------------------------
# a schema that is declared, and what is refused


@pytest.mark.usefixtures("same_noise")
def test_a_declared_schema_needs_no_public_records(tmp_path: Path) -> None:
    schema = Schema.from_dict(Schema.learn(PUBLIC, "sick").to_dict())
    schema.write(tmp_path / "schema.json")
    X, y = split(PRIVATE, "pandas")
    one, two = (classifier(schema=given).fit(X, y) for given in (schema, tmp_path / "schema.json"))
    np.testing.assert_array_equal(one.coef_, two.coef_)
    assert one.schema_ == replace(schema, interactions=())  # no public rows, no products
    assert one.classes_.tolist() == ["no", "yes"]
    assert "the schema was declared without looking at the private records" in one.privacy_.assumptions
    assert two.privacy_.details["classes_from"] == "declared in schema.json"
    table = fit_tables(PRIVATE, schema=schema, epsilon=5.0, delta=1e-6, method=one.method, random_state=0)
    np.testing.assert_array_equal(table.estimator.coef_, one.coef_)


@pytest.mark.parametrize("labels", ["truth", "numbers"])
def test_labels_keep_their_type(labels: str, tmp_path: Path) -> None:
    kinds: dict[str, Any] = {"truth": bool, "numbers": np.int64}
    y, yp, truth = ((frame.sick == "yes").astype(kinds[labels]) for frame in (PRIVATE, PUBLIC, NEW))
    (X, _), (Xp, _), (new, _) = (split(frame, "pandas") for frame in (PRIVATE, PUBLIC, NEW))
    model = PrivateClassifier("only_public", epsilon=1.0).fit(X, y, Xp, yp)
    assert model.classes_.tolist() == [False, True] and model.score(new, truth) > 0.7
    schema = Schema.learn(PUBLIC.assign(sick=yp), "sick")
    declared = classifier(schema=schema).fit(X, y)
    assert declared.classes_.tolist() == model.classes_.tolist()
    model.save(tmp_path / "m")
    again = PrivateClassifier.load(tmp_path / "m")
    assert again.predict(new).tolist() == model.predict(new).tolist()


@BOTH
def test_a_mixed_frame_without_a_schema_is_refused_in_one_line(library: str) -> None:
    X, y = split(PRIVATE, library)
    for model in (classifier(classes=["no", "yes"]), classifier(classes=["no", "yes"], bounds=(0, 1))):
        with pytest.raises(InputError, match="y_public") as caught:
            model.fit(X, y)
        assert "\n" not in str(caught.value)


def test_bad_input_is_one_clear_error() -> None:
    (X, y), (Xp, yp) = split(PRIVATE, "pandas"), split(PUBLIC, "pandas")
    schema = Schema.learn(PUBLIC, "sick")
    ledger = Ledger.in_memory()
    ledger.register("people", relation="replace-one", epsilon=9.0, delta=1e-5)
    for match, fit in {
        "X lacks column 'age'": lambda m: m.fit(X.drop(columns="age"), y, Xp, yp),
        "X has column 'shoe', which the public table": lambda m: m.fit(X.assign(shoe=1), y, Xp, yp),
        "X_public lacks column 'age'": lambda m: m.set_params(schema=schema).fit(
            X, y, Xp.drop(columns="age"), yp
        ),
        "X_public must be one; it is a ndarray": lambda m: m.set_params(schema=schema).fit(
            X, y, Xp.to_numpy(), yp
        ),
        "two columns of one name": lambda m: m.fit(X.rename(columns={"age": "pay"}), y, Xp, yp),
        "leave out bounds": lambda m: m.set_params(bounds=(0, 1)).fit(X, y, Xp, yp),
        "schema= describes the columns of a frame": lambda m: m.set_params(schema=schema).fit(
            X.to_numpy(), y
        ),
        "not valid JSON|cannot be read": lambda m: m.set_params(schema="nowhere.json").fit(X, y),
        "the classes are not known": lambda m: m.fit(X, y, Xp),
        "X has no records": lambda m: m.fit(X[:0], y[:0], Xp, yp),
        "no rows to learn from": lambda m: m.fit(X, y, Xp[:0], yp[:0]),
        "one target for each row of X": lambda m: m.fit(X, y[:10], Xp, yp),
        "'age' of X_public is not a number in record 4": lambda m: m.set_params(schema=schema).fit(
            X, y, Xp.assign(age=[*Xp.age[:3], "old", *Xp.age[4:]]), yp
        ),
        "'born' of X is stored as number": lambda m: m.fit(
            X.assign(born=1).astype({"born": "Int64"}), y, Xp, yp
        ),
    }.items():
        with pytest.raises(InputError, match=match) as caught:
            fit(classifier(ledger=ledger))
        assert "\n" not in str(caught.value)
    with pytest.raises(InputError, match="take PrivateClassifier"):
        regressor(schema=schema).fit(X, PRIVATE.age)
    assert not ledger.charges("people")
    model = fitted()
    with pytest.raises(InputError, match="'age'"):
        model.predict(X.drop(columns="age"))
    with pytest.raises(InputError, match="frame"):
        model.predict(X.to_numpy())


def test_missing_values_in_a_public_frame_of_numbers_have_a_weight() -> None:
    numbers = PUBLIC[["age", "pay"]]
    model = classifier().fit(PRIVATE[["age", "pay"]], PRIVATE.sick, numbers, PUBLIC.sick)
    assert "pay: missing" in model.features_
    with pytest.raises(InputError, match="X_public"):
        classifier().fit(PRIVATE[["age", "pay"]].to_numpy(), PRIVATE.sick, numbers.to_numpy(), PUBLIC.sick)


def test_a_lazy_frame_is_refused() -> None:
    lazy = to_polars(PRIVATE).lazy()
    with pytest.raises(InputError, match=r"frame.collect\(\)"):
        classifier().fit(lazy, PRIVATE.sick, *split(PUBLIC, "pandas"))


# ---------------------------------------------------------------------------------------------------
# among others: scikit-learn, a ledger


@BOTH
def test_clone_pipeline_and_search(library: str) -> None:
    (X, y), (Xp, yp), (new, truth) = (split(frame, library) for frame in (PRIVATE, PUBLIC, NEW))
    model = classifier(schema=Schema.learn(PUBLIC, "sick"))
    copy = clone(model).set_params(epsilon=2.0)
    assert copy.schema == model.schema and copy.epsilon == 2.0 and not hasattr(copy, "schema_")
    assert copy.get_params()["schema"] is copy.schema

    same = Pipeline([("as it is", FunctionTransformer()), ("fit", classifier())])
    same.fit(X, y, fit__X_public=Xp, fit__y_public=yp)
    np.testing.assert_array_equal(same.predict(new), fitted(library).predict(new))

    with sklearn.config_context(enable_metadata_routing=True):
        routed = PrivateClassifier("only_public", epsilon=1.0).set_fit_request(X_public=True, y_public=True)
        search = GridSearchCV(routed, {"regularization": [0.01, 1.0]}, cv=2)
        with pytest.warns(NotPrivateWarning, match="covered"):
            search.fit(X, y, X_public=Xp, y_public=yp)
    assert search.score(new, truth) > 0.7 and search.best_estimator_.schema_.target.name == "sick"


@BOTH
def test_a_score_on_the_fitted_frame_is_warned_of(library: str) -> None:
    X, y = split(PRIVATE, library)
    with pytest.warns(NotPrivateWarning, match="score"):
        classifier().fit(X, y, *split(PUBLIC, library)).score(X, y)


def test_rows_are_read_after_the_charge(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> Any:
        raise OSError("the machine stops")

    for face in ("fit", "fit_tables"):
        ledger = Ledger.in_memory()
        ledger.register("people", relation="replace-one", epsilon=9.0, delta=1e-5)
        monkeypatch.setattr(FeaturePlan, "encode_private", fail)
        with pytest.raises(OSError, match="stops"):
            if face == "fit":
                fitted(ledger=ledger)
            else:
                fit_tables(
                    PRIVATE, PUBLIC, target="sick", epsilon=5.0, ledger=ledger, method=classifier().method
                )
        assert len(ledger.charges("people")) == 1


def test_a_ledger_knows_the_frame_in_both_libraries() -> None:
    pytest.importorskip("polars")
    ledger = Ledger.in_memory()
    ledger.register("people", relation="replace-one", epsilon=99.0, delta=1e-5)
    for library in LIBRARIES:
        fitted(library, ledger=ledger)
    assert len(ledger.charges("people")) == 2 and len(ledger.bindings("people")) == 1
    with pytest.raises(DatasetMismatch, match="590 records"):
        classifier(ledger=ledger).fit(*split(PRIVATE[10:], "polars"), *split(PUBLIC, "polars"))
