"""Every method on records in blocks: the promises that it keeps in memory, or it refuses by name."""

import functools
from dataclasses import replace
from typing import Any
from unittest import mock

import numpy as np
import pytest
from tests.blocks import in_blocks
from tests.contracts import replay
from tests.contracts.cases import CASES, Case
from tests.contracts.neighbors import assert_bounded, largest_move, value_of
from tests.methods.convex_tools import rows_of, task_of

from sidelight.audit.subjects import ADD_REMOVE, REPLACE
from sidelight.clipping import Features
from sidelight.data import partitions
from sidelight.data.partitions import sample_blocks
from sidelight.data.rows import PrivateRows
from sidelight.errors import InputError, PrivacyConditionError
from sidelight.losses import Logistic
from sidelight.methods.parts import Flat
from sidelight.methods.task import Task, takes_partitions
from sidelight.oracles.linear.linear_oracle import LinearOracle
from sidelight.oracles.linear.row_sums import MomentOracle
from sidelight.privacy.events import Poisson
from sidelight.privacy.noise import Noise
from sidelight.problems import base
from sidelight.problems.base import moments_of, oracle_of

pytestmark = pytest.mark.usefixtures("same_noise")

N, SIZE = 220, 50  # five blocks, the last one shorter
TAKEN = [case for case in CASES if takes_partitions(case.make())]
REFUSED = [case for case in CASES if not takes_partitions(case.make()) and case.make().private]
MOVING = [case for case in TAKEN if case.name not in ("only_public", "majority")]
PLACES = {"first": 0, "before a boundary": SIZE - 1, "behind it": SIZE, "last": N - 1}


def task(case: Case, X: Any, y: Any) -> Task:
    plain = task_of(case.loss, relation=case.relation, n_public=20)
    return replace(plain, rows=in_blocks(X, y, SIZE, admits=plain.loss.admits), epsilon=3.0, delta=1e-4)


def kind_of(case: Case) -> str:
    return str(task_of(case.loss).loss.task)


@functools.cache
def pair(case: Case) -> tuple[replay.Tape, list[replay.Tape]]:
    """A run, and its replays with one record changed, or gone, in several places of blocks."""
    X, y = rows_of(N, 4, 0, kind=kind_of(case))
    method, others = case.make(), []
    drawn: list[Any] = []
    spied = lambda *about: drawn.append(sample_blocks(*about)) or drawn[-1]  # noqa: E731
    with mock.patch.object(base, "sample_blocks", spied):
        tape = replay.record(method, task(case, X, y), seed=case.seed)
    in_batch = [int(one.indices(1, SIZE, SIZE)[0]) + SIZE for one in drawn[:1] if one is not None]
    for place in [*PLACES.values(), *in_batch]:
        Z, t = X.copy(), y.copy()
        if case.relation == ADD_REMOVE:
            Z[place] = np.nan
        else:
            Z[place] = -100 * Z[place]
            if place == N - 1:  # of a method that counts labels
                t[place] = next(label for label in y if label != y[place])
        others.append(replay.record(method, task(case, Z, t), like=tape, seed=case.seed))
    return tape, others


@pytest.mark.parametrize("case", MOVING, ids=str)
def test_one_record_moves_no_sum_by_more_than_its_sensitivity(case: Case) -> None:
    replay.assert_neighbors(*pair(case), at_least=0.02)


@pytest.mark.parametrize("case", TAKEN, ids=str)
def test_what_is_charged_is_what_was_released(case: Case) -> None:
    X, y = rows_of(N, 4, 0, kind=kind_of(case))
    blocks = task(case, X, y)
    replay.assert_plan_covers(replay.record(case.make(), blocks, seed=case.seed), blocks)


@pytest.mark.parametrize("case", REFUSED, ids=str)
def test_other_methods_refuse_in_their_plan(case: Case) -> None:
    X, y = rows_of(N, 4, 0, kind=kind_of(case))
    with pytest.raises(InputError, match=f"{case.make().name} reads all records at once"):
        case.make().plan(task(case, X, y))


def test_nobody_gets_at_all_records() -> None:
    X, y = rows_of(N, 4, 0, kind="binary")
    rows = in_blocks(X, y, SIZE)
    for ask in (
        lambda: LinearOracle(rows, Logistic()),
        lambda: rows.compute(lambda X, y: y, sensitivity=1.0, relation=ADD_REMOVE),
        lambda: rows.mapped(np.eye(4), max_norm=1.0),
    ):
        with pytest.raises(PrivacyConditionError, match="blocks"):
            ask()


# ---------------------------------------------------------------------------------------------------
# a record more or less: those behind it move to other places, and some to other blocks


def gradient_sum(records: list[Any], **options: Any) -> Any:
    X, y = np.array([x for x, _ in records]), np.array([label for _, label in records])
    rows = in_blocks(X, y, 4, admits=Logistic().admits)
    return oracle_of(rows, Logistic()).clipped_sum(np.full(3, 0.5), relation=ADD_REMOVE, **options)


