"""How good is the model, as far as public rows can tell? A part of them is held out before the fit.

The score of the model and that of `only_public`, trained on the same other public rows, are compared row by
row, so that the error of the difference is smaller than that of each. Nothing private is read.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from sidelight.arrays import Array, Json
from sidelight.data.features import encode_target
from sidelight.data.schema import Schema
from sidelight.errors import InputError
from sidelight.estimator_base import PrivateLinear
from sidelight.scoring import classification_scores, regression_scores

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
    """What `sidelight.scoring` says of the held-out rows; {} if none was held out.

    name, rows: the first score, and on how many rows.
    public_validation, only_public, difference: it, that of `only_public`, and the difference, each with
        _error (one standard error) and the first two with _low and _high (95 %).
    majority, or always_the_mean: what a model without features has.
    measures: {score: {"model": {"value", "low", "high"}, "only_public": …}}.
    confusion, reliability: of the model.
    """
    if parts.held_out is None:
        return {}
    classify = schema.target.task == "classification"
    truth = encode_target(schema, parts.held_out[schema.target.name])
    mine = _scored(model, schema, parts.held_out, truth)
    name = next(iter(mine["measures"]))
    result: Json = {"name": name, "rows": mine["rows"], **_first("public_validation", mine, name)}
    result |= _without_features(mine, classify=classify)
    is_only_public = "only_public" in (model.privacy_.method, model.privacy_.details.get("chosen"))
    plain = replace(schema, interactions=())  # public rows alone are too few for products
    rival = None if is_only_public or parts.fit is None else _only_public(model, plain, parts.fit)
    theirs = None if rival is None else _scored(rival, plain, parts.held_out, truth)
    if theirs is not None:
        result |= _first("only_public", theirs, name) | _difference(mine, theirs, name)
    result["measures"] = _side_by_side(mine, theirs)
    result |= {key: mine[key] for key in ("confusion", "reliability") if key in mine}
    result["note"] = f"on {mine['rows']} public rows that were held out; intervals are 95 % ones"
    return result


def _scored(model: PrivateLinear, schema: Schema, rows: pd.DataFrame, truth: Array) -> Json:
    """The scores, and under "points" the value of each row: 1 for a right class, or the squared error."""
    X = rows[list(schema.used)]
    guess = model.predict(X)
    if schema.target.task == "regression":
        return regression_scores(truth, guess) | {"points": (guess - truth) ** 2}
    chances = getattr(model, "predict_proba", None)
    labels = sorted(schema.target.classes)
    found = classification_scores(truth, guess, None if chances is None else chances(X), labels)
    return found | {"points": np.asarray(guess == truth, dtype=np.float64)}


def _first(who: str, found: Json, name: str) -> Json:
    measure = found["measures"][name]
    error = _error(found["points"], _most(found))
    if name == "root_mean_squared_error":  # points are squares: d√m = dm/2√m
        error /= 2 * max(measure["value"], 1e-300)
    return {who: measure["value"], f"{who}_error": error} | {
        f"{who}_{end}": measure[end] for end in ("low", "high")
    }


def _difference(mine: Json, theirs: Json, name: str) -> Json:
    """Row by row, so that its error is smaller than that of each."""
    own, other = mine["measures"][name]["value"], theirs["measures"][name]["value"]
    error = _error(mine["points"] - theirs["points"], max(_most(mine), _most(theirs)))
    if name == "root_mean_squared_error":
        error /= max(own + other, 1e-300)
    return {"difference": own - other, "difference_error": error}


def _without_features(found: Json, *, classify: bool) -> Json:
    if classify:
        majority = found["majority"]
        return {"majority": majority["value"], "majority_label": majority["label"]}
    return {"always_the_mean": found["mean"]["value"]}


def _side_by_side(mine: Json, theirs: Json | None) -> Json:
    both = {"model": mine} | ({} if theirs is None else {"only_public": theirs})
    return {
        name: {who: found["measures"][name] for who, found in both.items() if name in found["measures"]}
        for name in mine["measures"]
    }


def _only_public(model: PrivateLinear, schema: Schema, public: pd.DataFrame) -> PrivateLinear | None:
    """The same model of the public rows alone; None where they cannot make one."""
    from sklearn.base import clone

    X, y = public[list(schema.used)], encode_target(schema, public[schema.target.name])
    only_public: PrivateLinear = clone(model).set_params(
        method="only_public",
        ledger=None,
        dataset=None,
        relation=None,
        delta=None,
        schema=schema,
        unit="record",
    )
    try:
        # It reads no private row: the public ones stand in for them.
        return only_public.fit(X, y, X, y)
    except InputError:
        return None


def _most(found: Json) -> float:
    """The points of the worst row, or of the best one."""
    return 1.0 if "confusion" in found else float(found["points"].max())


def _error(values: NDArray[np.float64], most: float) -> float:
    """The standard error of a mean, not below one row's worth: all rows right is no certainty."""
    rows = len(values)
    spread = float(values.std(ddof=1) / math.sqrt(rows)) if rows > 1 else math.inf
    return max(spread, most / rows)
