"""The audit's tape, and the promises on it as assertions.

`record(method, task)` runs a method and keeps every private sum, every event and every released value.
`record(method, neighbor, like=tape)` runs it again with the same randomness, and gives it the *released
values of the first run*: so both runs are asked the same questions, and whatever then differs outside of the
private sums has not come through a door.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from sidelight.audit import replay as promises
from sidelight.audit.result import Claim, Finding
from sidelight.audit.sampling import performs_its_event
from sidelight.audit.subjects import Scene, neighboring
from sidelight.audit.tape import RecordedCall, listening
from sidelight.audit.tape import Tape as DoorTape
from sidelight.methods.task import Fitted, Method, Plan, Task
from sidelight.privacy import events
from sidelight.privacy.events import Relation
from sidelight.privacy.noise import Noise
from sidelight.privacy.observer import Observer
from sidelight.privacy.open_accounts import Certified, certificate_of
from sidelight.privacy.release import Run
from sidelight.privacy.statement import PrivacyStatement


@dataclass
class Tape:
    """Everything that one run did at the doors, what it charged, and its result."""

    plan: Plan
    doors: DoorTape
    charged: list[events.Event] = field(default_factory=list)
    fitted: Fitted | None = None

    @property
    def calls(self) -> list[RecordedCall]:
        return self.doors.calls


class SilentNoise(Noise):
    """Sampling as usual, and no noise: to compare a step with numbers worked out by hand."""

    def normal(self, size: Any, *, std: float = 1.0, dtype: Any = np.float64) -> Any:
        return np.zeros(size, dtype=dtype)


class LoggedRun(Run):
    """The account of a fit without a ledger: refuses what the plan does not cover, and keeps the charges."""

    def __init__(self, plan: Plan, charged: list[events.Event]) -> None:
        super().__init__(0, plan.event, rule="exact", covered_by_filter=plan.filtered, settle=lambda *_: None)
        self._charged = charged

    def charge(self, event: events.Event) -> None:
        super().charge(event)
        self._charged.append(event)


class Everything(Observer):
    """An observer that keeps whatever it is told."""

    def __init__(self) -> None:
        self.heard: list[object] = []

    def on_stage(self, name: str) -> None:
        self.heard.append(name)

    def on_plan(self) -> None:
        self.heard.append("plan")

    def on_start(self, *, method: str, epsilon: float, releases: int) -> None:
        self.heard.append((method, epsilon, releases))

    def on_release(self) -> None:
        self.heard.append("release")

    def on_step(self, step: int, entry: Mapping[str, object]) -> None:
        self.heard.append((step, dict(entry)))

    def on_finish(self, statement: PrivacyStatement) -> None:
        self.heard.append(statement.to_dict())


class Nothing:
    """An account that forgets."""

    def charge(self, event: events.Event) -> None: ...


def record(
    method: Method, task: Task, *, like: Tape | None = None, seed: int = 7, everyone: bool = False
) -> Tape:
    """Run the method; with `like`, on the random numbers and the released values of that run.

    `everyone`: sums are over all records, since the one that differs may have missed every batch.
    """
    plan = method.plan(task) if like is None else like.plan
    with listening(like=None if like is None else like.doors, everyone=everyone) as doors:
        tape = Tape(plan, doors)
        run = LoggedRun(plan, tape.charged)
        account = Certified(run, plan.event, relation=task.relation) if plan.filtered else run
        tape.fitted = method.run(task, plan, account=account, noise=Noise(seed))
    assert not any(call.early_noise for call in tape.calls), "noise was drawn before the charge"
    assert all(call.event is not None for call in tape.calls), "a release was not charged"
    assert like is None or len(tape.calls) == len(like.calls), "the number of releases depends on a record"
    return tape


# ---------------------------------------------------------------------------------------------------
# the promises


def _none(found: list[Finding]) -> None:
    assert not found, "; ".join(map(str, found))


def assert_within_sensitivity(tape: Tape, other: Tape) -> float:
    """No private sum moved by more than it declared. Returns the largest move, in units of that."""
    for call in (*tape.calls, *other.calls):
        assert call.value is None or np.isfinite(call.value).all(), "a private sum is not finite"
    share = promises.largest_share(tape.doors, other.doors)
    assert share <= 1 + 1e-9, f"one record moved a private sum by {share:.6g} times its sensitivity"
    _none(promises.within_sensitivity(tape.doors, other.doors))
    return share


def assert_same_outside(tape: Tape, other: Tape) -> None:
    """Given the same released values, nothing that leaves the method depends on the record."""
    assert tape.fitted is not None and other.fitted is not None
    np.testing.assert_array_equal(tape.fitted.coef, other.fitted.coef)
    _none(promises.nothing_outside(vars(tape.fitted), vars(other.fitted)))
    assert tape.charged == other.charged


def assert_neighbors(tape: Tape, others: list[Tape], *, at_least: float) -> None:
    """Replays on neighbors keep both promises, and one moves a sum by more than `at_least` of its bound."""
    moved = [assert_within_sensitivity(tape, other) for other in others]
    assert max(moved) > at_least, "no neighbor moved anything: this test would not notice a fault"
    for other in others:
        assert_same_outside(tape, other)


def assert_private(method: Method, scene: Scene, relation: Relation, *, at_least: float) -> Tape:
    """The method on a scene and its neighbors: within sensitivity, the same outside, covered by its plan."""
    first, others = neighboring(scene, relation)
    tape = record(method, first.task(relation))
    replays = [record(method, other.task(relation), like=tape) for other in others]
    assert_neighbors(tape, replays, at_least=at_least)
    assert_plan_covers(tape, first.task(relation))
    return tape


def assert_plan_covers(tape: Tape, task: Task) -> None:
    """What was charged is what passed the doors, and the plan is what was charged, within the budget."""
    plan = tape.plan
    claim = Claim(plan.event, task.relation, task.delta, filtered=plan.filtered, budget=task.epsilon)
    _none(promises.charges(tape.doors, tape.charged, claim))
    if plan.filtered:
        known = (events.Gaussian, events.RenyiBound, events.TruncatedConcentrated)
        assert isinstance(certificate_of(plan.event)[0], known), (
            f"{plan.event} is not a certificate that can be added up"
        )
    else:
        spent = events.compose(*tape.charged)
        assert events.elementary(spent) == events.elementary(plan.event), "less was released than planned"


def assert_performs_its_event(sampler: Any, n: int = 200, draws: int = 400) -> None:
    """The batches that a sampler draws are those that its event describes."""
    _none(performs_its_event(sampler, n, draws=draws))
