"""The guide of a fit: models of the public rows, chosen and scored in folds of them.

    regression       ridge, boosted trees (each of the target, and of its logarithm if that exists) and a
                     forest. The best in folds is the offset; boosting and the forest are columns too
    classification   boosted trees (two classes) and a forest, as columns of log-odds, if they beat a
                     logistic regression in folds: what is linear the private model has already

A column lets the private model take the nonlinear model as far as the private records support it; without it,
a residual around a tree model could never undo that model's errors. Public rows get the predictions of models
fitted to the other folds.

Nothing private is read here, so nothing is charged. scikit-learn's models are imported where they are fitted:
a fit without a guide does not wait for them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from scipy.special import logsumexp

from sidelight.arrays import Array, Floats
from sidelight.data.guide import (
    GuideColumns,
    LinearModel,
    PublicGuide,
    PublicModel,
    TreeEnsemble,
    as_models_see,
    merged,
)

__all__ = ["CLIPPED", "FEWEST_ROWS", "Guided", "fit_guide", "reach_of", "score_of"]

FEWEST_ROWS = 40  # public rows; fewer say too little about a nonlinear model
_MOST_ROWS = 5_000  # that models are fitted to
_MOST_FEATURES = 1_500  # above, trees of few public rows see each of them too rarely
_MOST_CLASSES = 30
_LARGEST = 1e100  # target, whose square is a number
_FEWEST_FITTED = 300  # rows
_LINEAR = ("ridge", "logistic")
_FOLDS, _FEWER_FOLDS, _MANY_ROWS = 5, 3, 1_000  # fewer folds of many rows: each leaves enough to fit
_MOST_CELLS = 100_000  # rows × features; above, fewer candidates
_MOST_CELLS_OF_TREES, _MOST_CELLS_OF_LINES = 400_000, 2_000_000  # that they are fitted to
CLIPPED = 0.95  # the quantile of the public residuals at which private ones are clipped
_BOOSTED, _FOREST = 100, 60  # trees
_SURE = 4.0  # log-odds
_SEED = 0  # of public data alone
_ONE = np.array([0, 1], dtype=np.int32)  # edges of one column
_SCALES = np.exp(np.linspace(-2.0, 2.0, 17))

Fit = Callable[[Floats, Array], PublicModel]


@dataclass(frozen=True, eq=False)
class Guided:
    """A guide, and what it says of the public rows without having seen them."""

    guide: PublicGuide
    public: GuideColumns


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
    regression = limits is not None
    classes = 0 if regression else int(y.max(initial=0)) + 1
    if m < FEWEST_ROWS or features > _MOST_FEATURES or classes > _MOST_CLASSES:
        return None
    if limits is not None:
        y = np.clip(y, *limits)
    if len(np.unique(y)) < 2 or float(np.abs(y).max()) > _LARGEST:
        return None
    X = as_models_see(np.asarray(X, dtype=np.float64), lower, upper)
    edges = np.arange(features + 1, dtype=np.int32) if edges is None else edges
    some = _evenly(m, cells=_MOST_CELLS_OF_LINES, columns=features)
    fewer = _evenly(m, cells=_MOST_CELLS_OF_TREES, columns=len(edges) - 1)
    fits = _regressions(y, edges) if regression else _classifiers(classes, edges)
    held_out = {name: _in_folds(fits[name], X, y, some) for name in fits if name.startswith(_LINEAR)}
    scores = {name: score_of(z[some], y[some], regression) for name, z in held_out.items()}
    for name in _worth_trying(fits, scores, cells=len(some) * features):
        held_out[name] = _in_folds(fits[name], X, y, fewer)
        scores[name] = score_of(held_out[name][some], y[some], regression)
    kept = _best_of_each(scores) if regression else _beyond_linear(scores)
    if not kept:
        return None
    rows = {name: some if name.startswith(_LINEAR) else fewer for name in kept}
    models = {name: fits[name](X[rows[name]], y[rows[name]]) for name in kept}
    offset = max(kept, key=lambda name: scores[name]) if regression else None
    columns = {name: reach_of(held_out[name]) for name in kept if not name.startswith("ridge")}
    guide = PublicGuide(
        models, columns, offset, lower, upper, {name: scores[name] for name in kept}, limits=limits
    )
    said = guide.scaled({name: held_out[name] for name in kept})
    if limits is not None and said.offset is not None:
        reach = float(np.quantile(np.abs(y - said.offset), CLIPPED))
        guide = replace(guide, residual=max(reach, 1e-9 * (limits[1] - limits[0])))
    return Guided(guide, said)


def _evenly(rows: int, *, cells: int, columns: int) -> Array:
    """Rows that models are fitted to: few enough that wide tables take seconds."""
    most = min(rows, _MOST_ROWS, max(_FEWEST_FITTED, cells // columns))
    return np.unique(np.linspace(0, rows - 1, most).astype(np.intp))


def _worth_trying(fits: dict[str, Fit], linear: dict[str, float], *, cells: int) -> list[str]:
    """Trees of each kind. On a wide table no deeper ones, and boosting of what suits ridge better."""
    trees = [name for name in fits if not name.startswith(_LINEAR)]
    if cells <= _MOST_CELLS:
        return trees
    by_log = linear.get("ridge of the logarithm", -np.inf) > linear.get("ridge", -np.inf)
    other = "boosting" if by_log else "boosting of the logarithm"
    return [name for name in trees if name not in ("boosting deeper", other)]


def _beyond_linear(scores: dict[str, float]) -> list[str]:
    """Those that are level with it, or better: a column of theirs adds something that is not linear."""
    level = 1.01 * scores["logistic"]  # minus a log loss
    return [name for name, score in scores.items() if name != "logistic" and score > level]


def _best_of_each(scores: dict[str, float]) -> list[str]:
    """Of one kind of model (of the target or of its logarithm, deeper or not) the best."""
    best: dict[str, str] = {}
    for name in scores:
        kind = name.split()[0]
        if kind not in best or scores[name] > scores[best[kind]]:
            best[kind] = name
    return list(best.values())


def _in_folds(fit: Fit, X: Floats, y: Array, some: Array) -> Floats:
    """Predictions for every row by a model that has not seen it. A fold is every fifth row, or third."""
    folds = _FOLDS if len(y) < _MANY_ROWS else _FEWER_FOLDS
    place = np.arange(len(y)) % folds
    fitted = np.zeros(len(y), dtype=bool)
    fitted[some] = True
    out: Floats | None = None
    for fold in range(folds):
        made = fit(X[fitted & (place != fold)], y[fitted & (place != fold)]).predict(X[place == fold])
        out = np.zeros((len(y), made.shape[1])) if out is None else out
        out[place == fold] = made
    return np.zeros((len(y), 1)) if out is None else out


def score_of(z: Floats, y: Array, regression: bool) -> float:
    """R², or minus the log loss with the best scale of the scores, in folds."""
    if regression:
        return float(1 - ((z[:, 0] - y) ** 2).mean() / max(float(np.var(y)), 1e-300))
    z = np.hstack([np.zeros_like(z), z]) if z.shape[1] == 1 else z
    own = z[np.arange(len(z)), y.astype(np.intp)]
    return -min(float((logsumexp(a * z, axis=1) - a * own).mean()) for a in _SCALES)


def reach_of(z: Floats) -> tuple[Floats, Floats]:
    """Where a column is centred, and what is mapped to 1: beyond, it is clipped."""
    center = z.mean(axis=0)
    return center, np.maximum(np.quantile(np.abs(z - center), 0.99, axis=0), 1e-9)


# ---------------------------------------------------------------------------------------------------
# the models


def _regressions(y: Array, edges: Array) -> dict[str, Fit]:
    fits: dict[str, Fit] = {
        "ridge": _ridge,
        "boosting": _of(_boosting, edges),
        "boosting deeper": _of(partial(_boosting, deeper=True), edges),
        "forest": _of(_forest, edges),
    }
    if float(np.min(y)) >= 0:
        fits |= {f"{name} of the logarithm": _of_log(fits[name]) for name in ("ridge", "boosting")}
    return fits


def _classifiers(classes: int, edges: Array) -> dict[str, Fit]:
    fits: dict[str, Fit] = {"logistic": _logistic(classes)}
    if classes == 2:
        fits["boosting"] = _of(_boosted_classes, edges)
    return fits | {"forest": _of(_forest_classes(classes), edges)}


def _of(fit: Fit, edges: Array) -> Fit:
    """Trees that split on sums of columns."""
    return lambda X, y: replace(fit(merged(X, edges), y), edges=edges)  # type: ignore[arg-type, type-var]


def _of_log(fit: Fit) -> Fit:
    return lambda X, y: replace(fit(X, np.log1p(y)), link="log")  # type: ignore[type-var]


def _logistic(classes: int) -> Fit:
    from sklearn.linear_model import LogisticRegression
    from sklearn.preprocessing import StandardScaler

    def fit(X: Floats, y: Array) -> LinearModel:
        if len(np.unique(y)) < 2:  # a fold of one class
            sure = np.array([_sure(y)]) if classes == 2 else _SURE * (np.arange(classes) == y[0])
            return LinearModel(np.zeros((len(sure), X.shape[1])), sure)
        scaler = StandardScaler().fit(X)
        model = LogisticRegression(C=0.1, max_iter=200).fit(scaler.transform(X), y.astype(np.intp))
        coef = model.coef_ / scaler.scale_
        whole = np.zeros((1 if classes == 2 else classes, X.shape[1] + 1))
        seen = model.classes_.astype(np.intp) if classes > 2 else np.array([0])
        both = np.hstack([coef, (model.intercept_ - coef @ scaler.mean_)[:, None]])
        whole[seen] = both if len(both) == len(seen) else np.vstack([-both, both])
        return LinearModel(whole[:, :-1], whole[:, -1])

    return fit


def _ridge(X: Floats, y: Array) -> LinearModel:
    from sklearn.linear_model import RidgeCV

    center, spread = X.mean(axis=0), X.std(axis=0)
    spread[spread == 0] = 1.0
    model = RidgeCV(np.logspace(-2, 4, 13)).fit((X - center) / spread, y)
    coef = np.asarray(model.coef_, dtype=np.float64) / spread
    return LinearModel(coef[None], np.array([float(model.intercept_ - coef @ center)]))


def _boosting(X: Floats, y: Array, *, deeper: bool = False) -> TreeEnsemble:
    """Of rows drawn anew for each tree; or deeper trees of all rows, for interactions of several columns."""
    from sklearn.ensemble import GradientBoostingRegressor

    mean, spread, rate = float(np.mean(y)), float(np.std(y)) or 1.0, 0.1 if deeper else 0.08
    model = GradientBoostingRegressor(
        init="zero", n_estimators=_BOOSTED, learning_rate=rate, max_depth=6 if deeper else 4,
        subsample=1.0 if deeper else 0.7, min_samples_leaf=max(10 if deeper else 5, len(y) // 100),
        max_features=_share(X), random_state=_SEED,
    ).fit(X, (y - mean) / spread)  # fmt: skip
    trees = [tree.tree_ for tree in model.estimators_[:, 0]]
    return _ensemble(trees, [rate * spread * tree.value[:, 0, :1] for tree in trees], constant=mean)


def _boosted_classes(X: Floats, y: Array) -> TreeEnsemble:
    from sklearn.ensemble import GradientBoostingClassifier

    if len(np.unique(y)) < 2:  # a fold of one class
        return _constant(_sure(y))
    model = GradientBoostingClassifier(
        init="zero", n_estimators=_BOOSTED, learning_rate=0.05, max_depth=3, subsample=0.7,
        min_samples_leaf=max(5, len(y) // 50), max_features=_share(X), random_state=_SEED,
    ).fit(X, y)  # fmt: skip
    trees = [tree.tree_ for tree in model.estimators_[:, 0]]
    return _ensemble(trees, [0.05 * tree.value[:, 0, :1] for tree in trees])


def _forest(X: Floats, y: Array) -> TreeEnsemble:
    from sklearn.ensemble import RandomForestRegressor

    model = RandomForestRegressor(
        _FOREST if X.size <= _MOST_CELLS else _FOREST // 2, max_depth=10, min_samples_leaf=2,
        max_features=min(0.5, _share(X) or 0.5), random_state=_SEED,
    ).fit(X, y)  # fmt: skip
    trees = [tree.tree_ for tree in model.estimators_]
    return _ensemble(trees, [tree.value[:, 0, :1] / len(trees) for tree in trees])


def _forest_classes(classes: int) -> Fit:
    """Log-odds of two classes; logarithms of probabilities of more. A class that a fold lacks has none."""

    from sklearn.ensemble import RandomForestClassifier

    def fit(X: Floats, y: Array) -> TreeEnsemble:
        model = RandomForestClassifier(
            _FOREST, max_depth=10, min_samples_leaf=3, max_features="sqrt", random_state=_SEED
        ).fit(X, y.astype(np.intp))
        values = []
        trees = [tree.tree_ for tree in model.estimators_]
        for tree in trees:
            part = tree.value[:, 0, :] / tree.value[:, 0, :].sum(axis=1, keepdims=True) / _FOREST
            whole = np.zeros((len(part), classes))
            whole[:, model.classes_.astype(np.intp)] = part
            values.append(whole[:, 1:] if classes == 2 else whole)
        return replace(_ensemble(trees, values), link="probability")

    return fit


def _share(X: Floats) -> float | None:
    """Of the features that a split looks at: enough, and fewer of many."""
    return None if X.shape[1] <= 40 else max(0.1, 40 / X.shape[1])


def _ensemble(trees: list[object], values: list[Floats], *, constant: float = 0.0) -> TreeEnsemble:
    """Trees of scikit-learn as arrays; a constant is spread over them."""
    feature, threshold, left, right, roots = [], [], [], [], []
    start, depth = 0, 0
    for tree in trees:
        nodes = np.arange(tree.node_count, dtype=np.int32)  # type: ignore[attr-defined]
        leaf = tree.children_left < 0  # type: ignore[attr-defined]
        roots.append(start)
        feature.append(np.where(leaf, 0, tree.feature).astype(np.int32))  # type: ignore[attr-defined]
        threshold.append(_floor32(np.where(leaf, 0.0, tree.threshold)))  # type: ignore[attr-defined]
        left.append(np.where(leaf, nodes, tree.children_left) + start)  # type: ignore[attr-defined]
        right.append(np.where(leaf, nodes, tree.children_right) + start)  # type: ignore[attr-defined]
        start, depth = start + len(nodes), max(depth, int(tree.max_depth))  # type: ignore[attr-defined]
    return TreeEnsemble(
        np.concatenate(feature), np.concatenate(threshold), np.concatenate(left).astype(np.int32),
        np.concatenate(right).astype(np.int32), np.concatenate(values) + constant / len(trees),
        np.array(roots, dtype=np.int32), np.array([depth], dtype=np.int32),
        np.arange(trees[0].n_features + 1, dtype=np.int32),  # type: ignore[attr-defined]
    )  # fmt: skip


def _floor32(threshold: Floats) -> Array:
    """The largest float32 that is not above: scikit-learn compares float32 features with it."""
    rounded = threshold.astype(np.float32)
    return np.where(rounded > threshold, np.nextafter(rounded, np.float32(-np.inf)), rounded)


def _sure(y: Array) -> float:
    """The log-odds of two classes where only one was seen."""
    return _SURE * (2 * float(y[0]) - 1)


def _constant(value: float) -> TreeEnsemble:
    """One leaf, at depth 0."""
    zero = np.zeros(1, dtype=np.int32)
    return TreeEnsemble(zero, np.zeros(1, np.float32), zero, zero, np.array([[value]]), zero, zero, _ONE)
