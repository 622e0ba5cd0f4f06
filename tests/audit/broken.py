"""Methods that are broken on purpose, each as some paper, its code, or a plausible user has it.

Every copy claims the guarantee of the original under a name of its own; an audit must call that name.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar

import numpy as np

from sidelight.audit.tape import vector
from sidelight.data.rows import contents
from sidelight.methods.adadps import adadps
from sidelight.methods.dope_sgd import dope_sgd
from sidelight.methods.dp_agd import DpAgd, _Search, line_scores, selection_scale
from sidelight.methods.dp_sgd import dp_sgd
from sidelight.methods.part_kinds import BatchRule, NoiseState
from sidelight.methods.parts import Flat
from sidelight.methods.pnsgd import Pnsgd, _steps
from sidelight.methods.ppsgd import GrowingBudget, GrowingBudgetState, ppsgd
from sidelight.methods.recipe import Loop, Recipe
from sidelight.methods.rsgd_ar import RsgdAr, descend, schedule
from sidelight.methods.task import Fitted, Plan, Task
from sidelight.oracles.linear.linear_oracle import LinearOracle
from sidelight.oracles.linear.row_sums import RowSums
from sidelight.privacy import events
from sidelight.privacy.events import FixedSize
from sidelight.privacy.filters import TruncatedConcentratedFilter
from sidelight.privacy.release import BoundedSum, private_process, release

STEPS, HALF = 6, 22
Sums = Callable[..., BoundedSum]


def live(oracle: LinearOracle, indices: Any) -> int:
    """The realised batch size: records that are there."""
    here = np.arange(oracle.size) if indices is None else indices
    return len(here) if oracle._ignored is None else int((~oracle._ignored[here]).sum())


def bounded(value: Any, total: BoundedSum, share: float = 1.0) -> BoundedSum:
    return BoundedSum(value, sensitivity=share * total.sensitivity, relation=total.relation)


@dataclass(frozen=True)
class Tampered(Recipe):
    """A recipe whose sums are exchanged; subclasses say how."""

    loop: ClassVar[type[Loop]] = Loop

    def sums(self, oracle: LinearOracle, loop: Loop) -> Sums:
        return oracle.clipped_sum

    def run(self, task: Task, plan: Plan, *, account: Any, noise: Any) -> Fitted:
        loop = self.loop(self, plan.state["setting"])
        loop.clipped_sum = self.sums(LinearOracle(task.rows, task.loss), loop)
        w = loop.train(account=account, noise=noise)
        return Fitted(np.asarray(w).reshape(task.loss.outputs, task.p), loop.history, loop.notes)


def tampered(kind: type[Tampered], recipe: Recipe, name: str, **changes: Any) -> Tampered:
    parts = {f.name: getattr(recipe, f.name) for f in fields(recipe)}
    return kind(**{**parts, "name": name, **changes})


# ---------------------------------------------------------------------------------------------------
# the papers' own gaps


class OriginOnce(Loop):
    """The origin is in the sum already."""

    def _direction(self, noisy: Any, origin: Any, metric: Any, gradient: Any) -> Any:
        return noisy


class OriginPerExample(Tampered):
    """DOPE-SGD, Algorithm 2, line 9: ĝ + clip(g − ĝ) for each example, so |B_t|·ĝ is in the sum."""

    loop = OriginOnce

    def sums(self, oracle: LinearOracle, loop: Loop) -> Sums:
        def published(w: Any, indices: Any = None, **options: Any) -> BoundedSum:
            total = oracle.clipped_sum(w, indices, **options)
            return bounded(vector(total) + live(oracle, indices) * options["origin"], total)

        return published


@dataclass(frozen=True)
class FixedSizeClaimedPoisson(FixedSize):
    """Batches of a fixed size, charged as Poisson ones (0.72 claimed, 6.5 true: vector F9)."""

    relation: ClassVar[Any] = "add-or-remove-one"

    def event(self, n: int, noise_multiplier: float) -> Any:
        return events.poisson(self.size / n, noise_multiplier)


@dataclass(frozen=True)
class FixedBatches(BatchRule):
    """DP-SGD as most code has it."""

    def sampler(self, asked: Any, *, n: int, pool: int, relation: Any) -> Any:
        return float(HALF), FixedSizeClaimedPoisson(HALF)


class NoConditions(TruncatedConcentratedFilter):
    """tCDP amplification by its formula, ρ = 13q²ρ_s, whether or not the theorem applies."""

    def cost(self, event: Any) -> float:
        q = event.sample_size / event.source_dataset_size
        return float(13 * q * q / (2 * event.event.noise_multiplier**2))


class Uncapped(GrowingBudget):
    """PPSGD as published: ρ_t grows without the cap that ω_total implies."""

    def _tcdp(self, setting: Any) -> GrowingBudgetState:
        limit = NoConditions(epsilon=setting.epsilon, delta=setting.delta, relation=setting.relation)
        state = GrowingBudgetState(self, setting, limit, 0.0, cap=1e300)
        state.set_rho(limit.total)  # all of it in the first step, where φ‖ĝ‖ leads sooner or later
        return state


class WrongSign(_Search):
    """The released code of DP-AGD: argmin(loss + Exp), noise of the wrong sign (vector N4)."""

    def _select(self, direction: Any) -> float:
        steps = np.linspace(0.0, self.largest, self.method.candidates + 1)
        bound, rho = self.method.objective_clip, self.rho_n
        scale = selection_scale(bound=bound, rho=rho, selection="exponential", relation=self.task.relation)
        scores = -vector(line_scores(self.task, self.w, direction, steps, bound=bound))

        def process(noise: Any) -> Any:
            return np.array([np.argmin(scores + scale * noise.generator.standard_exponential(len(scores)))])

        chosen = private_process(process, event=self._spend(rho), account=self.account, noise=self.noise)
        return float(steps[int(chosen.numpy()[0])])


@dataclass(frozen=True)
class WrongSignAgd(DpAgd):
    name: ClassVar[str] = "dp_agd, wrong sign"

    def run(self, task: Task, plan: Plan, *, account: Any, noise: Any) -> Fitted:
        search = WrongSign(self, task, account, noise)
        search.go()
        return Fitted(search.w.reshape(task.loss.outputs, task.p), search.history)


@dataclass(frozen=True)
class NormalizedRsgd(RsgdAr):
    """The released code of RSGD-AR: every batch gradient is divided by its norm."""

    name: ClassVar[str] = "rsgd_ar, normalized gradients"

    def _release(self, task: Task, plan: Plan, order: Any, *, account: Any, noise: Any) -> Fitted:
        problem, sizes, std = plan.state["problem"], plan.state["sizes"], plan.state["std"]
        batches = np.split(order, np.cumsum(sizes)[:-1])

        def algorithm(X: Any, y: Any) -> Any:
            records = RowSums(X, y, problem.loss)

            def unit(w: Any, j: int) -> Any:
                gradient = records.gradient(w, batches[j]) / sizes[j]
                return gradient / max(float(np.linalg.norm(gradient)), 1e-12)

            moves = schedule(batches=len(sizes), **self._moves())
            start = np.zeros(task.dimension)
            return descend(unit, moves, start=start, regularization=problem.regularization)

        total = task.rows.compute(algorithm, sensitivity=plan.state["sensitivity"], relation=task.relation)
        noisy = release(total, std=std, event=plan.event, account=account, noise=noise)
        return Fitted(noisy.numpy().reshape(task.loss.outputs, task.p), self._history(std))


# ---------------------------------------------------------------------------------------------------
# what else goes wrong in practice


class MeanOfBatch(Tampered):
    """A mean over the realised batch, times B, with the sensitivity of the sum."""

    def sums(self, oracle: LinearOracle, loop: Loop) -> Sums:
        def mean(w: Any, indices: Any = None, **options: Any) -> BoundedSum:
            total = oracle.clipped_sum(w, indices, **options)
            return bounded(vector(total) * HALF / max(1, live(oracle, indices)), total)

        return mean


class DividedAfterwards(Tampered):
    """The noisy sum is divided by the realised batch size: the divisor goes past the door."""

    def sums(self, oracle: LinearOracle, loop: Loop) -> Sums:
        honest = loop._direction

        def counted(w: Any, indices: Any = None, **options: Any) -> BoundedSum:
            size = max(1, live(oracle, indices))
            loop._direction = lambda noisy, *rest: honest(noisy * HALF / size, *rest)  # type: ignore[method-assign]
            return oracle.clipped_sum(w, indices, **options)

        return counted


class ReplacedOnceCounted(Tampered):
    """Noise in units of C where a replaced record moves the sum by 2C."""

    def sums(self, oracle: LinearOracle, loop: Loop) -> Sums:
        def half(w: Any, indices: Any = None, **options: Any) -> BoundedSum:
            total = oracle.clipped_sum(w, indices, **options)
            return bounded(vector(total), total, 0.5)

        return half


class FarTooQuiet(Tampered):
    """Noise for an eighth of the sensitivity."""

    def sums(self, oracle: LinearOracle, loop: Loop) -> Sums:
        def eighth(w: Any, indices: Any = None, **options: Any) -> BoundedSum:
            total = oracle.clipped_sum(w, indices, **options)
            return bounded(vector(total), total, 1 / 8)

        return eighth


class ClippedMean(Tampered):
    """The gradient of the batch is clipped, instead of each record's."""

    def sums(self, oracle: LinearOracle, loop: Loop) -> Sums:
        def clipped(w: Any, indices: Any = None, *, clip: Any, **options: Any) -> BoundedSum:
            far = replace(clip, clip_norm=1e6)
            mean = vector(oracle.clipped_sum(w, indices, clip=far, **options)) / oracle.size
            scale = min(1.0, clip.bound / max(float(np.linalg.norm(mean)), 1e-12)) * oracle.size
            total = oracle.clipped_sum(w, indices, clip=clip, **options)
            return bounded(mean * scale, total)

        return clipped


