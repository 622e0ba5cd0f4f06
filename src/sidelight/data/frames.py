"""Frames of pandas and of other libraries (polars): names, types and columns, without a look at the values.

pandas is read as it is, anything else through narwhals. A column of polars becomes an array of Arrow, and one
of Python's objects a series of objects: both are what `data.values` reads value by value. Which of the two is
decided by the type of the column alone.

The type that a Parquet file or a frame declares for a column is public; what pandas chooses by itself is not
(`storage`). It need not be the schema's: numbers may be stored as texts, truth values as numbers, and each
value is read by the type of the schema. But a list is no number, whatever is in it, and a column that cannot
be read is better refused than missing throughout.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import ModuleType
from typing import TYPE_CHECKING, TypeAlias, TypeGuard, TypeVar

import numpy as np

from sidelight.arrays import Array
from sidelight.data.values import ColumnData, as_number, guarded, is_arrow_text, pandas
from sidelight.errors import InputError, MissingDependency

if TYPE_CHECKING:
    import narwhals as nw
    import pandas as pd
    import polars as pl
    import pyarrow as pa
    from narwhals.typing import IntoDataFrame, IntoSeries

    from sidelight.data.schema import Schema

__all__ = [
    "Frame",
    "Storage",
    "as_pandas",
    "check_storage",
    "column_of",
    "is_frame",
    "is_mixed",
    "names_of",
    "objects_of",
    "series_values",
    "storage",
    "storage_of_arrow",
    "without_column",
]


T = TypeVar("T")
Frame: TypeAlias = "pd.DataFrame | pl.DataFrame"
# "number", "truth", "text", "date", "time", "any" for objects, "floats" for those of pandas; or the name of
# another type.
Storage = str
NarwhalsFrame: TypeAlias = "nw.DataFrame[IntoDataFrame]"
NarwhalsSeries: TypeAlias = "nw.Series[IntoSeries]"
_NUMBERS = "biuf"
_OBJECTS = ("Object", "Unknown")  # how narwhals calls what holds objects of Python, or nothing


def is_frame(source: object) -> TypeGuard[Frame]:
    """Whether this is a table with named columns, and not an array or the path of a file."""
    return hasattr(type(source), "columns")  # not of the object: a lazy frame computes its columns


def names_of(frame: Frame, where: str) -> list[str]:
    """The names, as texts; each must occur once."""
    names = [str(name) for name in (frame.columns if _is_pandas(frame) else _narwhal(frame).columns)]
    if twice := [name for i, name in enumerate(names) if name in names[:i]]:
        raise InputError(f"{where} has two columns of one name: {twice[0]!r}")
    return names


def storage(frame: Frame, *, private: bool = False) -> dict[str, Storage]:
    """How each column is stored, by its type.

    Of a private frame of pandas, types of NumPy say nothing: one missing value makes floats of integers and
    objects of truth values, one odd value objects of dates. Types that a user asks for (Int64, Arrow) do.
    """
    if _is_pandas(frame):
        kinds = zip(frame.columns, frame.dtypes, strict=True)
        unknown = np.dtype if private else ()
        return {str(name): "any" if isinstance(kind, unknown) else _of_dtype(kind) for name, kind in kinds}
    found = _narwhal(frame)
    return {name: _storage(found[name]) for name in found.columns}


def is_mixed(frame: Frame) -> bool:
    """Whether some column of a public frame is no number by its type; truth values are numbers."""
    if _is_pandas(frame):
        return any(getattr(kind, "kind", "O") not in _NUMBERS for kind in frame.dtypes)
    from pyarrow import types

    found = _narwhal(frame)
    numeric = (types.is_integer, types.is_floating, types.is_boolean)
    kinds = [empty.type for name in found.columns if (empty := _arrow(found[name][:0])) is not None]
    return len(kinds) < len(found.columns) or not all(any(is_(kind) for is_ in numeric) for kind in kinds)


def column_of(frame: Frame, index: int, rows: slice) -> ColumnData:
    """Some rows of a column, as `data.values` takes them."""
    if _is_pandas(frame):
        return frame.iloc[rows, index]
    found = _narwhal(frame)
    return _column_data(found[found.columns[index]][rows])


def as_pandas(frame: Frame, where: str) -> pd.DataFrame:
    """A public frame as one of pandas, with texts for names."""
    names = names_of(frame, where)
    if _is_pandas(frame):
        return frame if names == list(frame.columns) else frame.set_axis(names, axis=1)
    columns = {name: _series(column_of(frame, i, slice(None))) for i, name in enumerate(names)}
    return pandas().DataFrame(columns)


def without_column(table: T, name: str) -> T:
    """A frame without one of its columns; anything else, and a frame that has none of that name, as it is."""
    if not is_frame(table):
        return table
    if _is_pandas(table):
        kept = [str(column) != name for column in table.columns]
        without: T = table if all(kept) else table.loc[:, kept]
        return without
    if name in _narwhal(table).columns:
        table = _narwhals().from_native(table).drop(name).to_native()
    return table


def series_values(values: object) -> object:
    """A private column of polars: floats if its type is a number, else objects. Anything else as it is."""
    if not _is_other_series(values):
        return values
    column = _column(values)
    return as_number(_column_data(column)) if _storage(column) == "number" else _objects(column)


def objects_of(frame: Frame, index: int) -> list[object]:
    """The values of a column of a frame that is not pandas', as Python has them."""
    found = _narwhal(frame)
    return list(found[found.columns[index]].to_list())


