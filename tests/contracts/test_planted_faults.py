"""The contracts, seen red: each known way to break a private step is planted, and must be noticed."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from tests.audit.broken import live
from tests.contracts import replay
from tests.contracts.neighbors import value_of

from sidelight.audit.subjects import ADD_REMOVE, REPLACE, neighboring, scene
from sidelight.errors import BudgetExceeded, PrivacyConditionError
from sidelight.methods import part_kinds as loop_module
from sidelight.methods.adadps import adadps
from sidelight.methods.dope_sgd import dope_sgd
from sidelight.methods.dp_sgd import dp_sgd
from sidelight.methods.recipe import Loop, Recipe
from sidelight.oracles.linear.linear_oracle import LinearOracle
from sidelight.privacy import events
from sidelight.privacy import release as doors
from sidelight.privacy.events import FixedSize, FullBatch, Poisson, Relation
from sidelight.privacy.release import BoundedSum

# Two runs are compared number by number: they must draw the same noise.
pytestmark = pytest.mark.usefixtures("same_noise")

honest_sum = LinearOracle.clipped_sum


def check(method: Recipe, relation: Relation = ADD_REMOVE, seed: int = 7) -> None:
    """The two contracts that every method of the registry passes."""
    first, others = neighboring(scene(), relation)
    for everyone in (False, True):
        tape = replay.record(method, first.task(relation), seed=seed, everyone=everyone)
        for other in others:
            again = replay.record(method, other.task(relation), like=tape, seed=seed, everyone=everyone)
            replay.assert_within_sensitivity(tape, again)
            replay.assert_same_outside(tape, again)


def with_sum(monkeypatch: pytest.MonkeyPatch, change: Callable[..., Any]) -> None:
    """Replace what the oracle answers by change(oracle, total, indices, clip, origin, metric)."""

    def broken_sum(
        self: LinearOracle, params: Any, indices: Any = None, *, clip: Any, origin: Any = None,
        metric: Any = None, relation: Relation,
    ) -> BoundedSum:  # fmt: skip
        options: dict[str, Any] = {"clip": clip, "origin": origin, "metric": metric, "relation": relation}
        value, sensitivity = change(self, params, indices, options)
        return BoundedSum(value, sensitivity=sensitivity, relation=relation)

    monkeypatch.setattr(LinearOracle, "clipped_sum", broken_sum)


def plant_door(monkeypatch: pytest.MonkeyPatch, door: Any) -> None:
    monkeypatch.setattr(doors, "release", door)
    monkeypatch.setattr(loop_module, "release", door)


def test_the_same_checks_pass_without_a_fault() -> None:
    check(dope_sgd(steps=3, clip_norm=0.3))
    check(adadps(steps=3, clip_norm=0.3, start="cold"))
    check(dp_sgd(steps=3, clip_norm=0.3, expected_batch_size=22))
    check(dp_sgd(steps=3, clip_norm=0.3), REPLACE)


def test_contract_catches_the_origin_inside_the_sum(monkeypatch: pytest.MonkeyPatch) -> None:
    """DOPE-SGD as published releases |B_t|·o + Σ clip(g − o): one record moves it by ‖o‖ more."""

    def inside(oracle: LinearOracle, params: Any, indices: Any, options: dict[str, Any]) -> Any:
        total = honest_sum(oracle, params, indices, **options)
        return value_of(total) + live(oracle, indices) * options["origin"], total.sensitivity

    with_sum(monkeypatch, inside)
    with pytest.raises(AssertionError, match="sensitivity"):
        check(dope_sgd(steps=3, clip_norm=0.3))


def test_contract_catches_a_realised_batch_size_after_the_release(monkeypatch: pytest.MonkeyPatch) -> None:
    """Dividing the noisy sum by |B_t| tells how many records there were, beside the door."""
    sizes: list[int] = [1]  # for the rehearsal before the charge, which has no records

    def counting(oracle: LinearOracle, params: Any, indices: Any, options: dict[str, Any]) -> Any:
        total = honest_sum(oracle, params, indices, **options)
        sizes.append(live(oracle, indices))
        return value_of(total), total.sensitivity

    honest_direction = Loop._direction

    def divided(self: Loop, noisy: Any, origin: Any, metric: Any, gradient: Any) -> Any:
        return honest_direction(
            self, noisy * self.setting.batch / max(1, sizes[-1]), origin, metric, gradient
        )

    with_sum(monkeypatch, counting)
    monkeypatch.setattr(Loop, "_direction", divided)
    with pytest.raises(AssertionError, match="equal"):
        check(dp_sgd(steps=3, clip_norm=0.3, expected_batch_size=22))


def test_contract_catches_a_realised_batch_size_in_the_sum(monkeypatch: pytest.MonkeyPatch) -> None:
    """A mean over the realised batch, scaled back by B: it declares the sensitivity of the sum."""

    def mean(oracle: LinearOracle, params: Any, indices: Any, options: dict[str, Any]) -> Any:
        total = honest_sum(oracle, params, indices, **options)
        return value_of(total) * 22 / max(1, live(oracle, indices)), total.sensitivity

    with_sum(monkeypatch, mean)
    with pytest.raises(AssertionError, match="sensitivity"):
        for seed in range(5):  # the record must be in a batch, and a batch lean to one side
            check(dp_sgd(steps=3, clip_norm=0.3, expected_batch_size=22), seed=seed)


def test_contract_catches_a_transform_after_clipping(monkeypatch: pytest.MonkeyPatch) -> None:
    """AdaDPS the wrong way round: clip(g)/A in place of clip(g/A)."""

    def after(oracle: LinearOracle, params: Any, indices: Any, options: dict[str, Any]) -> Any:
        total = honest_sum(oracle, params, indices, **(options | {"metric": None}))
        return options["metric"].apply(value_of(total)), total.sensitivity

    with_sum(monkeypatch, after)
    with pytest.raises(AssertionError, match="sensitivity"):
        check(adadps(steps=3, clip_norm=0.3, start="cold"))


def test_contract_catches_a_replaced_record_counted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Under replace-one the sensitivity is 2C; with C, half the noise would be drawn."""

    def half(oracle: LinearOracle, params: Any, indices: Any, options: dict[str, Any]) -> Any:
        total = honest_sum(oracle, params, indices, **options)
        return value_of(total), total.sensitivity / 2

    with_sum(monkeypatch, half)
    with pytest.raises(AssertionError, match="sensitivity"):
        check(dp_sgd(steps=3, clip_norm=0.3), REPLACE)


