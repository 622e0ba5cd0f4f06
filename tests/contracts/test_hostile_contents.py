"""No content of a private record raises, warns, or changes what another record becomes or how many there are.

Every method, and every way in: lists, arrays, frames, sparse matrices, files, networks. A record of nothing
usable is a null record, so a fit on hostile records equals, bit for bit, a fit on null ones. Warnings are
errors in these tests.
"""

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.contracts.cases import CASES, Case
from tests.contracts.hostile import NOTHING, ODD, SECRET, pandas_values
from tests.data.whole_tables import private_frame

from sidelight.data.inputs import private_table, private_targets
from sidelight.data.targets import resolve_classes
from sidelight.data.values import as_number, as_text, number_of
from sidelight.estimators import PrivateClassifier, PrivateRegressor

pd = pytest.importorskip("pandas")
EVERYTHING = {**NOTHING, **pandas_values()}
HOSTILE = list(EVERYTHING)
RNG = np.random.default_rng(0)
N, P = 3 * len(HOSTILE), 3
X = RNG.uniform(-1, 1, (N, P))
Y = np.where(X @ np.ones(P) > 0, "yes", "no")
PUBLIC = RNG.uniform(-1, 1, (12, P))
Y_PUBLIC = np.array(["no", "yes"] * 6)
AT = 3 * np.arange(len(HOSTILE))  # every third record has a hostile feature, its neighbor a hostile label


def features(*, hostile: bool) -> Any:
    found = X.astype(object)
    for place, name in zip(AT, HOSTILE, strict=True):
        found[place, place % P] = EVERYTHING[name]() if hostile else np.nan
    return found


def labels(*, hostile: bool) -> Any:
    found = Y.astype(object)
    for place, name in zip(AT + 1, HOSTILE, strict=True):
        found[place] = EVERYTHING[name]() if hostile else None
    return found


def numbers(*, hostile: bool) -> Any:
    found = X[:, 0].astype(object)
    for place, name in zip(AT + 1, HOSTILE, strict=True):
        found[place] = EVERYTHING[name]() if hostile else None
    return found


def forms(table: Any) -> Iterator[Any]:
    """The same records in every container that can hold anything."""
    yield table
    yield [list(row) for row in table]
    yield [tuple(row) for row in table]
    yield tuple(row for row in table)


def classifier(method: Any = "output_perturbation", **changes: Any) -> PrivateClassifier:
    options = {"bounds": (-1, 1), "classes": ["no", "yes"], "delta": 1e-5, "random_state": 7, **changes}
    return PrivateClassifier(method, **{"epsilon": 1.0, **options})


def regressor(method: Any = "dp_sgd", **changes: Any) -> PrivateRegressor:
    options = {"bounds": (-1, 1), "target_bounds": (-1, 1), "delta": 1e-5, "random_state": 7, **changes}
    return PrivateRegressor(method, **{"epsilon": 1.0, **options})


def state(model: Any) -> tuple[Any, ...]:
    return model.coef_.tolist(), model.history_, model.privacy_.to_dict()


@pytest.mark.filterwarnings("ignore::sidelight.errors.RecordsWarning")  # by a noisy count, which is released
@pytest.mark.parametrize("case", CASES, ids=str)
def test_every_method_takes_hostile_records_for_null_ones(case: Case) -> None:
    if case.loss == "square":
        found = [
            regressor(case.make(), relation=case.relation).fit(
                features(hostile=hostile), numbers(hostile=hostile), PUBLIC, PUBLIC[:, 0]
            )
            for hostile in (True, False)
        ]
    else:
        found = [
            classifier(case.make(), relation=case.relation).fit(
                features(hostile=hostile), labels(hostile=hostile), PUBLIC, Y_PUBLIC
            )
            for hostile in (True, False)
        ]
    assert np.isfinite(found[0].coef_).all()
    assert state(found[0]) == state(found[1])


