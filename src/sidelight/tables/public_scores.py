"""How good is the model, as far as public rows and released numbers tell?

By default every public row takes part in the fit. Then none of them can score the model:

    public rows alone   in folds of the public rows: each is predicted by a model that has not seen it
    the model           on private records, by the paid comparison if there was one (`methods`)

With `validation` a share of the public rows is held out before the fit. The model and that of the other
public rows alone are scored on these and compared row by row, so that the error of the difference is smaller
than that of each. Nothing private is read for any of this.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from scipy.special import softmax

from sidelight.arrays import Array, Floats, Json
from sidelight.data.features import encode_target
from sidelight.data.schema import Schema
from sidelight.errors import InputError, SidelightError
from sidelight.estimators import PrivateClassifier, PrivateRegressor
from sidelight.estimators.linear import PrivateLinear, PublicPart
from sidelight.methods.baselines import best_on_folds, fit_public
from sidelight.methods.paid_comparison import COMPARED
from sidelight.methods.probabilities import probability_scale
from sidelight.methods.task import Task
from sidelight.scoring import classification_scores, log_interval, regression_scores, wilson

if TYPE_CHECKING:
    import pandas as pd

_FEWEST = 50  # public rows; of fewer, none is held out
_FEWEST_IN_FOLDS = 10
_MOST_HELD_OUT = 5_000
_MOST_GROUPS = 12
_BY_GROUP = 0.2  # held out if scores by group are asked for


@dataclass(frozen=True, eq=False)
class Split:
    """Public rows for the fit, and those held out to score it."""

    fit: pd.DataFrame | None = None
    held_out: pd.DataFrame | None = None
    unlabeled: pd.DataFrame | None = None  # rows without a target, for the fit

    @property
    def held_out_rows(self) -> int:
        return 0 if self.held_out is None else len(self.held_out)


def split(public: pd.DataFrame | None, share: float | None, *, by: str | None = None) -> Split:
    """Held out at random, the same rows each time. None: no row, unless groups are to be scored."""
    if share is None:
        share = 0.0 if by is None else _BY_GROUP
    if not 0 <= share < 1:
        raise InputError(f"validation must be a share of the public rows, from 0 to below 1, not {share!r}")
    if public is None:
        return Split()
    size = min(int(len(public) * share), _MOST_HELD_OUT)
    if len(public) < _FEWEST or size == 0:
        return Split(fit=public)
    order = np.random.default_rng(0).permutation(len(public))  # of public rows: nothing to hide
    return Split(public.iloc[np.sort(order[size:])], public.iloc[np.sort(order[:size])])


def scores(
    model: PrivateLinear, schema: Schema, parts: Split, part: PublicPart | None, *, by: str | None = None
) -> Json:
    """What is known of the model's quality; {} without public rows.

    name, rows: the first score, and on how many rows.
    public_validation, only_public, difference: of this model on held-out rows, if some were; of public rows
        alone, on the same or else in folds; and the difference of the two. Each with _error (one standard
        error) and the first two with _low and _high (95 %).
    majority, or always_the_mean: what a model without features has.
    measures: {score: {"model": {"value", "low", "high"}, "only_public": …}}.
    confusion, reliability: of the model, on held-out rows.
    groups: {"column": by, "selects": the second of two classes, "rows": [{"group", "rows", "value", "low",
        "high", "selected": how often that class is predicted}]}.
    private: what the paid comparison released of private records.
    note: which rows these are.
    """
    compared = model.privacy_.details.get(COMPARED)
    private: Json = {"private": dict(compared)} if isinstance(compared, dict) else {}
    if parts.held_out is not None:
        return _held_out(model, schema, parts.held_out, part, by=by) | private
    found = None if part is None else _in_folds(model, schema, part)
    if found is None:
        return private
    name = next(iter(found["measures"]))
    result: Json = {"name": name, "rows": found["rows"], **_first("only_public", found, name)}
    result |= _without_features(found) | {"measures": _side_by_side({"only_public": found})}
    note = f"public rows alone, in folds of {found['rows']} public rows; with 95\u202f% intervals"
    return result | private | {"in_folds": True, "note": note}


def _held_out(
    model: PrivateLinear, schema: Schema, rows: pd.DataFrame, part: PublicPart | None, *, by: str | None
) -> Json:
    truth = encode_target(schema, rows[schema.target.name])
    mine = _scored(model, schema, rows, truth)
    name = next(iter(mine["measures"]))
    result: Json = {"name": name, "rows": mine["rows"], **_first("public_validation", mine, name)}
    result |= _without_features(mine)
    is_only_public = "only_public" in (model.privacy_.method, model.privacy_.details.get("chosen"))
    rival = None if is_only_public or part is None else _only_public(model, part.task)
    theirs = None if rival is None else _scored(rival, schema, rows, truth)
    if theirs is not None:
        result |= _first("only_public", theirs, name) | _difference(mine, theirs, name)
    result["measures"] = _side_by_side({"model": mine} | ({} if theirs is None else {"only_public": theirs}))
    result |= {key: mine[key] for key in ("confusion", "reliability") if key in mine}
    if by is not None:
        result["groups"] = {"column": by} | _groups(rows[by], mine)
    result["note"] = f"on {mine['rows']} public rows that were held out; with 95\u202f% intervals"
    return result


# ---------------------------------------------------------------------------------------------------
# public rows alone: the model that the paid comparison returns if private training does not help


def _in_folds(model: PrivateLinear, schema: Schema, part: PublicPart) -> Json | None:
    """Scores of public rows by models that have not seen them; None if there are too few."""
    task = part.task
    if task.public.n < _FEWEST_IN_FOLDS:
        return None
    if part.guide_outputs is not None and part.guide_outputs.offset is not None:
        return _numbers(np.asarray(part.y, dtype=np.float64), part.guide_outputs.offset)
    _, z, y = best_on_folds(task.public, task.loss)
    if isinstance(model, PrivateRegressor):
        return _numbers(model.in_units(y), model.in_units(z[:, 0]))
    try:
        chances = _chances(z * _scale(task))
    except SidelightError:  # public rows of one class
        return None
    places = y.astype(np.intp) if task.loss.outputs > 1 else (y > 0).astype(np.intp)
    weights, labels = getattr(model, "class_weights_", None), np.asarray(model.classes_)
    guess = (chances if weights is None else chances * weights).argmax(axis=1)
    return _classes(labels[places], labels[guess], chances, list(labels))


def _only_public(model: PrivateLinear, task: Task) -> PrivateLinear | None:
    """The model of the public rows alone, in the same coordinates; None where they cannot make one."""
    try:
        rival = model.with_weights(
            np.zeros((task.loss.outputs, task.p)) if task.residual else fit_public(task)
        )
        if isinstance(rival, PrivateClassifier):
            rival.probability_scale_ = _scale(task)
    except SidelightError:
        return None
    return rival


def _scale(task: Task) -> float:
    """Of the scores of public rows alone, for probabilities."""
    return probability_scale(fit_public(task), task, None, "only_public")[0]


def _chances(z: Floats) -> Floats:
    return np.asarray(softmax(z if z.shape[1] > 1 else np.hstack([np.zeros_like(z), z]), axis=1))


# ---------------------------------------------------------------------------------------------------
# of some rows


def _scored(model: PrivateLinear, schema: Schema, rows: pd.DataFrame, truth: Array) -> Json:
    X = rows.drop(columns=schema.target.name)
    guess = model.predict(X)
    if schema.target.task == "regression":
        return _numbers(truth, guess)
    chances = getattr(model, "predict_proba", None)
    return _classes(truth, guess, None if chances is None else chances(X), sorted(schema.target.classes))


def _numbers(truth: Floats, guess: Floats) -> Json:
    """The scores, and under "points" the squared error of each row."""
    return regression_scores(truth, guess) | {"points": (guess - truth) ** 2}


def _classes(truth: Array, guess: Array, chances: Floats | None, labels: Sequence[object]) -> Json:
    """The scores, and under "points" 1 for each row whose class is right."""
    found = classification_scores(truth, guess, chances, labels)
    return found | {"points": np.asarray(guess == truth, dtype=np.float64), "guess": guess}


def _groups(column: pd.Series, found: Json) -> Json:
    """The first score for each value of a public column, most frequent first; rare values are grouped.

    For two classes, also how often the second one is predicted: its selection rate.
    """
    points, classify, guess = found["points"], "confusion" in found, found.get("guess")
    labels = [str(one) for one in found["confusion"]["labels"]] if classify else []
    chosen = None
    if guess is not None and len(labels) == 2:
        chosen = np.array([str(one) == labels[1] for one in guess])
    names = column.astype("object").where(column.notna(), "missing").map(str)
    kept = list(names.value_counts().index[:_MOST_GROUPS])
    rows = []
    for name in (*kept, *(["all others"] if names.nunique() > len(kept) else [])):
        there = (~names.isin(kept) if name == "all others" else names == name).to_numpy()
        mine = points[there]
        value = float(mine.mean())
        low, high = wilson(value, len(mine)) if classify else log_interval(mine)
        if not classify:
            value, low, high = (math.sqrt(one) for one in (value, low, high))
        selected = {} if chosen is None else {"selected": float(chosen[there].mean())}
        rows.append({"group": name, "rows": len(mine), "value": value, "low": low, "high": high} | selected)
    return {"rows": rows} if chosen is None else {"selects": labels[1], "rows": rows}


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


def _without_features(found: Json) -> Json:
    if "majority" in found:
        majority = found["majority"]
        return {"majority": majority["value"], "majority_label": majority["label"]}
    return {"always_the_mean": found["mean"]["value"]}


def _side_by_side(both: dict[str, Json]) -> Json:
    names = next(iter(both.values()))["measures"]
    return {
        name: {who: found["measures"][name] for who, found in both.items() if name in found["measures"]}
        for name in names
    }


def _most(found: Json) -> float:
    """The points of the worst row, or of the best one."""
    return 1.0 if "confusion" in found else float(found["points"].max())


def _error(values: NDArray[np.float64], most: float) -> float:
    """The standard error of a mean, not below one row's worth: all rows right is no certainty."""
    rows = len(values)
    spread = float(values.std(ddof=1) / math.sqrt(rows)) if rows > 1 else math.inf
    return max(spread, most / rows)
