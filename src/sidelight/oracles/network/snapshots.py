"""Snapshots of single things that can be changed: how to read, compare and put back their content.

A content is noted one level deep: what it holds has a snapshot of its own (state.py finds them all).
"""

from __future__ import annotations

import array
import ctypes
import functools
import io
import itertools
import operator
import os
import random
import sys
import types
from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Sized
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, AnyStr, Protocol, TypeAlias, TypeGuard, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sidelight.oracles.network.scratch import Scratch, Stored

__all__ = [
    "SIMPLE", "Generators", "Snapshot", "TensorSnapshot", "Together", "attributes_of", "has_numbers",
    "is_frame", "put_back", "snapshot_of_attributes", "snapshot_of_bodies", "snapshot_of_class",
    "snapshot_of_environment", "snapshot_of_names", "snapshot_of_slots", "snapshots_of", "value_of",
]  # fmt: skip

Generators: TypeAlias = random.Random | np.random.BitGenerator | np.random.RandomState | torch.Generator
_LARGE = 1000  # entries, or numbers, beyond which content is not looked at after every record
_QUICK = 2**12  # numbers in a tensor that are compared after every record
_SHORT = 2**16  # bytes of arrays that are compared as texts; longer ones without a copy

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
    memo: bool = False

    @classmethod
    def of(cls, owner: object, read: Read, write: Write, *, memo: bool = False) -> Snapshot:
        return cls(owner, read, write, read(owner), memo)

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
        now = self.owner if self.read in (dict, _array) else self.read(self.owner)  # which would copy it
        return not _alike(now, self.content)

    def restore(self) -> None:
        self.write(self.owner, self.content)


class TensorSnapshot:
    """A tensor at one moment: its memory, its version, and a copy of its numbers if that is wanted.

    The copy is in memory; or in a file (`scratch`), until the tensor has changed from one moment to the next.
    """

    __slots__ = ("copy", "form", "grad", "quick", "tensor", "version")

    def __init__(self, tensor: Tensor, *, copied: bool) -> None:
        self.tensor, self.quick = tensor, tensor.numel() <= _QUICK
        self.form, self.version = _form(tensor), tensor._version
        self.grad = tensor.grad if tensor.is_leaf else None
        self.copy: Tensor | Stored | None = tensor.detach().clone() if copied else None

    def renew(self, *, copied: bool, scratch: Scratch | None = None) -> None:
        """Take it as it is now."""
        x = self.tensor
        if self.moved():
            self.form, self.version, self.grad = _form(x), x._version, x.grad if x.is_leaf else None
        if not copied:
            self.copy = None
        elif self.copy is None:
            self.copy = (None if scratch is None else scratch.store(x)) or x.detach().clone()
        elif isinstance(self.copy, Stored):
            self.copy = self.copy if self.copy.same(x) else x.detach().clone()
        elif not _fits(self.copy, x):
            self.copy = x.detach().clone()
        else:  # frozen weights are many, and memory is not asked for at each step
            self.copy.copy_(x.detach())

    def moved(self) -> bool:
        """Whether its form, its version or its gradient is another: a quick look, which misses `.data`."""
        x = self.tensor
        return x._version != self.version or _form(x) != self.form or (x.is_leaf and x.grad is not self.grad)

    def changed(self) -> bool:
        return self.moved() or (self.copy is not None and not _same_numbers(self.tensor, self.copy))

    def altered(self) -> bool:
        """Whether its kind is another: shape, type, whether it is trained. Numbers do not count."""
        shape, trained, _, dtype = self.form
        x = self.tensor
        return (x.shape, x.requires_grad, x.dtype) != (shape, trained, dtype)

    @torch.no_grad()
    def restore(self) -> None:
        x, (shape, trained, _, _) = self.tensor, self.form
        if x.is_leaf and x.requires_grad != trained:
            x.requires_grad_(trained)
        if x.is_leaf and x.grad is not self.grad:
            x.grad = self.grad
        if self.copy is None and (x._version != self.version or _form(x) != self.form):
            x.data = x.new_zeros(shape)  # what it was is lost; what it is must not stay
        elif isinstance(self.copy, Stored):
            if not self.copy.same(x):
                self.copy.put_back(x)
        elif self.copy is not None and (x.shape != self.copy.shape or x.dtype != self.copy.dtype):
            x.data = self.copy.clone()
        elif self.copy is not None and not _same_numbers(x, self.copy):
            x.data.copy_(self.copy)
        self.form, self.version = _form(x), x._version


