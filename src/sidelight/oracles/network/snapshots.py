"""Snapshots of things that can be changed: how to read, compare and put back their content.

A content is noted one level deep: what it holds has a snapshot of its own (state.py finds them all).
"""

from __future__ import annotations

import functools
import io
import itertools
import operator
import random
import types
from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

__all__ = [
    "SIMPLE", "Generators", "Snapshot", "SnapshotGroup", "TensorSnapshot", "attributes_of",
    "snapshot_of_class", "snapshot_of_names", "snapshot_of_slots", "snapshots_of", "value_of",
]  # fmt: skip

Generators: TypeAlias = random.Random | np.random.BitGenerator | np.random.RandomState | torch.Generator
SIMPLE = (
    type(None), bool, int, float, complex, str, bytes, range, slice, torch.dtype, torch.device, torch.Size,
    np.generic, np.dtype, np.ufunc,
)  # fmt: skip
_LARGE_ENTRIES = 1000  # of content that is compared after the last record, not after each
_LARGE_NUMBERS = 2**12  # the same of a tensor

Read: TypeAlias = Callable[[Any], object]  # of what it is registered for
Write: TypeAlias = Callable[[Any, Any], None]  # and of the content that its Read gave


@dataclass(slots=True)
class Snapshot:
    """Something that can be changed, how to read and write its content, and the content at one moment.

    memo: a cache that is emptied rather than put back, and whose filling is no change.
    """

    owner: object
    read: Read
    write: Write
    content: object
    name: str = ""  # for messages
    memo: bool = False

    @property
    def large(self) -> bool:
        """Whether it takes long to compare."""
        if isinstance(self.content, np.ndarray):
            return self.content.size > _LARGE_ENTRIES
        return isinstance(self.content, dict | list | set) and len(self.content) > _LARGE_ENTRIES

    def changed(self) -> bool:
        now = self.read(self.owner)
        if isinstance(self.owner, random.Random):  # hundreds of plain numbers
            return bool(now != self.content)
        return not _same(now, self.content)

    def restore(self) -> None:
        self.write(self.owner, self.content)


class TensorSnapshot:
    """A tensor at one moment: its form, its version, and a copy of its numbers if that is wanted."""

    __slots__ = ("copy", "form", "grad", "large", "name", "tensor", "version")

    def __init__(self, tensor: Tensor, name: str) -> None:
        self.tensor, self.name, self.large = tensor, name, tensor.numel() > _LARGE_NUMBERS
        self.copy: Tensor | None = None
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


class SnapshotGroup:
    """Many snapshots. Dictionaries, lists and classes are compared at once, by which objects they hold.

    Where these are the very objects that they were, none has changed. Where they are not, and for content of
    other kinds, each snapshot is asked itself.
    """

    def __init__(self, snapshots: Iterable[Snapshot]) -> None:
        self._all, self._others = list(snapshots), list[Snapshot]()
        self._views, self._sizes, self._entries = list[Collection[object]](), list[int](), list[object]()
        for one in self._all:
            views = [] if one.changed() else _live_views(one)
            self._views += views
            self._sizes += map(len, views)
            self._entries += itertools.chain.from_iterable(views)
            if not views:
                self._others.append(one)

    def same(self) -> bool:
        """Whether none of those that are compared at once has changed."""
        return list(map(len, self._views)) == self._sizes and all(
            map(operator.is_, itertools.chain.from_iterable(self._views), self._entries)
        )

    def changed(self) -> Iterator[Snapshot]:
        """Those that are not as they were."""
        yield from (one for one in (self._others if self.same() else self._all) if one.changed())


def _live_views(one: Snapshot) -> list[Collection[object]]:
    """Views of what a thing holds at any time; none if it has no such views."""
    owner: Any = one.owner
    if one.read is dict:
        return [owner.keys(), owner.values()]
    if one.read is list and isinstance(owner, list):
        return [owner]
    return [vars(owner).values()] if one.read is _class_content else []


# ---------------------------------------------------------------------------------------------------
# kinds of content


def snapshots_of(one: object, name: str = "") -> Iterator[Snapshot]:
    """How to compare and restore this thing's own content, but for attributes and slots."""
    for kinds, read, write in _KINDS:
        if isinstance(one, kinds):
            yield Snapshot(one, read, write, read(one), name)
            return
    if isinstance(one, types.FunctionType):
        for variable, cell in zip(one.__code__.co_freevars, one.__closure__ or (), strict=False):
            yield Snapshot(cell, value_of, _fill_cell, value_of(cell), variable)
    elif isinstance(one, functools._lru_cache_wrapper):
        yield Snapshot(one, _entries_in, lambda cache, _: cache.cache_clear(), _entries_in(one), name, True)


def attributes_of(one: object) -> dict[str, object] | None:
    """The attributes of an object, as the dictionary that holds them."""
    try:
        found = getattr(one, "__dict__", None)
    except Exception:  # somebody's own __getattr__
        return None
    return found if isinstance(found, dict) else None


def value_of(cell: types.CellType) -> object:
    """What a closure holds under a name; the cell itself stands for a name without a value."""
    try:
        return cell.cell_contents
    except ValueError:
        return cell


def _fill_cell(cell: types.CellType, content: object) -> None:
    if content is cell:
        del cell.cell_contents
    else:
        cell.cell_contents = content


def _entries_in(cache: functools._lru_cache_wrapper[object]) -> int:
    return cache.cache_info().misses


