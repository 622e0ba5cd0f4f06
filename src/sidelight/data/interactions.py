"""Which products of two numbers a model sees, found on public rows.

A linear model of broken lines adds up an
effect of each column; the product of two numbers, each mapped to [−1, 1] by its own bounds and knots, lets
the effect of one depend on the other. It is a function of one record, and what it needs beforehand is public.
A product is one feature more, and noise grows with their number. In units of the variance of a mean of n
gradients that of the noise is

    ν = p k² / (0.3 n μ²) ,  p features times outputs, k = 1 or 2 by the relation,

which is known before training. Products are added as long as ν stays below 40, and at most 75 of them. Those
that come first are found on the public rows: products that explain what a model without them leaves over, by
more than so many do by chance; then the sum of two ranks decides, how well a product explains that, and how
much its two columns matter in the model.
"""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import combinations
from typing import TYPE_CHECKING

import numpy as np

from sidelight.arrays import Array, Floats
from sidelight.data.coordinates import bound_rows
from sidelight.data.features import FeaturePlan, ranks
from sidelight.data.schema import (
    Schema,
)
from sidelight.privacy import conversions
from sidelight.privacy.events import Relation

if TYPE_CHECKING:
    import pandas as pd


_MOST_PRODUCTS, _MOST_NOISE = 75, 40.0
_FEWEST_ROWS = 20
_PUBLIC_ALONE = ("only_public", "majority")  # public rows are too few for many more features
_FLOOR = (
    0.05  # of the mean square of a product that the other features already tell: rounding, or little else
)

Pair = tuple[str, str]


def with_interactions(
    schema: Schema,
    public: pd.DataFrame | None,
    y: Array | None,
    *,
    method: str,
    n: int,
    epsilon: float,
    delta: float,
    relation: Relation,
    unlabeled: int = 0,
    classes: int = 0,
) -> Schema:
    """The schema with its products: those that it declares, or else those that public rows choose.

    Without targets it is all of them, if there is room for all.

    Args:
        public, y: public rows, and their targets: labels, or numbers.
        method: the name of the method that will train the model.
        n: private records, or persons.
        unlabeled: public rows without a target.
        classes: how many there are, if neither the schema nor y says so.
    """
    if schema.interactions is not None:
        return schema
    labeled = 0 if public is None or y is None else len(y)
    if labeled + unlabeled < _FEWEST_ROWS or method in _PUBLIC_ALONE:
        return replace(schema, interactions=())
    numbers = [name for name, column in schema.used.items() if column.kind == "number"]
    pairs = list(combinations(numbers, 2))
    outputs = 1
    if schema.target.task == "classification":
        outputs = len(schema.target.classes) or classes or (0 if y is None else len(np.unique(y)))
    room = _room(schema, outputs, n=n, epsilon=epsilon, delta=delta, relation=relation)
    most = min(_MOST_PRODUCTS, max(room, 0))
    if len(pairs) <= most:
        return replace(schema, interactions=tuple(pairs))
    if public is None or y is None or labeled < _FEWEST_ROWS:
        return replace(schema, interactions=())
    return replace(schema, interactions=tuple(_ranked(schema, public, y, pairs)[:most] if most else []))


def _room(schema: Schema, classes: int, *, n: int, epsilon: float, delta: float, relation: Relation) -> int:
    """How many more features keep ν below its limit."""
    outputs = classes if classes > 2 else 1
    factor = 1 if relation == "add-or-remove-one" else 2
    one = outputs * factor**2 / (0.3 * n * conversions.gdp_mu(epsilon, delta) ** 2)
    return math.floor(min(_MOST_NOISE / one, 1e9)) - FeaturePlan(schema).size - 1


def _ranked(schema: Schema, public: pd.DataFrame, y: Array, pairs: list[Pair]) -> list[Pair]:
    """All pairs, the most promising first."""
    plan = FeaturePlan(schema)
    encoded = plan.encode(public)
    X = bound_rows(
        encoded.astype(np.float64), plan.bounds(), max_norm=math.sqrt(plan.size + 1), private=False
    )
    Y = _targets(y, schema.target.task == "regression")
    inverse = np.linalg.inv(X.T @ X + np.eye(X.shape[1]))
    weights = inverse @ (X.T @ Y)
    left = Y - X @ weights
    scales = ranks(schema, encoded)
    products = np.stack([scales[a] * scales[b] for a, b in pairs], axis=1)
    apart = products - X @ (inverse @ (X.T @ products))
    lengths = np.sqrt((apart**2).sum(axis=0) + _FLOOR * len(X))
    spread = math.sqrt(float((left**2).sum()) / len(X)) or 1.0
    explained = np.linalg.norm(apart.T @ left, axis=1) / (lengths * spread)  # in standard errors
    effects = {
        name: np.linalg.norm((X[:, at] @ weights[at]).std(axis=0)) for name, at in plan.places().items()
    }
    mattering = np.array([effects[a] * effects[b] for a, b in pairs])
    places = _place(explained) + _place(mattering)
    by_chance = math.sqrt(2 * math.log(len(pairs))) + 1
    places = np.where(explained > by_chance, -explained, places)
    return [pairs[k] for k in np.argsort(places, kind="stable")]


def _place(values: Floats) -> Floats:
    """The rank of each value: 0 for the largest, 1 for the next."""
    return np.asarray(np.argsort(np.argsort(-values, kind="stable"), kind="stable"), dtype=np.float64)


def _targets(y: Array, regression: bool) -> Floats:
    """(rows, outputs), centered: numbers, or a column for each class."""
    if regression:
        Y = y.astype(np.float64)[:, None] / max(float(np.std(y)), 1e-300)
    else:
        Y = np.stack([y == label for label in np.unique(y)], axis=1).astype(np.float64)
    return np.asarray(Y - Y.mean(axis=0))
