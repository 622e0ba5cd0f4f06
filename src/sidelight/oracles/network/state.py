"""What the user's code remembers: everything that it can change by mistake is found, compared and put back.

A model that writes into itself while it sees private records carries them out of the mechanism, and from one
record to the next: a running average, a codebook, a cache, a counter. Starting from a model, a loss, an
augmentation, a collate or a dataset, a search follows attributes, containers, hooks, closures, user classes,
and the globals that functions name. Whatever can be changed is noted in a `Snapshot` (snapshots.py).

Code of installed libraries is taken to keep nothing: their functions, classes and modules are not searched.
Their objects are: a list is a list whoever made it. An iterator or a generator, which can be neither compared
nor put back, is refused by name. Files, processes and C code cannot be searched: that nothing is kept there
is an assumption, which statements list.
"""

from __future__ import annotations

import collections.abc
import dis
import functools
import io
import itertools
import logging
import pathlib
import random
import sys
import threading
import types
import warnings
from collections import deque
from collections.abc import Iterable, Iterator, Sequence, Sized
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from typing import TextIO, TypeVar

import numpy as np
from torch import Tensor, nn
from torch.utils.data import Dataset

from sidelight.errors import AssumptionError
from sidelight.oracles.network.flat import parameters_of
from sidelight.oracles.network.snapshots import (
    SIMPLE,
    Generators,
    Snapshot,
    SnapshotGroup,
    TensorSnapshot,
    attributes_of,
    snapshot_of_class,
    snapshot_of_names,
    snapshot_of_slots,
    snapshots_of,
    value_of,
)

__all__ = [
    "HONEST_CODE", "NO_HIDDEN_STATE", "CodeState", "refuse_change", "restored", "silent", "without_gradients",
]  # fmt: skip

T = TypeVar("T")

HONEST_CODE = (  # the threat model; SECURITY.md and docs/guarantees.md have the same words
    "the model, loss, dataset, collate and augmentation are honest code that may contain mistakes; "
    "they are not written to defeat the library"
)
NO_HIDDEN_STATE = (  # what cannot be searched
    "model, loss, augment, collate and dataset keep nothing of a record in files, other processes or C code, "
    "and the dataset only reads its data (tensors of more than 4 million numbers, arrays of more than 4 MB, "
    "what containers of more than 1000 entries hold)"
)

# ---------------------------------------------------------------------------------------------------
# what code reaches


_MOST = 200_000  # things that are looked at
_MANY = 1000  # entries of a container of a dataset that is taken for data
_DATA = 2**22  # bytes of an array, or numbers of a tensor, of a dataset that are taken for data
_ATOMS = frozenset(SIMPLE)
_ROOTS = "the model, the loss, augment=, collate or the dataset"
_OUTSIDE = frozenset((  # modules whose objects stand for files, processes, threads, displays, logs and tables
    "logging", "threading", "_thread", "multiprocessing", "concurrent", "asyncio", "socket", "subprocess",
    "zipfile", "tarfile", "gzip", "bz2", "lzma", "sqlite3", "mmap", "tempfile", "pathlib", "enum", "inspect",
    "re", "h5py", "zarr", "lmdb", "netCDF4", "fsspec", "PIL", "decord", "av", "tqdm", "tensorboard", "wandb",
    "mlflow", "pandas", "polars", "pyarrow", "_pytest", "pytest", "pluggy", "hypothesis",
))  # fmt: skip
_FILES = frozenset(("zipfile", "tarfile", "sqlite3", "h5py", "zarr", "lmdb", "netCDF4"))
_INSTALLED = frozenset(("site-packages", "dist-packages"))  # folders
_ALWAYS_LIBRARIES = sys.stdlib_module_names | {"builtins", "sidelight", "torch", "functorch", "numpy"}


@functools.lru_cache(maxsize=4096)
def _is_library(module: str) -> bool:
    """Whether a module, by its name, belongs to Python or to an installed library."""
    root = module.split(".")[0]
    file = getattr(sys.modules.get(root), "__file__", None) or ""
    return root in _ALWAYS_LIBRARIES or not _INSTALLED.isdisjoint(pathlib.PurePath(file).parts)


def _module_of(one: object) -> str:
    """The module that a function or a class was written in; a wrapper bears the name of what it wraps."""
    if isinstance(one, types.FunctionType):
        return str(one.__globals__.get("__name__") or "")
    return str(getattr(one, "__module__", None) or "builtins")


def _is_outside(one: object) -> bool:
    """Whether an object stands for something outside, or belongs to a run of sidelight."""
    if isinstance(one, type | types.FunctionType | nn.Module):
        return False
    module = str(type(one).__module__)
    if module.startswith("sidelight."):  # a run's accounts and noise must never be put back
        return not module.startswith("sidelight.augment")
    return module.split(".")[0] in _OUTSIDE


