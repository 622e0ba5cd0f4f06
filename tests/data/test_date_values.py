"""Dates and times: found in public rows, read value by value, and what the model sees of them."""

import datetime as dt
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.data.whole_tables import private_frame
from tests.tables.small import pd

from sidelight.data.coordinates import bound_rows
from sidelight.data.features import FeaturePlan
from sidelight.data.moments import FORMATS, ISO, as_moment, iso_of, moment_of
from sidelight.data.schema import Column, Schema
from sidelight.errors import InputError
from sidelight.tables import fit_tables

DAY = 86400
DAYS = pd.date_range("2019-03-01", "2021-11-30", periods=60).floor("D")
NEW_YEAR = 18627 * DAY  # 2020-12-31


def learned(values: Any) -> Column:
    rows = len(values)
    frame = pd.DataFrame({"when": values, "age": np.arange(rows) % 7, "y": (["a", "b"] * rows)[:rows]})
    return Schema.learn(frame, "y").columns["when"]


def names(column: Column) -> list[str]:
    schema = Schema.from_dict(
        {"sidelight_schema": 1, "target": {"name": "y", "task": "classification", "classes": ["a", "b"]},
         "columns": {"when": column.to_dict()}}
    )  # fmt: skip
    return FeaturePlan(schema).names


def encode(column: Column, *values: Any) -> np.ndarray:
    target = Schema.learn(pd.DataFrame({"x": [0, 1], "y": ["a", "b"]}), "y").target
    schema = Schema(target, {"when": column})
    return FeaturePlan(schema).encode(pd.DataFrame({"when": pd.Series(values, dtype=object)}))


@pytest.mark.parametrize(
    ("text", "how"),
    [
        ("2020-12-31", ISO), ("2020/12/31", ISO), ("2020-12-31 00:00", ISO), ("2020-12-31T00:00:00", ISO),
        ("2020-12-31T00:00:00Z", ISO), ("2020-12-31 02:00:00+02:00", ISO), ("2020-12-30T19:00:00.0-05", ISO),
        ("31/12/2020", "day/month/year"), ("31.12.2020", "day/month/year"), ("31-Dec-2020", "day/month/year"),
        ("31 december 2020", "day/month/year"), ("12/31/2020", "month/day/year"),
        ("Dec 31, 2020", "month/day/year"), ("12/31/2020 12:00 AM", "month/day/year"),
        ("20201231", "yearmonthday"), (20201231, "yearmonthday"), (20201231.0, "yearmonthday"),
        (dt.date(2020, 12, 31), ISO), (dt.datetime(2020, 12, 31), ISO), (pd.Timestamp("2020-12-31"), ISO),
        (np.datetime64("2020-12-31"), ISO), (pd.Timestamp("2020-12-31 01:00", tz="Europe/Vienna"), ISO),
    ],
)  # fmt: skip
def test_ways_to_write_a_day(text: Any, how: Any) -> None:
    assert moment_of(text, how) == NEW_YEAR


@pytest.mark.parametrize(
    "odd",
    ["2020-02-30", "2020-13-01", "31/12/2020", "2020-12-31 25:00", "2020-12-31 13:00 PM", "x", "", "?", None,
     7, np.nan, [1], pd.NaT, "\u0662\u0660\u0662\u0660-12-31", dt.time(3), "9999-12-31 23:59-01:00",
     "2020-12-31 ", "2020-12-31T", "2020-12/31", b"2020-12/31", np.timedelta64(1)],
)  # fmt: skip
def test_anything_else_is_missing_without_a_word(odd: Any) -> None:
    found = as_moment(pd.Series(["2020-12-31", odd, "2021-01-01"], dtype=object), ISO)
    assert found[[0, 2]].tolist() == [NEW_YEAR, NEW_YEAR + DAY]
    assert np.isnan(found[1]) or odd == "2020-12-31 "


@given(st.text(max_size=25) | st.datetimes() | st.dates() | st.times() | st.floats() | st.binary(max_size=9))
def test_no_value_is_an_error_in_any_format(value: Any) -> None:
    for how in FORMATS:
        assert isinstance(moment_of(value, how), float)


