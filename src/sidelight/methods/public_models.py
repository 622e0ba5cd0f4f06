"""The guide of a fit: models of the public rows, scored and combined in folds of them.

    models       a linear one and boosted trees of two shapes (`public_trees`); of numbers also a line without
                 ramps, and if they are not negative each of the logarithm, too
    together     Σ_k v_k·z_k with v ≥ 0, by least squares or log loss of held-out predictions z. A regression
                 learns what this gets wrong
    columns      the trees among them; of classes only if all together beat a linear model in folds: what is
                 linear the private model has already. Of more than two classes the combined model alone, with
                 one column per class, where training starts if folds of public rows prefer it to a line of
                 all columns (`baselines.given_model`)

A column lets the private model take the nonlinear model as far as the private records support it; without it,
a residual around a tree model could never undo that model's errors. Public rows get the predictions of models
fitted to the other folds.

Nothing private is read here, so nothing is charged.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize, nnls

from sidelight.arrays import Array, Floats
from sidelight.data.coordinates import Coordinates
from sidelight.data.guide import (
    TOGETHER,
    GuideColumns,
    LinearModel,
    PublicGuide,
    PublicModel,
    as_models_see,
    merged,
)
from sidelight.losses import get_loss
from sidelight.methods.public_trees import (
    DEEP,
    FEW_SPLITS,
    LARGE_LEAVES,
    RANDOM,
    SMALL_LEAVES,
    TreeShape,
    boosted,
)
from sidelight.solvers import ridge_minimum

FEWEST_ROWS = 40  # public rows; fewer say too little about a nonlinear model
_MOST_ROWS = 5_000  # that models are fitted to
_MOST_FEATURES = 1_500  # above, trees of few public rows see each of them too rarely
_MOST_CLASSES = 100
_LARGEST = 1e100  # target, whose square is a number
_FEWEST_FITTED = 300  # rows
_FOLDS, _FEWER_FOLDS, _MANY_ROWS = 5, 3, 1_000  # fewer folds of many rows: each leaves enough to fit
_MOST_CELLS = 2_000_000  # rows × features that models are fitted to
_LEAST_PART = 0.05  # of the combined models; what has less is left out
_BETTER = 0.995  # of a linear model's log loss, for a guide of classes
_HOPELESS = 1.2  # times a linear model's log loss: no further trees are tried
_STRENGTH = 10.0  # of a logistic regression of standardized columns, over the rows
_STRENGTHS = np.logspace(-2, 4, 13)  # of a ridge
_SCALES = np.exp(np.linspace(-2.0, 2.0, 17))
_LEAST_SPREAD = 0.05  # of a column within [−1, 1]: what hardly varies is not blown up
_CONSTANT = 10.0  # the column of a constant, so that a ridge hardly shrinks its weight
_PLAIN = "ridge of whole numbers"
_RIDGE, _LOGISTIC, _LOG = "ridge", "logistic", " of the logarithm"
_OF_NUMBERS = {"small leaves": SMALL_LEAVES, "large leaves": LARGE_LEAVES}
_OF_CLASSES = {"few splits": FEW_SPLITS, "random splits": RANDOM}
_OF_SEVERAL = {**_OF_CLASSES, "large leaves": LARGE_LEAVES, "deep": DEEP}


@dataclass(frozen=True, eq=False)
class Guided:
    """A guide, and what it says of the public rows without having seen them."""

    guide: PublicGuide
    public: GuideColumns


@dataclass(frozen=True, eq=False)
class _Candidate:
    """A model of all public rows, and predictions for each of them by models that have not seen it."""

    model: PublicModel
    held_out: Floats


def fit_guide(
    X: Floats,
    y: Array,
    *,
    lower: Floats,
    upper: Floats,
    limits: tuple[float, float] | None,
    edges: Array | None = None,
) -> Guided | None:
    """The guide of these public rows; None where they are too few, too wide, too large or all alike.

    Args:
        X: (m, features) as encoded, not yet scaled to a norm.
        y: numbers, or the index of the class.
        limits: of a regression's targets; None for classes.
        edges: where the columns begin and end that trees split on, if some are sums of several.
    """
    m, features = X.shape
    classes = 0 if limits is not None else int(y.max(initial=0)) + 1
    if m < FEWEST_ROWS or features > _MOST_FEATURES or classes > min(_MOST_CLASSES, max(features, 2)):
        return None  # a column per class must not outnumber the features: each weight is more noise
    if limits is not None:
        y = np.clip(y, *limits)
    if len(np.unique(y)) < 2 or float(np.abs(y).max()) > _LARGEST:
        return None
    X = as_models_see(np.asarray(X, dtype=np.float64), lower, upper)
    edges = np.arange(features + 1, dtype=np.int32) if edges is None else edges
    folds = _Folds(X, y, merged(X, edges), edges, classes)
    found = _numbers(folds) if limits is not None else _classes(folds)
    guided = _combined(found, y, lower, upper, limits, classes)
    scores = guided.guide.scores
    if classes and (scores[TOGETHER] < _BETTER * scores[_LOGISTIC] or not guided.guide.columns):
        return None  # scores are minus a log loss
    return guided


def _combined(
    found: Mapping[str, _Candidate],
    y: Array,
    lower: Floats,
    upper: Floats,
    limits: tuple[float, float] | None,
    classes: int,
) -> Guided:
    weights, level = _weights({name: one.held_out for name, one in found.items()}, y, classes)
    held_out = {name: found[name].held_out for name in weights}
    held_out[TOGETHER] = level + np.sum([v * held_out[name] for name, v in weights.items()], axis=0)
    tried = {name: one.held_out for name, one in found.items()} | {TOGETHER: held_out[TOGETHER]}
    columns = [name for name in weights if not name.startswith((_RIDGE, _LOGISTIC))]
    if columns and classes > 2:
        columns = [TOGETHER]
    guide = PublicGuide(
        {name: found[name].model for name in weights},
        {name: reach_of(held_out[name]) for name in columns},
        None if classes else TOGETHER,
        lower,
        upper,
        {name: score_of(z, y, not classes) for name, z in tried.items()},
        limits=limits,
        together=weights,
        level=level,
    )
    said = guide.scaled(held_out)
    if limits is not None and said.offset is not None:
        reach = float(np.abs(y - said.offset).max())
        guide = replace(guide, residual=max(reach, 1e-9 * (limits[1] - limits[0])))
    return Guided(guide, said)


def _weights(held_out: Mapping[str, Floats], y: Array, classes: int) -> tuple[dict[str, float], float]:
    """How much of each model, and a constant, by what predicts held-out public rows best."""
    names, parts = list(held_out), np.stack(list(held_out.values()))
    if not classes:
        middle, unit = float(y.mean()), float(y.std()) or 1.0
        found = nnls((parts[:, :, 0].T - middle) / unit, (y - middle) / unit)[0]
    else:
        middle = 0.0
        found = minimize(
            lambda v: -_log_loss(np.tensordot(v, parts, 1), y), np.full(len(names), 1 / len(names)),
            bounds=[(0.0, None)] * len(names), method="L-BFGS-B",
        ).x  # fmt: skip
    found = np.where(found >= _LEAST_PART, found, 0.0)
    if not found.any():  # none is better than a constant
        found[np.argmax([score_of(part, y, not classes) for part in parts])] = 1.0
    return {name: float(v) for name, v in zip(names, found, strict=True) if v}, middle * (
        1 - float(found.sum())
    )


def _log_loss(z: Floats, y: Array) -> float:
    """Minus the mean log loss of scores of classes."""
    if z.shape[1] == 1:
        return -float(np.logaddexp(0, np.where(y > 0, -z[:, 0], z[:, 0])).mean())
    top = z.max(axis=1)
    whole = np.log(np.exp(z - top[:, None]).sum(axis=1)) + top
    return float((z[np.arange(len(z)), y.astype(np.intp)] - whole).mean())


def score_of(z: Floats, y: Array, regression: bool) -> float:
    """R², or minus the log loss with the best scale of the scores, in folds."""
    if regression:
        return float(1 - ((z[:, 0] - y) ** 2).mean() / max(float(np.var(y)), 1e-300))
    return max(_log_loss(a * z, y) for a in _SCALES)


def reach_of(z: Floats) -> tuple[Floats, Floats]:
    """Where a column is centerd, and what is mapped to 1: beyond, it is clipped."""
    center = z.mean(axis=0)
    return center, np.maximum(np.quantile(np.abs(z - center), 0.99, axis=0), 1e-9)


def public_weights(coordinates: Coordinates, outputs: int) -> Floats | None:
    """(outputs, p) whose scores are those of one public model: the user's, or the combined ones.

    Of a residual these are zeros: the guide alone. Else None where no columns hold such a model. If both do,
    public rows choose.
    """
    guide = coordinates.guide
    if guide is not None and guide.offset is not None:
        return np.zeros((outputs, coordinates.p))
    if guide is None or not coordinates.fit_intercept:
        return None
    known = (TOGETHER, "" if guide.own is None else guide.own.name)
    found = [name for name in guide.columns if name in known]
    if not found:
        return None
    best = max(found, key=lambda name: guide.scores.get(name, -np.inf))
    center, reach = guide.columns[best]
    at = coordinates.bounds.features + guide.place(best) + np.arange(len(center))
    weights = np.zeros((len(center), coordinates.p))
    weights[np.arange(len(center)), at] = reach
    weights[:, -1] = center
    return weights if outputs == len(center) else np.vstack([-weights / 2, weights / 2])


# ---------------------------------------------------------------------------------------------------
# the models


@dataclass(frozen=True, eq=False)
class _Folds:
    """Public rows, of which row i is in fold i mod `count`: a sorted table, too."""

    X: Floats
    y: Array
    merged: NDArray[np.float32]  # sums of columns, which trees split on
    edges: Array
    classes: int

    @property
    def count(self) -> int:
        return _FOLDS if len(self.y) < _MANY_ROWS else _FEWER_FOLDS

    def rows(self, columns: int) -> Array:
        """Rows that models are fitted to: few enough that wide tables take seconds."""
        most = min(len(self.y), _MOST_ROWS, max(_FEWEST_FITTED, _MOST_CELLS // columns))
        return np.unique(np.linspace(0, len(self.y) - 1, most).astype(np.intp))

    def line(self, fit: Callable[[Floats, Array], LinearModel]) -> _Candidate:
        rows = self.rows(self.X.shape[1])
        place = rows % self.count
        models = [
            fit(self.X[some], self.y[some]) for some in (rows[place != fold] for fold in range(self.count))
        ]
        outputs = [model.predict(self.X[fold :: self.count]) for fold, model in enumerate(models)]
        held_out = np.empty((len(self.y), outputs[0].shape[1]))
        for fold, part in enumerate(outputs):
            held_out[fold :: self.count] = part
        return _Candidate(fit(self.X[rows], self.y[rows]), held_out)

    def plain(self, fit: Callable[[Floats, Array], LinearModel]) -> _Candidate:
        """The same of one column for each number: of few rows that is often better than of every ramp."""
        found = replace(self, X=self.merged.astype(np.float64)).line(fit)
        model, behind = found.model, self.X.shape[1] - int(self.edges[-1])
        if not isinstance(model, LinearModel):
            raise TypeError("a line was expected")
        coef = np.repeat(model.coef, np.diff(self.edges), axis=1)
        return replace(found, model=replace(model, coef=np.pad(coef, ((0, 0), (0, behind)))))

    def trees(self, shape: TreeShape) -> _Candidate:
        rows = self.rows(self.merged.shape[1])
        found = boosted(
            self.merged, self.y, classes=self.classes, folds=self.count, rows=rows, shape=shape
        )  # fmt: skip
        return _Candidate(replace(found.whole, edges=self.edges), found.held_out(self.merged))


def _numbers(folds: _Folds) -> dict[str, _Candidate]:
    """Each model of the target, and of its logarithm."""
    made = {_RIDGE: folds.line(_ridge)} | {name: folds.trees(shape) for name, shape in _OF_NUMBERS.items()}
    if folds.merged.shape[1] < folds.X.shape[1]:
        made[_PLAIN] = folds.plain(_ridge)
    if float(np.min(folds.y)) < 0:
        return made
    logs = replace(folds, y=np.log1p(folds.y))
    of_logs = {_RIDGE: logs.line(_ridge)} | {name: logs.trees(shape) for name, shape in _OF_NUMBERS.items()}
    return made | {
        name + _LOG: _Candidate(
            replace(one.model, link="log"), np.expm1(np.minimum(one.held_out, 300.0))  # type: ignore[type-var]
        )
        for name, one in of_logs.items()
    }  # fmt: skip


def _classes(folds: _Folds) -> dict[str, _Candidate]:
    """A linear model, trees, and more of them if the first are not far behind."""
    made = {_LOGISTIC: folds.line(lambda X, y: _logistic(X, y, folds.classes))}
    for name, shape in (_OF_SEVERAL if folds.classes > 2 else _OF_CLASSES).items():
        made[name] = folds.trees(shape)
        line, last = (score_of(made[k].held_out, folds.y, False) for k in (_LOGISTIC, name))
        if last < _HOPELESS * line:
            break
    return made


def _logistic(X: Floats, y: Array, classes: int) -> LinearModel:
    """Of standardized columns, with a constant. A class that a fold lacks gets a small score by the ridge."""
    loss = get_loss("logistic") if classes == 2 else get_loss("softmax", classes=classes)
    center, spread = X.mean(axis=0), X.std(axis=0)
    spread = np.maximum(spread, _LEAST_SPREAD)
    rows = np.hstack([(X - center) / spread, np.full((len(X), 1), _CONSTANT)])
    aims = 2.0 * y - 1 if classes == 2 else y
    found = ridge_minimum(loss, rows, aims, _STRENGTH / len(X), tolerance=1e-5).reshape(loss.outputs, -1)
    coef = found[:, :-1] / spread
    return LinearModel(coef, _CONSTANT * found[:, -1] - coef @ center)


def _ridge(X: Floats, y: Array) -> LinearModel:
    """Its strength by the errors of leaving out one row."""
    center, spread, middle = X.mean(axis=0), X.std(axis=0), float(y.mean())
    spread = np.maximum(spread, _LEAST_SPREAD)
    left, singular, right = np.linalg.svd((X - center) / spread, full_matrices=False)
    aims, best, coef = left.T @ (y - middle), np.inf, np.zeros(X.shape[1])
    for strength in _STRENGTHS:
        kept = singular**2 / (singular**2 + strength)
        own = (left**2 * kept).sum(axis=1) + 1 / len(y)
        error = float(np.mean(((y - middle - left @ (kept * aims)) / np.maximum(1 - own, 1e-6)) ** 2))
        if error < best:
            best, coef = error, right.T @ (aims * singular / (singular**2 + strength))
    coef = coef / spread
    return LinearModel(coef[None], np.array([middle - coef @ center]))
