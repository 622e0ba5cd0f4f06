"""Filters, for runs whose events depend on earlier releases.

An accountant composes a plan that was fixed in advance. When noise, batch or the number of steps is chosen
while training, ordinary composition does not apply; a filter is asked before each release, and what it
admits is (ε, δ)-DP however the events were chosen.

    RenyiFilter                  one order, fixed in advance (Theorem 4.3 of Feldman & Zrnic, NeurIPS 2021,
                                 arXiv:2008.11193v3)
    GaussianFilter               plain Gaussian releases: Σ μ² ≤ μ² (Koskela, Tobaben & Honkela, ICLR 2023)
    TruncatedConcentratedFilter  tCDP: Σ ρ ≤ ρ_total bounds every order below ω_total at once
    Budget                       the lifetime of a dataset in a ledger, run by run

`admit` raises BudgetExceeded and changes nothing if an event does not fit. `certificate` is the event that
the whole run amounts to, for a ledger to charge in advance.
"""

from __future__ import annotations

import functools
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from sidelight.errors import BudgetExceeded, InputError, PrivacyConditionError
from sidelight.privacy import accountants, conversions, events
from sidelight.privacy.conversions import Totals
from sidelight.privacy.correlated import reduced
from sidelight.privacy.events import Event, Relation, check_relation


class Filter(ABC):
    """The base of all filters: price an event, and admit it if the sum still fits."""

    unit: str  # what is spent

    def __init__(self, *, epsilon: float, delta: float, relation: Relation, total: float) -> None:
        self.epsilon, self.delta = float(epsilon), float(delta)
        self.relation: Relation = events.check_relation(relation)
        self.total = total
        self._costs: list[float] = []

    @abstractmethod
    def cost(self, event: Event) -> float:
        """What the event costs in this filter's unit; infinity if it cannot be priced."""

    @property
    @abstractmethod
    def certificate(self) -> Event:
        """One event that bounds everything this filter will ever admit."""

    @property
    def spent(self) -> float:
        return math.fsum(self._costs)  # exact, so that many small steps lose nothing

    @property
    def left(self) -> float:
        return max(0.0, self.total - self.spent)

    def admits(self, event: Event) -> bool:
        """Whether the event would fit. Strict: no numerical slack."""
        return math.fsum([*self._costs, self.cost(event)]) <= self.total

    def admit(self, event: Event) -> None:
        """Spend the event, or raise BudgetExceeded and spend nothing."""
        cost = self.cost(event)
        if not math.fsum([*self._costs, cost]) <= self.total:
            raise BudgetExceeded(
                f"this step needs {self.unit}={cost:.4g}; {self.left:.4g} of {self.total:.4g} is left. "
                "Training stops here."
            )
        self._costs.append(cost)

    def state_dict(self) -> dict[str, list[float]]:
        """What was spent so far, for a checkpoint."""
        return {"_costs": list(self._costs)}

    def load_state_dict(self, state: Mapping[str, Sequence[float]]) -> None:
        """Restore what `state_dict` returned."""
        self._costs = [float(cost) for cost in state["_costs"]]

    charge = admit  # a filter is an account for release()


class RenyiFilter(Filter):
    """A filter at one Rényi order. Choose the order from public quantities (`best_order`) before training."""

    unit = "rdp"

    def __init__(self, *, epsilon: float, delta: float, order: float, relation: Relation) -> None:
        budget = conversions.rdp_budget(order, epsilon, delta)
        if budget <= 0:
            raise PrivacyConditionError(
                f"order {order:g} cannot give epsilon={epsilon:g} at delta={delta:g}; take a larger order"
            )
        super().__init__(epsilon=epsilon, delta=delta, relation=relation, total=budget)
        self.order = float(order)

    def cost(self, event: Event) -> float:
        return float(accountants.rdp(event, orders=[self.order], relation=self.relation)[0])

    @property
    def certificate(self) -> Event:
        return events.RenyiBound(self.order, self.total)


