"""Rows and targets into declared bounds.

A bound on a record must not be read off the private records: it is declared, or learned from public rows.
Every feature is clipped into [lower, upper] and mapped into [−1, 1]; then the row, with the constant column
of the intercept if there is one, is clipped (or normalised) to `max_norm`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
import scipy.sparse as sp
from numpy.typing import ArrayLike

from sidelight.arrays import Array, Matrix, is_sparse
from sidelight.data.rows import Floats, as_matrix, as_targets, blocks_of, shrink_rows
from sidelight.errors import InputError, UnboundedSensitivity

if TYPE_CHECKING:
    from scipy.sparse import csr_array

__all__ = ["Bounds", "TargetScale", "bound_rows", "resolve_bounds", "resolve_target"]

Centre = Literal["middle", "zero", "mean"]


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
        if not np.isfinite(X.data if sp.issparse(X) else X).all():
            raise InputError("public rows must be finite; remove or fill the missing values")
        if not (np.isfinite(margin) and margin >= 0):
            raise InputError(f"margin must be a number of at least 0, not {margin!r}")
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
    if not (np.isfinite(max_norm) and max_norm > 0):
        raise InputError(f"max_norm must be a positive number, not {max_norm!r}")
    matrix = as_matrix(X)
    if matrix.shape[1] != bounds.features:
        raise InputError(f"there are bounds for {bounds.features} features, but X has {matrix.shape[1]}")
    if not private and not np.isfinite(matrix.data if sp.issparse(matrix) else matrix).all():
        raise InputError("public rows must be finite; remove or fill the missing values")
    constant = intercept_value if fit_intercept else None
    with np.errstate(all="ignore"):  # a warning about a private value would be an output
        if sp.issparse(matrix):
            return shrink_rows(_scale_sparse(matrix, bounds, constant), max_norm, normalise=normalise)[0]
        return _bound_dense(matrix, bounds, max_norm, constant, normalise)


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
