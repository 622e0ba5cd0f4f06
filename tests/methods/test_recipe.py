import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from tests.contracts import replay

from sidelight.audit.subjects import ADD_REMOVE, REPLACE, scene
from sidelight.clipping import Diagonal
from sidelight.data.rows import PublicRows
from sidelight.errors import AssumptionError, InputError, RelationError
from sidelight.methods.adadps import SecondMoments
from sidelight.methods.baselines import only_public
from sidelight.methods.coupling import Weight
from sidelight.methods.dope_sgd import PublicGradient, Warm, dope_sgd
from sidelight.methods.dp_sgd import dp_sgd
from sidelight.methods.part_kinds import ClipRule  # fmt: skip
from sidelight.methods.parts import (
    Automatic,
    ConstantNoise,
    Ema,
    Flat,
    Last,
    LastState,
    MeanLast,
    Reuse,
    noise_aware_step,
)
from sidelight.methods.ppsgd import GrowingBudget, ppsgd
from sidelight.methods.public_whitening import PublicScaleClip
from sidelight.methods.recipe import Loop, Recipe
from sidelight.methods.task import Method
from sidelight.privacy.events import Poisson


def plain(**changes: Any) -> Recipe:
    return Recipe(clip=Flat(), noise=ConstantNoise()).with_parts(**changes)


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
    ],
    ids=str,
)
def test_senseless_recipes_are_refused_before_the_charge(change: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        plain(**change).plan(scene().task(ADD_REMOVE))


def test_a_misspelled_part_is_an_error() -> None:
    with pytest.raises(InputError, match="'clip'"):
        plain(cilp=Flat())


def test_parts_that_need_public_records_say_so() -> None:
    task = scene().task(ADD_REMOVE)
    with pytest.raises(InputError, match="public records"):
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
    assert where.problem.longest_direction(None) == pytest.approx(top)
    assert replace(where.problem, public=None).longest_direction(None) == 1.0


def test_steps_follow_the_rule_or_the_budget_that_adapts() -> None:
    task = scene().task(ADD_REMOVE)
    assert plain().plan(task).details["steps"] == 64
    assert plain(expected_batch_size=1).plan(task).details["steps"] == 440
    grown = plain(noise=GrowingBudget(planned_steps=20), finish=MeanLast(2))
    assert grown.plan(task).details["steps"] == 20


# ---------------------------------------------------------------------------------------------------
# mistakes of somebody new


@dataclass(frozen=True)
class Homemade:
    """A clip that is no part."""

    clip_norm: float = 1.0

    def begin(self, setting: Any, params: Any) -> Any:
        return self


MISTAKES: dict[str, tuple[dict[str, Any], str]] = {
    "a class": ({"clip": Flat}, "clip= takes a clip part, for instance Flat(1.0); Flat is a class: write"),
    "None": ({"noise": None}, "noise= takes a noise part, for instance ConstantNoise(); it was None"),
    "a number": ({"clip": 1.0}, "clip= takes a clip part, for instance Flat(1.0); it was 1.0"),
    "a text": ({"finish": "mean"}, "finish= takes a finish part, for instance MeanLastHalf(); it was 'mean'"),
    "another kind": (
        {"origin": Warm()},
        "origin= takes an origin part, for instance PublicGradient(); Warm is a part for start=",
    ),
    "two swapped": ({"clip": ConstantNoise()}, "clip= takes a clip part, for instance Flat(1.0); Consta"),
    "a step size": ({"step": 0.1}, "step= takes a step part, for instance NoiseAware(); it was 0.1"),
    "a batch size": ({"batch": 64}, "batch= takes a batch part, for instance SqrtBatch(); it was 64"),
    "a function": ({"mix": dp_sgd}, "mix= takes a mix part, for instance Weight(0.5); dp_sgd is a function"),
    "another class": (
        {"clip": ConstantNoise},
        "clip= takes a clip part, for instance Flat(1.0); ConstantNoise is a class of parts for noise=",
    ),
    "a method": ({"start": dp_sgd()}, "for instance Cold(); Recipe is not one"),
    "a method that is no recipe": ({"clip": only_public()}, "OnlyPublic is not one"),
    "a list": ({"finish": [MeanLast()]}, "list is not one"),
    "a truth": ({"mix": True}, "mix= takes a mix part, for instance Weight(0.5); it was True"),
    "a metric": (
        {"metric": Diagonal(np.ones(3))},
        "Diagonal is not one: derive it from MetricRule",
    ),
    "a sampler": ({"batch": Poisson(0.1)}, "Poisson is not one: derive it from BatchRule"),
    "a name": ({"name": 3}, "name must be a str, not 3"),
    "extended": ({"extended": "yes"}, "extended must be a bool, not 'yes'"),
    "one departure": ({"departs": "from the paper"}, "departs must be a tuple, not 'from"),
    "a state": ({"finish": LastState()}, "LastState is not one: derive it from FinishRule"),
    "no part": ({"clip": Homemade()}, "Homemade is not one: derive it from ClipRule (sidelight.methods)"),
    "a bare mix": ({"mix": None}, "mix= takes a mix part, for instance Weight(0.5); it was None"),
    "a quoted number": ({"clip": "1"}, "clip= takes a clip part, for instance Flat(1.0); it was '1'"),
    "steps as text": ({"steps": "ten"}, "steps must be a whole number of at least 1, not 'ten'"),
    "batch as text": ({"expected_batch_size": "64"}, "expected_batch_size must be a positive number"),
    "momentum": ({"momentum": None}, "momentum must be in [0, 1), not None"),
    "a typo": ({"cilp": Flat(1.0)}, "a recipe has no 'cilp'. Did you mean 'clip'?"),
}  # fmt: skip


@pytest.mark.parametrize(("changes", "line"), MISTAKES.values(), ids=MISTAKES)
def test_a_wrong_part_is_refused_in_one_line_when_the_recipe_is_made(
    changes: dict[str, Any], line: str
) -> None:
    with pytest.raises(InputError) as caught:
        plain(**changes)
    assert line in str(caught.value) and "\n" not in str(caught.value)


def test_a_part_of_the_right_kind_is_taken_however_it_names_its_arguments() -> None:
    class Other(ClipRule):
        def begin(self, where: Any, w: Any, extra: int = 0) -> Any:
            return Flat(1.0)

    class Variadic(ClipRule):
        def begin(self, *everything: Any) -> Any:
            return Flat(1.0)

    for part in (Other(), Variadic()):
        plain(clip=part).plan(scene().task(ADD_REMOVE))


def test_a_part_for_networks_is_refused_by_a_linear_model_before_the_charge() -> None:
    class Votes(Last):
        network_only = True
        single = False

    with pytest.raises(InputError, match="Votes"):
        plain(finish=Votes()).plan(scene().task(ADD_REMOVE))
    with pytest.raises(InputError, match="Votes"):
        Reuse(0.1, inner=Votes())


def test_a_mix_that_forgets_to_ask_for_the_public_gradient_says_so() -> None:
    class Careless(Weight):
        needs_gradient = False

    task, recipe = scene().task(ADD_REMOVE), plain(mix=Careless(0.5), steps=1)
    with pytest.raises(InputError, match="needs_gradient"):
        recipe.run(task, recipe.plan(task), account=replay.Nothing(), noise=replay.Noise(0))


def test_the_clip_of_public_targets_takes_half_the_square() -> None:
    """Its norm is the mean slope of ½(z − y)² at zero; with another clip the loss is the task's own."""
    task = scene("square").task(REPLACE)
    for clip, smoothness in ((PublicScaleClip(), 1.0), (Flat(1.0), 2.0)):
        where = plain(clip=clip).plan(task).state["setting"]
        assert where.constants.smoothness == smoothness


def test_a_clip_norm_that_is_no_number_is_refused_by_the_part() -> None:
    for bound in (0.0, -1.0, math.nan, math.inf, "1", None):
        if bound is not None:
            with pytest.raises(InputError, match="clip_norm"):
                Flat(bound)  # type: ignore[arg-type]
            with pytest.raises(InputError, match="bound must"):
                Automatic(bound)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="pass clip_norm"):
        _ = Flat().bound


