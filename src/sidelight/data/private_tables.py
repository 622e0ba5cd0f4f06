"""A private table, read in blocks: what is public about it at once, its records when they are encoded.

A whole table of Python's texts is several times as large as its file and as the encoded table. So records
of a file are read block by block, and each block is encoded before the next one is read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from sidelight.data.frames import Frame, cells_of, is_frame, names_of, storage
from sidelight.data.headers import PARQUET, header_of, reading
from sidelight.data.lines import clean_blocks, count_lines, parse_block
from sidelight.data.parquet import column_names
from sidelight.data.storage import Storage
from sidelight.data.table_files import TableSource, read_table, stored_types
from sidelight.privacy.identity import Identity

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["PrivateTable", "open_private"]

_ROWS = 1 << 17  # in a block of a frame or of a Parquet file

Block = Mapping[str, Any]  # columns as `data.cells` takes them


class PrivateTable(Protocol):
    """Names, types, number of records and identity are public. Blocks are not."""

    @property
    def names(self) -> list[str]: ...

    @property
    def stored(self) -> Mapping[str, Storage]: ...

    def __len__(self) -> int: ...

    def identity(self) -> Identity:
        """By what a ledger knows these records."""

    def blocks(self, wanted: Mapping[str, bool]) -> Iterator[tuple[int, Block]]:
        """The number of records and the columns of each block. `wanted` says which are best as numbers."""


def open_private(source: TableSource, where: str = "the private table") -> PrivateTable:
    """A frame, or the path of a CSV, TSV or Parquet file; `where` is what a message calls a frame."""
    if is_frame(source):
        return _Frame(source, where)
    path = Path(source)
    return _Parquet(path) if path.suffix.lower() in PARQUET else _Text(path)


class _Frame:
    """Of pandas or polars."""

    def __init__(self, frame: Frame, where: str) -> None:
        self.names = names_of(frame, where)
        self._frame = frame
        self.stored = storage(frame)

    def __len__(self) -> int:
        return len(self._frame)

    def identity(self) -> Identity:
        return Identity.of(self._frame)

    def blocks(self, wanted: Mapping[str, bool]) -> Iterator[tuple[int, Block]]:
        places = {name: self.names.index(name) for name in wanted}
        for start in range(0, len(self), _ROWS):
            rows = slice(start, min(start + _ROWS, len(self)))
            columns = {name: cells_of(self._frame, place, rows) for name, place in places.items()}
            yield rows.stop - rows.start, columns


class _File:
    """What the two kinds of files share."""

    def __init__(self, path: Path, names: list[str], rows: int) -> None:
        self.path, self.names, self._rows = path, names, rows
        self.stored = stored_types(path)

    def __len__(self) -> int:
        return self._rows

    def _contents(self) -> tuple[object, ...]:
        """Read as a whole only if the owner of the dataset agreed to a fingerprint."""
        return (read_table(self.path, private=True),)


class _Text(_File):
    def __init__(self, path: Path) -> None:
        with reading(path):
            self._header = header_of(path, private=True)
            with self._open(path) as stream:
                rows = count_lines(stream)
        super().__init__(path, self._header.names, rows)

    def _open(self, path: Path) -> pa.NativeFile:
        """The file behind its header line."""
        import pyarrow as pa

        stream = pa.input_stream(str(path))
        stream.read(self._header.length)
        return stream

    def identity(self) -> Identity:
        """A text file has no types."""
        return Identity(len(self), dict.fromkeys(self.names), contents=self._contents)

    def blocks(self, wanted: Mapping[str, bool]) -> Iterator[tuple[int, Block]]:
        names, delimiter = self._header.names, self._header.delimiter
        with reading(self.path), self._open(self.path) as stream:
            for block, lines in clean_blocks(stream, delimiter, len(names)):
                yield lines, _columns(parse_block(block, lines, names, delimiter, wanted=wanted))


class _Parquet(_File):
    def __init__(self, path: Path) -> None:
        from pyarrow import parquet

        with reading(path), parquet.ParquetFile(path) as file:
            self._places = column_names(file, path)
            rows = file.metadata.num_rows
        super().__init__(path, list(self._places), rows)

    def identity(self) -> Identity:
        """Numbers are known by their declared type; what pandas would make of another is not said there."""
        numbers = {name: self.stored[name] in ("number", "truth") for name in self.names}
        columns = {name: "number" if number else None for name, number in numbers.items()}
        return Identity(len(self), columns, contents=self._contents)

    def blocks(self, wanted: Mapping[str, bool]) -> Iterator[tuple[int, Block]]:
        from pyarrow import parquet

        with reading(self.path), parquet.ParquetFile(self.path) as file:
            for batch in file.iter_batches(batch_size=_ROWS, columns=[self._places[name] for name in wanted]):
                yield batch.num_rows, {name: batch.column(self._places[name]) for name in wanted}


def _columns(table: pa.Table) -> Block:
    return {name: table.column(name) for name in table.column_names}
