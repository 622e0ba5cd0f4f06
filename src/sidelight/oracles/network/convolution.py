"""The gradients of a convolution: an outer product over patches, most of it done by convolutions."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional, grad

from sidelight.oracles.network.pieces import Outer
from sidelight.oracles.network.rounding import CHUNK, block_dots, chunks

__all__ = ["Convolution", "WindowGeometry"]

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
