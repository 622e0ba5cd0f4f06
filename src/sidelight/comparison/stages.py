"""Methods side by side: many fits on stages whose records are no secret, and how they scored.

A stage has records that stand in for private ones (synthetic, or a benchmark's), public ones, and test rows
that no fit sees. A model gets points for every test row: 1 for a correct class and 0 for a wrong one; for a
regression 1 − (error/σ)², whose mean is R². Nothing here is for private data: scores leave as they are.

A stage of synthetic records may bring a second test set, made as its records were. It is too kind: it asks
for what was memorised. The first, real rows that had no part in the records, is too harsh: two dozen rows do
not hold what a large table does. The score is then the mean of both, and they bound it. What looks at no
private record needs no synthetic rows: it gets all public rows but the test rows, and their score alone.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from sidelight.arrays import Array, Floats, Json
from sidelight.errors import NotPrivateWarning, PrivacyWarning, SidelightError

if TYPE_CHECKING:
    from sidelight.estimator_base import PrivateLinear

__all__ = ["Comparison", "Stage", "Trial", "trials"]


Key = tuple[str, str, float, int]  # two methods (or one and ""), ε, and how many trials

# What does not depend on ε is fitted once per stage.
FREE = ("only_public", "non_private", "majority")
NOT_PRIVATE = ("non_private",)
PUBLIC_ONLY = ("only_public", "majority")


@dataclass(frozen=True, eq=False)
class Stage:
    """One repetition: records to learn from, and test rows. `ids` names the test rows across stages."""

    X: Array
    y: Array
    X_public: Array
    y_public: Array
    X_test: Array
    y_test: Array
    ids: NDArray[np.intp]
    seed: int
    spread: float = 1.0  # σ² of a regression's targets
    X_synthetic: Array | None = None  # the second test set
    y_synthetic: Array | None = None
    X_rest: Array | None = None  # all public rows but the test rows, where X_public is a part of them
    y_rest: Array | None = None


@dataclass(frozen=True, eq=False)
class Trial:
    """One fit: its points on each test row, or why it was refused."""

    method: str
    epsilon: float
    points: Floats
    ids: NDArray[np.intp]
    refused: str = ""
    model: PrivateLinear | None = None
    bounds: tuple[float, float] | None = None  # scores on real and on synthetic test rows


@dataclass
class Comparison:
    """The trials so far, summarised.

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
    _known: dict[Key, tuple[float, float]] = field(default_factory=dict, repr=False)

    def add(self, trial: Trial) -> None:
        self.fits += 1
        if trial.refused:
            self.refused.setdefault(trial.method, trial.refused)
        else:
            self.trials.setdefault((trial.method, trial.epsilon), []).append(trial)

    def of(self, method: str, epsilon: float) -> tuple[float, float] | None:
        """Mean score and its standard error; None where there is no fit."""
        fits = self.trials.get((method, epsilon), [])
        return self._summed((method, "", epsilon, len(fits)), [(trial.ids, trial.points) for trial in fits])

    def bounds(self, method: str, epsilon: float) -> tuple[float, float] | None:
        """Mean scores on real and on synthetic test rows, where there are both."""
        fits = self.trials.get((method, epsilon), [])
        ends = [trial.bounds for trial in fits if trial.bounds is not None]
        return (_mean(low for low, _ in ends), _mean(high for _, high in ends)) if ends else None

    def error(self, method: str, epsilon: float) -> float:
        """How far off the score may well be: a standard error, or half the gap between the two test sets."""
        score, bounds = self.of(method, epsilon), self.bounds(method, epsilon)
        apart = 0.0 if bounds is None else abs(bounds[1] - bounds[0]) / 2
        return max(0.0 if score is None else score[1], apart)

    def difference(self, method: str, other: str, epsilon: float) -> tuple[float, float] | None:
        """Mean of score − other's score, on the same stages and test rows."""
        mine, others = (self.trials.get((name, epsilon), []) for name in (method, other))
        pairs = zip(mine, others, strict=False)  # a fill that is under way has one more of the first
        gaps = [(first.ids, first.points - second.points) for first, second in pairs]
        return self._summed((method, other, epsilon, len(gaps)), gaps)

    def _summed(
        self, key: Key, parts: Sequence[tuple[NDArray[np.intp], Floats]]
    ) -> tuple[float, float] | None:
        """Each sum is made once: a screen asks for all of them after every fit."""
        if parts and key not in self._known:
            self._known[key] = _summary(parts)
        return self._known.get(key)

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
        notes = ["best private"] if method == self.best(epsilon) else []
        notes += ["no guarantee: a bound to compare with"] if method in NOT_PRIVATE else []
        row = {"method": method, "epsilon": epsilon, "score": score, "error": self.error(method, epsilon)}
        if ends := self.bounds(method, epsilon):
            row |= {"low": ends[0], "high": ends[1]}
            notes.append(f"between {ends[0]:.3f} (real rows) and {ends[1]:.3f} (synthetic ones)")
        return row | {"note": "; ".join(notes)}


def _mean(values: Iterable[float]) -> float:
    return float(np.mean(list(values)))


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
    estimator: Callable[[str, float, int], PrivateLinear],
    *,
    before: Callable[[str, float], None] = lambda method, epsilon: None,
) -> Iterator[Trial]:
    """Fit every method at every ε on every stage; each stage is finished before the next is made.

    Args:
        estimator: (method, ε, seed) → an unfitted PrivateClassifier or PrivateRegressor.
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
    stage: Stage, method: str, epsilon: float, estimator: Callable[[str, float, int], PrivateLinear]
) -> Trial:
    only_public = method in PUBLIC_ONLY and stage.X_rest is not None
    public = (stage.X_rest, stage.y_rest) if only_public else (stage.X_public, stage.y_public)
    try:
        with warnings.catch_warnings():
            # The stage's records are no secret, so that a model without a guarantee, or a δ above 1/n, warns
            # of nothing.
            warnings.simplefilter("ignore", NotPrivateWarning)
            warnings.simplefilter("ignore", PrivacyWarning)
            model = estimator(method, epsilon, stage.seed)
            model.fit(stage.X, stage.y, X_public=public[0], y_public=public[1])
    except SidelightError as error:
        no_ids, no_points = np.empty(0, dtype=np.intp), np.empty(0)
        return Trial(method, epsilon, no_points, no_ids, " ".join(str(error).split()))
    points = _points(model, stage.X_test, stage.y_test, stage.spread)
    if only_public or stage.X_synthetic is None or stage.y_synthetic is None:
        return Trial(method, epsilon, points, stage.ids, model=model)
    synthetic = float(_points(model, stage.X_synthetic, stage.y_synthetic, stage.spread).mean())
    bounds = (float(points.mean()), synthetic)
    return Trial(method, epsilon, (points + synthetic) / 2, stage.ids, model=model, bounds=bounds)


def _points(model: PrivateLinear, X: Array, y: Array, spread: float) -> Floats:
    predicted = model.predict(X)
    if hasattr(model, "classes_"):
        return np.asarray(predicted == y, dtype=np.float64)
    return np.asarray(1 - (predicted - y) ** 2 / spread, dtype=np.float64)
