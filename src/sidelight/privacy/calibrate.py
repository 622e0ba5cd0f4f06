"""The least noise for a plan and a budget.

    noise_multiplier(
        epsilon=2, delta=1e-5, sampling_probability=0.01, steps=1000, relation="add-or-remove-one"
    )

The answer never gives less privacy than asked: it is the least point of a geometric grid (0.01 % apart) at
which the PLD bound is at most ε, so it is also monotone in the budget and the plan. Plain Gaussians are
solved in closed form; else a Rényi bound gives a safe upper end, a coarse PLD finds the crossing by the
secant rule, and the fine PLD settles it.
"""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Callable
from fractions import Fraction
from typing import Literal

from sidelight.errors import InputError, PrivacyConditionError, PrivacyWarning, users_line
from sidelight.privacy import accountants, conversions, events
from sidelight.privacy.events import Event, Relation

Sampling = Literal["poisson", "fixed-size"]

_GRID = 1e-4  # relative distance of two neighbouring answers
_LEAST, _MOST = 0.02, 1e9
_LARGEST_EPSILON = 600.0
_BRACKET_ORDERS = (1.5, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 256, 512, 1024, 2048, 4096, 8192)


def default_delta(n: int) -> float:
    """min(1e-5, n^−1.1): well below 1/n, at which publishing one record at random would satisfy it."""
    return min(1e-5, math.pow(n, -1.1))


def resolve_delta(delta: float | None, n: int) -> float:
    """The user's δ for n private records, with a warning from 1/n on; None takes `default_delta`."""
    if delta is None:
        return default_delta(n)
    if not 0 < delta < 1:
        raise InputError(f"delta must be between 0 and 1, both excluded, not {delta!r}")
    if delta >= 1 / n:
        warnings.warn(
            f"delta={delta:.3g} is at least 1/n = {1 / n:.3g}, for n = {n} private records: publishing "
            "one of them at random would satisfy it. Choose a smaller delta, or None",
            PrivacyWarning,
            stacklevel=users_line(),
        )
    return float(delta)


@functools.lru_cache(maxsize=1024)
def noise_multiplier(
    *,
    epsilon: float,
    delta: float,
    sampling_probability: float = 1.0,
    steps: int = 1,
    relation: Relation,
    sampling: Sampling | None = None,
) -> float:
    """The least noise multiplier (std / sensitivity under `relation`) for `steps` equal releases.

    `sampling` follows the relation if not given: Poisson under add-or-remove-one, fixed size without
    replacement under replace-one. Below a multiplier of 0.02 nothing is sought: there the sampling alone
    gives the guarantee, which only a careless δ makes possible.
    """
    if not epsilon <= _LARGEST_EPSILON:
        raise InputError(f"epsilon must be at most {_LARGEST_EPSILON:g}: beyond, nothing is promised")
    if int(steps) != steps or steps < 1:
        raise InputError(f"steps must be a whole number of at least 1, not {steps!r}")
    make = step_event(sampling_probability=sampling_probability, relation=relation, sampling=sampling)
    whole = math.sqrt(steps) / conversions.gdp_mu(epsilon, delta) * (1 + 1e-12)
    if sampling_probability == 1:
        return whole
    # Sampling never hurts, so the noise of unsampled steps is enough.
    return least(
        lambda z: events.repeat(make(z), int(steps)),
        epsilon=epsilon,
        delta=delta,
        relation=relation,
        enough=whole,
    )


def step_event(
    *, sampling_probability: float, relation: Relation, sampling: Sampling | None = None
) -> Callable[[float], Event]:
    """The event of one step as a function of its noise multiplier."""
    events.check_relation(relation)
    expected: Sampling = "poisson" if relation == "add-or-remove-one" else "fixed-size"
    if not 0 < sampling_probability <= 1:
        raise InputError(f"sampling_probability must be in (0, 1], not {sampling_probability:g}")
    if sampling_probability < 1 and (sampling or expected) != expected:
        raise PrivacyConditionError(f"{sampling} sampling is not accounted under {relation}; use {expected}")
    if expected == "poisson" or sampling_probability == 1:
        return lambda z: events.poisson(sampling_probability, z)
    rate = Fraction(sampling_probability).limit_denominator(10**9)
    return lambda z: events.fixed_size(rate.denominator, rate.numerator, z)


