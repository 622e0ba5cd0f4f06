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
from types import CodeType, FunctionType, MethodType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import ConcatDataset, Subset, TensorDataset

__all__ = ["code_of", "fingerprints", "without_addresses"]

_PLAIN = (bool, int, float, complex, str, bytes, type(None))


def without_addresses(value: Any) -> str:
    """repr, without the places in memory that no other process would have."""
    return re.sub(r" at 0x[0-9a-fA-F]+", "", repr(value))


def fingerprints(things: Mapping[str, Any], *, key: bytes) -> dict[str, str]:
    """A keyed digest of each: of code, of a dataset, of tensors. It is private where the thing is."""
    found = {}
    for name, thing in things.items():
        digest = hashlib.blake2b(key=key, person=b"sidelight run", digest_size=16)
        for part in _data(thing) if _is_data(thing) else [code_of(thing).encode()]:
            digest.update(f"{len(part)}:".encode())
            digest.update(part)
        found[name] = digest.hexdigest()
    return found


def _is_data(thing: Any) -> bool:
    return isinstance(thing, Tensor | TensorDataset | Subset | ConcatDataset) or (
        hasattr(thing, "__getitem__") and hasattr(thing, "__len__") and not isinstance(thing, nn.Module)
    )


def _data(dataset: Any) -> Iterator[bytes]:
    """The bytes of tensors; of another dataset its type and its length, since to read it may take hours."""
    if isinstance(dataset, Tensor):
        array = dataset.detach().cpu().contiguous()
        yield f"{array.dtype}{tuple(array.shape)}".encode()
        if array.numel():
            yield array.reshape(-1).view(torch.uint8).numpy().tobytes()
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
        yield f"{type(dataset).__module__}.{type(dataset).__qualname__} {len(dataset)}".encode()


def code_of(thing: Any, *, _seen: frozenset[int] = frozenset()) -> str:
    """What a callable does, as text: the same for the same code and settings."""
    if isinstance(thing, _PLAIN):
        return repr(thing)
    if id(thing) in _seen or len(_seen) > 30:
        return "again"
    again = functools.partial(code_of, _seen=_seen | {id(thing)})
    match thing:
        case FunctionType():
            cells = [_content(cell) for cell in thing.__closure__ or ()]
            parts = [thing.__defaults__, thing.__kwdefaults__, cells, _globals(thing)]
            return f"{_bytecode(thing.__code__)} with {again(parts)}"
        case MethodType():
            return f"{again(thing.__func__)} of {again(thing.__self__)}"
        case functools.partial():
            return again([thing.func, list(thing.args), thing.keywords])
        case list() | tuple():
            return str([again(one) for one in thing])
        case dict():
            return str([(str(name), again(one)) for name, one in thing.items()])
        case type():
            own = [value for value in vars(thing).values() if isinstance(value, FunctionType)]
            name = f"{thing.__module__}.{thing.__qualname__}"
            return name if _is_torch(thing) else f"{name} {again(own)}"
        case nn.Module():
            kinds = dict.fromkeys(type(module) for module in thing.modules() if not _is_torch(type(module)))
            shapes = [(name, tuple(p.shape)) for name, p in thing.named_parameters()]
            return f"{without_addresses(thing)} {shapes} {again(list(kinds))}"
        case Tensor() | np.ndarray():
            return f"array of shape {tuple(thing.shape)}"
    settings = {name: value for name, value in getattr(thing, "__dict__", {}).items() if value is not thing}
    return f"{again(type(thing))} {again(settings)}" if settings else without_addresses(thing)


def _bytecode(code: CodeType) -> str:
    constants = [_bytecode(one) if isinstance(one, CodeType) else repr(one) for one in code.co_consts]
    return f"{code.co_code.hex()} {constants} {code.co_names} {code.co_varnames}"


def _globals(function: FunctionType) -> list[Any]:
    """Plain values and functions of its own module that a function names."""
    known = [(name, function.__globals__.get(name)) for name in function.__code__.co_names]
    mine = [
        (name, one)
        for name, one in known
        if isinstance(one, _PLAIN)
        or (inspect.isfunction(one) and one.__module__ == function.__module__ and one is not function)
    ]
    return [list(pair) for pair in mine if pair[1] is not None]


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # named before it was assigned
        return None


def _is_torch(kind: type) -> bool:
    return kind.__module__.split(".")[0] == "torch"
