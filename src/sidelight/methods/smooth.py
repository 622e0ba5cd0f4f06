"""What the convex proofs need: a loss with bounded slope and curvature, and sums over records.

Output perturbation, RSGD-AR, objective perturbation and PNSGD prove their guarantee from three numbers.
For rows of norm at most X,

    R   bounds the gradient of one record (the data part alone: a regularizer is the same in both worlds)
    β   bounds the Hessian of one record
    λ   is the weight of (λ/2)‖w‖², so the objective is (β + λ)-smooth and λ-strongly convex

A loss without such numbers is refused, or changed into one that has them and the change is reported.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np

from sidelight.arrays import Array
from sidelight.errors import AssumptionError, InputError, PrivacyWarning, not_negative
from sidelight.losses import RAMP, Kind, Loss, Square
from sidelight.methods.task import Task


@dataclass(frozen=True)
class ClippedSquare(Loss):
    """scale·(z − y)² with its slope clipped to ±bound: quadratic near the target, linear beyond.

    Clipping a scalar derivative keeps a loss convex and as smooth as it was (METHODS 7.4), which clipping a
    gradient vector does not.
    """

    name: ClassVar[str] = "square"
    task: ClassVar[Kind] = "regression"
    bound: float
    scale: float = 1.0

    @property
    def lipschitz(self) -> float:  # type: ignore[override]
        return self.bound

    @property
    def smoothness(self) -> float:  # type: ignore[override]
        return 2 * self.scale

    def value(self, z: Array, y: Array) -> Array:
        residual = np.abs(z - y)
        inside = np.minimum(residual, self.bound / (2 * self.scale))
        value: Array = self.scale * inside * inside + self.bound * (residual - inside)
        return value

    def slope(self, z: Array, y: Array) -> Array:
        return np.clip((2 * self.scale) * (z - y), -self.bound, self.bound)

    def curvature(self, z: Array, y: Array) -> Array:
        room = self.bound - 2 * self.scale * np.abs(z - y)
        curvature: Array = (2 * self.scale) * np.clip(room / (RAMP * self.bound), 0, 1)
        return curvature


@dataclass(frozen=True)
class StraightBeyond(Loss):
    """A smooth loss of the margin whose slope is clipped to ±bound: beyond the knee it continues as a line.

    It is convex and as smooth as it was, which a clipped gradient vector is not (Song, Steinke, Thakkar &
    Thakurta, AISTATS 2021; Section 5 of arXiv:2401.00583v1).
    """

    name: ClassVar[str] = "clipped"
    task: ClassVar[Kind] = "binary"
    base: Loss
    bound: float

    @property
    def lipschitz(self) -> float:  # type: ignore[override]
        return self.bound

    @property
    def smoothness(self) -> float | None:  # type: ignore[override]
        return self.base.smoothness

    @property
    def steepness_at_zero(self) -> float | None:
        return self.base.steepness_at_zero

    @cached_property
    def knee(self) -> float:
        """The margin at which the slope reaches the bound; it is never steeper above."""
        low, high, one = -60.0, 60.0, np.ones(1)
        for _ in range(80):
            middle = (low + high) / 2
            steep = float(np.abs(self.base.slope(np.array([middle]), one))[0]) > self.bound
            low, high = (middle, high) if steep else (low, middle)
        return high

    def value(self, z: Array, y: Array) -> Array:
        margin = y * z
        above = np.maximum(margin, self.knee)
        value: Array = self.base.value(above, np.ones_like(above)) + self.bound * (above - margin)
        return value

    def slope(self, z: Array, y: Array) -> Array:
        return np.clip(self.base.slope(z, y), -self.bound, self.bound)

    def curvature(self, z: Array, y: Array) -> Array:
        curvature: Array = self.base.curvature(z, y) * np.clip((y * z - self.knee) / RAMP, 0, 1)
        return curvature


@dataclass(frozen=True)
class Smooth:
    """A loss and the numbers R, β, λ that hold for it on this task; `assumptions` says what was changed."""

    loss: Loss
    data_bound: float
    curvature: float
    regularization: float
    assumptions: tuple[str, ...]

    @property
    def smoothness(self) -> float:
        """L of the whole objective."""
        return self.curvature + self.regularization

    @property
    def strong_convexity(self) -> float:
        """μ of the whole objective."""
        return self.regularization


def smooth(
    task: Task, *, method: str, regularization: float, scalar: bool = False, slope_share: float = 1.0
) -> Smooth:
    """The task's loss with its constants, or AssumptionError before anything is charged.

    The task's own λ wins over `regularization` if it is positive. `scalar` asks for one output per record.
    `slope_share` clips the slope of the loss to this share of its largest.
    """
    if not 0 < slope_share <= 1:
        raise InputError(f"slope_share must be in (0, 1], not {slope_share!r}")
    loss = task.loss
    if slope_share < 1 and loss.outputs > 1:
        raise AssumptionError(f"slope_share is for a loss of one output, which the {loss.name} loss is not")
    if loss.smoothness is None:
        raise AssumptionError(
            f"{method} needs a smooth loss, and the {loss.name} loss has a corner: "
            "a (sub)gradient step on it is not a contraction. Use loss='huber', the huberized hinge."
        )
    if scalar and loss.outputs > 1:
        raise AssumptionError(
            f"{method} is analyzed for one linear output per record, and the {loss.name} loss has "
            f"{loss.outputs}. Use rsgd_ar or output_perturbation, or a two-class loss."
        )
    not_negative("regularization", regularization)
    if task.n < 1 or (task.target_bound is not None and not 0 < task.target_bound < math.inf):
        raise InputError("there must be a private record, and the bound on targets must be positive")
    notes: tuple[str, ...] = ()
    if isinstance(loss, Square):
        target = 1.0 if task.target_bound is None else task.target_bound
        loss = ClippedSquare(2 * loss.scale * target * slope_share, loss.scale)
        notes = (
            f"the slope of the square loss is clipped to ±{loss.bound:g}, that of a residual of "
            f"{target * slope_share:g} "
            f"({'labels ±1' if task.target_bound is None else 'the declared bound on targets'}); "
            "residuals beyond it count linearly, and the guarantee does not depend on the targets",
        )
    elif slope_share < 1 and loss.task == "binary" and loss.lipschitz is not None:
        loss = StraightBeyond(loss, slope_share * loss.lipschitz)
        notes = (f"the slope of the {task.loss.name} loss is clipped to ±{loss.bound:g}",)
    if loss.lipschitz is None or loss.smoothness is None:
        raise AssumptionError(
            f"{method} needs a loss with bounded slope, which the {loss.name} loss does not have"
        )
    return Smooth(
        loss=loss,
        data_bound=loss.lipschitz * task.max_norm,
        curvature=loss.smoothness * task.max_norm**2,
        regularization=task.regularization or regularization,
        assumptions=(f"every row has norm at most {task.max_norm:g}, by clipping", *notes),
    )


def contraction(step_size: float, *, smoothness: float, strong_convexity: float) -> float:
    """κ = max(|1 − ημ|, |1 − ηL|): how far apart a gradient step leaves two points, at most.

    Lemma 2 of Chen, Lee & Kifer (AISTATS 2019): the Jacobian of a step is I − η·Hessian, with eigenvalues
    between 1 − ηL and 1 − ημ.
    """
    return max(abs(1 - step_size * strong_convexity), abs(1 - step_size * smoothness))


def warn_expansion(method: str, step_size: float, problem: Smooth) -> None:
    """Say that a step size is above 2/L: the guarantee holds, at the price of a growing sensitivity."""
    shape = {"smoothness": problem.smoothness, "strong_convexity": problem.strong_convexity}
    if contraction(step_size, **shape) > 1:
        warnings.warn(
            f"{method}: step_size={step_size:g} is above 2/L = {2 / problem.smoothness:.4g}, so steps are "
            "not contractions and each of them adds to the sensitivity; lower step_size",
            PrivacyWarning,
            stacklevel=4,
        )


def check_batch_size(batch_size: int, n: int) -> None:
    """Raise InputError for more records than there are, or none."""
    if not 1 <= batch_size <= n:
        raise InputError(f"batch_size must be from 1 to the {n:,} records there are, not {batch_size!r}")


def batch_sizes(n: int, batch_size: int | None, *, batches: int = 10) -> Sequence[int]:
    """n records in batches of about `batch_size` (None: n/batches), which differ in size by at most one."""
    if batch_size is not None:
        check_batch_size(batch_size, n)
    count = max(1, min(n, batches if batch_size is None else round(n / batch_size)))
    size, larger = divmod(n, count)
    return [size + 1] * larger + [size] * (count - larger)
