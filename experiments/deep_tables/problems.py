"""Two problems that take a second a cell: features of CIFAR-10's images, and MNIST as a table.

*cifar*: `PatchFeatures` (128 patches, 256 components) learned on 2,000 images that play no other part; 2,000
other images are the public pool, 10,000 are private, and all 10,000 test images score. *mnist*: the pixels of
14 × 14 blocks above one half, 196 binary columns, ten classes; a pool of 3,000 public rows, 10,000 private
ones, 10,000 test rows. Models have one hidden layer.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from experiments import datasets
from sidelight.arrays import Array
from sidelight.features import PatchFeatures

__all__ = ["CACHE", "CORRUPTIONS", "Pair", "Problem", "model_of", "problem"]

Pair = tuple[Tensor, Tensor]
CACHE = Path("build/deep_tables")
CORRUPTIONS = ("", "labels 0.25", "labels 0.5", "labels 1.0", "classes", "domain")
_COPIES = 4  # shifted or mirrored copies of each public image


@dataclass(frozen=True)
class Problem:
    """Rows and classes; `copies` has for every public row its augmented ones, block after block."""

    private: Pair
    pool: Pair
    test: Pair
    copies: Tensor | None = None
    foreign: Tensor | None = None  # the pool seen in another domain

    def public(self, size: int, *, copies: int = 0, corrupt: str = "", seed: int = 0) -> tuple[Pair, Pair]:
        """The first `size` records of the pool, with so many copies of each, corrupted or not; to learn from,
        and a tenth of them that is held out, of which no copy is learned from."""
        rows, labels = self.pool[0][:size], self.pool[1][:size].clone()
        if corrupt == "domain" and self.foreign is not None:
            rows = self.foreign[:size]
        if corrupt.startswith("labels"):
            generator = torch.Generator().manual_seed(seed)
            wrong = torch.rand(size, generator=generator) < float(corrupt.split()[1])
            labels[wrong] = torch.randint(0, 10, (int(wrong.sum()),), generator=generator)
        if corrupt == "classes":  # the classes of one half are called by the names of the other
            labels = (labels + 5) % 10
        held_out = size // 10
        parts, pool = [rows[held_out:]], len(self.pool[1])
        if copies and self.copies is not None:
            parts += [self.copies[k * pool + held_out : k * pool + size] for k in range(copies)]
        return (torch.cat(parts), labels[held_out:].repeat(len(parts))), (rows[:held_out], labels[:held_out])


def model_of(name: str, seed: int) -> nn.Module:
    """One hidden layer of 32 units."""
    torch.manual_seed(seed)
    width = {"cifar": 256, "mnist": 196, "invented": 12}[name]
    return nn.Sequential(nn.Linear(width, 32), nn.ReLU(), nn.Linear(32, 10))


@functools.cache
def problem(name: str, seed: int) -> Problem:
    return {"cifar": _cifar, "mnist": _mnist, "invented": _invented}[name](seed)


def _parts(data: datasets.Dataset) -> tuple[Array, Array, Array, Array]:
    """Images and classes, to train on and to test with."""
    if data.X_test is None or data.y_test is None:
        raise SystemExit("this copy of the dataset has no test part")
    return data.X, data.y, data.X_test, data.y_test


def _mnist(seed: int) -> Problem:
    X, y, X_test, y_test = _parts(datasets.mnist())

    def rows(images: Array) -> Tensor:
        blocks = images.reshape(-1, 14, 2, 14, 2).astype(np.float32).mean(axis=(2, 4))
        return torch.from_numpy((blocks > 127).astype(np.float32).reshape(len(images), -1))

    order = np.random.default_rng(seed).permutation(len(y))[:13_000]
    table, digits = rows(X[order]), torch.from_numpy(y[order].astype(np.int64))
    test = rows(X_test), torch.from_numpy(y_test.astype(np.int64))
    # The pool is public: a copy, so that what is held out of it is not taken for part of the private records.
    return Problem((table[3_000:], digits[3_000:]), (table[:3_000].clone(), digits[:3_000]), test)


def _cifar(seed: int) -> Problem:
    X, y, X_test, y_test = _parts(datasets.cifar10())
    order = np.random.default_rng(seed).permutation(len(y))[:14_000]
    learn, pool, private = np.split(order, [2_000, 4_000])
    folder = CACHE / f"cifar-{seed}"
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "features.safetensors"
    if not file.exists():
        made = PatchFeatures(
            patches=128, direct_patches=0, power=1.0, kernel=None, components=256, dtype="bfloat16", seed=seed
        )
        made.fit(X[learn]).save(file)
    made = PatchFeatures.load(file)

    def features(label: str, images: Array) -> Tensor:
        path = folder / f"{label}.npy"
        if not path.exists():
            np.save(path, np.concatenate([made.transform(part) for part in np.array_split(images, 8)]))
        return 10 * torch.from_numpy(np.load(path)).float()

    def pair(label: str, images: Array, classes: Array) -> Pair:
        return features(label, images), torch.from_numpy(np.asarray(classes).astype(np.int64))

    copies = [features(f"copy{k}", _moved(X[pool], k, seed)) for k in range(_COPIES)]
    return Problem(
        pair("private", X[private], y[private]),
        pair("pool", X[pool], y[pool]),
        pair("test", X_test, y_test),
        torch.cat(copies),
        features("foreign", 255 - X[pool][..., [2, 0, 1]]),  # negatives in other colors
    )


def _moved(images: Array, copy: int, seed: int) -> Array:
    """Every image moved by up to four pixels each way, and every second copy mirrored."""
    generator = np.random.default_rng([seed, copy])
    padded = np.pad(images, ((0, 0), (4, 4), (4, 4), (0, 0)), mode="reflect")
    moves = generator.integers(0, 9, (len(images), 2))
    moved = np.stack([one[a : a + 32, b : b + 32] for one, (a, b) in zip(padded, moves, strict=True)])
    return moved[:, :, ::-1] if copy % 2 else moved


def _invented(seed: int) -> Problem:
    generator = torch.Generator().manual_seed(seed)
    centers = 2 * torch.randn(10, 12, generator=torch.Generator().manual_seed(7))

    def pair(n: int) -> Pair:
        y = torch.randint(0, 10, (n,), generator=generator)
        return centers[y] + torch.randn(n, 12, generator=generator), y

    pool = pair(100)
    copies = torch.cat([pool[0] + 0.1 * torch.randn(100, 12, generator=generator) for _ in range(_COPIES)])
    return Problem(pair(300), pool, pair(100), copies, pool[0].flip(1))
