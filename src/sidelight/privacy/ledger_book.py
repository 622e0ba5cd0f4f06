"""What the entries of a ledger say: datasets, charges, and what is in force.

Nothing here is trusted from a stored total. A book is read anew from all entries each time, and every event
in it is parsed from its JSON and composed again.
"""

from __future__ import annotations

import datetime
import hashlib
import hmac
import math
import secrets
from collections import Counter
from collections.abc import Sequence
from copy import copy
from dataclasses import asdict, dataclass, field, replace

from sidelight.arrays import Json
from sidelight.errors import DatasetMismatch, InputError, LedgerDamaged, LedgerError, RelationError, spelled
from sidelight.privacy import events
from sidelight.privacy.events import Event, Relation
from sidelight.privacy.filters import Budget, Rule, Tally
from sidelight.privacy.identity import Identity
from sidelight.privacy.ledger_store import Entry

# ---------------------------------------------------------------------------------------------------
# What binds a dataset of a ledger to its records, and what a run must show to be charged to it.
#
# The first run that shows an `Identity` binds the dataset to it: the binding is part of the entry that holds
# the charge, so one cannot be written without the other. Later runs must agree with a binding, or are refused
# before anything is written. `Ledger.rebind` lets the next run add a binding: the same records in another
# form, or a table that grew.
#
# Contents are compared only if the owner registered the dataset with `fingerprint=True`. A binding then holds
# HMAC-SHA256(key, digest of the contents), with a key of its own. That a run is refused tells whoever started
# it that the contents are others; this is what the owner agreed to, and no part of a guarantee. Key and hash
# are in the same file: a ledger belongs to the owner of the data, and an export shows neither.

_CONTENTS = "keyed fingerprint"


@dataclass(frozen=True)
class Binding:
    """Facts and, if the owner agreed, a keyed hash of the contents."""

    identity: Identity
    key: str | None = field(default=None, repr=False)
    mac: str | None = field(default=None, repr=False)

    @classmethod
    def new(cls, identity: Identity, *, fingerprint: bool) -> Binding:
        if not fingerprint or identity.digest is None:
            return cls(identity)
        key = secrets.token_hex(32)
        return cls(identity, key, _mac(key, identity.digest))

    def same_contents(self, identity: Identity) -> bool:
        """Whether both have contents that can be compared, and they are equal."""
        if self.key is None or self.mac is None or identity.digest is None:
            return False
        return hmac.compare_digest(self.mac, _mac(self.key, identity.digest))

    def describe(self) -> str:
        return f"{self.identity.describe()}, {_CONTENTS}: {'no' if self.mac is None else 'yes'}"

    def to_body(self) -> Json:
        return {"facts": self.identity.facts(), "key": self.key, "mac": self.mac}

    @classmethod
    def from_body(cls, body: Json) -> Binding:
        return cls(Identity.from_facts(body["facts"]), body["key"], body["mac"])


@dataclass(frozen=True)
class Evidence:
    """What one run showed: the facts that were compared, and the binding that it added, if it did."""

    checked: tuple[str, ...]
    binds: Binding | None = None

    def describe(self) -> str:
        """In words, for receipts and reports."""
        if self.binds is not None:
            return f"this run bound the dataset to {self.binds.describe()}"
        return f"compared with earlier runs: {', '.join(self.checked)}"

    def to_body(self) -> Json:
        return {
            "checked": list(self.checked),
            "binds": None if self.binds is None else self.binds.to_body(),
        }

    @classmethod
    def from_body(cls, body: Json | None) -> Evidence | None:
        if body is None:
            return None
        if not all(isinstance(name, str) for name in body["checked"]):
            raise InputError("names of facts are texts")
        added = body["binds"]
        return cls(tuple(body["checked"]), None if added is None else Binding.from_body(added))


def compared(
    binding: Binding, identity: Identity, *, any_size: bool, fingerprint: bool
) -> Evidence | list[str]:
    """What was compared, if the records agree with a binding; otherwise a list of the differences."""
    differences = binding.identity.differences(identity, any_size=any_size)
    names = binding.identity.compared(identity, any_size=any_size)
    if fingerprint and binding.mac is not None:
        if not binding.same_contents(identity):
            differences = differences or ["other contents, though columns and number of records are the same"]
        names = (*names, _CONTENTS)
    return differences or Evidence(names)


def _units(identity: Identity) -> str:
    return "records" if identity.unit == "record" else f"persons by {identity.unit!r}"


def mismatch(name: str, differences: list[str]) -> DatasetMismatch:
    return DatasetMismatch(
        f"these are not the records of dataset {name!r}: {'; '.join(differences)}. Nothing was charged. "
        "Charge them to a dataset of their own. If they are the same records in another form, or the table "
        f"grew, {spelled(f'ledger.rebind({name!r})', f'`sidelight ledger rebind LEDGER --name {name}`')} "
        "accepts the next run as it is"
    )


def _mac(key: str, digest: bytes) -> str:
    return hmac.new(bytes.fromhex(key), digest, hashlib.sha256).hexdigest()


