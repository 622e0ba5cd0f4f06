"""Labels and targets as the losses want them.

The set of classes is an output: it must be declared, or come from public labels. A private record whose
label is not among them becomes a null record, and nobody learns how many there were.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Any, Protocol

import numpy as np
from sklearn.utils.multiclass import check_classification_targets

from sidelight.arrays import Array
from sidelight.data.bounding import TargetScale
from sidelight.data.rows import Floats
from sidelight.data.values import guarded, number_of
from sidelight.errors import INTERRUPTS, InputError
from sidelight.losses import Loss, Square, get_loss

__all__ = ["Classes", "RealTarget", "Target", "natural_labels", "resolve_classes"]

_NUMBERS = "biuf"


class Target(Protocol):
    """What is predicted."""

    @property
    def loss(self) -> Loss: ...

    @property
    def bound(self) -> float | None:
        """A bound on |encoded target| for regression."""

    def encode(self, y: Array) -> Floats:
        """The targets as the loss wants them; NaN makes a null record."""

    def encode_public(self, y: Array) -> Floats:
        """The same for public targets, of which each must be usable."""


@dataclass(frozen=True, eq=False)
class Classes:
    """The labels, sorted, and the loss that tells them apart."""

    labels: Array
    loss: Loss
    bound: None = None

    def index(self, y: Array) -> Floats:
        """Which label each of y is; NaN for none of them."""
        kinds = {"n" if array.dtype.kind in _NUMBERS else array.dtype.kind for array in (y, self.labels)}
        if kinds not in ({"n"}, {"U"}):
            return self._look_up(y)
        position = np.minimum(np.searchsorted(self.labels, y), len(self.labels) - 1)
        return np.where(self.labels[position] == y, position, np.nan)

    def encode(self, y: Array) -> Floats:
        index = self.index(y)
        return index if self.loss.outputs > 1 else 2 * index - 1

    def encode_public(self, y: Array) -> Floats:
        """The same for public labels, of which each must be known."""
        self.check_type(y)
        unknown = y[np.isnan(self.index(y))]
        if unknown.size:
            examples = ", ".join(sorted({repr(label) for label in unknown.tolist()})[:5])
            raise InputError(f"y_public holds labels that are not in classes: {examples}")
        return self.encode(y)

    def _look_up(self, y: Array) -> Floats:
        labels = self.labels.tolist()
        find = _Finder({label: float(position) for position, label in enumerate(labels)})
        return np.fromiter((find(label) for label in y.tolist()), dtype=np.float64, count=len(y))

    def check_type(self, y: Array) -> None:
        """Text never equals a number: better an error than a model of null records. Types are public."""
        kinds = {"number" if kind in _NUMBERS else "text" for kind in (y.dtype.kind, self.labels.dtype.kind)}
        if len(kinds) > 1 and object not in (y.dtype, self.labels.dtype):
            raise InputError(
                f"the labels are of type {y.dtype}, but the classes of type {self.labels.dtype}; "
                "give both as numbers or both as text"
            )


class _Finder:
    """The position of a label among those that are known; NaN for any other, whatever it is.

    Only texts, numbers and what has the very type of a known label are looked up: the code of no other object
    is run, and one that cannot be hashed or compared is simply not known.
    """

    def __init__(self, positions: Mapping[object, float]) -> None:
        self._positions = positions
        self._kinds = {str, int, float, bool, *map(type, positions)}

    def __call__(self, label: Any) -> float:
        kind = type(label)
        if kind in self._kinds:
            return self._position(label)
        if issubclass(kind, str):
            return self._position(str.__str__(label))
        if issubclass(kind, int | np.integer | np.bool_):
            return self._position(int.__int__(label) if issubclass(kind, int) else label.item())
        if issubclass(kind, float | np.floating | Decimal | Fraction):
            return self._position(number_of(label))
        return np.nan

    def _position(self, label: object) -> float:
        try:
            return self._positions.get(label, np.nan)
        except INTERRUPTS:
            raise
        except BaseException:  # a tuple with a list in it
            return np.nan


@dataclass(frozen=True)
class RealTarget:
    """A number within declared bounds, mapped to [−1, 1]."""

    scale: TargetScale
    loss: Loss = Square()  # noqa: RUF009 - frozen
    bound: float = 1.0

    def encode(self, y: Array) -> Floats:
        return self.scale.transform(y)

    def encode_public(self, y: Array) -> Floats:
        if not np.isfinite(y).all():
            raise InputError("public targets must be finite; remove or fill the missing values")
        return self.encode(y)


def resolve_classes(
    classes: Sequence[object] | Array | None, y_public: Array | None, y: Array | None, *, loss: str | None
) -> Classes:
    """What the user declared, or else the public labels, or else (only if given) the private ones.

    loss: a name, or None for logistic with two classes and softmax with more.
    """
    source = _as_labels(classes) if classes is not None else y_public if y_public is not None else y
    if source is None or not source.size:
        raise InputError(
            "the classes are not known, and learning them from the private labels would be a release that "
            "nobody accounts for. Pass classes=[...], or y_public, or assume_public=('classes',) if the set "
            "of labels is no secret"
        )
    labels = _sorted(source)
    if len(labels) < 2:
        source_name = "classes" if classes is not None else "y_public" if y_public is not None else "y"
        raise InputError(
            f"a classifier needs at least 2 classes, and {source_name} has 1 class; pass classes=[...]"
        )
    name = loss or ("logistic" if len(labels) == 2 else "softmax")
    if len(labels) > 2 and name != "softmax":
        raise InputError(
            f"Only binary classification is supported by the {name} loss, and there are {len(labels)} "
            "classes: the target is multiclass. Use loss='softmax', or None"
        )
    return Classes(labels, get_loss(name, classes=len(labels)))


def natural_labels(y: Array) -> Array:
    """Objects as the array that NumPy makes of them, if all are numbers or all texts; else as they are."""
    if y.dtype != object:
        return y
    found: Array | None = guarded(lambda labels: np.asarray(labels), y.tolist(), None)
    if found is None or found.ndim != 1:
        return y
    texts = found.dtype.kind == "U" and all(isinstance(label, str) for label in y.tolist())
    return found if texts or found.dtype.kind in _NUMBERS else y


def _as_labels(classes: Sequence[object] | Array) -> Array:
    labels = np.asarray(classes)
    if labels.ndim != 1:
        raise InputError(f"classes must be a list of labels, not an array of shape {labels.shape}")
    return labels


def _sorted(source: Array) -> Array:
    if source.dtype.kind == "f" and not np.isfinite(source).all():
        raise InputError("Input y contains NaN or infinity among labels that are not private; remove them")
    try:
        check_classification_targets(source)
        return np.unique(source)
    except TypeError:
        raise InputError("labels must all be numbers, or all be text") from None
    except ValueError as error:
        raise InputError(str(error)) from None
