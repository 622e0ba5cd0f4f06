"""What events cost (by PLD; RDP and tCDP where a method needs them), and the least noise for a budget.

    epsilon(event, delta=1e-5, relation="add-or-remove-one")
    noise_multiplier(
        epsilon=2, delta=1e-5, sampling_probability=0.01, steps=1000, relation="add-or-remove-one"
    )

`relation` is always said, and an event that is not analyzed under it is refused, with its name. An answer is
an upper bound: PLD rounds losses up, RDP and tCDP are bounds by theorem.

The noise never gives less privacy than asked: it is the least point of a geometric grid (0.01 % apart) at
which the PLD bound is at most ε, so it is also monotone in the budget and the plan. Plain Gaussians are
solved in closed form; else a Rényi bound gives a safe upper end, a coarse PLD finds the crossing by the
secant rule, and the fine PLD settles it.
"""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Literal

import numpy as np
from dp_accounting.privacy_accountant import NeighboringRelation
from dp_accounting.rdp import RdpAccountant
from numpy.typing import NDArray
from scipy.special import gammaln, log_ndtr

from sidelight.errors import (
    InputError,
    PrivacyConditionError,
    PrivacyWarning,
    RelationError,
    fraction,
    positive,
    spelled,
    users_line,
)
from sidelight.privacy import conversions, correlated, events, pld, selections
from sidelight.privacy.allocation import allocation_curve
from sidelight.privacy.events import Event, Relation
from sidelight.privacy.pld import Array, Curve

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
_SMALLEST_DELTA = 1e-16  # a sampled step leaves a mass of 1e-30 out of its grid
_MOST_STEPS = 20_000_000  # sampled steps; a convolution of more takes gigabytes, or a coarse grid
_UP = 1 + 4 * conversions.UNIT  # more than a short sum of positive numbers loses to rounding
_CERTIFICATES = (events.ZeroConcentrated, events.TruncatedConcentrated, events.RenyiBound)


def epsilon(event: Event, *, delta: float, relation: Relation, accountant: Accountant = "pld") -> float:
    """The least ε that this accountant can prove at δ; infinity if none, or if it is above 600.

    "pld" uses the looser Rényi bound if δ is below 1e-16 or there are more than twenty million sampled steps,
    for which its grid is not made.
    """
    fraction("delta", delta)
    events.check_relation(relation)
    event = correlated.reduced(event)
    if accountant == "tcdp":
        rho, omega = tcdp(event, relation=relation)
        return conversions.tcdp_to_dp(rho, omega, delta)
    if accountant == "rdp":
        return _epsilon_rdp(event, delta, relation)
    if isinstance(event, events.BestOf):
        profiled = _best_profile(event, relation)[0] + _most(event, delta / event.expected, relation)
        return min(profiled, _epsilon_rdp(event, delta, relation))
    if accountant not in ("pld", "pld-coarse"):
        raise InputError(f"accountant must be 'pld', 'rdp' or 'tcdp', not {accountant!r}")
    return _epsilon_pld(event, delta, relation, coarse=accountant == "pld-coarse")


def delta(event: Event, *, epsilon: float, relation: Relation) -> float:
    """The least δ that can be proven at ε, by PLD."""
    if math.isnan(epsilon):
        raise InputError("epsilon must be a number, not nan")
    events.check_relation(relation)
    event = correlated.reduced(event)
    if (mu := gdp(event)) is not None:
        return float(conversions.gaussian_delta_bound(epsilon, mu * _UP))
    if isinstance(event, events.BestOf):
        if epsilon < 0:
            return 1.0
        return float(max(side[0] for side in divergences(event, np.array([float(epsilon)]), relation)))
    composed = _curves(event, relation)
    if composed is None:
        return 1.0
    if not composed:
        return max(0.0, -math.expm1(epsilon))
    worse = _delta_pld(composed, min(abs(float(epsilon)), 1e4))  # beyond, δ is as good as flat
    # H_t(P‖Q) = 1 − t + t·H_{1/t}(Q‖P), and each order is the other's reflection.
    return worse if epsilon >= 0 else min(1.0, (worse * math.exp(epsilon) - math.expm1(epsilon)) * _UP**4)


