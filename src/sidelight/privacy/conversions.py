"""(ε, δ), zCDP, tCDP, RDP and GDP, one into another: one function per theorem.

Logarithms are natural. Inverses are solved on monotone functions and return the safe end: an ε that is not
too small, a budget that is not too large. There is no central-limit (CLT) conversion: it is not a bound
(q=0.01, σ=1, T=1000, δ=1e-5 would read 1.62 where the truth is 1.83).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, overload

import numpy as np
from scipy.optimize import minimize_scalar
from scipy.special import log_ndtr

from sidelight.arrays import Floats
from sidelight.errors import InputError, PrivacyConditionError, fraction, positive

Totals = Literal["paper", "tight"]

UNIT = 2.0**-53  # a rounding changes a number by at most this share of it
TINIEST = 1e-300  # more than underflow can hide


# ---------------------------------------------------------------------------------------------------
# the Gaussian mechanism, exactly


@overload
def gaussian_delta(epsilon: float, mu: float) -> float: ...
@overload
def gaussian_delta(epsilon: Floats, mu: float | Floats) -> Floats: ...
@overload
def gaussian_delta(epsilon: float, mu: Floats) -> Floats: ...
def gaussian_delta(epsilon: float | Floats, mu: float | Floats) -> float | Floats:
    """δ of a μ-GDP (Gaussian) mechanism at ε (Theorem 8 of Balle & Wang, ICML 2018, arXiv:1805.06530v2).

    δ = Φ(−ε/μ + μ/2) − e^ε Φ(−ε/μ − μ/2), in logs: the plain difference cancels for small δ. Vectorized
    over ε and μ; any real ε; μ = 0 gives the divergence of two equal laws.
    """
    eps, mu = np.asarray(epsilon, dtype=float), np.asarray(mu, dtype=float)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        safe = np.where(mu > 0, mu, 1.0)
        upper = log_ndtr(-eps / safe + safe / 2)
        lower = eps + log_ndtr(-eps / safe - safe / 2)
        delta = np.exp(upper) * -np.expm1(np.minimum(lower - upper, 0.0))
        delta = np.where(mu > 0, delta, np.maximum(-np.expm1(eps), 0.0))
    delta = np.clip(np.where(np.isneginf(eps), 1.0, delta), 0.0, 1.0)
    return float(delta) if delta.ndim == 0 else delta


@overload
def gaussian_delta_bound(epsilon: float, mu: float) -> float: ...
@overload
def gaussian_delta_bound(epsilon: Floats, mu: float | Floats) -> Floats: ...
@overload
def gaussian_delta_bound(epsilon: float, mu: Floats) -> Floats: ...
def gaussian_delta_bound(epsilon: float | Floats, mu: float | Floats) -> float | Floats:
    """An upper bound on the δ of a μ-GDP mechanism, μ > 0, that holds for the numbers a computer works with.

    The formula of `gaussian_delta`, and what its rounding can hide: each log Φ(x) is off by at most
    2.1u(1 + |x|)² (u = 2⁻⁵³), its argument by 3u|x|, and d log Φ(x)/dx is at most 1 + |x|. That makes
    12u(1 + b)² with b = |ε|/μ + μ/2, of which the bound takes 32u(1 + b)².
    """
    eps, mu = np.asarray(epsilon, dtype=float), np.asarray(mu, dtype=float)
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        upper = log_ndtr(-eps / mu + mu / 2)
        lower = eps + log_ndtr(-eps / mu - mu / 2)
        slack = 32 * UNIT * (1 + np.abs(eps) / mu + mu / 2) ** 2
        delta = np.exp(upper) * (slack - np.expm1(np.minimum(lower - upper, 0.0))) + TINIEST
    delta = np.where(delta < 1, delta, 1.0)  # a NaN, from numbers that overflow, is not a bound either
    return float(delta) if delta.ndim == 0 else delta


def gaussian_epsilon(delta: float, mu: float) -> float:
    """The least ε with gaussian_delta_bound(ε, μ) ≤ δ; at least 0."""
    fraction("delta", delta)
    if mu <= 0:
        return 0.0
    return _first_true(lambda e: gaussian_delta_bound(e, mu) <= delta, 0.0, mu * mu / 2 + mu * 40 + 1e-12)


def gdp_mu(epsilon: float, delta: float) -> float:
    """The largest μ for which a μ-GDP mechanism is (ε, δ)-DP."""
    positive("epsilon", epsilon)
    fraction("delta", delta)
    return _gdp_mu(float(epsilon), float(delta))


@lru_cache(maxsize=64)
def _gdp_mu(epsilon: float, delta: float) -> float:
    """Remembered: every part of a plan asks for that of the whole budget."""
    high = 1.0
    while gaussian_delta_bound(epsilon, high) <= delta:
        high *= 2
    return _last_true(lambda mu: bool(gaussian_delta_bound(epsilon, mu) <= delta), 0.0, high)


# ---------------------------------------------------------------------------------------------------
# Rényi


def right_at_most(epsilon: float, delta: float) -> float:
    """How often a guess at even odds is right at most under (ε, δ): half of 1 + (e^ε − 1 + 2δ)/(e^ε + 1)."""
    half = math.tanh(epsilon / 2)
    return min(1.0, (1 + half + delta * (1 - half)) / 2)


def rdp_to_dp(
    order: float, rdp: float, delta: float, *, conversion: Literal["improved", "classic"] = "improved"
) -> float:
    """ε of an (a, r)-RDP mechanism at δ.

    improved: r + log(1−1/a) − (log δ + log a)/(a−1), Proposition 12 of Canonne, Kamath & Steinke
    (arXiv:2004.00010v4). classic: r + log(1/δ)/(a−1), Proposition 3 of Mironov (CSF 2017).
    """
    _check_order(order)
    fraction("delta", delta)
    if conversion == "classic":
        return rdp - math.log(delta) / (order - 1)
    return max(0.0, rdp + math.log1p(-1 / order) - (math.log(delta) + math.log(order)) / (order - 1))


def rdp_budget(order: float, epsilon: float, delta: float) -> float:
    """The largest r for which (a, r)-RDP gives (ε, δ)-DP by the improved conversion; ≤ 0 means unusable."""
    _check_order(order)
    positive("epsilon", epsilon)
    fraction("delta", delta)
    return epsilon - math.log1p(-1 / order) + (math.log(delta) + math.log(order)) / (order - 1)


# ---------------------------------------------------------------------------------------------------
# concentrated


def tcdp_to_dp(rho: float, omega: float, delta: float) -> float:
    """ε of a (ρ, ω)-tCDP mechanism (Bun, Dwork, Rothblum & Steinke, STOC 2018) at δ.

    It is the improved Rényi conversion, minimized over orders below ω.
    """
    fraction("delta", delta)
    if rho < 0 or omega <= 1:
        raise InputError(f"tCDP needs rho >= 0 and omega > 1, not rho={rho:g}, omega={omega:g}")
    if rho == 0:
        return 0.0
    return zcdp_best_order(rho, delta, omega)[0]


def zcdp_best_order(rho: float, delta: float, omega: float = math.inf) -> tuple[float, float]:
    """(ε, a): the least ε over orders 1 < a < ω, and the order that gives it."""
    # Any order is valid, so a search that stops early costs tightness only.
    top = min(omega * (1 - 1e-12), 2 + 4 * math.sqrt(-math.log(delta) / rho))
    found = minimize_scalar(
        lambda t: rdp_to_dp(1 + math.exp(t), rho * (1 + math.exp(t)), delta),
        bounds=(math.log(1e-6), math.log(top - 1)),
        method="bounded",
        options={"xatol": 1e-12},
    )
    best = min(
        (found.x, math.log(top - 1)), key=lambda t: rdp_to_dp(1 + math.exp(t), rho * (1 + math.exp(t)), delta)
    )
    order = 1 + math.exp(best)
    return rdp_to_dp(order, rho * order, delta), order


def tcdp_totals(epsilon: float, delta: float, *, totals: Totals = "paper") -> tuple[float, float]:
    """(ρ, ω) that a tCDP run may spend to be (ε, δ)-DP.

    paper: ρ = (√(ε+ℓ) − √ℓ)², ω = 1 + √(ℓ/ρ), ℓ = log 1/δ (Eq. (3) of Wang & Zhou 2020, without its
    cancellation). tight: ρ = max_a B_a/a with the improved conversion, ω = the order a that attains it.
    """
    positive("epsilon", epsilon)
    fraction("delta", delta)
    ell = -math.log(delta)
    rho = (epsilon / (math.sqrt(epsilon + ell) + math.sqrt(ell))) ** 2
    omega = 1 + math.sqrt(ell / rho)
    if totals == "paper":
        return rho, omega
    found = minimize_scalar(
        lambda t: -rdp_budget(1 + math.exp(t), epsilon, delta) / (1 + math.exp(t)),
        bounds=(math.log(1e-3), math.log(4 * omega)),
        method="bounded",
        options={"xatol": 1e-10},
    )
    order = 1 + math.exp(found.x)
    return rdp_budget(order, epsilon, delta) / order, order


def zcdp_rho(epsilon: float, delta: float) -> float:
    """The largest ρ (up to rounding) for which ρ-zCDP gives (ε, δ)-DP by the tight conversion."""
    return tcdp_totals(epsilon, delta, totals="tight")[0]


@dataclass(frozen=True)
class Subsampled:
    """What Theorem 4 of Wang & Zhou 2020 gives for one subsampled step, and which conditions failed."""

    rho: float
    omega: float
    fails: tuple[str, ...]

    @property
    def ok(self) -> bool:
        return not self.fails


def tcdp_subsample(*, rho_s: float, q: float, omega_total: float, omega_in: float = math.inf) -> Subsampled:
    """Amplification of tCDP by sampling s of m records without replacement, q = s/m, under replace-one.

    Theorem 4 of Wang & Zhou 2020 (Bun et al. 2018): (13q²ρ_s, log(1/q)/4ρ_s)-tCDP, under four conditions;
    the fifth, that the resulting ω covers the total that the run converts with, the paper leaves out.
    """
    log_inv_q = -math.log(q) if q > 0 else math.inf
    omega = log_inv_q / (4 * rho_s) if rho_s > 0 else math.inf
    conditions = {
        "rho_s_range": 0 < rho_s <= 0.1,
        "q_range": 0 < q <= 0.1,
        "log_condition": rho_s > 0 and log_inv_q >= 3 * rho_s * (2 - math.log2(rho_s)),
        "omega_in": rho_s > 0
        and omega_in >= max(3.0 if q <= 0.1 and rho_s <= 0.1 else 0.0, log_inv_q / (2 * rho_s)),
        "omega_out": omega >= omega_total,
    }
    return Subsampled(13 * q * q * rho_s, omega, tuple(name for name, ok in conditions.items() if not ok))


def tcdp_rho_cap(q: float, omega_total: float) -> float:
    """The most that one subsampled step may cost: 13q² min(0.1, log(1/q)/4ω_total)."""
    if not 0 < q <= 0.1:
        raise PrivacyConditionError(f"subsampled tCDP needs a sampling rate in (0, 0.1], not {q:g}")
    return 13 * q * q * min(0.1, -math.log(q) / (4 * omega_total))


# ---------------------------------------------------------------------------------------------------
# pure DP


def pure_dp_to_zcdp(epsilon: float) -> float:
    """ρ of an ε-DP mechanism: ε tanh(ε/2) (Steinke 2024)."""
    if epsilon < 0:
        raise InputError(f"epsilon must be at least 0, not {epsilon:g}")
    return epsilon * math.tanh(epsilon / 2)


# ---------------------------------------------------------------------------------------------------
# objective perturbation, one shot


@overload
def objective_delta(epsilon: float, *, log_determinant: float, mu: float, rank: int) -> float: ...
@overload
def objective_delta(epsilon: Floats, *, log_determinant: float, mu: float, rank: int) -> Floats: ...
def objective_delta(
    epsilon: float | Floats, *, log_determinant: float, mu: float, rank: int
) -> float | Floats:
    """δ(ε) of objective perturbation on a GLM (METHODS 7.3), for any real ε; vectorized.

    The privacy loss is at most c0 + μ²/2 + μR. rank 1 (one record more or less): R = |Z|, so
    2δ_G(ε−c0; μ) above the kink and 1 − 2e^{ε−c0}Φ(−μ) below. rank 2 (one replaced): R is Rayleigh.
    Rounded up: ε−c0 downwards, since δ falls, and logs by what `gaussian_delta_bound` says of them.
    """
    eps = np.asarray(epsilon, dtype=float)
    x = eps - log_determinant - 4 * UNIT * (np.abs(eps) + log_determinant)
    if rank == 1:
        # 2Φ(−μ) = 1 − erf(μ/√2), in a form that keeps the digits of a small μ.
        tails = math.log1p(-math.erf(mu / math.sqrt(2))) if mu < 1 else math.log(2) + float(log_ndtr(-mu))
        below = np.minimum(x, mu * mu / 2) + tails * (1 + 8 * UNIT * (1 + mu * mu))
        delta = np.where(
            x >= mu * mu / 2,
            2 * np.asarray(gaussian_delta_bound(np.maximum(x, mu * mu / 2), mu)),
            -np.expm1(below) + 8 * UNIT * np.abs(below) + TINIEST,
        )
    else:
        r0 = np.maximum((x - mu * mu / 2) / mu, 0.0)
        # Above the kink e^{−r0²/2} cancels against e^{x−(r0+μ)²/2} exactly; what stays is the Mills term.
        log_mills = x + math.log(mu * math.sqrt(2 * math.pi)) + log_ndtr(-(r0 + mu))
        slack = 32 * UNIT * (1 + np.abs(x) / mu + mu + abs(math.log(mu))) ** 2
        mills = np.exp(np.minimum(log_mills + slack, 700.0)) + TINIEST
        delta = np.where(r0 > 0, mills, (mills - np.expm1(np.minimum(x - mu * mu / 2, 0.0))) * (1 + 8 * UNIT))
    delta = np.clip(delta, 0.0, 1.0)
    return float(delta) if delta.ndim == 0 else delta


def objective_noise(
    *, epsilon: float, delta: float, lipschitz: float, log_determinant: float, rank: int
) -> float:
    """The least σ_b for which objective perturbation is (ε, δ)-DP by `objective_delta`."""
    if epsilon <= log_determinant:
        raise PrivacyConditionError(
            f"epsilon={epsilon:g} is used up by the determinant term {log_determinant:.4g}; regularize more"
        )
    scale = lipschitz * rank

    def private(mu: float) -> bool:
        return bool(objective_delta(epsilon, log_determinant=log_determinant, mu=mu, rank=rank) <= delta)

    high = 1.0
    while private(high):
        high *= 2
    return scale / _last_true(private, 0.0, high)


# ---------------------------------------------------------------------------------------------------
# searching on a monotone predicate


def _first_true(predicate: Callable[[float], bool], low: float, high: float) -> float:
    """The least x in [low, high] at which a predicate that turns true stays true; the true side of it."""
    if predicate(low):
        return low
    while not predicate(high):
        low, high = high, 2 * high + 1
    for _ in range(200):
        middle = (low + high) / 2
        if middle in (low, high) or high - low <= 1e-13 * high:
            break
        low, high = (low, middle) if predicate(middle) else (middle, high)
    return high


def _last_true(predicate: Callable[[float], bool], low: float, high: float) -> float:
    """The largest x at which a predicate that turns false was still true; the true side of it."""
    for _ in range(1100):
        middle = (low + high) / 2 if low > 0 or high < 1e-300 else high / 2
        if middle in (low, high) or (low > 0 and high - low <= 1e-13 * high):
            break
        low, high = (middle, high) if predicate(middle) else (low, middle)
    return low


def _check_order(order: float) -> None:
    if not order > 1:
        raise InputError(f"a Rényi order must be above 1, not {order:g}")
