"""Bounding: from declared bounds or public rows, never from private ones."""

from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from sidelight.data.coordinates import Bounds, bound_rows, resolve_bounds
from sidelight.data.rows import PrivateRows, contents
from sidelight.data.targets import TargetScale, resolve_target
from sidelight.errors import InputError, UnboundedSensitivity

WIDE = {"max_norm": 100.0, "fit_intercept": False}


def test_features_are_mapped_to_minus_one_one() -> None:
    bounds = Bounds.declared([0, -1, 5], [10, 3, 5], features=3)
    X = np.array([[0.0, -1, 5], [10, 3, 5], [5, 1, 7], [20, -9, 5]])
    np.testing.assert_allclose(bound_rows(X, bounds, **WIDE), [[-1, -1, 0], [1, 1, 0], [0, 0, 0], [1, -1, 0]])


def test_the_center_decides_what_maps_to_zero() -> None:
    kept = Bounds.declared(0, 4, features=2, center="zero")
    np.testing.assert_allclose(bound_rows(np.array([[0.0, 2.0]]), kept, **WIDE), [[0, 0.5]])
    public = np.array([[0.0, 1], [0, 2], [0, 9], [4, 0]])
    mean = Bounds.from_public(public, center="mean")
    np.testing.assert_allclose(bound_rows(np.array([[4.0, 3.0]]), mean, **WIDE), [[1, 0]])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("normalize", [False, True])
def test_rows_with_their_intercept_fit_max_norm(dtype: Any, sparse: bool, normalize: bool) -> None:
    rng = np.random.default_rng(0)
    X = (rng.standard_normal((400, 11)) * (rng.random((400, 11)) < 0.5)).astype(dtype)
    bounds = Bounds.declared(-2, 2, features=11)
    rows = bound_rows(sp.csr_matrix(X) if sparse else X, bounds, max_norm=1.3, normalize=normalize)
    held = rows.toarray() if sparse else rows
    assert held.dtype == dtype
    assert held.shape == (400, 12)
    norms = np.sqrt(np.square(held.astype(np.longdouble)).sum(axis=1))
    assert (norms <= 1.3).all()
    if normalize:
        assert (norms > 1.3 * (1 - 1e-5)).all()
    # The intercept is scaled with its row: the ratio of features to intercept is kept.
    np.testing.assert_allclose(held[:, 0] / held[:, -1], np.clip(X[:, 0], -2, 2) / 2, rtol=1e-4, atol=1e-6)
    private = PrivateRows(rows, np.ones(400), max_norm=1.3)
    again = contents(private).X
    assert np.shares_memory(
        again.data if sparse else again, rows.data if sparse else rows
    )  # nothing left to clip


def test_contract_catches_an_intercept_outside_the_norm() -> None:
    X = np.full((1, 1), 5.0)
    outside = np.hstack(
        [bound_rows(X, Bounds.declared(-5, 5, features=1), fit_intercept=False), np.ones((1, 1))]
    )
    with pytest.raises(AssertionError):
        assert np.linalg.norm(outside) <= 1


@pytest.mark.parametrize("sparse", [False, True])
def test_non_finite_private_rows_become_zero_and_public_ones_an_error(sparse: bool) -> None:
    X = np.array([[1.0, 2.0], [np.nan, 1.0], [np.inf, 1.0], [0.5, -np.inf]])
    bounds = Bounds.declared([-2, 1], [2, 1], features=2)  # a constant feature: ∞·0
    given = sp.csr_matrix(X) if sparse else X
    held = bound_rows(given, bounds, max_norm=9.0)
    held = held.toarray() if sparse else held
    np.testing.assert_array_equal(held, [[0.5, 0, 1], [0, 0, 0], [0, 0, 0], [0, 0, 0]])
    assert contents(PrivateRows(held, np.ones(4), max_norm=9.0)).null.tolist() == [False, True, True, True]
    with pytest.raises(InputError, match="finite"):
        bound_rows(given, bounds, private=False)


def test_sparse_rows_stay_sparse() -> None:
    """Max-abs scaling without a shift: zeros stay zeros, whatever the middle of the bounds is."""
    X = sp.csr_matrix(np.array([[0.0, 4.0, 0.0], [-9.0, 0.0, 0.0]]))
    held = bound_rows(X, Bounds.declared([-2, 0, 1], [1, 8, 4], features=3), **WIDE)
    np.testing.assert_allclose(held.toarray(), [[0, 0.5, 0], [-1, 0, 0]])
    assert held.nnz == 2


