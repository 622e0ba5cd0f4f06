"""How a contribution is clipped, and the metric that it is clipped in: what oracles are told.

A record contributes factor·M(g − o), with M the metric, o the origin and factor chosen by the clip so that
‖factor·M(g − o)‖ ≤ clip.bound. M comes *before* the clip: a transform after it would stretch the bound.
Everything here is a function of public things and of one record's norm; NumPy arrays and torch tensors both
work, and torch is not imported.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np

from sidelight.errors import InputError

__all__ = ["Clip", "Details", "Diagonal", "Features", "Metric", "Projection", "Vector", "smallest", "spacing"]

Vector: TypeAlias = Any  # a NumPy array or a torch tensor: parts use what both can do
Details: TypeAlias = Mapping[str, Any]  # public and JSON-able, for the report


@runtime_checkable
class Clip(Protocol):
    """Chooses the factor of a contribution from its norm."""

    @property
    def bound(self) -> float:
        """No clipped contribution is longer than this."""

    def factors(self, norms: Vector) -> Vector:
        """One factor a norm, with factor·norm ≤ bound, also after rounding. Non-finite norms are for the
        oracle to drop before it multiplies."""


@dataclass(frozen=True, eq=False)
class Diagonal:
    """M g = scale·g, coordinate by coordinate."""

    scale: Any

    def __post_init__(self) -> None:
        object.__setattr__(self, "scale", _frozen(self.scale, 1, "the scale of a diagonal metric"))

    def apply(self, vector: Any) -> Any:
        """M v."""
        return self.scale * vector

    def lift(self, vector: Any) -> Any:
        """Mᵀ v."""
        return self.scale * vector

    def absolute(self) -> Diagonal:
        """|M|, for bounds on rounding errors."""
        return Diagonal(abs(self.scale))


@dataclass(frozen=True, eq=False)
class Features:
    """Acts on the feature side of a linear model: the row of every output, d long, becomes matrix·row (k)."""

    matrix: Any

    def __post_init__(self) -> None:
        object.__setattr__(self, "matrix", _frozen(self.matrix, 2, "the matrix of a feature metric"))

    def apply(self, vector: Any) -> Any:
        """M v, flat: outputs × k."""
        return (vector.reshape(-1, self.matrix.shape[1]) @ self.matrix.T).reshape(-1)

    def lift(self, vector: Any) -> Any:
        """Mᵀ v, flat: outputs × d."""
        return (vector.reshape(-1, self.matrix.shape[0]) @ self.matrix).reshape(-1)

    def absolute(self) -> Features:
        """|M|, for bounds on rounding errors."""
        return Features(abs(self.matrix))


@dataclass(frozen=True, eq=False)
class Projection:
    """M g = basisᵀ g, for a basis of k directions in parameter space (p × k)."""

    basis: Any

    def __post_init__(self) -> None:
        object.__setattr__(self, "basis", _frozen(self.basis, 2, "the basis of a projection"))

    def apply(self, vector: Any) -> Any:
        """M v: k coordinates."""
        return self.basis.T @ vector

    def lift(self, vector: Any) -> Any:
        """Mᵀ v: back into parameter space."""
        return self.basis @ vector

    def absolute(self) -> Projection:
        """|M|, for bounds on rounding errors."""
        return Projection(abs(self.basis))


Metric: TypeAlias = Diagonal | Features | Projection | None


def _frozen(array: Any, ndim: int, what: str) -> Any:
    """A copy that nobody writes to: oracles remember norms under a metric, so it must not change."""
    if not hasattr(array, "detach"):
        array = np.array(array, dtype=np.float64)
        array.setflags(write=False)
    if array.ndim != ndim:
        raise InputError(f"{what} must have {ndim} dimension(s), not {array.ndim}")
    if not bool((abs(array) < math.inf).all()):
        raise InputError(f"{what} must be finite")
    return array


def spacing(norms: Any) -> float:
    """The spacing of floating-point numbers at 1, for the type of these norms."""
    if norms.dtype is _DOUBLE:  # by far the most common; naming a type takes longer than clipping a block
        return 2.0**-52
    if "bfloat16" in str(norms.dtype):
        return 2.0**-7
    return float({8: 2.0**-52, 4: 2.0**-23, 2: 2.0**-10}[norms.dtype.itemsize])


def smallest(norms: Any) -> float:
    """A few times the smallest normal number of the type of these norms."""
    if "bfloat16" in str(norms.dtype):
        return 2.0**-124
    return float({8: 2.0**-1020, 4: 2.0**-124, 2: 2.0**-12}[norms.dtype.itemsize])


_DOUBLE = np.dtype(np.float64)