def _is_other_series(values: object) -> bool:
    return hasattr(type(values), "to_arrow") and hasattr(type(values), "dtype")


def _is_pandas(frame: Frame) -> TypeGuard[pd.DataFrame]:
    return hasattr(type(frame), "iloc")


def _narwhals() -> ModuleType:
    try:
        import narwhals
    except ImportError as error:
        raise MissingDependency(
            "frames other than pandas' need narwhals: pip install 'sidelight[tables]'"
        ) from error
    return narwhals


def _narwhal(frame: Frame) -> NarwhalsFrame:
    try:
        found: NarwhalsFrame = _narwhals().from_native(frame, eager_only=True)
    except TypeError:
        raise InputError(
            f"a {type(frame).__name__} is not a table that can be read; expected a frame of pandas or polars "
            "(of a lazy one, frame.collect())"
        ) from None
    return found


def _column(series: object) -> NarwhalsSeries:
    found: NarwhalsSeries = _narwhals().from_native(series, series_only=True)
    return found


def _storage(column: NarwhalsSeries) -> Storage:
    empty = _arrow(column[:0])
    return "any" if empty is None else storage_of_arrow(empty.type)


def _column_data(column: NarwhalsSeries) -> ColumnData:
    """By the type of the column; what Arrow has no type for (numbers of 128 bits) is read as objects."""
    found = None if _arrow(column[:0]) is None else _arrow(column)
    return pandas().Series(_objects(column), dtype=object) if found is None else found


def _arrow(column: NarwhalsSeries) -> pa.ChunkedArray | None:
    if type(column.dtype).__name__ in _OBJECTS:
        return None  # polars would give the addresses of its objects
    return guarded(lambda some: some.to_arrow(), column, None)


def _objects(column: NarwhalsSeries) -> Array:
    values = column.to_list()
    return np.fromiter(values, dtype=object, count=len(values))


def _series(values: ColumnData) -> pd.Series:
    """A public column, with the type that Arrow has for it."""
    pd = pandas()
    if isinstance(values, pd.Series):
        return values
    return pd.Series(pd.arrays.ArrowExtensionArray(values))


# ---------------------------------------------------------------------------------------------------
# how columns are stored, and whether a schema can read that


# What may hold anything: objects, and floats of pandas, which a column of nothing but gaps is made of. One
# record with a value in it would make it another type, and so the type says nothing.
_OPEN = ("any", "floats")
_READABLE: Mapping[str, tuple[Storage, ...]] = {
    "number": ("number", "truth", "text", *_OPEN),
    "boolean": ("truth", "number", "text", *_OPEN),
    "category": ("text", "number", "truth", "date", "time", *_OPEN),
    "code": ("text", "number", *_OPEN),
    "text": ("text", "number", *_OPEN),
    "image": ("text", *_OPEN),
    "date": ("date", "text", *_OPEN),
    "date as yearmonthday": ("date", "text", "number", *_OPEN),
    "date as time": ("time", "date", "text", *_OPEN),
}
_BETTER = {
    "number": "a number",
    "boolean": "a truth value",
    "category": "text",
    "code": "text",
    "text": "text",
    "image": "text (the path of a file)",
    "date": "a date or timestamp",
}


def check_storage(schema: Schema, stored: Mapping[str, Storage], where: str, *, target: bool = True) -> None:
    """Refuse a column whose type cannot be read as the schema's, by its name and type alone."""
    for name, column in schema.used.items():
        kind = column.kind
        special = f"{kind} as {column.format}"
        _check(name, stored.get(name, "any"), special if special in _READABLE else kind, where, "type")
    if target:
        texts = schema.target.task == "classification" and isinstance(schema.target.classes[0], str)
        name = schema.target.name
        _check(name, stored.get(name, "any"), "category" if texts else "number", where, "target")


def _check(name: str, stored: Storage, kind: str, where: str, what: str) -> None:
    if stored in _READABLE[kind]:
        return
    other = "declare it otherwise in a schema, or ignore it (ignore=, --ignore)"
    other = other if what == "type" else "correct the schema"
    better = _BETTER[kind.partition(" ")[0]]
    raise InputError(
        f"column {name!r} of {where} is stored as {stored}, which cannot be read as the schema's {kind}; "
        f"store it as {better} (cast it where the table is written), or {other}"
    )


def storage_of_arrow(kind: pa.DataType) -> Storage:
    """Of a type of Arrow, which is what a Parquet file declares."""
    from pyarrow import types

    if types.is_dictionary(kind):
        return storage_of_arrow(kind.value_type)
    if types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind):
        return "number"
    if types.is_boolean(kind):
        return "truth"
    if types.is_null(kind):
        return "any"
    if types.is_date(kind) or types.is_timestamp(kind):
        return "date"
    if types.is_time(kind):
        return "time"
    return "text" if is_arrow_text(kind) else str(kind)


def _of_dtype(dtype: np.dtype[np.generic] | pd.api.extensions.ExtensionDtype) -> Storage:
    """How a column of this pandas type is stored."""
    if hasattr(dtype, "pyarrow_dtype"):
        return storage_of_arrow(dtype.pyarrow_dtype)
    if hasattr(dtype, "categories"):
        return "any"  # which categories there are, and so their type, may be the work of one record
    kinds = {"b": "truth", "i": "number", "u": "number", "f": "floats", "U": "text", "S": "text", "T": "text"}
    kind = getattr(dtype, "kind", "O")
    return "date" if kind == "M" else kinds.get(kind, "any") if kind != "m" else str(dtype)
