"""Scores that a person can use, each with an interval that covers: for `fit`, `compare` and the report.

All are of records that are public. Intervals are 95 % ones: they are about the records that the scores are
measured on being few, and about nothing else; if those are of another population than the private records,
they say nothing of these.

A share (accuracy, balanced accuracy, AUC) has Wilson's interval, for as many rows as have its variance: it
stays within 0 and 1, and is no point where every row is right. A mean of losses or squared errors has an
interval of its logarithm. The calibration error is never 0 on a few rows: beside it stands the one that a
model with true probabilities would stay below.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from scipy.stats import rankdata
from scipy.stats import t as student

from sidelight.arrays import Array, Floats, Json

_Z = 1.959963984540054
_FEWEST_IN_BIN, _MOST_BINS = 15, 10
_DRAWS = 200
NAMES = {
    "accuracy": "accuracy",
    "balanced_accuracy": "balanced accuracy",
    "auc": "AUC",
    "log_loss": "log loss",
    "calibration_error": "calibration error",
    "root_mean_squared_error": "root mean squared error",
    "mean_absolute_error": "mean absolute error",
    "r_squared": "R²",
}
LOWER_IS_BETTER = (
    *("log_loss", "calibration_error", "root_mean_squared_error", "mean_absolute_error"),
    "mean_squared_error",
)


def wilson(share: float, rows: float) -> tuple[float, float]:
    """The 95 % interval of a share of this many rows (Wilson 1927), which contains it."""
    if rows <= 0:
        return 0.0, 1.0
    spread = _Z * math.sqrt(max(share * (1 - share), 0.0) / rows + _Z**2 / (4 * rows**2))
    center, total = share + _Z**2 / (2 * rows), 1 + _Z**2 / rows
    return max(0.0, min(share, (center - spread) / total)), min(1.0, max(share, (center + spread) / total))


def log_interval(values: Floats) -> tuple[float, float]:
    """The 95 % interval of a mean of positive values, by the delta method for its logarithm."""
    mean, rows = float(values.mean()), len(values)
    if rows < 2 or not (mean > 0 and math.isfinite(mean)):
        return 0.0, math.inf
    reach = float(student.ppf(0.975, rows - 1)) * float(values.std(ddof=1)) / (mean * math.sqrt(rows))
    return mean * math.exp(-reach), mean * math.exp(reach)


def _measure(value: float, interval: tuple[float, float]) -> Json:
    return {"value": value, "low": interval[0], "high": interval[1]}


# ---------------------------------------------------------------------------------------------------
# classes


def classification_scores(
    truth: Array, predicted: Array, chances: Floats | None, labels: Sequence[object]
) -> Json:
    """Everything about a classifier on some records.

    Args:
        truth, predicted: labels of the records.
        chances: (n, classes) probabilities in the order of `labels`; None for a model without them.
    """
    names = np.asarray(labels)
    true, guess = (np.argmax(y[:, None] == names, axis=1) for y in (np.asarray(truth), np.asarray(predicted)))
    right = true == guess
    measures: Json = {"accuracy": _measure(float(right.mean()), wilson(float(right.mean()), len(right)))}
    if (balanced := _balanced(true, right)) is not None:
        measures["balanced_accuracy"] = balanced
    found: Json = {
        "rows": len(right),
        "majority": _majority(true, names),
        "measures": measures,
        "confusion": {"labels": names.tolist(), "counts": _confusion(true, guess, len(names))},
    }
    if chances is not None:
        found |= _of_chances(true, np.asarray(chances, dtype=np.float64), measures)
    return found


def _of_chances(true: Array, chances: Floats, measures: Json) -> Json:
    """AUC, log loss and calibration, into `measures`; and the rows of a reliability diagram."""
    if (auc := _auc(true, chances)) is not None:
        measures["auc"] = auc
    losses = -np.log(np.clip(chances[np.arange(len(true)), true], 1e-15, None))
    # Rare, costly mistakes may be missing among a few records: the upper end has one more that is wrong.
    wrong = -math.log(max(float(np.median(1 - chances.max(axis=1))), 1e-15))
    ends = log_interval(losses)[0], log_interval(np.append(losses, wrong))[1]
    measures["log_loss"] = _measure(float(losses.mean()), ends)
    two = chances.shape[1] == 2
    sure = chances[:, 1] if two else chances.max(axis=1)
    hit = true == 1 if two else chances.argmax(axis=1) == true
    measures["calibration_error"] = {
        "value": calibration_error(sure, hit),
        "by_chance": _by_chance(sure),
    }
    return {"reliability": reliability(sure, hit)}


def _majority(true: Array, names: Array) -> Json:
    """The commonest label, and its share of the records: what every model must beat."""
    counts = np.bincount(true, minlength=len(names))
    top = int(np.argmax(counts))
    share = float(counts[top] / counts.sum())
    return {"label": names.tolist()[top], **_measure(share, wilson(share, len(true)))}


def _confusion(true: Array, guess: Array, classes: int) -> list[list[int]]:
    """Counts: a row for each true label, a column for each predicted one."""
    counts = np.bincount(true * classes + guess, minlength=classes**2).reshape(classes, classes)
    return [[int(count) for count in row] for row in counts]


def _balanced(true: Array, right: Array) -> Json | None:
    """The mean of the shares of each class that are right; None if the records have one class alone."""
    sizes = np.bincount(true)
    hits = np.bincount(true, weights=right)[sizes > 0]
    sizes = sizes[sizes > 0]
    if len(sizes) < 2:
        return None
    value = float((hits / sizes).mean())
    smooth = (hits + 1) / (sizes + 2)  # a class that is all right is no certainty
    variance = float((smooth * (1 - smooth) / sizes).sum()) / len(sizes) ** 2
    return _measure(value, _like_a_share(value, variance, len(true)))


def _auc(true: Array, chances: Floats) -> Json | None:
    """The chance that a record of a class is ranked above one of another; many classes: the mean of each."""
    values, variances = [], []
    classes = [1] if chances.shape[1] == 2 else range(chances.shape[1])
    for label in classes:
        mine = true == label
        first, second = int(mine.sum()), int((~mine).sum())
        if not first or not second:
            continue
        ranks = rankdata(chances[:, label])
        value = float((ranks[mine].sum() - first * (first + 1) / 2) / (first * second))
        values.append(value)
        variances.append(_auc_variance(value, first, second))
    if not values:
        return None
    # Of one-vs-rest areas on the same records, the mean varies at most as they do on average.
    value, variance = float(np.mean(values)), float(np.mean(variances))
    return _measure(value, _like_a_share(value, variance, len(true)))


def _auc_variance(value: float, first: int, second: int) -> float:
    """Hanley & McNeil (1982)."""
    smooth = (value * first * second + 0.5) / (first * second + 1)  # never 0 or 1
    above, below = smooth / (2 - smooth), 2 * smooth**2 / (1 + smooth)
    spread = (first - 1) * (above - smooth**2) + (second - 1) * (below - smooth**2)
    return float((smooth * (1 - smooth) + spread) / (first * second))


def _like_a_share(value: float, variance: float, rows: int) -> tuple[float, float]:
    """Wilson's interval for as many rows as give a share of this value this variance."""
    inside = min(max(value, 0.5 / rows), 1 - 0.5 / rows)
    size = inside * (1 - inside) / variance if variance > 0 else float(rows)
    return wilson(value, min(size, rows))


