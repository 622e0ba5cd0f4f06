"""How good is the model, as far as public rows can tell? A part of them is held out before the fit.

The score of the model and that of `only_public`, trained on the same other public rows, are compared row by
row, so that the error of the difference is smaller than that of each. Nothing private is read.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from sidelight.arrays import Json
from sidelight.data.schema import Schema
from sidelight.errors import InputError
from sidelight.estimator_base import PrivateLinear
from sidelight.tables.features import FeaturePlan, encode_target

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Split", "scores", "split"]

_FEWEST = 50  # public rows; of fewer, none is held out
_MOST_HELD_OUT = 5_000


@dataclass(frozen=True, eq=False)
class Split:
    """Public rows for the fit, and those held out to score it."""

    fit: pd.DataFrame | None = None
    held_out: pd.DataFrame | None = None

    @property
    def held_out_rows(self) -> int:
        return 0 if self.held_out is None else len(self.held_out)


def split(schema: Schema, public: pd.DataFrame | None, share: float) -> Split:
    """Held out at random, the same rows each time."""
    if not 0 <= share < 1:
        raise InputError(f"validation is a share of the public rows, from 0 to below 1, not {share!r}")
    if public is None:
        return Split()
    size = min(int(len(public) * share), _MOST_HELD_OUT)
    if len(public) < _FEWEST or size == 0:
        return Split(fit=public)
    order = np.random.default_rng(0).permutation(len(public))  # of public rows: nothing to hide
    return Split(public.iloc[np.sort(order[size:])], public.iloc[np.sort(order[:size])])


def scores(model: PrivateLinear, schema: Schema, parts: Split) -> Json:
    """Name, score of the model, score of only_public, standard errors, rows; {} if none was held out."""
    if parts.held_out is None:
        return {}
    classify = schema.target.task == "classification"
    mine = _points(model, schema, parts.held_out)
    result: Json = {"name": "accuracy" if classify else "mean_squared_error", "rows": len(mine)}
    result |= _mean_and_error("public_validation", mine, 1.0 if classify else float(mine.max()))
    is_only_public = "only_public" in (model.privacy_.method, model.privacy_.details.get("chosen"))
    only_public = None if is_only_public or parts.fit is None else _only_public(model, schema, parts.fit)
    if only_public is not None:
        theirs = _points(only_public, schema, parts.held_out)
        most = 1.0 if classify else float(max(mine.max(), theirs.max()))
        result |= _mean_and_error("only_public", theirs, most)
        result |= _mean_and_error("difference", mine - theirs, most)
    result["note"] = f"on {len(mine)} public rows that were held out; ± is one standard error"
    return result


def _only_public(model: PrivateLinear, schema: Schema, public: pd.DataFrame) -> PrivateLinear | None:
    """The same model of the public rows alone; None where they cannot make one."""
    from sklearn.base import clone

    features = FeaturePlan(schema)
    X, y = features.encode(public), encode_target(schema, public[schema.target.name])
    only_public: PrivateLinear = clone(model).set_params(
        method="only_public", ledger=None, dataset=None, relation=None, delta=None
    )
    try:
        # It reads no private row: the public ones stand in for them.
        return only_public.fit(X, y, X, y)
    except InputError:
        return None


def _points(model: PrivateLinear, schema: Schema, rows: pd.DataFrame) -> NDArray[np.float64]:
    """1 for a correct class, or the squared error, per row."""
    truth = encode_target(schema, rows[schema.target.name])
    guess = model.predict(FeaturePlan(schema).encode(rows))
    if schema.target.task == "classification":
        return np.asarray(guess == truth, dtype=np.float64)
    return np.asarray((guess - truth) ** 2, dtype=np.float64)


def _mean_and_error(name: str, values: NDArray[np.float64], most: float) -> dict[str, float]:
    """The mean and its standard error, not below one row's worth: all rows right is no certainty."""
    rows = len(values)
    spread = float(values.std(ddof=1) / math.sqrt(rows)) if rows > 1 else math.inf
    return {name: float(values.mean()), f"{name}_error": max(spread, most / rows)}
