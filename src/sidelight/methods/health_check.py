"""The health check: a noisy count of private records that contributed nothing.

A record that cannot be used contributes zero, silently: right for one record, and a trap if it is
most of them (labels shifted by one, another unit, a category that is spelled differently). So a small share
of the budget pays for one more Gaussian release inside the plan, a vector of

- the number of records that are ignored: their target is none of the classes, a value is not finite;
- for each column, how many values are misfits: missing, unreadable, of no known category, out of bounds.

The noise is chosen by n: a standard deviation of 1.5 % of the records for the first number and 2.5 % for a
column, and at most 2 % of the budget's μ². Where that would say nothing (more than 10 % of the records),
there is no check, and the statement says so. What is reported are intervals that hold together with 95 %.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import numpy as np
from scipy.stats import norm

from sidelight.arrays import Array, Floats, Json, Mask
from sidelight.data.rows import tally
from sidelight.errors import RecordsWarning, warn_charged
from sidelight.methods.side_release import PlanWithSideRelease, WrappedMethod, plan_with_side_release
from sidelight.methods.task import Fitted, Plan, Task
from sidelight.oracles.linear.row_sums import count_ignored, ignored_scales
from sidelight.privacy import conversions, events
from sidelight.privacy.events import FixedSize, FullBatch, Poisson, Relation, Sampler
from sidelight.privacy.noise import Noise
from sidelight.privacy.release import Account, release

HEALTH_CHECK = "health_check"  # in details and histories
SHARE = 0.02  # of μ², at most
CONFIDENCE = 0.95
_WANTED = 0.015  # standard deviation of the ignored records, as a share of all
_USELESS = 0.1  # of all records: noise that says nothing
_MOST_IGNORED = 0.5  # of all records, above which a fit warns
_MISFITS_MORE = 0.2  # of a column's values, beyond the public share, above which a fit warns
_LISTED = 5  # columns in a sentence


def skipped(why: str) -> Json:
    """What a statement says of a check that was not made."""
    return {"skipped": why, "summary": f"not made: {why}"}


UNUSED = "no private record was used"
OFF = skipped("switched off (health_check=False)")


# ---------------------------------------------------------------------------------------------------
# what was found


class ColumnHealth(NamedTuple):
    """The share of a column's private values that are misfits, as an interval, and of the public ones."""

    name: str
    low: float
    high: float
    public: float | None

    @property
    def more(self) -> float:
        """How far the private share is above the public one, at least."""
        return self.low - (self.public or 0.0)

    def __str__(self) -> str:
        beside = "" if self.public is None else f", {_percent(self.public)} of the public ones"
        return f"{_percent(self.low)} to {_percent(self.high)} of {self.name!r}{beside}"


@dataclass(frozen=True)
class Health:
    """Intervals for the ignored records and the misfits of each column, which hold together with 95 %."""

    low: int
    high: int
    n: int
    unit: str
    columns: tuple[ColumnHealth, ...] = ()

    @property
    def _counted(self) -> str:
        return "records" if self.unit == "record" else f"persons (by {self.unit})"

    @property
    def changed(self) -> list[ColumnHealth]:
        """Columns with more misfits than the public records have, the worst first."""
        return sorted((one for one in self.columns if one.more > 0), key=lambda one: -one.more)

    @property
    def summary(self) -> str:
        """One sentence for a statement."""
        text = f"{self.low:,} to {self.high:,} of {self.n:,} private {self._counted} contributed nothing"
        shown = "; ".join(map(str, self.changed[:_LISTED]))
        more = f"; values that do not fit: {shown}" if shown else ""
        return f"{text}{more} ({100 * CONFIDENCE:.0f}\u202f% intervals of noisy counts)"

    def to_dict(self) -> Json:
        """For `privacy_.details` and the report."""
        columns = [
            {"column": one.name, "low": one.low, "high": one.high, "public": one.public}
            for one in self.columns
        ]
        return {
            "ignored": [self.low, self.high],
            "records": self.n,
            "confidence": CONFIDENCE,
            "misfits": columns,
            "summary": self.summary,
        }

    def warn(self) -> None:
        """Warn if most records were ignored, or a column has many more misfits than the public one."""
        lines = []
        if self.low > _MOST_IGNORED * self.n:
            lines.append(
                f"{self.low:,} to {self.high:,} of {self.n:,} private {self._counted} contributed nothing: "
                "their target is none of the classes, a value is not finite, or the loss fails on them"
            )
        if many := [one for one in self.changed if one.more > _MISFITS_MORE]:
            shown = "; ".join(map(str, many[:_LISTED]))
            lines.append(f"values are missing, of no known category, or out of bounds in {shown}")
        if lines:
            text = f"{'. And '.join(lines)}. Compare labels, spelling and units with the public records"
            warn_charged(text, RecordsWarning)


