"""The best of a random number of private runs, as one event (Papernot & Steinke, ICLR 2022).

K is drawn from a truncated negative binomial law with shape η and parameter γ, whose generating function has

    f′(x) = E[K]·((γ + (1−γ)(1−x))/γ)^{−η−1} ;   η = 0: logarithmic,  η = 1: geometric

K runs of a mechanism Q are made, and the one with the best score is the output: Q's candidate is drawn anew
in each run, its score is part of what Q's event covers, and ties are broken at random. K is not shown.

Rényi: Theorem 2 of arXiv:2110.03620v2. With the privacy profile δ_Q of Q (METHODS 29):

    δ(ε) ≤ E[K]·δ_Q(ε − κ) ,  κ = (η+1)·sup_p log (γ + (1−γ)g(p))/(γ + (1−γ)p) ,  g(p) = min_e e^e p + δ_Q(e)
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import attr
import numpy as np
from dp_accounting import dp_event

from sidelight.arrays import Floats
from sidelight.errors import InputError
from sidelight.privacy.noise import Noise

Profile = Callable[[Floats], Floats]  # ε ↦ a bound on δ of one run, for both orders of the neighbors
_AT = np.concatenate([np.linspace(0.0, 2.0, 41), np.linspace(2.25, 20.0, 72)])  # where profiles are asked


def _events(values: Any) -> tuple[dp_event.DpEvent, ...]:
    return tuple(values)


@attr.define(frozen=True, slots=False)
class BestOf(dp_event.DpEvent):
    """The best of K runs, each of one of these events: which one is drawn uniformly, apart from the records.

    shape: η of the law of K, at least 0; gamma: its γ, in (0, 1).
    """

    events: tuple[dp_event.DpEvent, ...] = attr.ib(converter=_events)
    shape: float = attr.ib(validator=attr.validators.ge(0))
    gamma: float = attr.ib(validator=[attr.validators.gt(0), attr.validators.lt(1)])

    def __attrs_post_init__(self) -> None:
        if not self.events:
            raise InputError("the best of no runs is nothing")

    @property
    def expected(self) -> float:
        """E[K] = η(1 − γ)/(γ(1 − γ^η)), and its limit at η = 0."""
        length = -math.log(self.gamma)
        x = self.shape * length
        return float((1 - self.gamma) / (self.gamma * length) * (x / -math.expm1(-x) if x else 1.0))

    @property
    def once(self) -> float:
        """P(K = 1) = η(1 − γ)/(γ^−η − 1), and its limit at η = 0."""
        length = -math.log(self.gamma)
        x = self.shape * length
        return float((1 - self.gamma) / length * (x / math.expm1(x) if x else 1.0))


def gamma_for(expected: float, shape: float) -> float:
    """γ with which so many runs are made on average."""
    if not expected > 1:
        raise InputError(f"expected_runs must be above 1, not {expected!r}")
    low, high = 1e-9, 1 - 1e-9
    for _ in range(200):
        middle = math.sqrt(low * high) if low < 0.1 else (low + high) / 2
        more = BestOf((dp_event.NoOpDpEvent(),), shape, middle).expected > expected
        low, high = (middle, high) if more else (low, middle)
    return high


def draw_count(event: BestOf, noise: Noise) -> int:
    """K, from the cryptographic source, by inversion: p_{k+1}/p_k = (1−γ)(η+k)/(k+1).

    Beyond E[K] it ends at the first count whose probability is at most 1e-18. What is cut off there is at
    most 1e-18·max(1, η)/γ, less than the steps of 2⁻⁵³ in which the source draws.
    """
    eta, gamma = event.shape, event.gamma
    left, mass, count = float(noise.generator.random()), event.once, 1
    while left >= mass and (mass > 1e-18 or count < event.expected):  # small on both ends of the law
        left -= mass
        mass *= (1 - gamma) * (eta + count) / (count + 1)
        count += 1
    return count


def tilt(event: BestOf, profile: Profile) -> float:
    """κ: the largest log f′(q)/f′(q′) for two neighbors' chances q, q′ that a run scores no better.

    With p = 1 − q and p′ = 1 − q′, both chances of an event under Q: p′ ≤ g(p). The ratio grows with g, which
    rises, and falls with p: between two points of a grid it is at most that of g at the upper one and p at
    the lower one.
    """
    deltas, gamma = profile(_AT), event.gamma
    p = np.concatenate([[0.0], np.geomspace(1e-9, 1.0, 4000)])
    reach = np.minimum((np.exp(_AT)[:, None] * p + deltas[:, None]).min(axis=0), 1.0)
    ratios = (gamma + (1 - gamma) * reach[1:]) / (gamma + (1 - gamma) * p[:-1])
    return (event.shape + 1) * math.log(float(ratios.max())) * (1 + 1e-9)


def renyi(event: BestOf, orders: Floats, curve: Floats) -> Floats:
    """D_a of the selection from those of a run, at these orders: the best helper order is taken."""
    eta, gamma = event.shape, event.gamma
    help_by = ((1 - 1 / orders) * curve + math.log(1 / gamma) / orders)[np.isfinite(curve)]
    if not help_by.size:
        return np.full(len(orders), math.inf)
    extra = (1 + eta) * float(help_by.min())
    return np.asarray(curve + extra + math.log(event.expected) / (orders - 1))
