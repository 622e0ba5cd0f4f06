"""What can be audited: a way to run a method on worlds that differ in one record.

`Linear` is any method for linear models, the registry's or a user's own. Networks are in `networks`.

Linear models are audited on *scenes*: small synthetic problems with their raw arrays at hand, so that one
record can be changed. Nothing here is anybody's data: an audit that shows how far a record moves a sum must
not be run on records that need protection.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, TypeAlias, TypeGuard

import numpy as np
import scipy.sparse as sp
from numpy.typing import ArrayLike, NDArray

from sidelight.arrays import Floats, Mask, Matrix
from sidelight.audit.result import AuditResult, Claim, Finding, Kind, claim_of
from sidelight.data.rows import PrivateRows, PublicRows, UnreadRows
from sidelight.errors import (
    InputError,
    NotPrivateWarning,
    PrivacyConditionError,
    PrivacyWarning,
    RecordsWarning,
)
from sidelight.losses import Loss, Softmax, get_loss
from sidelight.methods.declare import DECLARATIONS, as_method
from sidelight.methods.task import Method, Plan, Task
from sidelight.privacy.contract import relation_of
from sidelight.privacy.events import Event, Relation
from sidelight.privacy.noise import Noise

World: TypeAlias = Any  # a dataset in the form that its subject takes: arrays, or tensors


@dataclass
class Outcome:
    """What leaves a run, and what it was charged."""

    outside: Mapping[str, object]
    model: NDArray[np.float64]  # flat parameters
    charged: list[Event] = field(default_factory=list)


class Subject(Protocol):
    """A method in a setting that an audit can run again and again."""

    @property
    def name(self) -> str: ...

    @property
    def claim(self) -> Claim: ...

    def planning(self) -> list[Finding]:
        """Whether the plan is made without a private record."""

    def neighbors(self) -> tuple[World, list[World]]:
        """A dataset, and several that differ from it in one record."""

    @property
    def changed(self) -> int:
        """The index of the record in which neighbors differ."""

    def joined(self) -> list[tuple[int | None, list[World]]]:
        """Datasets whose record joins a batch of so many others (None: of all); empty: it is never absent."""

    def extremes(self, direction: Floats | None = None) -> tuple[World, World]:
        """Two neighbors that are as easy to tell apart as can be; their record lies along `direction`."""

    def canaries(self, present: NDArray[np.bool_]) -> World:
        """A dataset of canaries; those that are not `present` are left out, or replaced by their opposite."""

    def canary_scores(self, model: NDArray[np.float64], count: int) -> NDArray[np.float64]:
        """For each canary, evidence in the released model that it was among the training records."""

    def run(self, world: World, *, seed: int) -> Outcome:
        """Train on a world."""


class Recorder:
    """An account that refuses nothing, so that an audit sees what a broken method would do."""

    def __init__(self) -> None:
        self.charged: list[Event] = []

    def charge(self, event: Event) -> None:
        self.charged.append(event)


@dataclass(frozen=True, eq=False)
class Linear:
    """A method for linear models on a small synthetic problem."""

    method: Method
    relation: Relation
    epsilon: float = 1.0
    delta: float = 1e-5
    base: Scene | None = None  # None: a scene with a loss that the method declares
    label: str | None = None

    @property
    def name(self) -> str:
        return self.label or self.method.name

    @functools.cached_property
    def claim(self) -> Claim:
        task = self._task(self._scene)
        return claim_of(self.method, task, self._plan(task.n, task.p))

    @functools.cached_property
    def _scene(self) -> Scene:
        declared = DECLARATIONS.get(self.method.name)
        base = self.base or scene("huber" if declared is None else declared.loss)
        return replace(base, epsilon=self.epsilon, delta=self.delta)

    def _task(self, world: Scene) -> Task:
        return world.task(self.relation)

    @functools.cached_property
    def _plans(self) -> dict[tuple[int, int], Plan]:
        return {}

    def _plan(self, n: int, p: int, world: Scene | None = None) -> Plan:
        """Made once for every shape: it must not depend on anything else of the private records."""
        if (n, p) not in self._plans:
            self._plans[n, p] = self.method.plan(self._task(self._scene if world is None else world))
        return self._plans[n, p]

    def planning(self) -> list[Finding]:
        task = self._task(self._scene)
        unread = replace(task, rows=UnreadRows(task.n, task.p, max_norm=task.max_norm))
        try:
            event = self.method.plan(unread).event
        except (PrivacyConditionError, AttributeError) as error:
            if not self.method.private:
                return []
            return [Finding("a plan reads no private record", f"planning without records failed: {error}")]
        if event == self.claim.event:
            return []
        return [Finding("a plan reads no private record", "the plan changes when records cannot be read")]

    def neighbors(self) -> tuple[Scene, list[Scene]]:
        return neighboring(self._scene, self.relation)

    @property
    def changed(self) -> int:
        return CHANGED

    def joined(self) -> list[tuple[int | None, list[Scene]]]:
        """A linear oracle looks at each row by itself: a null row is an absent one."""
        return []

    def extremes(self, direction: Floats | None = None) -> tuple[Scene, Scene]:
        return extremes(self._scene, self.relation, direction)

    def canaries(self, present: NDArray[np.bool_]) -> Scene:
        return canaries(self._scene, self.relation, present)

    def canary_scores(self, model: NDArray[np.float64], count: int) -> NDArray[np.float64]:
        """The margin of each canary: a record pulls the model to its own side."""
        outputs = self._scene.loss.outputs
        weights = model.reshape(outputs, -1)
        return np.array(weights[min(1, outputs - 1), :count])

    def run(self, world: Scene, *, seed: int) -> Outcome:
        with quiet():
            task = self._task(world)
            plan, account = self._plan(task.n, task.p, world), Recorder()
            fitted = self.method.run(task, plan, account=account, noise=Noise(seed))
        coef = np.asarray(fitted.coef, dtype=np.float64)
        outside = {"coefficients": coef, "history": fitted.history, "notes": fitted.notes}
        return Outcome({**outside, "charges": account.charged}, coef.reshape(-1), account.charged)


@contextmanager
def quiet() -> Iterator[None]:
    """Our own warnings are not repeated for every run of an audit."""
    with warnings.catch_warnings():
        for category in (PrivacyWarning, NotPrivateWarning, RecordsWarning):
            warnings.simplefilter("ignore", category)
        yield


def as_subject(
    method: str | Method | Subject,
    *,
    relation: Relation | None = None,
    epsilon: float = 1.0,
    delta: float = 1e-5,
) -> Subject:
    """A method (by name, or as an object, of the registry or of your own) on the built-in problem."""
    if _is_subject(method):
        return method
    method = as_method(method)
    if relation is not None and relation not in method.relations:
        raise InputError(f"{method.name} supports {' or '.join(method.relations)} only, not {relation}")
    return Linear(method, relation_of(method, relation), epsilon, delta)


def _is_subject(method: object) -> TypeGuard[Subject]:
    return hasattr(method, "neighbors") and hasattr(method, "extremes")


def verdict(
    subject: Subject, kind: Kind, *, lower_bound: float, confidence: float, findings: Sequence[Finding],
    details: Mapping[str, object],
) -> AuditResult:  # fmt: skip
    """The result of one audit of this subject; a bound above its claim is a finding."""
    claim, broken = subject.claim, list(findings)
    if lower_bound > claim.epsilon:
        seen = f"ε ≥ {lower_bound:.4g} is proven, {claim.epsilon:.4g} was claimed"
        broken.append(Finding("ε is at most what is claimed", seen))
    return AuditResult(
        kind=kind,
        method=subject.name,
        relation=claim.relation,
        claimed_epsilon=claim.epsilon,
        lower_bound=lower_bound,
        delta=claim.delta,
        confidence=confidence,
        findings=tuple(broken),
        details=details,
    )


# ---------------------------------------------------------------------------------------------------
# scenes


ADD_REMOVE: Relation = "add-or-remove-one"
REPLACE: Relation = "replace-one"
CHANGED = 3  # the record in which neighbors differ


@dataclass(frozen=True, eq=False)
class Scene:
    """Private and public arrays before they are bounded. The last column is the intercept's."""

    X: Matrix
    y: Floats
    X_public: Matrix
    y_public: Floats
    loss: Loss
    epsilon: float = 3.0
    delta: float = 1e-5
    regularization: float = 0.0

    def task(self, relation: Relation) -> Task:
        return Task(
            rows=PrivateRows(self.X, self.y, max_norm=1.0, admits=self.loss.admits),
            public=PublicRows(self.X_public, self.y_public),
            loss=self.loss,
            epsilon=self.epsilon,
            delta=self.delta,
            relation=relation,
            regularization=self.regularization,
            target_bound=1.0 if self.loss.task == "regression" else None,
        )

    def with_record(self, x: ArrayLike, y: float) -> Scene:
        """A scene in which one record has these values."""
        X, targets = np.array(self.X), np.array(self.y)
        with np.errstate(over="ignore"):  # 1e300 is infinite in float32
            X[CHANGED], targets[CHANGED] = x, y
        return replace(self, X=X, y=targets)

    def sparse(self) -> Scene:
        """The same records, as CSR."""
        return replace(self, X=sp.csr_array(self.X), X_public=sp.csr_array(self.X_public))