class Together:
    """Many snapshots that are compared at once, without a call for each of them.

    Of dictionaries, lists and classes the entries must be the very objects that they were, in their order;
    of generators, their memory must hold the same bytes. Where that is so, none of them has changed. Where it
    is not, and for things of other kinds, each snapshot is asked itself.
    """

    def __init__(self, snapshots: Iterable[Snapshot]) -> None:
        self._all, self._others = list(snapshots), list[Snapshot]()
        self._empty: list[Sized] = []
        self._parts: list[Collection[object]] = []
        self._sizes: list[int] = []
        self._entries: list[object] = []
        self._places: list[tuple[int, int]] = []
        self._prints: list[bytes] = []
        self._pythons: list[random.Random] = []
        for one in self._all:
            if not (self._add_entries(one) or self._add_print(one)):
                self._others.append(one)

    @property
    def at_once(self) -> bool:
        """Whether a look at all together tells everything about them."""
        return bool(self._all) and not self._others

    def same(self) -> bool:
        """Whether none has changed, at one look; False if that takes a closer one."""
        try:
            return (
                not any(self._empty)
                and list(map(len, self._parts)) == self._sizes
                and all(map(operator.is_, itertools.chain.from_iterable(self._parts), self._entries))
                and list(itertools.starmap(ctypes.string_at, self._places)) == self._prints
                and all(_stock(one) is None for one in self._pythons)
            )
        except RuntimeError:  # another thread changes one of them now
            return False

    def changed(self) -> Iterator[Snapshot]:
        """Those that are not as they were."""
        for one in self._others if self.same() else self._all:
            if one.changed():
                yield one

    def _add_entries(self, one: Snapshot) -> bool:
        owner, content = one.owner, one.content
        if one.read in (dict, list, set) and type(owner) in (dict, OrderedDict, list, set) and not content:
            self._empty.append(owner)  # type: ignore[arg-type]
        elif one.read is dict and isinstance(content, dict) and type(owner) in (dict, OrderedDict):
            here = cast("dict[object, object]", owner)
            self._add_parts((here, content), (here.values(), content.values()))
        elif one.read is list and isinstance(content, list) and type(owner) is list:
            self._add_parts((owner, content))
        elif one.read is _class_content and isinstance(owner, type) and _alike(one.read(owner), content):
            names = vars(owner)  # also what Python itself puts there
            self._add_parts((names, list(names)), (names.values(), list(names.values())))
        else:
            return False
        return True

    def _add_parts(self, *parts: tuple[Collection[object], Collection[object]]) -> None:
        """Views of what there is at any time, and what they hold at that of the snapshot."""
        for part, entries in parts:
            self._parts.append(part)
            self._sizes.append(len(entries))
            self._entries.extend(entries)

    def _add_print(self, one: Snapshot) -> bool:
        places = _places_of_state(one.owner)
        if not places or one.changed():
            return False
        self._places += places
        self._prints += itertools.starmap(ctypes.string_at, places)
        if isinstance(one.owner, random.Random):
            self._pythons.append(one.owner)
        return True


_MERSENNE = 2500  # bytes of a Mersenne twister
_COUNT = ctypes.sizeof(ctypes.c_ssize_t)  # an object begins with how often it is referred to


def _places_of_state(one: object) -> list[tuple[int, int]]:
    """Where in memory the whole state of a generator lies, as addresses and lengths; nothing if unknown.

    The generators of NumPy and Python hold it inside of their objects. To ask for it takes a hundred times
    longer than to look there.
    """
    if sys.implementation.name != "cpython":
        return []
    twister: object = one
    if type(one) is np.random.RandomState:
        twister = one._bit_generator
        if type(twister) is not np.random.MT19937:
            return []
    elif type(one) is not random.Random or _stock(one) is not None:  # which lies elsewhere
        return []
    if type(twister).__basicsize__ < _MERSENNE:
        return []
    owners = [one] if twister is one else [one, twister]
    return [(id(owner) + _COUNT, type(owner).__basicsize__ - _COUNT) for owner in owners]