@dataclass(frozen=True)
class FixedSizeClaimedPoisson(FixedSize):
    """Fixed-size batches that are accounted as Poisson ones: ε = 0.72 is claimed where it is 6.5 (F9)."""

    def event(self, n: int, noise_multiplier: float) -> events.Event:
        return events.poisson(self.size / n, noise_multiplier)


@dataclass(frozen=True)
class PoissonClaimedFixed(Poisson):
    def event(self, n: int, noise_multiplier: float) -> events.Event:
        return events.fixed_size(n, round(n * self.sampling_probability), noise_multiplier)


class FirstRecords(FixedSize):
    """The right size, and always the same records."""

    def indices(self, n: int, noise: Any) -> Any:
        return np.arange(self.size)


@pytest.mark.parametrize("sampler", [FixedSizeClaimedPoisson(40), PoissonClaimedFixed(0.2), FirstRecords(40)])
def test_contract_catches_a_sampler_that_does_something_else(sampler: Any) -> None:
    with pytest.raises(AssertionError):
        replay.assert_performs_its_event(sampler)


@pytest.mark.parametrize("sampler", [FixedSize(40), Poisson(0.2), FullBatch()])
def test_honest_samplers_pass(sampler: Any) -> None:
    replay.assert_performs_its_event(sampler)