def scene(loss: str = "logistic", *, n: int = 44, n_public: int = 10, p: int = 4, seed: int = 0) -> Scene:
    """Nearly separable records of norm at most 1."""
    made = Softmax(3) if loss == "softmax" else get_loss(loss)
    X, y = _records(n, p, made, np.random.default_rng(seed))
    X_public, y_public = _records(n_public, p, made, np.random.default_rng(seed + 1))
    return Scene(X, y, X_public, y_public, made)


def _records(n: int, p: int, loss: Loss, rng: np.random.Generator) -> tuple[Floats, Floats]:
    X = rng.standard_normal((n, p))
    X[:, -1] = 0.5
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    if loss.task == "multiclass":
        return X, np.argmax(X[:, :3], axis=1).astype(float)
    z = X @ np.linspace(2, 1, p)
    if loss.task == "regression":
        return X, np.clip(0.4 * z, -1, 1)
    return X, np.where(z > 0, 1.0, -1.0)


# ---------------------------------------------------------------------------------------------------
# neighbors


def null(base: Scene) -> Scene:
    """The scene without the record: what add-or-remove-one compares with, at a public n."""
    return base.with_record(0.0, 0.0)


def worst(base: Scene) -> tuple[Floats, float]:
    """A record as an adversary would choose it: far away, and on the wrong side."""
    p = base.X.shape[1]
    x = np.full(p, -100.0)
    return x, {"multiclass": 2.0, "regression": 1.0, "binary": 1.0}[base.loss.task]


