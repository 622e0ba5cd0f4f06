"""Whoever observes a fit is told nothing that a record could change, but for what was released."""

import dataclasses
from typing import Any

import numpy as np
import pytest
from tests.contracts import replay
from tests.contracts.cases import CASES, RECIPES, Case
from tests.contracts.neighbors import value_of
from tests.contracts.replay import Everything

from sidelight import PrivateClassifier
from sidelight.audit.replay import same
from sidelight.audit.subjects import neighboring, scene
from sidelight.errors import InputError
from sidelight.methods.dp_sgd import dp_sgd
from sidelight.methods.recipe import Loop
from sidelight.observers import Callback, MLflow, TensorBoard, WeightsAndBiases
from sidelight.privacy.observer import Observer
from sidelight.problems.base import LinearProblem
from sidelight.tables import fit_tables


def heard(
    case: Case, data: Any, observer: Everything, like: replay.Tape | None = None
) -> tuple[list[object], replay.Tape]:
    """What the observer hears of a run; with `like`, of one that is given that run's plan and outputs."""
    task, before = dataclasses.replace(data.task(case.relation), observers=(observer,)), len(observer.heard)
    tape = replay.record(case.make(), task, like=like, seed=case.seed)
    return observer.heard[before:], tape


def assert_no_record_is_heard(case: Case) -> int:
    first, others = neighboring(scene(case.loss), case.relation)
    observer = Everything()
    expected, tape = heard(case, first, observer)
    for other in others:
        found, _ = heard(case, other, observer, like=tape)
        assert same(expected, found), "an observer was told something that depends on a record"
    return len(expected)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_observers_hear_nothing_that_a_record_changes(case: Case) -> None:
    assert_no_record_is_heard(case)


def test_observers_of_a_recipe_hear_every_step() -> None:
    assert all(assert_no_record_is_heard(case) > 0 for case in RECIPES[:2])


def test_contract_catches_a_private_value_in_what_is_observed(monkeypatch: pytest.MonkeyPatch) -> None:
    honest, record, lengths = LinearProblem.clipped_sum, Loop._record, []

    def measured(self: LinearProblem, *given: Any, **options: Any) -> Any:
        total = honest(self, *given, **options)
        lengths.append(float(np.linalg.norm(value_of(total))))
        return total

    def noted(self: Loop, *given: Any) -> None:
        record(self, *given)
        self.history[-1]["length"] = lengths[-1]

    monkeypatch.setattr(LinearProblem, "clipped_sum", measured)
    monkeypatch.setattr(Loop, "_record", noted)
    with pytest.raises(AssertionError, match="depends"):
        assert_no_record_is_heard(RECIPES[0])


# ---------------------------------------------------------------------------------------------------
# what tools are given


class FakeWriter:
    def __init__(self) -> None:
        self.scalars: list[tuple[str, float, int]] = []
        self.texts: list[str] = []
        self.flushed = False

    def add_scalar(self, tag: str, value: float, step: int) -> None:
        self.scalars.append((tag, value, step))

    def add_text(self, tag: str, text: str) -> None:
        self.texts.append(text)

    def flush(self) -> None:
        self.flushed = True


class FakeRun:
    def __init__(self) -> None:
        self.lines: list[tuple[int, dict[str, float]]] = []
        self.summary: dict[str, Any] = {}

    def log(self, data: dict[str, float], step: int) -> None:
        self.lines.append((step, data))


class FakeTracking:
    def __init__(self) -> None:
        self.metrics: list[tuple[int, dict[str, float]]] = []
        self.params: dict[str, Any] = {}

    def log_metrics(self, metrics: dict[str, float], step: int) -> None:
        self.metrics.append((step, metrics))

    def log_params(self, params: dict[str, Any]) -> None:
        self.params.update(params)


def data() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(400, 3))
    return X, X[:, 0] > 0


def test_tools_are_given_the_numbers_of_every_step_and_the_guarantee() -> None:
    X, y = data()
    writer, run, tracking, lines = FakeWriter(), FakeRun(), FakeTracking(), []
    observers = [
        TensorBoard(writer), WeightsAndBiases(run), MLflow(tracking),
        Callback(lambda step, line: lines.append((step, line))),
    ]  # fmt: skip
    model = PrivateClassifier(dp_sgd(steps=5), epsilon=1.0, delta=1e-5)
    model.fit(X[50:], y[50:], X[:50], y[:50], observers=observers)
    assert [step for step, _ in lines] == [1, 2, 3, 4, 5]
    assert [line for _, line in lines] == model.history_
    assert [step for step, _ in run.lines] == [step for step, _ in tracking.metrics] == [1, 2, 3, 4, 5]
    stds = [line["noise_std"] for line in model.history_]
    assert [line["sidelight/noise_std"] for _, line in run.lines] == stds
    assert [line["noise_std"] for _, line in tracking.metrics] == stds
    assert [value for tag, value, _ in writer.scalars if tag == "sidelight/noise_std"] == stds
    assert run.summary["epsilon"] == tracking.params["sidelight_epsilon"] == model.privacy_.epsilon
    assert writer.flushed and "add-or-remove-one, record, dp_sgd" in writer.texts[0]


def test_an_observer_cannot_change_the_history() -> None:
    class Forger(Observer):
        def on_step(self, step: int, entry: Any) -> None:
            entry["noise_std"] = 0.0

    X, y = data()
    model = PrivateClassifier(dp_sgd(steps=3), epsilon=1.0, delta=1e-5)
    model.fit(X[50:], y[50:], X[:50], y[:50], observers=[Forger()])
    assert all(line["noise_std"] > 0 for line in model.history_)


def test_tables_are_observed_too() -> None:
    import pandas as pd

    X, y = data()
    frame = pd.DataFrame(X, columns=["a", "b", "c"]).assign(label=np.where(y, "yes", "no"))
    observer = Everything()
    fit_tables(
        frame[50:], frame[:50], target="label", method=dp_sgd(steps=5), epsilon=1.0, observers=[observer]
    )
    assert sum(isinstance(line, tuple) and line[0] == 5 for line in observer.heard) == 1


@pytest.mark.parametrize("wrong", [print, [print], "tensorboard", [None]], ids=repr)
def test_what_is_no_observer_is_refused_before_anything_else(wrong: Any) -> None:
    X, y = data()
    with pytest.raises(InputError, match=r"sidelight.observers.Callback\(function\)"):
        PrivateClassifier(epsilon=1.0).fit(X[50:], y[50:], X[:50], y[:50], observers=wrong)


def test_a_run_that_is_none_is_refused() -> None:
    with pytest.raises(InputError, match=r"wandb.init\(\)"):
        WeightsAndBiases(object())  # type: ignore[arg-type]
    with pytest.raises(InputError, match="function"):
        Callback("print")  # type: ignore[arg-type]