def best_order(
    event: Event,
    *,
    epsilon: float,
    delta: float,
    relation: Relation,
    orders: Sequence[float] = tuple(range(2, 257)),
) -> float:
    """The order at which the most copies of `event` fit, chosen without looking at data (METHODS 3.4)."""
    budgets = np.array([conversions.rdp_budget(a, epsilon, delta) for a in orders])
    costs = accountants.rdp(event, orders=orders, relation=relation)
    with np.errstate(divide="ignore", invalid="ignore"):
        copies = np.where(budgets > 0, budgets / costs, -np.inf)
    best = int(np.argmax(copies))
    if not copies[best] > 0:
        raise PrivacyConditionError(
            f"no Rényi order up to {max(orders):g} gives epsilon={epsilon:g} at delta={delta:g}"
        )
    return float(orders[best])


class GaussianFilter(Filter):
    """Unsampled Gaussian releases with adaptively chosen noise: Σ 1/σ_t² ≤ μ², exact at the end."""

    unit = "mu^2"

    def __init__(self, *, epsilon: float, delta: float, relation: Relation) -> None:
        self.mu = conversions.gdp_mu(epsilon, delta)
        super().__init__(epsilon=epsilon, delta=delta, relation=relation, total=(self.mu / (1 + 1e-12)) ** 2)

    def cost(self, event: Event) -> float:
        mu = accountants.gdp(event)
        return 0.0 if not events.elementary(event) else math.inf if mu is None else mu**2

    @property
    def certificate(self) -> Event:
        return events.gaussian((1 + 1e-12) / self.mu)  # a rounding step on the safe side


class TruncatedConcentratedFilter(Filter):
    """tCDP and zCDP steps; a subsampled step is checked against all five conditions before it counts."""

    unit = "rho"

    def __init__(self, *, epsilon: float, delta: float, relation: Relation, totals: Totals = "paper") -> None:
        rho, self.omega = conversions.tcdp_totals(epsilon, delta, totals=totals)
        super().__init__(epsilon=epsilon, delta=delta, relation=relation, total=rho)

    def cost(self, event: Event) -> float:
        rho, omega = accountants.tcdp(event, relation=self.relation, omega_total=self.omega)
        if omega < self.omega:
            raise PrivacyConditionError(
                f"this step holds for orders below {omega:.4g}, the total needs {self.omega:.4g}; add noise"
            )
        return rho

    @property
    def certificate(self) -> Event:
        # At ω itself the tight total converts, and every admitted step holds on [.., ω_total].
        return events.TruncatedConcentrated(self.total, self.omega)


# ---------------------------------------------------------------------------------------------------
# May this run still be charged? The lifetime budget of a dataset, as a privacy filter.
#
# Which run comes next, and how large, depends on what earlier runs showed, so the usual composition theorems,
# which want the whole list in advance, do not apply to a dataset's lifetime. A filter does (METHODS 1.6):
#
# - K Rényi orders are fixed when the dataset is registered, and written down with it. Order a may spend
#   B_a(ε, δ/2K) (Theorem 4.3 of Feldman & Zrnic, arXiv:2008.11193v3, with the improved conversion). A run is
#   admitted while *some* order still fits: a history that ends certified by order a is one that the order-a
#   filter would have let through, so the failures add up to at most K·δ/2K = δ/2.
# - An (ε_i, δ_i)-DP run is randomized response that leaks everything with probability δ_i (Theorem 3.2 of
#   Kairouz, Oh & Viswanath, ICML 2015). Its δ_i counts against the other δ/2, its ε_i as a pure ε_i-DP run.
#
# Several runs may be open at once and step in turns: a Rényi filter of a fixed order stays one when the
# mechanisms are interleaved (Haney et al., CCS 2023, arXiv:2309.05901v2).
#
# The **first** charge has one more way in, which spends neither half of δ nor a union bound: exact accounting
# of that one plan, ε(plan, δ) ≤ ε. Such a plan does not fit at any order, so nothing that costs anything is
# ever admitted after it (unless it ended without a release, and so there was no private output yet). Whether
# a history is of this kind is decided by the first plan alone, which was chosen before there was any private
# output; given that plan, either the exact statement or the filter's covers everything that follows, with the
# same (ε, δ), and the two need not share δ.

Rule = Literal["filter", "exact", "free"]
# Orders a − 1, as parts of 2·log(2K/δ)/ε, where the classic conversion of a Gaussian is best; below a half
# of that, B_a is negative. More orders cost more in the union bound than they gain (ε from 0.1 to 20, δ from
# 1e-8 to 1e-5, Gaussian and sampled steps).
_ORDER_STEPS = (0.55, 0.75, 1.05)
_ONE_SHOT_SHARE = 1 / 64  # of δ, for an event known by its (ε, δ) curve alone
_ROUNDING = 1e-9  # relative; a calibrated plan meets its budget up to this