def divergences(event: Event, epsilons: Array, relation: Relation) -> tuple[Array, Array]:
    """Upper bounds on δ at each ε ≥ 0 for both orders of the neighbors: H(P‖Q) and H(Q‖P)."""
    if isinstance(event, events.BestOf):
        kappa, profile = _best_profile(event, relation)
        inside = event.expected * profile(np.maximum(epsilons - kappa, 0.0))
        bound = np.where(epsilons >= kappa, np.minimum(inside, 1.0), 1.0)
        return bound, bound
    composed = _curves(correlated.reduced(event), relation)
    if not composed:
        raise PrivacyConditionError(f"PLD accounting has no curve for {events.describe(event)}")
    if len(composed) == 1 and composed[0][1] == 1:
        return np.asarray(composed[0][0].forward(epsilons)), np.asarray(composed[0][0].backward(epsilons))
    return pld.Composition(tuple(composed)).deltas(epsilons)


def rdp(event: Event, *, orders: Sequence[float], relation: Relation) -> NDArray[np.float64]:
    """D_a for each order; infinity where nothing is known."""
    events.check_relation(relation)
    total = np.zeros(len(orders))
    for part, count in events.elementary(correlated.reduced(event)).items():
        total += count * np.asarray(rdp_of(part, tuple(float(a) for a in orders), relation))
    return total


def tcdp(event: Event, *, relation: Relation, omega_total: float = 0.0) -> tuple[float, float]:
    """(ρ, ω) of a composition; ρ adds and ω takes the minimum (Lemma 2 of Bun et al. 2018)."""
    rho, omega = 0.0, math.inf
    for part, count in events.elementary(correlated.reduced(event)).items():
        part_rho, part_omega = _tcdp_of(part, relation, omega_total)
        rho += count * part_rho
        omega = min(omega, part_omega)
    return rho, omega


@functools.lru_cache(maxsize=256)
def _best_profile(event: events.BestOf, relation: Relation) -> tuple[float, selections.Profile]:
    """κ of a selection, and the profile of its runs: the worst of the candidates, for either order."""

    def profile(epsilons: Array) -> Array:
        sides = [np.maximum(*divergences(one, epsilons, relation)) for one in event.events]
        return np.asarray(np.max(sides, axis=0))

    return selections.tilt(event, profile), profile


def _most(event: events.BestOf, delta_: float, relation: Relation) -> float:
    return max(epsilon(one, delta=delta_, relation=relation) for one in event.events)


# ---------------------------------------------------------------------------------------------------
# PLD


def _epsilon_pld(event: Event, delta_: float, relation: Relation, *, coarse: bool = False) -> float:
    if (mu := gdp(event)) is not None:
        return conversions.gaussian_epsilon(delta_, mu * _UP)
    composed = _curves(event, relation)
    if composed is None:
        return math.inf
    if not composed:
        return 0.0
    if delta_ < _SMALLEST_DELTA or sum(count for _, count in composed) > _MOST_STEPS:
        return _epsilon_rdp(event, delta_, relation)
    if len(composed) == 1 and composed[0][1] == 1:
        bound = _invert(composed[0][0], delta_)
    else:
        bound = _epsilon_composed(frozenset(events.elementary(event).items()), delta_, relation, coarse)
    # A Rényi certificate loses something on its way to a PLD, so both bounds are asked.
    certified = any(isinstance(part, _CERTIFICATES) for part in events.elementary(event))
    return min(bound, _epsilon_rdp(event, delta_, relation)) if certified else bound


