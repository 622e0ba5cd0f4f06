"""From the user's features to the model's, and back.

The model sees bounded rows: features clipped into their bounds and mapped to [−1, 1], the intercept's column,
and the whole row scaled down to `max_norm`. A score is a function of that row, so that prediction treats a
record as training did.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from sidelight.arrays import Array, Floats, Mask, Matrix, is_sparse
from sidelight.data.bounding import Bounds, bound_rows
from sidelight.data.persons import PersonRows, Persons
from sidelight.data.rows import PrivateRows, PublicRows, blocks_of
from sidelight.errors import InputError

__all__ = ["Coordinates", "range_of_private_rows", "symmetric"]


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
