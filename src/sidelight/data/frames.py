"""Frames of pandas, and of other libraries (polars) as frames of pandas, by names and types alone.

Another library's frame is read through narwhals: a column becomes one of Arrow's types, decided by its own
type, or objects if Arrow has none. `data.values` reads both value by value.

The type that a Parquet file or a frame declares for a column is public; what pandas chooses by itself is not
(`storage`). It need not be the schema's: numbers may be stored as texts, truth values as numbers, and each
value is read by the type of the schema. But a list is never a number, and a column that cannot
be read is better refused than missing throughout.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import ModuleType
from typing import TYPE_CHECKING, TypeAlias, TypeGuard, TypeVar

import numpy as np

from sidelight.data.values import is_arrow_text, pandas
from sidelight.errors import InputError, MissingDependency, guarded, spelled

if TYPE_CHECKING:
    import narwhals as nw
    import pandas as pd
    import polars as pl
    import pyarrow as pa
    from narwhals.typing import IntoSeries

    from sidelight.data.schema import Schema

T = TypeVar("T")
Frame: TypeAlias = "pd.DataFrame | pl.DataFrame"
# "number", "truth", "text", "date", "time", "any" for objects, "floats" for those of pandas; or the name of
# another type.
Storage = str
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
    frame = as_pandas(frame, "the table")
    unknown = np.dtype if private else ()
    kinds = zip(frame.columns, frame.dtypes, strict=True)
    return {name: "any" if isinstance(kind, unknown) else storage_of(kind) for name, kind in kinds}


def is_mixed(frame: Frame) -> bool:
    """Whether some column of a public frame is not a number by its type; truth values are numbers."""
    return any(getattr(kind, "kind", "O") not in _NUMBERS for kind in as_pandas(frame, "the table").dtypes)


def as_pandas(frame: Frame, where: str) -> pd.DataFrame:
    """Any frame as a pandas one whose column names are texts."""
    names = names_of(frame, where)
    if _is_pandas(frame):
        return frame if names == list(frame.columns) else frame.set_axis(names, axis=1)
    found = _narwhal(frame)
    return pandas().DataFrame({name: _series(found[name]) for name in names})


def without_column(table: T, name: str) -> T:
    """A frame without this column; anything else, or a frame without it, is returned unchanged."""
    if not is_frame(table):
        return table
    frame = table if _is_pandas(table) else as_pandas(table, "the table")
    kept = [str(column) != name for column in frame.columns]
    without: T = table if all(kept) else frame.loc[:, kept]
    return without


def series_values(values: object) -> object:
    """A polars column as a pandas one; anything else unchanged."""
    if not (hasattr(type(values), "to_arrow") and hasattr(type(values), "dtype")):
        return values
    return _series(_narwhals().from_native(values, series_only=True))


def _is_pandas(frame: object) -> TypeGuard[pd.DataFrame]:
    return hasattr(type(frame), "iloc")


def _narwhals() -> ModuleType:
    try:
        import narwhals
    except ImportError as error:
        raise MissingDependency("frames other than pandas' need narwhals: pip install narwhals") from error
    return narwhals


def _narwhal(frame: object) -> nw.DataFrame[pl.DataFrame]:
    try:
        found: nw.DataFrame[pl.DataFrame] = _narwhals().from_native(frame, eager_only=True)
    except TypeError:
        raise InputError(
            f"a {type(frame).__name__} is not a table that can be read; expected a frame of pandas or polars "
            "(of a lazy one, frame.collect())"
        ) from None
    return found


def _series(column: nw.Series[IntoSeries]) -> pd.Series:
    """Converted to the matching Arrow type; to objects if there is none (numbers of 128 bits)."""
    pd = pandas()
    # polars would give the addresses of its objects
    has_type = type(column.dtype).__name__ not in _OBJECTS and _arrow(column[:0]) is not None
    found = _arrow(column) if has_type else None
    if found is not None:
        return pd.Series(pd.arrays.ArrowExtensionArray(found))
    values = column.to_list()
    return pd.Series(np.fromiter(values, dtype=object, count=len(values)), dtype=object)


def _arrow(column: nw.Series[IntoSeries]) -> pa.Array | None:
    return guarded(lambda some: some.to_arrow(), column, None)


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
    other = f"declare it otherwise in a schema, or ignore it ({spelled('ignore=', '--ignore')})"
    other = other if what == "type" else "correct the schema"
    better = _BETTER[kind.partition(" ")[0]]
    raise InputError(
        f"column {name!r} of {where} is stored as {stored}, which cannot be read as the schema's {kind}; "
        f"store it as {better} (cast it where the table is written), or {other}"
    )


def storage_of_arrow(kind: pa.DataType) -> Storage:
    """How a column of this Arrow type, as a Parquet file declares it, is stored."""
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


def storage_of(dtype: np.dtype[np.generic] | pd.api.extensions.ExtensionDtype) -> Storage:
    """How a column of this pandas type is stored."""
    if hasattr(dtype, "pyarrow_dtype"):
        return storage_of_arrow(dtype.pyarrow_dtype)
    if hasattr(dtype, "categories"):
        return "any"  # which categories there are, and so their type, may be the work of one record
    kinds = {"b": "truth", "i": "number", "u": "number", "f": "floats", "U": "text", "S": "text", "T": "text"}
    kind = getattr(dtype, "kind", "O")
    return "date" if kind == "M" else kinds.get(kind, "any") if kind != "m" else str(dtype)
