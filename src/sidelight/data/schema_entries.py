"""Checks of what a person may write wrongly in a schema file, each with a sentence of its own."""

from __future__ import annotations

import math
from typing import TypeGuard, TypeVar

from sidelight.arrays import Json
from sidelight.errors import InputError

T = TypeVar("T", bound=str)


def fields_of(data: object, where: str, fields: tuple[str, ...]) -> Json:
    if not isinstance(data, dict):
        raise InputError(f"{where} must be an object with {', '.join(fields)}")
    if strange := [name for name in data if name not in fields]:
        raise InputError(f"{where} has no field {strange[0]!r}; expected {', '.join(fields)}")
    return data


def one_of(value: object, known: tuple[T, ...], where: str) -> T:
    for name in known:
        if value == name:
            return name
    raise InputError(f"{where} must be {' or '.join(known)}, not {value!r}")


def list_of(value: object, where: str) -> list[object]:
    if not isinstance(value, list):
        raise InputError(f"{where} must be a list")
    return value


def texts_of(value: object, where: str) -> tuple[str, ...]:
    items = list_of(value, where)
    names = [str(item) for item in items if isinstance(item, str) or is_number(item)]
    if not names or len(names) < len(items) or len(set(names)) < len(names):
        raise InputError(f"{where} must be a list of texts, at least one, each named once")
    return tuple(names)


def count_of(value: object, most: int, where: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= most:
        raise InputError(f"{where} must be a whole number from 1 to {most}, not {value!r}")
    return value


def is_number(value: object) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= 1e300


def real(value: object, where: str) -> float:
    if not is_number(value):
        raise InputError(f"{where} must be a number of at most 1e300, not {value!r}")
    return float(value)


def bounds_of(value: object, where: str) -> tuple[float, float]:
    if not isinstance(value, list) or len(value) != 2:
        raise InputError(f"{where} must be [low, high]")
    low, high = (real(edge, where) for edge in value)
    if not low <= high:
        raise InputError(f"{where} are reversed: {low:g} is above {high:g}")
    return low, high


def short(value: float) -> float | int:
    """17 and not 17.0, where that is the same number."""
    whole = math.isfinite(value) and float(value).is_integer() and abs(value) < 2**53
    return int(value) if whole else float(value)
