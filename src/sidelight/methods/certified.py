"""An account for runs that choose their steps while training: it adds up what they release by itself.

Such a run asks a filter of its own before each step, and the filter's certificate is what was charged. Here
every event is compared with that certificate a second time, so that a run whose filter sleeps is stopped too.
"""

from __future__ import annotations

import math

from sidelight.errors import BudgetExceeded
from sidelight.privacy import accountants, events
from sidelight.privacy.events import Event, Relation
from sidelight.privacy.release import Account

__all__ = ["Certified"]

_ROUNDING = 1e-9  # relative; a filter may fill its budget to the last bit


class Certified:
    """Passes charges on to `account` while their sum is within the certificate of a filter."""

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