# ---------------------------------------------------------------------------------------------------
# datasets, charges, and what is in force


@dataclass(frozen=True)
class RegisteredDataset:
    """A dataset, as it was registered."""

    name: str
    budget: Budget
    time: str
    fingerprint: bool = False
    """Whether the owner agreed that contents are compared."""
    any_size: bool = False
    """Whether runs may use any number of its records."""

    @property
    def relation(self) -> Relation:
        return self.budget.relation

    def declares(self, other: RegisteredDataset) -> bool:
        """The same declaration? (When it was made does not matter.)"""
        return replace(self, time="") == replace(other, time="")

    def to_body(self) -> Json:
        return {"kind": "dataset", **asdict(self)}

    @classmethod
    def from_body(cls, body: Json) -> RegisteredDataset:
        budget = Budget(**{**body["budget"], "orders": tuple(body["budget"]["orders"])})
        return cls(body["name"], budget, body["time"], body["fingerprint"], body["any_size"])


@dataclass(frozen=True)
class Charge:
    """A run: what it may release at most, and what is in force of that."""

    number: int  # of its entry
    dataset: str
    method: str
    plan: Event
    event: Event  # the plan, or what a settlement lowered it to
    rule: Rule
    covered_by_filter: bool
    note: str
    details: Json
    time: str
    evidence: Evidence | None = None  # what the run showed of its records; None: nothing
    token: str | None = ""  # of the checkpoint that may be resumed; None once the run has ended
    order: int = 0  # the first run of a dataset is 1

    @property
    def lowered(self) -> bool:
        return events.elementary(self.event) != events.elementary(self.plan)

    def to_dict(self) -> Json:
        names = ("number", "order", "dataset", "method", "rule", "note", "details", "time")
        plain = {name: getattr(self, name) for name in names}
        checked = None if self.evidence is None else self.evidence.describe()
        released = {"plan": events.to_json(self.plan), "in_force": events.to_json(self.event)}
        return {**plain, **released, "records_checked": checked}


@dataclass(frozen=True)
class Spending:
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

    def to_dict(self) -> Json:
        plain = {name: getattr(self, name) for name in ("relation", "delta", "budget")}
        for name in ("epsilon", "epsilon_adaptive"):
            value = getattr(self, name)
            plain[name] = value if math.isfinite(value) else "infinity"
        return plain


