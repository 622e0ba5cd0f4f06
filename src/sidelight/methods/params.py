"""The parameters of a configured method, by nested names: `clip__clip_norm`, or `clip_norm` for short.

Methods are frozen dataclasses, and so are their parts: a parameter is a field, a changed method a copy. A
parameter of a part may be set by its own name where only one part has it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Self, TypeVar

from sidelight.errors import InputError
from sidelight.methods.registry import get_method
from sidelight.methods.task import Method

__all__ = ["NestedMethod", "parameters", "with_parameters"]

T = TypeVar("T")
_WHAT_IT_IS = ("name", "relations", "needs_public", "private")  # not for a user to choose


def parameters(method: object) -> dict[str, object]:
    """Every field of the method and, below its name and two underscores, of its parts."""
    out: dict[str, object] = {}
    for name in _fields(method):
        value = getattr(method, name)
        out[name] = value
        out.update({f"{name}__{inner}": value for inner, value in parameters(value).items()})
    return out


def with_parameters(method: T, changes: Mapping[str, object]) -> T:
    """A copy of the method with these fields; a part that is exchanged may be configured in the same call."""
    names = _fields(method)
    top = {name: value for name, value in changes.items() if name in names}
    nested: dict[str, dict[str, object]] = {}
    for key, value in changes.items():
        if key in top:
            continue
        name, _, inner = _full_name(method, key, top).partition("__")
        if inner in nested.setdefault(name, {}):
            raise InputError(f"{_name(method)}: {inner!r} of its {name} is given twice")
        nested[name][inner] = value
    for name, inside in nested.items():
        top[name] = with_parameters(top.get(name, getattr(method, name)), inside)
    if not top or not dataclasses.is_dataclass(method) or isinstance(method, type):
        return method
    changed: T = dataclasses.replace(method, **top)
    return changed


def _full_name(method: object, key: str, exchanged: Mapping[str, object]) -> str:
    """`clip__clip_norm` for `clip_norm`, if one part alone has it; parts that are exchanged count as new."""
    names = _fields(method)
    name, _, inner = key.partition("__")
    if name in names and inner:
        return key
    parts = {field: exchanged.get(field, getattr(method, field)) for field in names}
    owners = [field for field, part in parts.items() if name in _fields(part)]
    if len(owners) == 1:
        return f"{owners[0]}__{key}"
    if owners:
        several = " or ".join(f"{owner}__{key}" for owner in owners)
        raise InputError(f"{_name(method)} has {name!r} in several parts; say {several}")
    short = {inside for part in parts.values() for inside in _fields(part)} - set(names)
    known = ", ".join((*names, *sorted(short))) or "none"
    raise InputError(f"{_name(method)} has no parameter {name!r}. Its parameters are: {known}")


def _fields(method: object) -> tuple[str, ...]:
    if not dataclasses.is_dataclass(method) or isinstance(method, type):
        return ()
    named = (field.name for field in dataclasses.fields(method) if field.init)
    return tuple(name for name in named if name not in _WHAT_IT_IS)


def _name(method: object) -> str:
    return str(getattr(method, "name", type(method).__name__))


class NestedMethod:
    """For scikit-learn's estimators: the parameters of `method` as `method__name`."""

    method: Method | str

    def get_params(self, deep: bool = True) -> dict[str, object]:
        """The parameters; with `deep`, those of the method as `method__name`, also if it is given by name."""
        params: dict[str, object] = super().get_params(deep=deep)  # type: ignore[misc]
        if deep:
            try:
                method = self._configured()
            except InputError:
                return params
            params.update({f"method__{name}": value for name, value in parameters(method).items()})
        return params

    def set_params(self, **params: object) -> Self:
        """Set parameters; `method__clip_norm=1` replaces the method by a copy with that clip_norm."""
        nested = {key[8:]: params.pop(key) for key in list(params) if key.startswith("method__")}
        super().set_params(**params)  # type: ignore[misc]
        if nested:
            self.method = with_parameters(self._configured(), nested)
        return self

    def _configured(self) -> Method:
        return get_method(self.method) if isinstance(self.method, str) else self.method
