"""Methods side by side: many fits on stages whose records may be judged openly, and what they tell.

A stage has records that stand in for private ones (synthetic, or a benchmark's), public ones, and judges that
no fit sees. Every judge gives a model a point: 1 for a correct class and 0 for a wrong one; for a regression
1 − (error/σ)², whose mean is R². Nothing here is for private data: scores leave as they are.

A stage of synthetic records may bring a second bench of judges, made as its records were. They are too kind:
they ask for what was memorised. The first, real rows that had no part in the records, are too harsh: two
dozen rows do not hold what a large table does. The score is then the mean of both, and they bound it. What
looks at no private record needs neither synthetic records nor kind judges: it gets all public rows but the
judges, and the plain score of those.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sidelight.errors import NotPrivateWarning, PrivacyWarning, SidelightError

__all__ = ["Comparison", "Stage", "Trial", "trials"]

Floats = NDArray[np.float64]

# What does not depend on ε is fitted once a stage.
FREE = ("only_public", "non_private", "majority")
NOT_PRIVATE = ("non_private",)
PUBLIC_ALONE = ("only_public", "majority")


@dataclass(frozen=True, eq=False)
class Stage:
    """One repetition: records to learn from, and judges. `ids` tells judges of several stages apart."""

    X: Any
    y: Any
    X_public: Any
    y_public: Any
    X_judge: Any
    y_judge: Any
    ids: NDArray[np.intp]
    seed: int
    spread: float = 1.0  # σ² of a regression's targets
    X_kind: Any = None  # the second bench
    y_kind: Any = None
    X_rest: Any = None  # all public rows but the judges, where X_public is a part of them
    y_rest: Any = None


@dataclass(frozen=True, eq=False)
class Trial:
    """One fit: the points that it got from each judge, or why it was refused."""

    method: str
    epsilon: float
    points: Floats
    ids: NDArray[np.intp]
    refused: str = ""
    model: Any = None
    bounds: tuple[float, float] | None = None  # what the harsh and the kind judges say


@dataclass
class Comparison:
    """The trials so far, summarised.

    Standard errors are the larger of two: that of the mean over judges (each counted once, by its mean over
    stages), and that of the mean over stages. With few judges the first rules, with few stages the second.
    """

    methods: tuple[str, ...]
    epsilons: tuple[float, ...]
    score: str = "accuracy"
    trials: dict[tuple[str, float], list[Trial]] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    fits: int = 0  # cells that were filled or refused so far, over all stages
    _known: dict[Any, tuple[float, float]] = field(default_factory=dict, repr=False)

    def add(self, trial: Trial) -> None:
        self.fits += 1
        if trial.refused:
            self.refused.setdefault(trial.method, trial.refused)
        else:
            self.trials.setdefault((trial.method, trial.epsilon), []).append(trial)

    def of(self, method: str, epsilon: float) -> tuple[float, float] | None:
        """Mean score and its standard error; None where there is no fit."""
        found = self.trials.get((method, epsilon), [])
        return self._summed((method, "", epsilon, len(found)), [(one.ids, one.points) for one in found])

    def bounds(self, method: str, epsilon: float) -> tuple[float, float] | None:
        """What harsh and kind judges say, on average, where there are both."""
        found = [one.bounds for one in self.trials.get((method, epsilon), []) if one.bounds is not None]
        return (_mean(low for low, _ in found), _mean(high for _, high in found)) if found else None

    def error(self, method: str, epsilon: float) -> float:
        """How far off the score may well be: a standard error, or half the way between the two benches."""
        score, bounds = self.of(method, epsilon), self.bounds(method, epsilon)
        apart = 0.0 if bounds is None else abs(bounds[1] - bounds[0]) / 2
        return max(0.0 if score is None else score[1], apart)

    def difference(self, method: str, other: str, epsilon: float) -> tuple[float, float] | None:
        """Mean of score − other's score, on the same stages and judges."""
        mine, others = (self.trials.get((name, epsilon), []) for name in (method, other))
        pairs = zip(mine, others, strict=False)  # a fill that is under way has one more of the first
        found = [(one.ids, one.points - two.points) for one, two in pairs]
        return self._summed((method, other, epsilon, len(found)), found)

    def _summed(
        self, key: Any, parts: Sequence[tuple[NDArray[np.intp], Floats]]
    ) -> tuple[float, float] | None:
        """Each sum is made once: a screen asks for all of them after every fit."""
        if parts and key not in self._known:
            self._known[key] = _summary(parts)
        return self._known.get(key)

    def best(self, epsilon: float, *, among: Sequence[str] | None = None) -> str | None:
        """The private method with the highest mean score; picked after the fact, so a little flattered."""
        asked = [m for m in self.methods if m not in NOT_PRIVATE and (among is None or m in among)]
        found = {method: score[0] for method in asked if (score := self.of(method, epsilon))}
        return max(found, key=lambda method: found[method]) if found else None

    def level(self, method: str, epsilon: float) -> bool:
        """Is it within two standard errors of the best one?"""
        best = self.best(epsilon)
        if best is None or method in NOT_PRIVATE:
            return False
        gap = self.difference(best, method, epsilon)
        return gap is not None and gap[0] <= 2 * gap[1]

    def rows(self) -> list[dict[str, Any]]:
        """For the card, for JSON and for charts: one row a method and ε."""
        return [
            self._row(method, epsilon, score[0])
            for method in self.methods
            for epsilon in self.epsilons
            if (score := self.of(method, epsilon)) is not None
        ]

    def _row(self, method: str, epsilon: float, score: float) -> dict[str, Any]:
        notes = ["best private"] if method == self.best(epsilon) else []
        notes += ["no guarantee: a bound to compare with"] if method in NOT_PRIVATE else []
        row = {"method": method, "epsilon": epsilon, "score": score, "error": self.error(method, epsilon)}
        if ends := self.bounds(method, epsilon):
            row |= {"low": ends[0], "high": ends[1]}
            notes.append(f"between {ends[0]:.3f} (real judges) and {ends[1]:.3f} (synthetic ones)")
        return row | {"note": "; ".join(notes)}


