"""Counts of private records by the gap of their scores: bounded as declared, silent about bad records."""

import math
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from tests.contracts.neighbors import assert_bounded, rows_with_score, value_of

from sidelight.data.rows import PrivateRows
from sidelight.losses import Logistic, Loss, Softmax
from sidelight.oracles.linear.score_counts import count_gaps, gaps
from sidelight.privacy.release import BoundedSum

P = 3
RNG = np.random.default_rng(5)
AT = np.array([0.1, 0.4, 0.9])
BAD = [(np.full(P, np.nan), 1.0), (np.full(P, 0.5), np.nan), (np.eye(P)[2], 17.0), (np.zeros(P), 1.0)]
ONE = RNG.normal(size=(1, P))
THREE = RNG.normal(size=(3, P))


def records(loss: Loss) -> list[Any]:
    labels = [1.0, -1.0, 1.0, -1.0, 1.0] if loss.outputs == 1 else [0.0, 1.0, 2.0, 1.0, 0.0]
    return list(zip(RNG.normal(size=(5, P)), labels, strict=True))


def counted(given: list[Any], loss: Loss, weights: Any, relation: Any, *, sparse: bool = False) -> BoundedSum:
    X, y = (np.array(part) for part in zip(*given, strict=True))
    rows = PrivateRows(sp.csr_array(X) if sparse else X, y, max_norm=1.0, admits=loss.admits)
    return count_gaps(rows, weights, AT, loss=loss, relation=relation)


@pytest.mark.parametrize("relation", ["add-or-remove-one", "replace-one"])
@pytest.mark.parametrize(
    ("loss", "weights"), [(Logistic(), ONE), (Softmax(3), THREE), (Logistic(), 1e300 * ONE)]
)
def test_one_record_moves_the_counts_by_at_most_their_sensitivity(
    relation: Any, loss: Loss, weights: Any
) -> None:
    given = records(loss)
    new = [(side * row, label) for row in np.eye(P) for side in (1, -1) for label in (1.0, -1.0, 0.0, 2.0)]
    moved = assert_bounded(
        lambda those: counted(those, loss, weights, relation), given, [*new, *BAD], relation=relation
    )
    assert moved > 0.95 * (1 if relation == "add-or-remove-one" else math.sqrt(2))  # it is tight


@pytest.mark.parametrize(("loss", "weights"), [(Logistic(), ONE), (Softmax(3), THREE)])
@pytest.mark.parametrize("sparse", [False, True])
def test_a_record_that_cannot_be_used_is_in_no_count(loss: Loss, weights: Any, sparse: bool) -> None:
    given = records(loss)
    plain = value_of(counted(given, loss, weights, "replace-one", sparse=sparse))
    with_bad = value_of(counted([*given, *BAD], loss, weights, "replace-one", sparse=sparse))
    np.testing.assert_array_equal(plain, with_bad)
    assert plain.sum() <= len(given)


def test_counts_are_those_of_the_gap_and_of_right_and_wrong() -> None:
    weights = np.array([[1.0, 0.0, 0.0]])
    given = [(0.05 * np.eye(P)[0], 1.0), (-0.5 * np.eye(P)[0], -1.0), (0.95 * np.eye(P)[0], -1.0)]
    found = value_of(counted(given, Logistic(), weights, "replace-one"))
    assert found == pytest.approx([0.5, 0.8, 0.2, 0, 0, 1])


def test_of_many_classes_the_two_likeliest_count() -> None:
    z = np.array([[3.0, 1.0, 0.0], [0.0, 1.0, 3.0], [5.0, 2.0, 1.0]])
    gap, clear, first, second = gaps(z, np.array([0, 1, 2]))
    assert gap.tolist() == [2, 2, 3] and clear.tolist() == [1, 1, 1]
    assert first.tolist() == [True, False, False] and second.tolist() == [False, True, False]


REACH = 2.0 ** (-np.arange(32)[::-1] / 2)  # as for a model of length 1


def largest_move(X: np.ndarray, weights: np.ndarray, loss: Loss) -> float:
    """How far the counts move when up to five null records come first: these add nothing of their own."""

    def found(nulls: int) -> np.ndarray:
        rows = PrivateRows(
            np.vstack([np.zeros((nulls, X.shape[1])), X]), np.ones(nulls + len(X)), max_norm=1.0
        )
        return value_of(count_gaps(rows, weights, REACH, loss=loss, relation="add-or-remove-one"))

    plain = found(0)
    return max(float(np.linalg.norm(found(nulls) - plain)) for nulls in range(1, 6))


@pytest.mark.parametrize("score", [0.0, *REACH[[0, 9, 19, 29]], *REACH[[1, 20]] * 2**-0.25])
def test_rounding_of_a_score_moves_no_count(score: float) -> None:
    """A hard edge at this gap: one record more moved others from cell to cell, or from right to wrong."""
    w, X = rows_with_score(float(score))
    assert largest_move(X, w[None], Logistic()) < 1e-6


def test_rounding_of_a_tie_moves_no_count() -> None:
    """The label's class ties with the third: whether it was counted at all hung on the last bit."""
    apart, X = rows_with_score(0.0)
    base, top = np.random.default_rng(1).normal(size=(2, len(apart))) / (4 * math.sqrt(len(apart)))
    weights = np.stack([base + top, base + apart / 4, base - apart / 4])
    X *= np.where(X @ top < 0, -1.0, 1.0)[:, None]  # the first class is first
    assert largest_move(X, weights, Softmax(3)) < 1e-6
