import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from tests.contracts import replay
from tests.methods.bench import GivenGuide, setting
from tests.privacy.vectors import vector

from sidelight.audit.subjects import ADD_REMOVE, REPLACE, scene
from sidelight.data.rows import PrivateRows, PublicRows, UnreadRows
from sidelight.errors import InputError, PrivacyConditionError, PrivacyWarning, RelationError
from sidelight.losses import Square
from sidelight.methods.ppsgd import GrowingBudget, ShrinkingClip, ppsgd
from sidelight.methods.public_whitening import Whitening
from sidelight.methods.recipe import Loop, Recipe
from sidelight.methods.task import Task
from sidelight.privacy import conversions, events
from sidelight.privacy.events import FixedSize


@dataclass(frozen=True)
class Scheduled(FixedSize):
    """Batch t holds the records 4t..4t+3, as in the vectors."""

    drawn: list[int] = None  # type: ignore[assignment]

    def indices(self, n: int, noise: Any) -> Any:
        t = len(self.drawn)
        self.drawn.append(t)
        return np.arange(4 * t, 4 * t + 4) % n


def circle(start: int, count: int, shift: float = 0.0) -> tuple[Any, Any]:
    at = np.arange(start, start + count)
    return np.stack([np.cos(at), np.sin(at)], axis=1), 0.5 * np.cos(at) - 0.25 * np.sin(at) + shift


def circle_task(inputs: dict[str, Any]) -> Task:
    return Task(
        rows=PrivateRows(*circle(0, inputs["m"]), max_norm=1.0 + 1e-9),
        public=PublicRows(*circle(100, inputs["n"], 0.1)),
        loss=Square(),
        epsilon=inputs["epsilon"],
        delta=inputs["delta"],
        relation=REPLACE,
        target_bound=2.0,
    )


def circle_recipe(inputs: dict[str, Any], **changes: Any) -> Recipe:
    recipe = ppsgd(
        accounting="tcdp",
        clip_norm=inputs["C0"],
        clip_threshold=inputs["varphi"],
        shrink=inputs["beta"],
        clip_test=inputs.get("clip_test", "mean"),
        reuse=inputs["lam"],
        step_size=inputs["eta"],
    )
    budget = GrowingBudget(
        inputs["phi"], inputs["alpha_growth"], accounting="tcdp", first_cost=inputs["rho0"], **changes
    )
    return recipe.with_parts(noise=budget)


def trajectory(name: str, **changes: Any) -> tuple[Loop, Any, list[Any]]:
    """The run of a D vector: the loop afterwards, the model, and the iterates."""
    inputs, _, _ = vector(name)
    task, recipe = circle_task(inputs), circle_recipe(inputs, **changes)
    where = recipe.plan(task).state["setting"]
    assert where.sampler == FixedSize(inputs["s"])
    problem = where.problem.reading(task.rows)
    loop = Loop(recipe, replace(where, problem=problem, sampler=Scheduled(inputs["s"], [])))
    iterates: list[Any] = []
    honest = loop.finish.add
    loop.finish.add = lambda w: (iterates.append(w), honest(w))
    w = loop.train(account=replay.Nothing(), noise=replay.SilentNoise(0))
    return loop, w, iterates


@pytest.mark.parametrize("name", ["D1", "D2"])
def test_the_trajectory_of_the_vectors(name: str) -> None:
    _, outputs, rtol = vector(name)
    loop, w, iterates = trajectory(name)
    assert len(loop.history) == outputs["steps"]
    for key, expected in (("rho", "rho"), ("clip_norm", "C"), ("noise_std", "sigma")):
        assert [entry[key] for entry in loop.history] == pytest.approx(outputs[expected], rel=rtol)
    np.testing.assert_allclose(iterates, outputs["w"], rtol=rtol)
    np.testing.assert_allclose(w, outputs["w_star"], rtol=rtol)
    assert loop.noise.filter.left == pytest.approx(outputs["remaining"], rel=rtol)
    assert loop.noise.filter.total == pytest.approx(outputs["rho_total"], rel=rtol)
    assert loop.noise.filter.omega == pytest.approx(outputs["omega_total"], rel=rtol)
    assert loop.noise.cap == pytest.approx(outputs["rho_cap"], rel=rtol)
    if name == "D1":
        norms = [entry["public_gradient_norm"] for entry in loop.history]
        assert norms == pytest.approx(outputs["gpub_norm"], rel=rtol)
    # Every clamp is in the history, and said once.
    assert [entry["capped"] for entry in loop.history] == [False] * 2 + [True] * 5
    assert len(loop.all_notes()) == 1 and "capped" in loop.all_notes()[0]


def test_without_the_cap_the_vector_raises() -> None:
    """The third step would cost more than the amplification theorem allows."""
    _, outputs, _ = vector("D3")
    with pytest.raises(PrivacyConditionError, match=f"rho={outputs['rho'][2]:.4g}"):
        trajectory("D3", on_violation="raise")


