"""What the user's code remembers: everything that it can change is found, compared and put back.

A model that writes into itself while it sees private records carries them out of the mechanism, and from one
record to the next: a running average, a cache, a counter. Buffers are the usual place, but a frozen
parameter, a list in an attribute or of a class, a hook, `.data`, which PyTorch's version counters do not see,
or `.grad` serve as well. So everything that can be reached is compared and put back.

Starting from a model, a loss, an augmentation or a dataset, `reached` follows attributes (of modules, plain
objects, functions, tensors, in slots), containers, hooks, closures, classes, weak references, methods of
builtins, the globals that functions name, and what they name of other modules. Whatever can be changed
becomes a `Cell` (cells.py).

Code of libraries is trusted to keep nothing: functions, classes and modules of PyTorch, NumPy, Python and
others are not searched. Their objects are: a list is a list whoever made it. What has no content that can be
compared and put back, an iterator or a generator, is refused by name. Files, processes and C code cannot be
searched: that nothing is kept there is an assumption, which statements list.
"""

from __future__ import annotations

import collections.abc
import contextlib
import ctypes
import enum
import functools
import gc
import hashlib
import io
import itertools
import logging
import pathlib
import queue
import random
import sys
import threading
import types
import warnings
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple
from xml.etree import ElementTree

import numpy as np
import torch
from torch import Tensor, nn

from sidelight.errors import AssumptionError
from sidelight.oracles.network.snapshots import (
    SIMPLE,
    Cell,
    attributes_of,
    cells_of,
    class_cell,
    content_of,
    environment_cell,
    fill_mapping,
    is_frame,
    named,
    slots_cell,
    slots_of,
)

__all__ = [
    "KEPT_NOWHERE", "Held", "ModelState", "has_numbers", "is_file", "put_back", "reached", "refuse_change",
    "restored", "silent", "without_gradients",
]  # fmt: skip

KEPT_NOWHERE = (  # what cannot be searched
    "model, loss, augment, collate and dataset keep nothing of a record in files, other processes or C code, "
    "and only read their data (arrays of more than 4 MB, containers of more than 1000 records)"
)

_LIBRARIES = sys.stdlib_module_names | frozenset((
    "torch", "numpy", "sidelight", "torchvision", "torchaudio", "transformers", "timm", "peft", "accelerate",
    "safetensors", "tokenizers", "datasets", "huggingface_hub", "sentencepiece", "scipy", "sklearn", "pandas",
    "pyarrow", "polars", "numba", "joblib", "einops", "opacus", "torchmetrics", "lightning",
    "pytorch_lightning", "albumentations", "kornia", "monai", "cv2", "skimage", "matplotlib", "omegaconf",
    "hydra", "pydantic", "attr", "attrs", "yaml", "packaging", "typing_extensions", "triton", "sympy",
    "networkx", "functorch", "pytest", "_pytest", "pluggy", "hypothesis", "xarray", "nltk", "spacy",
))  # fmt: skip
# Files, processes, threads, displays and logs: objects of these are not looked into.
_HANDLES = frozenset((
    "logging", "threading", "_thread", "multiprocessing", "concurrent", "asyncio", "socket", "subprocess",
    "zipfile", "tarfile", "gzip", "bz2", "lzma", "sqlite3", "mmap", "tempfile", "h5py", "zarr", "lmdb",
    "netCDF4", "fsspec", "PIL", "decord", "av", "tqdm", "tensorboard", "wandb", "mlflow", "inspect", "re",
    "_pytest", "pytest", "pluggy", "hypothesis",
))  # fmt: skip
# Of these, the ones that hold records, and take long to open.
_FILES = frozenset(("zipfile", "tarfile", "sqlite3", "h5py", "zarr", "lmdb", "netCDF4"))


def module_of(one: Any) -> str:
    """The module that a function or a class was written in; a wrapper bears the name of what it wraps."""
    if isinstance(one, types.FunctionType):
        return str(one.__globals__.get("__name__") or "")
    return str(getattr(one, "__module__", None) or "builtins")


