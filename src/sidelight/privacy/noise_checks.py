"""Is the noise that is to be drawn at least the noise that the event accounts for? If not, it is refused.

An event describes one release: a Gaussian one by its noise multiplier, a selection by what its privacy costs.
Everything here is public: scales, sensitivities, relations and types.
"""

from __future__ import annotations

import math
from typing import Any, Literal

import numpy as np

from sidelight.errors import (
    PrivacyConditionError,
)
from sidelight.privacy import events
from sidelight.privacy.correlated import CorrelatedGaussian
from sidelight.privacy.events import Event, Relation

Selection = Literal["exponential", "gumbel"]
_ROUNDING = 1e-9


def check_gaussian(event: Event, *, std: float, sensitivity: float, relation: Relation, dtype: Any) -> None:
    """Refuse a Gaussian release of this standard deviation if its event claims more noise, or a sampling
    that is not accounted under the relation."""
    multiplier = least_multiplier(event)
    if multiplier is None:
        raise PrivacyConditionError(f"{type(event).__name__} does not describe one Gaussian release")
    needed = multiplier * sensitivity
    if not _enough(std, needed):
        raise PrivacyConditionError(
            f"the event claims noise of standard deviation {needed:.6g} for a sensitivity of "
            f"{sensitivity:.6g}, but {std:.6g} was to be drawn"
        )
    _check_range(std, dtype)
    sampled = isinstance(event, events.PoissonSampled), isinstance(event, events.SampledWithoutReplacement)
    if (sampled[0] and relation != "add-or-remove-one") or (sampled[1] and relation != "replace-one"):
        raise PrivacyConditionError(f"{type(event).__name__} is not accounted under {relation!r}")


def check_correlated(event: CorrelatedGaussian, *, std: float, relation: Relation, dtype: Any) -> None:
    """Refuse a step of a run with correlated noise whose draws cannot be made, or whose turns are sampled
    under a relation that does not account for it."""
    if (event.sampling_probability < 1 or event.secret) and relation != "add-or-remove-one":
        raise PrivacyConditionError(f"turns that are sampled are not accounted under {relation!r}")
    _check_range(std, dtype)


def _check_range(std: float, dtype: Any) -> None:
    kind, least, most = _RANGES["float32" in str(dtype)]
    if not least <= std <= most:
        raise PrivacyConditionError(
            f"noise of standard deviation {std:.6g} cannot be drawn in {kind}; rescale the sum, or hold it "
            "in float64"
        )


def _range(kind: type[np.floating[Any]]) -> tuple[str, float, float]:
    """Standard deviations of noise that can be drawn in a type, and its name."""
    limits = np.finfo(kind)
    return str(limits.dtype), float(limits.tiny), float(limits.max) * 2.0**-10


_RANGES = _range(np.float64), _range(np.float32)


def least_multiplier(event: Event) -> float | None:
    """The noise multiplier that the event claims, the least of several; None if it is no Gaussian release."""
    match event:
        case events.Gaussian():
            return float(event.noise_multiplier)
        case events.PoissonSampled() | events.SampledWithoutReplacement():
            return least_multiplier(event.event)
        case events.ZeroConcentrated():
            return 1 / math.sqrt(2 * event.rho)
        case events.MixtureOfSensitivities():
            return min(event.noise_multipliers)
    return None


def check_selection(event: Event, *, scale: float, reach: float, mechanism: Selection) -> None:
    """Refuse a selection whose noise has a smaller scale than its event claims."""
    if mechanism not in ("exponential", "gumbel"):
        raise PrivacyConditionError(f"a selection is 'exponential' or 'gumbel', not {mechanism!r}")
    needed = least_scale(event, reach=reach, mechanism=mechanism)
    if needed is None:
        raise PrivacyConditionError(f"{type(event).__name__} does not describe one selection")
    if not _enough(scale, needed):
        raise PrivacyConditionError(
            f"the event claims a selection with noise of scale {needed:.6g} for scores of range {reach:.6g}, "
            f"but {scale:.6g} was to be drawn"
        )


def least_scale(event: Event, *, reach: float, mechanism: Selection) -> float | None:
    """The scale that a selection needs for its event; None if the event is of something else.

    `reach` is how far one record can move two scores apart. Exponential noise of scale reach/ε is ε-DP
    (McKenna & Sheldon, NeurIPS 2020), and so ε²/2-zCDP (Proposition 1.4 of Bun & Steinke 2016); Gumbel noise
    of scale reach/ε is ε-bounded-range, and so ε-DP and ε²/8-zCDP (Cesar & Rogers, ALT 2021).
    """
    match event:
        case events.ApproximateDp():
            epsilon = float(event.epsilon)
        case events.ZeroConcentrated():
            epsilon = math.sqrt((8 if mechanism == "gumbel" else 2) * event.rho)
        case _:
            return None
    return reach / epsilon if epsilon > 0 else math.inf


def check_perturbation(event: Event, *, std: float, lipschitz: float, relation: Relation) -> None:
    """Refuse a perturbed objective with less noise than its event claims, or of another relation.

    One record's gradient is no longer than `lipschitz`; the sum of gradients then moves by that, or by twice
    that if a record is replaced, in units of the noise: μ of the event.
    """
    if not isinstance(event, events.ObjectivePerturbation):
        raise PrivacyConditionError(f"{type(event).__name__} does not describe a perturbed objective")
    rank = 1 if relation == "add-or-remove-one" else 2
    if event.rank != rank:
        raise PrivacyConditionError(f"an event of rank {event.rank} is not accounted under {relation!r}")
    needed = rank * lipschitz / event.mu
    if not _enough(std, needed):
        raise PrivacyConditionError(
            f"the event claims a perturbation of standard deviation {needed:.6g} for gradients of length "
            f"{lipschitz:.6g}, but {std:.6g} was to be drawn"
        )


def check_sketch(event: Event, *, ridge: float, sensitivity: float, relation: Relation) -> int:
    """The rows of a sketch; refuse one with a smaller ridge than its event claims."""
    if not isinstance(event, events.GaussianSketch):
        raise PrivacyConditionError(f"{type(event).__name__} does not describe a Gaussian sketch")
    reach = sensitivity if relation == "add-or-remove-one" else sensitivity / math.sqrt(2)
    if not _enough(ridge, reach / event.growth):
        raise PrivacyConditionError(
            f"the event claims a ridge of {reach / event.growth:.6g} for records of length {reach:.6g}, but "
            f"it was to be {ridge:.6g}"
        )
    return int(event.rows)


def _enough(scale: float, needed: float) -> bool:
    return math.isfinite(scale) and scale > 0 and scale >= needed * (1 - _ROUNDING)
