"""Dates and times as seconds since 1970, each value by itself; NaN for what is none, and never an error.

A moment with an offset ("+02:00", "Z", a column with a time zone) is taken in UTC; one without is what it
says. Of texts, the order of day, month and year is a property of the column (`FORMATS`), found in public rows
or declared, and never guessed from a value. Years have four digits.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from datetime import date, datetime, time, timedelta
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from sidelight.data.values import MISSING, guarded, pandas, read_each, text_of

__all__ = [
    "DAY",
    "FORMATS",
    "ISO",
    "UNITS",
    "Format",
    "as_moment",
    "iso_of",
    "moment_of",
    "within_calendar",
]

Format = Literal["year-month-day", "day/month/year", "month/day/year", "yearmonthday", "time"]
ISO: Format = "year-month-day"
FORMATS: tuple[Format, ...] = (ISO, "day/month/year", "month/day/year", "yearmonthday", "time")
"""How texts are read; separators may be - / . or a space, and a time may follow a date."""

DAY = 86400.0
UNITS = {"s": 1.0, "ms": 1e3, "us": 1e6, "ns": 1e9}  # in a second
_EPOCH = datetime(1970, 1, 1)
_FIRST = (datetime.min - _EPOCH).total_seconds()
_LAST = (datetime.max - _EPOCH).total_seconds()

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


def as_moment(values: Any, how: Format) -> NDArray[np.float64]:
    """Seconds since 1970 of every value of a column; since midnight, if `how` is "time"."""
    series = pandas().Series(values)
    if isinstance(series.dtype, np.dtype | pandas().DatetimeTZDtype) and series.dtype.kind == "M":
        found = _of_datetimes(series)
        return found % DAY if how == "time" else found
    return np.array(read_each(series, lambda value: moment_of(value, how)), dtype=np.float64)


def moment_of(value: Any, how: Format) -> float:
    """The same of one value."""
    if issubclass(type(value), str):
        text = str.__str__(value).strip()
        return math.nan if text in MISSING else _of_text(text, how)
    if how == "yearmonthday" and type(value) in (int, float, np.int64, np.float64):
        return _of_text(text_of(value) or "", how)
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


def _of_object(value: Any) -> float:
    """Of what is a date by its type; NaN for anything else."""
    kind = type(value)
    if kind is np.datetime64:
        micros = value.astype("datetime64[us]")
        return math.nan if np.isnat(micros) else _within(int(micros.astype(np.int64)) / 1e6)
    if issubclass(kind, datetime):
        naive = value if value.tzinfo is None else value.replace(tzinfo=None) - value.utcoffset()
        return _within(float((naive - _EPOCH).total_seconds()))
    if issubclass(kind, date):
        return DAY * (date.toordinal(value) - date.toordinal(_EPOCH))
    return math.nan


def _of_clock(value: Any) -> float:
    """Seconds since midnight of a time, or of a date that has one."""
    if not issubclass(type(value), time):
        return _of_object(value)
    return float(value.hour * 3600 + value.minute * 60 + value.second + value.microsecond / 1e6)


def _of_datetimes(series: Any) -> NDArray[np.float64]:
    """Of a column of pandas datetimes; one with a time zone holds UTC."""
    found = np.asarray(series.astype("int64"), dtype=np.float64) / UNITS[series.dt.unit]
    return within_calendar(np.where(np.asarray(series.isna()), np.nan, found))


def within_calendar(seconds: NDArray[np.float64]) -> NDArray[np.float64]:
    """NaN for what the calendar does not have: years 1 to 9999."""
    return np.where((seconds >= _FIRST) & (seconds <= _LAST), seconds, np.nan)


def _within(seconds: float) -> float:
    """The same for one moment."""
    return seconds if _FIRST <= seconds <= _LAST else math.nan
