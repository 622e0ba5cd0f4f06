"""Boosted trees of public rows, all folds at once; fast on a few hundred rows, without a library.

Every fold trains its own trees, and one more model sees all rows. They take a step at the same time:

    candidates   questions x ≤ c, at most `_CUTS` for each column; a tree looks at `splits` of them
    level        sums of slopes and rows for each fold, node and candidate: one product of matrices
                 (of right children they are what is left of their parents')
    leaf         Σ slope / (Σ curvature + ridge), times the rate
    stop         where held-out rows stop gaining; the number of trees is the best one of these

Of several classes a tree has a value for each class in a leaf.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from sidelight.arrays import Array, Floats
from sidelight.data.guide import TreeEnsemble

Aim = Literal["number", "class"]
_CUTS, _MOST_CANDIDATES = 24, 4_096
_MOST_TREES, _PATIENCE = 120, 15
_LEAST_GAIN = 5e-4  # of the loss, that more trees have to bring
_SKETCH = 16  # sums of slopes that splits are chosen by, of more classes (Iosipoi & Vakhrushev 2022)
_LARGEST_LEAF = 4.0  # log-odds
_RAREST = 0.5  # rows, of a class that a fold lacks
_SEED = 0  # public data alone


@dataclass(frozen=True)
class TreeShape:
    """How trees are grown.

    Args:
        leaf: the fewest rows of a leaf.
        splits: candidates that a tree looks at, drawn anew for each.
        share: of the rows, drawn anew for each tree.
    """

    depth: int
    leaf: int
    splits: int
    share: float
    rate: float
    ridge: float


SMALL_LEAVES = TreeShape(depth=4, leaf=5, splits=100, share=0.7, rate=0.08, ridge=1.0)
LARGE_LEAVES = TreeShape(depth=5, leaf=20, splits=300, share=1.0, rate=0.1, ridge=1e-3)
FEW_SPLITS = TreeShape(depth=3, leaf=5, splits=40, share=0.7, rate=0.08, ridge=1.0)
DEEP = TreeShape(depth=6, leaf=5, splits=300, share=0.7, rate=0.1, ridge=1.0)
RANDOM = TreeShape(depth=5, leaf=3, splits=20, share=0.6, rate=0.08, ridge=3.0)


@dataclass(frozen=True, eq=False)
class BoostedFolds:
    """Models of the rows outside each fold, one of all rows, and how much each column's splits gained."""

    folds: list[TreeEnsemble]
    whole: TreeEnsemble
    gains: Floats

    def held_out(self, X: Array) -> Floats:
        """Predictions for rows by the model that has not seen them: row i is in fold i mod the number."""
        parts = [model.predict(X[k :: len(self.folds)]) for k, model in enumerate(self.folds)]
        out = np.empty((len(X), parts[0].shape[1]))
        for k, part in enumerate(parts):
            out[k :: len(self.folds)] = part
        return out


def boosted(
    X: NDArray[np.float32], y: Array, *, classes: int, folds: int, rows: Array, shape: TreeShape
) -> BoostedFolds:
    """Trees of a number (classes=0) or of a class index; log-odds of two classes, a score for each of more.

    Args:
        rows: that are trained on. Row i of X is in fold i mod `folds`.
    """
    X, y = X[rows], y[rows]
    growth = _Growth(X, y, classes, rows % folds, folds, shape)
    growth.run()
    models = [growth.model(fold) for fold in range(folds + 1)]
    return BoostedFolds(models[:-1], models[-1], growth.gains)


