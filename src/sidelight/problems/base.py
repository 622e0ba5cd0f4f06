"""What is trained and where its private records live: the interface that methods use, and a linear model.

A linear model and a network differ in how they implement it and nowhere else. A constant that a problem does
not know is None, and a part that needs it refuses by name.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar, Protocol

import numpy as np

from sidelight.arrays import Array, Floats, Matrix, Vector, dense, floats
from sidelight.clipping import Clip, Details, Diagonal, FeatureMetric, Features, Metric, ThinFeatures
from sidelight.data.partitions import PartitionedRows, Sample, sample_blocks
from sidelight.data.persons import PersonRows
from sidelight.data.rows import PrivateRows
from sidelight.errors import InputError
from sidelight.losses import Loss
from sidelight.oracles.linear.linear_oracle import LinearOracle, PublicOracle
from sidelight.oracles.linear.partition_oracle import PartitionMoments, PartitionOracle
from sidelight.oracles.linear.person_oracle import PersonOracle
from sidelight.oracles.linear.row_lengths import check_linear_metric
from sidelight.oracles.linear.row_sums import MomentOracle
from sidelight.privacy.events import Indices, Relation, Sampler
from sidelight.privacy.noise import Noise
from sidelight.privacy.release import BoundedSum
from sidelight.solvers import reuse


@dataclass(frozen=True)
class Constants:
    """Constants of a loss and its records, known before anything is read; None if unknown."""

    loss: str = "network's"  # the name of the loss, for messages
    outputs: int | None = None  # of a linear model
    lipschitz: float | None = None  # sup |ℓ'| in the prediction
    smoothness: float | None = None  # sup ℓ''
    row_norm: float | None = None  # no row is longer
    target_bound: float | None = None  # of a regression
    first_slope: float | None = None  # |ℓ'| at a prediction of 0, whatever the label; of classification

    @property
    def square(self) -> bool:
        """Whether slopes grow without a bound and curvature does not, as those of the square loss."""
        return self.lipschitz is None and self.smoothness is not None


class Guide(Protocol):
    """What parts may use of public records on every problem. `PublicOracle` offers more."""

    size: int
    refresh: int  # steps between two looks at every public gradient, where a part gives no number

    def mean_gradient(self, params: Vector) -> Vector:
        """The mean gradient, not clipped."""

    def gradient_norms(self, params: Vector, *, metric: Metric = None, origin: Vector | None = None) -> Array:
        """‖M(g_j − o)‖ of each public record."""

    def weighted_gradient(self, params: Vector, weights: Floats) -> Vector:
        """The mean of w_j g_j, with a weight for each record that `gradient_norms` has a norm of."""

    def gradients(self, params: Vector) -> Vector:
        """The gradient of every public record, one per row."""

    def mean_loss(self, params: Vector) -> float:
        """The mean loss, without a regularizer."""


class Problem(Protocol):
    """What is trained and where its private records live. All of it but `clipped_sum` is public."""

    unit: ClassVar[str] = "record"  # of privacy
    has_optimizer: ClassVar[bool] = False  # whether `apply` has a step size of its own
    deferred: ClassVar[bool] = False  # whether the caller moves the parameters, after `apply`
    momentum: float = 0.0  # of an optimizer that `apply` hands directions to
    public_from: ClassVar[str] = "X_public and y_public"  # what to pass, for messages

    @property
    def n(self) -> int:
        """Units of privacy: private records."""

    @property
    def dimension(self) -> int:
        """Parameters."""

    @property
    def constants(self) -> Constants: ...

    @property
    def public(self) -> Guide | None: ...

    @property
    def details(self) -> Details:
        """What to report besides a plan's choices."""
        return {}

    def default_clip_norm(self) -> float:
        """The clip norm where a recipe gives none. No guarantee rests on it: every gradient is clipped."""
        ...

    def start(self) -> Vector:
        """Where training begins without public records."""

    def pretrained(self, lam: float) -> Vector:
        """The model of public records alone; `lam` is the weight of ‖w‖² if the problem uses one."""

    def refit(self, params: Vector, lam: float) -> Vector:
        """argmin of the public records' mean loss + lam·‖w − params‖²."""

    def public_smoothness(self) -> float | None:
        """A bound or an estimate of the curvature of the public mean loss; None for a loss with none."""

    def longest_direction(self, metric: Metric) -> float | None:
        """The top eigenvalue of the public second moment of rows, or its bound; None without rows."""

    def public_loss(self, params: Vector) -> float | None:
        """The public loss for the history, if it costs little; else None."""

    def held_out_losses(self, params: Vector) -> Floats | None:
        """Losses of public records that nothing was trained on, to compare models by; None without any."""
        return None

    def scores(self, step: int) -> Details:
        """Scores on public records that were set apart, after so many steps; none at most steps."""
        return {}

    def under(self, metric: FeatureMetric) -> Problem:
        """The same problem with rows brought to length 1 under the metric, before the loss sees them."""
        raise InputError("a metric that scales rows is for linear models; a network takes SecondMoments()")

    def check_metric(self, metric: Metric) -> None:
        """Raise InputError for a metric whose norms cannot be bounded here."""
        return None

    def begin_step(self, step: int) -> None:
        """Make the public records of this step ready."""
        return None

    def sample(self, sampler: Sampler, noise: Noise) -> Sample:
        """The private records of a step; None stands for all of them."""
        return sampler.indices(self.n, noise)

    def clipped_sum(
        self,
        params: Vector,
        indices: Indices | None = None,
        *,
        clip: Clip,
        origin: Vector | None = None,
        metric: Metric = None,
        relation: Relation,
    ) -> BoundedSum:
        """Σ_i clip(M(g_i − o)) over the records at `indices`. The only access to private records."""
        ...

    def apply(self, params: Vector, direction: Vector, *, step_size: float) -> Vector:
        """The parameters after one step along minus `direction`, which was released."""

    longest_step: float | None = None  # of an optimizer, where known beforehand

    def step_sizes(self, steps: int) -> tuple[float, ...]:
        """Of each step, relative to the longest, where known beforehand; empty: all alike."""
        return ()

    def shrinkage(self, step_size: float) -> float:
        """The share of the parameters that a longest step takes off by itself, where known beforehand."""
        return 0.0


