"""Data for demonstrations: the synthetic problem of the PPSGD paper, and one whose features are correlated.

Wang & Zhou (AAAI 2020) have 9,950 private and 50 public rows of 100 Gaussian features, scaled to unit length;
they do not say how labels arise. Here y = sign(⟨u, z⟩ + N(0, ½²)) with ‖u‖ = 1, and 5,000 more rows judge.

In the correlated problem the same z reaches the learner as x = Q diag(1, 1/2, 1/3, …) z, with Q a rotation:
the labels are as learnable as before, and no scaling of columns brings z back.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from sidelight.comparison.stages import Stage

__all__ = ["PRIVATE", "PUBLIC", "Features", "gaussian", "stages"]

Features = Literal["isotropic", "correlated"]
PRIVATE, PUBLIC, FEATURES, JUDGES = 9_950, 50, 100, 5_000


def gaussian(
    seed: int,
    features: Features = "isotropic",
    *,
    private: int = PRIVATE,
    public: int = PUBLIC,
    judges: int = JUDGES,
    dimensions: int = FEATURES,
) -> Stage:
    """One draw of the problem. Its labels are "no" and "yes"."""
    rng = np.random.default_rng([seed, 2020])
    Z = rng.standard_normal((private + public + judges, dimensions))
    u = rng.standard_normal(dimensions)
    truth = Z @ (u / np.linalg.norm(u)) + 0.5 * rng.standard_normal(len(Z)) >= 0
    y = np.where(truth, "yes", "no")
    X = Z if features == "isotropic" else _correlated(Z, rng)
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    a, b = private, private + public
    ids = np.arange(judges) + seed * judges  # other draws have other judges
    return Stage(X[:a], y[:a], X[a:b], y[a:b], X[b:], y[b:], ids, seed)


def _correlated(Z: NDArray[Any], rng: np.random.Generator) -> NDArray[Any]:
    size = Z.shape[1]
    rotation, _ = np.linalg.qr(rng.standard_normal((size, size)))
    return np.asarray((Z / np.arange(1, size + 1)) @ rotation)


def stages(features: Features, *, repeats: int, seed: int) -> Iterator[Stage]:
    """Independent draws, one after the other."""
    for repeat in range(repeats):
        yield gaussian(seed * 1000 + repeat, features)
