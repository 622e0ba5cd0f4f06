"""The one path from a plan to a model: plan → check the cost → charge → read → run → statement.

Estimators, tables, `Trainer` and `PrivateStep` all begin here. `Contract.begin` computes what the plan costs
and refuses one above its budget, before anything is charged; nobody else checks, and nobody can forget to.
"""

from __future__ import annotations

import json
import math
import os
import threading
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import Any, NoReturn, Protocol, TypedDict

import numpy as np

from sidelight.arrays import Json
from sidelight.errors import (
    BudgetExceeded,
    InputError,
    LedgerError,
    NotPrivateWarning,
    PrivacyConditionError,
    PrivacyWarning,
    first_line,
    users_line,
    warn_charged,
)
from sidelight.numbers import plain_up
from sidelight.privacy import accountants, events
from sidelight.privacy.accountants import resolve_delta
from sidelight.privacy.events import Event, NoOp, Relation
from sidelight.privacy.identity import Identity
from sidelight.privacy.ledger import Charge, Ledger, RegisteredDataset, Run
from sidelight.privacy.noise import Noise, here
from sidelight.privacy.release import Account

__all__ = [
    "SEED_WARNING",
    "Certified",
    "Contract",
    "ObservedAccount",
    "Observer",
    "OpenAccount",
    "Payer",
    "PrivacyStatement",
    "certificate_of",
    "open_payer",
    "plain",
    "warn_of_epsilon",
]

# ---------------------------------------------------------------------------------------------------
# observers of a run: progress bars, checkpoints, loggers. They get public and released values only, and
# change nothing. The contract notifies them (plan, charge, releases, statement) and, where the method takes
# private steps, the loop.


class Observer:
    """An observer that ignores every event; subclasses take those that they want."""

    def on_stage(self, name: str) -> None:
        """A stage of the work begins."""

    def on_plan(self) -> None:
        """The plan is within its budget, and is about to be charged."""

    def on_start(self, *, method: str, epsilon: float, releases: int) -> None:
        """The plan is charged; reading and training begin, with at most so many releases (0: not known)."""

    def on_read(self, done: int, records: int) -> None:
        """So many of the private records are read: none at first, in the end all of them."""

    def on_release(self) -> None:
        """A release was charged."""

    def on_step(self, step: int, entry: Mapping[str, object]) -> None:
        """A private step was taken; `entry` is its line of the history."""

    def on_finish(self, statement: PrivacyStatement) -> None:
        """The run ended, and this is what it cost."""


def check_observers(given: object) -> tuple[Observer, ...]:
    """Those that a user passed, or an error that says what to pass."""
    several = tuple(given) if isinstance(given, list | tuple) else (given,)
    for one in several:
        if not isinstance(one, Observer):
            raise InputError(
                f"observers holds observers, such as sidelight.observers.TensorBoard(folder), not {one!r}; a "
                "function goes into sidelight.observers.Callback(function)"
            )
    return tuple(_UsersObserver(one) for one in several)


class _UsersObserver(Observer):
    """An observer of the user's: a failure before the charge ends the run; after it, the notices alone.

    A line that a dashboard does not take is no reason to lose a budget and a model.
    """

    def __init__(self, inner: Observer) -> None:
        self._inner, self._charged, self._failed = inner, False, False

    def on_stage(self, name: str) -> None:
        self._notify(lambda: self._inner.on_stage(name))

    def on_plan(self) -> None:
        self._charged = self._failed = False
        self._notify(self._inner.on_plan)

    def on_start(self, *, method: str, epsilon: float, releases: int) -> None:
        self._charged = True
        self._notify(lambda: self._inner.on_start(method=method, epsilon=epsilon, releases=releases))

    def on_read(self, done: int, records: int) -> None:
        self._notify(lambda: self._inner.on_read(done, records))

    def on_release(self) -> None:
        self._notify(self._inner.on_release)

    def on_step(self, step: int, entry: Mapping[str, object]) -> None:
        self._notify(lambda: self._inner.on_step(step, entry))

    def on_finish(self, statement: PrivacyStatement) -> None:
        self._notify(lambda: self._inner.on_finish(statement))

    def _notify(self, tell: Callable[[], None]) -> None:
        if self._failed:
            return
        try:
            tell()
        except Exception as error:
            name = type(self._inner).__name__
            if not self._charged:
                raise InputError(
                    f"the observer {name} fails ({first_line(error)}). Nothing was charged"
                ) from error
            self._failed = True
            warn_charged(
                f"the observer {name} failed ({first_line(error)}) and is not notified any more. The run is "
                "charged, and goes on",
                RuntimeWarning,
            )


class ObservedAccount:
    """Passes every charge on, then notifies the observers."""

    def __init__(self, account: Account, observers: Sequence[Observer]) -> None:
        self._account, self._observers = account, observers

    def charge(self, event: Event) -> None:
        self._account.charge(event)
        for observer in self._observers:
            observer.on_release()


# ---------------------------------------------------------------------------------------------------
# what a fit says about its privacy: the numbers, the events behind them, and what must be true for them


class Receipt(TypedDict):
    """Where a charge is written, and what the ledger checked of the records."""

    ledger: str
    dataset: str
    run: int
    entry: int
    records: str


