"""Privacy loss distributions from δ(ε) curves, and the curves of single mechanisms.

A *curve* is a bound on the hockey-stick divergence H_{e^ε} of a mechanism's outputs on two neighboring
datasets, for every ε ≥ 0. A curve that bounds the divergence is that of a dominating pair, and dominating
pairs compose (Theorem 10 of Zhu, Dong & Wang, AISTATS 2022, arXiv:2106.08567v4). Every curve here is an upper
bound *as computed*: what rounding can hide is added. In a plan of 10⁷ steps a curve that is too low by a
share of 1e-9 would make the total too low by 1 %.

One construction serves all events: put the curve on a grid by the pessimistic connect-the-dots rule
(Doroshenko et al., PoPETs 2022, arXiv:2207.04380v1), which never understates it, and add up the losses by a
tilted Fourier transform (`tilting`), whose errors are bounded and added.

The grid is chosen from the composition, not fixed: connect-the-dots adds a variance of at most step²/4 to
each of T losses, so the step follows the root mean square of the losses' own deviations. That keeps a
million tiny steps and a single large one both accurate and small. Far from 0 only some points of the grid
are used, at most 0.25 % apart: a rare large loss is accurate to its own size, and costs little to hold.

Why this is an upper bound. What is composed need not be two probability laws: if two measures P′, Q′ have
H_t(P′‖Q′) ≥ H_t(P‖Q) for all t ≥ 0, then so do their products, because
H_t(P₁×P₂‖Q₁×Q₂) = ∫ H_{t·dQ₂/dP₂}(P₁‖Q₁) dP₂ grows with either curve. H_t(P′‖Q′) grows with every mass of P′
whose loss stays. So each mass may be rounded up, and is; T roundings cost a factor (1 + some u)^T on δ.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammainc, gammaincc

from sidelight.errors import InputError
from sidelight.privacy.conversions import TINIEST, UNIT, gaussian_delta_bound, objective_delta
from sidelight.privacy.tilting import Losses, LossSum, TooWide, Window

Array = NDArray[np.float64]
Divergence = Callable[[Array], Array]


@dataclass(frozen=True)
class Curve:
    """A dominating pair (P, Q) by its divergences, and the scale of its losses.

    forward:  ε ↦ H_{e^ε}(P‖Q) for ε ≥ 0;  backward: the same for (Q‖P). Negative ε follow from
              H_t(P‖Q) = 1 − t + t·H_{1/t}(Q‖P).
    deviation: roughly the standard deviation of the loss, to choose a grid.
    kinks: values of ε at which a curve bends sharply, for a grid to hold.
    """

    forward: Divergence
    backward: Divergence
    deviation: float
    kinks: tuple[float, ...] = ()

    @property
    def symmetric(self) -> bool:
        return self.forward is self.backward


def symmetric(curve: Divergence, deviation: float, *kinks: float) -> Curve:
    """A mechanism whose bound holds for both orders of two neighbors."""
    return Curve(curve, curve, deviation, kinks)


def gaussian_curve(mu: float) -> Curve:
    """The Gaussian mechanism with sensitivity/std = μ."""
    return symmetric(lambda e: np.asarray(gaussian_delta_bound(e, mu)), mu)


def poisson_curve(q: float, mu: float) -> Curve:
    """The Poisson-sampled Gaussian under add-or-remove-one: P = (1−q)N(0,1) + qN(μ,1), Q = N(0,1).

    H_t(P‖Q) = q·δ_G(log((t−1+q)/q)) for t ≥ 1, and H_t(Q‖P) follows by reflection; t < 1−q has no loss.
    Theorem 11 of Zhu, Dong & Wang 2022 says that this pair dominates.
    """
    edge = -math.log1p(-q) * (1 + 8 * UNIT)

    def add(e: Array) -> Array:
        # H_t(Q‖P) = 1 − t + t·H_{1/t}(P‖Q) = qta·δ_G(−log a) with a = (1/t − 1 + q)/q, by the symmetry of
        # δ_G; for t ≥ 1/(1−q) there is no loss. It grows with a, which rounding moves by less than 8u.
        inside = e < edge
        e = np.where(inside, e, 0.0)
        a = np.minimum(np.maximum(1 + np.expm1(-e) / q, 0.0) + 8 * UNIT, 1.0)
        return np.where(inside, q * np.exp(e) * a * np.asarray(gaussian_delta_bound(-np.log(a), mu)), 0.0)

    return Curve(lambda e: _amplified(e, q, mu), add, _sampled_deviation(q, mu))


def _amplified(e: Array, q: float, mu: float) -> Array:
    """q·δ_G(log(1 + (e^e − 1)/q)) for e ≥ 0, without overflow.

    Both terms of the logarithm are positive: it is off by a few u, within what `gaussian_delta_bound` adds.
    """
    return q * np.asarray(gaussian_delta_bound(e + np.log1p(-(1 - q) * np.expm1(-e) / q), mu))


def without_replacement_curve(q: float, mu: float) -> Curve:
    """A Gaussian release of s = qm of m records drawn without replacement, under replace-one.

    δ(ε') = q·δ_G(ε), ε' = log(1 + q(e^ε − 1)), in both directions: Theorem 10 of Balle, Barthe & Gaboardi
    (NeurIPS 2018, arXiv:1807.01647v2), with μ = sensitivity under replace-one / std.
    """
    return symmetric(lambda e: _amplified(e, q, mu), _sampled_deviation(q, mu))


def mixture_curve(mus: Array, probabilities: Array) -> Curve:
    """δ(ε) = Σ_j q_j δ_G(ε; μ_j): a Gaussian whose sensitivity is drawn, the draw being public."""
    unique, inverse = np.unique(mus, return_inverse=True)
    weights: Array = np.bincount(inverse, weights=probabilities).astype(np.float64)
    # Probabilities may miss 1 by a rounding; each may only grow. Their sums are off by (count of them)·u.
    weights = weights * ((1 + 4 * UNIT * (len(mus) + 2)) / min(1.0, math.fsum(weights)))

    def curve(e: Array) -> Array:
        total = np.zeros_like(e)
        for mu, weight in zip(unique, weights, strict=True):
            total += weight * np.asarray(gaussian_delta_bound(e, mu))
        return np.minimum(total, 1.0)

    return symmetric(curve, float(np.sqrt(weights @ unique**2)))


def objective_curve(log_determinant: float, mu: float, rank: int) -> Curve:
    """Objective perturbation (METHODS 7.3), as `conversions.objective_delta` bounds it."""

    def curve(e: Array) -> Array:
        return np.asarray(objective_delta(e, log_determinant=log_determinant, mu=mu, rank=rank))

    return symmetric(curve, log_determinant + mu)


def sketch_curve(rows: int, growth: float) -> Curve:
    """A Gaussian sketch, a record added or removed: P = N(0, 1+w) and Q = N(0, 1), each k times (METHODS 26).

    The loss is (u/2)r² − (k/2)log(1+w) with u = w/(1+w) and r² the sum of squares, which is χ²_k under Q and
    (1+w)χ²_k under P. An error of the threshold counts twice, since δ is flat there; the incomplete gamma
    functions are right to 1e-12 for up to 8e4 rows (a test compares them), and 1e-11 is added.
    """
    half, turn, slack = rows / 2, (1 + growth) / growth, 1e-11 + 1e-15 * rows
    middle = half * math.log1p(growth)

    def add(e: Array) -> Array:
        x = (e + middle) * turn
        part = np.exp(np.minimum(e, 700.0)) * gammaincc(half, x) * (1 - slack)
        return np.asarray(gammaincc(half, x / (1 + growth)) * (1 + slack) - part + TINIEST)

    def remove(e: Array) -> Array:
        x = np.maximum(middle - e, 0.0) * turn
        part = np.exp(np.minimum(e, 700.0)) * gammainc(half, x / (1 + growth)) * (1 - slack)
        return np.asarray(gammainc(half, x) * (1 + slack) - part + TINIEST)

    return Curve(add, remove, growth * math.sqrt(half))


def approximate_curve(epsilon: float, delta: float) -> Curve:
    """δ(e) = δ + (1−δ)·(e^ε − e^e)₊/(1 + e^ε): randomized response, the worst (ε, δ) pair.

    Theorem 3.2 of Kairouz, Oh & Viswanath (ICML 2015).
    """
    share = (1 - delta) / (1 + math.exp(-epsilon))

    def curve(e: Array) -> Array:
        above = share * (-np.expm1(np.minimum(e - epsilon, 0.0)) + 8 * UNIT * (1 + epsilon))
        return np.where(e < epsilon, np.minimum(delta + above, 1.0), delta)  # from ε on it is δ, exactly

    return symmetric(curve, epsilon, epsilon)


def renyi_curve(order: float, rdp: float) -> Curve:
    """A mechanism of which D_a ≤ r is known, by the improved conversion."""
    return symmetric(lambda e: _renyi_delta(e, order, rdp), math.sqrt(2 * rdp / order) + rdp + 1 / order)


def tcdp_curve(rho: float, omega: float) -> Curve:
    """A (ρ, ω)-tCDP mechanism: the improved conversion, at a nearly best order for each ε.

    a = 1 + (ε−ρ)/2ρ, cut to (1, ω), is the best order of the classic conversion; any order gives a bound.
    """

    def curve(e: Array) -> Array:
        best = np.ones_like(e)
        for stretch in (0.5, 0.75, 1.0, 1.25):
            a = 1 + stretch * np.maximum(e - rho, 0) / (2 * rho)
            a = np.clip(a, 1 + 1e-6, min(omega * (1 - 1e-12), 1e9))
            best = np.minimum(best, _renyi_delta(e, a, rho * a * (1 + 2 * UNIT)))
        return np.minimum.accumulate(best)

    return symmetric(curve, math.sqrt(2 * rho))


def _renyi_delta(e: Array, order: float | Array, rdp: float | Array) -> Array:
    """Proposition 12 of Canonne, Kamath & Steinke (arXiv:2004.00010v4): log δ as a sum, rounded up."""
    gain = np.log1p(-1 / np.asarray(order))
    log_delta = (order - 1) * (rdp - e + gain) - np.log(order)
    slack = 8 * UNIT * ((order - 1) * (rdp + e - gain) + np.log(order) + 1)
    return np.asarray(np.minimum(np.exp(np.minimum(log_delta + slack, 0.0)) + TINIEST, 1.0))


def _sampled_deviation(q: float, mu: float) -> float:
    return min(mu, q * math.sqrt(math.expm1(min(mu * mu, 50.0))))


# ---------------------------------------------------------------------------------------------------
# on a grid, and composed

Answer = TypeVar("Answer")

_TAIL = 1e-30  # mass that the support of one event may leave out; it goes to an infinite loss
_DENSE = 400  # half the points next to 0 that are evenly spread; then twice as far apart, and so on
_PER_CURVE = 100  # points in a deviation of a curve's own loss are enough, however fine the others' grid is
_FINEST, _COARSEST, _TOO_COARSE = 1e-9, 1e-3, 0.1
_FAR = 1500.0  # a total that nobody asks for
LARGEST_LOSS = 600.0  # beyond it a loss counts as infinite: e^600 is not a guarantee, and e^710 overflows


@dataclass(frozen=True)
class Composition:
    """Several curves, each repeated some times. Whatever it answers is an upper bound.

    per_deviation: points of the grid in a typical deviation of one loss; fewer are faster and looser.
    """

    curves: tuple[tuple[Curve, int], ...]
    per_deviation: float = 20

    def __post_init__(self) -> None:
        if not self.curves:
            raise InputError("a composition needs at least one curve")

    def epsilon(self, delta: float) -> float:
        """The least ε ≥ 0 at which both directions are at most δ; infinity if none, or if it is above 600."""
        found = max(self._each(lambda total: _epsilon(total, delta), math.inf))
        return found if found <= LARGEST_LOSS else math.inf

    def delta(self, epsilon: float) -> float:
        """δ at ε ≥ 0: the larger of both directions."""
        return max(self._each(lambda total: _delta(total, epsilon), 1.0))

    def deltas(self, epsilons: Array) -> tuple[Array, Array]:
        """δ at each ε ≥ 0, for both orders of the neighbors."""
        both = self._each(lambda total: _deltas(total, epsilons), np.ones_like(epsilons))
        return both[0], both[-1]

    def _each(self, answer: Callable[[LossSum], Answer], worst: Answer) -> list[Answer]:
        """An answer for each direction, on a grid as fine as memory allows; the worst if it is too coarse."""
        step = choose_step(self.curves, per_deviation=self.per_deviation)
        while step <= _TOO_COARSE:
            try:
                return [answer(total) for total in totals(self.curves, step)]
            except TooWide as wide:
                step *= wide.factor
        return [worst]


def _epsilon(total: LossSum, delta: float) -> float:
    """The least ε ≥ 0 that is proven at δ; infinity if none."""
    if total.infinite >= delta:
        return math.inf
    room = delta - total.infinite
    total = total.trimmed(room)
    slope = total.slope_for_delta(delta)
    best = total.chernoff_epsilon(slope, delta)
    for _ in range(8):
        if total.moments(slope)[1] > _FAR:
            break
        found = Window(total, slope, math.log(room)).epsilon(delta)
        if found is not None:
            return min(best, found)
        slope = slope / 2 if slope * total.deviation > 0.1 else 0.0  # ε lies below the window
    return best


def _delta(total: LossSum, epsilon: float) -> float:
    """An upper bound on δ at ε ≥ 0."""
    best, guess = 1.0, math.exp(min(total.log_delta_near(total.slope_for_epsilon(epsilon)), 0.0))
    for _ in range(4):
        guess = max(guess, _TAIL)
        trimmed = total.trimmed(guess)
        slope = trimmed.slope_for_epsilon(epsilon)
        if trimmed.moments(slope)[1] > _FAR:
            break
        window = Window(trimmed, slope, math.log(guess))
        found = float(window.deltas(np.array([epsilon]))[0])
        best = guess = min(best, found, trimmed.chernoff_delta(slope, epsilon))
        if window.rest - total.infinite <= 1e-4 * found:  # else too much was trimmed: the guess was too large
            break
    return best


def _deltas(total: LossSum, epsilons: Array) -> Array:
    """Upper bounds on δ at many ε ≥ 0: tight where δ is above 1e-12."""
    best = np.ones_like(epsilons)
    for delta in (0.5, 1e-2, 1e-4, 1e-6, 1e-9, 1e-12):
        trimmed = total.trimmed(delta)
        slope = trimmed.slope_for_delta(delta)
        if trimmed.moments(slope)[1] <= _FAR:
            best = np.minimum(best, Window(trimmed, slope, math.log(delta)).deltas(epsilons))
    return best


def totals(curves: Sequence[tuple[Curve, int]], step: float) -> list[LossSum]:
    """The summed losses on multiples of `step`: both orders of the neighbors, or one if they are alike."""
    parts = [(discretize(curve, step), count) for curve, count in curves]
    ways = range(1 if all(curve.symmetric for curve, _ in curves) else 2)
    return [LossSum([(both[way], count) for both, count in parts], step) for way in ways]


def choose_step(curves: Sequence[tuple[Curve, int]], *, per_deviation: float = 20) -> float:
    """A grid step for a composition of curves, each repeated `count` times."""
    count = sum(c for _, c in curves)
    mean_square = sum(c * curve.deviation**2 for curve, c in curves) / max(count, 1)
    return min(max(math.sqrt(mean_square) / per_deviation, _FINEST), _COARSEST)


def discretize(curve: Curve, step: float) -> tuple[Losses, Losses]:
    """The curve as a pessimistic measure on multiples of `step`, for both orders of the neighbors."""
    ahead = _Side(curve, curve.forward, step)
    back = ahead if curve.symmetric else _Side(curve, curve.backward, step)
    # Both orders have the same δ at ε = 0. Of two upper bounds that differ by a rounding, take the larger.
    start = max(ahead.deltas[0], back.deltas[0])
    ahead.deltas[0] = back.deltas[0] = start
    return _losses(ahead, back), _losses(back, ahead)


class _Side:
    """Connect-the-dots for one direction: δ at some points of the grid, from 0 on.

    Only ε ≥ 0 is evaluated, where δ is small and its relative accuracy is kept.
    """

    def __init__(self, pair: Curve, curve: Divergence, step: float) -> None:
        self.step = step
        last = max(2, math.ceil(_reach(curve) / step) + 1)
        stride = max(1, int(pair.deviation / (_PER_CURVE * step)))
        self.at = _points(last, stride, [kink / step for kink in pair.kinks])
        # k·step is rounded; a slightly smaller ε is safe, since δ falls.
        deltas = curve(self.at * np.float64(step * (1 - 4 * UNIT)))
        # A NaN, from numbers that overflow, bounds nothing.
        self.deltas = np.minimum.accumulate(np.clip(np.where(np.isnan(deltas), 1.0, deltas), 0.0, 1.0))

    @property
    def infinite(self) -> float:
        return float(self.deltas[-1])

    @property
    def flow(self) -> tuple[Array, Array]:
        """What each interval gives to its right and (to subtract) to its left end, so that δ is met there."""
        width = np.diff(self.at) * self.step
        fall = -np.diff(self.deltas)
        return fall / -np.expm1(-width), fall / np.expm1(width)

    def masses(self) -> Array:
        """P's masses at all points but 0, each rounded up.

        δ is convex in e^ε, so its differences are positive; where a bound is not, 0 is more.
        """
        right, left = self.flow
        left = np.append(left[1:], 0.0)
        return np.asarray(np.maximum(right - left + 16 * UNIT * (right + left), 0.0))


def _losses(ahead: _Side, back: _Side) -> Losses:
    """One direction: `ahead` gives P's masses above 0, `back` Q's; P = Q·e^{−loss} on the mirrored grid."""
    depth = back.at[1:] * back.step
    # The sums of both sides telescope: P(loss > 0) = δ(0) + what the first interval gives to 0, and so on.
    # What is left of P goes to loss 0: masses below the grid are moved up, which is pessimistic. If less than
    # nothing is left (a bound need not be any pair's curve), so is as much of the masses below as it takes.
    left = max(0.0, 1 - float(ahead.deltas[0] + ahead.flow[1][0]))
    needed = float(back.flow[1][0])
    share = min(1.0, left / needed) if needed > 0 else 1.0
    below = back.masses() * np.exp(-depth) * (share * (1 + 8 * UNIT * (1 + depth)))
    middle = max(0.0, left - share * needed) + 16 * UNIT
    index = np.concatenate([-back.at[:0:-1], [0], ahead.at[1:]])
    mass = np.concatenate([below[::-1], [middle], ahead.masses()])
    return Losses(index[mass > 0], mass[mass > 0], ahead.infinite)


def _points(last: int, stride: int, kinks: Sequence[float]) -> NDArray[np.int64]:
    """0, stride, … 2·_DENSE times, then twice as far apart in each octave, to `last`; both sides of kinks."""
    octaves = [np.arange(0, min(2 * _DENSE * stride, last) + 1, stride)]
    while (start := 2 * _DENSE * stride << (len(octaves) - 1)) < last:
        octaves.append(np.arange(start, min(2 * start, last) + 1, stride << len(octaves)))
    beside = [point for kink in kinks for point in (math.floor(kink), math.ceil(kink)) if point <= last]
    return np.unique(np.concatenate([*octaves, beside, [last]]).astype(np.int64))


def _reach(curve: Divergence) -> float:
    """An ε beyond which the curve is below the tail mass (or stays flat, as with a δ that never vanishes)."""
    low, high = 0.0, 1.0
    flat = float(curve(np.array([1e4]))[0])
    while float(curve(np.array([high]))[0]) > flat + _TAIL and high < LARGEST_LOSS:
        low, high = high, high * 1.5
    while high - low > 0.05 * high and high > _FINEST:
        middle = (low + high) / 2
        low, high = (middle, high) if float(curve(np.array([middle]))[0]) > flat + _TAIL else (low, middle)
    return high
