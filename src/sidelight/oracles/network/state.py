"""State of the user's code: everything that it can change by mistake is found, compared and restored.

A model that writes into itself while it sees private records carries them out of the mechanism, and from one
record to the next: a running average, a codebook, a cache, a counter. Starting from a model, a loss, an
augmentation, a collate or a dataset, a search follows attributes, containers, hooks, closures, user classes,
and the globals that functions name. A snapshot notes the content of each thing one level deep: what it holds
has a snapshot of its own.

Code of installed libraries is taken to keep nothing: their functions, classes and modules are not searched.
Their objects are: a list is a list whoever made it. An iterator or a generator, which can be neither compared
nor put back, is refused by name. Files, processes and C code cannot be searched: that nothing is kept there
is an assumption, which statements list.
"""

from __future__ import annotations

import collections.abc
import dis
import functools
import gc
import io
import itertools
import operator
import pathlib
import random
import sys
import types
from collections import deque
from collections.abc import Iterable, Iterator, Sequence, Sized
from contextlib import contextmanager

import numpy as np
from torch import Tensor, nn
from torch.utils.data import Dataset

from sidelight.errors import AssumptionError
from sidelight.oracles.network.flat import parameters_of
from sidelight.oracles.network.snapshots import (
    SIMPLE,
    Generators,
    Snapshot,
    TensorSnapshot,
    fill_dict,
    slots_of,
    snapshot_of,
    snapshot_of_globals,
    snapshot_of_slots,
)

HONEST_CODE = (  # the threat model; SECURITY.md and docs/guarantees.md have the same words
    "the model, loss, dataset, collate and augmentation are honest code that may contain mistakes; "
    "they are not written to defeat the library"
)
NO_HIDDEN_STATE = (  # what cannot be searched
    "model, loss, augment, collate and dataset keep nothing of a record in files, other processes or C code, "
    "and the dataset only reads its data (arrays and tensors of more than 1 MB, containers of more than 4096 "
    "entries, and what is in containers with one entry per record)"
)
_ATOMS = frozenset(SIMPLE)
_MAX_OBJECTS = 200_000  # things that are looked at
_DATA_ENTRIES = 2**12  # of a container; a longer one of a dataset is taken for data
_DATA_BYTES = 2**20  # of an array or a tensor; a larger one of a dataset is taken for data
_MAX_COPIED_NUMBERS = (
    2**22
)  # numbers in tensors of a model that are copied; of larger ones the version is compared
_MAX_COPIED_FROZEN_NUMBERS = 2**14  # the same of frozen weights
_CONTAINERS = (list, tuple, deque, dict, set, frozenset)
_ROOTS = "the model, the loss, augment=, collate or the dataset"

# ---------------------------------------------------------------------------------------------------
# what code reaches


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


