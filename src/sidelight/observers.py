"""Observers pass on what a run says while it trains: to TensorBoard, Weights & Biases, MLflow, a function.

    model.fit(X, y, X_public, y_public, observers=[TensorBoard("runs/first")])
    Trainer(model, loss, epsilon=2, observers=[Callback(lambda step, line: print(step, line))])

What an observer is notified of is public or was released: stages, the plan's cost, a line of `history_` per
step, the statement at the end. A loss on private records is not among it and never will be. An observer that
raises ends the fit; what was charged stays charged.

The libraries are the user's own. None of them is imported before an observer of its kind is made.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Protocol

from sidelight.errors import InputError
from sidelight.privacy.contract import Observer

if TYPE_CHECKING:
    from sidelight.privacy.contract import PrivacyStatement

__all__ = ["Callback", "MLflow", "Observer", "TensorBoard", "WeightsAndBiases"]


class Callback(Observer):
    """A function of one's own: called with the number of the step and its line of the history."""

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
        self._writer.add_text("sidelight/guarantee", in_a_line(statement))
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

    Not `wandb.watch(model)`: it looks at private gradients, and a model that it watches is refused.
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


def in_a_line(statement: PrivacyStatement) -> str:
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