class _Search:
    """What was found so far, and what is still to be looked at, each with a name for messages.

    data: whether a dataset is searched. Its containers with more than a thousand entries, or with one for
        each record, are taken for data: nothing in them is looked at, and nothing of them raises.
    """

    def __init__(self) -> None:
        self.snapshots, self.tensors = list[Snapshot](), list[TensorSnapshot]()
        self._data = False
        self._counts: set[int] = set()  # records of the datasets seen so far
        self._seen: dict[int, object] = {}  # with the things themselves, so that no identity is used twice
        self._waiting: deque[tuple[object, str]] = deque()
        self._names: dict[int, tuple[dict[str, object], set[str]]] = {}

    def run(self, roots: Iterable[object], *, data: bool = False) -> None:
        self._data = data
        self._waiting.extend((root, "itself") for root in roots)
        while self._waiting:
            one, name = self._waiting.popleft()
            if type(one) in _ATOMS or id(one) in self._seen or isinstance(one, SIMPLE):
                continue
            self._seen[id(one)] = one
            if len(self._seen) > _MOST:
                raise AssumptionError(
                    f"more than {_MOST} objects can be reached from {_ROOTS} (the last by {name!r}), too "
                    "many to see whether a record changes them. Hold data in tensors or arrays, and keep "
                    "what is not used out of reach"
                )
            if not (isinstance(one, types.ModuleType) or self._skipped(one)):
                self._visit(one, name)

    def names(self) -> Iterator[Snapshot]:
        """Globals, and attributes of modules, by name: the others are not ours."""
        for space, chosen in self._names.values():
            yield snapshot_of_names(space, chosen)

    def _skipped(self, one: object) -> bool:
        """Whether this is left alone: it writes to the outside, draws from it, or is data."""
        if isinstance(one, np.ndarray):
            return isinstance(one, np.memmap) or (self._data and one.nbytes > _DATA)
        if isinstance(one, Tensor):
            return self._data and one.numel() > _DATA
        return isinstance(one, random.SystemRandom) or _is_outside(one)

    def _visit(self, one: object, name: str) -> None:
        _refuse_iterator(one, name)
        if self._data and isinstance(one, Dataset) and isinstance(one, Sized):
            self._counts.add(len(one))
        if isinstance(one, Tensor):
            held = TensorSnapshot(one, name)
            if held.form[3] is not None:  # it has memory that can be compared
                self.tensors.append(held)
        elif isinstance(one, type):
            if not _is_library(_module_of(one)):
                self.snapshots.append(snapshot_of_class(one))
                self._wait(vars(one).items())
                self._waiting.extend((base, base.__name__) for base in one.__bases__)
            return
        elif isinstance(one, types.FunctionType) and not _is_library(_module_of(one)):
            self._space(one.__globals__, _globals_of(one.__code__), _names(one.__code__))
        self.snapshots.extend(snapshots_of(one, name))
        if isinstance(one, types.FunctionType):
            cells = map(value_of, one.__closure__ or ())
            self._wait(zip(one.__code__.co_freevars, cells, strict=False))
        if isinstance(one, dict) and not self._holds_records(one):
            self._wait(one.items())
        elif not self._holds_records(one):
            self._waiting.extend((value, name) for value in _children(one) if type(value) not in _ATOMS)
        self._attributes(one, name)

    def _wait(self, named: Iterable[tuple[object, object]]) -> None:
        self._waiting.extend((value, str(name)) for name, value in list(named))

    def _holds_records(self, one: object) -> bool:
        """Whether a container of a dataset has an entry for each record, or very many."""
        if not self._data or not isinstance(one, list | tuple | deque | dict | np.ndarray):
            return False
        return len(one) > _MANY or len(one) in self._counts if not isinstance(one, np.ndarray) else True

    def _attributes(self, one: object, name: str) -> None:
        """Attributes, slots, and the class that says what is done with them."""
        own = attributes_of(one)
        if own is not None:
            self.snapshots.extend(snapshots_of(own, name))
            self._wait(own.items())
        slots = None if isinstance(one, Tensor) else snapshot_of_slots(one, name)
        if slots is not None and isinstance(slots.content, dict):
            self.snapshots.append(slots)
            self._wait(slots.content.items())
        self._waiting.append((type(one), name))

    def _space(self, space: dict[str, object], names: frozenset[str], attributes: frozenset[str]) -> None:
        """Globals that a function names, and the attributes that it names of other modules of users."""
        chosen = self._names.setdefault(id(space), (space, set()))[1]
        if names <= chosen:
            return
        new = names - chosen
        chosen.update(new)
        for name in new:
            value = space.get(name, sys.modules.get(name))
            if not isinstance(value, types.ModuleType):
                self._waiting.append((value, name))
            elif not _is_library(value.__name__):
                self._space(vars(value), attributes, attributes)