def _delta_pld(composed: list[tuple[Curve, int]], epsilon: float) -> float:
    if len(composed) == 1 and composed[0][1] == 1:
        at = np.array([epsilon])
        return float(max(composed[0][0].forward(at)[0], composed[0][0].backward(at)[0]))
    return pld.Composition(tuple(composed)).delta(epsilon)


@functools.lru_cache(maxsize=256)
def _epsilon_composed(
    parts: frozenset[tuple[Event, int]], delta_: float, relation: Relation, coarse: bool
) -> float:
    composed = _curves(events.composed(dict(parts)), relation)
    return pld.Composition(tuple(composed or ()), per_deviation=5 if coarse else 20).epsilon(delta_)


def _invert(curve: Curve, delta_: float) -> float:
    """ε of a single release, from its curve directly."""

    def private(e: float) -> bool:
        at = np.array([e])
        return bool(max(curve.forward(at)[0], curve.backward(at)[0]) <= delta_)

    if not private(pld.LARGEST_LOSS):
        return math.inf
    return conversions._first_true(private, 0.0, 1.0)


def gdp(event: Event) -> float | None:
    """μ of a composition of plain Gaussians, which compose exactly; None for anything else."""
    squares = []
    for part, count in events.elementary(correlated.reduced(event)).items():
        if not (isinstance(part, events.Gaussian) and part.noise_multiplier > 0):
            return None
        squares.append(count / part.noise_multiplier**2)
    return math.sqrt(math.fsum(squares)) if squares else None


def _curves(event: Event, relation: Relation) -> list[tuple[Curve, int]] | None:
    """The curves of a composition; None if something in it has no bound.

    What composes exactly is merged first: plain Gaussians by μ², concentrated events by ρ and ω.
    """
    squares, rhos, omega = [], [], math.inf
    others: list[tuple[Curve, int]] = []
    for part, count in events.elementary(event).items():
        match part:
            case events.NonPrivate() | events.Gaussian(noise_multiplier=0):
                return None
            case events.Gaussian(noise_multiplier=z):
                squares.append(count / z**2)
            case events.ZeroConcentrated(xi=0) | events.TruncatedConcentrated():
                rhos.append(count * part.rho)
                omega = min(omega, getattr(part, "omega", math.inf))
            case events.GaussianSketch():
                others += [(curve, count) for curve in _sketch_curves(part, relation)]
            case _:
                others.append((_curve(part, relation), count))
    if squares:
        others.append((pld.gaussian_curve(math.sqrt(math.fsum(squares)) * _UP), 1))
    if (rho := math.fsum(rhos)) > 0:
        others.append((pld.tcdp_curve(rho * _UP, omega), 1))
    return others


@functools.lru_cache(maxsize=256)
def _curve(event: Event, relation: Relation) -> Curve:
    check_sampling(event, relation)
    match event:
        case events.PoissonSampled(q, events.Gaussian(z)) if z > 0:
            return pld.poisson_curve(q, 1 / z * _UP)
        case events.SampledWithoutReplacement(event=events.Gaussian(noise_multiplier=z)) if z > 0:
            return pld.without_replacement_curve(event.sample_size / event.source_dataset_size, 1 / z * _UP)
        case events.AllocatedGaussian(noise_multiplier=z, bins=bins):
            return allocation_curve(1 / z * _UP, bins)
        case events.MixtureOfSensitivities():
            mus = 1 / np.asarray(event.noise_multipliers) * _UP
            return pld.mixture_curve(mus, np.asarray(event.probabilities))
        case events.ObjectivePerturbation():
            check_rank(event, relation)
            return pld.objective_curve(event.log_determinant, event.mu, event.rank)
        case events.ApproximateDp(epsilon=eps, delta=d):
            return pld.approximate_curve(eps, d)
        case events.BestOf():
            bound: pld.Divergence = lambda e: divergences(event, e, relation)[0]  # noqa: E731
            return pld.symmetric(bound, _best_profile(event, relation)[0])
        case events.RenyiBound(order=a, rdp=r):
            return pld.renyi_curve(a, r)
    raise PrivacyConditionError(f"PLD accounting does not know the event {events.describe(event)}")


