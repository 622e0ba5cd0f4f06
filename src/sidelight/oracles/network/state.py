"""What a model holds besides its graph, and whether a pass has changed it.

A model that writes into itself while it sees private records carries them out of the mechanism: a running
average, a cache, a counter. Buffers are the usual place, but a frozen parameter, a tensor or a list in an
attribute, or `.data`, which PyTorch's version counters do not see, serve as well. So everything is compared
before and after, and put back if it changed.
"""

from __future__ import annotations

import functools
import types
import warnings
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sidelight.errors import AssumptionError

__all__ = ["CHANGED", "ModelState", "kept", "silent"]

CHANGED = (
    "the model changes a buffer, a parameter or an attribute of its own when it sees records, and would "
    "carry private ones out of the mechanism. Stop it from doing so: track_running_stats=False, .eval() on "
    "that module, or keep nothing in self during forward"
)

_SKIPPED = frozenset(("_parameters", "_buffers", "_modules", "training", "forward"))
_HOOKS = ("_hooks", "_hooks_with_kwargs", "_hooks_always_called")
_SIMPLE = (type(None), bool, int, float, complex, str, bytes)
_CONTAINERS = (list, tuple, deque, set, frozenset, dict)
_DEPTH = 3  # of containers inside attributes
_MANY = 256  # entries of a container that are looked into
_WHOLE = 2**22  # numbers in tensors that are summed up at every step; of larger ones the version is compared


class ModelState:
    """The tensors and attributes of modules at one moment.

    `thorough` also copies every tensor and compares it number by number, and looks into plain objects and
    into what functions close over or name globally: for trials.
    """

    def __init__(self, *modules: Any, thorough: bool = False) -> None:
        self._modules = [m for one in modules if isinstance(one, nn.Module) for m in one.modules()]
        self._thorough = thorough
        self._tensors = [(x, *self._print(x)) for x in self._all_tensors()]
        self._attributes = [(m, dict(_attributes(m)), _frozen(dict(_attributes(m)))) for m in self._modules]
        self._functions = [*modules, *(type(m).forward for m in self._modules)] if thorough else []
        self._around = self._seen_around()
        self._undo = [_copies(values) for _, values, _ in self._attributes]

    def _all_tensors(self) -> Iterator[Tensor]:
        seen: set[int] = set()
        for module in self._modules:
            named = (*module._parameters.values(), *module._buffers.values())
            for x in (*named, *_tensors_in(dict(_attributes(module)))):
                if isinstance(x, Tensor) and id(x) not in seen and _form(x)[2] is not None:
                    seen.add(id(x))
                    yield x

    def _print(self, x: Tensor) -> tuple[int, Any, Tensor | None]:
        """Version, checksum and copy of a tensor, as far as they are wanted."""
        small = not (isinstance(x, nn.Parameter) and x.requires_grad)
        copy = x.detach().clone() if self._thorough or (small and x.numel() <= _WHOLE) else None
        return x._version, _form(x), copy

    def changed(self) -> bool:
        """Whether anything is not as it was."""
        now = list(self._all_tensors())
        if len(now) != len(self._tensors):
            return True
        for x, (old, version, form, copy) in zip(now, self._tensors, strict=True):
            if x is not old or x._version != version or _form(x) != form:
                return True
            if copy is not None and not _same(x, copy):
                return True
        if any(_frozen(dict(_attributes(m))) != before for m, _, before in self._attributes):
            return True
        return self._seen_around() != self._around

    def _seen_around(self) -> list[Any]:
        """What plain objects in attributes hold, and what functions close over or name globally."""
        if not self._thorough:
            return []
        objects = [value for m in self._modules for _, value in _attributes(m)]
        return [_inside(one, set()) for one in (*objects, *self._functions)]

    def restore(self) -> None:
        """Put back what can be put back; a tensor of which there is no copy is filled with zeros."""
        for (module, values, _), copies in zip(self._attributes, self._undo, strict=True):
            for name in [name for name, _ in _attributes(module) if name not in values]:
                del module.__dict__[name]
            module.__dict__.update(values)
            for container, content in copies:
                _refill(container, content)
        with torch.no_grad():
            for x, version, _, copy in self._tensors:
                if copy is not None and not _same(x, copy):
                    x.data.copy_(copy)
                elif copy is None and x._version != version:
                    x.data.zero_()


@contextmanager
def kept(state: ModelState) -> Iterator[None]:
    """Whatever happens inside, the model is as it was afterwards; if it had changed, that is an error."""
    try:
        yield
    finally:
        if state.changed():
            state.restore()
            raise AssumptionError(CHANGED)


