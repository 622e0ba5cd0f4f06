"""Everything that a model and its loss can change: what their code reaches, to be compared and restored.

Starting from the model and the loss, `reached` follows attributes (of modules, of plain objects, in slots),
containers, hooks, closures, classes, and the globals that functions name. Whatever can be changed becomes a
`Cell`: its content is noted one level deep, since what it holds has a cell of its own. Libraries are taken
to keep nothing: PyTorch, NumPy and Python's own are not searched.
"""

from __future__ import annotations

import functools
import operator
import random
import sys
import types
import zlib
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

__all__ = ["Cell", "reached", "same"]

_SIMPLE = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device, torch.Size)
_MOST = 50_000  # things that are looked at, nearest first
_DEPTH = 4  # of containers that are compared by content
_LARGE = 2**24  # bytes of an array that is copied
_LIBRARIES = sys.stdlib_module_names | frozenset((
    "torch", "numpy", "sidelight", "torchvision", "transformers", "timm", "peft", "safetensors", "tokenizers",
    "scipy", "sklearn", "pandas", "pytest", "_pytest", "pluggy",
))  # fmt: skip
_WITH_STATE = (random.Random, np.random.Generator, np.random.RandomState, torch.Generator)


@dataclass(slots=True)
class Cell:
    """Something that can be changed, how to read and write its content, and the content at one moment."""

    owner: Any
    read: Callable[[Any], Any]
    write: Callable[[Any, Any], None]
    content: Any

    def changed(self) -> bool:
        if isinstance(self.owner, random.Random):  # plain numbers, hundreds of them
            return bool(self.read(self.owner) != self.content)
        now = self.owner if self.read is dict else self.read(self.owner)
        return not _alike(now, self.content)

    def restore(self) -> None:
        self.write(self.owner, self.content)


def reached(*roots: Any) -> tuple[list[Cell], list[Tensor]]:
    """The cells and the tensors that can be reached from here."""
    cells: list[Cell] = []
    found: list[Tensor] = []
    names: dict[int, tuple[dict[str, Any], set[str]]] = {}
    seen: dict[int, Any] = {}  # with the things themselves, so that no identity is used twice
    waiting: deque[Any] = deque(roots)
    while waiting and len(seen) < _MOST:
        one = waiting.popleft()
        if isinstance(one, _SIMPLE) or id(one) in seen:
            continue
        seen[id(one)] = one
        if isinstance(one, Tensor):
            found.append(one)
        if isinstance(one, types.FunctionType) and not _library(one):
            own = names.setdefault(id(one.__globals__), (one.__globals__, set()))[1]
            fresh = [name for name in _names(one.__code__) if name in one.__globals__ and name not in own]
            own.update(fresh)
            waiting.extend(one.__globals__[name] for name in fresh)
        for cell in _cells(one):
            cells.append(cell)
        waiting.extend(_children(one))
    cells.extend(_named(space, chosen) for space, chosen in names.values())
    return cells, found


def _names(code: types.CodeType) -> set[str]:
    """The names that a function uses, and those of functions inside it."""
    inner = [one for one in code.co_consts if isinstance(one, types.CodeType)]
    return set(code.co_names).union(*map(_names, inner))


def _named(space: dict[str, Any], chosen: set[str]) -> Cell:
    """Globals by name: the others of their module are not ours."""
    order = sorted(chosen)

    def read(space: dict[str, Any]) -> dict[str, Any]:
        return {name: space[name] for name in order if name in space}

    def write(space: dict[str, Any], content: dict[str, Any]) -> None:
        for name in order:
            if name in content:
                space[name] = content[name]
            else:
                space.pop(name, None)

    return Cell(space, read, write, read(space))


def _cells(one: Any) -> Iterator[Cell]:
    """How to compare and restore this thing's own content."""
    for kinds, read, write in _KINDS:
        if isinstance(one, kinds):
            yield Cell(one, read, write, read(one))
            return
    if isinstance(one, types.FunctionType):
        for cell in one.__closure__ or ():
            yield Cell(cell, _content, _fill_cell, _content(cell))
    elif isinstance(one, type):
        if not _library(one):
            yield Cell(one, _class_content, _fill_class, _class_content(one))
    elif _has_attributes(one):
        yield Cell(vars(one), dict, _fill_mapping, dict(vars(one)))
    for names in _slots(one):
        read = functools.partial(_read_slots, names)
        yield Cell(one, read, functools.partial(_fill_slots, names), read(one))


