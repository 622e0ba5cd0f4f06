"""What is learned: a softmax regression, in NumPy, so that a client starts at once."""

from __future__ import annotations

import os
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[Any]
EACH, CLASSES = 5, 10


@lru_cache(maxsize=1)
def digits() -> tuple[Numbers, Numbers, Numbers, Numbers]:
    """MNIST at half its resolution, where SIDELIGHT_DATA has it; else ten clouds of points."""
    folder = os.environ.get("SIDELIGHT_DATA")
    if folder and (Path(folder) / "mnist.npz").exists():
        with np.load(Path(folder) / "mnist.npz") as data:
            X, y, X_test, y_test = (data[name] for name in ("X_train", "y_train", "X_test", "y_test"))
        return _halved(X), y.astype(int), _halved(X_test), y_test.astype(int)
    rng = np.random.default_rng(0)
    centers = rng.uniform(size=(CLASSES, 196))
    y = rng.integers(CLASSES, size=22_000)
    X = (centers[y] + rng.normal(0, 0.7, size=(len(y), 196))).astype(np.float32)
    return X[:20_000], y[:20_000], X[20_000:], y[20_000:]


def _halved(X: Numbers) -> Numbers:
    four = X.astype(np.float32).reshape(len(X), 14, 2, 14, 2)
    return np.asarray(four.mean(axis=(2, 4)).reshape(len(X), -1) / 255)


def mine(client: int) -> tuple[Numbers, Numbers]:
    """The five images of a client."""
    X, y, _, _ = digits()
    chosen = np.random.default_rng(7).permutation(len(y))[EACH * client : EACH * (client + 1)]
    return X[chosen], y[chosen]


def start() -> list[Numbers]:
    return [np.zeros((196, CLASSES), dtype=np.float32), np.zeros(CLASSES, dtype=np.float32)]


def gradient(arrays: list[Numbers], X: Numbers, y: Numbers) -> list[Numbers]:
    """Of the mean cross-entropy."""
    scores = X @ arrays[0] + arrays[1]
    chances = np.exp(scores - scores.max(axis=1, keepdims=True))
    chances /= chances.sum(axis=1, keepdims=True)
    chances[np.arange(len(y)), y] -= 1
    return [(X.T @ chances / len(y)).astype(np.float32), chances.mean(axis=0).astype(np.float32)]


def accuracy(arrays: list[Numbers]) -> float:
    """On the test part, which nobody trains on."""
    _, _, X, y = digits()
    return float(((X @ arrays[0] + arrays[1]).argmax(axis=1) == y).mean())