def _children(one: object) -> Iterable[object]:
    """What a thing holds, beside attributes and slots."""
    match one:
        case list() | tuple() | deque() | set() | frozenset():
            return [x for x in one if not (type(x) is tuple and all(type(y) in _ATOMS for y in x))]
        case functools.partial():
            return one.func, one.args, one.keywords
        case types.MethodType():
            return one.__func__, one.__self__
        case types.BuiltinMethodType():
            return (one.__self__,)
        case staticmethod() | classmethod():
            return (one.__func__,)
        case property():
            return one.fget, one.fset
        case types.FunctionType():
            return one.__defaults__, one.__kwdefaults__
        case functools._lru_cache_wrapper():
            return (one.__wrapped__,)
        case np.random.Generator():
            return (one.bit_generator,)
        case np.ndarray() if one.dtype.hasobject:
            return list(one.ravel())
    return ()


def _refuse_iterator(one: object, name: str) -> None:
    """Raise for what can change and has no content that can be compared and put back."""
    own = isinstance(getattr(type(one), "__next__", None), types.FunctionType)  # its attributes are compared
    if isinstance(one, collections.abc.Iterator) and not isinstance(one, io.IOBase) and not own:
        raise AssumptionError(
            f"a {type(one).__name__} ({name!r}) can be reached from {_ROOTS}. It can be neither compared nor "
            "put back, so it may carry one record's values to another. Hold a list and a number in its "
            "place, or draw random numbers with PyTorch"
        )


_GLOBALS = ("_GLOBAL", "_GLOBALS", "_NAME")  # how operations end that use one


@functools.lru_cache(maxsize=4096)
def _globals_of(code: types.CodeType) -> frozenset[str]:
    """The globals that a function uses, and those of functions inside it; no attributes of other things."""
    inner = [one for one in code.co_consts if isinstance(one, types.CodeType)]
    own = (str(one.argval) for one in dis.get_instructions(code) if one.opname.endswith(_GLOBALS))
    return frozenset(own).union(*map(_globals_of, inner))


@functools.lru_cache(maxsize=4096)
def _names(code: types.CodeType) -> frozenset[str]:
    """The names that a function uses, and those of functions inside it."""
    inner = [one for one in code.co_consts if isinstance(one, types.CodeType)]
    return frozenset(code.co_names).union(*map(_names, inner))


# ---------------------------------------------------------------------------------------------------
# everything that code can change, at one moment


_GLOBAL_HOOKS = tuple(  # those of all modules: they see what the model sees
    hooks for name, hooks in vars(nn.modules.module).items()
    if name.startswith("_global_") and isinstance(hooks, dict)
)  # fmt: skip
_WHOLE = 2**22  # numbers in tensors of a model that are copied; of larger ones the version is compared
_SHORT = 2**14  # the same of frozen weights


