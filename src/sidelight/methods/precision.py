"""Precision weighting, sidelight's own (METHODS 21): public and private gradients, each by what it is worth.

A ← X̂ᵀX̂ + r·I ;  M ← A^(−1/2)/r̄ ;  x̃ ← Mx                     public whitening; r grows with the noise
w0 ← argmin of the public rows' mean loss + ‖v‖²/2m               the public solution
C ← c × the length of a gradient at w = 0, c of 0.7, 1, 1.4, 2     by public folds and the noise
κ ← m ( p s²/(f C²) + 1/n ) ,  s = z k C/(B √T)                    noise of all steps together
Σ η ≤ n′ + m ,  n′ = C²/(p s²)                                     no longer a way than the noise leaves worth
w ← w − η [ heavy ball of (G + κ ĝ)/(1 + κ) ]                      T = 64, mean of the last half

A mean of m public gradients has the variance f C²/(m p) in each of p whitened coordinates, that of n private
ones f C²/(n p), and the noise adds s². Two estimates of one gradient combine best by the inverses of their
variances, whose ratio is κ. With many public rows, or with strong noise, κ is large and the model that of
the public rows; with few, or with little noise, it is 0. Fewer public rows than coordinates tell about as
many directions as there are rows: spread over all of them their precision is m/p of that, and f is p/m times
as large.

Noise of variance s² in each coordinate is that of a mean of n′ gradients of length C. In coordinates in which
rows have length 1 and a model's weights are of order 1, the posterior mean lies no further from the public
solution than the sum of n′ gradients. A longer way adds noise in the directions of which public rows say
nothing, where nothing pulls it back. (That a mean of n gradients varies by itself needs no such limit: it
varies little where the loss is flat.)

A small C is little noise, and a bias: a record that is badly misclassified counts no more than one that is
undecided. Where labels are noisy that costs nothing. Where classes are nearly separable it costs much, for
the few errors are what is left to learn from. Folds of the public rows, trained with clipped gradients, show
which of the two a table is (`public_folds`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import DTypeLike

from sidelight.arrays import Floats, Matrix, Vector, dense, floats, is_sparse
from sidelight.clipping import Features, Metric, ThinFeatures
from sidelight.errors import InputError, positive
from sidelight.methods.coupling import Weighted
from sidelight.methods.declare import method
from sidelight.methods.part import ClipRule, ClipState, FinishRule, Mix, MixState, Setting, Start
from sidelight.methods.parts import ConstantNoise, Flat, MeanLastHalf, NoiseAware
from sidelight.methods.public_folds import Rehearsed, best_clip, rehearsed
from sidelight.methods.public_whitening import (
    Whitening,
    WhiteningState,
    evenly,
    in_span,
    metric_of,
    relative_noise,
    ridge_of_noise,
)
from sidelight.methods.recipe import Recipe
from sidelight.problems.linear import LinearProblem
from sidelight.solvers import ridge_minimum

__all__ = [
    "AsFarAsWorth",
    "GradientAtZero",
    "LengthKept",
    "Precision",
    "PublicSolution",
    "precision_weighting",
    "public_precision",
    "spread_of",
]


_BARELY_RIGHT = 0.7  # of the slope at 0: that of logistic loss at a margin of 0.62
SPREAD, _LEAST_SPREAD = 0.3, 0.003  # of a regression, whose residuals are shorter than its targets; the least


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

    spread: f, the mean squared length of a clipped gradient in units of the clip norm. None: that of public
    records in folds (`spread_of`).
    """

    spread: float | None = None
    needs_public: ClassVar[bool] = True
    needs_gradient: ClassVar[bool] = True
    before_momentum: ClassVar[bool] = True

    def __post_init__(self) -> None:
        positive("spread", self.spread, optional=True)

    def begin(self, setting: Setting, params: Vector, *, noise_multiplier: float, bound: float) -> MixState:
        spread = self.spread or spread_of(setting, bound)
        kappa = _precision_of(setting, noise_multiplier=noise_multiplier, spread=spread)
        details = {
            "weight": kappa / (1 + kappa),
            "noise_worth": _worth_of_noise(setting, noise_multiplier=noise_multiplier),
        }
        return Weighted(kappa / (1 + kappa), details)


def _precision_of(setting: Setting, *, noise_multiplier: float, spread: float) -> float:
    m = setting.public("precision weighting").size
    dimension = setting.dimension
    if in_span(setting, m):
        dimension = len(evenly(m)) * (setting.constants.outputs or 1)
    return public_precision(
        n_public=m,
        n_private=setting.n,
        dimension=dimension,
        noise_multiplier=noise_multiplier,
        sensitivity_factor=setting.sensitivity_factor,
        batch=setting.batch,
        steps=setting.steps,
        spread=spread,
    )


