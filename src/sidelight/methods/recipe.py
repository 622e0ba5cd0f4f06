"""A gradient method as a recipe of parts: where it starts, what it clips around, how, and what it does then.

`loop` has the one private step that every recipe takes, `setting` what each kind of part must offer. Parts
combine freely: DOPE-SGD's origin, PPSGD's budget and a mean of iterates are a recipe.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

import numpy as np

from sidelight.data.samplers import FixedSize, FullBatch, Poisson, Sampler
from sidelight.erm.losses import Loss
from sidelight.errors import InputError
from sidelight.methods.loop import Loop
from sidelight.methods.parts import Features, Metric
from sidelight.methods.setting import Setting, Update
from sidelight.methods.task import Fitted, Plan, Task, check_method
from sidelight.oracles.linear import LinearOracle
from sidelight.oracles.public import PublicOracle
from sidelight.privacy.events import Relation
from sidelight.privacy.noise import Noise
from sidelight.privacy.release import Account

__all__ = ["Alone", "Cold", "Last", "LastState", "Loop", "Recipe", "Setting", "Update"]


# ---------------------------------------------------------------------------------------------------
# the plainest parts


@dataclass(frozen=True)
class Cold:
    """Start at zero; a network where it is, for at zero all its units would stay alike."""

    def __call__(self, setting: Setting) -> Any:
        return np.zeros(setting.dimension) if setting.network is None else setting.network.present()


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
    """A choice of parts. The functions of its siblings (`dp_sgd`, `ppsgd`, …) make these.

    Args:
        steps: T; a budget that adapts stops here at the latest. None takes a rule (`default_steps`).
        expected_batch_size: B; None takes every record in every step.
        step_size: η; None takes the rule of `noise_aware_step`.
        momentum: heavy ball; 0 is none.
        extended: public records join the pool that is sampled from (DOPE-SGD's extended setting).
        public_rows: whether public records guide the training, are trained on as if they were private, or
            are not looked at.
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
    public_rows: Literal["guide", "private", "unused"] = "guide"
    departs: tuple[str, ...] = ()
    default_relation: Relation = "add-or-remove-one"
    on_networks: ClassVar[bool] = True  # whether it asks for nothing that a linear model alone has

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
        self._check()
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
            **getattr(probe.update, "details", {}),
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

    def _check(self) -> None:
        if self.clip is None or self.noise is None:
            raise InputError("a recipe needs clip= and noise=, for instance FlatClip() and ConstantNoise()")
        if self.public_rows not in ("guide", "private", "unused"):
            raise InputError(f"public_rows is 'guide', 'private' or 'unused', not {self.public_rows!r}")
        if not 0 <= self.momentum < 1:
            raise InputError(f"momentum must be in [0, 1), not {self.momentum!r}")

    def _assumptions(self, setting: Setting) -> tuple[str, ...]:
        if setting.guide is None:
            return self.departs
        return ("the public records do not depend on the private ones", *self.departs)

    def _setting(self, task: Task) -> Setting:
        """Everything but the step size."""
        n = task.n + (task.public.n if self.public_rows == "private" else 0)
        pool = n + (task.public.n if self.extended else 0)
        batch, sampler = self._sampler(n, pool, task.relation)
        loss = self._loss(task)
        guided = task.public.n > 0 and self.public_rows == "guide"
        setting = Setting(
            n=n, dimension=task.dimension, batch=batch, steps=0, epsilon=task.epsilon, delta=task.delta,
            relation=task.relation, sampler=sampler, loss=loss, max_norm=task.max_norm,
            target_bound=task.target_bound, guide=PublicOracle(task.public, loss) if guided else None,
        )  # fmt: skip
        steps = self.steps
        if steps is None:
            steps = getattr(self.noise, "planned_steps", None) or default_steps(setting)
        if not isinstance(steps, int | np.integer) or steps < 1:
            raise InputError(f"steps must be a whole number of at least 1, not {steps!r}")
        return replace(setting, steps=int(steps), max_steps=self.steps)

    def _step_size(self, probe: Loop) -> float:
        size = self.step_size
        if size is None:
            top = longest_direction(probe.setting, probe.first_metric, unit=probe.unit_metric is not None)
            z = probe.first_multiplier
            size = noise_aware_step(probe.setting, noise_multiplier=z, momentum=self.momentum, top=top)
        if not (math.isfinite(size) and size > 0):
            raise InputError(f"step_size must be a positive number, not {size!r}")
        return float(size)

    def _loss(self, task: Task) -> Loss:
        return task.loss

    def _sampler(self, n: int, pool: int, relation: Relation) -> tuple[float, Sampler]:
        """B (of private records) and the sampler; in the extended setting q is that of the larger pool."""
        asked = self.expected_batch_size
        if asked is None or asked >= pool:
            if self.extended and asked is None:
                raise InputError("the extended setting samples a pool; pass expected_batch_size")
            return float(n), FullBatch(relation)
        if not asked > 0:
            raise InputError(f"expected_batch_size must be positive, not {asked!r}")
        batch = asked * n / pool
        if relation == "add-or-remove-one":
            return batch, Poisson(batch / n)
        size = max(1, round(batch))
        return (float(n), FullBatch(relation)) if size == n else (float(size), FixedSize(size))


# ---------------------------------------------------------------------------------------------------
# what is not given


def default_steps(setting: Setting) -> int:
    """64 full-batch steps, or the passes that make up for small batches, at most 1000."""
    return int(min(1000, max(64, round(10 / setting.rate))))


def noise_aware_step(setting: Setting, *, noise_multiplier: float, momentum: float, top: float) -> float:
    """η = (1−β)·c/(h·κ): as long as the noise allows, and never beyond what the loss is stable at.

    c = min(2/(k√T·ν), cap), with ν the length of one step's noise in units of the clip norm, so that the walk
    of all noise together has a fixed length; h the top eigenvalue of the (public) second moment, κ the
    curvature of the loss; k = 2 and a smaller cap for the square loss. Found on benchmarks (METHODS 20).
    """
    noise = noise_multiplier * setting.sensitivity_factor * math.sqrt(setting.dimension) / setting.batch
    curvature = setting.loss.smoothness
    square = setting.loss.lipschitz is None
    cap = 16.0 if curvature is None else 4.0 if momentum else 1.8
    c = min(2 / ((2 if square else 1) * math.sqrt(setting.steps) * noise), cap)
    return (1 - momentum) * c / (top * (1.0 if curvature is None else curvature))


def longest_direction(setting: Setting, metric: Metric, *, unit: bool) -> float:
    """The top eigenvalue of the public second moment of rows (as the loss sees them), or its bound."""
    if setting.guide is None or setting.guide.size == 0:
        return float(setting.max_norm**2)
    X = setting.guide.rows.X
    if isinstance(metric, Features):
        X = X @ metric.matrix.T
        lengths = np.linalg.norm(X, axis=1, keepdims=True)
        X = X / np.maximum(lengths, 1e-12 if unit else 1.0)
    n, p = X.shape
    gram = X @ X.T if n < p else X.T @ X
    gram = gram.toarray() if hasattr(gram, "toarray") else gram
    top = float(np.linalg.eigvalsh(np.asarray(gram, dtype=np.float64))[-1])
    return max(top / int(n), 1e-12)
