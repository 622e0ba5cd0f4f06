"""How good is the model, as far as public rows can tell? A part of them is held out before the fit.

The score of the model and that of `only_public`, trained on the same other public rows, are compared row by
row, so that the error of the difference is smaller than that of each. Nothing private is read.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sidelight.data.schema import Schema
from sidelight.errors import InputError
from sidelight.estimator_base import PrivateLinear
from sidelight.tables.features import FeaturePlan, encode_target

__all__ = ["Split", "scores", "split"]

_FEWEST = 50  # public rows; of fewer, none is held out
_MOST_HELD_OUT = 5_000


@dataclass(frozen=True, eq=False)
class Split:
    """Public rows for the fit, and those that judge it."""

    fit: Any = None
    judge: Any = None

    @property
    def held_out(self) -> int:
        return 0 if self.judge is None else len(self.judge)


def split(schema: Schema, public: Any, share: float) -> Split:
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


def scores(model: Any, schema: Schema, parts: Split) -> dict[str, Any]:
    """Name, score of the model, score of only_public, standard errors, rows; {} if none was held out."""
    if parts.judge is None:
        return {}
    classify = schema.target.task == "classification"
    mine = _right(model, schema, parts.judge)
    found: dict[str, Any] = {"name": "accuracy" if classify else "mean_squared_error", "rows": len(mine)}
    found |= _told("public_validation", mine, 1.0 if classify else float(mine.max()))
    is_public_alone = "only_public" in (model.privacy_.method, model.privacy_.details.get("chosen"))
    alone = None if is_public_alone else _only_public(model, schema, parts.fit)
    if alone is not None:
        theirs = _right(alone, schema, parts.judge)
        most = 1.0 if classify else float(max(mine.max(), theirs.max()))
        found |= _told("only_public", theirs, most) | _told("difference", mine - theirs, most)
    found["note"] = f"on {len(mine)} public rows that were held out; ± is one standard error"
    return found


def _only_public(model: PrivateLinear, schema: Schema, public: Any) -> Any:
    """The same model of the public rows alone; None where they cannot make one."""
    from sklearn.base import clone

    features = FeaturePlan(schema)
    X, y = features.encode(public), encode_target(schema, public[schema.target.name])
    alone = clone(model).set_params(
        method="only_public", ledger=None, dataset=None, relation=None, delta=None
    )
    try:
        # It reads no private row: the public ones stand in for them.
        return alone.fit(X, y, X, y)
    except InputError:
        return None


def _right(model: Any, schema: Schema, rows: Any) -> NDArray[np.float64]:
    """1 for a correct class, or the squared error, one a row."""
    truth = encode_target(schema, rows[schema.target.name])
    guess = model.predict(FeaturePlan(schema).encode(rows))
    if schema.target.task == "classification":
        return np.asarray(guess == truth, dtype=np.float64)
    return np.asarray((guess - truth) ** 2, dtype=np.float64)


def _told(name: str, values: NDArray[np.float64], most: float) -> dict[str, float]:
    """The mean and its standard error, not below one row's worth: all rows right is no certainty."""
    rows = len(values)
    spread = float(values.std(ddof=1) / math.sqrt(rows)) if rows > 1 else math.inf
    return {name: float(values.mean()), f"{name}_error": max(spread, most / rows)}
