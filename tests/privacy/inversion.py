"""The true ε of a plan, by inverting the moment-generating function of its loss; no grid of losses, no FFT.

For a sum L of losses, E(1 − e^{ε−L})₊ = 1/2πi ∫ e^{K(s)−sε}/(s(s+1)) ds along Re s = λ > 0, K = Σ T·log φ.
φ is an integral over the Gaussian's own coordinate, by Gauss-Legendre panels, and the contour lies near the
saddle point, so nothing cancels: ε comes out to a share of 3e-9, however small δ is and however large T. One
release, and Gaussians without sampling, have closed forms, which are taken in 50 digits.

    python -m tests.privacy.inversion     # writes inversion.json, the plans of test_reference.py: an hour
"""

import json
import math
import random
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Protocol

import mpmath as mp
import numpy as np
from scipy.optimize import brentq
from scipy.special import erfc
from scipy.stats import norm

FILE = Path(__file__).with_name("inversion.json")
KINDS = ("poisson", "without-replacement", "gaussian")
LARGEST = 600.0


@dataclass(frozen=True)
class Plan:
    """`steps` releases with noise multiplier z of records that are sampled at rate q, and a δ."""

    kind: str
    q: float
    z: float
    steps: int
    delta: float

    @property
    def ways(self) -> tuple[str, ...]:
        return ("remove", "add") if self.kind == "poisson" else (self.kind,)

    @property
    def has_closed_form(self) -> bool:
        return self.kind == "gaussian" or self.steps == 1


def random_plan(rng: random.Random) -> Plan:
    def log_uniform(low: float, high: float) -> float:
        return math.exp(rng.uniform(math.log(low), math.log(high)))

    kind = rng.choices(KINDS, (6, 3, 1))[0]
    q = 1.0 if kind == "gaussian" else float(f"{min(log_uniform(1e-4, 1), 0.999):.3g}")
    z = float(f"{rng.uniform(0.5, 10):.3g}")
    return Plan(kind, q, z, round(log_uniform(1, 1e7)), float(f"{log_uniform(1e-15, 1e-5):.3g}"))


# ---------------------------------------------------------------------------------------------------
# closed forms


def gaussian_delta(epsilon: mp.mpf, mu: mp.mpf) -> mp.mpf:
    upper, lower = (mp.erfc((epsilon / mu + shift) / mp.sqrt(2)) / 2 for shift in (-mu / 2, mu / 2))
    return upper - mp.exp(epsilon) * lower


def sampled_delta(way: str, epsilon: float, q: float, mu: mp.mpf) -> mp.mpf:
    """δ at ε ≥ 0 of one step, in one direction."""
    e, q = mp.mpf(epsilon), mp.mpf(q)
    if way != "add":
        return q * gaussian_delta(mp.log1p(mp.expm1(e) / q), mu)
    a = 1 + mp.expm1(-e) / q
    return q * a * mp.exp(e) * gaussian_delta(-mp.log(a), mu) if a > 0 else mp.mpf(0)


def closed_form(plan: Plan, epsilon: float) -> mp.mpf:
    """δ at ε ≥ 0 of a plan of one step, or without sampling: 50 digits."""
    with mp.workdps(50):
        mu = mp.sqrt(plan.steps) / mp.mpf(plan.z)
        if plan.kind == "gaussian":
            return gaussian_delta(mp.mpf(epsilon), mu)
        return max(sampled_delta(way, epsilon, plan.q, mu) for way in plan.ways)


# ---------------------------------------------------------------------------------------------------
# laws of the loss of one step


class Law(Protocol):
    def log_moment(self, s: np.ndarray) -> np.ndarray:
        """log φ(s) = log E e^{sL} for many s of one real part."""

    @property
    def largest(self) -> float:
        """No loss is above it."""


@dataclass(frozen=True)
class Mixture:
    """Gaussians of which one is drawn, openly, with these weights."""

    mus: tuple[float, ...]
    weights: tuple[float, ...]
    largest = math.inf

    def log_moment(self, s: np.ndarray) -> np.ndarray:
        each = [w * np.expm1(s * (s + 1) * mu * mu / 2) for mu, w in zip(self.mus, self.weights, strict=True)]
        return _log1p(np.sum(each, axis=0))


@dataclass(frozen=True)
class RandomizedResponse:
    """(ε, 0)-DP at its worst."""

    epsilon: float

    @property
    def largest(self) -> float:
        return self.epsilon

    def log_moment(self, s: np.ndarray) -> np.ndarray:
        e = self.epsilon
        return np.log((np.exp((1 + s) * e) + np.exp(-s * e)) / (1 + math.exp(e)))


