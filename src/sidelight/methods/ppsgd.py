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
import warnings
from dataclasses import dataclass, field
from typing import ClassVar, Literal

from sidelight.arrays import Vector, length
from sidelight.clipping import Clip, Details, Metric
from sidelight.errors import InputError, PrivacyConditionError, PrivacyWarning
from sidelight.methods.declare import method
from sidelight.methods.dope_sgd import StartName, named_start
from sidelight.methods.part_kinds import (
    ClipRule,
    ClipState,
    FinishRule,
    Guide,
    NoiseRule,
    NoiseState,
    Setting,
)
from sidelight.methods.parts import AllRecords, Cold, Flat, Last, MeanLastHalf, NoiseAware, Reuse, SqrtBatch
from sidelight.methods.public_whitening import Whitening
from sidelight.methods.recipe import Recipe
from sidelight.privacy import accountants, conversions, filters
from sidelight.privacy.conversions import Totals
from sidelight.privacy.events import Event, Relation

Accounting = Literal["filter", "tcdp"]


@dataclass(frozen=True)
class ShrinkingClip(ClipRule):
    """C ← max((1−β)C, floor) whenever φ_c times the public gradient falls below C.

    test="mean" looks at the norm of the mean public gradient, "max" at the largest of one record.
    """

    clip_norm: float | None = None  # None: the longest public gradient at the start, which is free
    threshold: float | None = None  # φ_c, the paper's ϕ; None: 100, or 5 (10 from ε = 0.3) for square loss
    shrink: float = 0.3  # β
    test: Literal["mean", "max"] = "mean"
    needs_public: ClassVar[bool] = True
    needs_after: ClassVar[bool] = True

    def begin(self, setting: Setting, params: Vector) -> ShrinkingClipState:
        guide = setting.public("PPSGD's clipping")
        if self.test not in ("mean", "max") or not 0 <= self.shrink < 1:
            raise InputError("PPSGD's clipping takes test='mean' or 'max' and a shrink in [0, 1)")
        threshold = self.threshold
        if threshold is None:
            threshold = 100.0 if not setting.constants.square else 5.0 if setting.epsilon < 0.3 else 10.0
        return ShrinkingClipState(self, guide, threshold, setting.problem.default_clip_norm(), self.clip_norm)


@dataclass
class ShrinkingClipState(ClipState):
    kept = ("clip_norm", "floor")

    rule: ShrinkingClip
    guide: Guide
    threshold: float
    fallback: float  # where public gradients vanish at the start
    clip_norm: float | None
    floor: float = 0.0
    metric: Metric = None

    def at(self, step: int, params: Vector, metric: Metric, origin: Vector | None) -> Clip:
        self.metric = metric
        if self.clip_norm is None:
            self.clip_norm = self._longest(params) or self.fallback
        self.floor = self.floor or 1e-6 * self.clip_norm
        return Flat(self.clip_norm)

    def after(self, params: Vector, public_gradient: Vector) -> None:
        mean = self.rule.test == "mean"
        size = length(public_gradient) if mean else self._longest(params)
        if self.clip_norm is not None and self.threshold * size < self.clip_norm:
            self.clip_norm = max((1 - self.rule.shrink) * self.clip_norm, self.floor)

    def _longest(self, params: Vector) -> float:
        return float(self.guide.gradient_norms(params, metric=self.metric).max())


