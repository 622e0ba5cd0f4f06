"""From the user's features and targets to the model's, and back.

A bound on a record must not be read off the private records: it is declared, or learned from public rows.
Every feature is clipped into [lower, upper] and mapped into [−1, 1]; then the row, with the constant column
of the intercept if there is one, is clipped (or normalised) to `max_norm`. A score is a function of that row,
so that prediction treats a record as training did.

Targets are labels, or numbers within bounds, as the losses want them. The set of classes is an output: it
must be declared, or come from public labels. A private record whose label is not among them becomes a null
record, and nobody learns how many there were.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import TYPE_CHECKING, Literal, Protocol

import numpy as np
import scipy.sparse as sp
from numpy.typing import ArrayLike
from sklearn.utils.multiclass import check_classification_targets

from sidelight.arrays import Array, Floats, Mask, Matrix, is_sparse
from sidelight.data.rows import (
    PersonRows,
    Persons,
    PrivateRows,
    PublicRows,
    as_matrix,
    as_targets,
    blocks_of,
    check_finite,
    shrink_rows,
)
from sidelight.data.values import guarded, is_a, number_of
from sidelight.errors import INTERRUPTS, InputError, UnboundedSensitivity, not_negative, positive
from sidelight.losses import Loss, Square, get_loss

if TYPE_CHECKING:
    from scipy.sparse import csr_array

__all__ = [
    "Bounds",
    "Classes",
    "Coordinates",
    "RealTarget",
    "Target",
    "TargetScale",
    "bound_rows",
    "class_weights",
    "natural_labels",
    "range_of_private_rows",
    "range_of_targets",
    "resolve_bounds",
    "resolve_classes",
    "resolve_target",
    "symmetric",
]


Centre = Literal["middle", "zero", "mean"]
_NUMBERS = "biuf"


@dataclass(frozen=True, eq=False)
class Bounds:
    """Feature-wise bounds and the point of each feature that maps to 0.

    x → (clip(x, lower, upper) − centre) / max(upper − centre, centre − lower) ∈ [−1, 1]. A constant feature
    (lower = upper) says nothing and maps to 0.
    """

    lower: Floats
    upper: Floats
    centre: Floats

    @classmethod
    def declared(
        cls, lower: ArrayLike, upper: ArrayLike, *, features: int, centre: Centre = "middle"
    ) -> Bounds:
        """Bounds that the user knows without looking at the private rows; numbers, or one per feature.

        centre: "middle" of the bounds, or "zero", which keeps zeros where they are.
        """
        low, high = _vector(lower, features, "lower"), _vector(upper, features, "upper")
        if (low > high).any():
            raise InputError("lower bounds must not exceed upper bounds")
        if centre == "mean":
            raise InputError('centre="mean" is learned from public rows; declared bounds have no mean')
        return cls(low, high, np.zeros(features) if centre == "zero" else low / 2 + high / 2)

    @classmethod
    def from_public(cls, X_public: Matrix, *, margin: float = 0.0, centre: Centre = "middle") -> Bounds:
        """The range of every feature over public rows, widened on both sides by `margin` times its width.

        A column that is 0 throughout, or 1 throughout, is taken for an indicator whose other value was not
        seen, and gets [0, 1]; any other constant column is constant. Private values outside are clipped.
        """
        X = as_matrix(X_public)
        if X.shape[0] == 0:
            raise UnboundedSensitivity("there are no public rows to learn bounds from. Pass bounds=...")
        check_finite(X)
        not_negative("margin", margin)
        low, high = (_dense(part).astype(np.float64) for part in (X.min(axis=0), X.max(axis=0)))
        mean = _dense(X.mean(axis=0)).astype(np.float64)
        indicator = (low == high) & ((low == 0) | (low == 1))
        low, high = np.where(indicator, 0.0, low), np.where(indicator, 1.0, high)
        width = high - low
        low, high = low - margin * width, high + margin * width
        middle = low / 2 + high / 2
        centres = {"middle": middle, "zero": np.zeros_like(middle), "mean": np.clip(mean, low, high)}
        return cls(low, high, centres[centre])

    @property
    def features(self) -> int:
        return len(self.lower)

    def inverse_reach(self, centre: Floats) -> Floats:
        """1 / the largest distance of a bounded value from `centre`; 0 for constant features."""
        reach = np.maximum(self.upper - centre, centre - self.lower)
        return np.divide(1.0, reach, out=np.zeros_like(reach), where=(self.upper > self.lower) & (reach > 0))


def resolve_bounds(
    bounds: Bounds | tuple[ArrayLike, ArrayLike] | None,
    X_public: Matrix | None,
    *,
    features: int,
    centre: Centre = "middle",
    margin: float = 0.0,
) -> Bounds:
    """What the user declared, or else what public rows show, or else an error: never the private rows."""
    if isinstance(bounds, Bounds):
        resolved = bounds
    elif bounds is not None:
        resolved = Bounds.declared(*bounds, features=features, centre=centre)
    elif X_public is not None and X_public.shape[0] > 0:
        resolved = Bounds.from_public(X_public, margin=margin, centre=centre)
    else:
        raise UnboundedSensitivity(
            "features have no bounds. Pass bounds=(lower, upper), or X_public to learn them from public data."
        )
    if resolved.features != features:
        raise InputError(f"there are bounds for {resolved.features} features, but X has {features}")
    return resolved


def bound_rows(
    X: Matrix,
    bounds: Bounds,
    *,
    max_norm: float = 1.0,
    fit_intercept: bool = True,
    intercept_value: float = 1.0,
    normalise: bool = False,
    private: bool = True,
) -> Matrix:
    """X scaled by `bounds`, with the intercept column last, every row of norm at most `max_norm`.

    The intercept column counts in the norm and is scaled with its row. float32 stays float32.
    A private row with a non-finite entry becomes a row of zeros, intercept included, and nobody learns how
    many there were; in public rows (`private=False`) it is an error.
    CSR stays CSR: its features are divided by max(|lower|, |upper|) without a shift (centre 0), so that
    zeros stay zeros; stored values are clipped to that size first.
    """
    positive("max_norm", max_norm)
    matrix = as_matrix(X)
    if matrix.shape[1] != bounds.features:
        raise InputError(f"there are bounds for {bounds.features} features, but X has {matrix.shape[1]}")
    if not private:
        check_finite(matrix)
    constant = intercept_value if fit_intercept else None
    with np.errstate(all="ignore"):  # a warning about a private value would be an output
        if sp.issparse(matrix):
            return shrink_rows(_scale_sparse(matrix, bounds, constant), max_norm, normalise=normalise)[0]
        return _bound_dense(matrix, bounds, max_norm, constant, normalise)


def _vector(values: ArrayLike, features: int, name: str) -> Floats:
    array = np.asarray(values, dtype=np.float64)
    if array.shape not in ((), (1,), (features,)):
        raise InputError(f"{name} must be one number, or one for each of {features} features")
    if not np.isfinite(array).all():
        raise InputError(f"{name} bounds must be finite")
    return np.broadcast_to(array, (features,)).copy()


def _dense(part: Matrix) -> Array:
    dense: Array = np.asarray(part.toarray() if is_sparse(part) else part).ravel()
    return dense


def _bound_dense(X: Array, bounds: Bounds, max_norm: float, constant: float | None, normalise: bool) -> Array:
    out = np.empty((X.shape[0], X.shape[1] + (constant is not None)), dtype=X.dtype)
    inverse = bounds.inverse_reach(bounds.centre)
    for block in blocks_of(*out.shape):
        rows = X[block].astype(np.float64)  # a copy, one block long
        bad = np.asarray(~np.isfinite(rows).all(axis=1))
        np.clip(rows, bounds.lower, bounds.upper, out=rows)
        rows -= bounds.centre
        rows *= inverse
        part = out[block]
        part[:, : X.shape[1]] = np.clip(rows, -1, 1)
        if constant is not None:
            part[:, -1] = constant
        part[...] = shrink_rows(part, max_norm, zero=bad, normalise=normalise)[0]
    return out


def _scale_sparse(X: csr_array, bounds: Bounds, constant: float | None) -> csr_array:
    owner = np.repeat(np.arange(X.shape[0]), np.diff(X.indptr))
    usable = np.ones(X.shape[0], dtype=bool)
    usable[owner[~np.isfinite(X.data)]] = False
    inverse = bounds.inverse_reach(np.zeros(bounds.features))
    data = np.clip(X.data * inverse[X.indices], -1, 1)  # ∞·0 is in a row that becomes 0
    data[~usable[owner]] = 0
    scaled = sp.csr_array((data.astype(X.dtype, copy=False), X.indices, X.indptr), shape=X.shape)
    if constant is not None:
        column = sp.csr_array((usable * constant)[:, None].astype(X.dtype))
        scaled = sp.hstack([scaled, column], format="csr")
    return as_matrix(scaled)


@dataclass(frozen=True, eq=False)
class Coordinates:
    """Bounds, the norm of a row, and whether there is an intercept."""

    bounds: Bounds
    max_norm: float
    fit_intercept: bool

    @property
    def p(self) -> int:
        """Features of the model, the intercept's column among them."""
        return self.bounds.features + self.fit_intercept

    @property
    def keeps_zeros(self) -> bool:
        """Whether 0 maps to 0, so that a sparse matrix can stay sparse."""
        return not self.bounds.centre.any()

    def private(
        self, X: Matrix, y: Floats, admits: Callable[[Array], Mask], persons: Persons | None = None
    ) -> PrivateRows:
        """Private records in these coordinates, or the rows of persons. This reads them."""
        bounded = self._bounded(X, private=True)
        if persons is None:
            return PrivateRows(bounded, y, max_norm=self.max_norm, admits=admits)
        return PersonRows(bounded, y, persons=persons, max_norm=self.max_norm, admits=admits)

    def public(self, X: Matrix, y: Floats) -> PublicRows:
        """Public records in these coordinates."""
        return PublicRows(self._bounded(X, private=False), y)

    def scores(self, X: Matrix, weights: Floats) -> Floats:
        """X → (n, outputs), for weights (outputs, p)."""
        out = np.empty((X.shape[0], len(weights)))
        for block in blocks_of(X.shape[0], max(self.p, 1)):
            out[block] = self._bounded(X[block], private=False) @ weights.T
        return out

    def in_user_units(self, weights: Floats) -> tuple[Floats, Floats]:
        """(coef, intercept), for which coef·x + intercept is the score of a row that nothing clips."""
        features = self.bounds.features
        coef = weights[:, :features] * self.bounds.inverse_reach(self.bounds.centre)
        constant = weights[:, features] if self.fit_intercept else np.zeros(len(weights))
        return coef, constant - coef @ self.bounds.centre

    def _bounded(self, X: Matrix, *, private: bool) -> Matrix:
        if is_sparse(X) and not self.keeps_zeros:
            X = X.toarray()
        return bound_rows(
            X, self.bounds, max_norm=self.max_norm, fit_intercept=self.fit_intercept, private=private
        )


