"""The pure parts of a private step: how a contribution is clipped, and the metric it is clipped in.

A record contributes factor·M(g − o), with M the metric, o the origin and factor chosen by the clip so that
‖factor·M(g − o)‖ ≤ clip.bound. M comes *before* the clip: a transform after it would stretch the bound.
Everything here is a function of public things and of one record's norm; NumPy arrays and torch tensors both
work, and torch is not imported.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Real
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from sidelight.errors import InputError
from sidelight.methods.part import Clip, FixedClip, Vector

if TYPE_CHECKING:
    from sidelight.methods.setting import Setting

__all__ = ["Automatic", "Clip", "Diagonal", "Features", "Flat", "Metric", "Projection"]


@dataclass(frozen=True)
class Flat(FixedClip):
    """clip_C(v) = v·min(1, C/‖v‖), with one C for the whole run.

    None takes that of the problem, which is public: for a linear model the bound that the loss itself gives
    (its Lipschitz constant times the longest row), and for the square loss the longest gradient at w = 0,
    from the declared bound on targets; for a network 1.
    """

    clip_norm: float | None = None

    def __post_init__(self) -> None:
        if self.clip_norm is not None:
            _check_bound("clip_norm", self.clip_norm)

    def begin(self, setting: Setting, params: Vector) -> Flat:
        return Flat(setting.problem.default_clip_norm()) if self.clip_norm is None else self

    @property
    def bound(self) -> float:
        if self.clip_norm is None:
            raise InputError("Flat() takes its bound from a problem when a run begins; pass clip_norm")
        return self.clip_norm

    def factors(self, norms: Vector) -> Vector:
        # A few ulp below C: the quotient, its product with the norm and the sum may each round upwards.
        target = self.bound * (1 - 4 * _epsilon(norms))
        return target / norms.clip(min=target)


@dataclass(frozen=True)
class Automatic(FixedClip):
    """Automatic clipping, v·R/(‖v‖ + γ): every contribution is scaled, none reaches R.

    Bu, Wang, Zha & Karypis (arXiv:2206.07136v3). γ = 0 normalises; the zero vector stays zero.
    """

    bound: float = 1.0
    gamma: float = 1.0

    def __post_init__(self) -> None:
        _check_bound("bound", self.bound)
        if not (math.isfinite(self.gamma) and self.gamma >= 0):
            raise InputError(f"gamma must be a number of at least 0, not {self.gamma!r}")

    def factors(self, norms: Any) -> Any:
        # The floor keeps the factor finite where γ = 0 meets a norm of (nearly) 0; it only ever shortens.
        target = self.bound * (1 - 4 * _epsilon(norms))
        return target / (norms + self.gamma).clip(min=_smallest(norms) * max(1.0, self.bound))


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


def _epsilon(norms: Any) -> float:
    """The spacing of floating-point numbers at 1, for the type of these norms."""
    if norms.dtype is _DOUBLE:  # by far the most common; naming a type takes longer than clipping a block
        return 2.0**-52
    if "bfloat16" in str(norms.dtype):
        return 2.0**-7
    return float({8: 2.0**-52, 4: 2.0**-23, 2: 2.0**-10}[norms.dtype.itemsize])


def _smallest(norms: Any) -> float:
    """A few times the smallest normal number of the type of these norms."""
    if "bfloat16" in str(norms.dtype):
        return 2.0**-124
    return float({8: 2.0**-1020, 4: 2.0**-124, 2: 2.0**-12}[norms.dtype.itemsize])


_DOUBLE = np.dtype(np.float64)


def _check_bound(name: str, value: object) -> None:
    if not (isinstance(value, Real) and math.isfinite(float(value)) and float(value) > 0):
        raise InputError(f"{name} must be a positive number, not {value!r}")
