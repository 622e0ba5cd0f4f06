"""Public whitening, sidelight's own (METHODS 20): few, well-conditioned full-batch steps.

A ← X̂ᵀX̂ + I ;  M ← A^(−1/2)
classification: x̃ ← Mx/‖Mx‖ ;  regression: x̃ ← Mx/r̄
T = 64, η = 0.2·min(mμ/(64 k √p), cap)/h, heavy ball 0.8; mean of the last half, mapped back through M
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from sidelight.arrays import Matrix, Vector, dense
from sidelight.clipping import Features, Metric
from sidelight.errors import InputError
from sidelight.methods.declare import method
from sidelight.methods.dp_sgd import ConstantNoise
from sidelight.methods.finishing import MeanLastHalf
from sidelight.methods.part import ClipRule, ClipState, FinishRule, MetricRule, MetricState
from sidelight.methods.parts import Flat
from sidelight.methods.recipe import Recipe, Setting


@dataclass(frozen=True)
class Whitening(MetricRule):
    """The metric M = (X̂ᵀX̂ + ridge·I)^(−1/2) on features.

    unit: rows are brought to length 1 under M (classification: the sign of a margin does not change);
    else M is divided by the typical length of a public row under M, leaving that row out. None: by the task.
    """

    ridge: float = 1.0
    unit: bool | None = None
    needs_public: ClassVar[bool] = True
    linear_only: ClassVar[bool] = True  # it whitens feature rows

    def begin(self, setting: Setting, params: Vector) -> WhiteningState:
        if not self.ridge > 0:
            raise InputError(f"ridge must be positive, not {self.ridge!r}")
        unit = setting.constants.target_bound is None if self.unit is None else self.unit
        return WhiteningState(self.metric(setting.public("public whitening").rows.X, unit=unit), unit)

    def metric(self, rows: Matrix, *, unit: bool) -> Features:
        X = dense(rows)
        values, vectors = np.linalg.eigh(X.T @ X + self.ridge * np.eye(X.shape[1]))
        root = (vectors / np.sqrt(values)) @ vectors.T
        if unit:
            return Features(root)
        leverage = np.einsum("ij,ij->i", X @ root, X @ root)
        length = float(np.sqrt(leverage / np.maximum(1 - leverage, 1e-12)).mean()) or 1.0
        return Features(root / length)


class WhiteningState(MetricState):
    def __init__(self, metric: Features, unit: bool) -> None:
        self.fixed, self.unit_rows = metric, unit

    def at(self, step: int, params: Vector, public_gradient: Vector | None) -> Features:
        return self.fixed

    def back(self, metric: Metric, vector: Vector) -> Vector:
        return self.fixed.lift(vector)

    def public(self, metric: Metric, gradient: Vector) -> Vector:
        """The public gradient, conditioned in the same way."""
        return self.fixed.lift(self.fixed.apply(gradient))


@dataclass(frozen=True)
class PublicScaleClip(ClipRule):
    """C = mean |ŷ| for regression, the loss's own bound for classification.

    |y| is the slope of ½(z − y)² at z = 0, so a regression takes the square loss in this form.
    """

    clip_norm: float | None = None
    half_square: ClassVar[bool] = True

    def begin(self, setting: Setting, params: Vector) -> ClipState:
        if self.clip_norm is not None:
            return Flat(self.clip_norm)
        if setting.constants.target_bound is not None:
            rows = setting.public("a clip norm from public targets").rows
            return Flat(max(float(np.abs(rows.y).mean()), 1e-12))
        return Flat(float(setting.constants.lipschitz or 1.0))


@method(
    group="gradient method",
    paper="A method of this project (specification, section 20)",
    wins="linear models with correlated or badly scaled features, small ε, a few dozen public rows",
    loses="isotropic features: 50 public rows in 100 dimensions say nothing about a covariance that is flat",
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
        default_relation="replace-one",
    )
