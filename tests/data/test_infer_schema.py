"""What a column is, found in public rows; and that a user who knows better is heard."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.tables.small import pd

from sidelight.data.features import FeaturePlan
from sidelight.data.infer_schema import learn_columns
from sidelight.data.schema import Column, Schema, column_lines
from sidelight.data.table_files import read_table
from sidelight.errors import IN_COMMAND, InputError
from sidelight.tables import fit_tables

RNG = np.random.default_rng(0)
ZIPS = [f"{z:05}" for z in RNG.choice([501, 1002, 2139, 10001, 10002, 60601, 94103], 200)]
WIDE = [f"{z:05}" for z in RNG.integers(0, 99999, 200)]
REVIEWS = [f"I bought {i} of these and would not again, since {i}" for i in range(200)]


def learned(values: Any, name: str = "x", **given: Any) -> Column:
    rows = len(values)
    frame = pd.DataFrame({name: values, "other": np.arange(rows) % 5, "y": (["a", "b"] * rows)[:rows]})
    return Schema.learn(frame, "y", **given).columns[name]


def encode(column: Column, values: list[Any]) -> np.ndarray:
    target = Schema.learn(pd.DataFrame({"x": [0, 1], "y": ["a", "b"]}), "y").target
    return FeaturePlan(Schema(target, {"x": column})).encode(
        pd.DataFrame({"x": pd.Series(values, dtype=object)})
    )


def test_few_postcodes_are_categories_and_many_are_their_first_digits() -> None:
    assert learned(ZIPS) == Column("code", categories=tuple(sorted(set(ZIPS))), digits=5, prefix=5)
    wide = learned(WIDE)
    assert (wide.kind, wide.digits, wide.prefix) == ("code", 5, 1)
    assert wide.categories == tuple("0123456789")
    assert learned(WIDE * 10).prefix == 2


def test_a_code_has_its_zeros_however_it_is_stored() -> None:
    for column in (learned(ZIPS), learned(WIDE)):
        same = encode(column, ["02139", "2139", 2139, 2139.0, np.int64(2139)])
        assert (same == same[0]).all() and same[0, -2:].sum() == 0
        odd = encode(column, ["elsewhere", None, [1], "02139-4307"])
        assert odd[:, -1].tolist() == [0, 1, 0, 0] and odd[0, -2] == 1
    assert (encode(learned(WIDE), ["02139-4307"]) == encode(learned(WIDE), ["02139"])).all()


def test_a_code_in_csv_is_found(tmp_path: Path) -> None:
    pd.DataFrame({"x": ZIPS, "n": ["01", "12"] * 100, "y": ["a", "b"] * 100}).to_csv(
        tmp_path / "t.csv", index=False
    )
    schema = Schema.learn(read_table(tmp_path / "t.csv"), "y")
    assert schema.columns["x"] == learned(ZIPS)
    assert schema.columns["n"].kind == "number", "a month or an hour is a number with a zero in front"


@pytest.mark.parametrize(
    ("values", "name"),
    [
        (range(100, 300), "x"),
        (RNG.permutation(200), "x"),
        (RNG.permutation(10**6)[:200], "id"),
        (RNG.permutation(10**6)[:200], "customer_id"),
        (RNG.permutation(10**6)[:200], "customerId"),
        ([f"P{i}" for i in range(200)], "x"),
        ([f"{i:010}" for i in RNG.permutation(10**6)[:200]], "x"),
    ],
)
def test_identifiers_are_ignored_and_the_note_says_how_to_use_them(values: Any, name: str) -> None:
    column = learned(values, name)
    assert column.kind == "ignore" and "looks like an identifier" in column.note
    assert f"types={{{name!r}: " in column.note and "--" not in column.note


def test_what_only_resembles_an_identifier_is_used() -> None:
    assert learned(RNG.permutation(10**6)[:200]).kind == "number"
    assert learned(np.arange(200) // 2, "id").kind == "number"
    assert learned(np.arange(200) / 2, "paid").kind == "number"
    assert learned(range(19)).kind == "number", "too few rows to tell"


def test_free_text_is_ignored_and_repeated_phrases_are_categories() -> None:
    column = learned(REVIEWS)
    assert column.kind == "ignore" and column.note.startswith("free text") and "encoder" in column.note
    assert learned(["some college but no degree", "a degree of some college"] * 50).kind == "category"


def test_few_ordered_values_bend_at_each_that_public_rows_have() -> None:
    column = learned([0] * 150 + [1] * 25 + [2] * 12 + [3] * 10 + [4] * 2 + [5])
    assert column.kind == "number" and column.bounds == (0, 5) and column.knots == (1, 2, 3)
    assert "few ordered values" in column.note
    row = encode(column, [2, 9])
    np.testing.assert_allclose(row, [[1, 1, 0, 0, 0], [1, 1, 1, 1, 0]])
    assert learned(np.arange(200) % 50).knots == (12, 24.5, 37)


@pytest.mark.parametrize(
    ("values", "kind", "expected"),
    [
        (range(200), "number", "number"),
        (range(200), "category", "category"),
        (REVIEWS, "category", "category"),
        (ZIPS, "number", "number"),
        (ZIPS, "ignore", "ignore"),
        ([501, 10001] * 100, "code", "code"),
        ([0, 1] * 100, "category", "category"),
        (["yes", "no"] * 100, "boolean", "boolean"),
        (["01/02/2020", "03/04/2020"] * 100, "month/day/year", "date"),
        (["2020-01-02", "2020-03-04"] * 100, "date", "date"),
    ],
)
def test_a_user_who_knows_better_is_heard(values: Any, kind: str, expected: str) -> None:
    column = learned(values, types={"x": kind})
    assert column.kind == expected
    assert Column.from_dict(column.to_dict(), "x") == column
    if kind == "code":
        assert column.categories == ("00501", "10001")


@pytest.mark.parametrize(
    ("types", "message"),
    [
        ({"x": "number"}, "'x' of the public table holds '.*', which is not a number"),
        ({"x": "boolean"}, "'x' of the public table holds '.*', which is not a boolean"),
        ({"x": "date"}, "'x' of the public table holds '.*', which is not a date"),
        ({"x": "month/day/year"}, "'x' of the public table holds '.*', which is not a date as month"),
        ({"x": "poem"}, "cannot be 'poem'. Types are number, boolean"),
        ({"z": "number"}, "no column 'z' to read as number"),
        ({"y": "number"}, "'y' is the target"),
    ],
)
def test_a_wrong_type_is_one_clear_error(types: dict[str, str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        learned(REVIEWS, types=types)


def test_dates_of_several_formats_are_told_from_what_is_no_date() -> None:
    with pytest.raises(InputError, match="formats"):
        learned(["2020-01-02", "31.12.2020"] * 100, types={"x": "date"})
    with pytest.raises(InputError, match="'soon'"):
        learned(["2020-01-02", "31.12.2020", "soon"] * 100, types={"x": "date"})


def test_a_note_can_be_pasted_into_a_shell_or_into_python() -> None:
    values = [f"P{i}" for i in range(200)]
    column = learned(values, "patient id")
    assert "types={'patient id': 'category'}" in column.note and "unit='patient id'" in column.note
    spelling = IN_COMMAND.set(True)
    try:
        column = learned(values, "patient id")
    finally:
        IN_COMMAND.reset(spelling)
    assert "--type 'patient id=category'" in column.note and "--unit 'patient id'" in column.note


@pytest.mark.parametrize(
    "entry", [{"digits": 0}, {"digits": 16}, {"digits": 5, "prefix": 6}, {"digits": True}, {"digits": 5}]
)
def test_a_badly_declared_code_is_one_clear_error(entry: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=r"digits|prefix|categories"):
        Column.from_dict({"type": "code", **entry}, "x")


def test_what_was_recognized_is_said_in_one_line_for_all_columns_alike() -> None:
    n = 200
    frame = pd.DataFrame(
        {
            **{f"flag{i}": np.arange(n) % 2 for i in range(7)},
            "since": pd.date_range("2020-01-01", periods=n).strftime("%d/%m/%Y"),
            "zip": WIDE, "rooms": np.arange(n) % 4, "age": np.arange(n) % 60, "y": ["a", "b"] * (n // 2),
        }
    )  # fmt: skip
    assert column_lines(Schema.learn(frame, "y")) == [
        "columns 'flag0', 'flag1', 'flag2', 'flag3', 'flag4' and 2 more: true or false",
        "column 'since': dates, written day/month/year; used as position, month, weekday",
        "column 'zip': codes; the first 1 of 5 digits is used",
        "column 'rooms': few ordered values: the effect may bend at each",
    ]


def test_types_reach_a_fit_and_not_beside_a_schema() -> None:
    frame = pd.DataFrame({"x": ZIPS, "age": np.arange(200) % 60, "y": ["a", "b"] * 100})
    given = {"target": "y", "epsilon": 1, "method": "dp_sgd", "random_state": 0}
    with pytest.warns(UserWarning, match="seed"):
        model = fit_tables(frame[:150], frame[150:], types={"x": "ignore"}, **given)
    assert list(model.schema.used) == ["age"]
    with pytest.raises(InputError, match="declared there"):
        fit_tables(frame[:150], frame[150:], schema=model.schema, types={"x": "code"}, **given)


def test_a_number_that_is_mostly_zero_bends_where_the_others_are():
    """Capital gains: 0 for most rows, and for the others it matters how much."""
    rng = np.random.default_rng(0)
    gains = np.where(rng.random(200) < 0.9, 0.0, rng.integers(1_000, 15_000, 200).astype(float))
    gains[0] = 99_999.0
    frame = pd.DataFrame({"gain": gains, "y": np.arange(200) % 2})
    column = Schema.learn(frame, "y").columns["gain"]
    others = np.sort(gains[gains > 0])
    assert column.bounds == (0.0, 99_999.0)
    assert 0 < column.knots[0] <= 0.02 * others[0] and column.knots[1] == others[0]
    assert len(column.knots) == 5 and column.knots[-1] < np.quantile(others, 0.8)


def test_words_among_public_numbers_are_missing_once_the_user_says_number() -> None:
    ages = [*range(20, 60), "old", "ca. 50"]
    with pytest.raises(InputError, match=r"'old' in record 41.*types={'x': 'number'}"):
        learned(ages)
    column = learned(ages, types={"x": "number"})
    assert column.kind == "number" and column.bounds == (20, 59) and column.unreadable_is_missing
    assert column.note == "2 of 42 public values are not numbers and count as missing"
    assert Column.from_dict(column.to_dict(), "x") == column
    assert not learned(ages[:40], types={"x": "number"}).unreadable_is_missing
    with pytest.raises(InputError, match="'old'"):
        learned([1, 2, "old", "young"], types={"x": "number"})


def test_dates_in_another_format_are_missing_once_the_user_says_date() -> None:
    days = [f"2020-05-{day:02}" for day in range(1, 29)]
    column = learned([*days, "31.12.2020", "soon"], types={"x": "date"})
    assert column == replace(
        learned(days),
        note="2 of 30 public values are not dates and count as missing",
        unreadable_is_missing=True,
    )


def test_slips_in_several_public_columns_are_said_in_one_line() -> None:
    table = pd.DataFrame(
        {
            "age": ["x", *map(str, range(20, 39))],
            "when": [*[f"2020-05-{day:02}" for day in range(1, 20)], "soon"],
            "pay": [*["1.5"] * 19, "1,5"],
            "y": ["a", "b"] * 10,
        }
    )
    with pytest.raises(InputError, match=r"'age' .*'x'.*'when' \('soon'") as found:
        Schema.learn(table, "y")
    assert str(found.value).endswith("'pay' ('1,5' in record 20)") and "\n" not in str(found.value)


def test_a_fit_takes_a_messy_public_column_as_its_type_says(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for name, rows in (("private", 400), ("public", 80)):
        ages = rng.integers(20, 80, rows)
        words = np.where(
            rng.random(rows) < 0.1, "n/a", np.where(rng.random(rows) < 0.1, "old", ages.astype(str))
        )
        table = pd.DataFrame({"age": words, "y": np.where(ages > 50, "a", "b")})
        table.to_csv(tmp_path / f"{name}.csv", index=False)
    tables = (tmp_path / "private.csv", tmp_path / "public.csv")
    with pytest.raises(InputError, match="'old'"):
        fit_tables(*tables, target="y", epsilon=1.0)
    model = fit_tables(*tables, target="y", epsilon=1.0, types={"age": "number"})
    file = tmp_path / "schema.json"
    model.schema.write(file)
    assert '"unreadable": "missing"' in file.read_text()
    fit_tables(*tables, schema=file, epsilon=1.0)


def test_a_category_whose_values_hardly_repeat_is_ignored() -> None:
    rng = np.random.default_rng(0)
    tails = pd.Series([f"N{one}" for one in rng.integers(0, 2_000, 1_600)])  # 0.6 of the values differ
    column = learn_columns(pd.DataFrame({"tail": tails, "x": rng.normal(size=1_600)}))["tail"]
    assert column.kind == "ignore" and "identifier" in column.note
    asked = learn_columns(pd.DataFrame({"tail": tails, "x": 1.0}), {"tail": "category", "x": "ignore"})[
        "tail"
    ]
    assert asked.kind == "category" and len(asked.categories) == 100
    cities = pd.Series([f"c{int(one)}" for one in rng.zipf(1.5, 300)])  # a long tail, but most rows repeat
    assert learn_columns(pd.DataFrame({"city": cities}))["city"].kind == "category"
