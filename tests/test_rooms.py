"""Rooms, and what may be imported where: downwards only."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1] / "src" / "sidelight"

# From the ground up. A room imports from rooms below it; those of one line know nothing of each other.
STOREYS = (
    {"arrays", "errors"},
    {"familiar_words", "files", "lazy_names", "numbers", "scoring"},
    {"privacy"},
    {"accounting"},
    {"clipping", "losses"},
    {"augment", "features", "solvers"},
    {"data"},
    {"oracles"},
    {"problems"},
    {"methods"},
    {"observers", "report"},
    {"estimators"},
    {"deep", "federated"},
    {"tables"},
    {"audit", "comparison"},
    {"cli", "selftest"},
    {"__main__"},
)
# A class, and the file of one large method of it.
PAIRS = {("data.schema", "data.infer_schema"), ("report.effects", "report.effect_figures")}
HEIGHT = {room: height for height, storey in enumerate(STOREYS) for room in storey}


def modules() -> dict[str, Path]:
    """Every module by its name within sidelight; a package by its own."""
    found = {}
    for path in sorted(ROOT.rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        found[".".join(parts).removesuffix(".__init__")] = path
    return found


MODULES = modules()


def imports(path: Path, *, types: bool = True) -> Iterator[str]:
    """The modules of sidelight that a file imports, anywhere in it; `types`: for annotations alone, too."""
    tree = ast.parse(path.read_text())
    asides = [n for n in ast.walk(tree) if isinstance(n, ast.If) and ast.unparse(n.test) == "TYPE_CHECKING"]
    skipped = set() if types else {id(node) for aside in asides for node in ast.walk(aside)}
    for node in ast.walk(tree):
        if id(node) in skipped:
            continue
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            inner = [f"{node.module}.{alias.name}" for alias in node.names]
            names = [name if name.removeprefix("sidelight.") in MODULES else node.module for name in inner]
        else:
            continue
        yield from (name.removeprefix("sidelight.") for name in names if name.startswith("sidelight."))


def room_of(module: str) -> str:
    return module.split(".")[0]


def upwards(module: str, path: Path) -> list[str]:
    """Imports of a module that do not point down."""
    room = room_of(module)
    return [
        f"{module} imports {other}"
        for other in imports(path)
        if room_of(other) != room and HEIGHT[room_of(other)] >= HEIGHT[room]
    ]


def test_every_module_is_in_a_room() -> None:
    assert {room_of(module) for module in MODULES} - {"__init__"} == set(HEIGHT)


@pytest.mark.parametrize("module", [name for name in MODULES if name != "__init__"])
def test_imports_point_down(module: str) -> None:
    assert not upwards(module, MODULES[module])


def test_no_two_modules_import_each_other() -> None:
    """Nor does a longer circle exist. Imports within functions count too."""
    edges = {name: set(imports(path, types=False)) for name, path in MODULES.items() if name != "__init__"}
    left = {name: {other for other in others if (name, other) not in PAIRS} for name, others in edges.items()}
    while free := {name for name, others in left.items() if not others & set(left)}:
        left = {name: others for name, others in left.items() if name not in free}
    circle = {name for name in left if any(name in others for others in left.values())}
    assert not circle, f"a circle among {sorted(circle)}"


def test_a_file_name_occurs_once() -> None:
    names = Counter(path.name for path in MODULES.values() if path.name != "__init__.py")
    assert [name for name, count in names.items() if count > 1] == []


def test_a_class_name_has_one_meaning() -> None:
    names = Counter(
        node.name
        for path in MODULES.values()
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    assert [name for name, count in names.items() if count > 1] == []


def test_private_rows_are_opened_by_oracles_alone() -> None:
    """`contents(rows)` is the one way to the records themselves."""
    callers = {
        room_of(module)
        for module, path in MODULES.items()
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "contents"
    }
    assert callers == {"oracles"}


def test_an_import_that_points_up_is_seen(tmp_path: Path) -> None:
    faulty = tmp_path / "faulty.py"
    faulty.write_text("def f():\n    from sidelight.deep.trainer import Trainer\n    return Trainer\n")
    assert upwards("oracles.faulty", faulty) == ["oracles.faulty imports deep.trainer"]