@functools.lru_cache(maxsize=256)
def _sketch_curves(event: events.GaussianSketch, relation: Relation) -> tuple[Curve, ...]:
    """One pair; under replace-one a record is added to one sum and taken from the other: the pair and its
    mirror image."""
    curve = pld.sketch_curve(event.rows, event.growth * _UP)
    if relation == "add-or-remove-one":
        return (curve,)
    return curve, Curve(curve.backward, curve.forward, curve.deviation)


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


# ---------------------------------------------------------------------------------------------------
# Rényi divergences of single events: one formula per mechanism, as `rdp` composes them


@functools.lru_cache(maxsize=4096)
def rdp_of(event: Event, orders: tuple[float, ...], relation: Relation) -> tuple[float, ...]:
    a = np.asarray(orders)
    match event:
        case events.AllocatedGaussian(noise_multiplier=z):
            check_sampling(event, relation)
            return tuple(a / (2 * z * z))  # that of a place which is known
        case events.Gaussian(noise_multiplier=z):
            return tuple(a / (2 * z * z) if z > 0 else np.full(a.size, np.inf))
        case events.ZeroConcentrated(rho=rho, xi=xi):
            return tuple(xi + rho * a)
        case events.TruncatedConcentrated(rho=rho, omega=omega):
            return tuple(np.where(a < omega, rho * a, np.inf))
        case events.RenyiBound(order=order, rdp=r):
            return tuple(np.where(a <= order, r, np.inf))  # D_a grows with a
        case events.ApproximateDp(epsilon=eps, delta=d):
            if d > 0:
                return (math.inf,) * a.size
            return tuple(np.minimum(a * conversions.pure_dp_to_zcdp(eps), eps))
        case events.MixtureOfSensitivities():
            mu = 1 / np.asarray(event.noise_multipliers)
            return tuple(
                _log_mean_exp(order * (order - 1) * mu**2 / 2, event.probabilities) / (order - 1)
                for order in a
            )
        case events.BestOf():
            own = [rdp(one, orders=orders, relation=relation) for one in event.events]
            return tuple(selections.renyi(event, a, np.max(own, axis=0)))
        case events.ObjectivePerturbation():
            check_rank(event, relation)
            return tuple(_objective_rdp(event, order) for order in a)
        case events.GaussianSketch():
            return tuple(_sketch_rdp(event, order, relation) for order in a)
        case events.PoissonSampled(q, events.Gaussian(z)) if z > 0:
            if relation == "add-or-remove-one":
                return tuple(_poisson_rdp(q, z, order) for order in orders)
        case events.NonPrivate():
            return (math.inf,) * a.size
    return _rdp_by_dp_accounting(event, orders, relation)


def _poisson_rdp(q: float, z: float, order: float) -> float:
    """D_a of the Poisson-sampled Gaussian under add-or-remove-one.

    Section 3.3 of Mironov, Talwar & Zhang (arXiv:1908.10530v1) at integer orders. (a−1)D_a is convex in a
    and 0 at a = 1, so between integers the chord is a bound.
    """
    low = math.floor(order)
    upper = _poisson_log_moment(q, z, low + 1) if order > low else 0.0
    lower = _poisson_log_moment(q, z, low) if low > 1 else 0.0
    return ((low + 1 - order) * lower + (order - low) * upper) / (order - 1)


@functools.lru_cache(maxsize=4096)
def _poisson_log_moment(q: float, z: float, a: int) -> float:
    """log Σ_k C(a,k)(1−q)^{a−k} q^k e^{k(k−1)/2z²}."""
    k = np.arange(a + 1)
    terms = gammaln(a + 1) - gammaln(k + 1) - gammaln(a - k + 1) + (a - k) * math.log1p(-q) + k * math.log(q)
    # Σ of the plain binomial terms is 1: adding expm1 of the exponent keeps tiny moments accurate.
    growth = k * (k - 1) / (2 * z * z)
    if growth[-1] < 600:  # no overflow
        return float(np.log1p(np.exp(terms) @ np.expm1(growth)))
    top = float((terms + growth).max())
    return top + math.log(float(np.exp(terms + growth - top).sum()))


