"""Cells of names: globals, attributes of a module or of a class, slots, environment variables."""

from __future__ import annotations

import functools
import os
import types
from typing import Any

from sidelight.oracles.network.state_cells import Cell, fill_mapping

__all__ = ["class_cell", "environment_cell", "named", "slots_cell", "slots_of"]


def named(space: dict[str, Any], chosen: set[str]) -> Cell:
    """A cell of some names. A module under a name may be imported at any time."""
    order = sorted(chosen)

    def read(space: dict[str, Any]) -> dict[str, Any]:
        found = ((name, space[name]) for name in order if name in space)
        return {name: value for name, value in found if not isinstance(value, types.ModuleType)}

    def write(space: dict[str, Any], content: dict[str, Any]) -> None:
        for name in order:
            if name in content:
                space[name] = content[name]
            elif not isinstance(space.get(name), types.ModuleType):
                space.pop(name, None)

    return Cell.of(space, read, write)


def environment_cell() -> Cell:
    """The environment variables, as Python holds them."""
    inner = getattr(os.environ, "_data", None)
    if isinstance(inner, dict):
        return Cell.of(inner, dict, _fill_environment)
    return Cell.of(os.environ, dict, fill_mapping)  # somebody has put a dictionary in its place


def class_cell(owner: type) -> Cell:
    """What a class holds under names of its own."""
    return Cell.of(owner, _class_content, _fill_class)


def slots_cell(owner: Any, names: tuple[str, ...]) -> Cell:
    """What an object holds in slots."""
    read = functools.partial(_read_slots, names)
    return Cell.of(owner, read, functools.partial(_fill_slots, names))


def _fill_environment(owner: dict[Any, Any], content: dict[Any, Any]) -> None:
    variables = os.environ
    for key in [key for key in {*owner, *content} if owner.get(key) != content.get(key)]:
        if key in content:
            variables[variables.decodekey(key)] = variables.decodevalue(content[key])
        else:
            del variables[variables.decodekey(key)]


def _class_content(owner: type) -> dict[str, Any]:
    return {name: value for name, value in vars(owner).items() if not name.startswith("__")}


def _fill_class(owner: type, content: dict[str, Any]) -> None:
    for name in [name for name in _class_content(owner) if name not in content]:
        delattr(owner, name)
    for name, value in content.items():
        if vars(owner).get(name) is not value:
            setattr(owner, name, value)


def _read_slots(names: tuple[str, ...], owner: Any) -> dict[str, Any]:
    return {name: getattr(owner, name) for name in names if hasattr(owner, name)}


def _fill_slots(names: tuple[str, ...], owner: Any, content: dict[str, Any]) -> None:
    for name in names:
        if name in content:
            object.__setattr__(owner, name, content[name])
        elif hasattr(owner, name):
            object.__delattr__(owner, name)


@functools.lru_cache(maxsize=4096)
def slots_of(kind: type) -> tuple[str, ...]:
    """Names of the slots of objects of a class."""
    return tuple(
        name for one in kind.__mro__ if "__slots__" in vars(one) for name, value in vars(one).items()
        if isinstance(value, types.MemberDescriptorType)
    )  # fmt: skip
