"""Sums that know how wrong they can be.

Norms of gradients decide how far a record is clipped, so each one carries a bound on its rounding error. The
bound is the classical one: a sum of m products, in any order and with or without fused operations, is off by
at most γ_m·Σ|terms| with γ_m = m·u/(1 − m·u), u the unit roundoff (Higham, Accuracy and Stability of
Numerical Algorithms, 2nd ed., §3.1). Long sums are cut into blocks whose totals are added in float64: m stays
small, whatever the size of a layer.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

__all__ = [
    "BLOCK", "CHUNK", "Squares", "block_dots", "block_squares", "chain", "chunks", "exact_length", "growth",
    "plain_products", "product", "rounded_down", "tiny", "underflow",
]  # fmt: skip

LONG = 2048  # terms of a matrix product left to the library, whose order of adding is its own affair
BLOCK = 512  # numbers summed in the working precision before float64 takes over
CHUNK = 2**20  # numbers in a temporary: larger ones fall out of the cache


class Squares(NamedTuple):
    """Squared norms, one a record, and bounds on the error of each (both float64)."""

    value: Tensor
    slack: Tensor

    def __add__(self, other: object) -> Squares:
        if not isinstance(other, Squares):
            return NotImplemented
        return Squares(self.value + other.value, self.slack + other.slack)

    def roots(self) -> Tensor:
        """At least the norms. A square of −∞ is a product that overflowed, and no small number."""
        most = self.value + self.slack
        return most.masked_fill(most == -math.inf, math.inf).clamp_(min=0).sqrt_()


def growth(length: int, dtype: torch.dtype) -> float:
    """γ_m of a chain of `length` roundings, with a few to spare for the operations around the chain."""
    product = (length + 16) * torch.finfo(dtype).eps / 2
    return product / (1 - product) if product < 1 else float("inf")


def tiny(numbers: int, dtype: torch.dtype) -> float:
    """What squares of `numbers` entries can lose to underflow, and far more: a floor that nobody notices."""
    return 2.0**26 * numbers * torch.finfo(dtype).tiny


def underflow(numbers: int, dtype: torch.dtype) -> float:
    """How much a sum of `numbers` products can lose to underflow: not little if it is multiplied by 10³⁰."""
    return 2 * numbers * torch.finfo(dtype).tiny


def product(a: Tensor, b: Tensor) -> Tensor:
    """a @ b, LONG terms at a time: every entry is off by at most growth(chain(terms))·Σ|terms|."""
    total = a[..., :LONG] @ b[..., :LONG, :]
    for low in range(LONG, a.shape[-1], LONG):
        total += a[..., low : low + LONG] @ b[..., low : low + LONG, :]
    return total


def chain(terms: int) -> int:
    """The roundings on the longest way through a `product`."""
    return min(terms, LONG) + terms // LONG


def chunks(count: int, each: int, limit: int = CHUNK) -> Iterator[tuple[int, int]]:
    """Ranges of records, so that `each` numbers a record stay within `limit`."""
    step = max(1, limit // max(1, each))
    for low in range(0, count, step):
        yield low, min(count, low + step)


def block_squares(x: Tensor) -> Tensor:
    """Σ_j x_ij² for a matrix x, off by at most growth(BLOCK) of itself."""
    whole = x.shape[1] // BLOCK * BLOCK
    total: Tensor = torch.linalg.vector_norm(x[:, whole:], dim=1).double().square_()
    if whole:
        blocks = torch.linalg.vector_norm(x[:, :whole].reshape(len(x), -1, BLOCK), dim=2)
        total += blocks.double().square_().sum(1)
    return total


def block_dots(x: Tensor, y: Tensor) -> Tensor:
    """Σ_j x_ij·y_ij for matrices x, y; off by at most growth(BLOCK)·Σ|x·y|. Overwrites x."""
    product = x.mul_(y)
    whole = product.shape[1] // BLOCK * BLOCK
    total = product[:, whole:].sum(1).double()
    if whole:
        total += product[:, :whole].reshape(len(x), -1, BLOCK).sum(2).double().sum(1)
    return total


def rounded_down(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Numbers of at least 0 in a shorter type, never larger than they were; 0 where it would lose digits."""
    short = x.to(dtype)
    short = torch.where(short.double() > x, torch.nextafter(short, torch.zeros_like(short)), short)
    return short.masked_fill(short < torch.finfo(dtype).tiny, 0.0)


def exact_length(x: Tensor) -> float:
    """‖x‖, accumulated in float64."""
    flat = x.detach().reshape(-1)
    parts = (part.double() for part in torch.split(flat, 2**16 if flat.is_cpu else max(1, flat.numel())))
    return math.sqrt(
        float(sum((part @ part for part in parts), start=flat.new_zeros((), dtype=torch.float64)))
    )


@contextlib.contextmanager
def plain_products(device: torch.device) -> Iterator[None]:
    """No autocast and no reduced-precision products: the bounds above assume the precision of the type."""
    precision = torch.get_float32_matmul_precision()
    try:
        if precision != "highest":
            torch.set_float32_matmul_precision("highest")
        with torch.no_grad(), torch.autocast(device.type, enabled=False):
            if device.type == "cuda":
                with torch.backends.cudnn.flags(allow_tf32=False):
                    yield
            else:
                yield
    finally:
        if precision != "highest":
            torch.set_float32_matmul_precision(precision)
