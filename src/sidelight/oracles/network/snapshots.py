"""Cells: things that can be changed, how to read and write their content, and how to compare it.

A content is noted one level deep: what it holds has a cell of its own (state.py finds them).
"""

from __future__ import annotations

import array
import ctypes
import functools
import io
import operator
import os
import random
import sys
import types
import zlib
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

__all__ = [
    "SIMPLE", "Cell", "attributes_of", "cells_of", "class_cell", "content_of", "environment_cell",
    "fill_mapping", "is_frame", "named", "slots_cell", "slots_of",
]  # fmt: skip

GENERATORS = (random.Random, np.random.BitGenerator, np.random.RandomState, torch.Generator)
_COPIED = 2**24  # bytes of an array that is copied; of a larger one a checksum is compared
_LARGE = 1000  # entries, or numbers, beyond which content is not looked at after every record

Read = Callable[[Any], Any]
Write = Callable[[Any, Any], None]


@dataclass(slots=True)
class Cell:
    """Something that can be changed, how to read and write its content, and the content at one moment.

    memo: a cache that is emptied rather than put back, and whose filling is no change.
    """

    owner: Any
    read: Read
    write: Write
    content: Any
    memo: bool = False

    @classmethod
    def of(cls, owner: Any, read: Read, write: Write, *, memo: bool = False) -> Cell:
        return cls(owner, read, write, read(owner), memo)

    @property
    def generator(self) -> bool:
        """Whether this is a generator of random numbers."""
        return isinstance(self.owner, GENERATORS)

    @property
    def large(self) -> bool:
        """Whether it takes long to compare."""
        if isinstance(self.content, np.ndarray):
            return self.content.size > _LARGE
        return isinstance(self.content, dict | list | set | bytes) and len(self.content) > _LARGE

    def changed(self) -> bool:
        if self.read is dict and not self.content:
            return bool(self.owner)
        if isinstance(self.owner, random.Random):  # plain numbers, hundreds of them
            return bool(self.read(self.owner) != self.content)
        now = self.owner if self.read is dict else self.read(self.owner)
        return not alike(now, self.content)

    def restore(self) -> None:
        self.write(self.owner, self.content)


def cells_of(one: Any) -> Iterator[Cell]:
    """How to compare and restore this thing's own content, but for attributes and slots."""
    for kinds, read, write in _KINDS:
        if isinstance(one, kinds):
            yield Cell.of(one, read, write)
            return
    if isinstance(one, types.FunctionType):
        yield Cell.of(one, _signature, _fill_signature)
        for cell in one.__closure__ or ():
            yield Cell.of(cell, content_of, _fill_cell)
    elif isinstance(one, functools._lru_cache_wrapper):
        yield Cell.of(one, _memory, _forget, memo=True)
    elif isinstance(one, ctypes.Array | ctypes.Structure | ctypes.Union | ctypes._SimpleCData):
        yield Cell.of(one, _bytes, _fill_bytes)
    elif is_frame(one):
        yield Cell.of(one, _frame, functools.partial(_fill_frame, one.copy(deep=False)))


def attributes_of(one: Any) -> dict[str, Any] | None:
    """The attributes of an object, as the dictionary that holds them."""
    try:
        found = getattr(one, "__dict__", None)
    except Exception:  # somebody's own __getattr__
        return None
    return found if isinstance(found, dict) else None


def is_frame(one: Any) -> bool:
    """Whether this is a frame or a series of pandas."""
    pandas = sys.modules.get("pandas")
    return pandas is not None and isinstance(one, pandas.DataFrame | pandas.Series)


# ---------------------------------------------------------------------------------------------------
# kinds of content; filled past what subclasses do


def fill_mapping(owner: Any, content: dict[Any, Any]) -> None:
    kind = OrderedDict if isinstance(owner, OrderedDict) else dict
    kind.clear(owner)
    kind.update(owner, content)


def _fill_list(owner: Any, content: list[Any]) -> None:
    list.__setitem__(owner, slice(None), content)


def _fill_deque(owner: Any, content: list[Any]) -> None:
    deque.clear(owner)
    deque.extend(owner, content)


def _fill_set(owner: Any, content: set[Any]) -> None:
    set.clear(owner)
    set.update(owner, content)


def _fill_buffer(owner: Any, content: bytes) -> None:
    owner[:] = content if isinstance(owner, bytearray) else array.array(owner.typecode, content)


def _bytes(owner: Any) -> bytes:
    return bytes(owner) if isinstance(owner, bytearray) else memoryview(owner).cast("B").tobytes()


def _array_bytes(owner: Any) -> bytes:
    return bytes(owner) if isinstance(owner, bytearray) else bytes(owner.tobytes())


