"""Several rows a person: estimators, tables, the ledger and the command."""

import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest

from sidelight import DatasetMismatch, InputError, Ledger, PrivateClassifier, PrivateRegressor
from sidelight.cli import main
from sidelight.data.private_tables import open_private
from sidelight.estimators.fit_records import persons_in
from sidelight.methods.dp_sgd import dp_sgd
from sidelight.tables import fit_tables

RNG = np.random.default_rng(0)
PERSONS, EACH = 300, 5


def visits(persons: int, seed: int, each: int = EACH) -> pd.DataFrame:
    """Rows of persons: two numbers, a category, an outcome."""
    rng = np.random.default_rng(seed)
    n = persons * each
    frame = pd.DataFrame(
        {
            "patient": [f"p{i // each}" for i in range(n)],
            "age": rng.integers(20, 90, n),
            "dose": rng.uniform(0, 1, n),
            "ward": rng.choice(["a", "b"], n),
        }
    )
    frame["better"] = np.where(frame.age / 70 + frame.dose + rng.normal(0, 0.3, n) > 1.3, "yes", "no")
    return frame


PRIVATE, PUBLIC = visits(PERSONS, 0), visits(10, 1)
X, y = PRIVATE.drop(columns="better"), PRIVATE.better
Xp, yp = PUBLIC.drop(columns="better"), PUBLIC.better


def fitted(frame: Any = X, targets: Any = y, **more: Any) -> PrivateClassifier:
    options = {"epsilon": 2.0, "delta": 1e-5, "unit": "patient", "random_state": 0, **more}
    return PrivateClassifier(**{"epsilon": 1.0, **options}).fit(frame, targets, Xp, yp)


def test_persons_are_counted_and_stated() -> None:
    model = fitted()
    statement = model.privacy_
    assert statement.unit == "patient" == statement.to_dict()["unit"]
    assert statement.details["private_records"] == PERSONS
    assert "all rows of a person (by patient)" in str(statement)
    assert str(PERSONS * EACH) not in json.dumps(statement.to_dict())  # the number of rows is not told
    assert "patient" not in model.features_
    assert (model.predict(X) == model.predict(X.drop(columns="patient"))).all()
    assert model.score(Xp, yp) > 0.7


@pytest.mark.parametrize("make", [pl.from_pandas, lambda frame: frame], ids=["polars", "pandas"])
def test_frames_of_numbers_name_persons_by_a_column(make: Any) -> None:
    columns = ["patient", "age", "dose"]
    whose = X[columns].assign(patient=X.patient.str[1:].astype(int))
    public = Xp[columns].assign(patient=0)
    model = PrivateClassifier(epsilon=2.0, unit="patient", random_state=0)
    model.fit(make(whose), y.to_numpy(), make(public), yp.to_numpy())
    assert model.privacy_.details["private_records"] == PERSONS
    assert list(model.schema_.used) == ["age", "dose"]
    assert len(model.predict(make(whose))) == len(X)


def test_arrays_come_with_names_beside_them() -> None:
    numbers, public = X[["age", "dose"]].to_numpy(float), Xp[["age", "dose"]].to_numpy(float)
    names = X.patient.tolist()
    models = [
        PrivateClassifier(epsilon=2.0, random_state=0).fit(numbers, y, public, yp, persons=given)
        for given in (names, np.array(names), X.patient, pl.Series(names))
    ]
    assert {model.privacy_.unit for model in models} == {"person"}
    assert {model.privacy_.details["private_records"] for model in models} == {PERSONS}
    for model in models[1:]:
        np.testing.assert_array_equal(model.coef_, models[0].coef_)
    with pytest.raises(InputError, match="each row"):
        PrivateClassifier(epsilon=1.0).fit(numbers, y, public, yp, persons=names[:3])
    with pytest.raises(InputError, match="vector"):
        PrivateClassifier(epsilon=1.0).fit(numbers, y, public, yp, persons="p1")


def test_a_column_that_is_not_there_is_named() -> None:
    with pytest.raises(InputError, match="'person_id'"):
        fitted(unit="person_id")
    with pytest.raises(InputError, match="'person_id'"):
        fit_tables(PRIVATE, PUBLIC, target="better", epsilon=1, unit="person_id")


