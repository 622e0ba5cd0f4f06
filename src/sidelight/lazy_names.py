"""Names that a package exports, imported when they are asked for (PEP 562).

A package lists each name with the module that it is in, and the same imports under `if TYPE_CHECKING` for
editors and type checkers. So `import sidelight` is instant and never loads PyTorch.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping

__all__ = ["load"]


def load(package: str, homes: Mapping[str, str], name: str) -> object:
    """The value of a name that the package exports; AttributeError for any other."""
    if name not in homes:
        raise AttributeError(f"module {package!r} has no attribute {name!r}")
    return getattr(importlib.import_module(homes[name]), name)
