"""The guide of a fit whose `public_model` is an estimator of the user's own.

It stands beside the models that are fitted to the public rows: a column for each of its outputs and, in a
regression, the offset, if it scores better on the public rows than those do in folds. Then

    residual    is clipped at the largest of the public residuals, and at no less than half of that of the
                models in folds: an estimator that has seen the public rows looks better on them than it
                is. Without enough public rows it is clipped at half the width of the target's bounds
    weights     of the estimator alone, in the coordinates of the fit, are a candidate for what public records
                alone can do (`public_models.public_weights`, `methods.baselines`)
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from sidelight.arrays import Array, Floats
from sidelight.data.guide import GuideColumns, PublicGuide, ordered
from sidelight.data.own_model import OwnModel
from sidelight.errors import InputError
from sidelight.methods.public_models import Guided, fit_guide, reach_of, score_of

_FEWEST = 20  # public rows, for a scale of the residuals
_REACH = 4.0  # log-odds that map to 1, if public rows do not say


def own_guide(
    own: OwnModel,
    X: Floats,
    y: Array,
    *,
    lower: Floats,
    upper: Floats,
    limits: tuple[float, float] | None,
    labels: Array | None,
    edges: Array | None = None,
) -> Guided:
    """The guide of this estimator, and of models of the public rows beside it.

    Args:
        X: (m, features and outputs of the estimator) of public rows; m may be 0.
        y: numbers, or the index of the class.
        labels: the classes; None for a regression.
    """
    order = () if labels is None else own.order(labels)
    features = len(lower)
    said = ordered(X[:, features:].astype(np.float64), order)
    there = ~np.isnan(said).any(axis=1)
    if len(X) and there.sum() < len(X) / 2:
        raise InputError(f"public_model fails on {int((~there).sum()):,} of {len(X):,} public rows")
    y = y if limits is None else np.clip(y, *limits)
    columns = reach_of(said[there]) if there.sum() >= _FEWEST else _unseen(own.outputs, limits)
    scores = {own.name: score_of(said[there], y[there], limits is not None)} if there.any() else {}
    fitted = fit_guide(X[:, :features], y, lower=lower, upper=upper, limits=limits, edges=edges)
    alone = PublicGuide(
        {}, {own.name: columns}, None if limits is None else own.name, lower, upper, scores,
        residual=_residual(said[there], y[there], limits, fitted), limits=limits, own=own, order=order,
    )  # fmt: skip
    mine = alone.scaled({own.name: alone.own_outputs(X)})
    return Guided(alone, mine) if fitted is None else _beside(fitted, alone, mine)


def _beside(fitted: Guided, alone: PublicGuide, mine: GuideColumns) -> Guided:
    """Both; a regression has the offset of the one that is better on the public rows."""
    guide = replace(
        alone,
        models=fitted.guide.models,
        together=fitted.guide.together,
        level=fitted.guide.level,
        columns={**fitted.guide.columns, **alone.columns},
        scores={**fitted.guide.scores, **alone.scores},
    )
    offset = mine.offset
    best = max(fitted.guide.scores.values())
    if offset is not None and next(iter(alone.scores.values()), -np.inf) < best:
        guide = replace(guide, offset=fitted.guide.offset, residual=fitted.guide.residual)
        offset = fitted.public.offset
    return Guided(guide, GuideColumns(np.hstack([fitted.public.columns, mine.columns]), offset))


def _residual(
    said: Floats, y: Array, limits: tuple[float, float] | None, fitted: Guided | None
) -> float | None:
    if limits is None:
        return None
    width = limits[1] - limits[0]
    if len(y) < _FEWEST:
        return width / 2
    wrong = float(np.abs(y - np.clip(said[:, 0], *limits)).max())
    floor = 0.0 if fitted is None else (fitted.guide.residual or 0.0) / 2
    return min(max(wrong, floor, 1e-9 * width), width)


def _unseen(outputs: int, limits: tuple[float, float] | None) -> tuple[Floats, Floats]:
    """The center and reach of columns, by the bounds of the target alone."""
    if limits is None:
        return np.zeros(outputs), np.full(outputs, _REACH)
    return np.array([sum(limits) / 2]), np.array([(limits[1] - limits[0]) / 2])
