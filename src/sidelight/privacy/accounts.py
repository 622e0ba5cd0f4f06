"""What `release` charges before every noisy value: a run with its plan, a certificate, or a bare count."""

from __future__ import annotations

import math
import threading
import warnings
from collections import Counter
from collections.abc import Callable
from types import TracebackType
from typing import NoReturn

from sidelight.errors import BudgetExceeded, LedgerError, PrivacyConditionError, PrivacyWarning
from sidelight.privacy import accountants, events
from sidelight.privacy.events import Event, Relation
from sidelight.privacy.filters import Rule
from sidelight.privacy.ledger_book import Evidence
from sidelight.privacy.noise import here
from sidelight.privacy.release import Account

__all__ = ["Certified", "OpenAccount", "Run"]


# ---------------------------------------------------------------------------------------------------
# a run that was charged with its plan


class Run:
    """What one run may release: the events of its plan, each as often as planned, and nothing else.

    The plan is in the ledger already; a charge here only checks that the plan covers it. As a context
    manager, a run that leaves without an exception is finished, and one that does not keeps its full charge.
    """

    def __init__(
        self,
        number: int,
        plan: Event,
        *,
        rule: Rule,
        covered_by_filter: bool,
        settle: Callable[[int, Event], None],
        evidence: Evidence | None = None,
        nonce: str = "",
        order: int = 0,
    ) -> None:
        self.number = number  # of its entry in the ledger
        self.order = order  # the first run of a dataset is 1
        self.evidence = evidence  # what the ledger checked of its records; None: nothing
        self.nonce = nonce  # no other run of any ledger has it
        self.plan = plan
        self._left = events.elementary(plan)
        self._released: Counter[Event] = Counter()
        self._whole = rule != "filter" or covered_by_filter
        self._covered_by_filter = covered_by_filter
        self._settle = settle
        self._finished = False
        self._lock = threading.Lock()
        self._process = here()

    @property
    def released(self) -> Event:
        """Everything that was charged so far, composed."""
        return events.composed(self._released)

    def charge(self, event: Event) -> None:
        """Count an event that is about to happen, or raise BudgetExceeded if the plan does not cover it."""
        parts = events.elementary(event)
        self._check_process()  # before the lock, which a thread of the parent may have held
        with self._lock:
            self._check_running()
            if not self._covered_by_filter:
                if not parts <= self._left:
                    raise BudgetExceeded(self._refusal(parts))
                self._left -= parts
            self._released += parts

    def finish(self) -> None:
        """End the run well: its charge is lowered to what was released, where the plan makes that certain.

        Nothing released costs nothing. A part of a fixed plan costs that part if the filter admitted the run:
        it adds up steps as they happen, so a run may stop when it likes. Otherwise the charge stays.
        """
        self._check_process()
        with self._lock:
            if self._finished:
                return
            self._finished = True
        if self._released and (self._whole or not +self._left):
            return
        try:
            self._settle(self.number, self.released)
        except LedgerError as error:
            # The run itself went well, and its result must not be lost to a full disk.
            warnings.warn(f"this run stays charged with its full plan: {error}", PrivacyWarning, stacklevel=2)

    settle = finish

    def _check_running(self) -> None:
        if self._finished:
            raise LedgerError("this run is finished; begin another to release more")

    def _check_process(self) -> None:
        if self._process != here():
            raise LedgerError("a run belongs to the process that began it; begin one in each process")

    def _refusal(self, parts: Counter[Event]) -> str:
        event, count = next((e, c) for e, c in parts.items() if c > self._left[e])
        return (
            f"this step needs {count} × {events.describe(event)}; the plan that was charged has "
            f"{self._left[event]} of these left. Nothing was released."
        )

    def __enter__(self) -> Run:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.finish()

    def __reduce__(self) -> NoReturn:
        raise TypeError("a run is not copied or pickled: two copies would release its plan twice")

    def __repr__(self) -> str:
        return f"Run({self.number}, {events.describe(self.plan)})"


# ---------------------------------------------------------------------------------------------------
# for what a fixed plan cannot list: steps chosen while training, and steps without an end

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
