"""What a method claims, what scores of an attack prove, and what an audit found.

Lower bounds on ε come from counts and scores: exact binomial bounds, and Steinke et al.'s for one run. Every
one holds for finitely many runs and makes no assumption about the mechanism. Results are words and numbers
that a report can show.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy.stats import beta, binom

from sidelight.arrays import Json
from sidelight.errors import InputError
from sidelight.methods.task import Method, Plan, Task
from sidelight.privacy import accountants
from sidelight.privacy.events import Event, NoOp, Relation
from sidelight.privacy.statement import plain

# ---------------------------------------------------------------------------------------------------
# the claim: ε at its δ, and the whole curve δ(ε) of the event that it is charged as


@dataclass(frozen=True)
class Claim:
    """The guarantee that an audit tries to refute."""

    event: Event
    relation: Relation
    delta: float
    private: bool = True
    filtered: bool = False
    budget: float = math.inf  # ε that the method was given

    @functools.cached_property
    def epsilon(self) -> float:
        """ε at δ, by an accountant that the method has no say in; infinity if nothing is claimed."""
        if not self.private:
            return math.inf
        if isinstance(self.event, NoOp):
            return 0.0
        return accountants.epsilon(self.event, delta=self.delta, relation=self.relation)

    def delta_at(self, epsilon: float) -> float:
        """The least δ that is claimed with this ε."""
        if not self.private:
            return 1.0
        if isinstance(self.event, NoOp):
            return 0.0
        return min(1.0, accountants.delta(self.event, epsilon=epsilon, relation=self.relation))


def claim_of(method: Method, task: Task, plan: Plan) -> Claim:
    """The claim of a planned run."""
    return Claim(plan.event, task.relation, task.delta, method.private, plan.filtered, task.epsilon)


# ---------------------------------------------------------------------------------------------------
# the verdict

Kind = Literal["neighbor replay", "many-run", "one-run"]
KINDS: tuple[Kind, ...] = ("neighbor replay", "many-run", "one-run")


@dataclass(frozen=True)
class Finding:
    """One broken promise: which one, and what was seen. It quotes no record."""

    promise: str
    seen: str

    def __str__(self) -> str:
        return f"{self.promise}: {self.seen}"


def failed(error: Exception) -> Finding:
    """A run that ended in an error: nothing is known of the rest."""
    return Finding("a run on synthetic records ends well", f"{type(error).__name__}: {error}")


def repeats(seed: int) -> range:
    """The seeds of an audit and of its repetitions, which follow only if it speaks against the claim."""
    return range(seed, seed + 3 * 10**6, 10**6)


@dataclass(frozen=True)
class AuditResult:
    """The verdict of one audit of one method.

    An audit can prove a claim wrong; it cannot prove one right. `passed` says that it found nothing.

    Args:
        kind: which audit.
        method: the name of what was audited.
        relation: the neighboring relation of the claim.
        claimed_epsilon: ε that the method's events cost at `delta`; infinity if it claims nothing.
        lower_bound: ε that the audit proves at `delta` with probability `confidence`. A neighbor replay
            proves no ε: it is 0 there, and `details["largest_share"]` is the largest move of a private sum
            in units of its declared sensitivity.
        findings: every broken promise, named.
        details: sizes, seeds and further numbers; JSON-able.
    """

    kind: Kind
    method: str
    relation: Relation
    claimed_epsilon: float
    lower_bound: float
    delta: float
    confidence: float
    findings: tuple[Finding, ...] = ()
    details: Mapping[str, object] = field(default_factory=dict)

    @property
    def passed(self) -> bool:
        """Whether the audit found nothing against the claim."""
        return not self.findings

    def to_dict(self) -> Json:
        """Everything, as JSON values."""
        return {
            "kind": self.kind,
            "method": self.method,
            "relation": self.relation,
            "claimed_epsilon": plain(float(self.claimed_epsilon)),
            "lower_bound": plain(float(self.lower_bound)),
            "delta": self.delta,
            "confidence": self.confidence,
            "passed": self.passed,
            "findings": [{"promise": finding.promise, "seen": finding.seen} for finding in self.findings],
            "details": plain(self.details),
        }

    def __str__(self) -> str:
        claim = "no claim" if math.isinf(self.claimed_epsilon) else f"claimed ε {self.claimed_epsilon:.4g}"
        verdict = "passed" if self.passed else "; ".join(map(str, self.findings))
        proven = "" if self.kind == "neighbor replay" else f", proven ε ≥ {self.lower_bound:.4g}"
        return f"{self.method} ({self.kind}, {self.relation}): {claim}{proven}: {verdict}"


# ---------------------------------------------------------------------------------------------------
# from counts and scores to a lower bound on ε


_MAX_PROVEN_EPSILON = 60.0  # no audit proves more


def lower_rate(successes: int, trials: int, significance: float) -> float:
    """The least probability that is not refuted by so many successes (Clopper & Pearson 1934, one-sided)."""
    return 0.0 if successes == 0 else float(beta.ppf(significance, successes, trials - successes + 1))


def upper_rate(successes: int, trials: int, significance: float) -> float:
    """The largest probability that is not refuted by so few successes."""
    return 1.0 if successes == trials else float(beta.isf(significance, successes + 1, trials - successes))


def rates_epsilon(detected: float, false_alarms: float, delta: float) -> float:
    """The least ε with which these rates of one test are compatible at δ; 0 if they prove nothing.

    (ε, δ)-DP asks for P'(E) ≤ e^ε P(E) + δ of every event E: of the test's alarm, from one world to the
    other, and of its silence, back (Kairouz, Oh & Viswanath, ICML 2015). `detected` is a lower bound on the
    probability of an alarm with the record, `false_alarms` an upper bound on the one without.
    """
    alarm = _log_ratio(detected - delta, false_alarms)
    silence = _log_ratio(1 - false_alarms - delta, 1 - detected)
    return min(max(0.0, alarm, silence), _MAX_PROVEN_EPSILON)


def _log_ratio(above: float, below: float) -> float:
    if above <= 0:
        return 0.0
    return math.inf if below <= 0 else math.log(above / below)


def one_run_p_value(*, canaries: int, guesses: int, correct: int, epsilon: float, delta: float) -> float:
    """How likely so many correct guesses are, at most, if the mechanism is (ε, δ)-DP.

    Theorem 5.2 of Steinke, Nasr & Jagielski (NeurIPS 2023): with Q = e^ε/(1+e^ε) and B = Bin(r, Q),
    P[B ≥ v] + 2mδ·max_{1≤i≤v} P[v−i ≤ B < v]/i.
    """
    if correct == 0:
        return 1.0
    chance = 1 / (1 + math.exp(-epsilon))
    tail = float(binom.sf(correct - 1, guesses, chance))
    if delta == 0:
        return min(1.0, tail)
    below = np.cumsum(binom.pmf(np.arange(correct - 1, -1, -1), guesses, chance))
    worst = float(np.max(below / np.arange(1, correct + 1)))
    return min(1.0, tail + 2 * canaries * delta * worst)


def one_run_epsilon(
    *, canaries: int, guesses: int, correct: int, delta: float, significance: float = 0.05
) -> float:
    """The lower bound on ε that `correct` of `guesses` prove: all smaller ε have a p-value of at most this.

    Each canary was included by a fair coin, and the number of guesses was fixed before they were scored.
    """
    if not 0 <= correct <= guesses <= canaries or guesses < 1:
        raise InputError("an audit needs 0 <= correct <= guesses <= canaries, and at least one guess")

    def refuted(epsilon: float) -> bool:
        p = one_run_p_value(canaries=canaries, guesses=guesses, correct=correct, epsilon=epsilon, delta=delta)
        return p <= significance

    # The p-value need not be monotone through its second term: the bound ends where it first fails.
    step = 0.05
    end = 0.0
    while end < _MAX_PROVEN_EPSILON and refuted(end):
        end += step
    return 0.0 if end == 0 else bisect(refuted, end - step, end)


def bisect(holds: Callable[[float], bool], low: float, high: float, rounds: int = 40) -> float:
    """The last point from `low` on at which `holds`; it holds at `low` and not at `high`."""
    for _ in range(rounds):
        middle = (low + high) / 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


# ---------------------------------------------------------------------------------------------------
# telling two worlds apart by a score, and what that proves
#
# A quarter of the runs choose the threshold, the others give the bound, so that nothing is counted twice. Two
# questions are asked of the others:
#
#     lower_bound   which ε do the rates prove at the claimed δ?
#     refuted       do they contradict the claimed curve δ(ε) at any ε? Rates near the middle of a curve are
#                   known far better than those in its tail, so this sees much smaller faults.

Scores = NDArray[np.float64]
VERDICT = 1 - 1e-4  # confidence with which a claimed curve is called wrong: audits come in hundreds
_THRESHOLDS = 100  # tried; more find nothing better
_GRID = (0.0, 0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.7, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0)


@dataclass(frozen=True)
class Separation:
    """What a score proves of a claim."""

    lower_bound: float  # ε at the claimed δ, at the confidence asked for
    refuted: bool  # the claimed curve, at confidence VERDICT
    epsilon: float  # where the curve was tested most sharply,
    claimed_delta: float  # what is claimed there,
    proven_delta: float  # and what the runs prove there, at the confidence asked for

    def to_dict(self) -> Json:
        return {
            "refuted": self.refuted,
            "at_epsilon": self.epsilon,
            "claimed_delta": self.claimed_delta,
            "proven_delta": self.proven_delta,
        }


def separate(without: Scores, with_: Scores, claim: Claim, *, confidence: float = 0.95) -> Separation:
    """Compare scores of independent runs on one world and on the other; larger means `with_`."""
    (w_choose, w_test), (r_choose, r_test) = _parts(without), _parts(with_)
    significance = (1 - confidence) / 2  # two rates are bounded
    grid = [(e, claim.delta_at(e)) for e in _GRID]
    thresholds = np.unique(np.concatenate([w_choose, r_choose]))
    if len(thresholds) > _THRESHOLDS:
        thresholds = np.quantile(thresholds, np.linspace(0, 1, _THRESHOLDS))
    strongest = thresholds[
        int(np.argmax(_strengths(r_choose, w_choose, thresholds, significance, claim.delta)))
    ]
    bound = rates_epsilon(*_rates(r_test, w_test, strongest, significance), claim.delta)
    excess = np.array([_excess(r_choose, w_choose, thresholds, e, d) for e, d in grid])
    row, column = np.unravel_index(int(np.argmax(excess)), excess.shape)
    (at, claimed), sharpest = grid[row], thresholds[column]
    proven = _proven_delta(*_rates(r_test, w_test, sharpest, significance), at)
    strict = _rates(r_test, w_test, sharpest, (1 - VERDICT) / 2)
    refuted = any(_proven_delta(*strict, e) > d for e, d in grid)
    return Separation(bound, refuted, at, claimed, proven)


def choosing(runs: int) -> int:
    """How many of the runs choose, scores and thresholds; they are not counted afterwards."""
    return max(1, runs // 4)


def _parts(scores: Scores) -> tuple[Scores, Scores]:
    first = choosing(len(scores))
    return scores[:first], scores[first:]


def _rates(with_: Scores, without: Scores, threshold: float, significance: float) -> tuple[float, float]:
    """(at least so many detected, at most so many false alarms) of the test `score ≥ threshold`."""
    hits, alarms = int((with_ >= threshold).sum()), int((without >= threshold).sum())
    return lower_rate(hits, len(with_), significance), upper_rate(alarms, len(without), significance)


def _strengths(
    with_: Scores, without: Scores, thresholds: Scores, significance: float, delta: float
) -> list[float]:
    """`rates_epsilon` for every threshold, on the runs that choose."""
    hits = len(with_) - np.searchsorted(np.sort(with_), thresholds)
    alarms = len(without) - np.searchsorted(np.sort(without), thresholds)
    with np.errstate(all="ignore"):
        low = np.nan_to_num(beta.ppf(significance, hits, len(with_) - hits + 1), nan=0.0)
        high = np.nan_to_num(beta.isf(significance, alarms + 1, len(without) - alarms), nan=1.0)
    return [rates_epsilon(float(p), float(q), delta) for p, q in zip(low, high, strict=True)]


def _proven_delta(detected: float, false_alarms: float, epsilon: float) -> float:
    """The δ that these rates need at ε, from either world to the other."""
    factor = float(np.exp(epsilon))
    return max(0.0, detected - factor * false_alarms, (1 - false_alarms) - factor * (1 - detected))


def _excess(with_: Scores, without: Scores, thresholds: Scores, epsilon: float, delta: float) -> Scores:
    """By how many standard errors the rates observed exceed the claim, in the better direction."""
    p = 1 - np.searchsorted(np.sort(with_), thresholds) / len(with_)
    q = 1 - np.searchsorted(np.sort(without), thresholds) / len(without)
    factor, floor = float(np.exp(epsilon)), 1 / len(with_)
    own, other = np.maximum(p * (1 - p), floor), np.maximum(q * (1 - q), floor)
    alarm = (p - factor * q - delta) / np.sqrt(own + factor**2 * other)
    silence = ((1 - q) - factor * (1 - p) - delta) / np.sqrt(other + factor**2 * own)
    return np.asarray(np.maximum(alarm, silence))
