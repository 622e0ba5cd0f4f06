"""Is a column of a public table one of dates or times, and in which order are day, month and year?

All values must be read by one format. Where day/month and month/day both read all of them, dots say the first
(31.12.2020), and otherwise nobody can know: the column is ignored until its format is declared.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from sidelight.data.calendar import parts_of
from sidelight.data.date_values import FORMATS, Format, as_moment
from sidelight.data.schema import Column
from sidelight.data.values import as_text
from sidelight.errors import InputError

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["date_as", "recognise_date"]

_SAMPLE = 50  # values that a format is first tried on
_FEWEST = 20  # values, to take numbers of eight digits for dates


def recognise_date(values: pd.Series, name: str) -> Column | None:
    """The column of these public values, of which none is missing; None if they are no dates."""
    likely = [how for how in FORMATS if np.isfinite(as_moment(values.head(_SAMPLE), how)).mean() > 0.5]
    found = {how: as_moment(values, how) for how in likely}
    whole = [how for how in likely if np.isfinite(found[how]).all()]
    if likely == ["yearmonthday"] and (not whole or len(values) < _FEWEST):
        return None  # numbers
    if not whole:
        if likely:
            _refuse(values, found[likely[0]], name)
        return None
    how, other = whole[0], whole[-1]
    if (how, other) == ("day/month/year", "month/day/year") and not _dotted(values):
        same = np.array_equal(found[how], found[other])
        return _date_column(found[how], how) if same else Column("ignore", note=_ambiguous())
    return _date_column(found[how], how)


def date_as(values: pd.Series, name: str, kind: str) -> Column:
    """The column of these public values as a date, of any format or of one."""
    for how in FORMATS:
        found = as_moment(values, how)
        if kind in ("date", how) and np.isfinite(found).all():
            return _date_column(found, how)
    raise InputError(f"column {name!r} is no date in every public row; correct it, or take another type")


def _date_column(moments: NDArray[np.float64], how: Format) -> Column:
    parts = parts_of(moments, how)
    if not parts or (how == "time" and len(np.unique(moments)) == 1):
        return Column("ignore", note="constant in the public table; declare its bounds, if it matters")
    limits = None if how == "time" else (float(moments.min()), float(moments.max()))
    return Column("date", limits, parts=parts, format=how)


def _dotted(values: pd.Series) -> bool:
    return all("." in text for text in as_text(values) if text is not None)


def _ambiguous() -> str:
    return "dates that may be day/month or month/day; say which: --type NAME=day/month/year"


def _refuse(values: pd.Series, moments: NDArray[np.float64], name: str) -> None:
    """As for a word among numbers: more likely a slip than a category."""
    wrong = np.isnan(moments)
    if wrong.mean() < 0.5:
        at = int(np.flatnonzero(wrong)[0])
        raise InputError(
            f"column {name!r} of the public table holds dates, but also {as_text(values)[at]!r}; "
            f"correct it, or say what it is: --type {name}=category, or a schema file"
        )