def test_the_filter_refuses_when_the_cap_is_taken_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """The planted fault of the paper: ρ grows as it likes, and ω is never compared with ω_total."""
    _, outputs, rtol = vector("D3")
    monkeypatch.setattr(conversions, "tcdp_rho_cap", lambda q, omega: 1e9)
    seen: list[float] = []
    honest = Loop._record

    def watched(self: Loop, *given: Any) -> None:
        honest(self, *given)
        seen.append(self.history[-1]["rho"])

    monkeypatch.setattr(Loop, "_record", watched)
    with pytest.raises(PrivacyConditionError, match="omega_out"):
        trajectory("D3")
    assert seen == pytest.approx(outputs["rho"][: outputs["first_violating_step"]], rel=rtol)


def run(recipe: Recipe, relation: Any = REPLACE, base: Any = None) -> tuple[replay.Tape, Task]:
    task = (base or scene()).task(relation)
    tape = replay.record(recipe, task)
    replay.assert_plan_covers(tape, task)
    assert tape.fitted is not None
    return tape, task


@pytest.mark.parametrize("relation", [REPLACE, ADD_REMOVE])
def test_the_gaussian_filter_spends_the_budget_in_as_many_steps_as_planned(relation: Any) -> None:
    tape, task = run(ppsgd(planned_steps=10, growth=0.0), relation)
    assert len(tape.charged) == 10
    mu = conversions.gdp_mu(task.epsilon, task.delta)
    assert math.fsum(1 / e.noise_multiplier**2 for e in tape.charged) == pytest.approx(mu**2)  # type: ignore[attr-defined]


def test_noise_shrinks_when_the_public_gradient_drowns_in_it() -> None:
    tape, _ = run(ppsgd(planned_steps=20, ratio=1e-9, growth=0.5, clip_norm=1.0))
    assert tape.fitted is not None
    z = [entry["noise_multiplier"] for entry in tape.fitted.history]
    assert z == pytest.approx([z[0] * 1.5 ** (-t / 2) for t in range(len(z))])
    assert 2 < len(z) < 10


@pytest.mark.parametrize(
    ("recipe", "relation"),
    [
        (ppsgd(planned_steps=7, ratio=1e-9), REPLACE),
        (ppsgd(planned_steps=7, ratio=1e-9, expected_batch_size=22), ADD_REMOVE),
        (ppsgd(accounting="tcdp", ratio=1e-9, planned_steps=50), REPLACE),
    ],
    ids=["gaussian", "renyi", "tcdp"],
)
def test_spend_rest_leaves_nothing(recipe: Recipe, relation: Any) -> None:
    stopped, _ = run(recipe, relation)
    spent, _ = run(recipe.with_parts(noise=replace(recipe.noise, spend_rest=True)), relation)
    assert stopped.fitted is not None and spent.fitted is not None
    (key,) = [key for key in spent.fitted.history[-1] if key.endswith("_left")]
    left = [tape.fitted.history[-1][key] for tape in (stopped, spent) if tape.fitted]
    total = left[1] + sum(entry[key.removesuffix("_left")] for entry in spent.fitted.history)
    assert left[0] > 1e-3 * total and left[1] < 1e-9 * total
    assert len(spent.charged) == len(stopped.charged) + 1


def test_the_clip_norm_starts_at_the_longest_public_gradient_under_the_metric() -> None:
    task = scene().task(REPLACE)
    plain = ppsgd(planned_steps=2)
    assert plain.plan(task).details["clip_norm"] == pytest.approx(0.5)  # ½‖x‖, at w = 0
    whitened = plain.with_parts(metric=Whitening(unit=True))
    assert whitened.plan(task).details["clip_norm"] == pytest.approx(0.5)  # ½‖Mx‖/‖Mx‖
    scaled = plain.with_parts(metric=Whitening(unit=False))
    metric = Whitening().metric(task.public.X, unit=False)
    longest = np.linalg.norm(task.public.X @ metric.matrix.T, axis=1).max() / 2
    assert scaled.plan(task).details["clip_norm"] == pytest.approx(longest)


def test_the_clip_norm_shrinks_and_has_a_floor() -> None:
    tape, _ = run(ppsgd(planned_steps=20, clip_threshold=0.0, shrink=0.9, clip_norm=1.0, growth=0.0))
    assert tape.fitted is not None
    norms = [entry["clip_norm"] for entry in tape.fitted.history]
    assert norms == pytest.approx([max(0.1**t, 1e-6) for t in range(20)])


@pytest.mark.parametrize(("test", "shrinks"), [("mean", True), ("max", False)])
def test_the_two_clipping_tests(test: Any, shrinks: bool) -> None:
    """One outlier among the public gradients holds the clip norm up, where the largest one counts."""
    state = ShrinkingClip(1.0, 2.0, 0.5, test).begin(_where([[0.9, 0.0], [-0.9, 0.0]]), np.zeros(2))
    state.at(0, np.zeros(2), None, None)
    state.after(np.zeros(2), np.zeros(2))
    assert state.at(1, np.zeros(2), None, None).bound == (0.5 if shrinks else 1.0)