def symmetric(bounds: Bounds) -> Bounds:
    """[−r, r] for r = max(|lower|, |upper|): 0 stays 0, and a dense row becomes what a sparse one does."""
    reach = np.where(bounds.upper > bounds.lower, np.maximum(np.abs(bounds.lower), np.abs(bounds.upper)), 0.0)
    return Bounds(-reach, reach, np.zeros_like(reach))


def range_of_private_rows(X: Matrix) -> tuple[Floats, Floats]:
    """The range of every feature over the rows that are finite. Only for a user who says it is no secret."""
    if is_sparse(X):
        finite = X.copy()
        finite.data = np.where(np.isfinite(finite.data), finite.data, 0.0)
        low, high = (np.asarray(part.toarray()).ravel() for part in (finite.min(axis=0), finite.max(axis=0)))
        return low.astype(np.float64), high.astype(np.float64)
    finite_cells = np.isfinite(X)
    if not finite_cells.any(axis=0).all():
        raise InputError("a feature has no finite value to take its bounds from; pass bounds=(lower, upper)")
    low = np.where(finite_cells, X, np.inf).min(axis=0).astype(np.float64)
    return low, np.where(finite_cells, X, -np.inf).max(axis=0).astype(np.float64)


# ---------------------------------------------------------------------------------------------------
# labels and targets


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

    def __call__(self, label: object) -> float:
        if type(label) in self._kinds:
            return self._position(label)
        if is_a(label, str):
            return self._position(str.__str__(label))
        if is_a(label, int):
            return self._position(int.__int__(label))
        if issubclass(type(label), np.integer | np.bool_):
            return self._position(np.asarray(label).item())
        if issubclass(type(label), float | np.floating | Decimal | Fraction):
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
class TargetScale:
    """Targets clipped into [low, high] and mapped to [−1, 1]."""

    low: float
    high: float

    def __post_init__(self) -> None:
        if not (np.isfinite(self.low) and np.isfinite(self.high) and self.low < self.high):
            raise InputError(f"target bounds must be numbers low < high, not {self.low!r} and {self.high!r}")

    @classmethod
    def from_public(cls, y_public: ArrayLike, *, margin: float = 0.0) -> TargetScale:
        """The range of the public targets, widened on both sides by `margin` times its width."""
        y = as_targets(y_public)
        if y.size == 0 or not np.isfinite(y).all():
            raise InputError("public targets must be finite, and there must be some")
        low, high = float(y.min()), float(y.max())
        if low == high:
            raise InputError("every public target is the same; pass target_bounds=(low, high) instead")
        return cls(low - margin * (high - low), high + margin * (high - low))

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


def resolve_target(
    bounds: tuple[float, float] | None, y_public: Array | None, *, margin: float = 0.0
) -> TargetScale:
    """Declared target bounds, or else those of public targets, or else an error."""
    if bounds is not None:
        if len(bounds) != 2:
            raise InputError("target_bounds must be a pair (low, high)")
        return TargetScale(float(bounds[0]), float(bounds[1]))
    if y_public is not None and len(y_public) > 0:
        return TargetScale.from_public(y_public, margin=margin)
    raise UnboundedSensitivity(
        "targets have no bounds. Pass target_bounds=(low, high), or y_public to learn them from public data."
    )


def range_of_targets(y: Array) -> tuple[float, float]:
    """Of private targets that the user says are no secret (`assume_public`)."""
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
    """Objects as the array that NumPy makes of them, if all are numbers or all texts; else as they are."""
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
    counts = np.zeros(len(labels)) if public is None else (public[:, None] == labels).sum(axis=0)
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
