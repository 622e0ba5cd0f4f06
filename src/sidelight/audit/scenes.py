"""Small synthetic problems for audits, with their raw arrays at hand so that one record can be changed.

Nothing here is anybody's data: an audit that shows how far a record moves a sum must not be run on records
that need protection.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import scipy.sparse as sp
from numpy.typing import ArrayLike

from sidelight.arrays import Floats, Mask, Matrix
from sidelight.data.rows import PrivateRows, PublicRows
from sidelight.losses import Loss, Softmax, get_loss
from sidelight.methods.task import Task
from sidelight.privacy.events import Relation

__all__ = ["Scene", "broken", "canaries", "extremes", "neighbouring", "null", "scene", "worst"]

ADD_REMOVE: Relation = "add-or-remove-one"
REPLACE: Relation = "replace-one"
CHANGED = 3  # the record in which neighbours differ


@dataclass(frozen=True, eq=False)
class Scene:
    """Private and public arrays before they are bounded. The last column is the intercept's."""

    X: Matrix
    y: Floats
    X_public: Matrix
    y_public: Floats
    loss: Loss
    epsilon: float = 3.0
    delta: float = 1e-5
    regularization: float = 0.0

    def task(self, relation: Relation) -> Task:
        return Task(
            rows=PrivateRows(self.X, self.y, max_norm=1.0, admits=self.loss.admits),
            public=PublicRows(self.X_public, self.y_public),
            loss=self.loss,
            epsilon=self.epsilon,
            delta=self.delta,
            relation=relation,
            regularization=self.regularization,
            target_bound=1.0 if self.loss.task == "regression" else None,
        )

    def with_record(self, x: ArrayLike, y: float) -> Scene:
        """The same, but for one record."""
        X, targets = np.array(self.X), np.array(self.y)
        with np.errstate(over="ignore"):  # 1e300 is infinite in float32
            X[CHANGED], targets[CHANGED] = x, y
        return replace(self, X=X, y=targets)

    def sparse(self) -> Scene:
        """The same records, as CSR."""
        return replace(self, X=sp.csr_array(self.X), X_public=sp.csr_array(self.X_public))


def scene(loss: str = "logistic", *, n: int = 44, n_public: int = 10, p: int = 4, seed: int = 0) -> Scene:
    """Nearly separable records of norm at most 1."""
    made = Softmax(3) if loss == "softmax" else get_loss(loss)
    X, y = _records(n, p, made, np.random.default_rng(seed))
    X_public, y_public = _records(n_public, p, made, np.random.default_rng(seed + 1))
    return Scene(X, y, X_public, y_public, made)


def _records(n: int, p: int, loss: Loss, rng: np.random.Generator) -> tuple[Floats, Floats]:
    X = rng.standard_normal((n, p))
    X[:, -1] = 0.5
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    if loss.task == "multiclass":
        return X, np.argmax(X[:, :3], axis=1).astype(float)
    z = X @ np.linspace(2, 1, p)
    if loss.task == "regression":
        return X, np.clip(0.4 * z, -1, 1)
    return X, np.where(z > 0, 1.0, -1.0)


# ---------------------------------------------------------------------------------------------------
# neighbours


def null(base: Scene) -> Scene:
    """The scene without the record: what add-or-remove-one compares with, at a public n."""
    return base.with_record(0.0, 0.0)


def worst(base: Scene) -> tuple[Floats, float]:
    """A record as an adversary would choose it: far away, and on the wrong side."""
    p = base.X.shape[1]
    x = np.full(p, -100.0)
    return x, {"multiclass": 2.0, "regression": 1.0, "binary": 1.0}[base.loss.task]


def neighbouring(base: Scene, relation: Relation) -> tuple[Scene, list[Scene]]:
    """A scene and several neighbours of it: adversarial, ordinary and broken records in the same position."""
    p = base.X.shape[1]
    x, y = worst(base)
    first = np.eye(p)[0]
    records: list[tuple[ArrayLike, float]] = [
        (base.X[CHANGED], float(base.y[CHANGED])),
        (first, y),
        (-first, y),
    ]
    records += [(np.full(p, np.nan), y), (np.full(p, 1e300), y), (first, np.nan), (0.0, 0.0)]
    if base.loss.task == "regression":
        records.append((x, -y))
    else:
        records.append((-x, 0.0 if base.loss.task == "multiclass" else y))
    if relation == ADD_REMOVE:
        return null(base), [base.with_record(*record) for record in [*records, (x, y)]]
    return base.with_record(x, y), [base.with_record(*record) for record in records]


def broken(base: Scene) -> Iterator[Scene]:
    """The scene with a record that cannot be used; all of these are the same to a method."""
    p = base.X.shape[1]
    yield base.with_record(np.full(p, np.nan), 1.0)
    yield base.with_record([np.inf, *[0.0] * (p - 1)], 1.0)
    yield base.with_record(np.full(p, 0.5), np.nan)
    if base.loss.task != "regression":
        yield base.with_record(np.full(p, 0.5), 17.0)


def extremes(base: Scene, relation: Relation, direction: Floats | None = None) -> tuple[Scene, Scene]:
    """Two neighbours that are as easy to tell apart as can be: one record among records that say nothing.

    All other records are null, so that only noise hides the record, which has norm 1 and lies along
    `direction` (default: the first axis); under replace-one it is one record or its opposite.
    """
    p = base.X.shape[1]
    empty = replace(base, X=np.zeros_like(base.X), y=np.zeros_like(base.y))
    x = np.eye(p)[0] if direction is None or np.size(direction) < p else np.ravel(direction)[:p]
    x = x / max(float(np.linalg.norm(x)), 1e-12)
    low = 0.0 if base.loss.task == "multiclass" else -1.0
    first = null(empty) if relation == ADD_REMOVE else empty.with_record(x, low)
    return first, empty.with_record(x, 1.0)


def canaries(base: Scene, relation: Relation, present: Mask) -> Scene:
    """One canary for each entry of `present`, each in a direction of its own, which public records avoid.

    An absent canary is null under add-or-remove-one, and has the other label under replace-one.
    """
    m, width = len(present), base.X_public.shape[1]
    low = 0.0 if base.loss.task == "multiclass" or relation == ADD_REMOVE else -1.0
    X = np.zeros((m, m + width))
    X[np.arange(m), np.arange(m)] = 1.0
    if relation == ADD_REMOVE:
        X[~present] = 0.0
    y = np.where(present, 1.0, low)
    X_public = np.hstack([np.zeros((len(base.y_public), m)), base.X_public])
    return replace(base, X=X, y=y, X_public=X_public)
