"""What a user imports, and that the examples in the documents run."""

from __future__ import annotations

import ast
import re
import shlex
import tomllib
from pathlib import Path

import pytest

import sidelight
from sidelight import errors

ROOT = Path(__file__).parents[1]
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


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
    (block,) = [node for node in tree.body if isinstance(node, ast.If)]
    seen = {
        a.name: node.module for node in block.body if isinstance(node, ast.ImportFrom) for a in node.names
    }
    assert seen == sidelight._LAZY
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


def blocks(language: str) -> list[object]:
    found = []
    for document in DOCUMENTS:
        text = document.read_text()
        for number, match in enumerate(re.finditer(rf"^```{language}\n(.*?)^```", text, re.M | re.S)):
            found.append(pytest.param(match.group(1), id=f"{document.name}-{number}"))
    return found


@pytest.mark.parametrize("code", blocks("python"))
def test_python_examples_run(code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    exec(compile(code, "<example>", "exec"), {"__name__": "__example__"})


@pytest.mark.parametrize("text", blocks("console"))
def test_console_examples_run(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every `$ sidelight …` line of a block runs, in order, in one folder."""
    from sidelight.cli import main

    monkeypatch.chdir(tmp_path)
    commands = re.findall(r"^\$ sidelight (.*)$", text.replace("\\\n", " "), re.M)
    assert commands, "a console block without a command"
    for command in commands:
        assert main(shlex.split(command)) == 0, (command, capsys.readouterr().err)


def test_links_between_documents_lead_somewhere() -> None:
    for document in [*DOCUMENTS, ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"]:
        for target in re.findall(r"\]\(([^)#:]+)\)", document.read_text()):
            assert (document.parent / target).exists(), f"{document.name} links to {target}"


def test_code_and_tests_named_in_guarantees_exist() -> None:
    """docs/guarantees.md maps claims to code and tests; a name in it that is gone is a broken promise."""
    text = (ROOT / "docs/guarantees.md").read_text()
    code = re.findall(r"`((?:src|tests)/[\w/.]+\.py)(?:::(\w+))?`", text)
    assert len(code) > 20
    for file, name in code:
        source = (ROOT / file).read_text()
        assert not name or re.search(rf"^(\s*)(def|class) {name}\b|^{name}\b", source, re.M), (
            f"{file}::{name}"
        )
