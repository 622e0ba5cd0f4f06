"""Counts of private records by the size of their residual under a released model.

BLAS rounds a score by the row's place in its block, so that one record more moves the last bits of others.
What a record adds is therefore a continuous function of its residual: it is shared between the two nearest
sizes, and what is clipped passes into the last count over a ramp.
"""

from __future__ import annotations

import math

import numpy as np

from sidelight.arrays import Floats
from sidelight.data.leaves import LeafModel
from sidelight.data.rows import PrivateRows, contents
from sidelight.losses import RAMP
from sidelight.oracles.linear.row_sums import RowReader
from sidelight.privacy.events import Relation, check_relation
from sidelight.privacy.release import BoundedSum

__all__ = ["count_residuals"]


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
    size = len(at) + 1
    total = np.zeros(size + 1)
    with np.errstate(all="ignore"):  # a warning about a value would be an output
        for block in RowReader(X, y, norms).blocks():
            z = np.asarray(block.X @ weights.T)
            z = z if trees is None else z + trees.scores(block.X)
            residual = np.abs(block.y - z[:, 0])
            counted = np.isfinite(residual) & ~null[block.where]
            place = np.interp(residual[counted], [0.0, *at], np.arange(float(size)))
            below = np.minimum(place.astype(np.intp), size - 2)
            beyond = _beyond(block.y[counted]) if clipped else np.zeros(len(place))
            total[:size] += np.bincount(below, weights=(1 - beyond) * (1 - place + below), minlength=size)
            total[:size] += np.bincount(below + 1, weights=(1 - beyond) * (place - below), minlength=size)
            total[size] += float(beyond.sum())
    reach = 1.0 if check_relation(relation) == "add-or-remove-one" else math.sqrt(2)
    return BoundedSum(total[1:], sensitivity=reach, relation=relation)


def _beyond(y: Floats) -> Floats:
    """½ for a target of ±1, 0 for any that is shorter by the width of a ramp."""
    return np.asarray(0.5 * np.clip((np.abs(y) - (1 - RAMP)) / RAMP, 0, 1))
