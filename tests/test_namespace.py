"""What a user imports."""

import ast
import importlib
import re
import tomllib
from pathlib import Path

import pytest

import sidelight
from sidelight import errors, methods
from sidelight.methods.declare import DECLARATIONS

ROOT = Path(__file__).parents[1]


def test_all_is_the_namespace() -> None:
    assert sorted(sidelight.__all__) == dir(sidelight)
    for name in sidelight.__all__:
        if sidelight._HOMES.get(name) == "sidelight.deep":
            pytest.importorskip("torch")
        assert getattr(sidelight, name) is not None


def test_every_error_is_exported() -> None:
    assert set(errors.__all__) <= set(sidelight.__all__)


def test_names_are_faces_and_errors() -> None:
    assert set(sidelight.__all__) == set(sidelight._HOMES) | set(errors.__all__) | {"__version__"}


@pytest.mark.parametrize("package", ["", ".augment", ".features"])
def test_type_checkers_are_told_what_is_loaded(package: str) -> None:
    """Imports for editors are never run: they say the same as the names that load on first use."""
    module = importlib.import_module(f"sidelight{package}")
    assert module.__file__ is not None
    tree = ast.parse(Path(module.__file__).read_text())
    asides = [node for node in tree.body if isinstance(node, ast.If)]
    imports = [node for aside in asides for node in aside.body if isinstance(node, ast.ImportFrom)]
    assert {alias.name for node in imports for alias in node.names} == set(module._HOMES)


def test_what_a_recipe_is_made_of_comes_from_one_module() -> None:
    assert all(getattr(methods, name) is not None for name in methods.__all__)


def test_every_part_of_a_recipe_is_exported() -> None:
    """Those for linear models and networks alike; ensembles and the last layer are in sidelight.deep."""
    kinds = [one for one in subclasses(methods.Part) if one.__module__.startswith("sidelight.methods")]
    assert {one.__name__ for one in kinds if not one.__name__.startswith("_")} <= set(methods.__all__)


def test_every_method_is_exported_under_its_name_and_its_file_is_found() -> None:
    """`sidelight.methods.dp_sgd` is a file and, for who asks, the method."""
    for name, one in DECLARATIONS.items():
        assert getattr(methods, name) is one.make and name in methods.__all__
        assert getattr(importlib.import_module(one.make.__module__), name) is one.make


def subclasses(one: type) -> set[type]:
    return {one}.union(*(subclasses(other) for other in one.__subclasses__()))


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="'PrivateClasifier'"):
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
