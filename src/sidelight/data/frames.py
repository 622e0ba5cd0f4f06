"""Frames of pandas and of other libraries (polars): names, types and columns, without a look at the values.

pandas is read as it is, anything else through narwhals. A column of polars becomes an array of Arrow, and one
of Python's objects a series of objects: both are what `data.cells` reads value by value. Which of the two is
decided by the type of the column alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias, TypeGuard

import numpy as np

from sidelight.arrays import Array
from sidelight.data import cells
from sidelight.data.storage import Storage, storage_of_arrow, storage_of_frame
from sidelight.data.values import guarded, pandas
from sidelight.errors import InputError, MissingDependency

if TYPE_CHECKING:
    import narwhals as nw
    import pandas as pd
    import polars as pl

__all__ = [
    "Frame",
    "as_pandas",
    "cells_of",
    "is_frame",
    "is_mixed",
    "names_of",
    "objects_of",
    "series_values",
    "storage",
    "without_column",
]  # fmt: skip

Frame: TypeAlias = "pd.DataFrame | pl.DataFrame"
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


def storage(frame: Frame) -> dict[str, Storage]:
    """How each column is stored, by its type."""
    if _is_pandas(frame):
        return storage_of_frame(frame)
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


def cells_of(frame: Frame, place: int, rows: slice) -> Any:
    """Some rows of a column, as `data.cells` takes them."""
    if _is_pandas(frame):
        return frame.iloc[rows, place]
    found = _narwhal(frame)
    return _cells(found[found.columns[place]][rows])


def as_pandas(frame: Frame, where: str) -> pd.DataFrame:
    """A public frame as one of pandas, with texts for names."""
    names = names_of(frame, where)
    if _is_pandas(frame):
        return frame if names == list(frame.columns) else frame.set_axis(names, axis=1)
    columns = {name: _series(cells_of(frame, i, slice(None))) for i, name in enumerate(names)}
    return pandas().DataFrame(columns)


def without_column(table: Any, name: str) -> Any:
    """A frame without one of its columns; anything else, and a frame that has none of that name, as it is."""
    if not is_frame(table):
        return table
    if _is_pandas(table):
        kept = [str(column) != name for column in table.columns]
        return table if all(kept) else table.loc[:, kept]
    found = _narwhal(table)
    return found.drop(name).to_native() if name in found.columns else table


def series_values(values: Any) -> Any:
    """A private column of polars: floats if its type is a number or truth, else objects. Else as it is."""
    if not _is_other_series(values):
        return values
    column = _column(values)
    return cells.numbers(_cells(column)) if _storage(column) in ("number", "truth") else _objects(column)


def objects_of(frame: Frame, place: int) -> list[Any]:
    """The values of a column of a frame that is not pandas', as Python has them."""
    found = _narwhal(frame)
    return list(found[found.columns[place]].to_list())


def _is_other_series(values: object) -> bool:
    return hasattr(type(values), "to_arrow") and hasattr(type(values), "dtype")


def _is_pandas(frame: Frame) -> TypeGuard[pd.DataFrame]:
    return hasattr(type(frame), "iloc")


def _narwhals() -> Any:
    try:
        import narwhals
    except ImportError as error:
        raise MissingDependency(
            "frames other than pandas' need narwhals: pip install 'sidelight[tables]'"
        ) from error
    return narwhals


def _narwhal(frame: Frame) -> nw.DataFrame[Any]:
    try:
        found: nw.DataFrame[Any] = _narwhals().from_native(frame, eager_only=True)
    except TypeError:
        raise InputError(
            f"a {type(frame).__name__} is no table that can be read; expected a frame of pandas or polars "
            "(of a lazy one, frame.collect())"
        ) from None
    return found


def _column(series: Any) -> nw.Series[Any]:
    found: nw.Series[Any] = _narwhals().from_native(series, series_only=True)
    return found


def _storage(column: nw.Series[Any]) -> Storage:
    empty = _arrow(column[:0])
    return "any" if empty is None else storage_of_arrow(empty.type)


def _cells(column: nw.Series[Any]) -> Any:
    """By the type of the column; what Arrow has no type for (numbers of 128 bits) is read as objects."""
    found = None if _arrow(column[:0]) is None else _arrow(column)
    return pandas().Series(_objects(column), dtype=object) if found is None else found


def _arrow(column: nw.Series[Any]) -> Any:
    if type(column.dtype).__name__ in _OBJECTS:
        return None  # polars would give the addresses of its objects
    return guarded(lambda some: some.to_arrow(), column, None)


def _objects(column: nw.Series[Any]) -> Array:
    values = column.to_list()
    return np.fromiter(values, dtype=object, count=len(values))


def _series(cells: Any) -> pd.Series:
    """A public column, with the type that Arrow has for it."""
    pd = pandas()
    if isinstance(cells, pd.Series):
        return cells
    return pd.Series(pd.arrays.ArrowExtensionArray(cells))
