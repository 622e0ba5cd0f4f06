"""Coupling: weigh public and private gradients (Liu, Bu, Wang, Zha & Karypis 2024).

G ← (1/B)( Σ_{i∈S} c_i g_i + N(0, σ²R² I) ),  c_i = R/(‖g_i‖ + γ)
w ← w − η [ α ĝ + (1−α) G ]
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from sidelight import finish as finishes
from sidelight.errors import AssumptionError, InputError
from sidelight.methods.dp_sgd import ConstantNoise, FlatClipState
from sidelight.methods.parts import Automatic
from sidelight.methods.recipe import Cold, Last, Recipe, Setting, Update
from sidelight.privacy import conversions


@dataclass(frozen=True)
class AutomaticClip:
    """Every gradient scaled to R·‖g‖/(‖g‖ + γ): nothing to tune, nothing above R."""

    bound: float = 1.0
    gamma: float = 1.0
    needs_after: ClassVar[bool] = False

    def begin(self, setting: Setting, params: Any) -> FlatClipState:
        return FlatClipState(Automatic(self.bound, self.gamma))


def weight_of_noise(
    *, smoothness: float, loss: float, noise_multiplier: float, dimension: int, batch: float, bound: float
) -> float:
    """α of Eq. (5) in mean form: 1/(1 + √(2L·L0/(1 + σ²p/B²))/R); the paper's is the case R = 1."""
    return 1 / (
        1 + math.sqrt(2 * smoothness * loss / (1 + noise_multiplier**2 * dimension / batch**2)) / bound
    )


def weight_of_theorem(
    *,
    n_private: int,
    n_public: int,
    distance: float,
    dimension: int,
    mu: float,
    variance: float,
    vc: float,
    bound: float = 1.0,
) -> float:
    """α that minimises the bound of Theorem 3.1; 1 (public only) where it has no stationary point."""
    a = bound * distance * math.sqrt(dimension) / (mu * n_private)
    k = a / math.sqrt(variance * vc)
    u, v = 1 / n_private, 1 / n_public
    if k * k >= v:
        return 1.0
    x = (u * v + math.sqrt(u * v * k * k * (u + v - k * k))) / (v * (v - k * k))
    return x / (1 + x)


def sum_to_mean_weight(weight: float, *, public_batch: float, private_batch: float) -> float:
    """The mean-convention weight of a weight that was given for sums."""
    return weight * public_batch / (weight * public_batch + (1 - weight) * private_batch)


@dataclass(frozen=True)
class Weight:
    """A fixed weight, in mean convention."""

    weight: float
    needs_public: ClassVar[bool] = True
    needs_gradient: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not 0 <= self.weight <= 1:
            raise InputError(f"weight must be between 0 and 1, not {self.weight!r}")

    def choose(self, setting: Setting, params: Any, noise_multiplier: float, bound: float) -> float:
        return self.weight

    def begin(self, setting: Setting, params: Any, *, noise_multiplier: float, bound: float) -> Update:
        setting.public("the weight of a public gradient")
        alpha = self.choose(setting, params, noise_multiplier, bound)
        return lambda w, direction, public, step, size: w - size * (alpha * public + (1 - alpha) * direction)


@dataclass(frozen=True)
class NoiseWeight(Weight):
    """Eq. (5), with the smoothness and the loss at the start estimated on public records."""

    weight: float = 0.0

    def choose(self, setting: Setting, params: Any, noise_multiplier: float, bound: float) -> float:
        guide = setting.public("the weight of Eq. (5)")
        smoothness = guide.smoothness() if setting.loss.smoothness is not None else 1.0
        loss = max(guide.mean_loss(params), 1e-12)
        z = noise_multiplier * setting.sensitivity_factor
        return weight_of_noise(
            smoothness=smoothness,
            loss=loss,
            noise_multiplier=z,
            dimension=setting.dimension,
            batch=setting.batch,
            bound=bound,
        )


@dataclass(frozen=True)
class TheoremWeight(Weight):
    """Theorem 3.1, with its unknowns estimated on public records; they set a weight and nothing else."""

    weight: float = 0.0

    def choose(self, setting: Setting, params: Any, noise_multiplier: float, bound: float) -> float:
        guide = setting.public("the weight of Theorem 3.1")
        best = finishes.reuse(setting.loss, guide.rows.X, guide.rows.y, params, 1e-3)
        losses = guide.losses(best)
        return weight_of_theorem(
            n_private=setting.n,
            n_public=guide.size,
            distance=float(((best - params) ** 2).sum() ** 0.5),
            dimension=setting.dimension,
            mu=conversions.gdp_mu(setting.epsilon, setting.delta),
            variance=max(float(losses.var()), 1e-12),
            vc=setting.dimension,
            bound=bound,
        )


def coupling(
    *,
    weight: float | Literal["noise", "theorem"] = "noise",
    reduction: Literal["mean", "sum"] | None = None,
    public_batch: float | None = None,
    bound: float = 1.0,
    gamma: float = 1.0,
    steps: int | None = None,
    expected_batch_size: float | None = None,
    step_size: float | None = None,
    momentum: float = 0.0,
    finish: Any = None,
) -> Recipe:
    """Coupling. `weight`: Eq. (5) ("noise"), Theorem 3.1 ("theorem"), or a number with its `reduction`.

    Guarantee: that of DP-SGD with clip norm R; it does not depend on the weight.
    Departs: PLD replaces the paper's CLT accounting, which is not a bound; Eq. (5) has its missing factor 1/R.
    """
    mix: Weight
    if isinstance(weight, str):
        mix = {"noise": NoiseWeight(), "theorem": TheoremWeight()}[weight]
    elif reduction is None:
        raise InputError("a weight given by hand needs reduction='mean' or reduction='sum'")
    elif reduction == "mean":
        mix = Weight(weight)
    else:
        if public_batch is None or expected_batch_size is None:
            raise AssumptionError("a weight for sums needs public_batch and expected_batch_size")
        mix = Weight(sum_to_mean_weight(weight, public_batch=public_batch, private_batch=expected_batch_size))
    return Recipe(
        name="coupling",
        start=Cold(),
        clip=AutomaticClip(bound, gamma),
        noise=ConstantNoise(),
        mix=mix,
        finish=finish or Last(),
        steps=steps,
        expected_batch_size=expected_batch_size,
        step_size=step_size,
        momentum=momentum,
        departs=("Coupling: accounted by PLD, not by the central limit theorem",),
    )
