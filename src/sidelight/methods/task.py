"""A linear fit by a method: what it takes (a task), plans and gives, its parameters, and `fit_charged`.

A method plans before it touches a private row: `plan` sees sizes, bounds, the budget and public records, and
returns an event that bounds everything the run will release. The plan is charged, and only then does `run`
begin. Methods are frozen dataclasses, made by the function of their name: `dp_sgd(...)`, `rsgd_ar(...)`.
"""

from __future__ import annotations

import dataclasses
import re
import warnings
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Protocol, Self, TypeAlias, TypeVar, runtime_checkable

from sidelight.arrays import Array, Floats, is_sparse
from sidelight.clipping import Details
from sidelight.data.leaves import LeafModel
from sidelight.data.rows import PrivateRows, PublicRows, UnreadRows
from sidelight.errors import (
    InputError,
    NotPrivateWarning,
    RelationError,
    fraction,
    not_negative,
    positive,
    spelled,
    users_line,
)
from sidelight.losses import Loss, Square
from sidelight.methods.declare import as_method
from sidelight.oracles.linear.linear_oracle import PublicOracle
from sidelight.privacy import events
from sidelight.privacy.contract import Contract, Payer
from sidelight.privacy.events import RELATIONS, Event, NoOp, Relation, check_relation
from sidelight.privacy.noise import Noise
from sidelight.privacy.observer import Observer
from sidelight.privacy.release import Account, Run
from sidelight.privacy.statement import PrivacyStatement
from sidelight.problems.base import LinearProblem


