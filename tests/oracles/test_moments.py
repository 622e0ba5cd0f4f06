"""Second moments of private rows: bounded as declared, packed without a loss, silent about bad records."""

import math
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from tests.contracts.neighbors import assert_bounded, value_of

from sidelight.data.rows import PrivateRows
from sidelight.errors import AssumptionError, InputError
from sidelight.losses import Logistic, Loss, Square, get_loss
from sidelight.oracles.linear.row_sums import MomentOracle, check_features, pack, unpack

RNG = np.random.default_rng(3)
P = 3
RECORDS = [
    (x / np.linalg.norm(x), y) for x, y in zip(RNG.normal(size=(5, P)), [1, -1, 1, 1, -1], strict=True)
]
ADVERSE = [
    (np.eye(P)[0], 1.0), (np.eye(P)[1], -1.0), (-1e300 * np.eye(P)[2], 1.0), (np.full(P, np.nan), 1.0),
    (np.full(P, 0.5), np.nan), (np.eye(P)[2], 17.0), (np.zeros(P), 1.0),
]  # fmt: skip
W = np.array([0.3, -2.0, 1.0])


def oracle(records: list[Any], loss: Loss | None = None, *, max_norm: float = 1.0) -> MomentOracle:
    loss = loss or Logistic()
    X, y = (np.array(part) for part in zip(*records, strict=True))
    return MomentOracle(PrivateRows(X, y, max_norm=max_norm, admits=loss.admits), loss)


@pytest.mark.parametrize("p", [1, 2, 7])
def test_a_packed_matrix_is_as_long_as_the_matrix_and_comes_back(p: int) -> None:
    matrix = RNG.normal(size=(p, p))
    matrix = matrix + matrix.T
    assert np.linalg.norm(pack(matrix)) == pytest.approx(np.linalg.norm(matrix), rel=1e-14)
    assert pack(matrix).size == p * (p + 1) // 2
    np.testing.assert_allclose(unpack(pack(matrix), p), matrix, rtol=1e-14)


@pytest.mark.parametrize("loss", ["logistic", "huber", "square"])
@pytest.mark.parametrize("at", [None, W, 1e200 * W])
@pytest.mark.parametrize("relation", ["add-or-remove-one", "replace-one"])
@pytest.mark.parametrize("max_norm", [1.0, 0.3])
def test_one_record_moves_a_second_moment_by_at_most_its_sensitivity(
    loss: str, at: Any, relation: Any, max_norm: float
) -> None:
    made = get_loss(loss)
    moved = assert_bounded(
        lambda records: oracle(records, made, max_norm=max_norm).second_moment(at, relation=relation),
        RECORDS,
        ADVERSE,
        relation=relation,
    )
    if at is None:
        reach = (1 if relation == "add-or-remove-one" else math.sqrt(2)) * made.smoothness * max_norm**2
        assert moved > 0.9 * reach, "no neighbor comes near the bound: this test would not notice a fault"


@pytest.mark.parametrize("relation", ["add-or-remove-one", "replace-one"])
def test_one_record_moves_the_least_eigenvalue_by_at_most_its_sensitivity(relation: Any) -> None:
    few = [(np.eye(P)[k], 0.0) for k in (0, 1, 1, 2)]
    worst = 0.0
    for records in (RECORDS, few, [*few, *few]):
        moved = assert_bounded(
            lambda chosen: oracle(chosen, Square(0.5)).least_eigenvalue(relation=relation),
            records,
            ADVERSE,
            relation=relation,
        )
        worst = max(worst, moved)
    assert worst > 0.9


def test_a_replaced_record_attains_the_root_of_two() -> None:
    first, second = (oracle([(np.eye(P)[k], 1.0)]).second_moment(relation="replace-one") for k in (0, 1))
    assert np.linalg.norm(value_of(first) - value_of(second)) == pytest.approx(first.sensitivity, rel=1e-12)
    assert first.sensitivity == pytest.approx(math.sqrt(2) / 4)


def test_contract_catches_a_replaced_record_that_counts_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "sidelight.oracles.linear.row_sums.math.sqrt", lambda value: 1.0 if value == 2 else value**0.5
    )
    monkeypatch.setattr("sidelight.oracles.linear.row_sums.pack", lambda matrix: matrix.reshape(-1))
    with pytest.raises(AssertionError, match="moved"):
        assert_bounded(
            lambda records: oracle(records).second_moment(relation="replace-one"),
            RECORDS,
            ADVERSE,
            relation="replace-one",
        )


def test_contract_catches_curvature_beyond_its_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MomentOracle, "_curvatures", lambda self, block, weights: np.full(len(block.y), 0.26))
    with pytest.raises(AssertionError, match="moved"):
        assert_bounded(
            lambda records: oracle(records).second_moment(relation="add-or-remove-one"),
            RECORDS,
            ADVERSE,
            relation="add-or-remove-one",
        )


def test_a_record_whose_target_the_loss_does_not_know_contributes_zero() -> None:
    known = [(np.eye(P)[0], 1.0)]
    rows = PrivateRows(np.eye(P)[:2], np.array([1.0, 17.0]), max_norm=1.0)
    total = value_of(MomentOracle(rows, Logistic()).second_moment(relation="replace-one"))
    np.testing.assert_array_equal(total, value_of(oracle(known).second_moment(relation="replace-one")))


def test_sums_are_those_of_the_formula_and_the_same_for_sparse_rows() -> None:
    X, y = (np.array(part) for part in zip(*RECORDS, strict=True))
    z = X @ W
    bend = 1 / (1 + np.exp(-z)) / (1 + np.exp(z))
    for rows in (X, sp.csr_array(X), X.astype(np.float32)):
        made = MomentOracle(PrivateRows(rows, y, max_norm=1.0), Logistic())
        hessian = unpack(value_of(made.second_moment(W, relation="replace-one")), P)
        np.testing.assert_allclose(hessian, (X.T * bend) @ X, rtol=1e-5, atol=1e-7)
        bound = unpack(value_of(made.second_moment(relation="replace-one")), P)
        np.testing.assert_allclose(bound, X.T @ X / 4, rtol=1e-5, atol=1e-7)


def test_what_cannot_be_done_is_refused() -> None:
    with pytest.raises(AssumptionError, match="hinge"):
        oracle(RECORDS, get_loss("hinge"))
    with pytest.raises(InputError, match="one output"):
        oracle(RECORDS).second_moment(np.zeros(4), relation="replace-one")
    with pytest.raises(AssumptionError, match="5000"):
        check_features(5000, method="dp_newton")
