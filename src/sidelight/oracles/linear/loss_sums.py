"""Sums of bounded losses over private records, and counts of right predictions: of one model, or of two.

A person counts as one record, with the mean over the rows that can be used.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from sidelight.arrays import Array, Floats
from sidelight.data.leaves import LeafModel
from sidelight.data.rows import PrivateRows
from sidelight.losses import RAMP, Loss
from sidelight.oracles.linear.leaf_sums import held_rows
from sidelight.oracles.linear.row_sums import RowReader
from sidelight.privacy.events import Relation, check_relation
from sidelight.privacy.release import BoundedSum

Each = Callable[[Array, Array], Floats]  # (rows, k) of what records add


def clipped_losses(
    rows: PrivateRows, weights: Floats, *, loss: Loss, bound: float, relation: Relation
) -> BoundedSum:
    """Σ min(ℓ_i(w), bound), (1,).

    Guarantee: a record, or the mean over a person's usable rows, adds a number in [0, bound], and 0 if it is
    null. One more or less, or one replaced, moves the sum by at most the bound.
    """

    def value(X: Array, y: Array) -> Floats:
        return _value(loss, _scores(X, weights), y)[:, None]

    return _summed(rows, loss, value, np.zeros(1), np.array([bound]), relation)


def loss_differences(
    rows: PrivateRows,
    first: Floats,
    second: Floats,
    *,
    loss: Loss,
    bound: float,
    relation: Relation,
    trees: LeafModel | None = None,
    counted: float = 0.0,
) -> BoundedSum:
    """Σ clip(ℓ_i(first) − ℓ_i(second), ±bound): above 0 where the second model is better.

    `trees` are on top of the second model. With `counted` > 0 the sum has three entries: the other two are
    that number times how many records the first, and the second, model predicts correctly.

    Guarantee: a record, or the mean over a person's usable rows, adds a number in [−bound, bound] and two in
    [0, counted], and 0 if it is null. One more or less moves the sum by at most hypot(bound, √2 counted), one
    replaced by hypot(2 bound, √2 counted).
    """

    def difference(X: Array, y: Array) -> Floats:
        one, two = _scores(X, first), _scores(X, second, trees)
        lower = np.clip(_value(loss, one, y) - _value(loss, two, y), -bound, bound)
        both = [counted * _right(z, y) for z in (one, two)] if counted else []
        return np.stack([lower, *both], axis=1)

    extra = [counted, counted] if counted else []
    low, high = np.array([-bound, *(0.0 for _ in extra)]), np.array([bound, *extra])
    return _summed(rows, loss, difference, low, high, relation)


def _scores(X: Array, weights: Floats, trees: LeafModel | None = None) -> Floats:
    z = np.asarray(X @ weights.T)
    return z if trees is None else z + trees.scores(X)


def _value(loss: Loss, z: Floats, y: Array) -> Floats:
    return np.asarray(loss.value(z if loss.outputs > 1 else z[:, 0], y), dtype=np.float64)


def _right(z: Floats, y: Array) -> Floats:
    """1 for a right class, 0 for a wrong one; a ramp between, far wider than the rounding of a score."""
    if z.shape[1] == 1:
        ahead = y * z[:, 0]
    else:
        own, rest = z[np.arange(len(z)), y], z.copy()
        rest[np.arange(len(z)), y] = -np.inf
        ahead = own - rest.max(axis=1)
    return np.asarray(np.clip(0.5 + ahead / (2 * RAMP), 0, 1))


def _summed(
    rows: PrivateRows, loss: Loss, each: Each, low: Floats, high: Floats, relation: Relation
) -> BoundedSum:
    """The sum over records of what each adds, within [low, high] ∋ 0 by entry; of a person it is the mean."""
    X, y, share = held_rows(rows, loss)
    total, used = np.zeros(len(low)), share > 0
    with np.errstate(all="ignore"):  # a warning about a value would be an output
        for block in RowReader(X, y, share).blocks():
            part = np.clip(np.nan_to_num(each(block.X, block.y), nan=0.0), low, high)
            part *= share[block.where][:, None]
            part[~used[block.where]] = 0
            total += part.sum(axis=0)
    replaced = check_relation(relation) == "replace-one"
    reach = high - low if replaced else np.maximum(np.abs(low), np.abs(high))
    return BoundedSum(total, sensitivity=float(np.linalg.norm(reach)), relation=relation)
