"""The one solver: the exact minimiser of a convex sum with a ridge and a linear term.

    Σ f(w) + (ridge/2)‖w‖² + linear·w        until ‖gradient‖ ≤ tolerance

Model reuse, the mirror step of DPMD, objective perturbation and the baselines are all of this form. Damped
Newton steps find the minimiser, a dozen or two as a rule. With one output and few features the Hessian is
factored; otherwise conjugate gradients solve for the step. The huberised hinge and the clipped square have
kinks in their slope: there the Hessian is a generalised one and backtracking keeps the step from cycling.

Whether a solver arrives would be an output if it depended on private records. So on private ones it does
not end with Newton's steps: accelerated gradient descent follows, which arrives after a number of steps that
the ratio of smoothness to ridge bounds, whatever the records are. What rounding allows is checked by the
caller, from public numbers (`attainable`). Nothing raises: the answer says how large its gradient is.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np
from scipy.linalg import cho_factor, cho_solve

from sidelight.arrays import Floats

__all__ = ["ConvexSum", "Minimum", "attainable", "minimise"]

_DENSE = 1500  # features up to which a Hessian is written out
_MOST_STEPS = 300
_UNIT = 2.0**-53
_CHAIN = 64  # units of rounding that a sum over records, added in pieces, may be off by


class ConvexSum(Protocol):
    """A convex function of a flat vector, as a rule the sum of a loss over records."""

    @property
    def outputs(self) -> int:
        """How many linear outputs a record has. With more than one, `hessian` is never asked for."""

    @property
    def dimension(self) -> int:
        """The length of w."""

    def value(self, w: Floats) -> float:
        """f(w), at least 0."""

    def precise_gradient(self, w: Floats) -> Floats:
        """∇f(w), added up so that a long sum does not round more than `attainable` says."""

    def hessian(self, w: Floats) -> Floats:
        """∇²f(w) as a matrix; where the slope has a kink, a generalised one."""

    def hessian_times(self, w: Floats, direction: Floats) -> Floats:
        """∇²f(w)·direction."""


class Minimum(NamedTuple):
    """Where the solver ended."""

    w: Floats
    gradient: float  # its length at w


def minimise(
    parts: Sequence[ConvexSum],
    *,
    ridge: float,
    linear: Floats | None = None,
    tolerance: float,
    start: Floats | None = None,
    curvature: float | None = None,
) -> Minimum:
    """The minimiser of the sum of all `parts`, or the point of smallest gradient that was met.

    Args:
        curvature: a bound on the Hessian of Σ f, for private records: with it the solver arrives.
    """
    objective = _Objective(parts, ridge, linear)
    w = np.zeros(parts[0].dimension) if start is None else start
    with np.errstate(all="ignore"):
        w, gradient = _newton(objective, w, tolerance)
        if np.linalg.norm(gradient) > tolerance and curvature is not None:
            return _accelerated(objective, w, gradient, tolerance, curvature)
    return Minimum(w, float(np.linalg.norm(gradient)))


def attainable(*, n: int, slope: float, curvature: float, ridge: float, linear: float, start: float) -> float:
    """A gradient that float64 can tell from 0, from public numbers: what rounding may leave of one.

    Terms of size n·slope + ‖linear‖ cancel in it, and a margin x·w carries the rounding of ‖w‖, which is at
    most (n·slope + ‖linear‖)/ridge, and at most √(2n·start/ridge) + 2‖linear‖/ridge since the objective at
    the minimiser is no higher than at 0.

    Args:
        slope, curvature: bounds on the gradient and the Hessian of one record.
        linear: a bound on ‖linear‖.
        start: the largest loss of one record at w = 0.
    """
    push = n * slope + linear
    length = min(push / ridge, math.sqrt(2 * n * start / ridge) + 2 * linear / ridge)
    return _UNIT * (_CHAIN * push + 2 * (n * curvature + ridge) * length)


def _newton(objective: _Objective, w: Floats, tolerance: float) -> tuple[Floats, Floats]:
    """The point with the smallest gradient that was met, and that gradient."""
    gradient = objective.gradient(w)
    best, least = w, gradient
    for _ in range(_MOST_STEPS):
        if np.linalg.norm(least) <= tolerance:
            break
        try:
            step = objective.newton_step(w, gradient)
        except (ArithmeticError, ValueError):  # a Hessian that rounding has spoiled; LinAlgError is one
            break
        w = w + _backtrack(objective, w, step, float(gradient @ step)) * step
        gradient = objective.gradient(w)
        if np.linalg.norm(gradient) < np.linalg.norm(least):
            best, least = w, gradient
    return best, least


def _accelerated(
    objective: _Objective, w: Floats, gradient: Floats, tolerance: float, curvature: float
) -> Minimum:
    """Nesterov's method for strongly convex functions (Theorem 2.2.3 of his lectures, 2004), from w on.

    f(w_k) − f* ≤ (1 − q)^k ‖g_0‖²/ridge with q = √(ridge/L), so the gradient at the extrapolated point is
    below the tolerance after at most 1 + log(18 (L/ridge)² ‖g_0‖²/tolerance²)/q steps.
    """
    smoothness = objective.ridge + curvature
    q = math.sqrt(objective.ridge / smoothness)
    length = float(np.linalg.norm(gradient))
    most = 1 + math.log(18 * (length / (q * q * tolerance)) ** 2) / q
    best, least, ahead, before = w, length, w, w
    for _ in range(math.ceil(most)):
        gradient = objective.gradient(ahead)
        length = float(np.linalg.norm(gradient))
        if length < least:
            best, least = ahead, length
        if least <= tolerance:
            break
        after = ahead - gradient / smoothness
        ahead = after + (1 - q) / (1 + q) * (after - before)
        before = after
    return Minimum(best, least)


class _Objective:
    def __init__(self, parts: Sequence[ConvexSum], ridge: float, linear: Floats | None) -> None:
        self.parts, self.ridge = parts, ridge
        self.linear = np.zeros(parts[0].dimension) if linear is None else linear
        self.dense = parts[0].outputs == 1 and parts[0].dimension <= _DENSE

    def value(self, w: Floats) -> tuple[float, float]:
        """The value, and the size of the terms that cancel in it."""
        data = math.fsum(part.value(w) for part in self.parts)
        ridge, linear = float(self.ridge / 2 * (w @ w)), float(self.linear @ w)
        return data + ridge + linear, data + ridge + abs(linear)

    def gradient(self, w: Floats) -> Floats:
        data: Floats = sum((part.precise_gradient(w) for part in self.parts), start=np.zeros_like(w))
        return data + self.ridge * w + self.linear

    def newton_step(self, w: Floats, gradient: Floats) -> Floats:
        """−H⁻¹·gradient, or near it; H ⪰ ridge·I."""
        if not self.dense:
            return self._conjugate_gradients(w, gradient)
        hessian: Floats = sum((part.hessian(w) for part in self.parts), start=np.zeros((w.size, w.size)))
        hessian[np.diag_indices_from(hessian)] += self.ridge
        return np.asarray(-cho_solve(cho_factor(hessian), gradient))

    def _conjugate_gradients(self, w: Floats, gradient: Floats) -> Floats:
        """Up to a residual that falls with the gradient, so that the last steps are Newton's own."""
        length = float(np.linalg.norm(gradient))
        goal = length * min(0.1, math.sqrt(length / (1 + np.linalg.norm(self.linear) + self.ridge)))
        step, residual = np.zeros_like(w), -gradient
        direction, squared = residual, float(residual @ residual)
        for _ in range(2 * w.size + 20):
            if math.sqrt(squared) <= goal:
                break
            bent: Floats = sum(
                (part.hessian_times(w, direction) for part in self.parts), start=self.ridge * direction
            )
            pace = squared / float(direction @ bent)
            step = step + pace * direction
            residual = residual - pace * bent
            previous, squared = squared, float(residual @ residual)
            direction = residual + (squared / previous) * direction
        return step


def _backtrack(objective: _Objective, w: Floats, step: Floats, decrease: float) -> float:
    value, terms = objective.value(w)
    rounding = 16 * np.finfo(np.float64).eps * max(1.0, terms)
    size = 1.0
    while objective.value(w + size * step)[0] > value + 1e-4 * size * decrease + rounding and size > 1e-10:
        size /= 2
    return size
