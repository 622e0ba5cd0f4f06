"""What events cost: PLD by default, RDP and tCDP where a method needs them.

    epsilon(event, delta=1e-5, relation="add-or-remove-one")

`relation` is always said, and an event that is not analysed under it is refused, with its name. An answer is
an upper bound: PLD rounds losses up, RDP and tCDP are bounds by theorem.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from sidelight.errors import InputError, PrivacyConditionError, RelationError
from sidelight.privacy import conversions, events, pld, renyi
from sidelight.privacy.events import Event, Relation

Accountant = Literal["pld", "rdp", "tcdp", "pld-coarse"]  # coarse: a looser bound at a quarter of the price

ORDERS: tuple[float, ...] = (
    *(1.05, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.8, 2.0, 2.5, 3.0, 3.5),
    *range(4, 65),
    *range(68, 129, 4),
    *(160, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 8192),
)
ASSUMES: dict[str, str] = {
    "pld": "the plan is fixed before training; losses are composed exactly and rounded up on a grid",
    "rdp": "the plan is fixed before training; the best Rényi order is chosen afterwards",
    "tcdp": "sampling without replacement under replace-one, and all five conditions of the theorem",
}
_SMALLEST_DELTA = 1e-12  # the Fourier transform leaves rounding errors of some 1e-15 a cell
_FLOOR = 1e-13
_MOST_STEPS = 4_000_000  # sampled steps; a convolution of more takes gigabytes
_CERTIFICATES = (events.ZeroConcentrated, events.TruncatedConcentrated, events.RenyiBound)


def epsilon(event: Event, *, delta: float, relation: Relation, accountant: Accountant = "pld") -> float:
    """The least ε that this accountant can prove at δ; infinity if none, or if it is above 600.

    "pld" answers with the Rényi bound, which is never below it, where a convolution cannot be trusted (δ
    below 1e-12) or would be too large (more than four million sampled steps).
    """
    conversions._check_delta(delta)
    events.check_relation(relation)
    if accountant == "tcdp":
        rho, omega = tcdp(event, relation=relation)
        return conversions.tcdp_to_dp(rho, omega, delta)
    if accountant == "rdp":
        return _epsilon_rdp(event, delta, relation)
    if accountant not in ("pld", "pld-coarse"):
        raise InputError(f"accountant must be 'pld', 'rdp' or 'tcdp', not {accountant!r}")
    return _epsilon_pld(event, delta, relation, coarse=accountant == "pld-coarse")


def delta(event: Event, *, epsilon: float, relation: Relation) -> float:
    """The least δ at ε, by PLD."""
    events.check_relation(relation)
    if (mu := gdp(event)) is not None:
        return float(conversions.gaussian_delta(epsilon, mu))
    curves = _curves(event, relation)
    if curves is None:
        return 1.0
    if not curves:
        return max(0.0, -math.expm1(epsilon))
    if len(curves) == 1 and curves[0][1] == 1 and epsilon >= 0:
        at = np.array([float(epsilon)])
        return float(max(curves[0][0].forward(at)[0], curves[0][0].backward(at)[0]))
    return min(1.0, float(_composed(event, relation).get_delta_for_epsilon(epsilon)) + _FLOOR)


def rdp(event: Event, *, orders: Sequence[float], relation: Relation) -> NDArray[np.float64]:
    """D_a for each order; infinity where nothing is known."""
    events.check_relation(relation)
    total = np.zeros(len(orders))
    for part, count in events.elementary(event).items():
        total += count * np.asarray(renyi.rdp_of(part, tuple(float(a) for a in orders), relation))
    return total


def tcdp(event: Event, *, relation: Relation, omega_total: float = 0.0) -> tuple[float, float]:
    """(ρ, ω) of a composition; ρ adds and ω takes the minimum (Lemma 2 of Bun et al. 2018)."""
    rho, omega = 0.0, math.inf
    for part, count in events.elementary(event).items():
        part_rho, part_omega = _tcdp_of(part, relation, omega_total)
        rho += count * part_rho
        omega = min(omega, part_omega)
    return rho, omega


# ---------------------------------------------------------------------------------------------------
# PLD


def _epsilon_pld(event: Event, delta_: float, relation: Relation, *, coarse: bool = False) -> float:
    if (mu := gdp(event)) is not None:
        return conversions.gaussian_epsilon(delta_, mu)
    curves = _curves(event, relation)
    if curves is None:
        return math.inf
    if not curves:
        return 0.0
    if delta_ < _SMALLEST_DELTA or sum(count for _, count in curves) > _MOST_STEPS:
        return _epsilon_rdp(event, delta_, relation)
    if len(curves) == 1 and curves[0][1] == 1:
        bound = _invert(curves[0][0], delta_)
    else:
        bound = pld.epsilon_at(_composed(event, relation, coarse), delta_ - _FLOOR)
    # A Rényi certificate loses something on its way to a PLD, so both bounds are asked.
    certified = any(isinstance(part, _CERTIFICATES) for part in events.elementary(event))
    return min(bound, _epsilon_rdp(event, delta_, relation)) if certified else bound


def _composed(event: Event, relation: Relation, coarse: bool = False) -> Any:
    return _composed_parts(frozenset(events.elementary(event).items()), relation, coarse)


@functools.lru_cache(maxsize=8)
def _composed_parts(parts: frozenset[tuple[Event, int]], relation: Relation, coarse: bool) -> Any:
    curves = _curves(events.compose(*(events.repeat(part, count) for part, count in parts)), relation)
    assert curves
    return pld.compose(curves, step=pld.choose_step(curves, per_deviation=5) if coarse else None)


def _invert(curve: pld.Curve, delta_: float) -> float:
    """ε of a single release, from its curve directly."""

    def private(e: float) -> bool:
        at = np.array([e])
        return bool(max(curve.forward(at)[0], curve.backward(at)[0]) <= delta_)

    if not private(pld._LARGEST_LOSS):
        return math.inf
    return conversions._first_true(private, 0.0, 1.0)


def gdp(event: Event) -> float | None:
    """μ of a composition of plain Gaussians, which compose exactly; None for anything else."""
    squares = []
    for part, count in events.elementary(event).items():
        if not (isinstance(part, events.Gaussian) and part.noise_multiplier > 0):
            return None
        squares.append(count / part.noise_multiplier**2)
    return math.sqrt(math.fsum(squares)) if squares else None


def _curves(event: Event, relation: Relation) -> list[tuple[pld.Curve, int]] | None:
    """The curves of a composition; None if something in it has no bound.

    What composes exactly is merged first: plain Gaussians by μ², concentrated events by ρ and ω.
    """
    square, rho, omega = 0.0, 0.0, math.inf
    others: list[tuple[pld.Curve, int]] = []
    for part, count in events.elementary(event).items():
        match part:
            case events.NonPrivate() | events.Gaussian(noise_multiplier=0):
                return None
            case events.Gaussian(noise_multiplier=z):
                square += count / z**2
            case events.ZeroConcentrated(xi=0) | events.TruncatedConcentrated():
                rho, omega = rho + count * part.rho, min(omega, getattr(part, "omega", math.inf))
            case _:
                others.append((_curve(part, relation), count))
    if square:
        others.append((pld.gaussian_curve(math.sqrt(square)), 1))
    if rho:
        others.append((pld.symmetric(lambda e: _tcdp_delta(e, rho, omega), math.sqrt(2 * rho)), 1))
    return others


@functools.lru_cache(maxsize=256)
def _curve(event: Event, relation: Relation) -> pld.Curve:
    renyi.check_sampling(event, relation)
    match event:
        case events.PoissonSampled(q, events.Gaussian(z)) if z > 0:
            return pld.poisson_curve(q, 1 / z)
        case events.SampledWithoutReplacement(event=events.Gaussian(noise_multiplier=z)) if z > 0:
            return pld.without_replacement_curve(event.sample_size / event.source_dataset_size, 1 / z)
        case events.MixtureOfSensitivities():
            return pld.mixture_curve(1 / np.asarray(event.noise_multipliers), np.asarray(event.probabilities))
        case events.ObjectivePerturbation():
            renyi.check_rank(event, relation)
            c0, mu, rank = event.log_determinant, event.mu, event.rank
            return pld.symmetric(
                lambda e: conversions.objective_delta(e, log_determinant=c0, mu=mu, rank=rank), c0 + mu
            )
        case events.ApproximateDp(epsilon=eps, delta=d):
            # δ(e) = d + (1−d)·(e^ε − e^e)₊/(1 + e^ε): randomised response, the worst (ε, δ) pair
            # (Theorem 3.2 of Kairouz, Oh & Viswanath, ICML 2015).
            share = (1 - d) / (1 + math.exp(-eps))
            return pld.symmetric(lambda e: d - share * np.expm1(np.minimum(e - eps, 0)), eps)
        case events.RenyiBound(order=a, rdp=r):
            return pld.symmetric(
                lambda e: np.asarray(conversions.rdp_to_delta(a, r, e)), math.sqrt(2 * r / a) + r
            )
    raise PrivacyConditionError(f"PLD accounting does not know the event {events.describe(event)}")


def _tcdp_delta(e: NDArray[np.float64], rho: float, omega: float) -> NDArray[np.float64]:
    """δ(ε) of a (ρ, ω)-tCDP mechanism: the improved conversion, at a nearly best order for each ε.

    a = 1 + (ε−ρ)/2ρ, cut to (1, ω), is the best order of the classic conversion; any order gives a bound.
    """
    if rho == 0:
        return np.zeros_like(e)
    best = np.ones_like(e)
    for stretch in (0.5, 0.75, 1.0, 1.25):
        a = np.clip(1 + stretch * np.maximum(e - rho, 0) / (2 * rho), 1 + 1e-6, min(omega * (1 - 1e-12), 1e9))
        best = np.minimum(
            best, np.exp(np.minimum((a - 1) * (a * rho - e + np.log1p(-1 / a)) - np.log(a), 0.0))
        )
    return np.minimum.accumulate(best)


# ---------------------------------------------------------------------------------------------------
# RDP


def _epsilon_rdp(event: Event, delta_: float, relation: Relation, orders: Sequence[float] = ORDERS) -> float:
    curve = rdp(event, orders=orders, relation=relation)
    concentrated = (events.ZeroConcentrated, events.TruncatedConcentrated)
    if all(isinstance(part, concentrated) for part in events.elementary(event)):
        return conversions.tcdp_to_dp(*tcdp(event, relation=relation), delta_)
    return min(conversions.rdp_to_dp(a, r, delta_) for a, r in zip(orders, curve, strict=True))


# ---------------------------------------------------------------------------------------------------
# tCDP


def _tcdp_of(event: Event, relation: Relation, omega_total: float) -> tuple[float, float]:
    match event:
        case events.Gaussian(noise_multiplier=z) if z > 0:
            return 1 / (2 * z * z), math.inf
        case events.ZeroConcentrated(rho=rho, xi=0):
            return rho, math.inf
        case events.TruncatedConcentrated(rho=rho, omega=omega):
            return rho, omega
        case events.SampledWithoutReplacement(event=events.Gaussian(noise_multiplier=z)) if z > 0:
            if relation != "replace-one":
                raise RelationError("tCDP amplification by fixed-size sampling holds under replace-one")
            q = event.sample_size / event.source_dataset_size
            result = conversions.tcdp_subsample(rho_s=1 / (2 * z * z), q=q, omega_total=omega_total)
            if not result.ok:
                raise PrivacyConditionError(
                    f"tCDP amplification does not apply: {', '.join(result.fails)} (rate {q:g}, noise {z:g})"
                )
            return result.rho, result.omega
    raise PrivacyConditionError(f"tCDP accounting does not know the event {events.describe(event)}")
