"""What a recipe takes where nothing is given: the expected batch size, and the step size."""

from __future__ import annotations

import math
from dataclasses import dataclass

from sidelight.clipping import Metric
from sidelight.errors import InputError
from sidelight.methods.part import BatchRule, StepRule
from sidelight.methods.setting import Setting

__all__ = ["AllRecords", "NoiseAware", "SqrtBatch", "noise_aware_step"]


@dataclass(frozen=True)
class AllRecords(BatchRule):
    """Every record in every step."""


@dataclass(frozen=True)
class SqrtBatch(BatchRule):
    """B = ⌈√n⌉, at most `largest_share` of the records."""

    largest_share: float = 1.0

    def __post_init__(self) -> None:
        if not 0 < self.largest_share <= 1:
            raise InputError(f"largest_share must be in (0, 1], not {self.largest_share!r}")

    def size(self, n: int) -> float:
        return min(math.ceil(math.sqrt(n)), max(1, int(n * self.largest_share)))


@dataclass(frozen=True)
class NoiseAware(StepRule):
    """The step size of `noise_aware_step`.

    without_metric: how many times as long the noise may let a step be where there is no metric. The useful
    directions of linear problems are short then.
    """

    without_metric: float = 1.0

    def __post_init__(self) -> None:
        if not self.without_metric > 0:
            raise InputError(f"without_metric must be positive, not {self.without_metric!r}")

    def size(self, setting: Setting, *, noise_multiplier: float, momentum: float, metric: Metric) -> float:
        longer = self.without_metric if metric is None else 1.0
        top = setting.problem.longest_direction(metric)
        if top is None:
            raise InputError("NoiseAware is for linear models: this problem has no rows; pass step_size")
        z = noise_multiplier / longer
        return noise_aware_step(setting, noise_multiplier=z, momentum=momentum, top=top)


def noise_aware_step(setting: Setting, *, noise_multiplier: float, momentum: float, top: float) -> float:
    """η = (1−β)·c/(h·κ): as long as the noise allows, and never beyond what the loss is stable at.

    c = min(2/(k√T·ν), cap), with ν the length of one step's noise in units of the clip norm, so that the walk
    of all noise together has a fixed length; h the top eigenvalue of the (public) second moment, κ the
    curvature of the loss; k = 2 and a smaller cap for the square loss. Found on benchmarks (METHODS 20).
    """
    noise = noise_multiplier * setting.sensitivity_factor * math.sqrt(setting.dimension) / setting.batch
    curvature, square = setting.constants.smoothness, setting.constants.square
    cap = 16.0 if curvature is None else 4.0 if momentum else 1.8
    c = min(2 / ((2 if square else 1) * math.sqrt(setting.steps) * noise), cap)
    return (1 - momentum) * c / (top * (1.0 if curvature is None else curvature))
