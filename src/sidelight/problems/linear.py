"""A linear model on rows of records, in memory or in blocks, or of persons with several rows each."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from sidelight.arrays import Floats, Matrix, Vector, dense, floats
from sidelight.clipping import Clip, FeatureMetric, Features, Metric, ThinFeatures
from sidelight.data.partitions import PartitionedRows
from sidelight.data.rows import PrivateRows
from sidelight.errors import InputError
from sidelight.losses import Loss
from sidelight.oracles.linear.linear_oracle import LinearOracle, PublicOracle, known
from sidelight.oracles.linear.partition_oracle import oracle_of
from sidelight.privacy.events import Relation
from sidelight.privacy.noise import Noise
from sidelight.privacy.release import BoundedSum
from sidelight.problems.base import Constants, Problem
from sidelight.samplers import Sample, Sampler, sample_blocks
from sidelight.solvers import reuse

__all__ = ["LinearProblem"]


@dataclass(frozen=True, eq=False)
class LinearProblem(Problem):
    """Rows, a loss, and public rows that guide. `rows` may be unread: then nothing private can be asked."""

    rows: PrivateRows
    loss: Loss
    target_bound: float | None = None
    regularization: float = 0.0
    public: PublicOracle | None = None
    unit_metric: FeatureMetric | None = None  # the loss sees x/‖Mx‖ in place of x

    @property
    def n(self) -> int:
        return self.rows.n

    @property
    def unit(self) -> str:  # type: ignore[override]
        return self.rows.unit

    @property
    def dimension(self) -> int:
        return self.rows.p * self.loss.outputs

    @cached_property
    def constants(self) -> Constants:
        loss = self.loss
        first = None
        if loss.task != "regression" and loss.lipschitz is not None:
            zero = np.zeros((1, loss.outputs) if loss.outputs > 1 else 1)
            label = np.zeros(1, dtype=np.intp) if loss.task == "multiclass" else np.ones(1)
            first = float(np.linalg.norm(loss.slope(zero, label)))
        return Constants(
            loss.name,
            loss.outputs,
            loss.lipschitz,
            loss.smoothness,
            self.rows.max_norm,
            self.target_bound,
            first,
        )

    def reading(self, rows: PrivateRows) -> LinearProblem:
        """The same problem, with its records."""
        return replace(self, rows=rows)

    def under(self, metric: FeatureMetric) -> LinearProblem:
        public = None if self.public is None else self.public.under(metric)
        return replace(self, public=public, unit_metric=metric)

    def check_metric(self, metric: Metric) -> None:
        known(metric)

    def default_clip_norm(self) -> float:
        """A bound on gradient norms that needs no data; for the square loss, on those at w = 0."""
        if self.loss.lipschitz is not None:
            return float(self.loss.lipschitz * self.rows.max_norm)
        if self.loss.smoothness is None:
            raise InputError(f"the {self.loss.name} loss bounds no gradient; pass clip_norm")
        target = 1.0 if self.target_bound is None else self.target_bound  # labels are ±1
        return float(self.loss.smoothness * target * self.rows.max_norm)

    # -----------------------------------------------------------------------------------------------
    # public records

    def start(self) -> Floats:
        return np.zeros(self.dimension)

    def pretrained(self, lam: float) -> Floats:
        """argmin of the public rows' mean loss + lam·‖w‖²."""
        return self.refit(self.start(), lam)

    def refit(self, params: Vector, lam: float) -> Floats:
        rows = self._guide().rows
        return reuse(self.loss, rows.X, rows.y, floats(params), lam)

    def public_smoothness(self) -> float | None:
        return None if self.loss.smoothness is None else self._guide().smoothness()

    def longest_direction(self, metric: Metric) -> float:
        if self.public is None or self.public.size == 0:
            return float(self.rows.max_norm**2)
        X = self.public.rows.X
        if isinstance(metric, ThinFeatures):
            seen = metric.gram(X[:: -(-X.shape[0] // 1000)])  # of about a thousand rows
            shorter = 1 / np.sqrt(np.maximum(np.diag(seen), 1.0))
            return max(float(np.linalg.eigvalsh(shorter[:, None] * seen * shorter)[-1]) / len(seen), 1e-12)
        if isinstance(metric, Features):
            image = X @ floats(metric.matrix).T
            X = image / np.maximum(np.linalg.norm(image, axis=1, keepdims=True), 1.0)
        n, p = X.shape
        gram: Matrix = X @ X.T if n < p else X.T @ X
        top = float(np.linalg.eigvalsh(dense(gram))[-1])
        return max(top / int(n), 1e-12)

    def public_loss(self, params: Vector) -> float | None:
        return None if self.public is None else self.public.mean_loss(params)

    def _guide(self) -> PublicOracle:
        if self.public is None:
            raise InputError("this needs public records; pass X_public and y_public")
        return self.public

    # -----------------------------------------------------------------------------------------------
    # a step

    @cached_property
    def _oracle(self) -> LinearOracle:
        return oracle_of(self.rows, self.loss, unit_under=self.unit_metric)

    def sample(self, sampler: Sampler, noise: Noise) -> Sample:
        if isinstance(self.rows, PartitionedRows):
            return sample_blocks(sampler, self.rows.blocks.sizes, noise)
        return super().sample(sampler, noise)

    def clipped_sum(
        self,
        params: Vector,
        indices: Sample = None,
        *,
        clip: Clip,
        origin: Vector | None = None,
        metric: Metric = None,
        relation: Relation,
    ) -> BoundedSum:
        return self._oracle.clipped_sum(
            params, indices, clip=clip, origin=origin, metric=metric, relation=relation
        )

    def apply(self, params: Vector, direction: Vector, *, step_size: float) -> Floats:
        w = floats(params) - step_size * floats(direction)
        # The regulariser is public and comes after the noise; the implicit step is stable for any λ.
        return w / (1 + step_size * self.regularization) if self.regularization else w
