"""Coupling: weigh public and private gradients (Liu, Bu, Wang, Zha & Karypis 2024).

G ← (1/B)( Σ_{i∈S} c_i g_i + N(0, σ²R² I) ),  c_i = R/(‖g_i‖ + γ)
w ← w − η [ α ĝ + (1−α) G ]
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

from sidelight.arrays import Vector, length
from sidelight.errors import InputError
from sidelight.methods.declare import method
from sidelight.methods.dope_sgd import OpenStart, StartName, named_start
from sidelight.methods.part_kinds import FinishRule, Mix, MixState, Setting
from sidelight.methods.parts import Automatic, ConstantNoise, Flat, Last, Weighted, check_limit, limit_of
from sidelight.methods.recipe import Recipe
from sidelight.privacy import conversions


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
    """α that minimizes the bound of Theorem 3.1; 1 (public only) where it has no stationary point."""
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
class Weight(Mix):
    """A fixed weight, in mean convention; the public gradient is shortened to `limit` (see `limit_of`)."""

    weight: float
    limit: float | None = None
    needs_public: ClassVar[bool] = True
    needs_gradient: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not 0 <= self.weight <= 1:
            raise InputError(f"weight must be between 0 and 1, not {self.weight!r}")
        check_limit(self.limit)

    def choose(
        self, setting: Setting, params: Vector, noise_multiplier: float, bound: float
    ) -> tuple[float, dict[str, float]]:
        """The weight, and the public estimates that it came from."""
        return self.weight, {}

    def begin(self, setting: Setting, params: Vector, *, noise_multiplier: float, bound: float) -> MixState:
        setting.public("the weight of a public gradient")
        weight, estimates = self.choose(setting, params, noise_multiplier, bound)
        limit = limit_of(self.limit, setting, bound)
        shown = {} if math.isinf(limit) else {"public_limit": limit}
        return Weighted(weight, {"weight": weight, **shown, **estimates}, limit)


@dataclass(frozen=True)
class NoiseWeight(Weight):
    """Eq. (5), with the smoothness and the loss at the start estimated on public records."""

    weight: float = 0.0

    def choose(
        self, setting: Setting, params: Vector, noise_multiplier: float, bound: float
    ) -> tuple[float, dict[str, float]]:
        guide = setting.public("the weight of Eq. (5)")
        known = setting.problem.public_smoothness()
        smoothness = 1.0 if known is None else known
        loss = max(guide.mean_loss(params), 1e-12)
        weight = weight_of_noise(
            smoothness=smoothness,
            loss=loss,
            noise_multiplier=noise_multiplier * setting.sensitivity_factor,  # in units of R
            dimension=setting.dimension,
            batch=setting.batch,
            bound=bound,
        )
        return weight, {"public_smoothness": smoothness, "public_start_loss": loss}


@dataclass(frozen=True)
class TheoremWeight(Weight):
    """Theorem 3.1, with its unknowns estimated on public records; they set a weight and nothing else."""

    weight: float = 0.0

    def choose(
        self, setting: Setting, params: Vector, noise_multiplier: float, bound: float
    ) -> tuple[float, dict[str, float]]:
        guide = setting.linear_guide("the weight of Theorem 3.1")
        best = setting.problem.refit(params, 1e-3)
        distance = length(best - params)
        variance = max(float(guide.losses(best).var()), 1e-12)
        weight = weight_of_theorem(
            n_private=setting.n,
            n_public=guide.size,
            distance=distance,
            dimension=setting.dimension,
            mu=conversions.gdp_mu(setting.epsilon, setting.delta),
            variance=variance,
            vc=setting.dimension,
            bound=bound,
        )
        return weight, {"public_distance": distance, "public_loss_variance": variance}


def _mix(
    weight: float | str,
    reduction: str | None,
    public_batch: float | None,
    private_batch: float | None,
    limit: float | None,
) -> Weight:
    if isinstance(weight, str):
        if weight not in ("noise", "theorem"):
            raise InputError(f"weight must be 'noise', 'theorem' or a number, not {weight!r}")
        return NoiseWeight(limit=limit) if weight == "noise" else TheoremWeight(limit=limit)
    if reduction not in ("mean", "sum"):
        raise InputError(f"a weight given by hand needs reduction='mean' or 'sum', not {reduction!r}")
    if reduction == "mean":
        return Weight(weight, limit)
    if public_batch is None or private_batch is None:
        raise InputError("a weight for sums needs public_batch and expected_batch_size")
    mean = sum_to_mean_weight(weight, public_batch=public_batch, private_batch=private_batch)
    return Weight(mean, limit)


@method(
    group="gradient method",
    paper="Liu, Bu, Wang, Zha & Karypis, 2024",
    wins="many public records, networks, very small ε",
    loses="with a few dozen public rows its public gradient keeps its weight even at large ε",
    networks=True,
    small={"steps": 6, "gamma": 0.01},
)
def coupling(
    *,
    weight: float | Literal["noise", "theorem"] = "noise",
    reduction: Literal["mean", "sum"] | None = None,
    public_batch: float | None = None,
    public_limit: float | None = None,
    bound: float = 1.0,
    gamma: float = 1.0,
    start: StartName | None = None,
    steps: int | None = None,
    expected_batch_size: float | None = None,
    step_size: float | None = None,
    momentum: float = 0.0,
    finish: FinishRule | None = None,
) -> Recipe:
    """Coupling. `weight`: Eq. (5) ("noise"), Theorem 3.1 ("theorem"), or a number with its `reduction`.

    start: None leaves it open, as the paper does (`OpenStart`). public_limit: None is R on a network, and no
    limit on a linear model; math.inf is the paper's.

    Guarantee: that of DP-SGD with clip norm R; it does not depend on the weight.
    Departs: PLD replaces the paper's CLT accounting, which is not a bound; Eq. (5) has its factor 1/R.
    """
    return Recipe(
        name="coupling",
        start=named_start(start, OpenStart()),
        clip=Automatic(bound, gamma),
        noise=ConstantNoise(),
        mix=_mix(
            weight,
            reduction,
            public_batch,
            expected_batch_size,
            public_limit,
        ),
        finish=finish or Last(),
        steps=steps,
        expected_batch_size=expected_batch_size,
        step_size=step_size,
        momentum=momentum,
        departs=("Coupling: accounted by PLD, not by the central limit theorem",),
    )


# ---------------------------------------------------------------------------------------------------
# SampleMechanism, a baseline: the pooled mean of public and clipped private gradients (METHODS 16)
#
# w ← w − η [ α ĝ + (1−α) G ],  α = n_pub/(n_pub + n_priv)


def pooled_weight(*, n_public: int, n_private: int) -> float:
    """α for means; on full-batch sums it is 0.5."""
    return n_public / (n_public + n_private)


@dataclass(frozen=True)
class PooledWeight(Weight):
    """n_pub/(n_pub + n_priv): what averaging all records together would give."""

    weight: float = 0.0

    def choose(
        self, setting: Setting, params: Vector, noise_multiplier: float, bound: float
    ) -> tuple[float, dict[str, float]]:
        return pooled_weight(n_public=setting.public("the pooled weight").size, n_private=setting.n), {}


@method(
    group="gradient method",
    paper="a baseline of Liu, Bu, Wang, Zha & Karypis, 2024",
    wins="many public records",
    loses="with a few dozen their share of the pool is too small to matter",
    networks=True,
    small={"steps": 6},
)
def sample_mechanism(
    *, clip_norm: float | None = None, start: StartName | None = None, steps: int | None = None,
    expected_batch_size: float | None = None, step_size: float | None = None,
) -> Recipe:  # fmt: skip
    """SampleMechanism.

    Guarantee: that of DP-SGD. Departs: private gradients are clipped; Coupling's Table 2 lists it unclipped,
    which is not private.
    """
    return Recipe(
        name="sample_mechanism",
        start=named_start(start, OpenStart()),
        clip=Flat(clip_norm),
        noise=ConstantNoise(),
        mix=PooledWeight(),
        steps=steps,
        expected_batch_size=expected_batch_size,
        step_size=step_size,
    )
