"""Public whitening, sidelight's own (METHODS 20): few, well-conditioned full-batch steps.

A ← X̂ᵀX̂ + I ;  M ← A^(−1/2)
classification: x̃ ← Mx/‖Mx‖ ;  regression: x̃ ← Mx/r̄
T = 64, η = 0.2·min(mμ/(64 k √p), cap)/h, heavy ball 0.8; mean of the last half, mapped back through M
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import numpy as np

from sidelight.arrays import Array, Floats, Matrix, Vector, dense
from sidelight.clipping import FeatureMetric, Features, Metric, ThinFeatures
from sidelight.data.rows import PublicRows
from sidelight.errors import positive
from sidelight.methods.declare import method
from sidelight.methods.part_kinds import ClipRule, ClipState, FinishRule, MetricRule, MetricState, Setting
from sidelight.methods.parts import ConstantNoise, Flat, MeanLastHalf
from sidelight.methods.recipe import Recipe
from sidelight.privacy import conversions
from sidelight.problems.base import LinearProblem

_WRITTEN_OUT = 1_000  # features up to which M is a matrix
_MOST_ROWS = 1_000  # public rows that a thin metric is made of


@dataclass(frozen=True)
class Whitening(MetricRule):
    """The metric M = (X̂ᵀX̂ + ridge·I)^(−1/2) on features.

    unit: rows are brought to length 1 under M (classification: the sign of a margin does not change);
    else M is divided by the typical length of a public row under M, leaving that row out. None: by the task.
    ridge: None follows the noise (`ridge_of_noise`).
    """

    ridge: float | None = 1.0
    unit: bool | None = None
    needs_public: ClassVar[bool] = True
    takes_unlabeled: ClassVar[bool] = True
    linear_only: ClassVar[bool] = True  # it whitens feature rows

    def begin(self, setting: Setting, params: Vector) -> WhiteningState:
        positive("ridge", self.ridge, optional=True)
        unit = setting.constants.target_bound is None if self.unit is None else self.unit
        rows = public_features(setting, "public whitening")
        size = int(rows.every.shape[0])
        ridge = ridge_of_noise(setting, size) if self.ridge is None else self.ridge
        span = self.ridge is None and in_span(setting, size)
        return WhiteningState(metric_of(rows, ridge, unit=unit, span=span), unit)

    @staticmethod
    def metric(rows: Matrix, *, unit: bool, ridge: float = 1.0, span: bool = False) -> FeatureMetric:
        """M; `span` keeps only what lies in the span of the public rows."""
        if rows.shape[1] > max(_WRITTEN_OUT, rows.shape[0]):
            return _thin(rows, ridge, unit, span)
        X = dense(rows)
        values, vectors = np.linalg.eigh(X.T @ X + ridge * np.eye(X.shape[1]))
        root = (vectors / np.sqrt(values)) @ vectors.T
        if unit:
            return Features(root)
        return Features(root / _typical_length(np.einsum("ij,ij->i", X @ root, X @ root)))


@lru_cache(maxsize=2)
def metric_of(rows: PublicRows, ridge: float, *, unit: bool, span: bool) -> FeatureMetric:
    """`Whitening.metric` of public rows, remembered: several parts of one run ask for it."""
    return Whitening.metric(rows.every, ridge=ridge, unit=unit, span=span)


def public_features(setting: Setting, what: str) -> PublicRows:
    """Public rows, of which some may have no label; an error where there is none."""
    problem = setting.problem
    if isinstance(problem, LinearProblem) and problem.public is not None:
        return problem.public.rows
    return setting.linear_guide(what).rows


def _thin(rows: Matrix, ridge: float, unit: bool, span: bool) -> ThinFeatures:
    """The same without a matrix of features × features: few rows have a small rank."""
    some = evenly(int(rows.shape[0]))
    ridge, rows = ridge * len(some) / int(rows.shape[0]), rows[some]
    squares, left = np.linalg.eigh(dense(rows @ rows.T))
    kept = squares > 1e-12 * max(float(squares[-1]), 1e-300)
    squares, left = squares[kept], left[:, kept]
    floor = 0.0 if span else 1 / math.sqrt(ridge)
    core = (left * ((1 / np.sqrt(squares + ridge) - floor) / squares)) @ left.T
    if unit:
        return ThinFeatures(rows, core, floor)
    length = _typical_length(np.einsum("ij,ij->i", left * (squares / (squares + ridge)), left))
    return ThinFeatures(rows, core / length, floor / length)


def evenly(public_rows: int) -> Array:
    """Which public rows a thin metric is made of: all of them, or a thousand."""
    return np.unique(np.linspace(0, public_rows - 1, min(public_rows, _MOST_ROWS)).astype(np.intp))


def _typical_length(leverage: Floats) -> float:
    """Of a row under M that was not among the public rows."""
    return float(np.sqrt(leverage / np.maximum(1 - leverage, 1e-12)).mean()) or 1.0


def in_span(setting: Setting, public_rows: int) -> bool:
    """Whether the noise leaves so little outside the span of many fewer public rows that it is given up.

    Then their number takes the place of the number of features in everything that noise decides.
    """
    features = setting.dimension // (setting.constants.outputs or 1)
    return features > max(_WRITTEN_OUT, public_rows) and relative_noise(setting) > setting.n / public_rows


def relative_noise(setting: Setting) -> float:
    """The variance of the noise over that of a mean of n gradients."""
    mu = conversions.gdp_mu(setting.epsilon, setting.delta)
    return setting.dimension * setting.sensitivity_factor**2 / (0.3 * setting.n * mu**2)


def ridge_of_noise(setting: Setting, public_rows: int) -> float:
    """From 1 without noise to a twentieth of the number of public rows where there is much of it.

    Directions in which public rows hardly vary must be stretched to be learned at all, and hold nothing but
    noise if that is strong. Its measure is its variance over that of a mean of n gradients. Of several
    classes it is 2 throughout: what tells one class from the next may lie in any direction.
    """
    if (setting.constants.outputs or 1) > 1:
        return 2.0
    noise = relative_noise(setting)
    return max(1.0, public_rows / 20 * noise / (1 + noise))


class WhiteningState(MetricState):
    def __init__(self, metric: FeatureMetric, unit: bool) -> None:
        self.fixed, self.unit_rows = metric, unit

    def at(self, step: int, params: Vector, public_gradient: Vector | None) -> FeatureMetric:
        return self.fixed

    def back(self, metric: Metric, vector: Vector) -> Vector:
        return self.fixed.lift(vector)

    def public(self, metric: Metric, gradient: Vector) -> Vector:
        """The public gradient, conditioned in the same way."""
        return self.fixed.lift(self.fixed.apply(gradient))


@dataclass(frozen=True)
class PublicScaleClip(ClipRule):
    """C = mean |ŷ| for regression, the loss's own bound for classification.

    |y| is the slope of ½(z − y)² at z = 0, so a regression takes the square loss in this form. Without public
    targets it is half of their bound: the mean |y| of targets that fill [−1, 1] evenly.
    """

    clip_norm: float | None = None
    half_square: ClassVar[bool] = True

    def begin(self, setting: Setting, params: Vector) -> ClipState:
        if self.clip_norm is not None:
            return Flat(self.clip_norm)
        bound = setting.constants.target_bound
        if bound is not None:
            rows = public_features(setting, "a clip norm from public targets")
            return Flat(max(float(np.abs(rows.y).mean()), 1e-12) if rows.n else bound / 2)
        return Flat(float(setting.constants.lipschitz or 1.0))


@method(
    group="gradient method",
    paper="A method of this project (specification, section 20)",
    wins="linear models with correlated or badly scaled features, small ε, a few dozen public rows",
    loses="isotropic features: 50 public rows say nothing useful about 100 equal variances",
    ours=True,
    small={"steps": 6},
)
def public_whitening(
    *,
    ridge: float = 1.0,
    regression: bool | None = None,
    clip_norm: float | None = None,
    steps: int = 64,
    step_size: float | None = None,
    momentum: float = 0.8,
    expected_batch_size: float | None = None,
    finish: FinishRule | None = None,
) -> Recipe:
    """Public whitening. For a regression rows are scaled by one constant, instead of each to length 1.

    Guarantee: T Gaussian releases of all records, composed exactly; sensitivity C (2C under replace-one).
    Assumes: the public records do not depend on the private ones.
    """
    return Recipe(
        name="public_whitening",
        metric=Whitening(ridge, unit=None if regression is None else not regression),
        clip=PublicScaleClip(clip_norm),
        noise=ConstantNoise(),
        finish=finish or MeanLastHalf(),
        steps=steps,
        step_size=step_size,
        momentum=momentum,
        expected_batch_size=expected_batch_size,
    )
