"""A digest of private records, which no content of theirs can stop.

Values are hashed with their types and lengths, so that two different tables do not run into one text. Nothing
here calls a method that a value may have overridden without catching what it raises, and a value that holds
itself ends somewhere: an error, or a wait, would tell about a record.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import numpy as np

from sidelight.arrays import Array

if TYPE_CHECKING:
    import pandas as pd
    from scipy.sparse import csr_matrix

__all__ = ["digest_of"]

_NUMBERS = "biufcmMSU"  # kinds of arrays whose bytes are their values
_INSIDE = 100_000  # values inside of one value, such as a list in a cell; the rest is not read


def digest_of(*data: object) -> bytes:
    """SHA-256 of arrays, sparse matrices, tensors, tables or lists of records, in the order of their rows.

    It tells whoever can guess all of the data that the guess is right. So it is kept in memory only; a ledger
    stores what a secret key makes of it (`ledger_binding`).
    """
    hasher = _Hasher()
    for part in data:
        if isinstance(part, list | tuple | Iterator):
            hasher.tag("rows", b"")
            for value in part:
                hasher.add_outermost(value)
            hasher.tag("end of rows", b"")
        else:
            hasher.add_outermost(part)
    return hasher.digest()


class _Hasher:
    def __init__(self) -> None:
        self._sha = hashlib.sha256(b"sidelight digest 2")
        self._left = _INSIDE

    def digest(self) -> bytes:
        return self._sha.digest()

    def tag(self, name: str, content: bytes) -> None:
        self._sha.update(f"{name}:{len(content)}:".encode("utf-8", "surrogatepass"))
        self._sha.update(content)

    def add_outermost(self, value: object) -> None:
        self._left = _INSIDE
        self.add(value)

    def add(self, value: object) -> None:
        try:
            self._add(value)
        except Exception:  # whatever a value does when it is looked at, a recursion without end too
            self.tag("unreadable", b"")

    def _add(self, value: object) -> None:
        if hasattr(value, "tocsr"):
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

    def _add_frame(self, frame: pd.DataFrame) -> None:
        columns = {str(name): frame[name] for name in frame.columns}
        for name in sorted(columns):
            self.tag("column", name.encode("utf-8", "surrogatepass"))
            self.add_outermost(np.asarray(columns[name]))

    def _add_sparse(self, value: csr_matrix) -> None:
        matrix = value.tocsr(copy=True)
        matrix.sum_duplicates()
        self.tag("sparse", repr(tuple(map(int, matrix.shape))).encode())
        for array in (matrix.data, matrix.indices.astype(np.int64), matrix.indptr.astype(np.int64)):
            self._add_array(array)

    def _add_array(self, array: Array) -> None:
        shape = np.asarray(array.shape, dtype="<i8").tobytes()
        if array.dtype.kind in _NUMBERS:
            kind = array.dtype.newbyteorder("<")
            self.tag(kind.str, shape)
            self._sha.update(np.ascontiguousarray(array, dtype=kind).reshape(-1).view(np.uint8).data)
            return
        self.tag("object", shape)
        outermost = self._left == _INSIDE
        for value in array.ravel():
            self.add_outermost(value) if outermost else self._inside(value)

    def _add_value(self, value: object) -> None:
        if value is None:
            self.tag("none", b"")
        elif isinstance(value, bool):
            self.tag("bool", b"1" if value is True else b"0")
        elif isinstance(value, int):
            size = int.bit_length(value) // 8 + 1
            self.tag("int", int.to_bytes(value, size, "little", signed=True))
        elif isinstance(value, float):
            self.tag("float", struct.pack("<d", float.__float__(value)))
        elif isinstance(value, str):
            self.tag("str", str.encode(value, "utf-8", "surrogatepass"))
        elif isinstance(value, bytes | bytearray):
            self.tag("bytes", bytes(value))
        elif isinstance(value, np.generic):
            self.tag(value.dtype.str, value.tobytes())
        elif isinstance(value, list | tuple):
            self._add_all("list", value)
        elif isinstance(value, dict):
            self._add_all("dict", [part for item in value.items() for part in item])
        elif hasattr(value, "isoformat"):
            self.tag("time", str(value.isoformat()).encode())
        else:
            self.tag("other", type(value).__name__.encode("utf-8", "surrogatepass"))

    def _add_all(self, name: str, values: Iterable[object]) -> None:
        inside = list(values)
        self.tag(name, str(len(inside)).encode())
        for value in inside:
            self._inside(value)

    def _inside(self, value: object) -> None:
        if self._left > 0:
            self._left -= 1
            self.add(value)
