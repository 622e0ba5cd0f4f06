"""The plain parts: clipping at C or automatic, the expected batch size, and the step size."""

from __future__ import annotations

import math
from dataclasses import dataclass

from sidelight.arguments import positive
from sidelight.arrays import V, Vector
from sidelight.clipping import Metric, ThinFeatures, smallest, spacing
from sidelight.errors import InputError
from sidelight.methods.part import BatchRule, FixedClip, Setting, StepRule

__all__ = ["AllRecords", "Automatic", "Flat", "NoiseAware", "SqrtBatch", "noise_aware_step"]


@dataclass(frozen=True)
class Flat(FixedClip):
    """clip_C(v) = v·min(1, C/‖v‖), with one C for the whole run.

    None takes that of the problem, which is public: for a linear model the bound that the loss itself gives
    (its Lipschitz constant times the longest row), and for the square loss the longest gradient at w = 0,
    from the declared bound on targets; for a network 1.
    """

    clip_norm: float | None = None

    def __post_init__(self) -> None:
        positive("clip_norm", self.clip_norm, optional=True)

    def begin(self, setting: Setting, params: Vector) -> Flat:
        return Flat(setting.problem.default_clip_norm()) if self.clip_norm is None else self

    @property
    def bound(self) -> float:
        if self.clip_norm is None:
            raise InputError("Flat() takes its bound from a problem when a run begins; pass clip_norm")
        return self.clip_norm

    @property
    def flat(self) -> bool:
        return True

    def factors(self, norms: V) -> V:
        # A few ulp below C: the quotient, its product with the norm and the sum may each round upwards.
        target = self.bound * (1 - 4 * spacing(norms))
        return target / norms.clip(min=target)


@dataclass(frozen=True)
class Automatic(FixedClip):
    """Automatic clipping, v·R/(‖v‖ + γ): every contribution is scaled, none reaches R.

    Bu, Wang, Zha & Karypis (arXiv:2206.07136v3). γ = 0 normalises; the zero vector stays zero.
    """

    bound: float = 1.0
    gamma: float = 1.0

    def __post_init__(self) -> None:
        positive("bound", self.bound)
        if not (math.isfinite(self.gamma) and self.gamma >= 0):
            raise InputError(f"gamma must be a number of at least 0, not {self.gamma!r}")

    def factors(self, norms: V) -> V:
        # The floor keeps the factor finite where γ = 0 meets a norm of (nearly) 0; it only ever shortens.
        target = self.bound * (1 - 4 * spacing(norms))
        return target / (norms + self.gamma).clip(min=smallest(norms) * max(1.0, self.bound))


# ---------------------------------------------------------------------------------------------------
# where nothing is given: the expected batch size, and the step size


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
    cap: of c; None is 4 for a smooth loss with momentum, 1.8 without, and 16 for the hinge.
    """

    without_metric: float = 1.0
    cap: float | None = None

    def __post_init__(self) -> None:
        if not self.without_metric > 0:
            raise InputError(f"without_metric must be positive, not {self.without_metric!r}")
        positive("cap", self.cap, optional=True)

    def size(self, setting: Setting, *, noise_multiplier: float, momentum: float, metric: Metric) -> float:
        longer = self.without_metric if metric is None else 1.0
        top = setting.problem.longest_direction(metric)
        if top is None:
            raise InputError("NoiseAware is for linear models: this problem has no rows; pass step_size")
        z = noise_multiplier / longer
        if isinstance(metric, ThinFeatures) and metric.floor == 0:  # noise outside its span has no effect
            z *= math.sqrt(
                min(1.0, metric.rows.shape[0] * (setting.constants.outputs or 1) / setting.dimension)
            )
        return noise_aware_step(setting, noise_multiplier=z, momentum=momentum, top=top, cap=self.cap)


def noise_aware_step(
    setting: Setting, *, noise_multiplier: float, momentum: float, top: float, cap: float | None = None
) -> float:
    """η = (1−β)·c/(h·κ): as long as the noise allows, and never beyond what the loss is stable at.

    c = min(2/(k√T·ν), cap), with ν the length of one step's noise in units of the clip norm, so that the walk
    of all noise together has a fixed length; h the top eigenvalue of the (public) second moment, κ the
    curvature of the loss; k = 2 and a smaller cap for the square loss. Found on benchmarks (METHODS 20).
    """
    noise = noise_multiplier * setting.sensitivity_factor * math.sqrt(setting.dimension) / setting.batch
    curvature, square = setting.constants.smoothness, setting.constants.square
    if cap is None:
        cap = 16.0 if curvature is None else 4.0 if momentum else 1.8
    c = min(2 / ((2 if square else 1) * math.sqrt(setting.steps) * noise), cap)
    return (1 - momentum) * c / (top * (1.0 if curvature is None else curvature))
