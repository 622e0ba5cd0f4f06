"""Every method under every relation that it offers makes the same promises."""

import dataclasses
import functools
import json
from typing import Any

import numpy as np
import pytest
from tests.contracts import replay
from tests.contracts.cases import CASES, NOT_PRIVATE, RECIPES, SAMPLED, Case, loss_of

from sidelight.audit.subjects import ADD_REMOVE, broken, neighboring, null, scene
from sidelight.data.rows import UnreadRows
from sidelight.errors import PrivacyConditionError
from sidelight.methods.declare import METHODS
from sidelight.privacy.events import Poisson
from sidelight.privacy.noise import Noise
from sidelight.privacy.statement import plain

# Two runs are compared number by number: they must draw the same noise.
pytestmark = pytest.mark.usefixtures("same_noise")

SUMLESS = (
    "objective_perturbation",
    "amp",
    "pnsgd",
    "only_public",
    "majority",
)  # no private sum passes a door
every = pytest.mark.parametrize("case", CASES, ids=str)


@functools.cache
def pair(case: Case) -> tuple[replay.Tape, list[replay.Tape]]:
    """The run on a scene, and its replays on the neighbors."""
    method = case.make()
    first, others = neighboring(scene(case.loss), case.relation)
    tape = replay.record(method, first.task(case.relation), seed=case.seed)
    tasks = [other.task(case.relation) for other in others]
    return tape, [replay.record(method, task, like=tape, seed=case.seed) for task in tasks]


@every
def test_neighboring_data_moves_the_sum_at_most_by_its_sensitivity(case: Case) -> None:
    tape, others = pair(case)
    moved = max(replay.assert_within_sensitivity(tape, other) for other in others)
    if case.name in SUMLESS:
        assert moved == 0
    else:
        assert moved > 0.05, "no neighbor moved anything: this test would not notice a fault"


@every
def test_history_holds_no_private_number(case: Case) -> None:
    tape, others = pair(case)
    for other in others:
        replay.assert_same_outside(tape, other)


@every
def test_ledger_equals_what_was_released(case: Case) -> None:
    task = scene(case.loss).task(case.relation)
    replay.assert_plan_covers(replay.record(case.make(), task), task)


@every
def test_nan_row_changes_nothing_else(case: Case) -> None:
    method, base = case.make(), scene(case.loss)
    expected = replay.record(method, null(base).task(case.relation))
    assert expected.fitted is not None and np.isfinite(expected.fitted.coef).all()
    for bad in broken(base):
        tape = replay.record(method, bad.task(case.relation))
        assert tape.fitted is not None
        np.testing.assert_array_equal(tape.fitted.coef, expected.fitted.coef)
        assert tape.fitted.history == expected.fitted.history


@every
def test_plan_reads_no_private_row(case: Case) -> None:
    task = scene(case.loss).task(case.relation)
    unread = dataclasses.replace(task, rows=UnreadRows(task.n, task.p, max_norm=task.max_norm))
    plan = case.make().plan(unread)
    assert plan.event == case.make().plan(task).event
    json.dumps(plain(dict(plan.details)))  # the report can show it


@pytest.mark.parametrize("case", SAMPLED, ids=str)
def test_empty_batch_is_finite(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Poisson, "indices", lambda self, n, noise: np.zeros(0, dtype=np.int64))
    tape = replay.record(case.make(), scene().task(case.relation))
    assert tape.fitted is not None and np.isfinite(tape.fitted.coef).all()
    assert len(tape.charged) == len(tape.fitted.history) > 0
    for call in tape.calls:
        assert call.value is not None
        np.testing.assert_array_equal(call.value, 0)
        assert np.all(call.output != 0), "an empty batch still gets noise"


@pytest.mark.parametrize("name", [name for name in METHODS if name not in (*NOT_PRIVATE, "majority")])
def test_learns_separable_data(name: str) -> None:
    method = METHODS[name]()
    easy = dataclasses.replace(scene(loss_of(name), n=1500, n_public=30), epsilon=20.0)
    task = easy.task(method.relations[0])
    fitted = method.run(task, method.plan(task), account=replay.Nothing(), noise=Noise(0))
    assert np.mean(np.sign(easy.X @ fitted.coef[0]) == np.sign(easy.y)) > 0.9


@pytest.mark.parametrize("case", RECIPES, ids=str)
def test_a_sampler_performs_the_event_that_is_charged(case: Case) -> None:
    plan = case.make().plan(scene().task(case.relation))
    sampler, n = plan.state["setting"].sampler, plan.state["setting"].n
    replay.assert_performs_its_event(sampler, n)
    assert sampler.relation == case.relation


def test_a_plan_that_reads_records_is_caught() -> None:
    task = scene().task(ADD_REMOVE)
    unread = dataclasses.replace(task, rows=UnreadRows(task.n, task.p, max_norm=1.0))

    class Curious:
        def plan(self, task: Any) -> Any:
            return task.rows.compute(lambda X, y: X.sum(), sensitivity=1.0, relation=ADD_REMOVE)

    with pytest.raises(PrivacyConditionError, match="charged"):
        Curious().plan(unread)
