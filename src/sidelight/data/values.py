"""Values of a table as numbers, truth values or texts, each by itself; `data.moments` has dates and times.

What a value becomes depends on no other record. Whatever it is, reading it neither raises nor warns: a
private one would speak through that.

Columns come as Arrow arrays (of a file), as series of pandas (of a frame) or as lists. Whatever is fast for a
column (`as_number`, `as_truth`, `as_indices`) gives what `number_of`, `truth_of` and `text_of` give for the
value alone, and what it cannot read goes to them, once for equal values.
"""

from __future__ import annotations

import cmath
import math
import re
from collections.abc import Callable, Iterable, Sequence
from decimal import Decimal
from types import ModuleType
from typing import TYPE_CHECKING, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from sidelight.arrays import Array, Floats
from sidelight.errors import MissingDependency, guarded

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa


T = TypeVar("T")
# A column, or some rows of one.
ColumnData: TypeAlias = "pa.Array | pa.ChunkedArray | pd.Series | Iterable[object]"

MISSING = (
    "", "?", "NA", "N/A", "n/a", "#N/A", "#NA", "<NA>", "NaN", "nan", "-nan", "-NaN", "null", "NULL", "None",
    "NaT",
)  # fmt: skip
"""Words for a missing value in a file, in every column."""

TRUTHS = (("false", "true"), ("no", "yes"), ("n", "y"), ("f", "t"), ("off", "on"))
"""Words for false and true, in any case."""


_NUMBERS = "biuf"
_MISSING = frozenset(MISSING)
_TRUTH = {word: float(i) for pair in TRUTHS for i, word in enumerate(pair)}
_REAL = (int, float, np.bool_, np.integer, np.floating)  # a bool is an int
_COMPLEX = (complex, np.complexfloating)  # what one complex value makes of a column of numbers
_NO_NUMBER = (np.ndarray, list, tuple, dict, set, np.datetime64, np.timedelta64)
_NUMERAL = re.compile(r"[+-]?(?:0|[1-9][0-9]*)?(?:\.[0-9]*)?(?:[eE][+-]?[0-9]{1,3})?")  # 007 is a code
# Every text of this form is a number for Arrow and for Python, the same one, and finite.
_ARROW_NUMERAL = r"\A-?[0-9]{1,40}(\.[0-9]{1,40})?([eE][+-]?[0-9]{1,2})?\z"


def pandas() -> ModuleType:
    """The package, or one sentence that says how to get it."""
    try:
        import pandas as pd
        import pyarrow  # noqa: F401
    except ImportError as error:
        raise MissingDependency("tables need pandas and pyarrow: pip install pandas pyarrow") from error
    found: ModuleType = pd
    return found


# ---------------------------------------------------------------------------------------------------
# columns


def as_series(values: ColumnData) -> pd.Series:
    """A series of these values, in which objects and texts stay objects.

    pandas would take the type from what they are, and Arrow, in which it keeps texts, raises on half of a
    surrogate pair.
    """
    plain = isinstance(values, np.ndarray) and values.dtype.kind in "OU"
    return pandas().Series(values, dtype=object if plain else None)


def as_number(values: ColumnData) -> Floats:
    """One float a value; NaN for what is missing or no number. Never an error."""
    column = _arrow(values)
    if column is None:
        return _numbers_of_series(as_series(values))
    if is_arrow_text(column.type):
        return _numbers_of_texts(column)
    found = _cast(column)
    return _each(column, number_of) if found is None else found


def as_truth(values: ColumnData) -> Floats:
    """0 for false, 1 for true, in words, as truth values or numbers; NaN for what is none. Never an error."""
    column = _arrow(values)
    if column is None:
        series = as_series(values)
        numeric = getattr(series.dtype, "kind", "O") in _NUMBERS
        return _numbers_of_series(series) if numeric else np.array(_read_each(series, truth_of), np.float64)
    found = None if is_arrow_text(column.type) else _cast(column)
    return _each(column, truth_of) if found is None else found