def _stock(one: random.Random) -> object:
    """A second number that `gauss` has drawn with the last."""
    return getattr(one, "gauss_next", None)


def put_back(snapshots: Iterable[Snapshot | TensorSnapshot]) -> None:
    """Restore what is not as it was."""
    for one in snapshots:
        if one.changed():
            one.restore()


def snapshots_of(one: object) -> Iterator[Snapshot]:
    """How to compare and restore this thing's own content, but for attributes and slots."""
    for kinds, read, write in _KINDS:
        if isinstance(one, kinds):
            yield Snapshot.of(one, read, write)
            return
    if isinstance(one, types.FunctionType):
        yield Snapshot.of(one, _signature, _fill_signature)
        yield Snapshot.of(one.__annotations__, dict, _fill_mapping)
        for cell in one.__closure__ or ():
            yield Snapshot.of(cell, value_of, _fill_cell)
    elif isinstance(one, functools._lru_cache_wrapper):
        yield Snapshot.of(one, _memory, _forget, memo=True)
    elif isinstance(one, ctypes.Array | ctypes.Structure | ctypes.Union | ctypes._SimpleCData):
        yield Snapshot.of(one, _bytes, _fill_bytes)
    elif is_frame(one):
        yield Snapshot.of(one, _frame, functools.partial(_fill_frame, one.copy(deep=False)))


def attributes_of(one: object) -> dict[str, object] | None:
    """The attributes of an object, as the dictionary that holds them."""
    try:
        found = getattr(one, "__dict__", None)
    except Exception:  # somebody's own __getattr__
        return None
    return found if isinstance(found, dict) else None


# ---------------------------------------------------------------------------------------------------
# kinds of content; filled past what subclasses do


def _fill_mapping(owner: dict[object, object], content: Mapping[object, object]) -> None:
    kind = OrderedDict if isinstance(owner, OrderedDict) else dict
    kind.clear(owner)
    kind.update(owner, content)


def _fill_list(owner: list[object], content: list[object]) -> None:
    list.__setitem__(owner, slice(None), content)


def _fill_deque(owner: deque[object], content: list[object]) -> None:
    deque.clear(owner)
    deque.extend(owner, content)


def _fill_set(owner: set[object], content: set[object]) -> None:
    set.clear(owner)
    set.update(owner, content)


def _array_bytes(owner: bytearray | array.array[int]) -> bytes:
    return bytes(owner) if isinstance(owner, bytearray) else owner.tobytes()


def _fill_buffer(owner: bytearray | array.array[int], content: bytes) -> None:
    if isinstance(owner, bytearray):
        owner[:] = content
    else:
        owner[:] = array.array(owner.typecode, content)


def _bytes(owner: ctypes.Structure) -> bytes:
    return memoryview(owner).cast("B").tobytes()


def _fill_bytes(owner: ctypes.Structure, content: bytes) -> None:
    memoryview(owner).cast("B")[:] = content


def _array(owner: NDArray[np.generic]) -> NDArray[np.generic]:
    return owner.copy()


def _fill_array(owner: NDArray[np.generic], content: NDArray[np.generic]) -> None:
    if owner.shape != content.shape:
        owner.resize(content.shape, refcheck=False)
    writeable = owner.flags.writeable
    owner.flags.writeable = True
    owner[...] = content
    owner.flags.writeable = writeable


class _InMemory(Protocol[AnyStr]):
    """A StringIO or a BytesIO."""

    closed: bool

    def getvalue(self) -> AnyStr: ...
    def tell(self) -> int: ...
    def seek(self, offset: int, /) -> int: ...
    def truncate(self) -> int: ...
    def write(self, content: AnyStr, /) -> int: ...


def _text(owner: _InMemory[AnyStr]) -> tuple[AnyStr, int] | None:
    return None if owner.closed else (owner.getvalue(), owner.tell())


