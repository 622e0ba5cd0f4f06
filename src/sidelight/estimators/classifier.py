"""PrivateClassifier."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np
from scipy.special import softmax
from sklearn.base import ClassifierMixin
from sklearn.utils._param_validation import StrOptions
from sklearn.utils.metaestimators import available_if

from sidelight.arrays import Array, Floats, Json, TableLike
from sidelight.data.coordinates import Coordinates
from sidelight.data.targets import Classes, class_weights, natural_labels, resolve_classes
from sidelight.estimators.estimator_output import labels_in
from sidelight.estimators.fit_records import FitRecords, PublicTable
from sidelight.estimators.frame_schemas import labels_of
from sidelight.estimators.linear import PrivateLinear
from sidelight.estimators.sklearn_context import ScoreWarning
from sidelight.familiar_words import knows_familiar_words
from sidelight.losses import get_loss
from sidelight.methods.probabilities import ScaledFit, WithProbabilities
from sidelight.methods.task import Fitted, Method

if TYPE_CHECKING:
    from sklearn.utils import Tags

    from sidelight.estimators.model_folder import StoredModel


def _has_probabilities(estimator: PrivateClassifier) -> bool:
    """False for a model that an earlier version saved without them."""
    return getattr(estimator, "probability_scale_", 1.0) is not None


@knows_familiar_words
@dataclass(eq=False, repr=False, kw_only=True)
class PrivateClassifier(ScoreWarning, ClassifierMixin, PrivateLinear):  # type: ignore[misc]
    """A linear classifier under (ε, δ)-differential privacy.

    Args:
        method: a name, or a configured method such as `rsgd_ar(epochs=5)`. Its parameters are reached as
            `method__name`. "auto" chooses by public quantities alone.
        epsilon: the budget of one fit.
        delta: None takes min(1e-5, 1/(100·n)).
        relation: which datasets are neighbors; None takes the ledger's, and without a ledger
            add-or-remove-one, or replace-one for a method that is proved for that alone.
        loss: "logistic", "hinge", "huber" (huberized hinge), "square" or "softmax". None chooses: logistic
            for two classes and softmax for more (measured in docs/choosing.md).
        bounds: (lower, upper) of the features, numbers or one each; None learns them from X_public. Values
            outside are clipped.
        center: which point of a feature maps to 0: the "middle" of its bounds, "zero", or the public "mean".
            None takes the middle, and zero for a sparse X.
        schema: what the columns of a frame are (`sidelight.tables.Schema`, or the path of one). None learns
            it from X_public, unless `bounds` are given. See "Frames" in docs/tables.md.
        text: the columns of a frame that are texts: a name, several, or {name: encoder}. A public encoder
            converts each to numbers (docs/text.md).
        max_norm: the bound on the length of a row (with the intercept's 1); longer rows are scaled to it.
        classes: the labels; None takes those of y_public.
        class_weight: how much an error on each class counts when `predict` chooses a label: {label: weight},
            or "balanced" for the inverse of its rate among the public records. It costs nothing, and changes
            neither training nor probabilities.
        calibration: which records set the scale of probabilities (`methods.probabilities`). "private":
            counts of private records by their scores, for 3 % of the budget's μ², and public records;
            "public": these alone; None: the scores as they are. "auto" is "private" for the method "auto",
            "public" for others.
        regularization: λ of (λ/2)‖w‖², the intercept included; 0 leaves it to the method.
        fit_intercept: whether a constant 1 joins the features.
        public_model: "auto" guides the method "auto" by models of the public rows (a linear one and
            boosted trees). Their predictions become columns. "fit" does so for any method, None for none. A
            fitted estimator (predict_proba, decision_function or predict) joins them: last year's model, say.
            See `methods.public_models` and `data.own_model`.
        compare_with_public: whether the method "auto" spends 4 % of its budget's μ² to compare itself with
            public rows alone, on private records (`methods.paid_comparison`). The better model is returned.
        trees: whether the method "auto" adds trees to its linear model if n·ε is large enough: their splits
            come from public rows, their leaf values from private records (`methods.leaf_boosting`).
        assume_public: "classes" and "bounds" in here may be read off the private records, uncharged, if
            nothing else gives them. Only for what is public.
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

    classes: Sequence[object] | Array | None = None
    class_weight: Mapping[object, float] | Literal["balanced"] | None = None
    calibration: Literal["auto", "private", "public"] | None = "auto"

    _parameter_constraints: ClassVar[Json] = {
        **PrivateLinear._parameter_constraints,
        "loss": [None, StrOptions({"logistic", "hinge", "huber", "square", "softmax"})],
        "classes": [None, "array-like"],
        "class_weight": [None, dict, StrOptions({"balanced"})],
        "calibration": [None, StrOptions({"auto", "private", "public"})],
    }
    _may_assume = ("classes", "bounds")

    def _target(self, records: FitRecords, public: PublicTable | None) -> Classes:
        y, public_labels = records.y, None if public is None else public.labels
        declared = self.classes
        if declared is None and records.schema is not None:
            declared = labels_of(records.schema.target, public_labels, apart=y is not None)
        labels = natural_labels(y) if y is not None and self._assumed("classes", records, public) else None
        target = resolve_classes(declared, public_labels, labels, loss=self.loss)
        self.class_weights_ = class_weights(self.class_weight, target.labels, public_labels)
        return target

    def _with_extras(self, method: Method, records: FitRecords, coordinates: Coordinates) -> Method:
        """Also with what probabilities need."""
        chosen = self.calibration
        if chosen == "auto":
            chosen = "private" if self._is_auto() else "public"
        if chosen is not None:
            method = WithProbabilities(method, source=chosen, required=self.calibration == "private")
        return super()._with_extras(method, records, coordinates)

    def _learned(self, fitted: Fitted) -> None:
        self.probability_scale_: float | None = fitted.scale if isinstance(fitted, ScaledFit) else 1.0

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
