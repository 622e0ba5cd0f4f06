from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.contracts import replay

from sidelight.audit.subjects import ADD_REMOVE, REPLACE, scene
from sidelight.data.rows import PublicRows
from sidelight.methods.dp_sgd import dp_sgd, full_private, only_private
from sidelight.privacy import accountants, events
from sidelight.privacy.events import FixedSize, FullBatch, Poisson


def test_it_is_clipped_gradient_descent() -> None:
    base = replace(scene(), regularization=0.1)
    task = base.task(ADD_REMOVE)
    recipe = dp_sgd(clip_norm=0.2, steps=3, step_size=0.5, momentum=0.9)
    fitted = recipe.run(task, recipe.plan(task), account=replay.Nothing(), noise=replay.SilentNoise(0))
    w, v = np.zeros(task.p), np.zeros(task.p)
    for _ in range(3):
        g = task.loss.slope(base.X @ w, base.y)[:, None] * base.X
        g = g * np.minimum(1, 0.2 / np.linalg.norm(g, axis=1, keepdims=True))
        v = 0.9 * v + g.sum(axis=0) / task.n
        w = (w - 0.5 * v) / (1 + 0.5 * 0.1)
    np.testing.assert_allclose(fitted.coef[0], w, rtol=1e-9)


@pytest.mark.parametrize(
    ("relation", "batch", "sampler"),
    [
        (ADD_REMOVE, 22, Poisson(0.5)),
        (REPLACE, 22, FixedSize(22)),
        (ADD_REMOVE, None, FullBatch(ADD_REMOVE)),
        (REPLACE, 44, FullBatch(REPLACE)),
        (REPLACE, 43.7, FullBatch(REPLACE)),
        (REPLACE, 1e9, FullBatch(REPLACE)),
    ],
)
def test_sampling_follows_the_relation(relation: Any, batch: Any, sampler: Any) -> None:
    plan = dp_sgd(steps=4, expected_batch_size=batch).plan(scene().task(relation))
    assert plan.state["setting"].sampler == sampler
    z = plan.details["noise_multiplier"]
    assert plan.event == events.repeat(sampler.event(44, z), 4)
    assert not plan.filtered


def test_the_noise_is_the_least_that_the_plan_needs() -> None:
    task = scene().task(ADD_REMOVE)
    plan = dp_sgd(steps=4, expected_batch_size=22).plan(task)
    least = accountants.noise_multiplier(
        epsilon=task.epsilon, delta=task.delta, sampling_probability=0.5, steps=4, relation=ADD_REMOVE
    )
    assert plan.details["noise_multiplier"] == least
    tape = replay.record(dp_sgd(steps=4, expected_batch_size=22, clip_norm=0.3), task)
    assert tape.fitted is not None
    assert {entry["noise_std"] for entry in tape.fitted.history} == {least * 0.3 / 22}


@pytest.mark.parametrize(
    ("loss", "bound"), [("hinge", 1.0), ("logistic", 1.0), ("softmax", 2**0.5), ("square", 2.0)]
)
def test_the_natural_bound_holds_where_it_should(loss: str, bound: float) -> None:
    """Lipschitz losses: anywhere; the square loss: at w = 0."""
    base = scene(loss)
    task = base.task(ADD_REMOVE)
    where = dp_sgd(steps=1).plan(task).state["setting"]
    assert where.problem.default_clip_norm() == pytest.approx(bound)
    w = 0 if loss == "square" else np.random.default_rng(0).standard_normal(task.dimension) * 5
    assert where.guide.gradient_norms(np.zeros(task.dimension) + w).max() <= bound * (1 + 1e-9)


def test_only_private_does_not_look_at_public_rows() -> None:
    """Not even for a step size."""
    task = scene().task(ADD_REMOVE)
    other = replace(task, public=PublicRows(np.full((3, 4), 0.4), np.ones(3)))
    bare = replace(task, public=PublicRows.empty(4))
    recipe = only_private(steps=3)
    results = [replay.record(recipe, one).fitted for one in (task, other, bare)]
    for one in results:
        assert one is not None and results[0] is not None
        np.testing.assert_array_equal(one.coef, results[0].coef)
    assert "public" not in " ".join(recipe.plan(task).assumptions)
    assert dp_sgd(steps=3).plan(task).details["step_size"] != recipe.plan(task).details["step_size"]


def test_full_private_trains_on_all_records_and_is_guided_by_none() -> None:
    base = scene()
    task = base.task(ADD_REMOVE)
    recipe = full_private(steps=1, clip_norm=10.0, step_size=1.0)
    plan = recipe.plan(task)
    assert plan.details["expected_batch_size"] == 54 and plan.state["setting"].guide is None
    fitted = recipe.run(task, plan, account=replay.Nothing(), noise=replay.SilentNoise(0))
    X, y = np.vstack([base.X, base.X_public]), np.concatenate([base.y, base.y_public])
    np.testing.assert_allclose(fitted.coef[0], (y[:, None] * X / 2).mean(axis=0), rtol=1e-9)
    assert full_private(steps=1).plan(replace(task, public=PublicRows.empty(4)))


def test_full_private_protects_public_records_as_well() -> None:
    """A public record that changes moves the sum within the same sensitivity."""
    base = scene()
    recipe = full_private(steps=2, clip_norm=0.3)
    tape = replay.record(recipe, base.task(REPLACE))
    X = base.X_public.copy()
    X[0] = -X[0]
    other = replay.record(recipe, replace(base, X_public=X).task(REPLACE), like=tape)
    assert 0.3 < replay.assert_within_sensitivity(tape, other) <= 1
    replay.assert_same_outside(tape, other)