def _fill_text(owner: _InMemory[AnyStr], content: tuple[AnyStr, int] | None) -> None:
    if content is not None and not owner.closed:
        owner.seek(0)
        owner.truncate()
        owner.write(content[0])
        owner.seek(content[1])


def _position(owner: io.IOBase) -> int | None:
    """Where an open file is read; what is written to it is a matter of files, of which nothing is known."""
    try:
        return int(owner.tell()) if owner.readable() and owner.seekable() else None
    except (OSError, ValueError):
        return None


def _fill_position(owner: io.IOBase, content: int | None) -> None:
    if content is not None and not owner.closed:
        owner.seek(content)


def _variable(owner: ContextVar[object]) -> object:
    return owner.get()


def _fill_variable(owner: ContextVar[object], content: object) -> None:
    owner.set(content)


def _python_state(owner: random.Random) -> tuple[object, ...]:
    return owner.getstate()


def _fill_python_state(owner: random.Random, content: tuple[object, ...]) -> None:
    owner.setstate(content)


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


def _old_numpy_state(owner: np.random.RandomState) -> dict[str, object]:
    return dict(owner.get_state(legacy=False))


def _fill_old_numpy_state(owner: np.random.RandomState, content: dict[str, object]) -> None:
    owner.set_state(content)


def _torch_state(owner: torch.Generator) -> Tensor:
    return owner.get_state()


def _fill_torch_state(owner: torch.Generator, content: Tensor) -> None:
    owner.set_state(content)


_OF_FUNCTIONS = (
    "__code__", "__defaults__", "__kwdefaults__", "__annotations__", "__doc__", "__name__", "__qualname__",
    "__module__",
)  # fmt: skip
_signature: Callable[[types.FunctionType], tuple[object, ...]] = operator.attrgetter(*_OF_FUNCTIONS)


def _fill_signature(owner: types.FunctionType, content: tuple[object, ...]) -> None:
    for name, value in zip(_OF_FUNCTIONS, content, strict=True):
        setattr(owner, name, value)


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


def _memory(owner: functools._lru_cache_wrapper[object]) -> object:
    info = owner.cache_info()
    return info if info.hits or info.misses else None


def _forget(owner: functools._lru_cache_wrapper[object], content: object) -> None:
    owner.cache_clear()


class _Block(Protocol):
    values: object


class _Manager(Protocol):
    blocks: Sequence[_Block]
    axes: Sequence[object]


class _Frame(Protocol):
    """A frame or a series of pandas, as far as it is looked into."""

    _mgr: _Manager

    def copy(self, deep: bool) -> _Frame: ...


def is_frame(one: object) -> TypeGuard[_Frame]:
    """Whether this is a frame or a series of pandas."""
    pandas = sys.modules.get("pandas")
    return pandas is not None and isinstance(one, pandas.DataFrame | pandas.Series)


def _frame(owner: _Frame) -> list[object]:
    manager = owner._mgr
    return [*(block.values for block in manager.blocks), *manager.axes]


def _fill_frame(before: _Frame, owner: _Frame, content: list[object]) -> None:
    object.__setattr__(owner, "_mgr", before.copy(deep=False)._mgr)


_KINDS: tuple[tuple[type | tuple[type, ...], Read, Write], ...] = (
    (dict, dict, _fill_mapping),
    (list, list, _fill_list),
    (deque, list, _fill_deque),
    (set, set, _fill_set),
    ((bytearray, array.array), _array_bytes, _fill_buffer),
    (np.ndarray, _array, _fill_array),
    ((io.StringIO, io.BytesIO), _text, _fill_text),
    (io.IOBase, _position, _fill_position),
    (random.Random, _python_state, _fill_python_state),
    (np.random.BitGenerator, _numpy_state, _fill_numpy_state),
    (np.random.RandomState, _old_numpy_state, _fill_old_numpy_state),
    (torch.Generator, _torch_state, _fill_torch_state),
    (ContextVar, _variable, _fill_variable),
)


# ---------------------------------------------------------------------------------------------------
# names: attributes, globals, names of a class or of a module, slots, environment variables


