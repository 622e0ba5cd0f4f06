from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.contracts import replay
from tests.methods.bench import At, GivenGuide, one_step, setting
from tests.privacy.vectors import vector

from sidelight.audit.subjects import ADD_REMOVE, REPLACE, scene
from sidelight.data.rows import PublicRows, UnreadRows
from sidelight.errors import InputError
from sidelight.methods.dope_sgd import PublicGradient, Warm, dope_sgd
from sidelight.methods.dp_sgd import dp_sgd
from sidelight.methods.parts import Last
from sidelight.methods.recipe import Recipe
from sidelight.privacy import accountants, events


def step(inputs: dict[str, Any], public: Any, recipe: Recipe, eta: float = 0.1) -> Any:
    theta = inputs.get("theta", [0.0, 0.0])
    where = setting(2, batch=inputs["B"], guide=GivenGuide(public), step_size=eta)
    return one_step(recipe.with_parts(start=At(theta)), inputs["private_gradients"], where).w


@pytest.mark.parametrize("name", ["I1", "I2"])
def test_the_step_of_the_vectors(name: str) -> None:
    """Four records were sampled where five were expected: divided by five, and the origin added once."""
    inputs, outputs, rtol = vector(name)
    recipe = dope_sgd(clip_norm=inputs["C"], origin_limit=inputs.get("lam"))
    w = step(inputs, inputs["public_gradient"], recipe, inputs["eta"])
    np.testing.assert_allclose(w, outputs["theta_next"], rtol=rtol)
    direction = (np.array(inputs["theta"]) - w) / inputs["eta"]
    np.testing.assert_allclose(direction, outputs["update_direction"], rtol=1e-9)
    if "origin" in outputs:
        origin = PublicGradient(inputs["lam"]).at(np.array(inputs["public_gradient"]))
        np.testing.assert_allclose(origin, outputs["origin"], rtol=rtol)


def test_a_limit_of_zero_is_dp_sgd() -> None:
    inputs, outputs, rtol = vector("I3")
    around = step(inputs, [3.0, 4.0], dope_sgd(clip_norm=inputs["C"], origin_limit=0.0), eta=1.0)
    plain = step(inputs, [3.0, 4.0], dp_sgd(clip_norm=inputs["C"]), eta=1.0)
    np.testing.assert_allclose(-around, outputs["update_direction"], rtol=rtol)
    np.testing.assert_array_equal(around, plain)


def test_a_round_of_users() -> None:
    """User-level DOPE is the same step, with one update a user in place of one gradient per record."""
    inputs, outputs, rtol = vector("P2")
    guide = GivenGuide(inputs["public_user_updates"])
    np.testing.assert_allclose(guide.mean_gradient(None), outputs["origin"], rtol=rtol)
    where = setting(2, batch=inputs["B"], guide=guide, step_size=1.0)
    loop = one_step(dope_sgd(clip_norm=inputs["C"]), inputs["user_updates"], where)
    np.testing.assert_allclose(-loop.w, outputs["direction"], rtol=rtol)


def extended_task(n: int, n_public: int) -> Any:
    rng = np.random.default_rng(0)
    public = PublicRows(rng.standard_normal((n_public, 2)) / 3, np.where(np.arange(n_public) % 2, 1.0, -1.0))
    return replace(scene(p=2).task(ADD_REMOVE), rows=UnreadRows(n, 2, max_norm=1.0), public=public)


@pytest.mark.parametrize("extended", [True, False])
def test_the_rate_is_that_of_the_pool(extended: bool) -> None:
    inputs, outputs, rtol = vector("I4")
    start: Any = "warm" if extended else "cold"
    plan = dope_sgd(
        start=start, extended=extended, expected_batch_size=inputs["B"], steps=1, step_size=0.1
    ).plan(extended_task(inputs["n_priv"], inputs["n_pub"]))
    expected = outputs["q" if extended else "q_warm"]
    assert plan.details["sampling_probability"] == pytest.approx(expected, rel=rtol)
    if extended:
        assert plan.details["expected_batch_size"] == pytest.approx(
            outputs["expected_private_batch"], rel=rtol
        )
    inputs, outputs, rtol = vector("I5")
    sampler = plan.state["setting"].sampler
    event = events.repeat(sampler.event(plan.state["setting"].n, inputs["noise_multiplier"]), inputs["steps"])
    cost = accountants.epsilon(event, delta=inputs["delta"], relation=ADD_REMOVE)
    assert cost == pytest.approx(outputs["eps_extended" if extended else "eps_warm"], rel=rtol)


@pytest.mark.parametrize("clip_pool", [True, False], ids=["clipped", "as they are"])
@pytest.mark.parametrize("limit", [None, 0.1, 0.0])
def test_extended_is_the_mean_over_the_pool(limit: float | None, clip_pool: bool) -> None:
    """G = o + (1/B)(Σ_priv clip(g−o) + q·Σ_pub clip(ĝ_j−o)) with B = q(N_priv + N_pub), METHODS 11."""
    base = scene()
    n, m = len(base.y), len(base.y_public)
    recipe = dope_sgd(
        clip_norm=0.3, start="cold", extended=True, expected_batch_size=n + m, steps=1, step_size=1.0,
        origin_limit=limit, finish=Last(),
    ).with_parts(clip_pool=clip_pool)  # fmt: skip
    task = base.task(ADD_REMOVE)
    fitted = recipe.run(task, recipe.plan(task), account=replay.Nothing(), noise=replay.SilentNoise(0))
    gradients, public = -base.y[:, None] * base.X / 2, -base.y_public[:, None] * base.X_public / 2
    origin = PublicGradient(np.inf if limit is None else limit).at(public.mean(axis=0))

    def clipped(moved: Any) -> Any:
        return moved * np.minimum(1, 0.3 / np.linalg.norm(moved, axis=1, keepdims=True))

    pool = clipped(public - origin) if clip_pool else public - origin
    expected = origin + (clipped(gradients - origin).sum(axis=0) + pool.sum(axis=0)) / (n + m)
    np.testing.assert_allclose(-fitted.coef[0], expected, rtol=1e-9)
    assert fitted.history[0]["noise_std"] == pytest.approx(
        fitted.history[0]["noise_multiplier"] * 0.3 / (n + m)
    )


def test_a_warm_start_is_the_public_model() -> None:
    task = scene().task(ADD_REMOVE)
    recipe = dope_sgd(start="warm", warm_lam=0.5, steps=1)
    w = Warm(0.5)(recipe.plan(task).state["setting"])
    X, y = task.public.X, task.public.y
    gradient = X.T @ task.loss.slope(X @ w, y) / len(y) + 2 * 0.5 * w
    assert np.linalg.norm(gradient) < 1e-9


def test_senseless_settings_are_refused() -> None:
    with pytest.raises(InputError, match="start must"):
        dope_sgd(start="hot")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="origin_limit"):
        dope_sgd(origin_limit=-1.0)
    with pytest.raises(InputError, match="pass expected_batch_size"):
        dope_sgd(start="warm", extended=True).plan(scene().task(ADD_REMOVE))
    with pytest.raises(InputError, match="public records"):
        task = scene().task(REPLACE)
        dope_sgd().plan(replace(task, public=PublicRows.empty(task.p)))
