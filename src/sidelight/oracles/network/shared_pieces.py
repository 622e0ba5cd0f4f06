"""A parameter used more than once: its gradient is a sum, and the cross terms count."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

import torch
from torch import Tensor

from sidelight.oracles.network.pieces import (
    BLOCK,
    ClipCenter,
    Outer,
    Piece,
    Rows,
    Sparse,
    Squares,
    chunks,
    expand,
    growth,
)


def merged(pieces: Sequence[Piece]) -> Piece:
    """One piece for all uses of a parameter."""
    if len(pieces) == 1:
        return pieces[0]
    rows = [piece for piece in pieces if isinstance(piece, Rows)]
    outer = [piece for piece in pieces if type(piece) is Outer]
    sparse = [piece for piece in pieces if isinstance(piece, Sparse)]
    if len(rows) == len(pieces):
        return reduce(Rows.plus, rows)
    others = [piece for piece in pieces if piece not in outer and piece not in sparse]
    if outer and sparse and not others:
        return Tied(_join_outer(outer), _join_sparse(sparse))
    joined: list[Piece] = others
    if outer:
        joined.append(_join_outer(outer))
    if sparse:
        joined.append(_join_sparse(sparse))
    return joined[0] if len(joined) == 1 else Sum(joined)


def _join_outer(pieces: Sequence[Outer]) -> Outer:
    """Σ_t over all positions of all uses: the cross terms are the off-diagonal blocks of one Gram matrix."""
    if len(pieces) == 1:
        return pieces[0]
    left, right = torch.cat([p.left for p in pieces], 1), torch.cat([p.right for p in pieces], 1)
    return Outer(left, right, pieces[0].shape)


def _join_sparse(pieces: Sequence[Sparse]) -> Sparse:
    if len(pieces) == 1:
        return pieces[0]
    index, values = torch.cat([p.index for p in pieces], 1), torch.cat([p.values for p in pieces], 1)
    return Sparse(index, values, pieces[0].shape)


class Sum(Piece):
    """Any pieces added up, row by row, a few rows at a time."""

    def __init__(self, pieces: Sequence[Piece]) -> None:
        self.pieces, first = list(pieces), pieces[0]
        self.count, self.shape, self.dtype = first.count, first.shape, first.dtype

    @property
    def held(self) -> int:
        return sum(piece.held for piece in self.pieces)

    def rows(self, low: int, high: int) -> Tensor:
        total = self.pieces[0].rows(low, high).clone()
        for piece in self.pieces[1:]:
            total += piece.rows(low, high)
        return total

    def row_error(self, scale: Tensor | None) -> Tensor:
        """The errors of the parts, and of adding them."""
        around, gamma = ClipCenter(None, scale), growth(len(self.pieces), self.dtype)
        total = self.pieces[0].row_error(scale)
        for piece in self.pieces:
            total = total + piece.row_error(scale) + gamma * piece.squares(around).roots()
        return total

    def silence(self, records: Tensor) -> None:
        for piece in self.pieces:
            piece.silence(records)

    def inner(self, direction: Tensor) -> Tensor:
        return torch.stack([piece.inner(direction) for piece in self.pieces]).sum(0)

    def add_weighted(self, factors: Tensor, out: Tensor) -> None:
        for piece in self.pieces:
            piece.add_weighted(factors, out)


class Tied(Sum):
    """An embedding table that is also the matrix of a linear layer (tied input and output embeddings).

    The cross term of Σ_t L_t ⊗ R_t with rows v_s at the tokens k_s is Σ_ts L_t[k_s]·⟨R_t, v_s⟩.
    """

    def __init__(self, outer: Outer, sparse: Sparse) -> None:
        super().__init__([outer, sparse])
        self.outer, self.sparse = outer, sparse

    def squares(self, around: ClipCenter) -> Squares:
        if around.scale is not None or self.size <= self.held:
            return super().squares(around)
        cross = self.cross()
        own = self.outer.own_squares() + self.sparse.squares(ClipCenter()) + cross
        if around.origin is None:
            return own
        spread = self.outer.spread() + self.sparse.spread()
        gamma = growth(BLOCK + self.outer.inner_chain, self.dtype)
        return expand(own, self.inner, spread, around, gamma)

    def cross(self) -> Squares:
        """2⟨G_i, G'_i⟩ of the two uses."""
        values, slacks = [], []
        steps, tokens = self.outer.steps, self.sparse.index.shape[1]
        for low, high in chunks(self.count, steps * tokens):
            left, right = self.outer.left[low:high], self.outer.right[low:high]
            index, rows = self.sparse.index[low:high], self.sparse.values[low:high]
            picked = left.gather(2, index[:, None].expand(-1, steps, -1))
            values.append(2 * (picked * (right @ rows.transpose(1, 2))).sum(2).double().sum(1))
            largest = right.norm(dim=2)[..., None] * rows.norm(dim=2)[:, None]
            slacks.append(2 * (picked.abs() * largest).sum(2).double().sum(1))
        gamma = growth(self.outer.q + tokens, self.dtype)
        return Squares(torch.cat(values), gamma * torch.cat(slacks))
