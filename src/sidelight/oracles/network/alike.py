"""Whether a content is what it was."""

from __future__ import annotations

import operator
from collections import deque
from typing import Any

import numpy as np
import torch
from torch import Tensor

__all__ = ["SIMPLE", "alike", "same"]

SIMPLE = (
    type(None), bool, int, float, complex, str, bytes, range, slice, torch.dtype, torch.device, torch.Size,
    np.generic, np.dtype, np.ufunc,
)  # fmt: skip
_DEPTH = 4  # of containers that are compared by content


def alike(now: Any, before: Any) -> bool:
    """Whether a content is what it was: the same things, or equal numbers and texts in their place."""
    if isinstance(before, dict):
        if len(now) != len(before):
            return False
        if all(map(operator.is_, now.values(), before.values())) and all(map(operator.is_, now, before)):
            return True
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
    if isinstance(a, float | complex | np.generic):
        return repr(a) == repr(b)
    if isinstance(a, SIMPLE):
        return bool(a == b)
    if isinstance(a, dict):  # in the same order: a cache may keep the last one last
        keys = len(a) == len(b) and all(same(x, y, depth + 1) for x, y in zip(a, b, strict=True))
        return keys and all(same(x, y, depth + 1) for x, y in zip(a.values(), b.values(), strict=True))
    if isinstance(a, list | tuple | deque):
        return len(a) == len(b) and all(same(x, y, depth + 1) for x, y in zip(a, b, strict=True))
    if isinstance(a, set | frozenset):
        identities = set(map(id, b))
        return len(a) == len(b) and all(id(x) in identities or (_simple(x) and x in b) for x in a)
    if isinstance(a, np.ndarray):  # an array of objects: by which objects they are
        return bool(a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes())
    if isinstance(a, Tensor):  # states of generators
        return a.dtype == torch.uint8 and a.shape == b.shape and bool(torch.equal(a, b))
    return False


def _simple(x: Any) -> bool:
    return isinstance(x, SIMPLE)