def _percent(share: float) -> str:
    return f"{100 * share:.0f}\u202f%"


# ---------------------------------------------------------------------------------------------------
# how it is planned and read


class CheckPlan(NamedTuple):
    """The noise of a check, fixed by public quantities."""

    multiplier: float
    sampler: Sampler
    n: int
    relation: Relation

    @property
    def event(self) -> events.Event:
        return self.sampler.event(self.n, self.multiplier)

    @property
    def size(self) -> float:
        """Records that are counted, on average."""
        return self.sampler.expected_batch_size(self.n)


_SAMPLE = 4096  # records of a network that are counted: a pass over all of them may take long


def some_records(n: int, relation: Relation) -> Sampler:
    """Who is counted, of n records of a network: all, or 4,096 on average."""
    if n <= _SAMPLE:
        return FullBatch(relation)
    return Poisson(_SAMPLE / n) if relation == "add-or-remove-one" else FixedSize(_SAMPLE)


@dataclass(frozen=True)
class HealthCheck:
    """Which columns are counted, and the public share of misfits in each (empty: not known)."""

    columns: tuple[str, ...] = ()
    public: tuple[float, ...] = ()

    @classmethod
    def of(cls, columns: Sequence[str], misfits: Mask | None) -> HealthCheck:
        """A check of these columns; `misfits` are those of public rows, counted as private ones are."""
        if misfits is None or not len(misfits):
            return cls(tuple(columns))
        shares = tally(np.zeros(len(misfits), dtype=bool), misfits)[1:] / len(misfits)
        return cls(tuple(columns), tuple(float(share) for share in shares))

    @property
    def _scales(self) -> Floats:
        return ignored_scales(len(self.columns))

    def reach(self, relation: Relation) -> float:
        """How far one record moves the vector: a single count by 1, also if it is replaced."""
        return math.sqrt(2) if self.columns and relation == "replace-one" else 1.0

    def plan(
        self, n: int, *, epsilon: float, delta: float, relation: Relation, sampler: Sampler | None = None
    ) -> CheckPlan | None:
        """The noise for n records, of which `sampler` draws some; None if it would say nothing."""
        drawn = FullBatch(relation) if sampler is None else sampler
        size = drawn.expected_batch_size(n)
        reach = self.reach(relation)
        wanted = _WANTED * size * float(self._scales[0]) / reach
        most = math.sqrt(SHARE) * conversions.gdp_mu(epsilon, delta)
        least = 1 / (most if size >= n else math.sqrt(math.log1p((most * n / size) ** 2)))
        z = max(wanted, least)
        if z * reach / float(self._scales[0]) > _USELESS * size:
            return None
        return CheckPlan(z, drawn, n, relation)

    def read(self, noisy: Array, *, std: float, plan: CheckPlan, unit: str) -> Health:
        """Intervals from the released vector, whose noise has this standard deviation in every entry."""
        wide = float(norm.isf((1 - CONFIDENCE) / 2 / (1 + len(self.columns))))
        found = np.asarray(noisy, dtype=np.float64) / self._scales
        spread = std / self._scales
        if plan.size < plan.n:  # a sample of the records: counts vary with who is drawn
            spread = np.sqrt(spread**2 + np.clip(found + wide * spread, 0, plan.size))
        low, high = (np.clip((found + side * wide * spread) / plan.size, 0, 1) for side in (-1, 1))
        columns = tuple(
            ColumnHealth(name, float(low[1 + k]), float(high[1 + k]), self.public[k] if self.public else None)
            for k, name in enumerate(self.columns)
        )
        return Health(math.floor(low[0] * plan.n), math.ceil(high[0] * plan.n), plan.n, unit, columns)


