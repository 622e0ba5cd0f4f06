"""A run whose steps share correlated noise, as one event, and the plain events that it costs as much as.

The curve of such a run is that of the events of `reduced`, which every accountant and every filter knows:

- A record that takes part in every step of its turn (q = 1): one Gaussian release of CG. Its noise multiplier
  is that of a draw over the sensitivity of CG (`Strategy.sensitivity`).
- One that takes part with probability q each time its turn comes, independently, where C has no more bands
  than there are steps between two turns: as many Poisson-sampled Gaussians as there are turns (Theorem 4 of
  Choquette-Choo et al., NeurIPS 2023, arXiv:2306.08153v2). Turns are fixed without looking at records, and
  the columns of C that belong to a record's turns lie in disjoint rows.
- One that takes part in every step of its turn, if its place in the cycle is drawn uniformly and nobody
  sees who takes part (`secret`), and C has no more bands than a cycle has steps: one of ⌊separation/bands⌋
  Gaussian releases of that multiplier (`AllocatedGaussian`), whose place is not known.
- The same with batches of at most so many records: composed with DP(0, turns·τ), where τ is the probability
  that others alone fill a batch. Given the draws of all others, none of them full, the run is that of batches
  without a limit; else it may be anything; and the draws of others do not depend on the record.

Other ways to sample have no proof here, and are refused: q < 1 with more bands than the separation, or with
banded inverses; places that are drawn anew in each pass.
"""

from __future__ import annotations

import functools
from typing import Any

import attr
from dp_accounting import dp_event
from scipy.stats import binom

from sidelight.errors import InputError, PrivacyConditionError
from sidelight.privacy.strategies import Strategy


def _floats(values: Any) -> tuple[float, ...]:
    return tuple(float(value) for value in values)


@attr.define(frozen=True, slots=False)
class ApproximateDp(dp_event.DpEvent):
    """An (ε, δ)-DP mechanism of which nothing more is known."""

    epsilon: float = attr.ib(validator=attr.validators.ge(0))
    delta: float = attr.ib(validator=[attr.validators.ge(0), attr.validators.lt(1)])


@attr.define(frozen=True, slots=False)
class AllocatedGaussian(dp_event.DpEvent):
    """One of so many Gaussian releases has the record, chosen uniformly and secretly; the others have none.

    Feldman & Shenfeld (arXiv:2602.17284); under add-or-remove-one.
    """

    noise_multiplier: float = attr.ib(validator=attr.validators.gt(0))
    bins: int = attr.ib(validator=attr.validators.ge(2))