# ---------------------------------------------------------------------------------------------------
# a linear model on rows in memory, of records or of persons with several rows each


@dataclass(frozen=True, eq=False)
class LinearProblem(Problem):
    """Rows, a loss, and public rows that guide. `rows` may be unread: then private records are not
    accessible.
    """

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
        check_linear_metric(metric)

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
        if self.public is None or self.public.rows.every.shape[0] == 0:
            return float(self.rows.max_norm**2)
        X = self.public.rows.every
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

    def public_spectrum(self, metric: Metric = None) -> tuple[Floats, Floats]:
        """Eigenvalues of the second moment of public rows, labeled or not, times the loss's curvature; and
        how much noise each direction has. Both are those that steps under the metric see."""
        X = self._guide().rows.every
        n, p = X.shape
        scale = np.ones(p)
        if isinstance(metric, Features | ThinFeatures):
            image = floats(metric.apply(dense(X).reshape(-1))).reshape(n, -1)
            if self.unit_metric is not None:
                image = image / np.maximum(np.linalg.norm(image, axis=1, keepdims=True), 1e-300)
            X, n, p = image, *image.shape
        elif isinstance(metric, Diagonal):
            scale = np.sqrt(floats(metric.scale).reshape(-1, p).mean(axis=0))
            X = dense(X) * scale
        gram: Matrix = X @ X.T if n < p else X.T @ X
        values, vectors = np.linalg.eigh(dense(gram))
        values = np.maximum(values, 0.0)
        if n < p:
            vectors = np.asarray(X.T @ vectors) / np.sqrt(np.maximum(values, 1e-300))
        weights = np.ones(len(values))
        if isinstance(metric, Diagonal):
            weights = np.sum((vectors / scale[:, None]) ** 2, axis=0)
        return values / max(1, n) * (1.0 if self.loss.smoothness is None else self.loss.smoothness), weights

    def public_loss(self, params: Vector) -> float | None:
        return self.public.mean_loss(params) if self.public is not None and self.public.size else None

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
        # The regularizer is public and comes after the noise; the implicit step is stable for any λ.
        return w / (1 + step_size * self.regularization) if self.regularization else w

    def shrinkage(self, step_size: float) -> float:
        return step_size * self.regularization / (1 + step_size * self.regularization)


# ---------------------------------------------------------------------------------------------------
# who sums


def oracle_of(rows: PrivateRows, loss: Loss, *, unit_under: FeatureMetric | None = None) -> LinearOracle:
    """The oracle for rows of records or of persons, in memory or in blocks."""
    if isinstance(rows, PartitionedRows):
        return PartitionOracle(rows, loss, unit_under=unit_under)
    if isinstance(rows, PersonRows):
        return PersonOracle(rows, loss, unit_under=unit_under)
    return LinearOracle(rows, loss, unit_under=unit_under)


def moments_of(rows: PrivateRows, loss: Loss) -> MomentOracle:
    """The same for second moments."""
    return PartitionMoments(rows, loss) if isinstance(rows, PartitionedRows) else MomentOracle(rows, loss)
