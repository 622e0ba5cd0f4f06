"""What is learned from public rows, and how a schema goes to a file and back."""

from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.tables.small import pd, public_frame

from sidelight.data.schema import Column, Schema
from sidelight.errors import InputError


def learned(**columns: Any) -> Schema:
    rows = len(next(iter(columns.values())))
    return Schema.learn(pd.DataFrame({**columns, "y": (["a", "b"] * rows)[:rows]}), "y")


def test_types_bounds_and_categories() -> None:
    schema = Schema.learn(public_frame(), "sick")
    assert schema.columns["job"].categories == ("clerk", "nurse", "smith")
    age = schema.columns["age"]
    frame = public_frame()
    assert age.kind == "number" and age.bounds == (frame.age.min(), frame.age.max())
    assert age.knots == tuple(np.quantile(frame.age, [0.25, 0.5, 0.75]))
    assert schema.target.classes == ("no", "yes") and schema.target.task == "classification"


@pytest.mark.parametrize(
    ("values", "note"),
    [
        ([None] * 30, "no value"),
        ([7] * 30, "constant"),
        ([f"id{i}" for i in range(30)], "identifier"),
        ([[1]] * 30, "lists"),
    ],
)
def test_columns_that_tell_nothing_are_ignored_and_say_why(values: list[Any], note: str) -> None:
    schema = learned(x=values, age=range(0, 60, 2))
    assert schema.columns["x"].kind == "ignore" and note in schema.columns["x"].note
    assert list(schema.used) == ["age"]


def test_knots_are_quartiles_inside_the_bounds() -> None:
    assert learned(x=[0] * 25 + [1, 2, 3, 4, 5]).columns["x"].knots == ()
    assert learned(x=[0] * 16 + list(range(1, 15))).columns["x"].knots == (0.01, 1.0, 4.0, 7.0, 10.0)


def test_many_numbers_and_few_rows_make_straight_lines() -> None:
    assert learned(x=range(0, 60, 2)).columns["x"].knots
    many = {f"x{i}": range(0, 60, 2) for i in range(16)}
    assert not any(column.knots for column in learned(**many).columns.values())


@pytest.mark.parametrize(
    "values",
    [[True, False], ["True", "False"], ["true", "false"], ["YES", "no"], ["t", "f"], [0, 1], ["0", "1.0"],
     [True, None], ["on", "off"], ["TRUE", "TRUE"], [Decimal("0"), Decimal("1.0")]],
)  # fmt: skip
def test_truth_values_are_booleans_however_they_are_written(values: list[Any]) -> None:
    assert learned(flag=values * 15, age=range(0, 60, 2)).columns["flag"] == Column("boolean")


def test_constant_texts_and_half_a_pair_of_words_are_categories() -> None:
    schema = learned(land=["AT"] * 30, sex=["f"] * 30, more=["yes", "no", "maybe"] * 10)
    assert [column.kind for column in schema.columns.values()] == ["category"] * 3
    assert schema.columns["land"].categories == ("AT",)


def test_rare_categories_beyond_a_hundred_are_left_to_other() -> None:
    column = learned(x=[f"c{i}" for i in range(150)] * 2 + ["c7"] * 10).columns["x"]
    assert len(column.categories) == 100 and "c7" in column.categories and "of 150" in column.note


@pytest.mark.parametrize(
    ("target", "task"),
    [
        ([0, 1] * 50, "classification"),
        (list(range(10)) * 10, "classification"),
        (list(range(100)), "regression"),
        (np.linspace(0, 1, 12).tolist(), "regression"),
        (["a", "b", "c", "d"] * 25, "classification"),
        ([True, False] * 50, "classification"),
    ],
)
def test_the_target_decides_the_task(target: list[Any], task: str) -> None:
    schema = Schema.learn(pd.DataFrame({"x": range(0, 2 * len(target), 2), "y": target}), "y")
    assert schema.target.task == task


def test_the_task_can_be_said() -> None:
    frame = pd.DataFrame({"x": range(0, 200, 2), "y": list(range(10)) * 10})
    assert Schema.learn(frame, "y", task="regression").target.bounds == (0, 9)
    assert Schema.learn(frame, "y").target.classes == tuple(range(10))


def test_a_file_holds_the_schema(tmp_path: Path) -> None:
    frame = public_frame().assign(id=[f"i{k}" for k in range(60)])
    schema = Schema.learn(frame, "sick")
    schema.write(tmp_path / "s.json")
    read = Schema.read(tmp_path / "s.json")
    assert read == schema and read.source == "declared in s.json"
    assert Schema.from_dict(schema.to_dict()) == schema
    assert [one.name for one in tmp_path.iterdir()] == ["s.json"]


def test_a_column_written_by_hand() -> None:
    column = Column.from_dict({"type": "number", "bounds": [0, 100], "knots": [10, 20]}, "x")
    assert column == Column("number", (0.0, 100.0), (10.0, 20.0))
    assert Column.from_dict(column.to_dict(), "x") == column
    for knots in ([20, 10], [0], [100], ["a"], 5):
        with pytest.raises(InputError, match="knots"):
            Column.from_dict({"type": "number", "bounds": [0, 100], "knots": knots}, "x")
    assert Column.from_dict({"type": "category", "categories": [1, 2.5, "x"]}, "x").categories == (
        "1",
        "2.5",
        "x",
    )


def test_columns_are_matched_by_name() -> None:
    schema = Schema.learn(public_frame(), "sick")
    schema.check_columns(["sick", "pay", "job", "age"], "it")
    with pytest.raises(InputError, match="'pay'"):
        schema.check_columns(["sick", "job", "age"], "it")
    with pytest.raises(InputError, match="'id'"):
        schema.check_columns(["sick", "pay", "job", "age", "id"], "it")
    with pytest.raises(InputError, match="'pay'"):
        schema.check_columns(["sick", "pay", "job", "age", "pay"], "it")
