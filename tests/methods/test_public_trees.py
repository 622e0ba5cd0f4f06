"""Boosted trees of all folds at once: no row has a say in what is predicted for it."""

import numpy as np
import pytest
from sklearn.ensemble import GradientBoostingRegressor

from sidelight.methods.public_trees import LARGE_LEAVES, SMALL_LEAVES, boosted


def rows(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    X = rng.uniform(-1, 1, (n, 5)).astype(np.float32)
    return X, 2 * np.sign(X[:, 0]) * X[:, 1] + X[:, 2] + rng.normal(0, 0.1, n)


@pytest.mark.parametrize("shape", [SMALL_LEAVES, LARGE_LEAVES], ids=["small", "large"])
def test_numbers_are_predicted_about_as_well_as_by_scikit_learn(shape) -> None:
    X, y = rows(400, 0)
    new, aims = rows(4000, 1)
    found = boosted(X, y, classes=0, folds=5, rows=np.arange(400), shape=shape)
    theirs = GradientBoostingRegressor(min_samples_leaf=shape.leaf, random_state=0).fit(X, y).predict(new)
    errors = [np.mean((z - aims) ** 2) for z in (found.whole.predict(new)[:, 0], theirs)]
    assert errors[0] < 1.3 * errors[1] < np.var(aims) / 2
    found.whole.check(5)
    assert found.gains[3:].sum() < 0.2 * found.gains.sum()


@pytest.mark.parametrize("classes", [2, 4])
def test_classes_are_told_apart_by_trees(classes: int) -> None:
    X, y = rows(600, 0)
    new, aims = rows(4000, 1)
    cuts = np.quantile(y, np.arange(1, classes) / classes)
    found = boosted(
        X, np.searchsorted(cuts, y), classes=classes, folds=5, rows=np.arange(600), shape=SMALL_LEAVES
    )
    z = found.whole.predict(new)
    said = (z[:, 0] > 0).astype(int) if classes == 2 else z.argmax(axis=1)
    assert np.mean(said == np.searchsorted(cuts, aims)) > 0.75


def test_many_classes_are_split_by_random_sums_of_slopes() -> None:
    X, y = rows(600, 0)
    new, aims = rows(4000, 1)
    cuts = np.quantile(y, np.arange(1, 25) / 25)
    found = boosted(X, np.searchsorted(cuts, y), classes=25, folds=3, rows=np.arange(600), shape=SMALL_LEAVES)
    said = found.whole.predict(new).argmax(axis=1)
    assert found.whole.value.shape[1] == 25
    assert np.mean(abs(said - np.searchsorted(cuts, aims)) <= 3) > 0.6


def test_held_out_rows_take_no_part_in_their_prediction() -> None:
    X, y = rows(100, 0)
    first = boosted(X, y, classes=0, folds=5, rows=np.arange(100), shape=SMALL_LEAVES)
    noise = np.random.default_rng(1).normal(size=100)
    found = boosted(X, noise, classes=0, folds=5, rows=np.arange(100), shape=SMALL_LEAVES)
    assert abs(np.corrcoef(found.held_out(X)[:, 0], noise)[0, 1]) < 0.3
    assert np.corrcoef(found.whole.predict(X)[:, 0], noise)[0, 1] > 0.3
    np.testing.assert_array_equal(first.held_out(X)[2::5], first.folds[2].predict(X[2::5]))


def test_leaves_are_as_large_as_asked() -> None:
    X, y = rows(200, 0)
    model = boosted(X, y, classes=0, folds=2, rows=np.arange(200), shape=LARGE_LEAVES).whole
    for root in model.roots[:5]:
        node = np.full(200, root)
        for _ in range(int(model.depth[0])):
            left = X[np.arange(200), model.feature[node]] <= model.threshold[node]
            node = np.where(left, model.left[node], model.right[node])
        assert np.bincount(node)[np.unique(node)].min() >= LARGE_LEAVES.leaf


def test_rows_without_a_split_have_one_prediction() -> None:
    found = boosted(np.zeros((50, 2), np.float32), np.arange(50.0), classes=0, folds=5, rows=np.arange(50),
                    shape=SMALL_LEAVES)  # fmt: skip
    np.testing.assert_allclose(found.whole.predict(np.zeros((3, 2)))[:, 0], 24.5, atol=1)
