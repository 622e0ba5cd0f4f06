"""The maps of docs name code and tests that exist, figures that were measured, and pages that are there."""

import ast
import importlib.util
import re
from functools import cache
from pathlib import Path

import pytest
from tests.docs.pages import PAGES, ROOT, name_of

REPRODUCTIONS = ROOT / "docs/reproductions"


@cache
def symbols(path: Path) -> set[str]:
    """Names that a module defines, and dotted ones of its classes."""
    found: set[str] = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            found |= {target.id for target in targets if isinstance(target, ast.Name)}
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            found.add(node.name)
        if isinstance(node, ast.ClassDef):
            inner = (part for part in node.body if isinstance(part, ast.FunctionDef | ast.AnnAssign))
            for part in inner:
                name = part.name if isinstance(part, ast.FunctionDef) else getattr(part.target, "id", "")
                found.add(f"{node.name}.{name}")
    return found


def named(page: Path) -> list[tuple[Path, str]]:
    """`path.py::symbol` and `path.py` in code: from the root, or from src/sidelight."""
    found = []
    for file, name in re.findall(r"`([\w./]+\.py)(?:::([\w.]+))?`", page.read_text()):
        root = ROOT if (ROOT / file.split("/")[0]).exists() and "/" in file else ROOT / "src/sidelight"
        found.append((root / file, name))
    return found


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_code_that_a_page_names_exists(page: Path) -> None:
    for path, name in named(page):
        assert path.exists(), f"{name_of(page)} names {path.relative_to(ROOT)}"
        if name:
            assert name in symbols(path), f"{name_of(page)} names {path.relative_to(ROOT)}::{name}"


def test_maps_are_not_empty() -> None:
    assert len(named(ROOT / "docs/guarantees.md")) > 60
    assert len(named(ROOT / "docs/methods.md")) > 60


def test_every_guarantee_has_a_test() -> None:
    """The last cell of a row of the guarantee map names a test, or says why there is none."""
    rows = re.findall(r"^\| (?!claim|---)(.*) \|$", (ROOT / "docs/guarantees.md").read_text(), re.M)
    assert len(rows) > 30
    for row in rows:
        cells = [cell.strip() for cell in row.split(" | ")]
        assert len(cells) == 4, row
        assert re.search(r"`tests/[\w/]+\.py::test_\w+`", cells[3]), row


def test_every_method_is_mapped() -> None:
    from sidelight.methods.declare import METHODS

    text = (ROOT / "docs/methods.md").read_text()
    missing = [name for name in METHODS if f"`{name}" not in text and f"::{name}`" not in text]
    assert missing == []


def test_tables_of_methods_say_what_the_methods_declare() -> None:
    spec = importlib.util.spec_from_file_location("method_tables", ROOT / "docs/_hooks/method_tables.py")
    assert spec is not None and spec.loader is not None
    tables = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tables)
    assert tables.stale() == [], "run make tables"


def measured() -> str:
    """Every table of the reproductions, without bold type."""
    return "\n".join(page.read_text() for page in sorted(REPRODUCTIONS.glob("*.md"))).replace("**", "")


def test_figures_of_the_advice_were_measured() -> None:
    """A number with an error in the choosing page stands in a reproduction, digit for digit."""
    figures = re.findall(r"\d*\.\d+ ± \d*\.\d+", (ROOT / "docs/choosing.md").read_text())
    assert len(figures) > 20
    source = measured()
    assert [one for one in figures if one not in source] == []


def test_every_reproduction_is_in_the_index() -> None:
    index = (REPRODUCTIONS / "index.md").read_text()
    for page in REPRODUCTIONS.glob("*.md"):
        assert page.name == "index.md" or f"({page.name})" in index, page.name


def test_links_between_documents_lead_somewhere() -> None:
    for page in [*PAGES, ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"]:
        for target in re.findall(r"\]\(([^)#:\s]+)(?:#[\w-]+)?\)", page.read_text()):
            assert (page.parent / target).exists(), f"{name_of(page)} links to {target}"
