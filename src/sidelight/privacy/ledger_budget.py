"""May this run still be charged? The lifetime budget of a dataset, as a privacy filter.

Which run comes next, and how large, depends on what earlier runs showed, so the usual composition theorems,
which want the whole list in advance, do not apply to a dataset's lifetime. A filter does (METHODS 1.6):

- K Rényi orders are fixed when the dataset is registered, and written down with it. Order a may spend
  B_a(ε, δ/2K) (Theorem 4.3 of Feldman & Zrnic, arXiv:2008.11193v3, with the improved conversion). A run is
  admitted while *some* order still fits: a history that ends certified by order a is one that the order-a
  filter would have let through, so the failures add up to at most K·δ/2K = δ/2.
- An (ε_i, δ_i)-DP run is randomised response that leaks everything with probability δ_i (Theorem 3.2 of
  Kairouz, Oh & Viswanath, ICML 2015). Its δ_i counts against the other δ/2, its ε_i as a pure ε_i-DP run.

Several runs may be open at once and step in turns: a Rényi filter of a fixed order stays one when the
mechanisms are interleaved (Haney et al., CCS 2023, arXiv:2309.05901v2).

The **first** charge has one more way in, which spends neither half of δ nor a union bound: exact accounting
of that one plan, ε(plan, δ) ≤ ε. Such a plan does not fit at any order, so nothing that costs anything is
ever admitted after it (unless it ended without a release, and so there was no private output yet). Whether a
history is of this kind is decided by the first plan alone, which was chosen before there was any private
output; given that plan, either the exact statement or the filter's covers everything that follows, with the
same (ε, δ), and the two need not share δ.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from sidelight.errors import BudgetExceeded, InputError
from sidelight.privacy import accountants, conversions, events
from sidelight.privacy.events import Event, Relation, check_relation

Rule = Literal["filter", "exact", "free"]
# Orders a − 1, as parts of 2·log(2K/δ)/ε, where the classic conversion of a Gaussian is best; below a half
# of that, B_a is negative. More orders cost more in the union bound than they gain (ε from 0.1 to 20, δ from
# 1e-8 to 1e-5, Gaussian and sampled steps).
_ORDER_STEPS = (0.55, 0.75, 1.05)
_ONE_SHOT_SHARE = 1 / 64  # of δ, for an event known by its (ε, δ) curve alone
_ROUNDING = 1e-9  # relative; a calibrated plan meets its budget up to this


@dataclass(frozen=True)
class Spent:
    """What a list of events costs at each order, and the probability with which they may leak everything."""

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
        for part, count in events.elementary(events.compose(*parts)).items():
            pure, leak = self._without_leak(part)
            curve = accountants.rdp(pure, orders=self.orders, relation=self.relation)
            rows.append([count * float(cost) for cost in (*curve, leak)])
        *rdp, leak = (math.fsum(column) for column in zip(*rows, strict=True))
        return Spent(tuple(rdp), leak)

    def fits(self, spent: Spent) -> bool:
        """Does some order still allow it?"""
        if spent.leak > self.leak:
            return False
        return any(r <= limit for r, limit in zip(spent.rdp, self.limits(), strict=True))

    def used(self, spent: Spent) -> float:
        """The least ε at which these orders would have let it through; infinity if none."""
        if spent.leak > self.leak:
            return math.inf
        if not any(spent.rdp) and not spent.leak:
            return 0.0
        pairs = zip(self.orders, spent.rdp, strict=True)
        return min(conversions.rdp_to_dp(a, r, self.share) for a, r in pairs)

    def least(self, charges: Sequence[Event]) -> float:
        """The least lifetime ε at which a filter, with orders that suit it, would have let these through."""
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

    def admit(self, plan: Event, charges: Sequence[Event], *, dataset: str) -> Rule:
        """The rule by which a plan may follow these charges; BudgetExceeded if by none."""
        earlier = [event for event in charges if events.elementary(event)]
        if not events.elementary(plan):
            return "free"
        if self.fits(self.spent([*earlier, plan])):
            return "filter"
        if not earlier and self.exact(plan) <= self.epsilon * (1 + _ROUNDING):
            return "exact"
        raise BudgetExceeded(self._refusal(plan, earlier, dataset))

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

    def _refusal(self, plan: Event, earlier: Sequence[Event], dataset: str) -> str:
        spent, before = self.spent([*earlier, plan]), self.spent(earlier)
        of = f"for dataset {dataset!r}"
        if spent.leak > self.leak >= before.leak:
            need, left = spent.leak - before.leak, self.leak - before.leak
            return (
                f"the run needs delta={need:.3g} for its (epsilon, delta) steps; {left:.3g} of "
                f"{self.leak:.3g} is left {of}. Nothing was charged."
            )
        need, left = self.exact(plan), self.left(earlier)
        runs = {0: "", 1: " after one earlier run"}.get(len(earlier), f" after {len(earlier)} earlier runs")
        together = f" (together they come to {self.used(spent):.4g})" if need <= left else ""
        return (
            f"the run needs epsilon={need:.4g} (at delta={self.delta:.3g}); {left:.4g} of {self.epsilon:.4g} "
            f"is left {of}{runs}{together}. Nothing was charged."
        )
