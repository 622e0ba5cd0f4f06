"""Methods side by side: many fits on stages whose records may be judged openly, and what they tell.

A stage has records that stand in for private ones (synthetic, or a benchmark's), public ones, and judges that
no fit sees. Every judge gives a model a point: 1 for a correct class and 0 for a wrong one; for a regression
1 − (error/σ)², whose mean is R². Nothing here is for private data: scores leave as they are.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sidelight.errors import NotPrivateWarning, PrivacyWarning, SidelightError

__all__ = ["Comparison", "Stage", "Trial", "trials"]

Floats = NDArray[np.float64]

# What does not depend on ε is fitted once a stage.
FREE = ("only_public", "non_private", "majority")
NOT_PRIVATE = ("non_private",)


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


@dataclass(frozen=True, eq=False)
class Trial:
    """One fit: the points that it got from each judge, or why it was refused."""

    method: str
    epsilon: float
    points: Floats
    ids: NDArray[np.intp]
    refused: str = ""
    model: Any = None


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

    def add(self, trial: Trial) -> None:
        if trial.refused:
            self.refused.setdefault(trial.method, trial.refused)
        else:
            self.trials.setdefault((trial.method, trial.epsilon), []).append(trial)

    def of(self, method: str, epsilon: float) -> tuple[float, float] | None:
        """Mean score and its standard error; None where there is no fit."""
        found = self.trials.get((method, epsilon))
        return None if not found else _summary([(one.ids, one.points) for one in found])

    def difference(self, method: str, other: str, epsilon: float) -> tuple[float, float] | None:
        """Mean of score − other's score, on the same stages and judges."""
        pairs = zip(self.trials.get((method, epsilon), []), self.trials.get((other, epsilon), []), strict=False)
        found = [(one.ids, one.points - two.points) for one, two in pairs]
        return _summary(found) if found else None

    def best(self, epsilon: float) -> str | None:
        """The private method with the highest mean score; picked after the fact, so a little flattered."""
        found = {m: s[0] for m in self.methods if m not in NOT_PRIVATE and (s := self.of(m, epsilon))}
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
            {
                "method": method,
                "epsilon": epsilon,
                "score": found[0],
                "error": found[1],
                "note": _note(method, method == self.best(epsilon)),
            }
            for method in self.methods
            for epsilon in self.epsilons
            if (found := self.of(method, epsilon)) is not None
        ]


def _note(method: str, best: bool) -> str:
    if method in NOT_PRIVATE:
        return "no guarantee: a bound to compare with"
    return "best private" if best else ""


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
                yield Trial(method, epsilon, last.points, last.ids, last.refused, last.model)


def _try(stage: Stage, method: str, epsilon: float, estimator: Callable[[str, float, int], Any]) -> Trial:
    nothing = np.empty(0)
    try:
        with warnings.catch_warnings():
            # The stage's records are no secret, so that a model without a guarantee, or a δ above 1/n, warns
            # of nothing.
            warnings.simplefilter("ignore", NotPrivateWarning)
            warnings.simplefilter("ignore", PrivacyWarning)
            model = estimator(method, epsilon, stage.seed)
            model.fit(stage.X, stage.y, X_public=stage.X_public, y_public=stage.y_public)
    except SidelightError as error:
        return Trial(method, epsilon, nothing, np.empty(0, dtype=np.intp), " ".join(str(error).split()))
    return Trial(method, epsilon, _points(model, stage), stage.ids, model=model)


def _points(model: Any, stage: Stage) -> Floats:
    predicted = model.predict(stage.X_judge)
    if hasattr(model, "classes_"):
        return np.asarray(predicted == stage.y_judge, dtype=np.float64)
    return np.asarray(1 - (predicted - stage.y_judge) ** 2 / stage.spread, dtype=np.float64)