def _rdp_by_dp_accounting(event: Event, orders: tuple[float, ...], relation: Relation) -> tuple[float, ...]:
    neighbors = {
        "add-or-remove-one": NeighboringRelation.ADD_OR_REMOVE_ONE,
        "replace-one": NeighboringRelation.REPLACE_ONE,
    }
    accountant = RdpAccountant(list(orders), neighbors[relation])
    if not accountant.supports(event):
        check_sampling(event, relation)
        raise PrivacyConditionError(
            f"RDP accounting does not know the event {events.describe(event)} under {relation}"
        )
    return tuple(_one_order(event, order, neighbors[relation]) for order in orders)


def _one_order(event: Event, order: float, neighbors: NeighboringRelation) -> float:
    try:
        return float(RdpAccountant([order], neighbors).compose(event).rdp[0])
    except ValueError:  # its bound for sampling without replacement takes logs of rounded-off differences
        return math.inf


def _log_mean_exp(values: NDArray[np.float64], weights: Sequence[float]) -> float:
    top = float(values.max())
    return top + math.log(float(np.asarray(weights) @ np.exp(values - top)))


def _objective_rdp(event: events.ObjectivePerturbation, order: float) -> float:
    """D_a ≤ c0 + μ²/2 + log E e^{(a−1)μR}/(a−1), with R = |Z| or Rayleigh (METHODS 7.3)."""
    t = (order - 1) * event.mu
    log_phi = float(log_ndtr(t))
    if event.rank == 1:  # E e^{t|Z|} = 2 e^{t²/2} Φ(t)
        moment = t * t / 2 + math.log(2) + log_phi
    else:  # E e^{tR} = 1 + t√(2π) e^{t²/2} Φ(t)
        moment = float(np.logaddexp(0.0, math.log(t) + 0.5 * math.log(2 * math.pi) + t * t / 2 + log_phi))
    return float(event.log_determinant + event.mu**2 / 2 + moment / (order - 1))


def _sketch_rdp(event: events.GaussianSketch, order: float, relation: Relation) -> float:
    """D_a of N(0, 1+w) from N(0, 1) and the other way round, k times (Gil, Alajaji & Linder 2013, Table 2).

    The first is infinite from order 1 + 1/w on. The larger of them, or for a record replaced their sum.
    """
    w, log = event.growth, math.log1p(event.growth)
    if (order - 1) * w >= 1:
        return math.inf
    added = -(log + math.log1p(-(order - 1) * w) / (order - 1)) / 2
    removed = (log + (log - math.log1p(order * w)) / (order - 1)) / 2
    return event.rows * (max(added, removed) if relation == "add-or-remove-one" else added + removed)


def check_sampling(event: Event, relation: Relation) -> None:
    """Each way of sampling is analyzed under one relation."""
    if isinstance(event, events.PoissonSampled) and relation != "add-or-remove-one":
        raise RelationError(
            "Poisson sampling belongs to add-or-remove-one; sample a fixed size for replace-one"
        )
    if isinstance(event, events.AllocatedGaussian) and relation != "add-or-remove-one":
        raise RelationError("secret places are accounted under add-or-remove-one")
    if isinstance(event, events.SampledWithoutReplacement) and relation != "replace-one":
        raise RelationError(
            "fixed-size sampling belongs to replace-one; sample Poisson for add-or-remove-one"
        )


