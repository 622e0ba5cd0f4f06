"""The base classes of a recipe's parts: what each kind must offer, and the flags that it may set.

A part is a frozen dataclass that the user configures. Most kinds have a `begin` that is called once, with
public values only, and returns the object used while training: the part itself if nothing changes, else a
state. A part sees a `Setting`, released parameters and public gradients, and nothing else.

    Start     → the first parameters            Mix         public and private direction → one
    Origin    public gradient → origin          FinishRule  → FinishState: iterates → model
    MetricRule → MetricState                    BatchRule   n → expected batch size, sampler
    ClipRule  → ClipState                       StepRule    noise, curvature → step size
    NoiseRule → NoiseState

What a part must define is abstract. `Recipe.begin` asks every part once, with zeros, before the charge.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar, Protocol, Self, runtime_checkable

from sidelight.arrays import V, Vector
from sidelight.clipping import Clip, Details, Metric
from sidelight.errors import InputError, positive
from sidelight.oracles.linear.linear_oracle import PublicOracle
from sidelight.privacy.events import Event, FixedSize, FullBatch, Poisson, Relation, Sampler
from sidelight.privacy.noise import Noise
from sidelight.privacy.release import Account, BoundedSum, Released, release
from sidelight.problems.base import Constants, Guide, Problem

__all__ = [
    "BatchRule",
    "ClipRule",
    "ClipState",
    "Constants",
    "FinishRule",
    "FinishState",
    "FixedClip",
    "Guide",
    "MetricRule",
    "MetricState",
    "Mix",
    "MixState",
    "Models",
    "NoiseRule",
    "NoiseState",
    "Origin",
    "Part",
    "Setting",
    "Start",
    "State",
    "StepRule",
    "require_gradient",
]


# ---------------------------------------------------------------------------------------------------
# what parts may know: the problem, and the public constants of a run on it


@dataclass(frozen=True)
class Setting:
    """A problem, a budget and the constants of a run. A part gets only public values from it."""

    problem: Problem
    batch: float  # B, the expected batch size
    steps: int  # T, planned
    epsilon: float
    delta: float
    relation: Relation
    sampler: Sampler
    step_size: float = 0.0
    momentum: float = 0.0  # heavy ball
    step_sizes: tuple[float, ...] = ()  # relative to the longest, where known beforehand; empty: all alike
    finish: FinishRule | None = None
    metric: Metric = None  # the first one, for noise that is shaped by curvature
    max_steps: int | None = None  # where a budget that adapts stops at the latest; None: when it is spent

    @property
    def n(self) -> int:
        """Private records."""
        return self.problem.n

    @property
    def dimension(self) -> int:
        """Parameters."""
        return self.problem.dimension

    @property
    def constants(self) -> Constants:
        """Known constants of the loss and the records."""
        return self.problem.constants

    @property
    def rate(self) -> float:
        """The sampling probability."""
        return self.batch / self.n

    @property
    def guide(self) -> Guide | None:
        """The public records, if there are any."""
        return self.problem.public

    def public(self, what: str) -> Guide:
        """The guide, or an error that says which part needs public records."""
        guide = self.problem.public
        if guide is None or guide.size == 0:
            raise InputError(f"{what} needs public records; pass {self.problem.public_from}")
        return guide

    def linear_guide(self, what: str) -> PublicOracle:
        """The same of a linear model, which also knows feature rows and single losses."""
        guide = self.public(what)
        if not isinstance(guide, PublicOracle):
            raise InputError(
                f"{what} looks at the feature rows of a linear model, and a network has none. Choose another "
                "part: weight='noise' for Coupling, metric=SecondMoments() for a metric"
            )
        return guide

    @property
    def sensitivity_factor(self) -> int:
        return 1 if self.relation == "add-or-remove-one" else 2


# ---------------------------------------------------------------------------------------------------
# parts and their states


@runtime_checkable
class _Stateful(Protocol):
    """A state inside another one, or a filter."""

    def state_dict(self) -> Mapping[str, object]: ...

    def load_state_dict(self, state: Mapping[str, object], /) -> None: ...


class State(ABC):  # noqa: B024 - its subclasses have abstract methods
    """The state of a part while training. `kept` names the attributes that change."""

    kept: ClassVar[tuple[str, ...]] = ()
    notes: Sequence[str] = ()  # for the statement, after the run

    def state_dict(self) -> dict[str, object]:
        """The values that change; the rest is configured, or recomputed from public data."""
        values = {name: getattr(self, name) for name in self.kept}
        return {name: v.state_dict() if isinstance(v, _Stateful) else v for name, v in values.items()}

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        """Put the values of `state_dict` back."""
        for name in self.kept:
            saved, inner = state[name], getattr(self, name)
            if isinstance(inner, _Stateful) and isinstance(saved, Mapping):
                inner.load_state_dict(saved)
            else:
                setattr(self, name, saved)


class Part(ABC):  # noqa: B024
    """One choice of a recipe. Flags say what it needs; a subclass sets those that differ."""

    kind: ClassVar[str] = "part"
    needs_public: ClassVar[bool] = False  # public records
    takes_unlabeled: ClassVar[bool] = False  # whether their features are enough for it
    needs_gradient: ClassVar[bool] = False  # the public gradient at the current parameters, in every step
    needs_after: ClassVar[bool] = False  # the public gradient at the new parameters, after every step
    linear_only: ClassVar[bool] = False  # asks for what a network does not have
    network_only: ClassVar[bool] = False  # asks for what a linear model does not have
    half_square: ClassVar[bool] = False  # its constants are meant for the square loss as ½(z − y)²


# ---------------------------------------------------------------------------------------------------
# where a step is taken


class Start(Part):
    """Where training begins."""

    kind = "start"

    @abstractmethod
    def __call__(self, setting: Setting) -> Vector:
        """The first parameters, from public data."""


class Origin(Part):
    """What contributions are clipped around: a function of the public gradient."""

    kind = "origin"
    needs_public = True
    needs_gradient = True

    @abstractmethod
    def at(self, public_gradient: Vector) -> Vector:
        """The origin of the clipping ball, from the public gradient."""


class MetricState(State):
    """The coordinates of every step."""

    unit_rows: bool = False  # whether rows are brought to length 1 under the metric, before the loss

    @abstractmethod
    def at(self, step: int, params: Vector, public_gradient: Vector | None) -> Metric:
        """The metric of this step."""

    def back(self, metric: Metric, vector: Vector) -> Vector:
        """From the metric's space to a direction for the parameters."""
        return vector

    def public(self, metric: Metric, gradient: Vector) -> Vector:
        """The public gradient, conditioned as `back` conditions the private one."""
        return gradient


