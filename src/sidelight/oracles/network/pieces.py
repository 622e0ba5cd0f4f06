"""The gradients of all records for one parameter, not written out, and norms that are never too small.

A `Piece` stands for n gradients G_1 … G_n of one parameter. It answers what a clipped sum needs:

    squares       ‖s∘(G_i − O)‖² for every record, with a bound on its rounding error
    add_weighted  Σ c_i G_i
    inner         ⟨G_i, D⟩ for every record
    rows          a few G_i, written out

`Rows` holds small gradients as they are. `Outer` is Σ_t L_t ⊗ R_t, the output gradients and the inputs of a
layer at T positions: T = 1 for a plain layer, the sequence or the pixels otherwise, times the augmentations.
Its norm comes from two Gram matrices, ‖Σ_t L_t⊗R_t‖² = Σ_ts ⟨L_t,L_s⟩⟨R_t,R_s⟩, or from the rows, a few at a
time: whichever is less work at that shape. Around an origin the first expands the square, which cancels when
G_i is near O; `slack` covers it. `Convolution` is an outer product over patches, `Sparse` a few rows of an
embedding table for each record.

Norms of gradients decide how far a record is clipped, so each one carries a bound on its rounding error. The
bound is the classical one: a sum of m products, in any order and with or without fused operations, is off by
at most γ_m·Σ|terms| with γ_m = m·u/(1 − m·u), u the unit roundoff (Higham, Accuracy and Stability of
Numerical Algorithms, 2nd ed., §3.1). Long sums are cut into blocks whose totals are added in float64: m stays
small, whatever the size of a layer.
"""

from __future__ import annotations

import contextlib
import functools
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from functools import partial
from math import prod
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional, grad

LONG = 2048  # terms of a matrix product left to the library, whose order of adding is its own affair
BLOCK = 512  # numbers summed in the working precision before float64 takes over
THIN = 8  # columns of a matrix of gradients that a library multiplies slowly
CHUNK = 2**20  # numbers in a temporary: larger ones fall out of the cache


class ClipCenter(NamedTuple):
    """Where and how norms are taken: the origin O, the scale s of one parameter, and ‖s∘O‖."""

    origin: Tensor | None = None
    scale: Tensor | None = None
    length: float = 0.0

    @classmethod
    def at(cls, origin: Tensor | None, scale: Tensor | None) -> ClipCenter:
        if origin is None:
            return cls(None, scale)
        return cls(origin, scale, exact_length(origin if scale is None else origin * scale))


class Piece(ABC):
    """n gradients of one parameter."""

    count: int
    shape: torch.Size
    dtype: torch.dtype

    @property
    def size(self) -> int:
        return self.shape.numel()

    @property
    @abstractmethod
    def held(self) -> int:
        """Numbers kept in memory for each record."""

    @abstractmethod
    def rows(self, low: int, high: int) -> Tensor:
        """The gradients of records low … high − 1, one per row, flat."""

    @abstractmethod
    def row_error(self, scale: Tensor | None) -> Tensor:
        """By how much, in ‖s∘·‖, `rows` can differ from what `add_weighted` adds up."""

    @abstractmethod
    def inner(self, direction: Tensor) -> Tensor:
        """⟨G_i, D⟩ (float64)."""

    @abstractmethod
    def add_weighted(self, factors: Tensor, out: Tensor) -> None:
        """out += Σ c_i G_i, in the type of `out`."""

    @abstractmethod
    def silence(self, records: Tensor) -> None:
        """Make the gradients of these records (a mask) zero: they are not finite, and NaN times 0 is NaN."""

    def squares(self, around: ClipCenter) -> Squares:
        """‖s∘(G_i − O)‖² from written-out rows: the subtraction is exact to a rounding of the difference."""
        parts = []
        for low, high in chunks(self.count, self.size):
            difference = self.rows(low, high)
            if around.origin is not None:
                difference = difference - around.origin.reshape(-1)
            if around.scale is not None:
                difference = difference * around.scale.reshape(-1)
            parts.append(block_squares(difference))
        value, error = joined_parts(parts), self.row_error(around.scale)
        slack = growth(BLOCK, self.dtype) * value + 2 * value.sqrt() * error + error.square()
        return Squares(value, slack.add_(tiny(self.size, self.dtype)))

    def settled(self) -> Piece:
        """Written out, if that takes no more memory than what stands for it."""
        if self.size > self.held:
            return self
        rows = torch.empty(0)
        for low, high in chunks(self.count, self.size):
            some = self.rows(low, high)
            if high - low == self.count and some.untyped_storage().nbytes() == some.nbytes:
                return Rows(some, self.shape)  # memory of its own
            rows = some.new_empty(self.count, self.size) if low == 0 else rows
            rows[low:high] = some
        return Rows(rows, self.shape)