def test_methods_with_a_proof_for_single_rows_refuse_before_the_charge() -> None:
    ledger = Ledger.in_memory()
    ledger.register("visits", relation="replace-one", epsilon=5, delta=1e-5)
    with pytest.raises(InputError, match="one row"):
        fitted(method="objective_perturbation", ledger=ledger)
    assert ledger.charges("visits") == []
    with pytest.raises(Exception, match="calibration"):
        fitted(calibration="private")


def test_a_ledger_keeps_persons_and_records_apart() -> None:
    ledger = Ledger.in_memory()
    ledger.register("visits", relation="replace-one", epsilon=9, delta=1e-5)
    fitted(ledger=ledger, relation="replace-one", epsilon=1.0)
    (binding,) = ledger.bindings("visits")
    assert "300 persons (by 'patient')" in binding.describe()
    fitted(ledger=ledger, relation="replace-one", epsilon=1.0)
    for rebound in (False, True):
        if rebound:
            ledger.rebind("visits")
        with pytest.raises(DatasetMismatch, match="'patient'"):
            PrivateClassifier(epsilon=1.0, relation="replace-one", ledger=ledger).fit(X, y, Xp, yp)
    assert len(ledger.charges("visits")) == 2
    assert ledger.charges("visits")[0].note == "fit on 300 persons (by patient)"


def test_tables_and_the_command_take_a_unit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, frame in (("private", PRIVATE), ("public", PUBLIC.drop(columns="patient"))):
        frame.to_csv(tmp_path / f"{name}.csv", index=False)
        frame.to_parquet(tmp_path / f"{name}.parquet")
    models = [
        fit_tables(source, public, target="better", epsilon=2, unit="patient", random_state=0)
        for source, public in (
            (PRIVATE, PUBLIC),
            (tmp_path / "private.csv", tmp_path / "public.csv"),
            (tmp_path / "private.parquet", tmp_path / "public.parquet"),
        )
    ]
    assert {model.privacy_.details["private_records"] for model in models} == {PERSONS}
    arguments = [
        "fit", str(tmp_path / "private.csv"), "--public", str(tmp_path / "public.csv"), "--target", "better",
        "--epsilon", "2", "--unit", "patient", "--out", str(tmp_path / "model"), "--seed", "0",
    ]  # fmt: skip
    assert main(arguments) == 0
    assert "300 private persons (by patient)" in capsys.readouterr().out
    page = (tmp_path / "model" / "report.html").read_text()
    assert "all rows of one person" in page and "1500" not in page and "1,500" not in page
    card = json.loads((tmp_path / "model" / "privacy.json").read_text())
    assert card["statement"]["unit"] == "patient"


def test_a_schema_must_not_use_the_column_that_names_persons() -> None:
    model = fit_tables(PRIVATE, PUBLIC, target="better", epsilon=2, random_state=0, ignore=["patient"])
    schema = model.schema
    again = fit_tables(PRIVATE, PUBLIC, schema=schema, epsilon=2, unit="patient", random_state=0)
    assert again.privacy_.unit == "patient"
    with pytest.raises(InputError, match="feature"):
        fit_tables(PRIVATE, PUBLIC, schema=schema, epsilon=2, unit="ward", random_state=0)


def test_regression_for_persons() -> None:
    target = X.age / 90 + RNG.normal(0, 0.05, len(X))
    public = Xp.age / 90
    model = PrivateRegressor(epsilon=3.0, unit="patient", random_state=0).fit(X, target, Xp, public)
    assert model.privacy_.details["private_records"] == PERSONS
    assert model.score(Xp, public) > 0.3


def test_a_person_with_very_many_rows_counts_as_one() -> None:
    """Twenty thousand rows of one person, all with the wrong label, do not turn the model."""
    many = visits(1, 5, each=20_000).assign(patient="one")
    many["better"] = np.where(many.better == "yes", "no", "yes")
    both = pd.concat([PRIVATE, many], ignore_index=True)
    scores = []
    for unit in ("patient", "record"):
        frame = both.drop(columns="better") if unit == "patient" else both.drop(columns=["better", "patient"])
        public = Xp if unit == "patient" else Xp.drop(columns="patient")
        model = PrivateClassifier(dp_sgd(steps=30), epsilon=8.0, unit=unit, random_state=0)
        model.fit(frame, both.better, public, yp)
        scores.append(model.score(public, yp))
    assert scores[0] > 0.7 > scores[1]


