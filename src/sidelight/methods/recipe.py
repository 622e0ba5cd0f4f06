"""A gradient method as a recipe of parts: where it starts, what it clips around, how, and what it does then.

`loop` has the one private step that every recipe takes, `part` what each kind of part must offer. Parts
combine freely: DOPE-SGD's origin, PPSGD's budget and a mean of iterates are a recipe.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, Self

import numpy as np

from sidelight.data.samplers import Sampler
from sidelight.erm.losses import Loss, Square
from sidelight.errors import InputError
from sidelight.methods.loop import Loop
from sidelight.methods.part import (
    BatchRule,
    ClipRule,
    FinishRule,
    FinishState,
    MetricRule,
    Mix,
    MixState,
    NoiseRule,
    Origin,
    Part,
    Start,
    StepRule,
    Vector,
)
from sidelight.methods.part_checks import KINDS, check_names, check_recipe
from sidelight.methods.rules import AllRecords, NoiseAware
from sidelight.methods.setting import Setting
from sidelight.methods.task import Fitted, Plan, Task, check_method
from sidelight.oracles.linear import LinearOracle
from sidelight.oracles.public import PublicOracle
from sidelight.privacy.events import Relation
from sidelight.privacy.noise import Noise
from sidelight.privacy.release import Account

__all__ = ["Alone", "Cold", "Last", "LastState", "Loop", "Recipe", "Setting"]


# ---------------------------------------------------------------------------------------------------
# the plainest parts


@dataclass(frozen=True)
class Cold(Start):
    """Start at zero; a network where it is, for at zero all its units would stay alike."""

    def __call__(self, setting: Setting) -> Vector:
        return np.zeros(setting.dimension) if setting.network is None else setting.network.present()


@dataclass(frozen=True)
class Alone(Mix, MixState):
    """No public gradient in the update."""

    def begin(self, setting: Setting, params: Vector, *, noise_multiplier: float, bound: float) -> MixState:
        return self

    def mix(
        self, params: Vector, direction: Vector, public_gradient: Vector, *, step: int, step_size: float
    ) -> Vector:
        return direction


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


# ---------------------------------------------------------------------------------------------------
# the recipe


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
        half_square: take the square loss as ½(z − y)².
    """

    name: str = "recipe"
    start: Start = field(default_factory=Cold)
    origin: Origin | None = None
    metric: MetricRule | None = None
    clip: ClipRule
    noise: NoiseRule
    mix: Mix = field(default_factory=Alone)
    finish: FinishRule = field(default_factory=Last)
    steps: int | None = None
    expected_batch_size: float | None = None
    step_size: float | None = None
    momentum: float = 0.0
    extended: bool = False
    public_rows: Literal["guide", "private", "unused"] = "guide"
    departs: tuple[str, ...] = ()
    default_relation: Relation = "add-or-remove-one"
    batch: BatchRule = field(default_factory=AllRecords)
    step: StepRule = field(default_factory=NoiseAware)
    half_square: bool = False

    def __post_init__(self) -> None:
        check_recipe(self)

    @property
    def private(self) -> bool:
        return True

    @property
    def parts(self) -> tuple[Part, ...]:
        """Those that it has."""
        return tuple(part for kind in KINDS if (part := getattr(self, kind)) is not None)

    @property
    def relations(self) -> tuple[Relation, ...]:
        if self.noise.relations is not None:
            return self.noise.relations
        other: Relation = (
            "replace-one" if self.default_relation == "add-or-remove-one" else "add-or-remove-one"
        )
        return (self.default_relation, other)

    @property
    def needs_public(self) -> bool:
        return self.extended or any(part.needs_public for part in self.parts)

    @property
    def on_networks(self) -> bool:
        """Whether no part asks for what a linear model alone has."""
        return not any(part.linear_only for part in self.parts)

    def with_parts(self, **changes: Any) -> Self:
        """A copy with some parts exchanged."""
        check_names(changes, tuple(one.name for one in fields(self)))
        return replace(self, **changes)

    def plan(self, task: Task) -> Plan:
        """Fix every constant from public quantities, and the event that bounds the run."""
        check_method(self, task)
        setting = self._setting(task)
        if self.needs_public:
            setting.public(self.name)
        # Every part begins once without records: one that cannot do this task says so before the charge.
        probe = Loop(self, setting)
        setting = replace(setting, step_size=self._step_size(probe))
        event, filtered, details = self.noise.plan(setting)
        details = {
            "steps": setting.steps,
            "expected_batch_size": setting.batch,
            "sampling_probability": setting.rate,
            "step_size": setting.step_size,
            "clip_norm": probe.first_clip.bound,
            **probe.mix.details,
            **details,
        }
        return Plan(event, filtered, details, self._assumptions(setting), {"setting": setting})

    def run(self, task: Task, plan: Plan, *, account: Account, noise: Noise) -> Fitted:
        """Train a linear model."""
        setting: Setting = plan.state["setting"]
        loop = Loop(self, setting, regularization=task.regularization)
        rows = task.rows.joined(task.public) if self.public_rows == "private" else task.rows
        oracle = LinearOracle(rows, setting.loss, unit_under=loop.unit_metric)
        w = loop.train(oracle.clipped_sum, account=account, noise=noise)
        return Fitted(np.asarray(w).reshape(task.loss.outputs, task.p), loop.history, loop.notes)

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

    def _setting(self, task: Task) -> Setting:
        """Everything but the step size."""
        n = task.n + (task.public.n if self.public_rows == "private" else 0)
        batch, sampler = self.sampler(n, task.public.n, task.relation)
        loss: Loss = Square(0.5) if self.half_square and isinstance(task.loss, Square) else task.loss
        guided = task.public.n > 0 and self.public_rows == "guide"
        setting = Setting(
            n=n, dimension=task.dimension, batch=batch, steps=0, epsilon=task.epsilon, delta=task.delta,
            relation=task.relation, sampler=sampler, loss=loss, max_norm=task.max_norm,
            target_bound=task.target_bound, guide=PublicOracle(task.public, loss) if guided else None,
        )  # fmt: skip
        return self.with_steps(setting)

    def with_steps(self, setting: Setting) -> Setting:
        """The setting with T, which the recipe has or `noise` has a rule for."""
        steps = self.noise.default_steps(setting) if self.steps is None else self.steps
        return replace(setting, steps=int(steps), max_steps=self.steps)

    def _step_size(self, probe: Loop) -> float:
        size = self.step_size
        if size is None:
            size = self.step.size(
                probe.setting,
                noise_multiplier=probe.first_multiplier,
                momentum=self.momentum,
                metric=probe.first_metric,
            )
        if not (math.isfinite(size) and size > 0):
            raise InputError(f"step_size must be a positive number, not {size!r}")
        return float(size)
