"""scikit-learn's face: private linear models, fitted with the help of public records.

    PrivateClassifier(epsilon=1.0).fit(X, y, X_public=Xp, y_public=yp)

What is learned from data before training comes from what the user declares, or from the public records:
classes, feature bounds, target bounds. Without either, `fit` refuses, unless `assume_public` names what is no
secret, and then `privacy_.assumptions` says so. How many private records there are, their columns and their
types (of an array, or of a frame's columns) are treated as public. What they hold is not: a list or an array
of objects is read value by value.

A private record with a missing or infinite value, or with a label that is not among the classes, becomes a
null record, which contributes zero to every sum: an error would tell that there is one. The same in public
records is an error.

Every `fit` spends budget, in a grid search too: each fold of each candidate, and the refit. With `ledger` all
of them are charged to one dataset, which must accept parts of its records (`any_size=True`), and those that
it cannot pay for are refused (scikit-learn goes on after a refused fit; `error_score="raise"` stops the
search). The *scores* of a grid search on private records, and
the choice made by them, are covered by nothing; nor is a transformer that a pipeline fits to the private
records, nor a score on them: NotPrivateWarning says so where that can be seen. Public records reach a search
by metadata routing; it cuts into folds whatever has as many rows as X, so let X_public have another number
of rows.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import softmax
from sklearn.base import ClassifierMixin, RegressorMixin
from sklearn.utils._param_validation import StrOptions
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted

from sidelight.arrays import Array, Floats, Json, TableLike
from sidelight.data.coordinates import Bounds, Coordinates
from sidelight.data.guide import GuideColumns
from sidelight.data.schema import Schema, TextColumns
from sidelight.data.targets import (
    Classes,
    RealTarget,
    TargetScale,
    class_weights,
    natural_labels,
    range_of_targets,
    resolve_classes,
    resolve_target,
)
from sidelight.errors import InputError
from sidelight.estimator_base import PrivateLinear, labels_in
from sidelight.estimator_records import FitRecords, ScoreWarning, Table, TableOrigin, labels_of
from sidelight.familiar_words import knows_familiar_words
from sidelight.losses import get_loss
from sidelight.methods.auto import Auto
from sidelight.methods.intervals import (
    Intervals,
    ResidualFit,
    WithIntervals,
    intervals_of,
    public_residuals,
)
from sidelight.methods.probabilities import ScaledFit, WithProbabilities
from sidelight.methods.task import Fitted, Method, Task
from sidelight.privacy.events import Relation
from sidelight.privacy.ledger import Ledger

if TYPE_CHECKING:
    from sklearn.utils import Tags

    from sidelight.model_folder import StoredModel

__all__ = ["PrivateClassifier", "PrivateRegressor"]


def _has_probabilities(estimator: PrivateClassifier) -> bool:
    """False for a model that an earlier version saved without them."""
    return getattr(estimator, "probability_scale_", 1.0) is not None


class PrivateClassifier(ScoreWarning, ClassifierMixin, PrivateLinear):  # type: ignore[misc]
    """A linear classifier under (ε, δ)-differential privacy.

    Args:
        method: a name, or a configured method such as `rsgd_ar(epochs=5)`. Its parameters are reached as
            `method__name`. "auto" chooses by public quantities alone.
        epsilon: the budget of one fit.
        delta: None takes min(1e-5, n^−1.1).
        relation: which datasets are neighbours; None takes the ledger's, and without a ledger
            add-or-remove-one, or replace-one for a method that is proved for that alone.
        loss: "logistic", "hinge", "huber" (huberised hinge), "square" or "softmax". None chooses: logistic
            for two classes and softmax for more, which is measured (docs/choosing.md).
        bounds: (lower, upper) of the features, numbers or one each; None learns them from X_public. Values
            outside are clipped.
        centre: which point of a feature maps to 0: the "middle" of its bounds, "zero", or the public "mean".
            None takes the middle, and zero for a sparse X.
        schema: what the columns of a frame are (`sidelight.tables.Schema`, or the path of one). None learns
            it from X_public, unless `bounds` are given. See "Frames" in docs/tables.md.
        text: the columns of a frame that are texts: a name, several, or {name: encoder}. A public encoder
            makes numbers of each (docs/text.md).
        max_norm: the bound on the length of a row (with the intercept's 1); longer rows are scaled to it.
        classes: the labels; None takes those of y_public.
        class_weight: how much an error on each class counts when `predict` chooses a label: {label: weight},
            or "balanced" for the inverse of its rate among the public records. It costs nothing, and changes
            neither training nor probabilities.
        calibration: what probabilities are scaled by (`methods.probabilities`). "private": counts of private
            records by their scores, for 3 % of the budget's μ², and public records; "public": these alone;
            None: the scores as they are. "auto" is "private" for the method "auto", "public" for others.
        regularization: λ of (λ/2)‖w‖², the intercept included; 0 leaves it to the method.
        fit_intercept: whether a constant 1 joins the features.
        public_model: "auto" guides the method "auto" by models of the public rows (boosting, a forest; for
            numbers also ridge, on the target or its logarithm). They become columns, and a regression learns
            what the best of them gets wrong. "fit" does so for any method, None for none. A fitted estimator
            (predict_proba, decision_function or predict) joins them: last year's model, say. See
            `methods.public_models` and `data.own_model`.
        compare_with_public: whether the method "auto" spends 4 % of its budget's μ² to compare itself with
            public rows alone, on private records (`methods.paid_comparison`). The better model is returned.
        trees: whether the method "auto" adds trees to its line where n·ε is large enough: their splits come
            from public rows, their leaf values from private records (`methods.leaf_boosting`).
        assume_public: "classes" and "bounds" in here may be read off the private records, uncharged, if
            nothing else gives them. Only for what is no secret.
        unit: what the guarantee is for: a "record", or all rows of a person, by the name of the column of X
            that names persons (which is then no feature). See docs/persons.md.
        health_check: whether a noisy count of the records that contribute nothing, and of the values of each
            column that do not fit, is part of the plan. It takes at most 2 % of the budget's μ², is reported
            as intervals in `privacy_`, and warns if most records were ignored (`methods.health_check`).
        ledger: a Ledger, or the path of one, that pays for every fit.
        dataset: its name in the ledger; may be left out if the ledger has only one.
        random_state: an integer makes a fit repeatable, and its guarantee depends on that integer's secrecy.

    Attributes:
        coef_, intercept_: in the units of X, or of the columns `features_` that a schema makes of a frame. A
            row that nothing clips has the score coef_·x + intercept_; a row that was scaled by s to
            `max_norm` has s times that score, and so the same predicted class. The columns of public models
            (`public_model`) have weights of their own, and trees values, which come on top.
        classes_: the labels, sorted.
        probability_scale_: probabilities are the softmax of this times the scores.
        class_weights_: one for each label, or None.
        privacy_: ε, δ, relation, method, events and assumptions of this fit (`PrivacyStatement`).
        history_: what each step spent, its clip norm and noise.
        schema_: what the columns of a frame are; None if X was numbers.
        features_: the names of the columns that coef_ is for, made of those of a frame by `schema_`.
        n_features_in_, feature_names_in_: as everywhere in scikit-learn.
    """

    _parameter_constraints: ClassVar[Json] = {
        **PrivateLinear._parameter_constraints,
        "loss": [None, StrOptions({"logistic", "hinge", "huber", "square", "softmax"})],
        "classes": [None, "array-like"],
        "class_weight": [None, dict, StrOptions({"balanced"})],
        "calibration": [None, StrOptions({"auto", "private", "public"})],
    }
    _may_assume = ("classes", "bounds")
    classes_: Array
    probability_scale_: float | None
    class_weights_: Floats | None

    @knows_familiar_words
    def __init__(
        self,
        method: str | Method = "auto",
        *,
        epsilon: float = 1.0,
        delta: float | None = None,
        relation: Relation | None = None,
        loss: str | None = None,
        bounds: tuple[ArrayLike, ArrayLike] | Bounds | None = None,
        centre: str | None = None,
        schema: Schema | str | os.PathLike[str] | None = None,
        text: TextColumns | None = None,
        max_norm: float = 1.0,
        classes: Sequence[object] | Array | None = None,
        class_weight: Mapping[object, float] | Literal["balanced"] | None = None,
        calibration: Literal["auto", "private", "public"] | None = "auto",
        regularization: float = 0.0,
        fit_intercept: bool = True,
        public_model: object = "auto",
        compare_with_public: bool = True,
        trees: bool = True,
        assume_public: tuple[str, ...] = (),
        unit: str = "record",
        health_check: bool = True,
        ledger: Ledger | str | os.PathLike[str] | None = None,
        dataset: str | None = None,
        random_state: int | None = None,
    ) -> None:
        self.method = method
        self.epsilon = epsilon
        self.delta = delta
        self.relation = relation
        self.loss = loss
        self.bounds = bounds
        self.centre = centre
        self.schema = schema
        self.text = text
        self.max_norm = max_norm
        self.classes = classes
        self.class_weight = class_weight
        self.calibration = calibration
        self.regularization = regularization
        self.fit_intercept = fit_intercept
        self.public_model = public_model
        self.compare_with_public = compare_with_public
        self.trees = trees
        self.assume_public = assume_public
        self.unit = unit
        self.health_check = health_check
        self.ledger = ledger
        self.dataset = dataset
        self.random_state = random_state

    def _target(self, records: FitRecords, public: Table | None) -> Classes:
        y, public_labels = records.y, None if public is None else public.labels
        declared = self.classes
        if declared is None and records.schema is not None:
            declared = labels_of(records.schema.target, public_labels, apart=y is not None)
        labels = natural_labels(y) if y is not None and self._assumed("classes", records, public) else None
        target = resolve_classes(declared, public_labels, labels, loss=self.loss)
        self.class_weights_ = class_weights(self.class_weight, target.labels, public_labels)
        return target

    def _prepared(self, method: Method) -> Method:
        if self.calibration is None:
            return method
        chosen = self.calibration
        if chosen == "auto":
            chosen = "private" if isinstance(self._configured(), Auto) else "public"
        return WithProbabilities(method, source=chosen, required=self.calibration == "private")

    def _learned(self, fitted: Fitted) -> None:
        self.probability_scale_ = fitted.scale if isinstance(fitted, ScaledFit) else 1.0

    def _keep(self, weights: Floats, coordinates: Coordinates, target: Classes) -> None:
        if len(target.labels) == 2 and len(weights) == 2:
            weights = weights[1:] - weights[:1]  # softmax over two: only the difference matters
            self._trees = None if self._trees is None else self._trees.of_two_classes()
        self._weights, self._coordinates = weights, coordinates
        self.coef_, self.intercept_ = coordinates.in_user_units(weights)
        self.classes_ = target.labels

    @classmethod
    def _described(cls, stored: StoredModel) -> Json:
        labels = {"classes": labels_in(stored)} if stored.numbers else {}
        return super()._described(stored) | labels

    def _restore(self, stored: StoredModel) -> None:
        labels = labels_in(stored)
        name = stored.loss or ("logistic" if len(labels) == 2 else "softmax")
        self._fitted_target = Classes(labels, get_loss(name, classes=len(labels)))
        self._trees = stored.trees
        self._keep(stored.weights, stored.coordinates, self._fitted_target)
        self.probability_scale_, self.class_weights_ = stored.probability_scale, stored.class_weights

    def decision_function(self, X: TableLike) -> Floats:
        """(n,) scores of the second of two classes, or (n, classes)."""
        scores, _ = self._scores(X)
        return scores[:, 0] if scores.shape[1] == 1 else scores

    def predict(self, X: TableLike) -> Array:
        """The label of the largest score, or with `class_weight` of the largest weighted probability."""
        scores = self.decision_function(X)
        if self.class_weights_ is not None:
            scores = self._log_odds(scores) + np.log(self.class_weights_)
        winners = (scores > 0).astype(np.intp) if scores.ndim == 1 else scores.argmax(axis=1)
        return np.asarray(self.classes_[winners])

    @available_if(_has_probabilities)  # type: ignore[untyped-decorator]
    def predict_proba(self, X: TableLike) -> Floats:
        """(n, classes) probabilities: the softmax of the scores, times a scale that was fitted to records."""
        return np.asarray(softmax(self._log_odds(self.decision_function(X)), axis=1))

    def _log_odds(self, scores: Floats) -> Floats:
        """(n, classes): logarithms of probabilities, up to a constant in every row."""
        scaled = (self.probability_scale_ or 1.0) * scores
        return scaled if scaled.ndim == 2 else np.stack([np.zeros(len(scaled)), scaled], axis=1)

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_class = self.loss in (None, "softmax")
        return tags


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

    _parameter_constraints: ClassVar[Json] = {
        **PrivateLinear._parameter_constraints,
        "loss": [None, StrOptions({"square"})],
        "target_bounds": [None, tuple, list],
        "intervals": ["boolean"],
    }
    _may_assume = ("bounds", "target_bounds")
    _real_targets = True
    intervals_: Intervals | None
    _task_name = "regression"

    @knows_familiar_words
    def __init__(
        self,
        method: str | Method = "auto",
        *,
        epsilon: float = 1.0,
        delta: float | None = None,
        relation: Relation | None = None,
        loss: str | None = None,
        bounds: tuple[ArrayLike, ArrayLike] | Bounds | None = None,
        centre: str | None = None,
        schema: Schema | str | os.PathLike[str] | None = None,
        text: TextColumns | None = None,
        max_norm: float = 1.0,
        target_bounds: tuple[float, float] | None = None,
        regularization: float = 0.0,
        fit_intercept: bool = True,
        public_model: object = "auto",
        compare_with_public: bool = True,
        trees: bool = True,
        intervals: bool = True,
        assume_public: tuple[str, ...] = (),
        unit: str = "record",
        health_check: bool = True,
        ledger: Ledger | str | os.PathLike[str] | None = None,
        dataset: str | None = None,
        random_state: int | None = None,
    ) -> None:
        self.method = method
        self.epsilon = epsilon
        self.delta = delta
        self.relation = relation
        self.loss = loss
        self.bounds = bounds
        self.centre = centre
        self.schema = schema
        self.text = text
        self.max_norm = max_norm
        self.target_bounds = target_bounds
        self.regularization = regularization
        self.fit_intercept = fit_intercept
        self.public_model = public_model
        self.compare_with_public = compare_with_public
        self.trees = trees
        self.intervals = intervals
        self.assume_public = assume_public
        self.unit = unit
        self.health_check = health_check
        self.ledger = ledger
        self.dataset = dataset
        self.random_state = random_state

    def _compared(self, method: Method) -> Method:
        """Also with counts of residuals of the model that is returned: `predict_interval`."""
        compared = super()._compared(method)
        wanted = self.intervals and isinstance(self._configured(), Auto)
        return WithIntervals(compared) if wanted else compared

    def _learned(self, fitted: Fitted) -> None:
        self._beyond = fitted.beyond if isinstance(fitted, ResidualFit) else None

    def _fit_records(
        self, records: FitRecords, public: Table | None, *, origin: TableOrigin | None = None,
        around: tuple[str, ...] = (),
    ) -> tuple[Task, GuideColumns | None]:  # fmt: skip
        task, said = super()._fit_records(records, public, origin=origin, around=around)
        unit = self._scale.high / 2 - self._scale.low / 2
        residuals = public_residuals(task, said, None if public is None else public.labels, unit)
        self.intervals_ = intervals_of(self._beyond, residuals, unit)
        return task, said

    def _target(self, records: FitRecords, public: Table | None) -> RealTarget:
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
        self._trees, self.intervals_ = stored.trees, stored.intervals
        self._keep(stored.weights, stored.coordinates, self._fitted_target)

    def predict(self, X: TableLike) -> Floats:
        """The expected target."""
        scores, offset = self._scores(X)
        found = self._scale.inverse(scores[:, 0])
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