def test_the_number_of_rows_is_told_by_no_warning_and_no_error() -> None:
    """A score on as many rows as were fitted was warned of, with their number; so did a wrong length."""
    model = fitted()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.score(X.copy(), y)
    with pytest.raises(InputError) as raised:
        PrivateClassifier(epsilon=1.0).fit(X[["age", "dose"]], y, persons=np.arange(len(X) - 1))
    assert not any(character.isdigit() for character in str(raised.value))


@pytest.mark.parametrize("names", [[None] * len(X), [""] * len(X), np.full(len(X), np.nan)])
def test_rows_of_nobody_alone_are_one_clear_error(names: Any, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="person"):
        PrivateClassifier(epsilon=2.0).fit(X.drop(columns="patient"), y, Xp, yp, persons=names)
    PRIVATE.assign(patient=names).to_csv(tmp_path / "private.csv", index=False)
    with pytest.raises(InputError, match="person"):
        fit_tables(tmp_path / "private.csv", PUBLIC, target="better", epsilon=2.0, unit="patient")


def test_names_that_are_no_vector_are_refused() -> None:
    with pytest.raises(InputError, match="vector"):
        PrivateClassifier(epsilon=2.0).fit(X, y, Xp, yp, persons=np.ones((len(X), 2), dtype=int))


def test_a_column_called_record_is_a_feature() -> None:
    """`unit="record"` is the default, and names no column."""
    private, public = (frame[["age", "dose"]].rename(columns={"dose": "record"}) for frame in (X, Xp))
    model = PrivateClassifier(epsilon=2.0, random_state=0).fit(private, y, public, yp)
    assert model.n_features_in_ == 2 == len(model.schema_.used) and len(model.predict(private)) == len(X)
    tables = [frame.rename(columns={"dose": "record"}) for frame in (PRIVATE, PUBLIC)]
    assert "record" in fit_tables(*tables, target="better", epsilon=2.0, ignore=["patient"]).schema.used


@pytest.mark.parametrize("name", ["", "NA", "nan", " "])
@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_rows_without_a_name_are_nobodys_in_files_too(name: str, kind: str, tmp_path: Path) -> None:
    """In a file they were one person's, whoever they are."""
    path, some = (
        tmp_path / f"private.{kind}",
        PRIVATE.assign(patient=PRIVATE.patient.mask(PRIVATE.age > 80, name)),
    )
    some.to_csv(path, index=False) if kind == "csv" else some.to_parquet(path)
    persons = persons_in(open_private(path), "patient")
    assert (persons.codes[(PRIVATE.age > 80).to_numpy()] == -1).all()
    assert persons.count == some.patient[PRIVATE.age <= 80].nunique()


def test_unused_categories_are_no_persons(tmp_path: Path) -> None:
    """A part of a table, as Parquet, keeps the categories of the whole."""
    part = X.astype({"patient": "category"})[:200]
    part.to_parquet(tmp_path / "part.parquet")
    expected = part.patient.nunique()
    assert expected < part.patient.cat.categories.size
    for source in (tmp_path / "part.parquet", part, pl.from_pandas(part)):
        assert persons_in(open_private(source), "patient").count == expected


def test_errors_do_not_state_how_many_rows_persons_have() -> None:
    rows = f"{len(X):,}"
    numbers = X[["age", "dose"]]
    for targets in (y[1:], np.stack([y, y], axis=1), list(y)[1:]):
        named: dict[str, Any] = {"persons": X.patient}
        for model, features, more in (
            (PrivateClassifier(epsilon=1.0, unit="patient", delta=1e-5), X, {"X_public": Xp, "y_public": yp}),
            (
                PrivateClassifier(epsilon=1.0, bounds=(0, 90), classes=["no", "yes"], delta=1e-5),
                numbers,
                named,
            ),
        ):
            with pytest.raises(InputError) as caught:
                model.fit(features, targets, **more)
            message = str(caught.value)
            assert rows not in message and rows.replace(",", "") not in message
            assert str(len(X) - 1) not in message and f"{len(X) - 1:,}" not in message


def test_names_that_were_rounded_are_nobodys() -> None:
    """Of long numbers a float does not tell neighbors apart: two persons would be taken for one."""
    from sidelight.data.persons import persons_of

    long = [2**53 + k for k in range(4)]
    assert persons_of(long).count == persons_of([str(one) for one in long]).count == 4
    assert persons_of([float(one) for one in long]).codes.tolist() == [-1] * 4
    assert persons_of([7.0, "7", 7, 7 + 0j, 1 + 1j]).codes.tolist() == [0, 0, 0, 0, -1]
