"""The images: MNIST, its public and private parts, stand-ins that need no file, and warped copies."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from experiments import datasets

__all__ = ["Pair", "invented", "mnist", "split", "warped"]

Pair = tuple[Tensor, Tensor]


def mnist() -> tuple[Pair, Pair]:
    """Images in [0, 1], and digits; to train and to test."""
    data = datasets.mnist()

    def pair(images: Any, digits: Any) -> Pair:
        scaled = images.astype(np.float32) / np.float32(255)
        return torch.from_numpy(scaled)[:, None], torch.from_numpy(digits)

    return pair(data.X, data.y), pair(data.X_test, data.y_test)


def invented() -> tuple[Pair, Pair]:
    """Noise with a bright square whose place is the label."""
    generator = torch.Generator().manual_seed(0)

    def pair(n: int) -> Pair:
        digits = torch.randint(0, 10, (n,), generator=generator)
        images = 0.2 * torch.rand(n, 1, 28, 28, generator=generator)
        for i, digit in enumerate(digits.tolist()):
            images[i, 0, 2 + 5 * (digit % 5) : 6 + 5 * (digit % 5), 4 + 14 * (digit // 5) :][:, :5] += 0.8
        return images, digits

    return pair(400), pair(100)


def split(train: Pair, share: float, *, seed: int) -> tuple[Pair, Pair]:
    """The private part and the public one, after a shuffle."""
    order = torch.from_numpy(np.random.default_rng(seed).permutation(len(train[1])))
    count = round(share * len(order))
    public, private = order[:count], order[count:]
    return (train[0][private], train[1][private]), (train[0][public], train[1][public])


def warped(images: Tensor) -> Tensor:
    """Every image turned (15°), stretched (12 %), sheared, moved (2 pixels) and bent, each by up to so much.

    What a row becomes depends on that row and on chance alone.
    """
    rows, _, height, width = images.shape
    grid = functional.affine_grid(_affine(rows, 2 * 2 / height), list(images.shape), align_corners=False)
    bends = functional.interpolate(torch.randn(rows, 2, 4, 4), size=(height, width), mode="bicubic")
    grid = grid + bends.permute(0, 2, 3, 1) * (1.5 * 2 / height)  # 1.5 pixels of standard deviation
    return functional.grid_sample(images, grid, align_corners=False)


def _affine(rows: int, move: float) -> Tensor:
    def up_to(most: float, *shape: int) -> Tensor:
        return most * (2 * torch.rand(rows, *shape) - 1)

    angle, stretch, shear = up_to(math.radians(15)), up_to(0.12, 2).exp(), up_to(0.15)
    cos, sin = angle.cos(), angle.sin()
    turn = torch.stack([torch.stack([cos, -sin], 1), torch.stack([sin, cos], 1)], 1)
    bend = torch.diag_embed(stretch)
    bend[:, 0, 1] = shear
    return torch.cat([turn @ bend, up_to(move, 2, 1)], 2)
