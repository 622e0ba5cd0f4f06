"""What the entries of a ledger say: datasets, charges, and what is in force.

Nothing here is trusted from a stored total. A book is read anew from all entries each time, and every event
in it is parsed from its JSON and composed again.
"""

from __future__ import annotations

import datetime
import hashlib
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np

from sidelight.errors import InputError, LedgerDamaged, LedgerError, RelationError
from sidelight.privacy import events
from sidelight.privacy.events import Event, Relation
from sidelight.privacy.ledger_budget import Budget, Rule
from sidelight.privacy.ledger_store import Entry


@dataclass(frozen=True)
class Dataset:
    """A dataset, as it was registered."""

    name: str
    budget: Budget
    fingerprint: str | None = field(repr=False)
    time: str

    @property
    def relation(self) -> Relation:
        return self.budget.relation

    def declares(self, other: Dataset) -> bool:
        """The same declaration? (When it was made does not matter.)"""
        return replace(self, time="") == replace(other, time="")

    def to_body(self) -> dict[str, Any]:
        return {"kind": "dataset", **asdict(self)}


@dataclass(frozen=True)
class Charge:
    """A run: what it may release at most, and what is in force of that."""

    number: int
    dataset: str
    method: str
    plan: Event
    event: Event  # the plan, or what a settlement lowered it to
    rule: Rule
    covered_by_filter: bool
    note: str
    details: dict[str, Any]
    time: str

    @property
    def lowered(self) -> bool:
        return events.elementary(self.event) != events.elementary(self.plan)

    def to_dict(self) -> dict[str, Any]:
        names = ("number", "dataset", "method", "rule", "note", "details", "time")
        plain = {name: getattr(self, name) for name in names}
        return {**plain, "plan": events.to_json(self.plan), "in_force": events.to_json(self.event)}


@dataclass(frozen=True)
class Total:
    """What a dataset has spent, at the delta of its lifetime budget."""

    dataset: str
    relation: Relation
    delta: float
    epsilon: float
    """Of all events composed by PLD: as if every run had been planned in advance."""
    epsilon_adaptive: float
    """Used of the lifetime filter, which holds however later runs were chosen: the least lifetime budget at
    which this history would have been admitted. The guarantee itself is (budget, delta)."""
    budget: float
    events: tuple[Event, ...]

    def to_dict(self) -> dict[str, Any]:
        plain = {name: getattr(self, name) for name in ("relation", "delta", "budget")}
        for name in ("epsilon", "epsilon_adaptive"):
            value = getattr(self, name)
            plain[name] = value if math.isfinite(value) else "infinity"
        return plain


