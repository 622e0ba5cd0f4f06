"""DPMD: public data as a mirror map (Amid et al., ICML 2022).

exact:        ∇Ψ(w_{t+1}) = ∇Ψ(w_t) − ηG,  Ψ(w) = (1/n) Σ ℓ(w; ẑ_j) + (λ/2)‖w‖²
first order:  w ← w − η[(1−α_t) G + α_t ĝ],  1 − α_t = cos(πt/2K)
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from sidelight.arrays import Floats, Vector, floats
from sidelight.errors import AssumptionError, InputError, one_of
from sidelight.methods.declare import method
from sidelight.methods.dope_sgd import StartName, Warm, named_start
from sidelight.methods.part_kinds import FinishRule, Mix, MixState, Setting
from sidelight.methods.parts import Blend, ConstantNoise, Flat, MeanLastHalf, check_limit, limit_of
from sidelight.methods.recipe import Recipe
from sidelight.oracles.linear.linear_oracle import PublicOracle
from sidelight.solvers import minimize


def cosine_weight(step: int, horizon: float) -> float:
    """α_t = 1 − cos(πt/2K), which is 1 from t = K on."""
    return 1 - math.cos(math.pi * step / (2 * horizon)) if step < horizon else 1.0


@dataclass(frozen=True)
class Cosine(Mix):
    """Starts private and moves to public over K steps (K = T if not given)."""

    horizon: float | None = None
    limit: float | None = None  # the longest public gradient (see `limit_of`)
    needs_public: ClassVar[bool] = True
    needs_gradient: ClassVar[bool] = True

    def begin(self, setting: Setting, params: Vector, *, noise_multiplier: float, bound: float) -> MixState:
        horizon = setting.steps if self.horizon is None else self.horizon
        if not horizon > 0:
            raise InputError(f"the horizon of the cosine must be positive, not {horizon!r}")
        check_limit(self.limit)
        setting.public("the cosine schedule")
        return CosineState(float(horizon), limit_of(self.limit, setting, bound))

    def private_shares(self, steps: int) -> tuple[float, ...]:
        horizon = steps if self.horizon is None else self.horizon
        return tuple(1 - cosine_weight(step, horizon) for step in range(steps)) if horizon > 0 else ()


@dataclass(frozen=True)
class CosineState(Blend):
    """(1−α_t) G + α_t ĝ."""

    horizon: float
    limit: float = math.inf

    def weight_at(self, step: int) -> float:
        return cosine_weight(step, self.horizon)


@dataclass(frozen=True)
class Mirror(Mix):
    """The exact mirror step, by damped Newton to a residual of 1e-10."""

    lam: float = 1e-3
    needs_public: ClassVar[bool] = True

    def begin(self, setting: Setting, params: Vector, *, noise_multiplier: float, bound: float) -> MixState:
        if not self.lam > 0:
            raise InputError(f"the mirror map needs lam > 0 to be strongly convex, not {self.lam!r}")
        guide = setting.public("the mirror map")
        unfit = setting.constants.smoothness is None or setting.constants.outputs != 1
        if unfit or not isinstance(guide, PublicOracle):
            raise AssumptionError(
                f"the {setting.constants.loss} loss gives no usable mirror map; use mirror='first-order', "
                "or the huber, logistic or square loss"
            )
        return MirrorState(guide, self.lam)


@dataclass(frozen=True)
class MirrorState(MixState):
    """The direction that leads from w to the mirror step's result."""

    guide: PublicOracle
    lam: float

    def mix(
        self,
        params: Vector,
        direction: Vector,
        public_gradient: Vector | None,
        *,
        step: int,
        step_size: float,
    ) -> Vector:
        w = floats(params)
        return (w - mirror_step(self.guide, w, floats(direction), size=step_size, lam=self.lam)) / step_size


def mirror_step(guide: PublicOracle, w: Floats, direction: Floats, *, size: float, lam: float) -> Floats:
    """Solve ∇Ψ(u) = ∇Ψ(w) − ηG for u, starting from w."""
    target = guide.mean_gradient(w) + lam * w - size * direction
    size_of_terms = max(1.0, float(np.linalg.norm(target)))
    minimum = minimize(
        [_MeanLoss(guide, w.size)], ridge=lam, linear=-target, tolerance=1e-10 * size_of_terms, start=w
    )
    if minimum.gradient > 1e-8 * size_of_terms:
        raise AssumptionError("the mirror step did not converge; raise lam or lower step_size")
    return minimum.w


@dataclass(frozen=True)
class _MeanLoss:
    """The mean loss of public records, as the solver asks for it; models with one output."""

    guide: PublicOracle
    dimension: int
    outputs: int = 1

    def value(self, w: Floats) -> float:
        return self.guide.mean_loss(w)

    def precise_gradient(self, w: Floats) -> Floats:
        return self.guide.mean_gradient(w)

    def hessian(self, w: Floats) -> Floats:
        return self.guide.hessian(w)

    def hessian_times(self, w: Floats, direction: Floats) -> Floats:
        return self.guide.hessian_times(w, direction)


@method(
    group="gradient method",
    paper="Amid et al., ICML 2022",
    wins="many public records",
    loses="with a few dozen it loses to whitening",
    networks=True,
    small={"steps": 6},
)
def dpmd(
    *,
    mirror: Literal["exact", "first-order"] = "first-order",
    lam: float = 1e-3,
    horizon: float | None = None,
    public_limit: float | None = None,
    start: StartName | None = None,
    clip_norm: float | None = None,
    steps: int | None = None,
    expected_batch_size: float | None = None,
    step_size: float | None = None,
    finish: FinishRule | None = None,
) -> Recipe:
    """DPMD. start: None is "warm". public_limit: None is C on a network, and none on a linear model.

    Guarantee: that of DP-SGD; the solve and the mixing are post-processing.
    Departs: the cosine is clamped at 0 beyond its horizon; a solve that does not converge raises.
    """
    one_of("mirror", mirror, ("exact", "first-order"))
    return Recipe(
        name="dpmd",
        start=named_start(start, Warm()),
        clip=Flat(clip_norm),
        noise=ConstantNoise(),
        mix=Mirror(lam) if mirror == "exact" else Cosine(horizon, public_limit),
        finish=finish or MeanLastHalf(),
        steps=steps,
        expected_batch_size=expected_batch_size,
        step_size=step_size,
    )
