"""The one path from a plan to a model: plan → check the cost → charge → read → run → statement.

Estimators, tables, `Trainer` and `PrivateStep` all begin here. `Contract.begin` computes what the plan costs
and refuses one above its budget, before anything is charged; nobody else checks, and nobody can forget to.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import Protocol

from sidelight.errors import (
    InputError,
    LedgerError,
    NotPrivateWarning,
    PrivacyConditionError,
    SidelightError,
    listed,
    warn_charged,
)
from sidelight.numbers import plain_up
from sidelight.privacy import accountants, events
from sidelight.privacy.accountants import resolve_delta
from sidelight.privacy.events import Event, NoOp, Relation
from sidelight.privacy.identity import Identity
from sidelight.privacy.ledger import Ledger
from sidelight.privacy.ledger_book import Charge, RegisteredDataset
from sidelight.privacy.noise import Noise
from sidelight.privacy.observer import ObservedAccount, Observer, PlanOnly
from sidelight.privacy.open_accounts import Certified, OpenAccount
from sidelight.privacy.release import Account, Run
from sidelight.privacy.statement import PrivacyStatement, Receipt, plain, warn_of_epsilon

DEFAULT_RELATION: Relation = "add-or-remove-one"
_ROUNDING = 1e-6  # relative; a plan is calibrated to its budget by bisection
SEED_WARNING = (
    "a seed (random_state) fixes the noise: whoever knows or guesses it can remove the noise. The guarantee "
    "holds only while the seed is secret; use none for a model that you release"
)
_REST = "scores on private records, choices made by them, or anything else learned from private records"


@dataclass(frozen=True)
class Payer:
    """Who pays: a dataset in a ledger. And for what: records that must be those of the dataset."""

    ledger: Ledger
    dataset: str
    identity: Identity | None = None  # None: a run that has nothing to show, and is recorded as such

    @property
    def registered(self) -> RegisteredDataset:
        """The dataset as it was registered; its relation and δ are the defaults of whoever it pays for."""
        known = self.ledger.datasets()
        if self.dataset not in known:
            raise InputError(
                f"the ledger has no dataset {self.dataset!r}; it has {', '.join(known) or 'none'}"
            )
        return known[self.dataset]


def open_payer(
    ledger: Ledger | str | os.PathLike[str] | None, dataset: str | None, identity: Identity | None = None
) -> Payer | None:
    """The ledger (opened, if it is a path) and the dataset in it, which may be left out if there is one."""
    if ledger is None:
        if dataset is not None:
            raise InputError("a dataset was named without the ledger that holds it; name both")
        return None
    book = ledger if isinstance(ledger, Ledger) else Ledger.open(ledger)
    if dataset is None:
        known = list(book.datasets())
        if len(known) != 1:
            raise InputError(f"the ledger has {len(known)} datasets ({listed(known)}): name one")
        dataset = known[0]
    return Payer(book, dataset, identity)


class Related(Protocol):
    """A method, as far as relations go."""

    @property
    def relations(self) -> tuple[Relation, ...]:
        """The relations that it can give."""


def relation_of(method: Related, given: Relation | None, payer: Payer | None = None) -> Relation:
    """The relation given; for None that of the dataset in the ledger.

    Without either it is add-or-remove-one, for linear models and networks alike, so that one ε says the same
    of any two methods; a method that is proved for replace-one alone takes that, which is the stronger.
    """
    if given is not None:
        return given
    if payer is not None:
        return payer.registered.relation
    return DEFAULT_RELATION if DEFAULT_RELATION in method.relations else method.relations[0]


def delta_of(given: float | None, n: int, payer: Payer | None) -> float:
    """The δ given; for None that of the dataset in the ledger, and without one the default for n records."""
    if given is None and payer is not None:
        given = payer.registered.budget.delta
    return resolve_delta(given, n)


@dataclass(frozen=True)
class Contract:
    """A plan, what it may cost, and who pays.

    Args:
        method: the name of the method.
        event: the plan; it bounds everything that the run will release.
        filtered: whether the run chooses its steps while training; then `event` is a filter's certificate,
            composed with the fixed releases beside it.
        epsilon: the budget. Infinity states what the plan costs, and refuses nothing.
        n: private records (or persons), for the ledger's note.
        unit: what one of the n is.
        private: False for a method that protects nothing; its statement says so.
        details: the choices made, for statement and ledger; public.
        payer: None charges an account of this run's own, which remembers nothing afterwards.
        observers: are notified of the charge, of every release, and of the statement.
    """

    method: str
    event: Event
    filtered: bool
    relation: Relation
    epsilon: float
    delta: float
    n: int
    unit: str = "record"
    private: bool = True
    details: Mapping[str, object] = field(default_factory=dict)
    assumptions: tuple[str, ...] = ()
    payer: Payer | None = None
    observers: tuple[Observer, ...] = ()

    @cached_property
    def cost(self) -> float:
        """ε of the plan at delta, by an accountant that the method has no say in."""
        if not self.private:
            return math.inf
        return accountants.epsilon(self.event, delta=self.delta, relation=self.relation)

    def check(self) -> None:
        """Raise PrivacyConditionError if the plan costs more than the budget. `begin` does this too."""
        if self.private and not self.cost <= self.epsilon * (1 + _ROUNDING):
            raise PrivacyConditionError(
                f"the plan of {self.method} costs epsilon={plain_up(self.cost, 6)} at "
                f"delta={plain_up(self.delta, 3)}, which is more than the {self.epsilon:.6g} it was "
                "given. Nothing was charged, and no private record was read"
            )

    def begin(self) -> tuple[Run, Account]:
        """Charge the whole plan; the run, and the account that is asked before every release."""
        self.check()
        warn_of_epsilon(self.cost)
        for observer in self.observers:
            observer.on_plan()
        if any(observer.plan_only for observer in self.observers):
            raise PlanOnly(self, self._refusal())
        run = self._own_run() if self.payer is None else self._charge(self.payer)
        return run, self._observed(self._guarded(run))

    def _refusal(self) -> SidelightError | None:
        """What the ledger would raise instead of charging this plan; nothing is written."""
        if self.payer is None:
            return None
        try:
            self.payer.ledger.check_admitted(
                self.payer.dataset, self.event, relation=self.relation, identity=self.payer.identity
            )
        except SidelightError as refusal:
            return refusal
        return None

    def _observed(self, account: Account) -> Account:
        """Notify observers that the run begins, and of its releases."""
        if not self.observers:
            return account
        count = 0 if self.filtered else events.releases(self.event)
        name = str(self.details.get("chosen", self.method))
        for observer in self.observers:
            observer.on_start(method=name, epsilon=self.epsilon, releases=count)
        return ObservedAccount(account, self.observers)

    def key(self, noise: Noise, run: Run | OpenAccount, *about: object) -> Noise:
        """Bind a source to this run: to method, plan, budget and charge, and to whatever else decides it.

        A seed is often used again. Two runs that differ in anything named here, or in the records, or that a
        ledger charged apart, then share neither noise nor batches.
        """
        if noise.reproducible and self.private and self.event != NoOp():
            warn_charged(SEED_WARNING, NotPrivateWarning)
        plan = json.dumps([events.to_json(self.event), plain(self.details)], sort_keys=True)
        settings = (self.method, self.relation, float(self.epsilon), float(self.delta), self.n)
        return noise.bind("run", *settings, plan, getattr(run, "nonce", ""), *about)

    def begin_open(self) -> OpenAccount:
        """An account without a plan, for steps whose number is not fixed: it counts, and no ledger pays."""
        if self.payer is not None:
            raise PrivacyConditionError("a ledger is charged with a whole plan in advance; fix the steps")
        return OpenAccount()

    def resume(
        self, number: int, released: Event, *, known: tuple[str, ...] = ("",)
    ) -> tuple[Run, Account, str]:
        """The same for a run that was charged before and had released this much, and the token it has now.

        `known` are the tokens that the checkpoint has. If the ledger has another one, somebody has gone on
        from a later state of the run.
        """
        self.check()
        run, token = (self._own_run(), "") if self.payer is None else self._charged(self.payer, number, known)
        account = self._guarded(run)
        account.charge(released)  # counts only: nothing is written, and nothing new is released
        return run, self._observed(account), token

    def claim(self, run: Run, *, expected: str, token: str) -> None:
        """Write into the ledger that a run was resumed: only a checkpoint with this token goes on now."""
        if self.payer is not None:
            self.payer.ledger.claim(run.number, expected=expected, token=token)

    def check_claim(self, run: Run, *, token: str, seen: str) -> str:
        """Before a release: raise if somebody else has gone on with this run (`Ledger.check_claim`)."""
        if self.payer is None:
            return seen
        return self.payer.ledger.check_claim(run.number, token=token, seen=seen)

    def ended(self, number: int) -> Run:
        """A run that has ended, as an account that covers nothing more."""
        evidence, order = None, 0
        if self.payer is not None:
            charge = self._charge_of(self.payer, number)
            evidence, order = charge.evidence, charge.order
            self.payer.ledger.claim(number, expected=None, token=None)  # if it was killed before that
        return Run(
            number, NoOp(), rule="exact", covered_by_filter=False, settle=lambda *_: None, evidence=evidence,
            order=order,
        )  # fmt: skip

    def close(self, run: Run) -> None:
        """Write into the ledger that a run with checkpoints has ended: none of them is resumed any more."""
        if self.payer is not None:
            self.payer.ledger.claim(run.number, expected=None, token=None)

    def settle(self, run: Run) -> bool:
        """End a run before its plan does; whether the ledger's charge is only what was released."""
        run.finish()
        try:
            return self.payer is not None and self._charge_of(self.payer, run.number).lowered
        except LedgerError:  # it cannot be read: the result must not be lost, and nothing is promised
            return False

    def _guarded(self, run: Run) -> Account:
        return Certified(run, self.event, relation=self.relation) if self.filtered else run

    def _charge(self, payer: Payer) -> Run:
        return payer.ledger.begin(
            payer.dataset,
            self.event,
            relation=self.relation,
            method=self.method,
            identity=payer.identity,
            note=f"fit on {self.n:,} {'records' if self.unit == 'record' else f'persons (by {self.unit})'}",
            details=plain(self.details),
            covered_by_filter=self.filtered,
        )

    def _own_run(self) -> Run:
        """An account of this run alone: it compares every release with the plan and remembers nothing."""
        return Run(0, self.event, rule="exact", covered_by_filter=self.filtered, settle=lambda *_: None)

    def _charged(self, payer: Payer, number: int, tokens: tuple[str, ...]) -> tuple[Run, str]:
        charge = self._charge_of(payer, number)
        payer.ledger.check_records(payer.dataset, payer.identity)
        ended = charge.token is None or charge.lowered
        if charge.token is None or ended or charge.token not in tokens:
            how = "ended" if ended else "was resumed from a later checkpoint, or from a copy"
            raise LedgerError(
                f"this checkpoint is spent: run {charge.order} of dataset {payer.dataset!r} {how}. To go on "
                "from here would release its steps a second time; begin a new run instead"
            )
        run = Run(
            number,
            self.event,
            rule=charge.rule,
            covered_by_filter=self.filtered,
            settle=payer.ledger._settle,
            evidence=charge.evidence,
            order=charge.order,
        )
        return run, charge.token

    def _charge_of(self, payer: Payer, number: int) -> Charge:
        for charge in payer.ledger.charges(payer.dataset):
            if charge.number == number and events.elementary(charge.plan) == events.elementary(self.event):
                return charge
        raise LedgerError(
            f"the checkpoint belongs to entry {number} of dataset {payer.dataset!r}, and the ledger has no "
            "such run with this plan. Begin a new run instead"
        )

    def statement(
        self,
        run: Run,
        *,
        notes: Sequence[str] = (),
        assumptions: tuple[str, ...] = (),
        found: Mapping[str, object] = MappingProxyType({}),
    ) -> PrivacyStatement:
        """What a reader may rely on. `found`: what the run released, beside its model, for the details."""
        lines = (*self.assumptions, *assumptions, self._coverage())
        statement = PrivacyStatement(
            epsilon=self.cost,
            delta=self.delta,
            relation=self.relation,
            method=self.method,
            plan=self.event,
            assumptions=tuple(dict.fromkeys(lines)),
            details={"epsilon_requested": self.epsilon, **self.details, **found, "notes": list(notes)},
            ledger=self._receipt(run),
            unit=self.unit,
        )
        for observer in self.observers:
            observer.on_finish(statement)
        return statement

    def statement_so_far(self, account: OpenAccount, *, assumptions: tuple[str, ...]) -> PrivacyStatement:
        """The same for steps without a plan: what those so far cost."""
        released = account.released
        epsilon = accountants.epsilon(released, delta=self.delta, relation=self.relation)
        account.warn_once(epsilon)
        return PrivacyStatement(
            epsilon=epsilon,
            delta=self.delta,
            relation=self.relation,
            method=self.method,
            plan=released,
            assumptions=tuple(dict.fromkeys((*self.assumptions, *assumptions, self._coverage()))),
            details=self.details,
            unit=self.unit,
        )

    def _coverage(self) -> str:
        if self.payer is None:
            return (
                f"only this fit is covered: not other fits on the same records (there is no ledger), {_REST}"
            )
        return (
            f"the ledger adds this fit to the others of dataset {self.payer.dataset!r}; it does not cover "
            f"{_REST}"
        )

    def _receipt(self, run: Run) -> Receipt | None:
        if self.payer is None:
            return None
        checked = "not checked" if run.evidence is None else run.evidence.describe()
        book, dataset = repr(self.payer.ledger), self.payer.dataset
        return Receipt(ledger=book, dataset=dataset, run=run.order, entry=run.number, records=checked)
