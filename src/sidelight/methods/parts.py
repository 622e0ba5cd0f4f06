"""The plain parts of a recipe: start, clip, noise, mix, batch size, step size, finish.

Every iterate is already covered by composition, so a finish costs nothing.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from sidelight.arrays import Floats, V, Vector, length
from sidelight.clipping import Details, Metric, ThinFeatures, smallest, spacing
from sidelight.errors import AssumptionError, InputError, not_negative, positive
from sidelight.methods.part_kinds import (
    BatchRule,
    ClipState,
    FinishRule,
    FinishState,
    FixedClip,
    Mix,
    MixState,
    Models,
    NoiseRule,
    NoiseState,
    Setting,
    Start,
    StepRule,
    require_gradient,
)
from sidelight.methods.recipe_checks import check_finish
from sidelight.privacy import accountants, events
from sidelight.privacy.events import Event, NoOp


@dataclass(frozen=True)
class Cold(Start):
    """Start where the problem does: a linear model at zero, a network where it is."""

    def __call__(self, setting: Setting) -> Vector:
        return setting.problem.start()


@dataclass(frozen=True)
class PrivateOnly(Mix, MixState):
    """The private direction alone: no public gradient in the update."""

    def begin(self, setting: Setting, params: Vector, *, noise_multiplier: float, bound: float) -> MixState:
        return self

    def mix(
        self,
        params: Vector,
        direction: Vector,
        public_gradient: Vector | None,
        *,
        step: int,
        step_size: float,
    ) -> Vector:
        return direction


def check_limit(limit: float | None) -> None:
    """Raise InputError for a longest public gradient that is no length; infinity sets none."""
    if limit is not None and not limit > 0:
        raise InputError(f"public_limit must be positive, not {limit!r}")


def limit_of(limit: float | None, setting: Setting, bound: float) -> float:
    """The longest public gradient of a mix. None: on a network the clip norm, on a linear model any.

    Private gradients are clipped and public ones are not: on a network one of these can be many times as long
    as all private ones together, and throw the parameters away.
    """
    if limit is not None:
        return limit
    return bound if setting.problem.has_optimizer else math.inf


def shortened(gradient: Vector, limit: float) -> Vector:
    """The public gradient, no longer than `limit`."""
    size = length(gradient)
    return gradient * (limit / size) if size > limit else gradient


class Blend(MixState):
    """α_t ĝ + (1−α_t) G, with a public gradient that is no longer than `limit`."""

    limit: float

    @abstractmethod
    def weight_at(self, step: int) -> float:
        """α of a step."""

    def mix(
        self,
        params: Vector,
        direction: Vector,
        public_gradient: Vector | None,
        *,
        step: int,
        step_size: float,
    ) -> Vector:
        alpha, public = self.weight_at(step), shortened(require_gradient(public_gradient, self), self.limit)
        return alpha * public + (1 - alpha) * direction


@dataclass(frozen=True)
class Weighted(Blend):
    """α ĝ + (1−α) G, with one α for the whole run."""

    weight: float
    details: Details = field(default_factory=dict)
    limit: float = math.inf

    def weight_at(self, step: int) -> float:
        return self.weight


@dataclass(frozen=True)
class Flat(FixedClip):
    """clip_C(v) = v·min(1, C/‖v‖), with one C for the whole run.

    None uses that of the problem, which is public: for a linear model the bound that the loss itself gives
    (its Lipschitz constant times the longest row), and for the square loss the longest gradient at w = 0,
    from the declared bound on targets; for a network 1.
    """

    clip_norm: float | None = None

    def __post_init__(self) -> None:
        positive("clip_norm", self.clip_norm, optional=True)

    def begin(self, setting: Setting, params: Vector) -> Flat:
        return Flat(setting.problem.default_clip_norm()) if self.clip_norm is None else self

    @property
    def bound(self) -> float:
        if self.clip_norm is None:
            raise InputError("Flat() takes its bound from a problem when a run begins; pass clip_norm")
        return self.clip_norm

    @property
    def flat(self) -> bool:
        return True

    def factors(self, norms: V) -> V:
        # A few ulp below C: the quotient, its product with the norm and the sum may each round upwards.
        target = self.bound * (1 - 4 * spacing(norms))
        return target / norms.clip(min=target)


@dataclass(frozen=True)
class Automatic(FixedClip):
    """Automatic clipping, v·R/(‖v‖ + γ): every contribution is scaled, none reaches R.

    Bu, Wang, Zha & Karypis (arXiv:2206.07136v3). γ = 0 normalizes; the zero vector stays zero. A network
    refuses γ = 0: a gradient that is zero but for rounding would be a whole contribution, and its rounding
    depends on the batch that a record is in. The oracles of linear models know how large it is.
    """

    bound: float = 1.0
    gamma: float = 1.0

    def __post_init__(self) -> None:
        positive("bound", self.bound)
        not_negative("gamma", self.gamma)

    def begin(self, setting: Setting, params: Vector) -> ClipState:
        if self.gamma == 0 and setting.constants.outputs is None:
            raise InputError("gamma=0 normalizes what rounding leaves; a network needs gamma > 0, say 0.01")
        return self

    def factors(self, norms: V) -> V:
        # The floor keeps the factor finite where γ = 0 meets a norm of (nearly) 0; it only ever shortens.
        target = self.bound * (1 - 4 * spacing(norms))
        return target / (norms + self.gamma).clip(min=smallest(norms) * max(1.0, self.bound))


@dataclass(frozen=True)
class FixedNoise(NoiseRule, NoiseState):
    """A given noise multiplier, for a number of steps (None: those of the recipe; inf: unlimited).

    Without an end there is no plan: the caller counts the steps.
    """

    noise_multiplier: float
    number: float | None = None

    def plan(self, setting: Setting) -> tuple[Event, bool, Details]:
        step, number = setting.sampler.event(setting.n, self.noise_multiplier), self.begin(setting).number
        event = NoOp() if number is None or math.isinf(number) else events.repeat(step, int(number))
        details = {"noise_multiplier": self.noise_multiplier, "accounting": accountants.ASSUMES["pld"]}
        return event, False, details

    def begin(self, setting: Setting) -> FixedNoise:
        return FixedNoise(self.noise_multiplier, setting.steps) if self.number is None else self

    def at(self, step: int) -> float | None:
        return self.noise_multiplier if self.number is None or step < self.number else None


@dataclass(frozen=True)
class ConstantNoise(NoiseRule):
    """T equal steps: the least noise for the plan, by PLD (plain Gaussians: exactly)."""

    def multiplier(self, setting: Setting) -> float:
        return accountants.noise_multiplier(
            epsilon=setting.epsilon,
            delta=setting.delta,
            sampling_probability=setting.rate,
            steps=setting.steps,
            relation=setting.relation,
        )

    def plan(self, setting: Setting) -> tuple[Event, bool, Details]:
        return FixedNoise(self.multiplier(setting), setting.steps).plan(setting)

    def begin(self, setting: Setting) -> FixedNoise:
        return FixedNoise(self.multiplier(setting), setting.steps)


# ---------------------------------------------------------------------------------------------------
# where nothing is given: the expected batch size, and the step size


@dataclass(frozen=True)
class AllRecords(BatchRule):
    """Every record in every step."""


@dataclass(frozen=True)
class SqrtBatch(BatchRule):
    """B = ⌈√n⌉, at most `largest_share` of the records."""

    largest_share: float = 1.0

    def __post_init__(self) -> None:
        if not 0 < self.largest_share <= 1:
            raise InputError(f"largest_share must be in (0, 1], not {self.largest_share!r}")

    def size(self, n: int) -> float:
        return min(math.ceil(math.sqrt(n)), max(1, int(n * self.largest_share)))


@dataclass(frozen=True)
class NoiseAware(StepRule):
    """The step size of `noise_aware_step`.

    without_metric: factor on the step length that the noise allows, if there is no metric. The useful
    directions of linear problems are then short.
    cap: of c; None is 4 for a smooth loss with momentum, 1.8 without, and 16 for the hinge.
    """

    without_metric: float = 1.0
    cap: float | None = None

    def __post_init__(self) -> None:
        if not self.without_metric > 0:
            raise InputError(f"without_metric must be positive, not {self.without_metric!r}")
        positive("cap", self.cap, optional=True)

    def size(self, setting: Setting, *, noise_multiplier: float, momentum: float, metric: Metric) -> float:
        longer = self.without_metric if metric is None else 1.0
        top = setting.problem.longest_direction(metric)
        if top is None:
            raise InputError("NoiseAware is for linear models: this problem has no rows; pass step_size")
        z = noise_multiplier / longer
        if isinstance(metric, ThinFeatures) and metric.floor == 0:  # noise outside its span has no effect
            z *= math.sqrt(
                min(1.0, metric.rows.shape[0] * (setting.constants.outputs or 1) / setting.dimension)
            )
        return noise_aware_step(setting, noise_multiplier=z, momentum=momentum, top=top, cap=self.cap)


@dataclass(frozen=True)
class FixedStep(StepRule):
    """A step size that does not depend on the noise."""

    value: float

    def __post_init__(self) -> None:
        positive("value", self.value)

    def size(self, setting: Setting, *, noise_multiplier: float, momentum: float, metric: Metric) -> float:
        return self.value


def noise_aware_step(
    setting: Setting, *, noise_multiplier: float, momentum: float, top: float, cap: float | None = None
) -> float:
    """η = (1−β)·c/(h·κ): as long as the noise allows, and never beyond what the loss is stable at.

    c = min(2/(k√T·ν), cap), with ν the length of one step's noise in units of the clip norm, so that the walk
    of all noise together has a fixed length; h the top eigenvalue of the (public) second moment, κ the
    curvature of the loss; k = 2 and a smaller cap for the square loss. Found on benchmarks (METHODS 20).
    """
    noise = noise_multiplier * setting.sensitivity_factor * math.sqrt(setting.dimension) / setting.batch
    curvature, square = setting.constants.smoothness, setting.constants.square
    if cap is None:
        cap = 16.0 if curvature is None else 4.0 if momentum else 1.8
    c = min(2 / ((2 if square else 1) * math.sqrt(setting.steps) * noise), cap)
    return (1 - momentum) * c / (top * (1.0 if curvature is None else curvature))


# ---------------------------------------------------------------------------------------------------
# what becomes of the iterates: each is already covered by composition, so this is free


@dataclass(frozen=True)
class Last(FinishRule):
    """The last iterate."""

    def begin(self, setting: Setting) -> LastState:
        return LastState()


class LastState(FinishState):
    """Keeps one iterate."""

    kept = ("value",)

    def __init__(self) -> None:
        self.value: Vector | None = None

    def add(self, params: Vector) -> None:
        self.value = params

    def result(self, start: Vector) -> Vector:
        return start if self.value is None else self.value


@dataclass(frozen=True)
class MeanLast(FinishRule):
    """The mean of the last n iterates (DOPE-SGD's ensemble of weights; fewer than 50 gain little)."""

    n: int = 100

    def begin(self, setting: Setting) -> WindowState:
        if self.n < 1:
            raise InputError(f"the mean needs at least one iterate, not {self.n}")
        return WindowState(self.n)


@dataclass(frozen=True)
class MeanLastHalf(FinishRule):
    """The mean of the second half of the planned iterates."""

    def begin(self, setting: Setting) -> WindowState:
        return WindowState(max(1, setting.steps // 2))


class WindowState(FinishState):
    """Keeps the last n iterates."""

    kept = ("iterates",)

    def __init__(self, n: int) -> None:
        self.iterates: deque[Vector] = deque(maxlen=n)

    def add(self, params: Vector) -> None:
        self.iterates.append(params)

    def result(self, start: Vector) -> Vector:
        if not self.iterates:
            return start
        first, *others = self.iterates
        return sum(others, start=first * 1) / len(self.iterates)


@dataclass(frozen=True)
class Ema(FinishRule):
    """e ← decay·e + (1 − decay)·w, divided by the weight 1 − decayᵗ that t iterates have together.

    corrected=False begins at e = w0 instead, as papers do: in a run that is short beside 1/(1 − decay) most
    of the result is then the start.
    """

    decay: float = 0.999
    corrected: bool = True

    def begin(self, setting: Setting) -> EmaState:
        if not 0 <= self.decay < 1:
            raise InputError(f"decay must be in [0, 1), not {self.decay!r}")
        return EmaState(self.decay, self.corrected)


class EmaState(FinishState):
    """Keeps every iterate's weight in one running value."""

    kept = ("scale", "total")

    def __init__(self, decay: float, corrected: bool) -> None:
        self.decay, self.corrected = decay, corrected
        self.scale: float = 1.0
        self.total: Vector | float = 0.0  # scale·w0 + total is the mean that begins at w0

    def add(self, params: Vector) -> None:
        self.scale *= self.decay
        self.total = (1 - self.decay) * params + self.decay * self.total

    def result(self, start: Vector) -> Vector:
        if not self.corrected or self.scale == 1.0:
            return self.scale * start + self.total
        return 0 * start + self.total / (1 - self.scale)


@dataclass(frozen=True)
class Reuse(FinishRule):
    """Model reuse: refit on public records, pulled toward the model (last line of PPSGD's Algorithm 1)."""

    lam: float = 0.1
    inner: FinishRule = field(default_factory=Last)
    needs_public: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_finish(self.inner)

    def begin(self, setting: Setting) -> ReuseState:
        if not self.lam > 0:
            raise InputError(f"lam of model reuse must be positive, not {self.lam!r}")
        return ReuseState(self.lam, self.inner.begin(setting), setting)


class ReuseState(FinishState):
    """Finishes like `inner`, then refits."""

    kept = ("inner",)

    def __init__(self, lam: float, inner: FinishState, setting: Setting) -> None:
        self.lam, self.inner, self.setting = lam, inner, setting
        self.notes: list[str] = []

    def add(self, params: Vector) -> None:
        self.inner.add(params)

    def result(self, start: Vector) -> Vector:
        self.setting.public("model reuse")
        model = self.inner.result(start)
        if isinstance(model, Models):
            raise InputError(
                "model reuse refits one model, and an ensemble has several; use another inner finish"
            )
        try:
            return self.setting.problem.refit(model, self.lam)
        except AssumptionError as error:  # the private steps are taken, and their result is not to be lost
            self.notes = [f"model reuse was left out: {error}"]
            return model


@dataclass(frozen=True)
class MeanTail(FinishRule):
    """The mean of the last `share` of the planned iterates, as a running sum: no window of them is kept.

    A run that ends before these begin has its last iterate.
    """

    share: float = 0.25

    def begin(self, setting: Setting) -> TailState:
        if not 0 < self.share <= 1:
            raise InputError(f"share must be in (0, 1], not {self.share!r}")
        return TailState(setting.steps - max(1, int(self.share * setting.steps)))


class TailState(FinishState):
    """Sums the iterates after the first `skipped`; until then it keeps the last one."""

    kept = ("seen", "total")

    def __init__(self, skipped: int) -> None:
        self.skipped, self.seen = skipped, 0
        self.total: Vector | float = 0.0

    def add(self, params: Vector) -> None:
        self.seen += 1
        self.total = params + self.total if self.seen > self.skipped + 1 else params * 1

    def result(self, start: Vector) -> Vector:
        if not self.seen:
            return start
        return start * 0 + self.total / max(1, self.seen - self.skipped)


@dataclass(frozen=True)
class BestOnPublic(FinishRule):
    """Of several finishes the one that held-out public records score best; or the start itself.

    The start, and the point half-way to it, must be better by more than a standard error: it was chosen on
    the same records, which think too well of it. All of this looks at released parameters and public records
    alone, so it costs nothing. Where a problem has no held-out records it is the first of the finishes.
    """

    rules: tuple[FinishRule, ...] = (Last(), Ema(0.98), MeanTail(0.25))

    def __post_init__(self) -> None:
        if not self.rules:
            raise InputError("BestOnPublic needs a finish to choose")
        for rule in self.rules:
            check_finish(rule)

    def begin(self, setting: Setting) -> BestOnPublicState:
        return BestOnPublicState(self.rules, [rule.begin(setting) for rule in self.rules], setting)


class BestOnPublicState(FinishState):
    """Collects the iterates for every finish, and scores what they make of them."""

    def __init__(self, rules: tuple[FinishRule, ...], states: list[FinishState], setting: Setting) -> None:
        self.rules, self.states, self.setting = rules, states, setting
        self.notes: list[str] = []

    def state_dict(self) -> dict[str, object]:
        return {str(k): state.state_dict() for k, state in enumerate(self.states)}

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        for k, one in enumerate(self.states):
            saved = state[str(k)]
            if isinstance(saved, Mapping):
                one.load_state_dict(saved)

    def add(self, params: Vector) -> None:
        for state in self.states:
            state.add(params)

    def result(self, start: Vector) -> Vector:
        made: dict[str, Vector] = {}
        for rule, state in zip(self.rules, self.states, strict=True):
            model = state.result(start)
            if not isinstance(model, Models):
                made[repr(rule)] = model
        first = next(iter(made.values()))
        safe = {"half-way from the start": 0.5 * (start + first), "the start": start}
        losses = {
            name: found
            for name, params in {**made, **safe}.items()
            if (found := self._losses(params)) is not None
        }
        if not losses:
            return first
        best = min(made, key=lambda name: float(losses[name].mean()))
        for name in safe:
            gains = losses[best] - losses[name]
            if gains.mean() > gains.std() / math.sqrt(len(gains)):
                best = name
        listed = ", ".join(f"{name} {one.mean():.4f}" for name, one in losses.items())
        self.notes = [f"finish: {best}, by the loss on held-out public records ({listed})"]
        return {**made, **safe}[best]

    def _losses(self, params: Vector) -> Floats | None:
        """Of held-out public records; what is not finite is worse than everything else."""
        losses = self.setting.problem.held_out_losses(params)
        return None if losses is None else np.nan_to_num(losses, nan=1e6, posinf=1e6)