class Rows(Piece):
    """Gradients written out; these very numbers are what is summed, so they have no error."""

    def __init__(self, rows: Tensor, shape: torch.Size) -> None:
        self.count, self.shape, self.dtype = rows.shape[0], shape, rows.dtype
        flat = rows.dim() == 2 and rows.shape[1] == shape.numel()
        self._rows = rows if flat else rows.reshape(self.count, shape.numel())

    @property
    def held(self) -> int:
        return self.size

    def settled(self) -> Piece:
        return self

    def rows(self, low: int, high: int) -> Tensor:
        return self._rows if high - low == self.count else self._rows[low:high]

    def silence(self, records: Tensor) -> None:
        self._rows = self._rows.masked_fill(records[:, None], 0.0)

    def row_error(self, scale: Tensor | None) -> Tensor:
        return self._rows.new_zeros(self.count, dtype=torch.float64)

    def inner(self, direction: Tensor) -> Tensor:
        return (self._rows @ direction.reshape(-1).to(self.dtype)).double()

    def add_weighted(self, factors: Tensor, out: Tensor) -> None:
        flat, weights = out.view(-1), factors.to(out.dtype)
        if out.dtype == self.dtype:
            flat.addmv_(self._rows.T, weights)
            return
        for low, high in chunks(self.count, self.size):
            flat.addmv_(self._rows[low:high].to(out.dtype).T, weights[low:high])

    def plus(self, other: Rows) -> Rows:
        return Rows(self._rows + other._rows, self.shape)