def _where(gradients: Any) -> Any:
    return setting(2, batch=1.0, guide=GivenGuide(gradients))


def test_public_gradients_that_vanish_at_the_start_leave_the_bound_of_the_loss() -> None:
    state = ShrinkingClip().begin(_where([[0.0, 0.0]]), np.zeros(2))
    assert state.at(0, np.zeros(2), None, None).bound == 1.0


def test_steps_may_be_limited() -> None:
    tape, _ = run(ppsgd(planned_steps=10, growth=0.0, max_steps=3))
    assert len(tape.charged) == 3
    with pytest.warns(PrivacyWarning, match="is left"):
        ppsgd(accounting="tcdp", max_steps=3).plan(scene().task(REPLACE))


def test_the_batch_of_the_paper() -> None:
    """√m, and at most a tenth of the records, which the amplification theorem asks for."""
    task = scene().task(REPLACE)
    for n, size in ((44, 4), (10_000, 100), (10_001, 101)):
        large = replace(task, rows=UnreadRows(n, 4, max_norm=1.0))
        assert ppsgd(accounting="tcdp").plan(large).details["expected_batch_size"] == size


def test_the_plan_is_the_certificate_of_the_filter() -> None:
    task = scene().task(ADD_REMOVE)
    gaussian = ppsgd().plan(task)
    assert gaussian.filtered and isinstance(gaussian.event, events.Gaussian)
    mu = conversions.gdp_mu(task.epsilon, task.delta)
    assert 1 / mu < gaussian.event.noise_multiplier < (1 + 1e-9) / mu
    sampled = ppsgd(expected_batch_size=22, planned_steps=4).plan(task)
    assert isinstance(sampled.event, events.RenyiBound)
    assert sampled.details["order"] == sampled.event.order
    tcdp = ppsgd(accounting="tcdp", totals="tight").plan(scene().task(REPLACE))
    assert tcdp.event == events.TruncatedConcentrated(
        *conversions.tcdp_totals(task.epsilon, task.delta, totals="tight")
    )


def test_what_has_no_theorem_is_refused_before_the_charge() -> None:
    task = scene().task(REPLACE)
    with pytest.raises(PrivacyConditionError, match="tCDP"):
        ppsgd(expected_batch_size=22).plan(task)
    with pytest.raises(PrivacyConditionError, match="sampling rate"):
        ppsgd(accounting="tcdp", expected_batch_size=22).plan(task)
    with pytest.raises(PrivacyConditionError, match="sampling rate"):
        ppsgd(accounting="tcdp", expected_batch_size=1000).plan(task)
    with pytest.raises(PrivacyConditionError, match="the cap"):
        ppsgd(accounting="tcdp", planned_steps=1, on_violation="raise").plan(task)
    with pytest.raises(RelationError):
        ppsgd(accounting="tcdp").plan(scene().task(ADD_REMOVE))


@pytest.mark.parametrize(
    "change",
    [
        {"growth": -0.1},
        {"growth": math.nan},
        {"ratio": -1.0},
        {"planned_steps": -1},
        {"shrink": 1.0},
        {"clip_test": "median"},
        {"accounting": "clt"},
        {"on_violation": "ignore"},
        {"clip_norm": 0.0},
        {"max_steps": 0},
        {"reuse": -1.0},
    ],
    ids=str,
)
def test_senseless_settings_are_refused_before_the_charge(change: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        ppsgd(**change).plan(scene().task(REPLACE))


def test_the_planned_steps_fit_the_renyi_filter():
    """At the first noise, as many steps are admitted as were planned; PLD's noise would admit fewer."""
    from sidelight.data.rows import UnreadRows
    from sidelight.losses import get_loss
    from sidelight.methods.part_kinds import Setting
    from sidelight.methods.ppsgd import GrowingBudget
    from sidelight.privacy.events import Poisson
    from sidelight.problems.base import LinearProblem

    problem = LinearProblem(UnreadRows(1000, 5, max_norm=1.0), get_loss("logistic"))
    setting = Setting(
        problem, batch=100.0, steps=8, epsilon=2.0, delta=1e-6, relation="add-or-remove-one",
        sampler=Poisson(0.1),
    )  # fmt: skip
    state = GrowingBudget(planned_steps=8, growth=0.0).begin(setting)
    for _ in range(8):
        state.filter.admit(setting.sampler.event(1000, state.z))
    assert not state.filter.admits(events_of(setting, state.z / 1.3))


def events_of(setting, z):
    return setting.sampler.event(setting.n, z)


def test_whitening_is_an_option() -> None:
    from sidelight.methods.public_whitening import Whitening

    by_hand = ppsgd(reuse=None).with_parts(metric=Whitening(), momentum=0.8)
    assert ppsgd(reuse=None, whitening=True, momentum=0.8) == by_hand
