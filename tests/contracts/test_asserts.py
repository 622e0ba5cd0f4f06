"""`python -O` removes asserts: nothing in the package relies on one."""

import ast
from pathlib import Path

import sidelight

PACKAGE = Path(sidelight.__file__).parent


def asserts(source: str) -> list[int]:
    return [node.lineno for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Assert)]


def test_the_package_has_no_assert() -> None:
    found = {
        str(path.relative_to(PACKAGE)): lines
        for path in sorted(PACKAGE.rglob("*.py"))
        if (lines := asserts(path.read_text()))
    }
    assert found == {}


def test_contract_catches_an_assert() -> None:
    assert asserts("def f(cost):\n    assert cost <= 1\n") == [2]
