"""Methods side by side: many fits on stages whose records are public, and how they scored.

A stage has records that stand in for private ones (synthetic, or a benchmark's), public ones, and test rows
that no fit sees. A model gets points for every test row: 1 for a correct class and 0 for a wrong one; for a
regression 1 − (error/σ)², whose mean is R². Nothing here is for private data: scores leave as they are.

A stage of synthetic records may bring a second test set, made as its records were. It is too optimistic,
since it rewards what was memorized. The first, real rows that had no part in the records, is too pessimistic:
two dozen rows do not hold what a large table does. So the result is a range, from the lower end of the
interval of the first to the second. Methods are ranked by the second, which has many rows and ranked best
wherever it was measured (docs/reproductions/compare.md). Methods that read no private record get all public
rows but the test rows, and the interval of their score.

For demonstrations there are two synthetic problems. Wang & Zhou (AAAI 2020) have 9,950 private and 50 public
rows of 100 Gaussian features, scaled to unit length; they do not say how labels arise. Here
y = sign(⟨u, z⟩ + N(0, ½²)) with ‖u‖ = 1, and 5,000 more rows to test. In the correlated problem the same z
reaches the learner as x = Q diag(1, 1/2, 1/3, …) z, with Q a rotation: the labels are as learnable as before,
and no scaling of columns brings z back.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from sidelight.arrays import Array, Floats, Json, TableLike
from sidelight.errors import NotPrivateWarning, PrivacyWarning, SidelightError
from sidelight.scoring import NAMES, classification_scores, regression_scores, wilson

if TYPE_CHECKING:
    from sidelight.estimators.linear import PrivateLinear


# What does not depend on ε is fitted once per stage.
FREE = ("only_public", "non_private", "majority")
NOT_PRIVATE = ("non_private",)
PUBLIC_ONLY = ("only_public", "majority")


@dataclass(frozen=True, eq=False)
class Stage:
    """One repetition: records to learn from, and test rows. `ids` names the test rows across stages."""

    X: TableLike
    y: Array
    X_public: TableLike
    y_public: Array
    X_test: TableLike
    y_test: Array
    ids: NDArray[np.intp]
    seed: int
    spread: float = 1.0  # σ² of a regression's targets
    X_synthetic: TableLike | None = None  # the second test set
    y_synthetic: Array | None = None
    X_rest: TableLike | None = None  # all public rows but the test rows, where X_public is a part of them
    y_rest: Array | None = None


@dataclass(frozen=True, eq=False)
class Trial:
    """One fit: its points on each test row that ranks it, or why it was refused.

    real: where synthetic rows rank, the points of real ones and their ids.
    measures: other scores, on real rows and on synthetic ones.
    """

    method: str
    epsilon: float
    points: Floats
    ids: NDArray[np.intp]
    refused: str = ""
    model: PrivateLinear | None = None
    real: tuple[NDArray[np.intp], Floats] | None = None
    measures: tuple[Json, ...] = ()


@dataclass
class Comparison:
    """The trials so far, summarized.

    Standard errors are the larger of two: that of the mean over test rows (each counted once, by its mean
    over stages), and that of the mean over stages. With few rows the first dominates, with few stages the
    second.
    """

    methods: tuple[str, ...]
    epsilons: tuple[float, ...]
    score: str = "accuracy"
    trials: dict[tuple[str, float], list[Trial]] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    fits: int = 0  # cells that were filled or refused so far, over all stages

    def add(self, trial: Trial) -> None:
        self.fits += 1
        if trial.refused:
            self.refused.setdefault(trial.method, trial.refused)
        else:
            self.trials.setdefault((trial.method, trial.epsilon), []).append(trial)

    def of(self, method: str, epsilon: float) -> tuple[float, float] | None:
        """Mean score and its standard error; None where there is no fit."""
        fits = self.trials.get((method, epsilon), [])
        return _summary([(trial.ids, trial.points) for trial in fits]) if fits else None

    def range(self, method: str, epsilon: float) -> tuple[float, float] | None:
        """Where the score of a real fit is expected; None where every test row is a real one.

        From the lower end of the 95 % interval of the score on real rows (pessimistic) to the upper end, or
        to the score on synthetic rows (optimistic), if that is higher.
        """
        fits = self.trials.get((method, epsilon), [])
        parts = [trial.real for trial in fits if trial.real is not None]
        if not parts:
            return None
        low, high = _interval(parts, share=self.score == "accuracy")
        if method in PUBLIC_ONLY:
            return low, high
        kind = _mean(float(trial.points.mean()) for trial in fits)
        return min(low, kind), max(high, kind)

    def measures(self, method: str, epsilon: float) -> Json:
        """Every other score, {name: (lower, higher)}: its means on real and on synthetic rows."""
        fits = [trial for trial in self.trials.get((method, epsilon), []) if trial.measures]
        found: Json = {}
        for name in NAMES:
            benches = [
                [bench[name] for bench in column if name in bench]
                for column in zip(*(trial.measures for trial in fits), strict=False)
            ]
            ends = [_mean(values) for values in benches if values]
            if method in PUBLIC_ONLY:
                ends = ends[:1]
            if ends:
                found[name] = (min(ends), max(ends))
        return found

    def error(self, method: str, epsilon: float) -> float:
        """One standard error; of a range, half of it."""
        if (ends := self.range(method, epsilon)) is not None:
            return (ends[1] - ends[0]) / 2
        score = self.of(method, epsilon)
        return 0.0 if score is None else score[1]

    def difference(self, method: str, other: str, epsilon: float) -> tuple[float, float] | None:
        """Mean of score − other's score, on the same stages and test rows."""
        mine, others = (self.trials.get((name, epsilon), []) for name in (method, other))
        pairs = zip(mine, others, strict=False)  # a fill that is under way has one more of the first
        gaps = [(first.ids, first.points - second.points) for first, second in pairs]
        return _summary(gaps) if gaps else None

    def best(self, epsilon: float, *, among: Sequence[str] | None = None) -> str | None:
        """The private method with the highest mean score; picked after the fact, so a little flattered."""
        private = [m for m in self.methods if m not in NOT_PRIVATE and (among is None or m in among)]
        means = {method: score[0] for method in private if (score := self.of(method, epsilon))}
        return max(means, key=lambda method: means[method]) if means else None

    def level(self, method: str, epsilon: float) -> bool:
        """Is it within two standard errors of the best one?"""
        best = self.best(epsilon)
        if best is None or method in NOT_PRIVATE:
            return False
        gap = self.difference(best, method, epsilon)
        return gap is not None and gap[0] <= 2 * gap[1]

    def rows(self) -> list[Json]:
        """For the card, for JSON and for charts: one row per method and ε."""
        return [
            self._row(method, epsilon, score[0])
            for method in self.methods
            for epsilon in self.epsilons
            if (score := self.of(method, epsilon)) is not None
        ]

    def _row(self, method: str, epsilon: float, score: float) -> Json:
        ends = self.range(method, epsilon)
        best = "best private" if ends is None else "best private on synthetic rows"
        notes = [best] if method == self.best(epsilon) else []
        notes += ["no guarantee: a bound to compare with"] if method in NOT_PRIVATE else []
        row = {"method": method, "epsilon": epsilon, "score": score, "error": self.error(method, epsilon)}
        if ends:
            row |= {"score": (ends[0] + ends[1]) / 2, "low": ends[0], "high": ends[1]}
            real = [trial.real for trial in self.trials[method, epsilon] if trial.real is not None]
            row |= {"on_real_rows": _summary(real)[0], "on_synthetic_rows": score}
        if measures := self.measures(method, epsilon):
            row["measures"] = {name: list(found) for name, found in measures.items()}
        return row | {"note": "; ".join(notes)}