class MetricRule(Part):
    """The coordinates in which contributions are clipped and noise is added."""

    kind = "metric"

    @abstractmethod
    def begin(self, setting: Setting, params: Vector) -> MetricState:
        raise NotImplementedError


# ---------------------------------------------------------------------------------------------------
# clip and noise


class ClipState(State):
    """The clip of every step."""

    @abstractmethod
    def at(self, step: int, params: Vector, metric: Metric, origin: Vector | None) -> Clip:
        """The clip of this step."""

    def after(self, params: Vector, public_gradient: Vector) -> None:
        """Called after a step: the new parameters, and the public gradient there, under the metric."""


class ClipRule(Part):
    """How far a contribution may reach."""

    kind = "clip"

    @abstractmethod
    def begin(self, setting: Setting, params: Vector) -> ClipState:
        raise NotImplementedError


class FixedClip(ClipRule, ClipState):
    """A clip that never changes: a rule, its own state, and the clip itself."""

    @property
    @abstractmethod
    def bound(self) -> float:
        raise NotImplementedError

    @property
    def flat(self) -> bool:
        """Whether vectors within the bound are left unchanged."""
        return False

    @abstractmethod
    def factors(self, norms: V) -> V:
        raise NotImplementedError

    def begin(self, setting: Setting, params: Vector) -> ClipState:
        return self

    def at(self, step: int, params: Vector, metric: Metric, origin: Vector | None) -> Self:
        return self


class NoiseState(State):
    """The noise of every step."""

    spending: Details = MappingProxyType({})  # what a filter counted for the step just admitted

    @property
    def walk(self) -> float | None:
        """The noise multiplier of independent steps whose noise adds up to as much; None: that of a step."""
        return None

    @abstractmethod
    def at(self, step: int) -> float | None:
        """The noise multiplier of this step; None ends the run."""

    def event(self, setting: Setting, multiplier: float) -> Event:
        """What a step performs, of which the sampler is asked."""
        return setting.sampler.event(setting.n, multiplier)

    def admit(self, event: Event) -> None:
        """Ask a filter, where there is one, before the release; a plan covers every step without it."""

    def turn(self, step: int, setting: Setting, noise: Noise) -> Sampler:
        """The sampler that draws the batch of this step."""
        return setting.sampler

    def release(
        self, total: BoundedSum, *, std: float, event: Event, account: Account, noise: Noise
    ) -> Released:
        """The sum with noise of this standard deviation, charged."""
        return release(total, std=std, event=event, account=account, noise=noise)

    def forget(self) -> None:
        """The run has ended: erase whatever its noise could be drawn from."""

    def after(self, public_gradient: Vector, std: float) -> None:
        """Called after a step: the public gradient at the new parameters, under the metric, and the noise."""

    def share_spent(self) -> float | None:
        """The share of a filter's budget that is spent; None without a filter."""
        return None