class MetricAfterClip(Tampered):
    """AdaDPS the wrong way round: clip(g)/A in place of clip(g/A)."""

    def sums(self, oracle: LinearOracle, loop: Loop) -> Sums:
        def after(w: Any, indices: Any = None, *, metric: Any, **options: Any) -> BoundedSum:
            total = oracle.clipped_sum(w, indices, **options)
            return bounded(metric.apply(vector(total)), total)

        return after


class EarlyStop(Tampered):
    """Stops as soon as the private sum is small: the number of steps is an output."""

    def sums(self, oracle: LinearOracle, loop: Loop) -> Sums:
        honest, lengths = loop.noise.at, list[float]()
        loop.noise = _Stopping(honest, lengths)

        def watched(w: Any, indices: Any = None, **options: Any) -> BoundedSum:
            total = oracle.clipped_sum(w, indices, **options)
            lengths.append(float(vector(total)[0]))
            return total

        return watched


@dataclass
class _Stopping(NoiseState):
    honest: Any
    lengths: list[float]

    def at(self, step: int) -> float | None:
        if self.lengths and self.lengths[-1] > -0.05:
            return None
        return self.honest(step)


class Chatty(Tampered):
    """The batch size goes into the history."""

    def sums(self, oracle: LinearOracle, loop: Loop) -> Sums:
        def counted(w: Any, indices: Any = None, **options: Any) -> BoundedSum:
            loop.notes.append(f"batch of {live(oracle, indices)}")
            return oracle.clipped_sum(w, indices, **options)

        return counted


