"""Delimited text: its header line, which is public, and private lines, of which each is one record.

The names of the columns are public, also of a private table, and may be quoted. Of the lines behind them,
no line affects another. Readers of CSV let a quoted field span lines, so that one stray
quote swallows the records after it; they skip blank lines, and some end a line at a bare carriage return.
Then a record decides what others become, and how many there are. Here the rule is:

    a line      ends at LF or CRLF, and nowhere else; the last one may lack its end. n is the number of lines
    a quote     opens a field only as its first character; it is closed on the same line, and doubled within
    a line      whose quote stays open, that has too many or too few fields (a blank one, say), or that is
                longer than 1 MiB is a record of missing values
    CR          anywhere else counts as a space; a byte-order mark is dropped
    all else    (NUL, form feeds, U+2028, …) is a character like any other

Blocks are checked with NumPy and parsed by Arrow, which reads well-formed lines as the rule says. Lines that
are not, or that quote in an unusual way, are read one by one and written anew first. Columns of numbers are
parsed as such, if Arrow can read all of a block: it reads what Python reads, to the same float. If it cannot,
the block is parsed again as bytes, of which each is read by itself (`data.values`).
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from sidelight.arrays import Mask
from sidelight.data.values import MISSING
from sidelight.errors import InputError

if TYPE_CHECKING:
    import pyarrow as pa


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


def header_of(path: Path, *, private: bool) -> Header:
    """The header of a file of delimited text; for use within `table_files.reading`."""
    import pyarrow as pa

    with pa.input_stream(str(path)) as stream:
        whole = stream.read(_HEADER)
    start = whole.removeprefix(_MARK)
    # A carriage return ends no line of a private file.
    lines = start.split(b"\n") if private else start.splitlines()
    skipped = next((i for i, line in enumerate(lines) if line.strip()), None)
    if skipped is None:
        raise InputError(f"{path} is empty; expected a header line and one record per line")
    line = _header_line(lines[skipped].removesuffix(b"\r"), path)
    delimiter = max(_DELIMITERS, key=lambda d: len(_header_fields(line, d)))
    names = [name.strip() for name in _header_fields(line, delimiter)]
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
        raise InputError(f"{path} is not a table in UTF-8 text: its first line is not a header")
    if text.count('"') % 2:
        raise InputError(f"a quote in the header line of {path} stays open; close it, or remove it")
    return text


def _header_fields(line: str, delimiter: str) -> list[str]:
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
        raise InputError(f"{path} has more than one column {twice[0]!r}; give each a unique name")


# ---------------------------------------------------------------------------------------------------
# the lines


ONE_LINE_ONE_RECORD = (
    "one line of the private file is one record: a quoted field does not span lines, and a line that is not "
    "a record (blank, a quote that stays open, too many or too few fields) is a record of missing values"
)
_BLOCK = 1 << 22  # bytes that are parsed at a time
_LONGEST = 1 << 20  # bytes of a line that is read
_LF, _QUOTE = 10, 34
_QUOTED = re.compile(rb'"((?:[^"]++|"")*+)"')

Positions = NDArray[np.intp]


class BinaryStream(Protocol):
    """A source of bytes: a Python file or an Arrow stream."""

    def read(self, size: int, /) -> bytes: ...


def clean_blocks(stream: BinaryStream, delimiter: str, fields: int) -> Iterator[tuple[bytes, int]]:
    """Blocks of well-formed lines, each line a record, and how many lines there are in each.

    `stream` stands behind the header line.
    """
    for block in _whole_lines(stream):
        yield _cleaned(_normalized(_without_long(block)), delimiter.encode(), fields)


def count_lines(stream: BinaryStream) -> int:
    """How many lines follow the header: the sum of the counts of `clean_blocks`."""
    lines, last = 0, b"\n"
    while data := stream.read(_BLOCK):
        lines, last = lines + data.count(b"\n"), data[-1:]
    return lines + (last != b"\n")


def parse_block(block: bytes, names: list[str], delimiter: str, wanted: Mapping[str, bool]) -> pa.Table:
    """Columns of a clean block, as bytes.

    wanted: the columns to take, and whether each is wanted as numbers, which it then is if Arrow can read all
    numbers of the block.
    """
    import pyarrow as pa

    types = {name: pa.float64() if number else pa.large_binary() for name, number in wanted.items()}
    try:
        return _parsed(block, names, delimiter, types)
    except pa.ArrowInvalid:  # a value is not a number as Arrow reads them; its message quotes it
        return _parsed(block, names, delimiter, dict.fromkeys(wanted, pa.large_binary()))


def _parsed(block: bytes, names: list[str], delimiter: str, types: Mapping[str, pa.DataType]) -> pa.Table:
    import pyarrow as pa
    from pyarrow import csv

    return csv.read_csv(
        pa.py_buffer(block),
        read_options=csv.ReadOptions(column_names=names, block_size=len(block) + 1),
        parse_options=csv.ParseOptions(delimiter=delimiter, ignore_empty_lines=False),
        convert_options=csv.ConvertOptions(
            column_types=types, include_columns=list(types), null_values=list(MISSING), check_utf8=False
        ),
    )


def _whole_lines(stream: BinaryStream) -> Iterator[bytes]:
    """Blocks that end with a line. What a line has beyond the longest (and two bytes) is dropped."""
    rest = b""
    while data := stream.read(_BLOCK):
        cut = data.rfind(b"\n") + 1
        if cut:
            yield _joined(rest, data[:cut])
            rest = data[cut:]
        else:
            rest += data
        rest = rest[: _LONGEST + 2]
    if rest:
        yield rest + b"\n"


def _joined(rest: bytes, data: bytes) -> bytes:
    """`rest` may have been cut already; then what follows up to the end of the line is of no use either."""
    return rest + (data if len(rest) < _LONGEST + 2 else data[data.index(b"\n") :])


def _without_long(block: bytes) -> bytes:
    """A line that is too long becomes a quote that stays open: measured as the file has it."""
    if _has_short_lines(block):
        return block
    return b"\n".join(b'"' if len(line) > _LONGEST else line for line in block.split(b"\n"))


def _has_short_lines(block: bytes) -> bool:
    """Whether a line ends in every half of the longest: then no line is longer than two of them."""
    half = _LONGEST // 2
    return all(block.find(b"\n", at, at + half) >= 0 for at in range(0, len(block) - half, half))


def _normalized(block: bytes) -> bytes:
    if b"\r" in block:
        block = block.replace(b"\r\n", b"\n").replace(b"\r", b" ")
    return block.replace(b"\xef\xbb\xbf", b"") if b"\xef\xbb\xbf" in block else block


def _cleaned(block: bytes, delimiter: bytes, fields: int) -> tuple[bytes, int]:
    """The block with every line that is not a record replaced by an empty record."""
    data = np.frombuffer(block, dtype=np.uint8)
    if b'"' not in block and (lines := _plain_lines(data, delimiter[0], fields)) is not None:
        return block, lines
    ends = np.flatnonzero(data == _LF)
    starts = np.concatenate([[0], ends[:-1] + 1])
    cuts = data == delimiter[0]
    unusual = np.zeros(len(ends), dtype=bool)
    if b'"' in block:
        quoting = _Quoting(data, starts, ends)
        unusual = quoting.unusual(delimiter[0])
        cuts &= ~quoting.within
    wrong = np.add.reduceat(cuts, starts, dtype=np.int32) != fields - 1
    pieces, at = [], 0
    for line in np.flatnonzero(wrong | unusual):
        start, end = int(starts[line]), int(ends[line])
        found = _rewritten(block[start:end], delimiter, fields) if unusual[line] else delimiter * (fields - 1)
        pieces += [block[at:start], found]
        at = end
    return (b"".join([*pieces, block[at:]]) if pieces else block), len(ends)


def _plain_lines(data: NDArray[np.uint8], cut: int, fields: int) -> int | None:
    """How many lines a block without quotes has, if each has the right number of fields; else None."""
    marks = data[np.flatnonzero((data == _LF) | (data == cut))]
    lines, rest = divmod(len(marks), fields)
    is_end = marks == _LF
    well_formed = not rest and is_end[fields - 1 :: fields].all() and np.count_nonzero(is_end) == lines
    return lines if well_formed else None


class _Quoting:
    """Which bytes of a block are within quotes, if every quote on a line opens or closes."""

    def __init__(self, data: NDArray[np.uint8], starts: Positions, ends: Positions) -> None:
        self.data, self.ends = data, ends
        is_quote = data == _QUOTE
        self.quotes = np.flatnonzero(is_quote)
        self.odd = np.add.reduceat(is_quote, starts, dtype=np.int32) % 2 == 1
        flips = is_quote.view(np.uint8)
        flips[ends[self.odd]] = 1  # so that the next line starts outside again
        self.within = (np.cumsum(flips, dtype=np.uint8) & 1).view(np.bool_)  # after each byte

    def unusual(self, cut: int) -> Mask:
        """Lines whose quotes do not come in pairs, each around a whole field or doubled within one."""
        before, after = self.data[self.quotes - 1], self.data[self.quotes + 1]  # a block ends with LF
        first = (before == _LF) | (before == cut) | (before == _QUOTE)
        last = (after == _LF) | (after == cut) | (after == _QUOTE)
        proper = np.where(self.within[self.quotes], first, last)
        found = self.odd.copy()
        found[np.searchsorted(self.ends, self.quotes[~proper])] = True
        return np.asarray(found)


def _rewritten(line: bytes, delimiter: bytes, fields: int) -> bytes:
    """The same record with every field in quotes, or an empty one."""
    found = _fields(line, delimiter)
    if found is None or len(found) != fields:
        return delimiter * (fields - 1)
    return delimiter.join(b'"' + field.replace(b'"', b'""') + b'"' for field in found)


def _fields(line: bytes, delimiter: bytes) -> list[bytes] | None:
    """The fields of a line by the rule above; None if a quote stays open.

    What follows a closing quote belongs to the field, as Arrow reads it.
    """
    fields, rest = [], line
    while True:
        quoted = b""
        if rest.startswith(b'"'):
            found = _QUOTED.match(rest)
            if found is None:
                return None
            quoted, rest = found[1].replace(b'""', b'"'), rest[found.end() :]
        field, more, rest = rest.partition(delimiter)
        fields.append(quoted + field)
        if not more:
            return fields
