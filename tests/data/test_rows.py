"""Private rows: bounded whatever comes in, and silent about it."""

import pickle
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from tests.contracts.neighbors import value_of

from sidelight.data.rows import PrivateRows, PublicRows, as_matrix, contents, row_norms, shrink_rows
from sidelight.errors import InputError
from sidelight.losses import Logistic

KINDS = ["float64", "float32", "csr64", "csr32"]


def as_kind(X: np.ndarray, kind: str) -> Any:
    with np.errstate(over="ignore"):
        X = X.astype(np.float32 if "32" in kind else np.float64)
    return sp.csr_matrix(X) if "csr" in kind else X


def dense(X: Any) -> np.ndarray:
    return np.asarray(X.toarray() if sp.issparse(X) else X)


def exact_norms(X: Any) -> np.ndarray:
    return np.sqrt(np.square(dense(X).astype(np.longdouble)).sum(axis=1))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("max_norm", [1.0, 0.3, 1e-5])
@pytest.mark.parametrize("p", [1, 7, 900])
def test_no_row_is_longer_than_max_norm_not_even_by_rounding(kind: str, max_norm: float, p: int) -> None:
    rng = np.random.default_rng(p)
    X = rng.standard_normal((200, p)) * 10.0 ** rng.uniform(-6, 6, (200, 1))
    X[:50] /= np.linalg.norm(X[:50], axis=1, keepdims=True) / max_norm  # on the edge, as good as one can
    rows = PrivateRows(as_kind(X, kind), np.ones(200), max_norm=max_norm)
    held = contents(rows)
    truth = exact_norms(held.X)
    assert (truth <= max_norm).all()
    assert (held.norms >= truth).all()
    assert (held.norms[~held.null] <= max_norm).all()
    assert (truth >= np.minimum(exact_norms(as_kind(X, kind)), max_norm) * (1 - 1e-5)).all()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("p", [7, 300, 9_000])
