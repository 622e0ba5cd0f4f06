"""The number types in which a private sum is held and noise is added: float64 and float32, and no other.

Noise that is cast to integers, or rounded to half precision, is not the Gaussian that was accounted: a count
of 0 plus N(0, 100²) truncated towards 0 stays 0 twice as often as a count of 1 becomes 0. What can be
converted without moving two neighbouring sums further apart is converted; the rest is refused by its type,
never by what it contains.
"""

from __future__ import annotations

import math
import sys
from typing import TYPE_CHECKING, Any, TypeAlias, TypeGuard

import numpy as np

from sidelight.arrays import Floats
from sidelight.errors import InputError

if TYPE_CHECKING:
    import torch

__all__ = ["Value", "as_floats", "finite", "is_tensor", "on_host"]

Value: TypeAlias = Any  # an array or a tensor: noise is added to either by what both can do
_EXACT = 2**53  # whole numbers up to this are exact in float64
_SMALL = ("bool", "int8", "int16", "int32", "uint8", "uint16", "uint32")


def as_floats(value: object) -> Value:
    """A private value as an array or a tensor of float64 or float32.

    Whole numbers and truth values become float64, limited to ±2⁵³, which is exact and brings no two values
    further apart; float16 and bfloat16 become float32, which is exact. Tensors are detached. Complex numbers,
    long doubles, floats of 8 bits, masked arrays, objects, texts, lists and sparse tensors are refused.
    """
    if is_tensor(value):
        return _tensor(value)
    if isinstance(value, int | float) and not isinstance(value, np.generic):
        return np.asarray(float(min(max(value, -_EXACT), _EXACT)) if isinstance(value, int) else value)
    if not isinstance(value, np.ndarray | np.generic) or isinstance(value, np.ma.MaskedArray):
        raise _refused(type(value).__name__)
    array = np.asarray(value)  # a subclass may define arithmetic of its own
    if array.dtype in (np.float64, np.float32):
        return array
    if array.dtype == np.float16:
        return array.astype(np.float32)
    if array.dtype == np.bool_:
        return array.astype(np.float64)
    if array.dtype.kind in "iu":
        low, high = (_EXACT * sign if array.dtype.itemsize == 8 else None for sign in (-1, 1))
        low = 0 if array.dtype.kind == "u" and low is not None else low
        return (array if high is None else np.clip(array, low, high)).astype(np.float64)
    raise _refused(f"an array of {array.dtype}")


def _tensor(value: torch.Tensor) -> torch.Tensor:
    import torch

    if value.layout is not torch.strided or value.is_quantized or value.is_nested or value.is_meta:
        raise _refused("a sparse, quantized, nested or meta tensor")
    value = value.detach()
    if value.dtype in (torch.float64, torch.float32):
        return value
    if value.dtype in (torch.float16, torch.bfloat16):
        return value.to(torch.float32)
    if value.dtype == torch.int64:
        return value.clamp(-_EXACT, _EXACT).to(torch.float64)
    if value.dtype == torch.uint64:  # which has neither clamp nor comparisons
        signed = value.view(torch.int64)
        return torch.where((signed < 0) | (signed > _EXACT), _EXACT, signed).to(torch.float64)
    if str(value.dtype).removeprefix("torch.") in _SMALL:
        return value.to(torch.float64)
    raise _refused(f"a tensor of {value.dtype}")


def _refused(what: str) -> InputError:
    return InputError(
        f"a private sum is an array or a dense tensor of float64, float32 or whole numbers, not {what}: "
        "noise must be added in floating point. Convert it first"
    )


def is_tensor(value: object) -> TypeGuard[torch.Tensor]:
    """Whether it is a tensor of PyTorch, without importing PyTorch."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def finite(value: Value) -> Value:
    """The value with 0 in place of NaN and infinities.

    Oracles answer with finite sums. If one did not, its sensitivity would be a false claim; what can still be
    prevented is that NaN is handed out as it is.
    """
    with np.errstate(all="ignore"):
        if math.isfinite(float(value.sum())):  # one pass and no copy; a sum that overflows is looked at again
            return value
    if is_tensor(value):
        return value.nan_to_num(nan=0.0, posinf=0.0, neginf=0.0)
    return np.nan_to_num(value, nan=0.0, posinf=0.0, neginf=0.0)


def on_host(value: Value) -> Floats:
    """The value as a float64 array in main memory."""
    return np.asarray(value.cpu() if is_tensor(value) else value, dtype=np.float64)