@dataclass(frozen=True)
class Spent:
    """What a list of events costs at each order, and the δ of approximate events."""

    rdp: tuple[float, ...]
    leak: float


@dataclass(frozen=True)
class Budget:
    """(ε, δ) for the lifetime of a dataset, under one relation, and the orders it is filtered with."""

    epsilon: float
    delta: float
    relation: Relation
    orders: tuple[int, ...]

    def __post_init__(self) -> None:
        check_relation(self.relation)
        if not (isinstance(self.epsilon, float) and self.epsilon > 0 and math.isfinite(self.epsilon)):
            raise InputError(f"a lifetime epsilon must be a positive number, not {self.epsilon!r}")
        if not (isinstance(self.delta, float) and 0 < self.delta < 1):
            raise InputError(f"a lifetime delta must be between 0 and 1, both excluded, not {self.delta!r}")

    @classmethod
    def new(cls, *, epsilon: float, delta: float, relation: Relation) -> Budget:
        """A budget with the orders that suit it."""
        plain = cls(float(epsilon), float(delta), relation, ())
        scale = 2 * math.log(2 * len(_ORDER_STEPS) / plain.delta) / plain.epsilon
        orders = tuple(sorted({max(2, round(1 + scale * step)) for step in _ORDER_STEPS}))
        return cls(plain.epsilon, plain.delta, relation, orders)

    @property
    def leak(self) -> float:
        """What approximate events may use of δ."""
        return self.delta / 2

    @property
    def share(self) -> float:
        """What each order may use of δ."""
        return self.delta / 2 / len(self.orders)

    def limits(self) -> tuple[float, ...]:
        """B_a, for each order."""
        return tuple(conversions.rdp_budget(a, self.epsilon, self.share) for a in self.orders)

    def spent(self, parts: Sequence[Event]) -> Spent:
        """The cost of events, one after the other; each kind is priced once."""
        rows: list[list[float]] = [[0.0] * (len(self.orders) + 1)]
        for part, count in events.elementary(reduced(events.compose(*parts))).items():
            rows.append([count * cost for cost in _priced(self, part)])
        *rdp, leak = (math.fsum(column) for column in zip(*rows, strict=True))
        return Spent(tuple(rdp), leak)

    def fits(self, spent: Spent) -> bool:
        """Does some order still allow it?"""
        if spent.leak > self.leak:
            return False
        return any(r <= limit for r, limit in zip(spent.rdp, self.limits(), strict=True))

    def used(self, spent: Spent) -> float:
        """The least ε at which these orders would have admitted it; infinity if none."""
        if spent.leak > self.leak:
            return math.inf
        if not any(spent.rdp) and not spent.leak:
            return 0.0
        pairs = zip(self.orders, spent.rdp, strict=True)
        return min(conversions.rdp_to_dp(a, r, self.share) for a, r in pairs)

    def least(self, charges: Sequence[Event]) -> float:
        """The least lifetime ε at which a filter, with orders that suit it, would have admitted these."""
        low, high = 0.0, self.used(self.spent(charges))
        while math.isfinite(high) and high - low > 1e-4 * high:
            middle = (low + high) / 2
            other = Budget.new(epsilon=middle, delta=self.delta, relation=self.relation)
            low, high = (low, middle) if other.fits(other.spent(charges)) else (middle, high)
        return high

    def exact(self, event: Event) -> float:
        """ε of a plan that is fixed in advance, at the whole δ."""
        return accountants.epsilon(event, delta=self.delta, relation=self.relation)

    def left(self, charges: Sequence[Event]) -> float:
        """The largest ε, at the whole δ, of one more Gaussian release that would be admitted."""
        if not any(events.elementary(event) for event in charges):
            return self.epsilon
        spent = self.spent(charges)
        if not self.fits(spent):
            return 0.0
        rows = zip(self.orders, spent.rdp, self.limits(), strict=True)
        rho = max((limit - r) / a for a, r, limit in rows)
        return min(self.epsilon, conversions.gaussian_epsilon(self.delta, math.sqrt(2 * rho)))

    def admit(
        self, plan: Event, before: Tally, charges: Callable[[], Sequence[Event]], *, dataset: str, runs: int
    ) -> Rule:
        """The rule that admits a plan after earlier runs; BudgetExceeded if there is none.

        Args:
            plan: what the next run may release.
            before: what the earlier runs cost.
            charges: the same as events, requested only if the filter refuses.
            dataset, runs: the name, and how many earlier runs there were, for the refusal.
        """
        if not events.elementary(plan):
            return "free"
        after = before.copy()
        after.add(plan)
        if self.fits(after.spent()):
            return "filter"
        earlier = [event for event in charges() if events.elementary(event)]
        if not earlier and self.exact(plan) <= self.epsilon * (1 + _ROUNDING):
            return "exact"
        refusal = BudgetExceeded(self._refusal(plan, earlier, dataset, runs))
        refusal.left = self.left(earlier)
        raise refusal

    def _without_leak(self, part: Event) -> tuple[Event, float]:
        """An event with a finite Rényi curve, and the probability δ_i that was set apart for it."""
        if isinstance(part, events.ApproximateDp):
            return events.ApproximateDp(part.epsilon, 0.0), part.delta
        curve = accountants.rdp(part, orders=self.orders, relation=self.relation)
        if any(math.isfinite(r) for r in curve):
            return part, 0.0
        # The share is the same for every event: it must not depend on what is released later.
        delta = self.delta * _ONE_SHOT_SHARE
        epsilon = accountants.epsilon(part, delta=delta, relation=self.relation)
        return (events.ApproximateDp(epsilon, 0.0), delta) if math.isfinite(epsilon) else (part, 0.0)

    def _refusal(self, plan: Event, earlier: Sequence[Event], dataset: str, count: int) -> str:
        spent, before = self.spent([*earlier, plan]), self.spent(earlier)
        of = f"for dataset {dataset!r}"
        if spent.leak > self.leak >= before.leak:
            need, left = spent.leak - before.leak, self.leak - before.leak
            return (
                f"the run needs delta={need:.3g} for its (epsilon, delta) steps; {left:.3g} of "
                f"{self.leak:.3g} is left {of}. Nothing was charged."
            )
        need, left = self.exact(plan), self.left(earlier)
        runs = {0: "", 1: " after one earlier run"}.get(count, f" after {count} earlier runs")
        together = f" (together they come to {self.used(spent):.4g})" if need <= left else ""
        return (
            f"the run needs epsilon={need:.4g} (at delta={self.delta:.3g}); {left:.4g} of {self.epsilon:.4g} "
            f"is left {of}{runs}{together}. Nothing was charged."
        )


