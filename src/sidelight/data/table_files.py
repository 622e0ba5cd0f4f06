"""Public tables from files (CSV, TSV, also compressed; Parquet), and what private ones share with them.

In a public file a broken row is an error that says where it is, a quoted field may span lines, and columns of
numbers are found. Private files are read block by block, and value by value (`data.private_tables`).
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from sidelight.arrays import Array
from sidelight.data.frames import Frame, Storage, is_frame, storage, storage_of_arrow
from sidelight.data.lines import ONE_LINE_ONE_RECORD, check_names, header_of
from sidelight.data.values import MISSING, as_number, pandas
from sidelight.errors import InputError, guarded
from sidelight.files import missing, write_text

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa
    from pyarrow import csv as pacsv
    from pyarrow import parquet as pq


TableSource: TypeAlias = "str | os.PathLike[str] | Frame"  # a table, or the path of its file
PARQUET = (".parquet", ".pq")
_CODE = re.compile(r"[+-]?0\d")  # a postcode is not a number
_BLOCK = 1 << 24  # bytes in which a public row must end


def read_table(path: str | os.PathLike[str], *, typed: bool = True) -> pd.DataFrame:
    """A pandas frame from a public .parquet file, or else from delimited text.

    typed: whether a column of text becomes numbers if every value of it is one.
    """
    file = Path(path)
    with reading(file):
        return _read_parquet(file) if file.suffix.lower() in PARQUET else _read_text(file, typed)


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """What goes wrong while a file is read, in one line that quotes nothing of it."""
    import pyarrow as pa

    if path.is_dir():
        raise InputError(f"{path} is a folder; expected a CSV, TSV or Parquet file")
    if path.exists() and not path.is_file():  # a pipe can be read once, and a device does not end
        raise InputError(f"{path} is a pipe or a device; expected a CSV, TSV or Parquet file")
    is_parquet = path.suffix.lower() in PARQUET
    try:
        yield
    except InputError:
        raise
    except FileNotFoundError:
        raise InputError(missing(path)) from None
    except pa.ArrowException:
        what = "not a Parquet file, or it is damaged" if is_parquet else "damaged"
        raise InputError(f"{path} cannot be read: it is {what}") from None
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or 'it is damaged'}") from None


def assumed_of_file(path: str | os.PathLike[str]) -> tuple[str, ...]:
    """What a statement has to say of how a private file was read."""
    return () if Path(path).suffix.lower() in PARQUET else (ONE_LINE_ONE_RECORD,)


def stored_types(source: TableSource) -> dict[str, Storage]:
    """The types that a frame or a Parquet file declares for its columns; a text file declares none."""
    if is_frame(source):
        return storage(source)
    if Path(source).suffix.lower() not in PARQUET:
        return {}
    from pyarrow import parquet

    with reading(Path(source)):
        declared = parquet.read_schema(source)
    return {field.name.strip(): storage_of_arrow(field.type) for field in declared}


def _read_parquet(path: Path) -> pd.DataFrame:
    try:
        frame = pandas().read_parquet(path).reset_index(drop=True)
    except (ValueError, TypeError):
        raise InputError(f"{path} cannot be read: it is not a Parquet file, or it is damaged") from None
    frame.columns = [str(name).strip() for name in frame.columns]
    check_names(list(frame.columns), path)
    return frame


def _read_text(path: Path, typed: bool) -> pd.DataFrame:
    names, skipped, delimiter, empty, _ = header_of(path, private=False)
    pd = pandas()
    if empty:
        return pd.DataFrame({name: np.empty(0, dtype=object) for name in names})
    columns = _columns_as_bytes(path, names, skipped, delimiter)
    texts = {name: _decoded(columns[name], name, path) for name in names}
    if typed:
        texts = {name: _typed(values) for name, values in texts.items()}
    return pd.DataFrame({name: pd.Series(values, dtype=values.dtype) for name, values in texts.items()})


def _columns_as_bytes(path: Path, names: list[str], skip: int, delimiter: str) -> pa.Table:
    import pyarrow as pa
    from pyarrow import csv as pacsv

    broken: list[pacsv.InvalidRow] = []

    def on_broken(row: pacsv.InvalidRow) -> str:
        broken.append(row)
        return "skip"

    try:
        with pa.input_stream(str(path)) as stream, _quiet_callbacks():
            table = pacsv.read_csv(
                stream,
                read_options=pacsv.ReadOptions(
                    column_names=names, skip_rows=skip, use_threads=False, block_size=_BLOCK
                ),
                parse_options=pacsv.ParseOptions(
                    delimiter=delimiter, newlines_in_values=True, invalid_row_handler=on_broken
                ),
                convert_options=pacsv.ConvertOptions(
                    column_types={name: pa.binary() for name in names}, check_utf8=False
                ),
            )
    except pa.ArrowException:
        # The original message quotes the row.
        raise InputError(f"{path} is not delimited text: a row is too long, or a quote stays open") from None
    if broken:
        where = "" if broken[0].number is None else f"row {broken[0].number} of "
        raise InputError(
            f"{where}{path} has {broken[0].actual_columns} fields, but the header has {len(names)}; "
            "correct it, or quote fields that hold the delimiter"
        )
    return table


@contextmanager
def _quiet_callbacks() -> Iterator[None]:
    """No traceback on stderr where PyArrow cannot decode the broken row that it wants to show us."""
    before, sys.unraisablehook = sys.unraisablehook, lambda _: None
    try:
        yield
    finally:
        sys.unraisablehook = before


def _decoded(column: pa.ChunkedArray, name: str, path: Path) -> Array:
    """Stripped text; None where it is missing. Equal values are decoded once and stored once."""
    coded = column.dictionary_encode().unify_dictionaries()
    if not len(coded):
        return np.empty(0, dtype=object)
    try:
        words = [word.decode("utf-8").strip() for word in coded.chunk(0).dictionary.to_pylist()]
    except UnicodeDecodeError:
        raise InputError(f"column {name!r} of {path} is not UTF-8 text; save the file as UTF-8") from None
    values = np.empty(len(words), dtype=object)
    values[:] = [None if word in MISSING else word for word in words]
    parts: list[Array] = [values[chunk.indices.to_numpy(zero_copy_only=False)] for chunk in coded.chunks]
    return np.concatenate(parts)


def _typed(values: Array) -> Array:
    """Numbers, if every value that is there is one; else text."""
    there = [value for value in values if value is not None]
    if not there or any(_CODE.match(value) for value in there) or np.isnan(as_number(there)).any():
        return values
    return as_number(values)


def write_csv(frame: pd.DataFrame, path: str | os.PathLike[str]) -> None:
    """Write a frame as CSV, whole or not at all."""
    write_text(path, frame.to_csv(index=False, lineterminator="\n"))


# ---------------------------------------------------------------------------------------------------
# private columns of a Parquet file, by their declared types


def names_in(file: pq.ParquetFile) -> list[str]:
    """The columns of a file, without those that pandas wrote of an index."""
    declared = file.schema_arrow
    index = (declared.pandas_metadata or {}).get("index_columns", [])
    return [name for name in declared.names if name not in index]


def typed_column(column: pa.Array | pa.ChunkedArray) -> Array:
    """Floats or objects, by the declared type of a column.

    pandas lets contents decide: a column of whole numbers with a gap becomes floats, one date that Python
    does not know makes the whole file unreadable. Types are in the file's schema, which is public; each maps
    to one kind of column here, and a value that cannot be read is missing.
    """
    import pyarrow as pa
    from pyarrow import compute, types

    column = pa.chunked_array([column]) if isinstance(column, pa.Array) else column
    if types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    kind = column.type
    if types.is_integer(kind) or types.is_floating(kind):
        floats = compute.cast(column, pa.float64(), safe=False)  # as in a column of pandas with gaps
        return np.asarray(floats.to_numpy(), dtype=np.float64)
    if types.is_string(kind) or types.is_large_string(kind):
        texts = column.cast(pa.large_binary()).to_pylist()
        values = (None if text is None else text.decode("utf-8", "replace") for text in texts)
    else:
        values = (guarded(lambda one: one.as_py(), scalar, None) for scalar in column)
    return np.fromiter(values, dtype=object, count=len(column))  # an assignment would unpack lists
