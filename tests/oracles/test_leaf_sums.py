"""Sums of slopes by leaf: bounded as declared for any record, the same for rows in blocks and for persons."""

import math
from typing import Any

import numpy as np
import pytest
from tests.blocks import in_blocks
from tests.contracts.neighbors import assert_bounded, value_of

from sidelight.data.leaves import LeafModel, Splits
from sidelight.data.persons import PersonRows, Persons
from sidelight.data.rows import PrivateRows, contents
from sidelight.losses import Logistic, Loss, Softmax, Square
from sidelight.oracles.linear import leaf_sums
from sidelight.oracles.linear.leaf_sums import LeafOracle

P, K = 3, 3
RNG = np.random.default_rng(5)
SPLITS = Splits(
    columns=np.array([0, 1, 0, 1], dtype=np.int32),
    starts=np.array([0, 1, 2, 4], dtype=np.int32),
    sets=np.array([0, 1, 2, 0], dtype=np.int32),
    thresholds=np.array([0.0, 0.5, 0.2, -0.5]),
    intercept=True,
)
TREES = np.array([[0, 1], [1, 2], [2, 3]], dtype=np.int32)
LOSSES: list[Loss] = [Logistic(), Square(), Softmax(3)]
RELATIONS = ["add-or-remove-one", "replace-one"]
HUGE = [np.full(P, 1e300), np.full(P, -1e300), np.array([np.nan, 1, 1]), np.zeros(P), np.full(P, np.inf)]
ON_THRESHOLDS = [np.array([0.0, 0.5, 1.0]), np.array([0.5, 0.25, 0.5]), np.array([-0.5, 0.1, 1.0])]


def labels(loss: Loss) -> list[float]:
    return {"binary": [1.0, -1.0], "regression": [0.9, -0.9], "multiclass": [0.0, 1.0, 2.0]}[loss.task]


def records(loss: Loss, n: int = 9) -> list[Any]:
    X = np.hstack([RNG.uniform(-1, 1, (n, P - 1)), np.ones((n, 1))])
    return [(row, labels(loss)[k % len(labels(loss))]) for k, row in enumerate(X)]


def candidates(loss: Loss) -> list[Any]:
    strange = [*labels(loss), np.nan, 1e300, -1e300, 17.0]
    corners = [np.array([a, b, 0.5]) for a in (-1, 1) for b in (-1, 1)]
    return [(row, label) for row in (*HUGE, *ON_THRESHOLDS, *corners) for label in strange]


def coef_of(loss: Loss, size: float = 1.0) -> np.ndarray:
    return size * np.random.default_rng(1).normal(size=(loss.outputs, P))


def grown(loss: Loss, size: float = 1.0) -> LeafModel:
    return LeafModel(SPLITS, TREES, size * np.random.default_rng(2).normal(size=(K, 4, loss.outputs)))


def rows_of(given: list[Any], loss: Loss) -> PrivateRows:
    X, y = (np.array(part) for part in zip(*given, strict=True))
    return PrivateRows(X, y, max_norm=1.0, admits=loss.admits)


def oracle_of(rows: PrivateRows, loss: Loss, *, clip: float = 0.5, size: float = 1.0) -> LeafOracle:
    return LeafOracle(rows, loss, coef_of(loss, size), SPLITS, clip=clip)


@pytest.mark.parametrize("size", [1.0, 1e300])
@pytest.mark.parametrize("relation", RELATIONS)
@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: loss.name)
def test_one_record_moves_the_leaf_sums_by_at_most_their_sensitivity(
    loss: Loss, relation: Any, size: float
) -> None:
    moved = assert_bounded(
        lambda those: oracle_of(rows_of(those, loss), loss, size=size).leaf_sums(
            grown(loss), TREES, relation=relation
        ),
        records(loss), candidates(loss), relation=relation,
    )  # fmt: skip
    assert moved > 0.6 * 0.5 * math.sqrt(K) or size > 1


@pytest.mark.parametrize("relation", RELATIONS)
@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: loss.name)
def test_one_record_moves_the_gain_by_at_most_its_sensitivity(loss: Loss, relation: Any) -> None:
    moved = assert_bounded(
        lambda those: oracle_of(rows_of(those, loss), loss).gain(
            grown(loss), bound=0.2, relation=relation
        ),
        records(loss), candidates(loss), relation=relation,
    )  # fmt: skip
    assert moved > 0.9 * 0.2