@given(st.datetimes(min_value=dt.datetime(1, 1, 2), max_value=dt.datetime(9999, 12, 30)))
def test_a_moment_is_the_same_as_text_and_as_an_object(moment: dt.datetime) -> None:
    seconds = (moment - dt.datetime(1970, 1, 1)).total_seconds()
    assert moment_of(moment, ISO) == pytest.approx(seconds, rel=1e-15)
    assert moment_of(moment.isoformat(), ISO) == moment_of(moment, ISO)
    day = moment.date()
    assert iso_of(moment_of(day, ISO)) == day.isoformat()
    for text, how in (
        (f"{day.day}/{day.month}/{day.year:04}", "day/month/year"),
        (f"{day.month}/{day.day}/{day.year:04}", "month/day/year"),
    ):
        assert moment_of(text, how) == moment_of(day, ISO)


@pytest.mark.parametrize(
    ("pattern", "how"),
    [
        ("%Y-%m-%d", ISO), ("%Y-%m-%d 00:00:00", ISO), ("%d/%m/%Y", "day/month/year"),
        ("%m/%d/%Y", "month/day/year"), ("%d.%m.%Y", "day/month/year"), ("%d %b %Y", "day/month/year"),
        ("%Y%m%d", "yearmonthday"),
    ],
)  # fmt: skip
def test_the_format_is_found_in_public_rows(pattern: str, how: str) -> None:
    column = learned(DAYS.strftime(pattern))
    typed = learned(DAYS)
    assert column == Column("date", typed.bounds, parts=typed.parts, format=how)
    assert typed.parts == ("position", "year", "month", "weekday")
    assert learned(DAYS.date) == typed == learned(DAYS.tz_localize("UTC"))


def test_an_order_that_nobody_can_know_is_not_guessed() -> None:
    days = pd.to_datetime([f"2020-{m:02}-{d:02}" for m in range(1, 13) for d in range(1, 13)])
    column = learned(days.strftime("%d/%m/%Y"))
    assert column.kind == "ignore" and "day/month or month/day" in column.note
    assert learned(days.strftime("%d.%m.%Y")).format == "day/month/year"


def test_numbers_and_half_dates_are_not_dates() -> None:
    assert learned([20201231, 20210101]).kind == "number"
    assert learned(list(range(20200000, 20200120, 2))).kind == "number"
    with pytest.raises(InputError, match=r"'when' .*'never'"):
        learned([*DAYS.strftime("%Y-%m-%d")[:-1], "never"])


def test_parts_are_those_in_which_public_rows_differ() -> None:
    assert learned(pd.date_range("2020-05-01", periods=40, freq="h")).parts == ("position", "weekday", "hour")
    assert learned(pd.date_range("1950-01-01", periods=40, freq="400D")).parts == (
        "position", "month", "weekday",
    )  # fmt: skip
    assert learned([pd.Timestamp("2020-05-01")] * 40).kind == "ignore"
    clock = learned([f"{h}:{m:02}" for h in range(24) for m in (0, 30)])
    assert clock == Column("date", parts=("hour",), format="time")
    assert learned([dt.time(h) for h in range(24)]) == clock


def test_a_date_is_position_year_season_weekday_and_hour() -> None:
    column = Column.from_dict(
        {"type": "date", "bounds": ["2020-01-01", "2021-12-31"],
         "parts": ["position", "year", "month", "weekday", "hour"]}, "when",
    )  # fmt: skip
    assert names(column)[:4] == [
        "when: 2020-01-01 to 2021-12-31", "when: in 2020", "when: in 2021", "when: sine of the month",
    ]  # fmt: skip
    X = encode(column, "2020-01-01 06:00", "2021-12-31", "2050-07-01", None)
    at = {name.removeprefix("when: "): X[:, i] for i, name in enumerate(names(column))}
    np.testing.assert_allclose(at["2020-01-01 to 2021-12-31"], [0.25 / 730, 1, 1, 0.5], atol=1e-6)
    assert at["in 2020"].tolist() == [1, 0, 0, 0] and at["in 2021"].tolist() == [0, 1, 1, 0]
    np.testing.assert_allclose(at["cosine of the month"], [1, np.cos(np.pi * 2 * (11 + 30 / 31) / 12), -1, 0])
    assert at["on Wednesday"].tolist() == [1, 0, 0, 0] and at["on Friday"].tolist() == [0, 1, 1, 0]
    np.testing.assert_allclose(at["sine of the hour"], [1, 0, 0, 0], atol=1e-6)
    assert at["missing"].tolist() == [0, 0, 0, 1]


