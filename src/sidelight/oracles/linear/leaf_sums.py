"""The private side of leaf boosting: gradients of the loss, summed by the leaves of public trees.

A record is in exactly one leaf of each tree. So what it adds to the sums of K trees has the length √K·‖g‖,
for any number of leaves, where g is the slope of its loss at its present score, clipped to C.

Scores of private records stay here, from one question to the next. They are a function of the record and of
released values: a new worker of a cluster computes them again from the trees.
Rows in memory also keep their answers to all splits, one bit each; rows in blocks answer again each time.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sidelight.arrays import Array, Floats, Mask, Matrix, dense
from sidelight.data.leaves import LeafModel, Splits, answer_blocks, leaves
from sidelight.data.partitions import BlockRows
from sidelight.data.persons import PersonRows, person_contents
from sidelight.data.rows import PrivateRows, blocks_of, contents
from sidelight.losses import Loss
from sidelight.privacy.events import Relation, check_relation
from sidelight.privacy.release import BoundedSum

_BOUND_SHARE = 1 - 64 * float(np.finfo(np.float64).eps)  # clipped vectors end a few ulp below their bound
_numbers = itertools.count()


class LeafOracle:
    """Answers questions about private rows with bounded sums.

    Args:
        coef: (outputs, p) of the linear model below the trees, released or public.
        splits: that trees may ask, public.
        clip: C, the bound on the length of a slope.
    """

    def __init__(self, rows: PrivateRows, loss: Loss, coef: Floats, splits: Splits, *, clip: float) -> None:
        self._rows = rows
        self._subject = _Subject(next(_numbers), loss, coef, splits, clip)

    def leaf_sums(self, model: LeafModel, trees: Array, *, relation: Relation) -> BoundedSum:
        """(K·2^D·outputs,) sums of minus the slopes at the scores of `model`, by the leaves of K trees.

        Guarantee: a record adds a vector of length at most C in each tree, so at most C√K in all, and a
        record that cannot be used adds 0. A person adds the mean over the usable rows, which is no longer
        than the longest. One more or less moves the sums by at most C√K, one replaced by at most 2C√K.
        """
        question = partial(
            _leaf_sums, subject=self._subject, model=model, trees=trees, relation=check_relation(relation)
        )
        return self._rows.summed(question)

    def gain(self, model: LeafModel, *, bound: float, relation: Relation) -> BoundedSum:
        """Σ clip(ℓ_i(line) − ℓ_i(line and trees), ±bound), (1,): above 0 if the trees lower the loss.

        Guarantee: a record, or the mean over a person's usable rows, adds a number in [−bound, bound]. One
        more or less moves the sum by at most the bound, one replaced by at most twice that.
        """
        question = partial(
            _gain, subject=self._subject, model=model, bound=bound, relation=check_relation(relation)
        )
        return self._rows.summed(question)


class HeldRows(NamedTuple):
    """Rows, their targets, what each counts (0 for one that cannot be used)."""

    X: Matrix
    y: Array
    share: Floats


@dataclass(eq=False)
class _State:
    """What is remembered of the rows of one block, or of all."""

    held: HeldRows
    line: Floats  # (n, outputs): the linear score
    trees: Floats  # (n, outputs): that of the trees so far
    bits: NDArray[np.uint8] | None  # (splits / 8, n): packed answers
    done: int = 0  # trees


@dataclass(frozen=True, eq=False)
class _Subject:
    """What all questions of one oracle are about."""

    number: int
    loss: Loss
    coef: Floats
    splits: Splits
    clip: float

    def state(self, rows: PrivateRows, model: LeafModel) -> _State:
        """The scores of all rows under the model."""
        number, found = rows.kept.get("leaves", (None, None))
        state: _State = found
        if number != ("leaves", self.number) or state.done > len(model.trees):
            state = self._begun(rows)
            rows.kept["leaves"] = (("leaves", self.number), state)
        new = LeafModel(model.splits, model.trees[state.done :], model.values[state.done :])
        if len(new.trees):
            self.each(state, new.trees, lambda block, bits, at: new.add_to(state.trees[block], bits, at))
        state.done = len(model.trees)
        return state

    def each(
        self, state: _State, trees: Array, act: Callable[[slice, NDArray[np.uint8], Array], None]
    ) -> None:
        """act(block, answers, places) for every block of rows: those of tree t are at places[t]."""
        which, places = np.unique(trees, return_inverse=True)
        places = places.reshape(trees.shape)
        if state.bits is None:
            for block, bits in answer_blocks(self.splits, state.held.X, which):
                act(block, bits, places)
            return
        for start in range(0, len(state.line), _ROWS):
            block = slice(start, start + _ROWS)
            packed = state.bits[which // 8, block] >> (which % 8).astype(np.uint8)[:, None]
            act(block, packed & np.uint8(1), places)

    def _begun(self, rows: PrivateRows) -> _State:
        held = held_rows(rows, self.loss)
        n = held.X.shape[0]
        line = np.empty((n, len(self.coef)))
        for block in blocks_of(*held.X.shape):
            line[block] = dense(held.X[block]).astype(np.float64, copy=False) @ self.coef.T
        bits = None
        if not isinstance(rows, BlockRows):
            bits = np.empty((-(-len(self.splits) // 8), n), dtype=np.uint8)
            for block, answers in answer_blocks(self.splits, held.X, np.arange(len(self.splits))):
                bits[:, block] = np.packbits(answers, axis=0, bitorder="little")
        return _State(held, line, np.zeros_like(line), bits)


_ROWS = 1 << 14  # whose answers and leaves stay in cache


def held_rows(rows: PrivateRows, loss: Loss) -> HeldRows:
    """Records, each of which counts 1, or the rows of persons, which count 1 together; 0 if unusable."""
    if isinstance(rows, PersonRows):
        (X, y, _, null), order, offsets = person_contents(rows)
        usable = ~(null | ~loss.admits(y))
        owner = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
        counts = np.bincount(owner, weights=usable[order], minlength=len(offsets) - 1)
        share = np.zeros(len(y))
        share[order] = 1 / np.maximum(counts, 1)[owner]
        share[~usable] = 0
    else:
        X, y, _, null = contents(rows)
        usable = ~(null | ~loss.admits(y))
        share = usable.astype(np.float64)
    targets = np.where(usable, y, 0)
    return HeldRows(X, targets.astype(np.intp) if loss.task == "multiclass" else targets, share)


def _leaf_sums(
    rows: PrivateRows, *, subject: _Subject, model: LeafModel, trees: Array, relation: Relation
) -> BoundedSum:
    count = 2 ** trees.shape[1]
    total = np.zeros((len(trees), count, len(subject.coef)))

    def add(block: slice, bits: NDArray[np.uint8], places: Array) -> None:
        slopes = _slopes(subject, state, block)
        for tree, sums in zip(places, total, strict=True):
            where = leaves(bits, tree)
            for k in range(slopes.shape[1]):
                sums[:, k] -= np.bincount(where, weights=slopes[:, k], minlength=count)

    with np.errstate(all="ignore"):  # a warning about a value would be an output
        state = subject.state(rows, model)
        subject.each(state, trees, add)
    reach = subject.clip * math.sqrt(len(trees)) * _factor(relation)
    return BoundedSum(total.reshape(-1), sensitivity=reach, relation=relation)


def _slopes(subject: _Subject, state: _State, block: slice) -> Floats:
    """(rows, outputs): slopes of length at most C, times what the row counts."""
    share = state.held.share[block]
    slopes = _slope(subject.loss, state.line[block] + state.trees[block], state.held.y[block])
    lengths = np.abs(slopes[:, 0]) if slopes.shape[1] == 1 else np.sqrt((slopes**2).sum(axis=1))
    bound = subject.clip * _BOUND_SHARE
    factors = share * np.minimum(1.0, bound / np.maximum(lengths, bound))
    unusable: Mask = ~np.isfinite(lengths) | (share == 0)
    slopes[unusable], factors[unusable] = 0, 0
    return np.asarray(slopes * factors[:, None])


def _gain(
    rows: PrivateRows, *, subject: _Subject, model: LeafModel, bound: float, relation: Relation
) -> BoundedSum:
    with np.errstate(all="ignore"):
        state = subject.state(rows, model)
        y, loss = state.held.y, subject.loss
        gain = _value(loss, state.line, y) - _value(loss, state.line + state.trees, y)
        gain = np.clip(np.nan_to_num(gain, nan=0.0), -bound, bound)
        total = np.array([float((state.held.share * gain).sum())])
    return BoundedSum(total, sensitivity=bound * _factor(relation), relation=relation)


def _factor(relation: Relation) -> float:
    return 1.0 if relation == "add-or-remove-one" else 2.0


def _slope(loss: Loss, z: Floats, y: Array) -> Floats:
    slope = loss.slope(z if loss.outputs > 1 else z[:, 0], y)
    return np.array(slope, dtype=np.float64).reshape(len(z), -1)


def _value(loss: Loss, z: Floats, y: Array) -> Floats:
    return np.asarray(loss.value(z if loss.outputs > 1 else z[:, 0], y), dtype=np.float64)
