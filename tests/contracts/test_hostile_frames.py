"""No content of a private frame raises, warns, or changes a decision or another record: pandas and polars.

A frame is read through its schema. So whatever stands in one record, all other records are encoded to the
same numbers, there are as many, and schema, plan and statement are the same. Warnings are errors here.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tests.contracts.hostile import NOTHING, ODD, SECRET, pandas_values
from tests.frame_tools import PRIVATE, PUBLIC, classifier, pd, split

from sidelight.data import features
from sidelight.estimators.fit_records import SchemaRecords

EVERYTHING = {**NOTHING, **ODD, **pandas_values()}
ROWS = 160
AT = 2 * np.arange(len(EVERYTHING))  # fewer than half of the records


class Seen:
    """The records that a fit has read, and everything else that it tells."""

    def __init__(self, model: Any, table: Any) -> None:
        self.X, self.y, _ = table
        told = model.privacy_
        self.public = (
            told.to_dict()["events"], told.assumptions, {**told.details, "notes": None}, repr(model),
            model.schema_, model.features_, model.feature_names_in_.tolist(), model.classes_.tolist(),
            len(model.history_),
        )  # fmt: skip


@pytest.fixture
def fit(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any, Any], Seen]:
    honest, kept = SchemaRecords.encoded, []

    def read(self: SchemaRecords, room: int = 0) -> Any:
        kept.append(honest(self, room))
        return kept[-1]

    monkeypatch.setattr(SchemaRecords, "encoded", read)

    def run(X: Any, y: Any) -> Seen:
        with np.errstate(all="raise"):
            model = classifier(random_state=None, health_check=False).fit(X, y, *split(PUBLIC, "pandas"))
        assert np.isfinite(model.coef_).all()
        return Seen(model, kept[-1])

    return run


def private() -> tuple[Any, Any]:
    """Columns of objects: what pandas makes of a column with one odd cell, and polars can be made to."""
    X, y = split(PRIVATE[:ROWS], "pandas")
    return X.astype(object), y.astype(object)


def objects(values: list[Any], library: str) -> Any:
    """A column of a library that holds anything."""
    if library == "pandas":
        column = pd.Series([None] * len(values), dtype=object)
        for place, value in enumerate(values):
            column.array[place] = value
        return column
    return pytest.importorskip("polars").Series(values, dtype=pytest.importorskip("polars").Object)


def frame_of(columns: dict[str, list[Any]], library: str) -> Any:
    found = {name: objects(values, library) for name, values in columns.items()}
    return pd.DataFrame(found) if library == "pandas" else pytest.importorskip("polars").DataFrame(found)


def with_odd(values: list[Any], odd: list[Any]) -> list[Any]:
    """The column with these values in every second of its first records."""
    found = list(values)
    for place, value in zip(AT, odd, strict=False):
        found[place] = value
    return found


def assert_alone(clean: Seen, dirty: Seen, odd: int) -> None:
    """Only the odd records differ."""
    others = ~np.isin(np.arange(ROWS), AT[:odd])
    np.testing.assert_array_equal(dirty.X[others], clean.X[others])
    assert dirty.X.dtype == clean.X.dtype and dirty.X.shape == clean.X.shape
    assert dirty.y[others].tolist() == clean.y[others].tolist()
    assert np.isfinite(dirty.X).all() and dirty.public == clean.public


def check_objects(fit: Callable[[Any, Any], Seen], library: str, names: list[str]) -> None:
    X, y = private()
    columns = {name: X[name].tolist() for name in X.columns}
    clean = fit(frame_of(columns, library), objects(y.tolist(), library))
    dirty = {key: with_odd(values, [EVERYTHING[name]() for name in names]) for key, values in columns.items()}
    labels = with_odd(y.tolist(), [EVERYTHING[name]() for name in names])
    assert_alone(clean, fit(frame_of(dirty, library), objects(labels, library)), len(names))


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_any_object_in_a_frame_is_a_record_alone(fit: Callable[[Any, Any], Seen], library: str) -> None:
    check_objects(fit, library, list(EVERYTHING))


def test_no_object_in_a_frame_stops_a_prediction_or_changes_another() -> None:
    model = classifier(health_check=False).fit(*split(PRIVATE, "pandas"), *split(PUBLIC, "pandas"))
    X, _ = private()
    columns = {name: X[name].tolist() for name in X.columns}
    expected = model.decision_function(X)
    odd = [make() for make in EVERYTHING.values()]
    found = model.decision_function(
        frame_of({key: with_odd(values, odd) for key, values in columns.items()}, "pandas")
    )
    np.testing.assert_array_equal(np.delete(found, AT), np.delete(expected, AT))
    assert np.isfinite(found).all()


# ---------------------------------------------------------------------------------------------------
# seen red


def test_contract_catches_a_column_that_is_converted_as_a_whole(
    fit: Callable[[Any, Any], Seen], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a data frame's own conversion does: one text stops it."""
    monkeypatch.setattr(
        features, "as_number", lambda column: pd.to_numeric(pd.Series(column)).to_numpy(float)
    )
    with pytest.raises(ValueError, match=SECRET):
        check_objects(fit, "pandas", ["text"])


def test_contract_catches_gaps_that_are_filled_with_a_mean(
    fit: Callable[[Any, Any], Seen], monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = features._FILL["number"]

    def fill(out: Any, values: Any, column: Any) -> None:
        numbers = features.as_number(values)
        honest(
            out,
            pd.Series(np.where(np.isfinite(numbers), numbers, np.nanmean(np.clip(numbers, 0, 9)))),
            column,
        )

    monkeypatch.setitem(features._FILL, "number", fill)
    with pytest.raises(AssertionError, match="not equal"):
        check_objects(fit, "pandas", ["huge"])


def test_contract_catches_a_type_that_is_taken_from_the_private_frame(
    fit: Callable[[Any, Any], Seen], monkeypatch: pytest.MonkeyPatch
) -> None:
    from sidelight.data.schema import Column
    from sidelight.estimators import estimator_input

    honest = estimator_input.open_private

    def learn(X: Any, where: str) -> Any:
        table = honest(X, where)
        numeric = all(type(value) is int for value in X["age"])
        monkeypatch.setattr(
            estimator_input, "check_frame",
            lambda schema, _: schema.columns.update(age=Column("number", (0.0, 100.0 if numeric else 99.0))),
        )  # fmt: skip
        return table

    monkeypatch.setattr(estimator_input, "open_private", learn)
    with pytest.raises(AssertionError):
        check_objects(fit, "pandas", ["text"])
