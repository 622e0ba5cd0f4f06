"""Datasets, and runs under their plans, wherever the ledger is kept.

What a budget admits is in test_ledger_budget.py, what happens to files in test_ledger_file.py.
"""

import copy
import json
import math
import os
import pickle
from pathlib import Path

import numpy as np
import pytest

from sidelight.errors import (
    BudgetExceeded,
    InputError,
    LedgerDamaged,
    LedgerError,
    PrivacyWarning,
    RelationError,
)
from sidelight.privacy import events
from sidelight.privacy.events import Event
from sidelight.privacy.ledger import Ledger
from sidelight.privacy.release import Run

ADD = "add-or-remove-one"
EPSILON, DELTA = 3.0, 1e-6
STEP = events.poisson(0.01, 1.0)
SMALL = events.gaussian(20.0)  # epsilon 0.19


@pytest.fixture(params=["memory", "file"])
def ledger(request: pytest.FixtureRequest, tmp_path: Path) -> Ledger:
    made = Ledger.in_memory() if request.param == "memory" else Ledger.create(tmp_path / "a.ledger")
    made.register("patients", relation=ADD, epsilon=EPSILON, delta=DELTA)
    return made


def begin(ledger: Ledger, plan: Event, *, covered_by_filter: bool = False, dataset: str = "patients") -> Run:
    return ledger.begin(dataset, plan, relation=ADD, method="test", covered_by_filter=covered_by_filter)


def in_force(ledger: Ledger) -> list[Event]:
    return [charge.event for charge in ledger.charges("patients")]


# ---------------------------------------------------------------------------------------------------
# datasets


def test_same_declaration_again_changes_nothing(ledger: Ledger) -> None:
    head = ledger.verify()
    ledger.register("patients", relation=ADD, epsilon=EPSILON, delta=DELTA)
    assert ledger.verify() == head and list(ledger.datasets()) == ["patients"]


@pytest.mark.parametrize(
    "change",
    [
        {"epsilon": 4.0},
        {"delta": 1e-5},
        {"relation": "replace-one"},
        {"fingerprint": True},
        {"any_size": True},
    ],
)
def test_a_declaration_cannot_be_changed(ledger: Ledger, change: dict[str, object]) -> None:
    declared = {"relation": ADD, "epsilon": EPSILON, "delta": DELTA, **change}
    with pytest.raises(LedgerError, match="cannot be changed"):
        ledger.register("patients", **declared)  # type: ignore[arg-type]
    assert ledger.datasets()["patients"].budget.epsilon == EPSILON


@pytest.mark.parametrize(
    "wrong", [{"epsilon": 0.0}, {"epsilon": math.inf}, {"epsilon": math.nan}, {"delta": 0.0}, {"delta": 1.0}]
)
def test_a_budget_is_a_budget(ledger: Ledger, wrong: dict[str, float]) -> None:
    with pytest.raises(InputError, match="lifetime"):
        ledger.register("new", relation=ADD, **{"epsilon": 1.0, "delta": 1e-6, **wrong})
    with pytest.raises(RelationError):
        ledger.register("new", relation="user", epsilon=1.0, delta=1e-6)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="name"):
        ledger.register("", relation=ADD, epsilon=1.0, delta=1e-6)


def test_a_run_belongs_to_its_dataset_and_its_relation(ledger: Ledger) -> None:
    ledger.register("others", relation=ADD, epsilon=1.0, delta=1e-6)
    with pytest.raises(LedgerError, match=r"'nobody'.*'patients'"):
        begin(ledger, SMALL, dataset="nobody")
    with pytest.raises(RelationError, match="added up"):
        ledger.begin("patients", SMALL, relation="replace-one", method="test")
    assert not ledger.charges("patients") and not ledger.charges("others")


# ---------------------------------------------------------------------------------------------------
# a run and its plan


def test_the_whole_plan_is_in_the_ledger_before_the_run_exists(ledger: Ledger) -> None:
    plan = events.repeat(STEP, 100)
    details = {"steps": 100}
    run = ledger.begin("patients", plan, relation=ADD, method="dp_sgd", note="first", details=details)
    [charge] = ledger.charges("patients")
    assert charge.number == run.number and charge.plan == charge.event == plan
    assert (charge.method, charge.note, charge.details, charge.rule) == ("dp_sgd", "first", details, "filter")


def test_a_run_releases_its_plan_and_nothing_else(ledger: Ledger) -> None:
    run = begin(ledger, events.compose(events.repeat(STEP, 3), SMALL, events.repeat(SMALL, 2)))
    run.charge(events.repeat(STEP, 2))
    run.charge(events.compose(SMALL, STEP, SMALL))
    run.charge(SMALL)
    for extra in (STEP, SMALL, events.gaussian(1.0), events.gaussian(20.5)):
        with pytest.raises(BudgetExceeded, match="released"):
            run.charge(extra)
    assert events.elementary(run.released) == events.elementary(run.plan)


