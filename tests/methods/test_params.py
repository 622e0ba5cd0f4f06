"""Nested parameters of frozen methods."""

import pytest

from sidelight.errors import InputError
from sidelight.methods.declare import METHODS
from sidelight.methods.dp_agd import agd_avg, dp_agd
from sidelight.methods.parts import Reuse
from sidelight.methods.rsgd_ar import rsgd_ar
from sidelight.methods.task import parameters, with_parameters


def test_parameters_are_the_fields_and_those_of_parts() -> None:
    method = agd_avg(dp_agd(clip_norm=0.3))
    flat = parameters(method)
    assert flat["agd"] == method.agd
    assert flat["agd__clip_norm"] == 0.3


@pytest.mark.parametrize("name", sorted(METHODS))
def test_what_a_method_is_cannot_be_set(name: str) -> None:
    flat = parameters(METHODS[name]())
    assert not {"name", "private", "relations", "needs_public"} & set(flat)


@pytest.mark.parametrize("name", sorted(METHODS))
def test_setting_what_is_there_changes_nothing(name: str) -> None:
    method = METHODS[name]()
    assert with_parameters(method, parameters(method)) == method


def test_a_change_is_a_copy() -> None:
    method = agd_avg(dp_agd())
    changed = with_parameters(method, {"agd__clip_norm": 0.7})
    assert parameters(changed)["agd__clip_norm"] == 0.7
    assert parameters(method)["agd__clip_norm"] != 0.7
    both = with_parameters(method, {"agd__clip_norm": 0.7, "agd": dp_agd(clip_norm=9.0, splits=7)})
    assert parameters(both)["agd__clip_norm"] == 0.7 and parameters(both)["agd__splits"] == 7


@pytest.mark.parametrize("wrong", ["clipnorm", "private", "epochs__more"])
def test_unknown_parameter_names_the_known_ones(wrong: str) -> None:
    with pytest.raises(InputError, match="parameter"):
        with_parameters(rsgd_ar(), {wrong: 1})


def test_a_parameter_of_one_part_is_reached_by_its_own_name() -> None:
    method = METHODS["dp_sgd"]()
    changed = with_parameters(method, {"clip_norm": 0.5, "steps": 3})
    assert parameters(changed)["clip__clip_norm"] == 0.5 and changed.steps == 3
    assert with_parameters(method, {"clip": changed.clip, "clip_norm": 0.7}).clip.clip_norm == 0.7
    with pytest.raises(InputError, match="'clip_norm'"):
        with_parameters(method, {"clip_norm": 0.5, "clip__clip_norm": 0.6})


def test_a_name_that_several_parts_have_asks_which_one() -> None:
    recipe = METHODS["dpmd"](mirror="exact", finish=Reuse(lam=0.2))
    with pytest.raises(InputError, match="finish__lam"):
        with_parameters(recipe, {"lam": 1.0})
    assert with_parameters(recipe, {"mix__lam": 1.0}).mix.lam == 1.0
