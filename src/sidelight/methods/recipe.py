"""The one private step, and the recipe of parts that every gradient method is.

    ĝ  ← public gradient at w                              (guide)
    o  ← origin(ĝ) ;  M ← metric ;  C ← clip ;  z ← noise  (parts; functions of public and released things)
    S  ← sampler
    G  ← release( Σ_{i∈S} clip_C(M(g_i − o)),  std = z·sensitivity )      ← the only private line
    d  ← back( G/B + M o )                                 (origin added back after the noise, once)
    w  ← w − η·mix(d, ĝ) − η·∇reg(w)

A part has a rule (a frozen dataclass, what the user configures) and, if it changes while training, a state
that `begin` returns. B is the expected batch size, a public constant. Parts combine freely.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from sidelight.data.rows import PrivateRows
from sidelight.data.samplers import FixedSize, FullBatch, Poisson, Sampler
from sidelight.erm.losses import Loss
from sidelight.errors import AssumptionError, BudgetExceeded, InputError
from sidelight.methods.parts import Clip, Features, Metric
from sidelight.methods.task import Fitted, Plan, Task, check_method
from sidelight.oracles.linear import LinearOracle
from sidelight.oracles.public import PublicOracle
from sidelight.privacy.events import Event, Relation
from sidelight.privacy.noise import Noise
from sidelight.privacy.release import Account, BoundedSum, release

Array = NDArray[np.float64]
Update = Callable[[Any, Any, Any, int, float], Any]


class Guide(Protocol):
    """The public side: the questions that parts may ask."""

    size: int

    def mean_gradient(self, params: Any) -> Any: ...
    def gradient_norms(self, params: Any, *, metric: Metric = None, origin: Any = None) -> Any: ...
    def gradients(self, params: Any) -> Any: ...


@dataclass(frozen=True)
class Setting:
    """What every part may know: public constants and the public data. Nothing private is in here."""

    n: int  # private records
    dimension: int
    batch: float  # B, the expected batch size
    steps: int  # T, planned
    epsilon: float
    delta: float
    relation: Relation
    sampler: Sampler
    loss: Any
    max_norm: float
    target_bound: float | None = None
    guide: Any = None  # PublicOracle, or None without public records
    step_size: float = 0.0

    @property
    def rate(self) -> float:
        """The sampling probability."""
        return self.batch / self.n

    def public(self, what: str) -> Any:
        """The guide, or an error that says which part needs public records."""
        if self.guide is None or self.guide.size == 0:
            raise InputError(f"{what} needs public records; pass X_public and y_public")
        return self.guide

    @property
    def sensitivity_factor(self) -> int:
        return 1 if self.relation == "add-or-remove-one" else 2


# ---------------------------------------------------------------------------------------------------
# what a part must offer


class Start(Protocol):
    def __call__(self, setting: Setting) -> Any:
        """The first parameters, from public data."""


class Origin(Protocol):
    def at(self, public_gradient: Any) -> Any:
        """The origin of the clipping ball, from the public gradient."""


class MetricState(Protocol):
    unit_rows: bool  # whether rows are brought to length 1 under the metric, before the loss sees them

    def at(self, step: int, params: Any, public_gradient: Any) -> Metric:
        """The metric of this step."""

    def back(self, metric: Metric, vector: Any) -> Any:
        """From the metric's space to a direction for the parameters."""


class MetricRule(Protocol):
    needs_gradient: bool

    def begin(self, setting: Setting, params: Any) -> MetricState: ...


class ClipState(Protocol):
    def at(self, step: int, params: Any, metric: Metric, origin: Any) -> Clip: ...

    def after(self, params: Any, public_gradient: Any) -> None:
        """Told of the new parameters and the public gradient there."""


class ClipRule(Protocol):
    needs_after: bool

    def begin(self, setting: Setting, params: Any) -> ClipState: ...


class NoiseState(Protocol):
    def at(self, step: int) -> float | None:
        """The noise multiplier of this step; None ends the run."""

    def admit(self, event: Event) -> None:
        """Ask a filter, where there is one, before the release."""

    def after(self, public_gradient: Any, std: float) -> None:
        """Told of the public gradient at the new parameters and the noise of the step just made."""


class NoiseRule(Protocol):
    needs_after: bool
    relations: tuple[Relation, ...] | None  # None: whatever the sampler gives

    def plan(self, setting: Setting) -> tuple[Event, bool, dict[str, Any]]:
        """The event that bounds the run, whether it is a filter's, and what to report."""

    def begin(self, setting: Setting) -> NoiseState: ...


