"""Data for demonstrations: the synthetic problem of the PPSGD paper, and one whose features are correlated.

Wang & Zhou (AAAI 2020) have 9,950 private and 50 public rows of 100 Gaussian features, scaled to unit length;
they do not say how labels arise. Here y = sign(⟨u, z⟩ + N(0, ½²)) with ‖u‖ = 1, and 5,000 more rows to test.

In the correlated problem the same z reaches the learner as x = Q diag(1, 1/2, 1/3, …) z, with Q a rotation:
the labels are as learnable as before, and no scaling of columns brings z back.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import numpy as np

from sidelight.arrays import Array
from sidelight.comparison.stages import Stage

__all__ = ["PRIVATE", "PUBLIC", "Features", "gaussian", "stages"]

Features = Literal["isotropic", "correlated"]
PRIVATE, PUBLIC, FEATURES, TEST_ROWS = 9_950, 50, 100, 5_000


def gaussian(
    seed: int,
    features: Features = "isotropic",
    *,
    private: int = PRIVATE,
    public: int = PUBLIC,
    test_rows: int = TEST_ROWS,
    dimensions: int = FEATURES,
) -> Stage:
    """One draw of the problem. Its labels are "no" and "yes"."""
    rng = np.random.default_rng([seed, 2020])
    Z = rng.standard_normal((private + public + test_rows, dimensions))
    u = rng.standard_normal(dimensions)
    truth = Z @ (u / np.linalg.norm(u)) + 0.5 * rng.standard_normal(len(Z)) >= 0
    y = np.where(truth, "yes", "no")
    X = Z if features == "isotropic" else _correlated(Z, rng)
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    a, b = private, private + public
    ids = np.arange(test_rows) + seed * test_rows  # other draws have other test rows
    return Stage(X[:a], y[:a], X[a:b], y[a:b], X[b:], y[b:], ids, seed)


def _correlated(Z: Array, rng: np.random.Generator) -> Array:
    size = Z.shape[1]
    rotation, _ = np.linalg.qr(rng.standard_normal((size, size)))
    return np.asarray((Z / np.arange(1, size + 1)) @ rotation)


def stages(features: Features, *, repeats: int, seed: int) -> Iterator[Stage]:
    """Independent draws, one after the other."""
    for repeat in range(repeats):
        yield gaussian(seed * 1000 + repeat, features)
