"""From counts to a lower bound on ε: exact binomial bounds, and the one-run bound of Steinke et al.

Every bound here holds for finitely many runs and makes no assumption about the mechanism.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from scipy.stats import beta, binom

from sidelight.errors import InputError

__all__ = ["lower_rate", "one_run_epsilon", "one_run_p_value", "rates_epsilon", "upper_rate"]

_LARGEST = 60.0  # no audit proves more


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
    return min(max(0.0, alarm, silence), _LARGEST)


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
        raise InputError("an audit needs 0 <= correct <= guesses <= canaries, and a guess at least")

    def refuted(epsilon: float) -> bool:
        p = one_run_p_value(canaries=canaries, guesses=guesses, correct=correct, epsilon=epsilon, delta=delta)
        return p <= significance

    # The p-value need not be monotone through its second term: the bound ends where it first fails.
    step = 0.05
    end = 0.0
    while end < _LARGEST and refuted(end):
        end += step
    return 0.0 if end == 0 else bisect(refuted, end - step, end)


def bisect(holds: Callable[[float], bool], low: float, high: float, rounds: int = 40) -> float:
    """The last point from `low` on at which `holds`; it holds at `low` and not at `high`."""
    for _ in range(rounds):
        middle = (low + high) / 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low
