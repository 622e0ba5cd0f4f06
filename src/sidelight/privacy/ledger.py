"""The ledger: every charge, written down before the data is read.

    with Ledger.open("patients.ledger") as ledger:
        with ledger.begin("patients", plan, relation="add-or-remove-one", method="dp_sgd") as run:
            release(..., account=run)

A dataset has a name, a relation and a lifetime budget, and is bound to the records of its first run
(`ledger_book`). `begin` writes the whole plan of a run durably, as an upper bound of what it will release,
and only then returns the account that `release` charges; a run that would overspend is refused before
anything is written. A run that is killed, or that ends with an exception, keeps its full charge. One that
ends well may be lowered to what it released, where the plan makes that certain
(`ledger_book.check_settlement`).

How a budget is shared by runs that are chosen one after the other is in `filters.Budget`; how the file
survives is in `ledger_store`.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from pathlib import Path

from sidelight.arrays import Json
from sidelight.errors import (
    InputError,
    LedgerDamaged,
    LedgerError,
    PrivacyWarning,
    warn_charged,
)
from sidelight.privacy import events
from sidelight.privacy.events import Event, Relation
from sidelight.privacy.filters import Budget
from sidelight.privacy.identity import Identity
from sidelight.privacy.ledger_book import (
    Binding,
    Book,
    Charge,
    Evidence,
    RegisteredDataset,
    Spending,
    check_settlement,
    now,
)
from sidelight.privacy.ledger_store import Decide, Entry, FileStore, MemoryStore
from sidelight.privacy.release import Run


class Ledger:
    """Datasets, their lifetime budgets, and what every run was charged."""

    def __init__(self, store: FileStore | MemoryStore) -> None:
        if isinstance(store, str | os.PathLike):
            raise InputError("open a ledger file with Ledger.open(path); Ledger.create(path) makes one")
        self._store = store
        self._closed = False
        self._last: tuple[str, int, Book] | None = None  # a book, and the entry up to which it was read

    @classmethod
    def in_memory(cls) -> Ledger:
        """A ledger that lasts as long as this process."""
        return cls(MemoryStore())

    @classmethod
    def create(cls, path: str | os.PathLike[str], *, timeout: float = 30.0) -> Ledger:
        """A new ledger file. A file that exists is never replaced."""
        return cls(FileStore.create(Path(path), timeout=timeout))

    @classmethod
    def open(cls, path: str | os.PathLike[str], *, timeout: float = 30.0) -> Ledger:
        """An existing ledger file, checked; `timeout` is how many seconds to wait for other processes."""
        ledger = cls(FileStore(Path(path), timeout=timeout))
        ledger.verify()
        return ledger

    def close(self) -> None:
        """Refuse all further calls. (No file stays open between two calls.)"""
        self._closed = True

    def register(
        self,
        name: str,
        *,
        relation: Relation,
        epsilon: float,
        delta: float,
        fingerprint: bool = False,
        any_size: bool = False,
    ) -> RegisteredDataset:
        """Declare a dataset and its lifetime budget, once; the same again does nothing.

        Its first run binds it to its columns, or the shape of a record, and to the number of its
        records; runs on other records are refused.

        Args:
            fingerprint: also bind it to a keyed hash of its contents, which are then read for that.
            any_size: runs may use any number of its records: folds of a cross-validation, a growing table.
        """
        if not name or not isinstance(name, str):
            raise InputError(f"the name of a dataset is a text, not {name!r}")
        if not (isinstance(fingerprint, bool) and isinstance(any_size, bool)):
            raise InputError(
                "fingerprint and any_size are True or False: the ledger makes fingerprints itself, with a key"
            )
        if fingerprint and any_size:
            raise InputError(
                "a part has other contents than the whole: pass fingerprint or any_size, not both"
            )
        budget = Budget.new(epsilon=epsilon, delta=delta, relation=relation)
        new = RegisteredDataset(name, budget, now(), fingerprint, any_size)

        def decide(entries: list[Entry]) -> Json | None:
            book = self._book(entries)
            if name in book.datasets:
                _check_declared_again(book.datasets[name], new)
                return None
            return new.to_body()

        self._append(decide)
        return self._read().dataset(name)

    def rebind(self, name: str) -> None:
        """Let the next run bind a dataset to another form of its records, once.

        For the owner, who knows that they are the same records: with other columns, as an array instead of a
        table, or a table that grew. Earlier forms stay accepted; the budget, and what was spent of it, stay
        as they are.
        """

        def decide(entries: list[Entry]) -> Json:
            return {"kind": "rebind", "dataset": self._book(entries).dataset(name).name, "time": now()}

        self._append(decide)

    def bindings(self, name: str) -> list[Binding]:
        """What a dataset is bound to: a run's records must agree with one of these."""
        return self._read().bindings(name)

    def check_records(self, name: str, identity: Identity | None) -> None:
        """Raise DatasetMismatch if a run on these records could not be charged to the dataset."""
        self._read().check_data(name, identity)

    def datasets(self) -> dict[str, RegisteredDataset]:
        """All datasets, by name."""
        return dict(self._read().datasets)

    def charges(self, name: str) -> list[Charge]:
        """Every run that was charged to a dataset, in order."""
        return self._read().charges(name)

    def total(self, name: str) -> Spending:
        """What a dataset has spent, recomputed by composing all of its events."""
        return _total(self._read(), name)

    def remaining(self, name: str) -> float:
        """The largest epsilon (at the dataset's delta) of one more Gaussian run that would be admitted."""
        book = self._read()
        return book.dataset(name).budget.left(book.in_force(name))

    def export(self, name: str | None = None, *, fingerprints: bool = False) -> Json:
        """One dataset, or all, as JSON values; without fingerprints and their keys, unless asked for."""
        book = self._read()
        out: Json = {}
        for dataset in [book.dataset(name)] if name is not None else book.datasets.values():
            runs = [charge.to_dict() for charge in book.charges(dataset.name)]
            out[dataset.name] = {
                "registered": dataset.time,
                "runs": runs,
                "orders": list(dataset.budget.orders),
                "total": _total(book, dataset.name).to_dict(),
                "remaining": dataset.budget.left(book.in_force(dataset.name)),
                "any_size": dataset.any_size,
                "open_to_another_form": book.open_to_more(dataset.name),
                "bound_to": [_bound(binding, fingerprints) for binding in book.bindings(dataset.name)],
            }
        return {"ledger": self._store.name, "datasets": out}

    def verify(self, head: str | None = None) -> str:
        """Check everything; the hash of the last entry.

        Keep that hash elsewhere and pass it as `head` later: the ledger must then still contain that entry,
        which distinguishes a file that grew from one that was rolled back or rewritten.
        """
        self._check_open()
        self._store.check()
        entries = self._store.entries()
        self._last = None
        self._book(entries)
        if head is not None and head not in {entry.hash for entry in entries}:
            raise LedgerDamaged(f"the ledger {self._store.name} has no entry {head}: it was replaced or cut")
        return entries[-1].hash

    def begin(
        self,
        dataset: str,
        plan_event: Event,
        *,
        relation: Relation,
        method: str,
        identity: Identity | None = None,
        note: str = "",
        details: Json | None = None,
        covered_by_filter: bool = False,
    ) -> Run:
        """Charge the whole plan of a run, durably, or raise BudgetExceeded; then the run may read data.

        `plan_event` bounds everything that the run will release. With `covered_by_filter`, it is the
        certificate of a filter that the run asks before each step, and single steps are not compared with it.
        `identity` is what the run may show of its records: they must be those that the dataset is bound to,
        or it raises DatasetMismatch. Without it nothing is checked, and the charge says so.
        """
        body = {
            "kind": "charge",
            "dataset": dataset,
            "method": method,
            "event": _stored(plan_event),
            "covered_by_filter": bool(covered_by_filter),
            "note": note,
            "details": details or {},
            "time": now(),
        }

        order = 0

        def decide(entries: list[Entry]) -> Json:
            nonlocal order
            book = self._book(entries)
            order = book.runs(dataset) + 1
            return {**body, **self._admission(book, dataset, plan_event, relation, identity)}

        # Once without the lock: accounting and reading may take long, and are remembered for the time inside.
        decide(self._entries())
        entry = self._append(decide)
        if entry is None:
            raise LedgerError("the charge was not written. Nothing may be released")
        evidence = Evidence.from_body(entry.body["evidence"])
        self._warn_of_a_look_alike(dataset, evidence)
        return Run(
            entry.number,
            plan_event,
            rule=entry.body["rule"],
            covered_by_filter=bool(covered_by_filter),
            settle=self._settle,
            nonce=entry.hash,
            evidence=evidence,
            order=order,
        )

    def check_admitted(
        self, dataset: str, plan_event: Event, *, relation: Relation, identity: Identity | None = None
    ) -> None:
        """Raise as `begin` would for this plan, and write nothing."""
        self._admission(self._book(self._entries()), dataset, plan_event, relation, identity)

    def _admission(
        self, book: Book, dataset: str, plan_event: Event, relation: Relation, identity: Identity | None
    ) -> Json:
        """The rule by which a plan is admitted, and the evidence of its records."""
        target = book.check_relation(dataset, relation)
        evidence = book.check_data(dataset, identity)
        rule = target.budget.admit(
            plan_event, book.tally(dataset), functools.partial(book.in_force, dataset),
            dataset=dataset, runs=book.runs(dataset),
        )  # fmt: skip
        return {"rule": rule, "evidence": None if evidence is None else evidence.to_body()}

    def _warn_of_a_look_alike(self, name: str, evidence: Evidence | None) -> None:
        if evidence is None or evidence.binds is None:
            return
        try:
            other = self._read().look_alike(name, evidence.binds)
        except LedgerError:  # held or moved by somebody: the charge is written, and only this hint is lost
            return
        if other:
            warn_charged(
                f"dataset {name!r} looks like dataset {other!r} of the same ledger (columns or shape, number "
                "of records). If they are the same records, charge them to one name: two have two budgets",
                PrivacyWarning,
            )

    def claim(self, number: int, *, expected: str | None, token: str | None) -> None:
        """Record who may continue a run: the checkpoint with this token; None if it has ended.

        `expected` is the token until now (the first is empty); None accepts any.
        """

        def decide(entries: list[Entry]) -> Json | None:
            now_valid = self._book(entries).charge(number).token
            if now_valid is None and token is None:
                return None
            if expected is not None and now_valid != expected:
                raise LedgerError(
                    f"run {number} was resumed elsewhere at the same time; only one copy may continue"
                )
            return {"kind": "claim", "charge": number, "token": token, "time": now()}

        self._append(decide)

    def check_claim(self, number: int, *, token: str, seen: str = "") -> str:
        """Raise unless a run still belongs to the holder of this token; what to pass as `seen` next time.

        A run with checkpoints asks before every release: it may have been resumed from a copy meanwhile.
        If nothing was added to the ledger, this is one short read.
        """
        self._check_open()
        head = self._store.head()
        if head != seen and self._book(self._entries()).charge(number).token != token:
            raise LedgerError(
                f"run {number} was resumed or ended elsewhere; only one copy may continue. "
                "Nothing more was released here"
            )
        return head

    def _settle(self, number: int, event: Event) -> None:
        def decide(entries: list[Entry]) -> Json:
            check_settlement(self._book(entries).charge(number), event)
            return {"kind": "settlement", "charge": number, "event": _stored(event), "time": now()}

        self._append(decide)

    def _entries(self) -> list[Entry]:
        self._check_open()
        return self._store.entries()

    def _append(self, decide: Decide) -> Entry | None:
        self._check_open()
        return self._store.append(decide)

    def _book(self, entries: list[Entry]) -> Book:
        """The entries as a book; entries that were parsed before are not parsed again."""
        last = self._last
        if last is not None and len(entries) >= last[1] and entries[last[1] - 1].hash == last[0]:
            book = last[2].followed_by(entries[last[1] :])
        else:
            book = Book(entries, source=self._store.name)
        if entries:
            self._last = (entries[-1].hash, len(entries), book)
        return book

    def _read(self) -> Book:
        return self._book(self._entries())

    def _check_open(self) -> None:
        if self._closed:
            raise LedgerError("this ledger was closed; open it again")

    def __enter__(self) -> Ledger:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Ledger({self._store.name})"

    def __copy__(self) -> Ledger:
        return self  # a copy would be a second budget for the same data

    def __deepcopy__(self, _: dict[int, object]) -> Ledger:
        return self

    def __reduce__(self) -> tuple[Callable[[str], Ledger], tuple[str]]:
        if isinstance(self._store, FileStore):
            return Ledger.open, (self._store.name,)
        raise TypeError("a ledger in memory stays in its process; Ledger.create(path) makes one to share")


