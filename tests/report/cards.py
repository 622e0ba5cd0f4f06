"""Cards of every method on one small problem, made once, and one with everything in it."""

import functools
import warnings
from typing import Any

import numpy as np
from tests.contracts.cases import SMALL, VARIANTS, loss_of

from sidelight.errors import NotPrivateWarning
from sidelight.estimators import PrivateClassifier, PrivateRegressor
from sidelight.methods.declare import METHODS
from sidelight.methods.ppsgd import ppsgd
from sidelight.privacy.ledger import Ledger
from sidelight.report import Card, card_of

VARIED = (
    *("dp_sgd-sampled", "ppsgd-tcdp", "majority-private", "private_selection", "dope_sgd-extended"),
    "ppsgd-poisson",
)
NAMES = (*METHODS, *VARIED)
HOSTILE = '<script>alert("1")</script><img src=x onerror=alert(2)>\'"&'


@functools.cache
def rows() -> tuple[Any, ...]:
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, (800, 4))
    y = np.where(X @ np.array([1.0, -2.0, 0.5, 1.0]) > 0, "yes", "no")
    return X[60:], y[60:], X[:60], y[:60]


def make(name: str) -> Any:
    if name == "ppsgd-poisson":
        return ppsgd(planned_steps=4, clip_norm=0.3, expected_batch_size=80)
    return (SMALL | VARIANTS)[name]() if name in SMALL | VARIANTS else METHODS[name]()


def fitted(name: str, **changes: Any) -> Any:
    X, y, X_public, y_public = rows()
    settings: dict[str, Any] = {"epsilon": 1.0, "delta": 1e-5, "random_state": 0} | changes
    if name == "ppsgd-poisson":
        settings["relation"] = "add-or-remove-one"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NotPrivateWarning)
        if loss_of(name) == "square":
            return PrivateRegressor(make(name), **{"epsilon": 1.0, **settings}).fit(
                X, X[:, 0], X_public, X_public[:, 0]
            )
        return PrivateClassifier(make(name), **{"epsilon": 1.0, **settings}).fit(X, y, X_public, y_public)


@functools.cache
def card(name: str) -> Card:
    return card_of(fitted(name), title=f"Yes or no, by {name}")


@functools.cache
def full_card() -> Card:
    """Everything that a card can hold."""
    ledger = Ledger.in_memory()
    ledger.register("people", relation="replace-one", epsilon=3.0, delta=1e-5)
    fitted("output_perturbation", ledger=ledger, dataset="people", epsilon=0.5)
    model = fitted("ppsgd", ledger=ledger, dataset="people", random_state=None)
    comparison = [
        {"method": name, "epsilon": e, "score": 0.6 + 0.1 * e + 0.02 * k, "error": 0.01, "note": ""}
        for k, name in enumerate(("dp_sgd", "ppsgd", "dope_sgd", "coupling", "rsgd_ar", "auto", "nsgd"))
        for e in (0.1, 0.5, 1.0, 2.0)
    ]
    comparison.append(
        {"method": "only_public", "epsilon": None, "score": 0.66, "error": 0.02, "note": "free"}
    )
    comparison.append({"method": "non_private", "epsilon": "infinity", "score": 0.93, "error": None})
    audit = {
        "kind": "one-run", "method": "ppsgd", "claimed_epsilon": 1.0, "lower_bound": 0.31, "delta": 1e-5,
        "confidence": 0.95, "passed": True, "findings": [], "details": {"canaries": 1000},
    }  # fmt: skip
    return card_of(
        model,
        title="Yes or no",
        scores={"name": "accuracy", "public_validation": 0.84, "only_public": 0.66, "rows": 50},
        comparison=comparison,
        effects=model.effects(),
        audits=[audit],
    )


def hostile_card() -> Card:
    """The same with a script in every text that is data."""
    body = full_card().to_dict()
    return Card.from_dict(_poisoned(body))


_OURS = {"format", "kind", "relation", "epsilon", "delta", "events"}


def _poisoned(value: Any, key: str = "") -> Any:
    if key in _OURS:
        return value
    if isinstance(value, dict):
        named = key in ("data", "details", "versions", "scores")
        found = {k: _poisoned(v, k) for k, v in value.items()}
        return found | ({f"key {HOSTILE}": HOSTILE} if named else {})
    if isinstance(value, list):
        return [_poisoned(one, "" if isinstance(one, dict) else "text") for one in value] or value
    return f"{value} {HOSTILE}" if isinstance(value, str) else value