def _mean(values: Iterable[float]) -> float:
    return float(np.mean(list(values)))


def _interval(parts: Sequence[tuple[NDArray[np.intp], Floats]], *, share: bool) -> tuple[float, float]:
    """95 % of the mean over test rows, each counted once."""
    mean, error = _summary(parts)
    if share:
        return wilson(mean, len(np.unique(np.concatenate([ids for ids, _ in parts]))))
    return mean - 1.96 * error, mean + 1.96 * error


def _summary(parts: Sequence[tuple[NDArray[np.intp], Floats]]) -> tuple[float, float]:
    ids = np.concatenate([ids for ids, _ in parts])
    points = np.concatenate([points for _, points in parts])
    _, row = np.unique(ids, return_inverse=True)
    by_row = np.bincount(row, weights=points) / np.bincount(row)
    by_stage = np.array([float(points.mean()) for _, points in parts])
    return float(by_stage.mean()), max(_error(by_row), _error(by_stage))


def _error(values: Floats) -> float:
    """The standard error of a mean; unknown, and taken as 0, for one value."""
    return float(values.std(ddof=1) / math.sqrt(len(values))) if len(values) > 1 else 0.0


def trials(
    stages: Iterable[Stage],
    methods: Sequence[str],
    epsilons: Sequence[float],
    estimator: Callable[[str, float, Stage], PrivateLinear],
    *,
    before: Callable[[str, float], None] = lambda method, epsilon: None,
) -> Iterator[Trial]:
    """Fit every method at every ε on every stage; each stage is finished before the next is made.

    Args:
        estimator: (method, ε, stage) → an unfitted PrivateClassifier or PrivateRegressor.
        before: is called with the method and the ε of the fit that begins.
    """
    for stage in stages:
        for method in methods:
            last: Trial | None = None
            for epsilon in epsilons:
                if last is None or method not in FREE:
                    before(method, epsilon)
                    last = _try(stage, method, epsilon, estimator)
                yield replace(last, epsilon=epsilon)


