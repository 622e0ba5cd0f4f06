"""Which products of two numbers a model sees beside the numbers themselves.

A linear model of broken lines (`data.features`) adds up an effect of each column. The product of two
numbers, each mapped to [−1, 1] by its own bounds and knots, lets the effect of one depend on the other. It is
a function of one record, and what it needs beforehand is public.

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

from sidelight.arrays import Floats
from sidelight.data.coordinates import bound_rows
from sidelight.data.features import FeaturePlan, encode_target, ranks
from sidelight.data.schema import Schema
from sidelight.methods.task import Method
from sidelight.privacy import conversions
from sidelight.privacy.calibrate import resolve_delta
from sidelight.privacy.events import Relation

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["with_interactions"]

_MOST, _MOST_NOISE = 75, 40.0
_FEWEST_ROWS = 20
_PUBLIC_ALONE = ("only_public", "majority")  # public rows are too few for many more features
_FLOOR = (
    0.05  # of the mean square of a product that the other features already tell: rounding, or little else
)

Pair = tuple[str, str]


def with_interactions(
    schema: Schema,
    public: pd.DataFrame | None,
    *,
    method: Method,
    n: int,
    epsilon: float,
    delta: float | None,
    relation: Relation,
) -> Schema:
    """The schema with its products: those that it declares, or else those that public rows choose."""
    if schema.interactions is not None:
        return schema
    numbers = [name for name, column in schema.used.items() if column.kind == "number"]
    pairs = list(combinations(numbers, 2))
    most = min(_MOST, _room(schema, n=n, epsilon=epsilon, delta=resolve_delta(delta, n), relation=relation))
    if public is None or len(public) < _FEWEST_ROWS or method.name in _PUBLIC_ALONE or most < 1:
        return replace(schema, interactions=())
    chosen = pairs if len(pairs) <= most else _first(schema, public, pairs)[:most]
    return replace(schema, interactions=tuple(chosen))


def _room(schema: Schema, *, n: int, epsilon: float, delta: float, relation: Relation) -> int:
    """How many features more leave ν below its limit."""
    outputs = len(schema.target.classes) if len(schema.target.classes) > 2 else 1
    factor = 1 if relation == "add-or-remove-one" else 2
    one = outputs * factor**2 / (0.3 * n * conversions.gdp_mu(epsilon, delta) ** 2)
    return math.floor(min(_MOST_NOISE / one, 1e9)) - FeaturePlan(schema).size - 1


def _first(schema: Schema, public: pd.DataFrame, pairs: list[Pair]) -> list[Pair]:
    """All pairs, the most promising first."""
    plan = FeaturePlan(schema)
    encoded = plan.encode(public)
    X = bound_rows(
        encoded.astype(np.float64), plan.bounds(), max_norm=math.sqrt(plan.size + 1), private=False
    )
    Y = _targets(schema, public)
    inverse = np.linalg.inv(X.T @ X + np.eye(X.shape[1]))
    weights = inverse @ (X.T @ Y)
    left = Y - X @ weights
    scales = ranks(schema, encoded)
    products = np.stack([scales[a] * scales[b] for a, b in pairs], axis=1)
    alone = products - X @ (inverse @ (X.T @ products))
    lengths = np.sqrt((alone**2).sum(axis=0) + _FLOOR * len(X))
    spread = math.sqrt(float((left**2).sum()) / len(X)) or 1.0
    explained = np.linalg.norm(alone.T @ left, axis=1) / (lengths * spread)  # in standard errors
    effects = {
        name: np.linalg.norm((X[:, at] @ weights[at]).std(axis=0)) for name, at in plan.places().items()
    }
    mattering = np.array([effects[a] * effects[b] for a, b in pairs])
    places = _place(explained) + _place(mattering)
    by_chance = math.sqrt(2 * math.log(len(pairs))) + 1
    places = np.where(explained > by_chance, -explained, places)
    return [pairs[k] for k in np.argsort(places, kind="stable")]


def _place(values: Floats) -> Floats:
    """0 for the largest value, 1 for the next."""
    return np.asarray(np.argsort(np.argsort(-values, kind="stable"), kind="stable"), dtype=np.float64)


def _targets(schema: Schema, public: pd.DataFrame) -> Floats:
    """(rows, outputs), centred: numbers, or a column for each class."""
    target = schema.target
    values = encode_target(schema, public[target.name])
    if target.task == "regression":
        Y = values.astype(np.float64)[:, None] / max(float(np.std(values)), 1e-300)
    else:
        Y = np.stack([values == label for label in target.classes], axis=1).astype(np.float64)
    return np.asarray(Y - Y.mean(axis=0))