class _Search:
    """What was found so far, and what is still to be looked at, each with a name for messages.

    What is large in a dataset is taken for data, which is only read: nothing of it is looked at, and nothing
    of it raises. Nor is what a dataset's containers with one entry per record hold.
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
            if len(self._seen) > _MAX_OBJECTS:
                raise AssumptionError(
                    f"more than {_MAX_OBJECTS} objects can be reached from {_ROOTS} (the last by {name!r}), "
                    "too many to see whether a record changes them. Hold data in tensors or arrays, and keep "
                    "what is not used out of reach"
                )
            if not self._skipped(one):
                self._visit(one, name)

    def names(self) -> Iterator[Snapshot]:
        """Globals, and attributes of modules, by name: the others are not ours."""
        for space, chosen in self._names.values():
            yield snapshot_of_globals(space, chosen)

    def _skipped(self, one: object) -> bool:
        """Whether this is left alone: library code, data, or what stands for something outside."""
        if isinstance(one, np.ndarray):
            return isinstance(one, np.memmap) or (self._data and one.nbytes > _DATA_BYTES)
        if isinstance(one, Tensor):
            return self._data and one.numel() * one.element_size() > _DATA_BYTES
        if self._data and isinstance(one, _CONTAINERS) and len(one) > _DATA_ENTRIES:
            return True
        if isinstance(one, type):
            return _is_library(_module_of(one))
        if isinstance(one, types.FunctionType | nn.Module):
            return False
        module = type(one).__module__
        if module.startswith("sidelight."):  # a run's accounts and noise must never be put back
            return not module.startswith("sidelight.augment")
        left_alone = isinstance(one, types.ModuleType | types.CodeType | random.SystemRandom)
        return left_alone or module.split(".")[0] in _OUTSIDE

    def _visit(self, one: object, name: str) -> None:
        _refuse_iterator(one, name)
        if self._data and isinstance(one, Dataset) and isinstance(one, Sized):
            self._counts.add(len(one))
        if isinstance(one, Tensor):
            held = TensorSnapshot(one, name)
            if held.form[3] is not None:  # it has memory that can be compared
                self.tensors.append(held)
        elif (snapshot := snapshot_of(one, one.__name__ if isinstance(one, type) else name)) is not None:
            self.snapshots.append(snapshot)
        own = None if isinstance(one, type) else _attributes(one)
        if own is not None and id(own) not in self._seen:
            self._seen[id(own)] = own
            self.snapshots.append(Snapshot(own, dict, fill_dict, name))
            self._wait(own.items())
        if isinstance(one, types.FunctionType):
            self._function(one)
        elif not self._holds_records(one):
            self._inside(one, name)
        self._waiting.append((type(one), name))

    def _wait(self, named: Iterable[tuple[object, object]]) -> None:
        self._waiting.extend((value, str(name)) for name, value in list(named))

    def _function(self, one: types.FunctionType) -> None:
        """Its closure, default arguments and, unless a library has it, the globals that it names."""
        if not _is_library(_module_of(one)):
            self._space(one.__globals__, _globals_of(one.__code__), _names(one.__code__))
        self._wait(zip(one.__code__.co_freevars, one.__closure__ or (), strict=False))
        self._waiting.extend((x, one.__name__) for x in (one.__defaults__, one.__kwdefaults__))

    def _inside(self, one: object, name: str) -> None:
        """What a thing holds, beside attributes."""
        if isinstance(one, dict):
            self._wait(one.items())
        elif isinstance(one, type):
            self._wait(vars(one).items())
            self._waiting.extend((base, base.__name__) for base in one.__bases__)
        elif isinstance(one, np.ndarray):
            self._waiting.extend((x, name) for x in one.ravel() if one.dtype.hasobject)
        elif isinstance(one, functools._lru_cache_wrapper):
            self._waiting.append((one.__wrapped__, name))
        elif not isinstance(one, Tensor):
            if hasattr(type(one), "__slots__") and not _is_library(type(one).__module__):
                self.snapshots.append(snapshot_of_slots(one, name))
                self._wait(slots_of(one).items())
            self._waiting.extend((x, name) for x in gc.get_referents(one) if not _plain(x))

    def _holds_records(self, one: object) -> bool:
        """Whether a container of a dataset has an entry for each record."""
        if not self._data or not isinstance(one, (*_CONTAINERS, np.ndarray)):
            return False
        return isinstance(one, np.ndarray) or len(one) in self._counts

    def _space(self, space: dict[str, object], names: frozenset[str], attributes: frozenset[str]) -> None:
        """Globals that a function names, and the attributes that it names of other modules of users."""
        chosen = self._names.setdefault(id(space), (space, set()))[1]
        for name in names - chosen:
            chosen.add(name)
            value = space.get(name, sys.modules.get(name))
            if not isinstance(value, types.ModuleType):
                self._waiting.append((value, name))
            elif not _is_library(value.__name__):
                self._space(vars(value), attributes, attributes)


def _plain(one: object) -> bool:
    """A number or a text, or several in a tuple: a vocabulary has many of them."""
    return type(one) in _ATOMS or (type(one) is tuple and all(type(x) in _ATOMS for x in one))


def _attributes(one: object) -> dict[str, object] | None:
    """The attributes of an object, as the dictionary that holds them."""
    try:
        found = getattr(one, "__dict__", None)
    except Exception:  # somebody's own __getattr__
        return None
    return found if isinstance(found, dict) else None


def _refuse_iterator(one: object, name: str) -> None:
    """Raise for what can change and has no content that can be compared and put back."""
    own = isinstance(getattr(type(one), "__next__", None), types.FunctionType)  # its attributes are compared
    if isinstance(one, collections.abc.Iterator) and not isinstance(one, io.IOBase) and not own:
        raise AssumptionError(
            f"a {type(one).__name__} ({name!r}) can be reached from {_ROOTS}. It can be neither compared nor "
            "put back, so it may carry one record's values to another. Hold a list and a number in its "
            "place, or draw random numbers with PyTorch"
        )


@functools.lru_cache(maxsize=4096)
def _globals_of(code: types.CodeType) -> frozenset[str]:
    """The globals that a function uses, and those of functions inside it; no attributes of other things."""
    inner = [one for one in code.co_consts if isinstance(one, types.CodeType)]
    ends = ("_GLOBAL", "_GLOBALS", "_NAME")
    own = (str(one.argval) for one in dis.get_instructions(code) if one.opname.endswith(ends))
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


class CodeState:
    """Everything that code can change, at one moment: a model and its loss, or what makes records.

    data: datasets: they and the code are called with one record after the other. Generators that they hold
        are given a seed for each, so that they have moved is no change. None: the code is called with many
        records at once.
    copies: of every tensor, also of trained weights and large ones; without, of the small others.
    """

    def __init__(self, *code: object, data: Sequence[object] | None = None, copies: bool = False) -> None:
        self._each = data is not None
        search = _Search()
        search.run(data or (), data=True)
        search.run((*code, *_GLOBAL_HOOKS))
        found = [*search.snapshots, *search.names()]
        self.generators = [one.owner for one in found if self._each and isinstance(one.owner, Generators)]
        self._things = [one for one in found if not (self._each and isinstance(one.owner, Generators))]
        self._held = search.tensors
        self._note_entries()
        self.renew(copies=copies or self._each)

    def _note_entries(self) -> None:
        """Dictionaries and lists are compared at once, by which objects they hold: 3,000 of them in 1 ms."""
        plain = [one.owner for one in self._things if one.read in (dict, list)]
        self._others = [one for one in self._things if one.read not in (dict, list)]
        views = ((x.keys(), x.values()) if isinstance(x, dict) else (x,) for x in plain)
        self._views = list(itertools.chain.from_iterable(views))
        self._sizes = list(map(len, self._views))
        self._entries = list(itertools.chain.from_iterable(self._views))

    def _changed_things(self) -> Iterator[Snapshot]:
        """Those that are not as they were."""
        same = list(map(len, self._views)) == self._sizes and all(
            map(operator.is_, itertools.chain.from_iterable(self._views), self._entries)
        )
        return (one for one in (self._others if same else self._things) if one.changed())

    def renew(self, *, copies: bool = False) -> None:
        """Take tensors and generators as they are now: both have moved on since."""
        for held in self._held:
            held.renew(copied=copies or _is_copied(held.tensor))
        self.renew_generators()

    def renew_generators(self) -> None:
        """Take generators as they are now: those of the process, and where records get seeds those held."""
        shared = () if self._each else (random._inst, np.random.mtrand._rand)
        found = (snapshot_of(one, "") for one in (*self.generators, *shared))
        self._drawn = [one for one in found if one is not None]

    def altered(self) -> bool:
        """Whether attributes, modules, hooks or the tensors they name are others; numbers do not count."""
        return self._changed_name() is not None or any(held.altered() for held in self._held)

    def changed(self) -> str | None:
        """The name of something that is not as it was, generators with seeds of records aside."""
        return self._changed_name() or next((held.name for held in self._held if held.changed()), None)

    def _changed_name(self) -> str | None:
        caches = functools._lru_cache_wrapper  # they are emptied, and that they fill is no change
        return next((x.what() for x in self._changed_things() if not isinstance(x.owner, caches)), None)

    def restore(self) -> None:
        """Put back what can be put back; a tensor of which there is no copy is filled with zeros."""
        for one in self._drawn:
            one.restore()
        self._restore_changed()

    def restore_after_record(self) -> None:
        """The same but for generators, which get a seed for each record; files of records stay open."""
        self._restore_changed(keep_files=True)

    def _restore_changed(self, *, keep_files: bool = False) -> None:
        for one in self._changed_things():
            if keep_files:
                _keep_files(one)
            one.restore()
        for held in self._held:
            if held.changed():
                held.restore()


def _is_copied(x: Tensor) -> bool:
    if isinstance(x, nn.Parameter):
        return not x.requires_grad and x.numel() <= _MAX_COPIED_FROZEN_NUMBERS
    return x.numel() <= _MAX_COPIED_NUMBERS


def _keep_files(attributes: Snapshot) -> None:
    """A file of records that is opened at the first use stays open: what is in it depends on no use."""
    owner, content = attributes.owner, attributes.content
    if isinstance(owner, dict) and isinstance(content, dict):
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
