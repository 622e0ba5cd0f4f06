"""User code that is given private records one at a time: nothing of one call is left for the next.

`collate` and `augment` see a private record alone, but a function may remember: the longest record so far, a
running mean, how far a generator has moved. `CallState` puts back what a call has left in attributes,
closures, defaults, globals and containers; `reseed` gives each record random numbers of its own, which
depend neither on how many records came before it nor on how many numbers these drew.
"""

from __future__ import annotations

import functools
import hashlib
import random
import types
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

__all__ = ["FAILURES", "CallState", "record_seed", "reseed"]

FAILURES = (Exception, SystemExit)  # of a private record, which then is null; an interrupt is the user's

_DEPTH = 4  # of containers and objects in each other
_MANY = 256  # entries of a container that are looked into
_LARGE = 2**22  # numbers of a tensor of which a copy is kept
_ARRAY = 2**16  # numbers of an array that is compared after every call
_PLAIN = (type(None), bool, int, float, complex, str, bytes, types.ModuleType, type)
_ABSENT = object()


def record_seed(secret: int, number: int) -> int:
    """The seed of one record, which tells nothing about those of the others."""
    digest = hashlib.blake2b(f"{secret} {number}".encode(), digest_size=8)
    return int.from_bytes(digest.digest(), "big")


def reseed(seed: int) -> None:
    """Let PyTorch's, NumPy's and Python's generators begin here. (`torch.manual_seed` takes 0.4 ms.)"""
    torch.default_generator.manual_seed(seed % 2**63)
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.manual_seed_all(seed % 2**63)
    np.random.seed(seed >> 32)
    random.seed(seed)


class CallState:
    """What a callable holds now; `restore` puts it back.

    Not looked into: datasets, modules of Python, containers of more than 256 entries, large arrays.
    """

    def __init__(self, call: Any) -> None:
        self._undo: list[Callable[[], None]] = []
        self._seen: dict[int, Any] = {}
        package = str(getattr(call, "__module__", type(call).__module__)).split(".")[0]
        self._walk(call, 0, package)
        self._seen.clear()

    def restore(self) -> None:
        """After a private record: as if it had not been there."""
        for undo in self._undo:
            undo()

    def _walk(self, value: Any, depth: int, package: str) -> None:
        if isinstance(value, (*_PLAIN, Dataset)) or depth > _DEPTH or id(value) in self._seen:
            return
        self._seen[id(value)] = value
        inner: list[Any] = []
        match value:
            case Tensor() | np.ndarray():
                undo = _undo_tensor(value) if isinstance(value, Tensor) else _undo_array(value)
                self._undo.extend([undo] if undo is not None else [])
            case list() | dict() | set() | deque():
                if len(value) > _MANY:
                    return
                self._undo.append(_undo_container(value))
                inner = list(value.values()) if isinstance(value, dict) else list(value)
            case tuple() | frozenset():
                inner = list(value)[:_MANY]
            case types.MethodType():
                inner = [value.__func__, value.__self__]
            case functools.partial():
                inner = [value.func, value.args, value.keywords]
            case types.FunctionType():
                inner = self._function(value, package)
            case _:
                inner = self._object(value)
        depth = -1 if isinstance(value, nn.Module) else depth  # modules in modules, as deep as they are
        for one in inner:
            self._walk(one, depth + 1, package)

    def _function(self, function: types.FunctionType, package: str) -> list[Any]:
        inner: list[Any] = [function.__defaults__, function.__kwdefaults__, vars(function)]
        for cell in function.__closure__ or ():
            content = _content(cell)
            self._undo.append(functools.partial(_set_cell, cell, content))
            inner.append(content)
        space = function.__globals__
        for name in _names(function.__code__):
            value = space.get(name, _ABSENT)
            if isinstance(value, types.FunctionType):
                inner.extend([value] if value.__module__.split(".")[0] == package else [])
            elif not isinstance(value, types.ModuleType | type | types.BuiltinFunctionType):
                self._undo.append(functools.partial(_set_entry, space, name, value))
                inner.append(value)
        return inner

    def _object(self, value: Any) -> list[Any]:
        kind = type(value)
        code = [getattr(kind, name, None) for name in ("__call__", "forward")]
        if kind.__module__ not in ("builtins", "torch") and not isinstance(value, nn.Module):
            for name, one in vars(kind).items():
                if not name.startswith("__") and not callable(one) and not hasattr(one, "__get__"):
                    self._undo.append(functools.partial(_set_attribute, kind, name, one))
                    code.append(one)
        return [*code, getattr(value, "__dict__", None)]


def _names(code: types.CodeType) -> set[str]:
    """Global names of a function and of those defined in it."""
    inner = [one for one in code.co_consts if isinstance(one, types.CodeType)]
    return set(code.co_names).union(*map(_names, inner))


def _content(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # a name that was not given a value yet
        return _ABSENT


def _set_cell(cell: types.CellType, content: Any) -> None:
    if _content(cell) is content:
        return
    if content is _ABSENT:
        del cell.cell_contents
    else:
        cell.cell_contents = content


def _set_entry(space: dict[str, Any], name: str, value: Any) -> None:
    if space.get(name, _ABSENT) is value:
        return
    if value is _ABSENT:
        del space[name]
    else:
        space[name] = value


def _set_attribute(kind: type, name: str, value: Any) -> None:
    if vars(kind).get(name, _ABSENT) is not value:
        setattr(kind, name, value)


def _undo_container(value: Any) -> Callable[[], None]:
    content = value.copy()

    def undo() -> None:
        if isinstance(value, dict):
            if value.keys() != content.keys() or any(value[key] is not one for key, one in content.items()):
                value.clear()
                value.update(content)
        elif len(value) != len(content) or any(a is not b for a, b in zip(value, content, strict=True)):
            value.clear()
            (value.update if isinstance(value, set) else value.extend)(content)

    return undo


def _undo_tensor(value: Tensor) -> Callable[[], None] | None:
    """A tensor that is too large to copy is emptied if it was written to: rather useless than telling."""
    if value.layout is not torch.strided or value.is_meta or value.is_quantized or value.is_nested:
        return None
    version = value._version
    copy = value.detach().clone() if value.numel() <= _LARGE else None

    def undo() -> None:
        with torch.no_grad():
            if copy is None:
                if value._version != version:
                    value.data.zero_()
            elif value.shape != copy.shape:
                value.data = copy.clone()
            elif value._version != version or (value.numel() <= _ARRAY and not torch.equal(value, copy)):
                value.data.copy_(copy)

    return undo


def _undo_array(value: np.ndarray[Any, Any]) -> Callable[[], None] | None:
    if value.size > _ARRAY or value.dtype == object or not value.flags.writeable:
        return None
    copy = value.copy()

    def undo() -> None:
        value[...] = copy

    return undo