def moment_sum(records: list[Any], relation: str = ADD_REMOVE) -> Any:
    X, y = np.array([x for x, _ in records]), np.array([label for _, label in records])
    rows = in_blocks(X, y, 4, admits=Logistic().admits)
    return moments_of(rows, Logistic()).second_moment(np.full(3, 0.5), relation=relation)


def some(count: int) -> list[tuple[Any, float]]:
    X, y = rows_of(count, 3, 0, kind="binary")
    return [(x, float(label)) for x, label in zip(X, y, strict=True)]


BAD = [(np.array([1e300, 0, 0]), 1.0), (np.array([np.nan, 0, 0]), 1.0), (np.array([-9.0, 9, 9]), np.inf)]
BAD += [(np.array([-5.0, 1, 2]), -1.0), (np.array([0.6, 0.0, -0.8]), 1.0), (np.zeros(3), 1.0)]


@pytest.mark.parametrize("relation", [ADD_REMOVE, REPLACE])
@pytest.mark.parametrize("count", [7, 8, 9])  # one fewer than two blocks, two blocks, one more
def test_presence_and_content_of_a_record_move_sums_within_their_sensitivity(
    count: int, relation: Any
) -> None:
    metric = Features(np.diag([2.0, 1.0, 0.3]))
    for options in ({}, {"origin": np.array([0.3, 0.0, -0.2])}, {"metric": metric}):
        moved = assert_bounded(
            lambda records, o=options: gradient_sum(records, clip=Flat(0.3), **o),
            some(count), BAD, relation=relation, sensitivity=0.3 if relation == ADD_REMOVE else 0.6,
        )  # fmt: skip
        assert moved > 0.1
    assert assert_bounded(moment_sum, some(count), BAD, relation=relation, sensitivity=0.25 * 2**0.5) > 0.05


# ---------------------------------------------------------------------------------------------------
# faults that these tests would notice


def doubled(self: Any, question: Any, asked: int) -> Any:
    for rows in self._held:
        share = partitions.answer(question, asked, rows)
        yield share
        yield share


def test_a_share_that_comes_twice_is_added_once(monkeypatch: pytest.MonkeyPatch) -> None:
    once = value_of(gradient_sum(some(9), clip=Flat(0.3)))
    monkeypatch.setattr(partitions.ScratchBlocks, "ask", doubled)
    assert (value_of(gradient_sum(some(9), clip=Flat(0.3))) == once).all()


def test_contract_catches_a_block_that_counts_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    def all_of_them(shares: Any, asked: int, blocks: int) -> Any:
        found = list(shares)
        total = sum(share.value for share in found)
        return partitions.BoundedSum(total, sensitivity=found[0].sensitivity, relation=found[0].relation)

    monkeypatch.setattr(partitions, "add_shares", all_of_them)
    monkeypatch.setattr(partitions.ScratchBlocks, "ask", doubled)
    moved = largest_move(lambda records: gradient_sum(records, clip=Flat(0.3)), some(9), BAD)
    assert moved > 1.5 * 0.3


def test_contract_catches_a_sample_that_is_the_workers_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Asked twice, as after a lost worker: the same sum, unless randomness is drawn where the block is."""

    def asked_twice() -> list[Any]:
        X, y = rows_of(N, 4, 0, kind="binary")
        rows = in_blocks(X, y, SIZE)
        batch = sample_blocks(Poisson(0.3), rows.blocks.sizes, Noise(1))
        oracle = oracle_of(rows, Logistic())
        return [
            value_of(oracle.clipped_sum(np.zeros(4), batch, clip=Flat(0.3), relation=ADD_REMOVE))
            for _ in "ab"
        ]

    first, second = asked_twice()
    assert (first == second).all()
    monkeypatch.setattr(partitions, "keyed_generator", lambda *_: np.random.default_rng())
    first, second = asked_twice()
    assert (first != second).any()


def test_contract_catches_a_mean_of_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shares are scaled by the size of their block: one record changes what others contribute."""
    honest = partitions.answer

    def scaled(question: Any, asked: int, rows: Any) -> Any:
        share = honest(question, asked, rows)
        return share._replace(value=share.value * (8 / rows.n))

    monkeypatch.setattr(partitions, "answer", scaled)
    moved = largest_move(lambda records: gradient_sum(records, clip=Flat(0.3)), some(9), BAD)
    assert moved > 1.5 * 0.3


def test_eigenvalues_are_those_of_the_sum() -> None:
    """Not sums of the blocks' own, which are smaller."""
    X, y = rows_of(40, 3, 0, kind="binary")
    rows = in_blocks(X, y, 8)
    whole = value_of(moments_of(rows, Logistic()).least_eigenvalue(relation=ADD_REMOVE))
    memory = MomentOracle(PrivateRows(X, y, max_norm=1.0), Logistic()).least_eigenvalue(relation=ADD_REMOVE)
    np.testing.assert_allclose(whole, value_of(memory), rtol=1e-12)