def is_library(module: str) -> bool:
    """Whether a module, by its name, is one of a known library."""
    return module.split(".")[0] in _LIBRARIES


def is_handle(one: Any) -> bool:
    """Whether an object stands for something outside, belongs to a run of sidelight, or cannot change."""
    if isinstance(one, type | types.FunctionType | nn.Module):
        return False
    kind = type(one)
    module = str(kind.__module__)
    if module.startswith("sidelight."):  # a run's accounts and noise must never be put back
        return not module.startswith("sidelight.augment")
    if isinstance(one, pathlib.PurePath | enum.Enum):
        return isinstance(one, pathlib.PurePath) or is_library(module)
    return module.split(".")[0] in _HANDLES and kind.__name__ != "_local"


def is_file(one: Any) -> bool:
    """Whether an object is an open file of records."""
    return str(type(one).__module__).split(".")[0] in _FILES


# ---------------------------------------------------------------------------------------------------
# what code reaches


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


# ---------------------------------------------------------------------------------------------------
# the state of a model and its loss


CHANGED = (
    "the model changes a buffer, a parameter, its gradient or an attribute of its own when it sees records, "
    "and would carry private ones out of the mechanism. Stop it from doing so: track_running_stats=False, "
    ".eval() on that module, torch.autograd.grad in place of .backward(), or keep nothing during forward"
)

_GLOBAL_HOOKS = tuple(  # those of all modules: they see what the model sees
    hooks for name, hooks in vars(nn.modules.module).items()
    if name.startswith("_global_") and isinstance(hooks, dict)
)  # fmt: skip
_WHOLE = 2**22  # numbers in tensors that are copied; of larger ones the version is compared


class Held:
    """A tensor at one moment: its memory, its version, and a copy of its numbers if that is wanted.

    compared: whether numbers are, or the version alone, which does not see `.data`.
    """

    __slots__ = ("compared", "copy", "form", "grad", "tensor", "version")

    def __init__(self, tensor: Tensor, *, copied: bool, compared: bool = True) -> None:
        self.tensor, self.compared = tensor, compared
        self.form, self.version = _form(tensor), tensor._version
        self.grad = tensor.grad if tensor.is_leaf else None
        self.copy = tensor.detach().clone() if copied else None

    def changed(self) -> bool:
        x = self.tensor
        if x._version != self.version or _form(x) != self.form or (x.is_leaf and x.grad is not self.grad):
            return True
        return self.compared and self.copy is not None and not _same(x, self.copy)

    def restore(self) -> None:
        x = self.tensor
        if x.is_leaf and x.requires_grad != self.form[2]:
            x.requires_grad_(self.form[2])
        if x.is_leaf and x.grad is not self.grad:
            x.grad = self.grad
        if self.copy is None and (x._version != self.version or _form(x) != self.form):
            x.data = x.new_zeros(self.form[1])  # what it was is lost; what it is must not stay
        elif self.copy is not None and (x.shape != self.copy.shape or x.dtype != self.copy.dtype):
            x.data = self.copy.clone()
        elif self.copy is not None and not _same(x, self.copy):
            x.data.copy_(self.copy)


class ModelState:
    """Everything that a model and its loss can change, at one moment.

    copies: of every tensor, also of trained weights and large ones; without, of the small others.
    """

    def __init__(self, *roots: Any, copies: bool = False) -> None:
        self._cells, tensors = reached(*roots, *_GLOBAL_HOOKS)
        self._tensors = [x for x in tensors if has_numbers(x)]
        self.renew(copies=copies)

    def renew(self, *, copies: bool = False) -> None:
        """Take tensors and generators as they are now: both have moved on since."""
        self._generators = [*cells_of(random._inst), *cells_of(np.random.mtrand._rand)]
        self._held = [Held(x, copied=copies or _small(x)) for x in self._tensors]

    def altered(self) -> bool:
        """Whether attributes, modules, hooks or the tensors they name are others; numbers do not count."""
        if any(cell.changed() for cell in self._cells if not cell.memo):
            return True
        return any(_kind(held.tensor) != _kind_of(held.form) for held in self._held)

    def changed(self) -> bool:
        """Whether anything is not as it was, but for the generators of Python and NumPy."""
        cells = any(cell.changed() for cell in self._cells if not cell.memo)
        return cells or any(held.changed() for held in self._held)

    def restore(self) -> None:
        """Put back what can be put back; a tensor of which there is no copy is filled with zeros."""
        put_back((*self._generators, *self._cells), self._held)


