"""Trees with public splits: answers that do not depend on how a row was scaled, and arrays that fit."""

import numpy as np
import pytest
import scipy.sparse as sp

from sidelight.data.leaves import LeafModel, Splits, leaves
from sidelight.data.rows import shrink_rows

RNG = np.random.default_rng(0)
SPLITS = Splits(
    columns=np.array([0, 1, 2], dtype=np.int32),
    starts=np.array([0, 2, 3], dtype=np.int32),
    sets=np.array([0, 1, 1], dtype=np.int32),
    thresholds=np.array([0.3, -0.2, 0.4]),
    intercept=True,
)
EVERY = np.arange(3)


def rows(n: int = 50) -> np.ndarray:
    return np.hstack([RNG.uniform(-1, 1, (n, 3)), np.ones((n, 1))])


def model(outputs: int = 2) -> LeafModel:
    trees = np.array([[0, 1], [2, 0], [1, 2]], dtype=np.int32)
    return LeafModel(SPLITS, trees, RNG.normal(size=(3, 4, outputs)))


def test_answers_are_those_of_the_row_before_it_was_scaled() -> None:
    X = rows()
    expected = np.stack([X[:, 0] + X[:, 1] > 0.3, X[:, 2] > -0.2, X[:, 2] > 0.4])
    np.testing.assert_array_equal(SPLITS.answers(X, EVERY), expected)
    np.testing.assert_array_equal(SPLITS.answers(shrink_rows(X, 0.5)[0], EVERY), expected)


def test_the_answer_for_a_row_does_not_depend_on_the_rows_around_it() -> None:
    X = rows(3000).astype(np.float32)
    whole = SPLITS.answers(X, EVERY)
    for start in (0, 1, 7, 2999):
        np.testing.assert_array_equal(SPLITS.answers(X[start:], EVERY), whole[:, start:])


@pytest.mark.parametrize("sparse", [False, True])
def test_scores_are_the_sum_of_leaf_values(sparse: bool) -> None:
    X, trees = rows(), model()
    bits = SPLITS.answers(X, EVERY)
    expected = sum(trees.values[t][leaves(bits, tree)] for t, tree in enumerate(trees.trees))
    np.testing.assert_allclose(trees.scores(sp.csr_array(X) if sparse else X), expected)
    np.testing.assert_allclose(trees.times(0.5).scores(X), 0.5 * expected)


def test_a_model_without_trees_scores_zero() -> None:
    empty = LeafModel(SPLITS, np.zeros((0, 2), dtype=np.int32), np.zeros((0, 4, 1)))
    assert not empty.scores(rows()).any()


def test_arrays_make_the_same_model() -> None:
    trees, X = model(), rows()
    again = LeafModel.from_arrays(trees.to_arrays(), p=4, outputs=2)
    assert again is not None
    np.testing.assert_array_equal(again.scores(X), trees.scores(X))
    assert LeafModel.from_arrays({}, p=4, outputs=2) is None


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("columns", np.array([0, 1, 9], dtype=np.int32)),
        ("starts", np.array([0, 9, 3], dtype=np.int32)),
        ("sets", np.array([0, 1, 2], dtype=np.int32)),
        ("trees", np.array([[0, 1], [2, 0], [1, 3]], dtype=np.int32)),
        ("trees", np.array([[0, 1], [2, 0], [1, -1]], dtype=np.int32)),
        ("values", np.full((3, 4, 2), np.nan)),
        ("values", np.zeros((3, 4, 1))),
    ],
)
def test_damaged_arrays_are_refused(name: str, value: np.ndarray) -> None:
    arrays = model().to_arrays() | {f"leaves.{name}": value}
    with pytest.raises(ValueError, match="fit"):
        LeafModel.from_arrays(arrays, p=4, outputs=2)
