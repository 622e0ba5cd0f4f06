"""The exact minimiser of a convex objective over records, by damped Newton steps.

    Σ ℓ_i(w) + (ridge/2)‖w‖² + linear·w        until ‖gradient‖ ≤ tolerance

With one output and few features the Hessian is factored; otherwise conjugate gradients solve for the step.
The huberised hinge and the clipped square have kinks in their slope: there the Hessian is a generalised one
and backtracking keeps the step from cycling.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from scipy.linalg import cho_factor, cho_solve

from sidelight.data.rows import Floats
from sidelight.erm.smooth import Records
from sidelight.errors import AssumptionError

__all__ = ["minimise"]

_DENSE = 1500  # features up to which a Hessian is written out
_MOST_STEPS = 300


def minimise(
    parts: Sequence[Records],
    *,
    ridge: float,
    linear: Floats | None = None,
    tolerance: float,
    start: Floats | None = None,
) -> Floats:
    """The minimiser over all records in `parts`; an AssumptionError, with no number in it, if it fails."""
    objective = _Objective(parts, ridge, linear)
    w = np.zeros(parts[0].dimension) if start is None else start
    gradient = objective.gradient(w)
    for _ in range(_MOST_STEPS):
        if np.linalg.norm(gradient) <= tolerance:
            return w
        step = objective.newton_step(w, gradient)
        w = w + _backtrack(objective, w, step, float(gradient @ step)) * step
        gradient = objective.gradient(w)
    raise AssumptionError(
        "the solver did not reach the accuracy that the guarantee needs. What was charged stays charged; "
        "raise regularization before trying again"
    )


class _Objective:
    def __init__(self, parts: Sequence[Records], ridge: float, linear: Floats | None) -> None:
        self.parts, self.ridge = parts, ridge
        self.linear = np.zeros(parts[0].dimension) if linear is None else linear
        self.dense = parts[0].loss.outputs == 1 and parts[0].p <= _DENSE

    def value(self, w: Floats) -> tuple[float, float]:
        """The value, and the size of the terms that cancel in it."""
        data = math.fsum(part.value(w) for part in self.parts)
        ridge, linear = float(self.ridge / 2 * (w @ w)), float(self.linear @ w)
        return data + ridge + linear, data + ridge + abs(linear)

    def gradient(self, w: Floats) -> Floats:
        data: Floats = sum((part.gradient(w) for part in self.parts), start=np.zeros_like(w))
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
