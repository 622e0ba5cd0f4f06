"""What the two estimators share: parameters, checks, and the flow of `fit`."""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple, Self, cast

import numpy as np
from numpy.typing import ArrayLike
from sklearn.utils.validation import _check_feature_names, check_is_fitted

from sidelight.arrays import Array, Floats, Json, TableLike, dense, is_sparse
from sidelight.data.coordinates import Coordinates
from sidelight.data.features import FeaturePlan
from sidelight.data.frames import without_column
from sidelight.data.guide import GuideColumns
from sidelight.data.inputs import (
    read_off,
)
from sidelight.data.leaves import ColumnGroup
from sidelight.data.rows import PublicRows, UnreadRows
from sidelight.data.schema import Schema, TargetColumn, text_types
from sidelight.data.targets import Classes, Target, target_misfits
from sidelight.estimators.estimator_input import EstimatorInput
from sidelight.estimators.fit_records import (
    ArrayRecords,
    FitRecords,
    PublicTable,
    with_own,
)
from sidelight.estimators.frame_schemas import (
    DECLARED,
    encoders_assumed,
    frame_schema,
    read_schema,
    target_name,
    with_target,
)
from sidelight.estimators.sklearn_context import (
    refuse_transformed_target,
    remember_records,
    warn_outside_fit,
)
from sidelight.methods.health_check import OFF, HealthCheck, WithHealthCheck
from sidelight.methods.leaf_boosting import WithLeaves
from sidelight.methods.own_guide import own_guide
from sidelight.methods.paid_comparison import PaidComparison
from sidelight.methods.public_models import Guided, fit_guide, public_weights
from sidelight.methods.task import PUBLIC_APART, Fitted, Method, Task, fit_charged
from sidelight.privacy.contract import Payer, delta_of, open_payer, relation_of
from sidelight.privacy.noise import Noise
from sidelight.privacy.observer import Observer, check_observers
from sidelight.report.effects import sample_rows

if TYPE_CHECKING:
    from sidelight.data.frames import Frame


class PublicPart(NamedTuple):
    """What a fit knew of its public rows: the task, what the guide says of them, and their targets."""

    task: Task
    guide_outputs: GuideColumns | None
    y: Array | None