def test_every_container_takes_hostile_records_for_null_ones() -> None:
    expected = state(classifier().fit(features(hostile=False).astype(float), labels(hostile=False)))
    for table in forms(features(hostile=True)):
        for targets in (labels(hostile=True), list(labels(hostile=True)), tuple(labels(hostile=True))):
            assert state(classifier().fit(table, targets)) == expected
    series = pd.Series(list(labels(hostile=True)), dtype=object)
    assert state(classifier().fit(features(hostile=True), series)) == expected


def test_every_regression_takes_hostile_targets_for_null_ones() -> None:
    def fit(table: Any, targets: Any) -> Any:
        return state(regressor().fit(table, targets))

    expected = fit(features(hostile=False), numbers(hostile=False).astype(float))
    for table in forms(features(hostile=True)):
        for targets in (numbers(hostile=True), list(numbers(hostile=True))):
            assert fit(table, targets) == expected


@pytest.mark.parametrize("name", [*HOSTILE, *ODD])
def test_a_value_is_read_alone_without_a_word(name: str) -> None:
    """Also where NumPy is told to raise, as a float, as a text, and beside values of every kind."""
    make = {**EVERYTHING, **ODD}[name]
    usual = [1, 2.5, "3", True, None, "Wien"]
    column = pd.Series([*usual, None], dtype=object)
    column.array[-1] = make()
    with np.errstate(all="raise"):
        assert isinstance(number_of(make()), float)
        for read in (as_number, as_text):
            found = read(column)
            assert len(found) == len(usual) + 1
            assert repr(list(found[:-1])) == repr(list(read(pd.Series(usual, dtype=object))))


ANY = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(), st.floats(), st.text(st.characters(), max_size=4),
        st.binary(max_size=3), st.decimals(allow_nan=True), st.fractions(), st.complex_numbers(),
        st.datetimes(), st.sampled_from(["no", "yes"]),
        st.sampled_from(HOSTILE).map(lambda name: EVERYTHING[name]()),
    ),
    lambda inner: st.lists(inner, max_size=2) | st.tuples(inner) | st.fixed_dictionaries({"a": inner}),
    max_leaves=3,
)  # fmt: skip


@given(st.lists(ANY, min_size=1, max_size=5))
@settings(max_examples=100)
def test_any_value_becomes_what_it_becomes_alone(values: list[Any]) -> None:
    known = resolve_classes(["no", "yes"], None, None, loss=None)
    column = np.fromiter(values, dtype=object, count=len(values))
    table = private_table([[one, 0.5] for one in values])
    most, rows = len(values) + 1, 2 * len(values) + 1  # if most targets were rows, they would be a column
    places = known.index(private_targets([*values, *["no"] * most], rows=rows, real=False))
    targets = private_targets([*values, *[1] * most], rows=rows, real=True)
    numbers, texts = as_number(pd.Series(column, dtype=object)), as_text(pd.Series(column, dtype=object))
    for i, one in enumerate(values):
        alone = np.fromiter([one], dtype=object, count=1)
        assert repr(table[i, 0]) == repr(targets[i]) == repr(numbers[i]) == repr(np.float64(number_of(one)))
        assert repr(places[i]) == repr(known.index(alone)[0])
        assert texts[i] == as_text(pd.Series(alone, dtype=object))[0]


@pytest.mark.parametrize("name", ODD)
def test_odd_numbers_stay_numbers_and_spoil_no_fit(name: str) -> None:
    table, targets = X.astype(object), X[:, 0].astype(object)
    table[3, 1] = targets[4] = ODD[name]()
    with np.errstate(all="raise"):
        for form in forms(table):
            assert np.isfinite(classifier().fit(form, Y).coef_).all()
            model = PrivateRegressor(
                "rsgd_ar", epsilon=1.0, bounds=(-1, 1), target_bounds=(-1e-300, 1e-300), delta=1e-5
            )
            assert np.isfinite(model.fit(form, list(targets)).coef_).all()


