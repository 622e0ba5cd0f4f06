"""Any part works with any other: random recipes keep every promise, on any loss, dense or sparse."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.contracts import replay
from tests.contracts.cases import RECIPES, STEPS, Case

from sidelight.audit.subjects import ADD_REMOVE, REPLACE, Scene, neighboring, scene
from sidelight.errors import AssumptionError, InputError, PrivacyConditionError, RelationError
from sidelight.methods.adadps import SecondMoments
from sidelight.methods.adamix import QuantileClip, Subspace
from sidelight.methods.coupling import NoiseWeight, PooledWeight, TheoremWeight, Weight
from sidelight.methods.dope_sgd import PublicGradient, Warm
from sidelight.methods.dp_sgd import AdvancedComposition
from sidelight.methods.dpmd import Cosine, Mirror
from sidelight.methods.parts import (
    Automatic,
    Cold,
    ConstantNoise,
    Ema,
    Flat,
    Last,
    MeanLast,
    MeanLastHalf,
    PrivateOnly,
    Reuse,
)
from sidelight.methods.ppsgd import GrowingBudget, ShrinkingClip
from sidelight.methods.public_whitening import Whitening
from sidelight.methods.recipe import Recipe

# Two runs are compared number by number: they must draw the same noise.
pytestmark = pytest.mark.usefixtures("same_noise")

REFUSALS = (AssumptionError, InputError, PrivacyConditionError, RelationError)
tcdp = GrowingBudget(planned_steps=STEPS, accounting="tcdp")
recipes = st.builds(
    Recipe,
    start=st.sampled_from([Cold(), Warm()]),
    origin=st.sampled_from([None, PublicGradient(), PublicGradient(0.2)]),
    metric=st.sampled_from(
        [None, Subspace(2), SecondMoments(), Whitening(), Whitening(unit=True), Whitening(unit=False)]
    ),
    clip=st.sampled_from(
        [Flat(0.3), Flat(), Automatic(1.0, 0.1), QuantileClip(), ShrinkingClip(threshold=1.0)]
    ),
    noise=st.sampled_from([ConstantNoise(), AdvancedComposition(), GrowingBudget(planned_steps=STEPS), tcdp]),
    mix=st.sampled_from(
        [PrivateOnly(), Weight(0.3), NoiseWeight(), TheoremWeight(), PooledWeight(), Cosine(), Mirror(0.1)]
    ),
    finish=st.sampled_from([Last(), MeanLast(2), MeanLastHalf(), Ema(0.9), Reuse(0.1, MeanLast(2))]),
    steps=st.just(STEPS),
    step_size=st.sampled_from([None, 0.1]),
    momentum=st.sampled_from([0.0, 0.5]),
    extended=st.booleans(),
)
scenes = {name: scene(name) for name in ("logistic", "hinge", "huber", "square", "softmax")}


def refused(recipe: Recipe, base: Scene, relation: Any) -> bool:
    """What no theorem covers, or makes no sense; everything else must work."""
    sampled = recipe.expected_batch_size is not None
    if recipe.extended and not sampled:
        return True
    if isinstance(recipe.mix, Mirror) and base.loss.name in ("hinge", "softmax"):
        return True
    if not isinstance(recipe.noise, GrowingBudget):
        return False
    if recipe.noise.accounting == "tcdp":
        return relation == ADD_REMOVE or not sampled or recipe.expected_batch_size > 5
    return relation == REPLACE and sampled


def check(recipe: Recipe, base: Scene, relation: Any, *, sparse: bool = False) -> replay.Tape:
    """Sum sensitivity, nothing private outside, events within the plan, a finite model."""
    first, others = neighboring(base, relation)
    tasks = [(one.sparse() if sparse else one).task(relation) for one in (first, *others)]
    tape = replay.record(recipe, tasks[0])
    replay.assert_plan_covers(tape, tasks[0])
    assert tape.fitted is not None and np.isfinite(tape.fitted.coef).all()
    assert tape.fitted.coef.shape == (base.loss.outputs, base.X.shape[1])
    for task in tasks[1:5]:
        other = replay.record(recipe, task, like=tape)
        replay.assert_within_sensitivity(tape, other)
        replay.assert_same_outside(tape, other)
    return tape


@settings(max_examples=30)
@given(
    recipe=recipes,
    rate=st.sampled_from([None, 1 / 11, 1 / 2]),
    loss=st.sampled_from(sorted(scenes)),
    relation=st.sampled_from([ADD_REMOVE, REPLACE]),
    sparse=st.booleans(),
    regularization=st.sampled_from([0.0, 0.1]),
)
@pytest.mark.filterwarnings("ignore:a step may cost at most:sidelight.errors.PrivacyWarning")
def test_random_recipes_keep_every_promise(
    recipe: Recipe, rate: float | None, loss: str, relation: Any, sparse: bool, regularization: float
) -> None:
    base = replace(scenes[loss], regularization=regularization)
    pool = 54 if recipe.extended else 44
    recipe = recipe.with_parts(expected_batch_size=None if rate is None else rate * pool)
    if refused(recipe, base, relation):
        with pytest.raises(REFUSALS):
            recipe.plan(base.task(relation))
    else:
        check(recipe, base, relation, sparse=sparse)


@pytest.mark.parametrize("relation", [ADD_REMOVE, REPLACE])
@pytest.mark.parametrize("loss", sorted(scenes))
def test_dope_origin_with_ppsgd_budget_and_a_mean_of_iterates(loss: str, relation: Any) -> None:
    recipe = Recipe(
        name="mixed",
        start=Warm(),
        origin=PublicGradient(),
        clip=ShrinkingClip(threshold=2.0),
        noise=GrowingBudget(planned_steps=6, ratio=1.0),
        finish=MeanLast(3),
    )
    tape = check(recipe, scenes[loss], relation)
    assert tape.plan.filtered and 2 < len(tape.charged) <= 6
    noises = [event.noise_multiplier for event in tape.charged]  # type: ignore[attr-defined]
    assert noises == sorted(noises, reverse=True) and noises[0] > noises[-1]


@pytest.mark.parametrize("case", RECIPES, ids=str)
def test_every_recipe_takes_several_classes(case: Case) -> None:
    base, recipe = scenes["softmax"], case.make()
    if isinstance(getattr(recipe, "mix", None), Mirror):
        with pytest.raises(AssumptionError, match="mirror='first-order'"):
            recipe.plan(base.task(case.relation))
    else:
        check(recipe, base, case.relation)  # type: ignore[arg-type]


@pytest.mark.parametrize("case", RECIPES, ids=str)
@pytest.mark.parametrize("loss", ["logistic", "softmax"])
def test_every_recipe_gives_the_same_on_sparse_rows(case: Case, loss: str) -> None:
    base, recipe = scenes[loss], case.make()
    if loss == "softmax" and isinstance(getattr(recipe, "mix", None), Mirror):
        pytest.skip("no mirror map for several classes")
    dense = replay.record(recipe, base.task(case.relation))
    sparse = replay.record(recipe, base.sparse().task(case.relation))
    assert dense.fitted is not None and sparse.fitted is not None
    np.testing.assert_allclose(sparse.fitted.coef, dense.fitted.coef, rtol=1e-6, atol=1e-9)
    assert sparse.charged == dense.charged


@pytest.mark.parametrize("case", RECIPES, ids=str)
def test_every_recipe_takes_float32_rows(case: Case) -> None:
    base = scenes["hinge"] if "exact" not in case.name else scenes["huber"]
    single = replace(
        base, X=base.X.astype(np.float32), X_public=base.X_public.astype(np.float32), regularization=0.01
    )
    check(case.make(), single, case.relation)  # type: ignore[arg-type]