@pytest.mark.parametrize("relation", RELATIONS)
@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: loss.name)
def test_one_person_moves_the_sums_by_at_most_their_sensitivity(loss: Loss, relation: Any) -> None:
    """A person with four rows, of which any may be hostile, counts no more than one with a single row."""

    def summed(persons: list[list[Any]]) -> Any:
        given = [row for rows in persons for row in rows]
        X, y = (np.array(part) for part in zip(*given, strict=True))
        codes = np.repeat(np.arange(len(persons)), [len(rows) for rows in persons])
        rows = PersonRows(X, y, persons=Persons(codes, len(persons)), max_norm=1.0, admits=loss.admits)
        return oracle_of(rows, loss).leaf_sums(grown(loss), TREES, relation=relation)

    people = [[one, one, one] for one in records(loss, 4)]
    strangers = [[one] * 4 for one in candidates(loss)[::3]] + [candidates(loss)[:9]]
    assert assert_bounded(summed, people, strangers, relation=relation) > 0.3


@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: loss.name)
def test_a_record_that_cannot_be_used_changes_nothing(loss: Loss) -> None:
    given = records(loss)
    bad = [(HUGE[2], labels(loss)[0]), (given[0][0], np.nan), (np.zeros(P), labels(loss)[0])]
    sums = [
        value_of(oracle_of(rows_of(those, loss), loss).leaf_sums(grown(loss), TREES, relation="replace-one"))
        for those in (given, [*bad, *given])
    ]
    np.testing.assert_array_equal(*sums)


@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: loss.name)
def test_sums_are_those_worked_out_record_by_record(loss: Loss) -> None:
    given, model = records(loss, 40), grown(loss)
    rows = rows_of(given, loss)
    X, y = contents(rows).X, contents(rows).y
    z = X @ coef_of(loss).T + model.scores(X)
    expected = np.zeros((K, 4, loss.outputs))
    bits = SPLITS.answers(X, np.arange(4))
    for i, label in enumerate(y):
        score = z[i : i + 1] if loss.outputs > 1 else z[i]
        g = -np.asarray(loss.slope(score, np.array([label]))).reshape(-1)
        g *= min(1.0, 0.5 / np.linalg.norm(g))
        for t, (a, b) in enumerate(TREES):
            expected[t, bits[a, i] + 2 * bits[b, i]] += g
    found = oracle_of(rows, loss).leaf_sums(model, TREES, relation="replace-one")
    np.testing.assert_allclose(value_of(found), expected.reshape(-1), atol=1e-12)


@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: loss.name)
def test_rows_in_blocks_answer_as_rows_in_memory(loss: Loss) -> None:
    given, model = records(loss, 60), grown(loss)
    X, y = (np.array(part) for part in zip(*given, strict=True))
    first = LeafModel(SPLITS, TREES[:1], model.values[:1])
    together = oracle_of(rows_of(given, loss), loss)
    apart = oracle_of(in_blocks(X, y, 7, admits=loss.admits), loss)
    for grown_so_far in (first, model, first):  # the last one has to begin anew
        sums = [value_of(o.leaf_sums(grown_so_far, TREES, relation="replace-one")) for o in (together, apart)]
        np.testing.assert_allclose(*sums, atol=1e-6)
        gains = [value_of(o.gain(grown_so_far, bound=1.0, relation="replace-one")) for o in (together, apart)]
        np.testing.assert_allclose(*gains, atol=1e-5)


def test_two_oracles_of_the_same_blocks_do_not_mix_their_scores() -> None:
    loss = Logistic()
    X, y = (np.array(part) for part in zip(*records(loss, 20), strict=True))
    rows = in_blocks(X, y, 7)
    one, two = (LeafOracle(rows, loss, size * coef_of(loss), SPLITS, clip=0.5) for size in (1, -1))
    before = value_of(one.leaf_sums(grown(loss), TREES, relation="replace-one"))
    two.leaf_sums(grown(loss), TREES, relation="replace-one")
    np.testing.assert_array_equal(value_of(one.leaf_sums(grown(loss), TREES, relation="replace-one")), before)


@pytest.mark.parametrize("fault", ["no root of K", "unclipped"])
def test_a_planted_fault_is_noticed(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if fault == "no root of K":
        monkeypatch.setattr(leaf_sums.math, "sqrt", lambda _: 1.0)
    else:
        monkeypatch.setattr(
            leaf_sums, "_slopes",
            lambda subject, state, block: leaf_sums._slope(
                subject.loss, state.line[block] + state.trees[block], state.held.y[block]
            ) * state.held.share[block][:, None],
        )  # fmt: skip
    with np.errstate(over="ignore"), pytest.raises(AssertionError, match="moved"):
        assert_bounded(
            lambda those: oracle_of(rows_of(those, Square()), Square()).leaf_sums(
                grown(Square()), TREES, relation="replace-one"
            ),
            records(Square()), candidates(Square()), relation="replace-one",
        )  # fmt: skip
