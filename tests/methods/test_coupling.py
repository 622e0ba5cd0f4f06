from typing import Any

import numpy as np
import pytest
from tests.methods.bench import GivenGuide, one_step, setting
from tests.privacy.vectors import vector

from sidelight.audit.subjects import ADD_REMOVE, REPLACE, scene
from sidelight.errors import InputError
from sidelight.methods.coupling import (
    Weight,
    coupling,
    sum_to_mean_weight,
    weight_of_noise,
    weight_of_theorem,
)
from sidelight.methods.parts import Automatic


@pytest.mark.parametrize("name", ["G1", "G2", "G3", "G4", "G5"])
def test_the_weight_of_equation_5(name: str) -> None:
    inputs, outputs, rtol = vector(name)
    alpha = weight_of_noise(
        smoothness=inputs["L"],
        loss=inputs["L0"],
        noise_multiplier=inputs["sigma"],
        dimension=inputs["d"],
        batch=inputs["B"],
        bound=inputs["R"],
    )
    assert alpha == pytest.approx(outputs["alpha"], rel=rtol)


@pytest.mark.parametrize("name", ["G6", "G7", "G8", "G9", "G10"])
def test_the_weight_of_theorem_3_1(name: str) -> None:
    inputs, outputs, rtol = vector(name)
    alpha = weight_of_theorem(
        n_private=inputs["n_priv"],
        n_public=inputs["n_pub"],
        distance=inputs["dist"],
        dimension=inputs["d"],
        mu=inputs["mu"],
        variance=inputs["var"],
        vc=inputs["d_vc"],
    )
    assert alpha == pytest.approx(outputs["alpha"], rel=rtol)
    assert (alpha == 1) == outputs["corner"]


def test_the_weight_of_theorem_3_1_is_a_minimum() -> None:
    """Of A(1−α) + S√((1−α)²/n_priv + α²/n_pub), on a grid."""
    n_private, n_public, distance, dimension, mu, variance = 500, 40, 0.3, 20, 0.7, 0.4
    given = {"n_private": n_private, "n_public": n_public, "distance": distance, "dimension": dimension}
    alpha = weight_of_theorem(**given, mu=mu, variance=variance, vc=dimension, bound=2.0)  # type: ignore[arg-type]
    grid = np.linspace(0, 1, 20001)
    a = 2.0 * distance * np.sqrt(dimension) / (mu * n_private)
    s = np.sqrt(variance * dimension)
    value = a * (1 - grid) + s * np.sqrt((1 - grid) ** 2 / n_private + grid**2 / n_public)
    assert alpha == pytest.approx(grid[value.argmin()], abs=1e-4)


def test_automatic_clipping() -> None:
    inputs, outputs, rtol = vector("G11")
    where = setting(2, batch=1.0, guide=GivenGuide([[0.0, 0.0]]), step_size=1.0)
    recipe = coupling(weight=0.0, reduction="mean", bound=inputs["R"], gamma=inputs["gamma"])
    loop = one_step(recipe, [inputs["g"]], where)
    np.testing.assert_allclose(-loop.w, outputs["clipped"], rtol=rtol)
    clip = Automatic(inputs["R"], inputs["gamma"]).begin(where, None).at(0, None, None, None)
    assert clip.factors(np.array([5.0]))[0] == pytest.approx(outputs["factor"], rel=rtol)


def test_the_update_mixes_means() -> None:
    where = setting(2, batch=4.0, guide=GivenGuide([[1.0, 2.0], [3.0, 0.0]]), step_size=0.1)
    recipe = coupling(weight=0.25, reduction="mean", bound=1.0, gamma=1.0)
    loop = one_step(recipe, [[3.0, 4.0]], where)
    expected = -0.1 * (0.25 * np.array([2.0, 1.0]) + 0.75 * np.array([0.5, 2 / 3]) / 4)
    np.testing.assert_allclose(loop.w, expected, rtol=1e-9)


def test_a_long_public_gradient_is_shortened_and_a_short_one_is_not() -> None:
    recipe = coupling(weight=0.25, reduction="mean", public_limit=1.0)
    for public, kept in (([3.0, 4.0], [0.6, 0.8]), ([0.3, 0.4], [0.3, 0.4])):
        where = setting(2, batch=1.0, guide=GivenGuide([public]), step_size=1.0)
        loop = one_step(recipe, [[0.0, 0.0]], where)
        np.testing.assert_allclose(-loop.w, 0.25 * np.array(kept), rtol=1e-9)
        assert loop.mix.details["public_limit"] == 1.0
    with pytest.raises(InputError, match="public_limit"):
        coupling(public_limit=0.0)


def test_a_weight_for_sums_becomes_one_for_means() -> None:
    inputs, outputs, rtol = vector("P5")
    alpha = sum_to_mean_weight(
        inputs["alpha_sum"], public_batch=inputs["B_pub"], private_batch=inputs["B_priv"]
    )
    assert alpha == pytest.approx(outputs["alpha_mean"], rel=rtol)
    made = coupling(
        weight=inputs["alpha_sum"],
        reduction="sum",
        public_batch=inputs["B_pub"],
        expected_batch_size=inputs["B_priv"],
    )
    assert made.mix.weight == pytest.approx(outputs["alpha_mean"], rel=rtol)


@pytest.mark.parametrize("weight", ["noise", "theorem"])
def test_the_report_has_the_weight_and_where_it_came_from(weight: str) -> None:
    details = coupling(weight=weight, steps=2).plan(scene().task(ADD_REMOVE)).details  # type: ignore[arg-type]
    assert 0 < details["weight"] <= 1
    expected = {"noise": {"public_smoothness", "public_start_loss"}}.get(
        weight, {"public_distance", "public_loss_variance"}
    )
    assert expected <= set(details)
    if weight == "noise":
        assert details["public_start_loss"] == pytest.approx(np.log(2))


@pytest.mark.parametrize(("relation", "factor"), [(ADD_REMOVE, 1), (REPLACE, 2)])
def test_equation_5_is_asked_with_the_noise_in_units_of_the_bound(relation: Any, factor: int) -> None:
    task = scene().task(relation)
    details = coupling(steps=2, bound=0.1).plan(task).details
    expected = weight_of_noise(
        smoothness=details["public_smoothness"],
        loss=details["public_start_loss"],
        noise_multiplier=factor * details["noise_multiplier"],
        dimension=task.dimension,
        batch=task.n,
        bound=0.1,
    )
    assert details["weight"] == pytest.approx(expected)
    X = task.public.X
    assert details["public_smoothness"] == pytest.approx(np.linalg.eigvalsh(X.T @ X / len(X))[-1] / 4)


def test_a_weight_by_hand_says_what_it_is_a_weight_of() -> None:
    with pytest.raises(InputError, match="reduction"):
        coupling(weight=0.5)
    with pytest.raises(InputError, match="reduction"):
        coupling(weight=0.5, reduction="average")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="public_batch"):
        coupling(weight=0.5, reduction="sum", expected_batch_size=10)
    with pytest.raises(InputError, match="'theorem'"):
        coupling(weight="best")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="between"):
        Weight(1.5)
