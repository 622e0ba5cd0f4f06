"""Progress on stderr, if that is a terminal: the stage, the steps, and what was charged. Silent in a pipe."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import TYPE_CHECKING, Self

from sidelight.privacy.contract import Observer

if TYPE_CHECKING:
    from pathlib import Path

    from rich.progress import Progress as Bar
    from rich.progress import TaskID


class Progress(Observer):
    """Shows the stages and the releases of a fit: public things only."""

    def __init__(self, *, ledger: Path | None = None) -> None:
        self.may_have_spent = False
        self._where = f" to {ledger}" if ledger else ""
        self._bar: Bar | None = None
        self._task: TaskID | None = None
        self._text = ""

    def __enter__(self) -> Self:
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import (
                BarColumn,
                MofNCompleteColumn,
                SpinnerColumn,
                TextColumn,
                TimeElapsedColumn,
            )
            from rich.progress import Progress as Bar

            columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(24), MofNCompleteColumn())
            self._bar = Bar(*columns, TimeElapsedColumn(), console=Console(stderr=True), transient=True)
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def on_stage(self, name: str) -> None:
        self._show(name, total=None)

    def on_plan(self) -> None:
        self.may_have_spent = True

    def on_start(self, *, method: str, epsilon: float, releases: int) -> None:
        self._show(f"{method}: ε = {epsilon:g} charged{self._where}, training", total=releases or None)

    def on_read(self, done: int, records: int) -> None:
        if self._bar is not None and self._task is not None:
            part = "" if done >= records else f"; {done:,} of {records:,} records encoded"
            self._bar.update(self._task, description=f"{self._text}{part}")

    def on_release(self) -> None:
        if self._bar is not None and self._task is not None:
            self._bar.advance(self._task)

    def _show(self, text: str, total: int | None) -> None:
        if self._bar is None:
            return
        if self._task is not None:
            self._bar.remove_task(self._task)
        self._text = text
        self._task = self._bar.add_task(text, total=total)
