"""What an attacker gains at most: the trade-off curve of everything that was charged.

An attacker sees everything that was released, knows every other record, and must tell a dataset D from its
neighbor D′. If he accuses D′ falsely with probability α, he finds D with probability at most

    power(α) = min over ε ≥ 0 of  e^ε·α + δ_PQ(ε)   and   1 − e^{−ε}(1 − α − δ_QP(ε)),

which is H_{e^ε} of the pair read as a bound on tests (Proposition 2.5 of Dong, Roth & Su, JRSS-B 2022), the
second form being ε < 0. Both orders of the neighbors are bounded, and the worse one counts. Every ε gives a
bound, so a grid costs tightness only: the answer is never optimistic.

A Rényi certificate (of a filter) says more than its δ(ε): D_a of the *test's outcome*, which is a coin, obeys
it too. That bound is intersected with the other.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtr, ndtri

from sidelight.arrays import Floats
from sidelight.errors import SidelightError
from sidelight.privacy import accountants, events
from sidelight.privacy.accountants import Accountant
from sidelight.privacy.conversions import gaussian_delta
from sidelight.privacy.correlated import reduced
from sidelight.privacy.events import Event, Relation
from sidelight.report.card import Card

_CERTIFICATES = (events.ZeroConcentrated, events.TruncatedConcentrated, events.RenyiBound)
_NODES = 1500  # of ε
_HALVINGS = 50


@dataclass(frozen=True)
class TradeOff:
    """The largest true positive rate at each false positive rate, and what that says in one number.

    power: false positive rates in [0, 1] → bounds on the true positive rate.
    advantage: the largest of power(α) − α.
    """

    power: Callable[[ArrayLike], Floats]
    advantage: float

    @property
    def right_guesses(self) -> float:
        """How often the best attacker is right who is asked about D or D′, each half of the time."""
        return (1 + self.advantage) / 2


def trade_off(event: Event, *, relation: Relation) -> TradeOff:
    """The trade-off of everything that the event releases."""
    events.check_relation(relation)
    event = reduced(event)
    parts = events.elementary(event)
    if not parts:
        return TradeOff(lambda alpha: np.asarray(alpha, dtype=float), 0.0)
    if (mu := accountants.gdp(event)) is not None:
        return TradeOff(lambda alpha: _gaussian(alpha, mu), float(gaussian_delta(0.0, mu)))
    if accountants._curves(event, relation) is None:
        return TradeOff(lambda alpha: np.ones_like(np.asarray(alpha, dtype=float)), 1.0)
    bounds = []
    if sum(parts.values()) <= accountants._MOST_STEPS:
        bounds.append(_from_curve(event, relation))
    if not bounds or any(isinstance(part, _CERTIFICATES) for part in parts):
        bounds.append(_from_renyi(event, relation))
    return _least(bounds)


def _gaussian(alpha: ArrayLike, mu: float) -> Floats:
    """Φ(Φ⁻¹(α) + μ): the most powerful test of two Gaussians at distance μ."""
    return np.asarray(ndtr(ndtri(np.asarray(alpha, dtype=float)) + mu))


def _least(bounds: list[TradeOff]) -> TradeOff:
    def power(alpha: ArrayLike) -> Floats:
        return np.asarray(np.min([bound.power(alpha) for bound in bounds], axis=0))

    return TradeOff(power, min(bound.advantage for bound in bounds))


# ---------------------------------------------------------------------------------------------------
# from δ(ε)


def _from_curve(event: Event, relation: Relation) -> TradeOff:
    nodes, forward, backward = _divergences(event, relation)

    def power(alpha: ArrayLike) -> Floats:
        a = np.atleast_1d(np.asarray(alpha, dtype=float))
        worse = np.maximum(_tests(a, nodes, forward, backward), _tests(a, nodes, backward, forward))
        return worse.reshape(np.shape(alpha))

    return TradeOff(power, float(min(1.0, max(forward[0], backward[0]))))


def _tests(alpha: Floats, nodes: Floats, ahead: Floats, back: Floats) -> Floats:
    """The bound for one order of the neighbors."""
    few = np.exp(nodes)[:, None] * alpha + ahead[:, None]
    many = 1 - np.exp(-nodes)[:, None] * (1 - alpha - back[:, None])
    return np.asarray(np.clip(np.minimum(few.min(axis=0), many.min(axis=0)), alpha, 1.0))


def _divergences(event: Event, relation: Relation) -> tuple[Floats, Floats, Floats]:
    """A grid of ε ≥ 0 from 0 on, and δ there for both orders of the neighbors."""
    kinks = [part.epsilon for part in events.elementary(event) if isinstance(part, events.ApproximateDp)]
    nodes = _grid(lambda e: np.maximum(*accountants.divergences(event, e, relation)), kinks)
    return nodes, *accountants.divergences(event, nodes, relation)


def _grid(curve: Callable[[Floats], Floats], kinks: Sequence[float] = ()) -> Floats:
    """From 0 to where the curve is as good as flat."""
    at: Floats = np.geomspace(1e-3, 600.0, 200)
    deltas = curve(at)
    flat = np.flatnonzero(deltas <= deltas[-1] + 1e-10)
    nodes = np.linspace(0.0, 1.0, _NODES) ** 1.5 * float(at[flat[0]])
    return np.asarray(np.union1d(nodes, [kink for kink in kinks if kink <= at[-1]]))


# ---------------------------------------------------------------------------------------------------
# from Rényi divergences


def _from_renyi(event: Event, relation: Relation) -> TradeOff:
    orders = np.asarray(accountants.ORDERS, dtype=float)
    special = [part.order for part in events.elementary(event) if isinstance(part, events.RenyiBound)]
    orders = np.unique(np.append(orders, special))
    limits = accountants.rdp(event, orders=orders.tolist(), relation=relation)
    known = np.isfinite(limits)
    orders, limits = orders[known], limits[known]

    def power(alpha: ArrayLike) -> Floats:
        a = np.atleast_1d(np.asarray(alpha, dtype=float))
        return _coin(a, orders, limits).reshape(np.shape(alpha))

    # Between two points of a grid, power − α is below the power at the right end minus the left end.
    grid = np.linspace(0.0, 1.0, 401)
    return TradeOff(power, float(min(1.0, (power(grid[1:]) - grid[:-1]).max())))


def _coin(alpha: Floats, orders: Floats, limits: Floats) -> Floats:
    """The largest p with D_a(p‖α) ≤ limit and D_a(α‖p) ≤ limit for the coins of all orders."""
    if not len(orders):
        return np.ones_like(alpha)
    inside = (alpha > 0) & (alpha < 1)
    q = np.where(inside, alpha, 0.5)
    low, high = q.copy(), np.ones_like(q)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        fits = _allowed(middle, q, orders, limits)
        low, high = np.where(fits, middle, low), np.where(fits, high, middle)
    return np.where(inside, high, alpha)  # α = 0 stays 0: a finite D_a leaves nothing to see there


def _allowed(p: Floats, q: Floats, orders: Floats, limits: Floats) -> NDArray[np.bool_]:
    a = orders[:, None]
    both = [_coins(p, q, a), _coins(q, p, a)]
    return np.asarray((np.maximum(*both) <= limits[:, None]).all(axis=0))


def _coins(p: Floats, q: Floats, a: Floats) -> Floats:
    """D_a of two coins."""
    with np.errstate(divide="ignore", invalid="ignore"):
        heads = a * np.log(p) + (1 - a) * np.log(q)
        tails = a * np.log1p(-p) + (1 - a) * np.log1p(-q)
        total = np.logaddexp(heads, tails) / (a - 1)
    return np.where(np.isnan(total), math.inf, total)


# ---------------------------------------------------------------------------------------------------
# accounting of events that come from a file: what they cost, or None where no accountant can tell
#
# A card may have been edited by hand, so an event in it need not be one that anybody could run. Its numbers
# overflow, or break what an accountant takes for granted; that is no reason for a traceback.

_BROKEN = (SidelightError, ArithmeticError, ValueError, IndexError, AssertionError, MemoryError)


def cost_of(card: Card, event: Event, accountant: Accountant = "pld") -> float | None:
    """ε of an event at the card's δ and under its relation."""
    if not events.elementary(event):
        return 0.0
    try:
        with np.errstate(all="ignore"):
            return accountants.epsilon(event, delta=card.delta, relation=card.relation, accountant=accountant)
    except _BROKEN:
        return None


def attack_on(card: Card) -> TradeOff | None:
    """What an attacker gains at most from everything that was charged."""
    try:
        with np.errstate(all="ignore"):
            bound = trade_off(card.plan, relation=card.relation)
            return bound if np.isfinite(bound.power([0.0, 0.5, 1.0])).all() else None
    except _BROKEN:
        return None
