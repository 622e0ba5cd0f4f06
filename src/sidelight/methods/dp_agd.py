"""DP-AGD: gradient descent with a private line search and an adaptive budget for each step.

Lee & Kifer, "Concentrated Differentially Private Gradient Descent with Adaptive per-Iteration Privacy Budget"
(KDD 2018).

    while the budget holds ρ_g + ρ_n:
      g ← Σ clip(∇ℓ_i(w)); s ← g + N(0, C²/2ρ_g)                                              spend ρ_g
      loop:
        d ← s/‖s‖ + λw
        i ← argmax_k( −Σ min(ℓ_i(w − η_k d), C_obj) + noise ),  0 = η_0 < … < η_K             spend ρ_n
        if i > 0: w ← w − η_i d; break
        f ← g + N(0, C²/2(ρ'−ρ_g)), ρ' = (1+γ)ρ_g; s ← (ρ_g s + (ρ'−ρ_g) f)/ρ'; ρ_g ← ρ'      spend ρ'−ρ_g
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import ClassVar, Literal, TypeVar

import numpy as np

from sidelight.arrays import Floats
from sidelight.errors import InputError, PrivacyConditionError, one_of
from sidelight.methods.baselines import fit_public
from sidelight.methods.declare import method
from sidelight.methods.parts import Flat
from sidelight.methods.task import PUBLIC_APART, Fitted, Flags, Plan, Task, check_method
from sidelight.oracles.linear.linear_oracle import LinearOracle
from sidelight.oracles.linear.row_sums import RowSums
from sidelight.privacy import events
from sidelight.privacy.events import Event, Relation
from sidelight.privacy.filters import TruncatedConcentratedFilter
from sidelight.privacy.noise import Noise
from sidelight.privacy.release import Account, BoundedSum, Released, release, select

Selection = Literal["exponential", "gumbel"]
Noisy = TypeVar("Noisy", Released, Floats, float)


def budgets(*, epsilon: float, delta: float, splits: int) -> tuple[float, float]:
    """(ρ_g, ρ_n) at the start: what a first gradient and a selection cost.

    ρ_n = ½(ε/2·splits)². ρ_g = C²/2σ₀² with the classical σ₀ = C√(2 log(1.25/δ))/(ε/2·splits): the formula
    only chooses a starting point here, so that it need not be a bound.
    """
    share = epsilon / (2 * splits)
    return share**2 / (4 * math.log(1.25 / delta)), share**2 / 2


def selection_scale(*, bound: float, rho: float, selection: Selection, relation: Relation) -> float:
    """The scale of the selection noise for ρ-zCDP.

    One more record lowers every score by a number in [0, bound]: monotone, of range `bound`. Exponential
    noise of scale bound/ε is then ε-DP (McKenna & Sheldon, NeurIPS 2020), and ε = √(2ρ) is ρ-zCDP; Gumbel
    noise of scale bound/η is η-bounded-range, and η = √(8ρ) is ρ-zCDP. A replaced record doubles the range.
    """
    reach = bound if relation == "add-or-remove-one" else 2 * bound
    return reach / math.sqrt({"exponential": 2, "gumbel": 8}[selection] * rho)


def blend(old: Noisy, fresh: Noisy, *, rho_old: float, rho_new: float) -> Noisy:
    """(ρ_old·old + (ρ_new − ρ_old)·fresh)/ρ_new: two noisy copies weighted by precision, worth ρ_new."""
    return old * (rho_old / rho_new) + fresh * ((rho_new - rho_old) / rho_new)


@method(
    group="convex algorithm",
    paper="Lee & Kifer, KDD 2018",
    wins="moderate ε, no step size to choose",
    loses="slow (seconds to a minute per fit), and behind whitening in our tables",
    small={"splits": 3},
    variants={
        "gumbel": {"splits": 3, "selection": "gumbel"},
    },
)
@dataclass(frozen=True, kw_only=True)
class DpAgd(Flags):
    """DP-AGD: private gradients and a private line search (Lee & Kifer, KDD 2018).

    Guarantee: (ε, δ) under either relation. Gradients and selections are ρ-zCDP, chosen while running; a
    filter is asked before each, and its total converts at the best order. All records in every step.
    Assumes: nothing of the loss; gradients and losses are clipped, the latter into [0, objective_clip].
    Departs: noise has the right sign in the selection (the released code adds it to a loss that it
    minimizes, which costs up to `candidates` times the claimed ε); the step applied is the one selected; ρ_g
    is charged once; repeated gradients are weighted by their precision; budgets are tested before spending.

    Args:
        splits: about how many steps the budget is cut into.
        growth: γ, by which ρ_g grows when no step is better than standing still.
        candidates: K step sizes between 0 and the largest, `largest_step` at first; every `refresh_every`
            accepted steps the largest becomes 1.1 times the largest of those.
        selection: "exponential" as in the paper, or "gumbel" with half the noise for the same ρ.
    """

    splits: int = 60
    growth: float = 0.1
    candidates: int = 20
    largest_step: float = 2.0
    refresh_every: int = 10
    clip_norm: float = 1.0
    objective_clip: float = 1.0
    selection: Selection = "exponential"

    name: ClassVar[str] = "dp_agd"

    def plan(self, task: Task) -> Plan:
        check_method(self, task)
        self._check()
        limit = _filter(task)
        rho_g, rho_n = budgets(epsilon=task.epsilon, delta=task.delta, splits=self.splits)
        if not limit.admits(events.ZeroConcentrated(rho_g + rho_n)):
            raise PrivacyConditionError(
                f"splits={self.splits} gives one step more than the whole budget; raise splits"
            )
        details = {
            "splits": self.splits,
            "selection": self.selection,
            "clip_norm": self.clip_norm,
            "objective_clip": self.objective_clip,
            "rho_total": limit.total,
            "rho_first_gradient": rho_g,
            "rho_selection": rho_n,
            "regularization": task.regularization,
        }
        return Plan(limit.certificate, filtered=True, details=details)

    def run(self, task: Task, plan: Plan, *, account: Account, noise: Noise) -> Fitted:
        search = _Search(self, task, account, noise)
        search.go()
        return Fitted(search.w.reshape(task.loss.outputs, task.p), search.history)

    def _check(self) -> None:
        one_of("selection", self.selection, ("exponential", "gumbel"))
        if self.splits < 1 or self.candidates < 1 or self.refresh_every < 1:
            raise InputError("splits, candidates and refresh_every must be at least 1")
        if not min(self.growth, self.largest_step, self.clip_norm, self.objective_clip) > 0:
            raise InputError("growth, largest_step, clip_norm and objective_clip must be positive")


dp_agd = DpAgd


def _filter(task: Task) -> TruncatedConcentratedFilter:
    return TruncatedConcentratedFilter(
        epsilon=task.epsilon, delta=task.delta, relation=task.relation, totals="tight"
    )


@dataclass
class _Search:
    """One run. Nothing is spent before the filter has admitted it."""

    method: DpAgd
    task: Task
    account: Account
    noise: Noise
    history: list[dict[str, object]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.left = _filter(self.task)
        self.rho_g, self.rho_n = budgets(
            epsilon=self.task.epsilon, delta=self.task.delta, splits=self.method.splits
        )
        self.oracle = LinearOracle(self.task.rows, self.task.loss)
        self.w: Floats = np.zeros(self.task.dimension)
        self.largest = self.method.largest_step
        self.chosen: list[float] = []

    def go(self) -> None:
        while self.left.admits(events.ZeroConcentrated(self.rho_g + self.rho_n)) and self._step():
            if len(self.chosen) == self.method.refresh_every:
                self.largest = min(1.1 * max(self.chosen), self.method.largest_step)
                self.chosen = []

    def _step(self) -> bool:
        """One accepted step; False when the budget does not last for it."""
        gradient = self.oracle.clipped_sum(
            self.w, clip=Flat(self.method.clip_norm), relation=self.task.relation
        )
        noisy = self._release(gradient, self.rho_g)
        while True:
            length = float(np.linalg.norm(noisy.numpy()))
            direction = noisy.numpy() / max(length, 1e-300) + self.task.regularization * self.w
            if not self.left.admits(events.ZeroConcentrated(self.rho_n)):
                return False
            step = self._select(direction)
            if step > 0:
                self.w = self.w - step * direction
                self.chosen.append(step)
                return True
            grown = (1 + self.method.growth) * self.rho_g
            if not self.left.admits(events.ZeroConcentrated(grown - self.rho_g)):
                return False
            fresh = self._release(gradient, grown - self.rho_g)
            noisy = blend(noisy, fresh, rho_old=self.rho_g, rho_new=grown)
            self.rho_g = grown

    def _release(self, gradient: BoundedSum, rho: float) -> Released:
        event = self._spend(rho)
        std = gradient.sensitivity / math.sqrt(2 * rho)
        self.history.append(
            {"released": "gradient", "rho": rho, "noise_std": std, "rho_left": self.left.left}
        )
        return release(gradient, std=std, event=event, account=self.account, noise=self.noise)

    def _select(self, direction: Floats) -> float:
        """The step size whose clipped loss is nearly least; 0 says that none beats standing still."""
        steps = np.linspace(0.0, self.largest, self.method.candidates + 1)
        bound = self.method.objective_clip
        scale = selection_scale(
            bound=bound, rho=self.rho_n, selection=self.method.selection, relation=self.task.relation
        )
        scores = line_scores(self.task, self.w, direction, steps, bound=bound)
        event = self._spend(self.rho_n)
        index = select(
            scores,
            scale=scale,
            mechanism=self.method.selection,
            monotone=True,
            event=event,
            account=self.account,
            noise=self.noise,
        )
        step = float(steps[index])
        self.history.append(
            {"released": "step size", "rho": self.rho_n, "step_size": step, "rho_left": self.left.left}
        )
        return step

    def _spend(self, rho: float) -> Event:
        event = events.ZeroConcentrated(rho)
        self.left.admit(event)
        return event


def line_scores(task: Task, w: Floats, direction: Floats, steps: Floats, *, bound: float) -> BoundedSum:
    """−Σ_i min(ℓ_i(w − η·direction), bound) for each η: the larger the better, and noise is *added*.

    The released code minimizes loss plus noise, the other sign; its privacy loss is then up to K times the
    claimed one (vector N4).
    """
    return task.rows.compute(
        lambda X, y: -RowSums(X, y, task.loss).line_values(w, direction, steps, bound=bound),
        sensitivity=bound,
        relation=task.relation,
    )


@dataclass(frozen=True)
class AgdAvg(Flags):
    """See `agd_avg`."""

    agd: DpAgd = field(default_factory=DpAgd)

    name: ClassVar[str] = "agd_avg"
    needs_public: ClassVar[bool] = True

    def plan(self, task: Task) -> Plan:
        check_method(self, task)
        plan = self.agd.plan(task)
        return Plan(
            plan.event,
            filtered=True,
            details=plan.details,
            assumptions=(*plan.assumptions, PUBLIC_APART),
        )

    def run(self, task: Task, plan: Plan, *, account: Account, noise: Noise) -> Fitted:
        fitted = self.agd.run(task, plan, account=account, noise=noise)
        return Fitted(average_models(fitted.coef, fit_public(task)), fitted.history)


def average_models(private: Floats, public: Floats) -> Floats:
    """½(w_Agd + w_OnlyPub); for linear models that is also the mean of the two decision functions."""
    return (private + public) / 2


@method(
    group="convex algorithm",
    paper="a baseline of Wang & Zhou, AAAI 2020",
    wins="small ε, where dp_agd alone is noisy",
    loses="as slow as dp_agd, and a poor public model drags it down",
    small={"agd": DpAgd(splits=3)},
)
def agd_avg(agd: DpAgd | None = None) -> AgdAvg:
    """AgdAvg: the mean of DP-AGD's model and the public one (a baseline of Wang & Zhou, AAAI 2020).

    Guarantee: that of `dp_agd`; averaging with a public model is post-processing.
    Assumes: as `dp_agd`, and public records that do not depend on the private ones.
    Departs: not at all.
    """
    return AgdAvg(DpAgd() if agd is None else agd)
