"""Mechanisms by their δ(ε) curves, as the PLD accountant takes them.

A *curve* is a bound on the hockey-stick divergence H_{e^ε} of a mechanism's outputs on two neighbouring
datasets, for every ε ≥ 0. A curve that bounds the divergence is that of a dominating pair, and dominating
pairs compose (Theorem 10 of Zhu, Dong & Wang, AISTATS 2022, arXiv:2106.08567v4).

Every curve here is an upper bound *as computed*: what rounding can hide is added. In a plan of 10⁷ steps a
curve that is too low by a share of 1e-9 would make the total too low by 1 %.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sidelight.privacy.conversions import TINIEST, UNIT, gaussian_delta_bound, objective_delta

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
    """A mechanism whose bound holds for both orders of two neighbours."""
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


def approximate_curve(epsilon: float, delta: float) -> Curve:
    """δ(e) = δ + (1−δ)·(e^ε − e^e)₊/(1 + e^ε): randomised response, the worst (ε, δ) pair.

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