class PrivateQuantile(Recipe):
    """The clip norm is read off the private records, for free."""

    def plan(self, task: Task) -> Plan:
        longest = float(np.median(contents(task.rows).norms))
        return self.with_parts(clip=Flat(longest))._planned(task)

    def _planned(self, task: Task) -> Plan:
        return super().plan(task)


@dataclass(frozen=True)
class AveragedPnsgd(Pnsgd):
    """PNSGD that releases an early iterate: the public steps at the end hide nothing then."""

    name: ClassVar[str] = "pnsgd, early iterate"

    def run(self, task: Task, plan: Plan, *, account: Any, noise: Any) -> Fitted:
        problem, std, eta = plan.state["problem"], plan.state["std"], plan.state["step_size"]

        def process(source: Any) -> Any:
            w = np.zeros(task.dimension)
            for records, indices, divisor in _steps(task, problem, plan.state["batch"], source):
                if divisor == 1.0:  # the public ones
                    break
                w = w - eta * (records.gradient(w, indices) / divisor + source.normal(w.size, std=std))
            return w

        last = private_process(process, event=plan.event, account=account, noise=noise)
        return Fitted(last.numpy().reshape(1, task.p))


class ScalarNoise(Recipe):
    """One draw of noise for all coordinates (METHODS 0, rule 1)."""

    def run(self, task: Task, plan: Plan, *, account: Any, noise: Any) -> Fitted:
        setting = plan.state["setting"]
        oracle, w = LinearOracle(task.rows, task.loss), np.zeros(task.dimension)
        z = plan.details["noise_multiplier"]
        assert isinstance(z, float)
        for _ in range(setting.steps):
            total = oracle.clipped_sum(w, clip=Flat().begin(setting, w), relation=task.relation)

            def process(source: Any, total: BoundedSum = total) -> Any:
                return vector(total) + z * total.sensitivity * float(source.normal(1)[0])

            event = setting.sampler.event(setting.n, z)
            noisy = private_process(process, event=event, account=account, noise=noise)
            w = w - 0.1 * noisy.numpy() / setting.n
        return Fitted(w.reshape(1, -1))


