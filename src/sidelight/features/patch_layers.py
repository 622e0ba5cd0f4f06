"""A layer of patch filters, and the components of what it gives; learned on public maps, applied row by row.

    p ← (patch − its mean)/√(its variance + c)           contrast; c = 0.05 × the mean public variance
    z ← (p − m) A^(−1/2) ,  A ← cov p + ridge·tr/d       m and cov over public patches (ZCA)
    r_k ← ⟨f_k, z⟩ / its standard deviation              f_k a public z of length 1
    r⁺, r⁻ ← max(±r − t, 0)                              t the threshold

All of r is one convolution of the map, divided by the local deviation: A^(−1/2) is symmetric, so it is
applied to the filters once and not to every patch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor
from torch.nn import functional

_CONTRAST = 0.05  # of the mean variance of a public patch: what counts as flat
_SAMPLED = 20_000  # patches that a layer learns from
_COLUMNS = 512  # filters at a time, of a layer that is averaged
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

    def pooled(self, maps: Tensor, weights: Sequence[Tensor], *, stride: int, grid: int) -> Tensor:
        """One map (channels, h, w) → 2·count·grid·grid averages; `weights` are those of `columns`.

        Patches are written out, and filters taken a few at a time: all of it stays in a processor's cache.
        """
        dtype = weights[0].dtype
        scale = self._inverse_deviation(maps[None], stride=stride)
        places = tuple(scale.shape[2:])
        patches = functional.unfold(maps[None].to(dtype), self.size, stride=stride)[0].T
        scaled = torch.cat(
            [patches * scale.to(dtype).reshape(-1, 1), patches.new_ones(len(patches), 1)], dim=1
        )
        cells, sizes = _windows(places, grid)
        out = maps.new_empty(2, grid * grid, len(self.shift))
        for start, some in zip(range(0, len(self.shift), _COLUMNS), weights, strict=True):
            beyond = functional.softshrink(scaled @ some, self.threshold)
            end = start + some.shape[1]
            out[0, :, start:end] = cells.to(dtype) @ beyond.clamp_min(0)
            out[1, :, start:end] = cells.to(dtype) @ beyond.clamp_max_(0).neg_()
        return (out / sizes).transpose(1, 2).flatten()

    def columns(self, dtype: torch.dtype) -> tuple[Tensor, ...]:
        """Filters as columns, with their shifts as the last row; 512 at a time."""
        whole = torch.cat([self.filters.flatten(1), self.shift[:, None]], dim=1).to(dtype)
        return tuple(some.T.contiguous() for some in torch.split(whole, _COLUMNS))

    def _inverse_deviation(self, maps: Tensor, *, stride: int = 1) -> Tensor:
        def local(values: Tensor) -> Tensor:
            return functional.avg_pool2d(values.mean(dim=1, keepdim=True), self.size, stride=stride)

        return ((local(maps**2) - local(maps) ** 2).clamp_min(0) + self.contrast).rsqrt()


@lru_cache(maxsize=8)
def _windows(places: tuple[int, ...], grid: int) -> tuple[Tensor, Tensor]:
    """Which places (columns) belong to which cell of the grid (rows), as 1 and 0, and how many do."""

    def edge(length: int) -> Tensor:
        cell, place = torch.arange(grid)[:, None], torch.arange(length)
        inside = (place >= cell * length // grid) & (place < -(-(cell + 1) * length // grid))
        return inside.float()

    cells = torch.kron(edge(places[0]), edge(places[1]))
    return cells, cells.sum(dim=1, keepdim=True)


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
class Similarity:
    """x ↦ exp((cos(x, l) − 1)/width) for every public row l; x and l standardized by public rows."""

    mean: Tensor
    inverse: Tensor  # of the standard deviations
    landmarks: Tensor  # (features, public rows), columns of length 1
    width: float

    def __call__(self, rows: Tensor) -> Tensor:
        standard = functional.normalize((rows - self.mean) * self.inverse)
        cosines = (standard.to(self.landmarks.dtype) @ self.landmarks).float()
        return ((cosines - 1) / self.width).exp_()


def learn_similarity(rows: Tensor, *, width: float, dtype: torch.dtype) -> Similarity:
    """Of any image to these public ones."""
    mean, inverse = rows.mean(dim=0), 1 / rows.std(dim=0).clamp_min(1e-6)
    landmarks = functional.normalize((rows - mean) * inverse).T
    return Similarity(mean, inverse, landmarks.to(dtype).contiguous(), width)


@dataclass(frozen=True, eq=False)
class Components:
    """x ↦ P(x − mean), brought to length 1: projected on public components, whitened."""

    mean: Tensor
    projection: Tensor

    def __call__(self, rows: Tensor, dtype: torch.dtype) -> Tensor:
        centered = (rows - self.mean).to(dtype)
        return functional.normalize((centered @ self.projection.to(dtype)).float())


def learn_components(rows: Tensor, *, count: int, ridge: float) -> Components:
    """The first principal components of public rows, each divided by √(its variance + ridge × the largest).

    By the rows' Gram matrix: there are fewer rows than features.
    """
    mean, deviation = rows.mean(dim=0), rows.std(dim=0).clamp_min(1e-6)
    standard = (rows - mean) / deviation
    left, scale = _whitened(standard @ standard.T, count=count, ridge=ridge)
    return Components(mean, (standard.T @ (left * scale)) / deviation[:, None])


def learn_kernel_components(similarities: Tensor, *, count: int, ridge: float) -> Components:
    """The same in the space whose inner products are the similarities (public rows × public rows).

    Directions are orthogonal to (1, …, 1), so that taking off the public rows' mean similarities is all the
    centering that a new row needs.
    """
    both = (similarities + similarities.T) / 2
    mean = both.mean(dim=0)
    left, scale = _whitened(both - mean - mean[:, None] + mean.mean(), count=count, ridge=ridge)
    return Components(mean, left * scale)


def _whitened(gram: Tensor, *, count: int, ridge: float) -> tuple[Tensor, Tensor]:
    """The first eigenvectors of a Gram matrix, and what their projections are multiplied by."""
    squares, left = torch.linalg.eigh(gram.double())
    squares, left = squares.flip(0)[:count], left.flip(1)[:, :count]
    kept = squares > 1e-6 * squares[0].clamp_min(_SMALL)
    squares, left = squares[kept], left[:, kept]
    variance = squares / len(gram)
    return left.float(), (1 / (squares * (variance + ridge * variance[0])).sqrt()).float()
