"""Sums of many privacy losses: their tilt, a stretch of them by Fourier transform, and every δ(ε) in it.

The loss of a composition is a sum of independent losses, and δ(ε) = Σ_{ℓ>ε} M(ℓ)(1 − e^{ε−ℓ}) with M the
T-fold convolution of the parts. A Fourier transform gets every M(ℓ) right to a share of the *largest*, which
says nothing about δ = 1e-12. So M is tilted first (Esscher): m(ℓ)e^{λℓ−c} in place of m(ℓ) gives
M(ℓ)e^{λℓ−C} with C = Σ T·c, and the slope λ is chosen so that the bulk of that lies at the ε in question.
There the errors of the transform (`Window`) are a share of about T·1e-14 of what is wanted, whatever δ is.

Any slope gives an upper bound. What is here to choose one need not be exact. What is added, so that the
answers are upper bounds (u = 2⁻⁵³; every rounding of a mass goes up):

- The transform of a vector x of N = 2^a or 3·2^a numbers is off by at most _FOURIER·u·log₂N·Σ|x| in each
  entry: an input reaches an output through log₂N sums and products with roots of unity, each of them rounded
  (Section 24.1 of Higham, Accuracy and Stability of Numerical Algorithms, 2002). 8u a step would do.
- A product of T complex numbers is off by a share of at most (1 + √5u)^T − 1, in whatever order they are
  multiplied (Brent, Percival & Zimmermann, Math. Comp. 76, 2007).
- The transform wraps around: mass outside of the window comes back inside. That adds to what is counted, and
  takes away nothing but what lies above the window, which a Chernoff bound replaces.
- An infinite loss in any of the T parts is one of the sum.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import fft
from scipy.optimize import brentq
from scipy.signal import lfilter
from scipy.special import erfcx

from sidelight.privacy.conversions import UNIT

Array = NDArray[np.float64]

_TRIMMED = 1e-6  # what rare large losses may take of a δ


@dataclass(frozen=True, eq=False)
class Losses:
    """Masses of P (all above 0) at losses index·step, and at an infinite loss."""

    index: NDArray[np.int64]
    mass: Array
    infinite: float

    @functools.cached_property
    def logs(self) -> Array:
        return np.asarray(np.log(self.mass))

    def trimmed(self, top: float, bottom: float) -> Losses:
        """The largest losses counted as infinite, the smallest moved up, as far as they weigh no more."""
        up = 1 + 2 * UNIT * self.mass.size
        high, low = np.cumsum(self.mass[::-1]) * up, np.cumsum(self.mass) * up
        end = self.mass.size - int(np.searchsorted(high, top, side="right"))
        start = int(np.searchsorted(low, bottom, side="right"))
        if start >= end:  # next to no mass at all
            return self
        mass = self.mass[start:end].copy()
        mass[0] = max(mass[0], low[start])
        gone = float(high[-1 - end]) if end < self.mass.size else 0.0
        return Losses(self.index[start:end], mass, (self.infinite + gone) * (1 + 4 * UNIT))

    def tilted(self, slope: float, step: float) -> tuple[Array, float]:
        """(x, c) with x ≥ mass·e^{slope·loss − c}, and the sum of x nearly 1."""
        tilt = self.index * (slope * step)
        exponent = tilt + self.logs
        top = float(exponent.max())
        x = np.exp(exponent - top)
        c = top + math.log(float(x.sum()))
        off = 2 + np.abs(tilt) + np.abs(self.logs) + abs(top) + abs(c)
        return x * np.exp(top - c) * (1 + 8 * UNIT * off), c


class LossSum:
    """The sum of independent losses, `count` of each kind."""

    def __init__(self, parts: Sequence[tuple[Losses, int]], step: float) -> None:
        self.parts, self.step = parts, step
        self.count = sum(count for _, count in parts)
        self.moments = functools.cache(self._moments)
        self.deviation = self.spread(0.0)

    def trimmed(self, delta: float) -> LossSum:
        """The same sum for a δ of about this size, with no losses that only matter for a much smaller one.

        Tilted, they would outweigh the rest: a step that costs 20 with probability 1e-25 has nothing to do
        with δ = 1e-6, and e^{20λ} makes it the only one to be seen. Rare gains of privacy are given up, too.
        """
        share = _TRIMMED / len(self.parts)
        parts = [(part.trimmed(share * delta / count, share / count), count) for part, count in self.parts]
        return LossSum(parts, self.step)

    @functools.cached_property
    def infinite(self) -> float:
        """The mass of an infinite loss in at least one part: Π(s + i)^T − Πs^T, from the parts' s and i."""
        if any(part.infinite >= 0.5 for part, _ in self.parts):
            return 1.0
        none = math.fsum(count * math.log1p(-part.infinite) for part, count in self.parts)
        return min(1.0, -math.expm1(none) * self.whole * (1 + 16 * UNIT))

    @functools.cached_property
    def whole(self) -> float:
        """All mass: 1, and what was rounded up."""
        excess = sum(n * max(0.0, math.fsum(p.mass) + p.infinite - 1 + 4 * UNIT) for p, n in self.parts)
        return math.exp(min(excess * 1.01, 700.0)) * (1 + 4 * UNIT)

    def _moments(self, slope: float) -> tuple[float, float, float]:
        """K, K′ and K″: the logarithm of the moment-generating function, and mean and variance there."""
        k = mean = variance = 0.0
        for part, count in self.parts:
            x, c = part.tilted(slope, self.step)
            loss = part.index * self.step
            average = float(x @ loss)
            k, mean = k + count * c, mean + count * average
            variance += count * float(x @ (loss - average) ** 2)
        return k, mean, variance

    def spread(self, slope: float) -> float:
        """The standard deviation at a tilt, or a share of the step if almost nothing moves."""
        return max(math.sqrt(self.moments(slope)[2]), 0.1 * self.step)

    def log_moment_bound(self, slope: float) -> float:
        """An upper bound on K."""
        bounds = []
        for part, count in self.parts:
            x, c = part.tilted(slope, self.step)
            slack = 8 * UNIT * (1 + abs(c) + math.log2(x.size))
            bounds.append(count * (c + math.log(float(x.sum())) + slack))
        return math.fsum(bounds)

    def chernoff_delta(self, slope: float, epsilon: float) -> float:
        """δ(ε) ≤ P(L > ε) ≤ e^{K(λ)−λε}, and the mass of an infinite loss."""
        exponent = self.log_moment_bound(slope) - slope * epsilon + 8 * UNIT * slope * abs(epsilon)
        return self.infinite + math.exp(min(exponent, 0.0)) * (1 + 1e-12)

    def chernoff_epsilon(self, slope: float, delta: float) -> float:
        """The ε at which that bound is δ, for one slope."""
        if slope <= 0 or self.infinite >= delta:
            return math.inf
        bound = (self.log_moment_bound(slope) - math.log((delta - self.infinite) * (1 - 1e-12))) / slope
        return max(bound * (1 + 8 * UNIT), 0.0)

    def log_delta_near(self, slope: float) -> float:
        """About log δ at ε = K′(slope): the tilted law taken for a normal one."""
        s = self.spread(slope) / math.sqrt(2)
        share = float(erfcx(slope * s) - erfcx((slope + 1) * s)) / 2
        return self._chernoff(slope) + min(math.log(max(share, 1e-30)), 0.0)

    def slope_for_delta(self, delta: float) -> float:
        """Where the Chernoff bound K − λK′ is log δ, then again for what that bound is too high by."""
        slope, target = 0.0, math.log(delta)
        for _ in range(2):
            slope = self._slope(functools.partial(self._chernoff, target=target))
            target = min(math.log(delta) + self._chernoff(slope) - self.log_delta_near(slope), -0.1)
        return slope

    def slope_for_epsilon(self, epsilon: float) -> float:
        """Where K′ is ε."""
        return self._slope(lambda slope: epsilon - self.moments(slope)[1])

    def _chernoff(self, slope: float, target: float = 0.0) -> float:
        k, mean, _ = self.moments(slope)
        return k - slope * mean - target

    def _slope(self, falling: Callable[[float], float]) -> float:
        """About where a falling function of the slope crosses 0; at least 0, at most one over the step."""
        most = 1 / self.step
        low = high = min(1 / self.deviation, most)
        while falling(low) <= 0:
            low, high = low / 3, low
            if low * self.deviation < 1e-6:
                return 0.0
        while falling(high) > 0:
            if high >= most:
                return most
            low, high = high, min(3 * high, most)
        root = brentq(lambda t: falling(math.exp(t)), math.log(low), math.log(high), xtol=1e-3)
        return math.exp(float(root))


