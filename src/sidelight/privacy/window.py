"""A stretch of a tilted sum of losses by Fourier transform, and every δ(ε) in it, rounded up.

What is added, so that the answers are upper bounds (u = 2⁻⁵³; every rounding of a mass goes up):

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

import math

import numpy as np
from numpy.typing import NDArray
from scipy import fft
from scipy.signal import lfilter

from sidelight.privacy.conversions import UNIT
from sidelight.privacy.tilting import Array, Total

_FOURIER = 16.0
_MOST_CELLS = 2**22  # of a window; some 300 MB
_NEGLIGIBLE = -75.0  # the logarithm of a product of Fourier coefficients that is not worth computing
_OUTSIDE = math.log(1e-7)  # what a window may leave out, as a share of what is asked


class TooWide(Exception):
    """The window would hold too many cells: ask again with a step `factor` times as large."""

    def __init__(self, factor: float) -> None:
        super().__init__(factor)
        self.factor = factor


class Window:
    """M(ℓ) ≤ e^{C − λℓ}·mass for ℓ = first·step, …, and sums over what is above each ℓ."""

    def __init__(self, total: Total, slope: float, log_delta: float) -> None:
        self.step, self.slope = total.step, slope
        low, high, above = _ends(total, slope, log_delta)
        self.rest = (total.infinite + above) * (1 + 4 * UNIT)
        self.first, needed = math.floor(low / self.step), math.ceil((high - low) / self.step) + 2
        if needed > _MOST_CELLS:
            raise TooWide(1.01 * needed / _MOST_CELLS)
        mass, self.log_scale = _convolve(total, slope, self.first, _fast_length(needed))
        # Only ε ≥ 0 is asked for. Whatever lies above `high` is in `rest`.
        skip = max(0, -self.first)
        self.first, mass = self.first + skip, mass[skip:needed]
        self.at: Array = (self.first + np.arange(mass.size)) * np.float64(self.step)
        self.weighted, self.tail = self._sums(mass)

    def _sums(self, mass: Array) -> tuple[Array, Array]:
        """V_j = Σ_i M_{j+i}e^{−(λ+1)ih} and G_j = Σ_i M_{j+i}e^{−λih}(1 − e^{−ih}), from the end on.

        All terms are positive, and i steps of it are off by a share of at most 4iu.
        """
        h, fade = self.step, math.exp(-self.slope * self.step)
        v = lfilter([1.0], [1.0, -fade * math.exp(-h)], mass[::-1])
        g = lfilter([0.0, fade * -math.expm1(-h)], [1.0, -fade], v)
        up = 1 + 8 * UNIT * (mass.size + 4)
        return np.asarray(v[::-1] * up), np.asarray(g[::-1] * up)

    def _scale(self, at: Array) -> Array:
        """e^{C − λℓ}, rounded up."""
        exponent = self.log_scale - self.slope * at
        slack = 8 * UNIT * (4 + abs(self.log_scale) + self.slope * np.abs(at))
        with np.errstate(over="ignore"):
            return np.asarray(np.exp(exponent + slack))

    def deltas(self, epsilons: Array) -> Array:
        """An upper bound on δ at each ε ≥ 0; 1 below the window."""
        # The first point at or above ε, or the one below it if rounding cannot tell: that only counts more.
        j = np.ceil(epsilons / self.step * (1 - 8 * UNIT)).astype(np.int64) - self.first
        inside = (j >= 0) & (j < self.at.size)
        k = np.where(inside, j, 0)
        gap = np.maximum(self.at[k] - epsilons, 0.0) + 8 * UNIT * epsilons
        finite = self._scale(self.at[k]) * (self.tail[k] - np.expm1(-gap) * self.weighted[k])
        finite = np.where(inside, finite, np.where(j < 0, 1.0, 0.0)) * (1 + 8 * UNIT)
        return np.asarray(np.minimum(finite + self.rest, 1.0))

    def epsilon(self, delta: float) -> float | None:
        """The least ε ≥ 0 that is proven at δ; None if it is below the window."""
        enough = self._scale(self.at) * self.tail * (1 + 8 * UNIT) + self.rest <= delta
        if not enough.any():
            return math.inf
        end = int(np.argmax(enough))
        if end == 0:
            return 0.0 if self.first == 0 else None
        # Between two points, δ(ε) = scale·(G + (1 − e^{ε−ℓ})V) at the right end ℓ.
        scale = float(self._scale(self.at[end : end + 1])[0])
        room = ((delta - self.rest) / scale - self.tail[end]) / self.weighted[end]
        gap = -math.log1p(-min(max(room, 0.0), 0.5)) * (1 - 1e-9)
        found = max(float(self.at[end]) * (1 + 32 * UNIT) - gap, float(self.at[end - 1]) * (1 + 32 * UNIT))
        proven = float(self.deltas(np.array([found]))[0]) <= delta
        return found if proven else float(self.at[end]) * (1 + 16 * UNIT)


def _ends(total: Total, slope: float, log_delta: float) -> tuple[float, float, float]:
    """Where a window starts and ends, and a bound on the mass above its end.

    P(L ≥ x) ≤ e^{K(θ)−θx} for every θ > 0. The same for the tilted law, so that little wraps around.
    """
    k, mean, variance = total.moments(slope)
    unit = 1 / (math.sqrt(variance) or total.step)
    steps = [share * unit for share in (0.5, 1.0, 2.0, 4.0, 8.0)]
    above = log_delta + _OUTSIDE
    high = min((total.log_moment_bound(slope + s) - above) / (slope + s) for s in steps)
    end = min((total.moments(slope + s)[0] - k - _OUTSIDE) / s for s in steps)
    start = max((_OUTSIDE + k - total.moments(slope - s)[0]) / s for s in steps)
    return min(start, mean), max(high, end, mean), math.exp(above) * (1 + 1e-9)


def _fast_length(cells: int) -> int:
    power = 1 << max(6, (cells - 1).bit_length())
    return 3 * power // 4 if 3 * power // 4 >= cells else power


def _convolve(total: Total, slope: float, first: int, size: int) -> tuple[Array, float]:
    """(mass, C) with M(ℓ) ≤ e^{C − λℓ}·mass[ℓ − first], for `size` losses."""
    spectra, shifts, error = [], [], _FOURIER * UNIT * math.log2(size)
    logs: Array = np.zeros(size // 2 + 1)
    share: Array = np.zeros(size // 2 + 1)
    for part, count in total.parts:
        x, c = part.tilted(slope, total.step)
        folds = 2 + (int(part.index[-1]) - int(part.index[0])) // size
        wrapped = np.bincount(part.index % size, weights=x, minlength=size) * (1 + 2 * UNIT * folds)
        spectrum, off = fft.rfft(wrapped), error * float(wrapped.sum()) * 1.01
        size_of = np.abs(spectrum) + off
        logs += count * np.log(size_of)
        share += count * off / size_of
        spectra.append((spectrum, count))
        shifts.append(count * c)
    kept = logs > _NEGLIGIBLE
    full = np.zeros(size // 2 + 1, dtype=complex)
    full[kept] = 1.0
    for spectrum, count in spectra:
        full[kept] *= _power(spectrum[kept], count)
    largest = np.exp(logs[kept]) * 1.01
    lost = float(largest @ np.minimum(share[kept] + 4 * UNIT * total.count, 1.0) + error * largest.sum())
    # Each coefficient but the first and the last stands for two of the full transform.
    mass = np.roll(fft.irfft(full, size), -first % size) + (2.02 * lost / size + math.exp(_NEGLIGIBLE))
    return mass, math.fsum(shifts) + 4 * UNIT * math.fsum(map(abs, shifts))


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
