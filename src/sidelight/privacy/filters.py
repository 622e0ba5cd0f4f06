"""May I spend this? Filters for runs whose events depend on what was released before.

An accountant composes a plan that was fixed in advance. When noise, batch or the number of steps is chosen
while training, ordinary composition does not apply; a filter is asked before each release, and what it
admits is (ε, δ)-DP however the events were chosen.

    RenyiFilter                  one order, fixed in advance (Theorem 4.3 of Feldman & Zrnic, NeurIPS 2021,
                                 arXiv:2008.11193v3)
    SeveralOrdersFilter          K orders, each with δ/K, going on while some order fits (union bound)
    GaussianFilter               plain Gaussian releases: Σ μ² ≤ μ² (Koskela, Tobaben & Honkela, ICLR 2023)
    TruncatedConcentratedFilter  tCDP: Σ ρ ≤ ρ_total bounds every order below ω_total at once

`admit` raises BudgetExceeded and changes nothing if an event does not fit. `certificate` is the event that
the whole run amounts to, for a ledger to charge in advance.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

import numpy as np

from sidelight.errors import BudgetExceeded, PrivacyConditionError
from sidelight.privacy import accountants, conversions, events
from sidelight.privacy.conversions import Totals
from sidelight.privacy.events import Event, Relation


class Filter(ABC):
    """What all filters do: price an event, and admit it if the sum still fits."""

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
        """Go on where `state_dict` was taken."""
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


class SeveralOrdersFilter(Filter):
    """K orders fixed in advance, each with B_a(ε, δ/K); a run goes on while some order still fits.

    A run that ends certified by order a coincides with the filter at a, so δ is at most K·(δ/K).
    """

    unit = "share of the budget"

    def __init__(self, *, epsilon: float, delta: float, orders: Sequence[float], relation: Relation) -> None:
        super().__init__(epsilon=epsilon, delta=delta, relation=relation, total=1.0)
        share = delta / max(len(orders), 1)
        budgets = {float(a): conversions.rdp_budget(a, epsilon, share) for a in orders}
        self.budgets = {a: b for a, b in budgets.items() if b > 0}
        if not self.budgets:
            raise PrivacyConditionError(
                f"none of the orders {list(orders)} can give epsilon={epsilon:g} at delta={share:g}"
            )
        self._spent: dict[float, list[float]] = {a: [] for a in self.budgets}

    def _after(self, event: Event) -> dict[float, float]:
        costs = accountants.rdp(event, orders=list(self.budgets), relation=self.relation)
        return {a: math.fsum([*self._spent[a], float(c)]) for a, c in zip(self.budgets, costs, strict=True)}

    @property
    def spent(self) -> float:
        return min(math.fsum(costs) / self.budgets[a] for a, costs in self._spent.items())

    def cost(self, event: Event) -> float:
        """How much the spent share of the best order would grow."""
        return max(0.0, min(total / self.budgets[a] for a, total in self._after(event).items()) - self.spent)

    def admits(self, event: Event) -> bool:
        return any(total <= self.budgets[a] for a, total in self._after(event).items())

    def admit(self, event: Event) -> None:
        if not self.admits(event):
            raise BudgetExceeded(
                f"this step needs {self.cost(event):.4g} of the budget; {self.left:.4g} is left. "
                "Training stops here."
            )
        costs = accountants.rdp(event, orders=list(self.budgets), relation=self.relation)
        for a, cost in zip(self.budgets, costs, strict=True):
            self._spent[a].append(float(cost))

    charge = admit

    @property
    def certificate(self) -> Event:
        return events.ApproximateDp(self.epsilon, self.delta)


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