def _mean(values: Iterable[float]) -> float:
    return float(np.mean(list(values)))


def _summary(parts: Sequence[tuple[NDArray[np.intp], Floats]]) -> tuple[float, float]:
    ids = np.concatenate([ids for ids, _ in parts])
    points = np.concatenate([points for _, points in parts])
    _, place = np.unique(ids, return_inverse=True)
    by_judge = np.bincount(place, weights=points) / np.bincount(place)
    by_stage = np.array([float(points.mean()) for _, points in parts])
    return float(by_stage.mean()), max(_error(by_judge), _error(by_stage))


def _error(values: Floats) -> float:
    """The standard error of a mean; one value tells nothing."""
    return float(values.std(ddof=1) / math.sqrt(len(values))) if len(values) > 1 else 0.0


def trials(
    stages: Iterable[Stage],
    methods: Sequence[str],
    epsilons: Sequence[float],
    estimator: Callable[[str, float, int], Any],
    *,
    before: Callable[[str, float], None] = lambda method, epsilon: None,
) -> Iterator[Trial]:
    """Fit every method at every ε on every stage; each stage is finished before the next is made.

    Args:
        estimator: (method, ε, seed) → an unfitted PrivateClassifier or PrivateRegressor.
        before: is told which fit begins.
    """
    for stage in stages:
        for method in methods:
            last: Trial | None = None
            for epsilon in epsilons:
                if last is None or method not in FREE:
                    before(method, epsilon)
                    last = _try(stage, method, epsilon, estimator)
                yield replace(last, epsilon=epsilon)


def _try(stage: Stage, method: str, epsilon: float, estimator: Callable[[str, float, int], Any]) -> Trial:
    alone = method in PUBLIC_ALONE and stage.X_rest is not None
    shown = (stage.X_rest, stage.y_rest) if alone else (stage.X_public, stage.y_public)
    try:
        with warnings.catch_warnings():
            # The stage's records are no secret, so that a model without a guarantee, or a δ above 1/n, warns
            # of nothing.
            warnings.simplefilter("ignore", NotPrivateWarning)
            warnings.simplefilter("ignore", PrivacyWarning)
            model = estimator(method, epsilon, stage.seed)
            model.fit(stage.X, stage.y, X_public=shown[0], y_public=shown[1])
    except SidelightError as error:
        nobody, nothing = np.empty(0, dtype=np.intp), np.empty(0)
        return Trial(method, epsilon, nothing, nobody, " ".join(str(error).split()))
    points = _points(model, stage.X_judge, stage.y_judge, stage.spread)
    if alone or stage.X_kind is None:
        return Trial(method, epsilon, points, stage.ids, model=model)
    kind = float(_points(model, stage.X_kind, stage.y_kind, stage.spread).mean())
    bounds = (float(points.mean()), kind)
    return Trial(method, epsilon, (points + kind) / 2, stage.ids, model=model, bounds=bounds)


def _points(model: Any, X: Any, y: Any, spread: float) -> Floats:
    predicted = model.predict(X)
    if hasattr(model, "classes_"):
        return np.asarray(predicted == y, dtype=np.float64)
    return np.asarray(1 - (predicted - y) ** 2 / spread, dtype=np.float64)
