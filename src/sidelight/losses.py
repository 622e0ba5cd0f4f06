"""The losses: value, slope and curvature in the linear output z, and the constants that proofs need.

`hinge`, `huber` and `logistic` take labels y ∈ {−1, +1} and depend on the margin yz; `square` takes a real
target; `softmax` takes a class index and one output per class. `lipschitz` is sup ‖slope‖ and `smoothness` is
sup of the largest curvature, both over every z and y, or None where there is none. For a linear model with
rows of norm at most X, a record's gradient is then bounded by lipschitz·X, its Hessian by smoothness·X².
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
from scipy.special import expit

from sidelight.arrays import Array, Mask
from sidelight.errors import InputError, positive

Kind = Literal["binary", "regression", "multiclass"]

# A slope or a curvature that jumps is a ramp of this width here. BLAS rounds z a little differently in the
# last rows of a block, so that one record more may move the last bit of others: at a jump, each of them would
# change its contribution by all of it.
RAMP = 1e-6


class Loss(ABC):
    """A loss of the linear output z (n,), or (n, outputs) for softmax, against targets y (n,)."""

    name: ClassVar[str]
    task: ClassVar[Kind]
    outputs = 1  # linear outputs of a record
    lipschitz: float | None  # sup ‖slope‖, or None if it is unbounded
    smoothness: float | None  # sup of the largest curvature, or None if the slope jumps

    @abstractmethod
    def value(self, z: Array, y: Array) -> Array:
        """ℓ(z, y), one number per record."""

    @abstractmethod
    def slope(self, z: Array, y: Array) -> Array:
        """dℓ/dz, with the shape of z. A NaN in z is a NaN here, so that the record can be dropped."""

    @abstractmethod
    def curvature(self, z: Array, y: Array) -> Array:
        """d²ℓ/dz², one number per record (where the slope has a kink: a valid generalized derivative)."""

    @property
    def steepness_at_zero(self) -> float | None:
        """How fast the slope changes where it passes 0: rounding of z times this is what is left of it there.

        None if it passes 0 nowhere and keeps its digits wherever it is small.
        """
        return self.smoothness

    def admits(self, y: Array) -> Mask:
        """Which targets this loss is defined for. The constants above hold for these alone."""
        fits: Mask = np.abs(y) == 1 if self.task == "binary" else np.isfinite(y)
        return fits


@dataclass(frozen=True)
class Hinge(Loss):
    """max(0, 1 − yz). Not smooth: its slope goes from −y to 0 within 10⁻⁶ of the kink."""

    name: ClassVar[str] = "hinge"
    task: ClassVar[Kind] = "binary"

    lipschitz = 1.0
    smoothness = None
    steepness_at_zero = 1 / RAMP

    def value(self, z: Array, y: Array) -> Array:
        value: Array = np.maximum(1 - y * z, 0)
        return value

    def slope(self, z: Array, y: Array) -> Array:
        slope: Array = -y * np.clip((1 - y * z) / RAMP, 0, 1)
        return slope

    def curvature(self, z: Array, y: Array) -> Array:
        return np.zeros_like(z)


@dataclass(frozen=True)
class Huber(Loss):
    """The huberized hinge of half-width h: 0 if yz > 1+h, (1+h−yz)²/4h if |1−yz| ≤ h, 1−yz otherwise."""

    name: ClassVar[str] = "huber"
    task: ClassVar[Kind] = "binary"
    h: float = 0.5

    def __post_init__(self) -> None:
        positive("the width h of the huberized hinge", self.h)

    @property
    def smoothness(self) -> float:  # type: ignore[override]
        return 1 / (2 * self.h)

    lipschitz = 1.0

    def value(self, z: Array, y: Array) -> Array:
        margin = y * z
        band = np.clip(1 + self.h - margin, 0, 2 * self.h)
        return band * band / (4 * self.h) + np.maximum(1 - self.h - margin, 0)

    def slope(self, z: Array, y: Array) -> Array:
        slope: Array = -y * np.clip((1 + self.h - y * z) / (2 * self.h), 0, 1)
        return slope

    def curvature(self, z: Array, y: Array) -> Array:
        inside: Array = np.clip((self.h - np.abs(1 - y * z)) / (RAMP * self.h), 0, 1)
        return inside / (2 * self.h)


@dataclass(frozen=True)
class Logistic(Loss):
    """log(1 + exp(−yz))."""

    name: ClassVar[str] = "logistic"
    task: ClassVar[Kind] = "binary"

    lipschitz = 1.0
    smoothness = 0.25
    steepness_at_zero = None

    def value(self, z: Array, y: Array) -> Array:
        value: Array = np.logaddexp(0, -y * z)
        return value

    def slope(self, z: Array, y: Array) -> Array:
        slope: Array = -y * expit(-y * z)
        return slope

    def curvature(self, z: Array, y: Array) -> Array:
        curvature: Array = expit(z) * expit(-z)
        return curvature


@dataclass(frozen=True)
class Square(Loss):
    """scale·(z − y)². Its slope is unbounded: a Lipschitz constant needs a bounded domain."""

    name: ClassVar[str] = "square"
    task: ClassVar[Kind] = "regression"
    scale: float = 1.0

    def __post_init__(self) -> None:
        positive("the scale of the square loss", self.scale)

    @property
    def smoothness(self) -> float:  # type: ignore[override]
        return 2 * self.scale

    lipschitz = None

    def value(self, z: Array, y: Array) -> Array:
        residual: Array = z - y
        return self.scale * residual * residual

    def slope(self, z: Array, y: Array) -> Array:
        slope: Array = (2 * self.scale) * (z - y)
        return slope

    def curvature(self, z: Array, y: Array) -> Array:
        return np.full_like(z, 2 * self.scale)


@dataclass(frozen=True)
class Softmax(Loss):
    """log Σ_k exp(z_k) − z_y over `classes` outputs; y is a class index."""

    name: ClassVar[str] = "softmax"
    task: ClassVar[Kind] = "multiclass"
    classes: int = 2

    def __post_init__(self) -> None:
        if int(self.classes) != self.classes or self.classes < 2:
            raise InputError(f"softmax needs at least 2 classes, not {self.classes!r}")

    @property
    def outputs(self) -> int:  # type: ignore[override]
        return int(self.classes)

    lipschitz = math.sqrt(2)
    smoothness = 0.5
    steepness_at_zero = None

    def value(self, z: Array, y: Array) -> Array:
        ahead = z - _chosen(z, y)[:, None]
        top = ahead.max(axis=1)  # at least 0, where the sum of exponentials is at least 1
        value: Array = top + np.log(np.exp(ahead - top[:, None]).sum(axis=1))
        return value

    def slope(self, z: Array, y: Array) -> Array:
        slope = self.probabilities(z)
        own = np.arange(len(slope)), np.asarray(y, dtype=np.intp)
        # Not p − 1, of which rounding is all that is left where p is nearly 1: a clip that normalizes would
        # make it a whole contribution.
        slope[own] = 0
        slope[own] = -np.minimum(slope.sum(axis=1), 1.0)
        return slope

    def curvature(self, z: Array, y: Array) -> Array:
        raise InputError("the curvature of softmax is a matrix; use curvature_times")

    def probabilities(self, z: Array) -> Array:
        """exp(z_k) / Σ exp(z)."""
        raised: Array = np.exp(z - z.max(axis=1, keepdims=True))
        raised /= raised.sum(axis=1, keepdims=True)
        return raised

    def curvature_times(self, z: Array, direction: Array) -> Array:
        """(diag(π) − ππᵀ)·direction, one record per row."""
        probabilities = self.probabilities(z)
        weighted = probabilities * direction
        product: Array = weighted - probabilities * weighted.sum(axis=1, keepdims=True)
        return product

    def admits(self, y: Array) -> Mask:
        fits: Mask = (y >= 0) & (y < self.classes) & (y == np.floor(y))
        return fits


def get_loss(name: str, *, classes: int = 2) -> Loss:
    """The loss of this name; `classes` is read by softmax alone."""
    match name:
        case "hinge":
            return Hinge()
        case "huber":
            return Huber()
        case "logistic":
            return Logistic()
        case "square":
            return Square()
        case "softmax":
            return Softmax(classes)
    raise InputError(f"there is no loss {name!r}; choose hinge, huber, logistic, square or softmax")


def _chosen(z: Array, y: Array) -> Array:
    chosen: Array = z[np.arange(len(z)), np.asarray(y, dtype=np.intp)]
    return chosen