class NoiseRule(Part):
    """How much noise a step has, and for how many steps."""

    kind = "noise"
    independent: ClassVar[bool] = True  # whether one step says nothing of the noise of another
    shaped: ClassVar[bool] = False  # whether it is arranged by the step size and the first metric

    @property
    def relations(self) -> tuple[Relation, ...] | None:
        """The relations that it can give; None: those of the sampler."""
        return None

    def default_steps(self, setting: Setting) -> int:
        """T if the recipe has none: 64 full-batch steps, or as many passes in small batches, at most 1000."""
        return int(min(1000, max(64, round(10 / setting.rate))))

    def arrange(self, setting: Setting) -> Setting:
        """The setting with another sampler, where this noise is accounted for that alone."""
        return setting

    @abstractmethod
    def plan(self, setting: Setting) -> tuple[Event, bool, Details]:
        """The event that bounds the run, whether it is a filter's, and what to report."""

    @abstractmethod
    def begin(self, setting: Setting) -> NoiseState:
        raise NotImplementedError


# ---------------------------------------------------------------------------------------------------
# what becomes of the released direction


def require_gradient(gradient: Vector | None, part: Part | State) -> Vector:
    """The public gradient, for a part that needs it."""
    if gradient is None:
        name = type(part).__name__
        raise InputError(
            f"{name} reads the public gradient: set needs_gradient = True on the part that makes it"
        )
    return gradient


class MixState(State):
    """Makes one direction of the private and the public one."""

    details: Details = MappingProxyType({})  # what was chosen, for the report

    def observe(self, private: Vector, public: Vector) -> None:
        """A step's released gradient and the public one, clipped alike, under the metric (`Mix.compares`)."""

    @abstractmethod
    def mix(
        self,
        params: Vector,
        direction: Vector,
        public_gradient: Vector | None,
        *,
        step: int,
        step_size: float,
    ) -> Vector:
        """The direction in which the parameters move; `public_gradient` is None unless a part needs it."""


class Mix(Part):
    """How the public gradient joins the private one."""

    kind = "mix"
    before_momentum: ClassVar[bool] = False  # whether momentum is that of the sum, not of the private part
    compares: ClassVar[bool] = False  # whether it observes public gradients, clipped like private ones

    @abstractmethod
    def begin(self, setting: Setting, params: Vector, *, noise_multiplier: float, bound: float) -> MixState:
        raise NotImplementedError

    def private_shares(self, steps: int) -> tuple[float, ...]:
        """What each step takes of the private direction, where known beforehand; empty: all take as much."""
        return ()


class Models:
    """Several models in place of one: the result of a finish that makes an ensemble."""


class FinishState(State):
    """Collects the iterates, all of them released."""

    @abstractmethod
    def add(self, params: Vector) -> None:
        """Called with every iterate after the start."""

    @abstractmethod
    def result(self, start: Vector) -> Vector | Models:
        """The model, or several for an ensemble; `start` if there was no step."""


class FinishRule(Part):
    """Turns the iterates into a model."""

    kind = "finish"
    single: ClassVar[bool] = True  # whether the result is one model, not an ensemble

    @abstractmethod
    def begin(self, setting: Setting) -> FinishState:
        raise NotImplementedError


# ---------------------------------------------------------------------------------------------------
# how many records, how long a step


class BatchRule(Part):
    """The expected batch size where the recipe has none, and the sampler that draws the batches."""

    kind = "batch"

    def size(self, n: int) -> float | None:
        """B for n private records; None takes all of them in every step."""
        return None

    def sampler(self, given: float | None, *, n: int, pool: int, relation: Relation) -> tuple[float, Sampler]:
        """B (of private records) and the sampler; with public records in the pool, q is that of the pool."""
        size = self.size(n) if given is None else given
        positive("expected_batch_size", size, optional=True)
        if size is None or size >= pool:
            return float(n), FullBatch(relation)
        batch = size * n / pool
        if relation == "add-or-remove-one":
            return batch, Poisson(batch / n)
        count = max(1, round(batch))
        return (float(n), FullBatch(relation)) if count == n else (float(count), FixedSize(count))


class StepRule(Part):
    """The step size where the recipe has none."""

    kind = "step"

    @abstractmethod
    def size(self, setting: Setting, *, noise_multiplier: float, momentum: float, metric: Metric) -> float:
        """η, from public quantities."""
