"""Values of a table as numbers or texts, each by itself: what one becomes depends on no other record.

Whatever a value is, reading it neither raises nor warns: a private one would speak through that. Values are
distinguished by `type(value)`, so that none has a say in what it is.
"""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Callable
from decimal import Decimal
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from sidelight.errors import INTERRUPTS, MissingDependency

__all__ = [
    "MISSING",
    "TRUTHS",
    "as_number",
    "as_text",
    "as_truth",
    "guarded",
    "is_missing",
    "listed",
    "number_of",
    "of_text",
    "pandas",
    "read_each",
    "text_of",
    "truth_of",
]

T = TypeVar("T")

MISSING = ("", "?", "NA", "N/A", "NaN", "nan", "null", "NULL", "None", "<NA>", "NaT")
"""What stands for a missing value in a file, whatever the column."""

TRUTHS = (("false", "true"), ("no", "yes"), ("n", "y"), ("f", "t"), ("off", "on"))
"""Words for false and true, whatever their case."""

_NUMBERS = "biuf"
_TRUTH = {word: float(i) for pair in TRUTHS for i, word in enumerate(pair)}
_NUMERAL = re.compile(r"[+-]?(?:0|[1-9][0-9]*)?(?:\.[0-9]*)?(?:[eE][+-]?[0-9]{1,3})?")  # 007 is a code
_REAL = (int, float, np.bool_, np.integer, np.floating)  # a bool is an int
_SHORT = (np.float32, np.float16)
_NO_NUMBER = (complex, np.complexfloating, np.ndarray, list, tuple, dict, set, np.datetime64, np.timedelta64)


def pandas() -> Any:
    """The package, or one sentence that says how to get it."""
    try:
        import pandas as pd
        import pyarrow  # noqa: F401
    except ImportError as error:
        raise MissingDependency("tables need pandas and pyarrow: pip install 'sidelight[tables]'") from error
    return pd


def guarded(read: Callable[[Any], T], value: Any, otherwise: T) -> T:
    """read(value), or `otherwise` if that raises; warnings of the value's own code stay unheard."""
    with warnings.catch_warnings(action="ignore"):
        try:
            return read(value)
        except INTERRUPTS:
            raise
        except BaseException:
            return otherwise


def as_number(values: Any) -> NDArray[np.float64]:
    """One float a value; NaN for what is missing or no number. Never an error.

    Each value is read by itself: what it becomes depends on no other record.
    """
    series = pandas().Series(values)
    if getattr(series.dtype, "kind", "O") in _NUMBERS:
        with np.errstate(all="ignore"):  # a long double beyond float64 becomes infinite
            found = guarded(lambda s: s.to_numpy(dtype=np.float64, na_value=np.nan), series, None)
        if found is not None:
            return np.array(found)
    return np.array(read_each(series, number_of), dtype=np.float64)


def as_truth(values: Any) -> NDArray[np.float64]:
    """0 for false, 1 for true, in words, as truth values or numbers; NaN for what is none. Never an error."""
    series = pandas().Series(values)
    if getattr(series.dtype, "kind", "O") in _NUMBERS:
        return as_number(series)
    return np.array(read_each(series, truth_of), dtype=np.float64)


def as_text(values: Any) -> NDArray[Any]:
    """One text a value, None for what is missing. Never an error, and each value by itself.

    What is written as a number has one text for one number ("1.0", "+1", "1e0" and 1 are "1"), so that files
    of all kinds agree; but zeros in front are kept ("007").
    """
    found = of_text(values, lambda text: text)
    texts = np.empty(len(found), dtype=object)
    texts[:] = found
    return texts


def of_text(values: Any, function: Callable[[str | None], T]) -> list[T]:
    """function(text) of every value, for the texts of `as_text`."""
    return read_each(pandas().Series(values), lambda value: function(text_of(value)))


