"""Trees whose splits are public and whose leaves were learned: a piecewise constant score, held as arrays.

Every tree is oblivious: it asks the same D yes/no questions of every record, and the answers are the bits of
its leaf's number. A question compares a sum of columns with a threshold:

    a number      the sum of its ramps, which rises with it, and a threshold between two public values
    a category    the sum of the columns of some of its categories: is the record in one of them?

Rows are scaled to a bounded norm together with the intercept's column. So a sum is compared with the
threshold times that column, and the answer is that of the row before it was scaled. Columns are added one
after the other, element by element: the answer for a record does not depend on the rows around it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from sidelight.arrays import Array, Floats, Matrix, dense
from sidelight.data.rows import blocks_of

Indices = NDArray[np.int32]
_AT_ONCE = 32  # trees
_ARRAYS = ("columns", "starts", "sets", "thresholds", "trees", "values")


@dataclass(frozen=True)
class ColumnGroup:
    """Columns of a row that belong to one column of the table.

    kind: "sum" for the ramps of a number, "subset" for 0/1 columns of categories, "each" for others.
    """

    columns: tuple[int, ...]
    kind: Literal["sum", "subset", "each"] = "each"


@dataclass(frozen=True, eq=False)
class Splits:
    """Yes/no questions about a bounded row.

    Args:
        columns, starts: set k of columns is columns[starts[k]:starts[k + 1]].
        sets: which set each split sums.
        thresholds: what the sum is compared with, times the intercept's column if there is one.
        intercept: whether the last column of a row is the intercept's.
    """

    columns: Indices
    starts: Indices
    sets: Indices
    thresholds: Floats
    intercept: bool

    def __len__(self) -> int:
        return len(self.thresholds)

    def answers(self, X: Array, which: Array) -> NDArray[np.uint8]:
        """(len(which), n) zeros and ones for the splits at `which`."""
        across = np.ascontiguousarray(X.T, dtype=np.float64)
        out = np.empty((len(which), X.shape[0]), dtype=np.uint8)
        sums = {int(k): self._sum(across, int(k)) for k in np.unique(self.sets[which])}
        for place, split in enumerate(which):
            limit = self.thresholds[split]
            out[place] = sums[int(self.sets[split])] > (limit * across[-1] if self.intercept else limit)
        return out

    def _sum(self, across: Floats, number: int) -> Floats:
        total = np.zeros(across.shape[1])
        for column in self.columns[self.starts[number] : self.starts[number + 1]]:
            total += across[column]
        return total


def answer_blocks(splits: Splits, X: Matrix, which: Array) -> Iterator[tuple[slice, NDArray[np.uint8]]]:
    """Answers of all rows, block by block."""
    for block in blocks_of(*X.shape):
        yield block, splits.answers(dense(X[block]), which)


@dataclass(frozen=True, eq=False)
class LeafModel:
    """Trees with D splits each; values are (trees, 2^D, outputs) and are added to a linear score."""

    splits: Splits
    trees: Indices  # (trees, D): splits
    values: Floats

    def scores(self, X: Matrix) -> Floats:
        """(n, outputs) for bounded rows."""
        out = np.zeros((X.shape[0], self.values.shape[2]))
        which, places = np.unique(self.trees, return_inverse=True)
        if not len(which):
            return out
        for block, bits in answer_blocks(self.splits, X, which):
            self.add_to(out[block], bits, places.reshape(self.trees.shape))
        return out

    def add_to(self, out: Floats, bits: NDArray[np.uint8], places: Array) -> None:
        """Add the scores of rows whose answers are `bits`, among which those of tree t are at places[t]."""
        trees, count, outputs = self.values.shape
        for start in range(0, trees, _AT_ONCE):
            some = slice(start, start + _AT_ONCE)
            where = leaves_of_trees(bits, places[some])
            where += count * np.arange(len(where))[:, None]
            for part in self.values[some].reshape(-1, outputs).take(where, axis=0):
                out += part  # tree by tree: a sum over an axis rounds by how many rows there are

    def times(self, factor: float) -> LeafModel:
        """The same trees, with scores that are so many times as large."""
        return LeafModel(self.splits, self.trees, factor * self.values)

    def of_two_classes(self) -> LeafModel:
        """The score of the second class over the first."""
        return LeafModel(self.splits, self.trees, self.values[..., 1:] - self.values[..., :1])

    def joined(self, trees: Indices, values: Floats) -> LeafModel:
        """These trees, and more of them behind."""
        return LeafModel(
            self.splits, np.concatenate([self.trees, trees]), np.concatenate([self.values, values])
        )

    # -----------------------------------------------------------------------------------------------
    # to a folder and back

    def to_arrays(self) -> dict[str, Array]:
        """Everything that the scores depend on."""
        held = {name: getattr(self.splits, name) for name in _ARRAYS[:4]}
        held |= {"trees": self.trees, "values": self.values, "intercept": np.array([self.splits.intercept])}
        return {f"leaves.{name}": np.ascontiguousarray(array) for name, array in held.items()}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Array], *, p: int, outputs: int) -> LeafModel | None:
        """The model among these arrays, if there is one; ValueError for arrays that do not fit together."""
        if "leaves.values" not in arrays:
            return None
        columns, starts, sets, thresholds, trees, values = (arrays[f"leaves.{name}"] for name in _ARRAYS)
        fits = (
            _within(columns, p) and _within(sets, len(starts) - 1) and _within(trees, len(thresholds))
            and _rising(starts, len(columns)) and len(sets) == len(thresholds) and trees.ndim == 2
            and values.shape == (len(trees), 2 ** trees.shape[1], outputs) and np.isfinite(values).all()
        )  # fmt: skip
        if not fits:
            raise ValueError("trees whose arrays do not fit together")
        splits = Splits(columns, starts, sets, thresholds, bool(arrays["leaves.intercept"][0]))
        return cls(splits, trees, np.asarray(values, dtype=np.float64))


def leaves(bits: NDArray[np.uint8], tree: Array) -> NDArray[np.intp]:
    """The leaf of every record, of a tree with these splits."""
    return np.asarray(leaves_of_trees(bits, tree[None])[0])


def leaves_of_trees(bits: NDArray[np.uint8], trees: Array) -> NDArray[np.intp]:
    """(trees, n): the leaf of every record in each tree. Bytes while they suffice: a quarter of the time."""
    count, depth = trees.shape
    found = np.zeros((count, bits.shape[1]), dtype=np.uint8 if depth <= 8 else np.intp)
    for place in range(depth):
        found |= bits.take(trees[:, place], axis=0).astype(found.dtype, copy=False) << place
    return found.astype(np.intp)


def _within(indices: Array, count: int) -> bool:
    return indices.dtype.kind == "i" and (not indices.size or 0 <= indices.min() <= indices.max() < count)


def _rising(starts: Array, end: int) -> bool:
    return bool(
        starts.dtype.kind == "i" and len(starts) and starts[0] == 0 and starts[-1] == end
        and (np.diff(starts) >= 0).all()
    )  # fmt: skip
