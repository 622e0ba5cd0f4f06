"""Copies of tensors in a file that no folder lists, for what is held long and seldom read back.

A model that adapters are trained on has many frozen weights. A copy of each must be at hand, to put back what
a model writes there when it sees a private record, and in memory that is the model once more. What was
written is never written over: a process that was forked reads what its parent stored, and stores elsewhere.

Memory of tensors is read and written by its address: NumPy's view of it would forbid to resize it later.
"""

from __future__ import annotations

import ctypes
import os
import tempfile

import torch
from torch import Tensor

__all__ = ["Scratch", "Stored"]

_AT_ONCE = 2**18  # bytes that are read and compared together: they stay in the processor's cache


class _File:
    """A file without a name, closed with the last of those that read it."""

    def __init__(self) -> None:
        with tempfile.TemporaryFile(prefix=".sidelight-") as file:
            self._number = os.dup(file.fileno())
        self._identity = self._present()

    @property
    def number(self) -> int:
        """Its descriptor. OSError if somebody has closed that, and it may stand for another file by now."""
        if self._present() != self._identity:
            raise OSError("the file of copies was closed")
        return self._number

    def _present(self) -> tuple[int, int, int]:
        found = os.fstat(self._number)
        return found.st_dev, found.st_ino, found.st_nlink  # the next file may have its place, but has a name

    def __del__(self) -> None:
        try:
            os.close(self.number)
        except (AttributeError, OSError):
            return


class Scratch:
    """A file of this process, written to as long as there is room."""

    def __init__(self) -> None:
        self._file: _File | None = None
        self._process, self._end, self._full = os.getpid(), 0, not hasattr(os, "preadv")

    def store(self, x: Tensor) -> Stored | None:
        """A copy of its numbers; None if these are not plain memory, or if nothing can be written."""
        content = None if self._full else _memory(x)
        if content is None:
            return None
        if self._process != os.getpid():
            self._file, self._process, self._end = None, os.getpid(), 0
        try:
            self._file = self._file or _File()
            at, left = self._end, content
            while left:
                left = left[os.pwrite(self._file.number, left, self._end + len(content) - len(left)) :]
        except OSError:  # no room, no such folder
            self._full = True
            return None
        self._end += len(content)
        return Stored(self._file, at, x.shape, x.dtype)

    def __reduce__(self) -> tuple[type[Scratch], tuple[()]]:
        return Scratch, ()


class Stored:
    """The numbers of a tensor, at a place of a file."""

    __slots__ = ("_at", "_file", "dtype", "shape")

    def __init__(self, file: _File, at: int, shape: torch.Size, dtype: torch.dtype) -> None:
        self._file, self._at, self.shape, self.dtype = file, at, shape, dtype

    def same(self, x: Tensor) -> bool:
        """Whether these are the numbers of x, bit for bit; False if they cannot be read any more."""
        content = self._memory(x)
        if content is None:
            return False
        part = bytearray(min(_AT_ONCE, len(content)))
        for start in range(0, len(content), _AT_ONCE):
            some = content[start : start + _AT_ONCE]
            if len(some) < len(part):
                del part[len(some) :]
            if not self._read(memoryview(part), start) or part != some:
                return False
        return True

    def put_back(self, x: Tensor) -> None:
        """Write these numbers into x, or zeros if they cannot be read: what x holds now must not stay."""
        content = self._memory(x)
        if content is None:
            x.data = self.load()
        elif not self._read(content, 0):
            content[:] = bytes(len(content))

    def load(self) -> Tensor:
        """A tensor with these numbers; zeros if they cannot be read."""
        made = torch.zeros(self.shape, dtype=self.dtype, device="cpu")
        self.put_back(made)
        return made

    def _memory(self, x: Tensor) -> memoryview | None:
        return _memory(x) if (x.shape, x.dtype) == (self.shape, self.dtype) else None

    def _read(self, into: memoryview, start: int) -> bool:
        done = 0
        try:
            while done < len(into):
                count = os.preadv(self._file.number, [into[done:]], self._at + start + done)
                if not count:
                    return False
                done += count
        except OSError:
            return False
        return True

    def __reduce__(self) -> tuple[object, ...]:
        return torch.clone, (self.load(),)  # another process, or a copy, has it in memory


def _memory(x: Tensor) -> memoryview | None:
    """Its bytes; None if it has none here, or if its numbers lie apart."""
    plain = x.layout == torch.strided and x.device.type == "cpu" and not x.is_quantized
    if not plain or not x.is_contiguous() or x.is_conj() or x.is_neg() or not x.nbytes:
        return None
    end = x.storage_offset() * x.element_size() + x.nbytes
    if x.untyped_storage().nbytes() < end or not x.data_ptr():  # somebody has resized it
        return None
    return memoryview((ctypes.c_ubyte * x.nbytes).from_address(x.data_ptr())).cast("B")
