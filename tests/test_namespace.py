"""What a user imports."""

from __future__ import annotations

import ast
import re
import tomllib
from pathlib import Path

import pytest

import sidelight
from sidelight import errors

ROOT = Path(__file__).parents[1]


def test_all_is_the_namespace() -> None:
    assert sorted(sidelight.__all__) == dir(sidelight)
    for name in sidelight.__all__:
        if sidelight._LAZY.get(name) == "sidelight.deep":
            pytest.importorskip("torch")
        assert getattr(sidelight, name) is not None


def test_every_error_is_exported() -> None:
    assert set(errors.__all__) <= set(sidelight.__all__)


def test_lazy_names_are_those_that_type_checkers_see() -> None:
    tree = ast.parse((ROOT / "src/sidelight/__init__.py").read_text())
    blocks = [node for node in tree.body if isinstance(node, ast.If)]
    seen = {
        a.name: node.module
        for block in blocks
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for a in node.names
    }
    assert seen == {**sidelight._LAZY, **sidelight._methods()}, "run make tables"
    assert set(seen) | set(errors.__all__) | {"__version__"} == set(sidelight.__all__)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'PrivateClasifier'"):
        sidelight.PrivateClasifier  # noqa: B018


def test_version_is_the_one_in_pyproject() -> None:
    assert tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"] == sidelight.__version__


def test_constraints_pin_every_requirement() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    wanted = list(project["project"]["dependencies"]) + project["build-system"]["requires"]
    wanted += [one for group in project["project"]["optional-dependencies"].values() for one in group]
    names = {re.split(r"[^A-Za-z0-9_.-]", one)[0].lower().replace("_", "-") for one in wanted} - {"sidelight"}
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if line and line[0] != "#"]
    assert all(re.fullmatch(r"[\w.-]+==[\w.]+", line) for line in lines)
    assert names <= {line.split("==")[0].lower().replace("_", "-") for line in lines}
