"""Several audits of several methods, as the command runs them."""

from __future__ import annotations

import functools
import importlib
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from sidelight.audit.replay import replay_neighbors
from sidelight.audit.result import AuditResult
from sidelight.audit.runs import many_runs, one_run
from sidelight.audit.subjects import Linear, Subject
from sidelight.errors import InputError, PrivacyConditionError, SidelightError
from sidelight.methods.auto import PrivateSelection
from sidelight.methods.declare import DECLARATIONS, get_method
from sidelight.methods.dp_sgd import dp_sgd
from sidelight.methods.public_whitening import public_whitening
from sidelight.methods.recipe import Recipe
from sidelight.methods.task import Method
from sidelight.privacy.events import Relation

Kind = Literal["replay", "many-run", "one-run"]
Model = Literal["linear", "network"]


@dataclass(frozen=True)
class SuitePlan:
    """What to audit, and how thoroughly."""

    names: Sequence[str]
    kinds: Sequence[Kind] = ("replay", "many-run", "one-run")
    model: Model = "linear"
    relation: Relation | None = None
    epsilon: float = 1.0
    delta: float = 1e-5
    runs: int = 400
    canaries: int = 1000
    confidence: float = 0.95
    seed: int = 0

    @classmethod
    def everything(cls, **settings: Any) -> SuitePlan:
        """Every method of the registry, with the settings of it that differ in kind."""
        known = linear() if settings.get("model", "linear") == "linear" else networks()
        return cls(list(known), **settings)


def subjects(plan: SuitePlan) -> Iterator[Subject]:
    """Each method under each relation that it offers (or the one asked for)."""
    for name in plan.names:
        method = _method(name, plan.model)
        for relation in method.relations if plan.relation is None else (plan.relation,):
            if relation not in method.relations:
                raise InputError(f"{name} supports {' or '.join(method.relations)} only, not {relation}")
            if plan.relation is None and not _can(method, relation, plan):
                continue
            if plan.model == "network":
                from sidelight.audit.networks import on_network

                if not isinstance(method, Recipe):
                    raise InputError(
                        f"{name}: networks are trained by recipes of steps, such as dp_sgd or dope_sgd"
                    )
                yield on_network(method, relation=relation, epsilon=plan.epsilon, delta=plan.delta)
            else:
                label = None if ":" in name else name
                yield Linear(method, relation, plan.epsilon, plan.delta, label=label)


def run(plan: SuitePlan) -> Iterator[AuditResult]:
    """One audit after the other."""
    for subject in subjects(plan):
        for kind in plan.kinds:
            if kind == "replay":
                yield replay_neighbors(subject, random_state=plan.seed)
            elif kind == "many-run":
                yield many_runs(subject, runs=plan.runs, confidence=plan.confidence, random_state=plan.seed)
            else:
                yield one_run(
                    subject, canaries=plan.canaries, confidence=plan.confidence, random_state=plan.seed
                )


def _can(method: Method, relation: Relation, plan: SuitePlan) -> bool:
    """Whether this setting exists under this relation: some methods learn of it when they plan."""
    if plan.model == "network":
        return True
    try:
        return Linear(method, relation, plan.epsilon, plan.delta).claim is not None
    except PrivacyConditionError:
        return False


def _method(name: str, model: Model) -> Method:
    if ":" in name:
        return _imported(name)
    known = {**linear(), **(networks() if model == "network" else {})}
    return known[name]() if name in known else get_method(name)  # raises, with the name that is nearest


def _imported(name: str) -> Method:
    """A method of the user, written as module:function; the current folder is searched too."""
    module, _, attribute = name.partition(":")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        value = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise InputError(f"there is no {attribute!r} in module {module!r}: {error}") from None
    maker = isinstance(value, type) or (callable(value) and not hasattr(value, "plan"))
    try:
        method: Method = value() if maker else value
    except SidelightError:
        raise
    except Exception as error:
        raise InputError(f"{name}() failed: {type(error).__name__}: {error}") from None
    if not all(hasattr(method, part) for part in ("plan", "run", "relations", "private")):
        raise InputError(f"{name} is not a method: it lacks plan(), run(), relations or private")
    return method


def check_names(names: Sequence[str]) -> None:
    """Fail before the first audit starts, not before the last."""
    for name in names:
        if ":" not in name and name not in linear():
            get_method(name)


# ---------------------------------------------------------------------------------------------------
# what `sidelight audit --all` runs: every declared method, and settings of it that differ in kind
#
# Methods of many steps declare few for this. Their noise is calibrated to the same ε for however many steps
# there are, so that a fault in a step, its noise or its accounting shows as well, and an audit takes seconds.

_STEPS = 6


def linear() -> dict[str, Callable[[], Method]]:
    """Every method on a linear model; "dp_sgd, sampled" is a variant of dp_sgd."""
    found: dict[str, Callable[[], Method]] = {}
    for declared in DECLARATIONS.values():
        found |= declared.examples()
    return {**found, "private selection": _selection}


def networks() -> dict[str, Callable[[], Method]]:
    """On networks: every recipe of steps that `Trainer` takes."""
    return {
        name: functools.partial(declared.make, **declared.on_network)
        for name, declared in DECLARATIONS.items()
        if declared.networks and hasattr(declared.make(), "with_parts")
    }


def _selection() -> Method:
    return PrivateSelection(((public_whitening(steps=_STEPS), 0.0), (dp_sgd(steps=_STEPS), 0.3)))
