"""Observers pass on what a run says while it trains: to TensorBoard, Weights & Biases, MLflow, a function,
and to a terminal.

    model.fit(X, y, X_public, y_public, observers=[TensorBoard("runs/first")])
    Trainer(model, loss, epsilon=2, observers=[Callback(lambda step, line: print(step, line))])

What an observer is notified of is public or was released: stages, the plan's cost, a line of `history_` per
step, the statement at the end. A loss on private records is not among it and never will be. An observer that
raises before the charge ends the fit. After it, a warning says so, and the fit continues without it.

The libraries are the user's own. None of them is imported before an observer of its kind is made.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Protocol, Self

from sidelight.errors import InputError
from sidelight.privacy import accountants
from sidelight.privacy.events import Event, Relation
from sidelight.privacy.observer import Observer
from sidelight.privacy.statement import PrivacyStatement

if TYPE_CHECKING:
    from pathlib import Path

    from rich.progress import Progress, ProgressColumn, TaskID


class Callback(Observer):
    """A function of your own, called with the number of the step and its line of the history."""

    def __init__(self, function: Callable[[int, Mapping[str, object]], object]) -> None:
        if not callable(function):
            raise InputError(f"Callback takes a function of (step, line), not {function!r}")
        self._function = function

    def on_step(self, step: int, entry: Mapping[str, object]) -> None:
        self._function(step, dict(entry))


class ScalarWriter(Protocol):
    """What is used of TensorBoard's SummaryWriter."""

    def add_scalar(self, tag: str, value: float, step: int) -> object: ...

    def add_text(self, tag: str, text: str) -> object: ...

    def flush(self) -> object: ...


class TensorBoard(Observer):
    """Numbers of every step as scalars, the statement as a text. Takes a folder, or a SummaryWriter."""

    def __init__(self, writer: ScalarWriter | str | os.PathLike[str]) -> None:
        self._writer = _summary_writer(writer) if isinstance(writer, str | os.PathLike) else writer

    def on_step(self, step: int, entry: Mapping[str, object]) -> None:
        for name, value in numbers(entry).items():
            self._writer.add_scalar(f"sidelight/{name}", value, step)

    def on_finish(self, statement: PrivacyStatement) -> None:
        self._writer.add_text("sidelight/guarantee", one_line_summary(statement))
        self._writer.flush()


class LoggingRun(Protocol):
    """What is used of a run of Weights & Biases."""

    def log(self, data: dict[str, float], step: int) -> object: ...

    @property
    def summary(self) -> MutableSummary: ...


class MutableSummary(Protocol):
    def update(self, values: dict[str, float | str]) -> object: ...


class WeightsAndBiases(Observer):
    """Numbers of every step, and the guarantee in the summary. Takes what `wandb.init()` returned.

    Do not use `wandb.watch(model)`: it reads private gradients, and a model with its hooks is refused.
    """

    def __init__(self, run: LoggingRun) -> None:
        if not hasattr(run, "log") or not hasattr(run, "summary"):
            raise InputError("WeightsAndBiases takes the run that wandb.init() returned")
        self._run = run

    def on_step(self, step: int, entry: Mapping[str, object]) -> None:
        self._run.log({f"sidelight/{name}": value for name, value in numbers(entry).items()}, step=step)

    def on_finish(self, statement: PrivacyStatement) -> None:
        self._run.summary.update(guarantee(statement))


class Tracking(Protocol):
    """What is used of the module `mlflow`."""

    def log_metrics(self, metrics: dict[str, float], step: int) -> object: ...

    def log_params(self, params: dict[str, float | str]) -> object: ...


class MLflow(Observer):
    """Numbers of every step as metrics of the active run, and the guarantee as parameters."""

    def __init__(self, tracking: Tracking | None = None) -> None:
        self._tracking = _mlflow() if tracking is None else tracking

    def on_step(self, step: int, entry: Mapping[str, object]) -> None:
        self._tracking.log_metrics(numbers(entry), step=step)

    def on_finish(self, statement: PrivacyStatement) -> None:
        self._tracking.log_params(
            {f"sidelight_{name}": value for name, value in guarantee(statement).items()}
        )


def numbers(entry: Mapping[str, object]) -> dict[str, float]:
    """The finite numbers of a line, without its step."""
    found = {
        name: value for name, value in entry.items() if isinstance(value, int | float) and name != "step"
    }
    return {name: float(value) for name, value in found.items() if math.isfinite(value)}


def guarantee(statement: PrivacyStatement) -> dict[str, float | str]:
    """What a dashboard shows of a statement."""
    return {
        "epsilon": statement.epsilon if math.isfinite(statement.epsilon) else "infinity",
        "delta": statement.delta,
        "relation": statement.relation,
        "unit": statement.unit,
        "method": statement.method,
    }


def one_line_summary(statement: PrivacyStatement) -> str:
    words = guarantee(statement)
    rest = ", ".join(str(words[name]) for name in ("relation", "unit", "method"))
    return f"ε = {words['epsilon']}, δ = {words['delta']}, {rest}"


