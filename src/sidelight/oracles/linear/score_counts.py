"""How sure is a model, and how often is it right? Counts of private records by the gap of their scores.

The gap is how far the highest score of a record is above the second highest; of two classes with one score z
that is |z|. A record whose label has the highest score, or the second highest, adds 1 to one cell; any other
adds nothing. If probabilities are the softmax of a times the scores, then of the records with gap g the share
1/(1 + exp(−a g)) has the first of the two labels: the counts tell a, and need no more of a record.

Near a gap of 0 a record adds less than 1, in proportion. A row that is orthogonal to whatever the model may
be (one trained in the span of public rows) has a score of rounding alone, and BLAS rounds by the place in a
block: there, one record more would move others from right to wrong.
"""

from __future__ import annotations

import math

import numpy as np

from sidelight.arrays import Array, Floats
from sidelight.data.rows import PrivateRows, contents
from sidelight.losses import Loss
from sidelight.oracles.linear.blocks import RowReader
from sidelight.privacy.events import Relation, check_relation
from sidelight.privacy.release import BoundedSum

__all__ = ["count_gaps", "gaps"]

_NEAR = 1e-3  # of the first interval, in which a record counts in proportion to its gap


def gaps(z: Floats, y: Array) -> tuple[Floats, Array, Array]:
    """The gap of every record, and whether its label is the likeliest or the second.

    z is (n,) with y = ±1, or (n, classes) with y a class index.
    """
    if z.ndim == 1:
        first = np.where(z > 0, 1.0, -1.0)
        return np.abs(z), y == first, y == -first
    order = np.argpartition(z, z.shape[1] - 2, axis=1)[:, -2:]
    two = np.take_along_axis(z, order, axis=1)
    swapped = two[:, 0] > two[:, 1]
    top = np.where(swapped, order[:, 0], order[:, 1])
    second = np.where(swapped, order[:, 1], order[:, 0])
    return np.abs(two[:, 1] - two[:, 0]), y == top, y == second


def count_gaps(
    rows: PrivateRows, weights: Floats, edges: Floats, *, loss: Loss, relation: Relation
) -> BoundedSum:
    """(2·(len(edges) + 1),) counts: of records in each interval of the gap, right ones first, then wrong.

    Args:
        weights: (outputs, p), released or public.
        edges: rising; the first interval begins at 0 and the last has no end.

    Guarantee: a record adds at most 1 to at most one cell, a null record to none. One more or less moves the
    counts by at most 1; one replaced takes 1 from a cell and adds 1 to another, which is √2.
    """
    X, y, norms, null = contents(rows)
    cells = len(edges) + 1
    total = np.zeros(2 * cells)
    near = max(_NEAR * float(edges[0]), float(np.finfo(np.float64).tiny))
    with np.errstate(all="ignore"):  # a warning about a value would be an output
        ignored = null | ~loss.admits(y)
        for block in RowReader(X, y, norms).blocks():
            z = np.asarray(block.X @ weights.T)
            gap, right, wrong = gaps(z[:, 0] if len(weights) == 1 else z, block.y)
            counted = (right | wrong) & np.isfinite(gap) & ~ignored[block.where]
            cell = np.searchsorted(edges, gap, side="right") + cells * wrong
            added = np.minimum(gap[counted] / near, 1.0)
            total += np.bincount(cell[counted], weights=added, minlength=2 * cells)
    reach = 1.0 if check_relation(relation) == "add-or-remove-one" else math.sqrt(2)
    return BoundedSum(total, sensitivity=reach, relation=relation)
