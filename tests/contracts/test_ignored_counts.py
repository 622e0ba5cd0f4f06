"""The count of ignored records and of misfits keeps its bound, for records and persons; faults show."""

import functools
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.contracts import replay
from tests.contracts.cases import LoudCheck
from tests.contracts.neighbors import value_of
from tests.methods.convex_tools import rows_of, task_of

from sidelight.audit.replay import replay_neighbors
from sidelight.audit.subjects import ADD_REMOVE, REPLACE, neighboring, scene
from sidelight.data import persons as data_persons
from sidelight.data import rows as data_rows
from sidelight.data.persons import PersonRows, Persons
from sidelight.data.rows import PrivateRows
from sidelight.methods import health_check
from sidelight.methods.dp_sgd import dp_sgd
from sidelight.methods.health_check import WithHealthCheck
from sidelight.methods.task import Task
from sidelight.oracles.linear.row_sums import count_ignored
from sidelight.privacy.events import Relation
from sidelight.privacy.noise import Noise

pytestmark = pytest.mark.usefixtures("same_noise")

N, K, EACH = 60, 9, 4
METHOD = WithHealthCheck(dp_sgd(steps=2, clip_norm=0.3), LoudCheck(tuple("abcdefghi")))


def a_task(flags: Any, relation: Relation, *, X: Any = None, persons: bool = False) -> Task:
    base = task_of("logistic", relation=relation, n_public=20)
    own, y = rows_of(len(flags), 4, 0, kind="binary")
    own = own if X is None else X
    if persons:
        codes = Persons(np.repeat(np.arange(N), EACH).astype(np.intp), N)
        rows: PrivateRows = PersonRows(own, y, persons=codes, max_norm=1.0, misfits=flags)
    else:
        rows = PrivateRows(own, y, max_norm=1.0, misfits=flags)
    return replace(base, rows=rows, epsilon=3.0, delta=1e-4)


@functools.cache
def some_flags(rows: int) -> Any:
    return np.random.default_rng(1).random((rows, K)) < 0.3


def changed(relation: Relation, *, persons: bool) -> list[tuple[Task, Task]]:
    """Pairs of neighbors: the units' rows gone or broken, and each extreme of what they may flag."""
    size = EACH if persons else 1
    unit, pairs = slice(3 * size, 4 * size), []
    for before, after in ((False, True), (True, False), (True, True), (False, False)):
        flags = some_flags(N * size).copy()
        flags[unit] = before
        X = rows_of(len(flags), 4, 0, kind="binary")[0]
        other, broken = flags.copy(), X.copy()
        other[unit], broken[unit] = after, np.nan
        first = a_task(flags, relation, X=X, persons=persons)
        pairs += [(first, a_task(other, relation, X=broken, persons=persons))]
        if relation == ADD_REMOVE:  # a record that is gone flags nothing
            other[unit] = False
            pairs += [(first, a_task(other, relation, X=broken, persons=persons))]
    return pairs if relation == REPLACE else pairs[1::2]


def check_pairs(relation: Relation, *, persons: bool) -> float:
    moved = 0.0
    for first, second in changed(relation, persons=persons):
        tape = replay.record(METHOD, first)
        other = replay.record(METHOD, second, like=tape)
        moved = max(moved, replay.assert_within_sensitivity(tape, other))
        replay.assert_same_outside(tape, other)
        replay.assert_plan_covers(tape, first)
    return moved


@pytest.mark.parametrize("persons", [False, True])
@pytest.mark.parametrize("relation", [ADD_REMOVE, REPLACE])
def test_one_record_or_person_moves_the_count_by_at_most_its_sensitivity(
    relation: Relation, persons: bool
) -> None:
    assert check_pairs(relation, persons=persons) > 0.5


def test_the_audit_finds_nothing() -> None:
    method = WithHealthCheck(dp_sgd(steps=2, clip_norm=0.3), LoudCheck())
    result = replay_neighbors(method, seeds=1, release_runs=50)
    assert not result.findings


@pytest.mark.parametrize("count", [0, 1, 4, 5, 9])
def test_a_record_adds_a_vector_of_length_one_at_most(count: int) -> None:
    flags = np.zeros((N, K), dtype=bool)
    X, y = rows_of(N, 4, 0, kind="binary")
    without = value_of(count_ignored(PrivateRows(X, y, max_norm=1.0, misfits=flags), relation=ADD_REMOVE))
    flags[7, :count], X[7] = True, np.nan
    total = count_ignored(PrivateRows(X, y, max_norm=1.0, misfits=flags), relation=ADD_REMOVE)
    added = value_of(total) - without
    assert (added >= 0).all() and np.linalg.norm(added) <= 1 and added[0] == 0.625
    assert added[1:].sum() == pytest.approx(0.375 * count * min(1, 2 / math.sqrt(max(count, 1))), rel=1e-5)