def _summary_writer(folder: str | os.PathLike[str]) -> ScalarWriter:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise InputError(
            "TensorBoard(folder) writes with torch.utils.tensorboard: pip install torch tensorboard"
        ) from None
    writer: ScalarWriter = SummaryWriter(os.fspath(folder))
    return writer


def _mlflow() -> Tracking:
    try:
        import mlflow
    except ImportError:
        raise InputError("MLflow() logs with mlflow: pip install mlflow") from None
    tracking: Tracking = mlflow
    return tracking


# ---------------------------------------------------------------------------------------------------
# progress on stderr, if that is a terminal; silent in a pipe


_LOOKS = 10  # scores, and the budget spent, are shown so often in a run


def due(step: int, steps: int) -> bool:
    """Whether it is time for scores after this step."""
    return step % max(1, steps // _LOOKS) == 0


class ProgressBar(Observer):
    """A bar that is there while the context is, with one line of text."""

    transient = False  # whether it is wiped out at the end

    def __init__(self, visible: bool | None = None) -> None:
        self.visible = sys.stderr.isatty() if visible is None else visible
        self._bar: Progress | None = None
        self._task: TaskID | None = None

    def __enter__(self) -> Self:
        if self.visible:
            from rich.console import Console
            from rich.progress import Progress

            columns, console = self.columns(), Console(stderr=True)
            self._bar = Progress(*columns, console=console, transient=self.transient)
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def columns(self) -> tuple[ProgressColumn, ...]:
        """What a line shows."""
        raise NotImplementedError

    def show(self, text: str, *, total: int | None) -> None:
        """Begin anew with this text."""
        if self._bar is None:
            return
        if self._task is not None:
            self._bar.remove_task(self._task)
        self._task = self._bar.add_task(text, total=total)


class FitProgress(ProgressBar):
    """Of the command: the stage, the releases, and what was charged. Public things only."""

    transient = True

    def __init__(self, *, ledger: Path | None = None) -> None:
        super().__init__()
        self.may_have_spent = False
        self._where = f" to {ledger}" if ledger else ""
        self._charged = ""
        self._releases: int | None = None

    def columns(self) -> tuple[ProgressColumn, ...]:
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            SpinnerColumn,
            TextColumn,
            TimeElapsedColumn,
        )

        text = TextColumn("{task.description}")
        return SpinnerColumn(), text, BarColumn(24), MofNCompleteColumn(), TimeElapsedColumn()

    def on_stage(self, name: str) -> None:
        self.show(name, total=None)

    def on_plan(self) -> None:
        self.may_have_spent = True

    def on_start(self, *, method: str, epsilon: float, releases: int) -> None:
        self._charged, self._releases = f"{method}: ε = {epsilon:g} charged{self._where}", releases or None
        self.show(self._charged, total=self._releases)

    def on_read(self, done: int, records: int) -> None:
        reading = f"reading: {done:,} of {records:,} records"
        text = f"{self._charged}, {reading if done < records else 'training'}"
        if 0 < done < records and self._bar is not None and self._task is not None:
            self._bar.update(self._task, description=text)
        else:
            self.show(text, total=self._releases)

    def on_release(self) -> None:
        if self._bar is not None and self._task is not None:
            self._bar.advance(self._task)


class TrainingProgress(ProgressBar):
    """Of `Trainer`: the step, the budget spent, and scores on public records."""

    def __enter__(self) -> Self:
        super().__enter__()
        self.show("public records and plan", total=None)
        return self

    def columns(self) -> tuple[ProgressColumn, ...]:
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            TextColumn,
            TimeElapsedColumn,
            TimeRemainingColumn,
        )

        text = TextColumn("{task.description}")
        return text, BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn()

    def begin(
        self,
        *,
        total: int,
        delta: float,
        relation: Relation,
        released: Callable[[], Event],
        share_spent: Callable[[], float | None],
    ) -> None:
        """Private steps begin.

        released, share_spent: what was released so far, and for a filter the share of its budget, whose ε is
        that of its certificate at any step.
        """
        self._released, self._share_spent = released, share_spent
        self._total, self._delta, self._relation = total, delta, relation
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, total=total, description="training")

    def on_step(self, step: int, entry: Mapping[str, object]) -> None:
        """Show the step; now and then the budget spent as well, which takes a moment to compute."""
        if self._bar is None or self._task is None:
            return
        self._bar.update(self._task, completed=step)
        if due(step, self._total):
            share = self._share_spent()
            spent = {"ε": self.epsilon(self._released())} if share is None else {
                "of the budget": share
            }  # fmt: skip
            known = {
                name.removeprefix("validation_"): value for name, value in entry.items() if "valid" in name
            }
            text = "  ".join(f"{name} {value:.3g}" for name, value in {**spent, **known}.items())
            self._bar.update(self._task, description=text)

    def epsilon(self, released: Event) -> float:
        """What these releases cost, if no more follow."""
        return accountants.epsilon(
            released, delta=self._delta, relation=self._relation, accountant="pld-coarse"
        )
