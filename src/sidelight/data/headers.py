"""Where a table begins: the file that holds it, and the header line with the names of its columns.

All of this is public, also of a private table, and may be quoted.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from sidelight.errors import InputError

__all__ = ["PARQUET", "Header", "check_names", "header_of", "reading"]

PARQUET = (".parquet", ".pq")
_DELIMITERS = ",\t;|"
_HEADER = 1 << 20  # bytes in which a header line must end
_MARK = b"\xef\xbb\xbf"  # byte-order mark


class Header(NamedTuple):
    """Names of the columns, lines to skip, the delimiter, whether nothing follows, and the bytes to skip."""

    names: list[str]
    skipped: int
    delimiter: str
    empty: bool
    length: int


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """What goes wrong while a file is read, in one line that quotes nothing of it."""
    import pyarrow as pa

    if path.is_dir():
        raise InputError(f"{path} is a folder; expected a CSV, TSV or Parquet file")
    is_parquet = path.suffix.lower() in PARQUET
    try:
        yield
    except InputError:
        raise
    except FileNotFoundError:
        raise InputError(f"{path} does not exist") from None
    except pa.ArrowException:
        what = "no Parquet file, or damaged" if is_parquet else "damaged"
        raise InputError(f"{path} cannot be read: it is {what}") from None
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or 'it is damaged'}") from None


def header_of(path: Path, delimiter: str | None = None, *, private: bool) -> Header:
    """The header of a file of delimited text; for use within `reading`."""
    import pyarrow as pa

    with pa.input_stream(str(path)) as stream:
        whole = stream.read(_HEADER)
    start = whole.removeprefix(_MARK)
    # A carriage return ends no line of a private file: see data.lines.
    lines = start.split(b"\n") if private else start.splitlines()
    skipped = next((i for i, line in enumerate(lines) if line.strip()), None)
    if skipped is None:
        raise InputError(f"{path} is empty; expected a header line and one record per line")
    line = _header_line(lines[skipped].removesuffix(b"\r"), path)
    if delimiter is None:
        delimiter = max(_DELIMITERS, key=lambda d: len(_fields(line, d)))
    elif len(delimiter) != 1 or not delimiter.isascii() or delimiter in '"\r\n\0':
        raise InputError(f"a delimiter is one character, such as ',' or a tab, not {delimiter!r}")
    names = [name.strip() for name in _fields(line, delimiter)]
    check_names(names, path)
    empty = len(whole) < _HEADER and not any(rest.strip() for rest in lines[skipped + 1 :])
    length = len(whole) - len(start) + sum(len(line) + 1 for line in lines[: skipped + 1])
    return Header(names, skipped + 1, delimiter, empty, length)


def _header_line(line: bytes, path: Path) -> str:
    try:
        text = line.decode("utf-8")
    except UnicodeDecodeError:
        text = "\0"
    if "\r" in text:
        raise InputError(f"{path} ends its lines with a carriage return alone; save it with LF or CRLF")
    if len(line) >= _HEADER - len(_MARK) or not all(c.isprintable() or c == "\t" for c in text):
        raise InputError(f"{path} is not a table in UTF-8 text: its first line is no header")
    if text.count('"') % 2:
        raise InputError(f"a quote in the header line of {path} stays open; close it, or remove it")
    return text


def _fields(line: str, delimiter: str) -> list[str]:
    try:
        return next(csv.reader([line], delimiter=delimiter))
    except csv.Error:  # a field longer than Python's limit
        return line.split(delimiter)


def check_names(names: list[str], path: Path) -> None:
    """Names are public: they may be quoted."""
    if "" in names:
        raise InputError(
            f"column {names.index('') + 1} of {path} has no name (an index? write the table without it)"
        )
    twice = [name for i, name in enumerate(names) if name in names[:i]]
    if twice:
        raise InputError(f"{path} has more than one column {twice[0]!r}; give each a name of its own")
