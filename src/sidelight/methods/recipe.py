"""A gradient method as a recipe of parts: where it starts, what it clips around, how, and what it does then.

Every recipe takes the one private step, in the one loop:

    ĝ  ← public gradient at w                              (guide)
    o  ← origin(ĝ) ;  M ← metric ;  C ← clip ;  z ← noise  (parts; functions of public and released things)
    S  ← sampler
    G  ← release( Σ_{i∈S} clip_C(M(g_i − o)),  std = z·sensitivity )      ← the only private line
    d  ← back( G/B + M o )                                 (origin added back after the noise, once)
    w  ← problem.apply(w, mix(d, ĝ))                       (a plain step, or an optimizer)

B is the expected batch size, a public constant. `part` says what each kind of part must offer. Parts combine
freely: DOPE-SGD's origin, PPSGD's budget and a mean of iterates are a recipe.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from copy import copy
from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar, Literal, Self

import numpy as np

from sidelight.arrays import Vector, length
from sidelight.clipping import Clip, Features, Metric, ThinFeatures
from sidelight.errors import (
    AssumptionError,
    BudgetExceeded,
    InputError,
    RelationError,
    SidelightError,
    first_line,
    not_negative,
    positive,
)
from sidelight.methods.part_kinds import (
    BatchRule,
    ClipRule,
    ClipState,
    FinishRule,
    FinishState,
    MetricRule,
    MetricState,
    Mix,
    MixState,
    Models,
    NoiseRule,
    NoiseState,
    Origin,
    Part,
    Setting,
    Start,
    StepRule,
    require_gradient,
)
from sidelight.methods.parts import AllRecords, Cold, Last, NoiseAware, PrivateOnly
from sidelight.methods.recipe_checks import (
    KINDS,
    check_like,
    check_names,
    check_recipe,
    check_state,
)
from sidelight.methods.task import PUBLIC_APART, Fitted, Flags, Plan, PlanState, Task, check_method
from sidelight.privacy import events
from sidelight.privacy.events import RELATIONS, Event, Relation, Sampler, check_relation
from sidelight.privacy.noise import Noise
from sidelight.privacy.observer import Observer
from sidelight.privacy.release import Account, BoundedSum
from sidelight.problems.base import LinearProblem, Problem

# ---------------------------------------------------------------------------------------------------
# the loop

ClippedSum = Callable[..., BoundedSum]
_AS_IT_IS = nullcontext()


class Loop:
    """Runs a recipe on a problem.

    The constructor begins every part, with public things alone: a part that cannot do the task raises here.
    """

    def __init__(self, recipe: Recipe, setting: Setting) -> None:
        self.recipe = recipe
        self.w = recipe.start(setting)
        if len(self.w) != setting.problem.dimension:
            raise InputError(f"{type(recipe.start).__name__} must return {setting.problem.dimension} numbers")
        self.steps_taken = 0
        self.metric: MetricState | None = None
        self.first_metric: Metric = None
        if recipe.metric is not None:
            self.metric = check_state(recipe.metric, recipe.metric.begin(setting, self.w), MetricState)
            self.first_metric = self.metric.at(0, self.w, None)
        unit = self.metric is not None and self.metric.unit_rows
        if unit and isinstance(self.first_metric, Features | ThinFeatures):
            setting = replace(setting, problem=setting.problem.under(self.first_metric))
            self.w = recipe.start(setting)  # a warm start on the rows that the loss sees
        self.setting, self.problem = setting, setting.problem
        self.clipped_sum: ClippedSum = setting.problem.clipped_sum
        self.clip = check_state(recipe.clip, recipe.clip.begin(setting, self.w), ClipState)
        self.noise = check_state(recipe.noise, recipe.noise.begin(setting), NoiseState)
        self.first_clip: Clip = self.clip.at(0, self.w, self.first_metric, None)
        self.first_multiplier: float = self.noise.walk or self.noise.at(0) or 0.0
        not_negative("a noise multiplier", self.first_multiplier)
        mix = recipe.mix.begin(
            setting, self.w, noise_multiplier=self.first_multiplier, bound=self.first_clip.bound
        )
        self.mix = check_state(recipe.mix, mix, MixState)
        self.finish = check_state(recipe.finish, recipe.finish.begin(setting), FinishState)
        self.velocity: Vector | None = None
        self._guided = recipe.extended or any(part.needs_gradient for part in recipe.parts)
        self.history: list[dict[str, object]] = []
        self.notes: list[str] = []
        self.start = self.w
        self._described: tuple[Event | None, str] = None, ""  # the last event, and what is said of it
        self._deferred: tuple[Metric, float] | None = None  # of a step whose new parameters are not known yet

    def rehearse(self) -> None:
        """Ask every part once, with zeros: one that fails in a step fails here, before the charge."""
        zeros = 0 * self.w
        gradient = zeros if self._guided else None
        self.problem.check_metric(self.first_metric)
        rule, kept = self.recipe.origin, (self.mix, self.velocity)
        origin = None
        if rule is not None:
            origin = rule.at(require_gradient(gradient, rule))
            check_like(f"{type(rule).__name__}.at", origin, zeros)
        check_like(f"{type(self.first_clip).__name__}.factors", self.first_clip.factors(1 + zeros), zeros)
        try:
            self.mix, self.velocity = copy(self.mix), None
            noisy = zeros if self.first_metric is None else self.first_metric.apply(zeros)
            pooled = noisy if self.recipe.extended else None
            direction = self._direction(noisy, origin, self.first_metric, pooled)
            mixed = self._mixed(direction, self.first_metric, gradient, 0)
            check_like(f"{type(self.mix).__name__}.mix", mixed, self.w)
        finally:
            self.mix, self.velocity = kept
        self._rehearse_finish()

    def _rehearse_finish(self) -> None:
        """A finish of the user's own makes a model of one iterate; ours do, and may take long."""
        if not type(self.finish).__module__.startswith("sidelight."):
            finish = self.recipe.finish.begin(self.setting)
            finish.add(self.w)
            self._check_result(finish.result(self.start))

    def _check_result(self, result: Vector | Models) -> Vector | Models:
        if not isinstance(result, Models):
            check_like(f"{type(self.finish).__name__}.result", result, self.w)
        return result

    def train(
        self,
        *,
        account: Account,
        noise: Noise,
        observers: Sequence[Observer] = (),
    ) -> Vector | Models:
        """Take all steps; the result is what the finish makes of them."""
        self.take_steps(account=account, noise=noise, observers=observers)
        return self.result(self.start)

    def take_steps(
        self,
        *,
        account: Account,
        noise: Noise,
        observers: Sequence[Observer] = (),
        stop: Callable[[], bool] | None = None,
    ) -> None:
        """All steps, or those until `stop` returns True."""
        while self.advance(account=account, noise=noise):
            for observer in observers:
                observer.on_step(self.steps_taken, dict(self.history[-1]))  # theirs to change
            if stop is not None and stop():
                break

    def result(self, start: Vector) -> Vector | Models:
        """What the finish makes of the steps so far."""
        return self._check_result(self.finish.result(start))

    def advance(self, *, account: Account, noise: Noise) -> bool:
        """The next step; False when the plan, or the filter, ends the run."""
        self.problem.begin_step(self.steps_taken)
        z = self.noise.at(self.steps_taken)
        if z is None or not self.step(self.steps_taken, z, account=account, noise=noise):
            return False
        self.steps_taken += 1
        return True

    def all_notes(self) -> list[str]:
        """For the statement, after the run."""
        return [*self.notes, *self.mix.notes, *self.clip.notes, *self.noise.notes, *self.finish.notes]

    def step(self, t: int, z: float, *, account: Account, noise: Noise) -> bool:
        """One private step; False if the filter ends the run."""
        s = self.setting
        gradient = s.public(self.recipe.name).mean_gradient(self.w) if self._guided else None
        if gradient is not None:
            _refuse_divergence(gradient)  # weights that are finite, and too large for the public records
        rule = self.recipe.origin
        origin = None if rule is None else rule.at(require_gradient(gradient, rule))
        metric = self.metric.at(t, self.w, gradient) if self.metric else None
        clip = self.clip.at(t, self.w, metric, origin)
        event = self.noise.event(s, z)
        try:
            self.noise.admit(event)
        except BudgetExceeded:
            return False
        batch = self.problem.sample(self.noise.turn(t, s, noise), noise)
        total = self.clipped_sum(self.w, batch, clip=clip, origin=origin, metric=metric, relation=s.relation)
        std = z * total.sensitivity
        noisy = (
            self.noise.release(total, std=std, event=event, account=account, noise=noise).numpy() / s.batch
        )
        if self.recipe.mix.compares and gradient is not None:
            clipped = self._clipped_public(clip, origin, metric)[1]
            self.mix.observe(noisy, clipped if metric is None else metric.apply(clipped))
        direction = self._direction(noisy, origin, metric, self._pooled(clip, origin, metric, gradient))
        mixed = self._mixed(direction, metric, gradient, t)
        self.w = self.problem.apply(self.w, mixed, step_size=s.step_size)
        _refuse_divergence(self.w)
        self.finish.add(self.w)
        step_std = std / (s.batch * (1 + self._public_share))
        self._record(t, z, event, clip.bound, step_std, gradient)
        if self.problem.deferred:
            self._deferred = (metric, step_std)
        else:
            self._adapt(metric, step_std)
        self._note_loss()
        return True

    def refresh(self, params: Vector) -> None:
        """The parameters as the caller has moved them; adaptive parts see them now."""
        self.w = params
        if self._deferred is not None:
            (metric, std), self._deferred = self._deferred, None
            self._adapt(metric, std)
            self._note_loss()

    @property
    def _public_share(self) -> float:
        """Public records in the pool for each private one."""
        return self.setting.public("the pool").size / self.setting.n if self.recipe.extended else 0.0

    def _pooled(
        self, clip: Clip, origin: Vector | None, metric: Metric, gradient: Vector | None
    ) -> Vector | None:
        """What a public record of the pool contributes on average: M(g_j − o), clipped like a private one.

        It enters by its expectation, q times, without the noise of sampling: public records cost no privacy.
        """
        if not self.recipe.extended or gradient is None:
            return None
        share = 1.0
        if self.recipe.clip_pool:
            share, gradient = self._clipped_public(clip, origin, metric)
        apart = gradient if origin is None else gradient - share * origin
        return apart if metric is None else metric.apply(apart)

    def _clipped_public(self, clip: Clip, origin: Vector | None, metric: Metric) -> tuple[float, Vector]:
        """The mean factor, and the mean gradient, of public records that are clipped like private ones."""
        guide = self.setting.public("the public gradient")
        factors = clip.factors(guide.gradient_norms(self.w, metric=metric, origin=origin))
        return float(factors.mean()), guide.weighted_gradient(self.w, factors)

    def _direction(
        self, noisy: Vector, origin: Vector | None, metric: Metric, pooled: Vector | None
    ) -> Vector:
        """Add the origin back, once, and (in the extended setting) what public records contribute."""
        if pooled is not None:
            noisy = (noisy + self._public_share * pooled) / (1 + self._public_share)
        if origin is not None:
            noisy = noisy + (origin if metric is None else metric.apply(origin))
        return noisy if self.metric is None else self.metric.back(metric, noisy)

    def _mixed(self, direction: Vector, metric: Metric, gradient: Vector | None, t: int) -> Vector:
        """Momentum and the public gradient's share: where the parameters go."""
        public = gradient
        if gradient is not None and self.metric is not None:
            public = self.metric.public(metric, gradient)
        first = self.recipe.mix.before_momentum
        direction = direction if first else self._with_momentum(direction)
        mixed = self.mix.mix(self.w, direction, public, step=t, step_size=self.setting.step_size)
        return self._with_momentum(mixed) if first else mixed

    def _with_momentum(self, direction: Vector) -> Vector:
        if momentum := self.recipe.momentum:
            self.velocity = direction if self.velocity is None else momentum * self.velocity + direction
            return self.velocity
        return direction

    def _record(
        self, t: int, z: float, event: Event, bound: float, std: float, gradient: Vector | None
    ) -> None:
        """What a report may show: all of it is public or released."""
        if event != self._described[0]:  # the same step after step, in most plans
            self._described = event, events.describe(event)
        entry: dict[str, object] = {"step": t, "spent": self._described[1]}
        entry |= {"noise_multiplier": z, "clip_norm": bound, "noise_std": std}
        entry |= self.noise.spending
        if gradient is not None:
            entry["public_gradient_norm"] = length(gradient)
        self.history.append(entry)

    def _note_loss(self) -> None:
        if (loss := self.problem.public_loss(self.w)) is not None:
            self.history[-1]["public_loss"] = loss
        self.history[-1].update(self.problem.scores(self.steps_taken + 1))

    def _adapt(self, metric: Metric, std: float) -> None:
        """Show the adaptive parts the public gradient at the new parameters, in the space of the noise."""
        if not (self.recipe.clip.needs_after or self.recipe.noise.needs_after):
            return
        gradient = self.setting.public("a part that adapts").mean_gradient(self.w)
        self.history[-1]["public_gradient_norm"] = length(gradient)
        transformed = gradient if metric is None else metric.apply(gradient)
        self.clip.after(self.w, transformed)
        self.noise.after(transformed, std)