def _fill_mapping(owner: dict[object, object], content: Mapping[object, object]) -> None:
    kind = OrderedDict if isinstance(owner, OrderedDict) else dict
    kind.clear(owner)
    kind.update(owner, content)


def _fill_list(owner: list[object], content: list[object]) -> None:
    owner[:] = content


def _fill_collection(owner: deque[object] | set[object], content: Collection[object]) -> None:
    owner.clear()
    (owner.extend if isinstance(owner, deque) else owner.update)(content)


def _fill_array(owner: NDArray[np.generic], content: NDArray[np.generic]) -> None:
    if owner.shape != content.shape:
        owner.resize(content.shape, refcheck=False)
    writeable = owner.flags.writeable
    owner.flags.writeable = True
    owner[...] = content
    owner.flags.writeable = writeable


def _position(owner: io.IOBase) -> int | None:
    """Where an open file is read."""
    try:
        return int(owner.tell()) if owner.readable() and owner.seekable() else None
    except (OSError, ValueError):
        return None


def _fill_position(owner: io.IOBase, content: int | None) -> None:
    if content is not None and not owner.closed:
        owner.seek(content)


def _numpy_state(owner: np.random.BitGenerator) -> tuple[Mapping[str, object], int | None]:
    return owner.state, getattr(owner.seed_seq, "n_children_spawned", None)


def _fill_numpy_state(
    owner: np.random.BitGenerator, content: tuple[Mapping[str, object], int | None]
) -> None:
    state, spawned = content
    seeds = owner.seed_seq
    if isinstance(seeds, np.random.SeedSequence) and spawned not in (None, seeds.n_children_spawned):
        seeds = np.random.SeedSequence(
            seeds.entropy, spawn_key=seeds.spawn_key, pool_size=seeds.pool_size, n_children_spawned=spawned
        )
    owner.__setstate__((state, seeds))  # type: ignore[attr-defined]


_KINDS: tuple[tuple[type | tuple[type, ...], Read, Write], ...] = (
    (dict, dict, _fill_mapping),
    (list, list, _fill_list),
    (deque, list, _fill_collection),
    (set, set, _fill_collection),
    (np.ndarray, np.copy, _fill_array),
    (io.IOBase, _position, _fill_position),
    (random.Random, random.Random.getstate, random.Random.setstate),
    (np.random.BitGenerator, _numpy_state, _fill_numpy_state),
    (np.random.RandomState, lambda one: one.get_state(legacy=False), np.random.RandomState.set_state),
    (torch.Generator, torch.Generator.get_state, lambda one, content: one.set_state(content)),
)


# ---------------------------------------------------------------------------------------------------
# names: globals, names of a class or of a module, slots


def snapshot_of_names(space: dict[str, object], chosen: set[str]) -> Snapshot:
    """What some globals are. A module under a name may be imported at any time."""
    order = sorted(chosen)

    def read(space: dict[str, object]) -> dict[str, object]:
        found = ((name, space[name]) for name in order if name in space)
        return {name: value for name, value in found if not isinstance(value, types.ModuleType)}

    def write(space: dict[str, object], content: dict[str, object]) -> None:
        for name in order:
            if name in content:
                space[name] = content[name]
            elif not isinstance(space.get(name), types.ModuleType):
                space.pop(name, None)

    return Snapshot(space, read, write, read(space), "a global")


def snapshot_of_slots(owner: object, name: str) -> Snapshot | None:
    """What an object holds in slots, if it has any."""
    names = _slots_of(type(owner))  # type: ignore[arg-type]

    def read(owner: object) -> dict[str, object]:
        return {name: getattr(owner, name) for name in names if hasattr(owner, name)}

    def write(owner: object, content: dict[str, object]) -> None:
        for name in names:
            if name in content:
                object.__setattr__(owner, name, content[name])
            elif hasattr(owner, name):
                object.__delattr__(owner, name)

    return Snapshot(owner, read, write, read(owner), name) if names else None


@functools.lru_cache(maxsize=4096)
def _slots_of(kind: type) -> tuple[str, ...]:
    return tuple(
        name for one in kind.__mro__ if "__slots__" in vars(one) for name, value in vars(one).items()
        if isinstance(value, types.MemberDescriptorType)
    )  # fmt: skip


def snapshot_of_class(owner: type) -> Snapshot:
    """What a class holds under names of its own."""
    return Snapshot(owner, _class_content, _fill_class, _class_content(owner), owner.__name__)


def _class_content(owner: type) -> dict[str, object]:
    return {name: value for name, value in vars(owner).items() if not name.startswith("__")}


def _fill_class(owner: type, content: dict[str, object]) -> None:
    for name in [name for name in _class_content(owner) if name not in content]:
        delattr(owner, name)
    for name, value in content.items():
        if vars(owner).get(name) is not value:
            setattr(owner, name, value)


# ---------------------------------------------------------------------------------------------------
# whether a content is what it was


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
        return len(a) == len(b) and all(_same(x, y, depth + 1) for x, y in zip(a, b, strict=True))
    if isinstance(a, set) and isinstance(b, set):
        return a == b
    if isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
        return (a.dtype, a.shape) == (b.dtype, b.shape) and a.tobytes() == b.tobytes()
    return isinstance(a, Tensor) and isinstance(b, Tensor) and a.dtype == torch.uint8 and torch.equal(a, b)


_Form: TypeAlias = tuple[torch.Size, torch.dtype, bool, int | None]


def _form(x: Tensor) -> _Form:
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
