"""PrivateRegressor."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from sklearn.base import RegressorMixin
from sklearn.utils._param_validation import StrOptions
from sklearn.utils.validation import check_is_fitted

from sidelight.arrays import Floats, Json, TableLike
from sidelight.data.coordinates import Coordinates
from sidelight.data.targets import RealTarget, TargetScale, range_of_targets, resolve_target
from sidelight.errors import InputError
from sidelight.estimators.fit_records import FitRecords, PublicTable
from sidelight.estimators.linear import PrivateLinear, PublicPart
from sidelight.estimators.sklearn_context import ScoreWarning
from sidelight.familiar_words import knows_familiar_words
from sidelight.losses import get_loss
from sidelight.methods.intervals import ResidualFit, WithIntervals, intervals_of, public_residuals
from sidelight.methods.task import Fitted, Method

if TYPE_CHECKING:
    from sidelight.estimators.model_folder import StoredModel


@knows_familiar_words
@dataclass(eq=False, repr=False, kw_only=True)
class PrivateRegressor(ScoreWarning, RegressorMixin, PrivateLinear):  # type: ignore[misc]
    """A linear regression with the square loss under (ε, δ)-differential privacy.

    Targets are clipped into `target_bounds` and mapped to [−1, 1] for training.

    Args:
        target_bounds: (low, high) of the targets; None takes the range of y_public.
        intervals: whether the method "auto" counts private records by their residual, for at most 3 % of its
            budget's μ², where n·ε is large enough for that (`methods.intervals`). `predict_interval` has
            public residuals otherwise.
        assume_public: as in `PrivateClassifier`; here "bounds" and "target_bounds".
        others: as in `PrivateClassifier`.

    Attributes:
        coef_, intercept_: in the units of X and y. A row that nothing clips is predicted as coef_·x +
            intercept_; for a row that was scaled by s to `max_norm`, s times the distance from the middle of
            the target bounds. With public models they are the features' part of what is learned on top of
            these models' prediction.
        others: as in `PrivateClassifier`.
    """

    target_bounds: tuple[float, float] | None = None
    intervals: bool = True

    _parameter_constraints: ClassVar[Json] = {
        **PrivateLinear._parameter_constraints,
        "loss": [None, StrOptions({"square"})],
        "target_bounds": [None, tuple, list],
        "intervals": ["boolean"],
    }
    _may_assume = ("bounds", "target_bounds")
    _real_targets = True
    _task_name = "regression"

    def _with_extras(self, method: Method, records: FitRecords, coordinates: Coordinates) -> Method:
        """Also with counts of residuals of the model that is returned: `predict_interval`."""
        method = super()._with_extras(method, records, coordinates)
        return WithIntervals(method) if self.intervals and self._is_auto() else method

    def _learned(self, fitted: Fitted) -> None:
        self._beyond = fitted.beyond if isinstance(fitted, ResidualFit) else None

    def fit_records(self, records: FitRecords, public: PublicTable | None, **about: Any) -> PublicPart:
        part = super().fit_records(records, public, **about)
        unit = self._scale.high / 2 - self._scale.low / 2
        self.intervals_ = intervals_of(self._beyond, public_residuals(*part, unit), unit)
        return part

    def _target(self, records: FitRecords, public: PublicTable | None) -> RealTarget:
        declared = self.target_bounds
        if declared is None and records.schema is not None:
            declared = records.schema.target.bounds
        if records.y is not None and self._assumed("target_bounds", records, public):
            declared = range_of_targets(records.y)
        scale = resolve_target(declared, None if public is None else public.labels)
        return RealTarget(scale, get_loss(self.loss or "square"))

    def _keep(self, weights: Floats, coordinates: Coordinates, target: RealTarget) -> None:
        guide = coordinates.guide
        residual = None if guide is None else guide.residual
        scale = target.scale if residual is None else TargetScale(-residual, residual)
        self._weights, self._coordinates, self._scale = weights, coordinates, scale
        coef, intercept = coordinates.in_user_units(weights)
        self.coef_ = coef[0] * (scale.high / 2 - scale.low / 2)
        self.intercept_ = float(scale.inverse(intercept)[0])

    @classmethod
    def _described(cls, stored: StoredModel) -> Json:
        bounds = {"target_bounds": stored.schema.target.bounds} if stored.numbers else {}
        return super()._described(stored) | bounds

    def _restore(self, stored: StoredModel) -> None:
        self._fitted_target = RealTarget(TargetScale(*(stored.schema.target.bounds or (0.0, 1.0))))
        self.intervals_ = stored.intervals
        self._keep(stored.weights, stored.coordinates, self._fitted_target)

    def in_units(self, scores: Floats) -> Floats:
        """Scores of the model in the units of y: the target, or what is added to the guide's prediction."""
        return self._scale.inverse(scores)

    def predict(self, X: TableLike) -> Floats:
        """The expected target."""
        scores, offset = self._scores(X)
        found = self.in_units(scores[:, 0])
        return np.asarray(found if offset is None else found + offset, dtype=np.float64)

    def predict_interval(self, X: TableLike, coverage: float = 0.9) -> Floats:
        """(n, 2): an interval around each prediction that holds the target in this share of records.

        All are equally wide. `intervals_.source` says whose residuals tell how wide: "private" records, which
        were counted with noise, or "public" ones, out of fold. The latter cover public records: if private
        ones differ, nothing is known of these.
        """
        check_is_fitted(self, "privacy_")
        if (known := getattr(self, "intervals_", None)) is None:
            raise InputError(
                "no residuals are known: expected 10 public rows with targets, or n·ε for counts of private "
                "ones; fit with X_public and y_public"
            )
        half = known.half_width(coverage)
        return np.asarray(self.predict(X)[:, None] + np.array([-half, half]))
