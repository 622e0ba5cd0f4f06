from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import pytest
from tests.methods.bench import At, GivenGuide, one_step, setting

from sidelight.audit.subjects import ADD_REMOVE, scene
from sidelight.methods.adadps import SecondMoments
from sidelight.methods.adamix import Subspace
from sidelight.methods.dope_sgd import PublicGradient, Warm
from sidelight.methods.part_kinds import ClipRule, ClipState
from sidelight.methods.parts import ConstantNoise, Flat
from sidelight.methods.public_whitening import Whitening, public_whitening
from sidelight.methods.recipe import Loop, Recipe


@dataclass(frozen=True)
class Watching(ClipRule, ClipState):
    """A clip rule that remembers what it was shown."""

    shown: list[Any] = field(default_factory=list)
    needs_after: ClassVar[bool] = True

    def begin(self, where: Any, params: Any) -> "Watching":
        return self

    def at(self, step: int, params: Any, metric: Any, origin: Any) -> Flat:
        return Flat(1.0)

    def after(self, params: Any, public_gradient: Any) -> None:
        self.shown.append(public_gradient)


@pytest.mark.parametrize("metric", [None, SecondMoments(floor=0.5), Subspace(1)])
def test_adaptive_parts_are_shown_the_public_gradient_in_the_space_of_the_noise(metric: Any) -> None:
    guide = GivenGuide([[3.0, 0.0], [3.0, 1.0]])
    clip = Watching()
    recipe = Recipe(start=At([0.0, 0.0]), metric=metric, clip=clip, noise=ConstantNoise())
    loop = one_step(recipe, [[1.0, 1.0]], setting(2, batch=1.0, guide=guide))
    gradient = guide.mean_gradient(None)
    expected = gradient if metric is None else loop.metric.at(0, loop.w, None).apply(gradient)
    np.testing.assert_array_equal(clip.shown, [expected])
    assert loop.history[0]["public_gradient_norm"] == pytest.approx(np.linalg.norm(gradient))


def test_a_warm_start_is_made_on_the_rows_that_the_loss_sees() -> None:
    task = scene().task(ADD_REMOVE)
    recipe = public_whitening(steps=2).with_parts(start=Warm(0.2))
    loop = Loop(recipe, recipe.plan(task).state["setting"])
    matrix = Whitening().metric(task.public.X, unit=True).matrix
    X = task.public.X / np.linalg.norm(task.public.X @ matrix.T, axis=1, keepdims=True)
    gradient = X.T @ task.loss.slope(X @ loop.w, task.public.y) / len(X) + 2 * 0.2 * loop.w
    assert np.linalg.norm(gradient) < 1e-9 < np.linalg.norm(loop.w)


@pytest.mark.parametrize("metric", [SecondMoments(floor=0.5), Subspace(1)])
def test_the_origin_comes_back_through_the_metric(metric: Any) -> None:
    """d = back(Σ clip(M(g − o))/B + M o)."""
    guide = GivenGuide([[3.0, 0.0], [3.0, 1.0]])
    recipe = Recipe(
        start=At([0.0, 0.0]), origin=PublicGradient(1.0), metric=metric, clip=Flat(0.5),
        noise=ConstantNoise(),
    )  # fmt: skip
    loop = one_step(recipe, [[1.0, 1.0], [2.0, 5.0]], setting(2, batch=4.0, guide=guide, step_size=1.0))
    M = loop.metric.at(0, loop.w, None)
    origin = PublicGradient(1.0).at(guide.mean_gradient(None))
    total = np.zeros_like(M.apply(origin))
    for g in ([1.0, 1.0], [2.0, 5.0]):
        v = M.apply(np.array(g) - origin)
        total = total + v * min(1, 0.5 / np.linalg.norm(v))
    expected = loop.metric.back(M, total / 4 + M.apply(origin))
    np.testing.assert_allclose(-loop.w, expected)
