"""Tables from files: CSV, TSV (also compressed), Parquet.

The name of a file, its columns and the number of its rows are public. With `private=True` nothing else about
its contents decides what happens: every column of a text file stays text, the delimiter is taken from the
header line, bytes that are not UTF-8 are replaced, and a row with too many or too few fields becomes a row of
missing values. Without it, such a row is an error that says where it is, and columns of numbers are found.
"""

from __future__ import annotations

import csv
import os
import re
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sidelight.data.files import write_text
from sidelight.data.values import MISSING, as_number, pandas
from sidelight.errors import InputError

__all__ = ["PARQUET", "read_table", "write_csv"]

_DELIMITERS = ",\t;|"
PARQUET = (".parquet", ".pq")
_CODE = re.compile(r"[+-]?0\d")  # a postcode is no number
_HEADER = 1 << 20  # bytes in which a header line must end
_BLOCK = 1 << 24  # bytes in which a row must end


def read_table(path: str | os.PathLike[str], *, private: bool = False, delimiter: str | None = None) -> Any:
    """A pandas frame from a .parquet file, or else from delimited text.

    Args:
        private: nothing but the header decides how the file is read (see above).
        delimiter: None finds it in the header line: a comma, tab, semicolon or bar.
    """
    pd = pandas()
    place = Path(path)
    if place.is_dir():
        raise InputError(f"{place} is a folder; expected a CSV, TSV or Parquet file")
    try:
        if place.suffix.lower() in PARQUET:
            return _read_parquet(pd, place)
        return _read_text(pd, place, private, delimiter)
    except FileNotFoundError:
        raise InputError(f"{place} does not exist") from None
    except OSError as error:
        raise InputError(f"{place} cannot be read: {error.strerror or 'it is damaged'}") from None


def _read_parquet(pd: Any, place: Path) -> Any:
    import pyarrow as pa

    try:
        frame = pd.read_parquet(place).reset_index(drop=True)
    except (pa.ArrowException, ValueError, TypeError):
        raise InputError(f"{place} cannot be read: it is no Parquet file, or damaged") from None
    frame.columns = [str(name).strip() for name in frame.columns]
    _check_names(list(frame.columns), place)
    return frame


def _read_text(pd: Any, place: Path, private: bool, delimiter: str | None) -> Any:
    names, skipped, found, empty = _header(place, delimiter)
    if empty:
        return pd.DataFrame({name: np.empty(0, dtype=object) for name in names})
    columns, broken = _columns(place, names, skipped, found, private)
    texts = {name: _decoded(columns[name], name, place, private) for name in names}
    if broken:
        lost = np.full(broken, None, dtype=object)
        texts = {name: np.concatenate([values, lost]) for name, values in texts.items()}
    if not private:
        texts = {name: _typed(values) for name, values in texts.items()}
    return pd.DataFrame({name: pd.Series(values, dtype=values.dtype) for name, values in texts.items()})


def _header(place: Path, delimiter: str | None) -> tuple[list[str], int, str, bool]:
    """Names of the columns, lines to skip, the delimiter, and whether nothing follows."""
    import pyarrow as pa

    try:
        with pa.input_stream(str(place)) as stream:
            start = stream.read(_HEADER).removeprefix(b"\xef\xbb\xbf")
    except pa.ArrowException:
        raise InputError(f"{place} cannot be read: it is damaged") from None
    lines = start.splitlines()
    skipped = next((i for i, line in enumerate(lines) if line.strip()), None)
    if skipped is None:
        raise InputError(f"{place} is empty; expected a header line and one record a line")
    try:
        line = lines[skipped].decode("utf-8")
    except UnicodeDecodeError:
        line = "\0"
    if not all(c.isprintable() or c == "\t" for c in line):
        raise InputError(f"{place} is not a table in UTF-8 text: its first line is no header")
    if delimiter is None:
        delimiter = max(_DELIMITERS, key=lambda d: len(_fields(line, d)))
    elif len(delimiter) != 1 or not delimiter.isascii():
        raise InputError(f"a delimiter is one character, such as ',' or a tab, not {delimiter!r}")
    names = [name.strip() for name in _fields(line, delimiter)]
    _check_names(names, place)
    empty = len(start) < _HEADER and not any(rest.strip() for rest in lines[skipped + 1 :])
    return names, skipped + 1, delimiter, empty


def _fields(line: str, delimiter: str) -> list[str]:
    return next(csv.reader([line], delimiter=delimiter))


def _check_names(names: list[str], place: Path) -> None:
    """Names are public: they may be quoted."""
    if "" in names:
        raise InputError(
            f"column {names.index('') + 1} of {place} has no name (an index? write the table without it)"
        )
    twice = [name for i, name in enumerate(names) if name in names[:i]]
    if twice:
        raise InputError(f"{place} has more than one column {twice[0]!r}; give each a name of its own")


def _columns(place: Path, names: list[str], skip: int, delimiter: str, private: bool) -> tuple[Any, int]:
    """The columns as bytes, and how many rows had too many or too few fields."""
    import pyarrow as pa
    from pyarrow import csv as pacsv

    broken: list[Any] = []

    def on_broken(row: Any) -> str:
        broken.append(row)
        return "skip"

    try:
        with pa.input_stream(str(place)) as stream:
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
        raise InputError(f"{place} is not delimited text: a row is too long, or a quote stays open") from None
    if broken and not private:
        where = "" if broken[0].number is None else f"row {broken[0].number} of "
        raise InputError(
            f"{where}{place} has {broken[0].actual_columns} fields, but the header has {len(names)}; "
            "correct it, or quote fields that hold the delimiter"
        )
    return table, len(broken)


def _decoded(column: Any, name: str, place: Path, private: bool) -> NDArray[Any]:
    """Stripped text; None where it is missing. Equal values are decoded once and stored once."""
    import pyarrow as pa

    coded = column.combine_chunks().dictionary_encode() if column.num_chunks else pa.array([], pa.binary())
    if not len(coded):
        return np.empty(0, dtype=object)
    try:
        words = [
            word.decode("utf-8", "replace" if private else "strict").strip()
            for word in coded.dictionary.to_pylist()
        ]
    except UnicodeDecodeError:
        raise InputError(f"column {name!r} of {place} is not UTF-8 text; save the file as UTF-8") from None
    values = np.empty(len(words), dtype=object)
    values[:] = [None if word in MISSING else word for word in words]
    found: NDArray[Any] = values[coded.indices.to_numpy(zero_copy_only=False)]
    return found


def _typed(values: NDArray[Any]) -> NDArray[Any]:
    """Numbers, if every value that is there is one; else text."""
    there = [value for value in values if value is not None]
    if not there or any(_CODE.match(value) for value in there) or np.isnan(as_number(there)).any():
        return values
    return as_number(values)


def write_csv(frame: Any, path: str | os.PathLike[str]) -> None:
    """Write a frame as CSV, whole or not at all."""
    write_text(path, frame.to_csv(index=False, lineterminator="\n"))
