"""Snapshots of things that can be changed: how to read, compare and put back their content.

A content is noted one level deep: what it holds has a snapshot of its own (state.py finds them all).
"""

from __future__ import annotations

import copyreg
import functools
import io
import pickle
import random
import types
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

Generators: TypeAlias = random.Random | np.random.BitGenerator | np.random.RandomState | torch.Generator
SIMPLE = (
    type(None), bool, int, float, complex, str, bytes, range, slice, torch.dtype, torch.device, torch.Size,
    np.generic, np.dtype, np.ufunc,
)  # fmt: skip

Read: TypeAlias = Callable[[Any], Any]
Write: TypeAlias = Callable[[Any, Any], object]  # of the content that its Read gave


class Snapshot:
    """Something that can be changed, how to read and write its content, and the content at one moment."""

    __slots__ = ("content", "name", "owner", "read", "write")

    def __init__(self, owner: Any, read: Read, write: Write, name: str) -> None:
        self.owner, self.read, self.write, self.name = owner, read, write, name
        self.content = read(owner)

    def changed(self) -> bool:
        return not _same(self.read(self.owner), self.content)

    def restore(self) -> None:
        self.write(self.owner, self.content)

    def what(self) -> str:
        """Which entry of a dictionary changed, or by which name the thing was found."""
        now, then = self.read(self.owner), self.content
        if isinstance(now, dict) and isinstance(then, dict):
            return next((str(x) for x in {**now, **then} if now.get(x) is not then.get(x)), self.name)
        return self.name


class TensorSnapshot:
    """A tensor at one moment: its form, its version, and a copy of its numbers if that is wanted."""

    __slots__ = ("copy", "form", "grad", "name", "tensor", "version")

    def __init__(self, tensor: Tensor, name: str) -> None:
        self.tensor, self.name = tensor, name
        self.renew(copied=False)

    def renew(self, *, copied: bool) -> None:
        """Take it as it is now."""
        x = self.tensor
        self.form, self.version, self.grad = _form(x), x._version, x.grad if x.is_leaf else None
        self.copy = x.detach().clone() if copied else None

    def moved(self) -> bool:
        """Whether its form, version or gradient changed: a quick look, which misses writes into `.data`."""
        x = self.tensor
        return x._version != self.version or _form(x) != self.form or (x.is_leaf and x.grad is not self.grad)

    def changed(self) -> bool:
        return self.moved() or (self.copy is not None and not _same_numbers(self.tensor, self.copy))

    def altered(self) -> bool:
        """Whether shape, type, or whether it is trained changed. Numbers do not count."""
        return _form(self.tensor)[:3] != self.form[:3]

    @torch.no_grad()
    def restore(self) -> None:
        """Put its numbers back; without a copy they are lost, and zeros stand in for what must not stay."""
        x, (shape, dtype, trained, _) = self.tensor, self.form
        if x.is_leaf and x.requires_grad != trained:
            x.requires_grad_(trained)
        if x.is_leaf and x.grad is not self.grad:
            x.grad = self.grad
        if self.copy is None:
            if x._version != self.version or _form(x) != self.form:
                x.data = torch.zeros(shape, dtype=dtype, device=x.device)
        elif (x.shape, x.dtype) != (shape, dtype):
            x.data = self.copy.clone()
        elif not _same_numbers(x, self.copy):
            x.data.copy_(self.copy)
        self.form, self.version = _form(x), x._version


def _form(x: Tensor) -> tuple[torch.Size, torch.dtype, bool, int | None]:
    """Shape, type, whether it is trained, and its memory (None if it has none that can be compared)."""
    try:
        return x.shape, x.dtype, x.requires_grad, None if x.is_meta else x.data_ptr()
    except (RuntimeError, NotImplementedError):  # sparse, or left behind by torch.func
        return x.shape, x.dtype, x.requires_grad, None


def _same_numbers(x: Tensor, copy: Tensor) -> bool:
    now = x.detach()
    if now.shape != copy.shape or now.dtype != copy.dtype:
        return False
    return torch.equal(now, copy) or bool(torch.isclose(now, copy, rtol=0.0, atol=0.0, equal_nan=True).all())


