"""Copies of tensors in a file that no folder lists, for what is held long and seldom read back.

A model that adapters are trained on has many frozen weights. A copy of each must be at hand, to put back what
a model writes there when it sees a private record, and in memory that is the model once more. What was
written is never written over: a process that was forked reads what its parent stored, and stores elsewhere.
"""

from __future__ import annotations

import math
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
            self.number = os.dup(file.fileno())

    def __del__(self) -> None:
        if "number" in vars(self):
            os.close(self.number)


class Scratch:
    """A file of this process, written to as long as there is room."""

    def __init__(self) -> None:
        self._file: _File | None = None
        self._process, self._end, self._full = os.getpid(), 0, not hasattr(os, "preadv")

    def store(self, x: Tensor) -> Stored | None:
        """A copy of its numbers; None if these are not plain memory, or if nothing can be written."""
        content = None if self._full else _bytes(x)
        if content is None:
            return None
        if self._process != os.getpid():
            self._file, self._process, self._end = None, os.getpid(), 0
        try:
            if self._file is None:
                self._file = _File()
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
        """Whether these are the numbers of x, bit for bit."""
        content = _bytes(x) if (x.shape, x.dtype) == (self.shape, self.dtype) else None
        if content is None:
            return False
        part = bytearray(min(_AT_ONCE, len(content)))
        for start in range(0, len(content), _AT_ONCE):
            some = content[start : start + _AT_ONCE]
            if len(some) < len(part):
                del part[len(some) :]
            self._read(memoryview(part), start)
            if part != some:
                return False
        return True

    def load(self) -> Tensor:
        """A tensor with these numbers."""
        made = torch.empty(self.shape, dtype=self.dtype)
        content = _bytes(made)
        if content is None:
            raise RuntimeError("a new tensor has memory of its own")
        self._read(content, 0)
        return made

    def _read(self, into: memoryview, start: int) -> None:
        done = 0
        while done < len(into):
            count = os.preadv(self._file.number, [into[done:]], self._at + start + done)
            if not count:
                raise OSError("the copy of a frozen weight cannot be read from the folder of temporary files")
            done += count

    def __reduce__(self) -> tuple[object, ...]:
        return torch.clone, (self.load(),)  # another process, or a copy, has it in memory


def _bytes(x: Tensor) -> memoryview | None:
    """Its memory; None if it has none here, or if its numbers lie apart."""
    plain = type(x.data) is Tensor and x.layout == torch.strided and x.device.type == "cpu"
    if not plain or not x.is_contiguous() or x.is_conj() or x.is_neg() or not math.prod(x.shape):
        return None
    return x.detach().reshape(-1).view(torch.uint8).numpy().data