@dataclass(frozen=True, eq=False)
class Task:
    """One learning problem under one budget.

    Args:
        rows: the private records, bounded; n of them, which is a public constant.
        public: public records in the same coordinates; may be empty.
        loss: what is minimized, on average.
        regularization: λ of (λ/2)‖w‖², which is public and added after the noise.
        target_bound: for regression, a bound on |y|; None for classification.
        observers: are notified of every private step.
        residual: whether the targets are what a guide of public models gets wrong; w = 0 is the guide alone.
        residual_spread: then the variance of the public targets, in squares of the unit of residuals.
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
    residual: bool = False
    residual_spread: float = 0.0

    def __post_init__(self) -> None:
        check_relation(self.relation)
        positive("epsilon", self.epsilon)
        fraction("delta", self.delta)
        not_negative("regularization", self.regularization)

    def problem(self, *, guided: bool, joined: bool = False, half_square: bool = False) -> LinearProblem:
        """What is trained, before its records are read; `joined` counts public rows among them."""
        loss: Loss = Square(0.5) if half_square and isinstance(self.loss, Square) else self.loss
        public = None
        if guided and self.public.every.shape[0]:
            public = PublicOracle(self.public, loss, residual=self.residual)
        n = self.n + (self.public.n if joined else 0)
        rows = UnreadRows(
            n, self.p, max_norm=self.max_norm, unit=self.unit, partitioned=self.rows.partitioned
        )
        return LinearProblem(rows, loss, self.target_bound, self.regularization, public)

    @property
    def n(self) -> int:
        """Private records, or persons."""
        return self.rows.n

    @property
    def unit(self) -> str:
        """What one of the n is: "record", or the column that names persons with several rows."""
        return self.rows.unit

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


PlanState: TypeAlias = Mapping[str, Any]  # what a method's `run` needs from its `plan`


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
NOT_USED = "the private records were not used"
STOPPED = "stopped"  # among what was found: why a run ended before its plan did
PUBLIC_APART = "the public records do not depend on the private ones"  # what methods that use them assume


@dataclass
class Fitted:
    """A trained model: everything in it came out through `release` or is public."""

    coef: Floats  # (outputs, p)
    history: list[dict[str, object]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    found: dict[str, object] = field(default_factory=dict)  # released besides the weights, for the statement
    leaves: LeafModel | None = None  # trees whose scores are added to the linear ones


class Flags:
    """What a method with a proof of its own says of itself; a subclass sets what differs."""

    relations: ClassVar[tuple[Relation, ...]] = RELATIONS  # that it can give
    needs_public: ClassVar[bool] = False
    private: ClassVar[bool] = True  # whether its result carries a guarantee for the private records
    takes_persons: ClassVar[bool] = False  # whether its proof holds for several rows of a person
    takes_partitions: ClassVar[bool] = False  # whether it asks for sums alone, which partitions can give


@runtime_checkable
class Method(Protocol):
    """A way to fit a linear model."""

    @property
    def name(self) -> str: ...

    @property
    def relations(self) -> tuple[Relation, ...]:
        """The relations that it can give."""

    @property
    def needs_public(self) -> bool: ...

    @property
    def private(self) -> bool:
        """Whether its result carries a guarantee for the private records."""

    def plan(self, task: Task) -> Plan:
        """From public quantities only; every broken assumption raises here, before anything is charged."""

    def run(self, task: Task, plan: Plan, *, account: Account, noise: Noise) -> Fitted:
        """Train. Every private output goes through release()."""


def check_method(method: Method, task: Task) -> None:
    """Refuse a task that the method cannot do, saying what to change."""
    if task.relation not in method.relations:
        raise RelationError(
            f"{method.name} supports {' or '.join(method.relations)} only; "
            f"for the default, {spelled('pass relation=None', 'leave out --relation')}"
        )
    enough = task.public.every.shape[0] if takes_unlabeled(method) else task.public.n
    if method.needs_public and enough == 0:
        targets = " with targets" if task.public.every.shape[0] else ""
        raise InputError(
            f"{method.name} needs public records{targets}; "
            f"pass {spelled('X_public and y_public', '--public')}"
        )
    if task.unit != "record" and not takes_persons(method):
        raise InputError(
            f"{method.name} is proved for one row per person. For several, use auto, or a gradient method "
            "such as dp_sgd or precision_weighting"
        )
    if task.rows.partitioned and not takes_partitions(method):
        raise InputError(
            f"{method.name} reads all records at once, but these are stored in blocks. Use auto, dp_newton, "
            "adassp or a gradient method such as dp_sgd; or allow memory for all of them "
            f"({spelled('memory=', '--memory')})"
        )


def takes_unlabeled(method: Method) -> bool:
    """Whether features of public records are enough for it, where it needs public records."""
    return bool(getattr(method, "takes_unlabeled", False))


def takes_persons(method: Method) -> bool:
    """Whether it asks for clipped sums alone, which bound all rows of a person together, or for nothing."""
    return bool(getattr(method, "takes_persons", False))


def takes_partitions(method: Method) -> bool:
    """Whether it asks for sums over records alone, which may lie in blocks, or for nothing."""
    return bool(getattr(method, "takes_partitions", False))


# ---------------------------------------------------------------------------------------------------
# the parameters of a configured method, by nested names: `clip__clip_norm`, or `clip_norm` for short
#
# Methods are frozen dataclasses, and so are their parts: a parameter is a field, a changed method a copy. A
# parameter of a part may be set by its own name where only one part has it.

T = TypeVar("T")
_WHAT_IT_IS = ("name", "relations", "needs_public", "private")  # not for a user to choose


def parameters(method: object) -> dict[str, object]:
    """Every field of the method and, below its name and two underscores, of its parts."""
    out: dict[str, object] = {}
    for name in _fields(method):
        value = getattr(method, name)
        out[name] = value
        out.update({f"{name}__{inner}": value for inner, value in parameters(value).items()})
    return out


def with_parameters(method: T, changes: Mapping[str, object]) -> T:
    """A copy of the method with these fields; a part that is exchanged may be configured in the same call."""
    names = _fields(method)
    top = {name: value for name, value in changes.items() if name in names}
    nested: dict[str, dict[str, object]] = {}
    for key, value in changes.items():
        if key in top:
            continue
        name, _, inner = _full_name(method, key, top).partition("__")
        if inner in nested.setdefault(name, {}):
            raise InputError(f"{_name(method)}: {inner!r} of its {name} is given twice")
        nested[name][inner] = value
    for name, inside in nested.items():
        top[name] = with_parameters(top.get(name, getattr(method, name)), inside)
    if not top or not dataclasses.is_dataclass(method) or isinstance(method, type):
        return method
    changed: T = dataclasses.replace(method, **top)
    return changed


def _full_name(method: object, key: str, exchanged: Mapping[str, object]) -> str:
    """`clip__clip_norm` for `clip_norm`, if one part alone has it; parts that are exchanged count as new."""
    names = _fields(method)
    name, _, inner = key.partition("__")
    if name in names and inner:
        return key
    parts = {field: exchanged.get(field, getattr(method, field)) for field in names}
    owners = [field for field, part in parts.items() if name in _fields(part)]
    if len(owners) == 1:
        return f"{owners[0]}__{key}"
    if owners:
        several = " or ".join(f"{owner}__{key}" for owner in owners)
        raise InputError(f"{_name(method)} has {name!r} in several parts; say {several}")
    short = {inside for part in parts.values() for inside in _fields(part)} - set(names)
    known = ", ".join((*names, *sorted(short))) or "none"
    raise InputError(f"{_name(method)} has no parameter {name!r}. Its parameters are: {known}")


def _fields(method: object) -> tuple[str, ...]:
    if not dataclasses.is_dataclass(method) or isinstance(method, type):
        return ()
    named = (field.name for field in dataclasses.fields(method) if field.init)
    return tuple(name for name in named if name not in _WHAT_IT_IS)


def _name(method: object) -> str:
    return str(getattr(method, "name", type(method).__name__))


class NestedMethod:
    """For scikit-learn's estimators: the parameters of `method` as `method__name`."""

    method: Method | str

    def get_params(self, deep: bool = True) -> dict[str, object]:
        """The parameters; with `deep`, those of the method as `method__name`, also if it is given by name."""
        params: dict[str, object] = super().get_params(deep=deep)  # type: ignore[misc]
        if deep:
            try:
                method = self._configured()
            except InputError:
                return params
            params.update({f"method__{name}": value for name, value in parameters(method).items()})
        return params

    def set_params(self, **params: object) -> Self:
        """Set parameters; `method__clip_norm=1` replaces the method by a copy with that clip_norm."""
        nested = {key[8:]: params.pop(key) for key in list(params) if key.startswith("method__")}
        super().set_params(**params)  # type: ignore[misc]
        if nested:
            self.method = with_parameters(self._configured(), nested)
        return self

    def _configured(self) -> Method:
        return as_method(self.method)


