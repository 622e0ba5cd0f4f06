"""The public oracle against materialized gradients and finite differences."""

from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from tests.oracles import reference

from sidelight.clipping import Features
from sidelight.data.rows import PublicRows
from sidelight.errors import AssumptionError, InputError
from sidelight.losses import Hinge, Huber, Logistic, Loss, Softmax, Square
from sidelight.oracles.linear.linear_oracle import PublicOracle

LOSSES: list[Loss] = [Hinge(), Huber(), Logistic(), Square(), Softmax(3)]
P = 5


def make(loss: Loss, n: int = 30, sparse: bool = False) -> tuple[PublicOracle, Any, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    X = rng.standard_normal((n, P))
    y = rng.integers(0, 3, n).astype(float) if loss.outputs > 1 else rng.choice([-1.0, 1.0], n)
    rows = PublicRows(sp.csr_matrix(X) if sparse else X, y)
    return PublicOracle(rows, loss), X, y, rng.standard_normal(P * loss.outputs)


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("loss", LOSSES, ids=lambda v: v.name)
def test_gradients_norms_and_losses(loss: Loss, sparse: bool) -> None:
    oracle, X, y, params = make(loss, sparse=sparse)
    each = reference.contributions(loss, X, y, params)
    np.testing.assert_allclose(oracle.gradients(params), each, atol=1e-13)
    np.testing.assert_allclose(oracle.mean_gradient(params), each.mean(axis=0), atol=1e-13)
    np.testing.assert_allclose(
        oracle.mean_gradient(params, np.array([2, 7])), each[[2, 7]].mean(axis=0), atol=1e-13
    )
    np.testing.assert_allclose(
        oracle.gradient_norms(params), np.linalg.norm(each, axis=1), rtol=1e-12, atol=1e-150
    )
    metric, origin = Features(np.arange(10.0).reshape(2, 5)), 0.1 * params
    moved = reference.contributions(loss, X, y, params, origin=origin, metric=metric)
    norms = oracle.gradient_norms(params, metric=metric, origin=origin)
    np.testing.assert_allclose(norms, np.linalg.norm(moved, axis=1), rtol=1e-9)
    step, direction = 1e-6, np.ones_like(params)
    slope = (oracle.mean_loss(params + step * direction) - oracle.mean_loss(params - step * direction)) / (
        2 * step
    )
    assert oracle.mean_gradient(params) @ direction == pytest.approx(slope, abs=1e-6)


def test_residuals_of_the_same_rows_hold_a_correction_at_zero() -> None:
    """The gradient less what it is at 0: the pull of rows whose residual is 0."""
    plain, X, y, params = make(Square())
    held = PublicOracle(PublicRows(X, y), Square(), residual=True)
    none = PublicOracle(PublicRows(X, np.zeros(len(y))), Square())
    some = np.array([2, 7])
    assert not held.mean_gradient(np.zeros(P)).any()
    np.testing.assert_allclose(held.mean_gradient(params), none.mean_gradient(params), atol=1e-13)
    np.testing.assert_allclose(held.mean_gradient(params, some), none.mean_gradient(params, some), atol=1e-13)
    factors = np.linspace(0, 1, len(y))  # what is compared with private gradients is as it was
    np.testing.assert_array_equal(
        held.weighted_gradient(params, factors), plain.weighted_gradient(params, factors)
    )


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("loss", LOSSES, ids=lambda v: v.name)
def test_curvature(loss: Loss, sparse: bool) -> None:
    oracle, _, _, params = make(loss, sparse=sparse)
    step = 1e-6
    columns = [
        (oracle.mean_gradient(params + step * e) - oracle.mean_gradient(params - step * e)) / (2 * step)
        for e in np.eye(oracle.dimension)
    ]
    top = np.linalg.eigvalsh(np.array(columns))[-1]
    direction = np.arange(1.0, oracle.dimension + 1)
    np.testing.assert_allclose(
        oracle.hessian_times(params, direction), np.array(columns) @ direction, atol=1e-6
    )
    if loss.smoothness is None:
        with pytest.raises(AssumptionError, match="not smooth"):
            oracle.smoothness()
    else:
        assert oracle.smoothness() >= top * (1 - 1e-6)


def test_no_public_rows_have_no_mean() -> None:
    oracle = PublicOracle(PublicRows.empty(3), Logistic())
    assert oracle.gradient_norms(np.zeros(3)).size == 0
    for question in (oracle.mean_gradient, oracle.mean_loss):
        with pytest.raises(InputError, match="public"):
            question(np.zeros(3))


def test_public_labels_must_fit_the_loss() -> None:
    with pytest.raises(InputError, match="logistic"):
        PublicOracle(PublicRows(np.ones((2, 2)), np.array([0.0, 1.0])), Logistic())