class Mix(Protocol):
    needs_gradient: bool

    def begin(self, setting: Setting, params: Any, *, noise_multiplier: float, bound: float) -> Update:
        """update(w, direction, ĝ, step, η) → w, without the regulariser."""


class Finish(Protocol):
    window: int | None  # how many of the last iterates it wants; None: a running value

    def begin(self, setting: Setting) -> Any: ...


# ---------------------------------------------------------------------------------------------------
# the plainest of each


@dataclass(frozen=True)
class Cold:
    """Start at zero."""

    def __call__(self, setting: Setting) -> Array:
        return np.zeros(setting.dimension)


@dataclass(frozen=True)
class Alone:
    """No public gradient in the update."""

    needs_gradient: ClassVar[bool] = False

    def begin(self, setting: Setting, params: Any, *, noise_multiplier: float, bound: float) -> Update:
        return lambda w, direction, public_gradient, step, size: w - size * direction


@dataclass(frozen=True)
class Last:
    """The last iterate."""

    def begin(self, setting: Setting) -> LastState:
        return LastState()


class LastState:
    """Keeps one iterate."""

    def __init__(self) -> None:
        self.value: Any = None

    def add(self, params: Any) -> None:
        self.value = params

    def result(self, start: Any) -> Any:
        return start if self.value is None else self.value


# ---------------------------------------------------------------------------------------------------
# the recipe


@dataclass(frozen=True)
class Recipe:
    """A gradient method as a choice of parts. The functions of its siblings (`dp_sgd`, `ppsgd`, …) make these.

    Args:
        steps: T. None takes the rule of `default_steps`.
        expected_batch_size: B; None takes every record in every step.
        step_size: η; None takes the rule of `noise_aware_step`.
        momentum: heavy ball; 0 is none.
        extended: public records join the pool that is sampled from (DOPE-SGD's extended setting).
    """

    name: str = "recipe"
    start: Any = field(default_factory=Cold)
    origin: Any = None
    metric: Any = None
    clip: Any = None
    noise: Any = None
    mix: Any = field(default_factory=Alone)
    finish: Any = field(default_factory=Last)
    steps: int | None = None
    expected_batch_size: float | None = None
    step_size: float | None = None
    momentum: float = 0.0
    extended: bool = False
    public_as_private: bool = False
    departs: tuple[str, ...] = ()
    default_relation: Relation = "add-or-remove-one"

    @property
    def private(self) -> bool:
        return True

    @property
    def relations(self) -> tuple[Relation, ...]:
        fixed = getattr(self.noise, "relations", None)
        if fixed is not None:
            return tuple(fixed)
        other: Relation = (
            "replace-one" if self.default_relation == "add-or-remove-one" else "add-or-remove-one"
        )
        return (self.default_relation, other)

    @property
    def needs_public(self) -> bool:
        parts = (self.start, self.origin, self.metric, self.clip, self.noise, self.mix, self.finish)
        return self.extended or any(getattr(part, "needs_public", False) for part in parts)

    def with_parts(self, **changes: Any) -> Recipe:
        """A copy with some parts exchanged."""
        return replace(self, **changes)

    def plan(self, task: Task) -> Plan:
        """Fix every constant from public quantities, and the event that bounds the run."""
        check_method(self, task)
        setting = self._setting(task)
        event, filtered, details = self.noise.plan(setting)
        details = {
            "steps": setting.steps,
            "expected_batch_size": setting.batch,
            "sampling_probability": setting.rate,
            "step_size": setting.step_size,
            **details,
        }
        return Plan(event, filtered, details, self.departs, {"setting": setting})

    def run(self, task: Task, plan: Plan, *, account: Account, noise: Noise) -> Fitted:
        """Train a linear model."""
        setting: Setting = plan.state["setting"]
        loop = Loop(self, setting, regularization=task.regularization)
        rows = task.rows.joined(task.public) if self.public_as_private else task.rows
        oracle = LinearOracle(rows, setting.loss, unit_under=loop.unit_metric)
        w = loop.train(oracle.clipped_sum, account=account, noise=noise)
        return Fitted(np.asarray(w).reshape(task.loss.outputs, task.p), loop.history, loop.notes)

    def _setting(self, task: Task) -> Setting:
        n = task.n + (task.public.n if self.public_as_private else 0)
        pool = n + (task.public.n if self.extended else 0)
        batch, sampler = self._sampler(n, pool, task.relation)
        loss = self._loss(task)
        guide = PublicOracle(task.public, loss) if task.public.n and not self.public_as_private else None
        setting = Setting(
            n=n, dimension=task.dimension, batch=batch, steps=0, epsilon=task.epsilon, delta=task.delta,
            relation=task.relation, sampler=sampler, loss=loss, max_norm=task.max_norm,
            target_bound=task.target_bound, guide=guide,
        )  # fmt: skip
        steps = default_steps(setting) if self.steps is None else self.steps
        if int(steps) != steps or steps < 1:
            raise InputError(f"steps must be a whole number of at least 1, not {steps!r}")
        setting = replace(setting, steps=int(steps))
        size = self._default_step_size(setting) if self.step_size is None else self.step_size
        if not (math.isfinite(size) and size > 0):
            raise InputError(f"step_size must be a positive number, not {size!r}")
        return replace(setting, step_size=float(size))

    def _default_step_size(self, setting: Setting) -> float:
        w = self.start(setting)
        metric = self.metric.begin(setting, w).at(0, w, None) if self.metric else None
        bound = self.clip.begin(setting, w).at(0, w, metric, None).bound
        z = getattr(self.noise.begin(setting), "z", 1.0)
        steps = getattr(self.noise, "planned_steps", setting.steps)
        return noise_aware_step(
            setting, noise_multiplier=z, bound=bound, steps=steps, momentum=self.momentum,
            top=longest_direction(setting, metric, unit=getattr(self.metric, "unit", False)),
        )  # fmt: skip

    def _loss(self, task: Task) -> Loss:
        return task.loss

    def _sampler(self, n: int, pool: int, relation: Relation) -> tuple[float, Sampler]:
        """B (of private records) and the sampler; in the extended setting q is that of the larger pool."""
        asked = self.expected_batch_size
        if asked is None or asked * n / pool >= n:
            if self.extended and asked is None:
                raise InputError("the extended setting samples a pool; pass expected_batch_size")
            return float(n), FullBatch(relation)
        if not asked > 0:
            raise InputError(f"expected_batch_size must be positive, not {asked!r}")
        batch = asked * n / pool
        if relation == "add-or-remove-one":
            return batch, Poisson(batch / n)
        size = max(1, round(batch))
        return float(size), FixedSize(size)