@dataclass(frozen=True)
class PrivacyStatement:
    """The guarantee of one fit.

    Args:
        epsilon: what the plan costs at `delta`: at most the budget; 0 if no private record was used, infinity
            if the method is not private.
        delta: the δ at which `epsilon` holds.
        relation: which datasets are neighbours.
        method: the name of the method.
        plan: the event that was charged; it bounds everything that was released.
        assumptions: what must be true for the guarantee to hold, and what it leaves out.
        details: the choices that were made and their reasons; public.
        ledger: where the charge is written: the ledger, the dataset in it, the number of the run.
        unit: what neighbouring datasets differ in: one "record", or all rows of a person, by the name of the
            column that names persons.
    """

    epsilon: float
    delta: float
    relation: Relation
    method: str
    plan: Event
    assumptions: tuple[str, ...] = ()
    details: Mapping[str, object] = field(default_factory=dict)
    ledger: Receipt | None = None
    unit: str = "record"

    @property
    def events(self) -> tuple[Event, ...]:
        """What was charged, one entry per kind of event."""
        return tuple(events.repeat(part, count) for part, count in events.elementary(self.plan).items())

    @property
    def returned(self) -> str:
        """Which model `auto` returned, and why, in a sentence; empty for other methods."""
        return str(self.details.get("returned", ""))

    @property
    def health(self) -> str:
        """What the health check found, or why there was none, in a sentence; empty for older statements."""
        found = self.details.get("health_check")
        return str(found.get("summary", "")) if isinstance(found, Mapping) else ""

    def to_dict(self) -> Json:
        """Everything, as values that json.dumps writes."""
        return {
            "epsilon": plain(self.epsilon),
            "delta": self.delta,
            "relation": self.relation,
            "unit": self.unit,
            "method": self.method,
            "events": [events.to_json(event) for event in self.events],
            "assumptions": list(self.assumptions),
            "details": plain(self.details),
            "ledger": plain(self.ledger),
        }

    @property
    def _whose(self) -> str:
        return "" if self.unit == "record" else f" for all rows of a person (by {self.unit})"

    def __str__(self) -> str:
        lines = [
            f"({plain_up(self.epsilon, 6)}, {plain_up(self.delta, 3)})-differential privacy, "
            f"{self.relation}{self._whose}, by {self.method}"
            if math.isfinite(self.epsilon)
            else f"no privacy: {self.method} carries no guarantee",
            f"charged: {events.describe(self.plan)}",
            *([f"health check: {self.health}"] if self.health else []),
            *(f"assumes: {assumption}" for assumption in self.assumptions),
        ]
        return "\n".join(lines)


def plain(value: object) -> Any:
    """The value in the types of JSON: no NumPy, no tuples, infinity and NaN as text."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, np.ndarray | np.generic):
        return plain(value.tolist())
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(item) for item in value]
    if isinstance(value, Event):
        return events.to_json(value)
    if isinstance(value, float) and not math.isfinite(value):
        return {math.inf: "infinity", -math.inf: "-infinity"}.get(value, "nan")
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)


# ---------------------------------------------------------------------------------------------------
# the contract

DEFAULT_RELATION: Relation = "add-or-remove-one"
_ROUNDING = 1e-6  # relative; a plan is calibrated to its budget by bisection
SEED_WARNING = (
    "a seed (random_state) fixes the noise: whoever knows or guesses it can remove the noise. The guarantee "
    "holds only while the seed is secret; use none for a model that leaves your hands"
)
LITTLE = 10.0  # at this ε what comes out may be 22,026 times as likely with a record as without it
_REST = "scores on private records, choices made by them, or anything else learned from private records"


def warn_of_epsilon(epsilon: float) -> bool:
    """Give one PrivacyWarning, and return True, where ε promises next to nothing.

    That is, against somebody who knows the other records. Two digits decide: a plan that is calibrated to 10
    may cost 9.99.
    """
    if not math.isfinite(epsilon) or float(f"{epsilon:.2g}") < LITTLE:
        return False
    warnings.warn(
        f"ε = {epsilon:.4g} protects little: an attacker who knows every other record may be right about "
        "the remaining one in more than 99.99 % of all cases (at ε = 1: 73 %)",
        PrivacyWarning,
        stacklevel=users_line(),
    )
    return True


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
            raise InputError("dataset= names a dataset in a ledger; pass ledger= as well")
        return None
    book = ledger if isinstance(ledger, Ledger) else Ledger.open(ledger)
    if dataset is None:
        known = list(book.datasets())
        if len(known) != 1:
            raise InputError(f"the ledger has {len(known)} datasets; say which one with dataset=")
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
        run = self._own_run() if self.payer is None else self._charge(self.payer)
        return run, self._observed(self._guarded(run))

    def _observed(self, account: Account) -> Account:
        """Notify observers that the run begins, and of its releases."""
        if not self.observers:
            return account
        count = 0 if self.filtered else sum(events.elementary(self.event).values())
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
        return self.payer is not None and self._charge_of(self.payer, run.number).lowered

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


# ---------------------------------------------------------------------------------------------------
# accounts for what a fixed plan cannot list: steps chosen while training, and steps without an end


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