def test_a_row_is_scaled_the_same_wherever_it_is(kind: str, p: int) -> None:
    X = np.random.default_rng(0).standard_normal((300_000 // p if p > 300 else 60, p))
    whole, norms = shrink_rows(as_matrix(as_kind(X, kind)), 1.0)
    for first in (1, 2, 7):
        rows, lengths = shrink_rows(as_matrix(as_kind(X[first:], kind)), 1.0)
        np.testing.assert_array_equal(lengths, norms[first:])
        np.testing.assert_array_equal(dense(rows), dense(whole)[first:])
    alone = [shrink_rows(as_matrix(as_kind(X[[k]], kind)), 1.0)[1] for k in range(len(X))]
    np.testing.assert_array_equal(np.concatenate(alone), norms)


def test_contract_catches_rows_scaled_to_the_bound_itself() -> None:
    rng = np.random.default_rng(0)
    X = rng.standard_normal((500, 9)).astype(np.float32)
    naive = (X / np.linalg.norm(X, axis=1, keepdims=True)).astype(np.float32)
    with pytest.raises(AssertionError):
        assert (exact_norms(naive) <= 1).all()


@pytest.mark.parametrize("kind", KINDS)
def test_clipping_keeps_the_direction_and_leaves_short_rows_alone(kind: str) -> None:
    X = np.array([[3.0, 4.0], [0.3, 0.4], [0.0, -2.0]])
    held = dense(contents(PrivateRows(as_kind(X, kind), np.ones(3), max_norm=1.0)).X)
    np.testing.assert_allclose(held, [[0.6, 0.8], [0.3, 0.4], [0, -1]], rtol=1e-5)
    np.testing.assert_array_equal(held[1], dense(as_kind(X, kind))[1])


@pytest.mark.parametrize("kind", KINDS)
def test_unusable_records_become_null_records(kind: str) -> None:
    X = np.array(
        [[0.5, 0.5], [np.nan, 0.5], [0.5, np.inf], [0.0, 0.0], [0.1, 0.2], [0.3, 0.4], [-np.inf, np.nan]]
    )
    y = np.array([1.0, 1.0, -1.0, 1.0, np.nan, 3.0, 1.0])
    held = contents(PrivateRows(as_kind(X, kind), y, max_norm=1.0, admits=Logistic().admits))
    assert held.null.tolist() == [False, True, True, True, True, True, True]
    assert not dense(held.X)[1:].any()
    assert held.y.tolist() == [1, 0, 0, 0, 0, 0, 0]


def test_rows_whose_squares_overflow_are_clipped_not_dropped() -> None:
    X = np.array([[3e200, 4e200, 0.0], [np.nan, 1e200, 0.0]])
    for rows in (X, sp.csr_array(X)):
        held = contents(PrivateRows(rows, np.ones(2), max_norm=1.0))
        np.testing.assert_allclose(dense(held.X), [[0.6, 0.8, 0], [0, 0, 0]], rtol=1e-14)
        assert held.null.tolist() == [False, True]


def test_nothing_is_copied_when_nothing_changes_and_the_original_is_never_written() -> None:
    X = np.full((4, 2), 0.5)
    assert np.shares_memory(contents(PrivateRows(X, np.ones(4), max_norm=1.0)).X, X)
    S = sp.csr_array(X)
    assert np.shares_memory(contents(PrivateRows(S, np.ones(4), max_norm=1.0)).X.data, S.data)
    PrivateRows(X, np.ones(4), max_norm=0.1)
    PrivateRows(S, np.ones(4), max_norm=0.1)
    np.testing.assert_array_equal(X, 0.5)
    np.testing.assert_array_equal(S.data, 0.5)


def test_float_types_stay_and_others_become_double() -> None:
    for given, kept in (
        (np.float32, np.float32),
        (np.float64, np.float64),
        (np.int64, np.float64),
        (bool, np.float64),
    ):
        assert contents(PrivateRows(np.eye(3).astype(given), np.ones(3), max_norm=5.0)).X.dtype == kept
        assert (
            contents(PrivateRows(sp.csr_matrix(np.eye(3).astype(given)), np.ones(3), max_norm=5.0)).X.dtype
            == kept
        )


def test_duplicate_entries_of_a_sparse_row_count_together() -> None:
    """Two entries of 0.9 at one place are 1.8: their squares alone would say 1.27."""
    twice = sp.csr_matrix((np.array([0.9, 0.9]), np.array([0, 0]), np.array([0, 2])), shape=(1, 2))
    twice.has_canonical_format = True  # a lie that a stale flag can tell
    held = contents(PrivateRows(twice, np.ones(1), max_norm=1.0))
    assert exact_norms(held.X)[0] <= 1


def test_it_shows_only_public_things() -> None:
    rows = PrivateRows(np.full((3, 2), 0.25), np.ones(3), max_norm=1.0)
    assert repr(rows) == "PrivateRows(n=3, p=2)"
    with pytest.raises(TypeError, match="not pickled"):
        pickle.dumps(rows)
    assert not hasattr(rows, "X")


def test_compute_wraps_the_answer_and_cannot_write_to_the_rows() -> None:
    rows = PrivateRows(np.full((3, 2), 0.25), np.ones(3), max_norm=1.0)
    answer = rows.compute(lambda X, y: X.T @ y, sensitivity=2.0, relation="replace-one")
    assert answer.sensitivity == 2.0
    np.testing.assert_allclose(value_of(answer), [0.75, 0.75])

    def vandal(X: np.ndarray, y: np.ndarray) -> np.ndarray:
        X[0] = 100
        return X

    with pytest.raises(ValueError, match="read-only"):
        rows.compute(vandal, sensitivity=1.0, relation="replace-one")


@pytest.mark.parametrize("kind", KINDS)
def test_mapped_rows_are_bounded_again(kind: str) -> None:
    rng = np.random.default_rng(0)
    X, M = rng.standard_normal((30, 4)), rng.standard_normal((6, 4))
    X[3] = np.nan
    rows = PrivateRows(as_kind(X, kind), np.ones(30), max_norm=1.0)
    mapped = contents(rows.mapped(M, max_norm=0.5))
    assert (exact_norms(mapped.X) <= 0.5).all()
    image = dense(contents(rows).X) @ M.T
    lengths = np.maximum(np.linalg.norm(image, axis=1, keepdims=True), 1e-9)
    np.testing.assert_allclose(mapped.X, image * np.minimum(1, 0.5 / lengths), atol=1e-5)
    assert mapped.null.tolist() == [i == 3 for i in range(30)]
    assert mapped.X.dtype == as_kind(X, kind).dtype
    with pytest.raises(InputError, match="4 columns"):
        rows.mapped(np.eye(5), max_norm=1.0)


@pytest.mark.parametrize(
    ("X", "y"),
    [
        (np.ones(3), np.ones(3)),
        (np.ones((3, 2)), np.ones(2)),
        (np.ones((3, 2)), np.ones((3, 1))),
        (np.array([["secret", "1"]] * 3), np.ones(3)),
        (np.ones((3, 2)), np.array(["secret"] * 3)),
    ],
)
def test_bad_shapes_and_types_are_refused_without_quoting_a_value(X: Any, y: Any) -> None:
    with pytest.raises(InputError) as caught:
        PrivateRows(X, y, max_norm=1.0)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("max_norm", [0.0, -1.0, np.inf, np.nan])
def test_max_norm_must_be_a_positive_number(max_norm: float) -> None:
    with pytest.raises(InputError, match="max_norm"):
        PrivateRows(np.ones((1, 1)), np.ones(1), max_norm=max_norm)


def test_public_rows_must_be_finite() -> None:
    assert PublicRows.empty(3).n == 0
    assert PublicRows.empty(3).p == 3
    assert PublicRows(sp.csr_matrix(np.eye(2)), np.array([1, -1])).y.dtype == np.float64
    for X, y in (([[np.nan, 0.0]], [1.0]), ([[0.0, 1.0]], [np.nan])):
        with pytest.raises(InputError, match="finite"):
            PublicRows(np.array(X), np.array(y))
    with pytest.raises(InputError, match="y_public"):
        PublicRows(np.ones((1, 2)), np.ones(2))


def test_norms_and_shrinking_agree_between_layouts() -> None:
    rng = np.random.default_rng(0)
    X = rng.standard_normal((50, 8)) * (rng.random((50, 8)) < 0.5)
    np.testing.assert_allclose(row_norms(X), row_norms(as_matrix(sp.csr_matrix(X))), rtol=1e-15)
    for normalize in (False, True):
        one = shrink_rows(X, 0.7, normalize=normalize)[0]
        other = shrink_rows(as_matrix(sp.csr_matrix(X)), 0.7, normalize=normalize)[0]
        np.testing.assert_allclose(one, other.toarray(), rtol=1e-14)
