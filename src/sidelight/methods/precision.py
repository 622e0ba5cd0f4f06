"""Precision weighting, sidelight's own (METHODS 21): public and private gradients, each by what it is worth.

A ← X̂ᵀX̂ + r·I ;  M ← A^(−1/2) ;  x̃ ← Mx/‖Mx‖                  public whitening; r grows with the noise
w0 ← argmin of the public rows' mean loss + ‖v‖²/2m               the public solution
C ← 0.7 × the length of a gradient at w = 0                        of logistic loss: 0.35, not 1
κ ← m ( p s²/(f C²) + 1/n ) ,  s = z k C/(B √T)                    noise of all steps together
w ← w − η [ heavy ball of (G + κ ĝ)/(1 + κ) ]                      T = 64, mean of the last half

A mean of m public gradients has the variance f C²/(m p) in each of p whitened coordinates, that of n private
ones f C²/(n p), and the noise adds s². Two estimates of one gradient combine best by the inverses of their
variances, whose ratio is κ. With many public rows, or with strong noise, κ is large and the model that of
the public rows; with few, or with little noise, it is 0.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import DTypeLike

from sidelight import finish as finishes
from sidelight.arguments import positive
from sidelight.arrays import Floats, Matrix, Vector, dense, floats, is_sparse
from sidelight.clipping import Features, ThinFeatures
from sidelight.errors import InputError
from sidelight.methods.coupling import Weighted
from sidelight.methods.declare import method
from sidelight.methods.dp_sgd import ConstantNoise
from sidelight.methods.finishing import MeanLastHalf
from sidelight.methods.part import ClipRule, ClipState, FinishRule, Mix, MixState, Setting, Start
from sidelight.methods.parts import Flat, NoiseAware
from sidelight.methods.public_whitening import Whitening, evenly, in_span, ridge_of_noise
from sidelight.methods.recipe import Recipe
from sidelight.problems.linear import LinearProblem

__all__ = [
    "GradientAtZero",
    "Precision",
    "PublicSolution",
    "precision_weighting",
    "public_precision",
]


_BARELY_RIGHT = 0.7  # of the slope at 0: that of logistic loss at a margin of 0.62


def public_precision(
    *,
    n_public: int,
    n_private: float,
    dimension: int,
    noise_multiplier: float,
    sensitivity_factor: int,
    batch: float,
    steps: int,
    spread: float,
) -> float:
    """κ: what the mean of the public gradients is worth, where that of the private ones, with noise, is 1."""
    noise = noise_multiplier * sensitivity_factor / (batch * math.sqrt(steps))  # s/C
    return n_public * (dimension * noise**2 / spread + 1 / n_private)


@dataclass(frozen=True)
class Precision(Mix):
    """(G + κ ĝ)/(1 + κ), with κ the ratio of the two gradients' precisions.

    spread: f, the mean squared length of a clipped gradient in units of the clip norm.
    """

    spread: float = 0.3
    needs_public: ClassVar[bool] = True
    needs_gradient: ClassVar[bool] = True
    before_momentum: ClassVar[bool] = True

    def __post_init__(self) -> None:
        positive("spread", self.spread)

    def begin(self, setting: Setting, params: Vector, *, noise_multiplier: float, bound: float) -> MixState:
        m = setting.public("precision weighting").size
        dimension = setting.dimension
        if in_span(setting, m):
            dimension = len(evenly(m)) * (setting.constants.outputs or 1)
        kappa = public_precision(
            n_public=m,
            n_private=setting.n,
            dimension=dimension,
            noise_multiplier=noise_multiplier,
            sensitivity_factor=setting.sensitivity_factor,
            batch=setting.batch,
            steps=setting.steps,
            spread=self.spread,
        )
        return Weighted(kappa / (1 + kappa), {"weight": kappa / (1 + kappa)})


@dataclass(frozen=True)
class GradientAtZero(ClipRule):
    """C = 0.7 times the length of a gradient at w = 0 of a row of length 1; of square loss the mean |ŷ|.

    That length is the slope of the loss at 0: 1/2 of logistic loss, whose bound is 1. A record that is badly
    misclassified then counts as much as one that is undecided, or barely right, and the noise is a third as
    strong.
    """

    clip_norm: float | None = None
    half_square: ClassVar[bool] = True
    linear_only: ClassVar[bool] = True

    def begin(self, setting: Setting, params: Vector) -> ClipState:
        constants = setting.constants
        if self.clip_norm is not None:
            return Flat(self.clip_norm)
        if constants.target_bound is not None:
            rows = setting.public("a clip norm from public targets").rows
            return Flat(max(float(np.abs(rows.y).mean()), 1e-12))
        slope = constants.first_slope
        return Flat(setting.problem.default_clip_norm() if slope is None else _BARELY_RIGHT * slope)


@dataclass(frozen=True)
class PublicSolution(Start):
    """The solution of the public rows with a ridge of 1/m, in the coordinates of training."""

    needs_public: ClassVar[bool] = True
    linear_only: ClassVar[bool] = True

    def __call__(self, setting: Setting) -> Vector:
        problem = setting.problem
        if not isinstance(problem, LinearProblem):
            raise InputError("the public solution as a start is for linear models; take start=Warm()")
        rows = setting.public("a start at the public solution").rows
        metric = problem.unit_metric
        if metric is None:
            if problem.target_bound is None:  # asked again, with the rows that the loss sees
                return problem.start()
            ridge, span = ridge_of_noise(setting, rows.n), in_span(setting, rows.n)
            metric = Whitening.metric(rows.X, ridge=ridge, unit=False, span=span)
        if isinstance(metric, Features):
            X = np.asarray(dense(rows.X) @ floats(metric.matrix).T)
            return metric.lift(finishes.ridge_minimum(problem.loss, X, rows.y, 1 / rows.n, tolerance=1e-5))
        used = np.unique(rows.X.indices) if is_sparse(rows.X) else slice(None)  # the rest has weight 0
        inner = ThinFeatures(metric.rows[:, used], metric.core, metric.floor)
        thin = _Whitened(rows.X[:, used], inner)
        v = inner.lift(finishes.ridge_minimum(problem.loss, thin, rows.y, 1 / rows.n, tolerance=1e-5))
        start = np.zeros((problem.loss.outputs, rows.X.shape[1]))
        start[:, used] = floats(v).reshape(problem.loss.outputs, -1)
        return start.reshape(-1)


class _Whitened:
    """XM, which is not written out: the metric is a thin one."""

    def __init__(self, X: Matrix, metric: ThinFeatures, *, turned: bool = False) -> None:
        self._X, self._metric, self._turned = X, metric, turned
        self.shape = tuple(reversed(X.shape)) if turned else X.shape

    @property
    def T(self) -> _Whitened:  # noqa: N802 - as of an array
        return _Whitened(self._X, self._metric, turned=True)

    def __matmul__(self, other: Floats) -> Floats:
        if self._turned:
            return self._mapped(np.asarray(self._X.T @ other))
        return np.asarray(self._X @ self._mapped(other))

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> Floats:
        """Written out after all: a solver asks for that where few features are used."""
        return np.asarray(self @ np.eye(self.shape[1]), dtype=dtype)

    def _mapped(self, columns: Floats) -> Floats:
        """M times each column."""
        flat = floats(self._metric.apply(np.ascontiguousarray(columns.T).reshape(-1)))
        return flat.reshape(columns.T.shape).T


@method(
    group="gradient method",
    paper="A method of this project (specification, section 21)",
    wins="linear models with public rows, few or many: it moves from private to public rows as noise grows",
    loses="public rows of another population, which it trusts like the private ones",
    ours=True,
    small={"steps": 6},
)
def precision_weighting(
    *,
    ridge: float | None = None,
    clip_norm: float | None = None,
    spread: float = 0.3,
    steps: int = 64,
    step_size: float | None = None,
    momentum: float = 0.8,
    expected_batch_size: float | None = None,
    finish: FinishRule | None = None,
) -> Recipe:
    """Public whitening from the public solution, with public gradients weighed by their precision.

    Guarantee: T Gaussian releases of all records, composed exactly; sensitivity C (2C under replace-one). It
    does not depend on the weight.
    Assumes: the public records do not depend on the private ones.
    """
    return Recipe(
        name="precision_weighting",
        start=PublicSolution(),
        metric=Whitening(ridge),
        clip=GradientAtZero(clip_norm),
        noise=ConstantNoise(),
        mix=Precision(spread),
        finish=finish or MeanLastHalf(),
        steps=steps,
        step_size=step_size,
        step=NoiseAware(cap=8.0),
        momentum=momentum,
        expected_batch_size=expected_batch_size,
        default_relation="replace-one",
    )
