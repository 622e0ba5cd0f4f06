"""Values of a table as dates and times, each by itself, as `data.values` reads the others.

They are seconds since 1970, NaN for what is none. A moment with an offset ("+02:00", "Z", a column with a
time zone) is taken in UTC; one without is what it says. Of texts, the order of day, month and year is a
property of the column (`FORMATS`), found in public rows or declared, and never guessed from a value. Years
have four digits.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from datetime import date, datetime, time, timedelta
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from sidelight.arrays import Floats
from sidelight.errors import guarded

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa
from sidelight.data.values import (
    _COMPLEX,
    _MISSING,
    ColumnData,
    _arrow,
    _each,
    _is_numpy_real,
    _read_each,
    _written,
    as_series,
    is_arrow_text,
    pandas,
    text_of,
)

Format = Literal["year-month-day", "day/month/year", "month/day/year", "yearmonthday", "time"]
ISO: Format = "year-month-day"
FORMATS: tuple[Format, ...] = (ISO, "day/month/year", "month/day/year", "yearmonthday", "time")
"""How texts are read as dates; separators may be - / . or a space, and a time may follow a date."""

DAY = 86400.0  # in seconds


_DATE_AND_TIME = r"\A[0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9]{2}:[0-9]{2}:[0-9]{2}\z"


def as_moment(values: ColumnData, how: Format) -> Floats:
    """Seconds since 1970 (since midnight, if `how` is "time"); NaN for what is missing or no moment."""
    column = _arrow(values)
    if column is not None and is_arrow_text(column.type):
        return _moments_of_texts(column, how)
    series = as_series(values) if column is None else None
    found = _moments_of_series(series) if column is None else _moments_of_dates(column)
    if found is not None:
        return found % DAY if how == "time" else found
    if column is None:
        return np.array(_read_each(series, lambda value: moment_of(value, how)), dtype=np.float64)
    return _each(column, lambda value: moment_of(value, how))


_EPOCH = datetime(1970, 1, 1)
_FIRST = (datetime.min - _EPOCH).total_seconds()
_LAST = (datetime.max - _EPOCH).total_seconds()
_MICROSECOND = timedelta(microseconds=1)
_MICROS = 1_000_000  # in a second: a moment has so many places, however many its column could hold
_UNITS = {"s": 1, "ms": 1_000, "us": _MICROS, "ns": 1_000 * _MICROS}  # in a second

_CLOCK = (
    r"(?P<H>[0-9]{1,2}):(?P<M>[0-9]{2})(?::(?P<S>[0-9]{2})(?:[.,](?P<f>[0-9]{1,9}))?)?"
    r"(?: ?(?P<half>[AaPp][Mm]))?"
)
_AFTER = rf"(?:(?:T| +){_CLOCK} ?(?P<zone>Z|UTC|[+-][0-9]{{2}}(?::?[0-9]{{2}})?)?)?"
_NAMES = (
    "january", "february", "march", "april", "may", "june", "july", "august", "september", "october",
    "november", "december",
)  # fmt: skip
_MONTHS = {name[:size]: i + 1 for i, name in enumerate(_NAMES) for size in (3, len(name))}
_MONTH = r"(?P<m>[0-9]{1,2}|[A-Za-z]{3,9})"
_PATTERNS: Mapping[Format, re.Pattern[str]] = {
    "year-month-day": re.compile(r"(?P<y>[0-9]{4})([-/.])(?P<m>[0-9]{1,2})\2(?P<d>[0-9]{1,2})" + _AFTER),
    "day/month/year": re.compile(rf"(?P<d>[0-9]{{1,2}})([-/. ]){_MONTH}\2(?P<y>[0-9]{{4}})" + _AFTER),
    "month/day/year": re.compile(rf"{_MONTH}([-/. ])(?P<d>[0-9]{{1,2}}),?\2(?P<y>[0-9]{{4}})" + _AFTER),
    "yearmonthday": re.compile(r"(?P<y>(?:19|20)[0-9]{2})(?P<m>[0-9]{2})(?P<d>[0-9]{2})"),
    "time": re.compile(_CLOCK),
}


def moment_of(value: object, how: Format) -> float:
    """Seconds since 1970 (since midnight, if `how` is "time") of one value; NaN for what is none."""
    if type(value) in (int, float) or issubclass(type(value), _COMPLEX) or _is_numpy_real(type(value)):
        return _of_text(text_of(value) or "", how) if how == "yearmonthday" else math.nan
    if isinstance(value, str | bytes):
        text = _written(value).strip()
        return math.nan if text in _MISSING else _of_text(text, how)
    if how == "time":
        return guarded(lambda one: _of_clock(one) % DAY, value, math.nan)
    return guarded(_of_object, value, math.nan)


def iso_of(seconds: float) -> str:
    """A moment as ISO text: a date, if it is midnight."""
    return (_EPOCH + timedelta(seconds=seconds)).isoformat(sep=" ").removesuffix(" 00:00:00")


def _of_text(text: str, how: Format) -> float:
    found = _PATTERNS[how].fullmatch(text)
    if found is None:
        return math.nan
    part = found.groupdict()
    day = (1970, 1, 1) if how == "time" else (int(part["y"]), _month(part["m"]), int(part["d"]))
    try:
        moment = datetime(*day, _hour(part), int(part.get("M") or 0), int(part.get("S") or 0))
    except ValueError:  # the 30th of February, or 25 o'clock
        return math.nan
    fraction = float(f"0.{part.get('f') or 0}")
    return _within((moment - _EPOCH).total_seconds() + fraction - _offset(part.get("zone")))


def _month(text: str) -> int:
    return int(text) if text.isdigit() else _MONTHS.get(text.lower(), 0)


def _hour(part: Mapping[str, str | None]) -> int:
    hour, half = int(part.get("H") or 0), (part.get("half") or "").lower()
    if not half:
        return hour
    return hour % 12 + 12 * (half == "pm") if 1 <= hour <= 12 else 99


def _offset(zone: str | None) -> float:
    """Seconds east of UTC."""
    if zone is None or zone in ("Z", "UTC"):
        return 0.0
    digits = zone[1:].replace(":", "")
    east = 3600.0 * int(digits[:2]) + 60.0 * int(digits[2:] or 0)
    return -east if zone[0] == "-" else east


def _of_object(value: object) -> float:
    """Seconds since 1970 of a value with a date type; NaN for anything else."""
    if type(value) is np.datetime64:
        micros = value.astype("datetime64[us]")
        return math.nan if np.isnat(micros) else _within(_second(int(micros.astype(np.int64))))
    if isinstance(value, datetime):
        offset = timedelta(0) if value.tzinfo is None else value.utcoffset()
        clock = (value.hour, value.minute, value.second, value.microsecond)  # without what pandas has below
        since = datetime(value.year, value.month, value.day, *clock) - _EPOCH
        return math.nan if offset is None else _within(_second((since - offset) // _MICROSECOND))
    if isinstance(value, date):
        return DAY * (date.toordinal(value) - date.toordinal(_EPOCH))
    return math.nan


def _of_clock(value: object) -> float:
    """Seconds since midnight of a time, or of a date that has one."""
    if not isinstance(value, time):
        return _of_object(value)
    return float(value.hour * 3600 + value.minute * 60 + value.second + value.microsecond / 1e6)


def _seconds(count: NDArray[np.int64], unit: str) -> Floats:
    """Units since 1970 as seconds, to the microsecond and rounded as `_second` does: one odd date among those
    of pandas makes objects of all, and they must stay what they were."""
    whole, rest = np.divmod(count, _UNITS[unit])
    micros = rest // 1_000 if unit == "ns" else rest * (_MICROS // _UNITS[unit])
    return np.asarray(whole + micros / _MICROS)


def _second(micros: int) -> float:
    whole, rest = divmod(micros, _MICROS)
    return whole + rest / _MICROS


def _within_calendar(seconds: Floats) -> Floats:
    """The moment, or NaN outside the calendar's years 1 to 9999."""
    return np.where((seconds >= _FIRST) & (seconds <= _LAST), seconds, np.nan)


