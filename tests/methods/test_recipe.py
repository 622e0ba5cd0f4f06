from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.contracts import replay
from tests.contracts.scenes import ADD_REMOVE, REPLACE, scene

from sidelight.data.rows import PublicRows
from sidelight.errors import AssumptionError, InputError, RelationError
from sidelight.methods.dope_sgd import PublicGradient, dope_sgd
from sidelight.methods.dp_sgd import ConstantNoise, FlatClip, dp_sgd
from sidelight.methods.finishing import MeanLast, Reuse
from sidelight.methods.ppsgd import GrowingBudget, ppsgd
from sidelight.methods.recipe import Recipe, longest_direction, noise_aware_step
from sidelight.methods.task import Method


def plain(**changes: Any) -> Recipe:
    return Recipe(clip=FlatClip(), noise=ConstantNoise()).with_parts(**changes)


def test_a_recipe_is_a_method() -> None:
    assert isinstance(plain(), Method)
    assert plain().private and not plain().needs_public
    assert plain(origin=PublicGradient()).needs_public and plain(extended=True).needs_public


@pytest.mark.parametrize(
    "change",
    [
        {"clip": None},
        {"noise": None},
        {"steps": 0},
        {"steps": 1.5},
        {"step_size": 0.0},
        {"step_size": math.nan},
        {"step_size": math.inf},
        {"expected_batch_size": 0},
        {"expected_batch_size": -3},
        {"expected_batch_size": math.nan},
        {"momentum": 1.0},
        {"momentum": -0.1},
        {"public_rows": "friend"},
        {"clip": FlatClip(0.0)},
    ],
    ids=str,
)
def test_senseless_recipes_are_refused_before_the_charge(change: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        plain(**change).plan(scene().task(ADD_REMOVE))


def test_a_misspelt_part_is_an_error() -> None:
    with pytest.raises(TypeError, match="cilp"):
        plain(cilp=FlatClip())


def test_parts_that_need_public_records_say_so() -> None:
    task = scene().task(ADD_REMOVE)
    with pytest.raises(InputError, match="needs public records"):
        dope_sgd().plan(replace(task, public=PublicRows.empty(task.p)))
    for recipe in (dope_sgd(), plain(extended=True, expected_batch_size=9), ppsgd(), plain(finish=Reuse())):
        with pytest.raises(InputError, match=f"{recipe.name} needs public records"):
            recipe.with_parts(public_rows="private").plan(task)


def test_a_relation_that_the_noise_cannot_give_is_an_error() -> None:
    recipe = plain(noise=GrowingBudget(accounting="tcdp"))
    assert recipe.relations == ("replace-one",)
    with pytest.raises(RelationError):
        recipe.plan(scene().task(ADD_REMOVE))


def test_public_records_of_an_unknown_class_are_an_error() -> None:
    base = scene()
    with pytest.raises(InputError, match="y_public"):
        plain().plan(replace(base, y_public=base.y_public * 3).task(ADD_REMOVE))


def test_the_plan_says_that_public_records_must_be_independent() -> None:
    task = scene().task(ADD_REMOVE)
    line = "the public records do not depend on the private ones"
    assert line in plain().plan(task).assumptions
    assert line not in plain().plan(replace(task, public=PublicRows.empty(task.p))).assumptions


def test_a_plan_can_be_run_twice() -> None:
    """No state is left in the plan; the same noise gives the same model."""
    task, recipe = scene().task(REPLACE), dp_sgd(steps=3, momentum=0.5)
    plan = recipe.plan(task)
    first, second = (
        recipe.run(task, plan, account=replay.Nothing(), noise=replay.Noise(3)).coef for _ in range(2)
    )
    np.testing.assert_array_equal(first, second)


def test_training_that_diverges_says_so_and_nothing_else() -> None:
    base = scene("square")
    recipe = dp_sgd(steps=200, step_size=1e300, clip_norm=1e10)
    messages = set()
    for X in (base.X, -base.X):
        task = replace(base, X=X).task(ADD_REMOVE)
        with pytest.raises(AssumptionError, match="diverged") as caught:
            recipe.run(task, recipe.plan(task), account=replay.Nothing(), noise=replay.SilentNoise(0))
        messages.add(str(caught.value))
    assert messages == {"training diverged; lower step_size or momentum"}


def test_the_history_says_what_each_step_spent() -> None:
    tape = replay.record(dope_sgd(steps=2, clip_norm=0.3), scene().task(ADD_REMOVE))
    assert tape.fitted is not None
    first, second = tape.fitted.history
    assert (first["step"], second["step"]) == (0, 1)
    assert first["spent"].startswith("Gaussian(noise multiplier")
    assert first["clip_norm"] == 0.3 and first["public_gradient_norm"] > 0
    assert first["noise_std"] == pytest.approx(first["noise_multiplier"] * 0.3 / 44)


def test_the_step_size_falls_with_the_noise_and_rises_to_a_cap() -> None:
    where = dp_sgd(steps=64).plan(scene("hinge", n=2000).task(ADD_REMOVE)).state["setting"]
    sizes = [noise_aware_step(where, noise_multiplier=z, momentum=0.0, top=1.0) for z in (1e-9, 100, 1000)]
    assert sizes[0] == 16.0 and sizes[0] > sizes[1] > sizes[2]
    assert sizes[1] == pytest.approx(10 * sizes[2])
    half = noise_aware_step(where, noise_multiplier=100, momentum=0.8, top=2.0)
    assert half == pytest.approx(sizes[1] * 0.2 / 2)


def test_the_longest_direction_is_the_top_eigenvalue() -> None:
    task = scene().task(ADD_REMOVE)
    where = dp_sgd(steps=1).plan(task).state["setting"]
    X = task.public.X
    top = np.linalg.eigvalsh(X.T @ X / len(X))[-1]
    assert longest_direction(where, None, unit=False) == pytest.approx(top)
    assert longest_direction(replace(where, guide=None), None, unit=False) == 1.0


def test_steps_follow_the_rule_or_the_budget_that_adapts() -> None:
    task = scene().task(ADD_REMOVE)
    assert plain().plan(task).details["steps"] == 64
    assert plain(expected_batch_size=1).plan(task).details["steps"] == 440
    grown = plain(noise=GrowingBudget(planned_steps=20), finish=MeanLast(2))
    assert grown.plan(task).details["steps"] == 20
