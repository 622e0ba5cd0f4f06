"""Observers of a run: progress bars, checkpoints, loggers.

They get public and released values only, and change nothing. The contract notifies them (plan, charge,
releases, statement) and, where the method takes private steps, the loop.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sidelight.errors import (
    InputError,
    SidelightError,
    first_line,
    warn_charged,
)
from sidelight.privacy.events import Event
from sidelight.privacy.release import Account
from sidelight.privacy.statement import PrivacyStatement


class PlanOnly(BaseException):
    """A run ends before its charge, as an observer asked for. No error, so that no handler takes it.

    refusal: what the ledger would raise instead of charging this plan; None if it would admit it.
    """

    def __init__(self, contract: Any, refusal: SidelightError | None = None) -> None:
        super().__init__("only the plan was requested")
        self.contract, self.refusal = contract, refusal


class Observer:
    """An observer that ignores every event; subclasses take those that they want.

    plan_only: whether the run is to end with `PlanOnly` before the charge.
    """

    plan_only = False

    def on_stage(self, name: str) -> None:
        """A stage of the work begins."""

    def on_plan(self) -> None:
        """The plan is within its budget, and is about to be charged."""

    def on_start(self, *, method: str, epsilon: float, releases: int) -> None:
        """The plan is charged; reading and training begin, with at most so many releases (0: not known)."""

    def on_read(self, done: int, records: int) -> None:
        """So many of the private records are read: none at first, in the end all of them."""

    def on_release(self) -> None:
        """A release was charged."""

    def on_step(self, step: int, entry: Mapping[str, object]) -> None:
        """A private step was taken; `entry` is its line of the history."""

    def on_finish(self, statement: PrivacyStatement) -> None:
        """The run ended, and this is what it cost."""


def check_observers(given: object) -> tuple[Observer, ...]:
    """Those that a user passed, or an error that says what to pass."""
    several = tuple(given) if isinstance(given, list | tuple) else (given,)
    for one in several:
        if not isinstance(one, Observer):
            raise InputError(
                f"observers holds observers, such as sidelight.observers.TensorBoard(folder), not {one!r}; a "
                "function goes into sidelight.observers.Callback(function)"
            )
    return tuple(_UsersObserver(one) for one in several)


class _UsersObserver(Observer):
    """An observer of the user's: a failure before the charge ends the run; after it, the notices alone.

    A line that a dashboard does not take is no reason to lose a budget and a model.
    """

    def __init__(self, inner: Observer) -> None:
        self._inner, self._charged, self._failed = inner, False, False
        self.plan_only = inner.plan_only

    def on_stage(self, name: str) -> None:
        self._notify(lambda: self._inner.on_stage(name))

    def on_plan(self) -> None:
        self._charged = self._failed = False
        self._notify(self._inner.on_plan)

    def on_start(self, *, method: str, epsilon: float, releases: int) -> None:
        self._charged = True
        self._notify(lambda: self._inner.on_start(method=method, epsilon=epsilon, releases=releases))

    def on_read(self, done: int, records: int) -> None:
        self._notify(lambda: self._inner.on_read(done, records))

    def on_release(self) -> None:
        self._notify(self._inner.on_release)

    def on_step(self, step: int, entry: Mapping[str, object]) -> None:
        self._notify(lambda: self._inner.on_step(step, entry))

    def on_finish(self, statement: PrivacyStatement) -> None:
        self._notify(lambda: self._inner.on_finish(statement))

    def _notify(self, tell: Callable[[], None]) -> None:
        if self._failed:
            return
        try:
            tell()
        except Exception as error:
            name = type(self._inner).__name__
            if not self._charged:
                raise InputError(
                    f"the observer {name} fails ({first_line(error)}). Nothing was charged"
                ) from error
            self._failed = True
            warn_charged(
                f"the observer {name} failed ({first_line(error)}) and is no longer notified. The run is "
                "charged, and continues",
                RuntimeWarning,
            )


class ObservedAccount:
    """Passes every charge on, then notifies the observers."""

    def __init__(self, account: Account, observers: Sequence[Observer]) -> None:
        self._account, self._observers = account, observers

    def charge(self, event: Event) -> None:
        self._account.charge(event)
        for observer in self._observers:
            observer.on_release()
