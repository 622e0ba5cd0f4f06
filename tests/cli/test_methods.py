"""`sidelight methods`, and the catalog that it prints."""

import json
from typing import Any

import pytest

from sidelight.audit.subjects import scene
from sidelight.errors import SidelightError
from sidelight.methods.declare import (
    COMMON,
    DECLARATIONS,
    EVERY_LOSS,
    METHODS,
    describe,
    get_method,
    needs,
    sections,
)


@pytest.mark.parametrize("name", METHODS)
def test_facts_are_read_off_the_method(name: str) -> None:
    told, method = describe(name), get_method(name)
    assert tuple(told["relations"]) == method.relations
    assert told["needs_public"] == method.needs_public
    assert told["private"] == method.private
    for text in ("wins", "loses", "paper"):
        assert told[text] and told[text] == " ".join(told[text].split())
    json.dumps(told, allow_nan=False)


@pytest.mark.parametrize("loss", EVERY_LOSS)
@pytest.mark.parametrize("name", METHODS)
def test_a_method_takes_the_losses_that_it_declares_and_refuses_the_others(name: str, loss: str) -> None:
    method = get_method(name)
    task = scene(loss).task(method.relations[0])
    if loss in DECLARATIONS[name].losses:
        method.plan(task)
    else:
        with pytest.raises(SidelightError):
            method.plan(task)


def test_what_a_method_needs_is_said_in_words() -> None:
    assert needs(DECLARATIONS["dp_sgd"]) == ""
    assert needs(DECLARATIONS["rsgd_ar"]) == "a smooth loss (huber, logistic, softmax, square)"
    assert needs(DECLARATIONS["majority"]) == "classes to predict; an intercept"


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
    assert [one["name"] for one in every] == list(METHODS)
    assert run("methods", "ppsgd", "--json").json == next(one for one in every if one["name"] == "ppsgd")


def test_an_unknown_method_is_one_line(run: Any) -> None:
    run("methods", "dope_sdg").is_one_line_error(2, "Did you mean 'dope_sgd'")
