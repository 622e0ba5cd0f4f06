"""Everything that a model, a loss, an augmentation or a dataset can change: what their code reaches.

Starting from them, `reached` follows attributes (of modules, plain objects, functions, tensors, in slots),
containers, hooks, closures, classes, weak references, methods of builtins, the globals that functions name,
and what they name of other modules. Whatever can be changed becomes a `Cell` (cells.py).

Code of libraries is trusted to keep nothing: functions, classes and modules of PyTorch, NumPy, Python and
others are not searched. Their objects are: a list is a list whoever made it. What has no content that can be
compared and put back, an iterator or a generator, is refused by name. Files, processes and C code cannot be
searched: that nothing is kept there is an assumption, which statements list.
"""

from __future__ import annotations

import collections.abc
import contextlib
import ctypes
import functools
import gc
import hashlib
import io
import itertools
import queue
import random
import sys
import types
import weakref
from collections import deque
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any, NamedTuple
from xml.etree import ElementTree

import numpy as np
from torch import Tensor

from sidelight.errors import AssumptionError
from sidelight.oracles.network.alike import SIMPLE
from sidelight.oracles.network.spaces import class_cell, environment_cell, named, slots_cell, slots_of
from sidelight.oracles.network.state_cells import (
    Cell,
    attributes_of,
    cells_of,
    content_of,
    fill_mapping,
    is_frame,
)
from sidelight.oracles.network.trusted import is_handle, is_library, module_of

__all__ = ["Reached", "reached"]

_MOST = 200_000  # things that are looked at
_MANY = 1000  # entries of a container that is taken for data
_SAMPLE = 64  # of which so many are looked into
_DATA = 2**22  # bytes of an array that is taken for data
_ATOMS = frozenset(SIMPLE)
_ROOTS = "the model, the loss, augment=, collate or the dataset"


class Reached(NamedTuple):
    cells: list[Cell]
    tensors: list[Tensor]


def reached(*roots: Any, data: bool = False) -> Reached:
    """The cells and the tensors that can be reached from here.

    data: the roots hold data. Of containers with more than a thousand entries some are looked into, and
    arrays of more than 4 MB are not: they are read, and not written to.
    """
    walk = _Walk(data)
    walk.run([(root, "itself") for root in roots])
    return Reached([*walk.cells, *walk.spaces(), environment_cell()], walk.tensors)