def test_bounds_learned_from_public_rows() -> None:
    public = np.array([[0.0, 10.0, 0.0, 1.0, 7.0], [2.0, 20.0, 0.0, 1.0, 7.0]])
    bounds = Bounds.from_public(public)
    np.testing.assert_allclose(bounds.lower, [0, 10, 0, 0, 7])
    np.testing.assert_allclose(bounds.upper, [2, 20, 1, 1, 7])
    sparse = Bounds.from_public(sp.csr_matrix(public))
    np.testing.assert_array_equal(sparse.lower, bounds.lower)
    np.testing.assert_array_equal(sparse.center, bounds.center)


def test_a_binary_column_seen_with_one_value_is_still_binary() -> None:
    bounds = Bounds.from_public(np.array([[0.0, 1.0, 3.0]]))
    np.testing.assert_array_equal((bounds.lower, bounds.upper), [[0, 0, 3], [1, 1, 3]])


def test_private_values_never_reach_the_bounds() -> None:
    rng = np.random.default_rng(0)
    public = rng.standard_normal((20, 3))
    resolved = resolve_bounds(None, public, features=3)
    usual, extreme = rng.standard_normal((5, 3)), np.full((1, 3), 1e9)
    one = bound_rows(usual, resolved)
    other = bound_rows(np.vstack([usual, extreme]), resolved)
    np.testing.assert_array_equal(one, other[:5])


def test_declared_bounds_come_before_public_rows() -> None:
    resolved = resolve_bounds((-5, 5), np.ones((2, 2)), features=2)
    np.testing.assert_array_equal(resolved.lower, [-5, -5])
    assert resolve_bounds(resolved, None, features=2) is resolved


@pytest.mark.parametrize("public", [None, np.zeros((0, 2))], ids=["none", "empty"])
def test_without_bounds_and_public_rows_there_is_no_sensitivity(public: Any) -> None:
    with pytest.raises(UnboundedSensitivity, match="Pass bounds="):
        resolve_bounds(None, public, features=2)
    with pytest.raises(UnboundedSensitivity, match="Pass target_bounds="):
        resolve_target(None, None if public is None else public[:, 0])


@pytest.mark.parametrize(
    "make",
    [
        lambda: Bounds.declared(1, 0, features=2),
        lambda: Bounds.declared([0, 1, 2], 9, features=2),
        lambda: Bounds.declared(-np.inf, 1, features=2),
        lambda: Bounds.from_public(np.array([[np.nan]])),
        lambda: Bounds.declared(0, 1, features=1, center="mean"),
        lambda: (
            resolve_bounds((0, 1), None, features=2)
            and bound_rows(np.ones((1, 3)), Bounds.declared(0, 1, features=2))
        ),
        lambda: resolve_bounds(Bounds.declared(0, 1, features=3), None, features=2),
        lambda: bound_rows(np.ones((1, 2)), Bounds.declared(0, 1, features=2), max_norm=0.0),
        lambda: TargetScale(1.0, 1.0),
        lambda: TargetScale(0.0, np.inf),
        lambda: TargetScale.from_public([3.0, 3.0]),
        lambda: TargetScale.from_public([]),
    ],
)
def test_senseless_bounds_are_refused(make: Any) -> None:
    with pytest.raises(InputError):
        make()


def test_targets_are_scaled_clipped_and_restored() -> None:
    scale = TargetScale(10.0, 30.0)
    np.testing.assert_allclose(scale.transform(np.array([10, 20, 30, 99.0, -5])), [-1, 0, 1, 1, -1])
    np.testing.assert_allclose(scale.inverse(scale.transform(np.array([12.5, 27.0]))), [12.5, 27.0])
    assert np.isnan(scale.transform(np.array([np.nan, np.inf, -np.inf]))).all()
    assert TargetScale.from_public([1.0, 3.0]) == TargetScale(1.0, 3.0)
    assert resolve_target((0, 4), None) == TargetScale(0.0, 4.0)
    assert resolve_target(None, np.array([0.0, 4.0])) == TargetScale(0.0, 4.0)


def test_many_blocks_are_one_matrix(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    X, bounds = rng.standard_normal((50, 4)), Bounds.declared(-1, 1, features=4)
    whole = bound_rows(X, bounds)
    monkeypatch.setattr("sidelight.data.rows.BLOCK", 12)
    np.testing.assert_array_equal(bound_rows(X, bounds), whole)