def as_text(values: ColumnData) -> Array:
    """One text a value, None for what is missing. Never an error, and each value by itself.

    What is written as a number has one text for one number ("1.0", "+1", "1e0" and 1 are "1"), so that files
    of all kinds agree; but zeros in front are kept ("007").
    """
    found = _read_each(as_series(values), text_of)
    texts = np.empty(len(found), dtype=object)
    texts[:] = found
    return texts


def category_indices(values: ColumnData, place: Callable[[object], int]) -> NDArray[np.intp]:
    """place(value) of every value; once for equal texts, and for equal values of Arrow."""
    column = _arrow(values)
    if column is None:
        return np.array(_read_each(as_series(values), place), dtype=np.intp)
    return _each(column, place).astype(np.intp)


def as_indices(values: ColumnData, index: Callable[[str | None], int]) -> NDArray[np.intp]:
    """index(text) of every value, for the texts of `as_text`."""
    return category_indices(values, lambda value: index(text_of(value)))


def as_codes(values: ColumnData, code: Callable[[object], int]) -> NDArray[np.intp]:
    """code(value) of every value, once for equal ones; texts as the bytes that they are."""
    column = _arrow(values)
    if column is None:
        return np.array([code(value) for value in _values_of_series(values)], dtype=np.intp)
    return _each(column, code, exact=True).astype(np.intp)


def is_arrow_text(kind: pa.DataType) -> bool:
    """Text, or bytes that are one: never checked, since one that is not UTF-8 would stop the others."""
    from pyarrow import types

    texts = (types.is_string, types.is_large_string, types.is_string_view)
    binary = (types.is_binary, types.is_large_binary, types.is_binary_view, types.is_fixed_size_binary)
    return any(is_kind(kind) for is_kind in (*texts, *binary))


# ---------------------------------------------------------------------------------------------------
# single values


def number_of(value: object) -> float:
    """The value as a float; NaN for what is missing or no number. Never an error, never a warning."""
    kind = type(value)
    if type(value) is float:
        return value
    if issubclass(kind, _COMPLEX):
        return guarded(_without_imaginary, value, math.nan)
    if isinstance(value, str | bytes):
        text = _written(value)
        return math.nan if text.strip() in _MISSING or "_" in text else _quiet_float(text)
    if value is None or issubclass(kind, _NO_NUMBER):
        return math.nan
    if issubclass(kind, _REAL) and kind.__module__ in ("builtins", "numpy"):
        return _quiet_float(value)
    return guarded(_float, value, math.nan)


def truth_of(value: object) -> float:
    """A word for true or false as 1 or 0, and anything else as the number that it is."""
    if isinstance(value, str | bytes):
        word = _TRUTH.get(_written(value).strip().lower())
        if word is not None:
            return word
    return number_of(value)


def text_of(value: object) -> str | None:
    """The value as a text, None for what is missing; see `as_text`."""
    kind = type(value)
    if value is None:
        return None
    if kind in (int, float) or _is_numpy_real(kind):
        return _text_of_number(value)
    if issubclass(kind, _COMPLEX) and (guarded(_is_nan, value, False) or not math.isnan(number_of(value))):
        return _text_of_number(number_of(value))
    if isinstance(value, str | bytes):
        text = _written(value).strip()
    elif kind in (bool, np.bool_):
        return str(value)
    elif type(value) is Decimal and value.is_nan():  # a signalling one raises wherever it is compared
        return None
    else:
        text = guarded(lambda one: str.__str__(_named(one)).strip(), value, "")
    return None if text in _MISSING else _canonical(text)


def spellings(names: Sequence[str]) -> dict[str | None, int]:
    """The place of each name, under every text that stands for it in some kind of file.

    A truth value is "True" in pandas, "true" elsewhere, and 1 among numbers; a number declared as "1.0" is
    read as "1".
    """
    places: dict[str | None, int] = {name: i for i, name in enumerate(names)}
    truths = {
        name: ("false", "true").index(name.lower()) for name in names if name.lower() in ("false", "true")
    }
    for i, name in enumerate(names):
        spelt = (
            (name.lower(), name.capitalize(), name.upper()) if name in truths else (text_of(name) or name,)
        )
        for text in spelt:
            places.setdefault(text, i)
    for name, number in truths.items():
        places.setdefault(str(number), places[name])
    return places


