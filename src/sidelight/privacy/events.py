"""Events: what a mechanism performs, apart from what it costs; and the samplers, which emit the event that
they perform.

The vocabulary is dp-accounting's (`dp_event`), with eight events of ours for mechanisms that it does not
know. One convention holds for every event in sidelight:

    noise_multiplier = standard deviation of the noise on the sum / sensitivity of that sum
                       *under the relation that is accounted*.

So a sum of rows clipped to C, released with standard deviation s, is `Gaussian(s / C)` under
add-or-remove-one and `Gaussian(s / 2C)` under replace-one. (dp-accounting's own PLD accountant counts a
replaced record in units of C; `accountants` translates.)
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol, get_args

import attr
import numpy as np
from dp_accounting import dp_event
from numpy.typing import NDArray

from sidelight.arrays import Json
from sidelight.errors import InputError, RelationError, positive
from sidelight.numbers import plain_up
from sidelight.privacy import correlated, selections
from sidelight.privacy.noise import Noise

Relation = Literal["add-or-remove-one", "replace-one"]
RELATIONS: tuple[Relation, ...] = get_args(Relation)

Event = dp_event.DpEvent
Gaussian = dp_event.GaussianDpEvent
PoissonSampled = dp_event.PoissonSampledDpEvent
SampledWithoutReplacement = dp_event.SampledWithoutReplacementDpEvent
SelfComposed = dp_event.SelfComposedDpEvent
Composed = dp_event.ComposedDpEvent
ZeroConcentrated = dp_event.ZCDpEvent
NoOp = dp_event.NoOpDpEvent
NonPrivate = dp_event.NonPrivateDpEvent
ApproximateDp = correlated.ApproximateDp
CorrelatedGaussian = correlated.CorrelatedGaussian
AllocatedGaussian = correlated.AllocatedGaussian
BestOf = selections.BestOf


def _floats(values: Iterable[float]) -> tuple[float, ...]:
    return tuple(float(value) for value in values)


@attr.define(frozen=True, slots=False)
class MixtureOfSensitivities(dp_event.DpEvent):
    """One Gaussian release whose sensitivity is Δ_j with probability q_j (RSGD-AR, one shuffled pass plan).

    `noise_multipliers[j]` is std/Δ_j. The index j may be published: the bound
    δ(ε) = Σ_j q_j δ_G(ε; Δ_j/std) is attained when it is (Proposition 3 of Chen, Lee & Kifer, AISTATS 2019,
    with joint convexity of the hockey-stick divergence instead of its Rényi step).
    """

    noise_multipliers: tuple[float, ...] = attr.ib(converter=_floats)
    probabilities: tuple[float, ...] = attr.ib(converter=_floats)

    def __attrs_post_init__(self) -> None:
        if len(self.noise_multipliers) != len(self.probabilities) or not self.probabilities:
            raise InputError("a mixture needs as many probabilities as noise multipliers, and at least one")
        if min(self.probabilities) < 0 or abs(math.fsum(self.probabilities) - 1) > 1e-9:
            raise InputError("the probabilities of a mixture must be non-negative and sum to 1")
        if min(self.noise_multipliers) <= 0:
            raise InputError("the noise multipliers of a mixture must be positive")


@attr.define(frozen=True, slots=False)
class TruncatedConcentrated(dp_event.DpEvent):
    """A (ρ, ω)-tCDP mechanism: D_a ≤ ρa for every order 1 < a < ω (Bun et al. 2018, Definition 1)."""

    rho: float = attr.ib(validator=attr.validators.ge(0))
    omega: float = attr.ib(validator=attr.validators.gt(1))


@attr.define(frozen=True, slots=False)
class RenyiBound(dp_event.DpEvent):
    """D_a ≤ rdp at the one order a: what a fixed-order Rényi filter certifies for an adaptive run."""

    order: float = attr.ib(validator=attr.validators.gt(1))
    rdp: float = attr.ib(validator=attr.validators.ge(0))


@attr.define(frozen=True, slots=False)
class ObjectivePerturbation(dp_event.DpEvent):
    """The exact minimizer of a linearly perturbed, regularized GLM objective (METHODS 7.3).

    Its privacy loss is at most c0 + μ²/2 + μ·R with R = |Z| (`rank=1`, one record added or removed,
    μ = L/σ_b) or R Rayleigh (`rank=2`, one record replaced, μ = 2L/σ_b), and c0 = log(1 + β/Λ).
    """

    log_determinant: float = attr.ib(validator=attr.validators.ge(0))
    mu: float = attr.ib(validator=attr.validators.gt(0))
    rank: int = attr.ib(validator=attr.validators.in_((1, 2)))


@attr.define(frozen=True, slots=False)
class GaussianSketch(dp_event.DpEvent):
    """`rows` draws from N(0, Σ), where a record that is added to Σ multiplies it by at most 1 + growth.

    A record adds v vᵀ to Σ, so `growth` bounds vᵀΣ⁻¹v, Σ without the record. Added or removed,
    N(0, 1 + growth) and N(0, 1), each `rows` times, dominate; one replaced is one of each (METHODS 26).
    """

    rows: int = attr.ib(validator=attr.validators.ge(1))
    growth: float = attr.ib(validator=attr.validators.gt(0))


# ---------------------------------------------------------------------------------------------------
# building


def gaussian(noise_multiplier: float) -> Event:
    """A Gaussian release of all records."""
    return Gaussian(_positive("noise_multiplier", noise_multiplier))


def poisson(sampling_probability: float, noise_multiplier: float) -> Event:
    """A Gaussian release of a Poisson sample; sampling with probability 1 is no sampling."""
    q = _positive("sampling_probability", sampling_probability)
    if q > 1:
        raise InputError(f"sampling_probability must be in (0, 1], not {q:g}")
    inner = gaussian(noise_multiplier)
    return inner if q == 1 else PoissonSampled(q, inner)


def fixed_size(m: int, s: int, noise_multiplier: float) -> Event:
    """A Gaussian release of s of m records, drawn uniformly without replacement."""
    if not 1 <= s <= m:
        raise InputError(f"a fixed-size batch needs 1 <= size <= records, not size={s} of {m}")
    inner = gaussian(noise_multiplier)
    return inner if s == m else SampledWithoutReplacement(m, s, inner)


def repeat(event: Event, count: int) -> Event:
    """`count` independent runs of the same event."""
    if count < 0:
        raise InputError(f"an event cannot be repeated {count} times")
    if count == 0:
        return NoOp()
    return event if count == 1 else SelfComposed(event, int(count))


def compose(*events: Event) -> Event:
    """Several events, one after the other."""
    if not events:
        return NoOp()
    return events[0] if len(events) == 1 else Composed(tuple(events))  # type: ignore[arg-type]  # hashable


def elementary(event: Event) -> Counter[Event]:
    """How often each elementary event occurs in a composition."""
    counts: Counter[Event] = Counter()
    for part, count in _walk(event, 1):
        counts[part] += count
    return counts


def releases(event: Event) -> int:
    """How many releases a plan is made of; a run with correlated noise has one in each step."""
    return sum(
        count * (part.steps if isinstance(part, CorrelatedGaussian) else 1)
        for part, count in elementary(event).items()
    )


def composed(counts: Mapping[Event, int]) -> Event:
    """The composition in which each event occurs that often: what `elementary` takes apart."""
    return compose(*(repeat(event, count) for event, count in counts.items()))


def _walk(event: Event, count: int) -> Iterator[tuple[Event, int]]:
    if isinstance(event, NoOp) or count == 0:
        return
    if isinstance(event, SelfComposed):
        yield from _walk(event.event, count * event.count)
    elif isinstance(event, Composed):
        for part in event.events:
            yield from _walk(part, count)
    else:
        yield event, count


def check_relation(relation: str) -> Relation:
    """The relation, or an error that lists the two there are."""
    if relation not in RELATIONS:
        raise RelationError(f"relation must be 'add-or-remove-one' or 'replace-one', not {relation!r}")
    return relation


def _positive(name: str, value: float) -> float:
    value = float(value)
    positive(name, value)
    return value


# ---------------------------------------------------------------------------------------------------
# readable JSON

_NAMES: dict[str, type[Event]] = {
    "gaussian": Gaussian,
    "poisson-sampled": PoissonSampled,
    "sampled-without-replacement": SampledWithoutReplacement,
    "repeated": SelfComposed,
    "composed": Composed,
    "zcdp": ZeroConcentrated,
    "laplace": dp_event.LaplaceDpEvent,
    "nothing": NoOp,
    "non-private": NonPrivate,
    "mixture-of-sensitivities": MixtureOfSensitivities,
    "tcdp": TruncatedConcentrated,
    "renyi-bound": RenyiBound,
    "approximate-dp": ApproximateDp,
    "objective-perturbation": ObjectivePerturbation,
    "gaussian-sketch": GaussianSketch,
    "correlated-gaussian": CorrelatedGaussian,
    "allocated-gaussian": AllocatedGaussian,
    "best-of": BestOf,
}
_KINDS = {kind: name for name, kind in _NAMES.items()}


def to_json(event: Event) -> Json:
    """An event as a dictionary that json.dumps can write and a person can read."""
    name = _KINDS.get(type(event))
    if name is None:
        raise InputError(f"{type(event).__name__} is not an event that sidelight can store")
    out: Json = {"kind": name}
    for field in attr.fields(type(event)):
        value = getattr(event, field.name)
        if isinstance(value, Event):
            value = to_json(value)
        elif isinstance(value, list | tuple):
            value = [to_json(v) if isinstance(v, Event) else v for v in value]
        elif value is not None and not isinstance(value, int):
            value = float(value)
        if isinstance(value, float) and math.isinf(value):
            value = "infinity"
        out[field.name] = value
    return out


def from_json(data: Json) -> Event:
    """The event that `to_json` wrote."""
    try:
        kind = _NAMES[data["kind"]]
        names = {field.name for field in attr.fields(kind)}
        if set(data) - {"kind"} != names:
            raise InputError(f"an event of kind {data['kind']!r} has the fields {sorted(names)}")
        return kind(**{name: _field(name, data[name]) for name in names})
    except InputError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InputError("this is not an event that sidelight wrote") from error


def _field(name: str, value: Any) -> object:
    """One field, of the type that its name asks for."""
    if name == "event":
        return from_json(value)
    if name == "events":
        return tuple(from_json(part) for part in value)
    if name in ("noise_multipliers", "probabilities", "coefficients"):
        return tuple(float(part) for part in value)
    if value == "infinity":
        return math.inf
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InputError(f"{name} of an event must be a number")
    return value


def describe(event: Event) -> str:
    """In one readable line: '1,000 × Poisson(q=0.01) of Gaussian(noise multiplier 1)'."""
    parts = [
        f"{count:,} × {_phrase(part)}" if count > 1 else _phrase(part)
        for part, count in elementary(event).items()
    ]
    return ", then ".join(parts) or "nothing"


def _phrase(event: Event) -> str:
    match event:
        case Gaussian():
            return f"Gaussian(noise multiplier {event.noise_multiplier:.6g})"
        case PoissonSampled():
            return f"Poisson(q={event.sampling_probability:.6g}) of {_phrase(event.event)}"
        case SampledWithoutReplacement():
            inner = _phrase(event.event)
            return f"{event.sample_size:,} of {event.source_dataset_size:,} without replacement, {inner}"
        case ZeroConcentrated():
            return f"zCDP(rho={plain_up(event.rho, 6)})"
        case TruncatedConcentrated():
            return f"tCDP(rho={event.rho:.6g}, omega={event.omega:.6g})"
        case RenyiBound():
            return f"Rényi(order {event.order:g}, at most {event.rdp:.6g})"
        case ApproximateDp():
            return f"DP(epsilon={plain_up(event.epsilon, 6)}, delta={plain_up(event.delta, 3)})"
        case MixtureOfSensitivities():
            low, high = min(event.noise_multipliers), max(event.noise_multipliers)
            count = len(event.probabilities)
            return f"Gaussian with one of {count} sensitivities (multipliers {low:.6g} to {high:.6g})"
        case ObjectivePerturbation():
            return f"objective perturbation(mu={event.mu:.6g}, log-determinant {event.log_determinant:.6g})"
        case GaussianSketch():
            return f"Gaussian sketch({event.rows} rows, a record adds at most {event.growth:.6g})"
        case CorrelatedGaussian():
            return _correlated(event)
        case AllocatedGaussian():
            return f"one of {event.bins:,} Gaussian(noise multiplier {event.noise_multiplier:.6g}), secretly"
        case BestOf():
            each = " or ".join(dict.fromkeys(describe(one) for one in event.events))
            return f"the best of {event.expected:.3g} runs on average (shape {event.shape:g}) of {each}"
        case NonPrivate():
            return "a non-private release"
    return type(event).__name__


def _correlated(event: CorrelatedGaussian) -> str:
    kind = "banded inverse" if event.inverse else "bands"
    who = "every record" if event.sampling_probability == 1 else f"q={event.sampling_probability:.6g}"
    who += ", places secret" if event.secret else ""
    full = f", batches full with probability {plain_up(event.overflow, 3)} at most" if event.overflow else ""
    return (
        f"{event.steps:,} steps of correlated noise({len(event.coefficients)} {kind}, noise multiplier "
        f"{event.noise_multiplier:.6g}; {event.turns:,} turns, {event.separation:,} steps apart, {who}{full})"
    )


# ---------------------------------------------------------------------------------------------------
# samplers: which private records take part in a step, and the event that this makes
#
# A sampler draws from the cryptographic source alone, and says itself what it performed, so that nothing else
# can be accounted. Drawing costs time in proportion to the batch, not to the number of records. Shuffled
# epochs are neither Poisson nor fixed-size sampling and are not offered.


Indices = NDArray[np.int64]


class Sampler(Protocol):
    """One way to choose the records of a step."""

    @property
    def relation(self) -> Relation:
        """The neighboring relation under which `event` is accounted."""

    def indices(self, n: int, noise: Noise) -> Indices | None:
        """The records of one step, ascending and distinct; None stands for all of them."""

    def event(self, n: int, noise_multiplier: float) -> Event:
        """What one step performs. noise_multiplier = std of the noise on the sum / its sensitivity."""

    def expected_batch_size(self, n: int) -> float:
        """The public constant to divide a sum by; never the realised batch size."""


@dataclass(frozen=True)
class Poisson:
    """Each record independently with probability q. Accounted under add-or-remove-one."""

    sampling_probability: float
    relation: ClassVar[Relation] = "add-or-remove-one"

    def __post_init__(self) -> None:
        if not (math.isfinite(self.sampling_probability) and 0 < self.sampling_probability <= 1):
            raise InputError(f"sampling_probability must be in (0, 1], not {self.sampling_probability!r}")

    def indices(self, n: int, noise: Noise) -> Indices:
        # A binomial count, then that many distinct records uniformly: the same law as n coins.
        generator = noise.generator
        return distinct(n, int(generator.binomial(n, self.sampling_probability)), generator)

    def event(self, n: int, noise_multiplier: float) -> Event:
        return poisson(self.sampling_probability, noise_multiplier)

    def expected_batch_size(self, n: int) -> float:
        return self.sampling_probability * n


@dataclass(frozen=True)
class FixedSize:
    """`size` of the n records, uniformly without replacement. Accounted under replace-one."""

    size: int
    relation: ClassVar[Relation] = "replace-one"

    def __post_init__(self) -> None:
        if int(self.size) != self.size or self.size < 1:
            raise InputError(f"size must be an integer of at least 1, not {self.size!r}")

    def indices(self, n: int, noise: Noise) -> Indices:
        self._check(n)
        return distinct(n, int(self.size), noise.generator)

    def event(self, n: int, noise_multiplier: float) -> Event:
        self._check(n)
        return fixed_size(n, int(self.size), noise_multiplier)

    def expected_batch_size(self, n: int) -> float:
        self._check(n)
        return float(self.size)

    def _check(self, n: int) -> None:
        if self.size > n:
            raise InputError(
                f"a batch of {self.size:,} was asked for, and there are {n:,} records; lower size"
            )


@dataclass(frozen=True)
class FullBatch:
    """Every record in every step; nothing is copied. Accounted under either relation."""

    relation: Relation = "add-or-remove-one"

    def __post_init__(self) -> None:
        check_relation(self.relation)

    def indices(self, n: int, noise: Noise) -> None:
        return None

    def event(self, n: int, noise_multiplier: float) -> Event:
        return gaussian(noise_multiplier)

    def expected_batch_size(self, n: int) -> float:
        return float(n)


def distinct(n: int, count: int, generator: np.random.Generator) -> Indices:
    """`count` distinct integers below n, uniform over all such sets, ascending.

    NumPy draws them by Floyd's algorithm in O(count); above n/20 of them it shuffles the tail of an array
    of n, which is O(count) as well. Ascending order reads memory forwards and lets an oracle check cheaply
    that no record occurs twice.
    """
    drawn = generator.choice(n, size=count, replace=False, shuffle=False)
    drawn.sort()
    return drawn.astype(np.int64, copy=False)
