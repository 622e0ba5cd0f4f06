"""PPSGD: public data steers budget and clipping, then model reuse (Wang & Zhou, AAAI 2020, Algorithm 1).

while ρ_left ≥ ρ_t:                                               line 4
  S_t ← uniform subset of size s                                  line 5
  g_t ← (1/s) Σ clip_{C_t} ∇ℓ_i(w_t) + N(0, v_t²)                 lines 6–8
  w_{t+1} ← w_t − η g_t ;  ρ_left ← ρ_left − ρ_t                  lines 9–10
  ĝ ← public gradient at w_{t+1}                                  line 11
  ρ_{t+1} ← (1+α)ρ_t  if φ‖ĝ‖ < √(p v_t²)                         lines 12–17  GrowingBudget.after
  C_{t+1} ← (1−β)C_t  if φ_c‖ĝ‖ < C_t                             lines 18–22  ShrinkingClip.after
w* ← argmin (1/n) Σ ℓ(w; x̂_j, ŷ_j) + λ‖w − w_t‖²                  line 25      Reuse
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from sidelight.errors import InputError, PrivacyConditionError
from sidelight.methods.dp_sgd import natural_bound
from sidelight.methods.finishing import MeanLastHalf, Reuse
from sidelight.methods.parts import Clip, Flat, Metric
from sidelight.methods.recipe import Last, Recipe, Setting
from sidelight.privacy import calibrate, conversions, filters
from sidelight.privacy.conversions import Totals
from sidelight.privacy.events import Event, Relation

Accounting = Literal["filter", "tcdp"]


@dataclass(frozen=True)
class ShrinkingClip:
    """C ← max((1−β)C, floor) whenever φ_c times the public gradient falls below C.

    test="mean" looks at the norm of the mean public gradient, "max" at the largest of one record.
    """

    clip_norm: float | None = None
    threshold: float | None = (
        None  # φ_c, the paper's ϕ; None: 100, or 5 (10 from ε = 0.3) for the square loss
    )
    shrink: float = 0.3  # β
    test: Literal["mean", "max"] = "mean"
    needs_public: ClassVar[bool] = True
    needs_after: ClassVar[bool] = True

    def begin(self, setting: Setting, params: Any) -> ShrinkingClipState:
        guide = setting.public("PPSGD's clipping")
        first = self.clip_norm
        if first is None:  # the longest public gradient at the start, which is free
            first = float(guide.gradient_norms(params).max()) or natural_bound(setting)
        threshold = self.threshold
        if threshold is None:
            threshold = (
                100.0 if setting.loss.lipschitz is not None else 5.0 if setting.epsilon < 0.3 else 10.0
            )
        return ShrinkingClipState(self, guide, float(first), threshold, 1e-6 * float(first))


@dataclass
class ShrinkingClipState:
    rule: ShrinkingClip
    guide: Any
    clip_norm: float
    threshold: float
    floor: float

    def at(self, step: int, params: Any, metric: Metric, origin: Any) -> Clip:
        return Flat(self.clip_norm)

    def after(self, params: Any, public_gradient: Any) -> None:
        if self.rule.test == "mean":
            size = float((public_gradient**2).sum() ** 0.5)
        else:
            size = float(self.guide.gradient_norms(params).max())
        if self.threshold * size < self.clip_norm:
            self.clip_norm = max((1 - self.rule.shrink) * self.clip_norm, self.floor)


@dataclass(frozen=True)
class GrowingBudget:
    """ρ ← (1+α)ρ whenever φ times the public gradient drowns in the noise; a filter ends the run.

    accounting="filter": full batches under a Gaussian filter, Poisson batches under a Rényi filter at one
    order that is chosen before training. "tcdp": the paper's own, fixed-size batches under replace-one, with
    all five conditions of the amplification theorem and the cap that they imply.
    """

    ratio: float = 10.0  # φ
    growth: float = 0.3  # α of the paper
    planned_steps: int = 300  # T0: the first step may spend 1/T0 of the budget
    accounting: Accounting = "filter"
    totals: Totals = "paper"
    on_violation: Literal["cap", "raise"] = "cap"
    first_cost: float | None = None  # ρ0 (tcdp only)
    spend_rest: bool = False
    needs_public: ClassVar[bool] = True
    needs_after: ClassVar[bool] = True

    @property
    def relations(self) -> tuple[Relation, ...] | None:
        return ("replace-one",) if self.accounting == "tcdp" else None

    def plan(self, setting: Setting) -> tuple[Event, bool, dict[str, Any]]:
        state = self.begin(setting)
        details = {
            "noise_multiplier": state.z,
            "accounting": f"a filter ({type(state.filter).__name__}), asked before every step",
        }
        if isinstance(state.filter, filters.RenyiFilter):
            details["order"] = state.filter.order
        return state.filter.certificate, True, details

    def begin(self, setting: Setting) -> GrowingBudgetState:
        budget = {"epsilon": setting.epsilon, "delta": setting.delta}
        if self.growth < 0 or self.planned_steps < 1:
            raise InputError("growth must be at least 0 and planned_steps at least 1")
        if self.accounting == "tcdp":
            return self._tcdp(
                setting,
                filters.TruncatedConcentratedFilter(relation=setting.relation, totals=self.totals, **budget),
            )
        if setting.rate == 1:
            gaussian = filters.GaussianFilter(relation=setting.relation, **budget)
            return GrowingBudgetState(self, setting, gaussian, math.sqrt(self.planned_steps) / gaussian.mu)
        if setting.relation != "add-or-remove-one":
            raise PrivacyConditionError(
                "adaptive noise on fixed-size batches has only the tCDP accounting; "
                "pass accounting='tcdp', or expected_batch_size=None for full batches"
            )
        z = calibrate.noise_multiplier(
            sampling_probability=setting.rate, steps=self.planned_steps, relation=setting.relation, **budget
        )
        order = filters.best_order(setting.sampler.event(setting.n, z), relation=setting.relation, **budget)
        return GrowingBudgetState(
            self, setting, filters.RenyiFilter(order=order, relation=setting.relation, **budget), z
        )

    def _tcdp(self, setting: Setting, filter_: filters.TruncatedConcentratedFilter) -> GrowingBudgetState:
        cap = conversions.tcdp_rho_cap(setting.rate, filter_.omega)
        first = filter_.total / self.planned_steps if self.first_cost is None else self.first_cost
        state = GrowingBudgetState(self, setting, filter_, 0.0, cap=cap)
        state.set_rho(first)
        return state


@dataclass
class GrowingBudgetState:
    rule: GrowingBudget
    setting: Setting
    filter: filters.Filter
    z: float
    cap: float = math.inf  # of ρ, tCDP only
    rho: float = 0.0
    notes: list[str] = field(default_factory=list)

    def at(self, step: int) -> float | None:
        if self.rule.spend_rest and not self.filter.admits(
            self.setting.sampler.event(self.setting.n, self.z)
        ):
            self._stretch()
        return self.z

    def admit(self, event: Event) -> None:
        self.filter.admit(event)

    def after(self, public_gradient: Any, std: float) -> None:
        size = float((public_gradient**2).sum() ** 0.5)
        if not self.rule.ratio * size < math.sqrt(self.setting.dimension) * std:
            return
        if math.isinf(self.cap):
            self.z /= math.sqrt(1 + self.rule.growth)
        else:
            self.set_rho((1 + self.rule.growth) * self.rho)

    def set_rho(self, rho: float) -> None:
        """The noise for a step of ρ, within what the amplification theorem allows."""
        if rho > self.cap:
            if self.rule.on_violation == "raise":
                raise PrivacyConditionError(
                    f"a step of rho={rho:.4g} is above the cap {self.cap:.4g} of the amplification theorem"
                )
            if not self.notes:
                self.notes.append(
                    f"the cost of a step was capped at rho={self.cap:.4g} (amplification theorem)"
                )
            rho = self.cap
        q = self.setting.rate
        self.rho, self.z = rho, math.sqrt(13 * q * q / (2 * rho))

    def _stretch(self) -> None:
        """More noise, for one last step that just fits what is left (allowed by every filter)."""
        low, high = self.z, 64 * self.z
        if not self.filter.admits(self.setting.sampler.event(self.setting.n, high)):
            return
        for _ in range(40):
            middle = math.sqrt(low * high)
            fits = self.filter.admits(self.setting.sampler.event(self.setting.n, middle))
            low, high = (low, middle) if fits else (middle, high)
        self.z = high


def ppsgd(
    *,
    accounting: Accounting = "filter",
    clip_norm: float | None = None,
    clip_threshold: float | None = None,
    shrink: float = 0.3,
    clip_test: Literal["mean", "max"] = "mean",
    ratio: float = 10.0,
    growth: float = 0.3,
    planned_steps: int | None = None,
    reuse: float | None = 0.1,
    expected_batch_size: float | None = None,
    step_size: float | None = None,
    totals: Totals = "paper",
    on_violation: Literal["cap", "raise"] = "cap",
) -> Recipe:
    """PPSGD (Wang & Zhou, AAAI 2020).

    Guarantee: whatever its filter certifies. accounting="filter" runs full batches under a Gaussian filter
    (exact), or Poisson batches under a Rényi filter; "tcdp" is the paper's, under replace-one.
    Assumes: the public records do not depend on the private ones.
    Departs: the amplification theorem's conditions are enforced and cap ρ_t (the paper's proof skips them);
    the adaptive ρ_t is covered by a filter, not by a composition theorem for fixed parameters.
    """
    tcdp = accounting == "tcdp"
    return PpsgdRecipe(
        name="ppsgd",
        clip=ShrinkingClip(clip_norm, clip_threshold, shrink, clip_test),
        noise=GrowingBudget(
            ratio, growth, planned_steps or (300 if tcdp else 64), accounting, totals, on_violation
        ),
        finish=_finish(reuse, averaged=not tcdp),
        expected_batch_size=expected_batch_size,
        step_size=0.1 if step_size is None and tcdp else step_size,
        default_relation="replace-one",
        departs=("PPSGD: the cost of a step is capped, and a filter covers its adaptive choice",),
    )


def _finish(lam: float | None, *, averaged: bool) -> Any:
    """Model reuse of the last iterate, as in the paper, or of an average; lam=None leaves it out."""
    inner = MeanLastHalf() if averaged else Last()
    return inner if lam is None else Reuse(lam, inner)


@dataclass(frozen=True)
class PpsgdRecipe(Recipe):
    """Fixed-size batches of √m in tCDP mode, as in the paper."""

    def _sampler(self, n: int, pool: int, relation: Relation) -> Any:
        if self.expected_batch_size is None and self.noise.accounting == "tcdp":
            size = min(math.ceil(math.sqrt(n)), max(1, n // 10))
            return self.with_parts(expected_batch_size=size)._sampler(n, pool, relation)
        return super()._sampler(n, pool, relation)


__all__ = ["GrowingBudget", "ShrinkingClip", "ppsgd"]