@attr.define(frozen=True, slots=False)
class CorrelatedGaussian(dp_event.DpEvent):
    """`steps` sums that are released with noise C⁻¹z.

    noise_multiplier: standard deviation of a draw z / sensitivity of the sum of one step.
    coefficients: the bands of C; or of C⁻¹, if `inverse` is 1 (`Strategy`).
    separation, participations: two turns of a record are so many steps apart at least; how many it has.
    sampling_probability: with which it takes part, each time its turn comes.
    overflow: the probability, at most, with which a batch is full without the record (0: it never is).
    secret: 1 if places are uniform among `separation`, and nobody sees who takes part.
    """

    noise_multiplier: float = attr.ib(validator=attr.validators.gt(0))
    coefficients: tuple[float, ...] = attr.ib(converter=_floats)
    inverse: int = attr.ib(validator=attr.validators.in_((0, 1)))
    steps: int = attr.ib(validator=attr.validators.ge(1))
    separation: int = attr.ib(validator=attr.validators.ge(1))
    participations: int = attr.ib(validator=attr.validators.ge(1))
    sampling_probability: float = attr.ib(
        default=1.0, validator=[attr.validators.gt(0), attr.validators.le(1)]
    )
    overflow: float = attr.ib(default=0.0, validator=[attr.validators.ge(0), attr.validators.lt(1)])
    secret: int = attr.ib(default=0, validator=attr.validators.in_((0, 1)))

    @property
    def strategy(self) -> Strategy:
        return Strategy(self.coefficients, bool(self.inverse))

    @property
    def turns(self) -> int:
        """How often a record may take part."""
        return min(self.participations, -(-self.steps // self.separation))

    def __attrs_post_init__(self) -> None:
        if self.overflow and (self.sampling_probability == 1 or self.turns * self.overflow >= 1):
            raise InputError("batches of limited size are for sampled turns, and have to be rarely full")
        if self.secret and (self.inverse or self.sampling_probability < 1):
            raise InputError("secret places are accounted for bands of C and turns without sampling")

    @property
    def plain(self) -> dp_event.DpEvent:
        """What it costs as much as."""
        return _plain(self)

    def _found(self) -> dp_event.DpEvent:
        strategy, turns, q = self.strategy, self.turns, self.sampling_probability
        if q < 1 and (strategy.inverse or strategy.bands > self.separation):
            why = "banded inverses" if strategy.inverse else f"{strategy.bands} bands"
            raise PrivacyConditionError(
                f"sampled turns, {self.separation} steps apart, are not proved for {why}: take at most "
                f"{self.separation} bands, or turns without sampling"
            )
        reach = strategy.sensitivity(
            steps=self.steps, separation=self.separation, participations=turns if q == 1 else 1
        )
        release: dp_event.DpEvent = dp_event.GaussianDpEvent(self.noise_multiplier / reach)
        if q == 1:
            bins = self.separation // strategy.bands if self.secret else 1
            return release if bins < 2 else AllocatedGaussian(self.noise_multiplier / reach, bins)
        sampled = dp_event.PoissonSampledDpEvent(q, release)
        many = sampled if turns == 1 else dp_event.SelfComposedDpEvent(sampled, turns)
        if not self.overflow:
            return many
        # A union bound: batches of a turn and of the next are drawn from the same records.
        full = ApproximateDp(0.0, turns * self.overflow)
        return dp_event.ComposedDpEvent((many, full))  # type: ignore[arg-type]  # hashable


@functools.lru_cache(maxsize=256)  # a ledger asks at every charge, and long runs take a while
def _plain(event: CorrelatedGaussian) -> dp_event.DpEvent:
    return event._found()


def reduced(event: dp_event.DpEvent) -> dp_event.DpEvent:
    """The event with every correlated run in it replaced by what it costs as much as."""
    match event:
        case CorrelatedGaussian():
            return event.plain
        case dp_event.SelfComposedDpEvent():
            inner = reduced(event.event)
            return event if inner is event.event else dp_event.SelfComposedDpEvent(inner, event.count)
        case dp_event.ComposedDpEvent():
            inside = [reduced(part) for part in event.events]
            if all(new is old for new, old in zip(inside, event.events, strict=True)):
                return event
            return dp_event.ComposedDpEvent(tuple(inside))  # type: ignore[arg-type]  # hashable
    return event


def without_sampling(event: dp_event.DpEvent) -> dp_event.DpEvent:
    """What a correlated run is for whoever sees who took part: a Gaussian release, of everyone in every turn.

    Other events stay as they are, and so does a run with batches that may be full: there the others tell.
    """
    if not isinstance(event, CorrelatedGaussian) or event.overflow:
        return event
    return reduced(attr.evolve(event, sampling_probability=1.0, secret=0))


def overflow(n: int, *, sampling_probability: float, largest: int) -> float:
    """The probability, at most, that a Poisson batch of n records has no room for one more.

    Of a batch that is filled by others, a record that comes may push one of them out; so τ is the chance that
    `largest` of the n others are drawn. It holds whether or not the record itself is, and grows with n.
    """
    if largest < 1:
        raise InputError(f"a batch has room for at least 1 record, not {largest}")
    if largest > n:
        return 0.0
    return min(1.0, float(binom.sf(largest - 1, n, sampling_probability)) * (1 + 1e-9))
