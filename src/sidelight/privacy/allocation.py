"""One of N Gaussian releases has the record, and nobody knows which: random allocation, by its exact pair.

With X_1 … X_N standard normal, and Y_j = exp(μX_j − μ²/2), the likelihood ratio of the mixture of N(μe_j, I)
to N(0, I) is L = ΣY_j/N (Feldman & Shenfeld, arXiv:2602.17284, have its distribution by other means). So

    H_t(P‖Q) = E(L − t)₊ ,   H_t(Q‖P) = E(1 − tL)₊

Both are means of convex functions of L. Each Y is put on a grid so that its mean stays and its mass moves
outwards, to both ends of the cell it is in: that is more in the convex order, which sums of independent
numbers keep, so no such mean gets smaller (METHODS 28). The sum is a product of Fourier transforms.
"""

from __future__ import annotations

import functools
import math

import numpy as np
from scipy.special import ndtr

from sidelight.arrays import Floats
from sidelight.privacy.conversions import UNIT, gaussian_delta_bound
from sidelight.privacy.pld import Curve

_POINTS, _MOST_POINTS = 2**17, 2**20
_FINE = 0.05  # a step above that takes more points
_REACH = 7.2  # standard deviations of X that the grid holds


def allocation_curve(mu: float, bins: int) -> Curve:
    """The divergences of random allocation, never above those of a Gaussian whose place is known."""

    def forward(e: Floats) -> Floats:
        return np.asarray(np.minimum(_Sum.of(mu, bins).forward(e), gaussian_delta_bound(e, mu)))

    def backward(e: Floats) -> Floats:
        return np.asarray(np.minimum(_Sum.of(mu, bins).backward(e), gaussian_delta_bound(e, mu)))

    return Curve(forward, backward, mu / math.sqrt(bins))


class _Sum:
    """The law of S = ΣY_j on a grid: mass and first moment below each point, and the same above it if one of
    the Y is drawn with the record (weighted by itself)."""

    @staticmethod
    @functools.lru_cache(maxsize=4)  # of up to 34 MB each
    def of(mu: float, bins: int) -> _Sum:
        return _Sum(mu, bins)

    def __init__(self, mu: float, bins: int) -> None:
        self.bins = bins
        top = math.exp(min(mu * (_REACH + mu / 2), 600.0))
        spread = math.sqrt(bins * math.expm1(min(mu * mu, 600.0)))
        end = 1.5 * top + bins + 20 * spread
        self.points = points = _POINTS if end <= _FINE * _POINTS else _MOST_POINTS
        self.step = step = end / points
        mass = _outwards(mu, step, top)
        values = step * np.arange(points)
        with_record = mass * values[: len(mass)]
        one, other = np.fft.rfft(mass, points), np.fft.rfft(with_record, points)
        rest = one ** (bins - 1)
        without = np.maximum(np.fft.irfft(one * rest, points), 0.0)
        drawn = np.maximum(np.fft.irfft(other * rest, points), 0.0)
        # What is left out: Y above the grid, sums that wrap around, rounding of cells and of transforms.
        beyond = float(ndtr(mu / 2 - math.log(top) / mu))
        cells = 32 * UNIT * bins * (1 + math.exp(min(mu * mu, 600.0))) / step
        sizes = np.linalg.norm(mass) + np.linalg.norm(with_record)
        waves = 16 * UNIT * math.log2(points) * bins * math.sqrt(points) * float(sizes)
        self.slack = cells + waves
        self.up = 1 + 4 * UNIT * points  # what running sums lose
        self.lost = beyond + _wrapped(mass, with_record, bins, step, end)
        self._below = (
            np.concatenate([[0.0], np.cumsum(without)]),
            np.concatenate([[0.0], np.cumsum(without * values)]),
        )
        share = np.divide(drawn, values, out=np.zeros_like(drawn), where=values > 0)
        self._above = (
            np.append(np.cumsum(drawn[::-1])[::-1], 0.0),
            np.append(np.cumsum(share[::-1])[::-1], 0.0),
        )

    def forward(self, e: Floats) -> Floats:
        """E(L − t)₊ = E*(1 − tN/S)₊, where E* draws one Y with the record."""
        at = self.bins * np.exp(np.minimum(e, 700.0))
        first = np.minimum(np.ceil(at / self.step), self.points).astype(np.intp)
        bound = self.up * self._above[0][first] - at * self._above[1][first]
        return np.asarray(np.clip(bound + self.lost + self.slack, 0.0, 1.0))

    def backward(self, e: Floats) -> Floats:
        """E(1 − tS/N)₊."""
        t = np.exp(np.minimum(e, 700.0))
        last = np.minimum(np.ceil(self.bins / t / self.step), self.points).astype(np.intp)
        bound = self.up * self._below[0][last] - t / self.bins * self._below[1][last]
        return np.asarray(np.clip(bound + self.slack * (1 + t), 0.0, 1.0))


def _outwards(mu: float, step: float, top: float) -> Floats:
    """min(Y, top) on the grid: of each cell the mass at both ends, with the mean that it had."""
    points = step * np.arange(math.ceil(top / step) + 1)
    logs = np.append(-np.inf, np.log(points[1:])) / mu
    mass, moment = _between(logs + mu / 2), _between(logs - mu / 2)
    up = np.clip((moment - points[:-1] * mass) / step, 0.0, mass)
    found = np.zeros(len(points))
    found[:-1] += mass - up
    found[1:] += up
    found[-1] += float(ndtr(-(logs[-1] + mu / 2)))
    return found


def _between(at: Floats) -> Floats:
    """Normal probabilities between neighboring points, each from its smaller tail."""
    left, right = ndtr(at), ndtr(-at)
    return np.asarray(np.where(at[1:] < 0, left[1:] - left[:-1], right[:-1] - right[1:]).clip(0.0))


def _wrapped(mass: Floats, drawn: Floats, bins: int, step: float, end: float) -> float:
    """P(S ≥ the grid's end) if one Y is drawn with the record, by Chernoff: such sums wrap around."""
    values, best = step * np.arange(len(mass)), 1.0
    for power in (20.0, 40.0, 80.0, 160.0, 320.0):
        theta = power / end
        growth = math.log(max(float(drawn @ np.exp(theta * values)), 1e-300))
        others = (bins - 1) * math.log1p(max(float(mass @ np.expm1(theta * values)), 0.0))
        best = min(best, math.exp(min(growth + others - power, 0.0)))
    return best * (1 + 1e-6)