def snapshot_of_attributes(attributes: dict[str, object]) -> Snapshot:
    """What an object holds under names."""
    return Snapshot.of(attributes, dict, _fill_mapping)


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

    return Snapshot.of(space, read, write)


def snapshot_of_environment() -> Snapshot:
    """The environment variables, as Python holds them."""
    inner = getattr(os.environ, "_data", None)
    if isinstance(inner, dict):
        return Snapshot.of(inner, dict, _fill_environment)
    return Snapshot.of(os.environ, dict, _fill_mapping)  # somebody has put a dictionary in its place


def snapshot_of_class(owner: type) -> Snapshot:
    """What a class holds under names of its own."""
    return Snapshot.of(owner, _class_content, _fill_class)


def snapshot_of_bodies(owners: list[object]) -> Snapshot:
    """Which class objects are of, and which dictionary holds their attributes: they can be given others."""
    return Snapshot.of(owners, _bodies, _fill_bodies)


def snapshot_of_slots(owner: object) -> Snapshot | None:
    """What an object holds in slots, if it has any."""
    names = _slots_of(type(owner))  # type: ignore[arg-type]
    if not names:
        return None

    def read(owner: object) -> dict[str, object]:
        return {name: getattr(owner, name) for name in names if hasattr(owner, name)}

    def write(owner: object, content: dict[str, object]) -> None:
        for name in names:
            if name in content:
                object.__setattr__(owner, name, content[name])
            elif hasattr(owner, name):
                object.__delattr__(owner, name)

    return Snapshot.of(owner, read, write)


@functools.lru_cache(maxsize=4096)
def _slots_of(kind: type) -> tuple[str, ...]:
    return tuple(
        name for one in kind.__mro__ if "__slots__" in vars(one) for name, value in vars(one).items()
        if isinstance(value, types.MemberDescriptorType)
    )  # fmt: skip


def _fill_environment(owner: dict[bytes, bytes], content: dict[bytes, bytes]) -> None:
    for key in [key for key in {*owner, *content} if owner.get(key) != content.get(key)]:
        if key in content:
            os.environ[os.fsdecode(key)] = os.fsdecode(content[key])
        else:
            del os.environ[os.fsdecode(key)]


_dictionary = operator.attrgetter("__dict__")


def _bodies(owners: list[object]) -> list[object]:
    try:
        dictionaries = list(map(_dictionary, owners))
    except Exception:  # one of them has none, or a __getattribute__ of its own
        dictionaries = list(map(attributes_of, owners))
    return [*dictionaries, *map(type, owners)]


def _fill_bodies(owners: list[object], content: list[object]) -> None:
    places = len(owners)
    for owner, attributes, kind in zip(owners, content[:places], content[places:], strict=True):
        if type(owner) is not kind:
            object.__setattr__(owner, "__class__", kind)
        if isinstance(attributes, dict) and attributes_of(owner) is not attributes:
            object.__setattr__(owner, "__dict__", attributes)


# Python itself puts these into a class, some of them when they are first asked for.
_OF_PYTHON = frozenset((
    "__abstractmethods__", "__annotations__", "__annotations_cache__", "__dict__", "__slotnames__",
    "__weakref__",
))  # fmt: skip


def _class_content(owner: type) -> dict[str, object]:
    return {name: value for name, value in vars(owner).items() if name not in _OF_PYTHON}


def _fill_class(owner: type, content: dict[str, object]) -> None:
    for name in [name for name in _class_content(owner) if name not in content]:
        delattr(owner, name)
    for name, value in content.items():
        if vars(owner).get(name) is not value:
            setattr(owner, name, value)


# ---------------------------------------------------------------------------------------------------
# whether a content is what it was


SIMPLE = (
    type(None), bool, int, float, complex, str, bytes, range, slice, torch.dtype, torch.device, torch.Size,
    np.generic, np.dtype, np.ufunc,
)  # fmt: skip
_DEPTH = 4  # of containers that are compared by content


