"""A column of a private table as numbers, truth values, places in a list or moments: each value by itself.

Columns come as Arrow arrays (of a file) or as series of pandas (of a frame). Whatever is fast here gives what
`number_of`, `truth_of`, `text_of` and `moment_of` give for the value alone, and what it cannot read goes to
them, once for equal values.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from sidelight.data.date_values import DAY, ISO, UNITS, Format, as_moment, moment_of, within_calendar
from sidelight.data.values import as_number, as_truth, guarded, listed, number_of, of_text, text_of, truth_of

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

__all__ = ["codes", "moments", "numbers", "places", "truths"]

Cells: TypeAlias = "pa.Array | pa.ChunkedArray | pd.Series"
Floats = NDArray[np.float64]
# Every text of this form is a number for Arrow and for Python, the same one, and finite.
_NUMERAL = r"\A-?[0-9]{1,40}(\.[0-9]{1,40})?([eE][+-]?[0-9]{1,2})?\z"
_DATE_AND_TIME = r"\A[0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9]{2}:[0-9]{2}:[0-9]{2}\z"


def numbers(cells: Cells) -> Floats:
    """One float a value; NaN for what is missing or no number."""
    column = _arrow(cells)
    if column is None:
        return as_number(cells)
    if _is_text(column.type):
        return _numbers_of_texts(column)
    found = _cast(column)
    return _each(column, number_of) if found is None else found


def truths(cells: Cells) -> Floats:
    """0 for false, 1 for true, NaN for what is missing or neither."""
    column = _arrow(cells)
    if column is None:
        return as_truth(cells)
    found = None if _is_text(column.type) else _cast(column)
    return _each(column, truth_of) if found is None else found


def places(cells: Cells, place: Callable[[str | None], int]) -> NDArray[np.intp]:
    """place(text) of every value, for the texts of `text_of`."""
    column = _arrow(cells)
    if column is None:
        return np.array(of_text(cells, place), dtype=np.intp)
    return _each(column, lambda value: place(text_of(value))).astype(np.intp)


def codes(cells: Cells, code: Callable[[object], int]) -> NDArray[np.intp]:
    """code(value) of every value, once for equal ones; texts as the bytes that they are."""
    column = _arrow(cells)
    if column is None:
        return np.array([code(value) for value in listed(cells)], dtype=np.intp)
    return _each(column, code, exact=True).astype(np.intp)


def moments(cells: Cells, how: Format) -> Floats:
    """Seconds since 1970 (since midnight, if `how` is "time"); NaN for what is missing or no moment."""
    column = _arrow(cells)
    if column is None:
        return as_moment(cells, how)
    if _is_text(column.type):
        return _moments_of_texts(column, how)
    found = _moments_of_dates(column)
    if found is None:
        return _each(column, lambda value: moment_of(value, how))
    return found % DAY if how == "time" else found


def _arrow(cells: Any) -> pa.Array | None:
    """The column as one Arrow array; None for what is not Arrow's."""
    import pyarrow as pa

    if getattr(getattr(cells, "dtype", None), "storage", None) == "pyarrow":  # texts of pandas
        cells = guarded(pa.array, cells, None)
    if not isinstance(cells, pa.Array | pa.ChunkedArray):
        return None
    whole = cells.combine_chunks() if isinstance(cells, pa.ChunkedArray) else cells
    if isinstance(whole, pa.ChunkedArray):  # too long for one array
        whole = pa.concat_arrays(whole.chunks)
    kind = whole.type.value_type if pa.types.is_dictionary(whole.type) else whole.type
    if not _is_text(kind):
        return whole
    binary = pa.large_binary()
    return whole.cast(pa.dictionary(pa.int64(), binary) if kind is not whole.type else binary)


def _is_text(kind: pa.DataType) -> bool:
    """Text, or bytes that are one: never checked, since one that is not UTF-8 would stop the others."""
    from sidelight.data.storage import storage_of_arrow

    return storage_of_arrow(kind) == "text" and not hasattr(kind, "value_type")


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


def _each(column: pa.Array, read: Callable[[Any], float], *, exact: bool = False) -> Floats:
    """read(value) of every value, once for equal ones."""
    values, where = _distinct(column, exact=exact)
    known = np.array([*map(read, values), read(None)], dtype=np.float64)
    return known[where]


def _distinct(column: pa.Array, *, exact: bool = False) -> tuple[list[Any], NDArray[np.intp]]:
    """The different values (texts as bytes, if `exact`), and the place of each record's, −1 for none."""
    import pyarrow as pa

    try:
        coded = column if pa.types.is_dictionary(column.type) else column.dictionary_encode()
    except pa.ArrowException:  # lists and the like, whatever is in them
        return _listed(column), np.arange(len(column), dtype=np.intp)
    where = coded.indices.cast(pa.int64()).fill_null(-1).to_numpy(zero_copy_only=False)
    return _listed(coded.dictionary, exact=exact), where.astype(np.intp, copy=False)


def _listed(column: pa.Array, *, exact: bool = False) -> list[Any]:
    """The values of Python; None for one that it does not have, such as a date beyond its calendar."""
    import pyarrow as pa

    if _is_text(column.type):
        binary: list[Any] = column.cast(pa.large_binary()).to_pylist()
        if exact:
            return binary
        return [None if text is None else text.decode("utf-8", "replace") for text in binary]
    if pa.types.is_floating(column.type):
        return list(column.to_numpy(zero_copy_only=False))  # of their own width, and so with their own digits
    return [guarded(lambda cell: cell.as_py(), scalar, None) for scalar in column]


# ---------------------------------------------------------------------------------------------------
# texts


def _numbers_of_texts(column: pa.Array) -> Floats:
    import pyarrow as pa
    from pyarrow import compute

    texts = column.view(pa.large_string())  # not checked
    plain = compute.match_substring_regex(texts, _NUMERAL).fill_null(False)
    found = np.full(len(column), np.nan)
    fast = plain.to_numpy(zero_copy_only=False)
    found[fast] = compute.cast(texts.filter(plain), pa.float64()).to_numpy(zero_copy_only=False)
    if not fast.all():
        found[~fast] = _each(column.filter(compute.invert(plain)), number_of)
    return found


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

    if types.is_date32(column.type):
        counts, seconds, size = column.view(pa.int32()), DAY, 1.0
    elif types.is_timestamp(column.type) or types.is_date64(column.type):
        counts, seconds, size = column.view(pa.int64()), 1.0, UNITS[getattr(column.type, "unit", "ms")]
    else:
        return None
    found = np.asarray(counts.to_numpy(zero_copy_only=False), dtype=np.float64)
    return within_calendar(found * seconds / size)
