"""The privacy card: what a fit promises, what it charged and how it went, as one JSON document."""

from __future__ import annotations

import datetime
import hashlib
import importlib.metadata
import json
import math
import os
import platform
import sys
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Protocol, Self, cast

from sidelight import __version__
from sidelight.arrays import Json
from sidelight.errors import InputError, SidelightError
from sidelight.files import as_bytes, read_whole, write_text
from sidelight.privacy import accountants, events
from sidelight.privacy.events import Event, Relation
from sidelight.privacy.ledger import Ledger
from sidelight.privacy.ledger_book import Charge
from sidelight.privacy.statement import PrivacyStatement, plain
from sidelight.report.effects import Effects

FORMAT = 1
_STATEMENT = {
    "method": str,
    "relation": str,
    "events": list,
    "assumptions": list,
    "details": dict,
}


@dataclass(frozen=True)
class Card:
    """Everything that a report shows.

    Args:
        title: what a person calls this model.
        created: when the card was made, ISO 8601.
        statement: `PrivacyStatement.to_dict()`.
        history: one entry per step; public values and released ones only.
        data: what was learned from where: rows, columns, target, classes, the source of bounds.
        scores: measured on public records: {"name": "accuracy", "public_validation": …, "only_public": …}.
        comparison: [{"method", "epsilon", "score", "error", "note"}], of rehearsals or experiments.
        effects: `Effects.to_dict()`: what each column does, over public rows.
        audits: `AuditResult.to_dict()` each.
        ledger: the charges of the dataset: run, when, method, event, epsilon, note, this.
        versions: of sidelight and of what it stands on.
        facts: what somebody declared: purpose, controller, legal basis, … (`report.facts`).
        hashes: SHA-256 of the files of the model and of its schema. None of the private table: a hash of
            private records would tell about them.
    """

    title: str
    created: str
    statement: Json
    history: list[Json] = field(default_factory=list)
    data: Json = field(default_factory=dict)
    scores: Json = field(default_factory=dict)
    comparison: list[Json] = field(default_factory=list)
    effects: Json = field(default_factory=dict)
    audits: list[Json] = field(default_factory=list)
    ledger: list[Json] = field(default_factory=list)
    versions: Json = field(default_factory=dict)
    facts: Json = field(default_factory=dict)
    hashes: Json = field(default_factory=dict)

    def __post_init__(self) -> None:
        _check(self)

    @property
    def plan(self) -> Event:
        """The event that was charged."""
        return events.compose(*(events.from_json(event) for event in self.statement["events"]))

    @property
    def epsilon(self) -> float:
        return cast(float, number(self.statement["epsilon"]))

    @property
    def delta(self) -> float:
        return float(self.statement["delta"])

    @property
    def relation(self) -> Relation:
        return events.check_relation(self.statement["relation"])

    @property
    def unit(self) -> str:
        """What the promise is for: "record", or the column that names persons."""
        return str(self.statement.get("unit", "record"))

    @property
    def method(self) -> str:
        return str(self.statement["method"])

    def to_dict(self) -> Json:
        """Everything, as values that json.dumps writes; infinity and NaN as words."""
        body: Json = plain(asdict(self))
        return {"format": FORMAT, **body}

    @classmethod
    def from_dict(cls, data: object) -> Self:
        """The card that `to_dict` wrote; InputError says what is wrong with any other."""
        if not isinstance(data, Mapping):
            raise InputError("a privacy card is a JSON object")
        body = dict(data)
        version = body.pop("format", None)
        if version != FORMAT:
            raise InputError(f"a privacy card has format {FORMAT}, not {_short(version)}")
        names = [entry.name for entry in fields(cls)]
        if strange := sorted(map(str, set(body) - set(names))):
            raise InputError(f"a privacy card has no field {_short(strange[0])}")
        if missing := [name for name in ("title", "created", "statement") if name not in body]:
            raise InputError(f"a privacy card needs the field {missing[0]!r}")
        return cls(**body)

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Self:
        """The card in a file such as privacy.json."""
        file = Path(path)
        try:
            text = read_whole(file).decode("utf-8")
        except OSError as error:
            raise InputError(f"{file} cannot be read: {error.strerror or error}") from None
        except UnicodeDecodeError:
            raise InputError(f"{file} is not a privacy card: it is not text") from None
        try:
            return cls.from_dict(json.loads(text, parse_constant=_no_constant))
        except InputError as error:
            raise InputError(f"{file} is not a privacy card that sidelight wrote: {error}") from None
        except (ValueError, RecursionError):
            raise InputError(f"{file} is not a privacy card: it is not valid JSON") from None

    @property
    def text(self) -> str:
        """What `write` writes."""
        return json.dumps(self.to_dict(), indent=2, allow_nan=False, ensure_ascii=False) + "\n"

    @property
    def digest(self) -> str:
        """SHA-256 of the file that `write` writes, as `sha256sum` prints it."""
        return hashlib.sha256(as_bytes(self.text)).hexdigest()

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write the card, whole or not at all."""
        write_text(path, self.text)


def number(value: object) -> float | None:
    """A number of a card as a float, infinity included; None for anything that is not a number."""
    words = {"infinity": math.inf, "-infinity": -math.inf}
    if isinstance(value, str):
        return words.get(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return None if math.isnan(value) else float(value)
    except OverflowError:  # JSON's integers have no end
        return None


def _check(card: Card) -> None:
    for entry in fields(card):
        kind = _kind(entry.name)
        if not isinstance(getattr(card, entry.name), kind):
            raise InputError(f"{entry.name} must be {_NAMES[kind]}")
    for name in ("history", "comparison", "audits", "ledger"):
        if not all(isinstance(entry, dict) for entry in getattr(card, name)):
            raise InputError(f"every entry of {name} must be an object")
    _check_statement(card.statement)
    Effects.from_dict(card.effects)


_NAMES: dict[type, str] = {str: "a text", dict: "an object", list: "a list"}


def _kind(name: str) -> type:
    if name in ("title", "created"):
        return str
    return dict if name in ("statement", "data", "scores", "effects", "versions", "facts", "hashes") else list


def _check_statement(statement: Json) -> None:
    for name, kind in _STATEMENT.items():
        if not isinstance(statement.get(name), kind):
            raise InputError(f"{name} of the statement must be {_NAMES[kind]}")
    epsilon, delta = number(statement.get("epsilon")), number(statement.get("delta"))
    if epsilon is None or epsilon < 0:
        raise InputError("epsilon of the statement must be a number, at least 0, or 'infinity'")
    if delta is None or not 0 <= delta < 1:
        raise InputError("delta of the statement must be a number in [0, 1)")
    events.check_relation(statement["relation"])
    if not isinstance(statement.get("unit", "record"), str):
        raise InputError("unit of the statement must be a text")
    if not isinstance(statement.get("ledger"), dict | type(None)):
        raise InputError("ledger of the statement must be an object or null")
    for event in statement["events"]:
        if not isinstance(event, dict):
            raise InputError("every event of the statement must be an object")
        events.from_json(event)


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


# ---------------------------------------------------------------------------------------------------
# a card from a fitted model: an estimator, a Trainer, or whatever else has `privacy_` and `history_`

_PACKAGES = ("numpy", "scipy", "scikit-learn", "dp-accounting", "randomgen")
_WHEN_LOADED = ("torch", "pandas", "pyarrow")
_FROM_DETAILS = (
    *("private_records", "public_records", "public_records_held_out", "features", "classes_from"),
    *("bounds_from", "target_bounds_from", "max_norm", "fit_intercept"),
)


class HasDict(Protocol):
    """A result that can be written as JSON."""

    def to_dict(self) -> Json: ...


def card_of(
    model: object,
    *,
    title: str = "",
    data: Mapping[str, object] | None = None,
    scores: Mapping[str, object] | None = None,
    comparison: Iterable[Mapping[str, object]] = (),
    effects: Effects | None = None,
    audits: Iterable[Mapping[str, object] | HasDict] = (),
    ledger: Ledger | Iterable[Mapping[str, object]] | None = None,
) -> Card:
    """The card of a fitted PrivateClassifier, PrivateRegressor or Trainer.

    Args:
        data: what was learned from where; None takes what the model itself knows.
        scores: of public records; None takes the Trainer's last public validation, if there was one.
        comparison: scores of methods over ε, for a chart.
        effects: of the columns, over public rows.
        audits: results of `sidelight.audit`, or their dictionaries.
        ledger: the Ledger that paid, or rows of it; None takes the model's own, if it can be read.
    """
    statement = getattr(model, "privacy_", None)
    if not isinstance(statement, PrivacyStatement):
        raise InputError(f"{type(model).__name__} is not fitted: it has no privacy_. Call fit first")
    history = list(getattr(model, "history_", None) or [])
    body: Json = plain(statement.to_dict())
    rows = _ledger(model, statement, ledger, body)
    return Card(
        title=title or f"{type(model).__name__} by {statement.method}",
        created=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        statement=body,
        history=plain(history),
        data=plain(_known(model, statement) if data is None else dict(data)),
        scores=plain(_validation(history) if scores is None else dict(scores)),
        comparison=plain([dict(row) for row in comparison]),
        effects=plain((effects or Effects()).to_dict()),
        audits=plain([dict(audit) if isinstance(audit, Mapping) else audit.to_dict() for audit in audits]),
        ledger=plain(rows),
        versions=versions(),
    )


def versions() -> dict[str, str]:
    """Of sidelight, Python, and the packages whose code a guarantee stands on."""
    installed = {"sidelight": __version__, "python": platform.python_version()}
    for name in (*_PACKAGES, *(package for package in _WHEN_LOADED if package in sys.modules)):
        try:
            installed[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return installed


def ledger_rows(ledger: Ledger, dataset: str, *, entry: int | None = None) -> list[Json]:
    """The charges of a dataset, each with its own ε at the dataset's δ; `entry` marks one as this."""
    known = ledger.datasets()
    if dataset not in known:
        raise InputError(f"the ledger has no dataset {dataset!r}")
    budget = known[dataset].budget
    return [
        _row(charge, entry) | {"epsilon": _cost(charge, budget.delta, budget.relation), "delta": budget.delta}
        for charge in ledger.charges(dataset)
    ]


