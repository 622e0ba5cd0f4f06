from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.contracts import replay
from tests.methods.bench import At, GivenGuide, one_step, setting
from tests.privacy.vectors import vector

from sidelight.audit.subjects import ADD_REMOVE, REPLACE, scene
from sidelight.errors import AssumptionError, InputError
from sidelight.methods.adamix import QuantileClip, Subspace, adamix, top_directions
from sidelight.methods.parts import PrivateOnly


def test_project_then_clip_then_lift() -> None:
    inputs, outputs, rtol = vector("J1")
    basis = top_directions(np.array(inputs["public_gradients"]), inputs["k"])
    np.testing.assert_allclose(basis @ basis.T, outputs["projector"], rtol=1e-6, atol=1e-12)
    where = setting(3, batch=1.0, guide=GivenGuide(inputs["public_gradients"]), step_size=1.0)
    recipe = adamix(rank=inputs["k"], quantile=inputs["quantile"]).with_parts(
        mix=PrivateOnly(), start=At([0.0, 0.0, 0.0])
    )
    loop = one_step(recipe, inputs["private_gradients"], where)
    np.testing.assert_allclose(-loop.w, outputs["lifted_sum"], rtol=1e-8)
    assert loop.history[0]["clip_norm"] == pytest.approx(outputs["clip_norm"], rel=rtol)


def test_noise_has_as_many_coordinates_as_the_subspace() -> None:
    tape = replay.record(adamix(rank=2, steps=2), scene().task(ADD_REMOVE))
    assert [call.output.shape for call in tape.calls] == [(2,), (2,)]


def test_the_clip_norm_is_the_quantile_of_projected_norms_at_every_step() -> None:
    task = scene().task(ADD_REMOVE)
    recipe = adamix(rank=2, steps=3)
    tape = replay.record(recipe, task)
    assert tape.fitted is not None
    norms = [entry["clip_norm"] for entry in tape.fitted.history]
    assert len(set(norms)) == 3
    assert norms[0] == tape.plan.details["clip_norm"]


class Vanishing(GivenGuide):
    """Public gradients that are there at the start and gone later."""

    def gradient_norms(self, params: Any, *, metric: Any = None, origin: Any = None) -> Any:
        return super().gradient_norms(params, metric=metric, origin=origin) * (not np.any(params))


def test_vanished_public_gradients_keep_the_last_clip_norm() -> None:
    where = setting(2, batch=1.0, guide=Vanishing([[3.0, 0.0], [0.0, 1.0]]))
    state = QuantileClip(1.0).begin(where, None)
    assert state.at(0, np.zeros(2), None, None).bound == 3
    assert state.at(1, np.ones(2), None, None).bound == 3
    assert len(state.notes) == 1
    state.at(2, np.ones(2), None, None)
    assert len(state.notes) == 1


def test_where_most_public_gradients_vanish_the_largest_counts() -> None:
    where = setting(2, batch=1.0, guide=GivenGuide([[0.0, 0.0]] * 9 + [[0.0, 2.0]]))
    assert QuantileClip(0.5).begin(where, None).at(0, np.zeros(2), None, None).bound == 2


def test_public_gradients_that_vanish_at_the_start_are_an_error() -> None:
    base = scene("square")
    task = replace(base, y_public=np.zeros(len(base.y_public))).task(ADD_REMOVE)
    with pytest.raises(AssumptionError, match="vanish"):
        adamix(steps=2).plan(task)  # the warm start fits them exactly


def test_the_rank_is_checked_against_public_records_and_parameters() -> None:
    task = scene(n_public=3).task(REPLACE)
    assert adamix(steps=2).plan(task)
    for rank in (0, 4):
        with pytest.raises(InputError, match="rank"):
            adamix(rank=rank).plan(task)
    with pytest.raises(InputError, match="quantile"):
        adamix(quantile=0.0).plan(task)


def test_a_basis_is_kept_for_as_long_as_it_is_told() -> None:
    guide = GivenGuide(np.random.default_rng(0).standard_normal((5, 3)))
    state = Subspace(2, refresh=3).begin(setting(3, batch=1.0, guide=guide), np.zeros(3))
    first = state.at(0, np.zeros(3), None)
    assert state.at(2, np.zeros(3), None) is first
    assert state.at(3, np.zeros(3), None) is not first