def test_sums_are_exact_in_any_order_and_in_any_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    flags = np.random.default_rng(2).random((3_000, K)) < 0.7
    null = np.random.default_rng(3).random(3_000) < 0.4
    whole = data_rows.tally(null, flags)
    order = np.random.default_rng(4).permutation(3_000)
    np.testing.assert_array_equal(data_rows.tally(null[order], flags[order]), whole)
    parts = [data_rows.tally(null[part], flags[part]) for part in np.array_split(np.arange(3_000), 7)]
    np.testing.assert_array_equal(np.sum(parts, axis=0), whole)
    monkeypatch.setattr(data_rows, "BLOCK", 64)
    np.testing.assert_array_equal(data_rows.tally(null, flags), whole)


# ---------------------------------------------------------------------------------------------------
# seen red


def test_contract_catches_a_count_that_is_not_bounded_for_a_person(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every row of a person counts: four rows move the count by four."""
    honest = data_rows.tally
    monkeypatch.setattr(data_persons, "tally", lambda null, misfits=None, groups=None: honest(null, misfits))
    with pytest.raises(AssertionError, match="sensitivity"):
        check_pairs(ADD_REMOVE, persons=True)


def test_contract_catches_misfits_that_all_count_in_full(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nine misfits of one record, each counted as one: the vector is longer than was declared."""
    monkeypatch.setattr(data_rows, "_marks", lambda null, flags: np.column_stack([null, flags]).astype(float))
    with pytest.raises(AssertionError, match="sensitivity"):
        check_pairs(ADD_REMOVE, persons=False)


def test_contract_catches_a_check_that_is_not_charged(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = health_check.release

    class Nobody:
        def charge(self, event: object) -> None: ...

    monkeypatch.setattr(
        health_check, "release", lambda total, **how: honest(total, **{**how, "account": Nobody()})
    )
    first, _ = changed(ADD_REMOVE, persons=False)[0]
    with pytest.raises(AssertionError, match="released"):
        replay.assert_plan_covers(replay.record(METHOD, first), first)


def test_contract_catches_a_check_that_is_not_planned(monkeypatch: pytest.MonkeyPatch) -> None:
    """The plan has the method's event alone: the account refuses the count."""
    from sidelight.errors import BudgetExceeded
    from sidelight.methods.side_release import PlanWithSideRelease

    monkeypatch.setattr(PlanWithSideRelease, "plan", property(lambda self: self.inner))
    first, _ = changed(ADD_REMOVE, persons=False)[0]
    with pytest.raises(BudgetExceeded):
        replay.record(METHOD, first)


def test_contract_catches_a_count_without_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Noise, "normal_like", lambda self, value, *, std: np.zeros_like(value))
    method = WithHealthCheck(dp_sgd(steps=2, clip_norm=0.3), LoudCheck())
    result = replay_neighbors(method, seeds=1, release_runs=50)
    assert any("noise" in finding.promise for finding in result.findings)


def assert_noise_is_fresh() -> None:
    """Two runs on the same records, and the check and the first step of one: no two share their noise."""
    first, _ = changed(ADD_REMOVE, persons=False)[0]
    drawn = []
    for seed in (1, 2):
        for call in replay.record(METHOD, first, seed=seed).calls[:2]:
            noise = np.asarray(call.output) - np.asarray(call.value)
            drawn.append(float(noise[0] / call.options["std"]))
    assert len(set(np.round(drawn, 9))) == 4, "noise was used twice"


def test_noise_is_drawn_for_this_count_alone() -> None:
    assert_noise_is_fresh()


def test_contract_catches_noise_that_is_used_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A source of the check's own, begun anew for every fit."""
    honest = WithHealthCheck.run

    def repeating(self: Any, task: Task, plan: Any, **how: Any) -> Any:
        return honest(self, task, plan, **{**how, "noise": Noise(5)})

    monkeypatch.setattr(WithHealthCheck, "run", repeating)
    with pytest.raises(AssertionError, match="used twice"):
        assert_noise_is_fresh()


def test_contract_catches_a_result_beside_the_door(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is reported is the true count."""
    honest = health_check.release
    kept: list[Any] = []

    def leaking(total: Any, **how: Any) -> Any:
        kept.append(value_of(total).copy())
        return honest(total, **how)

    honest_read = health_check.HealthCheck.read

    def read(self: Any, noisy: Any, **how: Any) -> Any:
        return honest_read(self, kept[-1], **{**how, "std": 1e-9})

    monkeypatch.setattr(health_check, "release", leaking)
    monkeypatch.setattr(health_check.HealthCheck, "read", read)
    first, others = neighboring(scene(), ADD_REMOVE)
    method = WithHealthCheck(dp_sgd(steps=2, clip_norm=0.3), LoudCheck())
    tape = replay.record(method, first.task(ADD_REMOVE))
    with pytest.raises(AssertionError):
        for other in others:
            replay.assert_same_outside(tape, replay.record(method, other.task(ADD_REMOVE), like=tape))
