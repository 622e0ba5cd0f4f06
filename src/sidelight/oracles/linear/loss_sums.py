"""Sums of bounded losses over private records: of one model, and of two against each other."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from sidelight.arrays import Array, Floats
from sidelight.data.leaves import LeafModel
from sidelight.data.rows import PrivateRows, contents
from sidelight.losses import Loss
from sidelight.oracles.linear.row_sums import RowReader
from sidelight.privacy.events import Relation, check_relation
from sidelight.privacy.release import BoundedSum

__all__ = ["clipped_losses", "loss_differences"]


def clipped_losses(
    rows: PrivateRows, weights: Floats, *, loss: Loss, bound: float, relation: Relation
) -> BoundedSum:
    """Σ min(ℓ_i(w), bound), (1,).

    Guarantee: a record adds a number in [0, bound], and 0 if it is null. One more or less, or one replaced,
    moves the sum by at most the bound.
    """
    return _summed(
        rows, loss, lambda X, y: np.clip(_value(loss, X, y, weights), 0, bound), bound, relation, signed=False
    )


def loss_differences(
    rows: PrivateRows,
    first: Floats,
    second: Floats,
    *,
    loss: Loss,
    bound: float,
    relation: Relation,
    trees: LeafModel | None = None,
) -> BoundedSum:
    """Σ clip(ℓ_i(first) − ℓ_i(second), ±bound), (1,): above 0 where the second model is better.

    `trees` are on top of the second model.

    Guarantee: a record adds a number in [−bound, bound], and 0 if it is null. One more or less moves the sum
    by at most the bound, one replaced by at most twice that.
    """

    def difference(X: Array, y: Array) -> Floats:
        return np.clip(_value(loss, X, y, first) - _value(loss, X, y, second, trees), -bound, bound)

    return _summed(rows, loss, difference, bound, relation, signed=True)


def _value(loss: Loss, X: Array, y: Array, weights: Floats, trees: LeafModel | None = None) -> Floats:
    z = np.asarray(X @ weights.T)
    if trees is not None:
        z += trees.scores(X)
    return np.asarray(loss.value(z if len(weights) > 1 else z[:, 0], y), dtype=np.float64)


def _summed(
    rows: PrivateRows,
    loss: Loss,
    each: Callable[[Array, Array], Floats],
    bound: float,
    relation: Relation,
    *,
    signed: bool,
) -> BoundedSum:
    X, y, norms, null = contents(rows)
    total = 0.0
    with np.errstate(all="ignore"):  # a warning about a value would be an output
        ignored = null | ~loss.admits(y)
        targets = np.where(ignored, 0, y).astype(np.intp) if loss.task == "multiclass" else y
        for block in RowReader(X, targets, norms).blocks():
            part = np.nan_to_num(each(block.X, block.y), nan=0.0, posinf=bound, neginf=-bound)
            part[ignored[block.where]] = 0
            total += float(part.sum())
    replaced = check_relation(relation) == "replace-one"
    reach = 2 * bound if replaced and signed else bound
    return BoundedSum(np.array([total]), sensitivity=reach, relation=relation)
