"""Who is told how far a fit is: stages, and steps as they are charged."""

from __future__ import annotations

from typing import Any, Protocol

from sidelight.methods.task import Fitted, Method, Plan, Task
from sidelight.privacy import events
from sidelight.privacy.events import Event, Relation
from sidelight.privacy.noise import Noise
from sidelight.privacy.release import Account

__all__ = ["Silent", "Watch", "watched"]


class Watch(Protocol):
    """Hears of public things only."""

    def stage(self, name: str) -> None:
        """A stage begins."""

    def planned(self) -> None:
        """All checks passed; the plan is about to be charged."""

    def charged(self, *, releases: int, epsilon: float, method: str) -> None:
        """The plan is in the ledger; training begins, with at most so many releases (0: not known)."""

    def released(self) -> None:
        """One more of them."""


class Silent:
    """Nobody."""

    def stage(self, name: str) -> None: ...

    def planned(self) -> None: ...

    def charged(self, *, releases: int, epsilon: float, method: str) -> None: ...

    def released(self) -> None: ...


def watched(method: Method, watch: Watch) -> Any:
    """The same method, which tells `watch` when it runs and what it releases."""
    return method if isinstance(watch, Silent) else _Watched(method, watch)


class _Watched:
    def __init__(self, method: Method, watch: Watch) -> None:
        self._method, self._watch = method, watch

    @property
    def name(self) -> str:
        return self._method.name

    @property
    def relations(self) -> tuple[Relation, ...]:
        return self._method.relations

    @property
    def needs_public(self) -> bool:
        return self._method.needs_public

    @property
    def private(self) -> bool:
        return self._method.private

    def plan(self, task: Task) -> Plan:
        plan = self._method.plan(task)
        self._watch.planned()
        return plan

    def run(self, task: Task, plan: Plan, *, account: Account, noise: Noise) -> Fitted:
        name = str(plan.details.get("chosen", self._method.name))
        count = sum(events.elementary(plan.event).values())
        self._watch.charged(releases=0 if plan.filtered else count, epsilon=task.epsilon, method=name)
        return self._method.run(task, plan, account=_Counted(account, self._watch), noise=noise)


class _Counted:
    """Passes every charge on, then counts it."""

    def __init__(self, account: Account, watch: Watch) -> None:
        self._account, self._watch = account, watch

    def charge(self, event: Event) -> None:
        self._account.charge(event)
        self._watch.released()