def _fill_bytes(owner: Any, content: bytes) -> None:
    memoryview(owner).cast("B")[:] = content


def _array(owner: Any) -> Any:
    if owner.nbytes <= _COPIED or owner.dtype.hasobject:
        return owner.copy()
    return zlib.crc32(np.ascontiguousarray(owner).reshape(-1).view(np.uint8).data)


def _fill_array(owner: Any, content: Any) -> None:
    if isinstance(content, int):
        owner[...] = 0  # what it was is lost; what it is must not stay
        return
    if owner.shape != content.shape:
        owner.resize(content.shape, refcheck=False)
    writeable = owner.flags.writeable
    owner.flags.writeable = True
    owner[...] = content
    owner.flags.writeable = writeable


def _text(owner: Any) -> Any:
    return None if owner.closed else (owner.getvalue(), owner.tell())


def _fill_text(owner: Any, content: Any) -> None:
    if content is not None and not owner.closed:
        owner.seek(0)
        owner.truncate()
        owner.write(content[0])
        owner.seek(content[1])


def _position(owner: Any) -> int | None:
    """Where an open file is read; what is written to it is a matter of files, of which nothing is known."""
    try:
        return int(owner.tell()) if owner.readable() and owner.seekable() else None
    except (OSError, ValueError):
        return None


def _fill_position(owner: Any, content: int | None) -> None:
    if content is not None and not owner.closed:
        owner.seek(content)


def _variable(owner: ContextVar[Any]) -> Any:
    return owner.get()


def _fill_variable(owner: ContextVar[Any], content: Any) -> None:
    owner.set(content)


def _generator(owner: Any) -> Any:
    if isinstance(owner, random.Random):
        return owner.getstate()
    if isinstance(owner, np.random.RandomState):
        return owner.get_state(legacy=False)
    if isinstance(owner, np.random.BitGenerator):
        return owner.state, getattr(owner.seed_seq, "n_children_spawned", None)
    return owner.get_state()


def _fill_generator(owner: Any, content: Any) -> None:
    if isinstance(owner, random.Random):
        owner.setstate(content)
    elif isinstance(owner, np.random.BitGenerator):
        seeds: Any = owner.seed_seq
        if getattr(seeds, "n_children_spawned", None) != content[1]:
            seeds = np.random.SeedSequence(
                seeds.entropy, spawn_key=seeds.spawn_key, pool_size=seeds.pool_size,
                n_children_spawned=content[1],
            )  # fmt: skip
        owner.__setstate__((content[0], seeds))  # type: ignore[attr-defined]
    else:
        owner.set_state(content)


def _signature(owner: types.FunctionType) -> dict[str, Any]:
    return {"code": owner.__code__, "defaults": owner.__defaults__, "keywords": owner.__kwdefaults__}


def _fill_signature(owner: types.FunctionType, content: dict[str, Any]) -> None:
    owner.__code__, owner.__defaults__ = content["code"], content["defaults"]
    owner.__kwdefaults__ = content["keywords"]


def content_of(cell: types.CellType) -> Any:
    """What a closure holds under a name; the cell itself stands for a name without a value."""
    try:
        return cell.cell_contents
    except ValueError:
        return cell


def _fill_cell(cell: types.CellType, content: Any) -> None:
    if content is cell:
        del cell.cell_contents
    else:
        cell.cell_contents = content


def _memory(owner: Any) -> Any:
    info = owner.cache_info()
    return info if info.hits or info.misses else None


def _forget(owner: Any, content: Any) -> None:
    owner.cache_clear()


def _frame(owner: Any) -> list[Any]:
    manager = owner._mgr
    return [*(block.values for block in manager.blocks), *manager.axes]


def _fill_frame(before: Any, owner: Any, content: Any) -> None:
    object.__setattr__(owner, "_mgr", before.copy(deep=False)._mgr)


_KINDS: tuple[tuple[Any, Read, Write], ...] = (
    (dict, dict, fill_mapping),
    (list, list, _fill_list),
    (deque, list, _fill_deque),
    (set, set, _fill_set),
    ((bytearray, array.array), _array_bytes, _fill_buffer),
    (np.ndarray, _array, _fill_array),
    ((io.StringIO, io.BytesIO), _text, _fill_text),
    (io.IOBase, _position, _fill_position),
    (GENERATORS, _generator, _fill_generator),
    (ContextVar, _variable, _fill_variable),
)


# ---------------------------------------------------------------------------------------------------
# names: globals, attributes of a module or of a class, slots, environment variables


