"""How a contribution is clipped, and the metric that it is clipped in: arguments of every oracle.

A record contributes factor·M(g − o), with M the metric, o the origin and factor chosen by the clip so that
‖factor·M(g − o)‖ ≤ clip.bound. M comes *before* the clip: a transform after it would stretch the bound.
Everything here is a function of public values and of one record's norm. NumPy arrays and torch tensors both
work, and torch is not imported.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, TypeAlias, runtime_checkable

import numpy as np

from sidelight.arrays import Floats, Matrix, V, Vector, dense, floats, is_sparse
from sidelight.errors import InputError, not_negative

Details: TypeAlias = Mapping[str, object]  # public and JSON-able, for the report


@runtime_checkable
class Clip(Protocol):
    """Chooses the factor of a contribution from its norm."""

    @property
    def bound(self) -> float:
        """No clipped contribution is longer than this."""

    def factors(self, norms: V) -> V:
        """One factor per norm, with factor·norm ≤ bound, also after rounding. The oracle drops records of
        non-finite norm before it multiplies."""


class Transform(Protocol):
    """A linear map M of gradients. An oracle refuses one whose norms it cannot bound."""

    def apply(self, vector: Vector) -> Vector:
        """M v."""

    def lift(self, vector: Vector) -> Vector:
        """Mᵀ v."""


@dataclass(frozen=True, eq=False)
class Diagonal:
    """M g = scale·g, coordinate by coordinate."""

    scale: Vector

    def __post_init__(self) -> None:
        object.__setattr__(self, "scale", _frozen(self.scale, 1, "the scale of a diagonal metric"))

    def apply(self, vector: Vector) -> Vector:
        """M v."""
        return self.scale * vector

    def lift(self, vector: Vector) -> Vector:
        """Mᵀ v."""
        return self.scale * vector

    def absolute(self) -> Diagonal:
        """|M|, for bounds on rounding errors."""
        return Diagonal(abs(self.scale))


@dataclass(frozen=True, eq=False)
class Features:
    """Acts on the feature side of a linear model: the row of every output, d long, becomes matrix·row (k)."""

    matrix: Vector

    def __post_init__(self) -> None:
        object.__setattr__(self, "matrix", _frozen(self.matrix, 2, "the matrix of a feature metric"))

    def apply(self, vector: Vector) -> Vector:
        """M v, flat: outputs × k."""
        return (vector.reshape((-1, self.matrix.shape[1])) @ self.matrix.T).reshape((-1,))

    def lift(self, vector: Vector) -> Vector:
        """Mᵀ v, flat: outputs × d."""
        return (vector.reshape((-1, self.matrix.shape[0])) @ self.matrix).reshape((-1,))

    def absolute(self) -> Features:
        """|M|, for bounds on rounding errors."""
        return Features(abs(self.matrix))


@dataclass(frozen=True, eq=False)
class ThinFeatures:
    """Acts on the feature side as M = floor·I + Rᵀ·core·R: for m rows R of many more features.

    M itself is never written out. With floor = 0 it maps to the span of R, and noise outside is of no effect.
    """

    rows: Matrix  # m × d
    core: Floats  # m × m, symmetric
    floor: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "core", _frozen(self.core, 2, "the core of a thin metric"))
        not_negative("the floor of a thin metric", self.floor)
        if self.core.shape != (self.rows.shape[0],) * 2:
            raise InputError("the core of a thin metric must be m × m for m rows")

    def apply(self, vector: Vector) -> Vector:
        """M v, flat: outputs × d."""
        table = np.asarray(vector).reshape(-1, self.rows.shape[1])
        inner = self.core @ (self.rows @ table.T)
        return np.asarray(self.floor * table + (self.rows.T @ inner).T).reshape(-1)

    def lift(self, vector: Vector) -> Vector:
        """Mᵀ v = M v."""
        return self.apply(vector)

    def absolute(self) -> ThinFeatures:
        """A matrix of which no entry is below that of |M|."""
        return ThinFeatures(abs(self.rows), abs(self.core), self.floor)

    def gram(self, X: Matrix) -> Floats:
        """X M Mᵀ Xᵀ, for few rows X."""
        products, middle = self._parts(X)
        return np.asarray(self.floor**2 * dense(X @ X.T) + products @ middle @ products.T)

    def lengths(self, X: Matrix) -> Floats:
        """‖Mx‖ of public rows, not rounded upwards."""
        products, middle = self._parts(X)
        own = np.asarray(X.multiply(X).sum(axis=1) if is_sparse(X) else np.square(X).sum(axis=1)).reshape(-1)
        squares = self.floor**2 * own + np.einsum("ij,ij->i", products @ middle, products)
        return np.asarray(np.sqrt(np.maximum(squares, 0)))

    def _parts(self, X: Matrix) -> tuple[Floats, Floats]:
        squares = dense(self.rows @ self.rows.T)
        return dense(X @ self.rows.T), 2 * self.floor * self.core + self.core @ squares @ self.core


@dataclass(frozen=True, eq=False)
class Projection:
    """M g = basisᵀ g, for a basis of k directions in parameter space (p × k)."""

    basis: Vector

    def __post_init__(self) -> None:
        object.__setattr__(self, "basis", _frozen(self.basis, 2, "the basis of a projection"))

    def apply(self, vector: Vector) -> Vector:
        """M v: k coordinates."""
        return self.basis.T @ vector

    def lift(self, vector: Vector) -> Vector:
        """Mᵀ v: back into parameter space."""
        return self.basis @ vector

    def absolute(self) -> Projection:
        """|M|, for bounds on rounding errors."""
        return Projection(abs(self.basis))


FeatureMetric: TypeAlias = Features | ThinFeatures
LinearMetric: TypeAlias = (
    Diagonal | Features | ThinFeatures | Projection | None
)  # those that a linear model can clip under
Metric: TypeAlias = Transform | None


def _frozen(array: Vector, ndim: int, what: str) -> Vector:
    """A copy that cannot be written to: oracles remember norms under a metric, so it must not change."""
    if not hasattr(array, "detach"):
        copy = np.array(array, dtype=np.float64)
        copy.setflags(write=False)
        array = copy
    if array.ndim != ndim:
        raise InputError(f"{what} must have {ndim} dimension(s), not {array.ndim}")
    if not bool((abs(array) < math.inf).all()):
        raise InputError(f"{what} must be finite")
    return array


def spacing(norms: Vector) -> float:
    """The spacing of floating-point numbers at 1, for the type of these norms."""
    if norms.dtype is _DOUBLE:  # by far the most common; naming a type takes longer than clipping a block
        return 2.0**-52
    if "bfloat16" in str(norms.dtype):
        return 2.0**-7
    return float({8: 2.0**-52, 4: 2.0**-23, 2: 2.0**-10}[norms.dtype.itemsize])


def smallest(norms: Vector) -> float:
    """A few times the smallest normal number of the type of these norms."""
    if "bfloat16" in str(norms.dtype):
        return 2.0**-124
    return float({8: 2.0**-1020, 4: 2.0**-124, 2: 2.0**-12}[norms.dtype.itemsize])


_DOUBLE = np.dtype(np.float64)


def checked_origin(origin: Vector, dimension: int) -> Floats:
    """The vector that is subtracted from every gradient before it is clipped; InputError for any other."""
    flat = floats(origin).reshape(-1)
    if flat.size != dimension or not np.isfinite(flat).all():
        raise InputError(f"the origin must be a finite vector of {dimension} numbers")
    return flat