class Book:
    """Everything that entries say, in order."""

    def __init__(self, entries: Sequence[Entry], *, source: str) -> None:
        self.datasets: dict[str, RegisteredDataset] = {}
        self._charges: dict[int, Charge] = {}
        self._runs: Counter[str] = Counter()  # how many each dataset has
        self._in_force: dict[str, Counter[Event]] = {}  # elementary events of each dataset, added up
        self._tallies: dict[str, Tally] = {}  # what they cost, of datasets that were asked about
        self._bindings: dict[str, list[Binding]] = {}
        self._open: set[str] = set()  # datasets to which the next run may add a binding
        self._source = source
        self._read_all(entries)

    def followed_by(self, entries: Sequence[Entry]) -> Book:
        """The book of these entries and more, which come after them."""
        if not entries:
            return self
        longer = copy(self)
        longer.datasets, longer._charges = dict(self.datasets), dict(self._charges)
        longer._bindings = {name: list(bindings) for name, bindings in self._bindings.items()}
        longer._open, longer._runs = set(self._open), Counter(self._runs)
        longer._in_force = {name: Counter(parts) for name, parts in self._in_force.items()}
        longer._tallies = {name: tally.copy() for name, tally in self._tallies.items()}
        longer._read_all(entries)
        return longer

    def _read_all(self, entries: Sequence[Entry]) -> None:
        for entry in entries:
            try:
                self._read(entry)
            except (KeyError, TypeError, ValueError, AttributeError) as error:
                reason = f"entry {entry.number} is not one that sidelight writes"
                raise LedgerDamaged(f"the ledger {self._source} is damaged: {reason}") from error

    def dataset(self, name: str) -> RegisteredDataset:
        if name not in self.datasets:
            known = ", ".join(map(repr, self.datasets)) or "none"
            raise LedgerError(f"no dataset {name!r} is registered in this ledger (there are: {known})")
        return self.datasets[name]

    def charges(self, name: str) -> list[Charge]:
        name = self.dataset(name).name
        return [charge for charge in self._charges.values() if charge.dataset == name]

    def charge(self, number: int) -> Charge:
        return self._charges[number]

    def in_force(self, name: str) -> list[Event]:
        """What all runs of the dataset cost together, each elementary event once with its count."""
        parts = self._in_force.get(self.dataset(name).name, Counter())
        return [events.repeat(part, count) for part, count in parts.items() if count]

    def tally(self, name: str) -> Tally:
        """What all of that costs; kept, so that a further charge adds its own price alone."""
        dataset = self.dataset(name)
        kept = self._tallies.get(dataset.name)
        if kept is None:
            kept = Tally(dataset.budget)
            for event in self.in_force(name):
                kept.add(event)
            self._tallies[dataset.name] = kept  # when it is whole: pricing may be interrupted, or raise
        return kept

    def runs(self, name: str) -> int:
        """How many charges the dataset has."""
        return self._runs[self.dataset(name).name]

    def bindings(self, name: str) -> list[Binding]:
        """Everything that the dataset is bound to: one of these must agree with a run's records."""
        return list(self._bindings.get(self.dataset(name).name, ()))

    def open_to_more(self, name: str) -> bool:
        """Whether the next run may add a binding though there is one."""
        return name in self._open

    def check_relation(self, name: str, relation: str) -> RegisteredDataset:
        """The dataset, if a run under this relation can be charged to it."""
        dataset = self.dataset(name)
        if relation != dataset.relation:
            raise RelationError(
                f"dataset {name!r} is accounted under {dataset.relation!r}, and the run under {relation!r}. "
                "Use the dataset's relation; the two cannot be added up"
            )
        return dataset

    def check_data(self, name: str, identity: Identity | None) -> Evidence | None:
        """What a run showed of its records, if they are those of the dataset; else raise DatasetMismatch."""
        dataset, known = self.dataset(name), self.bindings(name)
        if dataset.fingerprint and (identity is None or identity.digest is None):
            raise DatasetMismatch(
                f"dataset {name!r} is registered with a fingerprint, and this run does not show its records. "
                "Nothing was charged. Pass identity=Identity.of(X, y), from sidelight.privacy.identity"
            )
        if identity is None:
            return None
        if dataset.fingerprint and (other := self._same_contents(identity, but=name)):
            raise DatasetMismatch(
                f"these are the records of dataset {other!r}, not of {name!r}: charge them there; a second "
                "name would double their budget. Nothing was charged"
            )
        if known and known[0].identity.unit != identity.unit:
            raise DatasetMismatch(
                f"dataset {name!r} protects {_units(known[0].identity)}, and this run {_units(identity)}: "
                "the two do not add up. Nothing was charged. Train with the unit of the dataset"
            )
        wrong: list[list[str]] = []
        for binding in known:
            result = compared(binding, identity, any_size=dataset.any_size, fingerprint=dataset.fingerprint)
            if isinstance(result, Evidence):
                return result
            wrong.append(result)
        if wrong and name not in self._open:
            raise mismatch(name, min(wrong, key=len))
        return Evidence((), Binding.new(identity, fingerprint=dataset.fingerprint))

    def look_alike(self, name: str, binding: Binding) -> str | None:
        """Another dataset with the same columns and number of records, of unknown contents."""
        if binding.identity.columns is None and binding.identity.shape is None:
            return None
        for other, bindings in self._bindings.items():
            for candidate in bindings:
                contents_known = candidate.mac is not None and binding.mac is not None
                if other != name and candidate.identity == binding.identity and not contents_known:
                    return other
        return None

    def _same_contents(self, identity: Identity, *, but: str) -> str | None:
        for name, bindings in self._bindings.items():
            if name != but and any(binding.same_contents(identity) for binding in bindings):
                return name
        return None

    def _read(self, entry: Entry) -> None:
        body = entry.body
        match body["kind"]:
            case "ledger":
                return
            case "dataset":
                self.datasets[body["name"]] = RegisteredDataset.from_body(body)
                self._tallies.pop(body["name"], None)
            case "rebind":
                self._open.add(self.dataset(body["dataset"]).name)
            case "charge":
                self._charges[entry.number] = charge = self._read_charge(entry)
                self._count(charge.dataset, charge.event, 1)
                if charge.evidence is not None and charge.evidence.binds is not None:
                    self._bindings.setdefault(charge.dataset, []).append(charge.evidence.binds)
                    self._open.discard(charge.dataset)
            case "settlement":
                charge = self._charges[body["charge"]]
                lowered = replace(charge, event=events.from_json(body["event"]))
                check_settlement(charge, lowered.event)
                self._charges[charge.number] = lowered
                self._count(charge.dataset, charge.event, -1)
                self._count(charge.dataset, lowered.event, 1)
            case "claim":
                charge = self._charges[body["charge"]]
                self._charges[charge.number] = replace(charge, token=body["token"])
            case kind:
                raise InputError(f"unknown kind {kind!r}")

    def _count(self, name: str, event: Event, times: int) -> None:
        """Put an event in force, or take it back (-1)."""
        parts = self._in_force.setdefault(name, Counter())
        for part, count in events.elementary(event).items():
            parts[part] += times * count
        if name in self._tallies:
            self._tallies[name].add(event, times)

    def _read_charge(self, entry: Entry) -> Charge:
        ours = ("kind", "event", "fingerprint_checked", "evidence", "nonce")  # the third: format 1 only
        body = {name: value for name, value in entry.body.items() if name not in ours}
        plan = events.from_json(entry.body["event"])
        if body["dataset"] not in self.datasets:
            raise InputError("a charge to a dataset that was not registered")
        evidence = Evidence.from_body(entry.body.get("evidence"))
        self._runs[body["dataset"]] += 1
        order = self._runs[body["dataset"]]
        return Charge(number=entry.number, plan=plan, event=plan, evidence=evidence, order=order, **body)


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
