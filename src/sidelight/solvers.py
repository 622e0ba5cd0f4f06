"""The one solver, and what it solves on public rows.

The solver finds the exact minimizer of a convex sum with a ridge and a linear term:

    Σ f(w) + (ridge/2)‖w‖² + linear·w        until ‖gradient‖ ≤ tolerance

Model reuse, the mirror step of DPMD, objective perturbation and the baselines are all of this form. Damped
Newton steps find the minimizer, a dozen or two as a rule. With one output and few features the Hessian is
factored; otherwise conjugate gradients solve for the step. The huberized hinge and the clipped square have
kinks in their slope: there the Hessian is a generalized one and backtracking keeps the step from cycling.

Whether a solver arrives would be an output if it depended on private records. So on private ones it does
not end with Newton's steps: accelerated gradient descent follows, which arrives after a number of steps that
the ratio of smoothness to ridge bounds, whatever the records are. What rounding allows is checked by the
caller, from public numbers (`attainable`). Nothing raises: the answer says how large its gradient is.

A refit on public rows is post-processing of a released model and costs no privacy.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np
from scipy.linalg import cho_factor, cho_solve
from scipy.sparse import csr_array

from sidelight.arrays import Array, Floats, Matrix, dense, is_sparse
from sidelight.errors import AssumptionError, InputError
from sidelight.losses import Hinge, Huber, Loss, Softmax

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
        """∇²f(w) as a matrix; where the slope has a kink, a generalized one."""

    def hessian_times(self, w: Floats, direction: Floats) -> Floats:
        """∇²f(w)·direction."""


class Minimum(NamedTuple):
    """Where the solver ended."""

    w: Floats
    gradient: float  # its length at w


def minimize(
    parts: Sequence[ConvexSum],
    *,
    ridge: float,
    linear: Floats | None = None,
    tolerance: float,
    start: Floats | None = None,
    curvature: float | None = None,
) -> Minimum:
    """The minimizer of the sum of all `parts`, or the point of smallest gradient that was met.

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
    the minimizer is no higher than at 0.

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


# ---------------------------------------------------------------------------------------------------
# model reuse, and ridge regression on public rows


_SHARP = 0.02  # half-width of the huberized hinge where the hinge itself is not needed


def reuse(
    loss: Loss, X_public: Matrix, y_public: Array, w: Array, lam: float, *, tolerance: float = 1e-10
) -> Floats:
    """Model reuse: argmin_u (1/n) Σ_j ℓ(u; x̂_j, ŷ_j) + λ‖u − w‖², exactly (last line of PPSGD's Algorithm 1).

    `w` is a released parameter vector, flat or (outputs, p); the answer has its shape. The gradient at the
    answer is at most `tolerance` (hinge: the duality gap is), relative to the size of its terms at w if that
    is above 1. Without public rows the answer is w.
    """
    if not (math.isfinite(lam) and lam > 0):
        raise AssumptionError(f"model reuse needs lam > 0, or its solution is not unique; it was {lam!r}")
    X: Matrix = X_public if is_sparse(X_public) and X_public.shape[0] < X_public.shape[1] else dense(X_public)
    y = np.asarray(y_public, dtype=np.float64)
    start = np.asarray(w, dtype=np.float64)
    weights = start.reshape(loss.outputs, -1)
    if X.ndim != 2 or X.shape != (len(y), weights.shape[1]):
        raise InputError(f"X_public must be {len(y)} × {weights.shape[1]}, as y_public and w, not {X.shape}")
    if not (np.isfinite(X.data if is_sparse(X) else X).all() and loss.admits(y).all()):
        raise InputError(f"public rows must be finite, with targets that the {loss.name} loss is defined for")
    if len(y) == 0:
        return start.copy()
    moved = _shift(loss, X, y, X @ (weights[0] if loss.outputs == 1 else weights.T), lam, tolerance)
    return np.asarray(start + moved.reshape(start.shape))