def _try(
    stage: Stage, method: str, epsilon: float, estimator: Callable[[str, float, Stage], PrivateLinear]
) -> Trial:
    only_public = method in PUBLIC_ONLY and stage.X_rest is not None
    public = (stage.X_rest, stage.y_rest) if only_public else (stage.X_public, stage.y_public)
    try:
        with warnings.catch_warnings():
            # The stage's records are public, so that a model without a guarantee, or a δ above 1/n, warns
            # of nothing.
            warnings.simplefilter("ignore", NotPrivateWarning)
            warnings.simplefilter("ignore", PrivacyWarning)
            model = estimator(method, epsilon, stage)
            model.fit(stage.X, stage.y, X_public=public[0], y_public=public[1])
    except SidelightError as error:
        no_ids, no_points = np.empty(0, dtype=np.intp), np.empty(0)
        return Trial(method, epsilon, no_points, no_ids, " ".join(str(error).split()))
    points = _points(model, stage.X_test, stage.y_test, stage.spread)
    if stage.X_synthetic is None or stage.y_synthetic is None:
        return Trial(method, epsilon, points, stage.ids, model=model)
    measures = tuple(
        _measures(model, X, y)
        for X, y in ((stage.X_test, stage.y_test), (stage.X_synthetic, stage.y_synthetic))
    )
    kind = _points(model, stage.X_synthetic, stage.y_synthetic, stage.spread)
    ids = np.arange(len(kind)) + stage.seed * len(kind)  # other stages have other synthetic rows
    return Trial(method, epsilon, kind, ids, model=model, real=(stage.ids, points), measures=measures)


def _points(model: PrivateLinear, X: TableLike, y: Array, spread: float) -> Floats:
    predicted = model.predict(X)
    if hasattr(model, "classes_"):
        return np.asarray(predicted == y, dtype=np.float64)
    return np.asarray(1 - (predicted - y) ** 2 / spread, dtype=np.float64)


def _measures(model: PrivateLinear, X: TableLike, y: Array) -> Json:
    """Every score of `sidelight.scoring`, without intervals."""
    guess = model.predict(X)
    if hasattr(model, "classes_"):
        found = classification_scores(y, guess, model.predict_proba(X), model.classes_)
    else:
        found = regression_scores(y, guess)
    return {name: measure["value"] for name, measure in found["measures"].items()}


# ---------------------------------------------------------------------------------------------------
# stages for demonstrations


Features = Literal["isotropic", "correlated"]
PRIVATE_ROWS, PUBLIC_ROWS, FEATURES, TEST_ROWS = 9_950, 50, 100, 5_000


def gaussian(seed: int, features: Features = "isotropic") -> Stage:
    """One draw of the problem. Its labels are "no" and "yes"."""
    rng = np.random.default_rng([seed, 2020])
    Z = rng.standard_normal((PRIVATE_ROWS + PUBLIC_ROWS + TEST_ROWS, FEATURES))
    u = rng.standard_normal(FEATURES)
    truth = Z @ (u / np.linalg.norm(u)) + 0.5 * rng.standard_normal(len(Z)) >= 0
    y = np.where(truth, "yes", "no")
    X = Z if features == "isotropic" else _correlated(Z, rng)
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    a, b = PRIVATE_ROWS, PRIVATE_ROWS + PUBLIC_ROWS
    ids = np.arange(TEST_ROWS) + seed * TEST_ROWS  # other draws have other test rows
    return Stage(X[:a], y[:a], X[a:b], y[a:b], X[b:], y[b:], ids, seed)


def _correlated(Z: Array, rng: np.random.Generator) -> Array:
    size = Z.shape[1]
    rotation, _ = np.linalg.qr(rng.standard_normal((size, size)))
    return np.asarray((Z / np.arange(1, size + 1)) @ rotation)


def synthetic_stages(features: Features, *, repeats: int, seed: int) -> Iterator[Stage]:
    """Independent draws, one after the other."""
    for repeat in range(repeats):
        yield gaussian(seed * 1000 + repeat, features)