def test_a_date_weighs_at_most_as_much_as_a_category() -> None:
    for column in (learned(DAYS), learned(pd.date_range("2020-05-01", periods=40, freq="h"))):
        target = Schema.learn(pd.DataFrame({"x": [0, 1], "y": ["a", "b"]}), "y").target
        features = FeaturePlan(Schema(target, {"when": column}))
        X = features.encode(pd.DataFrame({"when": [*DAYS, pd.Timestamp("2077-01-01"), None]}))
        bounds = features.bounds()
        lengths = np.linalg.norm((X - bounds.center) * bounds.inverse_reach(bounds.center), axis=1)
        assert (lengths <= 1 + 1e-6).all() and (lengths > 0).all()
        assert (np.linalg.norm(bound_rows(X, bounds), axis=1) <= 1).all()


def test_a_declared_date_goes_to_a_file_and_back() -> None:
    for column in (
        learned(DAYS),
        learned(DAYS.strftime("%d/%m/%Y")),
        Column("date", parts=("hour",), format="time"),
    ):
        assert Column.from_dict(column.to_dict(), "x") == column
    assert learned(DAYS).to_dict() == {
        "type": "date", "bounds": ["2019-03-01", "2021-11-30"],
        "parts": ["position", "year", "month", "weekday"],
    }  # fmt: skip
    assert Column.from_dict({"type": "date", "bounds": ["1950-01-01", "2000-01-01"]}, "x").parts == (
        "position", "month", "weekday",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({}, "two dates"), ({"bounds": [1, 2]}, "two dates"), ({"bounds": ["2020-01-01", "x"]}, "two dates"),
        ({"bounds": ["2021-01-01", "2020-01-01"]}, "earlier and a later"),
        ({"bounds": ["2020-01-01", "2021-01-01"], "parts": ["moon"]}, "parts must be position or"),
        ({"bounds": ["2020-01-01", "2021-01-01"], "parts": []}, "at least one of"),
        ({"bounds": ["1920-01-01", "2021-01-01"], "parts": ["year"]}, "at most 10 years"),
        ({"bounds": ["2020-01-01", "2021-01-01"], "format": "d/m"}, "format must be"),
        ({"format": "time", "parts": ["month"]}, "parts of a time"),
    ],
)  # fmt: skip
def test_a_badly_declared_date_is_one_clear_error(entry: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Column.from_dict({"type": "date", **entry}, "column 'x'")


def test_dates_are_learned_from_and_help(tmp_path: Path) -> None:
    """They were 100 categories in a CSV, and not used in Parquet."""
    rng = np.random.default_rng(0)
    days = pd.Timestamp("2019-01-01") + pd.to_timedelta(rng.integers(0, 1500, 3000), "D")
    weekend = np.where(days.day_of_week >= 5, "yes", "no")
    frame = pd.DataFrame({"when": days.strftime("%d/%m/%Y"), "weekend": weekend})
    frame[:200].to_csv(tmp_path / "public.csv", index=False)
    frame.assign(when=days)[200:].to_parquet(tmp_path / "private.parquet")
    with pytest.warns(UserWarning, match="seed"):
        model = fit_tables(
            tmp_path / "private.parquet", tmp_path / "public.csv", target="weekend", epsilon=3,
            validation=0.2, random_state=0,
        )  # fmt: skip
    assert model.scores["public_validation"] == 1.0
    assert (model.predict(frame) == weekend).all()
    assert private_frame(tmp_path / "private.parquet")["when"][0] == days[200]
