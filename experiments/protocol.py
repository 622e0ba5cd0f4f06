"""One fit on one split, as the papers do it, and the summary of many.

The papers scale features with ranges taken from all rows, which is not charged: `ranges="all"` repeats that
for comparison. `ranges="public"` takes them from the public rows alone, `ranges="declared"` from what is
known of a dataset without looking at it: the two that a user has.
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

import numpy as np

from experiments import datasets
from sidelight.data.coordinates import Bounds, bound_rows
from sidelight.data.rows import PrivateRows, PublicRows
from sidelight.data.targets import TargetScale
from sidelight.errors import NotPrivateWarning, PrivacyWarning
from sidelight.losses import get_loss
from sidelight.methods.task import Fitted, Method, Task
from sidelight.privacy.noise import Noise

Ranges = Literal["all", "public", "declared"]
DELTA = 1e-8

# What anybody knows of these tables: indicators, and bytes. The others have no natural bounds.
DECLARED = {"adult-a": (0.0, 1.0), "skin": (0.0, 255.0)}


class Unlimited:
    """An account that pays for everything: an experiment on public benchmarks has no ledger."""

    def charge(self, event: Any) -> None:
        """Accepted."""


@dataclass(frozen=True)
class Split:
    """Bounded rows of one repeat, and how to score a model on the test part."""

    private: PrivateRows
    public: PublicRows
    X_test: Any
    y_test: Any
    regression: bool
    units: float = 1.0  # of a residual, in those of targets scaled by all rows
    shift: float = 0.0

    def score(self, coef: Any) -> float:
        """Accuracy, or the mean square error on targets that span [−1, 1]."""
        z = self.X_test @ coef[0]
        if self.regression:
            return float(np.mean((self.units * z + self.shift - self.y_test) ** 2))
        return float(np.mean(np.where(z >= 0, 1.0, -1.0) == self.y_test))


@cache
def table(name: str) -> datasets.Dataset:
    """A dataset, read once a process."""
    return datasets.load(name)


def split(data: datasets.Dataset, *, repeat: int, public_share: float, ranges: Ranges = "all") -> Split:
    """80 % to train, of which `public_share` is public, 20 % to test; unit rows."""
    X, y = data.X, data.y
    order = np.random.default_rng(repeat).permutation(len(y))
    cut = int(0.8 * len(y))
    count = max(1, round(public_share * cut))
    public, private, test = order[:count], order[count:cut], order[cut:]
    bounds = _bounds(data, X[public], ranges)
    rows = [
        bound_rows(X[part].astype(np.float64), bounds, fit_intercept=False, normalize=True)
        for part in (private, public, test)
    ]
    targets, units, shift = [y[private], y[public]], 1.0, 0.0
    y_test = y[test]
    if data.task == "regression":
        full = TargetScale(float(y.min()), float(y.max()))
        scale = full if ranges == "all" else TargetScale.from_public(y[public])
        targets, y_test = [scale.transform(part) for part in targets], full.transform(y_test)
        units = (scale.high - scale.low) / (full.high - full.low)
        shift = ((scale.high + scale.low) - (full.high + full.low)) / (full.high - full.low)
    return Split(
        PrivateRows(rows[0], targets[0], max_norm=1.0), PublicRows(rows[1], targets[1]), rows[2], y_test,
        data.task == "regression", units, shift,
    )  # fmt: skip


def _bounds(data: datasets.Dataset, X_public: Any, ranges: Ranges) -> Bounds:
    if ranges == "all":  # not private: the papers' protocol
        low, high = data.X.min(axis=0), data.X.max(axis=0)
        return Bounds.declared(low.astype(np.float64), high.astype(np.float64), features=data.X.shape[1])
    if ranges == "declared":
        return Bounds.declared(*DECLARED[data.name], features=data.X.shape[1])
    return Bounds.from_public(X_public)


def fit(
    method: Method,
    data: Split,
    *,
    loss: str,
    epsilon: float,
    delta: float = DELTA,
    relation: Any = "replace-one",
    regularization: float = 0.0,
    seed: int = 0,
) -> tuple[Fitted, float]:
    """Plan and run a method; the model and the seconds it took."""
    task = Task(
        data.private, data.public, get_loss(loss), epsilon, delta, relation,
        regularization=regularization, target_bound=1.0 if data.regression else None,
    )  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NotPrivateWarning)
        warnings.simplefilter("ignore", PrivacyWarning)
        start = time.perf_counter()
        fitted = method.run(task, method.plan(task), account=Unlimited(), noise=Noise(seed + 1))
        return fitted, time.perf_counter() - start


def mean_and_error(values: Iterable[float]) -> tuple[float, float, int]:
    """Mean, standard error and count; the error of a single value is not known."""
    array = np.array(list(values), dtype=float)
    if len(array) < 2:
        return float(array.mean()) if len(array) else math.nan, math.nan, len(array)
    return float(array.mean()), float(array.std(ddof=1) / math.sqrt(len(array))), len(array)