class CodeState:
    """Everything that code can change, at one moment: a model and its loss, or what makes records.

    data: datasets: they and the code are called with one record after the other. Generators that they hold
        are given a seed for each, so that they have moved is no change. What takes long to compare is
        compared after the last record. None: the code is called with many records at once.
    copies: of every tensor, also of trained weights and large ones; without, of the small others.
    """

    def __init__(self, *code: object, data: Sequence[object] | None = None, copies: bool = False) -> None:
        search, each = _Search(), data is not None
        search.run(data or (), data=True)
        search.run((*code, *_GLOBAL_HOOKS))
        found = [*search.snapshots, *search.names()]
        self.generators = [one.owner for one in found if each and isinstance(one.owner, Generators)]
        self._each, others = each, [one for one in found if not (each and isinstance(one.owner, Generators))]
        self._quick = [one for one in others if not (each and one.large)]
        self._slow = [one for one in others if each and one.large]
        self._regroup()
        self._held = search.tensors
        self.renew(copies=copies or each)

    def _regroup(self) -> None:
        self._quickly, self._slowly = SnapshotGroup(self._quick), SnapshotGroup(self._slow)

    def renew(self, *, copies: bool = False) -> None:
        """Take tensors and generators as they are now: both have moved on since."""
        for held in self._held:
            held.renew(copied=copies or _is_copied(held.tensor))
        self.renew_generators()

    def renew_generators(self) -> None:
        """Take generators as they are now: those of the process, and where records get seeds those held."""
        shared = () if self._each else (random._inst, np.random.mtrand._rand)
        self._drawn = [one for each in (*self.generators, *shared) for one in snapshots_of(each)]

    def altered(self) -> bool:
        """Whether attributes, modules, hooks or the tensors they name are others; numbers do not count."""
        return self._others_changed() is not None or any(held.altered() for held in self._held)

    def changed(self) -> str | None:
        """The name of something that is not as it was, generators with seeds of records aside."""
        names = (held.name for held in self._held if held.changed())
        return self._others_changed() or next(names, None)

    def _others_changed(self) -> str | None:
        both = itertools.chain(self._quickly.changed(), self._slowly.changed())
        return next((_name_of(one) for one in both if not one.memo), None)

    def restore(self) -> None:
        """Put back what can be put back; a tensor of which there is no copy is filled with zeros."""
        for one in (*self._drawn, *self._quickly.changed(), *self._slowly.changed()):
            one.restore()
        for held in self._held:
            if held.changed():
                held.restore()

    def restore_after_record(self) -> None:
        """Put back what can be compared quickly, and leave files of records open."""
        for one in self._quickly.changed():
            _keep_files(one)
            one.restore()
        for held in self._held:
            if held.moved() if held.large else held.changed():
                held.restore()

    def crossed(self) -> bool:
        """Whether something was changed that is not put back after each record; from now on it is."""
        changed = list(self._slowly.changed())
        tensors = [held for held in self._held if held.large and held.changed()]
        self._slow = [one for one in self._slow if not any(one is other for other in changed)]
        self._quick += changed
        for held in tensors:
            held.large = False
        if changed:
            self._regroup()
        if changed or tensors:
            self.restore_after_record()
        return bool(changed or tensors)


def _is_copied(x: Tensor) -> bool:
    if isinstance(x, nn.Parameter):
        return not x.requires_grad and x.numel() <= _SHORT
    return x.numel() <= _WHOLE


def _name_of(one: Snapshot) -> str:
    """Which entry of a dictionary changed, or by which name a thing was found."""
    now = one.read(one.owner)
    if isinstance(now, dict) and isinstance(one.content, dict):
        names = {**now, **one.content}
        return next((str(x) for x in names if now.get(x) is not one.content.get(x)), one.name)
    return one.name


def _keep_files(attributes: Snapshot) -> None:
    """A file of records that is opened at the first use stays open: what is in it depends on no use."""
    owner, content = attributes.owner, attributes.content
    if attributes.read is dict and isinstance(owner, dict) and isinstance(content, dict):
        for name, value in owner.items():
            if str(type(value).__module__).split(".")[0] in _FILES and content.get(name) is None:
                content[name] = value


def refuse_change(state: CodeState) -> None:
    """Raise if something is not as it was, after passes over rows that are not private."""
    if (name := state.changed()) is not None:
        raise AssumptionError(
            f"the model or the loss changes a buffer, a parameter, its gradient or an attribute ({name!r}) "
            "when it sees records, and would carry private ones out of the mechanism. Stop it from doing so: "
            "track_running_stats=False, .eval() on that module, torch.autograd.grad in place of .backward(), "
            "or keep nothing during forward"
        )


# ---------------------------------------------------------------------------------------------------
# passes and calls of which nothing is left


@contextmanager
def restored(state: CodeState) -> Iterator[None]:
    """Whatever happens inside, all is as it was afterwards. Nothing is said: it would tell of a record."""
    try:
        yield
    finally:
        state.restore()


@contextmanager
def without_gradients(model: nn.Module) -> Iterator[None]:
    """Parameters have no `.grad` inside; afterwards they have theirs, whatever was written meanwhile."""
    held = [(p, p.grad) for p in parameters_of(model)]
    try:
        for p, _ in held:
            p.grad = None
        yield
    finally:
        for p, grad in held:
            p.grad = grad


@contextmanager
def silent() -> Iterator[Muted]:
    """No warning, no line in a log and nothing printed: one about a private value would tell of it."""
    out, error = Muted(sys.stdout), Muted(sys.stderr)
    with (
        warnings.catch_warnings(),
        np.errstate(all="ignore"),
        _LOGS,
        redirect_stdout(out),
        redirect_stderr(error),
    ):
        warnings.simplefilter("ignore")
        yield out


class Muted(io.TextIOBase):
    """Drops what this thread prints, and notes that it did; progress bars of other threads go on."""

    def __init__(self, stream: TextIO) -> None:
        self._stream, self._thread, self.used = stream, threading.get_ident(), False

    def write(self, text: str) -> int:
        if threading.get_ident() != self._thread:
            return self._stream.write(text)
        self.used = True
        return len(text)

    def flush(self) -> None:
        if threading.get_ident() != self._thread:
            self._stream.flush()


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