class _Growth:
    """Boosting of folds + 1 sets of rows; the last one is all of them."""

    def __init__(
        self, X: NDArray[np.float32], y: Array, classes: int, place: Array, folds: int, shape: TreeShape
    ) -> None:
        self._rng = np.random.default_rng(_SEED)
        self._shape, self._classes, self._columns = shape, classes, X.shape[1]
        self._feature, self._threshold = _candidates(X, self._rng)
        self._below = X[:, self._feature] <= self._threshold
        self._place, self._rows, self._sets = place, np.arange(len(y)), np.arange(folds + 1)[:, None]
        self._seen = (place[None] != self._sets).astype(np.float32)
        self._mean, self._unit = 0.0, 1.0
        if not classes:
            self._mean, self._unit = float(np.mean(y)), float(np.std(y)) or 1.0
        self._y = y.astype(np.intp) if classes else (y - self._mean) / self._unit
        self._base = self._start()
        self._scores = np.repeat(self._base[:, None], len(y), axis=1)
        self._trees: list[tuple[Array, Floats]] = []
        self._kept = 1
        self.gains = np.zeros(X.shape[1])

    def _start(self) -> Floats:
        """(sets, outputs): the mean, or the rates of classes as scores."""
        if not self._classes:
            return np.asarray((self._seen @ self._y) / self._seen.sum(axis=1))[:, None]
        counts = self._seen @ np.eye(self._classes)[self._y] + _RAREST
        logs = np.log(counts / counts.sum(axis=1, keepdims=True))
        return np.asarray(logs[:, 1:] - logs[:, :1] if self._classes == 2 else logs)

    def run(self) -> None:
        best = np.inf
        for number in range(1, _MOST_TREES + 1):
            self._grow()
            loss = self._loss(self._scores[self._place, self._rows])
            if loss < best * (1 - _LEAST_GAIN):
                best, self._kept = loss, number
            elif number - self._kept >= _PATIENCE:
                return

    def _slopes(self) -> tuple[Floats, Floats]:
        """What each score should move by, and the curvature of the loss there: (sets, rows, outputs)."""
        z = self._scores
        if not self._classes:
            return self._y[:, None] - z, np.ones_like(z)
        if self._classes == 2:
            p = 1 / (1 + np.exp(-z))
            return self._y[:, None] - p, p * (1 - p)
        p = np.exp(z - z.max(axis=2, keepdims=True))
        p /= p.sum(axis=2, keepdims=True)
        slope = -p
        slope[:, self._rows, self._y] += 1
        return slope, p * (1 - p)

    def _loss(self, z: Floats) -> float:
        if not self._classes:
            return float(((z[:, 0] - self._y) ** 2).mean())
        z = np.hstack([np.zeros_like(z), z]) if self._classes == 2 else z
        top = z.max(axis=1, keepdims=True)
        return float((np.log(np.exp(z - top).sum(axis=1)) + top[:, 0] - z[self._rows, self._y]).mean())

    def _grow(self) -> None:
        """One tree for each set of rows."""
        shape, sets = self._shape, len(self._sets)
        slope, curvature = self._slopes()
        seen = self._seen
        if shape.share < 1:
            seen = seen * (self._rng.random(seen.shape) < shape.share)
        some = np.arange(len(self._feature))
        if len(some) > shape.splits:
            some = np.sort(self._rng.choice(len(some), shape.splits, replace=False))
        weights = np.dstack([self._sketched(slope) * seen[..., None], seen])
        tree, node = self._splits(weights.astype(np.float32), some)
        leaves = 2**shape.depth
        where = (self._sets * leaves + node).ravel()
        ridge = shape.ridge * float(curvature.mean())
        sums = [
            [np.bincount(where, (part[..., k] * seen).ravel(), sets * leaves) for k in range(slope.shape[2])]
            for part in (slope, curvature)
        ]
        values = (np.array(sums[0]) / np.maximum(np.array(sums[1]) + ridge, 1e-12)).T
        if self._classes:
            values = np.clip(values, -_LARGEST_LEAF, _LARGEST_LEAF)
        values = shape.rate * values.reshape(sets, leaves, -1)
        self._scores += values[self._sets, node]
        self._trees.append((tree, values))

    def _sketched(self, slope: Floats) -> Floats:
        """Random sums of the slopes of many classes, drawn anew for each tree: splits are chosen by these."""
        outputs = slope.shape[2]
        if outputs <= _SKETCH:
            return slope
        mixed = self._rng.normal(size=(outputs, _SKETCH)) / np.sqrt(_SKETCH)
        return np.asarray(slope @ mixed)

    def _splits(self, weights: NDArray[np.float32], some: Array) -> tuple[Array, Array]:
        """Splits of every node, level by level (−1: all rows go left), and the leaf of each row."""
        shape, sets, below = self._shape, len(self._sets), self._below
        asked = below[:, some].astype(np.float32)
        node = np.zeros((sets, len(self._rows)), dtype=np.intp)
        tree = np.full((sets, 2**shape.depth - 1), -1)
        left, total = self._sums(weights, node, 1, asked)
        for level in range(shape.depth):
            if level:
                mine, count = self._sums(
                    weights * (node % 2 == 0)[..., None], node // 2, 2**level // 2, asked
                )
                left, total = _children(mine, left), _children(count, total)
            pick, gain = _best(left, total, leaf=shape.leaf, ridge=shape.ridge)
            chosen = np.where(gain > 0, some[pick], -1)
            tree[:, 2**level - 1 : 2 ** (level + 1) - 1] = chosen
            np.add.at(self.gains, self._feature[chosen[-1]], np.maximum(gain[-1], 0.0))
            mine = chosen[self._sets, node]
            node = 2 * node + ((mine >= 0) & ~below[self._rows, mine])
        return tree, node

    def _sums(
        self, weights: NDArray[np.float32], node: Array, nodes: int, asked: NDArray[np.float32]
    ) -> tuple[Array, Array]:
        """(sets, nodes, weights, candidates) below each candidate, and (sets, nodes, weights, 1) of all."""
        sets, rows, kinds = weights.shape
        apart = np.zeros((sets, kinds, nodes * rows), dtype=np.float32)
        where = self._rows + rows * node
        for k in range(kinds):
            apart[self._sets, k, where] = weights[:, :, k]
        below = (apart.reshape(-1, rows) @ asked).reshape(sets, kinds, nodes, -1)
        total = apart.reshape(sets, kinds, nodes, rows).sum(axis=3, keepdims=True)
        return below.swapaxes(1, 2), total.swapaxes(1, 2)

    def model(self, number: int) -> TreeEnsemble:
        """The trees of one set of rows."""
        inner, nodes = 2**self._shape.depth - 1, 2 ** (self._shape.depth + 1) - 1
        trees = self._trees[: self._kept]
        split = np.full((len(trees), nodes), -1)
        split[:, :inner] = [tree[number] for tree, _ in trees]
        value = np.zeros((len(trees), nodes, self._base.shape[1]))
        value[:, inner:] = [values[number] for _, values in trees]
        value *= self._unit
        value[:, inner:] += (self._base[number] * self._unit + self._mean) / self._kept
        place = np.arange(nodes)
        below = np.where(place < inner, 2 * place + 1, place) + nodes * np.arange(len(trees))[:, None]
        arrays = [
            np.where(split >= 0, self._feature[split], 0), below, below + (split >= 0),
            nodes * np.arange(len(trees)), np.array([self._shape.depth]), np.arange(self._columns + 1),
        ]  # fmt: skip
        feature, left, right, roots, depth, edges = (part.astype(np.int32).ravel() for part in arrays)
        threshold = np.where(split >= 0, self._threshold[split], 0).astype(np.float32).ravel()
        value = value.reshape(len(feature), -1)
        return TreeEnsemble(feature, threshold, left, right, value, roots, depth, edges)