class RowProducts(Protocol):
    """A matrix of public rows, as far as a solver needs one: products with it and with its transpose."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def T(self) -> RowProducts: ...  # noqa: N802 - as of an array

    def __matmul__(self, other: Floats) -> Floats: ...


def ridge_minimum(
    loss: Loss,
    X_public: Matrix | RowProducts,
    y_public: Array,
    strength: float,
    *,
    start: Floats | None = None,
    tolerance: float = 1e-7,
) -> Floats:
    """argmin_w (1/n) Σ_j ℓ(w; x̂_j, ŷ_j) + (strength/2)‖w‖², flat. The hinge is huberized.

    The search begins at `start`; the answer does not depend on it beyond the tolerance. Where rounding stands
    in the way of the tolerance, it is the best point that was met.
    """
    y = np.asarray(y_public, dtype=np.float64)
    smooth: Loss = Huber(_SHARP) if isinstance(loss, Hinge) else loss
    if isinstance(X_public, np.ndarray) and X_public.shape[0] < X_public.shape[1]:
        directions, triangle = np.linalg.qr(X_public.T)
        inner = ridge_minimum(smooth, np.ascontiguousarray(triangle.T), y, strength, tolerance=tolerance)
        return np.asarray((inner.reshape(loss.outputs, -1) @ directions.T).reshape(-1))
    base = np.zeros((len(y), loss.outputs) if loss.outputs > 1 else len(y))
    if isinstance(X_public, csr_array):  # the weight of a column that no row has is 0
        used = np.unique(X_public.indices)
        w = np.zeros((loss.outputs, int(X_public.shape[1])))
        near = None if start is None else start.reshape(w.shape)[:, used].reshape(-1)
        part = _smooth(smooth, X_public[:, used], y, base, strength / 2, tolerance, near, strict=False)
        w[:, used] = part.reshape(loss.outputs, -1)
        return w.reshape(-1)
    return _smooth(smooth, X_public, y, base, strength / 2, tolerance, start, strict=False)


def _shift(loss: Loss, X: Matrix, y: Floats, base: Floats, lam: float, tolerance: float) -> Floats:
    """v = u − w, flat. It lies in the span of the rows: with fewer rows than features, look there."""
    n, p = X.shape
    if is_sparse(X):  # many features: products with the rows are all that is needed of them
        smooth: Loss = Huber(_SHARP) if isinstance(loss, Hinge) else loss
        return _smooth(smooth, X, y, base, lam, max(tolerance, 1e-7), strict=False)
    if n < p:
        directions, triangle = np.linalg.qr(X.T)
        shift = _solve(loss, np.ascontiguousarray(triangle.T), y, base, lam, tolerance)
        return np.asarray((shift.reshape(loss.outputs, -1) @ directions.T).reshape(-1))
    return _solve(loss, X, y, base, lam, tolerance)


def _solve(loss: Loss, A: Floats, y: Floats, base: Floats, lam: float, tolerance: float) -> Floats:
    if isinstance(loss, Hinge):
        return _solve_hinge(A, y, base, lam, tolerance)
    return _smooth(loss, A, y, base, lam, tolerance)


class _Losses:
    """Σ_j ℓ(base_j + a_j·v) as the solver asks for it; v is flat, one output after another."""

    def __init__(self, loss: Loss, A: Matrix | RowProducts, y: Array, base: Floats) -> None:
        self.loss, self.A, self.base = loss, A, base
        self.y = y.astype(np.intp) if loss.task == "multiclass" else y
        self.outputs, self.dimension = loss.outputs, loss.outputs * A.shape[1]

    def value(self, v: Floats) -> float:
        return float(self.loss.value(self._margins(v), self.y).sum())

    def precise_gradient(self, v: Floats) -> Floats:
        return self._back(self.loss.slope(self._margins(v), self.y))

    def hessian(self, v: Floats) -> Floats:
        curvatures = self.loss.curvature(self._margins(v), self.y)
        bent = curvatures > 0  # of a huberized hinge few records are
        A = dense(self.A)  # asked for with few features alone
        rows = A if bent.all() else A[bent]
        return np.asarray((rows.T * curvatures[bent]) @ rows)

    def hessian_times(self, v: Floats, direction: Floats) -> Floats:
        moved = self.A @ self._weights(direction)
        if isinstance(self.loss, Softmax):
            return self._back(self.loss.curvature_times(self._margins(v), moved))
        return self._back(self.loss.curvature(self._margins(v), self.y) * moved)

    def terms(self, v: Floats) -> float:
        """The size of the terms that cancel in the gradient."""
        slopes = self.loss.slope(self._margins(v), self.y)
        data = self.A.data if is_sparse(self.A) else self.A
        size = float(np.linalg.norm(data)) if isinstance(data, np.ndarray) else math.sqrt(self.A.shape[0])
        return size * float(np.linalg.norm(slopes))

    def _margins(self, v: Floats) -> Floats:
        return np.asarray(self.base + self.A @ self._weights(v))

    def _weights(self, v: Floats) -> Floats:
        return v if self.outputs == 1 else v.reshape(self.outputs, -1).T

    def _back(self, slopes: Array) -> Floats:
        return np.asarray((self.A.T @ slopes).T.reshape(-1))


def _smooth(
    loss: Loss,
    A: Matrix | RowProducts,
    y: Array,
    base: Floats,
    lam: float,
    tolerance: float,
    start: Floats | None = None,
    *,
    strict: bool = True,
) -> Floats:
    """The minimizer for a loss with a slope, flat. Everything is n times the mean objective.

    strict: whether it is an error if rounding keeps the solver from its goal.
    """
    n, losses = len(y), _Losses(loss, A, y, base)
    v = np.zeros(losses.dimension) if start is None else start
    goal = tolerance * max(n, losses.terms(v))
    minimum = minimize([losses], ridge=2 * lam * n, tolerance=goal, start=v)
    if strict and minimum.gradient > goal:
        raise AssumptionError("model reuse did not converge; scale the features or raise lam")
    return minimum.w


# ---------------------------------------------------------------------------------------------------
# hinge: the dual


def _solve_hinge(A: Floats, y: Floats, base: Floats, lam: float, tolerance: float) -> Floats:
    """Multipliers a ∈ [0, 1]ⁿ with v = Σ_j a_j y_j x_j/(2λn), until the duality gap closes.

    Ever sharper huberized hinges come near: their slopes are feasible multipliers, and once the set of
    records on the margin is right, the optimality conditions are linear. Coordinate ascent does the rest.
    """
    dual = _HingeDual(A * y[:, None], y * base, 2 * lam * len(y))
    goal = tolerance * 1e-3  # reached at once when the set on the margin is right
    ones, v = np.ones(len(y)), np.zeros(A.shape[1])
    for h in 10.0 ** -np.arange(7):
        loss = Huber(float(h))
        v = _smooth(loss, dual.rows, ones, dual.base, lam, 1e-8, v)
        a = dual.polished(-loss.slope(dual.base + dual.rows @ v, ones))
        if dual.gap(a) <= goal:
            return dual.shift(a)
    for sweep in range(2000):
        a = dual.polished(dual.ascended(a))
        if dual.gap(a) <= (goal if sweep < 20 else tolerance):  # rounding may stand in the way of the goal
            return dual.shift(a)
    raise AssumptionError("model reuse did not close the duality gap; scale the features or raise lam")


class _HingeDual:
    """The dual of (1/n) Σ max(0, 1 − base_j − rows_j·v) + λ‖v‖²; rows and base carry the label's sign."""

    def __init__(self, rows: Floats, base: Floats, reach: float) -> None:
        self.rows, self.base, self.reach = rows, base, reach
        self._squares = np.einsum("ij,ij->i", rows, rows)

    def shift(self, a: Floats) -> Floats:
        return np.asarray(self.rows.T @ a / self.reach)

    def gap(self, a: Floats) -> float:
        """Primal minus dual value: a mean of slacknesses, none negative, relative to the size of margins."""
        short = 1 - self.base - self.rows @ self.shift(a)
        return float((np.maximum(short, 0) - a * short).mean() / max(1.0, float(np.abs(short).mean())))

    def polished(self, a: Floats) -> Floats:
        """Multipliers strictly between 0 and 1 belong to margins of exactly 1: solve for them, if it fits."""
        free = (a > 0) & (a < 1)
        if not free.any():
            return a
        rows = self.rows[free]
        short = 1 - self.base[free] - rows @ self.shift(np.where(free, 0.0, a))
        inverse = np.linalg.pinv(rows, rcond=1e-12)
        exact = inverse.T @ (inverse @ short) * self.reach  # rows·rowsᵀ·exact = short·reach
        if exact.min() < 0 or exact.max() > 1:
            return a
        polished = a.copy()
        polished[free] = exact
        return polished

    def ascended(self, a: Floats) -> Floats:
        """One sweep over the coordinates: a_j ← clip(a_j + 2λn(1 − margin_j)/‖x_j‖², 0, 1)."""
        a, v = a.copy(), self.shift(a)
        for j in np.flatnonzero(self._squares > 0):
            short = 1 - self.base[j] - self.rows[j] @ v
            new = min(max(a[j] + self.reach * short / self._squares[j], 0.0), 1.0)
            v += (new - a[j]) / self.reach * self.rows[j]
            a[j] = new
        return a
