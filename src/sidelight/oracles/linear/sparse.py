"""The gradients of an embedding table: a few rows of it for each record."""

from __future__ import annotations

import torch
from torch import Tensor

from sidelight.oracles.network.pieces import Around, Piece
from sidelight.oracles.network.rounding import BLOCK, Squares, block_dots, block_squares, chunks, growth, tiny

__all__ = ["Sparse"]


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

    def squares(self, around: Around) -> Squares:
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