# ---------------------------------------------------------------------------------------------------
# a stretch of a tilted sum, by Fourier transform

_FOURIER = 16.0
_MOST_CELLS = 2**22  # of a window; some 300 MB
_NEGLIGIBLE = -75.0  # the logarithm of a product of Fourier coefficients that is not worth computing
_OUTSIDE = math.log(1e-7)  # what a window may leave out, as a share of what is asked


class TooWide(Exception):
    """The window would hold too many cells: ask again with a step `factor` times as large."""

    def __init__(self, factor: float) -> None:
        super().__init__(factor)
        self.factor = factor


@dataclass(frozen=True)
class Errors:
    """How far computed masses may be from the exact ones: at most, and as a Euclidean norm."""

    largest: float
    norm: float

    def of(self, weights: float, largest: float) -> float:
        """For a sum with positive weights, from the sum of these and the largest of them (Cauchy-Schwarz)."""
        return min(self.largest * weights, self.norm * math.sqrt(weights * largest))


class Window:
    """M(ℓ) ≤ e^{C − λℓ}·mass for ℓ = first·step, …, and tail sums above each ℓ."""

    def __init__(self, total: LossSum, slope: float, log_delta: float) -> None:
        self.step, self.slope, self.whole = total.step, slope, total.whole
        low, high, above = _ends(total, slope, log_delta)
        self.rest = (total.infinite + above) * (1 + 4 * UNIT)
        self.first, needed = math.floor(low / self.step), math.ceil((high - low) / self.step) + 2
        if needed > _MOST_CELLS:
            raise TooWide(1.01 * needed / _MOST_CELLS)
        mass, self.log_scale, errors = _convolve(total, slope, self.first, _fast_length(needed))
        # Only ε ≥ 0 is asked for. Whatever lies above `high` is in `rest`.
        skip = max(0, -self.first)
        self.first, mass = self.first + skip, mass[skip:needed]
        self.at: Array = (self.first + np.arange(mass.size)) * np.float64(self.step)
        self.weighted, self.tail = self._sums(mass, errors)

    def _sums(self, mass: Array, errors: Errors) -> tuple[Array, Array]:
        """V_j = Σ_i M_{j+i}e^{−(λ+1)ih} and G_j = Σ_i M_{j+i}e^{−λih}(1 − e^{−ih}), from the end on.

        All terms are positive, and i steps of it are off by a share of at most 4iu. No weight of G is above
        1/(1+λ), the largest value of e^{−λx}(1 − e^{−x}).
        """
        h, n, fade = self.step, mass.size, math.exp(-self.slope * self.step)
        both = fade * math.exp(-h)
        v = lfilter([1.0], [1.0, -both], mass[::-1])
        g = lfilter([0.0, fade * -math.expm1(-h)], [1.0, -fade], v)
        # The weights' sums, of a geometric series or of at most n weights.
        most_v = min(n, -1 / math.expm1(-(self.slope + 1) * h))
        most_g = most_v * fade * -math.expm1(-h) / max(-math.expm1(-self.slope * h), UNIT)
        most_g = min(most_g, n * min(1.0, n * h))
        up = 1 + 8 * UNIT * (n + 4)
        return (
            np.asarray((v[::-1] + errors.of(most_v, 1.0)) * up),
            np.asarray((g[::-1] + errors.of(most_g, 1 / (1 + self.slope))) * up),
        )

    def _scale(self, at: Array) -> Array:
        """e^{C − λℓ}, rounded up."""
        exponent = self.log_scale - self.slope * at
        slack = 8 * UNIT * (4 + abs(self.log_scale) + self.slope * np.abs(at))
        with np.errstate(over="ignore"):
            return np.asarray(np.exp(exponent + slack))

    def deltas(self, epsilons: Array) -> Array:
        """An upper bound on δ at each ε ≥ 0."""
        # The first point at or above ε, or the one below it if rounding cannot tell: that only counts more.
        j = np.ceil(np.minimum(epsilons / self.step, 2.0**60) * (1 - 8 * UNIT)).astype(np.int64) - self.first
        inside = (j >= 0) & (j < self.at.size)
        k = np.where(inside, j, 0)
        gap = np.maximum(self.at[k] - epsilons, 0.0) + 8 * UNIT * epsilons
        # Below the window, 1 − e^{ε−ℓ} is above its value at the first point by at most 1 − e^{ε−first}.
        scale = self._scale(self.at[k])
        slope = np.where(inside, scale * self.weighted[k], self.whole)
        finite = (scale * self.tail[k] - np.expm1(-gap) * slope) * (1 + 8 * UNIT)
        return np.asarray(np.minimum(np.where(j < self.at.size, finite, 0.0) + self.rest, 1.0))

    def epsilon(self, delta: float) -> float | None:
        """The least ε ≥ 0 that is proven at δ; None if it lies below the window and a smaller slope helps."""
        enough = self._scale(self.at) * self.tail * (1 + 8 * UNIT) + self.rest <= delta
        if not enough.any():
            return math.inf
        end = int(np.argmax(enough))
        if end == 0 and self.first > 0 and self.slope > 0:
            return None
        if end == 0 and float(self.deltas(np.zeros(1))[0]) <= delta:
            return 0.0
        # Between two points, δ(ε) = scale·(G + (1 − e^{ε−ℓ})V) at the right end ℓ. Below all: see `deltas`.
        scale = float(self._scale(self.at[end : end + 1])[0])
        slope = scale * self.weighted[end] if end else self.whole
        room = (delta - self.rest - scale * self.tail[end]) / slope
        gap = -math.log1p(-min(max(room, 0.0), 0.5)) * (1 - 1e-9)
        lowest = float(self.at[end - 1]) if end else 0.0
        found = max(float(self.at[end]) * (1 + 32 * UNIT) - gap, lowest * (1 + 32 * UNIT))
        proven = float(self.deltas(np.array([found]))[0]) <= delta
        return found if proven else float(self.at[end]) * (1 + 16 * UNIT)


