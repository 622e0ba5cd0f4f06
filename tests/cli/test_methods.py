"""`sidelight methods`, and the catalogue that it prints."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from sidelight.data.rows import PrivateRows, PublicRows
from sidelight.erm.losses import get_loss
from sidelight.errors import SidelightError
from sidelight.methods.catalogue import CATALOGUE, COMMON, SMOOTH, describe, sections
from sidelight.methods.registry import METHODS, get_method
from sidelight.methods.task import Task


def test_every_method_has_an_entry_and_no_entry_is_without_a_method() -> None:
    assert set(CATALOGUE) == set(METHODS)


@pytest.mark.parametrize("name", METHODS)
def test_facts_are_read_off_the_method(name: str) -> None:
    told, method = describe(name), get_method(name)
    assert tuple(told["relations"]) == method.relations
    assert told["needs_public"] == method.needs_public
    assert told["private"] == method.private
    for text in ("wins", "loses", "paper"):
        assert told[text] and told[text] == " ".join(told[text].split())
    json.dumps(told, allow_nan=False)


def task(loss: str) -> Task:
    rng = np.random.default_rng(0)
    X = np.hstack([rng.normal(size=(60, 3)) / 4, np.full((60, 1), 0.5)])
    y = np.where(X[:, 0] > 0, 1.0, -1.0)
    rows = PrivateRows(X[:40], y[:40], max_norm=1.0)
    return Task(rows, PublicRows(X[40:], y[40:]), get_loss(loss), 1.0, 1e-5, "replace-one")


@pytest.mark.parametrize("name", METHODS)
def test_a_method_that_says_it_needs_a_smooth_loss_refuses_the_hinge_and_no_other_does(name: str) -> None:
    says_so = CATALOGUE[name].needs.startswith(SMOOTH[:13])
    method = get_method(name)
    method.plan(task("logistic"))
    try:
        method.plan(task("hinge"))
    except SidelightError:
        assert says_so
    else:
        assert not says_so


def test_methods_for_networks_are_those_of_the_trainer() -> None:
    pytest.importorskip("torch")
    from sidelight.deep.loop import _ON_NETWORKS

    assert {name for name, entry in CATALOGUE.items() if entry.networks} == set(_ON_NETWORKS.split(", "))


def test_docstrings_are_cut_into_sections() -> None:
    found = sections("sample_mechanism")  # "Departs:" stands in the middle of a line
    assert found["summary"] == "SampleMechanism."
    assert found["guarantee"] == "that of DP-SGD."
    assert found["departs"].startswith("private gradients are clipped")
    assert "Args" not in sections("rsgd_ar")["departs"]


def test_arguments_have_defaults_and_meanings() -> None:
    told = {one["name"]: one for one in describe("rsgd_ar")["parameters"]}
    assert told["epochs"]["default"] == 20 and told["step_size"]["default"] == 0.5
    assert told["average_every"]["meaning"].startswith("τ, in epochs")
    assert told["accounting"]["type"] == "exact | paper"
    clip = {one["name"]: one for one in describe("dp_sgd")["parameters"]}["clip_norm"]
    assert clip["default"] is None and "; None: " in clip["meaning"]


def test_common_meanings_are_of_arguments_that_exist() -> None:
    known = {one["name"] for name in METHODS for one in describe(name)["parameters"]}
    assert set(COMMON) <= known


def test_the_list_names_every_method(run: Any) -> None:
    out = run("methods").out
    for name in METHODS:
        assert f" {name} " in out
    assert "no guarantee at all" in out


def test_one_method_in_full(run: Any) -> None:
    out = run("methods", "dope_sgd").out
    for words in ("Nasr et al., ICML 2023", "origin_limit", "add-or-remove-one", "departs", "PrivateStep"):
        assert words in out
    assert "no parameters" in run("methods", "only_public").out


def test_json(run: Any) -> None:
    every = run("methods", "--json").json["methods"]
    assert [one["name"] for one in every] == list(CATALOGUE)
    assert run("methods", "ppsgd", "--json").json == next(one for one in every if one["name"] == "ppsgd")


def test_an_unknown_method_is_one_line(run: Any) -> None:
    run("methods", "dope_sdg").is_one_line_error(2, "Did you mean 'dope_sgd'")
