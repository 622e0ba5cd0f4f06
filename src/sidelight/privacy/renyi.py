"""Rényi divergences of single events: one formula per mechanism, as `accountants.rdp` composes them."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import numpy as np
from dp_accounting.privacy_accountant import NeighboringRelation
from dp_accounting.rdp import RdpAccountant
from numpy.typing import NDArray
from scipy.special import gammaln, log_ndtr

from sidelight.errors import PrivacyConditionError, RelationError
from sidelight.privacy import conversions, events
from sidelight.privacy.events import Event, Relation


@functools.lru_cache(maxsize=4096)
def rdp_of(event: Event, orders: tuple[float, ...], relation: Relation) -> tuple[float, ...]:
    a = np.asarray(orders)
    match event:
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
        case events.ObjectivePerturbation():
            check_rank(event, relation)
            return tuple(_objective_rdp(event, order) for order in a)
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
    neighbours = {
        "add-or-remove-one": NeighboringRelation.ADD_OR_REMOVE_ONE,
        "replace-one": NeighboringRelation.REPLACE_ONE,
    }
    accountant = RdpAccountant(list(orders), neighbours[relation])
    if not accountant.supports(event):
        check_sampling(event, relation)
        raise PrivacyConditionError(
            f"RDP accounting does not know the event {events.describe(event)} under {relation}"
        )
    return tuple(_one_order(event, order, neighbours[relation]) for order in orders)


def _one_order(event: Event, order: float, neighbours: NeighboringRelation) -> float:
    try:
        return float(RdpAccountant([order], neighbours).compose(event).rdp[0])
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


def check_sampling(event: Event, relation: Relation) -> None:
    """Each way of sampling is analysed under one relation."""
    if isinstance(event, events.PoissonSampled) and relation != "add-or-remove-one":
        raise RelationError(
            "Poisson sampling belongs to add-or-remove-one; sample a fixed size for replace-one"
        )
    if isinstance(event, events.SampledWithoutReplacement) and relation != "replace-one":
        raise RelationError(
            "fixed-size sampling belongs to replace-one; sample Poisson for add-or-remove-one"
        )


def check_rank(event: events.ObjectivePerturbation, relation: Relation) -> None:
    if (event.rank == 1) != (relation == "add-or-remove-one"):
        raise RelationError(
            f"this objective perturbation was analysed under "
            f"{'add-or-remove-one' if event.rank == 1 else 'replace-one'}, not {relation}"
        )
