"""The same questions, asked of public rows. Nothing is secret here: the answers are plain arrays."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.linalg import LinearOperator, eigsh

from sidelight.arrays import Array, Floats, Matrix, Vector, dense, floats, is_sparse
from sidelight.clipping import FeatureMetric, Metric, ThinFeatures
from sidelight.data.rows import PublicRows, row_norms
from sidelight.errors import AssumptionError, InputError
from sidelight.losses import Loss, Softmax
from sidelight.oracles.linear.blocks import RowReader
from sidelight.oracles.linear.geometry import Geometry, lengths_for

__all__ = ["PublicOracle"]


class PublicOracle:
    """Gradients, norms and curvature of a linear model on public rows (flat vectors, as in LinearOracle)."""

    def __init__(self, rows: PublicRows, loss: Loss) -> None:
        if not loss.admits(rows.y).all():
            raise InputError(f"y_public holds targets that the {loss.name} loss is not defined for")
        self.loss = loss
        self.rows = rows
        self.refresh = 1  # every gradient is cheap
        self.size = rows.n
        self.dimension = loss.outputs * rows.p
        self._X, self._p = rows.X, rows.p
        self._y = rows.y.astype(np.intp) if loss.task == "multiclass" else rows.y
        self._reader = RowReader(rows.X, self._y, row_norms(rows.X))

    def under(self, metric: FeatureMetric) -> PublicOracle:
        """The same records for a loss that takes x/‖Mx‖ in place of x."""
        X = self.rows.X
        if isinstance(metric, ThinFeatures):
            lengths = metric.lengths(X)
        else:
            X = dense(X)
            lengths = np.linalg.norm(X @ floats(metric.matrix).T, axis=1)
        scales = np.where(lengths > 1e-150, 1 / np.maximum(lengths, 1e-150), 0.0)[:, None]
        scaled = csr_array(X.multiply(scales)) if is_sparse(X) else X * scales
        return PublicOracle(PublicRows(scaled, self.rows.y), self.loss)

    def hessian(self, params: Vector) -> Floats:
        """The second derivative of the mean loss of a scalar model, p × p."""
        X = dense(self._X)
        curvature = self.loss.curvature(X @ self._weights(params), self._y)
        return np.asarray((X * curvature[:, None]).T @ X / self._count(None))

    def mean_gradient(self, params: Vector, indices: Array | None = None) -> Floats:
        """The mean gradient, not clipped; over the rows at `indices` if given."""
        count = self._count(indices)
        weights = self._weights(params)
        total = np.zeros(weights.shape)
        for block in self._reader.blocks(indices):
            total += block.X.T @ self.loss.slope(block.X @ weights, block.y)
        return np.asarray(total.T.reshape(-1) / count)

    def gradient_norms(
        self, params: Vector, *, metric: Metric = None, origin: Vector | None = None
    ) -> Floats:
        """‖M(g_j − o)‖ for every public record."""
        lengths = lengths_for(metric, outputs=self.loss.outputs, n=self.size, p=self._p)
        geometry = Geometry(metric, origin, lengths, self.loss.outputs, self._p)
        weights = self._weights(params)
        norms = [
            geometry.norms(block, self.loss.slope(block.X @ weights, block.y))
            for block in self._reader.blocks()
        ]
        return np.concatenate(norms) if norms else np.zeros(0)

    def gradients(self, params: Vector) -> Floats:
        """The gradient of every record, size × dimension. For small public sets."""
        slopes = self.loss.slope(self._X @ self._weights(params), self._y).reshape(self.size, -1)
        return np.asarray(slopes[:, :, None] * dense(self._X)[:, None, :], dtype=np.float64).reshape(
            self.size, -1
        )

    def losses(self, params: Vector) -> Floats:
        """The loss of every public record."""
        return np.asarray(self.loss.value(self._X @ self._weights(params), self._y), dtype=np.float64)

    def mean_loss(self, params: Vector) -> float:
        """The mean loss, without a regulariser."""
        return float(self.losses(params).sum() / self._count(None))

    def smoothness(self) -> float:
        """A bound on the Hessian of the mean loss at any parameters: sup ℓ'' · λ_max(XᵀX/n)."""
        if self.loss.smoothness is None:
            raise AssumptionError(f"the {self.loss.name} loss is not smooth; use huber instead")
        return self.loss.smoothness * self._top(np.ones(self.size))

    def hessian_top_eigenvalue(self, params: Vector) -> float:
        """The largest eigenvalue of the Hessian of the mean loss at `params`, without a regulariser."""
        self._count(None)
        z = self._X @ self._weights(params)
        if not isinstance(self.loss, Softmax):
            return self._top(self.loss.curvature(z, self._y))
        return _largest_eigenvalue(lambda v: self.hessian_times(params, v), self.dimension)

    def hessian_times(self, params: Vector, direction: Vector) -> Floats:
        """The Hessian of the mean loss at `params`, times a flat vector."""
        z, moved = self._X @ self._weights(params), self._X @ self._weights(direction)
        if isinstance(self.loss, Softmax):
            bent = self.loss.curvature_times(z, moved)
        else:
            bent = self.loss.curvature(z, self._y) * moved
        return np.asarray((self._X.T @ bent).T.reshape(-1) / self._count(None), dtype=np.float64)

    def _top(self, curvatures: Array) -> float:
        """λ_max(Xᵀ diag(curvatures) X / n)."""
        count = self._count(None)
        roots = np.sqrt(curvatures / count)
        X: Matrix = (
            self._X.multiply(roots[:, None]).tocsr() if is_sparse(self._X) else self._X * roots[:, None]
        )
        if min(X.shape) > 2000:
            return _largest_eigenvalue(lambda v: X.T @ (X @ v), X.shape[1])
        gram: Matrix = X @ X.T if X.shape[0] < X.shape[1] else X.T @ X
        return float(max(np.linalg.eigvalsh(dense(gram))[-1], 0.0))

    def _weights(self, params: Vector) -> Floats:
        flat = floats(params).reshape(-1)
        if flat.size != self.dimension:
            raise InputError(f"the model has {self.dimension} parameters, but {flat.size} were given")
        return flat if self.loss.outputs == 1 else np.ascontiguousarray(flat.reshape(-1, self._p).T)

    def _count(self, indices: Array | None) -> int:
        count = self.size if indices is None else len(indices)
        if count == 0:
            raise InputError("there are no public rows to take a mean over; pass X_public and y_public")
        return count


def _largest_eigenvalue(times: Callable[[Floats], Floats], dimension: int) -> float:
    """λ_max of a symmetric positive operator, from a start that is the same every time."""
    start = np.random.default_rng(0).standard_normal(dimension)
    if dimension < 3:  # Lanczos needs room
        matrix = np.array([times(e) for e in np.eye(dimension)])
        return float(np.linalg.eigvalsh(matrix)[-1])
    operator = LinearOperator((dimension, dimension), matvec=times, dtype=np.float64)
    return float(eigsh(operator, k=1, which="LA", v0=start, return_eigenvectors=False)[0])
