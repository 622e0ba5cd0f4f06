"""How long the contribution of a record is, without forming its gradient: upper bounds for each metric.

With G = MᵀM,

    ‖M(s_i⊗x_i − o)‖² = ‖M(s_i⊗x_i)‖² − 2⟨s_i⊗x_i, Go⟩ + ‖Mo‖²,

and each term costs one product with the row. The difference cancels when the gradient is near the origin: a
norm that comes out too small would let a contribution through that is longer than the clip bound. So every
length here is rounded *upwards*: a bound on the rounding error is added under the root. It is about
1e-7·(‖Mg‖ + ‖Mo‖) at most, far below any sensible clip norm, and never negative.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Protocol

import numpy as np

from sidelight.arrays import Array, Floats, Matrix, Vector, floats, is_sparse
from sidelight.clipping import (
    Diagonal,
    Features,
    LinearMetric,
    Metric,
    Projection,
    ThinFeatures,
    checked_origin,
)
from sidelight.errors import InputError
from sidelight.oracles.linear.row_sums import Block

UNIT = 2.0**-53  # the unit roundoff of float64
TINY = float(np.finfo(np.float64).tiny)


class RowNorms(Protocol):
    """Upper bounds of ‖M(s_i ⊗ x_i)‖ for one metric."""

    def __call__(self, block: Block, slopes: Floats) -> Floats: ...


class Geometry:
    """Norms around an origin under a metric, for a model with `outputs` rows of p weights."""

    def __init__(
        self, metric: Metric, origin: Vector | None, lengths: RowNorms, outputs: int, p: int
    ) -> None:
        metric = check_linear_metric(metric)
        self._metric, self._lengths = metric, lengths
        self._slack = (4 * (p + outputs + _width(metric)) + 64) * UNIT
        self._origin = None if origin is None else checked_origin(origin, outputs * p)
        if self._origin is None:
            return
        moved, pulled = self._twice(metric, self._origin)
        self._offset = float(moved @ moved)
        # |M| in place of M bounds every rounding error on the way.
        largest, steepest = self._twice(None if metric is None else metric.absolute(), abs(self._origin))
        self._offset_error = float(largest @ largest)
        self._cross_error = 2 * float(np.linalg.norm(steepest))
        self._pulled = pulled.reshape(outputs, p).T if outputs > 1 else pulled

    @staticmethod
    def _twice(metric: LinearMetric, vector: Floats) -> tuple[Floats, Floats]:
        if metric is None:
            return vector, vector
        once = metric.apply(vector)
        return floats(once), floats(metric.lift(once))

    def norms(self, block: Block, slopes: Floats, least: Floats | None = None) -> Floats:
        """‖M(g_i − o)‖, never below the true value, nor below the length of a gradient of slope `least`."""
        found = self._norms(block, slopes)
        # np.maximum keeps a NaN, by which a record without a length is recognized.
        return found if least is None else np.maximum(found, self._lengths(block, least))

    def _norms(self, block: Block, slopes: Floats) -> Floats:
        lengths = self._lengths(block, slopes)
        if self._origin is None:
            return lengths
        product = slopes * (block.X @ self._pulled)
        cross = product if product.ndim == 1 else product.sum(axis=1)
        squares = lengths * lengths
        error = squares + self._offset_error
        error += (self._cross_error * slope_norms(slopes)) * block.norms
        squares -= 2 * cross
        squares += self._offset
        np.maximum(squares, 0, out=squares)
        squares += self._slack * error
        return np.sqrt(squares, out=squares)

    def total(self, weighted: Floats, mass: float) -> Floats:
        """M(Σ c_i g_i − (Σ c_i) o), flat, from the weighted sum of gradients and the sum of factors."""
        flat = weighted.reshape(-1) if self._origin is None else weighted.reshape(-1) - mass * self._origin
        return flat if self._metric is None else floats(self._metric.apply(flat))


def plain(block: Block, slopes: Floats) -> Floats:
    """‖s_i‖‖x_i‖: the identity metric."""
    return slope_norms(slopes) * block.norms * (1 + 4 * UNIT)


class DiagonalLengths:
    """√(Σ_k s_ik² Σ_j scale_kj² x_ij²)."""

    def __init__(self, metric: Diagonal, outputs: int, p: int) -> None:
        if len(metric.scale) != outputs * p:
            raise InputError(f"the diagonal metric must have {outputs * p} entries, not {len(metric.scale)}")
        squares = np.square(floats(metric.scale))
        self._squares = squares.reshape(outputs, p).T if outputs > 1 else squares
        self._slack = 1 + (p + outputs + 16) * UNIT * 2
        self._lost = TINY * (1 + float(squares.sum()))  # what squares of tiny numbers lose to underflow

    def __call__(self, block: Block, slopes: Floats) -> Floats:
        squares = block.X.power(2) if is_sparse(block.X) else np.square(block.X)
        terms = (squares @ self._squares) * np.square(slopes)
        total = terms if terms.ndim == 1 else terms.sum(axis=1)
        total += self._lost * (1 + np.square(slope_norms(slopes)))
        return np.asarray(np.sqrt(total) * self._slack)


class RememberedLengths(ABC):
    """‖s_i‖‖M x_i‖, with ‖M x_i‖ computed once per record and remembered: the metric never changes."""

    def __init__(self, n: int) -> None:
        self._known = np.zeros(n)  # 0 means not computed yet; the pages are touched when they are needed
        self._unknown = n

    def __call__(self, block: Block, slopes: Floats) -> Floats:
        known: Floats = self._known[block.where]
        if self._unknown and (missing := np.flatnonzero(known == 0)).size:
            rows = block.X if missing.size == len(known) else block.X[missing]
            known[missing] = self._measure(rows, block.norms[missing])
            self._known[block.where] = known
            self._unknown -= missing.size
        return slope_norms(slopes) * known * (1 + 4 * UNIT)

    @abstractmethod
    def _measure(self, X: Matrix, norms: Floats) -> Floats:
        """Upper bounds of ‖M x‖ for rows with these norms, never 0."""


class FeatureLengths(RememberedLengths):
    """M is the matrix F."""

    def __init__(self, matrix: Array, n: int, p: int) -> None:
        super().__init__(n)
        if matrix.shape[1] != p:
            raise InputError(f"the feature metric must have {p} columns, not {matrix.shape[1]}")
        self._transposed = np.asarray(matrix, dtype=np.float64).T
        self._slack = 4 * (p + matrix.shape[0] + 16) * UNIT
        self._size = float(np.linalg.norm(matrix))

    def _measure(self, X: Matrix, norms: Floats) -> Floats:
        return _image_norms(X @ self._transposed, self._size * norms, self._slack)


class ThinLengths(RememberedLengths):
    """M = floor·I + Rᵀ·core·R, which is not written out: with a = R x,

        ‖Mx‖² = floor²‖x‖² + aᵀ(2·floor·core + core·RRᵀ·core) a.

    The terms cancel where M shortens what lies in the span of R, so the bound on rounding is that of the sum
    of their sizes.
    """

    def __init__(self, metric: ThinFeatures, n: int, p: int) -> None:
        super().__init__(n)
        rows, core, floor = metric.rows, floats(metric.core), metric.floor
        if rows.shape[1] != p:
            raise InputError(f"the thin metric must have {p} columns, not {rows.shape[1]}")
        self._rows = rows.T
        squares = rows @ rows.T
        squares = np.asarray(squares.todense() if is_sparse(squares) else squares, dtype=np.float64)
        self._middle = 2 * floor * core + core @ squares @ core
        self._floor = floor
        slack = 8 * (p + 4 * rows.shape[0] + 64) * UNIT
        # ‖a‖ ≤ ‖R‖‖x‖; the middle and its rounding are bounded by Frobenius norms of its terms.
        largest = float(np.linalg.norm(core))
        reach = float(np.trace(squares))  # ‖R‖_F²
        self._error = slack * (floor**2 + 2 * floor * largest * reach + largest**2 * reach**2)

    def _measure(self, X: Matrix, norms: Floats) -> Floats:
        a = X @ self._rows
        a = np.asarray(a.todense() if is_sparse(a) else a)
        squares = (self._floor * norms) ** 2 + np.einsum("ij,ij->i", a @ self._middle, a)
        upper = np.maximum(squares, 0) + self._error * norms**2 + TINY
        return np.asarray(np.sqrt(upper) * (1 + 8 * UNIT))


class ProjectionLengths:
    """‖Σ_k s_ik U_kᵀ x_i‖ for several outputs: k numbers per record, formed block by block."""

    def __init__(self, metric: Projection, outputs: int, p: int) -> None:
        basis = floats(metric.basis)
        self._parts = basis.reshape(outputs, p, basis.shape[1])
        self._slack = 4 * (p + outputs + basis.shape[1] + 16) * UNIT
        self._size = float(np.linalg.norm(basis))

    def __call__(self, block: Block, slopes: Floats) -> Floats:
        image = np.asarray(sum((block.X @ part) * slopes[:, k, None] for k, part in enumerate(self._parts)))
        return _image_norms(image, self._size * (slope_norms(slopes) * block.norms), self._slack)


def _image_norms(image: Floats, sizes: Floats, slack: float) -> Floats:
    """‖image_i‖, rounded upwards, of products that are off by at most slack·size_i.

    An image that is 0 but for rounding counts as √slack of its size: no clip makes it a whole contribution.
    """
    upper = np.sqrt(np.einsum("ij,ij->i", image, image) + TINY) * (1 + slack) + slack * sizes
    return np.asarray(np.maximum(upper, math.sqrt(slack) * sizes))


def check_linear_metric(metric: Metric) -> LinearMetric:
    """The metric, if its norms can be bounded here. A class of its own may do anything in `apply`."""
    if metric is None:
        return None
    exact = type(metric) in (Diagonal, Features, ThinFeatures, Projection)
    if exact and isinstance(metric, Diagonal | Features | ThinFeatures | Projection):
        return metric
    name = type(metric).__name__
    raise InputError(
        f"a linear model takes the metrics Diagonal, Features, ThinFeatures and Projection, not {name}"
    )


def lengths_for(metric: Metric, *, outputs: int, n: int, p: int) -> RowNorms:
    """The rule for this metric; raises InputError if it, or its shape, does not fit the model."""
    match check_linear_metric(metric):
        case Diagonal() as diagonal:
            return DiagonalLengths(diagonal, outputs, p)
        case Features(matrix):
            return FeatureLengths(floats(matrix), n, p)
        case ThinFeatures() as thin:
            return ThinLengths(thin, n, p)
        case Projection(basis) as projection:
            if basis.shape[0] != outputs * p:
                raise InputError(f"the basis must have {outputs * p} rows, not {basis.shape[0]}")
            if outputs == 1:
                return FeatureLengths(floats(basis).T, n, p)
            return ProjectionLengths(projection, outputs, p)
    return plain


def slope_norms(slopes: Floats) -> Floats:
    """‖s_i‖, rounded upwards."""
    if slopes.ndim == 1:
        return np.abs(slopes)
    squares = np.einsum("ij,ij->i", slopes, slopes) + TINY
    return np.asarray(np.sqrt(squares) * (1 + (slopes.shape[1] + 8) * UNIT))


def _width(metric: LinearMetric) -> int:
    match metric:
        case Features():
            return int(metric.matrix.shape[0])
        case ThinFeatures():
            return int(sum(metric.rows.shape))
        case Projection():
            return int(sum(metric.basis.shape))
    return 0