def is_missing(value: object) -> bool:
    """Whether it stands for no value: None, NaN, pandas' NA and NaT, or a text that says so."""
    kind = type(value)
    if isinstance(value, str):
        return str.__str__(value).strip() in _MISSING
    if value is None or kind.__name__ in ("NAType", "NaTType"):
        return True
    return kind in (float, np.float64, np.float32) and math.isnan(_float(value))


def _without_imaginary(value: object) -> float:
    """A complex number that is a real one; NaN for any other."""
    number = complex(value)  # type: ignore[call-overload]
    return float(number.real) if number.imag == 0 else math.nan


def _is_nan(value: object) -> bool:
    return cmath.isnan(complex(value))  # type: ignore[call-overload]


def _float(value: object) -> float:
    """By the value's own code, if it has any."""
    return float(float(value))  # type: ignore[arg-type]


def _quiet_float(value: object) -> float:
    try:
        return float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        return math.nan


def _canonical(text: str) -> str:
    """The text that the same number has where it is stored as one."""
    if not _NUMERAL.fullmatch(text) or math.isinf(real := _quiet_float(text)):
        return text
    return _text_of_number(real) or text  # "." and "+" are not numbers


def _is_numpy_real(kind: type) -> bool:
    """A timedelta64 is an integer, says NumPy."""
    return issubclass(kind, np.number) and np.dtype(kind).kind in "iuf"


def _written(value: str | bytes) -> str:
    """Bytes are text: so they are in files, and so NumPy has texts beside bytes."""
    return bytes.decode(value, "utf-8", "replace") if isinstance(value, bytes) else str.__str__(value)


def _named(value: object) -> str:
    """As a text file would have it: midnight is a date."""
    if type(value) is np.datetime64:
        value = value.astype("datetime64[us]").item()
    return str(value).removesuffix(" 00:00:00")


def _text_of_number(value: object) -> str | None:
    """Whole numbers go through a float, as they do in a column with gaps.

    A number of 32 bits has the digits that it has there (0.1, not 0.10000000149011612), however it is stored:
    one odd cell turns a column of float32 into objects of Python.
    """
    try:
        real = _float(value)
    except OverflowError:  # an int; its decimal digits may be more than Python is willing to write
        return hex(value) if isinstance(value, int) else None
    if math.isnan(real):
        return None
    if real.is_integer():
        return str(int(real))
    with np.errstate(all="ignore"):
        short = np.float32(real)
    return repr(real) if float(short) != real else repr(float(str(short)))


# ---------------------------------------------------------------------------------------------------
# series of pandas


def _numbers_of_series(series: pd.Series) -> Floats:
    """By their type, or value by value."""
    if getattr(series.dtype, "kind", "O") in _NUMBERS:
        with np.errstate(all="ignore"):  # a long double beyond float64 becomes infinite
            found = guarded(lambda s: s.to_numpy(dtype=np.float64, na_value=np.nan), series, None)
        if found is not None:
            return np.array(found)
    return np.array(_read_each(series, number_of), dtype=np.float64)


def _read_each(series: pd.Series, read: Callable[[object], T]) -> list[T]:
    """read(value) of every value; once only for equal texts, which is what makes it fast."""
    known = _Known(read)
    return [known[value] if type(value) is str else read(value) for value in _values_of_series(series)]


class _Known(dict[str, T]):
    """What each text was read as."""

    def __init__(self, read: Callable[[object], T]) -> None:
        self.read = read

    def __missing__(self, text: str) -> T:
        found = self[text] = self.read(text)
        return found


def _values_of_series(series: pd.Series) -> list[object]:
    """The values; None for one that pandas cannot take out of its column (a date beyond the year 9999)."""
    found = guarded(lambda s: s.tolist(), series, None)
    if found is not None:
        return list(found)
    return [guarded(lambda i: series.iloc[i], i, None) for i in range(len(series))]


