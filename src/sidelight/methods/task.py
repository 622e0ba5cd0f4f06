"""What every method takes and gives: a task, a plan, a fitted model.

A method plans before it touches a private row: `plan` sees sizes, bounds, the budget and public records, and
returns an event that bounds everything the run will release. The plan is charged, and only then does `run`
begin. Methods are frozen dataclasses, made by the function of their name: `dp_sgd(...)`, `rsgd_ar(...)`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias, runtime_checkable

from sidelight.arrays import Floats
from sidelight.clipping import Details
from sidelight.data.rows import PrivateRows, PublicRows
from sidelight.data.unread import UnreadRows
from sidelight.errors import InputError, RelationError
from sidelight.losses import Loss, Square
from sidelight.oracles.linear.public import PublicOracle
from sidelight.privacy.events import Event, NoOp, Relation, check_relation
from sidelight.privacy.noise import Noise
from sidelight.privacy.observers import Observer
from sidelight.privacy.release import Account
from sidelight.problems.linear import LinearProblem


@dataclass(frozen=True, eq=False)
class Task:
    """One learning problem under one budget.

    Args:
        rows: the private records, bounded; n of them, which is a public constant.
        public: public records in the same coordinates; may be empty.
        loss: what is minimised, on average.
        regularization: λ of (λ/2)‖w‖², which is public and added after the noise.
        target_bound: for regression, a bound on |y|; None for classification.
        observers: are notified of every private step.
    """

    rows: PrivateRows
    public: PublicRows
    loss: Loss
    epsilon: float
    delta: float
    relation: Relation
    regularization: float = 0.0
    target_bound: float | None = None
    observers: tuple[Observer, ...] = ()

    def __post_init__(self) -> None:
        check_relation(self.relation)
        if not (self.epsilon > 0 and math.isfinite(self.epsilon)):
            raise InputError(f"epsilon must be a positive number, not {self.epsilon!r}")
        if not 0 < self.delta < 1:
            raise InputError(f"delta must be between 0 and 1, both excluded, not {self.delta!r}")
        if not (self.regularization >= 0 and math.isfinite(self.regularization)):
            raise InputError(f"regularization must be a number of at least 0, not {self.regularization!r}")

    def problem(self, *, guided: bool, joined: bool = False, half_square: bool = False) -> LinearProblem:
        """What is trained, before its records are read; `joined` counts public rows among them."""
        loss: Loss = Square(0.5) if half_square and isinstance(self.loss, Square) else self.loss
        public = PublicOracle(self.public, loss) if guided and self.public.n else None
        n = self.n + (self.public.n if joined else 0)
        rows = UnreadRows(n, self.p, max_norm=self.max_norm)
        return LinearProblem(rows, loss, self.target_bound, self.regularization, public)

    @property
    def n(self) -> int:
        """Private records."""
        return self.rows.n

    @property
    def p(self) -> int:
        """Features, with the intercept's column."""
        return self.rows.p

    @property
    def dimension(self) -> int:
        """Parameters."""
        return self.p * self.loss.outputs

    @property
    def max_norm(self) -> float:
        return self.rows.max_norm


PlanState: TypeAlias = Mapping[str, Any]  # whatever a method's `run` needs again from its `plan`


@dataclass(frozen=True)
class Plan:
    """What a run will do at most, known before it starts.

    Args:
        event: bounds everything that the run releases.
        filtered: whether the run chooses its steps while training; then `event` is a filter's certificate.
        details: the choices made, for the report; public and JSON-able.
        assumptions: what must be true of the world for the guarantee to hold.
        state: what `run` needs again; it is not reported.
    """

    event: Event
    filtered: bool = False
    details: Details = field(default_factory=dict)
    assumptions: tuple[str, ...] = ()
    state: PlanState = field(default_factory=dict)


NOTHING = Plan(NoOp())


@dataclass
class Fitted:
    """A trained linear model: everything in it came out through `release` or is public."""

    coef: Floats  # (outputs, p)
    history: list[dict[str, object]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


@runtime_checkable
class Method(Protocol):
    """A way to fit a linear model."""

    @property
    def name(self) -> str: ...

    @property
    def relations(self) -> tuple[Relation, ...]:
        """The relations that it can give, its own first."""

    @property
    def needs_public(self) -> bool: ...

    @property
    def private(self) -> bool:
        """Whether its result carries a guarantee for the private records."""

    def plan(self, task: Task) -> Plan:
        """From public quantities only; every broken assumption raises here, before anything is charged."""

    def run(self, task: Task, plan: Plan, *, account: Account, noise: Noise) -> Fitted:
        """Train. Every private output goes through release()."""


def relation_of(method: Method, given: Relation | None, *, network: bool = False) -> Relation:
    """The relation given, or for None the method's own.

    Networks learn from Poisson samples, whose accounting is for add-or-remove-one: they take it if they can.
    """
    if given is not None:
        return given
    if network and "add-or-remove-one" in method.relations:
        return "add-or-remove-one"
    return method.relations[0]


def check_method(method: Method, task: Task) -> None:
    """Refuse a task that the method cannot do, saying what to change."""
    if task.relation not in method.relations:
        raise RelationError(
            f"{method.name} gives {' or '.join(method.relations)}, not {task.relation}; "
            "pass relation=None for its own"
        )
    if method.needs_public and task.public.n == 0:
        raise InputError(f"{method.name} needs public records; pass X_public and y_public")
