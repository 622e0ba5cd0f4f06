"""Who pays for a network's steps: a charge in a ledger, or an account of the run's own."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from sidelight.errors import InputError, LedgerError, PrivacyConditionError
from sidelight.methods.certified import Certified
from sidelight.methods.charged import Purse
from sidelight.privacy import accountants, events
from sidelight.privacy.events import Event, Relation
from sidelight.privacy.ledger import Run
from sidelight.privacy.release import Account
from sidelight.privacy.statement import PrivacyStatement, plain

__all__ = ["Contract", "OpenAccount"]

_ROUNDING = 1e-6  # relative; a plan is calibrated to its budget by bisection
_REST = "scores on private records, choices made by them, or anything else learned from private records"


@dataclass(frozen=True)
class Contract:
    """A plan, what it may cost, and who pays."""

    method: str
    event: Event
    filtered: bool
    relation: Relation
    epsilon: float
    delta: float
    n: int
    private: bool = True
    details: Mapping[str, Any] = field(default_factory=dict)
    assumptions: tuple[str, ...] = ()
    purse: Purse | None = None

    @cached_property
    def cost(self) -> float:
        """ε of the plan, which must be within the budget."""
        if not self.private:
            return math.inf
        spent = accountants.epsilon(self.event, delta=self.delta, relation=self.relation)
        if not spent <= self.epsilon * (1 + _ROUNDING):
            raise PrivacyConditionError(
                f"the plan of {self.method} costs epsilon={spent:.6g} at delta={self.delta:.3g}, more than "
                f"the {self.epsilon:.6g} it was given. Nothing was charged, and no private record was read"
            )
        return spent

    def begin(self) -> tuple[Run, Account]:
        """Charge the whole plan; the run, and the account that is asked before every release."""
        run = self._alone() if self.purse is None else self._charge(self.purse)
        return run, self._guarded(run)

    def go_on(self, number: int, released: Event) -> tuple[Run, Account]:
        """The same for a run that was charged before and had released this much."""
        run = self._alone() if self.purse is None else self._charged(self.purse, number)
        account = self._guarded(run)
        account.charge(released)  # counts only: nothing is written, and nothing new is released
        return run, account

    def _guarded(self, run: Run) -> Account:
        return Certified(run, self.event, relation=self.relation) if self.filtered else run

    def _charge(self, purse: Purse) -> Run:
        return purse.ledger.begin(
            purse.dataset,
            self.event,
            relation=self.relation,
            method=self.method,
            note=f"fit on {self.n} records",
            details=plain(self.details),
            covered_by_filter=self.filtered,
        )

    def _alone(self) -> Run:
        return Run(0, self.event, rule="exact", covered_by_filter=self.filtered, settle=lambda *_: None)

    def _charged(self, purse: Purse, number: int) -> Run:
        ledger = purse.ledger
        known = {charge.number: charge for charge in ledger.charges(purse.dataset)}
        charge = known.get(number)
        if (
            charge is None
            or charge.lowered
            or events.elementary(charge.plan) != events.elementary(self.event)
        ):
            raise LedgerError(
                f"the checkpoint belongs to run {number} of dataset {purse.dataset!r}, and the ledger "
                "has no such run with this plan, still charged in full. Begin a new run instead"
            )
        return Run(
            number,
            self.event,
            rule=charge.rule,
            covered_by_filter=self.filtered,
            settle=ledger._settle,
        )

    def statement(self, run: Run, *, notes: list[str], assumptions: tuple[str, ...] = ()) -> PrivacyStatement:
        """What a reader may rely on."""
        lines = (*self.assumptions, *assumptions, self._coverage())
        return PrivacyStatement(
            epsilon=self.cost,
            delta=self.delta,
            relation=self.relation,
            method=self.method,
            plan=self.event,
            assumptions=tuple(dict.fromkeys(lines)),
            details={"epsilon_requested": self.epsilon, **self.details, "notes": list(notes)},
            ledger=self._receipt(run),
        )

    def _coverage(self) -> str:
        if self.purse is None:
            return (
                f"only this fit is covered: not other fits on the same records (there is no ledger), {_REST}"
            )
        return (
            f"the ledger adds this fit to the others of dataset {self.purse.dataset!r}; not covered: {_REST}"
        )

    def _receipt(self, run: Run) -> dict[str, Any] | None:
        if self.purse is None:
            return None
        return {"ledger": repr(self.purse.ledger), "dataset": self.purse.dataset, "run": run.number}


class OpenAccount:
    """Counts what is released, without a plan: for noise that was fixed by hand."""

    def __init__(self) -> None:
        self._released: Counter[Event] = Counter()

    @property
    def released(self) -> Event:
        return events.compose(*(events.repeat(event, count) for event, count in self._released.items()))

    def charge(self, event: Event) -> None:
        self._released += events.elementary(event)

    def finish(self) -> None:
        """Nothing to settle."""

    def epsilon(self, *, delta: float | None, relation: Relation) -> float:
        """ε of what was released so far."""
        if delta is None:
            raise InputError("epsilon is stated at a delta; pass delta=")
        return accountants.epsilon(self.released, delta=delta, relation=relation)
