"""The same records in every container: a record is read alone, and no type of a container has a say in it.

pandas and NumPy choose the type of a column by all of its values. One missing truth value makes objects of
them, one missing integer makes floats, one text makes texts, one complex number makes complex ones. None of
that may change how another record is read, nor anything that leaves a fit.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from sidelight.data.inputs import private_table, private_targets
from sidelight.data.persons import persons_of, private_names
from sidelight.data.rows import PrivateRows, contents
from sidelight.estimators import PrivateClassifier, PrivateRegressor
from sidelight.tables import Schema, fit_tables

pd = pytest.importorskip("pandas")
pl = pytest.importorskip("polars")
pa = pytest.importorskip("pyarrow")

RNG = np.random.default_rng(5)
N = 60
X = RNG.uniform(-1, 1, (N, 2))
UP = X.sum(axis=1) > 0
ODD = [None, np.nan, "perhaps", 1 + 2j, pd.NaT, [1], 10**400, b"\xff", -3, np.datetime64("2020-01-01")]


def containers(values: list[Any]) -> Iterator[tuple[str, Any]]:
    """Every container that holds these values, as each library makes it by itself or when it is asked to."""
    yield "list", list(values)
    yield "tuple", tuple(values)
    yield "objects", np.fromiter(values, dtype=object, count=len(values))
    makers: dict[str, Callable[[], Any]] = {
        "numpy": lambda: np.array(values),
        "series": lambda: pd.Series(values),
        "series of objects": lambda: pd.Series(values, dtype=object),
        "category": lambda: pd.Series(values).astype("category"),
        "nullable": lambda: pd.Series(values).convert_dtypes(),
        "arrow in pandas": lambda: pd.Series(values).convert_dtypes(dtype_backend="pyarrow"),
        "polars": lambda: pl.Series(values),
        "polars objects": lambda: pl.Series(values, dtype=pl.Object),
        "arrow": lambda: pa.array(values, from_pandas=True),
        "masked": lambda: np.ma.masked_array(np.array(values), mask=False),
        "complex": lambda: np.array(values, dtype=complex),
        "complex series": lambda: pd.Series(np.array(values, dtype=complex)),
    }
    for name, make in makers.items():
        try:
            made = make()
        except (TypeError, ValueError, OverflowError, NotImplementedError, pa.ArrowException):
            continue  # this library has no such container
        if np.ndim(made) == 1:
            yield name, made


def spelt(kind: str) -> dict[str, list[Any]]:
    """The labels of UP in the spellings that one schema allows."""
    truths = {
        "bool": UP.tolist(),
        "np.bool_": list(UP),
        "int": UP.astype(int).tolist(),
        "float": UP.astype(float).tolist(),
        "words": [str(one) for one in UP],
        "small": [str(one).lower() for one in UP],
        "mixed": [bool(one) if i % 2 else str(one) for i, one in enumerate(UP)],
    }
    numbers = {
        "int": np.where(UP, 7, 3).tolist(),
        "float": np.where(UP, 7.0, 3.0).tolist(),
        "text": np.where(UP, "7", "3.0").tolist(),
        "mixed": [7 if one else "3" for one in UP],
    }
    texts = {
        "text": np.where(UP, "yes", "NA").tolist(),
        "bytes": np.where(UP, b"yes", b"no").tolist(),
    }
    return {
        "truths": truths,
        "01": truths,
        "01 as texts": truths,
        "numbers": numbers,
        "numerals": numbers,
        "texts": texts,
    }[kind]


CLASSES: dict[str, list[Any]] = {
    "01 as texts": ["0", "1"],
    "truths": ["False", "True"],
    "01": [0, 1],
    "numbers": [3, 7],
    "numerals": ["3", "7"],
    "texts": ["NA", "yes"],
}


def schema(classes: list[Any]) -> Schema:
    number = {"type": "number", "bounds": [-1, 1]}
    target = {"name": "y", "task": "classification", "classes": classes}
    return Schema.from_dict({"sidelight_schema": 1, "target": target, "columns": {"a": number, "b": number}})


def fitted(y: Any, classes: list[Any], how: str, rows: Any = X) -> PrivateClassifier:
    options: dict[str, Any] = {"epsilon": 100.0, "delta": 1e-5, "random_state": 7}
    if how == "schema":
        frame = pd.DataFrame(X, columns=["a", "b"])
        return PrivateClassifier(
            "output_perturbation", schema=schema(classes), **{"epsilon": 1.0, **options}
        ).fit(frame, y)
    return PrivateClassifier(
        "output_perturbation", bounds=(-1, 1), classes=classes, **{"epsilon": 1.0, **options}
    ).fit(rows, y)


def predicted(model: Any) -> Any:
    return model.predict(X if model.schema_ is None else pd.DataFrame(X, columns=["a", "b"]))


def outside(model: Any) -> tuple[Any, ...]:
    known = getattr(model, "classes_", np.empty(0))
    return known.tolist(), str(known.dtype), predicted(model).dtype, model.privacy_.to_dict(), model.history_


@pytest.mark.parametrize("how", ["schema", "classes"])
@pytest.mark.parametrize("kind", ["truths", "01", "01 as texts", "numbers", "numerals"])
def test_labels_are_read_alike_in_every_container_and_spelling(kind: str, how: str) -> None:
    expected = fitted(next(iter(spelt(kind).values())), CLASSES[kind], how)
    assert np.abs(expected.coef_).max() > 0.1  # something was learned, so something was read
    for spelling, values in spelt(kind).items():
        for name, y in containers(values):
            found = fitted(y, CLASSES[kind], how)
            assert found.coef_.tolist() == expected.coef_.tolist(), f"{spelling} in {name}"
            assert outside(found) == outside(expected), f"{spelling} in {name}"


@pytest.mark.parametrize("how", ["schema", "classes"])
@pytest.mark.parametrize("kind", ["truths", "01", "01 as texts", "numbers", "numerals"])
def test_one_odd_label_changes_no_other(kind: str, how: str) -> None:
    values = next(iter(spelt(kind).values()))
    whole = np.array(values, dtype=object)
    whole[4] = None
    expected = fitted(whole, CLASSES[kind], how)
    for odd in ODD:
        for name, y in containers([odd if i == 4 else value for i, value in enumerate(values)]):
            found = fitted(y, CLASSES[kind], how)
            assert found.coef_.tolist() == expected.coef_.tolist(), f"{odd!r} in {name}"
            assert outside(found) == outside(expected), f"{odd!r} in {name}"


def test_masked_labels_and_names_are_missing() -> None:
    hidden = np.arange(N) == 4
    masked = np.ma.masked_array(UP, mask=hidden)
    gap = np.where(hidden, None, UP.astype(object))
    found, expected = (fitted(y, CLASSES["truths"], "classes") for y in (masked, gap))
    assert found.coef_.tolist() == expected.coef_.tolist()
    names = np.ma.masked_array(np.arange(N) // 3, mask=hidden)
    assert persons_of(private_names(names)).codes[4] == -1


def test_a_class_may_be_called_like_a_missing_value() -> None:
    model = fitted(spelt("texts")["text"], CLASSES["texts"], "classes")
    assert np.mean(predicted(model) == np.where(UP, "yes", "NA")) > 0.8


def test_a_missing_boolean_label_leaves_the_accuracy_alone() -> None:
    y = pd.Series(UP)
    gap = y.astype(object)
    gap[4] = None
    for labels in (y, gap):
        model = fitted(labels, CLASSES["truths"], "schema")
        assert model.classes_.tolist() == [False, True] and model.classes_.dtype == bool
        assert np.mean(predicted(model) == UP) > 0.8


@pytest.mark.parametrize("odd", ODD, ids=repr)
def test_one_odd_target_changes_no_other(odd: Any) -> None:
    def read(y: Any) -> list[float]:
        return private_targets(y, rows=N, real=True).tolist()

    values = np.round(3 * X[:, 0], 3).tolist()
    expected = [value for i, value in enumerate(values) if i != 4]
    for some in (values, [odd if i == 4 else value for i, value in enumerate(values)]):
        for name, y in containers(some):
            if getattr(y, "dtype", None) is not None and getattr(y.dtype, "kind", "O") == "M":
                continue
            found = read(y)
            assert [value for i, value in enumerate(found) if i != 4] == expected, name


def tables(rows: list[list[Any]]) -> Iterator[tuple[str, Any]]:
    yield "lists", [list(row) for row in rows]
    yield "array", np.array(rows)
    yield "objects", np.array(rows, dtype=object)
    yield "frame", pd.DataFrame(rows)
    yield "nullable frame", pd.DataFrame(rows).convert_dtypes()
    yield "frame of objects", pd.DataFrame(rows, dtype=object)
    if all(isinstance(value, int | float | complex) for row in rows for value in row):
        yield "sparse", sp.csr_array(np.array(rows))
        yield "sparse columns", sp.csc_array(np.array(rows))


@pytest.mark.parametrize("odd", [None, np.nan, "perhaps", "0.25", 1 + 2j, 1j, True], ids=repr)
def test_one_odd_feature_changes_no_other(odd: Any) -> None:
    rows = X.tolist()
    rows[4][1] = odd
    rest = [i for i in range(N) if i != 4]
    for name, table in tables(rows):
        found = private_table(table)
        dense = found.toarray() if sp.issparse(found) else found
        assert dense.dtype == np.float64 and dense[rest].tolist() == X[rest].tolist(), name


@pytest.mark.parametrize("odd", [None, np.nan, "perhaps", "", b"\xff", 0.5], ids=repr)
def test_one_odd_value_leaves_truth_values_as_they_are(odd: Any) -> None:
    """Beside a text, NumPy makes texts of them, and so does polars in other letters."""
    rows = [[bool(up), i] for i, up in enumerate(UP)]
    rest = [i for i in range(N) if i != 4]
    values = [odd if i == 4 else up for i, (up, _) in enumerate(rows)]
    for name, table in tables([[value, i] for i, value in enumerate(values)]):
        found = private_table(table)
        dense = found.toarray() if sp.issparse(found) else found
        assert dense[rest].tolist() == np.array(rows, dtype=float)[rest].tolist(), name
    for name, y in [*containers(values), ("polars by force", pl.Series(values, strict=False))]:
        assert private_targets(y, rows=N, real=True)[rest].tolist() == UP[rest].tolist(), name


def test_a_long_double_of_a_sparse_matrix_is_read_in_silence() -> None:
    rows = X.astype(np.longdouble)
    rows[4, 1] = np.longdouble("1e4000")
    for make in (sp.csr_array, sp.csc_array, sp.coo_array):
        fitted(UP, CLASSES["truths"], "classes", make(rows))
        for table in (make(rows), private_table(make(rows))):
            found = contents(PrivateRows(table, np.ones(N), max_norm=1.0))
            assert found.null.tolist() == [i == 4 for i in range(N)]


@pytest.mark.parametrize("odd", [None, np.nan, "somebody", 1 + 2j, pd.NaT, 3.5], ids=repr)
def test_one_odd_name_changes_nobody_else(odd: Any) -> None:
    names = [i // 3 for i in range(N)]
    names[4] = odd
    rest = np.arange(N) != 4
    expected = persons_of([i // 3 for i in range(N)]).codes[rest]
    for name, given in containers(names):
        codes = persons_of(private_names(given)).codes[rest]
        _, first, again = np.unique(codes, return_index=True, return_inverse=True)
        assert (codes >= 0).all() and np.argsort(np.argsort(first))[again].tolist() == expected.tolist(), name


# ---------------------------------------------------------------------------------------------------
# columns of a table that is read through a schema

COLUMNS: dict[str, dict[str, Any]] = {
    "number": {"type": "number", "bounds": [-1, 1], "knots": [0]},
    "whole": {"type": "number", "bounds": [0, 9]},
    "category": {"type": "category", "categories": ["1", "2"]},
    "float32": {"type": "category", "categories": ["0.1", "0.7"]},
    "truth": {"type": "boolean"},
    "truth as category": {"type": "category", "categories": ["True", "False"]},
    "code": {"type": "code", "digits": 4, "prefix": 2, "categories": ["00", "12"]},
    "date": {"type": "date", "bounds": ["2019-01-01", "2024-12-31"]},
    "zoned": {"type": "date", "bounds": ["2019-01-01", "2024-12-31"], "parts": ["position", "hour"]},
    "calendar": {"type": "date", "bounds": ["2019-01-01", "2024-12-31"]},
    "moment as category": {"type": "category", "categories": ["2020-03-01"]},
    "text": {"type": "text", "encoder": "hashed"},
    "day": {"type": "date", "bounds": ["2019-01-01", "2024-12-31"], "format": "yearmonthday"},
}
MOMENTS = pd.date_range("2020-03-01", periods=N, freq="1234567891011ns")
VALUES: dict[str, list[Any]] = {
    "number": X[:, 0].tolist(),
    "whole": [i % 10 for i in range(N)],
    "category": [1 + i % 3 for i in range(N)],
    "float32": list(np.array([0.1, 0.7, 0.3], dtype=np.float32)[np.arange(N) % 3]),
    "truth": UP.tolist(),
    "truth as category": UP.tolist(),
    "code": [(17, 1234, 5)[i % 3] for i in range(N)],
    "date": list(MOMENTS),
    "zoned": list(MOMENTS.tz_localize("Europe/Vienna")),
    "calendar": list(MOMENTS.date),
    "moment as category": list(pd.date_range("2020-03-01", periods=N)),
    "text": [f"word {i % 7}" if i % 3 else i for i in range(N)],
    "day": [20200101 + i % 28 for i in range(N)],
}


def encoded(kind: str, column: Any) -> Any:
    from sidelight.data.features import FeaturePlan
    from sidelight.data.private_tables import open_private

    target = {"name": "y", "task": "regression", "bounds": [0, 1]}
    known = Schema.from_dict({"sidelight_schema": 1, "target": target, "columns": {"x": COLUMNS[kind]}})
    table = column if isinstance(column, str | Path) else type_of_frame(column)({"x": column})
    X, _, misfits = FeaturePlan(known).encode_private(open_private(table), targets=False)
    return np.hstack([X, misfits]).tolist()


def type_of_frame(column: Any) -> Any:
    return pl.DataFrame if isinstance(column, pl.Series) else pd.DataFrame


@pytest.mark.parametrize("kind", COLUMNS)
def test_columns_are_read_alike_in_every_container(kind: str) -> None:
    expected = encoded(kind, pd.Series(VALUES[kind], dtype=object))
    for name, column in containers(VALUES[kind]):
        if name in ("arrow", "masked"):
            column = pd.Series(column)
        assert encoded(kind, column) == expected, name


@pytest.mark.parametrize("kind", COLUMNS)
def test_one_odd_value_changes_no_other_row(kind: str) -> None:
    expected = encoded(kind, pd.Series(VALUES[kind], dtype=object))
    rest = [i for i in range(N) if i != 4]
    for odd in ODD:
        values = [odd if i == 4 else value for i, value in enumerate(VALUES[kind])]
        for name, column in containers(values):
            if name in ("arrow", "masked"):
                column = pd.Series(column)
            found = encoded(kind, column)
            assert [found[i] for i in rest] == [expected[i] for i in rest], f"{odd!r} in {name}"


@pytest.mark.parametrize("values", [[1, 2], [True, False], [pd.Timestamp("2020-01-01")] * 2, [1.5, 2]])
@pytest.mark.parametrize("kind", COLUMNS)
def test_no_type_that_pandas_chooses_is_refused(kind: str, values: list[Any]) -> None:
    """One missing or odd value changes it, and would decide between an error and none."""
    from sidelight.data.frames import check_storage
    from sidelight.data.private_tables import open_private

    target = {"name": "y", "task": "regression", "bounds": [0, 1]}
    known = Schema.from_dict({"sidelight_schema": 1, "target": target, "columns": {"x": COLUMNS[kind]}})
    for column in (values, [*values, None], [*values, "perhaps"], [*values, 1j]):
        table = open_private(pd.DataFrame({"x": column}))
        check_storage(known, table.stored, "X", target=False)


def test_labels_of_a_table_are_read_alike_in_files_and_frames(tmp_path: Path) -> None:
    frame = pd.DataFrame({"a": X[:, 0], "b": X[:, 1], "y": UP})
    words = frame.assign(y=np.where(UP, "TRUE", "false"))
    numbers = frame.assign(y=UP.astype(float))
    gap = frame.astype({"y": object})
    for i, one in enumerate((frame, words, numbers)):
        one.to_csv(tmp_path / f"{i}.csv", index=False)
        one.to_parquet(tmp_path / f"{i}.parquet")
    files = [str(path) for path in tmp_path.iterdir()]
    options: dict[str, Any] = {"schema": schema(CLASSES["truths"]), "epsilon": 5.0, "delta": 1e-5}
    found = [
        fit_tables(source, method="output_perturbation", random_state=7, **options).estimator
        for source in (frame, words, numbers, gap, pl.from_pandas(frame), *files)
    ]
    assert np.abs(found[0].coef_).max() > 0.1
    assert {tuple(one.coef_.ravel().tolist()) for one in found} == {tuple(found[0].coef_.ravel().tolist())}
    assert {str(one.classes_.tolist()) for one in found} == {"['False', 'True']"}


def test_a_regression_reads_its_targets_alone() -> None:
    model = PrivateRegressor(
        "dp_sgd", epsilon=1.0, bounds=(-1, 1), target_bounds=(-1, 1), delta=1e-5, random_state=3
    )
    plain, odd = X[:, 0].copy(), X[:, 0].astype(complex)
    plain[4], odd[4] = np.nan, 1j
    expected = model.fit(X, plain).coef_.tolist()
    texts = np.array([str(value) for value in plain])
    for y in (odd, texts, pd.Series(odd), list(odd)):
        assert model.fit(X, y).coef_.tolist() == expected


@pytest.mark.parametrize("kind", ["frame", "zoned frame", "array"])
def test_dates_among_numbers_are_no_numbers_whatever_stands_beside_them(kind: str) -> None:
    """One odd text makes objects of a column of dates: neither is an error, which would tell of it."""
    moments = pd.Series(pd.date_range("2020-03-01", periods=4, tz="UTC" if kind == "zoned frame" else None))
    odd = moments.astype(object)
    odd[3] = "odd"
    for column in (moments, odd):
        frame = pd.DataFrame({"a": column, "b": column})
        found = private_table(frame.to_numpy() if kind == "array" else frame)
        assert found.dtype == np.float64 and np.isnan(found).all()
