"""A gradient method as a recipe of parts: where it starts, what it clips around, how, and what it does then.

`loop` has the one private step that every recipe takes, `part` what each kind of part must offer. Parts
combine freely: DOPE-SGD's origin, PPSGD's budget and a mean of iterates are a recipe.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, Self

import numpy as np

from sidelight.clipping import Details
from sidelight.errors import InputError, RelationError
from sidelight.methods.loop import Loop
from sidelight.methods.part import (
    KINDS,
    BatchRule,
    ClipRule,
    FinishRule,
    MetricRule,
    Mix,
    NoiseRule,
    Origin,
    Part,
    Setting,
    Start,
    StepRule,
    check_names,
    check_recipe,
)
from sidelight.methods.parts import AllRecords, Cold, Last, NoiseAware, PrivateOnly
from sidelight.methods.task import Fitted, Plan, PlanState, Task, check_method
from sidelight.privacy.events import RELATIONS, Event, Relation, check_relation
from sidelight.privacy.noise import Noise
from sidelight.privacy.release import Account
from sidelight.problems.base import Problem
from sidelight.problems.linear import LinearProblem
from sidelight.samplers import Sampler

__all__ = ["Loop", "Recipe", "Setting"]


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """A choice of parts. The functions of its siblings (`dp_sgd`, `ppsgd`, …) make these.

    A wrong part is refused when the recipe is made.

    Args:
        steps: T; a budget that adapts stops here at the latest. None takes the rule of `noise`.
        expected_batch_size: B; None takes the rule of `batch`.
        step_size: η; None takes the rule of `step`.
        momentum: heavy ball; 0 is none.
        extended: public records join the pool that is sampled from (DOPE-SGD's extended setting).
        public_rows: whether public records guide the training, are trained on as if they were private, or
            are not looked at.
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
    public_rows: Literal["guide", "private", "unused"] = "guide"
    departs: tuple[str, ...] = ()
    batch: BatchRule = field(default_factory=AllRecords)
    step: StepRule = field(default_factory=NoiseAware)

    def __post_init__(self) -> None:
        check_recipe(self)

    @property
    def private(self) -> bool:
        return True

    @property
    def takes_persons(self) -> bool:
        """A private step asks for a clipped sum alone, which is one of persons as well as of records."""
        return True

    @property
    def takes_partitions(self) -> bool:
        """And one of blocks, whose sums are added."""
        return True

    @property
    def parts(self) -> tuple[Part, ...]:
        """Those that it has."""
        return tuple(part for kind in KINDS if (part := getattr(self, kind)) is not None)

    @property
    def relations(self) -> tuple[Relation, ...]:
        return RELATIONS if self.noise.relations is None else self.noise.relations

    @property
    def needs_public(self) -> bool:
        return self.extended or any(part.needs_public for part in self.parts)

    @property
    def on_networks(self) -> bool:
        """Whether no part asks for what a linear model alone has."""
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
        return self.plan_of(loop, {"setting": replace(setting, step_size=loop.setting.step_size)})

    def run(self, task: Task, plan: Plan, *, account: Account, noise: Noise) -> Fitted:
        """Train a linear model."""
        setting: Setting = plan.state["setting"]
        rows = task.rows.joined(task.public) if self.public_rows == "private" else task.rows
        if isinstance(setting.problem, LinearProblem):
            setting = replace(setting, problem=setting.problem.reading(rows))
        loop = Loop(self, setting)
        w = loop.train(account=account, noise=noise, observers=task.observers)
        return Fitted(
            np.asarray(w, dtype=np.float64).reshape(task.loss.outputs, task.p), loop.history, loop.all_notes()
        )

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
            raise RelationError(f"{self.name} gives {' or '.join(self.relations)}, not {relation}")
        n_public = 0 if problem.public is None else problem.public.size
        batch, sampler = self.sampler(problem.n, n_public, relation)
        setting = Setting(
            problem=problem, batch=batch, steps=0, epsilon=epsilon, delta=delta, relation=relation,
            sampler=sampler, max_steps=self.steps,
        )  # fmt: skip
        steps = self.noise.default_steps(setting) if self.steps is None else self.steps
        return replace(setting, steps=int(steps))

    def begin(self, setting: Setting) -> Loop:
        """Every part, begun; raises for one that cannot do the problem."""
        if self.needs_public:
            setting.public(self.name)
        loop = Loop(self, setting)
        loop.setting = replace(loop.setting, step_size=self._step_size(loop))
        loop.rehearse()
        return loop

    def plan_of(self, loop: Loop, state: PlanState | None = None) -> Plan:
        """The event that bounds a run, and the choices made."""
        setting, problem = loop.setting, loop.problem
        event, filtered, noise_details = self._noise_plan(setting)
        details = {
            "steps": setting.steps,
            "expected_batch_size": setting.batch,
            "sampling_probability": setting.rate,
            **({} if problem.has_optimizer else {"step_size": setting.step_size}),
            "clip_norm": loop.first_clip.bound,
            **problem.details,
            **loop.mix.details,
            **noise_details,
        }
        return Plan(event, filtered, details, self._assumptions(setting), state or {})

    def _noise_plan(self, setting: Setting) -> tuple[Event, bool, Details]:
        plan: object = self.noise.plan(setting)
        match plan:
            case (Event() as event, bool() as filtered, Mapping() as details):
                return event, filtered, details
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
        return ("the public records do not depend on the private ones", *self.departs)

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
        if not (math.isfinite(size) and size > 0):
            raise InputError(f"step_size must be a positive number, not {size!r}")
        return float(size)


def __getattr__(name: str) -> object:
    """`Alone` of 0.1 is `PrivateOnly`."""
    if name != "Alone":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    warnings.warn("Alone is now PrivateOnly (sidelight.methods)", DeprecationWarning, stacklevel=2)
    return PrivateOnly
