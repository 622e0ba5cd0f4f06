"""Labels and targets as the losses want them.

The set of classes is an output: it must be declared, or come from public labels. A private record whose
label is not among them becomes a null record, and nobody learns how many there were.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.multiclass import check_classification_targets

from sidelight.data.bounding import TargetScale
from sidelight.data.rows import Floats
from sidelight.erm.losses import Loss, Square, get_loss
from sidelight.errors import InputError

__all__ = ["Classes", "RealTarget", "Target", "resolve_classes"]

_NUMBERS = "biuf"


class Target(Protocol):
    """What is predicted."""

    @property
    def loss(self) -> Loss: ...

    @property
    def bound(self) -> float | None:
        """A bound on |encoded target| for regression."""

    def encode(self, y: NDArray[Any]) -> Floats:
        """The targets as the loss wants them; NaN makes a null record."""

    def encode_public(self, y: NDArray[Any]) -> Floats:
        """The same for public targets, of which each must be usable."""


@dataclass(frozen=True, eq=False)
class Classes:
    """The labels, sorted, and the loss that tells them apart."""

    labels: NDArray[Any]
    loss: Loss
    bound: None = None

    def index(self, y: NDArray[Any]) -> Floats:
        """Which label each of y is; NaN for none of them."""
        if object in (y.dtype, self.labels.dtype):
            return self._look_up(y)
        place = np.minimum(np.searchsorted(self.labels, y), len(self.labels) - 1)
        return np.where(self.labels[place] == y, place, np.nan)

    def encode(self, y: NDArray[Any]) -> Floats:
        index = self.index(y)
        return index if self.loss.outputs > 1 else 2 * index - 1

    def encode_public(self, y: NDArray[Any]) -> Floats:
        """The same for public labels, of which each must be known."""
        self.check_type(y)
        unknown = y[np.isnan(self.index(y))]
        if unknown.size:
            shown = ", ".join(sorted({repr(label) for label in unknown.tolist()})[:5])
            raise InputError(f"y_public holds labels that are not in classes: {shown}")
        return self.encode(y)

    def _look_up(self, y: NDArray[Any]) -> Floats:
        places: dict[Any, float] = {label: float(place) for place, label in enumerate(self.labels.tolist())}
        found = (places.get(label, np.nan) if isinstance(label, Hashable) else np.nan for label in y.tolist())
        return np.fromiter(found, dtype=np.float64, count=len(y))

    def check_type(self, y: NDArray[Any]) -> None:
        """Text never equals a number: better an error than a model of null records. Types are public."""
        kinds = {"number" if kind in _NUMBERS else "text" for kind in (y.dtype.kind, self.labels.dtype.kind)}
        if len(kinds) > 1 and object not in (y.dtype, self.labels.dtype):
            raise InputError(
                f"the labels are of type {y.dtype}, but the classes of type {self.labels.dtype}; "
                "give both as numbers or both as text"
            )


@dataclass(frozen=True)
class RealTarget:
    """A number within declared bounds, mapped to [−1, 1]."""

    scale: TargetScale
    loss: Loss = Square()  # noqa: RUF009 - frozen
    bound: float = 1.0

    def encode(self, y: NDArray[Any]) -> Floats:
        return self.scale.transform(y)

    def encode_public(self, y: NDArray[Any]) -> Floats:
        if not np.isfinite(y).all():
            raise InputError("public targets must be finite; remove or fill the missing values")
        return self.encode(y)


def resolve_classes(
    classes: Any, y_public: NDArray[Any] | None, y: NDArray[Any] | None, *, loss: str | None
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
        told = "classes" if classes is not None else "y_public" if y_public is not None else "y"
        raise InputError(f"a classifier needs at least 2 classes, and {told} has 1 class; pass classes=[...]")
    name = loss or ("logistic" if len(labels) == 2 else "softmax")
    if len(labels) > 2 and name != "softmax":
        raise InputError(
            f"Only binary classification is supported by the {name} loss, and there are {len(labels)} "
            "classes: the target is multiclass. Use loss='softmax', or None"
        )
    return Classes(labels, get_loss(name, classes=len(labels)))


def _as_labels(classes: Any) -> NDArray[Any]:
    labels = np.asarray(classes)
    if labels.ndim != 1:
        raise InputError(f"classes must be a list of labels, not an array of shape {labels.shape}")
    return labels


def _sorted(source: NDArray[Any]) -> NDArray[Any]:
    if source.dtype.kind == "f" and not np.isfinite(source).all():
        raise InputError("Input y contains NaN or infinity among labels that are not private; remove them")
    try:
        check_classification_targets(source)
        return np.unique(source)
    except TypeError:
        raise InputError("labels must all be numbers, or all be text") from None
    except ValueError as error:
        raise InputError(str(error)) from None
