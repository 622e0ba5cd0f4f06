"""What can be audited: a way to run a method on worlds that differ in one record.

`Linear` is any method for linear models, the registry's or a user's own. Networks are in `networks`.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, TypeAlias, TypeGuard

import numpy as np
from numpy.typing import NDArray

from sidelight.arrays import Floats
from sidelight.audit import scenes
from sidelight.audit.result import AuditResult, Claim, Finding, Kind, claim_of
from sidelight.audit.scenes import Scene
from sidelight.data.rows import UnreadRows
from sidelight.errors import InputError, NotPrivateWarning, PrivacyConditionError, PrivacyWarning
from sidelight.methods.declare import DECLARATIONS, get_method
from sidelight.methods.task import Method, Plan, Task, relation_of
from sidelight.privacy.events import Event, Relation
from sidelight.privacy.noise import Noise

__all__ = ["Linear", "Outcome", "Subject", "as_subject", "verdict"]

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

    def neighbours(self) -> tuple[World, list[World]]:
        """A dataset, and several that differ from it in one record."""

    @property
    def changed(self) -> int:
        """The index of the record in which neighbours differ."""

    def joined(self) -> list[tuple[int | None, list[World]]]:
        """Datasets whose record joins a batch of so many others (None: of all); empty: it is never absent."""

    def extremes(self, direction: Floats | None = None) -> tuple[World, World]:
        """Two neighbours that are as easy to tell apart as can be; their record lies along `direction`."""

    def canaries(self, present: NDArray[np.bool_]) -> World:
        """A dataset of canaries; those that are not `present` are left out, or replaced by their opposite."""

    def canary_scores(self, model: NDArray[np.float64], count: int) -> NDArray[np.float64]:
        """For each canary, how much the released model looks as if it had been there."""

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
        base = self.base or scenes.scene("huber" if declared is None else declared.loss)
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

    def neighbours(self) -> tuple[Scene, list[Scene]]:
        return scenes.neighbouring(self._scene, self.relation)

    @property
    def changed(self) -> int:
        return scenes.CHANGED

    def joined(self) -> list[tuple[int | None, list[Scene]]]:
        """A linear oracle looks at each row by itself: a null row is an absent one."""
        return []

    def extremes(self, direction: Floats | None = None) -> tuple[Scene, Scene]:
        return scenes.extremes(self._scene, self.relation, direction)

    def canaries(self, present: NDArray[np.bool_]) -> Scene:
        return scenes.canaries(self._scene, self.relation, present)

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
        for category in (PrivacyWarning, NotPrivateWarning):
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
    if isinstance(method, str):
        method = get_method(method)
    if _is_subject(method):
        return method
    if not _is_method(method):
        raise InputError("an audit takes a method: a name, dp_sgd(...), or an object with plan() and run()")
    if relation is not None and relation not in method.relations:
        raise InputError(f"{method.name} gives {' or '.join(method.relations)}, not {relation}")
    return Linear(method, relation_of(method, relation), epsilon, delta)


def _is_subject(method: object) -> TypeGuard[Subject]:
    return hasattr(method, "neighbours") and hasattr(method, "extremes")


def _is_method(method: object) -> TypeGuard[Method]:
    return all(hasattr(method, name) for name in ("plan", "run", "relations", "private"))


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
