"""A small release beside a method, inside one plan: how much of the budget is left for the method.

The health check of the private records and the counts behind probabilities are such releases. Each is fixed
by public quantities before the method is planned, so both are one composition, charged once:

    side    ← event of the small release                        (public)
    ε′      ← the budget that it leaves
    plan    ← method.plan(ε′), composed with `side`             its cost at δ is at most ε

The contract computes that cost again, and the account of the run admits `side` once (`Contract.begin`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

from sidelight.methods.task import Method, Plan, Task, takes_partitions, takes_persons, takes_unlabeled
from sidelight.privacy import accountants, conversions, events
from sidelight.privacy.events import Event, Relation

_TRIES = 6
_SHORT = 1 - 1e-9  # of μ: what bisections and sums may lose to rounding


class PlanWithSideRelease(NamedTuple):
    """The plan of a method next to a small release."""

    inner: Plan  # of the method alone
    epsilon: float  # that it was planned with
    side: Event

    @property
    def spends(self) -> bool:
        """Whether the method reads private records at all. If it does not, there is no small release."""
        return self.inner.event != events.NoOp()

    @property
    def plan(self) -> Plan:
        """Both, as one plan. The event of the method comes first: it may be a filter's certificate."""
        if not self.spends:
            return self.inner
        return replace(self.inner, event=events.compose(self.inner.event, self.side))

    def task(self, task: Task) -> Task:
        """The task as the method was planned for it: `run` may ask for its budget again."""
        return replace(task, epsilon=self.epsilon)


def plan_with_side_release(
    side: Event, plan_at: Callable[[float], Plan], *, epsilon: float, delta: float, relation: Relation
) -> PlanWithSideRelease | None:
    """Plan a method with the ε that `side` leaves of the budget; None if it leaves none.

    The first ε′ is that of Gaussian differential privacy, where μ² adds up (Corollary 3.3 of Dong, Roth & Su,
    arXiv:1905.02383v3). It is exact for plans of Gaussians. Other plans are priced by PLD together with
    `side`, and ε′ is lowered until both fit.
    """
    mu = conversions.gdp_mu(epsilon, delta) * _SHORT
    left = mu**2 - _mu(side) ** 2
    rest = conversions.gaussian_epsilon(delta, math.sqrt(left)) if left > 0 else 0.0
    for _ in range(_TRIES):
        if not rest > 0:  # δ alone covers what would be left
            return None
        found = PlanWithSideRelease(plan_at(rest), rest, side)
        if not found.spends:
            return found
        cost = accountants.epsilon(found.plan.event, delta=delta, relation=relation)
        if cost <= epsilon:
            return found
        rest -= 1.1 * (cost - epsilon)
    return None


def _mu(event: Event) -> float:
    """μ of a small release; of a sampled one the limit of many (Theorem 11 of Bu et al. 2020)."""
    match event:
        case events.Gaussian(noise_multiplier=z):
            return float(1 / z)
        case events.PoissonSampled(sampling_probability=q, event=inner):
            return float(q) * math.sqrt(math.expm1(_mu(inner) ** 2))
        case events.SampledWithoutReplacement(sample_size=size, source_dataset_size=n, event=inner):
            return size / n * math.sqrt(math.expm1(_mu(inner) ** 2))
        case events.ZeroConcentrated(rho=rho):
            return math.sqrt(2 * rho)
        case events.SelfComposed(event=inner, count=count):
            return math.sqrt(count) * _mu(inner)
        case events.Composed(events=parts):
            return math.hypot(*map(_mu, parts))
    raise TypeError(f"{type(event).__name__} is not an event of a small release")


@dataclass(frozen=True)
class WrappedMethod:
    """A method with something beside it: what it says of itself is what the method inside says."""

    method: Method

    def __repr__(self) -> str:
        return repr(self.method)  # what is trained does not depend on the rest

    @property
    def name(self) -> str:
        return self.method.name

    @property
    def relations(self) -> tuple[Relation, ...]:
        return self.method.relations

    @property
    def needs_public(self) -> bool:
        return self.method.needs_public

    @property
    def private(self) -> bool:
        return self.method.private

    @property
    def takes_unlabeled(self) -> bool:
        return takes_unlabeled(self.method)

    @property
    def takes_persons(self) -> bool:
        return takes_persons(self.method)

    @property
    def takes_partitions(self) -> bool:
        return takes_partitions(self.method)
