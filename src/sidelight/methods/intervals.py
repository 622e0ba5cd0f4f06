"""Intervals for predictions of numbers: how far from its prediction a target is, in what share of records.

    counts of private records by |y − prediction|     one Gaussian release of the plan, for at most 3 % of μ²
    public residuals, out of fold                      if n·ε does not afford that: they are about public rows

The sum of all counts from the k-th on is the mean share of records beyond q, over q between two sizes: taken
at the middle of these, a curve that falls (as far as noise lets it: the nearest that does is taken) and whose
inverse is the half-width of an interval. Of a target that training clipped the residual is at least what is
seen: half of such a record counts there, half as beyond all sizes, where the shape of the public tail is all
there is.

Predictions and half-widths are released or public, so that intervals cost nothing more.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Literal

import numpy as np

from sidelight.arrays import Array, Floats
from sidelight.data.guide import GuideColumns
from sidelight.errors import InputError
from sidelight.methods.baselines import best_on_folds
from sidelight.methods.side_release import PlanWithSideRelease, WrappedMethod, plan_with_side_release
from sidelight.methods.task import Fitted, Plan, Task
from sidelight.oracles.linear.score_counts import count_residuals
from sidelight.privacy import accountants, conversions, events
from sidelight.privacy.noise import Noise
from sidelight.privacy.release import Account, release

Source = Literal["private", "public"]
_LEAST_SHARE, _LARGEST_SHARE = 0.002, 0.03  # of μ²
_WANTED, _COARSEST = 0.005, 0.02  # noise on a share of records: what is aimed at, and what is too much
_AT = 2.0 * 2.0 ** (-np.arange(20)[::-1] / 3)  # from 0.025 to 2, in units of the largest target
_SUMMED = 6  # counts beyond a typical half-width
_LEVELS = np.concatenate([np.arange(0.01, 0.995, 0.01), [0.995, 0.999]])
_FEWEST = 10  # public rows


@dataclass(frozen=True, eq=False)
class Intervals:
    """Half-widths in the units of the target, by the share of records within them.

    source: whose residuals these are: of private records, counted with noise, or of public ones.
    """

    level: Floats
    width: Floats
    source: Source

    def __post_init__(self) -> None:
        fits = self.level.shape == self.width.shape and self.level.ndim == 1 and len(self.level) > 1
        if not fits or not (np.isfinite([self.level, self.width]).all() and (np.diff(self.width) >= 0).all()):
            raise ValueError("half-widths that do not rise with the share of records")
        if self.source not in ("private", "public") or not (np.diff(self.level) > 0).all():
            raise ValueError("half-widths of an unknown source")

    def half_width(self, coverage: float) -> float:
        """Beyond the largest share that is known, its half-width."""
        if not 0 < coverage < 1:
            raise InputError(f"coverage must be a share between 0 and 1, such as 0.9, not {coverage!r}")
        return float(np.interp(coverage, self.level, self.width))


@dataclass
class ResidualFit(Fitted):
    """A model, and the share of private records whose residual is beyond each size; None if unknown."""

    beyond: Floats | None = field(default=None)


@dataclass(frozen=True, repr=False)
class WithIntervals(WrappedMethod):
    """A method for a regression, and after it counts of private records by residual where n·ε affords them.

    Guarantee: the composition of the method's releases and one Gaussian one, in one plan.
    """

    def plan(self, task: Task) -> Plan:
        share = _share(task)
        if share is None or task.unit != "record" or task.target_bound is None:
            return _alone(self.method.plan(task))
        z = 1 / (math.sqrt(share) * conversions.gdp_mu(task.epsilon, task.delta))
        found = plan_with_side_release(
            events.gaussian(z),
            lambda rest: self.method.plan(replace(task, epsilon=rest)),
            epsilon=task.epsilon,
            delta=task.delta,
            relation=task.relation,
        )
        if found is None or not found.spends or found.inner.filtered:
            return _alone(self.method.plan(task))
        if accountants.gdp(found.inner.event) is None:
            return _alone(self.method.plan(task))
        details = {**found.inner.details, "intervals_share": share, "noise_multiplier_residuals": z}
        return replace(found.plan, details=details, state={"plan": found.inner, "z": z, "beside": found})

    def run(self, task: Task, plan: Plan, *, account: Account, noise: Noise) -> Fitted:
        z: float | None = plan.state["z"]
        beside: PlanWithSideRelease | None = plan.state.get("beside")
        asked = task if beside is None else beside.task(task)
        fitted = self.method.run(asked, plan.state["plan"], account=account, noise=noise)
        if z is None:
            return fitted
        question = partial(
            count_residuals, weights=fitted.coef, at=_AT, relation=task.relation, trees=fitted.leaves,
            clipped=task.residual,
        )  # fmt: skip
        total = task.rows.summed(question)
        std = z * total.sensitivity
        noisy = release(total, std=std, event=events.gaussian(z), account=account, noise=noise).numpy()
        line = {"step": len(fitted.history), "released": "counts of residuals", "noise_std": std}
        beyond = np.cumsum(noisy[::-1])[::-1] / task.n
        return ResidualFit(
            fitted.coef, [*fitted.history, line], fitted.notes, fitted.found, fitted.leaves, beyond
        )


def _alone(plan: Plan) -> Plan:
    return replace(plan, state={"plan": plan, "z": None})


def _share(task: Task) -> float | None:
    """Of μ²: the less, the more private records there are; None if noise would be too much at the largest."""
    factor = 1.0 if task.relation == "add-or-remove-one" else math.sqrt(2)
    noise = factor * math.sqrt(_SUMMED) / (task.n * conversions.gdp_mu(task.epsilon, task.delta))
    if noise > _COARSEST * math.sqrt(_LARGEST_SHARE):
        return None
    return min(_LARGEST_SHARE, max(_LEAST_SHARE, (noise / _WANTED) ** 2))


# ---------------------------------------------------------------------------------------------------
# half-widths


def intervals_of(beyond: Floats | None, public: Floats | None, unit: float) -> Intervals | None:
    """Of released shares, or of public residuals; None if there are neither.

    Args:
        beyond: of a `ResidualFit`.
        public: |y − prediction| of public rows by models that have not seen them, in the units of y.
        unit: what 1 means in the units of y.
    """
    if beyond is None:
        return None if public is None else Intervals(_LEVELS, _quantiles(public, _LEVELS), "public")
    middle = np.concatenate([[0.0], (np.concatenate([[0.0], _AT[:-1]]) + _AT) / 2])
    share = np.concatenate([[1.0], _falling(np.clip(beyond, 0, 1))])
    last = share[-1]  # of clipped residuals, beyond all sizes
    falling = share[:-1] + 1e-9 * np.arange(len(share) - 1, 0, -1)  # strictly, so that it has an inverse
    width = unit * np.interp(1 - _LEVELS, falling[::-1], middle[::-1])
    tail = None if public is None else public[public > unit]
    if tail is not None and len(tail) and last > 0:
        there = last > 1 - _LEVELS
        width[there] = _quantiles(tail, np.clip(1 - (1 - _LEVELS[there]) / last, 0, 1))
    return Intervals(_LEVELS, np.maximum.accumulate(width), "private")


def _falling(values: Floats) -> Floats:
    """The nearest values that never rise, by pooling neighbors."""
    from sklearn.isotonic import isotonic_regression

    return np.asarray(isotonic_regression(values, increasing=False))


def _quantiles(residuals: Floats, level: Floats) -> Floats:
    """So that a new residual is below with this probability: m residuals leave m + 1 places for it."""
    m = len(residuals)
    return np.asarray(np.quantile(residuals, np.minimum(level * (m + 1) / m, 1.0)))


def public_residuals(task: Task, said: GuideColumns | None, y: Array | None, unit: float) -> Floats | None:
    """|y − prediction| of public rows alone, by models that have not seen them; None if these are too few."""
    if y is None or task.public.n < _FEWEST:
        return None
    if said is not None and said.offset is not None:
        return np.abs(np.asarray(y, dtype=np.float64) - said.offset)
    _, z, targets = best_on_folds(task.public, task.loss)
    return np.asarray(unit * np.abs(targets - z[:, 0]))