@dataclass(frozen=True)
class GrowingBudget(NoiseRule):
    """ρ ← (1+α)ρ whenever φ times the public gradient is below the noise; a filter ends the run.

    accounting="filter": full batches under a Gaussian filter, Poisson batches under a Rényi filter at one
    order that is chosen before training. "tcdp": the paper's own, fixed-size batches under replace-one, with
    all five conditions of the amplification theorem and the cap that they imply.
    """

    ratio: float = 10.0  # φ
    growth: float = 0.3  # α of the paper
    planned_steps: int | None = None  # T0: the first step may spend 1/T0 of the budget; None: see `planned`
    accounting: Accounting = "filter"
    totals: Totals = "paper"
    on_violation: Literal["cap", "raise"] = "cap"
    first_cost: float | None = None  # ρ0 (tcdp only)
    spend_rest: bool = False  # one last step with the rest of the budget
    needs_public: ClassVar[bool] = True
    needs_after: ClassVar[bool] = True

    @property
    def relations(self) -> tuple[Relation, ...] | None:
        return ("replace-one",) if self.accounting == "tcdp" else None

    @property
    def planned(self) -> int:
        """T0; by default 300 with tCDP, as in the paper, else 64; a network's trainer plans its own."""
        return self.planned_steps or (300 if self.accounting == "tcdp" else 64)

    def default_steps(self, setting: Setting) -> int:
        return self.planned

    def plan(self, setting: Setting) -> tuple[Event, bool, Details]:
        state = self.begin(setting)
        details: dict[str, object] = {
            "noise_multiplier": state.z,
            "accounting": f"a filter ({type(state.filter).__name__}), asked before every step",
        }
        if isinstance(state.filter, filters.RenyiFilter):
            details["order"] = state.filter.order
        if math.isfinite(state.cap):
            details |= {"rho_cap": state.cap, "rho_total": state.filter.total}
            _warn_unspent(state)
        return state.filter.certificate, True, details

    def begin(self, setting: Setting) -> GrowingBudgetState:
        if self.accounting not in ("filter", "tcdp") or self.on_violation not in ("cap", "raise"):
            raise InputError("accounting is 'filter' or 'tcdp', and on_violation 'cap' or 'raise'")
        if not (self.growth >= 0 and self.planned >= 1 and self.ratio >= 0):
            raise InputError("growth and ratio must be at least 0, and planned_steps at least 1")
        if self.accounting == "tcdp":
            return self._tcdp(setting)
        return self._gaussian(setting) if setting.rate == 1 else self._renyi(setting)

    def _gaussian(self, setting: Setting) -> GrowingBudgetState:
        gaussian = filters.GaussianFilter(
            epsilon=setting.epsilon, delta=setting.delta, relation=setting.relation
        )
        # Rounded toward more noise, so that as many steps fit as were planned.
        z = math.sqrt(self.planned) / gaussian.mu * (1 + 1e-12)
        return GrowingBudgetState(self, setting, gaussian, z)

    def _renyi(self, setting: Setting) -> GrowingBudgetState:
        epsilon, delta, relation = setting.epsilon, setting.delta, setting.relation
        if relation != "add-or-remove-one":
            raise PrivacyConditionError(
                "adaptive noise on fixed-size batches has only the tCDP accounting; "
                "pass accounting='tcdp', or expected_batch_size=None for full batches"
            )
        z = accountants.noise_multiplier(
            epsilon=epsilon, delta=delta, relation=relation, steps=self.planned,
            sampling_probability=setting.rate,
        )  # fmt: skip
        # The planned steps must fit the filter, whose one order proves less than PLD: noise until they do.
        for _ in range(400):
            event = setting.sampler.event(setting.n, z)
            order = filters.best_order(event, epsilon=epsilon, delta=delta, relation=relation)
            one_order = filters.RenyiFilter(epsilon=epsilon, delta=delta, order=order, relation=relation)
            if self.planned * one_order.cost(event) <= one_order.total:
                break
            z *= 1.01
        return GrowingBudgetState(self, setting, one_order, z)

    def _tcdp(self, setting: Setting) -> GrowingBudgetState:
        concentrated = filters.TruncatedConcentratedFilter(
            epsilon=setting.epsilon, delta=setting.delta, relation=setting.relation, totals=self.totals
        )
        # A rounding step below the cap: what it becomes as noise is checked against the same conditions.
        cap = conversions.tcdp_rho_cap(setting.rate, concentrated.omega) * (1 - 1e-12)
        first = concentrated.total / self.planned if self.first_cost is None else self.first_cost
        if not first > 0:
            raise InputError(f"the cost of the first step must be positive, not {first!r}")
        state = GrowingBudgetState(self, setting, concentrated, 0.0, cap=cap)
        state.set_rho(first)
        return state


def _warn_unspent(state: GrowingBudgetState) -> None:
    """METHODS 3.2: the cap may leave budget that the steps allowed cannot spend."""
    limit, needed = state.setting.max_steps, math.ceil(state.filter.total / state.cap)
    if limit is not None and needed > limit:
        warnings.warn(
            f"a step may cost at most rho={state.cap:.4g}, so spending the budget takes {needed} steps: "
            f"after {limit}, some of it is left; allow more steps or take larger batches",
            PrivacyWarning,
            stacklevel=4,
        )