def test_the_door_refuses_a_poisson_event_for_replaced_records() -> None:
    recipe, task = dp_sgd(steps=3, clip_norm=0.3), scene().task(REPLACE)
    setting = replace(recipe.plan(task).state["setting"], sampler=FixedSizeClaimedPoisson(22))
    loop = Loop(recipe, setting)
    loop.clipped_sum = LinearOracle(task.rows, task.loss).clipped_sum
    with pytest.raises(PrivacyConditionError, match="PoissonSampled"):
        loop.train(account=replay.Nothing(), noise=replay.SilentNoise(0))


def test_contract_catches_a_private_number_in_the_history(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = Loop._record

    def chatty(self: Loop, *given: Any) -> None:
        honest(self, *given)
        self.history[-1]["batch_size"] = sizes[-1]

    sizes: list[int] = []

    def counting(oracle: LinearOracle, params: Any, indices: Any, options: dict[str, Any]) -> Any:
        total = honest_sum(oracle, params, indices, **options)
        sizes.append(live(oracle, indices))
        return value_of(total), total.sensitivity

    with_sum(monkeypatch, counting)
    monkeypatch.setattr(Loop, "_record", chatty)
    with pytest.raises(AssertionError):
        check(dp_sgd(steps=3, clip_norm=0.3))


def test_contract_catches_steps_that_depend_on_a_record(monkeypatch: pytest.MonkeyPatch) -> None:
    """Early stopping on a private value: the number of releases is an output."""
    honest = Loop.step
    lengths: list[float] = []

    def measured(oracle: LinearOracle, params: Any, indices: Any, options: dict[str, Any]) -> Any:
        total = honest_sum(oracle, params, indices, **options)
        lengths.append(float(value_of(total)[0]))
        return value_of(total), total.sensitivity

    def stops(self: Loop, t: int, *given: Any, **options: Any) -> bool:
        return honest(self, t, *given, **options) and (t > 0 or lengths[-1] < lengths[0] + 0.05)

    with_sum(monkeypatch, measured)
    monkeypatch.setattr(Loop, "step", stops)
    with pytest.raises(AssertionError, match="releases"):
        check(dp_sgd(steps=3, clip_norm=0.3))


def test_contract_catches_a_release_that_is_not_charged(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every other release goes to an account that forgets."""
    honest, count = doors.release, iter(range(100))

    def forgetful(total: BoundedSum, *, account: Any, **options: Any) -> Any:
        return honest(total, account=replay.Nothing() if next(count) % 2 else account, **options)

    plant_door(monkeypatch, forgetful)
    with pytest.raises(AssertionError):
        replay.record(dp_sgd(steps=3), scene().task(ADD_REMOVE))


def test_contract_catches_another_event_than_was_planned() -> None:
    task = scene().task(ADD_REMOVE)
    tape = replay.record(dp_sgd(steps=3), task)
    replay.assert_plan_covers(tape, task)
    for charged in (tape.charged[:-1], [*tape.charged, tape.charged[0]], [events.gaussian(1.0)] * 3):
        with pytest.raises(AssertionError):
            replay.assert_plan_covers(replace(tape, charged=charged), task)
    with pytest.raises(AssertionError):
        replay.assert_plan_covers(tape, replace(task, epsilon=task.epsilon / 2))


def test_the_account_refuses_a_step_beyond_the_plan() -> None:
    recipe, task = dp_sgd(steps=3), scene().task(ADD_REMOVE)
    longer = dp_sgd(steps=4).plan(task)
    plan = replace(recipe.plan(task), state=longer.state)
    with pytest.raises(BudgetExceeded, match="released"):
        recipe.run(task, plan, account=replay.LoggedRun(plan, []), noise=replay.SilentNoise(0))


def test_contract_catches_noise_before_the_charge(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = doors.release

    def eager(total: BoundedSum, *, noise: Any, **options: Any) -> Any:
        noise.normal(3)
        return honest(total, noise=noise, **options)

    plant_door(monkeypatch, eager)
    with pytest.raises(AssertionError, match="charge"):
        replay.record(dp_sgd(steps=3), scene().task(ADD_REMOVE))