# ---------------------------------------------------------------------------------------------------
# a linear fit under its contract: plan, check, charge, read, run, statement


def fit_charged(
    method: Method,
    task: Task,
    *,
    read: Callable[[], PrivateRows],
    payer: Payer | None,
    noise: Noise,
    assumptions: tuple[str, ...] = (),
    details: Details | None = None,
    observers: tuple[Observer, ...] = (),
) -> tuple[Fitted, PrivacyStatement]:
    """Fit `method` to the rows that `read` returns, which is called once, after the charge.

    `task.rows` are unread (`UnreadRows`). The plan must cost at most the task's budget; it is charged to the
    ledger, or without one to an account of its own, so that a run which releases more than it planned is
    stopped either way. A run that fails after the charge has spent it.
    """
    check_method(method, task)
    plan = method.plan(task)
    contract = Contract(
        method=method.name,
        event=plan.event,
        filtered=plan.filtered,
        relation=task.relation,
        epsilon=task.epsilon,
        delta=task.delta,
        n=task.n,
        unit=task.unit,
        private=method.private,
        details={**plan.details, **(details or {})},
        assumptions=(*plan.assumptions, *assumptions),
        payer=payer,
        observers=observers,
    )
    with ExitStack() as stack:
        if not method.private:
            stack.enter_context(_warned_once(method))
        run, account = contract.begin()
        stack.enter_context(run)
        _notify_rows_read(observers, 0, task.n)
        rows = read()
        _notify_rows_read(observers, task.n, task.n)
        contract.key(noise, run, *_identity(method, task))
        rows.bind(noise)
        ready = replace(task, rows=rows, observers=observers)
        fitted = method.run(ready, plan, account=account, noise=noise)
    notes = fitted.notes
    if STOPPED in fitted.found:
        told = _told_of_stop(str(fitted.found[STOPPED]), plan, contract, run)
        fitted.found[STOPPED], notes = told, [str(told["summary"]), *notes]
    statement = contract.statement(run, notes=notes, assumptions=noise.assumptions, found=fitted.found)
    return fitted, statement


def _told_of_stop(why: str, plan: Plan, contract: Contract, run: Run) -> dict[str, object]:
    """What was planned, what ran, why it ended, and whether the ledger took the rest back.

    The statement keeps ε of the whole plan: that the run ended depends on what it released, and only a filter
    proves that a part costs no more than it would by itself.
    """
    lowered = contract.settle(run)
    planned, ran = events.elementary(plan.event), events.elementary(run.released)
    left_out = events.describe(events.composed(planned - ran))
    cost = "the ledger is charged for what ran alone" if lowered else "the whole plan stays charged"
    return {
        "why": why,
        "planned": events.describe(plan.event),
        "ran": events.describe(run.released),
        "left_out": left_out,
        "refunded": lowered,
        "summary": f"training did not begin: {why}. Left out: {left_out}; {cost}",
    }


def _notify_rows_read(observers: tuple[Observer, ...], done: int, records: int) -> None:
    for observer in observers:
        observer.on_read(done, records)


def _identity(method: Method, task: Task) -> tuple[str | Array, ...]:
    """What decides a linear fit besides its plan and its private records."""
    settings = (repr(method), repr(task.loss), task.p, task.max_norm, task.regularization, task.target_bound)
    named = re.sub(r" at 0x[0-9a-f]+", "", repr(settings))  # an address differs from run to run
    public = task.public.every
    parts = (public.data, public.indices, public.indptr) if is_sparse(public) else (public,)
    return named, *parts, task.public.y


def _warned_once(method: Method) -> warnings.catch_warnings[None]:
    """Warn for a method that is not private, and keep the method from doing it a second time."""
    warnings.warn(
        f"{method.name} uses the private records without protection: its result carries no guarantee",
        NotPrivateWarning,
        stacklevel=users_line(),
    )
    return warnings.catch_warnings(action="ignore", category=NotPrivateWarning)
