"""AdaDPS: precondition by public second moments, before clipping (Li et al., ICML 2022).

v ← βv + (1−β)ĝ² ;  A ← √v + ε_A
G ← (1/B)( Σ_{i∈S} clip_C(g_i/A) + N(0, σ²C² I) ) ;  w ← w − ηG
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from sidelight.arrays import Vector
from sidelight.clipping import Diagonal, Metric
from sidelight.errors import AssumptionError, InputError
from sidelight.methods.adamix import QuantileClip, host
from sidelight.methods.declare import method
from sidelight.methods.dope_sgd import StartName, Warm, named_start
from sidelight.methods.part_kinds import MetricRule, MetricState, Setting
from sidelight.methods.parts import ConstantNoise, FixedStep, Flat, MeanLastHalf
from sidelight.methods.recipe import Recipe


@dataclass(frozen=True)
class SecondMoments(MetricRule):
    """The metric g ↦ g/A. It is applied once: the direction is not divided again."""

    decay: float = 0.9
    floor: float | None = None  # ε_A; None: 1e-3 of the median of √v
    needs_public: ClassVar[bool] = True
    needs_gradient: ClassVar[bool] = True

    def begin(self, setting: Setting, params: Vector) -> SecondMomentsState:
        if not 0 <= self.decay < 1:
            raise InputError(f"decay must be in [0, 1), not {self.decay!r}")
        moments = (setting.public("AdaDPS").gradients(params) ** 2).mean(0)
        floor = self.floor
        if floor is None:
            roots = np.sqrt(host(moments))
            floor = 1e-3 * float(np.median(roots)) or 1e-3 * float(roots.max())
        if not floor > 0:
            raise AssumptionError("public gradients vanish at the start; pass floor=... to AdaDPS")
        return SecondMomentsState(moments, self.decay, floor)


class SecondMomentsState(MetricState):
    kept = ("moments", "seen")

    def __init__(self, moments: Vector, decay: float, floor: float) -> None:
        self.moments, self.decay, self.floor = moments, decay, floor
        self.seen = -1

    def at(self, step: int, params: Vector, public_gradient: Vector | None) -> Diagonal:
        if public_gradient is not None and step > self.seen:
            self.seen = step
            self.moments = self.decay * self.moments + (1 - self.decay) * public_gradient**2
        return Diagonal(1 / (self.moments**0.5 + self.floor))

    def public(self, metric: Metric, gradient: Vector) -> Vector:
        """The public gradient on the same scale."""
        return gradient if metric is None else metric.apply(gradient)


@method(
    group="gradient method",
    paper="Li et al., ICML 2022",
    wins="badly scaled gradients",
    loses="rotated features: it scales coordinates, and whitening scales directions",
    networks=True,
    small={"steps": 6},
)
def adadps(
    *, clip_norm: float | None = None, decay: float = 0.9, start: StartName | None = None,
    steps: int | None = None, expected_batch_size: float | None = None, step_size: float | None = None,
) -> Recipe:  # fmt: skip
    """AdaDPS. clip_norm=None takes the public 0.9 quantile of preconditioned norms.

    start: None is "warm". step_size: None is 0.1 for a linear model; a network's trainer chooses it.

    Guarantee: that of DP-SGD with the same clip_norm.
    Departs: every record is clipped alone (the reference code clips means of micro-batches).
    """
    return Recipe(
        name="adadps",
        start=named_start(start, Warm()),
        metric=SecondMoments(decay),
        clip=QuantileClip(0.9) if clip_norm is None else Flat(clip_norm),
        noise=ConstantNoise(),
        finish=MeanLastHalf(),
        steps=steps,
        expected_batch_size=expected_batch_size,
        step_size=step_size,
        step=FixedStep(0.1),
    )