# ---------------------------------------------------------------------------------------------------
# arrays of Arrow


def _arrow(values: ColumnData) -> pa.Array | None:
    """The column as one Arrow array; None for what is not Arrow's."""
    pandas()  # or one sentence that says how to get both
    import pyarrow as pa

    kind = getattr(values, "dtype", None)
    if hasattr(kind, "pyarrow_dtype") or getattr(kind, "storage", None) == "pyarrow":  # in a frame of pandas
        values = guarded(pa.array, values, None)
    if not isinstance(values, pa.Array | pa.ChunkedArray):
        return None
    whole = values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values
    if isinstance(whole, pa.ChunkedArray):  # too long for one array
        whole = pa.concat_arrays(whole.chunks)
    kind = whole.type.value_type if pa.types.is_dictionary(whole.type) else whole.type
    if not is_arrow_text(kind):
        return whole
    binary = pa.large_binary()
    return whole.cast(pa.dictionary(pa.int64(), binary) if kind is not whole.type else binary)


def _cast(column: pa.Array) -> Floats | None:
    """Numbers and truth values as floats; None for other types."""
    import pyarrow as pa
    from pyarrow import compute, types

    kind = column.type
    if not (types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind)):
        return None
    counted = compute.cast(column, pa.int8()) if types.is_boolean(kind) else column
    found = compute.cast(counted, pa.float64(), safe=False)
    return np.asarray(found.to_numpy(zero_copy_only=False), dtype=np.float64)


def _each(column: pa.Array, read: Callable[[object], float], *, exact: bool = False) -> Floats:
    """read(value) of every value, once for equal ones."""
    values, where = _distinct(column, exact=exact)
    known = np.array([*map(read, values), read(None)], dtype=np.float64)
    return known[where]


def _distinct(column: pa.Array, *, exact: bool = False) -> tuple[list[object], NDArray[np.intp]]:
    """The different values (texts as bytes, if `exact`), and which of them each record has, −1 for none."""
    import pyarrow as pa

    try:
        coded = column if pa.types.is_dictionary(column.type) else column.dictionary_encode()
    except pa.ArrowException:  # lists and the like
        return _listed(column), np.arange(len(column), dtype=np.intp)
    where = coded.indices.cast(pa.int64()).fill_null(-1).to_numpy(zero_copy_only=False)
    used = np.zeros(len(coded.dictionary) + 1, dtype=bool)  # no record may have an entry; −1 is the last
    used[where] = True
    places = np.where(used, np.cumsum(used) - 1, -1)
    places[-1] = -1
    return _listed(coded.dictionary.filter(pa.array(used[:-1])), exact=exact), places[where].astype(np.intp)


def _listed(column: pa.Array, *, exact: bool = False) -> list[object]:
    """The values of Python; None for one that it does not have, such as a date beyond its calendar."""
    import pyarrow as pa

    if is_arrow_text(column.type):
        binary: list[bytes | None] = column.cast(pa.large_binary()).to_pylist()
        if exact:
            return list(binary)
        return [None if text is None else text.decode("utf-8", "replace") for text in binary]
    if pa.types.is_floating(column.type):
        return list(column.to_numpy(zero_copy_only=False))
    return [guarded(lambda one: one.as_py(), scalar, None) for scalar in column]


def _numbers_of_texts(column: pa.Array) -> Floats:
    import pyarrow as pa
    from pyarrow import compute

    texts = column.view(pa.large_string())  # not checked
    plain = compute.match_substring_regex(texts, _ARROW_NUMERAL).fill_null(False)
    found = np.full(len(column), np.nan)
    fast = plain.to_numpy(zero_copy_only=False)
    found[fast] = compute.cast(texts.filter(plain), pa.float64()).to_numpy(zero_copy_only=False)
    if not fast.all():
        found[~fast] = _each(column.filter(compute.invert(plain)), number_of)
    return found
