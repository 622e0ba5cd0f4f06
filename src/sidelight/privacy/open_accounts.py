"""Accounts for what a fixed plan cannot list: steps chosen while training, and steps without an end."""

from __future__ import annotations

import math
import threading
from collections import Counter
from typing import NoReturn

from sidelight.errors import (
    BudgetExceeded,
    PrivacyConditionError,
)
from sidelight.privacy import accountants, events
from sidelight.privacy.events import Event, Relation
from sidelight.privacy.noise import here
from sidelight.privacy.release import Account
from sidelight.privacy.statement import warn_of_epsilon

_CERTIFIED = 1e-9  # relative; a filter may fill its budget to the last bit


def certificate_of(plan: Event) -> tuple[Event, Counter[Event]]:
    """The filter's certificate in the plan of an adaptive run, and the fixed releases composed after it."""
    beside: Counter[Event] = Counter()
    while isinstance(plan, events.Composed):
        for event in plan.events[1:]:
            beside += events.elementary(event)
        plan = plan.events[0]
    return plan, beside


class Certified:
    """Passes charges on to `account` while their sum is within the certificate of a filter.

    Such a run asks a filter of its own before each step, and the filter's certificate is what was charged.
    Here every event is compared with that certificate a second time, so that a run whose filter was never
    asked is stopped too. Small releases beside the filter (`certificate_of`) pass once each.
    """

    def __init__(self, account: Account, plan: Event, *, relation: Relation) -> None:
        self._certificate, self._beside = certificate_of(plan)
        self._account, self._relation = account, relation
        self._costs: list[float] = []

    def charge(self, event: Event) -> None:
        """Charge an event, or raise BudgetExceeded if the certificate does not cover it any more."""
        parts = events.elementary(event)
        beside = parts & self._beside
        cost, total = self._priced(parts - beside)
        if cost and not math.fsum([*self._costs, cost]) <= total * (1 + _CERTIFIED):
            raise BudgetExceeded(
                f"{events.describe(event)} is beyond the certificate that was charged, "
                f"{events.describe(self._certificate)}. Nothing was released"
            )
        self._account.charge(event)
        self._beside -= beside
        self._costs.append(cost)

    def _priced(self, parts: Counter[Event]) -> tuple[float, float]:
        """What these events cost, and what the certificate allows, in the unit of the certificate."""
        if not parts:
            return 0.0, 0.0
        event = events.composed(parts)
        match self._certificate:
            case events.Gaussian(noise_multiplier=z):
                mu = accountants.gdp(event)
                return (math.inf if mu is None else mu * mu), 1 / (z * z)
            case events.RenyiBound(order=order, rdp=bound):
                cost = accountants.rdp(event, orders=[order], relation=self._relation)[0]
                return float(cost), bound
            case events.TruncatedConcentrated(rho=rho, omega=omega):
                cost, orders = accountants.tcdp(event, relation=self._relation, omega_total=omega)
                return (cost if orders >= omega else math.inf), rho
        return 0.0, 0.0  # (ε, δ) alone cannot be added up: the run's own filter is all there is


class OpenAccount:
    """Counts what is released, without a plan: for noise that was fixed by hand."""

    def __init__(self) -> None:
        self._released: Counter[Event] = Counter()
        self._lock = threading.Lock()
        self._process = here()
        self._warned = False

    def warn_once(self, epsilon: float) -> None:
        """Warn of an ε that protects little, the first time that one is reached."""
        if not self._warned:
            self._warned = warn_of_epsilon(epsilon)

    @property
    def released(self) -> Event:
        """Everything that was charged so far, composed."""
        return events.composed(self._released)

    def charge(self, event: Event) -> None:
        """Count an event that is about to happen."""
        if self._process != here():
            raise PrivacyConditionError(
                "these steps belong to the process that began them: a fork would release steps that nobody "
                "counts. Begin in each process"
            )
        with self._lock:
            self._released += events.elementary(event)

    def finish(self) -> None:
        """Nothing to settle."""

    def __reduce__(self) -> NoReturn:
        raise TypeError("an account is not copied or pickled: each copy would count its own releases alone")
