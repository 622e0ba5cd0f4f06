"""What the user's code remembers: everything that it can change is found, compared and put back.

A model that writes into itself while it sees private records carries them out of the mechanism, and from one
record to the next: a running average, a cache, a counter. Buffers are the usual place, but a frozen
parameter, a list in an attribute or of a class, a hook, `.data`, which PyTorch's version counters do not see,
or `.grad` serve as well. So everything that can be reached is compared and put back.

Starting from a model, a loss, an augmentation or a dataset, `reached` follows attributes (of modules, plain
objects, functions, tensors, in slots), containers, hooks, closures, classes, weak references, methods of
builtins, the globals that functions name, and what they name of other modules. Whatever can be changed
is noted in a `Snapshot` (snapshots.py).

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
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence, Sized
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NamedTuple, TypeVar
from xml.etree import ElementTree

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from sidelight.errors import INTERRUPTS, AssumptionError
from sidelight.oracles.network.batches import seed_torch
from sidelight.oracles.network.flat import parameters_of
from sidelight.oracles.network.scratch import Scratch
from sidelight.oracles.network.snapshots import (
    SIMPLE,
    Generators,
    Snapshot,
    TensorSnapshot,
    Together,
    attributes_of,
    has_numbers,
    is_frame,
    put_back,
    snapshot_of_attributes,
    snapshot_of_bodies,
    snapshot_of_class,
    snapshot_of_environment,
    snapshot_of_names,
    snapshot_of_slots,
    snapshots_of,
    value_of,
)

__all__ = [
    "HONEST_CODE", "NO_HIDDEN_STATE", "CodeState", "Isolation", "record_seed", "refuse_change", "reseed",
    "restored", "silent", "without_gradients",
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


def _module_of(one: object) -> str:
    """The module that a function or a class was written in; a wrapper bears the name of what it wraps."""
    if isinstance(one, types.FunctionType):
        return str(one.__globals__.get("__name__") or "")
    return str(getattr(one, "__module__", None) or "builtins")


def _is_library(module: str) -> bool:
    """Whether a module, by its name, is one of a known library."""
    return module.split(".")[0] in _LIBRARIES


def _is_handle(one: object) -> bool:
    """Whether an object stands for something outside, belongs to a run of sidelight, or cannot change."""
    if isinstance(one, type | types.FunctionType | nn.Module):
        return False
    kind = type(one)
    module = str(kind.__module__)
    if module.startswith("sidelight."):  # a run's accounts and noise must never be put back
        return not module.startswith("sidelight.augment")
    if isinstance(one, pathlib.PurePath | enum.Enum):
        return isinstance(one, pathlib.PurePath) or _is_library(module)
    return module.split(".")[0] in _HANDLES and kind.__name__ != "_local"


def _is_file(one: object) -> bool:
    """Whether an object is an open file of records."""
    return str(type(one).__module__).split(".")[0] in _FILES


# ---------------------------------------------------------------------------------------------------
# what code reaches


_MOST = 200_000  # things that are looked at
_MANY = 1000  # entries of a container of a dataset that is taken for data
_SAMPLE = 64  # of which so many are looked into
_DATA = 2**22  # bytes of an array, or numbers of a tensor, of a dataset that are taken for data
_ATOMS = frozenset(SIMPLE)
_ROOTS = "the model, the loss, augment=, collate or the dataset"


class Reached(NamedTuple):
    snapshots: list[Snapshot]
    tensors: list[Tensor]


def reached(*code: object, data: Sequence[object] | None = None) -> Reached:
    """What can be changed, and the tensors, that can be reached from here.

    data: datasets, which come first. Of their containers with more than a thousand entries some are looked
    into, and of their arrays of more than 4 MB and tensors of more than four million numbers none: they are
    read, and not written to. Of what code alone reaches, a bank of earlier images say, everything is noted.
    """
    walk = _Walk(lenient=data is not None)
    walk.run([(root, "itself") for root in data or ()], data=True)
    walk.run([(root, "itself") for root in code])
    found = [snapshot_of_bodies(walk.bodies), *walk.snapshots, *walk.spaces(), snapshot_of_environment()]
    return Reached(found, walk.tensors)


class _Walk:
    """What was found so far, and what is still to be looked at, each with a name for messages.

    lenient: private records are among what is looked at, so that nothing is said about an odd one.
    data: whether what is looked at now belongs to a dataset. A container with as many entries as that has
        records is taken to hold these: whatever they are, nothing of them is refused.
    """

    def __init__(self, *, lenient: bool) -> None:
        self.lenient, self.data = lenient, False
        self._inside = False  # whether what waits from now on belongs to a record
        self._counts: set[int] = set()  # records of the datasets seen so far
        self._looked_at = [0, 0]  # things of code, and of records
        self.snapshots: list[Snapshot] = []
        self.tensors: list[Tensor] = []
        self.bodies: list[object] = []  # objects with attributes or slots, but for those of records
        self._seen: dict[int, object] = {}  # with the things themselves, so that no identity is used twice
        self._waiting: deque[tuple[object, str, bool]] = deque()
        self._names: dict[int, tuple[dict[str, object], set[str]]] = {}
        self._asked: set[tuple[int, int]] = set()  # modules and the code that names them

    def run(self, roots: list[tuple[object, str]], *, data: bool = False) -> None:
        self.data, self._inside = data, False
        self._wait(roots)
        while self._waiting:
            one, name, record = self._waiting.popleft()
            if type(one) in _ATOMS or id(one) in self._seen:
                continue
            record = record and not issubclass(type(one), _CODE)  # the class of a record is code
            self._looked_at[record] += 1
            if self._looked_at[record] > _MOST:
                self._too_many(name, record)
                continue
            self._seen[id(one)] = one
            try:
                if not isinstance(one, SIMPLE):
                    self._visit(one, name, record)
            except (AssumptionError, *INTERRUPTS):
                raise
            except BaseException:  # an odd object among data: nobody else's
                if not self.lenient:
                    raise

    def _wait(self, found: Iterable[tuple[object, str]]) -> None:
        self._waiting.extend((value, name, self._inside) for value, name in found)

    def _too_many(self, name: str, record: bool) -> None:
        if not record:  # else it would tell of it
            raise AssumptionError(
                f"more than {_MOST} objects can be reached from {_ROOTS} (the last by {name!r}), too "
                "many to see whether a record changes them. Hold data in tensors or arrays, and keep "
                "what is not used out of reach"
            )

    def spaces(self) -> Iterator[Snapshot]:
        """Globals, and attributes of modules, by name: the others are not ours."""
        for space, chosen in self._names.values():
            yield snapshot_of_names(space, chosen)

    def _visit(self, one: object, name: str, record: bool) -> None:
        self._inside = record
        if type(one) in weakref.ProxyTypes:
            with contextlib.suppress(ReferenceError):
                self._attributes(one, name)
            return
        if isinstance(one, types.ModuleType) or self._skipped(one):
            return
        if not record:
            _refuse(one, name)
        if self.data and isinstance(one, Dataset) and isinstance(one, Sized):
            self._counts.add(len(one))
        if isinstance(one, Tensor) and not (self.data and one.numel() > _DATA):
            self.tensors.append(one)
        if isinstance(one, types.FunctionType) and not _is_library(_module_of(one)):
            self._globals(one)
        self.snapshots.extend(snapshots_of(one))
        self._inside = record or self._holds_records(one)
        self._wait(self._children(one, name))
        self._inside = record
        if isinstance(one, type):
            if not _is_library(_module_of(one)):
                self._class(one)
            return
        self._attributes(one, name)

    def _holds_records(self, one: object) -> bool:
        """Whether there is an entry for each record, as a list of them has it, or of one of their columns."""
        if not self.data:
            return False
        if isinstance(one, np.ndarray):
            return not self._counts.isdisjoint(one.shape)
        return isinstance(one, list | tuple | deque | dict) and len(one) in self._counts

    def _skipped(self, one: object) -> bool:
        """Whether this is left alone: it writes to the outside, draws from it, or is data."""
        if isinstance(one, np.ndarray):
            return isinstance(one, np.memmap) or (self.data and one.nbytes > _DATA)
        return isinstance(one, random.SystemRandom) or _is_handle(one)

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
                if module is not None and not _is_library(path):
                    self._module(module, names)

    def _space(self, space: dict[str, object], names: set[str]) -> None:
        chosen = self._names.setdefault(id(space), (space, set()))[1]
        for name in names:
            value = space.get(name)
            if isinstance(value, types.ModuleType):
                self._module(value, names)
            elif name in space and name not in chosen:
                self._wait([(value, name)])
        chosen.update(names)

    def _module(self, module: types.ModuleType, names: set[str]) -> None:
        """A module of somebody's own. To a library's, attributes may be added: they are compared."""
        key = id(module), id(names)
        if key in self._asked:
            return
        self._asked.add(key)
        self._seen[id(names)] = names
        if not _is_library(getattr(module, "__name__", "")):
            self._space(vars(module), names)
        else:
            new = {name for name in names if not isinstance(vars(module).get(name), _CODE)}
            self._names.setdefault(id(vars(module)), (vars(module), set()))[1].update(new)

    # -----------------------------------------------------------------------------------------------
    # what a thing holds

    def _class(self, one: type) -> None:
        self.snapshots.append(snapshot_of_class(one))
        self._wait((value, name) for name, value in list(vars(one).items()))
        self._wait((base, base.__name__) for base in (*one.__bases__, type(one)))

    def _attributes(self, one: object, name: str) -> None:
        """Attributes, slots, and the class that says what is done with them."""
        own = None if is_frame(one) else attributes_of(one)
        slots = None if isinstance(one, Tensor) else snapshot_of_slots(one)
        if not self._inside and (slots is not None or (own is not None and _has_one_body(one, own))):
            self.bodies.append(one)
        if own is not None:
            self.snapshots.append(snapshot_of_attributes(own))
            self._wait((value, str(key)) for key, value in list(own.items()))
        if slots is not None and isinstance(slots.content, dict):
            self.snapshots.append(slots)
            self._wait((value, slot) for slot, value in slots.content.items())
        self._wait([(one.__class__, name)])

    def _children(self, one: object, name: str) -> Iterator[tuple[object, str]]:
        found: Iterable[object] = ()
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
                found = (*(self._some(one.ravel()) if one.dtype.hasobject else ()), one.base)
            case Tensor():
                found = one._backward_hooks, getattr(one, "_post_accumulate_grad_hooks", None)
            case _ if is_frame(one):
                found = [getattr(block.values, "_ndarray", block.values) for block in one._mgr.blocks]
        yield from ((value, name) for value in found if type(value) not in _ATOMS)

    def _some(self, container: Collection[object]) -> list[object]:
        """All entries, or some of data."""
        if self.data and len(container) > _MANY:
            return list(itertools.islice(iter(container), _SAMPLE))
        return [one for one in list(container) if type(one) not in _ATOMS and not _all_simple(one)]


_MOVING = (
    collections.abc.Iterator, collections.abc.AsyncIterator, types.CoroutineType, ctypes.py_object,
    queue.SimpleQueue, ElementTree.Element, type(hashlib.sha256()), type(hashlib.blake2b()),
)  # fmt: skip
_CODE = (types.ModuleType, type, types.FunctionType, types.BuiltinFunctionType)


def _refuse(one: object, name: str) -> None:
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


def _has_one_body(one: object, attributes: dict[str, object]) -> bool:
    """Whether its attributes are in this dictionary whoever asks, and not another's or a thread's own."""
    if type(one) in weakref.ProxyTypes or isinstance(one, threading.local):
        return False
    return attributes_of(one) is attributes


def _all_simple(one: object) -> bool:
    return type(one) is tuple and all(type(x) in _ATOMS for x in one)


def _closure(function: types.FunctionType) -> Iterator[tuple[object, str]]:
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=False):
        value = value_of(cell)
        if value is not cell:
            yield value, name


def _remembered(cache: object) -> list[object]:
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
# everything that code can change, at one moment


CHANGED = (
    "the model changes a buffer, a parameter, its gradient or an attribute of its own when it sees records, "
    "and would carry private ones out of the mechanism. Stop it from doing so: track_running_stats=False, "
    ".eval() on that module, torch.autograd.grad in place of .backward(), or keep nothing during forward"
)

_GLOBAL_HOOKS = tuple(  # those of all modules: they see what the model sees
    hooks for name, hooks in vars(nn.modules.module).items()
    if name.startswith("_global_") and isinstance(hooks, dict)
)  # fmt: skip
_WHOLE = 2**22  # numbers in tensors of a model that are copied; of larger ones the version is compared
_SHORT = 2**14  # numbers in frozen weights whose copies are in memory in any case
_OFTEN = 1000  # things, and tensors, that are looked at after every record; others after the last one


class CodeState:
    """Everything that code can change, at one moment: a model and its loss, or what makes records.

    data: datasets (see `reached`): they and the code are called with one record after the other. Generators
        that they hold are given a seed for each, so that they have moved is no change. What takes long to
        compare is compared after the last record. None: the code is called with many records at once.
    copies: of every tensor, also of trained weights and large ones; without, of the small others.
    lasting: held from one step to the next, with copies of frozen weights in a file instead of in memory.
    """

    def __init__(
        self, *code: object, data: Sequence[object] | None = None, copies: bool = False, lasting: bool = False
    ) -> None:
        found, tensors = reached(*code, *_GLOBAL_HOOKS, data=data)
        self._each = each = data is not None
        self.generators = [one.owner for one in found if each and isinstance(one.owner, Generators)]
        others = [one for one in found if not (each and isinstance(one.owner, Generators))]
        self._quick = [one for one in others if not (each and one.large)]
        self._slow = [one for one in others if each and one.large]
        if each:
            self._slow += self._quick[_OFTEN:]
            del self._quick[_OFTEN:]
        self._quickly, self._slowly = Together(self._quick), Together(self._slow)
        self.tensors = [x for x in tensors if has_numbers(x)]
        self._held = [TensorSnapshot(x, copied=False) for x in self.tensors]
        self._generators = Together(())
        self._scratch = Scratch() if lasting else None
        self.renew(copies=copies or each)

    def renew(self, *, copies: bool = False) -> None:
        """Take tensors and generators as they are now: both have moved on since."""
        for held in self._held:
            x = held.tensor
            held.renew(copied=copies or _small(x), scratch=self._scratch if _long_frozen(x) else None)
        self._watched = self._held[:_OFTEN]
        self.renew_generators()

    def renew_generators(self) -> None:
        """Take generators as they are now: those of the process, and where records get seeds those held."""
        shared = () if self._each else (random._inst, np.random.mtrand._rand)
        if not (self._generators.at_once and self._generators.same()):
            every = (*self.generators, *shared)
            self._generators = Together(one for each in every for one in snapshots_of(each))

    def altered(self) -> bool:
        """Whether attributes, modules, hooks or the tensors they name are others; numbers do not count."""
        return self._others_changed() or any(held.altered() for held in self._held)

    def changed(self) -> bool:
        """Whether anything is not as it was, but for generators of the process or with seeds of records."""
        return self._others_changed() or any(held.changed() for held in self._held)

    def _others_changed(self) -> bool:
        both = itertools.chain(self._quickly.changed(), self._slowly.changed())
        return any(not one.memo for one in both)

    def restore(self) -> None:
        """Put back what can be put back; a tensor of which there is no copy is filled with zeros."""
        for together in (self._generators, self._quickly, self._slowly):
            for one in together.changed():
                one.restore()
        put_back(self._held)

    def restore_after_record(self) -> None:
        """Put back what can be compared quickly, and leave files of records open."""
        adopted = False
        for one in self._quickly.changed():
            adopted |= _adopt_files(one)
            one.restore()
        if adopted:
            self._quickly = Together(self._quick)
        for held in self._watched:
            if held.changed() if held.quick else held.moved():
                held.restore()

    def crossed(self) -> bool:
        """Whether something was changed that is not put back after each record; from now on it is."""
        changed = list(self._slowly.changed())
        late = [held for held in self._watched if not held.quick] + self._held[len(self._watched) :]
        tensors = [held for held in late if held.changed()]
        self._slow = [one for one in self._slow if not any(one is other for other in changed)]
        self._quick.extend(changed)
        if changed:
            self._quickly, self._slowly = Together(self._quick), Together(self._slow)
        for held in tensors:
            held.quick = True
        if any(held not in self._watched for held in tensors):
            self._watched = self._held
        if changed or tensors:
            self.restore_after_record()
        return bool(changed or tensors)


def _small(x: Tensor) -> bool:
    return not (isinstance(x, nn.Parameter) and x.requires_grad) and x.numel() <= _WHOLE


def _long_frozen(x: Tensor) -> bool:
    return isinstance(x, nn.Parameter) and x.numel() > _SHORT and _small(x)


def _adopt_files(attributes: Snapshot) -> bool:
    """A file of records that is opened at the first use stays open: what is in it depends on no use."""
    owner, content, adopted = attributes.owner, attributes.content, False
    if attributes.read is dict and isinstance(owner, dict) and isinstance(content, dict):
        for name, value in owner.items():
            if _is_file(value) and content.get(name) is None:
                content[name], adopted = value, True
    return adopted


def refuse_change(state: CodeState) -> None:
    """Raise if something is not as it was, after passes over rows that are not private."""
    if state.changed():
        raise AssumptionError(CHANGED)


# ---------------------------------------------------------------------------------------------------
# passes and calls of which nothing is left


@contextmanager
def restored(state: CodeState) -> Iterator[None]:
    """Whatever happens inside, all is as it was afterwards. Nothing is said: it would tell of a record."""
    try:
        yield
    finally:
        state.restore()


class Isolation:
    """Calls of code, each with one private record and as if it were the only one.

    A dataset, `collate` and `augment` see a private record alone, but they may remember: the longest record
    so far, a running mean, how far a generator has moved. Whatever a call has changed is put back, and each
    record has random numbers of its own, in generators of the process as in those that the code holds: they
    depend neither on how many records came before nor on how many numbers these drew.

    data: datasets, which only read what is large in them (see `reached`); of `code` everything is put back.
    """

    def __init__(self, *data: object, code: tuple[object, ...] = ()) -> None:
        self._data, self._code = data, code
        self._state: CodeState | None = None

    def __reduce__(self) -> tuple[Callable[..., Isolation], tuple[object, ...]]:
        return functools.partial(Isolation, code=self._code), self._data  # another process has its own copies

    def check(self) -> None:
        """Raise AssumptionError for code that holds what cannot be put back."""
        self._present()

    def each(self, make: Callable[[int], T], wanted: Sequence[tuple[int, int]]) -> list[T | None]:
        """What `make` gives for each place, with its seed; None where it fails: an error may quote a record.

        What takes long to compare is compared once, at the end. If it has changed, records have seen what
        others left, and all are made again, with that put back after each.
        """
        if not wanted:
            return []
        state = self._present()
        try:
            found = [_one(state, make, *one) for one in wanted]
            while state.crossed():  # each time there is less that is not put back at once
                found = [_one(state, make, *one) for one in wanted]
        finally:
            state.restore()
        return found

    def restore(self) -> None:
        """Put back what was changed since the last call or check."""
        if self._state is not None:
            self._state.restore()

    def _present(self) -> CodeState:
        """The state as it is now: calls with public records may have changed it."""
        if self._state is None or self._state.changed():
            self._state = CodeState(*self._code, data=self._data)
        else:
            self._state.renew_generators()
        return self._state


def _one(state: CodeState, make: Callable[[int], T], place: int, seed: int) -> T | None:
    reseed(seed, state.generators)
    try:
        return make(place)
    except INTERRUPTS:
        raise
    except BaseException:
        return None
    finally:
        state.restore_after_record()


def record_seed(secret: int, number: int) -> int:
    """The seed of one record, which tells nothing about those of the others."""
    digest = hashlib.blake2b(f"{secret} {number}".encode(), digest_size=8)
    return int.from_bytes(digest.digest(), "big")


def reseed(seed: int, held: Sequence[Generators] = ()) -> None:
    """Let the generators of PyTorch, NumPy and Python begin here, and others that somebody holds."""
    seed_torch(seed)
    np.random.seed(seed >> 32)
    random.seed(seed)
    for number, generator in enumerate(held):
        _reseed_one(generator, record_seed(seed, number))


def _reseed_one(generator: Generators, seed: int) -> None:
    if isinstance(generator, np.random.BitGenerator):
        fresh = type(generator)(seed)
        generator.__setstate__((fresh.state, fresh.seed_seq))  # type: ignore[attr-defined]
    elif isinstance(generator, torch.Generator):
        generator.manual_seed(seed % 2**63)
    else:
        generator.seed(seed % 2**32)


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