# ---------------------------------------------------------------------------------------------------
# beside a method on a linear model


@dataclass(frozen=True, repr=False)
class WithHealthCheck(WrappedMethod):
    """A method, and after it the health check of the records that it used."""

    check: HealthCheck = HealthCheck()

    def plan(self, task: Task) -> Plan:
        """The method's plan with the budget that the check leaves, and the check."""
        if not self.private:
            return self._without(self.method.plan(task), "this method protects no record")
        plan = self.check.plan(task.n, epsilon=task.epsilon, delta=task.delta, relation=task.relation)
        if plan is None:
            return self._without(self.method.plan(task), too_few(task.n, task.epsilon))
        found = plan_with_side_release(
            plan.event,
            lambda rest: self.method.plan(replace(task, epsilon=rest)),
            epsilon=task.epsilon,
            delta=task.delta,
            relation=task.relation,
        )
        if found is not None and not found.spends:
            return self._without(found.inner, UNUSED)
        if found is None or _is_pure(found.inner.event):
            return self._without(self.method.plan(task), f"the plan of {self.name} has no room for it")
        details = {**found.inner.details, HEALTH_CHECK: price(plan, task.epsilon, task.delta)}
        return replace(found.plan, details=details, state={"beside": found, "check": plan})

    def run(self, task: Task, plan: Plan, *, account: Account, noise: Noise) -> Fitted:
        if "beside" not in plan.state:
            return self.method.run(task, plan.state["plan"], account=account, noise=noise)
        beside: PlanWithSideRelease = plan.state["beside"]
        check: CheckPlan = plan.state["check"]
        fitted = self.method.run(beside.task(task), beside.inner, account=account, noise=noise)
        total = task.rows.summed(partial(count_ignored, relation=task.relation))
        std = check.multiplier * total.sensitivity
        noisy = release(total, std=std, event=check.event, account=account, noise=noise).numpy()
        health = self.check.read(noisy, std=std, plan=check, unit=task.unit)
        fitted.history.append(_entry(health, check, std, len(fitted.history)))
        fitted.found[HEALTH_CHECK] = {**_mapping(plan.details[HEALTH_CHECK]), **health.to_dict()}
        health.warn()
        return fitted

    def _without(self, inner: Plan, why: str) -> Plan:
        details = {**inner.details, HEALTH_CHECK: skipped(why)}
        return replace(inner, details=details, state={"plan": inner})


def too_few(n: int, epsilon: float) -> str:
    """Why there is no check."""
    return f"with n = {n:,} and ε = {epsilon:g} its noise would hide the counts"


def price(plan: CheckPlan, epsilon: float, delta: float) -> Json:
    """What the check costs, for the statement."""
    share = (plan.size / plan.n / plan.multiplier / conversions.gdp_mu(epsilon, delta)) ** 2
    return {"noise_multiplier": plan.multiplier, "share_of_budget": share}


def _entry(health: Health, plan: CheckPlan, std: float, step: int) -> Json:
    """A line of the history."""
    noise = {"noise_multiplier": plan.multiplier, "noise_std": std}
    return {"step": step, "released": "health check", **noise, HEALTH_CHECK: health.to_dict()}


def _mapping(value: object) -> Json:
    return dict(value) if isinstance(value, dict) else {}


def _is_pure(event: events.Event) -> bool:
    """Whether only (ε, δ) is known of a part: a Gaussian beside it would cost far more than its share."""
    return any(isinstance(part, events.ApproximateDp) for part in events.elementary(event))