def named(space: dict[str, Any], chosen: set[str]) -> Cell:
    """A cell of some names. A module under a name may be imported at any time."""
    order = sorted(chosen)

    def read(space: dict[str, Any]) -> dict[str, Any]:
        found = ((name, space[name]) for name in order if name in space)
        return {name: value for name, value in found if not isinstance(value, types.ModuleType)}

    def write(space: dict[str, Any], content: dict[str, Any]) -> None:
        for name in order:
            if name in content:
                space[name] = content[name]
            elif not isinstance(space.get(name), types.ModuleType):
                space.pop(name, None)

    return Cell.of(space, read, write)


def environment_cell() -> Cell:
    """The environment variables, as Python holds them."""
    inner = getattr(os.environ, "_data", None)
    if isinstance(inner, dict):
        return Cell.of(inner, dict, _fill_environment)
    return Cell.of(os.environ, dict, fill_mapping)  # somebody has put a dictionary in its place


def class_cell(owner: type) -> Cell:
    """What a class holds under names of its own."""
    return Cell.of(owner, _class_content, _fill_class)


def slots_cell(owner: Any, names: tuple[str, ...]) -> Cell:
    """What an object holds in slots."""
    read = functools.partial(_read_slots, names)
    return Cell.of(owner, read, functools.partial(_fill_slots, names))


def _fill_environment(owner: dict[Any, Any], content: dict[Any, Any]) -> None:
    variables = os.environ
    for key in [key for key in {*owner, *content} if owner.get(key) != content.get(key)]:
        if key in content:
            variables[variables.decodekey(key)] = variables.decodevalue(content[key])
        else:
            del variables[variables.decodekey(key)]


def _class_content(owner: type) -> dict[str, Any]:
    return {name: value for name, value in vars(owner).items() if not name.startswith("__")}


def _fill_class(owner: type, content: dict[str, Any]) -> None:
    for name in [name for name in _class_content(owner) if name not in content]:
        delattr(owner, name)
    for name, value in content.items():
        if vars(owner).get(name) is not value:
            setattr(owner, name, value)


def _read_slots(names: tuple[str, ...], owner: Any) -> dict[str, Any]:
    return {name: getattr(owner, name) for name in names if hasattr(owner, name)}


def _fill_slots(names: tuple[str, ...], owner: Any, content: dict[str, Any]) -> None:
    for name in names:
        if name in content:
            object.__setattr__(owner, name, content[name])
        elif hasattr(owner, name):
            object.__delattr__(owner, name)


@functools.lru_cache(maxsize=4096)
def slots_of(kind: type) -> tuple[str, ...]:
    """Names of the slots of objects of a class."""
    return tuple(
        name for one in kind.__mro__ if "__slots__" in vars(one) for name, value in vars(one).items()
        if isinstance(value, types.MemberDescriptorType)
    )  # fmt: skip


# ---------------------------------------------------------------------------------------------------
# whether a content is what it was


SIMPLE = (
    type(None), bool, int, float, complex, str, bytes, range, slice, torch.dtype, torch.device, torch.Size,
    np.generic, np.dtype, np.ufunc,
)  # fmt: skip
_DEPTH = 4  # of containers that are compared by content


def alike(now: Any, before: Any) -> bool:
    """Whether a content is what it was: the same things, or equal numbers and texts in their place."""
    if isinstance(before, dict):
        if len(now) != len(before):
            return False
        if all(map(operator.is_, now.values(), before.values())) and all(map(operator.is_, now, before)):
            return True
        return same(dict(now), before)
    if type(before) is list and len(now) == len(before) and all(map(operator.is_, now, before)):
        return True
    return same(now, before)


def same(a: Any, b: Any, depth: int = 0) -> bool:
    """Identical; or equal, for numbers, texts and containers of them."""
    if a is b:
        return True
    if type(a) is not type(b) or depth > _DEPTH:
        return False
    if isinstance(a, float | complex | np.generic):
        return repr(a) == repr(b)
    if isinstance(a, SIMPLE):
        return bool(a == b)
    if isinstance(a, dict):  # in the same order: a cache may keep the last one last
        keys = len(a) == len(b) and all(same(x, y, depth + 1) for x, y in zip(a, b, strict=True))
        return keys and all(same(x, y, depth + 1) for x, y in zip(a.values(), b.values(), strict=True))
    if isinstance(a, list | tuple | deque):
        return len(a) == len(b) and all(same(x, y, depth + 1) for x, y in zip(a, b, strict=True))
    if isinstance(a, set | frozenset):
        identities = set(map(id, b))
        return len(a) == len(b) and all(id(x) in identities or (_simple(x) and x in b) for x in a)
    if isinstance(a, np.ndarray):  # an array of objects: by which objects they are
        return bool(a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes())
    if isinstance(a, Tensor):  # states of generators
        return a.dtype == torch.uint8 and a.shape == b.shape and bool(torch.equal(a, b))
    return False


def _simple(x: Any) -> bool:
    return isinstance(x, SIMPLE)
