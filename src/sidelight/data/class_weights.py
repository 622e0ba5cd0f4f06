"""How much an error on each class counts, as the user says it or as public labels have it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Literal

import numpy as np

from sidelight.arrays import Array, Floats
from sidelight.errors import InputError

__all__ = ["class_weights"]


def class_weights(
    given: Mapping[object, float] | Literal["balanced"] | None, labels: Array, public: Array | None
) -> Floats | None:
    """A positive weight for each label, or None for equal ones.

    "balanced" is the inverse of a label's rate among the public ones: the rates of the private table are
    private. A label that a mapping leaves out has weight 1.
    """
    if given is None:
        return None
    if isinstance(given, str):
        return _balanced(labels, public)
    known = labels.tolist()
    if strange := [label for label in given if label not in known]:
        raise InputError(f"class_weight has a weight for {strange[0]!r}, which is not among the classes")
    weights = np.array([_checked(label, given.get(label, 1.0)) for label in known])
    return weights


def _balanced(labels: Array, public: Array | None) -> Floats:
    counts = np.zeros(len(labels)) if public is None else (public[:, None] == labels).sum(axis=0)
    if not counts.all():
        missing = labels[int(np.argmin(counts))]
        raise InputError(
            "class_weight='balanced' takes the rates of public records, and there is none of class "
            f"{missing!r}; pass a dictionary of weights instead"
        )
    return np.asarray(counts.sum() / (len(labels) * counts), dtype=np.float64)


def _checked(label: object, weight: object) -> float:
    number = isinstance(weight, int | float | np.integer | np.floating) and not isinstance(weight, bool)
    if not number or not (math.isfinite(weight) and weight > 0):  # type: ignore[arg-type,operator]
        raise InputError(f"the weight of class {label!r} must be a positive number, not {weight!r}")
    return float(weight)  # type: ignore[arg-type]
