"""Privacy loss distributions from δ(ε) curves.

Every mechanism here is described by its *curve*: a bound on the hockey-stick divergence H_{e^ε} of its
outputs on two neighbouring datasets, for every real ε. A curve that bounds the divergence is that of a
dominating pair, and dominating pairs compose (Theorem 10 of Zhu, Dong & Wang, AISTATS 2022,
arXiv:2106.08567v4). So one construction serves all events: put the curve on a grid by the pessimistic
connect-the-dots rule (Doroshenko et al., PoPETs 2022, arXiv:2207.04380v1), which never understates it, and
let dp-accounting convolve.

The grid is chosen from the composition, not fixed: connect-the-dots adds a variance of at most step²/4 to
each of T losses, so the step follows the root mean square of the losses' own deviations. That keeps a
million tiny steps and a single large one both accurate and small.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from dp_accounting.pld import pld_pmf
from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution
from numpy.typing import NDArray

from sidelight.privacy.conversions import gaussian_delta

Array = NDArray[np.float64]
Divergence = Callable[[Array], Array]

_TAIL = 1e-18  # mass that the support of one event may leave out; it goes to an infinite loss
_MOST_CELLS = 2**21  # on one side; bounds memory to some 100 MB in a convolution
_FINEST, _COARSEST = 1e-9, 1e-3
_LARGEST_LOSS = 600.0  # beyond it a loss counts as infinite: e^600 is no guarantee, and e^710 overflows


@dataclass(frozen=True)
class Curve:
    """A dominating pair (P, Q) by its divergences, and the scale of its losses.

    forward:  ε ↦ H_{e^ε}(P‖Q) for ε ≥ 0;  backward: the same for (Q‖P). Negative ε follow from
              H_t(P‖Q) = 1 − t + t·H_{1/t}(Q‖P).
    deviation: roughly the standard deviation of the loss, to choose a grid.
    """

    forward: Divergence
    backward: Divergence
    deviation: float

    @property
    def symmetric(self) -> bool:
        return self.forward is self.backward


def symmetric(curve: Divergence, deviation: float) -> Curve:
    """A mechanism whose bound holds for both orders of two neighbours."""
    return Curve(curve, curve, deviation)


def gaussian_curve(mu: float) -> Curve:
    """The Gaussian mechanism with sensitivity/std = μ."""
    return symmetric(lambda e: np.asarray(gaussian_delta(e, mu)), mu)


def poisson_curve(q: float, mu: float) -> Curve:
    """The Poisson-sampled Gaussian under add-or-remove-one: P = (1−q)N(0,1) + qN(μ,1), Q = N(0,1).

    H_t(P‖Q) = q·δ_G(log((t−1+q)/q)) for t ≥ 1, and H_t(Q‖P) follows by reflection; t < 1−q has no loss.
    Theorem 11 of Zhu, Dong & Wang 2022 says that this pair dominates.
    """

    def add(e: Array) -> Array:
        # H_t(Q‖P) = 1 − t + t·H_{1/t}(P‖Q) = (1 − (1−q)t)·δ_G(−log a) with a = (1/t − 1 + q)/q, by the
        # symmetry of δ_G; for t ≥ 1/(1−q) there is no loss.
        a = 1 + np.expm1(-e) / q
        inside = a > 0
        weight = -np.expm1(np.where(inside, e, 0.0) + math.log1p(-q))
        return np.where(
            inside, weight * np.asarray(gaussian_delta(-np.log(np.where(inside, a, 1.0)), mu)), 0.0
        )

    return Curve(lambda e: _amplified(e, q, mu), add, _sampled_deviation(q, mu))


def _amplified(e: Array, q: float, mu: float) -> Array:
    """q·δ_G(log(1 + (e^e − 1)/q)) for e ≥ 0, without overflow."""
    return q * np.asarray(gaussian_delta(e + np.log1p(-(1 - q) * np.expm1(-e) / q), mu))


def without_replacement_curve(q: float, mu: float) -> Curve:
    """A Gaussian release of s = qm of m records drawn without replacement, under replace-one.

    δ(ε') = q·δ_G(ε), ε' = log(1 + q(e^ε − 1)), in both directions: Theorem 10 of Balle, Barthe & Gaboardi
    (NeurIPS 2018, arXiv:1807.01647v2), with μ = sensitivity under replace-one / std.
    """
    return symmetric(lambda e: _amplified(e, q, mu), _sampled_deviation(q, mu))


def mixture_curve(mus: Array, probabilities: Array) -> Curve:
    """δ(ε) = Σ_j q_j δ_G(ε; μ_j): a Gaussian whose sensitivity is drawn, the draw being public."""
    unique, inverse = np.unique(mus, return_inverse=True)
    weights = np.bincount(inverse, weights=probabilities)

    def curve(e: Array) -> Array:
        total = np.zeros_like(e)
        for mu, weight in zip(unique, weights, strict=True):
            total += weight * np.asarray(gaussian_delta(e, mu))
        return total

    return symmetric(curve, float(np.sqrt(weights @ unique**2)))


def _sampled_deviation(q: float, mu: float) -> float:
    return min(mu, q * math.sqrt(math.expm1(min(mu * mu, 50.0))))


def choose_step(curves: list[tuple[Curve, int]], *, per_deviation: float = 20) -> float:
    """A grid step for a composition of curves, each repeated `count` times."""
    count = sum(c for _, c in curves)
    mean_square = sum(c * curve.deviation**2 for curve, c in curves) / max(count, 1)
    step = min(max(math.sqrt(mean_square) / per_deviation, _FINEST), _COARSEST)
    reach = max(max(_reach(curve.forward), _reach(curve.backward)) for curve, _ in curves)
    spread = math.sqrt(mean_square * count)
    drift = mean_square * count / 2
    width = min(12 * spread + 2 * drift + reach, 4 * _LARGEST_LOSS)  # losses beyond count as infinite
    return max(step, reach / _MOST_CELLS, width / (2 * _MOST_CELLS))


def _reach(curve: Divergence) -> float:
    """An ε beyond which the curve is below the tail mass (or stays flat, as with a δ that never vanishes)."""
    low, high = 0.0, 1.0
    flat = float(curve(np.array([1e4]))[0])
    while float(curve(np.array([high]))[0]) > flat + _TAIL and high < _LARGEST_LOSS:
        low, high = high, high * 1.5
    for _ in range(12):
        middle = (low + high) / 2
        low, high = (middle, high) if float(curve(np.array([middle]))[0]) > flat + _TAIL else (low, middle)
    return high


def discretise(curve: Curve, step: float) -> PrivacyLossDistribution:
    """The curve as a pessimistic PLD on multiples of `step`."""
    up, up_rest = _positive_losses(curve.forward, step)
    if curve.symmetric:
        return PrivacyLossDistribution(_pmf(up, up_rest, up, step))
    down, down_rest = _positive_losses(curve.backward, step)
    return PrivacyLossDistribution(_pmf(up, up_rest, down, step), _pmf(down, down_rest, up, step))


def _positive_losses(curve: Divergence, step: float) -> tuple[Array, float]:
    """Connect-the-dots masses of P at losses step, 2·step, …, and at infinity.

    Only ε ≥ 0 is evaluated, where δ is small and its relative accuracy is kept.
    """
    cells = max(2, math.ceil(_reach(curve) / step) + 1)
    grid: Array = np.arange(cells + 1, dtype=np.float64) * step
    deltas = np.minimum.accumulate(np.clip(curve(grid), 0.0, 1.0))
    fall = -np.diff(deltas)
    masses = np.empty(cells)
    masses[:-1] = (fall[:-1] * math.exp(step) - fall[1:]) / math.expm1(step)
    masses[-1] = fall[-1] / -math.expm1(-step)
    return np.asarray(np.maximum(masses, 0.0), dtype=np.float64), float(deltas[-1])


def _pmf(up: Array, infinite: float, down: Array, step: float) -> pld_pmf.DensePLDPmf:
    """One direction: `up` gives P's masses above 0, `down` Q's, and P = Q·e^{−loss} on the mirrored grid."""
    below = down * np.exp(-step * np.arange(1, down.size + 1))
    # What is left of P goes to loss 0: masses below the grid are moved up, which is pessimistic.
    middle = max(0.0, 1.0 - math.fsum(up) - math.fsum(below) - infinite)
    probabilities = np.concatenate([below[::-1], [middle], up])
    return pld_pmf.DensePLDPmf(step, -down.size, probabilities, infinite, True)


def compose(curves: list[tuple[Curve, int]], *, step: float | None = None) -> PrivacyLossDistribution:
    """The PLD of several curves, each repeated `count` times."""
    step = choose_step(curves) if step is None else step
    total: PrivacyLossDistribution | None = None
    for curve, count in curves:
        part = discretise(curve, step)
        with np.errstate(over="ignore", divide="ignore"):  # far tails, in a Chernoff bound that skips them
            part = part.self_compose(count) if count > 1 else part
        total = part if total is None else total.compose(part)
    assert total is not None
    return total


def epsilon_at(distribution: PrivacyLossDistribution, delta: float) -> float:
    """The least ε ≥ 0 at which both directions are at most δ; infinity if none."""
    both = {id(p): p for p in (distribution._pmf_remove, distribution._pmf_add)}.values()
    return max(_epsilon_one_way(pmf.to_dense_pmf(), delta) for pmf in both)


def _epsilon_one_way(pmf: Any, delta: float) -> float:
    """Solve δ = m_∞ + Σ_{ℓ>ε} p(ℓ)(1 − e^{ε−ℓ}) in the cell of the grid where it is crossed."""
    skip = max(0, -pmf._lower_loss)  # losses below 0 never matter for ε ≥ 0
    cut = max(skip + 1, math.floor(_LARGEST_LOSS / pmf._discretization) - pmf._lower_loss)
    infinite = pmf._infinity_mass + math.fsum(pmf._probs[cut:])
    if infinite > delta:
        return math.inf
    masses = pmf._probs[skip:cut]
    losses = (pmf._lower_loss + skip + np.arange(masses.size)) * pmf._discretization
    above = np.cumsum(masses[::-1])[::-1] + infinite
    weighted = np.cumsum((masses * np.exp(-losses))[::-1])[::-1]
    # deltas[j] is δ at ε = losses[j]; the crossing cell ends at the first j that is small enough.
    deltas = np.append(above[1:] - np.exp(losses[:-1]) * weighted[1:], infinite)
    end = int(np.argmax(deltas <= delta))
    if weighted[end] <= 0:
        return float(losses[end])
    inside = math.log(max((above[end] - delta) / weighted[end], 1e-300))
    return max(0.0, min(inside, float(losses[end])))
