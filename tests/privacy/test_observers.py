"""Observers hear of a run in order, from every face, and change nothing."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.tables.small import private_frame, public_frame

from sidelight import Ledger
from sidelight.audit.subjects import ADD_REMOVE, scene
from sidelight.data.rows import UnreadRows
from sidelight.errors import PrivacyConditionError
from sidelight.methods.dp_sgd import dp_sgd
from sidelight.methods.parts import ConstantNoise
from sidelight.methods.ppsgd import ppsgd
from sidelight.methods.task import fit_charged
from sidelight.privacy import events
from sidelight.privacy.noise import Noise
from sidelight.privacy.observer import Observer


class Diary(Observer):
    """Writes down what it hears."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.entries: list[Mapping[str, Any]] = []

    def on_plan(self) -> None:
        self.lines.append("plan")

    def on_start(self, *, method: str, epsilon: float, releases: int) -> None:
        self.lines.append(f"start {method} {epsilon:g} {releases}")

    def on_release(self) -> None:
        self.lines.append("release")

    def on_step(self, step: int, entry: Mapping[str, Any]) -> None:
        self.lines.append(f"step {step}")
        self.entries.append(dict(entry))

    def on_finish(self, statement: Any) -> None:
        self.lines.append(f"finish {statement.method}")


def fit(recipe: Any, *observers: Observer) -> Any:
    task = scene().task(ADD_REMOVE)
    unread = replace(task, rows=UnreadRows(task.n, task.p, max_norm=1.0))
    return fit_charged(
        recipe, unread, read=lambda: task.rows, payer=None, noise=Noise(0), observers=observers
    )


def test_a_run_is_told_in_order() -> None:
    diary = Diary()
    fit(dp_sgd(steps=2), diary)
    assert diary.lines == [
        "plan", "start dp_sgd 3 2", "release", "step 1", "release", "step 2", "finish dp_sgd"
    ]  # fmt: skip


def test_an_observer_changes_nothing() -> None:
    alone, _ = fit(dp_sgd(steps=3))
    diary = Diary()
    seen, _ = fit(dp_sgd(steps=3), diary)
    np.testing.assert_array_equal(alone.coef, seen.coef)
    assert diary.entries == seen.history


def test_a_run_whose_steps_are_chosen_has_no_number() -> None:
    diary = Diary()
    fit(ppsgd(planned_steps=4, expected_batch_size=20), diary)
    assert diary.lines[1] == "start ppsgd 3 0"


def test_nothing_is_told_of_a_plan_above_its_budget() -> None:
    class TooLittle(ConstantNoise):
        def plan(self, setting: Any) -> Any:
            return events.repeat(events.gaussian(0.1), setting.steps), False, {}

    diary = Diary()
    with pytest.raises(PrivacyConditionError):
        fit(dp_sgd(steps=2).with_parts(noise=TooLittle()), diary)
    assert diary.lines == []


def test_a_ledger_and_the_statement_say_where_bounds_came_from() -> None:
    """Known before the charge, and not written over a statement afterwards."""
    from sidelight.tables import fit_tables

    ledger = Ledger.in_memory()
    ledger.register("people", relation="add-or-remove-one", epsilon=10, delta=1e-5)
    diary = Diary()
    model = fit_tables(
        private_frame(), public_frame(), target="sick", epsilon=1.0, method="dp_sgd", ledger=ledger,
        observers=[diary],
    )  # fmt: skip
    told = model.estimator.privacy_.details["bounds_from"]
    (charge,) = ledger.charges("people")
    assert charge.details["bounds_from"] == told != "declared"
    assert diary.lines[0] == "plan" and "step 1" in diary.lines and diary.lines[-1] == "finish dp_sgd"
