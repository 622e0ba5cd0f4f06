"""Clipped sums over all layers of a narrow stack at once.

A private step of a small model is made of calls that take longer than the arithmetic in them. Layer l of a
stack has the gradient L_l ⊗ (R_l, 1) for a record, of weight and bias together. So with all L and all R side
by side in one table,

    ‖g‖²    = Σ_l ‖L_l‖²·(‖R_l‖² + 1)          squares, and one product with zeros and ones that adds them up
    ⟨g, o⟩  = Σ_l ⟨L_l, W_l R_l + b_l⟩         for an origin of weights W and biases b
    Σ c_i g_i                                  a product a layer, and one sum for all biases

The bounds on rounding errors are those of `joint.py`. Adding zeros is exact, so that a sum through the
product with zeros and ones has no more roundings than it has numbers of its own, which are at most BLOCK.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from sidelight.arrays import Array, Floats
from sidelight.clipping import Clip
from sidelight.oracles.network.flat import SHORTEST, Layout, factors_of, joined_flat, views_of
from sidelight.oracles.network.joint import bounds_of
from sidelight.oracles.network.pieces import BLOCK, exact_length

__all__ = ["Centre", "Narrow"]


class Centre(NamedTuple):
    """An origin: its weights and biases a layer, the whole vector, and its length."""

    layers: list[tuple[Tensor, Tensor | None]]
    flat: Tensor
    length: float


class Narrow:
    """Layers of (outputs, inputs, whether there is a bias), every parameter of which is trained."""

    def __init__(self, layers: Sequence[tuple[int, int, bool]], layout: Layout) -> None:
        self._layout, self._layers = layout, list(layers)
        self._lefts, self._rights = [p for p, _, _ in layers], [q for _, q, _ in layers]
        self._width = sum(self._lefts)
        self._limits = np.finfo(np.float64 if layout.dtype is torch.float64 else np.float32)
        bounds = bounds_of(tuple(layers), (), layout.dtype, layout.device)
        self._gamma, self._floor = bounds.gamma * _MORE, float(bounds.floor) * _MORE
        self._less = bounds.less.numpy()
        widths = torch.tensor([*self._lefts, *self._rights])
        places = torch.arange(len(widths)).repeat_interleave(widths)
        self._ones = functional.one_hot(places, len(widths)).to(layout.dtype).T.contiguous()

    @classmethod
    def of(cls, layers: Sequence[tuple[int, int, bool]], layout: Layout) -> Narrow | None:
        """None where a layer is too wide, or all together are."""
        narrow = all(q <= BLOCK for _, q, _ in layers) and sum(p for p, _, _ in layers) <= BLOCK
        numbers = sum(p * (q + bias) for p, q, bias in layers)
        return cls(layers, layout) if narrow and numbers == layout.dimension else None

    def centre(self, origin: Tensor | None) -> Centre | None:
        """An origin, laid out by layers."""
        if origin is None:
            return None
        views = iter(views_of(origin, self._layout.parameters))
        layers = [(next(views), next(views) if bias else None) for _, _, bias in self._layers]
        return Centre(layers, origin, exact_length(origin))

    def clipped_sum(
        self,
        lefts: list[Tensor],
        rights: list[Tensor],
        count: int,
        failed: Tensor | None,
        clip: Clip,
        centre: Centre | None,
        *,
        wide: bool = False,
    ) -> tuple[Tensor, float]:
        """Σ c_i g_i over the first `count` records but for those that failed, flat, and Σ c_i.

        wide: the sum is added up in float64; norms and factors are the same.
        """
        table = torch.cat([*lefts, *rights], 1)
        with np.errstate(all="ignore"):  # a warning would tell of a record
            squares = self._squares(table)
            if centre is not None:
                squares = self._moved(squares, table[:, : self._width], rights, centre)
            factors = self._factors(np.sqrt(np.maximum(squares, 0.0)) * _MORE, clip)
            factors[count:] = 0.0
            if failed is not None:
                factors[failed.numpy()] = 0.0
            if not math.isfinite(squares.sum()):
                spoiled = ~np.isfinite(squares)
                factors[spoiled] = 0.0
                table.masked_fill_(torch.from_numpy(spoiled)[:, None], 0.0)  # NaN times 0 is NaN
                rights = _split(table[:, self._width :], self._rights, 1)
        every, by = table[:, : self._width], torch.from_numpy(factors)
        if wide:
            every, rights, by = every.double(), [x.double() for x in rights], by.double()
        summed = self._weighted(every, rights, by)
        return summed, float(factors.sum(dtype=np.float64))

    def _squares(self, table: Tensor) -> Floats:
        """At least ‖g_i‖²."""
        found = self._ones.mm(table.square().T).numpy() + self._less
        half = len(found) // 2
        value: Floats = (found[:half] * found[half:]).sum(0)
        return value * (1 + self._gamma) + self._floor

    def _moved(self, own: Floats, every: Tensor, rights: list[Tensor], centre: Centre) -> Floats:
        """At least ‖g_i − o‖² = ‖g_i‖² − 2⟨g_i, o⟩ + ‖o‖², given at least ‖g_i‖² (`joint._moved`)."""
        pulled = [functional.linear(x, *one) for x, one in zip(rights, centre.layers, strict=True)]
        inner = torch.cat(pulled, 1).mul_(every).sum(1, dtype=torch.float64).numpy()
        slack = (2 * self._gamma * centre.length) * np.sqrt(own)
        # So that c_i·o stays below 2³⁰ C, also for a record at the origin (`flat._Norms.squares`).
        shortest = (1 + self._gamma) * centre.length**2 + (SHORTEST * centre.length) ** 2
        moved: Floats = own - 2 * inner + slack + shortest
        return moved

    def _factors(self, norms: Floats, clip: Clip) -> Array:
        """What each record is multiplied by (`pieces.rounded_down`): a little less, for the rounding of what
        it multiplies."""
        factors = (factors_of(clip, norms) * (1 - 3 * self._limits.eps)).astype(self._limits.dtype)
        factors[factors <= self._limits.tiny] = 0.0
        return factors

    def _weighted(self, every: Tensor, rights: list[Tensor], factors: Tensor) -> Tensor:
        scaled = every * factors[:, None]
        weights = [left.T.mm(x) for left, x in zip(_split(scaled, self._lefts, 1), rights, strict=True)]
        biases = _split(scaled.sum(0), self._lefts, 0)
        parts: list[Tensor] = []
        for weight, bias, (_, _, biased) in zip(weights, biases, self._layers, strict=True):
            parts += (weight, bias) if biased else (weight,)
        return joined_flat(parts)


def _split(table: Tensor, widths: list[int], dim: int) -> list[Tensor]:
    return list(torch.split_with_sizes(table, widths, dim))


_MORE = 1 + 4e-12  # for the roundings in float64
