"""The parts of a date, of which a model sees some, and dates in a schema file.

    position  where it lies between the bounds, in days or finer
    year      which calendar year, for bounds that span two to ten of them
    month     the season: sine and cosine of the time of the year
    weekday   which of seven
    hour      sine and cosine of the time of the day

Seasons and hours go around in circles in which neighbors are alike; two columns say that, where twelve or 24
would each need noise of their own. Weekdays are neither ordered nor smooth: Saturday is no mean of its
neighbors.
"""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from sidelight.arrays import Floats, Json
from sidelight.data.moments import DAY, FORMATS, ISO, Format, iso_of, moment_of
from sidelight.data.schema_entries import (
    list_of,
    one_of,
)
from sidelight.errors import InputError

Part = Literal["position", "year", "month", "weekday", "hour"]
Limits = tuple[float, float] | None


PARTS: tuple[Part, ...] = ("position", "year", "month", "weekday", "hour")


MOST_YEARS = 10  # of which each may have a column of its own


def years(seconds: Floats) -> NDArray[np.int64]:
    return months(seconds) // 12 + 1970


def seasons(seconds: Floats) -> Floats:
    """The time of the year as an angle; months count as equally long."""
    since = months(seconds)
    first = since.astype("datetime64[M]").astype("datetime64[D]").astype(np.int64)
    day = seconds // DAY - first  # of the month, from 0
    return np.asarray(2 * np.pi * (since % 12 + day / 31) / 12)


def weekdays(seconds: Floats) -> NDArray[np.int64]:
    """The days of the week; 0 is Monday."""
    return ((seconds // DAY).astype(np.int64) + 3) % 7


def hours(seconds: Floats) -> Floats:
    """The time of the day as an angle."""
    return np.asarray(2 * np.pi * (seconds % DAY) / DAY)


def months(seconds: Floats) -> NDArray[np.int64]:
    """Whole months since January 1970."""
    days = (seconds // DAY).astype(np.int64).astype("datetime64[D]")
    return np.asarray(days.astype("datetime64[M]").astype(np.int64))


def spanned_years(limits: tuple[float, float]) -> range:
    first, last = years(np.array(limits))
    return range(int(first), int(last) + 1)


def date_to_dict(limits: Limits, parts: tuple[Part, ...], how: Format) -> Json:
    out: Json = {} if limits is None else {"bounds": [iso_of(edge) for edge in limits]}
    return out | {"parts": list(parts)} | ({} if how == ISO else {"format": how})


def date_from_dict(body: Json, where: str) -> tuple[Limits, tuple[Part, ...], Format]:
    how = one_of(body.get("format", ISO), FORMATS, f"{where}: format")
    limits = None if how == "time" else _limits(body.get("bounds"), f"{where}: bounds")
    if "parts" not in body:
        return limits, _usual(limits), how
    parts = tuple(
        one_of(part, PARTS, f"{where}: parts") for part in list_of(body["parts"], f"{where}: parts")
    )
    if not parts or len(set(parts)) < len(parts):
        raise InputError(f"{where}: parts must be at least one of {', '.join(PARTS)}, each named once")
    if limits is None and set(parts) != {"hour"}:
        raise InputError(f'{where}: parts of a time can only be ["hour"]')
    if "year" in parts and limits and len(spanned_years(limits)) > MOST_YEARS:
        raise InputError(f"{where}: parts may have a year for bounds that span at most {MOST_YEARS} years")
    return limits, tuple(part for part in PARTS if part in parts), how


def _limits(value: object, where: str) -> tuple[float, float]:
    edges = value if isinstance(value, list) and len(value) == 2 else []
    found = [moment_of(edge, ISO) for edge in edges if isinstance(edge, str)]
    if len(found) < 2 or any(math.isnan(edge) for edge in found):
        raise InputError(f'{where} must be two dates, such as ["2019-01-01", "2024-12-31"]')
    if found[0] >= found[1]:
        raise InputError(f"{where} must be an earlier and a later date")
    return found[0], found[1]


def _usual(limits: Limits) -> tuple[Part, ...]:
    if limits is None:
        return ("hour",)
    few = 2 <= len(spanned_years(limits)) <= MOST_YEARS
    return ("position", "year", "month", "weekday") if few else ("position", "month", "weekday")
