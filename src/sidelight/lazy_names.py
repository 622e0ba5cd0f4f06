"""Names that a package exports, imported when they are asked for (PEP 562).

A package lists what it exports under `if TYPE_CHECKING`, for editors and type checkers, and nowhere else. The
same lines, read from its source, say at run time where each name is. So `import sidelight` is instant and
never loads PyTorch.
"""

from __future__ import annotations

import ast
import importlib
from pathlib import Path

__all__ = ["homes_of", "load"]


def homes_of(path: str) -> dict[str, str]:
    """Every name that a file imports for type checkers alone, and the module that it is in."""
    tree = ast.parse(Path(path).read_text(encoding="utf-8"))
    asides = [node for node in tree.body if isinstance(node, ast.If)]
    blocks = [node for node in asides if ast.unparse(node.test) == "TYPE_CHECKING"]
    imports = [node for block in blocks for node in block.body if isinstance(node, ast.ImportFrom)]
    return {alias.name: node.module for node in imports if node.module for alias in node.names}


def load(package: str, homes: dict[str, str], name: str) -> object:
    """The value of a name that the package exports; AttributeError for any other."""
    if name not in homes:
        raise AttributeError(f"module {package!r} has no attribute {name!r}")
    return getattr(importlib.import_module(homes[name]), name)