class _Walk:
    """What was found so far, and what is still to be looked at, each with a name for messages."""

    def __init__(self, data: bool) -> None:
        self.data = data
        self.cells: list[Cell] = []
        self.tensors: list[Tensor] = []
        self._seen: dict[int, Any] = {}  # with the things themselves, so that no identity is used twice
        self._waiting: deque[tuple[Any, str]] = deque()
        self._names: dict[int, tuple[dict[str, Any], set[str]]] = {}
        self._asked: set[tuple[int, int]] = set()  # modules and the code that names them

    def run(self, roots: list[tuple[Any, str]]) -> None:
        self._waiting.extend(roots)
        while self._waiting:
            one, name = self._waiting.popleft()
            if type(one) in _ATOMS or isinstance(one, SIMPLE) or id(one) in self._seen:
                continue
            self._seen[id(one)] = one
            if len(self._seen) > _MOST:
                raise AssumptionError(
                    f"more than {_MOST} objects can be reached from {_ROOTS} (the last by {name!r}), too "
                    "many to see whether a record changes them. Hold data in tensors or arrays, and keep "
                    "what is not used out of reach"
                )
            try:
                self._visit(one, name)
            except AssumptionError:
                raise
            except Exception:  # an odd object among data: nobody else's
                if not self.data:
                    raise

    def spaces(self) -> Iterator[Cell]:
        """Globals, and attributes of modules, by name: the others are not ours."""
        for space, chosen in self._names.values():
            yield named(space, chosen)

    def _visit(self, one: Any, name: str) -> None:
        if type(one) in weakref.ProxyTypes:
            with contextlib.suppress(ReferenceError):
                self._attributes(one, name)
            return
        if isinstance(one, types.ModuleType) or self._skipped(one):
            return
        _refuse(one, name)
        if isinstance(one, Tensor):
            self.tensors.append(one)
        if isinstance(one, types.FunctionType) and not is_library(module_of(one)):
            self._globals(one)
        self.cells.extend(cells_of(one))
        self._waiting.extend(self._children(one, name))
        if isinstance(one, type):
            if not is_library(module_of(one)):
                self._class(one)
            return
        self._attributes(one, name)

    def _skipped(self, one: Any) -> bool:
        """Whether this is left alone: it writes to the outside, draws from it, or is data."""
        if isinstance(one, np.ndarray):
            return isinstance(one, np.memmap) or (self.data and one.nbytes > _DATA)
        return isinstance(one, random.SystemRandom) or is_handle(one)

    # -----------------------------------------------------------------------------------------------
    # names

    def _globals(self, function: types.FunctionType) -> None:
        """Globals that a function names, what it names of modules, and modules that it imports itself."""
        space, names = function.__globals__, _names(function.__code__)
        self._space(space, names)
        package = str(space.get("__package__") or "")
        for name in names:
            for path in (name, f"{package}.{name}"):
                module = sys.modules.get(path)
                if module is not None and not is_library(path):
                    self._module(module, names)

    def _space(self, space: dict[str, Any], names: set[str]) -> None:
        chosen = self._names.setdefault(id(space), (space, set()))[1]
        for name in names:
            value = space.get(name)
            if isinstance(value, types.ModuleType):
                self._module(value, names)
            elif name in space and name not in chosen:
                self._waiting.append((value, name))
        chosen.update(names)

    def _module(self, module: types.ModuleType, names: set[str]) -> None:
        """A module of somebody's own. To a library's, attributes may be added: they are compared."""
        key = id(module), id(names)
        if key in self._asked:
            return
        self._asked.add(key)
        self._seen[id(names)] = names
        if not is_library(getattr(module, "__name__", "")):
            self._space(vars(module), names)
        else:
            new = {name for name in names if not isinstance(vars(module).get(name), _CODE)}
            self._names.setdefault(id(vars(module)), (vars(module), set()))[1].update(new)

    # -----------------------------------------------------------------------------------------------
    # what a thing holds

    def _class(self, one: type) -> None:
        self.cells.append(class_cell(one))
        self._waiting.extend((value, name) for name, value in list(vars(one).items()))
        self._waiting.extend((base, base.__name__) for base in (*one.__bases__, type(one)))

    def _attributes(self, one: Any, name: str) -> None:
        """Attributes, slots, and the class that says what is done with them."""
        own = None if is_frame(one) else attributes_of(one)
        if own is not None:
            self.cells.append(Cell.of(own, dict, fill_mapping))
            self._waiting.extend((value, str(key)) for key, value in list(own.items()))
        names = () if isinstance(one, Tensor) else slots_of(type(one))  # type: ignore[arg-type]
        if names:
            self.cells.append(cell := slots_cell(one, names))
            self._waiting.extend((value, slot) for slot, value in cell.content.items())
        self._waiting.append((one.__class__, name))

    def _children(self, one: Any, name: str) -> Iterator[tuple[Any, str]]:
        found: Any = ()
        match one:
            case dict():
                found = itertools.chain(self._some(one.values()), self._some(one))
                found = itertools.chain(found, [getattr(one, "default_factory", None)])
            case list() | tuple() | deque() | set() | frozenset():
                found = self._some(one)
            case functools.partial():
                found = one.func, one.args, one.keywords
            case types.MethodType():
                found = one.__func__, one.__self__
            case types.BuiltinMethodType() | types.MethodWrapperType():
                found = (one.__self__,)
            case staticmethod() | classmethod():
                found = (one.__func__,)
            case property():
                found = one.fget, one.fset, one.fdel
            case types.FunctionType():
                yield from _closure(one)
                found = one.__defaults__, one.__kwdefaults__
            case types.MappingProxyType():
                found = gc.get_referents(one)
            case functools._lru_cache_wrapper():
                found = _remembered(one)
            case weakref.ReferenceType():
                found = (one(),)
            case ContextVar():
                found = (one.get(),)
            case np.random.Generator():
                found = (one.bit_generator,)
            case np.ndarray():
                found = (*(self._some(one.flat) if one.dtype.hasobject else ()), one.base)
            case Tensor():
                found = one._backward_hooks, getattr(one, "_post_accumulate_grad_hooks", None)
            case _ if is_frame(one):
                found = [getattr(block.values, "_ndarray", block.values) for block in one._mgr.blocks]
        yield from ((value, name) for value in found if type(value) not in _ATOMS)

    def _some(self, container: Any) -> Any:
        """All entries, or some of data."""
        if self.data and len(container) > _MANY:
            return list(itertools.islice(iter(container), _SAMPLE))
        return [one for one in list(container) if type(one) not in _ATOMS and not _all_simple(one)]


_MOVING = (
    collections.abc.Iterator, collections.abc.AsyncIterator, types.CoroutineType, ctypes.py_object,
    queue.SimpleQueue, ElementTree.Element, type(hashlib.sha256()), type(hashlib.blake2b()),
)  # fmt: skip
_CODE = (types.ModuleType, type, types.FunctionType, types.BuiltinFunctionType)


def _refuse(one: Any, name: str) -> None:
    """Raise for what can change and has no content that can be compared and put back."""
    what = type(one).__name__
    if isinstance(one, ContextVar):
        with contextlib.suppress(LookupError):
            one.get()
            return
        what = "ContextVar without a value"
    elif (
        not isinstance(one, _MOVING)
        or isinstance(one, io.IOBase)
        or isinstance(getattr(type(one), "__next__", None), types.FunctionType)
    ):
        return
    raise AssumptionError(
        f"a {what} ({name!r}) can be reached from {_ROOTS}. It can be neither compared nor put back, so it "
        "may carry one record's values to another. Hold a list and a number in its place, or draw random "
        "numbers with PyTorch"
    )


def _all_simple(one: Any) -> bool:
    return type(one) is tuple and all(type(x) in _ATOMS for x in one)


def _closure(function: types.FunctionType) -> Iterator[tuple[Any, str]]:
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=False):
        value = content_of(cell)
        if value is not cell:
            yield value, name


def _remembered(cache: Any) -> list[Any]:
    """What a cache gives again; the dictionary that holds it is its own."""
    inner = gc.get_referents(cache)
    links = [value for one in inner if isinstance(one, dict) for value in one.values()]
    further = [x for link in links if type(link).__name__ == "_lru_list_elem" for x in gc.get_referents(link)]
    known = [x for x in (*inner, *links, *further) if type(x).__name__ != "_lru_list_elem"]
    return [x for x in known if not any(x is one for one in inner if isinstance(one, dict))]


@functools.lru_cache(maxsize=4096)
def _names(code: types.CodeType) -> set[str]:
    """The names that a function uses, also as texts (`getattr`), and those of functions inside it."""
    inner = [one for one in code.co_consts if isinstance(one, types.CodeType)]
    texts = {one for one in code.co_consts if isinstance(one, str) and one.isidentifier()}
    return set(code.co_names).union(texts, *map(_names, inner))