class Forgetful(Tampered):
    """Charges every other step only."""

    def run(self, task: Task, plan: Plan, *, account: Any, noise: Any) -> Fitted:
        return super().run(task, plan, account=_EveryOther(account), noise=noise)


@dataclass
class _EveryOther:
    account: Any
    count: int = 0

    def charge(self, event: Any) -> None:
        self.count += 1
        if self.count % 2:
            self.account.charge(event)


def _dp(**more: Any) -> Recipe:
    return dp_sgd(steps=STEPS, clip_norm=0.3, **more)


def uncapped() -> Recipe:
    honest = ppsgd(accounting="tcdp", planned_steps=STEPS)
    noise = Uncapped(planned_steps=STEPS, accounting="tcdp")
    return honest.with_parts(name="ppsgd, no omega cap", noise=noise)


def _as(kind: type[Recipe], recipe: Recipe, name: str) -> Recipe:
    parts = {f.name: getattr(recipe, f.name) for f in fields(recipe)}
    return kind(**{**parts, "name": name})


ADD, REPLACE = "add-or-remove-one", "replace-one"
# name: (how to make it, the relation that it claims, what the audit must say)
BROKEN: dict[str, tuple[Callable[[], Any], str, str]] = {
    "dope_sgd, |B|·ĝ": (
        lambda: tampered(OriginPerExample, dope_sgd(steps=STEPS, clip_norm=0.3), "dope_sgd, |B|·ĝ"),
        ADD,
        "one record moves a private sum",
    ),
    "dp_sgd, fixed size as Poisson": (
        lambda: _dp().with_parts(name="dp_sgd, fixed size as Poisson", batch=FixedBatches()),
        ADD,
        "batches are drawn as the event says",
    ),
    "ppsgd, no omega cap": (uncapped, REPLACE, "the filter's certificate covers"),
    "dp_agd, wrong sign": (lambda: WrongSignAgd(splits=3), ADD, "the outputs of a private_process"),
    "rsgd_ar, normalized gradients": (NormalizedRsgd, REPLACE, "one record moves a private sum"),
    "dp_sgd, mean of the batch": (
        lambda: tampered(MeanOfBatch, _dp(expected_batch_size=HALF), "dp_sgd, mean of the batch"),
        ADD,
        "one record moves a private sum",
    ),
    "dp_sgd, realised divisor": (
        lambda: tampered(DividedAfterwards, _dp(expected_batch_size=HALF), "dp_sgd, realised divisor"),
        ADD,
        "nothing else that leaves the run",
    ),
    "dp_sgd, C under replace-one": (
        lambda: tampered(ReplacedOnceCounted, _dp(), "dp_sgd, C under replace-one"),
        REPLACE,
        "one record moves a private sum",
    ),
    "dp_sgd, clipped mean": (
        lambda: tampered(ClippedMean, dp_sgd(steps=STEPS, clip_norm=0.05), "dp_sgd, clipped mean"),
        ADD,
        "one record moves a private sum",
    ),
    "adadps, metric after clipping": (
        lambda: tampered(
            MetricAfterClip, adadps(steps=STEPS, clip_norm=0.3, start="cold"), "adadps, metric after clipping"
        ),
        ADD,
        "one record moves a private sum",
    ),
    "dp_sgd, private early stop": (
        lambda: tampered(EarlyStop, _dp(), "dp_sgd, private early stop"),
        ADD,
        "the number of releases",
    ),
    "dp_sgd, batch size in the notes": (
        lambda: tampered(Chatty, _dp(expected_batch_size=HALF), "dp_sgd, batch size in the notes"),
        ADD,
        "nothing else that leaves the run",
    ),
    "dp_sgd, private clip norm": (
        lambda: _as(PrivateQuantile, _dp(), "dp_sgd, private clip norm"),
        ADD,
        "a plan reads no private record",
    ),
    "dp_sgd, uncharged steps": (
        lambda: tampered(Forgetful, _dp(), "dp_sgd, uncharged steps"),
        ADD,
        "what is charged is what is released",
    ),
    "pnsgd, early iterate": (
        lambda: AveragedPnsgd(batch_size=44, step_size=0.5),
        REPLACE,
        "the outputs of a private_process",
    ),
    "dp_sgd, scalar noise": (
        lambda: _as(ScalarNoise, dp_sgd(steps=2), "dp_sgd, scalar noise"),
        ADD,
        "the outputs of a private_process",
    ),
}