class Outer(Piece):
    """G_i = Σ_t L_it ⊗ R_it, for L (n × T × p) and R (n × T × q); of one position also n × p and n × q."""

    def __init__(self, left: Tensor, right: Tensor, shape: torch.Size) -> None:
        self._left, self._right, self.shape, self.dtype = left, right, shape, left.dtype
        self.count, self.steps = left.shape[0], left.shape[1] if left.dim() > 2 else 1
        self.groups, self.p, self.q = 1, left.shape[-1], right.shape[-1]

    @property
    def left(self) -> Tensor:
        """L, of three dimensions."""
        return self._left if self._left.dim() > 2 else self._left[:, None]

    @property
    def right(self) -> Tensor:
        """R, of three dimensions."""
        return self._right if self._right.dim() > 2 else self._right[:, None]

    @property
    def vectors(self) -> tuple[Tensor, Tensor]:
        """L and R of one position, of two dimensions."""
        left, right = self._left, self._right
        return (left, right) if left.dim() == 2 else (left[:, 0], right[:, 0])

    @property
    def held(self) -> int:
        return self.steps * (self.p + self.q)

    @property
    def inner_chain(self) -> int:
        """Roundings on the way through `inner`, before the blocks of its dot product."""
        return chain(max(self.p, self.q))

    def silence(self, records: Tensor) -> None:
        self._left = self.left.masked_fill(records[:, None, None], 0.0)
        self._right = self.right.masked_fill(records[:, None, None], 0.0)

    def factors(self, low: int, high: int) -> tuple[Tensor, Tensor]:
        """L and R of some records, as (records, groups, T, ·)."""
        return self.left[low:high, None], self.right[low:high, None]

    def squared(self) -> Outer:
        """The piece of L² and R², entry by entry."""
        return Outer(self.left.square(), self.right.square(), self.shape)

    def rows(self, low: int, high: int) -> Tensor:
        left, right = self.factors(low, high)
        if self.q <= THIN < self.p and self.p % 16 == 0 and left.stride(-1) == 1:
            # Long and thin: this takes a third of the time. Where p fills no registers, or L is transposed,
            # a library gives a record's bits by its place.
            turned = right.transpose(-1, -2) @ left
            return turned.transpose(-1, -2).reshape(high - low, self.size)
        return (left.transpose(-1, -2) @ right).reshape(high - low, self.size)

    def row_error(self, scale: Tensor | None) -> Tensor:
        return growth(self.steps, self.dtype) * self.spread(scale)

    def spread(self, scale: Tensor | None = None) -> Tensor:
        """At least Σ_t ‖s∘(L_t ⊗ R_t)‖: what rounding errors are in proportion to."""
        if scale is not None:
            return (self.steps * self.groups * self.squared().inner(scale.square())).clamp_(min=0).sqrt_()
        parts = []
        for low, high in self._chunks():
            left, right = (_lengths(factor) for factor in self.factors(low, high))
            parts.append((left * right).sum((1, 2)))
        return torch.cat(parts)

    def inner(self, direction: Tensor) -> Tensor:
        """Σ_t L_tᵀ D R_t, from the side that leaves the shorter vectors."""
        matrix, parts = direction.reshape(self.p, self.q).to(self.dtype), []
        first, second, width = self.left, self.right, self.q
        if self.p < self.q:
            first, second, matrix, width = self.right, self.left, matrix.T, self.p
        for low, high in chunks(self.count, self.steps * width, 4 * CHUNK):
            moved = product(first[low:high].flatten(0, 1), matrix)
            dots = block_dots(moved, second[low:high].reshape(-1, width))
            parts.append(dots.view(high - low, self.steps).sum(1))
        return torch.cat(parts)

    def add_weighted(self, factors: Tensor, out: Tensor) -> None:
        if self.steps == 1:
            (left, right), weights = self.vectors, factors[:, None]
        else:
            left, right, weights = self.left, self.right, factors[:, None, None]
        if out.dtype != self.dtype:
            left, right, weights = left.to(out.dtype), right.to(out.dtype), weights.to(out.dtype)
        if self.p < self.q:
            left = left * weights
        else:
            right = right * weights
        out.view(self.p, self.q).addmm_(left.reshape(-1, self.p).T, right.reshape(-1, self.q))

    def squares(self, around: ClipCenter) -> Squares:
        written_out = self.steps * (self.p + self.q) >= self.p * self.q
        if written_out or (around.scale is not None and self.steps * self.groups > 1):
            return super().squares(around)
        own = self.own_squares(around.scale)
        if around.origin is None:
            return own
        gamma = growth(BLOCK + self.inner_chain, self.dtype)
        return expand(own, self.inner, self.spread_of(own, around.scale), around, gamma)

    def own_squares(self, scale: Tensor | None = None) -> Squares:
        """‖s∘G_i‖²; with a scale, for one position only."""
        gamma = growth(BLOCK + chain(self.p) + self.inner_chain + self.steps, self.dtype)
        floor = tiny(self.size, self.dtype)
        if self.steps * self.groups == 1:
            value, lost = self._products()
            if scale is not None:
                largest = float(scale.abs().max())
                lost = (1 + largest**2) * (lost + underflow(1, self.dtype) * value)
                value = self.squared().inner(scale.square())
            return Squares(value, gamma * value + lost + floor)
        values, slacks = zip(*(self._grams(low, high, gamma) for low, high in self._chunks()), strict=True)
        return Squares(torch.cat(values), torch.cat(slacks) + floor)

    def spread_of(self, own: Squares, scale: Tensor | None) -> Tensor:
        """`spread`, which is the norm itself where there is one position only."""
        if self.steps * self.groups == 1:
            return (own.value + own.slack).sqrt()
        return self.spread(scale)

    def _products(self) -> tuple[Tensor, Tensor]:
        """‖L‖²‖R‖² at one position, and what the underflow of either factor takes from it."""
        values, lost = [], []
        a, b = underflow(self.p, self.dtype), underflow(self.q, self.dtype)
        for low, high in self._chunks():
            left, right = (block_squares(factor.flatten(1)) for factor in self.factors(low, high))
            values.append(left * right)
            lost.append(a * right + b * left + a * b)
        return joined_parts(values), joined_parts(lost)

    def _grams(self, low: int, high: int, gamma: float) -> tuple[Tensor, Tensor]:
        """Σ_ts ⟨L_t,L_s⟩⟨R_t,R_s⟩, and a bound on its error: with one factor at a time replaced by the
        largest value that it can have, γ of the other and what the other can lose to underflow."""
        left, right = self.factors(low, high)
        first, second = (product(factor, factor.transpose(-1, -2)) for factor in (left, right))
        value = (first * second).sum(-1).double().sum((1, 2))
        slack = torch.zeros_like(value)
        a, b = underflow(self.p, self.dtype), underflow(self.q, self.dtype)
        for gram, lost, other, more in ((first, a, second, b), (second, b, first, a)):
            lengths = (other.diagonal(dim1=-2, dim2=-1).clamp(min=0) + more).sqrt()[..., None]
            slack += gamma * ((gram.abs() @ lengths) * lengths).double().sum((1, 2, 3))
            slack += lost * lengths.double().sum(2).square().sum((1, 2))
        return value, slack

    def _chunks(self) -> list[tuple[int, int]]:
        return list(chunks(self.count, self.groups * self.steps * max(self.steps, self.p + self.q)))


