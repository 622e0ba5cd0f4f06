"""Every method for persons with several rows: whole persons are neighbors, or the method refuses by name."""

import functools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.contracts import replay
from tests.contracts.cases import CASES, Case
from tests.methods.convex_tools import rows_of, task_of

from sidelight.audit.subjects import ADD_REMOVE
from sidelight.data.persons import PersonRows, Persons
from sidelight.errors import InputError
from sidelight.methods.task import Task, takes_persons
from sidelight.oracles.linear.person_oracle import PersonOracle

pytestmark = pytest.mark.usefixtures("same_noise")

PERSONS, EACH = 55, 4
CODES = np.repeat(np.arange(PERSONS), EACH).astype(np.intp)
TAKEN = [case for case in CASES if takes_persons(case.make())]
REFUSED = [case for case in CASES if not takes_persons(case.make()) and case.make().private]
MOVING = [case for case in TAKEN if case.name not in ("only_public", "majority")]


def task(case: Case, X: Any, y: Any, codes: Any = CODES, count: int = PERSONS) -> Task:
    base = task_of(case.loss, relation=case.relation, n_public=20)
    loss = base.loss
    rows = PersonRows(X, y, persons=Persons(codes, count), max_norm=1.0, admits=loss.admits)
    return replace(base, rows=rows, epsilon=3.0, delta=1e-4)


def kind_of(case: Case) -> str:
    return str(task_of(case.loss).loss.task)


@functools.cache
def pair(case: Case) -> tuple[replay.Tape, list[replay.Tape]]:
    """A run, and its replays with the rows of one person changed, gone (null rows) or bad."""
    method = case.make()
    X, y = rows_of(PERSONS * EACH, 4, 0, kind=kind_of(case))
    person = slice(12, 16)
    tape = replay.record(method, task(case, X, y), seed=case.seed)
    others = []
    for change in ("far", "mixed") if case.relation != ADD_REMOVE else ("gone", "bad"):
        Z, t = X.copy(), y.copy()
        if change == "far":
            Z[person], t[person] = -100 * Z[person], t[::-1][person]
        elif change == "mixed":
            Z[12], Z[13] = np.nan, -Z[13]
        else:
            Z[person] = np.nan if change == "gone" else np.inf
        others.append(replay.record(method, task(case, Z, t), like=tape, seed=case.seed))
    return tape, others


@pytest.mark.parametrize("case", MOVING, ids=str)
def test_a_whole_person_moves_no_sum_by_more_than_its_sensitivity(case: Case) -> None:
    replay.assert_neighbors(*pair(case), at_least=0.02)


@pytest.mark.parametrize("case", TAKEN, ids=str)
def test_what_is_charged_is_what_was_released(case: Case) -> None:
    X, y = rows_of(PERSONS * EACH, 4, 0, kind=kind_of(case))
    persons = task(case, X, y)
    replay.assert_plan_covers(replay.record(case.make(), persons, seed=case.seed), persons)


@pytest.mark.parametrize("case", REFUSED, ids=str)
def test_other_methods_refuse_in_their_plan(case: Case) -> None:
    X, y = rows_of(PERSONS * EACH, 4, 0, kind=kind_of(case))
    with pytest.raises(InputError, match="per person"):
        case.make().plan(task(case, X, y))


def test_contract_catches_rows_that_are_clipped_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Record-level clipping that claims the person level: four rows move a sum by four times the bound."""
    case = next(case for case in MOVING if case.name == "dp_sgd" and case.relation == ADD_REMOVE)
    honest = PersonOracle.clipped_sum

    def row_by_row(self: Any, params: Any, indices: Any = None, **options: Any) -> Any:
        offsets, usable = self._offsets, self._usable
        self._offsets = np.arange(len(self._order) + 1)
        self._usable = np.ones(len(self._order), dtype=int)
        self.size, persons = len(self._order), self.size
        try:
            return honest(self, params, None, **options)
        finally:
            self._offsets, self._usable, self.size = offsets, usable, persons

    monkeypatch.setattr(PersonOracle, "clipped_sum", row_by_row)
    X, y = rows_of(PERSONS * EACH, 4, 0, kind="binary")
    gone = X.copy()
    gone[12:16] = np.nan
    method = case.make()
    tape = replay.record(method, task(case, X, y), seed=case.seed)
    other = replay.record(method, task(case, gone, y), like=tape, seed=case.seed)
    with pytest.raises(AssertionError, match="sensitivity"):
        replay.assert_within_sensitivity(tape, other)
