"""From the user's features to the model's, and back.

A bound on a record must not be read off the private records: it is declared, or learned from public rows.
Every feature is clipped into [lower, upper] and mapped into [−1, 1]; then the row, with the constant column
of the intercept if there is one, is clipped (or normalized) to `max_norm`. A score is a function of that row,
so that prediction treats a record as training did.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
import scipy.sparse as sp
from numpy.typing import ArrayLike

from sidelight.arrays import Array, Floats, Mask, Matrix, is_sparse
from sidelight.data.guide import GuideColumns, PublicGuide
from sidelight.data.leaves import LeafModel
from sidelight.data.own_model import OwnModel
from sidelight.data.persons import PersonRows, Persons
from sidelight.data.rows import (
    PrivateRows,
    PublicRows,
    as_matrix,
    as_targets,
    blocks_of,
    check_finite,
    shrink_rows,
    tally,
)
from sidelight.data.targets import SLACK, Target, TargetScale, with_columns
from sidelight.errors import InputError, UnboundedSensitivity, positive

if TYPE_CHECKING:
    from scipy.sparse import csr_array


MOST_CHECKED = 256  # features of an array whose values the health check looks at one by one
Center = Literal["middle", "zero", "mean"]


@dataclass(frozen=True, eq=False)
class Bounds:
    """Feature-wise bounds and the point of each feature that maps to 0.

    x → (clip(x, lower, upper) − center) / max(upper − center, center − lower) ∈ [−1, 1]. A constant feature
    (lower = upper) says nothing and maps to 0.
    """

    lower: Floats
    upper: Floats
    center: Floats

    @classmethod
    def declared(
        cls, lower: ArrayLike, upper: ArrayLike, *, features: int, center: Center = "middle"
    ) -> Bounds:
        """Bounds that the user knows without looking at the private rows; numbers, or one per feature.

        center: "middle" of the bounds, or "zero", which keeps zeros where they are.
        """
        low, high = _vector(lower, features, "lower"), _vector(upper, features, "upper")
        if (low > high).any():
            raise InputError("lower bounds must not exceed upper bounds")
        if center == "mean":
            raise InputError('center="mean" is learned from public rows; declared bounds have no mean')
        return cls(low, high, np.zeros(features) if center == "zero" else low / 2 + high / 2)

    @classmethod
    def from_public(cls, X_public: Matrix, *, center: Center = "middle") -> Bounds:
        """The range of every feature over public rows.

        A column that is 0 throughout, or 1 throughout, is taken for an indicator whose other value was not
        seen, and gets [0, 1]; any other constant column is constant. Private values outside are clipped.
        """
        X = as_matrix(X_public)
        if X.shape[0] == 0:
            raise UnboundedSensitivity("there are no public rows to learn bounds from. Pass bounds=...")
        check_finite(X)
        low, high = (_dense(part).astype(np.float64) for part in (X.min(axis=0), X.max(axis=0)))
        mean = _dense(X.mean(axis=0)).astype(np.float64)
        indicator = (low == high) & ((low == 0) | (low == 1))
        low, high = np.where(indicator, 0.0, low), np.where(indicator, 1.0, high)
        middle = low / 2 + high / 2
        centers = {"middle": middle, "zero": np.zeros_like(middle), "mean": np.clip(mean, low, high)}
        return cls(low, high, centers[center])

    @property
    def features(self) -> int:
        return len(self.lower)

    def inverse_reach(self, center: Floats) -> Floats:
        """1 / the largest distance of a bounded value from `center`; 0 for constant features."""
        reach = np.maximum(self.upper - center, center - self.lower)
        return np.divide(1.0, reach, out=np.zeros_like(reach), where=(self.upper > self.lower) & (reach > 0))


def resolve_bounds(
    bounds: Bounds | tuple[ArrayLike, ArrayLike] | None,
    X_public: Matrix | None,
    *,
    features: int,
    center: Center = "middle",
) -> Bounds:
    """What the user declared, or else what public rows show, or else an error: never the private rows."""
    if isinstance(bounds, Bounds):
        resolved = bounds
    elif bounds is not None:
        resolved = Bounds.declared(*bounds, features=features, center=center)
    elif X_public is not None and X_public.shape[0] > 0:
        resolved = Bounds.from_public(X_public, center=center)
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
    normalize: bool = False,
    private: bool = True,
    extra: Floats | None = None,
    in_place: bool = False,
    carried: int = 0,
) -> Matrix:
    """X scaled by `bounds`, with the intercept column last, every row of norm at most `max_norm`.

    The intercept column counts in the norm and is scaled with its row. float32 stays float32.
    A private row with a non-finite entry becomes a row of zeros, intercept included, and nobody learns how
    many there were; in public rows (`private=False`) it is an error.
    CSR stays CSR: its features are divided by max(|lower|, |upper|) without a shift (center 0), so that
    zeros stay zeros; stored values are clipped to that size first.
    `extra` are columns within [−1, 1] of a dense X, which stand between the features and the intercept. X may
    have `carried` columns behind its features, which are left out.
    `in_place`: X is a view of an array that has as many columns as the result, which takes its place.
    """
    positive("max_norm", max_norm)
    matrix = X if in_place else as_matrix(X)
    if matrix.shape[1] - carried != bounds.features:
        raise InputError(f"there are bounds for {bounds.features} features, but X has {matrix.shape[1]}")
    if not private:
        check_finite(matrix[:, : bounds.features] if carried else matrix)
    constant = 1.0 if fit_intercept else None
    with np.errstate(all="ignore"):  # a warning about a private value would be an output
        if sp.issparse(matrix):
            return shrink_rows(_scale_sparse(matrix, bounds, constant), max_norm, normalize=normalize)[0]
        return _bound_dense(matrix, bounds, max_norm, constant, normalize, extra, in_place)


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


def _bound_dense(
    X: Array, bounds: Bounds, max_norm: float, constant: float | None, normalize: bool, extra: Floats | None,
    in_place: bool,
) -> Array:  # fmt: skip
    more = 0 if extra is None else extra.shape[1]
    features = bounds.features
    shape = (X.shape[0], features + more + (constant is not None))
    wide = X.base if in_place else None
    out = wide if wide is not None and wide.shape == shape else np.empty(shape, dtype=X.dtype)
    inverse = bounds.inverse_reach(bounds.center)
    for block in blocks_of(*out.shape):
        rows = X[block, :features].astype(np.float64)  # a copy, one block long
        bad = np.asarray(~np.isfinite(rows).all(axis=1))
        np.clip(rows, bounds.lower, bounds.upper, out=rows)
        rows -= bounds.center
        rows *= inverse
        part = out[block]
        part[:, :features] = np.clip(rows, -1, 1)
        if extra is not None:
            part[:, features : features + more] = extra[block]
        if constant is not None:
            part[:, -1] = constant
        part[...] = shrink_rows(part, max_norm, zero=bad, normalize=normalize)[0]
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
    guide: PublicGuide | None = None

    @property
    def p(self) -> int:
        """Features of the model: the user's, the guide's columns, and the intercept's."""
        return self.bounds.features + (0 if self.guide is None else self.guide.size) + self.fit_intercept

    @property
    def own(self) -> OwnModel | None:
        """An estimator of the user's, whose outputs stand behind the features of every X that comes here."""
        return None if self.guide is None else self.guide.own

    @property
    def keeps_zeros(self) -> bool:
        """Whether 0 maps to 0, so that a sparse matrix can stay sparse."""
        return not self.bounds.center.any() and self.guide is None

    def private(
        self,
        X: Matrix,
        y: Floats,
        admits: Callable[[Array], Mask],
        persons: Persons | None = None,
        misfits: Mask | None = None,
        said: GuideColumns | None = None,
        in_place: bool = False,
        tallied: Floats | None = None,
    ) -> PrivateRows:
        """Private records in these coordinates, or the rows of persons. This reads them."""
        bounded = self._bounded(X, said, private=True, in_place=in_place)
        if persons is None:
            return PrivateRows(
                bounded, y, max_norm=self.max_norm, admits=admits, misfits=misfits, tallied=tallied
            )
        return PersonRows(bounded, y, persons=persons, max_norm=self.max_norm, admits=admits, misfits=misfits)

    def of_target(
        self,
        X: Matrix,
        y: Array,
        target: Target,
        persons: Persons | None = None,
        misfits: Mask | None = None,
        in_place: bool = False,
        checked: Matrix | None = None,
    ) -> PrivateRows:
        """The same with targets as the user has them. The misfits of `target` come before the columns'.

        checked: the numbers whose misfits are looked for here, in place of `misfits`.
        in_place: nobody else holds X, a view of an array with room for every column: rows are bounded there.
        """
        encoded = target.encode(y)
        own = target.misfits(y, encoded)
        every: Mask | None = None
        tallied: Floats | None = None
        if checked is not None and persons is None:
            tallied = self._tallied(checked, own)
        else:
            every = with_columns(own, misfits if checked is None else self.misfits(checked))
        said = self._said(X)
        if said is not None:
            encoded = self._residual(y, said, target)
        return self.private(X, encoded, target.loss.admits, persons, every, said, in_place, tallied)

    def _tallied(self, X: Matrix, own: Mask) -> Floats:
        """The tally of misfits, block by block: no flag of a value outlives its block."""
        if is_sparse(X) or self.bounds.features > MOST_CHECKED:
            return tally(np.zeros(len(own), dtype=bool), own[:, None])[1:]
        total = np.zeros(X.shape[1] + 1)
        for block in blocks_of(len(own), len(total)):
            total += tally(np.zeros_like(own[block]), with_columns(own[block], self.misfits(X[block])))[1:]
        return total

    def misfits(self, X: Matrix) -> Mask | None:
        """(n, features): which numbers are not finite or outside the bounds; None where nobody looks."""
        if is_sparse(X) or self.bounds.features > MOST_CHECKED:
            return None
        slack = SLACK * np.maximum(np.abs(self.bounds.lower), np.abs(self.bounds.upper))
        with np.errstate(all="ignore"):
            fits = (self.bounds.lower - slack <= X) & (self.bounds.upper + slack >= X)
        return np.asarray(~fits)

    def public(
        self,
        X: Matrix,
        y: Array,
        target: Target,
        said: GuideColumns | None = None,
        unlabeled: Matrix | None = None,
    ) -> PublicRows:
        """Public records in these coordinates; `said` is what the guide says without having seen them."""
        targets = target.encode_public(y)
        if said is not None:
            targets = self._residual(y, said, target)
        more = None if unlabeled is None else self._bounded(unlabeled, self._said(unlabeled), private=False)
        return PublicRows(self._bounded(X, said, private=False), targets, more)

    def scores(
        self, X: Matrix, weights: Floats, trees: LeafModel | None = None
    ) -> tuple[Floats, Floats | None]:
        """X → (n, outputs), for weights (outputs, p) and trees on top of them; and the guide's offset (n,).

        The offset is what the guide predicts of a number, to which the score of the residual is added.
        """
        out = np.empty((X.shape[0], len(weights)))
        offset = np.zeros(len(out)) if self.guide is not None and self.guide.offset is not None else None
        for block in blocks_of(X.shape[0], max(self.p, 1)):
            said = self._said(X[block])
            bounded = self._bounded(X[block], said, private=False)
            out[block] = bounded @ weights.T
            if trees is not None:
                out[block] += trees.scores(bounded)
            if offset is not None and said is not None and said.offset is not None:
                offset[block] = said.offset
        return out, offset

    def _said(self, X: Matrix) -> GuideColumns | None:
        return None if self.guide is None else self.guide.of(X)

    def _residual(self, y: Array, said: GuideColumns, target: Target) -> Floats:
        """Targets as the loss wants them: of a regression, what the guide gets wrong."""
        if said.offset is None or self.guide is None or self.guide.residual is None:
            return target.encode(y)
        reach = self.guide.residual
        with np.errstate(all="ignore"):  # a warning about a private value would be an output
            return TargetScale(-reach, reach).transform(as_targets(y) - said.offset)

    def in_user_units(self, weights: Floats) -> tuple[Floats, Floats]:
        """(coef, intercept), for which coef·x + intercept is the score of a row that nothing clips."""
        features = self.bounds.features
        coef = weights[:, :features] * self.bounds.inverse_reach(self.bounds.center)
        constant = weights[:, -1] if self.fit_intercept else np.zeros(len(weights))
        return coef, constant - coef @ self.bounds.center

    def _bounded(
        self, X: Matrix, said: GuideColumns | None, *, private: bool, in_place: bool = False
    ) -> Matrix:
        if is_sparse(X) and not self.keeps_zeros:
            X = X.toarray()
        return bound_rows(
            X, self.bounds, max_norm=self.max_norm, fit_intercept=self.fit_intercept, private=private,
            extra=None if said is None else said.columns, in_place=in_place,
            carried=0 if self.own is None else self.own.outputs,
        )  # fmt: skip


def symmetric(bounds: Bounds) -> Bounds:
    """[−r, r] for r = max(|lower|, |upper|): 0 stays 0, and a dense row becomes what a sparse one does."""
    reach = np.where(bounds.upper > bounds.lower, np.maximum(np.abs(bounds.lower), np.abs(bounds.upper)), 0.0)
    return Bounds(-reach, reach, np.zeros_like(reach))


def range_of_private_rows(X: Matrix) -> tuple[Floats, Floats]:
    """The range of every feature over the rows that are finite. Only for a user who says it is public."""
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