@contextmanager
def silent() -> Iterator[None]:
    """No warning: one about a private value would tell of it."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        yield


def _attributes(module: nn.Module) -> Iterator[tuple[str, Any]]:
    for name, value in module.__dict__.items():
        if name not in _SKIPPED and not name.endswith(_HOOKS):
            yield name, value


def _frozen(value: Any, depth: int = 0) -> Any:
    """Something to compare with `==` that holds neither tensors nor containers."""
    if isinstance(value, _SIMPLE):
        return repr(value) if isinstance(value, float | complex) else (type(value), value)
    if isinstance(value, np.ndarray):
        return id(value), value.shape, value.tobytes() if value.dtype != object else None
    if depth <= _DEPTH and isinstance(value, dict):
        return "dict", tuple((_frozen(k, depth + 1), _frozen(v, depth + 1)) for k, v in value.items())
    if depth <= _DEPTH and isinstance(value, list | tuple | deque):
        return type(value), tuple(_frozen(one, depth + 1) for one in value)
    if depth <= _DEPTH and isinstance(value, set | frozenset):
        return type(value), frozenset(_frozen(one, depth + 1) for one in value)
    return id(value)


def _inside(value: Any, seen: set[int], depth: int = 0) -> Any:
    """What an object or a function remembers, to compare; tensors by their version and first number."""
    if isinstance(value, Tensor):
        return id(value), value._version
    if isinstance(value, _SIMPLE):
        return _frozen(value)
    if depth > _DEPTH or id(value) in seen or isinstance(value, nn.Module | type | types.ModuleType):
        return type(value)
    seen.add(id(value))
    if isinstance(value, dict):
        return [(_frozen(k), _inside(v, seen, depth + 1)) for k, v in list(value.items())[:_MANY]]
    if isinstance(value, _CONTAINERS):
        return len(value), [_inside(one, seen, depth + 1) for one in list(value)[-_MANY:]]
    if isinstance(value, functools.partial):
        return [_inside(one, seen, depth + 1) for one in (value.func, value.args, value.keywords)]
    if isinstance(value, types.MethodType):
        return [_inside(one, seen, depth + 1) for one in (value.__func__, value.__self__)]
    if isinstance(value, types.FunctionType):
        cells = [_content(cell) for cell in value.__closure__ or ()]
        named = [value.__globals__.get(name) for name in value.__code__.co_names]
        named = [one for one in named if isinstance(one, _SIMPLE + _CONTAINERS)]
        return [_inside(one, seen, depth + 1) for one in (*cells, *named)]
    return _inside(dict(vars(value)), seen, depth + 1) if hasattr(value, "__dict__") else type(value)


def _content(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # a name that was not given a value yet
        return None


def _tensors_in(value: Any, depth: int = 0) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif depth <= _DEPTH and isinstance(value, dict):
        for one in value.values():
            yield from _tensors_in(one, depth + 1)
    elif depth <= _DEPTH and isinstance(value, list | tuple | deque | set):
        for one in value:
            yield from _tensors_in(one, depth + 1)


def _copies(value: Any, depth: int = 0) -> list[tuple[Any, Any]]:
    """Containers that can be changed, with what they hold now."""
    found: list[tuple[Any, Any]] = []
    if depth <= _DEPTH and isinstance(value, dict | list | deque | set | tuple):
        if depth and not isinstance(value, tuple):
            found.append((value, value.copy()))
        for one in value.values() if isinstance(value, dict) else value:
            found.extend(_copies(one, depth + 1))
    elif isinstance(value, np.ndarray):
        found.append((value, value.copy()))
    return found


def _refill(container: Any, content: Any) -> None:
    if isinstance(container, np.ndarray):
        container[...] = content
        return
    container.clear()
    add: Callable[[Any], Any] = container.extend if isinstance(container, list | deque) else container.update
    add(content)


def _form(x: Tensor) -> Any:
    try:
        return id(x), x.shape, x.data_ptr()
    except (RuntimeError, NotImplementedError):  # sparse, or left behind by torch.func
        return id(x), x.shape, None


def _same(x: Tensor, copy: Tensor) -> bool:
    """Bit for bit, where NaN is equal to itself."""
    if torch.equal(x.detach(), copy):
        return True
    return bool(torch.isclose(x.detach(), copy, rtol=0.0, atol=0.0, equal_nan=True).all())