class Book:
    """Everything that entries say, in order."""

    def __init__(self, entries: Sequence[Entry], *, source: str) -> None:
        self.datasets: dict[str, Dataset] = {}
        self._charges: dict[int, Charge] = {}
        for entry in entries:
            try:
                self._read(entry)
            except (KeyError, TypeError, ValueError, AttributeError) as error:
                reason = f"entry {entry.number} is not one that sidelight writes"
                raise LedgerDamaged(f"the ledger {source} is damaged: {reason}") from error

    def dataset(self, name: str) -> Dataset:
        if name not in self.datasets:
            known = ", ".join(map(repr, self.datasets)) or "none"
            raise LedgerError(f"no dataset {name!r} is registered in this ledger (there are: {known})")
        return self.datasets[name]

    def charges(self, name: str) -> list[Charge]:
        return [charge for charge in self._charges.values() if charge.dataset == self.dataset(name).name]

    def charge(self, number: int) -> Charge:
        return self._charges[number]

    def in_force(self, name: str) -> list[Event]:
        return [charge.event for charge in self.charges(name)]

    def check_data(self, name: str, *, relation: str, fingerprint: str | None) -> Dataset:
        """The dataset, if a run on this data and under this relation belongs to it."""
        dataset = self.dataset(name)
        if relation != dataset.relation:
            raise RelationError(
                f"dataset {name!r} is accounted under {dataset.relation!r}, and the run under {relation!r}. "
                "Use the dataset's relation; the two cannot be added up"
            )
        if None not in (fingerprint, dataset.fingerprint) and fingerprint != dataset.fingerprint:
            other = self.same_data(fingerprint)
            use = f"charge it to {other!r}" if other else "register it under a name of its own"
            raise LedgerError(f"the data is not that of dataset {name!r}: {use}. Nothing was charged")
        return dataset

    def same_data(self, fingerprint: str | None) -> str | None:
        """The name under which this data is registered."""
        if fingerprint is None:
            return None
        return next((d.name for d in self.datasets.values() if d.fingerprint == fingerprint), None)

    def _read(self, entry: Entry) -> None:
        body = entry.body
        match body["kind"]:
            case "ledger":
                return
            case "dataset":
                budget = Budget(**{**body["budget"], "orders": tuple(body["budget"]["orders"])})
                self.datasets[body["name"]] = Dataset(body["name"], budget, body["fingerprint"], body["time"])
            case "charge":
                self._charges[entry.number] = self._read_charge(entry)
            case "settlement":
                charge = self._charges[body["charge"]]
                lowered = replace(charge, event=events.from_json(body["event"]))
                check_settlement(charge, lowered.event)
                self._charges[charge.number] = lowered
            case kind:
                raise InputError(f"unknown kind {kind!r}")

    def _read_charge(self, entry: Entry) -> Charge:
        ours = ("kind", "event", "fingerprint_checked")
        body = {name: value for name, value in entry.body.items() if name not in ours}
        plan = events.from_json(entry.body["event"])
        if body["dataset"] not in self.datasets:
            raise InputError("a charge to a dataset that was not registered")
        return Charge(number=entry.number, plan=plan, event=plan, **body)


def check_settlement(charge: Charge, event: Event) -> None:
    """A charge may be lowered once, to nothing, or to a part of a plan that the filter admitted.

    The filter adds up what was released, step by step, and lets a run stop when it likes. A plan that exact
    accounting admitted, or one that stands for a filter of its own, is certain only as a whole.
    """
    released, planned = events.elementary(event), events.elementary(charge.plan)
    whole = charge.rule != "filter" or charge.covered_by_filter
    if charge.lowered or not released <= planned or (released and whole):
        raise InputError(f"charge {charge.number} cannot be lowered to {events.describe(event)}")


def now() -> str:
    """UTC, to the second."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


# ---------------------------------------------------------------------------------------------------
# fingerprints


def fingerprint(*data: Any) -> str:
    """SHA-256 of arrays, sparse matrices, tensors or tables, so that a ledger knows the data again.

    It depends on values, types and the order of rows. A hash of private data is private: it tells whoever can
    guess the whole table that the guess is right. It is stored in the ledger, which belongs to the owner of
    the data, and left out of exports and reports.
    """
    digest = hashlib.sha256(b"sidelight fingerprint 1")
    for item in data:
        for array in _arrays(item):
            text = array.dtype == object
            shape = ["object" if text else array.dtype.newbyteorder("<").str, *array.shape]
            digest.update(json.dumps(shape).encode())
            if text:
                digest.update(json.dumps([str(value) for value in array.ravel()]).encode())
            else:
                digest.update(np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<")).tobytes())
    return digest.hexdigest()


def _arrays(item: Any) -> Iterator[np.ndarray[Any, Any]]:
    if hasattr(item, "tocsr"):
        matrix = item.tocsr(copy=True)
        matrix.sum_duplicates()
        yield np.asarray(matrix.shape)
        yield from (matrix.data, matrix.indices.astype(np.int64), matrix.indptr.astype(np.int64))
    elif hasattr(item, "columns") and hasattr(item, "to_numpy"):
        yield np.asarray([str(name) for name in item.columns], dtype=object)
        yield from (np.asarray(item[name]) for name in item.columns)
    elif hasattr(item, "detach"):
        yield item.detach().cpu().numpy()
    else:
        yield np.asarray(item)