@dataclass(frozen=True)
class Sampled:
    """A Gaussian of a sample: P = (1−q)N(0,1) + qN(μ,1) against N(0,1), its reverse, or without replacement.

    farthest: an x beyond which P has next to no mass, whatever happens there; tilted, it could hide the rest.
    """

    way: str
    q: float
    mu: float
    farthest: float

    @property
    def largest(self) -> float:
        return -math.log1p(-self.q) if self.way == "add" else float(self.loss(np.array([self.farthest]))[0])

    def loss(self, x: np.ndarray) -> np.ndarray:
        return np.log1p(self.q * np.expm1(self.mu * x - self.mu**2 / 2))

    def log_moment(self, s: np.ndarray) -> np.ndarray:
        x, weight = self._nodes(float(s.real[0]), float(np.abs(s.imag).max()))
        out = np.empty(s.shape, dtype=complex)
        for i in range(0, s.size, rows := max(1, 1_000_000 // x.size)):
            out[i : i + rows] = self._excess(s[i : i + rows, None], x) @ weight
        return _log1p(out)

    def _excess(self, s: np.ndarray, x: np.ndarray) -> np.ndarray:
        """N(x)·(e^{sL} dP/dN − …), whose integral is φ(s) − 1: what integrates to 0 or 1 was subtracted.

        So a small loss keeps its digits. N(x) stands inside of the exponentials, so a large one does not
        overflow.
        """
        loss, density = self.loss(x), -x * x / 2 - math.log(2 * math.pi) / 2
        if self.way == "remove":
            return _expm1((1 + s) * loss, density) - (1 + s) * _expm1(loss, density)
        if self.way == "add":
            return _expm1(-s * loss, density) + s * _expm1(loss, density)
        # Without replacement the pair is symmetric: what P has at ℓ > 0, Q has at −ℓ. Both are alike at 0.
        return _expm1(s * loss, density + loss) + _expm1(-s * loss, density)

    def _nodes(self, slope: float, frequency: float) -> tuple[np.ndarray, np.ndarray]:
        """Gauss-Legendre panels of a width of at most 1/2, in each of which e^{iyL} turns by at most 10."""
        low, high = self._support(slope)
        x = np.linspace(low, high, 4000)
        position = 2 * x + frequency * self.loss(x) / 10
        count = math.ceil(position[-1] - position[0])
        edges = np.interp(np.linspace(position[0], position[-1], count + 1), position, x)
        t, w = np.polynomial.legendre.leggauss(24)
        half = np.diff(edges)[:, None] / 2
        return (edges[:-1, None] + half * (1 + t)).ravel(), (half * w).ravel()

    def _support(self, slope: float) -> tuple[float, float]:
        """Where the integrand at a real s is more than a share of 1e-17 of its largest value."""
        x = np.linspace(self.mu / 2 if self.way == "without-replacement" else -15.0, self.farthest, 4000)
        loss = self.loss(x)
        top = -slope * loss if self.way == "add" else (1 + slope) * loss
        logs = -x * x / 2 + np.maximum(np.maximum(top, loss), 0)
        logs += 2 * np.log(np.minimum((1 + slope) * np.abs(loss), 1) + 1e-99)
        inside = np.flatnonzero(logs > logs.max() - 39)
        return float(x[max(inside[0] - 1, 0)]), float(x[min(inside[-1] + 1, x.size - 1)])


def _expm1(exponent: np.ndarray, log_weight: np.ndarray) -> np.ndarray:
    """e^log_weight·(e^exponent − 1)."""
    small = np.abs(exponent) < 1
    near = np.exp(log_weight) * np.expm1(np.where(small, exponent, 0))
    return np.where(small, near, np.exp(np.where(small, 0, exponent + log_weight)) - np.exp(log_weight))


def _log1p(z: np.ndarray) -> np.ndarray:
    a, b = z.real, z.imag
    squared = np.maximum(2 * a + a * a + b * b, -1 + 1e-15)  # φ may vanish
    return 0.5 * np.log1p(squared) + 1j * np.arctan2(b, 1 + a)


# ---------------------------------------------------------------------------------------------------
# inversion


class Inversion:
    """δ(ε) of a sum of losses, each law repeated some times, near some δ."""

    def __init__(self, laws: Sequence[tuple[Law, int]], delta: float) -> None:
        self.laws, self.delta = laws, delta
        self.slope = self._saddle()
        self.bound = self._derivative(self.slope)  # Chernoff's bound on ε

    def k(self, s: np.ndarray) -> np.ndarray:
        return np.sum([count * law.log_moment(s) for law, count in self.laws], axis=0)

    def real(self, slope: float) -> float:
        """K at a real slope; infinity where numbers overflow."""
        with np.errstate(over="ignore", invalid="ignore"):
            found = float(self.k(np.array([slope + 0j]))[0].real)
        return found if math.isfinite(found) else math.inf

    def _derivative(self, slope: float) -> float:
        step = 1e-4 * slope
        return (self.real(slope + step) - self.real(slope - step)) / (2 * step)

    def _saddle(self) -> float:
        def gap(t: float) -> float:
            slope = math.exp(t)
            found = self.real(slope) - slope * self._derivative(slope) - math.log(self.delta)
            return found if math.isfinite(found) else -1e9  # far beyond the saddle

        low = high = 0.0
        while gap(low) < 0:
            low -= 1
        while gap(high) > 0:
            high += 1
        return math.exp(brentq(gap, low, high, xtol=1e-6))

    def period(self, slope: float) -> float:
        """Sums with step 2π/P stand for Σ_k δ(ε + kP)e^{λkP}, not δ(ε): P so large that nothing is added.

        To the left δ ≤ 1. To the right δ(x) ≤ e^{K(s)−sx} for each s, and 0 above the largest loss.
        """
        least = 40 - math.log(self.delta)
        slopes = [s for s in slope * np.array([1.1, 1.2, 1.4, 1.7, 2.0, 3.0]) if math.isfinite(self.real(s))]
        right = [(self.real(s) + least) / (s - slope) for s in slopes]
        largest = 1.01 * sum(count * law.largest for law, count in self.laws)
        return max(least / slope, min([*right, largest])) + self.bound

    def epsilon(self) -> float:
        """ε ≥ 0 with δ(ε) = delta, the same along two contours; 0 if δ(0) is smaller."""
        contours = [_Contour(self, share * self.slope) for share in (0.8, 0.65)]
        highest = 60 * self.slope
        while highest < 1e7 * self.slope:
            one, two = (contour.root(highest) for contour in contours)
            if abs(one - two) <= 3e-9 * one:
                return one
            highest *= 2
        raise ArithmeticError(f"no convergence: {vars(self)}")


class _Contour:
    """Re s = slope, up to a frequency that may be raised."""

    def __init__(self, law: Inversion, slope: float) -> None:
        self.law, self.slope, self.step = law, slope, 2 * math.pi / law.period(slope)
        self.s, self.k = np.zeros(0, dtype=complex), np.zeros(0, dtype=complex)

    def root(self, highest: float) -> float:
        while self.s.size * self.step < highest and not self._over():
            last = min(highest, max(2 * self.s.size * self.step, 100 * self.step))
            more = self.slope + 1j * self.step * np.arange(self.s.size, math.ceil(last / self.step) + 1)
            self.s, self.k = np.append(self.s, more), np.append(self.k, self.law.k(more))
        y = self.s.imag
        terms = np.exp(self.k - self.k[0].real) / (self.s * (self.s + 1)) * np.where(y == 0, 0.5, 1.0)
        if not self._over():
            # A smooth end: δ is analytic around ε, and what lies far from ε does not reach it.
            terms *= erfc(12 * y / highest - 6) / 2
        return self._crossing(terms)

    def _over(self) -> bool:
        """Is everything that follows negligible?"""
        return self.s.size > 0 and bool((self.k[-30:].real - self.k[0].real).max() < -45)

    def _crossing(self, terms: np.ndarray) -> float:
        law = self.law

        def log_ratio(e: float) -> float:
            total = float((terms * np.exp(-1j * self.s.imag * e)).real.sum()) * self.step / math.pi
            return math.log(max(total, 1e-300)) + self.k[0].real - self.slope * e - math.log(law.delta)

        high = law.bound
        low = max(0.0, high - 1 / law.slope)
        while low > 0 and log_ratio(low) < 0:
            low = max(0.0, low - 1 / law.slope)
        if log_ratio(low) < 0:
            return 0.0
        return float(brentq(log_ratio, low, high, xtol=1e-300, rtol=1e-13))


def of_plan(plan: Plan, way: str) -> Inversion:
    mu = 1 / plan.z
    if way == "gaussian":
        return Inversion([(Mixture((mu,), (1.0,)), plan.steps)], plan.delta)
    farthest = mu + float(norm.isf(1e-11 * plan.delta / plan.steps))
    return Inversion([(Sampled(way, plan.q, mu, farthest), plan.steps)], plan.delta)


def true_epsilons(plan: Plan) -> dict[str, float]:
    """ε of a plan in each direction, at least 0; infinity if it is above 600 and has no closed form.

    The second direction is left out if Chernoff's bound on it lies below half of the first: it decides
    nothing, and the fewer the steps, the longer it takes.
    """
    if plan.has_closed_form:
        return {plan.kind: _invert(lambda e: float(closed_form(plan, e) / plan.delta - 1))}
    found: dict[str, float] = {}
    for way in plan.ways:
        one = of_plan(plan, way)
        if one.bound > 2 * LARGEST:
            found[way] = math.inf
        elif not found or one.bound > max(found.values()) / 2:
            found[way] = one.epsilon()
    return {way: e if e <= LARGEST else math.inf for way, e in found.items()}


def _invert(falling: Callable[[float], float]) -> float:
    if falling(0.0) <= 0:
        return 0.0
    high = 1.0
    while falling(high) > 0:
        high *= 2
    return float(brentq(falling, 0.0, high, xtol=1e-300, rtol=1e-14))


def main(count: int = 360) -> None:
    rng, rows = random.Random(2024), []
    for i in range(count):
        plan = random_plan(rng)
        rows.append(asdict(plan) | {"epsilon": {way: repr(e) for way, e in true_epsilons(plan).items()}})
        print(i, rows[-1], flush=True)
    FILE.write_text("[\n" + ",\n".join(map(json.dumps, rows)) + "\n]\n")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
