"""CIFAR-10, its split into private and public images, and what augmentation makes of the public ones."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from experiments import datasets
from sidelight.augment import Compose, crop, flip

__all__ = ["Images", "Pair", "enlarged", "split", "transformed"]

Pair = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Images:
    """Bytes (rows, 3, 32, 32) and classes. Validation images are public ones that nothing is learned from."""

    private: Pair
    public: Pair
    validation: Pair
    test: Pair


def split(*, seed: int, quick: bool) -> Images:
    """2,000 public images, 200 a class, of which 200 are set apart; the other 48,000 are private."""
    train, test = (_invented(part) if quick else _cifar()[part] for part in ("train", "test"))
    many, apart = (8, 2) if quick else (200, 20)
    order = torch.from_numpy(np.random.default_rng(seed).permutation(len(train[1])))
    labels = train[1][order]
    by_class = [order[labels == label] for label in range(10)]
    places = {
        "private": torch.cat([rows[many:] for rows in by_class]),
        "public": torch.cat([rows[apart:many] for rows in by_class]),
        "validation": torch.cat([rows[:apart] for rows in by_class]),
    }
    parts = {name: (train[0][rows], train[1][rows]) for name, rows in places.items()}
    return Images(**parts, test=test)


def enlarged(public: Pair, augmentation: str, *, seed: int, quick: bool, out: Path) -> Pair:
    """The public images after augmentation: as they are, 40,000 transformed ones, or with generated ones."""
    if augmentation == "none":
        return public
    if augmentation == "transforms":
        return transformed(public, 200 if quick else 40_000, seed=seed)
    from experiments.dope_table9.generated import pool

    generated = pool(public, seed=seed, quick=quick, out=out)
    copies = transformed(public, 100 if quick else 20_000, seed=seed)
    images, labels = zip(*(generated[i] for i in range(len(generated))), strict=True)
    return torch.cat([copies[0], torch.stack(images)]), torch.cat([copies[1], torch.stack(labels)])


def transformed(public: Pair, count: int, *, seed: int) -> Pair:
    """`count` images, each a public one shifted by up to four pixels and perhaps mirrored."""
    images, labels = public
    rows = torch.arange(count) % len(labels)
    change = Compose(crop(4, fill="reflect"), flip())
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        made = torch.cat([change(images[some]) for some in torch.split(rows, 2000)])
    return made, labels[rows]


@functools.cache
def _cifar() -> dict[str, Pair]:
    data = datasets.cifar10()

    def pair(images: Any, labels: Any) -> Pair:
        moved = np.ascontiguousarray(images.transpose(0, 3, 1, 2))
        return torch.from_numpy(moved), torch.from_numpy(labels.astype(np.int64))

    return {"train": pair(data.X, data.y), "test": pair(data.X_test, data.y_test)}


@functools.cache
def _invented(part: str) -> Pair:
    """Noise with a bright square whose place is the class."""
    generator = torch.Generator().manual_seed(len(part))
    labels = torch.arange(500 if part == "train" else 100) % 10
    images = torch.randint(0, 60, (len(labels), 3, 32, 32), generator=generator, dtype=torch.uint8)
    for i, label in enumerate(labels.tolist()):
        images[i, :, 6 + 14 * (label // 5) :, 4 + 5 * (label % 5) :][:, :6, :4] += 180
    return images, labels
