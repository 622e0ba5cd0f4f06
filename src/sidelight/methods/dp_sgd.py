"""DP-SGD: clip each gradient, add Gaussian noise (Abadi et al., CCS 2016; Song et al. 2013).

w ← w0
for t = 0..T−1:
  S ← each private record independently with probability q
  G ← Σ_{i∈S} clip_C(∇ℓ_i(w)) + N(0, σ²C² I)
  w ← w − η ( G/B + ∇reg(w) )
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from sidelight.clipping import Details
from sidelight.errors import PrivacyConditionError
from sidelight.methods.correlated_noise import BandedNoise
from sidelight.methods.declare import method
from sidelight.methods.dope_sgd import StartName, named_start
from sidelight.methods.part_kinds import FinishRule, NoiseRule, Setting
from sidelight.methods.parts import Cold, ConstantNoise, Flat, Last, SqrtBatch
from sidelight.methods.recipe import Recipe
from sidelight.privacy import conversions, events
from sidelight.privacy.events import Event


@method(
    group="gradient method",
    paper="Abadi et al., CCS 2016",
    wins="no public records, or isotropic features; the standard baseline",
    loses="correlated features, where it needs more steps than the noise allows",
    networks=True,
    small={"steps": 6},
    variants={
        "sampled": {"steps": 6, "expected_batch_size": 22},
        "banded": {"steps": 6, "expected_batch_size": 22, "noise": BandedNoise(bands=2)},
    },
)
def dp_sgd(
    *,
    clip_norm: float | None = None,
    start: StartName | None = None,
    steps: int | None = None,
    expected_batch_size: float | None = None,
    step_size: float | None = None,
    momentum: float = 0.0,
    finish: FinishRule | None = None,
    noise: NoiseRule | None = None,
) -> Recipe:
    """DP-SGD. start: None is "cold"; "warm" begins at the model of the public records.

    noise: None is independent in every step; BandedNoise() correlates it, and gives records turns.
    Guarantee: PoissonSampled(q, Gaussian(σ)) × T under add-or-remove-one, or fixed-size batches under
    replace-one, or T Gaussians for full batches; composed by PLD. With another noise that of its event.
    Departs: sampling follows the relation; batches are never shuffled and accounted as Poisson.
    """
    return Recipe(
        name="dp_sgd",
        start=named_start(start, Cold()),
        clip=Flat(clip_norm),
        noise=noise or ConstantNoise(),
        finish=finish or Last(),
        steps=steps,
        expected_batch_size=expected_batch_size,
        step_size=step_size,
        momentum=momentum,
    )


@method(
    group="gradient method",
    paper="Abadi et al., CCS 2016; public records are not used",
    wins="baseline: ignores the public rows",
    loses="as dp_sgd",
    networks=True,
    small={"steps": 6},
)
def only_private(
    *, clip_norm: float | None = None, steps: int | None = None, expected_batch_size: float | None = None,
    step_size: float | None = None, momentum: float = 0.0,
) -> Recipe:  # fmt: skip
    """DP-SGD on the private records; public ones are not used at all.

    Departs: sampling follows the relation, as in dp_sgd.
    """
    recipe = dp_sgd(
        clip_norm=clip_norm,
        steps=steps,
        expected_batch_size=expected_batch_size,
        step_size=step_size,
        momentum=momentum,
    )
    return recipe.with_parts(name="only_private", public_rows="unused")


@method(
    group="gradient method",
    paper="Abadi et al., CCS 2016; public records are treated as private ones",
    wins="baseline: treats the public rows as private",
    loses="as dp_sgd: a few more private rows change little",
    needs="public records (without them, identical to dp_sgd)",
    networks=True,
    small={"steps": 6},
)
def full_private(
    *, clip_norm: float | None = None, steps: int | None = None, expected_batch_size: float | None = None,
    step_size: float | None = None, momentum: float = 0.0,
) -> Recipe:  # fmt: skip
    """DP-SGD on private and public records together, all treated as private.

    Departs: sampling follows the relation, as in dp_sgd.
    """
    recipe = dp_sgd(
        clip_norm=clip_norm,
        steps=steps,
        expected_batch_size=expected_batch_size,
        step_size=step_size,
        momentum=momentum,
    )
    return recipe.with_parts(name="full_private", public_rows="private")


# ---------------------------------------------------------------------------------------------------
# SgdAdv, a baseline: amplification and advanced composition (Bassily, Smith & Thakurta, FOCS 2014)
#
# δ' = δ/2 ;  δ0 = δ/2T ;  ε0 solves √(2T log 1/δ')·ε0 + Tε0(e^{ε0} − 1) = ε
# ε_in = log(1 + (e^{ε0} − 1)/q) ;  δ_in = δ0/q ;  std = Δ/μ*, δ_G(ε_in; μ*) = δ_in


def step_budget(*, epsilon: float, delta: float, steps: int, q: float) -> tuple[float, float, float, float]:
    """(ε0, δ0) of one step and (ε_in, δ_in) before sampling (Theorem 3.20 of Dwork & Roth 2014; Balle,
    Barthe & Gaboardi 2018, which is valid for Poisson and for fixed-size sampling)."""
    spread = math.sqrt(2 * steps * math.log(2 / delta))
    inside = conversions._last_true(
        lambda e: spread * e + steps * e * math.expm1(e) <= epsilon, 0.0, min(epsilon / spread * 2, 50.0)
    )
    delta_step = delta / (2 * steps)
    if not delta_step / q < 1:
        raise PrivacyConditionError("delta is too large for so small a sampling rate; use larger batches")
    return inside, delta_step, math.log1p(math.expm1(inside) / q), delta_step / q


@dataclass(frozen=True)
class AdvancedComposition(ConstantNoise):
    """The noise of the 2014 analysis: valid, and several times more than PLD needs. T = mε/500."""

    linear_only: ClassVar[bool] = True  # its rules are for convex problems

    def default_steps(self, setting: Setting) -> int:
        return max(1, round(setting.n * setting.epsilon / 500))

    def multiplier(self, setting: Setting) -> float:
        _, _, inner, inner_delta = step_budget(
            epsilon=setting.epsilon, delta=setting.delta, steps=setting.steps, q=setting.rate
        )
        return 1 / conversions.gdp_mu(inner, inner_delta)

    def plan(self, setting: Setting) -> tuple[Event, bool, Details]:
        z = self.multiplier(setting)
        event = events.repeat(setting.sampler.event(setting.n, z), setting.steps)
        return event, False, {"noise_multiplier": z, "accounting": "amplification and advanced composition"}


@method(
    group="gradient method",
    paper="Bassily, Smith & Thakurta, FOCS 2014, as a baseline",
    wins="baseline from 2014",
    loses="everywhere: advanced composition needs several times the noise",
    small={"steps": 6, "expected_batch_size": 22},
)
def sgd_adv(
    *, clip_norm: float | None = None, steps: int | None = None, expected_batch_size: float | None = None,
    step_size: float = 0.1,
) -> Recipe:  # fmt: skip
    """SgdAdv, a baseline.

    Guarantee: (ε, δ) by advanced composition; the exact cost of what is run is lower and goes to the ledger.
    Departs: the analytic Gaussian replaces √(2 log 1.25/δ)/ε, which is unproved beyond ε = 1; T = mε/500.
    """
    return Recipe(
        name="sgd_adv",
        clip=Flat(clip_norm),
        noise=AdvancedComposition(),
        steps=steps,
        expected_batch_size=expected_batch_size,
        step_size=step_size,
        batch=SqrtBatch(),
    )