def neighboring(base: Scene, relation: Relation) -> tuple[Scene, list[Scene]]:
    """A scene and several neighbors of it: adversarial, ordinary and broken records in the same position."""
    p = base.X.shape[1]
    x, y = worst(base)
    first = np.eye(p)[0]
    records: list[tuple[ArrayLike, float]] = [
        (base.X[CHANGED], float(base.y[CHANGED])),
        (first, y),
        (-first, y),
    ]
    records += [(np.full(p, np.nan), y), (np.full(p, 1e300), y), (first, np.nan), (0.0, 0.0)]
    if base.loss.task == "regression":
        records.append((x, -y))
    else:
        records.append((-x, 0.0 if base.loss.task == "multiclass" else y))
    if relation == ADD_REMOVE:
        return null(base), [base.with_record(*record) for record in [*records, (x, y)]]
    return base.with_record(x, y), [base.with_record(*record) for record in records]


def broken(base: Scene) -> Iterator[Scene]:
    """The scene with a record that cannot be used; all of these are the same to a method."""
    p = base.X.shape[1]
    yield base.with_record(np.full(p, np.nan), 1.0)
    yield base.with_record([np.inf, *[0.0] * (p - 1)], 1.0)
    yield base.with_record(np.full(p, 0.5), np.nan)
    if base.loss.task != "regression":
        yield base.with_record(np.full(p, 0.5), 17.0)


def extremes(base: Scene, relation: Relation, direction: Floats | None = None) -> tuple[Scene, Scene]:
    """Two neighbors that are as easy to tell apart as can be: one record among records that say nothing.

    All other records are null, so that only noise hides the record, which has norm 1 and lies along
    `direction` (default: the first axis); under replace-one it is one record or its opposite.
    """
    p = base.X.shape[1]
    empty = replace(base, X=np.zeros_like(base.X), y=np.zeros_like(base.y))
    x = np.eye(p)[0] if direction is None or np.size(direction) < p else np.ravel(direction)[:p]
    x = x / max(float(np.linalg.norm(x)), 1e-12)
    low = 0.0 if base.loss.task == "multiclass" else -1.0
    first = null(empty) if relation == ADD_REMOVE else empty.with_record(x, low)
    return first, empty.with_record(x, 1.0)


def canaries(base: Scene, relation: Relation, present: Mask) -> Scene:
    """One canary for each entry of `present`, each in a direction of its own, which public records avoid.

    An absent canary is null under add-or-remove-one, and has the other label under replace-one.
    """
    m, width = len(present), base.X_public.shape[1]
    low = 0.0 if base.loss.task == "multiclass" or relation == ADD_REMOVE else -1.0
    X = np.zeros((m, m + width))
    X[np.arange(m), np.arange(m)] = 1.0
    if relation == ADD_REMOVE:
        X[~present] = 0.0
    y = np.where(present, 1.0, low)
    X_public = np.hstack([np.zeros((len(base.y_public), m)), base.X_public])
    return replace(base, X=X, y=y, X_public=X_public)
