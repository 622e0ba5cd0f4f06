"""The two flows that docs/design.md draws."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

pytest.importorskip("torch")
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def flows() -> ModuleType:
    spec = importlib.util.spec_from_file_location("flows", ROOT / "docs/_hooks/flows.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["flows"] = module  # its dataclass looks its own module up
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", ["tables", "trainer"])
def test_both_flows_have_the_same_spine(flows: ModuleType, name: str) -> None:
    trace = flows.FLOWS[name]()
    assert tuple(trace.spine) == ("problem", "plan", "contract", "loop", "release")
    assert set(trace.spine.values()) <= set(trace.files) and len(trace.edges) >= len(trace.files) - 1
    assert {flows._band(file) for file in trace.files} <= set(flows._BANDS), "a file would not be drawn"


def test_the_page_has_numbers_and_drawings() -> None:
    page = (ROOT / "docs/design.md").read_text()
    for name in ("tables", "trainer"):
        assert f"<!-- {name} --><!-- end -->" not in page, "run make flows"
        assert (ROOT / f"docs/images/flow-{name}.svg").read_text().startswith("<svg")