def check_rank(event: events.ObjectivePerturbation, relation: Relation) -> None:
    if (event.rank == 1) != (relation == "add-or-remove-one"):
        raise RelationError(
            f"this objective perturbation was analyzed under "
            f"{'add-or-remove-one' if event.rank == 1 else 'replace-one'}, not {relation}"
        )


# ---------------------------------------------------------------------------------------------------
# the least noise for a plan and a budget


Sampling = Literal["poisson", "fixed-size"]

_GRID = 1e-4  # relative distance of two neighboring answers
_LEAST, _MOST = 0.02, 1e9
_LARGEST_EPSILON = 600.0
_BRACKET_ORDERS = (1.5, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 256, 512, 1024, 2048, 4096, 8192)


def default_delta(n: int) -> float:
    """min(1e-5, 1/(100·n)): of n records, δ allows 0.01 on average to be published (docs/officers.md)."""
    return min(1e-5, 0.01 / n)


def resolve_delta(delta: float | None, n: int) -> float:
    """The user's δ for n private records, with a warning from 1/n on; None takes `default_delta`."""
    if delta is None:
        return default_delta(n)
    fraction("delta", delta)
    if delta >= 1 / n:
        name = spelled("delta", "--delta")
        warnings.warn(
            f"{name} = {delta:.3g} is at least 1/n = {1 / n:.3g}, for n = {n:,} private records: "
            f"publishing one record at random would satisfy it. Pass a smaller {name} or omit it",
            PrivacyWarning,
            stacklevel=users_line(),
        )
    return float(delta)


@functools.lru_cache(maxsize=1024)
def noise_multiplier(
    *,
    epsilon: float,
    delta: float,
    sampling_probability: float = 1.0,
    steps: int = 1,
    relation: Relation,
    sampling: Sampling | None = None,
) -> float:
    """The least noise multiplier (std / sensitivity under `relation`) for `steps` equal releases.

    `sampling` follows the relation if not given: Poisson under add-or-remove-one, fixed size without
    replacement under replace-one. Multipliers below 0.02 are not considered: there the sampling alone
    would give the guarantee, which needs a careless δ.
    """
    if not epsilon <= _LARGEST_EPSILON:
        raise InputError(f"epsilon must be at most {_LARGEST_EPSILON:g}: beyond that, nothing is promised")
    if int(steps) != steps or steps < 1:
        raise InputError(f"steps must be a whole number of at least 1, not {steps!r}")
    make = step_event(sampling_probability=sampling_probability, relation=relation, sampling=sampling)
    whole = math.sqrt(steps) / conversions.gdp_mu(epsilon, delta) * (1 + 1e-12)
    if sampling_probability == 1:
        return whole
    # Sampling never hurts, so the noise of unsampled steps is enough.
    return least(
        lambda z: events.repeat(make(z), int(steps)),
        epsilon=epsilon,
        delta=delta,
        relation=relation,
        enough=whole,
    )


def step_event(
    *, sampling_probability: float, relation: Relation, sampling: Sampling | None = None
) -> Callable[[float], Event]:
    """The event of one step as a function of its noise multiplier."""
    events.check_relation(relation)
    expected: Sampling = "poisson" if relation == "add-or-remove-one" else "fixed-size"
    if not 0 < sampling_probability <= 1:
        raise InputError(f"sampling_probability must be in (0, 1], not {sampling_probability:g}")
    if sampling_probability < 1 and (sampling or expected) != expected:
        raise PrivacyConditionError(f"{sampling} sampling is not accounted under {relation}; use {expected}")
    if expected == "poisson" or sampling_probability == 1:
        return lambda z: events.poisson(sampling_probability, z)
    rate = Fraction(sampling_probability).limit_denominator(10**9)
    return lambda z: events.fixed_size(rate.denominator, rate.numerator, z)