class Tally:
    """What events cost a budget, added up as they come: one more is priced without the others.

    A float is a whole number of 2^-1074. Sums of such numbers are exact: they are the same in any order, and
    an event that is taken back leaves nothing behind. Infinite costs are counted apart.
    """

    def __init__(self, budget: Budget) -> None:
        self.budget = budget
        self._sums = [0] * (len(budget.orders) + 1)
        self._infinite = [0] * (len(budget.orders) + 1)

    def copy(self) -> Tally:
        other = Tally(self.budget)
        other._sums, other._infinite = list(self._sums), list(self._infinite)
        return other

    def add(self, event: Event, times: int = 1) -> None:
        """Count an event so often; a negative number takes it back."""
        for part, count in events.elementary(reduced(event)).items():
            for i, cost in enumerate(_priced(self.budget, part)):
                if math.isfinite(cost):
                    above, below = cost.as_integer_ratio()
                    self._sums[i] += times * count * above * (_FINEST // below)
                else:
                    self._infinite[i] += times * count

    def spent(self) -> Spent:
        """The cost of all of them."""
        pairs = zip(self._sums, self._infinite, strict=True)
        *rdp, leak = (math.inf if infinite else _quotient(total) for total, infinite in pairs)
        return Spent(tuple(rdp), leak)


_FINEST = 1 << 1074


def _quotient(total: int) -> float:
    try:
        return total / _FINEST
    except OverflowError:
        return math.inf


@functools.lru_cache(maxsize=1 << 15)  # a ledger asks for all kinds of events that it holds, at every charge
def _priced(budget: Budget, part: Event) -> tuple[float, ...]:
    """What one event costs: at each order, and of δ."""
    pure, leak = budget._without_leak(part)
    curve = accountants.rdp(pure, orders=budget.orders, relation=budget.relation)
    return (*(float(cost) for cost in curve), leak)
