"""A private table: what is public about it at once, its records in blocks when they are encoded.

It is a frame, a CSV, TSV or Parquet file, or many such files with the same columns: a folder, or a pattern
such as lake/*.parquet. Files are taken in the order of their paths, and those that begin with a dot or an
underscore are left out, as Spark, Hive and others mean it. A folder named year=2024 gives its files a column
`year` (Hive's partitions). Which files there are, how they are called and how many records each has is
public, as the number of records of one file is.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeAlias, TypeVar
from urllib.parse import unquote

import numpy as np

from sidelight.arrays import Array
from sidelight.data.frames import Frame, Storage, as_pandas, is_frame, storage
from sidelight.data.lines import check_names, clean_blocks, count_lines, header_of, parse_block
from sidelight.data.table_files import (
    PARQUET,
    TableSource,
    assumed_of_file,
    names_in,
    read_table,
    reading,
    stored_types,
    typed_column,
)
from sidelight.data.values import ColumnData, pandas
from sidelight.errors import InputError
from sidelight.privacy.identity import Identity, Streamed

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa
    from pyarrow import parquet as pq

T = TypeVar("T")


_ROWS = 1 << 17  # in a block of a frame or of a Parquet file
_VALUES = 1 << 22  # in it at most
_BUFFER = 1 << 20  # bytes of a column that are read at a time

Block: TypeAlias = Mapping[str, ColumnData]  # some rows of every column


class PrivateTable(Protocol):
    """Names, types, number of records and identity are public. Blocks are not."""

    @property
    def names(self) -> list[str]: ...

    @property
    def stored(self) -> Mapping[str, Storage]: ...

    @property
    def files(self) -> list[str]:
        """Where the records are; none of a frame."""

    def __len__(self) -> int: ...

    def identity(self) -> Identity:
        """By what a ledger knows these records."""

    def blocks(self, wanted: Mapping[str, bool], within: range | None = None) -> Iterator[tuple[int, Block]]:
        """The number of records and the columns of each block. `wanted` says which are best as numbers.

        within: the records to read, by their place; None reads all.
        """


def open_private(source: TableSource, where: str = "the private table") -> PrivateTable:
    """A frame, the path of a file or of a folder, or a pattern; `where` is what a message calls a frame."""
    if is_frame(source):
        return _Frame(source, where)
    files = _files(source)
    if files is None:
        return _file(Path(source))
    return _Many([_file(path) for path, _ in files], [fixed for _, fixed in files], str(source))


def _file(path: Path) -> _Text | _Parquet:
    return _Parquet(path) if path.suffix.lower() in PARQUET else _Text(path)


class _Frame:
    """A private frame of pandas or polars."""

    def __init__(self, frame: Frame, where: str) -> None:
        self._given, self._frame = frame, as_pandas(frame, where)
        self.names = list(self._frame.columns)
        self.stored = storage(self._frame, private=True)
        self.files: list[str] = []

    def __len__(self) -> int:
        return len(self._frame)

    def identity(self) -> Identity:
        return Identity.of(self._given)

    def blocks(self, wanted: Mapping[str, bool], within: range | None = None) -> Iterator[tuple[int, Block]]:
        where = {name: self.names.index(name) for name in wanted}
        records = range(len(self)) if within is None else within
        step = _rows(wanted)
        for start in range(records.start, records.stop, step):
            rows = slice(start, min(start + step, records.stop))
            columns = {name: self._frame.iloc[rows, index] for name, index in where.items()}
            yield rows.stop - rows.start, columns


class _File:
    """What the two kinds of files share."""

    def __init__(self, path: Path, names: list[str], rows: int) -> None:
        self.path, self.names, self._rows = path, names, rows
        self.stored = stored_types(path)
        self.files = [str(path)]

    def __len__(self) -> int:
        return self._rows


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
        return Identity(len(self), dict.fromkeys(self.names), contents=partial(_contents, self))

    def blocks(self, wanted: Mapping[str, bool], within: range | None = None) -> Iterator[tuple[int, Block]]:
        names, delimiter, at = self._header.names, self._header.delimiter, 0
        with reading(self.path), self._open(self.path) as stream:
            for block, lines in clean_blocks(stream, delimiter, len(names)):
                inside = slice(0, lines) if within is None else _overlap(within, at, lines)
                at += lines
                if within is not None and inside.stop <= inside.start:
                    if at >= within.stop:
                        return
                    continue
                table = parse_block(block, names, delimiter, wanted)[inside]
                yield table.num_rows, {name: table.column(name) for name in table.column_names}


class _Parquet(_File):
    def __init__(self, path: Path) -> None:
        from pyarrow import parquet

        with reading(path), parquet.ParquetFile(path) as file:
            self._spelt = {name.strip(): name for name in names_in(file)}  # as the file has it
            check_names([name.strip() for name in names_in(file)], path)
            rows = file.metadata.num_rows
        super().__init__(path, list(self._spelt), rows)

    def identity(self) -> Identity:
        """Numbers are known by their declared type; what pandas would make of another is not said there."""
        numbers = {name: self.stored[name] in ("number", "truth") for name in self.names}
        columns = {name: "number" if number else None for name, number in numbers.items()}
        return Identity(len(self), columns, contents=partial(_contents, self))

    def blocks(self, wanted: Mapping[str, bool], within: range | None = None) -> Iterator[tuple[int, Block]]:
        from pyarrow import parquet

        columns = [self._spelt[name] for name in wanted]
        # A buffer: else all of a row group is read at once, and that may be all of the file.
        with reading(self.path), parquet.ParquetFile(self.path, buffer_size=_BUFFER) as file:
            groups, at = range(file.num_row_groups), 0
            if within is not None:
                groups, at = _row_groups(file, within)
            for batch in file.iter_batches(
                batch_size=_rows(wanted), row_groups=list(groups), columns=columns
            ):
                if within is not None:
                    inside, at = _overlap(within, at, batch.num_rows), at + batch.num_rows
                    if inside.stop <= inside.start:
                        continue
                    batch = batch[inside]
                yield batch.num_rows, {name: batch.column(self._spelt[name]) for name in wanted}


def _rows(wanted: Mapping[str, bool]) -> int:
    """In a block: many, but of many columns not more values than of a few."""
    return max(1024, min(_ROWS, _VALUES // max(1, len(wanted))))


def _overlap(within: range, at: int, rows: int) -> slice:
    """Which of so many records, of which the first has the place `at`, are within the range."""
    return slice(max(within.start - at, 0), min(within.stop - at, rows))


def _row_groups(file: pq.ParquetFile, within: range) -> tuple[range, int]:
    """Those that hold records of the range, and the place of their first record."""
    ends = np.cumsum([file.metadata.row_group(k).num_rows for k in range(file.num_row_groups)])
    first = int(np.searchsorted(ends, within.start, side="right"))
    last = int(np.searchsorted(ends, within.stop, side="left"))
    return range(first, min(last + 1, len(ends))), int(ends[first - 1]) if first else 0


# ---------------------------------------------------------------------------------------------------
# many files


_SUFFIXES = (*PARQUET, ".csv", ".tsv", ".txt", ".tab", ".psv", ".data")
_PACKED = (".gz", ".bz2", ".zst", ".lz4")
_FILES_ARE_PUBLIC = (
    "which files the private table has, what they and their folders are called, and how many records each "
    "has, is public"
)
_HIVE_MISSING = "__HIVE_DEFAULT_PARTITION__"

Fixed: TypeAlias = "dict[str, str | None]"  # columns that a folder's name gives to its files


def of_spark(source: T) -> T:
    """A frame of Spark 4, collected as a table of Arrow; anything else as it is."""
    to_arrow = getattr(source, "toArrow", None)
    collected: T = source if to_arrow is None else to_arrow()
    return collected


def table_exists(source: TableSource) -> bool:
    """Whether there is a file or a folder of this name, or a file of this pattern."""
    return is_frame(source) or Path(source).exists() or bool(_is_pattern(source) and _matches(source))


def assumed_of(source: TableSource) -> tuple[str, ...]:
    """What a statement has to say of how private files were read."""
    if is_frame(source):
        return ()
    files = _files(source)
    if files is None:
        return assumed_of_file(source)
    return (*assumed_of_file(files[0][0]), _FILES_ARE_PUBLIC)


def share_a_file(one: TableSource, other: TableSource) -> bool:
    """Whether a file is in both tables, by any path, folder or pattern."""
    paths = [source for source in (one, other) if isinstance(source, str | os.PathLike)]
    if len(paths) < 2 or not all(map(table_exists, paths)):
        return False
    ours, theirs = ({_number_of(file) for file, _ in _files(path) or [(Path(path), {})]} for path in paths)
    return bool(ours & theirs)


def read_public(source: TableSource) -> pd.DataFrame:
    """A public table from a file, or from many."""
    files = None if is_frame(source) else _files(source)
    if files is None:
        return read_table(source)
    frames = [read_table(path).assign(**fixed) for path, fixed in files]
    for (path, _), frame in zip(files, frames, strict=True):
        _check_same(list(frames[0].columns), list(frame.columns), files[0][0], path)
    return pandas().concat(frames, ignore_index=True)


def _files(source: str | os.PathLike[str]) -> list[tuple[Path, Fixed]] | None:
    """The files of a folder or a pattern, and what their folders are called; None for one file."""
    path = Path(source)
    if path.is_dir():
        root, found = path, _inside(path)
    elif not path.exists() and _is_pattern(source):
        root, found = Path(_literal(source)), _matches(source)
    else:
        return None
    if not found:
        what = f"{source} is a folder without a table" if path.is_dir() else f"no file matches {source}"
        raise InputError(f"{what}; expected CSV, TSV or Parquet files")
    strange = [file for file in found if _suffix(file) not in _SUFFIXES]
    if strange:
        raise InputError(
            f"{source} is a folder with {strange[0].name}, neither a Parquet file nor delimited text; say "
            f"which files to take by a pattern such as '{root / '*.parquet'}'"
        )
    if len({_suffix(file) in PARQUET for file in found}) > 1:
        raise InputError(f"{source} holds Parquet files and others; say which to take by a pattern")
    _check_once(found)
    return [(file, _hive(file, root)) for file in found]


def _check_once(found: list[Path]) -> None:
    """A record of a file that is there under two names would count twice."""
    known: dict[tuple[int, int], Path] = {}
    for file in found:
        if (first := known.setdefault(_number_of(file), file)) is not file:
            raise InputError(
                f"{first} and {file} are the same file (a link?), so its records would count twice"
            )


def _number_of(file: Path) -> tuple[int, int]:
    """The same for one file under any name."""
    found = file.stat()
    return found.st_dev, found.st_ino


def _inside(folder: Path) -> list[Path]:
    hidden = (".", "_")
    found = [file for file in folder.rglob("*") if file.is_file()]
    parts = [(file, file.relative_to(folder).parts) for file in found]
    return sorted(file for file, names in parts if not any(name.startswith(hidden) for name in names))


def _matches(source: str | os.PathLike[str]) -> list[Path]:
    found = [Path(name) for name in sorted(glob.glob(os.fspath(source), recursive=True))]
    return sorted({file for one in found for file in (_inside(one) if one.is_dir() else [one])})


def _is_pattern(source: str | os.PathLike[str]) -> bool:
    return glob.has_magic(os.fspath(source))


def _literal(source: str | os.PathLike[str]) -> str:
    """The folder before the first wildcard."""
    parts = Path(source).parts
    magic = accumulate(map(glob.has_magic, parts), max)
    plain = [part for part, one in zip(parts, magic, strict=True) if not one]
    return os.path.join(*plain) if plain else "."


def _suffix(file: Path) -> str:
    name = file.name.lower()
    packed = next((end for end in _PACKED if name.endswith(end)), "")
    return Path(name.removesuffix(packed)).suffix


def _hive(file: Path, root: Path) -> Fixed:
    pairs = [part.split("=", 1) for part in file.relative_to(root).parent.parts if "=" in part]
    return {unquote(name): None if value == _HIVE_MISSING else unquote(value) for name, value in pairs}


def _check_same(first: list[str], other: list[str], one: Path, another: Path) -> None:
    if missing := [name for name in first if name not in other]:
        raise InputError(f"{another} has no column {missing[0]!r}, which {one} has; all files need the same")
    if new := [name for name in other if name not in first]:
        raise InputError(f"{another} has a column {new[0]!r}, which {one} lacks; all files need the same")


@dataclass(eq=False)
class _Many:
    """Files with the same columns, one after the other, each with the columns that its folder gives it."""

    parts: list[_Text | _Parquet]
    fixed: list[Fixed]
    source: str

    def __post_init__(self) -> None:
        first = self.parts[0]
        self.names = [*first.names, *self.fixed[0]]
        self.files = [str(part.path) for part in self.parts]
        check_names(self.names, first.path)
        self.stored = {**dict(self._kinds()), **dict.fromkeys(self.fixed[0], "text")}
        for file, fixed in zip(self.parts, self.fixed, strict=True):
            names = [*file.names, *fixed]
            check_names(names, file.path)
            _check_same(self.names, names, first.path, file.path)
            other = [n for n in file.names if file.stored.get(n, "any") not in ("any", self.stored[n])]
            if other:
                raise InputError(
                    f"column {other[0]!r} is stored as {file.stored[other[0]]} in {file.path} and as "
                    f"{self.stored[other[0]]} in others; write all files with one type"
                )

    def _kinds(self) -> Iterator[tuple[str, Storage]]:
        """How each column is stored where a file has a value of it: one without any may have no type."""
        for name in self.parts[0].names:
            kinds = (file.stored.get(name, "any") for file in self.parts)
            yield name, next((kind for kind in kinds if kind != "any"), "any")

    def __len__(self) -> int:
        return sum(len(file) for file in self.parts)

    def identity(self) -> Identity:
        columns = dict(self.parts[0].identity().columns or {}) | dict.fromkeys(self.fixed[0])
        return Identity(len(self), columns, contents=partial(_contents, self))

    def blocks(self, wanted: Mapping[str, bool], within: range | None = None) -> Iterator[tuple[int, Block]]:
        at, records = 0, range(len(self)) if within is None else within
        for file, fixed in zip(self.parts, self.fixed, strict=True):
            inside = _overlap(records, at, len(file))
            # All of a file is read without a range: one that has grown is then noticed.
            part = None if inside == slice(0, len(file)) else range(inside.start, inside.stop)
            at += len(file)
            if inside.stop > inside.start:
                own = {name: number for name, number in wanted.items() if name not in fixed}
                for rows, block in file.blocks(own, part):
                    yield rows, {**block, **{n: _constant(v, rows) for n, v in fixed.items() if n in wanted}}


def _contents(table: PrivateTable) -> tuple[Streamed]:
    """The values of a file, for a fingerprint: read only if the owner of the dataset agreed to one."""

    def pieces() -> Iterator[Mapping[str, Array]]:
        for _, block in table.blocks(dict.fromkeys(table.names, False)):
            yield {name: typed_column(column) for name, column in block.items()}

    return (Streamed(len(table), pieces),)


def _constant(value: str | None, rows: int) -> pa.Array:
    import pyarrow as pa

    return pa.nulls(rows, pa.string()) if value is None else pa.repeat(pa.scalar(value, pa.string()), rows)
