from dataclasses import replace

import numpy as np
import pytest
from tests.methods.bench import At, GivenGuide, one_step, setting
from tests.privacy.vectors import vector

from sidelight.audit.subjects import ADD_REMOVE, scene
from sidelight.errors import AssumptionError, InputError
from sidelight.methods.adadps import SecondMoments, SecondMomentsState, adadps
from sidelight.methods.parts import Flat


def test_precondition_then_clip_and_not_again() -> None:
    inputs, outputs, rtol = vector("J2")
    # A public gradient of √v leaves v as it is.
    guide = GivenGuide(np.sqrt(inputs["second_moment"]))
    where = setting(3, batch=inputs["B"], guide=guide, step_size=1.0)
    recipe = adadps(clip_norm=inputs["C"]).with_parts(
        start=At([0.0, 0.0, 0.0]), metric=SecondMoments(floor=inputs["eps"])
    )
    loop = one_step(recipe, inputs["private_gradients"], where)
    np.testing.assert_allclose(-loop.w, outputs["direction"], rtol=rtol)
    metric = loop.metric.at(0, loop.w, None)
    shown = [metric.apply(np.array(g)) for g in inputs["private_gradients"]]
    np.testing.assert_allclose(shown, outputs["preconditioned"], rtol=rtol)


def test_the_recursion_of_second_moments() -> None:
    inputs, outputs, rtol = vector("J3")
    state = SecondMomentsState(np.array(inputs["v"]), inputs["beta"], 1e-3)
    gradient = np.array(inputs["public_gradient"])
    state.at(0, None, gradient)
    np.testing.assert_allclose(state.moments, outputs["v_next"], rtol=rtol)
    state.at(0, None, gradient)  # the same step, asked twice
    np.testing.assert_allclose(state.moments, outputs["v_next"], rtol=rtol)


def test_it_starts_from_the_second_moment_of_all_public_records() -> None:
    task = scene().task(ADD_REMOVE)
    where = adadps(start="cold").plan(task).state["setting"]
    state = SecondMoments().begin(where, np.zeros(task.p))
    gradients = -task.public.y[:, None] * task.public.X / 2
    np.testing.assert_allclose(state.moments, (gradients**2).mean(axis=0))
    assert state.floor == pytest.approx(1e-3 * np.median(np.sqrt(state.moments)))


def test_a_feature_that_public_records_lack_is_not_divided_by_zero() -> None:
    base = scene()
    X = base.X_public.copy()
    X[:, 0] = 0
    where = adadps(start="cold").plan(replace(base, X_public=X).task(ADD_REMOVE)).state["setting"]
    metric = SecondMoments().begin(where, np.zeros(4)).at(0, None, None)
    assert np.isfinite(metric.scale).all() and metric.scale[0] == metric.scale.max()


def test_senseless_settings_are_refused() -> None:
    task = scene().task(ADD_REMOVE)
    with pytest.raises(InputError, match="decay"):
        adadps(decay=1.0).plan(task)
    with pytest.raises(AssumptionError, match="vanish"):
        SecondMoments().begin(setting(2, batch=1.0, guide=GivenGuide([[0.0, 0.0]])), np.zeros(2))
    assert isinstance(adadps(clip_norm=0.5).clip, Flat)
