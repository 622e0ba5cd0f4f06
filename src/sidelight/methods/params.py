"""The parameters of a configured method, by nested names: `clip__clip_norm`, or `clip_norm` for short.

Methods are frozen dataclasses, and so are their parts: a parameter is a field, a changed method a copy. A
parameter of a part may be set by its own name where only one part has it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Self

from sidelight.errors import InputError
from sidelight.methods.registry import get_method
from sidelight.methods.task import Method

__all__ = ["NestedMethod", "parameters", "with_parameters"]

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
    top = {name: value for name, value in changes.items() if name in names}
    nested: dict[str, dict[str, Any]] = {}
    for key, value in changes.items():
        if key in top:
            continue
        name, _, inner = _full_name(method, key, top).partition("__")
        if inner in nested.setdefault(name, {}):
            raise InputError(f"{_name(method)}: {inner!r} of its {name} is given twice")
        nested[name][inner] = value
    for name, inside in nested.items():
        top[name] = with_parameters(top.get(name, getattr(method, name)), inside)
    return dataclasses.replace(method, **top) if top else method


def _full_name(method: Any, key: str, exchanged: Mapping[str, Any]) -> str:
    """`clip__clip_norm` for `clip_norm`, if one part alone has it; parts that are exchanged count as new."""
    names = _fields(method)
    name, _, inner = key.partition("__")
    if name in names and inner:
        return key
    parts = {one: exchanged.get(one, getattr(method, one)) for one in names}
    found = [one for one, part in parts.items() if name in _fields(part)]
    if len(found) == 1:
        return f"{found[0]}__{key}"
    if found:
        several = " or ".join(f"{one}__{key}" for one in found)
        raise InputError(f"{_name(method)} has {name!r} in several parts; say {several}")
    short = {inside for part in parts.values() for inside in _fields(part)} - set(names)
    known = ", ".join((*names, *sorted(short))) or "none"
    raise InputError(f"{_name(method)} has no parameter {name!r}. Its parameters are: {known}")


def _fields(method: Any) -> tuple[str, ...]:
    if not dataclasses.is_dataclass(method) or isinstance(method, type):
        return ()
    named = (field.name for field in dataclasses.fields(method) if field.init)
    return tuple(name for name in named if name not in _WHAT_IT_IS)


def _name(method: Any) -> str:
    return str(getattr(method, "name", type(method).__name__))


class NestedMethod:
    """For scikit-learn's estimators: the parameters of `method` as `method__name`."""

    method: Any

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The parameters; with `deep`, those of the method as `method__name`, also if it is given by name."""
        params: dict[str, Any] = super().get_params(deep=deep)  # type: ignore[misc]
        if deep:
            try:
                method = self._configured()
            except InputError:
                return params
            params.update({f"method__{name}": value for name, value in parameters(method).items()})
        return params

    def set_params(self, **params: Any) -> Self:
        """Set parameters; `method__clip_norm=1` replaces the method by a copy with that clip_norm."""
        nested = {key[8:]: params.pop(key) for key in list(params) if key.startswith("method__")}
        super().set_params(**params)  # type: ignore[misc]
        if nested:
            self.method = with_parameters(self._configured(), nested)
        return self

    def _configured(self) -> Method:
        found: Method = get_method(self.method) if isinstance(self.method, str) else self.method
        return found
