"""What the noise of steps does to a run's models: the factorization is made for that.

The draw of step s enters the parameters after step t as −η h_{t−s}, where h is the response of an optimizer
with momentum β in a direction of curvature λ:

    v_t = β v_{t−1} + λ w_{t−1} + ẑ_t ,  w_t = w_{t−1} − η v_t ,  h = 1/((1 − x)(1 − βx) + ηλx)

With C⁻¹ for the correlation, iterate t has the noise Σ_s β_{t−s} z_s, β = h·C⁻¹ as power series. Half of the
error is the mean over all iterates, at which gradients are taken; half is that of the model that is returned
(the last one, or an average). Directions count by their curvature, which is what an error there costs in loss
(NoiseCurve, arXiv:2510.05416); without curvature there is one, of λ = 0. Weight decay adds to λ.

Where step sizes differ, the response to a draw depends on its step as well. C stays Toeplitz: only what it is
optimized for changes.
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
_LONGEST_UNEVEN = 1_000  # the same where step sizes differ: of more, so many evenly spaced ones


@dataclass(frozen=True)
class Workload:
    """Steps, momentum, the share of each iterate in what is returned, curvature, and step sizes.

    averaged: weights of the last iterates, oldest first; they sum to 1.
    curvature: (ηλ, weight) of directions, for the longest step; weights sum to 1.
    step_sizes: of each step, relative to the longest; empty: all alike.
    """

    steps: int
    momentum: float = 0.0
    averaged: tuple[float, ...] = (1.0,)
    curvature: tuple[tuple[float, float], ...] = ((0.0, 1.0),)
    step_sizes: tuple[float, ...] = ()

    def denominator(self, contraction: float = 0.0) -> Floats:
        """The coefficients of 1/h."""
        return np.array([1.0, contraction - 1.0 - self.momentum, self.momentum])

    def error(self, strategy: Strategy) -> float:
        """The mean square of the noise in the models, in units of a draw and of the longest step size."""
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
        if len(set(self.step_sizes)) > 1:
            return self._uneven_error(below, above)
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

    def _uneven_error(self, below: Floats, above: Floats) -> tuple[float, Floats]:
        form = _quadratic_form(self)
        inverse = lfilter(above, below, np.eye(1, len(form))[0])
        by_inverse = lfilter([1.0], below, inverse)
        image = form @ inverse
        slope = [-2 * float(image[j:] @ by_inverse[: len(form) - j]) for j in range(len(below))]
        return float(inverse @ image), np.array(slope)


@functools.lru_cache(maxsize=4)
def _quadratic_form(work: Workload) -> Floats:
    """Q of the error xᵀQx, for the coefficients x of C⁻¹: step sizes may differ.

    Column s of H is what a unit of noise in step s does to each iterate, and wᵀWw is the error of iterates w.
    The draw of step s enters by Σ_i x_i H e_{s+i}, so that Q_ij = Σ_s (HᵀWH)_{s+i,s+j}.
    """
    count = min(work.steps, _LONGEST_UNEVEN)
    sizes = np.asarray(work.step_sizes)[np.arange(count) * work.steps // count]
    kept = np.asarray(work.averaged)[-work.steps :]
    places = np.arange(work.steps - len(kept), work.steps) * count // work.steps
    last = np.bincount(places, kept, minlength=count)
    form = np.zeros((count, count))
    for contraction, weight in work.curvature:
        response = np.zeros((count, count))
        velocity, params = np.zeros(count), np.zeros(count)
        for step, size in enumerate(sizes):
            velocity = work.momentum * velocity + contraction * params
            velocity[step] += 1.0
            params = response[step] = params - size * velocity
        result = last @ response
        form += weight / 2 * (response.T @ response / count + np.outer(result, result))
    for row in range(count - 2, -1, -1):
        form[row, :-1] += form[row + 1, 1:]
    return form


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