# ---------------------------------------------------------------------------------------------------
# typed containers


@pytest.mark.usefixtures("same_noise")  # dense and sparse sums are added up in another order
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e308, 5e-324, -0.0])
@pytest.mark.parametrize("form", [sp.csr_array, sp.csc_array, sp.coo_array, sp.lil_array, sp.csr_matrix])
def test_sparse_records_of_any_structure_are_read_one_by_one(form: Any, value: float) -> None:
    """Duplicates, explicit zeros, unsorted indices and values that are none, in one record of many."""
    dense = np.where(X > 0.2, X, 0.0)
    dense[5] = [value, 0.5, 0.25]
    table = form(dense)
    if form is sp.csr_array:
        table = _untidy(table, row=5)
    with np.errstate(all="raise"):
        found = classifier(center="zero").fit(table, Y)
    expected = classifier(center="zero").fit(dense, Y)
    np.testing.assert_allclose(found.coef_, expected.coef_, rtol=1e-12)


def _untidy(table: Any, row: int) -> Any:
    """The same matrix, with one row reversed, its last entry cut in two and a zero stored beside it."""
    start, stop = table.indptr[row], table.indptr[row + 1]
    columns, values = table.indices[start:stop][::-1], table.data[start:stop][::-1]
    columns = np.concatenate([columns, columns[:1], columns[:1]])
    values = np.concatenate([values[:1] / 2, values[1:], values[:1] / 2, [0.0]])
    data = np.concatenate([table.data[:start], values, table.data[stop:]])
    indices = np.concatenate([table.indices[:start], columns, table.indices[stop:]])
    pointers = table.indptr + np.where(np.arange(len(table.indptr)) > row, len(values) - (stop - start), 0)
    return sp.csr_array((data, indices, pointers), shape=table.shape)


KINDS = [
    "float64",
    "Float64",
    "Int64",
    "boolean",
    "double[pyarrow]",
    "int64[pyarrow]",
    "bool[pyarrow]",
    "float16",
]


@pytest.mark.parametrize("kind", KINDS)
def test_a_gap_in_a_column_of_any_type_is_a_null_record(kind: str) -> None:
    whole = (X[:, 0] > 0).astype(int)
    frame = pd.DataFrame(
        {"a": X[:, 0], "b": pd.Series(whole).astype(kind), "c": X[:, 2].astype(np.longdouble)}
    )
    gap = frame.copy()
    gap.loc[7, "b"] = np.nan if kind in ("float64", "float16") else pd.NA
    plain = np.column_stack([X[:, 0], whole, X[:, 2]]).astype(float)
    plain[7] = np.nan
    assert state(classifier().fit(gap, Y))[0] == state(classifier().fit(plain, Y))[0]


@pytest.mark.parametrize("kind", ["object", "str", "string[pyarrow]", "category"])
def test_a_gap_in_labels_of_any_type_is_a_null_record(kind: str) -> None:
    targets = pd.Series(Y.astype(object)).astype(kind)
    targets[4] = None
    expected = Y.astype(object)
    expected[4] = None
    assert state(classifier().fit(X, targets)) == state(classifier().fit(X, expected))


def test_masked_values_are_missing() -> None:
    masked = np.ma.array(X, mask=np.arange(N * P).reshape(N, P) == 12)
    gap = X.copy()
    gap[4, 0] = np.nan
    assert state(classifier().fit(masked, Y)) == state(classifier().fit(gap, Y))
    np.testing.assert_array_equal(private_table(list(masked)), gap)


# ---------------------------------------------------------------------------------------------------
# tables


def frame(column: Any, target: Any) -> Any:
    return pd.DataFrame(
        {
            "x": pd.Series(list(column), dtype=object),
            "t": pd.Series(list(column), dtype=object),
            "y": pd.Series(list(target), dtype=object),
        }
    )


