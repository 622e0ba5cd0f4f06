"""The parameters of a configured method, by nested names: `clip__clip_norm`.

Methods are frozen dataclasses, and so are their parts: a parameter is a field, a changed method a copy.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from sidelight.errors import InputError

__all__ = ["parameters", "with_parameters"]

_WHAT_IT_IS = ("name", "relations", "needs_public", "private")  # not for a user to choose


def parameters(method: Any) -> dict[str, Any]:
    """Every field of the method and, below its name and two underscores, of its parts."""
    out: dict[str, Any] = {}
    for name in _fields(method):
        value = getattr(method, name)
        out[name] = value
        out.update({f"{name}__{inner}": one for inner, one in parameters(value).items()})
    return out


def with_parameters(method: Any, changes: Mapping[str, Any]) -> Any:
    """A copy of the method with these fields; a part that is exchanged may be configured in the same call."""
    names = _fields(method)
    nested: dict[str, dict[str, Any]] = {}
    top: dict[str, Any] = {}
    for key, value in changes.items():
        name, _, inner = key.partition("__")
        if name not in names:
            known = ", ".join(names) or "none"
            raise InputError(f"{_name(method)} has no parameter {name!r}. Its parameters are: {known}")
        if inner:
            nested.setdefault(name, {})[inner] = value
        else:
            top[name] = value
    for name, inside in nested.items():
        top[name] = with_parameters(top.get(name, getattr(method, name)), inside)
    return dataclasses.replace(method, **top) if top else method


def _fields(method: Any) -> tuple[str, ...]:
    if not dataclasses.is_dataclass(method) or isinstance(method, type):
        return ()
    named = (field.name for field in dataclasses.fields(method) if field.init)
    return tuple(name for name in named if name not in _WHAT_IT_IS)


def _name(method: Any) -> str:
    return str(getattr(method, "name", type(method).__name__))