def test_a_finish_inside_another_is_checked_as_well() -> None:
    with pytest.raises(InputError, match="finish="):
        Reuse(0.1, inner=MeanLast)  # type: ignore[arg-type]


def test_a_clip_that_never_changes_is_its_own_state() -> None:
    where = dp_sgd(steps=2).plan(scene().task(ADD_REMOVE)).state["setting"]
    for clip in (Flat(0.3), Automatic(1.0, 0.1)):
        state = clip.begin(where, None)
        assert state is clip and state.at(3, None, None, None) is clip and state.state_dict() == {}
    assert Flat().begin(where, None) == Flat(1.0)


def test_a_state_comes_back_from_its_dict() -> None:
    """What changes while training is in `state_dict`: a fresh state that loads it goes on alike."""
    task = scene().task(ADD_REMOVE)
    recipe = ppsgd(planned_steps=6, clip_threshold=2.0).with_parts(
        metric=SecondMoments(), finish=Reuse(0.1, Ema(0.5)), origin=PublicGradient()
    )
    setting = recipe.plan(task).state["setting"]
    setting = replace(setting, problem=setting.problem.reading(task.rows))
    first, second = Loop(recipe, setting), Loop(recipe, setting)
    for t in range(3):
        assert first.step(t, first.noise.at(t) or 0, account=replay.Nothing(), noise=replay.Noise(t))
    second.w, second.velocity = first.w, first.velocity
    for mine, theirs in ((first.metric, second.metric), (first.clip, second.clip),
                         (first.noise, second.noise), (first.finish, second.finish)):  # fmt: skip
        assert mine is not None and theirs is not None
        theirs.load_state_dict(mine.state_dict())
    for loop in (first, second):
        loop.step(3, loop.noise.at(3) or 0, account=replay.Nothing(), noise=replay.Noise(3))
    np.testing.assert_array_equal(first.w, second.w)
    np.testing.assert_array_equal(first.finish.result(first.w), second.finish.result(first.w))
    assert first.noise.state_dict() == second.noise.state_dict()