def put_back(
    cells: Iterable[Cell], tensors: Iterable[Held], *, first: Callable[[Cell], None] | None = None
) -> None:
    """Restore what is not as it was; `first` may say otherwise, by changing the content of a cell."""
    for cell in cells:
        if cell.changed():
            if first is not None:
                first(cell)
            cell.restore()
    changed = [held for held in tensors if held.changed()]
    if changed:
        with torch.no_grad():
            for held in changed:
                held.restore()
                held.form, held.version = _form(held.tensor), held.tensor._version


@contextmanager
def restored(state: ModelState) -> Iterator[None]:
    """Whatever happens inside, all is as it was afterwards. Nothing is said: it would tell of a record."""
    try:
        yield
    finally:
        state.restore()


@contextmanager
def without_gradients(model: nn.Module) -> Iterator[None]:
    """Parameters have no `.grad` inside; afterwards they have theirs, whatever was written meanwhile."""
    held = [(p, p.grad) for p in model.parameters()]
    try:
        for p, _ in held:
            p.grad = None
        yield
    finally:
        for p, grad in held:
            p.grad = grad


@contextmanager
def silent() -> Iterator[None]:
    """No warning and no line in a log: one about a private value would tell of it."""
    with warnings.catch_warnings(), np.errstate(all="ignore"), _LOGS:
        warnings.simplefilter("ignore")
        yield


class _NoLogs:
    """Python's logs go nowhere while somebody is inside, of all threads. (`logging.disable` takes 1 ms.)"""

    def __init__(self) -> None:
        self._lock, self._inside = threading.Lock(), 0
        self._before = logging.Logger.callHandlers

    def __enter__(self) -> None:
        with self._lock:
            if not self._inside:
                self._before = logging.Logger.callHandlers
                logging.Logger.callHandlers = _dropped  # type: ignore[method-assign,assignment]
            self._inside += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._inside -= 1
            if not self._inside:
                logging.Logger.callHandlers = self._before  # type: ignore[method-assign]


def _dropped(logger: logging.Logger, record: logging.LogRecord) -> None:
    """In place of handing a record to handlers."""


_LOGS = _NoLogs()


def refuse_change(state: ModelState) -> None:
    """Raise if something is not as it was, after passes over rows that are not private."""
    if state.changed():
        raise AssumptionError(CHANGED)


def has_numbers(x: Tensor) -> bool:
    """Whether a tensor has memory that can be compared."""
    return _form(x)[3] is not None


def _small(x: Tensor) -> bool:
    return not (isinstance(x, nn.Parameter) and x.requires_grad) and x.numel() <= _WHOLE


def _form(x: Tensor) -> Any:
    try:
        return id(x), x.shape, x.requires_grad, x.data_ptr(), x.dtype
    except (RuntimeError, NotImplementedError):  # sparse, or left behind by torch.func
        return id(x), x.shape, x.requires_grad, None, x.dtype


def _kind(x: Tensor) -> Any:
    return x.shape, x.requires_grad, x.dtype


def _kind_of(form: Any) -> Any:
    return form[1], form[2], form[4]


def _same(x: Tensor, copy: Tensor) -> bool:
    """Bit for bit, where NaN is equal to itself."""
    if torch.equal(x.detach(), copy):
        return True
    return bool(torch.isclose(x.detach(), copy, rtol=0.0, atol=0.0, equal_nan=True).all())