def _ends(total: LossSum, slope: float, log_delta: float) -> tuple[float, float, float]:
    """Where a window starts and ends, and a bound on the mass above its end.

    P(L ≥ x) ≤ e^{K(θ)−θx} for every θ > 0. The same for the tilted law, so that little wraps around.
    """
    k, mean, _ = total.moments(slope)
    steps = [share / total.spread(slope) for share in (0.02, 0.1, 0.5, 1.0, 2.0, 4.0, 8.0)]
    above = log_delta + _OUTSIDE
    high = min((total.log_moment_bound(slope + s) - above) / (slope + s) for s in steps)
    end = min((total.moments(slope + s)[0] - k - _OUTSIDE) / s for s in steps)
    start = max((_OUTSIDE + k - total.moments(slope - s)[0]) / s for s in steps)
    return min(start, mean), max(high, end, mean, 0.0), math.exp(above) * (1 + 1e-9)


def _fast_length(cells: int) -> int:
    power = 1 << max(6, (cells - 1).bit_length())
    return 3 * power // 4 if 3 * power // 4 >= cells else power


def _convolve(total: LossSum, slope: float, first: int, size: int) -> tuple[Array, float, Errors]:
    """(mass, C, errors) with M(ℓ) ≤ e^{C − λℓ}·(mass[ℓ − first] + its error), for `size` losses."""
    error = _FOURIER * UNIT * math.log2(size)
    kept, product = np.arange(size // 2 + 1), np.ones(size // 2 + 1, dtype=complex)
    logs, share, shifts = np.zeros(kept.size), np.zeros(kept.size), []
    for part, count in total.parts:
        x, c = part.tilted(slope, total.step)
        folds = 2 + (int(part.index[-1]) - int(part.index[0])) // size
        wrapped = np.bincount(part.index % size, weights=x, minlength=size) * (1 + 2 * UNIT * folds)
        spectrum, off = fft.rfft(wrapped)[kept], error * float(wrapped.sum()) * 1.01
        largest = np.abs(spectrum) + off
        logs, share = logs + count * np.log(largest), share + count * off / largest
        # No coefficient is above 1 by more than a rounding, so what has become negligible stays so.
        alive = logs > _NEGLIGIBLE
        kept, logs, share = kept[alive], logs[alive], share[alive]
        product = product[alive] * _power(spectrum[alive], count)
        shifts.append(count * c)
    full = np.zeros(size // 2 + 1, dtype=complex)
    full[kept] = product
    # Each coefficient but the first and the last stands for two of the full transform. 1.5 > √2, for the norm
    # of a sum of two.
    lost = np.exp(logs) * 1.01 * (np.minimum(share + 4 * UNIT * total.count, 1.0) + error)
    errors = Errors(2.02 * float(lost.sum()) / size, 1.5 * math.sqrt(2 / size * float(lost @ lost)))
    least = 1.01 * math.exp(_NEGLIGIBLE)
    # No mass is negative: what the transform leaves below 0 is nearer at 0.
    mass = np.maximum(np.roll(fft.irfft(full, size), -first % size), 0.0)
    scale = math.fsum(shifts) + 4 * UNIT * math.fsum(map(abs, shifts))
    return mass, scale, Errors(errors.largest + least, errors.norm + least)


def _power(base: NDArray[np.complex128], exponent: int) -> NDArray[np.complex128]:
    """base^exponent by products alone: what `**` does with a large exponent depends on the C library."""
    result = np.ones_like(base)
    while exponent:
        if exponent & 1:
            result = result * base
        exponent >>= 1
        if exponent:
            base = base * base
    return result
