"""Counts of private records by how sure a released model is of them, and by how far it is off.

The *gap* of a record is how far the highest score is above the second highest; of two classes with one score
z that is |z|. A record whose label has the highest score, or the second highest, is counted at its gap; any
other is not. If probabilities are the softmax of a times the scores, then of the records with gap g the share
1/(1 + exp(−a g)) has the first of the two labels: the counts tell a, and need no more of a record.

The *residual* of a record is |target − score|.

BLAS rounds a score by the row's place in its block, so that one record more moves the last bits of others.
What a record adds is therefore a continuous function of its scores: it is shared between the two nearest
sizes, 0 where the two highest scores tie or the second ties with the third, and what is clipped passes into
the last count over a ramp.
"""

from __future__ import annotations

import math

import numpy as np

from sidelight.arrays import Array, Floats
from sidelight.data.leaves import LeafModel
from sidelight.data.rows import PrivateRows, contents
from sidelight.losses import RAMP, Loss
from sidelight.oracles.linear.row_sums import RowReader
from sidelight.privacy.events import Relation, check_relation
from sidelight.privacy.release import BoundedSum


def gaps(z: Floats, y: Array) -> tuple[Floats, Floats, Array, Array]:
    """The gap of every record, how far the second score is above the third (∞ if there is none), and whether
    the label is the likeliest or the second.

    z is (n,) with y = ±1, or (n, classes) with y a class index.
    """
    if z.ndim == 1:
        first = np.where(z > 0, 1.0, -1.0)
        return np.abs(z), np.full(len(z), np.inf), y == first, y == -first
    three = np.argpartition(z, max(z.shape[1] - 3, 0), axis=1)[:, -3:]
    order = np.argsort(np.take_along_axis(z, three, axis=1), axis=1)[:, ::-1]
    label = np.take_along_axis(three, order, axis=1)
    score = np.take_along_axis(z, label, axis=1)
    clear = score[:, 1] - score[:, 2] if z.shape[1] > 2 else np.full(len(z), np.inf)
    return score[:, 0] - score[:, 1], clear, y == label[:, 0], y == label[:, 1]


def count_gaps(
    rows: PrivateRows, weights: Floats, at: Floats, *, loss: Loss, relation: Relation
) -> BoundedSum:
    """(2·len(at),) counts of records around these gaps, right ones first, then wrong.

    A record with its gap between two of them is shared so that the mean gap is its own. Below the first the
    share of a gap of 0 is left out; above the last all of it goes there.

    Args:
        weights: (outputs, p), released or public.
        at: positive and rising.

    Guarantee: a record adds nothing below 0 and no more than 1 in all, so a vector of length at most 1; a
    null record adds 0. One more or less moves the counts by at most 1; one replaced by at most √2, since two
    vectors without negative entries are at most at a right angle. If scores are rounded by e, what a record
    adds moves by at most 6 e/d, with d the least distance between two of 0 and `at`.
    """
    X, y, norms, null = contents(rows)
    total = np.zeros((2, len(at) + 1))
    with np.errstate(all="ignore"):  # a warning about a value would be an output
        ignored = null | ~loss.admits(y)
        for block in RowReader(X, y, norms).blocks():
            z = np.asarray(block.X @ weights.T)
            gap, clear, right, wrong = gaps(z[:, 0] if len(weights) == 1 else z, block.y)
            counted = (right | wrong) & np.isfinite(gap) & ~ignored[block.where]
            mass = np.where(counted, np.minimum(clear / at[0], 1.0), 0.0)
            for cells, which in zip(total, (right, wrong), strict=True):
                cells += _shared(gap[counted & which], at, mass[counted & which])
    reach = 1.0 if check_relation(relation) == "add-or-remove-one" else math.sqrt(2)
    return BoundedSum(total[:, 1:].reshape(-1), sensitivity=reach, relation=relation)


def _shared(sizes: Floats, at: Floats, mass: Floats) -> Floats:
    """(1 + len(at),): masses around 0 and `at`, each shared so that the mean size is its own."""
    cells = len(at) + 1
    place = np.interp(sizes, [0.0, *at], np.arange(float(cells)))
    below = np.minimum(place.astype(np.intp), cells - 2)
    total = np.bincount(below, weights=mass * (1 - place + below), minlength=cells)
    return np.asarray(total + np.bincount(below + 1, weights=mass * (place - below), minlength=cells))


def count_residuals(
    rows: PrivateRows,
    weights: Floats,
    at: Floats,
    *,
    relation: Relation,
    trees: LeafModel | None = None,
    clipped: bool,
) -> BoundedSum:
    """(len(at) + 1,) counts of records with |y − score| around these sizes, and beyond all of them.

    A record between two sizes is shared so that the mean size is its own. Below the first the share of a size
    of 0 is left out; above the last all of it goes there.

    Args:
        weights: (1, p), released or public; `trees` on top of them as well.
        at: positive and rising.
        clipped: whether a target of ±1 stands for any beyond. Half of such a record is in the last count.

    Guarantee: a record adds nothing below 0 and no more than 1 in all, so a vector of length at most 1; a
    null record adds 0. One more or less moves the counts by at most 1; one replaced by at most √2, since two
    vectors without negative entries are at most at a right angle.
    """
    X, y, norms, null = contents(rows)
    total = np.zeros(len(at) + 2)
    with np.errstate(all="ignore"):  # a warning about a value would be an output
        for block in RowReader(X, y, norms).blocks():
            z = np.asarray(block.X @ weights.T)
            z = z if trees is None else z + trees.scores(block.X)
            residual = np.abs(block.y - z[:, 0])
            counted = np.isfinite(residual) & ~null[block.where]
            beyond = _beyond(block.y[counted]) if clipped else np.zeros(counted.sum())
            total[:-1] += _shared(residual[counted], at, 1 - beyond)
            total[-1] += float(beyond.sum())
    reach = 1.0 if check_relation(relation) == "add-or-remove-one" else math.sqrt(2)
    return BoundedSum(total[1:], sensitivity=reach, relation=relation)


def _beyond(y: Floats) -> Floats:
    """½ for a target of ±1, 0 for any that is shorter by the width of a ramp."""
    return np.asarray(0.5 * np.clip((np.abs(y) - (1 - RAMP)) / RAMP, 0, 1))
