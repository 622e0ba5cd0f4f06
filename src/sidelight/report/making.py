"""A card from a fitted model: an estimator, a Trainer, or whatever else has `privacy_` and `history_`."""

from __future__ import annotations

import datetime
import importlib.metadata
import platform
import sys
from collections.abc import Iterable, Mapping
from typing import Protocol

from sidelight import __version__
from sidelight.arrays import Json
from sidelight.errors import InputError, SidelightError
from sidelight.privacy import accountants, events
from sidelight.privacy.ledger import Charge, Ledger
from sidelight.privacy.statement import PrivacyStatement, plain
from sidelight.report.card import Card

__all__ = ["card_of", "ledger_rows", "versions"]

_PACKAGES = ("numpy", "scipy", "scikit-learn", "dp-accounting", "randomgen")
_WHEN_LOADED = ("torch", "pandas", "pyarrow")
_FROM_DETAILS = (
    *("private_records", "public_records", "features", "classes_from", "bounds_from", "target_bounds_from"),
    *("max_norm", "fit_intercept"),
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
    audits: Iterable[Mapping[str, object] | HasDict] = (),
    ledger: Ledger | Iterable[Mapping[str, object]] | None = None,
) -> Card:
    """The card of a fitted PrivateClassifier, PrivateRegressor or Trainer.

    Args:
        data: what was learned from where; None takes what the model itself knows.
        scores: of public records; None takes the Trainer's last public validation, if there was one.
        comparison: scores of methods over ε, for a chart.
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


def ledger_rows(ledger: Ledger, dataset: str, *, run: int | None = None) -> list[Json]:
    """The charges of a dataset, each with its own ε at the dataset's δ; `run` marks one as this."""
    known = ledger.datasets()
    if dataset not in known:
        raise InputError(f"the ledger has no dataset {dataset!r}")
    budget = known[dataset].budget
    return [
        _row(charge, run) | {"epsilon": _cost(charge, budget.delta, budget.relation), "delta": budget.delta}
        for charge in ledger.charges(dataset)
    ]


def _row(charge: Charge, run: int | None) -> Json:
    return {
        "run": charge.number,
        "when": charge.time,
        "method": charge.method,
        "event": events.describe(charge.event),
        "note": charge.note,
        "lowered": charge.lowered,
        "this": charge.number == run,
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
        rows = ledger_rows(book, receipt["dataset"], run=receipt["run"])
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