# ---------------------------------------------------------------------------------------------------
# the recipe


@dataclass(frozen=True, kw_only=True)
class Recipe(Flags):
    """A choice of parts, as made by `dp_sgd`, `ppsgd`, …

    A wrong part is refused when the recipe is made.

    Args:
        steps: T; a budget that adapts stops here at the latest. None takes the rule of `noise`.
        expected_batch_size: B; None takes the rule of `batch`.
        step_size: η; None takes the rule of `step`.
        momentum: heavy ball; 0 is none.
        extended: public records join the pool that is sampled from (DOPE-SGD's extended setting).
        clip_pool: whether these are clipped like private ones, as in the paper. If not, their mean is added
            as it is, which under clipping is another mean than that of the pool.
        public_rows: whether public records guide the training, are treated as private, or are not
            used.
    """

    name: str = "recipe"
    start: Start = field(default_factory=Cold)
    origin: Origin | None = None
    metric: MetricRule | None = None
    clip: ClipRule
    noise: NoiseRule
    mix: Mix = field(default_factory=PrivateOnly)
    finish: FinishRule = field(default_factory=Last)
    steps: int | None = None
    expected_batch_size: float | None = None
    step_size: float | None = None
    momentum: float = 0.0
    extended: bool = False
    clip_pool: bool = True
    public_rows: Literal["guide", "private", "unused"] = "guide"
    departs: tuple[str, ...] = ()
    batch: BatchRule = field(default_factory=AllRecords)
    step: StepRule = field(default_factory=NoiseAware)

    takes_persons: ClassVar[bool] = True  # a private step asks for a clipped sum alone, also one of persons
    takes_partitions: ClassVar[bool] = True  # and one of blocks, whose sums are added

    def __post_init__(self) -> None:
        check_recipe(self)

    @property
    def parts(self) -> tuple[Part, ...]:
        """The parts of this recipe that are set."""
        return tuple(part for kind in KINDS if (part := getattr(self, kind)) is not None)

    @property
    def relations(self) -> tuple[Relation, ...]:  # type: ignore[override]
        return RELATIONS if self.noise.relations is None else self.noise.relations

    @property
    def needs_public(self) -> bool:  # type: ignore[override]
        return self.extended or any(part.needs_public for part in self.parts)

    @property
    def takes_unlabeled(self) -> bool:
        """Whether features of public records are enough."""
        return not self.extended and all(part.takes_unlabeled or not part.needs_public for part in self.parts)

    @property
    def on_networks(self) -> bool:
        """Whether no part needs what only a linear model has."""
        return not any(part.linear_only for part in self.parts)

    def with_parts(self, **changes: Any) -> Self:
        """A copy with some parts exchanged."""
        check_names(changes, tuple(field.name for field in fields(self)))
        return replace(self, **changes)

    def plan(self, task: Task) -> Plan:
        """Fix every constant from public quantities, and the event that bounds the run."""
        check_method(self, task)
        self._check_linear()
        joined = self.public_rows == "private"
        guided = self.public_rows == "guide"
        half_square = any(part.half_square for part in self.parts)
        problem = task.problem(guided=guided, joined=joined, half_square=half_square)
        setting = self.setting(problem, epsilon=task.epsilon, delta=task.delta, relation=task.relation)
        # Every part begins once without records: one that cannot do this task says so before the charge.
        loop = self.begin(setting)
        return self.plan_of(loop, {"setting": replace(loop.setting, problem=problem)})

    def run(self, task: Task, plan: Plan, *, account: Account, noise: Noise) -> Fitted:
        """Train a linear model."""
        loop = self.reading(task, plan)
        loop.take_steps(account=account, noise=noise, observers=task.observers)
        return self.fitted(task, loop)

    def reading(self, task: Task, plan: Plan) -> Loop:
        """The steps of a plan, about to read the private records."""
        setting: Setting = plan.state["setting"]
        rows = task.rows.joined(task.public) if self.public_rows == "private" else task.rows
        if isinstance(setting.problem, LinearProblem):
            setting = replace(setting, problem=setting.problem.reading(rows))
        return Loop(self, setting)

    def fitted(self, task: Task, loop: Loop) -> Fitted:
        """What was trained."""
        w = np.asarray(loop.result(loop.start), dtype=np.float64).reshape(task.loss.outputs, task.p)
        return Fitted(w, loop.history, loop.all_notes())

    def _check_linear(self) -> None:
        for part in self.parts:
            if part.network_only:
                raise InputError(
                    f"{type(part).__name__} is for networks; a linear model takes another {part.kind}="
                )

    # -----------------------------------------------------------------------------------------------
    # on any problem

    def setting(self, problem: Problem, *, epsilon: float, delta: float, relation: Relation) -> Setting:
        """The public constants of a run, but for the step size."""
        if check_relation(relation) not in self.relations:
            raise RelationError(f"{self.name} supports {' or '.join(self.relations)} only, not {relation}")
        n_public = 0 if problem.public is None else problem.public.size
        batch, sampler = self.sampler(problem.n, n_public, relation)
        setting = Setting(
            problem=problem, batch=batch, steps=0, epsilon=epsilon, delta=delta, relation=relation,
            sampler=sampler, max_steps=self.steps, step_size=self.step_size or 0.0,
            momentum=self.momentum or problem.momentum, finish=self.finish,
        )  # fmt: skip
        steps = self.noise.default_steps(setting) if self.steps is None else self.steps
        setting = replace(setting, steps=int(steps), step_sizes=self._step_sizes(problem, int(steps)))
        if self.noise.shaped and self.metric is not None:
            w = problem.start()
            setting = replace(setting, metric=self.metric.begin(setting, w).at(0, w, None))
        return self.noise.arrange(setting)

    def _arranged_again(self, loop: Loop, setting: Setting) -> Setting:
        """For noise that is shaped by the step size and by the metric at the start, which are known now."""
        known = loop.setting
        n_public = 0 if known.guide is None else known.guide.size
        batch, sampler = self.sampler(known.n, n_public, known.relation)
        known = replace(known, batch=batch, sampler=sampler, metric=loop.first_metric)
        return replace(self.noise.arrange(known), problem=setting.problem)

    def _step_sizes(self, problem: Problem, steps: int) -> tuple[float, ...]:
        """How far each step moves along the private direction, relative to the longest; empty: all alike."""
        if self.noise.independent:
            return ()
        taken = [sizes for sizes in (problem.step_sizes(steps), self.mix.private_shares(steps)) if sizes]
        return tuple(math.prod(sizes) for sizes in zip(*taken, strict=True))

    def begin(self, setting: Setting) -> Loop:
        """Every part, begun; raises for one that does not support the problem."""
        if self.needs_public and not self.takes_unlabeled:
            setting.public(self.name)
        try:
            loop = Loop(self, setting)
            loop.setting = replace(loop.setting, step_size=self._step_size(loop))
            if self.noise.shaped and not setting.problem.has_optimizer:
                loop = Loop(self, self._arranged_again(loop, setting))
            loop.rehearse()
        except (SidelightError, MemoryError):
            raise
        except Exception as error:
            raise InputError(
                f"a part of {self.name!r} fails on zeros ({first_line(error)}). Parts get the public "
                "gradient only if one of them sets needs_gradient = True"
            ) from error
        return loop

    def plan_of(self, loop: Loop, state: PlanState | None = None) -> Plan:
        """The event that bounds a run, and the choices made."""
        setting, problem = loop.setting, loop.problem
        noise = self.noise_plan(setting)
        details = {
            "steps": setting.steps,
            "expected_batch_size": setting.batch,
            "sampling_probability": setting.rate,
            **({} if problem.has_optimizer else {"step_size": setting.step_size}),
            "clip_norm": loop.first_clip.bound,
            **({"clip_pool": self.clip_pool} if self.extended else {}),
            **problem.details,
            **loop.mix.details,
            **noise.details,
        }
        return replace(noise, details=details, assumptions=self._assumptions(setting), state=state or {})

    def noise_plan(self, setting: Setting) -> Plan:
        """The event that bounds the steps, and what the noise rule reports."""
        plan: object = self.noise.plan(setting)
        match plan:
            case (Event() as event, bool() as filtered, Mapping() as details):
                return Plan(event, filtered, details)
        name = type(self.noise).__name__
        raise InputError(f"{name}.plan must return (event, whether it is a filter's, details), not {plan!r}")

    def sampler(self, n: int, n_public: int, relation: Relation) -> tuple[float, Sampler]:
        """B (of private records) and the sampler."""
        if self.extended and self.expected_batch_size is None:
            raise InputError("the extended setting samples a pool; pass expected_batch_size")
        pool = n + (n_public if self.extended else 0)
        return self.batch.sampler(self.expected_batch_size, n=n, pool=pool, relation=relation)

    def _assumptions(self, setting: Setting) -> tuple[str, ...]:
        if setting.guide is None:
            return self.departs
        return (PUBLIC_APART, *self.departs)

    def _step_size(self, loop: Loop) -> float:
        if loop.problem.has_optimizer:
            return 1.0
        size = self.step_size
        if size is None:
            size = self.step.size(
                loop.setting,
                noise_multiplier=loop.first_multiplier,
                momentum=self.momentum,
                metric=loop.first_metric,
            )
            positive(f"{type(self.step).__name__}.size", size)
        return float(size)


def _refuse_divergence(vector: Vector) -> None:
    """Raise for one that is not finite: weights after a release, or a gradient of public records there."""
    flat = vector.reshape((-1,))
    quiet = np.errstate(over="ignore", invalid="ignore") if isinstance(flat, np.ndarray) else _AS_IT_IS
    with quiet:
        finite = math.isfinite(float(flat @ flat))
    if not finite:  # the error reveals nothing beyond the released values
        raise AssumptionError("training diverged; lower step_size or momentum")