def _children(one: Any) -> Iterator[Any]:
    if isinstance(one, dict):
        yield from list(one.values())
    elif isinstance(one, list | tuple | deque | set | frozenset):
        yield from list(one)
    elif isinstance(one, functools.partial):
        yield from (one.func, one.args, one.keywords)
    elif isinstance(one, types.MethodType):
        yield from (one.__func__, one.__self__)
    elif isinstance(one, staticmethod | classmethod):
        yield one.__func__
    elif isinstance(one, property):
        yield from (one.fget, one.fset)
    elif isinstance(one, types.FunctionType):
        yield from (_content(cell) for cell in one.__closure__ or ())
        yield from (one.__defaults__, one.__kwdefaults__, getattr(one, "__wrapped__", None))
    elif isinstance(one, type) and not _library(one):
        yield from (*list(vars(one).values()), *one.__bases__)
    elif isinstance(one, Tensor):
        yield from (one._backward_hooks, getattr(one, "_post_accumulate_grad_hooks", None))
    elif _has_attributes(one):
        yield from (*list(vars(one).values()), type(one))
    for names in _slots(one):
        yield from _read_slots(names, one).values()


# ---------------------------------------------------------------------------------------------------
# kinds of content


def _fill_mapping(owner: Any, content: dict[Any, Any]) -> None:
    kind = OrderedDict if isinstance(owner, OrderedDict) else dict  # past what subclasses do
    kind.clear(owner)
    kind.update(owner, content)


def _fill_list(owner: Any, content: list[Any]) -> None:
    owner[:] = content


def _fill_deque(owner: Any, content: list[Any]) -> None:
    owner.clear()
    owner.extend(content)


def _fill_set(owner: Any, content: set[Any]) -> None:
    owner.clear()
    owner.update(content)


def _array(owner: Any) -> Any:
    return owner.copy() if owner.nbytes <= _LARGE else zlib.crc32(np.ascontiguousarray(owner).data)


def _fill_array(owner: Any, content: Any) -> None:
    owner[...] = 0 if isinstance(content, int) else content


def _generator(owner: Any) -> Any:
    if isinstance(owner, random.Random):
        return owner.getstate()
    if isinstance(owner, np.random.RandomState):
        return owner.get_state(legacy=False)
    if isinstance(owner, np.random.Generator):
        return owner.bit_generator.state
    return owner.get_state()


def _fill_generator(owner: Any, content: Any) -> None:
    if isinstance(owner, random.Random):
        owner.setstate(content)
    elif isinstance(owner, np.random.Generator):
        owner.bit_generator.state = content
    else:
        owner.set_state(content)


_KINDS: tuple[tuple[Any, Callable[[Any], Any], Callable[[Any, Any], None]], ...] = (
    (dict, dict, _fill_mapping),
    (list, list, _fill_list),
    (deque, list, _fill_deque),
    (set, set, _fill_set),
    (np.ndarray, _array, _fill_array),
    (_WITH_STATE, _generator, _fill_generator),
)


def _content(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # a name that was not given a value yet
        return None


def _fill_cell(cell: types.CellType, content: Any) -> None:
    cell.cell_contents = content


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
            setattr(owner, name, content[name])
        elif hasattr(owner, name):
            delattr(owner, name)


def _slots(one: Any) -> Iterator[tuple[str, ...]]:
    """Names of the slots of an object, if its class is somebody's own."""
    if isinstance(one, type | Tensor) or _library(type(one)):
        return
    kinds = [kind for kind in type(one).__mro__ if "__slots__" in vars(kind) and not _library(kind)]
    names = [
        name for kind in kinds for name, value in vars(kind).items()
        if isinstance(value, types.MemberDescriptorType)
    ]  # fmt: skip
    if names:
        yield tuple(names)


def _has_attributes(one: Any) -> bool:
    if isinstance(one, type | types.ModuleType | types.FunctionType | types.MethodType | Tensor):
        return False
    known = isinstance(one, nn.Module | types.SimpleNamespace)
    return hasattr(one, "__dict__") and isinstance(vars(one), dict) and (known or not _library(type(one)))


def _library(one: Any) -> bool:
    return str(getattr(one, "__module__", None) or "builtins").split(".")[0] in _LIBRARIES


# ---------------------------------------------------------------------------------------------------
# comparing


def _alike(now: Any, before: Any) -> bool:
    """Whether a content is what it was: the same things, or equal numbers and texts in their place."""
    if isinstance(before, dict):
        if len(now) == len(before) and all(map(operator.is_, now.values(), before.values())):
            return not before or all(map(operator.is_, now, before)) or now.keys() == before.keys()
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
    if isinstance(a, float | complex):
        return repr(a) == repr(b)
    if isinstance(a, _SIMPLE):
        return bool(a == b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(value, b[key], depth + 1) for key, value in a.items())
    if isinstance(a, list | tuple | deque):
        return len(a) == len(b) and all(same(x, y, depth + 1) for x, y in zip(a, b, strict=True))
    if isinstance(a, set | frozenset):
        return len(a) == len(b) and all(any(x is y for y in b) or (_simple(x) and x in b) for x in a)
    if isinstance(a, np.ndarray):
        alike = a.dtype == b.dtype and a.shape == b.shape
        return bool(alike and (a.dtype == object or a.tobytes() == b.tobytes()))
    if isinstance(a, Tensor):  # states of generators
        return a.dtype == torch.uint8 and a.shape == b.shape and bool(torch.equal(a, b))
    return False


def _simple(x: Any) -> bool:
    return isinstance(x, _SIMPLE)
