"""Values of a table as numbers or texts, each by itself: what one becomes depends on no other record."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sidelight.errors import MissingDependency

__all__ = ["MISSING", "as_number", "as_text", "pandas"]

MISSING = ("", "?", "NA", "N/A", "NaN", "nan", "null", "NULL", "None", "<NA>", "NaT")
"""What stands for a missing value in a file, whatever the column."""

_NUMBERS = "biuf"
_DECIMAL = re.compile(r"-?\d+\.\d*")


def pandas() -> Any:
    """The package, or one sentence that says how to get it."""
    try:
        import pandas as pd
        import pyarrow  # noqa: F401
    except ImportError as error:
        raise MissingDependency("tables need pandas and pyarrow: pip install 'sidelight[tables]'") from error
    return pd


def as_number(values: Any) -> NDArray[np.float64]:
    """One float a value; NaN for what is missing or no number. Never an error.

    Each value is read by itself: what it becomes depends on no other record.
    """
    series = pandas().Series(values)
    if getattr(series.dtype, "kind", "O") in _NUMBERS:
        return np.array(series.to_numpy(dtype=np.float64, na_value=np.nan))
    return np.fromiter(_each(series, _number), dtype=np.float64, count=len(series))


def as_text(values: Any) -> NDArray[Any]:
    """One text a value, None for what is missing. Never an error, and each value by itself.

    A number has no zeros after its last decimal ("1.0" and 1 are "1"), so that files of all kinds agree.
    """
    series = pandas().Series(values)
    texts = np.empty(len(series), dtype=object)
    texts[:] = list(_each(series, _text))
    return texts


def _each(series: Any, read: Callable[[Any], Any]) -> Iterator[Any]:
    """read(value) of every value; once only for equal texts, which is what makes it fast."""
    known: dict[str, Any] = {}
    for value in series.tolist():
        if type(value) is not str:
            yield read(value)
            continue
        if value not in known:
            known[value] = read(value)
        yield known[value]


def _number(value: Any) -> float:
    if isinstance(value, str) and (value.strip() in MISSING or "_" in value):
        return math.nan
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return math.nan


def _text(value: Any) -> str | None:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return _text_of_number(value)
    text = str(value).strip()
    if text in MISSING:
        return None
    return text.rstrip("0").rstrip(".") if _DECIMAL.fullmatch(text) else text


def _text_of_number(value: float) -> str | None:
    """Whole numbers go through a float, as they do in a column with gaps."""
    try:
        real = float(value)
    except OverflowError:
        return str(value)
    if math.isnan(real):
        return None
    return str(int(real)) if real.is_integer() else repr(real)
