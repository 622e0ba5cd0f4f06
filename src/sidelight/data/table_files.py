"""Tables from files: CSV, TSV, also compressed; Parquet. What may be private is read by a rule of its own.

The name of a file, its columns and the number of its rows are public. With `private=True` nothing else about
its contents decides what happens: one line of a text file is one record (`data.lines`), every column stays
text, the delimiter is taken from the header line, bytes that are not UTF-8 are replaced, and a row with too
many or too few fields is a row of missing values. Columns of a Parquet file are read by their declared
types, value by value. Without it, a broken row is an error that says where it is, a quoted field may span
lines, and columns of numbers are found.

A whole table of Python's texts is several times as large as its file and as the encoded table. So records
of a private file are read block by block (`data.private_tables`) where nobody needs them whole.
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
from sidelight.data.lines import (
    ONE_LINE_ONE_RECORD,
    check_names,
    clean_blocks,
    header_of,
    parse_block,
)
from sidelight.data.values import MISSING, as_number, guarded, pandas
from sidelight.errors import InputError
from sidelight.files import missing, write_text

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa
    from pyarrow import csv as pacsv
    from pyarrow import parquet as pq

__all__ = [
    "PARQUET",
    "TableSource",
    "assumed_of_file",
    "decoded",
    "names_in",
    "read_table",
    "reading",
    "stored_types",
    "typed_column",
    "write_csv",
]


TableSource: TypeAlias = "str | os.PathLike[str] | Frame"  # a table, or the path of its file
PARQUET = (".parquet", ".pq")
_CODE = re.compile(r"[+-]?0\d")  # a postcode is no number
_BLOCK = 1 << 24  # bytes in which a public row must end


def read_table(
    path: str | os.PathLike[str], *, private: bool = False, delimiter: str | None = None, typed: bool = True
) -> pd.DataFrame:
    """A pandas frame from a .parquet file, or else from delimited text.

    Args:
        private: nothing but the header decides how the file is read (see above).
        delimiter: None finds it in the header line: a comma, tab, semicolon or bar.
        typed: whether a column of public text becomes numbers if every value of it is one. Private columns
            of text stay text.
    """
    file = Path(path)
    with reading(file):
        if file.suffix.lower() in PARQUET:
            return _read_parquet(file, private)
        return _read_private_text(file, delimiter) if private else _read_text(file, delimiter, typed)


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


def _read_parquet(path: Path, private: bool) -> pd.DataFrame:
    try:
        if private:
            columns = _private_columns(path)  # their types are given: pandas would look at the values
            series = pandas().Series
            frame = pandas().DataFrame({n: series(v, dtype=v.dtype) for n, v in columns.items()})
        else:
            frame = pandas().read_parquet(path).reset_index(drop=True)
    except (ValueError, TypeError):
        raise InputError(f"{path} cannot be read: it is not a Parquet file, or it is damaged") from None
    frame.columns = [str(name).strip() for name in frame.columns]
    check_names(list(frame.columns), path)
    return frame


def _read_text(path: Path, delimiter: str | None, typed: bool) -> pd.DataFrame:
    names, skipped, delimiter, empty, _ = header_of(path, delimiter, private=False)
    if empty:
        return _without_rows(names)
    columns = _public_columns(path, names, skipped, delimiter)
    texts = {name: decoded(columns[name], name, path, private=False) for name in names}
    if typed:
        texts = {name: _typed(values) for name, values in texts.items()}
    pd = pandas()
    return pd.DataFrame({name: pd.Series(values, dtype=values.dtype) for name, values in texts.items()})


def _read_private_text(path: Path, delimiter: str | None) -> pd.DataFrame:
    import pyarrow as pa

    names, _, delimiter, _, length = header_of(path, delimiter, private=True)
    with pa.input_stream(str(path)) as stream:
        stream.read(length)
        tables = [
            parse_block(block, lines, names, delimiter)
            for block, lines in clean_blocks(stream, delimiter, len(names))
        ]
    if not tables:
        return _without_rows(names)
    table = pa.concat_tables(tables)
    texts = {name: decoded(table[name], name, path, private=True) for name in names}
    pd = pandas()
    return pd.DataFrame({name: pd.Series(values, dtype=object) for name, values in texts.items()})


def _without_rows(names: list[str]) -> pd.DataFrame:
    return pandas().DataFrame({name: np.empty(0, dtype=object) for name in names})


def _public_columns(path: Path, names: list[str], skip: int, delimiter: str) -> pa.Table:
    """The columns of a public file as bytes."""
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


def decoded(column: pa.ChunkedArray, name: str, path: Path, *, private: bool) -> Array:
    """Stripped text; None where it is missing. Equal values are decoded once and stored once."""
    coded = column.dictionary_encode().unify_dictionaries()
    if not len(coded):
        return np.empty(0, dtype=object)
    try:
        words = [
            word.decode("utf-8", "replace" if private else "strict").strip()
            for word in coded.chunk(0).dictionary.to_pylist()
        ]
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


def _private_columns(path: Path) -> dict[str, Array]:
    """The columns of a file, floats or objects, without what pandas wrote of its index."""
    from pyarrow import parquet

    with parquet.ParquetFile(path) as file:
        table = file.read()
        names = names_in(file)
    return {name: typed_column(table.column(table.column_names.index(name))) for name in names}


def names_in(file: pq.ParquetFile) -> list[str]:
    """The columns of a file, without those that pandas wrote of an index."""
    declared = file.schema_arrow
    index = (declared.pandas_metadata or {}).get("index_columns", [])
    return [name for name in declared.names if name not in index]


def typed_column(column: pa.ChunkedArray) -> Array:
    """Floats or objects, by the declared type of a column.

    pandas lets contents decide: a column of whole numbers with a gap becomes floats, one date that Python
    does not know makes the whole file unreadable. Types are in the file's schema, which is public; each maps
    to one kind of column here, and a value that cannot be read is missing.
    """
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
        values = (guarded(lambda one: one.as_py(), scalar, None) for scalar in column)
    return np.fromiter(values, dtype=object, count=len(column))  # an assignment would unpack lists
