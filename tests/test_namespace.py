"""What a user imports."""

from __future__ import annotations

import importlib
import re
import sys
import tomllib
from pathlib import Path

import pytest

import sidelight
from sidelight import errors, methods
from sidelight.methods.declare import homes

ROOT = Path(__file__).parents[1]


def test_all_is_the_namespace() -> None:
    assert sorted(sidelight.__all__) == dir(sidelight)
    for name in sidelight.__all__:
        if sidelight._HOMES.get(name) == "sidelight.deep":
            pytest.importorskip("torch")
        assert getattr(sidelight, name) is not None


def test_every_error_is_exported() -> None:
    assert set(errors.__all__) <= set(sidelight.__all__)


def test_names_are_faces_methods_and_errors() -> None:
    faces = {"PrivateNetClassifier", "PrivateNetRegressor", "PrivateStep", "Trainer"}
    faces |= {"PrivateClassifier", "PrivateRegressor", "Ledger", "compare", "diagnose"}
    assert set(sidelight._HOMES) == faces | set(homes()), "run make tables"
    assert set(sidelight.__all__) == set(sidelight._HOMES) | set(errors.__all__) | {"__version__"}


def test_what_a_recipe_is_made_of_comes_from_one_module() -> None:
    assert sorted(methods.__all__) == dir(methods) == sorted(methods._HOMES)
    parts = [getattr(methods, name) for name in methods.__all__]
    assert all(one is not None for one in parts)
    with pytest.raises(AttributeError, match="no attribute 'Recepi'"):
        methods.Recepi  # noqa: B018


def test_every_part_of_a_recipe_is_exported() -> None:
    """Those for linear models and networks alike; ensembles and the last layer are in sidelight.deep."""
    kinds = [one for one in subclasses(methods.Part) if one.__module__.startswith("sidelight.methods")]
    assert {one.__name__ for one in kinds if not one.__name__.startswith("_")} <= set(methods.__all__)


@pytest.mark.parametrize("name", homes())
def test_a_method_is_exported_under_its_name_and_its_file_is_found(name: str) -> None:
    """Whatever was imported first: `sidelight.methods.dp_sgd` is a file and, for who asks, the method."""
    home = importlib.import_module(homes()[name].module)
    found = getattr(methods, name)
    assert found is getattr(home, name) is getattr(sidelight, name)
    assert sys.modules[homes()[name].module] is home


def subclasses(one: type) -> set[type]:
    return {one}.union(*(subclasses(other) for other in one.__subclasses__()))


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'PrivateClasifier'"):
        sidelight.PrivateClasifier  # noqa: B018


def test_version_is_the_one_in_pyproject() -> None:
    assert tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"] == sidelight.__version__


def test_constraints_pin_every_requirement() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    wanted = list(project["project"]["dependencies"]) + project["build-system"]["requires"]
    extras = dict(project["project"]["optional-dependencies"])
    flower = extras.pop("flower")  # has an environment, and a file of versions, of its own
    assert _names(wanted + flower) <= _pinned("constraints-flower.txt")
    assert _names(wanted + [one for group in extras.values() for one in group]) <= _pinned("constraints.txt")


def _names(requirements: list[str]) -> set[str]:
    names = {re.split(r"[^A-Za-z0-9_.-]", one)[0].lower().replace("_", "-") for one in requirements}
    return names - {"sidelight"}


def _pinned(file: str) -> set[str]:
    lines = [line for line in (ROOT / file).read_text().splitlines() if line and line[0] != "#"]
    assert all(re.fullmatch(r"[\w.-]+==[\w.]+", line) for line in lines)
    return {line.split("==")[0].lower().replace("_", "-") for line in lines}
