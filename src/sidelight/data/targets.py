"""Targets as the losses want them: labels, or numbers within bounds.

The set of classes is an output: it must be declared, or come from public labels. A private record whose label
is not among them becomes a null record; only a noisy count says how many there were. The type of the array or
column that holds private labels decides nothing: one missing or odd label is enough to change it.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.utils.multiclass import check_classification_targets

from sidelight.arrays import Array, Floats, Mask
from sidelight.data.rows import as_targets
from sidelight.data.values import is_missing, number_of, spellings, text_of, truth_of
from sidelight.errors import InputError, UnboundedSensitivity, guarded, positive
from sidelight.losses import Loss, Square, get_loss

SLACK = 1e-6  # relative: the same number in float32 and in float64
_NUMBERS = "biuf"
_ORDERED = "biufcUSM"  # types whose equal values NumPy finds


class Target(Protocol):
    """What is predicted."""

    @property
    def loss(self) -> Loss: ...

    @property
    def bound(self) -> float | None:
        """A bound on |encoded target| for regression."""

    @property
    def limits(self) -> tuple[float, float] | None:
        """The bounds of a regression's targets, in the user's units."""

    def encode(self, y: Array) -> Floats:
        """The targets as the loss wants them; NaN makes a null record."""

    def encode_public(self, y: Array) -> Floats:
        """The same for public targets, of which each must be usable."""

    def misfits(self, y: Array, encoded: Floats) -> Mask:
        """Which targets are none of the classes, or outside the bounds."""


def target_misfits(target: Target, y: Array, columns: Mask | None) -> Mask:
    """(n, 1 + columns): the misfits of the target, then those of the columns."""
    return with_columns(target.misfits(y, target.encode(y)), columns)


def with_columns(own: Mask, columns: Mask | None) -> Mask:
    """The misfits of a target, then those of the columns."""
    return own[:, None] if columns is None else np.concatenate([own[:, None], columns], axis=1)


@dataclass(frozen=True, eq=False)
class Classes:
    """The labels, sorted, and the loss that tells them apart."""

    labels: Array
    loss: Loss
    bound: None = None
    limits: None = None

    def index(self, y: Array) -> Floats:
        """Which label each of y is; NaN for none of them."""
        places = LabelReader(self.labels).places(y)
        return np.where(places < 0, np.nan, places)

    def encode(self, y: Array) -> Floats:
        index = self.index(y)
        return index if self.loss.outputs > 1 else 2 * index - 1

    def encode_public(self, y: Array) -> Floats:
        """The same for public labels, of which each must be known."""
        unknown = y[np.isnan(self.index(y))]
        if unknown.size:
            examples = ", ".join(sorted({repr(label) for label in unknown.tolist()})[:5])
            raise InputError(f"y_public holds labels that are not in classes: {examples}")
        return self.encode(y)

    def misfits(self, y: Array, encoded: Floats) -> Mask:
        return np.isnan(encoded)


class LabelReader:
    """Which class a value names: its place among the labels, −1 for none of them.

    Each value is read alone, in any container. The labels decide how:

        true, false   1, True, "yes" and "TRUE" are true; so for the classes 0 and 1, and all these as texts
        numbers       1, 1.0 and "1" are one label
        texts         as written, or else as `data.values.text_of` reads it: "1", 1 and 1.0 are one label
    """

    def __init__(self, labels: Array) -> None:
        self._read: Callable[[object], object] = text_of
        if labels.dtype.kind in _NUMBERS:
            truths = labels.dtype == bool or set(labels.tolist()) == {0, 1}
            self._read = truth_of if truths else _canonical_number
        elif {str(label).lower() for label in labels} in ({"false", "true"}, {"0", "1"}):
            self._read = truth_of
        if self._read is text_of:
            names = [
                str.__str__(label) if isinstance(label, str) else text_of(label) or "" for label in labels
            ]
            self._places: dict[object, int] = dict(spellings(names).items())
        else:
            self._places = {self._read(label): place for place, label in enumerate(labels)}
        if [self.place(label) for label in labels] != list(range(len(labels))):
            raise InputError("two of the classes are read as the same label; give them different names")

    def place(self, value: object) -> int:
        written = self._places.get(str.__str__(value)) if isinstance(value, str) else None
        return self._places.get(self._read(value), -1) if written is None else written

    def places(self, y: Array) -> NDArray[np.intp]:
        """Of every value of an array; once for equal ones, if its type has an order."""
        if y.dtype.kind in _ORDERED:
            distinct, where = np.unique(y, return_inverse=True)
            return np.array([self.place(value) for value in distinct], dtype=np.intp)[where]
        return np.fromiter(map(self.place, y.tolist()), dtype=np.intp, count=len(y))


def _canonical_number(value: object) -> str | None:
    return text_of(number_of(value))


@dataclass(frozen=True)
class TargetScale:
    """Targets clipped into [low, high] and mapped to [−1, 1]."""

    low: float
    high: float

    def __post_init__(self) -> None:
        if not (np.isfinite(self.low) and np.isfinite(self.high) and self.low < self.high):
            raise InputError(f"target bounds must be numbers low < high, not {self.low!r} and {self.high!r}")

    @classmethod
    def from_public(cls, y_public: ArrayLike) -> TargetScale:
        """The range of the public targets."""
        y = as_targets(y_public)
        if y.size == 0 or not np.isfinite(y).all():
            raise InputError("public targets must be finite, and there must be at least one")
        low, high = float(y.min()), float(y.max())
        if low == high:
            raise InputError("every public target is the same; pass target_bounds=(low, high) instead")
        return cls(low, high)

    def transform(self, y: ArrayLike) -> Floats:
        """Into [−1, 1]. What is not finite becomes NaN, which makes the record a null record."""
        targets = as_targets(y)
        with np.errstate(all="ignore"):  # a warning about a private value would be an output
            targets = np.where(np.isfinite(targets), targets, np.nan)
            return np.clip((targets - (self.low / 2 + self.high / 2)) / (self.high / 2 - self.low / 2), -1, 1)

    def inverse(self, z: Array) -> Array:
        """From [−1, 1] back to the units of the target."""
        restored: Array = z * (self.high / 2 - self.low / 2) + (self.low / 2 + self.high / 2)
        return restored


def resolve_target(bounds: tuple[float, float] | None, y_public: Array | None) -> TargetScale:
    """Declared target bounds, or else those of public targets, or else an error."""
    if bounds is not None:
        if len(bounds) != 2:
            raise InputError("target_bounds must be a pair (low, high)")
        return TargetScale(float(bounds[0]), float(bounds[1]))
    if y_public is not None and len(y_public) > 0:
        return TargetScale.from_public(y_public)
    raise UnboundedSensitivity(
        "targets have no bounds. Pass target_bounds=(low, high), or y_public to learn them from public data."
    )


def range_of_targets(y: Array) -> tuple[float, float]:
    """Of private targets that the user says are public (`assume_public`)."""
    finite = y[np.isfinite(y)].astype(np.float64)
    if not finite.size:
        raise InputError("no target is finite; pass target_bounds=(low, high)")
    low, high = float(finite.min()), float(finite.max())
    return (low, high) if low < high else (low - 1.0, high + 1.0)


@dataclass(frozen=True)
class RealTarget:
    """A number within declared bounds, mapped to [−1, 1]."""

    scale: TargetScale
    loss: Loss = Square()  # noqa: RUF009 - frozen
    bound: float = 1.0

    @property
    def limits(self) -> tuple[float, float]:
        return self.scale.low, self.scale.high

    def encode(self, y: Array) -> Floats:
        return self.scale.transform(y)

    def encode_public(self, y: Array) -> Floats:
        if not np.isfinite(y).all():
            raise InputError("public targets must be finite; remove or fill the missing values")
        return self.encode(y)

    def misfits(self, y: Array, encoded: Floats) -> Mask:
        targets, slack = as_targets(y), SLACK * max(abs(self.scale.low), abs(self.scale.high))
        with np.errstate(all="ignore"):
            return np.asarray(~((targets >= self.scale.low - slack) & (targets <= self.scale.high + slack)))


def resolve_classes(
    classes: Sequence[object] | Array | None, y_public: Array | None, y: Array | None, *, loss: str | None
) -> Classes:
    """What the user declared, or else the public labels, or else (only if given) the private ones.

    loss: a name, or None for logistic with two classes and softmax with more.
    """
    source = _as_labels(classes) if classes is not None else y_public if y_public is not None else y
    if source is None or not source.size:
        raise InputError(
            "the classes are not known, and learning them from the private labels would be an "
            "uncharged release. Pass classes=[...], or y_public, or assume_public=('classes',) if the set "
            "of labels is not secret"
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
    """Objects as the array that NumPy makes of them, if all are numbers or all texts; else as they are.

    Missing ones are left out: they are not a class, in an array of any type.
    """
    y = y[[not is_missing(label) for label in y.tolist()]]
    if y.dtype != object:
        return y
    found: Array | None = guarded(np.asarray, y.tolist(), None)
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
        with warnings.catch_warnings(action="ignore", category=UserWarning):
            check_classification_targets(source)
        return np.unique(source)
    except TypeError:
        raise InputError("labels must all be numbers, or all be text") from None
    except ValueError as error:
        raise InputError(str(error)) from None


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
    return np.array([_checked(label, given.get(label, 1.0)) for label in known])


def _balanced(labels: Array, public: Array | None) -> Floats:
    places = np.empty(0, dtype=np.intp) if public is None else LabelReader(labels).places(public)
    counts = np.bincount(places[places >= 0], minlength=len(labels))
    if not counts.all():
        missing = labels[int(np.argmin(counts))]
        raise InputError(
            "class_weight='balanced' takes the rates of public records, and there is none of class "
            f"{missing!r}; pass a dictionary of weights instead"
        )
    return np.asarray(counts.sum() / (len(labels) * counts), dtype=np.float64)


def _checked(label: object, weight: object) -> float:
    positive(f"the weight of class {label!r}", weight)
    return float(weight)  # type: ignore[arg-type]