def _row(charge: Charge, entry: int | None) -> Json:
    return {
        "run": charge.order,
        "when": charge.time,
        "method": charge.method,
        "event": events.describe(charge.event),
        "note": charge.note,
        "lowered": charge.lowered,
        "this": charge.number == entry,
    }


def _cost(charge: Charge, delta: float, relation: events.Relation) -> float:
    return accountants.epsilon(charge.event, delta=delta, relation=relation)


def _ledger(
    model: object,
    statement: PrivacyStatement,
    ledger: Ledger | Iterable[Mapping[str, object]] | None,
    body: Json,
) -> list[Json]:
    """Rows of the ledger; its totals go beside the receipt in `body`."""
    receipt = statement.ledger
    if ledger is not None and not isinstance(ledger, Ledger):
        return [dict(row) for row in ledger]
    if receipt is None:
        return []
    book = getattr(model, "ledger", None) if ledger is None else ledger
    if book is None:
        return []
    try:
        book = book if isinstance(book, Ledger) else Ledger.open(book)
        rows = ledger_rows(
            book, receipt["dataset"], entry=receipt.get("entry", receipt["run"])
        )  # runs had the number of their entry
        total = book.total(receipt["dataset"]).to_dict() | {"remaining": book.remaining(receipt["dataset"])}
    except SidelightError:
        if ledger is not None:
            raise
        return []  # closed or moved since the fit: the receipt still says where the charge is
    body["ledger"]["total"] = plain(total)
    return rows


def _known(model: object, statement: PrivacyStatement) -> Json:
    """What the model knows about its data: public things only."""
    facts = {name: statement.details[name] for name in _FROM_DETAILS if name in statement.details}
    if (classes := getattr(model, "classes_", None)) is not None:
        facts["classes"] = classes
    if (names := getattr(model, "feature_names_in_", None)) is not None:
        facts["columns"] = names
    return facts


def _validation(history: list[Json]) -> Json:
    """The last score on held-out public records that the history holds."""
    for name in ("accuracy", "loss"):
        for entry in reversed(history):
            if (value := entry.get(f"validation_{name}")) is not None:
                return {"name": name, "public_validation": value}
    return {}