def _within(seconds: float) -> float:
    """The moment, in seconds; NaN outside of the years that dates may have."""
    return seconds if _FIRST <= seconds <= _LAST else math.nan


def _moments_of_series(series: pd.Series) -> Floats | None:
    """Of a column of pandas datetimes, where one with a time zone holds UTC; None for other types."""
    dates = isinstance(series.dtype, np.dtype | pandas().DatetimeTZDtype) and series.dtype.kind == "M"
    if not dates:
        return None
    found = _seconds(np.asarray(series.astype("int64")), series.dt.unit)
    return _within_calendar(np.where(np.asarray(series.isna()), np.nan, found))


def _moments_of_texts(column: pa.Array, how: Format) -> Floats:
    """A text of the usual form is the sum of its date and its time, of which there are few different ones."""
    import pyarrow as pa
    from pyarrow import compute

    if how != ISO:
        return _each(column, lambda value: moment_of(value, how))
    usual = compute.match_substring_regex(column.view(pa.large_string()), _DATE_AND_TIME).fill_null(False)
    fast = usual.to_numpy(zero_copy_only=False)
    found = np.full(len(column), np.nan)
    both = column.filter(usual)
    days = _each(compute.binary_slice(both, 0, 10), lambda value: moment_of(value, ISO))
    found[fast] = days + _each(compute.binary_slice(both, 11, 19), lambda value: moment_of(value, "time"))
    if not fast.all():
        found[~fast] = _each(column.filter(compute.invert(usual)), lambda value: moment_of(value, ISO))
    return found


def _moments_of_dates(column: pa.Array) -> Floats | None:
    """Dates and timestamps by their counts since 1970, in UTC; None for other types."""
    import pyarrow as pa
    from pyarrow import types

    missing = column.is_null().to_numpy(zero_copy_only=False)
    if types.is_date32(column.type):
        found = DAY * column.view(pa.int32()).fill_null(0).to_numpy(zero_copy_only=False)
    elif types.is_timestamp(column.type) or types.is_date64(column.type):
        counts = column.view(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False)
        found = _seconds(counts, getattr(column.type, "unit", "ms"))
    else:
        return None
    return _within_calendar(np.where(missing, np.nan, found))
