"""What is trained and where its private records live: the questions that methods and parts may ask.

A linear model and a network differ here and nowhere else. A constant that a problem does not know is None,
and a part that needs it refuses by name.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Protocol

from sidelight.errors import InputError

if TYPE_CHECKING:
    from sidelight.arrays import Array, Floats, Vector
    from sidelight.clipping import Clip, Details, FeatureMetric, Metric
    from sidelight.data.rows import PublicRows
    from sidelight.privacy.events import Relation
    from sidelight.privacy.noise import Noise
    from sidelight.privacy.release import BoundedSum
    from sidelight.samplers import Sample, Sampler

__all__ = ["Constants", "Guide", "Problem"]


@dataclass(frozen=True)
class Constants:
    """Of a loss and its records, known before anything is read; None: not known."""

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
    """Public records: the questions that parts may ask about them."""

    size: int
    refresh: int  # steps between two looks at every public gradient, where a part gives no number

    @property
    def rows(self) -> PublicRows:
        """The feature rows of a linear model; a network has none, and raises InputError."""

    def mean_gradient(self, params: Vector) -> Vector:
        """The mean gradient, not clipped."""

    def gradient_norms(self, params: Vector, *, metric: Metric = None, origin: Vector | None = None) -> Array:
        """‖M(g_j − o)‖ of each public record."""

    def gradients(self, params: Vector) -> Vector:
        """The gradient of every public record, one per row."""

    def losses(self, params: Vector) -> Array:
        """The loss of every public record; a network has no use for them, and raises InputError."""

    def mean_loss(self, params: Vector) -> float:
        """The mean loss, without a regulariser."""


class Problem(Protocol):
    """What is trained and where its private records live. All of it but `clipped_sum` is public."""

    unit: ClassVar[str] = "record"  # of privacy
    has_optimizer: ClassVar[bool] = False  # whether `apply` has a step size of its own
    deferred: ClassVar[bool] = False  # whether the caller moves the parameters, after `apply`
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
        """Where public records alone lead; `lam` is the weight of ‖w‖² where the problem takes one."""

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
        indices: Sample = None,
        *,
        clip: Clip,
        origin: Vector | None = None,
        metric: Metric = None,
        relation: Relation,
    ) -> BoundedSum:
        """Σ_i clip(M(g_i − o)) over the records at `indices`. The only question about private records."""
        ...

    def apply(self, params: Vector, direction: Vector, *, step_size: float) -> Vector:
        """The parameters after one step along minus `direction`, which was released."""
