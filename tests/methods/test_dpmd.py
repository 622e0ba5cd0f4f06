from typing import Any

import numpy as np
import pytest
from tests.contracts.replay import Nothing, SilentNoise
from tests.methods.bench import GivenGuide, setting
from tests.privacy.vectors import vector

from sidelight.audit.subjects import ADD_REMOVE, scene
from sidelight.data.rows import PublicRows
from sidelight.errors import AssumptionError, InputError
from sidelight.losses import Logistic
from sidelight.methods.dpmd import cosine_weight, dpmd, mirror_step
from sidelight.methods.parts import Last
from sidelight.oracles.linear.linear_oracle import PublicOracle


def test_the_cosine_moves_from_private_to_public() -> None:
    inputs, outputs, rtol = vector("H1")
    weights = [cosine_weight(t, inputs["K"]) for t in inputs["t"]]
    assert weights == pytest.approx(outputs["alpha_pub"], rel=rtol)


def test_a_long_public_gradient_is_shortened() -> None:
    where = setting(2, batch=1.0, guide=GivenGuide([[3.0, 4.0]]), step_size=1.0)
    state = dpmd(public_limit=0.5, horizon=1e-9).mix.begin(where, None, noise_multiplier=1.0, bound=1.0)
    mixed = state.mix(np.zeros(2), np.ones(2), np.array([3.0, 4.0]), step=1, step_size=1.0)
    np.testing.assert_allclose(mixed, [0.3, 0.4])
    with pytest.raises(InputError, match="public_limit"):
        dpmd(public_limit=-1.0).mix.begin(where, None, noise_multiplier=1.0, bound=1.0)


def test_the_form_of_the_coupling_paper() -> None:
    inputs, outputs, rtol = vector("H2")
    weights = [cosine_weight(t, inputs["T"] * inputs["i"] / 2) for t in inputs["t"]]
    assert weights == pytest.approx(outputs["alpha_pub"], rel=rtol)


class Quadratic:
    """Ψ(w) = ½ wᵀHw, of which λ/2‖w‖² is the regularizer's part."""

    def __init__(self, hessian: Any, lam: float) -> None:
        self.matrix = np.asarray(hessian, dtype=float) - lam * np.eye(len(hessian))

    def mean_loss(self, w: Any) -> float:
        return float(w @ self.matrix @ w) / 2

    def mean_gradient(self, w: Any) -> Any:
        return self.matrix @ w

    def hessian(self, w: Any) -> Any:
        return self.matrix


def test_an_exact_step_on_a_quadratic() -> None:
    inputs, outputs, rtol = vector("H3")
    moved = mirror_step(
        Quadratic(inputs["hessian"], 0.25),
        np.array(inputs["theta"]),
        np.array(inputs["private_gradient"], dtype=float),
        size=inputs["eta"],
        lam=0.25,
    )
    np.testing.assert_allclose(moved, outputs["theta_next"], rtol=rtol)


def test_an_exact_step_on_a_logistic_map() -> None:
    inputs, outputs, rtol = vector("H4")
    guide = PublicOracle(PublicRows(np.array(inputs["X"]), np.array(inputs["y"])), Logistic())
    moved = mirror_step(
        guide,
        np.array(inputs["theta"]),
        np.array(inputs["private_gradient"]),
        size=inputs["eta"],
        lam=inputs["lam"],
    )
    np.testing.assert_allclose(moved, outputs["theta_next"], rtol=rtol)


@pytest.mark.parametrize("mirror", ["exact", "first-order"])
def test_a_step_of_the_whole_method(mirror: Any) -> None:
    base = scene()
    task = base.task(ADD_REMOVE)
    recipe = dpmd(
        mirror=mirror, lam=0.1, start="cold", clip_norm=10.0, steps=2, step_size=0.1, horizon=2, finish=Last()
    )
    fitted = recipe.run(task, recipe.plan(task), account=Nothing(), noise=SilentNoise(0))
    guide = PublicOracle(task.public, task.loss)
    w = np.zeros(task.p)
    for t in range(2):
        G = base.X.T @ task.loss.slope(base.X @ w, base.y) / task.n
        if mirror == "exact":
            target = guide.mean_gradient(w) + 0.1 * w - 0.1 * G
            w = mirror_step(guide, w, G, size=0.1, lam=0.1)
            np.testing.assert_allclose(guide.mean_gradient(w) + 0.1 * w, target, atol=1e-9)
        else:
            alpha = cosine_weight(t, 2)
            w = w - 0.1 * ((1 - alpha) * G + alpha * guide.mean_gradient(w))
    np.testing.assert_allclose(fitted.coef[0], w, rtol=1e-8)


@pytest.mark.parametrize("loss", ["hinge", "softmax"])
def test_a_loss_without_a_mirror_map_is_refused_before_the_charge(loss: str) -> None:
    with pytest.raises(AssumptionError, match="mirror"):
        dpmd(mirror="exact", step_size=0.1).plan(scene(loss).task(ADD_REMOVE))


class Stubborn(Quadratic):
    """A gradient that no step changes."""

    def mean_gradient(self, w: Any) -> Any:
        return np.array([1.0, 1.0]) - 0.25 * w


def test_a_solve_that_does_not_converge_raises() -> None:
    with pytest.raises(AssumptionError, match="converge"):
        mirror_step(Stubborn(np.eye(2), 0.25), np.ones(2), np.ones(2), size=1.0, lam=0.25)


def test_senseless_settings_are_refused() -> None:
    task = scene().task(ADD_REMOVE)
    with pytest.raises(InputError, match="mirror"):
        dpmd(mirror="round")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="lam > 0"):
        dpmd(mirror="exact", lam=0.0).plan(task)
    for horizon in (0, -1):
        with pytest.raises(InputError, match="horizon"):
            dpmd(horizon=horizon).plan(task)