class PrivateLinear(EstimatorInput):
    """A linear model under (ε, δ). See `PrivateClassifier` and `PrivateRegressor`."""

    def fit(
        self,
        X: TableLike,
        y: ArrayLike,
        X_public: TableLike | None = None,
        y_public: ArrayLike | None = None,
        *,
        persons: ArrayLike | None = None,
        observers: Sequence[Observer] = (),
    ) -> Self:
        """Fit to private records X, y with the help of public ones; every call spends budget.

        Args:
            X: (n, p) private features: an array or a sparse matrix of real numbers, used as they are; or a
                pandas or polars frame, whose columns are read by the types of X_public or `schema`.
            y: (n,) private targets.
            X_public: public features with the columns of X; in the same order, if they are numbers.
            y_public: public targets; None, or missing ones, for rows without. Those still give bounds, knots
                and second moments; public models, trees and the paid comparison need targets.
            persons: (n,) the person of each row, if persons have several: the guarantee is then for all of
                them. For a frame, name a column instead: `unit`.
            observers: notified of the charge, of every step and of the statement (`sidelight.observers`).
        """
        refuse_transformed_target(y_public)
        around = warn_outside_fit()
        self.check_parameters()
        observers = check_observers(observers)
        self._check_given(X, y, X_public, y_public)
        given, whose = X, self._persons(X, persons)
        if self.unit != "record":
            X, X_public = without_column(X, self.unit), without_column(X_public, self.unit)
        declared = read_schema(self.schema, self._task_name)
        blank = TargetColumn(target_name(y, []), self._task_name)
        bounded = self.bounds is not None or self.center is not None
        schema = frame_schema(X, X_public, declared, blank, text_types(self.text), bounded=bounded)
        records: FitRecords
        if schema is None:
            records, public = self._array_records(X, y, X_public, y_public)
        else:
            records, public = self._frame_records(X, y, X_public, y_public, schema, whose)
        rows = records.n
        if whose is not None:
            whose.check(rows)
        self.fit_records(
            replace(records, persons=whose), public, assumptions=around, observers=observers, sample=X_public
        )
        remember_records(self, given, rows if whose is None else None)
        n_columns = self._coordinates.bounds.features if schema is None else len(cast("Frame", X).columns)
        self.n_features_in_ = n_columns
        _check_feature_names(self, X, reset=True)
        return self

    def fit_records(
        self,
        records: FitRecords,
        public: PublicTable | None,
        *,
        assumptions: tuple[str, ...] = (),
        observers: tuple[Observer, ...] = (),
        sample: TableLike | None = None,
    ) -> PublicPart:
        """Plan, charge, read, run: the common part of `fit` and `fit_tables`.

        assumptions: for the statement, besides those of the method and of the data.
        sample: public rows, some of which are kept for `effects`.
        """
        payer = open_payer(self.ledger, self.dataset)
        if payer is not None:
            payer = replace(payer, identity=records.identity())
        target = self._target(records, public)
        coordinates = self._resolve_coordinates(records, public)
        if public is not None and records.schema is None:
            more = None if public.unlabeled is None else with_own(records.own, public.unlabeled)
            misfits, X = coordinates.misfits(public.X), with_own(records.own, public.X)
            public = replace(public, X=X, misfits=misfits, unlabeled=more)
        guided = self._guided(records, public, target, coordinates)
        if guided is not None:
            coordinates = replace(coordinates, guide=guided.guide)
        guide_outputs = None if guided is None else guided.public
        method = self._with_extras(self._configured(), records, coordinates)
        if self.health_check:
            method = WithHealthCheck(method, _health_check(records, public, target))
        task = self._task(method, records, public, target, coordinates, payer, guide_outputs)
        with records.reading() as read, np.errstate(all="ignore"):  # NumPy's word on a private value
            fitted, self.privacy_ = fit_charged(
                method,
                task,
                read=lambda: read(target, coordinates, observers),
                payer=payer,
                noise=Noise(self.random_state),
                assumptions=(*self._assumptions(records, public), *assumptions),
                details=self._details(records, public, coordinates),
                observers=observers,
            )
        self.history_ = fitted.history
        self.schema_ = None if records.schema is None else with_target(records.schema, target)
        self._stored, self._fitted_target, self._trees = None, target, fitted.leaves
        self._public_sample = sample_rows(sample)
        self._learned(fitted)
        self._keep(fitted.coef, coordinates, target)
        return PublicPart(task, guide_outputs, None if public is None else public.labels)

    def with_weights(self, weights: Floats) -> Self:
        """A fitted copy with other weights in the same coordinates, and without trees, for comparison."""
        other = copy.copy(self)
        other._trees = None
        other._keep(weights, self._coordinates, self._fitted_target)
        return other

    def _guided(
        self, records: FitRecords, public: PublicTable | None, target: Target, coordinates: Coordinates
    ) -> Guided | None:
        """Models of the public rows that guide the fit, where it is asked for; and the user's own."""
        own, bounds, labeled = records.own, coordinates.bounds, public is not None and public.n > 0
        beside = self._is_auto() or not self._configured().private
        wanted = self.public_model == "fit" or (self.public_model == "auto" and beside)
        if own is None and not (wanted and labeled):
            return None
        X, y = np.zeros((0, bounds.features + (0 if own is None else own.outputs))), np.zeros(0)
        if public is not None and labeled:
            if is_sparse(public.X):
                return None
            target.encode_public(public.y)  # each must be usable
            X, y = dense(public.X), target.index(public.y) if isinstance(target, Classes) else public.y
        lower, upper, limits, edges = bounds.lower, bounds.upper, target.limits, records.edges
        if own is None:
            return fit_guide(X, y, lower=lower, upper=upper, limits=limits, edges=edges)
        labels = target.labels if isinstance(target, Classes) else None
        return own_guide(own, X, y, lower=lower, upper=upper, limits=limits, labels=labels, edges=edges)

    def _with_extras(self, method: Method, records: FitRecords, coordinates: Coordinates) -> Method:
        """The method as it is run: `auto` with trees besides, and compared with public rows alone.

        What is not private has the trees, too, so that it is the ceiling of `auto`.
        """
        if not self._is_auto() and method.private:
            return method
        if self.trees:
            features, guide = coordinates.bounds.features, coordinates.guide
            columns = range(features, features + (0 if guide is None else guide.size))
            groups = (*records.groups(features), *(ColumnGroup((column,)) for column in columns))
            method = WithLeaves(method, groups=groups, intercept=coordinates.fit_intercept)
        return PaidComparison(method) if self.compare_with_public and method.private else method

    def _learned(self, fitted: Fitted) -> None:
        """Store what a fit gives besides its weights."""

    @abstractmethod
    def _target(self, records: FitRecords, public: PublicTable | None) -> Target:
        """What is predicted, from declarations, a schema and public targets."""

    @abstractmethod
    def _keep(self, weights: Floats, coordinates: Coordinates, target: Any) -> None:
        """Store the model; `target` is what `_target` returned."""

    @abstractmethod
    def predict(self, X: TableLike) -> Array:
        """The predicted label or number of every row."""

    def _resolve_coordinates(self, records: FitRecords, public: PublicTable | None) -> Coordinates:
        """Bounds that were declared, or learned from public rows; never from private ones, unless assumed."""
        if isinstance(records, ArrayRecords):
            resolved = self._bounds_of_numbers(records, public)
        else:
            resolved = FeaturePlan(cast(Schema, records.schema)).bounds()
        return Coordinates(resolved, float(self.max_norm), bool(self.fit_intercept))

    def _task(
        self,
        method: Method,
        records: FitRecords,
        public: PublicTable | None,
        target: Target,
        coordinates: Coordinates,
        payer: Payer | None,
        guide_outputs: GuideColumns | None = None,
    ) -> Task:
        public_rows = PublicRows.empty(coordinates.p)
        if public is not None:
            public_rows = coordinates.public(public.X, public.y, target, guide_outputs, public.unlabeled)
            given = public_weights(coordinates, target.loss.outputs)
            public_rows = public_rows if given is None else replace(public_rows, given=given)
        return Task(
            rows=UnreadRows(
                records.n,
                coordinates.p,
                max_norm=coordinates.max_norm,
                unit="record" if records.persons is None else records.persons.unit,
                partitioned=records.placed is not None,
            ),
            public=public_rows,
            loss=target.loss,
            epsilon=float(self.epsilon),
            delta=delta_of(self.delta, records.n, payer),
            relation=relation_of(method, self.relation, payer),
            regularization=float(self.regularization),
            target_bound=target.bound,
            residual=guide_outputs is not None and guide_outputs.offset is not None,
            residual_spread=0.0 if public is None else _residual_spread(coordinates, public.y),
        )

    # -----------------------------------------------------------------------------------------------
    # what the statement says

    def _assumed(self, what: str, records: FitRecords, public: PublicTable | None) -> bool:
        """Is this read off the private records, because the user says that it is public?"""
        shown = public is not None and (what == "bounds" or public.n > 0)
        known = getattr(self, what) is not None or records.schema is not None or shown
        return what in self.assume_public and not known

    def _assumptions(self, records: FitRecords, public: PublicTable | None) -> tuple[str, ...]:
        counted = "records" if records.persons is None else "persons"
        lines = [f"the number of private {counted} ({records.n:,}), their columns and their types are public"]
        if records.persons is not None:
            lines.append(records.persons.assumption)
        if public is not None:
            lines.append(PUBLIC_APART)
        if records.schema is not None and records.schema.source.startswith("declared"):
            lines.append(DECLARED)
        lines += encoders_assumed(records.schema)
        if records.own is not None:
            lines.append(
                f"public_model ({type(records.own.estimator).__name__}) was not fitted to the private "
                "records, nor chosen by looking at them; it predicts each row by itself, as public rows show"
            )
        lines += [read_off(what) for what in self._may_assume if self._assumed(what, records, public)]
        return tuple(lines)

    def _details(self, records: FitRecords, public: PublicTable | None, coordinates: Coordinates) -> Json:
        details: Json = {
            "private_records": records.n,
            "public_records": 0 if public is None else public.n,
            "features": int(coordinates.bounds.features),
            "max_norm": coordinates.max_norm,
            "fit_intercept": coordinates.fit_intercept,
            **{f"{what}_from": self._source(what, records, public) for what in self._may_assume},
        }
        if public is not None and public.unlabeled is not None:
            details["public_records_unlabeled"] = int(public.unlabeled.shape[0])
        if coordinates.guide is not None:
            details["public_models"] = dict(coordinates.guide.scores)
        if records.own is not None:
            details["public_model"] = type(records.own.estimator).__name__
        return details if self.health_check else {**details, "health_check": OFF}

    def _source(self, what: str, records: FitRecords, public: PublicTable | None) -> str:
        if getattr(self, what) is not None:
            return "declared"
        if records.schema is not None:
            return records.schema.source
        return "private records" if self._assumed(what, records, public) else "public records"

    # -----------------------------------------------------------------------------------------------
    # new records

    def _scores(self, X: TableLike) -> tuple[Floats, Floats | None]:
        """(n, outputs) of the model, on rows that are bounded as in training; and the guide's offset."""
        check_is_fitted(self, "privacy_")
        return self._coordinates.scores(self._encoded(X), self._weights, self._trees)


def _health_check(records: FitRecords, public: PublicTable | None, target: Target) -> HealthCheck:
    """Of the target and every column, beside what public rows show."""
    every = None
    if public is not None and public.n:
        every = target_misfits(target, public.y, public.misfits if records.checked else None)
    return HealthCheck.of([records.goal, *records.checked], every)


def _residual_spread(coordinates: Coordinates, y: Array) -> float:
    """The variance of public targets, in squares of the unit of the residuals around a guide; else 0."""
    guide = coordinates.guide
    if guide is None or guide.limits is None or not guide.residual or not len(y):
        return 0.0
    return float(np.var(np.clip(np.asarray(y, dtype=np.float64), *guide.limits) / guide.residual))