def default_steps(setting: Setting) -> int:
    """64 full-batch steps, or the passes that make up for small batches, at most 1000."""
    return int(min(1000, max(64, round(10 / setting.rate))))


def noise_aware_step(
    setting: Setting, *, noise_multiplier: float, bound: float, steps: int, momentum: float, top: float
) -> float:
    """η = (1−β)·c/(h·κ): as long as the noise allows, and never beyond what the loss is stable at.

    c = min(2/(k√T·ν), cap), with ν the length of one step's noise in units of the clip norm, so that the walk
    of all noise together has a fixed length; h the top eigenvalue of the (public) second moment, κ the
    curvature of the loss; k = 2 and a smaller cap for the square loss. Found on public benchmarks (METHODS 20).
    """
    noise = noise_multiplier * setting.sensitivity_factor * math.sqrt(setting.dimension) / setting.batch
    curvature = setting.loss.smoothness
    square = setting.loss.lipschitz is None
    cap = 16.0 if curvature is None else 4.0 if momentum else 1.8
    c = min(2 / ((2 if square else 1) * math.sqrt(steps) * noise), cap)
    return (1 - momentum) * c / (top * (1.0 if curvature is None else curvature))


def longest_direction(setting: Setting, metric: Metric, *, unit: bool) -> float:
    """The top eigenvalue of the public second moment of rows (as the loss sees them), or its bound."""
    if setting.guide is None or setting.guide.size == 0:
        return float(setting.max_norm**2)
    X = setting.guide.rows.X
    X = np.asarray(X.toarray() if hasattr(X, "toarray") else X, dtype=np.float64)
    if isinstance(metric, Features):
        X = X @ metric.matrix.T
        lengths = np.linalg.norm(X, axis=1, keepdims=True)
        X = X / np.maximum(lengths, 1e-12 if unit else 1.0)
    return float(max(np.linalg.norm(X, 2) ** 2 / len(X), 1e-12))