def least(
    events_of: Callable[[float], Event],
    *,
    epsilon: float,
    delta: float,
    relation: Relation,
    enough: float = _MOST,
) -> float:
    """The least noise multiplier z on the grid for which the PLD bound of events_of(z) is at most ε.

    `enough` is a multiplier that is known to suffice; it only saves time.
    """
    positive("epsilon", epsilon)
    fraction("delta", delta)
    top = min(_HIGH, max(_LOW + 1, math.ceil(math.log(enough) / _GRID)))
    start = _renyi_bracket(events_of, top, epsilon, delta, relation)
    guess = _crossing(_cost(events_of, delta, relation, "pld-coarse"), start, epsilon)
    return _at(_settle(_cost(events_of, delta, relation, "pld"), guess, epsilon))


def _cost(
    events_of: Callable[[float], Event], delta: float, relation: Relation, accountant: Accountant
) -> Callable[[int], float]:
    """ε of the events at a point of the grid, computed once for each."""
    return functools.lru_cache(maxsize=None)(
        lambda k: epsilon(events_of(_at(k)), delta=delta, relation=relation, accountant=accountant)
    )


def _at(k: int) -> float:
    return math.exp(k * _GRID)


_LOW, _HIGH = math.ceil(math.log(_LEAST) / _GRID), math.floor(math.log(_MOST) / _GRID)


def _renyi_bracket(
    events_of: Callable[[float], Event], high: int, epsilon: float, delta: float, relation: Relation
) -> int:
    """A grid index at which RDP already proves the budget: the PLD answer is not above it."""
    low, top = _LOW, high

    def enough(k: int) -> bool:
        # Fewer orders do while a bracket is all that is wanted.
        return _epsilon_rdp(events_of(_at(k)), delta, relation, _BRACKET_ORDERS) <= epsilon

    try:
        if not enough(high):
            return high
        while high - low > 1000:
            middle = (low + high) // 2
            low, high = (low, middle) if enough(middle) else (middle, high)
    except PrivacyConditionError:  # no Rényi curve for some event: search the whole range
        return top
    return high


def _crossing(cost: Callable[[int], float], high: int, epsilon: float) -> int:
    """Where cost(k) falls to ε, by the Illinois rule on log ε, between the low end and `high`."""
    low = max(_LOW, high - 2000)
    while low > _LOW and cost(low) <= epsilon:
        low, high = max(_LOW, low - 4 * (high - low)), low
    if cost(low) <= epsilon:
        return low
    f_low, f_high = _gap(cost(low), epsilon), _gap(cost(high), epsilon)
    side = 0
    while high - low > 3:
        share = f_low / (f_low - f_high) if math.isfinite(f_low) and f_low != f_high else 0.5
        middle = min(max(low + round((high - low) * share), low + 1), high - 1)
        f = _gap(cost(middle), epsilon)
        if abs(f) < 2e-5:
            return middle
        if f > 0:
            low, f_low = middle, f
            f_high, side = (f_high / 2 if side == 1 else f_high), 1
        else:
            high, f_high = middle, f
            f_low, side = (f_low / 2 if side == -1 else f_low), -1
    return high


def _gap(cost: float, epsilon: float) -> float:
    return math.log(max(cost, 1e-300) / epsilon) if math.isfinite(cost) else math.inf


def _settle(cost: Callable[[int], float], k: int, epsilon: float) -> int:
    """The least index near k at which the fine bound holds."""
    step = 1
    if cost(k) <= epsilon:
        good = k
        while good - step >= _LOW and cost(good - step) <= epsilon:
            good, step = good - step, step * 2
        bad = max(good - step, _LOW - 1)
    else:
        bad = k
        while cost(min(bad + step, _HIGH)) > epsilon:
            if bad + step >= _HIGH:
                raise PrivacyConditionError(
                    "no amount of noise meets this budget; ask for a larger epsilon or delta"
                )
            bad, step = bad + step, step * 2
        good = min(bad + step, _HIGH)
    while good - bad > 1:
        middle = (good + bad) // 2
        good, bad = (middle, bad) if cost(middle) <= epsilon else (good, middle)
    return good
