"""What the noise of steps does to a run's models: the factorization is made for that.

The draw of step s enters the parameters after step t as −η h_{t−s}, where h is the response of an optimizer
with momentum β in a direction of curvature λ:

    v_t = β v_{t−1} + λ w_{t−1} + ẑ_t ,  w_t = w_{t−1} − η v_t ,  h = 1/((1 − x)(1 − βx) + ηλx)

With C⁻¹ for the correlation, iterate t has the noise Σ_s β_{t−s} z_s, β = h·C⁻¹ as power series. Half of the
error is the mean over all iterates, at which gradients are taken; half is that of the model that is returned
(the last one, or an average). Directions count by their curvature, which is what an error there costs in loss
(NoiseCurve, arXiv:2510.05416); without curvature there is one, of λ = 0.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import numpy as np
from scipy.optimize import minimize
from scipy.signal import lfilter

from sidelight.arrays import Floats
from sidelight.methods.part_kinds import FinishRule
from sidelight.methods.parts import BestOnPublic, Ema, MeanLast, MeanLastHalf, MeanTail, Reuse
from sidelight.privacy.strategies import Strategy, impulse, inverse_square_root

_LONGEST = 20_000  # steps that are looked at; of more, the bands of so many are as good


@dataclass(frozen=True)
class Workload:
    """Steps, momentum, the share of each iterate in what is returned, and curvature.

    averaged: weights of the last iterates, oldest first; they sum to 1.
    curvature: (ηλ, weight) of directions; weights sum to 1.
    """

    steps: int
    momentum: float = 0.0
    averaged: tuple[float, ...] = (1.0,)
    curvature: tuple[tuple[float, float], ...] = ((0.0, 1.0),)

    def denominator(self, contraction: float = 0.0) -> Floats:
        """The coefficients of 1/h."""
        return np.array([1.0, contraction - 1.0 - self.momentum, self.momentum])

    def error(self, strategy: Strategy) -> float:
        """The mean square of the noise in the models, in units of a draw and of the step size."""
        if strategy.inverse:
            return self._error(np.ones(1), np.asarray(strategy.coefficients))[0]
        return self._error(np.asarray(strategy.coefficients), np.ones(1))[0]

    def sum_error(self, strategy: Strategy) -> float:
        """The mean over steps of the squared noise of the sum of all steps so far, relative to that of
        independent noise."""
        sums = np.cumsum(strategy.weights(min(self.steps, _LONGEST)))
        left = np.arange(len(sums), 0, -1)
        return float(left @ sums**2 / left.sum())

    def _error(self, below: Floats, above: Floats) -> tuple[float, Floats]:
        """The error for C⁻¹ = above/below, and its derivative by the coefficients of `below`."""
        count, bands = min(self.steps, _LONGEST), len(below)
        share = np.arange(count, 0, -1) / count
        last = np.zeros(count)
        kept = np.asarray(self.averaged)[-count:]
        last[count - len(kept) :] = kept
        total, slope = 0.0, np.zeros(bands)
        for contraction, weight in self.curvature:
            response = impulse(self.denominator(contraction), count)
            path = lfilter(above, below, response)
            by_path = lfilter([1.0], below, path)
            # Transposes run backwards in time.
            ahead = lfilter([1.0], self.denominator(contraction), last[::-1])
            back = lfilter(above, below, ahead)[::-1]
            by_back = lfilter([1.0], below, back)
            total += weight * (share @ path**2 + back @ back) / 2
            for j in range(bands):
                rest = count - j
                slope[j] -= weight * float((share * path)[j:] @ by_path[:rest] + by_back[:rest] @ back[j:])
        return float(total), slope


@functools.lru_cache(maxsize=256)
def best_bands(workload: Workload, bands: int) -> Strategy:
    """The bands of C with the least error for a given length of C's columns, from those of h's square root.

    While turns are at least `bands` steps apart, sensitivity grows with that length alone.
    """
    bands = min(bands, workload.steps)
    root = inverse_square_root(bands, workload.denominator())
    start = impulse(np.asarray(root.coefficients), bands)[1:]
    if bands == 1:
        return Strategy((1.0,))

    def cost(rest: Floats) -> tuple[float, Floats]:
        below = np.concatenate([[1.0], rest])
        with np.errstate(all="ignore"):
            error, slope = workload._error(below, np.ones(1))
        size = float(below @ below)
        value = math.log(error) + math.log(size) if 0 < error < math.inf else 1e3
        slopes = slope / error + 2 * below / size
        return value, np.nan_to_num(slopes[1:], nan=0.0, posinf=0.0, neginf=0.0)

    found = minimize(cost, start, jac=True, method="L-BFGS-B", options={"maxiter": 200})
    best = found.x if found.fun <= cost(start)[0] else start
    return Strategy((1.0, *(float(c) for c in best)))


def averaging(finish: FinishRule | None, steps: int) -> tuple[float, ...]:
    """The share of each of the last iterates in what a finish returns, oldest first."""
    match finish:
        case MeanLast():
            count = min(finish.n, steps)
        case MeanLastHalf():
            count = max(1, steps // 2)
        case MeanTail():
            count = max(1, int(finish.share * steps))
        case Ema():
            weights = finish.decay ** np.arange(steps - 1, -1, -1.0)
            return tuple(float(w) for w in weights / weights.sum())
        case Reuse():
            return averaging(finish.inner, steps)
        case BestOnPublic():
            return averaging(finish.rules[0], steps)
        case _:
            count = 1
    return (1 / count,) * count