def _worth_of_noise(setting: Setting, *, noise_multiplier: float) -> float:
    """n′: how many gradients of length C have a mean that varies as much as the noise of all steps."""
    m = setting.public("precision weighting").size
    whole = _precision_of(setting, noise_multiplier=noise_multiplier, spread=1.0)
    return m / max(whole - m / setting.n, 1e-300)


@dataclass(frozen=True)
class AsFarAsWorth(NoiseAware):
    """The step size of `NoiseAware`, and no longer a way in all than the noise leaves worth: n′ + m.

    Of T steps with heavy ball β, of whose iterates the last half is averaged, 3T/4(1−β) count. n′ is for
    gradients of length C (f = 1), which is the most that they can be.
    """

    needs_public: ClassVar[bool] = True

    def size(self, setting: Setting, *, noise_multiplier: float, momentum: float, metric: Metric) -> float:
        allowed = super().size(setting, noise_multiplier=noise_multiplier, momentum=momentum, metric=metric)
        m = setting.public("a way as long as the noise leaves worth").size
        worth = _worth_of_noise(setting, noise_multiplier=noise_multiplier)
        return min(allowed, (worth + m) * (1 - momentum) / (0.75 * setting.steps))


@dataclass(frozen=True)
class LengthKept(Whitening):
    """Whitening that leaves rows their length where scores are log-odds but for a scale.

    Those of hinge, huber and square loss on labels are none: there each row is brought to length 1, which is
    no worse, and with the square loss, whose slope has no bound, better.
    """

    def begin(self, setting: Setting, params: Vector) -> WhiteningState:
        unit = setting.constants.target_bound is None and not _proper(setting)
        return Whitening(self.ridge, unit if self.unit is None else self.unit).begin(setting, params)


@dataclass(frozen=True)
class GradientAtZero(ClipRule):
    """C = c times the length of a gradient at w = 0 of a row of length 1; of square loss the mean |ŷ|.

    That length is the slope of the loss at 0: 1/2 of logistic loss, whose bound is 1. c is 0.7 where noise is
    strong or clipping does no harm: a record that is badly misclassified then counts as much as one that is
    undecided, or barely right, and the noise is a third as strong. Else folds of the public rows decide.
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
        if slope is None:
            return Flat(setting.problem.default_clip_norm())
        found = _folds(setting)
        return Flat(_BARELY_RIGHT * slope if found is None else best_clip(found, relative_noise(setting)))


def _proper(setting: Setting) -> bool:
    """Whether the loss is least at true probabilities."""
    return setting.constants.loss in ("logistic", "softmax")


def _folds(setting: Setting) -> Rehearsed | None:
    """What folds of the public rows say about clipping; None of a regression, or where they cannot tell."""
    problem, slope = setting.problem, setting.constants.first_slope
    if not isinstance(problem, LinearProblem) or slope is None or not _proper(setting):
        return None
    rows = setting.public("folds of public rows").rows
    return rehearsed(rows, problem.loss, slope, ridge_of_noise(setting, rows.n))


def spread_of(setting: Setting, clip_norm: float | None = None) -> float:
    """f at a clip norm; None is the one that folds of the public rows choose. p/m as above, per output.

    Where folds cannot tell it is 1, that of gradients of which all are clipped. Of a regression it is 0.3,
    whatever p is: measured, and residuals are shorter than targets.
    """
    if setting.constants.target_bound is not None:
        return SPREAD
    found = _folds(setting)
    if found is None:
        return 1.0
    clip_norm = best_clip(found, relative_noise(setting)) if clip_norm is None else clip_norm
    m = setting.public("precision weighting").size
    features = setting.dimension / (setting.constants.outputs or 1)
    return float(np.clip(found.spread(clip_norm) * max(1.0, features / m), _LEAST_SPREAD, 1.0))


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
            ridge, span = ridge_of_noise(setting, rows.n), in_span(setting, rows.n)
            metric = metric_of(rows, ridge, unit=False, span=span)
        if isinstance(metric, Features):
            X = np.asarray(dense(rows.X) @ floats(metric.matrix).T)
            return metric.lift(ridge_minimum(problem.loss, X, rows.y, 1 / rows.n, tolerance=1e-5))
        used = np.unique(rows.X.indices) if is_sparse(rows.X) else slice(None)  # the rest has weight 0
        inner = ThinFeatures(metric.rows[:, used], metric.core, metric.floor)
        thin = _Whitened(rows.X[:, used], inner)
        v = inner.lift(ridge_minimum(problem.loss, thin, rows.y, 1 / rows.n, tolerance=1e-5))
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
    spread: float | None = None,
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
        metric=LengthKept(ridge),
        clip=GradientAtZero(clip_norm),
        noise=ConstantNoise(),
        mix=Precision(spread),
        finish=finish or MeanLastHalf(),
        steps=steps,
        step_size=step_size,
        step=AsFarAsWorth(cap=8.0),
        momentum=momentum,
        expected_batch_size=expected_batch_size,
    )
