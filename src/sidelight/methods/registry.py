"""Every method by its name: those of the project, one per file, and those that were imported."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping
from difflib import get_close_matches
from typing import TypeVar

from sidelight.errors import InputError
from sidelight.methods.declare import DECLARED, Declaration, homes
from sidelight.methods.task import Method

__all__ = ["DECLARATIONS", "METHODS", "get_method"]

V = TypeVar("V")


class _Registry(Mapping[str, V]):
    """Names are known without importing a method; a value imports the one file that it is in."""

    def __init__(self, value: Callable[[Declaration], V]) -> None:
        self._value = value

    def __getitem__(self, name: str) -> V:
        if name not in DECLARED and name in homes():
            importlib.import_module(homes()[name].module)
        return self._value(DECLARED[name])

    def __contains__(self, name: object) -> bool:
        return name in DECLARED or name in homes()

    def __iter__(self) -> Iterator[str]:
        return iter({**homes(), **DECLARED})

    def __len__(self) -> int:
        return len({**homes(), **DECLARED})


DECLARATIONS: Mapping[str, Declaration] = _Registry(lambda declared: declared)
METHODS: Mapping[str, Callable[..., Method]] = _Registry(lambda declared: declared.make)


def get_method(name: str) -> Method:
    """The method of this name with its defaults."""
    if name not in METHODS:
        close = get_close_matches(str(name), METHODS, n=1)
        hint = f" Did you mean {close[0]!r}?" if close else ""
        raise InputError(f"there is no method {name!r}.{hint} Known: {', '.join(sorted(METHODS))}")
    return METHODS[name]()