def read_each(series: Any, read: Callable[[Any], Any]) -> list[Any]:
    """read(value) of every value; once only for equal texts, which is what makes it fast."""
    known = _Known(read)
    return [known[value] if type(value) is str else read(value) for value in listed(series)]


class _Known(dict[str, Any]):
    """What each text was read as."""

    def __init__(self, read: Callable[[Any], Any]) -> None:
        self.read = read

    def __missing__(self, text: str) -> Any:
        found = self[text] = self.read(text)
        return found


def listed(series: Any) -> list[Any]:
    """The values; None for one that pandas cannot take out of its column (a date beyond the year 9999)."""
    if series.dtype in _SHORT:
        return list(series.to_numpy())  # a list of Python's floats would have digits that nobody wrote
    found = guarded(lambda s: s.tolist(), series, None)
    if found is not None:
        return list(found)
    return [guarded(lambda i: series.iloc[i], i, None) for i in range(len(series))]


def number_of(value: Any) -> float:
    """The value as a float; NaN for what is missing or no number. Never an error, never a warning."""
    kind = type(value)
    if kind is float:
        return float(value)
    if issubclass(kind, str):
        text = str.__str__(value)
        return math.nan if text.strip() in MISSING or "_" in text else _quiet_float(text)
    if value is None or issubclass(kind, _NO_NUMBER):
        return math.nan
    if issubclass(kind, _REAL) and kind.__module__ in ("builtins", "numpy"):
        return _quiet_float(value)
    return guarded(lambda one: float(float(one)), value, math.nan)


def truth_of(value: Any) -> float:
    """A word for true or false as 1 or 0, and anything else as the number that it is."""
    if issubclass(type(value), str):
        word = _TRUTH.get(str.__str__(value).strip().lower())
        if word is not None:
            return word
    return number_of(value)


def is_missing(value: Any) -> bool:
    """Whether it stands for no value: None, NaN, pandas' NA and NaT, or a text that says so."""
    kind = type(value)
    if issubclass(kind, str):
        return str.__str__(value).strip() in MISSING
    if value is None or kind.__name__ in ("NAType", "NaTType"):
        return True
    return kind in (float, np.float64, np.float32) and math.isnan(value)


def _quiet_float(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return math.nan


def text_of(value: Any) -> str | None:
    """The value as a text, None for what is missing; see `as_text`."""
    kind: type[Any] = type(value)
    if value is None:
        return None
    if issubclass(kind, str):
        text = str.__str__(value).strip()
    elif kind in (bool, np.bool_):
        return str(value)
    elif kind in (int, float) or _is_numpy_real(kind):
        return _text_of_number(value)
    elif kind is Decimal and value.is_nan():  # a signalling one raises wherever it is compared
        return None
    else:
        text = guarded(lambda one: str.__str__(_named(one)).strip(), value, "")
    return None if text in MISSING else _canonical(text)


def _canonical(text: str) -> str:
    """The text that the same number has where it is stored as one."""
    if not _NUMERAL.fullmatch(text) or math.isinf(real := _quiet_float(text)):
        return text
    return _text_of_number(real) or text  # "." and "+" are no numbers


def _is_numpy_real(kind: type[Any]) -> bool:
    """A timedelta64 is an integer, says NumPy."""
    return issubclass(kind, np.number) and np.dtype(kind).kind in "iuf"


def _named(value: Any) -> str:
    """As a text file would have it: bytes are text, and midnight is a date."""
    if issubclass(type(value), bytes):
        return bytes.decode(value, "utf-8", "replace")
    return str(value).removesuffix(" 00:00:00")


def _text_of_number(value: Any) -> str | None:
    """Whole numbers go through a float, as they do in a column with gaps."""
    try:
        real = float(str(value)) if type(value) in _SHORT else float(value)  # of the digits that it has
    except OverflowError:
        return hex(value)  # its decimal digits may be more than Python is willing to write
    if math.isnan(real):
        return None
    return str(int(real)) if real.is_integer() else repr(real)
