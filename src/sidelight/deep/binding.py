"""What a run is, as far as code and data tell: a seed's noise depends on it, and a checkpoint is bound to it.

Functions are known by their bytecode, constants, defaults, captured variables and the plain globals that they
name; models by the code of their classes and by how they are put together; tensors by every bit. What only
running it would tell (a file that `forward` reads, a C extension) is not seen.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import re
from collections.abc import Iterator, Mapping
from types import CellType, CodeType, FunctionType, MethodType

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import ConcatDataset, Subset, TensorDataset

from sidelight.arrays import Array
from sidelight.problems.datasets import record_count

_PLAIN = (bool, int, float, complex, str, bytes, type(None))
_MAX_CHARACTERS = 2**18  # characters of one thing's text
_MAX_OBJECTS = 10_000  # objects that are looked at; a callable may hold on to anything


def without_addresses(value: object) -> str:
    """repr, without the places in memory that no other process would have."""
    return re.sub(r" at 0x[0-9a-fA-F]+", "", repr(value))


def fingerprints(things: Mapping[str, object], *, key: bytes) -> dict[str, str]:
    """A keyed digest of each: of code, of a dataset, of tensors. It is private where the thing is."""
    found = {}
    for name, thing in things.items():
        digest = hashlib.blake2b(key=key, person=b"sidelight run", digest_size=16)
        for part in _data(thing) if _is_data(thing) else [code_of(thing).encode()]:
            digest.update(f"{len(part)}:".encode())
            digest.update(part)
        found[name] = digest.hexdigest()
    return found


def _is_data(thing: object) -> bool:
    indexed = hasattr(thing, "__getitem__") and hasattr(thing, "__len__")
    return isinstance(thing, Tensor) or (indexed and not isinstance(thing, nn.Module | str))


def _data(dataset: object) -> Iterator[bytes]:
    """The bytes of tensors; of another dataset its type and its length, since to read it may take hours."""
    if isinstance(dataset, Tensor):
        yield f"{dataset.dtype}{tuple(dataset.shape)}".encode()
        flat = dataset.detach().cpu().contiguous().reshape(-1)
        yield flat.view(torch.uint8).numpy().tobytes() if len(flat) else b""
    elif isinstance(dataset, TensorDataset):
        for tensor in dataset.tensors:
            yield from _data(tensor)
    elif isinstance(dataset, Subset):
        yield np.asarray(dataset.indices, dtype=np.int64).tobytes()
        yield from _data(dataset.dataset)
    elif isinstance(dataset, ConcatDataset):
        for one in dataset.datasets:
            yield from _data(one)
    else:
        yield f"{type(dataset).__module__}.{type(dataset).__qualname__} {record_count(dataset)}".encode()


def code_of(thing: object) -> str:
    """What a callable does, as text: the same for the same code and settings."""
    return _Reader().read(thing)


def structure_of(model: nn.Module) -> str:
    """The code of a model and how it is put together; not its parameters and buffers, which change."""
    return _Reader().module(model, values=False)


class _Reader:
    """Looks at every object once."""

    def __init__(self) -> None:
        self._seen: dict[int, object] = {}  # holds on to them: a number may be used again

    def read(self, thing: object) -> str:
        """What a thing is; a digest of it, where that is long.

        A text within a text is quoted, and its quotes within the next one again: of code that is many levels
        deep, as that of transformers is, there would be gigabytes.
        """
        text = self._read(thing)
        if len(text) <= _MAX_CHARACTERS:
            return text
        return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()

    def _read(self, thing: object) -> str:
        if isinstance(thing, _PLAIN):
            return repr(thing)
        if id(thing) in self._seen or len(self._seen) > _MAX_OBJECTS:
            return "again"
        self._seen[id(thing)] = thing
        match thing:
            case list() | tuple():
                return str([self.read(one) for one in thing])
            case set() | frozenset():  # their order differs from process to process
                return str(sorted(self.read(one) for one in thing))
            case dict():
                return str([(str(name), self.read(one)) for name, one in thing.items()])
            case FunctionType():
                return self._function(thing)
            case MethodType():
                return f"{self.read(thing.__func__)} of {self.read(thing.__self__)}"
            case functools.partial():
                return self.read([thing.func, list(thing.args), thing.keywords])
            case type():
                return self._class(thing)
            case nn.Module():
                return self.module(thing, values=True)
            case Tensor() | np.ndarray():
                return fingerprints({"": torch.as_tensor(thing)}, key=b"")[""] if _simple(thing) else "array"
        settings = getattr(thing, "__dict__", None)
        return f"{self.read(type(thing))} {self.read(dict(settings))}" if settings else _named(thing)

    def module(self, module: nn.Module, *, values: bool) -> str:
        kinds = dict.fromkeys(type(one) for one in module.modules())
        state = module.state_dict()
        held = [*state.values()] if values else [tuple(one.shape) for one in state.values()]
        options = [_options(one) for one in module.modules()]  # a repr does not show all of them
        return f"{without_addresses(module)} {list(state)} {options} {self.read([held, list(kinds)])}"

    def _function(self, function: FunctionType) -> str:
        cells = [_content(cell) for cell in function.__closure__ or ()]
        parts = [function.__defaults__, function.__kwdefaults__, cells, _globals(function)]
        return f"{_bytecode(function.__code__)} with {self.read(parts)}"

    def _class(self, kind: type) -> str:
        if kind.__module__.split(".")[0] in ("torch", "builtins"):
            return f"{kind.__module__}.{kind.__qualname__}"
        own = [value for one in kind.__mro__ for value in vars(one).values() if _is_ours(one, value)]
        return f"{kind.__module__}.{kind.__qualname__} {self.read(own)}"


def _is_ours(kind: type, value: object) -> bool:
    return isinstance(value, FunctionType) and kind.__module__.split(".")[0] != "torch"


def _simple(array: Tensor | Array) -> bool:
    return isinstance(array, Tensor) or array.dtype.kind in "fiub"


def _options(module: nn.Module) -> dict[str, object]:
    plain = {name: value for name, value in vars(module).items() if isinstance(value, _PLAIN)}
    return {name: value for name, value in plain.items() if name != "training" and not name.startswith("_")}


def _named(thing: object) -> str:
    name = getattr(thing, "__qualname__", None)
    return f"{getattr(thing, '__module__', '')}.{name}" if name else without_addresses(thing)


def _bytecode(code: CodeType) -> str:
    constants = [_constant(one) for one in code.co_consts]
    return f"{code.co_code.hex()} {constants} {code.co_names} {code.co_varnames}"


def _constant(value: object) -> str:
    if isinstance(value, CodeType):
        return _bytecode(value)
    return str(sorted(map(repr, value))) if isinstance(value, frozenset) else repr(value)


def _globals(function: FunctionType) -> list[object]:
    """Plain values and functions of its own module that a function names."""
    known = [(name, function.__globals__.get(name)) for name in function.__code__.co_names]
    return [
        [name, one]
        for name, one in known
        if (isinstance(one, _PLAIN) and one is not None)
        or (inspect.isfunction(one) and one.__module__ == function.__module__)
    ]


def _content(cell: CellType) -> object:
    try:
        return cell.cell_contents
    except ValueError:  # named before it was assigned
        return None