def _alike(now: object, before: object) -> bool:
    """Whether a content is what it was: the same things, or equal numbers and texts in their place."""
    if isinstance(before, dict) and isinstance(now, dict | Mapping):
        if len(now) != len(before):
            return False
        if all(map(operator.is_, now.values(), before.values())) and all(map(operator.is_, now, before)):
            return True
        return _same(dict(now), before)
    if (
        isinstance(before, list | tuple)
        and isinstance(now, list | tuple)
        and (type(now), len(now)) == (type(before), len(before))
        and all(map(operator.is_, now, before))
    ):
        return True
    return _same(now, before)


def _same(a: object, b: object, depth: int = 0) -> bool:
    """Identical; or equal, for numbers, texts and containers of them."""
    if a is b:
        return True
    if type(a) is not type(b) or depth > _DEPTH:
        return False
    if isinstance(a, float | complex | np.generic):
        return repr(a) == repr(b)
    if isinstance(a, SIMPLE):
        return bool(a == b)
    if isinstance(a, dict) and isinstance(b, dict):  # in the same order: a cache may keep the last one last
        return _same_in_order(a, b, depth) and _same_in_order(a.values(), b.values(), depth)
    if isinstance(a, list | tuple | deque) and isinstance(b, list | tuple | deque):
        return _same_in_order(a, b, depth)
    if isinstance(a, set | frozenset) and isinstance(b, set | frozenset):
        identities = set(map(id, b))
        return len(a) == len(b) and all(id(x) in identities or (isinstance(x, SIMPLE) and x in b) for x in a)
    if isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
        return a.dtype == b.dtype and a.shape == b.shape and _same_bytes(a, b)
    if isinstance(a, Tensor) and isinstance(b, Tensor):  # states of generators
        return a.dtype == torch.uint8 and a.shape == b.shape and torch.equal(a, b)
    return False


def _same_bytes(a: NDArray[np.generic], b: NDArray[np.generic]) -> bool:
    """Bit for bit; of objects, by which objects they are."""
    if a.dtype.hasobject or a.nbytes <= _SHORT:
        return a.tobytes() == b.tobytes()
    first, second = (np.ascontiguousarray(x).reshape(-1).view(np.uint8) for x in (a, b))
    return np.array_equal(first, second)


def _same_in_order(a: Iterable[object], b: Iterable[object], depth: int) -> bool:
    missing = object()
    pairs = itertools.zip_longest(a, b, fillvalue=missing)
    return all(_same(x, y, depth + 1) for x, y in pairs)


_Form: TypeAlias = tuple[torch.Size, bool, int | None, torch.dtype]


def _form(x: Tensor) -> _Form:
    """Shape, whether it is trained, its memory (None if it has none that can be compared), and its type."""
    try:
        return x.shape, x.requires_grad, None if x.is_meta else x.data_ptr(), x.dtype
    except (RuntimeError, NotImplementedError):  # sparse, or left behind by torch.func
        return x.shape, x.requires_grad, None, x.dtype


def has_numbers(x: Tensor) -> bool:
    """Whether a tensor has memory that can be compared."""
    return _form(x)[2] is not None


def _fits(copy: Tensor, x: Tensor) -> bool:
    """Whether the numbers of x can be written over those of an earlier copy, in the same order."""
    plain = type(copy) is Tensor and copy.layout == x.layout == torch.strided and not copy.is_inference()
    same = (copy.shape, copy.dtype, copy.device, copy.stride()) == (x.shape, x.dtype, x.device, x.stride())
    return plain and same


_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}  # by their bytes


def _same_numbers(x: Tensor, copy: Tensor | Stored) -> bool:
    """Bit for bit: another sign of a zero, and another kind of NaN, are other numbers."""
    if isinstance(copy, Stored):
        return copy.same(x)
    now, pair = x.detach(), (x.detach(), copy)
    plain = all(one.layout == torch.strided and not one.is_quantized for one in pair)
    integers = _INTEGERS.get(x.element_size()) if plain and x.dtype == copy.dtype else None
    if integers is not None and not any(one.is_conj() or one.is_neg() for one in pair):
        first, second = (one.view(integers) if one.dim() else one[None].view(integers) for one in pair)
        return torch.equal(first, second)
    if torch.equal(now, copy):
        return True
    return bool(torch.isclose(now, copy, rtol=0.0, atol=0.0, equal_nan=True).all())
