"""The gradients of all records for one parameter, without writing them out.

A `Piece` stands for n gradients G_1 … G_n of one parameter. It answers what a clipped sum needs:

    squares       ‖s∘(G_i − O)‖² for every record, with a bound on its rounding error
    add_weighted  Σ c_i G_i
    inner         ⟨G_i, D⟩ for every record
    rows          a few G_i, written out

`Rows` holds small gradients as they are. `Outer` is Σ_t L_t ⊗ R_t, the output gradients and the inputs of a
layer at T positions: T = 1 for a plain layer, the sequence or the pixels otherwise, times the augmentations.
Its norm comes from two Gram matrices, ‖Σ_t L_t⊗R_t‖² = Σ_ts ⟨L_t,L_s⟩⟨R_t,R_s⟩, or from the rows, a few at a
time: whichever is less work at that shape. Around an origin the first expands the square, which cancels when
G_i is near O; `slack` covers it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from sidelight.oracles.network.rounding import (
    BLOCK,
    CHUNK,
    Squares,
    block_dots,
    block_squares,
    chain,
    chunks,
    exact_length,
    growth,
    product,
    tiny,
    underflow,
)

__all__ = ["Around", "Outer", "Piece", "Rows"]


class Around(NamedTuple):
    """Where and how norms are taken: the origin O, the scale s of one parameter, and ‖s∘O‖."""

    origin: Tensor | None = None
    scale: Tensor | None = None
    length: float = 0.0

    @classmethod
    def at(cls, origin: Tensor | None, scale: Tensor | None) -> Around:
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
        """The gradients of records low … high − 1, one a row, flat."""

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

    def squares(self, around: Around) -> Squares:
        """‖s∘(G_i − O)‖² from written-out rows: the subtraction is exact to a rounding of the difference."""
        parts = []
        for low, high in chunks(self.count, self.size):
            difference = self.rows(low, high)
            if around.origin is not None:
                difference = difference - around.origin.reshape(-1)
            if around.scale is not None:
                difference = difference * around.scale.reshape(-1)
            parts.append(block_squares(difference))
        value, error = torch.cat(parts), self.row_error(around.scale)
        slack = growth(BLOCK, self.dtype) * value + 2 * value.sqrt() * error + error.square()
        return Squares(value, slack.add_(tiny(self.size, self.dtype)))

    def settled(self) -> Piece:
        """Written out, if that takes no more memory than what stands for it."""
        if self.size > self.held:
            return self
        rows = torch.empty(0)
        for low, high in chunks(self.count, self.size):
            some = self.rows(low, high)
            rows = some.new_empty(self.count, self.size) if low == 0 else rows
            rows[low:high] = some
        return Rows(rows, self.shape)


class Rows(Piece):
    """Gradients written out; these very numbers are what is summed, so they have no error."""

    def __init__(self, rows: Tensor, shape: torch.Size) -> None:
        self.count, self.shape, self.dtype = rows.shape[0], shape, rows.dtype
        self._rows = rows.reshape(self.count, shape.numel())

    @property
    def held(self) -> int:
        return self.size

    def settled(self) -> Piece:
        return self

    def rows(self, low: int, high: int) -> Tensor:
        return self._rows[low:high]

    def silence(self, records: Tensor) -> None:
        self._rows = self._rows.masked_fill(records[:, None], 0.0)

    def row_error(self, scale: Tensor | None) -> Tensor:
        return self._rows.new_zeros(self.count, dtype=torch.float64)

    def inner(self, direction: Tensor) -> Tensor:
        return (self._rows @ direction.reshape(-1).to(self.dtype)).double()

    def add_weighted(self, factors: Tensor, out: Tensor) -> None:
        flat, weights = out.view(-1), factors.to(out.dtype)
        copied = self.size if out.dtype != self.dtype else 1
        for low, high in chunks(self.count, copied):
            flat.addmv_(self._rows[low:high].to(out.dtype).T, weights[low:high])

    def plus(self, other: Rows) -> Rows:
        return Rows(self._rows + other._rows, self.shape)


class Outer(Piece):
    """G_i = Σ_t L_it ⊗ R_it, for L of shape (n, T, p) and R of shape (n, T, q)."""

    def __init__(self, left: Tensor, right: Tensor, shape: torch.Size) -> None:
        self.left, self.right, self.shape, self.dtype = left, right, shape, left.dtype
        self.count, self.steps = left.shape[0], left.shape[1]
        self.groups, self.p, self.q = 1, left.shape[2], right.shape[2]

    @property
    def held(self) -> int:
        return (self.left.numel() + self.right.numel()) // max(1, self.count)

    @property
    def inner_chain(self) -> int:
        """Roundings on the way through `inner`, before the blocks of its dot product."""
        return chain(max(self.p, self.q))

    def silence(self, records: Tensor) -> None:
        self.left = self.left.masked_fill(records[:, None, None], 0.0)
        self.right = self.right.masked_fill(records[:, None, None], 0.0)

    def factors(self, low: int, high: int) -> tuple[Tensor, Tensor]:
        """L and R of some records, as (records, groups, T, ·)."""
        return self.left[low:high, None], self.right[low:high, None]

    def squared(self) -> Outer:
        """The piece of L² and R², entry by entry."""
        return Outer(self.left.square(), self.right.square(), self.shape)

    def rows(self, low: int, high: int) -> Tensor:
        left, right = self.factors(low, high)
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
        left, right = self.left.to(out.dtype), self.right.to(out.dtype)
        weights = factors.to(out.dtype)[:, None, None]
        if self.p < self.q:
            left = left * weights
        else:
            right = right * weights
        out.view(self.p, self.q).addmm_(left.reshape(-1, self.p).T, right.reshape(-1, self.q))

    def squares(self, around: Around) -> Squares:
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
        return torch.cat(values), torch.cat(lost)

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
    own: Squares, inner: Callable[[Tensor], Tensor], spread: Tensor, around: Around, gamma: float
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