def least(
    events_of: Callable[[float], Event],
    *,
    epsilon: float,
    delta: float,
    relation: Relation,
    enough: float = _MOST,
) -> float:
    """The least noise multiplier z on the grid for which the PLD bound of events_of(z) is at most ε.

    `enough` is a multiplier that is known to suffice; it only saves time.
    """
    conversions._check_epsilon(epsilon)
    conversions._check_delta(delta)
    coarse = functools.lru_cache(maxsize=None)(
        lambda k: accountants.epsilon(
            events_of(_at(k)), delta=delta, relation=relation, accountant="pld-coarse"
        )
    )
    fine = functools.lru_cache(maxsize=None)(
        lambda k: accountants.epsilon(events_of(_at(k)), delta=delta, relation=relation)
    )
    top = min(_HIGH, max(_LOW + 1, math.ceil(math.log(enough) / _GRID)))
    start = _renyi_bracket(events_of, top, epsilon, delta, relation)
    guess = _crossing(coarse, start, epsilon)
    return _at(_settle(fine, guess, epsilon))


def _at(k: int) -> float:
    return math.exp(k * _GRID)


_LOW, _HIGH = math.ceil(math.log(_LEAST) / _GRID), math.floor(math.log(_MOST) / _GRID)


def _renyi_bracket(
    events_of: Callable[[float], Event], high: int, epsilon: float, delta: float, relation: Relation
) -> int:
    """A grid index at which RDP already proves the budget: the PLD answer is not above it."""
    low, top = _LOW, high

    def enough(k: int) -> bool:
        # Fewer orders do while a bracket is all that is wanted.
        return accountants._epsilon_rdp(events_of(_at(k)), delta, relation, _BRACKET_ORDERS) <= epsilon

    try:
        if not enough(high):
            return high
        while high - low > 1000:
            middle = (low + high) // 2
            low, high = (low, middle) if enough(middle) else (middle, high)
    except PrivacyConditionError:  # no Rényi curve for some event: search the whole range
        return top
    return high


def _crossing(cost: Callable[[int], float], high: int, epsilon: float) -> int:
    """Where cost(k) falls to ε, by the Illinois rule on log ε, between the low end and `high`."""
    low = max(_LOW, high - 2000)
    while low > _LOW and cost(low) <= epsilon:
        low, high = max(_LOW, low - 4 * (high - low)), low
    if cost(low) <= epsilon:
        return low
    f_low, f_high = _gap(cost(low), epsilon), _gap(cost(high), epsilon)
    side = 0
    while high - low > 3:
        share = f_low / (f_low - f_high) if math.isfinite(f_low) and f_low != f_high else 0.5
        middle = min(max(low + round((high - low) * share), low + 1), high - 1)
        f = _gap(cost(middle), epsilon)
        if abs(f) < 2e-5:
            return middle
        if f > 0:
            low, f_low = middle, f
            f_high, side = (f_high / 2 if side == 1 else f_high), 1
        else:
            high, f_high = middle, f
            f_low, side = (f_low / 2 if side == -1 else f_low), -1
    return high


def _gap(cost: float, epsilon: float) -> float:
    return math.log(max(cost, 1e-300) / epsilon) if math.isfinite(cost) else math.inf


def _settle(cost: Callable[[int], float], k: int, epsilon: float) -> int:
    """The least index near k at which the fine bound holds."""
    step = 1
    if cost(k) <= epsilon:
        good = k
        while good - step >= _LOW and cost(good - step) <= epsilon:
            good, step = good - step, step * 2
        bad = max(good - step, _LOW - 1)
    else:
        bad = k
        while cost(min(bad + step, _HIGH)) > epsilon:
            if bad + step >= _HIGH:
                raise PrivacyConditionError(
                    "no amount of noise meets this budget; ask for a larger epsilon or delta"
                )
            bad, step = bad + step, step * 2
        good = min(bad + step, _HIGH)
    while good - bad > 1:
        middle = (good + bad) // 2
        good, bad = (middle, bad) if cost(middle) <= epsilon else (good, middle)
    return good