def expand(
    own: Squares, inner: Callable[[Tensor], Tensor], spread: Tensor, around: ClipCenter, gamma: float
) -> Squares:
    """‖s∘(G − O)‖² = ‖s∘G‖² − 2⟨G, s²∘O⟩ + ‖s∘O‖², and what the difference can lose."""
    if around.origin is None:
        return own
    pulled = around.origin if around.scale is None else around.origin * around.scale.square()
    length = around.length
    value = own.value - 2 * inner(pulled) + length**2
    return Squares(value, own.slack + gamma * (2 * spread * length + length**2))


def _lengths(factor: Tensor) -> Tensor:
    """At least the length of each of the vectors in the last dimension (float64)."""
    squares = block_squares(factor.reshape(-1, factor.shape[-1])) + underflow(factor.shape[-1], factor.dtype)
    return squares.sqrt_().view(factor.shape[:-1])


# ---------------------------------------------------------------------------------------------------
# an embedding table: a few rows of it for each record


class Sparse(Piece):
    """G_i has the vectors `values[i]` in the rows `index[i]` of the table, and zeros elsewhere.

    A token that occurs twice in a record adds up in one slot, so the rows of one record are distinct. Slots
    that this leaves empty hold zeros, and are marked by a `used` of 0.
    """

    def __init__(self, index: Tensor, values: Tensor, shape: torch.Size) -> None:
        self.count, self.shape, self.dtype = index.shape[0], shape, values.dtype
        order = index.argsort(dim=1, stable=True)
        ordered = index.gather(1, order)
        slot = torch.zeros_like(ordered)
        slot[:, 1:] = (ordered[:, 1:] != ordered[:, :-1]).cumsum(1)
        values = values.gather(1, order[..., None].expand(values.shape))
        self.values = torch.zeros_like(values).scatter_add_(1, slot[..., None].expand(values.shape), values)
        self.index = torch.zeros_like(index).scatter_(1, slot, ordered)
        self.used = torch.zeros_like(index, dtype=values.dtype).scatter_(1, slot, 1.0)

    @property
    def held(self) -> int:
        return self.values[0].numel() if self.count else 0

    def settled(self) -> Piece:
        return self  # the sparse form is the smaller one, but for tables of a few rows

    def rows(self, low: int, high: int) -> Tensor:
        table = self.values.new_zeros(high - low, *self.shape)
        slot = self.index[low:high, :, None].expand(self.values[low:high].shape)
        return table.scatter_add_(1, slot, self.values[low:high]).flatten(1)

    def row_error(self, scale: Tensor | None) -> Tensor:
        return self.values.new_zeros(self.count, dtype=torch.float64)

    def silence(self, records: Tensor) -> None:
        self.values = self.values.masked_fill(records[:, None, None], 0.0)

    def spread(self) -> Tensor:
        """‖G_i‖, and a little more."""
        return block_squares(self.values.flatten(1)).sqrt_() * (1 + growth(BLOCK, self.dtype))

    def inner(self, direction: Tensor) -> Tensor:
        parts = []
        for low, high in chunks(self.count, self.held):
            picked = direction[self.index[low:high]].to(self.dtype)
            parts.append(block_dots(picked.flatten(1), self.values[low:high].flatten(1)))
        return torch.cat(parts)

    def add_weighted(self, factors: Tensor, out: Tensor) -> None:
        for low, high in chunks(self.count, self.held):
            scaled = self.values[low:high].to(out.dtype) * factors[low:high, None, None].to(out.dtype)
            out.index_add_(0, self.index[low:high].flatten(), scaled.flatten(0, 1))

    def squares(self, around: ClipCenter) -> Squares:
        """‖s∘(G_i − O)‖², from the rows of O that a record touches and the length of all others."""
        touched, others = [], []
        for low, high in chunks(self.count, self.held):
            index, difference = self.index[low:high], self.values[low:high]
            scale = None if around.scale is None else around.scale[index]
            if around.origin is not None:
                picked = around.origin[index] * self.used[low:high, :, None]
                difference = difference - picked
                others.append(block_squares((picked if scale is None else picked * scale).flatten(1)))
            touched.append(block_squares((difference if scale is None else difference * scale).flatten(1)))
        value, whole = torch.cat(touched), around.length**2
        slack = growth(BLOCK, self.dtype) * (value + whole) + tiny(self.size, self.dtype)
        return Squares(value + (whole - torch.cat(others)) if others else value, slack)


