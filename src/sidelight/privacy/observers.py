"""Observers of a run: progress bars, checkpoints, loggers. Public and released values only.

Observers change nothing. They are notified by the contract (plan, charge, releases, statement) and, where
the method takes private steps, from the loop.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sidelight.privacy.events import Event
    from sidelight.privacy.release import Account
    from sidelight.privacy.statement import PrivacyStatement

__all__ = ["ObservedAccount", "Observer"]


class Observer:
    """An observer that ignores every event; subclasses take those that they want."""

    def on_stage(self, name: str) -> None:
        """A stage of the work begins."""

    def on_plan(self) -> None:
        """The plan is within its budget, and is about to be charged."""

    def on_start(self, *, method: str, epsilon: float, releases: int) -> None:
        """The plan is charged; training begins, with at most so many releases (0: not known)."""

    def on_release(self) -> None:
        """A release was charged."""

    def on_step(self, step: int, entry: Mapping[str, object]) -> None:
        """A private step was taken; `entry` is its line of the history."""

    def on_finish(self, statement: PrivacyStatement) -> None:
        """The run ended, and this is what it cost."""


class ObservedAccount:
    """Passes every charge on, then notifies the observers."""

    def __init__(self, account: Account, observers: Sequence[Observer]) -> None:
        self._account, self._observers = account, observers

    def charge(self, event: Event) -> None:
        self._account.charge(event)
        for observer in self._observers:
            observer.on_release()
