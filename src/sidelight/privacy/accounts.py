"""Accounts for what a fixed plan cannot list: steps chosen while training, and steps without an end."""

from __future__ import annotations

import math
import threading
from collections import Counter
from typing import NoReturn

from sidelight.errors import BudgetExceeded, PrivacyConditionError
from sidelight.privacy import accountants, events
from sidelight.privacy.events import Event, Relation
from sidelight.privacy.process import here
from sidelight.privacy.release import Account

__all__ = ["Certified", "OpenAccount"]

_ROUNDING = 1e-9  # relative; a filter may fill its budget to the last bit


class Certified:
    """Passes charges on to `account` while their sum is within the certificate of a filter.

    Such a run asks a filter of its own before each step, and the filter's certificate is what was charged.
    Here every event is compared with that certificate a second time, so that a run whose filter was never
    asked is stopped too.
    """

    def __init__(self, account: Account, certificate: Event, *, relation: Relation) -> None:
        self._account, self._certificate, self._relation = account, certificate, relation
        self._costs: list[float] = []

    def charge(self, event: Event) -> None:
        """Charge an event, or raise BudgetExceeded if the certificate does not cover it any more."""
        cost, total = self._priced(event)
        if not math.fsum([*self._costs, cost]) <= total * (1 + _ROUNDING):
            raise BudgetExceeded(
                f"{events.describe(event)} is beyond the certificate that was charged, "
                f"{events.describe(self._certificate)}. Nothing was released"
            )
        self._account.charge(event)
        self._costs.append(cost)

    def _priced(self, event: Event) -> tuple[float, float]:
        """What the event costs, and what the certificate allows, in the unit of the certificate."""
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

    @property
    def released(self) -> Event:
        """Everything that was charged so far, composed."""
        return events.compose(*(events.repeat(event, count) for event, count in self._released.items()))

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