# ---------------------------------------------------------------------------------------------------
# a convolution: an outer product over patches, most of it done by convolutions


_FORWARD = {1: functional.conv1d, 2: functional.conv2d, 3: functional.conv3d}
_WEIGHT: dict[int, Callable[..., Tensor]] = {
    1: grad.conv1d_weight,
    2: grad.conv2d_weight,
    3: grad.conv3d_weight,
}


class WindowGeometry(NamedTuple):
    """How the kernel moves."""

    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int


class Convolution(Outer):
    """L_t is the output gradient at pixel t, R_t the patch below it.

    Patches are copied out only for a few records at a time, and only for norms: inner products with a kernel
    are a convolution with it, and the weighted sum is the ordinary weight gradient of weighted outputs.
    """

    def __init__(
        self, slopes: Tensor, image: Tensor, shape: torch.Size, move: WindowGeometry, count: int
    ) -> None:
        self.slopes, self.image, self.shape, self.move, self.count = slopes, image, shape, move, count
        self.dtype, self.groups = slopes.dtype, move.groups
        self.copies = image.shape[0] // count
        self.pixels = prod(slopes.shape[2:])
        self.steps = self.copies * self.pixels
        self.p, self.q = shape[0] // move.groups, prod(shape[1:])

    @property
    def held(self) -> int:
        return (self.slopes.numel() + self.image.numel()) // self.count

    @property
    def inner_chain(self) -> int:
        return self.q  # the terms of a convolution are added in an order of its own

    def silence(self, records: Tensor) -> None:
        images = records.repeat_interleave(self.copies).view(-1, *[1] * (self.slopes.dim() - 1))
        self.slopes = self.slopes.masked_fill(images, 0.0)
        self.image = self.image.masked_fill(images, 0.0)

    def factors(self, low: int, high: int) -> tuple[Tensor, Tensor]:
        some = slice(low * self.copies, high * self.copies)
        left = self.slopes[some].reshape(-1, self.groups, self.p, self.pixels)
        right = self._patches(self.image[some]).reshape(-1, self.groups, self.q, self.pixels)
        return self._by_record(left, high - low), self._by_record(right, high - low)

    def _by_record(self, factor: Tensor, records: int) -> Tensor:
        """(images, groups, ·, pixels) → (records, groups, copies × pixels, ·)."""
        if self.copies == 1:
            return factor.transpose(-1, -2)
        moved = factor.view(records, self.copies, *factor.shape[1:]).permute(0, 2, 1, 4, 3)
        return moved.reshape(records, self.groups, self.steps, -1)

    def _patches(self, image: Tensor) -> Tensor:
        """(images, channels, kernel…, pixels…), a view of the padded images."""
        stride, padding, dilation, _ = self.move
        if any(padding):
            image = functional.pad(image, [side for pad in reversed(padding) for side in (pad, pad)])
        steps = image.stride()
        size = (*image.shape[:2], *self.shape[2:], *self.slopes.shape[2:])
        kernel = [step * d for step, d in zip(steps[2:], dilation, strict=True)]
        pixels = [step * s for step, s in zip(steps[2:], stride, strict=True)]
        return image.as_strided(size, (*steps[:2], *kernel, *pixels))

    def rows(self, low: int, high: int) -> Tensor:
        each = self.groups * self.q * self.steps
        parts = [super(Convolution, self).rows(low + a, low + b) for a, b in chunks(high - low, each)]
        return torch.cat(parts) if len(parts) > 1 else parts[0]

    def squared(self) -> Convolution:
        return Convolution(self.slopes.square(), self.image.square(), self.shape, self.move, self.count)

    def spread(self, scale: Tensor | None = None) -> Tensor:
        """As of any outer product; patches' squared lengths are a convolution of the squares with ones."""
        if scale is not None:
            return super().spread(scale)
        ones = self.image.new_ones((1, 1, *self.shape[2:]))
        total = self.image.square().sum(1, keepdim=True)
        patches = self._convolve(total, ones, 1).clamp_(min=0).sqrt_()
        lengths: Tensor = patches * torch.linalg.vector_norm(self.slopes, dim=1, keepdim=True)
        return lengths.view(self.count, -1).double().sum(1)

    def inner(self, direction: Tensor) -> Tensor:
        kernel, parts = direction.reshape(self.shape).to(self.dtype), []
        for low, high in chunks(self.count, self.groups * self.p * self.steps, 4 * CHUNK):
            some = slice(low * self.copies, high * self.copies)
            moved = self._convolve(self.image[some], kernel, self.groups)
            parts.append(block_dots(moved.reshape(high - low, -1), self.slopes[some].reshape(high - low, -1)))
        return torch.cat(parts)

    def add_weighted(self, factors: Tensor, out: Tensor) -> None:
        weights = (
            factors.to(out.dtype).repeat_interleave(self.copies).view(-1, *[1] * (self.slopes.dim() - 1))
        )
        slopes, image = self.slopes.to(out.dtype), self.image.to(out.dtype)
        if slopes.numel() < image.numel():
            slopes = slopes * weights
        else:
            image = image * weights
        out += _WEIGHT[self.slopes.dim() - 2](image, list(self.shape), slopes, *self.move)

    def _convolve(self, image: Tensor, kernel: Tensor, groups: int) -> Tensor:
        return _FORWARD[self.slopes.dim() - 2](image, kernel, None, *self.move[:3], groups)