def _candidates(X: NDArray[np.float32], rng: np.random.Generator) -> tuple[Array, NDArray[np.float32]]:
    """Columns, and what each is compared with: half-way between values, or at quantiles of many."""
    features, cuts = [], []
    for column, values in enumerate(np.sort(X, axis=0).T):
        levels = values[np.append(True, np.diff(values) > 0)]
        if len(levels) > _CUTS + 1:
            places = np.linspace(0, len(values) - 1, _CUTS + 2)[1:-1].astype(np.intp)
            found = np.unique(values[places])
            found = found[found < levels[-1]]
        else:
            found = (levels[:-1] + levels[1:]) / 2
        features.append(np.full(len(found), column))
        cuts.append(found.astype(np.float32))
    feature, cut = np.concatenate(features), np.concatenate(cuts)
    if not len(feature):  # all rows are alike: a question that all answer in one way
        return np.zeros(1, dtype=np.intp), X[:1, 0].astype(np.float32)
    if len(feature) > _MOST_CANDIDATES:
        some = np.sort(rng.choice(len(feature), _MOST_CANDIDATES, replace=False))
        feature, cut = feature[some], cut[some]
    return feature, cut


def _children(left: Array, parent: Array) -> Array:
    """Sums of left children, and of right ones, which are what is left of their parents'."""
    sets, nodes = left.shape[:2]
    return np.stack([left, parent - left], axis=2).reshape(sets, 2 * nodes, *left.shape[2:])


def _worth(sums: Array, ridge: float) -> Array:
    """Σ slope² / (rows + ridge), by which a leaf lowers the loss."""
    slopes = sums[:, :, 0] ** 2 if sums.shape[2] == 2 else np.square(sums[:, :, :-1]).sum(axis=2)
    return np.asarray(slopes / np.maximum(sums[:, :, -1] + ridge, 1e-6))


def _best(left: Array, total: Array, *, leaf: int, ridge: float) -> tuple[Array, Floats]:
    """The candidate that gains most in each node, and what it gains; at most 0 if none is allowed."""
    right = total - left
    gain = _worth(left, ridge) + _worth(right, ridge) - _worth(total, ridge)
    gain[(left[:, :, -1] < leaf) | (right[:, :, -1] < leaf)] = -1.0
    pick = gain.argmax(axis=2)
    return pick, np.take_along_axis(gain, pick[..., None], axis=2)[..., 0]