def schema() -> Any:
    from sidelight.tables import Schema

    return Schema.from_dict(
        {
            "sidelight_schema": 1,
            "target": {"name": "y", "task": "classification", "classes": ["no", "yes"]},
            "columns": {
                "x": {"type": "number", "bounds": [-1, 1]},
                "t": {"type": "category", "categories": ["1", "Wien"]},
            },
        }
    )


def test_tables_take_hostile_records_without_a_word() -> None:
    from sidelight.tables import fit_tables

    def fit(private: Any) -> Any:
        return fit_tables(
            private, schema=schema(), epsilon=1.0, delta=1e-5, method="output_perturbation", random_state=7
        ).estimator

    usual = ["0.5", 1, "Wien", None] * (N // 4 + 1)
    hostile = usual[:N]
    for place, name in zip(AT, HOSTILE, strict=True):
        hostile[place] = EVERYTHING[name]()
    with np.errstate(all="raise"):
        one = fit(frame(hostile, labels(hostile=True)))
    assert one.privacy_.details["private_records"] == N
    # Labels alone: a record without one is null, whatever else is in it.
    assert state(fit(frame(usual[:N], labels(hostile=True)))) == state(
        fit(frame(usual[:N], labels(hostile=False)))
    )


def test_private_files_say_what_was_assumed_of_them(tmp_path: Path) -> None:
    from sidelight.tables import fit_tables

    clean = frame(["0.5", "1"] * (N // 2 + 1), Y)[:N] if N % 2 else frame(["0.5", "1"] * (N // 2), Y)
    clean.to_csv(tmp_path / "private.csv", index=False)
    clean.to_parquet(tmp_path / "private.parquet")
    options: dict[str, Any] = {"schema": schema(), "epsilon": 1.0, "delta": 1e-5, "random_state": 7}
    text, parquet = (fit_tables(tmp_path / f"private.{kind}", **options) for kind in ("csv", "parquet"))
    assert any("one line of the private file is one record" in line for line in text.privacy_.assumptions)
    assert not any("line" in line for line in parquet.privacy_.assumptions)
    assert text.estimator.coef_.tolist() == parquet.estimator.coef_.tolist()


def test_a_hostile_line_is_a_null_record_of_a_file(tmp_path: Path) -> None:
    from sidelight.tables import fit_tables

    def fit(line: bytes) -> Any:
        rows = [b"0.5,Wien,yes", b"-0.5,1,no"] * 30
        rows[20] = line
        (tmp_path / "p.csv").write_bytes(b"x,t,y\n" + b"".join(row + b"\n" for row in rows))
        return state(
            fit_tables(
                tmp_path / "p.csv", schema=schema(), epsilon=1.0, method="nsgd", random_state=7
            ).estimator
        )

    expected = fit(b"0.5,Wien,")  # nsgd goes by the order of records: a null one must keep its place
    for line in (
        b'"',
        b"",
        b"\r",
        b"1,2",
        b"1,2,3,4,5",
        b'0.5,"W"\xff,\0',
        b'"0.5","Wien","yes',
        b"\xff" * 99,
    ):
        assert fit(line) == expected


def parquet_columns() -> dict[str, Any]:
    import pyarrow as pa

    wild = pa.array([b"yes", b"\xff\xfe"] * 3).cast(pa.binary())
    return {
        "text that is not UTF-8": pa.Array.from_buffers(pa.string(), len(wild), wild.buffers()),
        "times with nanoseconds": pa.array([1, 2, 3, 4, 5, None], pa.time64("ns")),
        "dates beyond Python": pa.array([0, 10**9, -(2**31), 1, 2, None], pa.date32()),
        "timestamps beyond pandas": pa.array([0, 2**62, -(2**62), 1, 2, None], pa.timestamp("ms")),
        "lists of one length": pa.array([[1, 2]] * 6),
        "lists with gaps": pa.array([[1], None, [], [2, 3], [None], [4]]),
        "decimals": pa.array([None, *range(5)], pa.decimal128(38, 10)),
        "whole numbers with a gap": pa.array([2**53 + 1, None, 3, 4, 5, 6]),
        "flags with a gap": pa.array([True, None, False, True, True, False]),
        "categories": pa.array(["a", None, "b", "a", "a", "b"]).dictionary_encode(),
        "nothing": pa.nulls(6),
        "durations": pa.array([1, None, 2**62, 3, 4, 5], pa.duration("s")),
        "halves": pa.array(np.arange(6, dtype=np.float16)),
        "bytes": pa.array([b"\xff", None, b"", b"1", b"2", b"3"]),
    }


@pytest.mark.parametrize("kind", parquet_columns())
def test_parquet_columns_are_read_value_by_value(tmp_path: Path, kind: str) -> None:
    """One value that pandas cannot hold made the whole file unreadable, and a gap changed the type."""
    import pyarrow as pa
    from pyarrow import parquet

    column = parquet_columns()[kind]

    def texts(values: Any) -> Any:
        parquet.write_table(pa.table({"c": values}), tmp_path / "t.parquet")
        found = private_frame(tmp_path / "t.parquet")["c"]
        assert len(found) == len(values)
        return [as_text(found).tolist(), [repr(one) for one in as_number(found)]]

    whole = texts(column)
    for i in range(len(column)):
        assert texts(column.slice(i, 1)) == [[whole[0][i]], [whole[1][i]]]


# ---------------------------------------------------------------------------------------------------
# networks


@pytest.mark.usefixtures("same_noise")
def test_networks_take_hostile_records_for_null_ones() -> None:
    torch = pytest.importorskip("torch")
    from sidelight.deep import PrivateNetClassifier, PrivateNetRegressor

    def fit(kind: Any, outputs: int, table: Any, targets: Any, **options: Any) -> Any:
        torch.manual_seed(0)
        net = kind(
            torch.nn.Linear(P, outputs), epsilon=1.0, delta=1e-5, steps=2, epochs=None,
            expected_batch_size=None, random_state=7, **options,
        )  # fmt: skip
        return [one.tolist() for one in net.fit(table, targets).model_.parameters()]

    classes: dict[str, Any] = {"classes": ["no", "yes"]}
    expected = fit(PrivateNetClassifier, 2, features(hostile=False), labels(hostile=False), **classes)
    for table in forms(features(hostile=True)):
        assert fit(PrivateNetClassifier, 2, table, list(labels(hostile=True)), **classes) == expected
    bounds: dict[str, Any] = {"target_bounds": (-1, 1)}
    expected = fit(PrivateNetRegressor, 1, features(hostile=False), numbers(hostile=False), **bounds)
    assert (
        fit(PrivateNetRegressor, 1, features(hostile=True), list(numbers(hostile=True)), **bounds) == expected
    )


# ---------------------------------------------------------------------------------------------------
# shapes and types, which are public


@pytest.mark.parametrize(
    "table",
    [
        [[1.0, 2.0], [SECRET]],
        [[1.0, 2.0], None],
        [1.0, SECRET],
        [[[1.0], [SECRET]], [[2.0], [3.0]]],
        SECRET,
        {SECRET: [1]},
    ],
    ids=lambda table: type(table).__name__,
)
def test_a_container_without_a_shape_is_one_error_that_quotes_nothing(table: Any) -> None:
    with pytest.raises(ValueError, match=r"X must|2D|of X") as caught:
        classifier().fit(table, ["no", "yes"])
    assert SECRET not in str(caught.value)


def test_contract_catches_a_value_that_speaks() -> None:
    """The hostile values do raise and warn where they are let."""
    with pytest.raises(ValueError, match=SECRET):
        float(EVERYTHING["text"]())
    with pytest.raises((TypeError, ValueError)):
        hash(EVERYTHING["signalling NaN"]())
    with warnings.catch_warnings(), pytest.raises(np.exceptions.ComplexWarning):
        warnings.simplefilter("error")
        float(EVERYTHING["numpy complex"]())
