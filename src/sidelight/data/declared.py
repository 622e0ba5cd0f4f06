"""What a person may write wrongly in a schema, each with a sentence of its own."""

from __future__ import annotations

import math
from typing import Any

from sidelight.errors import InputError

__all__ = ["bounds_of", "fields_of", "is_number", "list_of", "named", "one_of", "real", "short", "texts_of"]


def fields_of(data: Any, where: str, fields: tuple[str, ...]) -> dict[str, Any]:
    if not isinstance(data, dict):
        raise InputError(f"{where} must be an object with {', '.join(fields)}")
    if strange := [name for name in data if name not in fields]:
        raise InputError(f"{where} has no field {strange[0]!r}; expected {', '.join(fields)}")
    return data


def one_of(value: Any, known: tuple[str, ...], where: str) -> Any:
    if value not in known:
        raise InputError(f"{where} must be {' or '.join(known)}, not {value!r}")
    return value


def list_of(value: Any, where: str) -> list[Any]:
    if not isinstance(value, list):
        raise InputError(f"{where} must be a list")
    return value


def texts_of(value: Any, where: str) -> tuple[str, ...]:
    names = [str(one) if is_number(one) else one for one in list_of(value, where)]
    if not names or not all(isinstance(one, str) for one in names) or len(set(names)) < len(names):
        raise InputError(f"{where} must be a list of texts, at least one, each named once")
    return tuple(names)


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= 1e300


def real(value: Any, where: str) -> float:
    if not is_number(value):
        raise InputError(f"{where} must be a number of at most 1e300, not {value!r}")
    return float(value)


def bounds_of(value: Any, where: str) -> tuple[float, float]:
    if not isinstance(value, list) or len(value) != 2:
        raise InputError(f"{where} must be [low, high]")
    low, high = (real(one, where) for one in value)
    if not low <= high:
        raise InputError(f"{where} are reversed: {low:g} is above {high:g}")
    return low, high


def short(value: float) -> float | int:
    """17 and not 17.0, where that is the same number."""
    whole = math.isfinite(value) and float(value).is_integer() and abs(value) < 2**53
    return int(value) if whole else float(value)


def named(names: list[str], most: int = 5) -> str:
    shown = ", ".join(repr(name) for name in names[:most])
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return f"column{'s' if len(names) > 1 else ''} {shown}{more}"