def _total(book: Book, name: str) -> Spending:
    dataset = book.dataset(name)
    budget = dataset.budget
    charges = [charge for charge in book.charges(name) if events.elementary(charge.event)]
    parts = tuple(charge.event for charge in charges)
    epsilon = budget.exact(events.compose(*parts))
    adaptive = budget.least(parts)
    if len(charges) == 1 and not charges[0].lowered:
        adaptive = min(adaptive, epsilon)  # the first plan has the exact statement as well
    return Spending(name, dataset.relation, budget.delta, epsilon, adaptive, budget.epsilon, parts)


def _bound(binding: Binding, fingerprints: bool) -> Json:
    facts = {**binding.identity.facts(), "contents": binding.mac is not None}
    return {**facts, "key": binding.key, "fingerprint": binding.mac} if fingerprints else facts


def _stored(event: Event) -> Json:
    """An event as JSON, if that is the same event when read back."""
    data = events.to_json(event)
    if events.elementary(events.from_json(data)) != events.elementary(event):
        raise InputError(f"the event {events.describe(event)} cannot be stored as it is")
    return data


def _check_declared_again(old: RegisteredDataset, new: RegisteredDataset) -> None:
    if not old.declares(new):
        raise LedgerError(
            f"dataset {old.name!r} is registered with epsilon={old.budget.epsilon:g}, "
            f"delta={old.budget.delta:g}, {old.relation!r}, fingerprint={old.fingerprint} and "
            f"any_size={old.any_size}. A declaration cannot be changed; register other data under another "
            "name"
        )
