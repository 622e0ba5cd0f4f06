"""Sums of many privacy losses, and their tilt.

The loss of a composition is a sum of independent losses, and δ(ε) = Σ_{ℓ>ε} M(ℓ)(1 − e^{ε−ℓ}) with M the
T-fold convolution of the parts. A Fourier transform gets every M(ℓ) right to a share of the *largest*, which
says nothing about δ = 1e-12. So M is tilted first (Esscher): m(ℓ)e^{λℓ−c} in place of m(ℓ) gives
M(ℓ)e^{λℓ−C} with C = Σ T·c, and the slope λ is chosen so that the bulk of that lies at the ε in question.
There the errors of the transform (`window`) are a share of about T·1e-14 of what is wanted, whatever δ is.

Any slope gives an upper bound. What is here to choose one need not be exact.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
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