def _same(a: object, b: object, depth: int = 0) -> bool:
    """The same things in the same order, or equal numbers and texts in their places."""
    if a is b:
        return True
    if type(a) is not type(b) or depth > 3:
        return False
    if isinstance(a, SIMPLE):
        return bool(a == b) or repr(a) == repr(b)  # which NaN is
    if isinstance(a, dict) and isinstance(b, dict):
        return _same(list(a), list(b), depth) and _same(list(a.values()), list(b.values()), depth)
    if isinstance(a, list | tuple) and isinstance(b, list | tuple):
        return len(a) == len(b) and all(x is y or _same(x, y, depth + 1) for x, y in zip(a, b, strict=True))
    if isinstance(a, set):
        return a == b
    if isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
        return (a.dtype, a.shape) == (b.dtype, b.shape) and a.tobytes() == b.tobytes()
    return isinstance(a, Tensor) and isinstance(b, Tensor) and a.dtype == torch.uint8 and torch.equal(a, b)


# ---------------------------------------------------------------------------------------------------
# kinds of content


def fill_dict(owner: Any, content: Any) -> None:
    kind = OrderedDict if isinstance(owner, OrderedDict) else dict
    kind.clear(owner)
    kind.update(owner, content)


def _fill(owner: Any, content: Any) -> None:
    owner.clear()
    (owner.extend if isinstance(owner, list | deque) else owner.update)(content)


def _fill_array(owner: Any, content: Any) -> None:
    if owner.shape != content.shape:
        owner.resize(content.shape, refcheck=False)
    writeable, owner.flags.writeable = owner.flags.writeable, True
    owner[...] = content
    owner.flags.writeable = writeable


def _position(file: io.IOBase) -> int | None:
    """Where an open file is read."""
    try:
        return int(file.tell()) if file.readable() and file.seekable() else None
    except (OSError, ValueError):
        return None


def _in_cell(cell: types.CellType) -> object:
    """What a closure holds under a name."""
    try:
        return cell.cell_contents
    except ValueError:
        return None


def _of_class(owner: type) -> dict[str, Any]:
    return {name: value for name, value in vars(owner).items() if not name.startswith("__")}


def slots_of(owner: object) -> dict[str, Any]:
    """What an object holds in slots."""
    names = copyreg._slotnames(type(owner))  # type: ignore[attr-defined]
    return {name: getattr(owner, name) for name in names if hasattr(owner, name)}


def _put(owner: object, now: dict[str, Any], then: dict[str, Any]) -> None:
    """Give an object the attributes that it had."""
    for name in now.keys() - then.keys():
        delattr(owner, name)
    for name, value in then.items():
        if now.get(name, owner) is not value:
            (type if isinstance(owner, type) else object).__setattr__(owner, name, value)


_KINDS: tuple[tuple[Any, Read, Write], ...] = (
    (dict, dict, fill_dict),
    (list, list, _fill),
    (deque, list, _fill),
    (set, set, _fill),
    (np.ndarray, np.copy, _fill_array),
    (io.IOBase, _position, lambda one, then: one.closed or then is None or one.seek(then)),
    (random.Random, lambda one: pickle.dumps(one.getstate()), lambda one, x: one.setstate(pickle.loads(x))),
    (np.random.BitGenerator, pickle.dumps, lambda one, x: one.__setstate__(pickle.loads(x).__getstate__())),
    (np.random.RandomState, lambda one: one.get_state(legacy=False), np.random.RandomState.set_state),
    (torch.Generator, torch.Generator.get_state, lambda one, x: one.set_state(x)),
    (types.CellType, _in_cell, lambda one, x: setattr(one, "cell_contents", x)),
    (functools._lru_cache_wrapper, lambda one: one.cache_info().misses, lambda one, _: one.cache_clear()),
    (type, _of_class, lambda one, then: _put(one, _of_class(one), then)),
)


def snapshot_of(one: object, name: str) -> Snapshot | None:
    """This thing's own content, but for its attributes."""
    row = next((row for row in _KINDS if isinstance(one, row[0])), None)
    return None if row is None else Snapshot(one, row[1], row[2], name)


def snapshot_of_slots(one: object, name: str) -> Snapshot:
    """What an object holds in slots."""
    return Snapshot(one, slots_of, lambda owner, then: _put(owner, slots_of(owner), then), name)


def snapshot_of_globals(space: dict[str, object], chosen: set[str]) -> Snapshot:
    """What some globals are. A module under a name may be imported at any time."""

    def read(space: dict[str, Any]) -> dict[str, Any]:
        found = ((name, space[name]) for name in sorted(chosen) if name in space)
        return {name: value for name, value in found if not isinstance(value, types.ModuleType)}

    def write(space: dict[str, Any], then: dict[str, Any]) -> None:
        for name in read(space).keys() - then.keys():
            del space[name]
        space.update(then)

    return Snapshot(space, read, write, "a global")
