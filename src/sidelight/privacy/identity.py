"""By what a ledger knows the records of a dataset again.

Two things. *Public facts*: how many records there are, and either the names and declared types of their
columns or the shape of one record; the guarantees of this library take these to be public. And, where the
owner of the dataset agreed, its *contents*, which are read for that and compared through a keyed hash
(`ledger_book`).

The type of a column is a public fact where somebody declared it, as in a Parquet file. In a frame it is not:
one odd cell turns numbers into objects, and where half of the cells are numbers, one record decides what most
of them are. So the types of a frame are not known, and what is not known is not compared.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from sidelight.arrays import Array, Json, TableLike
from sidelight.errors import InputError, guarded, listed

if TYPE_CHECKING:
    import pandas as pd
    from scipy.sparse import csr_matrix


_MOST_NAMES = 3  # of columns in a message


@dataclass(frozen=True)
class Identity:
    """What is known of the records that a run is about to read.

    Args:
        records: how many.
        columns: names, and types where these were declared ("number"); None for no table.
        shape: of one record of an array; None where it is not known.
        contents: reads the records and returns what is hashed; called only if the dataset's owner agreed.
        unit: what is counted and protected: a "record", or persons by the column that names them.
    """

    records: int
    columns: Mapping[str, str | None] | None = None
    shape: tuple[int, ...] | None = None
    contents: Callable[[], tuple[object, ...]] | None = field(default=None, repr=False, compare=False)
    unit: str = "record"

    def __post_init__(self) -> None:
        if isinstance(self.records, bool) or not isinstance(self.records, int) or self.records < 0:
            raise InputError(f"an identity needs the number of records, not {self.records!r}")

    @classmethod
    def of(cls, X: TableLike, y: object = None) -> Identity:
        """Of a table (its columns, and the name of y), an array, tensor or a sparse matrix; rows are records.

        Only names and shapes are looked at.
        """
        everything = (X,) if y is None else (X, y)

        def contents() -> tuple[object, ...]:
            return everything

        if hasattr(X, "columns") and hasattr(X, "dtypes"):
            frame: Any = X  # of pandas or polars
            return cls(records=len(frame), columns=_columns(frame, y), contents=contents)
        shape = _shape_of(X)
        if not shape:
            raise InputError("an identity is that of an array or a table with one record per row")
        return cls(records=shape[0], shape=shape[1:], contents=contents)

    @cached_property
    def digest(self) -> bytes | None:
        """A hash of the contents, made when first asked for; None if they cannot be read."""
        if self.contents is None:
            return None
        unreadable: tuple[object, ...] = ("unreadable",)  # whose reading fails is a record like any other
        return digest_of(*guarded(lambda read: read(), self.contents, unreadable))

    def differences(self, other: Identity, *, any_size: bool = False) -> list[str]:
        """In what public facts `other` differs, in words. What one of them does not know is not compared."""
        found = []
        if not any_size and self.records != other.records:
            found.append(f"{other._size}, not {self.records:,}")
        if self.columns is not None and other.columns is not None:
            found.extend(_column_differences(self.columns, other.columns))
        elif self.shape is not None and other.shape is not None:
            if self.shape != other.shape:
                found.append(f"records of shape {other.shape}, not {self.shape}")
        elif self._form != other._form and None not in (self._form, other._form):
            found.append(f"{other._form}, not {self._form}")
        return found

    def compared(self, other: Identity, *, any_size: bool = False) -> tuple[str, ...]:
        """The names of the facts that both know."""
        names = [] if any_size else ["number of records"]
        if self.columns is not None and other.columns is not None:
            typed = any(kind and other.columns.get(name) for name, kind in self.columns.items())
            names.append("column names and types" if typed else "column names")
        if self.shape is not None and other.shape is not None:
            names.append("shape of a record")
        return tuple(names)

    def describe(self) -> str:
        """The facts in words."""
        known = []
        if self.columns is not None:
            typed = any(self.columns.values())
            known.append(
                f"{_counted(len(self.columns), 'column')} ({'names and types' if typed else 'names'})"
            )
        if self.shape is not None:
            known.append(f"records of shape {self.shape}")
        return ", ".join([*known, self._size])

    @property
    def _size(self) -> str:
        if self.unit == "record":
            return _counted(self.records, "record")
        return f"{_counted(self.records, 'person')} (by {self.unit!r})"

    def facts(self) -> Json:
        """The public facts as JSON values."""
        return {
            "records": self.records,
            "columns": None if self.columns is None else dict(self.columns),
            "shape": None if self.shape is None else list(self.shape),
            **({} if self.unit == "record" else {"unit": self.unit}),
        }

    @classmethod
    def from_facts(cls, facts: Json) -> Identity:
        """What `facts` was made from, without the contents."""
        shape = facts["shape"]
        unit = facts.get("unit", "record")
        return cls(facts["records"], facts["columns"], None if shape is None else tuple(shape), unit=unit)

    @property
    def _form(self) -> str | None:
        if self.columns is not None:
            return "a table with named columns"
        return None if self.shape is None else "an array without names"


def _shape_of(X: Any) -> tuple[int, ...]:
    # () for rows of several lengths: NumPy's message may quote a value.
    shape = X.shape if hasattr(X, "shape") else guarded(np.shape, X, ())
    return tuple(int(size) for size in shape)


def _columns(X: Any, y: Any) -> Mapping[str, str | None]:
    names = [str(name) for name in X.columns]
    target = getattr(y, "name", None)
    return dict.fromkeys([*names, target] if isinstance(target, str) else names)


def _column_differences(mine: Mapping[str, str | None], theirs: Mapping[str, str | None]) -> list[str]:
    missing = [name for name in mine if name not in theirs]
    unknown = [name for name in theirs if name not in mine]
    kinds = [
        f"column {name!r} of type {theirs[name]}, not {kind}"
        for name, kind in mine.items()
        if kind and theirs.get(name) and theirs[name] != kind
    ]
    found = [f"no column {listed(missing, _MOST_NAMES)}"] if missing else []
    found += [f"column {listed(unknown, _MOST_NAMES)}, which is not one of the dataset"] if unknown else []
    return found + kinds[:_MOST_NAMES]


def _counted(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


# ---------------------------------------------------------------------------------------------------
# A digest of private records, which no content of theirs can stop.
#
# Values are hashed with their types and lengths, so that two different tables do not run into one text. One
# that cannot be read is hashed as such: an error would tell about a record.

_PLAIN_KINDS = "biufcmMSU"  # kinds of arrays whose bytes are their values
_MOST_INSIDE = 100_000  # values inside one value: one that holds itself would never end


def digest_of(*data: object) -> bytes:
    """SHA-256 of arrays, sparse matrices, tensors, tables or lists of records, in the order of their rows.

    It tells whoever can guess all of the data that the guess is right. So it is kept in memory only; a ledger
    stores what a secret key makes of it (`ledger_book`).
    """
    hasher = _Hasher()
    for part in data:
        if isinstance(part, Iterator):
            hasher.add_records(part)
            hasher.tag("end of rows", b"")
        else:
            hasher.add(part)
    return hasher.digest()


@dataclass(frozen=True, eq=False)
class Streamed:
    """A table that is hashed as a frame is, block by block: it need not fit in memory."""

    records: int
    blocks: Callable[[], Iterator[Mapping[str, Array]]]  # some rows of every column at a time


class _Hasher:
    def __init__(self) -> None:
        self._sha = hashlib.sha256(b"sidelight digest 3")
        self._depth = self._left = 0

    def digest(self) -> bytes:
        return self._sha.digest()

    def tag(self, name: str, content: bytes) -> None:
        self._sha.update(f"{name}:{len(content)}:".encode("utf-8", "surrogatepass"))
        self._sha.update(content)

    def add_records(self, records: Iterator[object]) -> None:
        self._depth = 1
        for record in records:
            self.add(record)
        self._depth = 0

    def add(self, value: object) -> None:
        if self._depth <= 1:  # a record, or a cell of a column
            self._left = _MOST_INSIDE
        self._depth += 1
        if not guarded(self._add, value, False):
            self.tag("unreadable", b"")
        self._depth -= 1

    def _add(self, value: object) -> bool:
        if isinstance(value, Streamed):
            self._add_streamed(value)
        elif hasattr(value, "tocsr"):
            self._add_sparse(value)
        elif hasattr(value, "columns") and hasattr(value, "to_numpy"):
            self._add_frame(value)
        elif hasattr(value, "detach"):
            tensor = value.detach().cpu()
            wide = tensor.float() if str(tensor.dtype) == "torch.bfloat16" else tensor
            self._add_array(wide.numpy())
        elif isinstance(value, np.ndarray):
            self._add_array(value)
        else:
            self._add_value(value)
        return True

    def _add_frame(self, frame: pd.DataFrame) -> None:
        columns = {str(name): np.asarray(frame[name]) for name in frame.columns}
        self._add_streamed(Streamed(len(frame), lambda: iter([columns])))

    def _add_streamed(self, table: Streamed) -> None:
        columns: dict[str, _Hasher] = {}
        for block in table.blocks():
            for name, piece in block.items():
                if name not in columns:
                    columns[name] = _Hasher()
                    columns[name]._depth = 1
                    columns[name]._add_shape(piece.dtype, (table.records,))
                columns[name]._add_items(piece)
        for name in sorted(columns):
            self.tag("column", name.encode("utf-8", "surrogatepass"))
            self.tag("digest", columns[name].digest())

    def _add_sparse(self, value: csr_matrix) -> None:
        matrix = value.tocsr(copy=True)
        matrix.sum_duplicates()
        self.tag("sparse", repr(tuple(map(int, matrix.shape))).encode())
        for array in (matrix.data, matrix.indices.astype(np.int64), matrix.indptr.astype(np.int64)):
            self._add_array(array)

    def _add_array(self, array: Array) -> None:
        self._add_shape(array.dtype, array.shape)
        self._add_items(array)

    def _add_shape(self, dtype: np.dtype[Any], shape: tuple[int, ...]) -> None:
        kind = dtype.newbyteorder("<").str if dtype.kind in _PLAIN_KINDS else "object"
        self.tag(kind, np.asarray(shape, dtype="<i8").tobytes())

    def _add_items(self, array: Array) -> None:
        if array.dtype.kind in _PLAIN_KINDS:
            kind = array.dtype.newbyteorder("<")
            self._sha.update(np.ascontiguousarray(array, dtype=kind).reshape(-1).view(np.uint8).data)
            return
        self._add_inside(array.ravel())

    def _add_inside(self, parts: Collection[object]) -> None:
        if self._depth > 1:
            self._left -= len(parts)
            if self._left < 0:
                raise OverflowError
        for part in parts:
            self.add(part)

    def _add_value(self, value: object) -> None:
        if value is None or isinstance(value, bool | int | float):
            self.tag(
                type(value).__name__, hex(value).encode() if type(value) is int else repr(value).encode()
            )
        elif isinstance(value, str):
            self.tag("str", value.encode("utf-8", "surrogatepass"))
        elif isinstance(value, bytes | bytearray):
            self.tag("bytes", bytes(value))
        elif isinstance(value, np.generic):
            self.tag(value.dtype.str, value.tobytes())
        elif isinstance(value, list | tuple | dict):
            inside = [part for item in value.items() for part in item] if isinstance(value, dict) else value
            self.tag("dict" if isinstance(value, dict) else "list", str(len(inside)).encode())
            self._add_inside(inside)
        elif hasattr(value, "isoformat"):
            self.tag("time", str(value.isoformat()).encode())
        else:
            self.tag("other", type(value).__name__.encode("utf-8", "surrogatepass"))