class Loop:
    """Runs a recipe: on a linear model or on a network, whoever answers `clipped_sum`."""

    def __init__(self, recipe: Recipe, setting: Setting, *, regularization: float = 0.0) -> None:
        self.recipe, self.setting, self.regularization = recipe, setting, regularization
        self.w = recipe.start(setting)
        self.metric = recipe.metric.begin(setting, self.w) if recipe.metric else None
        first = self.metric.at(0, self.w, None) if getattr(self.metric, "unit_rows", False) else None
        self.unit_metric = first
        if first is not None and setting.guide is not None:
            self.setting = setting = replace(setting, guide=setting.guide.under(first))
        self.clip = recipe.clip.begin(setting, self.w)
        self.noise = recipe.noise.begin(setting)
        bound = self.clip.at(0, self.w, self.metric.at(0, self.w, None) if self.metric else None, None).bound
        z = self.noise.at(0)
        self.update = recipe.mix.begin(setting, self.w, noise_multiplier=0.0 if z is None else z, bound=bound)
        self.finish = recipe.finish.begin(setting)
        self.velocity: Any = None
        self.history: list[dict[str, Any]] = []
        self.notes: list[str] = []

    def train(self, clipped_sum: Callable[..., BoundedSum], *, account: Account, noise: Noise) -> Any:
        """All steps; what the finish makes of the iterates."""
        start, step = self.w, 0
        while (z := self.noise.at(step)) is not None:
            if not self.step(step, z, clipped_sum, account=account, noise=noise):
                break
            step += 1
        self.notes.extend(getattr(self.noise, "notes", ()))
        return self.finish.result(start)

    def step(
        self, t: int, z: float, clipped_sum: Callable[..., BoundedSum], *, account: Account, noise: Noise
    ) -> bool:
        """One private step; False if the filter ends the run."""
        s, recipe = self.setting, self.recipe
        gradient = s.guide.mean_gradient(self.w) if self._needs_gradient() else None
        origin = recipe.origin.at(gradient) if recipe.origin else None
        metric = self.metric.at(t, self.w, gradient) if self.metric else None
        clip = self.clip.at(t, self.w, metric, origin)
        event = s.sampler.event(s.n, z)
        try:
            self.noise.admit(event)
        except BudgetExceeded:
            return False
        batch = s.sampler.indices(s.n, noise)
        total = clipped_sum(self.w, batch, clip=clip, origin=origin, metric=metric, relation=s.relation)
        std = z * total.sensitivity
        noisy = release(total, std=std, event=event, account=account, noise=noise).numpy() / s.batch
        direction = self._direction(noisy, origin, metric, gradient)
        self.w = self._move(direction, metric, gradient, t)
        self.finish.add(self.w)
        self._record(t, z, clip.bound, std / s.batch, gradient)
        return True

    def _direction(self, noisy: Any, origin: Any, metric: Any, gradient: Any) -> Any:
        """Add the origin back, once, and (in the extended setting) what public records contribute."""
        if self.recipe.extended:
            # The expected sum of the public records in the pool, times q: they need no clipping or noise.
            share = self.setting.guide.size / self.setting.n
            missing = gradient if origin is None else gradient - origin
            noisy = noisy + share * (missing if metric is None else metric.apply(missing))
            noisy = noisy / (1 + share)
        if origin is not None:
            noisy = noisy + (origin if metric is None else metric.apply(origin))
        return noisy if metric is None else self.metric.back(metric, noisy)

    def _move(self, direction: Any, metric: Any, gradient: Any, t: int) -> Any:
        s = self.setting
        if self.recipe.momentum:
            self.velocity = (
                direction if self.velocity is None else self.recipe.momentum * self.velocity + direction
            )
            direction = self.velocity
        public = gradient
        if gradient is not None and metric is not None and getattr(self.metric, "public", None):
            public = self.metric.public(metric, gradient)
        w = self.update(self.w, direction, public, t, s.step_size)
        if self.regularization:
            w = w - s.step_size * self.regularization * self.w
        return w

    def _needs_gradient(self) -> bool:
        r = self.recipe
        parts = (r.origin, r.metric, r.mix)
        return r.extended or any(getattr(part, "needs_gradient", False) for part in parts)

    def _record(self, t: int, z: float, bound: float, std: float, gradient: Any) -> None:
        """What a report may show: all of it is public or released."""
        entry = {"step": t, "noise_multiplier": z, "clip_norm": bound, "noise_std": std}
        r = self.recipe
        if r.clip.needs_after or r.noise.needs_after:
            after = self.setting.public("an adaptive part").mean_gradient(self.w)
            self.clip.after(self.w, after)
            self.noise.after(after, std)
            gradient = after
        if gradient is not None:
            entry["public_gradient_norm"] = float((gradient**2).sum() ** 0.5)
        self.history.append(entry)
        if not math.isfinite(float((self.w**2).sum())):
            raise AssumptionError("training diverged; lower step_size or momentum")