# ---------------------------------------------------------------------------------------------------
# sums that know how wrong they can be


class Squares(NamedTuple):
    """Squared norms, one per record, and bounds on the error of each (both float64)."""

    value: Tensor
    slack: Tensor

    def __add__(self, other: object) -> Squares:
        if not isinstance(other, Squares):
            return NotImplemented
        return Squares(self.value + other.value, self.slack + other.slack)

    def roots(self) -> Tensor:
        """At least the norms. A square of −∞ is a product that overflowed, and no small number."""
        most = self.value + self.slack
        return most.masked_fill_(most == -math.inf, math.inf).clamp_(min=0).sqrt_()


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
    """Ranges of records, so that `each` numbers per record stay within `limit`."""
    step = max(1, limit // max(1, each))
    for low in range(0, count, step):
        yield low, min(count, low + step)


def joined_parts(parts: list[Tensor]) -> Tensor:
    """All of them in one; a single one as it is."""
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def block_squares(x: Tensor) -> Tensor:
    """Σ_j x_ij² for a matrix x, off by at most growth(BLOCK) of itself."""
    whole = x.shape[1] // BLOCK * BLOCK
    if not whole:
        short: Tensor = torch.linalg.vector_norm(x, dim=1).double().square_()
        return short
    total: Tensor = torch.linalg.vector_norm(x[:, whole:], dim=1).double().square_()
    blocks = torch.linalg.vector_norm(x[:, :whole].reshape(len(x), -1, BLOCK), dim=2)
    return total.add_(blocks.double().square_().sum(1))


def block_dots(x: Tensor, y: Tensor) -> Tensor:
    """Σ_j x_ij·y_ij for matrices x, y; off by at most growth(BLOCK)·Σ|x·y|. Overwrites x."""
    product = x.mul_(y)
    whole = product.shape[1] // BLOCK * BLOCK
    total = product[:, whole:].sum(1).double()
    if whole:
        total += product[:, :whole].reshape(len(x), -1, BLOCK).sum(2).double().sum(1)
    return total


def rounded_down(x: Tensor, dtype: torch.dtype, *, spare: int = 0) -> Tensor:
    """Numbers of at least 0 in a shorter type, never larger than they were; 0 where it would lose digits.

    spare: by so many times the spacing of numbers at 1 they are to be smaller.

    Rounding makes a number larger by half of that spacing at most, so one time more is enough for it.
    """
    limits = torch.finfo(dtype)
    return torch.threshold_((x * (1 - (spare + 1) * limits.eps)).to(dtype), limits.tiny, 0.0)


def exact_length(x: Tensor) -> float:
    """‖x‖, accumulated in float64."""
    flat = x.detach().reshape(-1)
    if flat.numel() <= 2**16:
        return float(torch.linalg.vector_norm(flat, dtype=torch.float64))
    parts = (part.double() for part in torch.split(flat, 2**16 if flat.is_cpu else max(1, flat.numel())))
    return math.sqrt(
        float(sum((part @ part for part in parts), start=flat.new_zeros((), dtype=torch.float64)))
    )


def plain_products(device: torch.device) -> contextlib.AbstractContextManager[None]:
    """No autocast and no reduced-precision products: the bounds above assume the precision of the type."""
    if (
        device.type == "cpu"
        and not torch.is_grad_enabled()
        and not torch.is_autocast_enabled("cpu")
        and all(read() in (plain, "none") for read, _, plain in _precisions("cpu"))
    ):
        return _AS_IT_IS
    return _made_plain(device)


_AS_IT_IS = contextlib.nullcontext()


@contextlib.contextmanager
def _made_plain(device: torch.device) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        stack.enter_context(torch.no_grad())
        if torch.is_autocast_enabled(device.type):
            stack.enter_context(torch.autocast(device.type, enabled=False))
        for read, write, plain in _precisions(device.type):
            if (before := read()) not in (plain, "none"):
                stack.callback(write, before)
                write(plain)
        yield


@functools.cache
def _precisions(device: str) -> list[tuple[Callable[[], object], Callable[[Any], None], object]]:
    """What decides the precision of products on a device: how to read it, set it, and keep every digit."""
    backends: Any = torch.backends
    if hasattr(backends.cuda.matmul, "fp32_precision"):  # since 2.9; to ask in the old way may raise then
        on_cuda, on_cpu = (
            (backends.cuda.matmul, backends.cudnn.conv),
            (backends.mkldnn.matmul, backends.mkldnn.conv),
        )
        name, plain = "fp32_precision", "ieee"
        owners = on_cuda if device == "cuda" else on_cpu
        return [(partial(getattr, one, name), partial(setattr, one, name), plain) for one in owners]
    products = (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision, "highest")
    name = "allow_tf32"
    convolutions = (partial(getattr, backends.cudnn, name), partial(setattr, backends.cudnn, name), False)
    return [products, convolutions] if device == "cuda" else [products]


def working(*dtypes: torch.dtype) -> torch.dtype:
    """The precision for norms and sums: float64 for float64 parameters, else float32."""
    return torch.float64 if torch.float64 in dtypes else torch.float32
