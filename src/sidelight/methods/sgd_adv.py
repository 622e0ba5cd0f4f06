"""SgdAdv: private SGD by amplification and advanced composition (Bassily, Smith & Thakurta, FOCS 2014).

δ' = δ/2 ;  δ0 = δ/2T ;  ε0 solves √(2T log 1/δ')·ε0 + Tε0(e^{ε0} − 1) = ε
ε_in = log(1 + (e^{ε0} − 1)/q) ;  δ_in = δ0/q ;  std = Δ/μ*, δ_G(ε_in; μ*) = δ_in
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from sidelight.clipping import Details
from sidelight.errors import PrivacyConditionError
from sidelight.methods.declare import method
from sidelight.methods.dp_sgd import ConstantNoise
from sidelight.methods.parts import Flat
from sidelight.methods.recipe import Recipe, Setting
from sidelight.methods.rules import SqrtBatch
from sidelight.privacy import conversions, events
from sidelight.privacy.events import Event


def step_budget(*, epsilon: float, delta: float, steps: int, q: float) -> tuple[float, float, float, float]:
    """(ε0, δ0) of one step and (ε_in, δ_in) before sampling (Theorem 3.20 of Dwork & Roth 2014; Balle,
    Barthe & Gaboardi 2018, which is valid for Poisson and for fixed-size sampling)."""
    spread = math.sqrt(2 * steps * math.log(2 / delta))
    inside = conversions._last_true(
        lambda e: spread * e + steps * e * math.expm1(e) <= epsilon, 0.0, min(epsilon / spread * 2, 50.0)
    )
    delta_step = delta / (2 * steps)
    if not delta_step / q < 1:
        raise PrivacyConditionError("delta is too large for so small a sampling rate; take larger batches")
    return inside, delta_step, math.log1p(math.expm1(inside) / q), delta_step / q


@dataclass(frozen=True)
class AdvancedComposition(ConstantNoise):
    """The noise of the 2014 analysis: valid, and several times more than PLD asks for. T = mε/500."""

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
    wins="a baseline of 2014",
    loses="everywhere: advanced composition needs several times the noise",
    departs=(
        "the analytic Gaussian replaces √(2 log 1.25/δ)/ε, which is unproved beyond ε = 1",
        "the number of steps is mε/500",
    ),
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
        default_relation="replace-one",
        batch=SqrtBatch(),
    )
