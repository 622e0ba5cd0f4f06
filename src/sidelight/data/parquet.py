"""Private columns of a Parquet file, by their declared types: what a value becomes depends on it alone.

pandas lets contents decide: a column of whole numbers with a gap becomes floats, one date that Python does
not know makes the whole file unreadable. Types are in the file's schema, which is public; each maps to one
kind of column here, and a value that cannot be read is missing.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from sidelight.arrays import Array
from sidelight.data.headers import check_names
from sidelight.data.values import guarded

if TYPE_CHECKING:
    import pyarrow as pa
    from pyarrow import parquet as pq

__all__ = ["column_names", "private_columns"]


def private_columns(path: Path) -> dict[str, Array]:
    """The columns of a file, floats or objects, without what pandas wrote of its index."""
    from pyarrow import parquet

    with parquet.ParquetFile(path) as file:
        table = file.read()
        names = _names(file)
    return {name: _column(table.column(table.column_names.index(name))) for name in names}


def column_names(file: pq.ParquetFile, path: Path) -> dict[str, str]:
    """The names of a file's columns, stripped, and how the file spells them."""
    names = _names(file)
    check_names([name.strip() for name in names], path)
    return {name.strip(): name for name in names}


def _names(file: pq.ParquetFile) -> list[str]:
    declared = file.schema_arrow
    index = (declared.pandas_metadata or {}).get("index_columns", [])
    return [name for name in declared.names if name not in index]


def _column(column: pa.ChunkedArray) -> Array:
    import pyarrow as pa
    from pyarrow import compute, types

    if types.is_dictionary(column.type):
        column = pa.chunked_array(
            [chunk.dictionary_decode() for chunk in column.chunks], column.type.value_type
        )
    kind = column.type
    if types.is_integer(kind) or types.is_floating(kind):
        floats = compute.cast(column, pa.float64(), safe=False)  # as in a column of pandas with gaps
        return np.asarray(floats.to_numpy(), dtype=np.float64)
    if types.is_string(kind) or types.is_large_string(kind):
        texts = column.cast(pa.large_binary()).to_pylist()
        values = (None if text is None else text.decode("utf-8", "replace") for text in texts)
    else:
        values = (guarded(lambda cell: cell.as_py(), scalar, None) for scalar in column)
    return np.fromiter(values, dtype=object, count=len(column))  # an assignment would unpack lists
