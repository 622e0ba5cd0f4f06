"""Around the steps: a progress bar with the budget spent, scores on public records, a stop at Ctrl-C."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from sidelight.oracles.network.batches import Losses, Records, call
from sidelight.oracles.network.flat import evaluating
from sidelight.privacy import accountants
from sidelight.privacy.contract import Observer
from sidelight.privacy.events import Event, Relation

__all__ = ["Bar", "Stop", "due", "outputs_of", "scores", "stop_at_interrupt"]


class Stop:
    """Whether the user asked to stop."""

    asked = False


@contextmanager
def stop_at_interrupt() -> Iterator[Stop]:
    """The first Ctrl-C asks for a stop after the step at hand, a second one interrupts at once."""
    stop = Stop()
    if threading.current_thread() is not threading.main_thread():
        yield stop  # only the main thread may set handlers
        return
    previous = signal.getsignal(signal.SIGINT)

    def ask(number: int, frame: Any) -> None:
        stop.asked = True
        signal.signal(signal.SIGINT, previous)

    signal.signal(signal.SIGINT, ask)
    try:
        yield stop
    finally:
        signal.signal(signal.SIGINT, previous)


_LOOKS = 10  # scores, and the budget spent, are shown so often in a run


def due(step: int, steps: int) -> bool:
    """Whether it is time for scores after this step."""
    return step % max(1, steps // _LOOKS) == 0


class Bar(Observer):
    """A progress bar on a terminal; nothing elsewhere, unless asked for.

    released, share_spent: what was released so far, and for a filter the share of its budget, whose ε is that
    of its certificate at any step.
    """

    def __init__(
        self,
        shown: bool | None,
        *,
        total: int,
        delta: float,
        relation: Relation,
        released: Callable[[], Event],
        share_spent: Callable[[], float | None],
    ) -> None:
        self.shown = sys.stderr.isatty() if shown is None else shown
        self._released, self._share_spent = released, share_spent
        self._total, self._delta, self._relation = total, delta, relation
        self._progress: Any = None

    def __enter__(self) -> Bar:
        if self.shown:
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

            columns = (
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TimeRemainingColumn(),
            )
            self._progress = Progress(*columns, console=Console(stderr=True))
            self._progress.start()
            self._task = self._progress.add_task("training", total=self._total)
        return self

    def __exit__(self, *_: object) -> None:
        if self._progress is not None:
            self._progress.stop()

    def on_step(self, step: int, entry: Mapping[str, Any]) -> None:
        """Show the step; now and then the budget spent as well, which takes a moment to compute."""
        if self._progress is None:
            return
        self._progress.update(self._task, completed=step)
        if due(step, self._total):
            share = self._share_spent()
            spent = {"ε spent": self.epsilon(self._released())} if share is None else {
                "share of the budget spent": share
            }  # fmt: skip
            scores = {name: value for name, value in entry.items() if name.startswith("validation_")}
            text = "  ".join(f"{name} {value:.3g}" for name, value in {**spent, **scores}.items())
            self._progress.update(self._task, description=text)

    def epsilon(self, released: Event) -> float:
        """What these releases cost, if no more follow."""
        return accountants.epsilon(
            released, delta=self._delta, relation=self._relation, accountant="pld-coarse"
        )


def outputs_of(model: nn.Module, records: Records) -> Iterator[tuple[Tensor, Any]]:
    """Outputs and targets, block by block, in evaluation mode."""
    with torch.no_grad(), evaluating(model):
        for inputs, targets in records.blocks():
            yield call(model, inputs), targets


def scores(model: nn.Module, loss: Losses, records: Records) -> dict[str, float]:
    """Mean loss, and for classes accuracy. Of public records."""
    total, right, count = 0.0, 0, 0
    classes = False
    for outputs, targets in outputs_of(model, records):
        with torch.no_grad():
            total += float(loss(outputs, targets).double().sum())
        count += len(outputs)
        classes = outputs.dim() == 2 and isinstance(targets, Tensor) and not targets.is_floating_point()
        if classes:
            right += int((outputs.argmax(1) == targets).sum())
    if not count:
        return {}
    return {"loss": total / count, **({"accuracy": right / count} if classes else {})}
