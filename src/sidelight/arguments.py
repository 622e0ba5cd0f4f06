"""Checks of single arguments, each with its one line of refusal, and names within such a line."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from numbers import Integral, Real

from sidelight.errors import InputError

__all__ = ["callable_or_none", "kind_of", "listed", "nearest", "positive", "whole"]


def positive(name: str, value: object, *, optional: bool = False) -> None:
    """A number above zero."""
    if optional and value is None:
        return
    if isinstance(value, bool) or not isinstance(value, Real) or not 0 < float(value) < math.inf:
        raise InputError(f"{name} must be a positive number, not {value!r}")


def whole(name: str, value: object, *, least: int = 1, optional: bool = False) -> None:
    """A whole number, not below `least`."""
    if optional and value is None:
        return
    if isinstance(value, bool) or not isinstance(value, Integral) or value < least:
        raise InputError(f"{name} must be a whole number of at least {least}, not {value!r}")


def kind_of(name: str, value: object, kind: type) -> None:
    """One of our own settings, or None."""
    if value is not None and not isinstance(value, kind):
        raise InputError(f"{name} must be a {kind.__name__}, not {type(value).__name__}")


def callable_or_none(name: str, value: object) -> None:
    """Something that can be called."""
    if value is not None and not callable(value):
        raise InputError(f"{name} must be a function, not a {type(value).__name__}")


def listed(names: Sequence[str], most: int = 5) -> str:
    """For the refusal of names: the first few of them, and how many more there are."""
    few = ", ".join(repr(name) for name in names[:most])
    return few if len(names) <= most else f"{few} and {len(names) - most} more"


def nearest(name: str, known: Iterable[str]) -> str:
    """For the refusal of a name: "Did you mean …?" after a space, or nothing where no known name is near."""
    close = get_close_matches(name, list(known), n=1)
    return f" Did you mean {close[0]!r}?" if close else ""