def _bins(sure: Floats) -> Floats:
    """(n, bins) of 0 and 1: records by their probability, about equally many in each, equal ones together."""
    count = int(np.clip(len(sure) // _FEWEST_IN_BIN, 1, _MOST_BINS))
    below = np.searchsorted(np.sort(sure), sure, side="left")
    _, place = np.unique(below * count // len(sure), return_inverse=True)
    return np.asarray(place[:, None] == np.arange(place.max() + 1), dtype=np.float64)


def calibration_error(sure: Floats, hit: Array) -> float:
    """The mean distance of rates from probabilities, over bins of about equally many records."""
    return float(np.abs((sure - hit) @ _bins(sure)).sum() / len(sure))


def _by_chance(sure: Floats) -> float:
    """What the calibration error of true probabilities stays below in 95 of 100 draws of as many records."""
    rng = np.random.default_rng(0)  # of public records: nothing to hide
    drawn = rng.random((_DRAWS, len(sure))) < sure
    return float(np.quantile(np.abs((sure - drawn) @ _bins(sure)).sum(axis=1) / len(sure), 0.95))


def reliability(sure: Floats, hit: Array) -> list[Json]:
    """For each bin: its records, their mean probability, and the rate with its interval."""
    rows = []
    for part in _bins(sure).T.astype(bool):
        rate, size = float(hit[part].mean()), int(part.sum())
        found = {"rows": size, "predicted": float(sure[part].mean()), "observed": rate}
        rows.append(found | dict(zip(("low", "high"), wilson(rate, size), strict=True)))
    return rows


# ---------------------------------------------------------------------------------------------------
# numbers


def regression_scores(truth: Floats, predicted: Floats) -> Json:
    """Errors in the units of the target, and R²; beside them, those of a model that knows the mean alone."""
    truth, predicted = np.asarray(truth, dtype=np.float64), np.asarray(predicted, dtype=np.float64)
    squares, sizes = (predicted - truth) ** 2, np.abs(predicted - truth)
    spread = float(truth.var())
    low, high = log_interval(squares)
    measures: Json = {
        "root_mean_squared_error": _measure(
            math.sqrt(float(squares.mean())), (math.sqrt(low), math.sqrt(high))
        ),
        "mean_absolute_error": _measure(float(sizes.mean()), log_interval(sizes)),
    }
    if spread > 0:
        measures["r_squared"] = _r_squared(squares, (truth - truth.mean()) ** 2)
    return {"rows": len(truth), "mean": {"value": math.sqrt(spread)}, "measures": measures}


def _r_squared(squares: Floats, spread: Floats) -> Json:
    """1 − a ratio of two means, whose logarithm has an interval by the delta method."""
    ratio = float(squares.mean() / spread.mean())
    relative = squares / max(float(squares.mean()), 1e-300) - spread / spread.mean()
    rows = len(squares)
    reach = float(
        student.ppf(0.975, max(rows - 1, 1)) * relative.std(ddof=min(1, rows - 1)) / math.sqrt(rows)
    )
    return _measure(1 - ratio, (1 - ratio * math.exp(reach), 1 - ratio * math.exp(-reach)))
