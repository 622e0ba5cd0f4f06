"""A layer of patch filters, and the components of what it gives. Learned on public maps, applied row by row.

    p ← (patch − its mean)/√(its variance + c)           contrast; c = 0.05 × the mean public variance
    z ← (p − m) A^(−1/2) ,  A ← cov p + ridge·tr/d       m and cov over public patches (ZCA)
    r_k ← ⟨f_k, z⟩ / its standard deviation              f_k a public z of length 1
    r⁺, r⁻ ← max(±r − t, 0)                              t the threshold

All of r is one convolution of the map, divided by the local deviation: A^(−1/2) is symmetric, so it is
applied to the filters once and not to every patch.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

__all__ = ["Components", "PatchLayer", "learn_components", "learn_layer"]

_CONTRAST = 0.05  # of the mean variance of a public patch: what counts as flat
_SAMPLED = 20_000  # patches that a layer learns from
_SMALL = 1e-12


@dataclass(frozen=True, eq=False)
class PatchLayer:
    """Filters (count, channels, size, size) with what their responses are scaled and shifted by."""

    filters: Tensor
    shift: Tensor
    contrast: float
    threshold: float

    @property
    def size(self) -> int:
        return int(self.filters.shape[2])

    def __call__(self, maps: Tensor, dtype: torch.dtype) -> Tensor:
        """(rows, channels, h, w) → (rows, 2·count, h − size + 1, w − size + 1)."""
        weight = self.filters.to(dtype=dtype, memory_format=torch.channels_last)
        response = functional.conv2d(maps.to(dtype=dtype, memory_format=torch.channels_last), weight)
        response = response * self._inverse_deviation(maps).to(dtype) + self.shift.to(dtype)[:, None, None]
        return torch.cat([(response - self.threshold).relu_(), (-response - self.threshold).relu_()], dim=1)

    def _inverse_deviation(self, maps: Tensor) -> Tensor:
        def local(values: Tensor) -> Tensor:
            return functional.avg_pool2d(values.mean(dim=1, keepdim=True), self.size, stride=1)

        return ((local(maps**2) - local(maps) ** 2).clamp_min(0) + self.contrast).rsqrt()


def learn_layer(
    maps: Tensor, *, size: int, count: int, ridge: float, threshold: float, generator: torch.Generator
) -> PatchLayer:
    """Filters for maps like these, from patches of them. Everything here is public."""
    patches = _sample(maps, size, max(_SAMPLED, count), generator)
    variance = patches.var(dim=1, unbiased=False, keepdim=True)
    contrast = _CONTRAST * float(variance.mean()) + _SMALL
    patches = (patches - patches.mean(dim=1, keepdim=True)) / (variance + contrast).sqrt()
    middle = patches.mean(dim=0)
    patches = patches - middle
    values, vectors = torch.linalg.eigh(patches.T @ patches / len(patches))
    root = (vectors * (values.clamp_min(0) + ridge * values.mean() + _SMALL).rsqrt()) @ vectors.T
    white = patches @ root
    chosen = functional.normalize(white[:count])
    deviation = (white[: _SAMPLED // 2] @ chosen.T).std(dim=0).clamp_min(1e-6)
    filters = (chosen @ root) / deviation[:, None]
    shift = -(filters @ middle)
    filters = filters - filters.mean(dim=1, keepdim=True)  # takes off the patch's mean
    return PatchLayer(filters.reshape(count, maps.shape[1], size, size), shift, contrast, threshold)


def _sample(maps: Tensor, size: int, count: int, generator: torch.Generator) -> Tensor:
    """(count, channels·size·size) patches, at random places of random rows."""
    rows, _, height, width = maps.shape

    def draw(below: int) -> Tensor:
        return torch.randint(below, (count, 1, 1), generator=generator)

    row, top, left = draw(rows), draw(height - size + 1), draw(width - size + 1)
    offsets = torch.arange(size)
    found = maps[row, :, top + offsets[None, :, None], left + offsets[None, None, :]]
    return found.permute(0, 3, 1, 2).reshape(count, -1)


# ---------------------------------------------------------------------------------------------------
# components


@dataclass(frozen=True, eq=False)
class Components:
    """x ↦ P(x − mean), brought to length 1: standardised, projected on public components, whitened."""

    mean: Tensor
    projection: Tensor

    def __call__(self, rows: Tensor, dtype: torch.dtype) -> Tensor:
        centred = (rows - self.mean).to(dtype)
        return functional.normalize((centred @ self.projection.to(dtype)).float())


def learn_components(rows: Tensor, *, count: int, ridge: float) -> Components:
    """The first principal components of public rows, each divided by √(its variance + ridge × the largest).

    By the rows' Gram matrix: there are fewer rows than features.
    """
    mean, deviation = rows.mean(dim=0), rows.std(dim=0).clamp_min(1e-6)
    standard = (rows - mean) / deviation
    squares, left = torch.linalg.eigh(standard @ standard.T)
    squares, left = squares.flip(0)[:count], left.flip(1)[:, :count]
    kept = squares > 1e-6 * squares[0].clamp_min(_SMALL)
    squares, left = squares[kept], left[:, kept]
    variance = squares / len(rows)
    scale = 1 / (squares * (variance + ridge * variance[0])).sqrt()
    return Components(mean, (standard.T @ (left * scale)) / deviation[:, None])