@dataclass
class GrowingBudgetState(NoiseState):
    kept = ("filter", "z", "rho", "notes", "spending")

    rule: GrowingBudget
    setting: Setting
    filter: filters.Filter
    z: float
    cap: float = math.inf  # of ρ, tCDP only
    rho: float = 0.0
    notes: list[str] = field(default_factory=list)
    spending: dict[str, object] = field(default_factory=dict)  # of the step just admitted

    def at(self, step: int) -> float | None:
        if step == self.setting.max_steps:
            return None
        if self.rule.spend_rest and not self.filter.admits(self._event(self.z)):
            self._stretch()
        return self.z

    def admit(self, event: Event) -> None:
        cost = self.filter.cost(event)
        self.filter.admit(event)
        self.spending = {self.filter.unit: cost, f"{self.filter.unit}_left": self.filter.left}
        if math.isfinite(self.cap):
            self.spending["capped"] = self.rho == self.cap

    def after(self, public_gradient: Vector, std: float) -> None:
        size = length(public_gradient)
        if not self.rule.ratio * size < math.sqrt(len(public_gradient)) * std:
            return
        if math.isinf(self.cap):
            self.z /= math.sqrt(1 + self.rule.growth)
        else:
            self.set_rho((1 + self.rule.growth) * self.rho)

    def share_spent(self) -> float:
        return self.filter.spent / self.filter.total

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
        self.rho, self.z = rho, math.sqrt(13 * q * q / (2 * rho)) * (1 + 1e-15)

    def _stretch(self) -> None:
        """More noise, for one last step that just fits what is left (allowed by every filter)."""
        low, high = self.z, 64 * self.z
        if not self.filter.admits(self._event(high)):
            return
        for _ in range(40):
            middle = math.sqrt(low * high)
            low, high = (low, middle) if self.filter.admits(self._event(middle)) else (middle, high)
        self.z = high

    def _event(self, z: float) -> Event:
        return self.setting.sampler.event(self.setting.n, z)


@method(
    group="gradient method",
    paper="Wang & Zhou, AAAI 2020, Algorithm 1",
    wins="the paper's adaptive budget and clipping, under a filter that makes them valid",
    loses="on linear models it trails public_whitening; with whitening=True and reuse=None it is level",
    networks=True,
    small={"planned_steps": 6},
    variants={
        "sampled": {"planned_steps": 6, "expected_batch_size": 22},
        "tcdp": {"accounting": "tcdp", "planned_steps": 6},
    },
    on_network={"planned_steps": 4},
)
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
    reuse: float | Literal["rule"] | None = "rule",
    whitening: bool = False,
    start: StartName | None = None,
    momentum: float | None = None,
    expected_batch_size: float | None = None,
    step_size: float | None = None,
    totals: Totals = "paper",
    on_violation: Literal["cap", "raise"] = "cap",
    max_steps: int | None = None,
) -> Recipe:
    """PPSGD (Wang & Zhou, AAAI 2020).

    reuse: λ of model reuse, None for none; the rule is 0.1 with tCDP as in the paper, else 1. momentum: None
    is 0 with tCDP, else 0.8. whitening: the metric of `public_whitening`; with reuse=None it is the best form
    of PPSGD on linear models.

    Guarantee: what its filter certifies. accounting="filter" runs full batches under a Gaussian filter
    (exact), or Poisson batches under a Rényi filter; "tcdp" is the paper's, under replace-one.
    Assumes: the public records do not depend on the private ones.
    Departs: the amplification theorem's conditions are enforced and cap ρ_t (the paper's proof skips them);
    the adaptive ρ_t is covered by a filter, not by a composition theorem for fixed parameters.
    """
    tcdp = accounting == "tcdp"
    lam = (0.1 if tcdp else 1.0) if reuse == "rule" else reuse
    return Recipe(
        name="ppsgd",
        start=named_start(start, Cold()),
        clip=ShrinkingClip(clip_norm, clip_threshold, shrink, clip_test),
        noise=GrowingBudget(ratio, growth, planned_steps, accounting, totals, on_violation),
        metric=Whitening() if whitening else None,
        finish=_finish(lam, averaged=not tcdp),
        momentum=(0.0 if tcdp else 0.8) if momentum is None else momentum,
        steps=max_steps,
        expected_batch_size=expected_batch_size,
        step_size=0.1 if step_size is None and tcdp else step_size,
        batch=SqrtBatch(0.1) if tcdp else AllRecords(),
        step=NoiseAware(without_metric=1.0 if tcdp else 4.0),  # found on the benchmarks of the paper
        departs=("PPSGD: the cost of a step is capped, and a filter covers its adaptive choice",),
    )


def _finish(lam: float | None, *, averaged: bool) -> FinishRule:
    """Model reuse of the last iterate, as in the paper, or of an average; lam=None leaves it out."""
    inner = MeanLastHalf() if averaged else Last()
    return inner if lam is None else Reuse(lam, inner)