def test_a_filter_certificate_covers_whatever_its_filter_let_through(ledger: Ledger) -> None:
    run = begin(ledger, events.RenyiBound(12, 0.3), covered_by_filter=True)
    run.charge(STEP)
    run.charge(events.gaussian(9.0))
    run.finish()
    assert in_force(ledger) == [events.RenyiBound(12, 0.3)]


@pytest.mark.parametrize("covered", [False, True])
def test_a_run_that_released_nothing_costs_nothing(ledger: Ledger, covered: bool) -> None:
    with begin(ledger, SMALL, covered_by_filter=covered):
        pass
    assert in_force(ledger) == [events.NoOp()] and ledger.remaining("patients") == EPSILON
    assert ledger.charges("patients")[0].plan == SMALL


def test_a_plan_cut_short_costs_what_was_released(ledger: Ledger) -> None:
    with begin(ledger, events.repeat(STEP, 100)) as run:
        for _ in range(7):
            run.charge(STEP)
    assert in_force(ledger) == [events.repeat(STEP, 7)]
    run.finish()
    with pytest.raises(LedgerError, match="finished"):
        run.charge(STEP)


def test_the_ledger_itself_lowers_only_what_is_certain(ledger: Ledger) -> None:
    plan = events.repeat(STEP, 10)
    fixed, certified = begin(ledger, plan), begin(ledger, plan, covered_by_filter=True)
    for number, event in (
        (fixed.number, events.repeat(STEP, 11)),
        (fixed.number, SMALL),
        (certified.number, STEP),
    ):
        with pytest.raises(InputError, match="lowered"):
            ledger._settle(number, event)
    ledger._settle(fixed.number, events.repeat(STEP, 9))
    with pytest.raises(InputError, match="lowered"):
        ledger._settle(fixed.number, STEP)  # once
    assert in_force(ledger) == [events.repeat(STEP, 9), plan]


def test_a_run_that_fails_or_never_ends_keeps_its_full_charge(ledger: Ledger) -> None:
    plan = events.repeat(STEP, 50)
    with pytest.raises(ZeroDivisionError), begin(ledger, plan) as run:
        run.charge(STEP)
        raise ZeroDivisionError
    begin(ledger, plan).charge(STEP)
    with begin(ledger, plan) as whole:
        whole.charge(plan)
    assert in_force(ledger) == [plan, plan, plan]


def test_a_charge_that_cannot_be_lowered_is_said_not_lost(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = begin(ledger, events.repeat(STEP, 5))
    run.charge(STEP)
    ledger.close()
    with pytest.warns(PrivacyWarning, match="full plan"):
        run.finish()


def test_runs_and_ledgers_are_not_duplicated(ledger: Ledger) -> None:
    run = begin(ledger, events.repeat(SMALL, 2))
    for duplicate in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match="twice"):
            duplicate(run)
    assert copy.copy(ledger) is ledger and copy.deepcopy({"ledger": ledger})["ledger"] is ledger
    if "memory" in repr(ledger):
        with pytest.raises(TypeError, match="process"):
            pickle.dumps(ledger)
    else:
        assert len(pickle.loads(pickle.dumps(ledger)).charges("patients")) == 1


def test_a_run_stays_in_its_process(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    run = begin(ledger, SMALL)
    monkeypatch.setattr(os, "getpid", lambda: -1)
    with pytest.raises(LedgerError, match="process"):
        run.charge(SMALL)
    if "memory" in repr(ledger):
        with pytest.raises(LedgerError, match="process"):
            begin(ledger, SMALL)


def test_what_cannot_be_written_as_json_is_refused(ledger: Ledger) -> None:
    for details in ({"array": np.zeros(2)}, {"loss": math.nan}, {"text": "\ud800"}):
        with pytest.raises(InputError, match="JSON"):
            ledger.begin("patients", SMALL, relation=ADD, method="test", details=details)
    assert not ledger.charges("patients")


# ---------------------------------------------------------------------------------------------------
# exports


def test_an_export_is_json(ledger: Ledger) -> None:
    begin(ledger, events.RenyiBound(12, 0.2), covered_by_filter=True)
    begin(ledger, events.TruncatedConcentrated(0.001, math.inf))
    text = json.dumps(ledger.export(), allow_nan=False)
    assert json.loads(text) == ledger.export("patients")
    dataset = ledger.export("patients")["datasets"]["patients"]
    assert [events.from_json(run["in_force"]) for run in dataset["runs"]] == in_force(ledger)


def test_a_head_kept_elsewhere_shows_a_ledger_that_was_replaced(ledger: Ledger) -> None:
    begin(ledger, SMALL)
    head = ledger.verify()
    begin(ledger, SMALL)
    assert ledger.verify(head) != head
    with pytest.raises(LedgerDamaged, match="replaced"):
        Ledger.in_memory().verify(head)
