"""What the two estimators share: checks, the flow of `fit`, and what they give besides predictions.

That is a folder, a report, a line of text and a box in a notebook.
"""

from __future__ import annotations

import math
import os
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self, cast

import numpy as np
import scipy.sparse as sp
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator
from sklearn.utils import estimator_html_repr
from sklearn.utils._param_validation import HasMethods, Interval, InvalidParameterError, StrOptions
from sklearn.utils.validation import _check_feature_names, check_is_fitted, validate_data

from sidelight.arrays import Array, Floats, Json, Mask, Matrix, TableLike, dense, is_sparse
from sidelight.data.coordinates import (
    MOST_CHECKED,
    Bounds,
    Coordinates,
    range_of_private_rows,
    resolve_bounds,
    symmetric,
)
from sidelight.data.features import FeaturePlan
from sidelight.data.frames import as_pandas, is_frame, names_of, without_column
from sidelight.data.guide import GuideColumns
from sidelight.data.infer_schema import with_interactions
from sidelight.data.inputs import (
    ENCODE,
    check_same_columns,
    check_table,
    check_targets,
    private_table,
    private_targets,
    read_off,
)
from sidelight.data.leaves import ColumnGroup, LeafModel
from sidelight.data.own_model import OwnModel, RawColumn
from sidelight.data.private_tables import open_private
from sidelight.data.rows import Persons, PrivateRows, PublicRows, UnreadRows, persons_of, private_names
from sidelight.data.schema import Column, Schema, TargetColumn, text_types
from sidelight.data.schema import Task as TaskName
from sidelight.data.targets import Classes, Target, target_misfits
from sidelight.errors import InputError
from sidelight.estimator_records import (
    DECLARED,
    PASS_A_SCHEMA,
    ArrayRecords,
    FitRecords,
    SchemaRecords,
    Table,
    TableOrigin,
    check_frame,
    encode_frame,
    encoders_assumed,
    frame_schema,
    labeled_rows,
    own_model,
    persons_in,
    public_frame,
    read_schema,
    refuse_transformed_target,
    remember_records,
    some_persons,
    table_facts,
    target_column,
    target_name,
    warn_of_surroundings,
    with_target,
)
from sidelight.methods.auto import Auto
from sidelight.methods.declare import DECLARATIONS, as_method
from sidelight.methods.health_check import OFF, HealthCheck, WithHealthCheck
from sidelight.methods.leaf_boosting import WithLeaves
from sidelight.methods.own_guide import own_guide, own_weights
from sidelight.methods.paid_comparison import PaidComparison
from sidelight.methods.public_models import Guided, fit_guide
from sidelight.methods.task import PUBLIC_APART, Fitted, Method, NestedMethod, Task, fit_charged
from sidelight.privacy.contract import Payer, delta_of, open_payer, relation_of
from sidelight.privacy.events import RELATIONS
from sidelight.privacy.ledger import Ledger
from sidelight.privacy.noise import Noise
from sidelight.privacy.observer import Observer, check_observers
from sidelight.privacy.statement import PrivacyStatement
from sidelight.report.effects import Effects, effects_of, sample_rows

if TYPE_CHECKING:
    import pandas as pd
    from scipy.sparse import csr_array
    from sklearn.utils import Tags

    from sidelight.data.frames import Frame
    from sidelight.model_folder import Facts, StoredModel
    from sidelight.report import Card
    from sidelight.report.card import HasDict

__all__ = ["EstimatorOutput", "PrivateLinear", "labels_in"]


class EstimatorOutput:
    """`save`, `load`, `report` and how an estimator is shown; for `PrivateLinear`."""

    _task_name: ClassVar[TaskName] = "classification"

    privacy_: PrivacyStatement
    history_: list[Json]
    schema_: Schema | None
    n_features_in_: int
    _coordinates: Coordinates
    _weights: Floats
    _trees: LeafModel | None = None
    _fitted_target: Target
    _stored: StoredModel | None = None  # what a loaded model was made from
    _public_sample: TableLike | None = None  # for effects

    @property
    def features_(self) -> list[str]:
        """The columns that coef_ is for: those of X, or what its schema makes of them."""
        check_is_fitted(self, "privacy_")
        if (schema := getattr(self, "schema_", None)) is not None:
            return FeaturePlan(schema).names
        names = getattr(self, "feature_names_in_", None)
        return [f"x{i}" for i in range(self.n_features_in_)] if names is None else list(names)

    def save(
        self, folder: str | os.PathLike[str], *, overwrite: bool = False, facts: Facts | None = None
    ) -> None:
        """Write model.json, weights.safetensors, privacy.json and report.html, all or nothing.

        It is the folder that `sidelight fit` writes: `sidelight predict` and `sidelight report` open it, and
        `load` makes an estimator of it again. Only a folder of a model is replaced, and only on request.
        `facts` are what somebody declares for the report, or a TOML file of it (`report.review`).
        """
        from sidelight.model_folder import save

        save(self._to_store(), folder, overwrite=overwrite, facts=facts)

    @classmethod
    def load(cls, folder: str | os.PathLike[str], *, trusted: Sequence[str] = ()) -> Self:
        """The estimator in a folder that `save` or `sidelight fit` wrote.

        trusted: types in the folder's `public_model` that are not scikit-learn's, if you trust its writer.
        """
        from sidelight.model_folder import load

        stored = load(folder, trusted=trusted)
        if stored.schema.target.task != cls._task_name:
            other = "PrivateRegressor" if cls._task_name == "classification" else "PrivateClassifier"
            raise InputError(f"{folder} holds a {stored.schema.target.task}: {other}.load opens it")
        return cls._restored(stored)

    def report(
        self,
        path: str | os.PathLike[str],
        *,
        title: str = "",
        scores: Mapping[str, object] | None = None,
        comparison: Iterable[Mapping[str, object]] = (),
        audits: Iterable[Mapping[str, object] | HasDict] = (),
        facts: Facts | None = None,
    ) -> Card:
        """Write the privacy report of this fit as one HTML file, and return its card.

        Args:
            title: what a person calls this model.
            scores: of public records, as `sidelight.report.Card` has them.
            comparison: scores of methods over ε, for a chart.
            audits: results of `sidelight.audit`.
            facts: what somebody declares, or a TOML file of it (`report.review`).
        """
        from sidelight.model_folder import with_facts
        from sidelight.report import write_report

        card = self._card(title=title, scores=scores, comparison=comparison, audits=audits)
        card = with_facts(card, facts)
        write_report(card, path)
        return card

    def effects(self, X_public: TableLike | None = None) -> Effects:
        """What each column does: the mean prediction by its value, the largest effects first.

        It asks the released model about public rows: no private record is read. A notebook draws the result.

        Args:
            X_public: rows to average over, which are PUBLIC: what is drawn tells about them. None takes some
                of those given to `fit`; of a loaded model, the effects that it was saved with.
        """
        check_is_fitted(self, "privacy_")
        if X_public is None and self._stored is not None:
            return Effects.from_dict(self._stored.card.effects)
        rows = self._public_sample if X_public is None else sample_rows(X_public)
        return effects_of(cast("PrivateLinear", self), rows)

    # -----------------------------------------------------------------------------------------------
    # to a folder and back

    def _card(
        self,
        *,
        title: str = "",
        data: Mapping[str, object] | None = None,
        scores: Mapping[str, object] | None = None,
        comparison: Iterable[Mapping[str, object]] = (),
        audits: Iterable[Mapping[str, object] | HasDict] = (),
    ) -> Card:
        """Of a loaded model, the card that it was saved with, and what is given besides."""
        from sidelight.report import card_of

        check_is_fitted(self, "privacy_")
        schema: Schema | None = getattr(self, "schema_", None)
        if data is None and schema is not None:
            data = table_facts(schema, self.privacy_.details)
        named = title or ("" if schema is None else f"A model of {schema.target.name}")
        given: Json = {"scores": scores, "comparison": comparison, "audits": audits}
        if self._stored is None:
            with suppress(Exception):  # a fit that was charged for is stored, whatever happens to its figures
                given["effects"] = self.effects()
        made = card_of(self, title=named, data=data, **given)
        if self._stored is None:
            return made
        kept = self._stored.card
        return replace(
            kept,
            title=title or kept.title,
            scores=kept.scores if scores is None else made.scores,
            comparison=made.comparison or kept.comparison,
            audits=made.audits or kept.audits,
        )

    def _to_store(
        self, *, data: Mapping[str, object] | None = None, scores: Mapping[str, object] | None = None
    ) -> StoredModel:
        from sidelight.model_folder import StoredModel

        check_is_fitted(self, "privacy_")
        if self._stored is not None:
            return self._stored
        card = self._card(data=data, scores=scores)
        known: Schema | None = getattr(self, "schema_", None)
        schema = self._schema_of_numbers() if known is None else known
        _check_labels(schema)
        named: Literal["named", "unnamed"] = "named" if hasattr(self, "feature_names_in_") else "unnamed"
        return StoredModel(
            schema=schema,
            coordinates=self._coordinates,
            weights=self._weights,
            trees=self._trees,
            card=card,
            numbers=named if known is None else None,
            truths=getattr(self, "classes_", np.empty(0)).dtype == bool,
            loss=getattr(self, "loss", None),
            probability_scale=getattr(self, "probability_scale_", None),
            class_weights=getattr(self, "class_weights_", None),
            intervals=getattr(self, "intervals_", None),
            data={**card.data, "columns_from": schema.source},
            scores=card.scores,
        )

    def _schema_of_numbers(self) -> Schema:
        """The schema of an array: every feature is a number within its bounds."""
        bounds, details = self._coordinates.bounds, self.privacy_.details
        ends = zip(bounds.lower.tolist(), bounds.upper.tolist(), strict=True)
        columns = {
            str(name): Column("number", (low, high))
            for name, (low, high) in zip(self.features_, ends, strict=True)
        }
        target = target_column(target_name(None, list(columns)), self._fitted_target)
        return Schema(target, columns, str(details.get("bounds_from", "declared")))

    @classmethod
    def _restored(cls, stored: StoredModel) -> Self:
        """The estimator that a folder was written by, with the settings that the folder knows."""
        from sidelight.model_folder import statement_of

        statement = statement_of(stored.card)
        model = cls(**_settings(statement), **cls._described(stored))
        model.privacy_, model.history_ = statement, list(stored.card.history)
        model.schema_ = None if stored.numbers else stored.schema
        model.n_features_in_ = len(stored.schema.columns)
        if stored.numbers != "unnamed":
            model.feature_names_in_ = np.array(list(stored.schema.columns), dtype=object)  # type: ignore[attr-defined]
        model._restore(stored)
        model._stored = stored
        return model

    @classmethod
    def _described(cls, stored: StoredModel) -> Json:
        """Parameters for `cls` that a folder tells of."""
        coordinates = stored.coordinates
        how: Json = {"bounds": coordinates.bounds} if stored.numbers else {"schema": stored.schema}
        if coordinates.own is not None:
            how["public_model"] = coordinates.own.estimator
        return how | {
            "loss": stored.loss,
            "max_norm": coordinates.max_norm,
            "fit_intercept": coordinates.fit_intercept,
        }

    def _restore(self, stored: StoredModel) -> None:
        """Weights, target and what else a fit leaves behind."""
        raise NotImplementedError

    # -----------------------------------------------------------------------------------------------
    # how it is shown

    def __repr__(self, N_CHAR_MAX: int = 700) -> str:
        from sidelight.report.guarantee import budget_line

        parameters: str = super().__repr__(N_CHAR_MAX)  # type: ignore[call-arg]
        return f"{parameters} {budget_line(self._budget())}"

    def _repr_html_(self) -> str:
        from sidelight.report.guarantee import budget_box

        diagram: str = estimator_html_repr(self)
        return budget_box(type(self).__name__, self._budget()) + diagram

    def _repr_mimebundle_(self, **_: object) -> dict[str, str]:
        return {"text/plain": repr(self), "text/html": self._repr_html_()}

    def _budget(self) -> dict[str, str]:
        from sidelight.report.guarantee import budget_words

        given = {name: getattr(self, name, None) for name in ("epsilon", "delta", "relation", "method")}
        given["method"] = getattr(given["method"], "name", given["method"])
        return budget_words(getattr(self, "privacy_", None), **given)


def _settings(statement: PrivacyStatement) -> Json:
    """The budget and the method, where they are what a user could have asked for."""
    epsilon = statement.details.get("epsilon_requested", statement.epsilon)
    asked = isinstance(epsilon, int | float) and 0 < epsilon < math.inf
    return {
        "delta": statement.delta,
        "relation": statement.relation,
        **({"epsilon": epsilon} if asked else {}),
        **({"method": statement.method} if statement.method in DECLARATIONS else {}),
    }


def _check_labels(schema: Schema) -> None:
    labels = schema.target.classes
    if not (
        all(isinstance(one, str) for one in labels) or all(isinstance(one, int | float) for one in labels)
    ):
        raise InputError("to be stored, classes must be texts, numbers or booleans")
    if len(set(labels)) < len(labels):
        raise InputError("two classes have the same text, so they cannot be stored")


def labels_in(stored: StoredModel) -> Array:
    """The classes of a stored model."""
    return np.array([False, True]) if stored.truths else np.unique(np.asarray(stored.schema.target.classes))


# ---------------------------------------------------------------------------------------------------
# what the two estimators share


_FLOATS = [np.float64, np.float32]


class PrivateLinear(NestedMethod, EstimatorOutput, BaseEstimator):  # type: ignore[misc]
    """A linear model under (ε, δ). See `PrivateClassifier` and `PrivateRegressor`."""

    _parameter_constraints: ClassVar[Json] = {
        "method": [str, HasMethods(["plan", "run"])],
        "epsilon": [Interval(Real, 0, None, closed="neither")],
        "delta": [None, Interval(Real, 0, 1, closed="neither")],
        "relation": [None, StrOptions(set(RELATIONS))],
        "bounds": [None, tuple, list, np.ndarray, Bounds],
        "centre": [None, StrOptions({"middle", "zero", "mean"})],
        "schema": [None, Schema, str, os.PathLike],
        "text": [None, str, tuple, list, Mapping],
        "max_norm": [Interval(Real, 0, None, closed="neither")],
        "regularization": [Interval(Real, 0, None, closed="left")],
        "fit_intercept": ["boolean"],
        "public_model": [None, StrOptions({"auto", "fit"}), HasMethods(["predict"])],
        "compare_with_public": ["boolean"],
        "trees": ["boolean"],
        "assume_public": [tuple, list],
        "unit": [str],
        "health_check": ["boolean"],
        "ledger": [None, str, os.PathLike, Ledger],
        "dataset": [None, str],
        "random_state": [None, Interval(Integral, 0, None, closed="left")],
    }
    _may_assume: ClassVar[tuple[str, ...]] = ()
    _real_targets: ClassVar[bool] = False

    # What a fit leaves behind, besides what is declared above.
    coef_: Floats
    intercept_: Floats | float

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
            X: (n, p) private features: an array or a sparse matrix of real numbers, taken as they are; or a
                frame of pandas or polars, whose columns are read as X_public shows them, or `schema` says.
            y: (n,) private targets.
            X_public: public features with the columns of X; in the same order, if they are numbers.
            y_public: public targets; None, or missing ones, for rows without. Those still give bounds, knots
                and second moments; public models, trees and the paid comparison need targets.
            persons: (n,) whose each row is, where a person has several: the guarantee is then for all of
                them. A frame names them by a column instead: `unit`.
            observers: are notified of the charge, of every step and of the statement (`sidelight.observers`).
        """
        refuse_transformed_target(y_public)
        around = warn_of_surroundings()
        self._check_parameters()
        origin = TableOrigin(observers=check_observers(observers))
        self._check_given(y, X_public, y_public)
        given, whose = X, self._persons(X, persons)
        if self.unit != "record":
            X, X_public = without_column(X, self.unit), without_column(X_public, self.unit)
        declared = read_schema(self.schema, self._task_name)
        blank = TargetColumn(target_name(y, []), self._task_name)
        bounded = self.bounds is not None or self.centre is not None
        schema = frame_schema(X, X_public, declared, blank, text_types(self.text), bounded=bounded)
        records: FitRecords
        if schema is None:
            records, public = self._array_records(X, y, X_public, y_public)
        else:
            records, public = self._frame_records(X, y, X_public, y_public, schema, whose)
        rows = records.n
        if whose is not None:
            whose.check(rows)
        self._fit_records(replace(records, persons=whose), public, origin=origin, around=around)
        self._public_sample = sample_rows(X_public)
        remember_records(self, given, rows if whose is None else None)
        n_columns = self._coordinates.bounds.features if schema is None else len(cast("Frame", X).columns)
        self.n_features_in_ = n_columns
        _check_feature_names(self, X, reset=True)
        return self

    def _fit_records(
        self, records: FitRecords, public: Table | None, *, origin: TableOrigin | None = None,
        around: tuple[str, ...] = (),
    ) -> tuple[Task, GuideColumns | None]:  # fmt: skip
        """Plan, charge, read, run: what `fit` and `fit_tables` have in common.

        Returns the task, whose private records are unread, and what the guide says of the public rows.
        """
        origin = origin or TableOrigin()
        payer = open_payer(self.ledger, self.dataset)
        if payer is not None:
            payer = replace(payer, identity=records.identity())
        target = self._target(records, public)
        coordinates = self._resolve_coordinates(records, public)
        plain = public
        if isinstance(records, ArrayRecords) and records.own is not None and public is not None:
            more = None if public.unlabeled is None else _with_own(records.own, public.unlabeled)
            public = replace(public, X=_with_own(records.own, public.X), unlabeled=more)
        guided = self._guided(records, public, target, coordinates)
        if guided is not None:
            coordinates = replace(coordinates, guide=guided.guide)
        said = None if guided is None else guided.public
        method = self._beyond_lines(self._prepared(self._configured()), records, coordinates)
        method = self._compared(method)
        if self.health_check:
            method = WithHealthCheck(method, self._health_check(records, plain, target, coordinates))
        task = self._task(method, records, public, target, coordinates, payer, said)

        def read() -> PrivateRows:
            if isinstance(records, SchemaRecords) and holder is not None:
                rows = records.read_blocks(holder, target, coordinates, origin.observers)
                stack.callback(rows.blocks.close)
                return rows
            table = records.read(room=coordinates.p)
            misfits = table.misfits
            if self.health_check and isinstance(records, ArrayRecords):
                misfits = coordinates.misfits(table.X)
            X = table.X
            if isinstance(records, ArrayRecords) and records.own is not None:
                X = _with_own(records.own, X)
            return coordinates.of_target(X, table.y, target, records.persons, misfits, in_place=table.ours)

        holder = None
        with ExitStack() as stack, np.errstate(all="ignore"):  # NumPy's word on a private value is an output
            if isinstance(records, SchemaRecords) and records.placed is not None:
                holder = stack.enter_context(records.placed.started(records.table.files))
            fitted, self.privacy_ = fit_charged(
                method,
                task,
                read=read,
                payer=payer,
                noise=Noise(self.random_state),
                assumptions=(*self._assumptions(records, public), *around, *origin.assumptions),
                details=self._details(records, public, coordinates),
                observers=origin.observers,
            )
        self.history_ = fitted.history
        self.schema_ = None if records.schema is None else with_target(records.schema, target)
        self._stored = None
        self._fitted_target = target
        self._learned(fitted)
        self._trees = fitted.leaves
        self._keep(fitted.coef, coordinates, target)
        return task, said

    def _health_check(
        self, records: FitRecords, public: Table | None, target: Target, coordinates: Coordinates
    ) -> HealthCheck:
        """Of the target and every column, beside what public rows show."""
        names, misfits = list[str](), None if public is None else public.misfits
        if isinstance(records, ArrayRecords):
            goal = target_name(records.targets, records.names)
            if not records.sparse and len(records.names) <= MOST_CHECKED:
                names, misfits = records.names, None if public is None else coordinates.misfits(public.X)
        else:
            schema = cast(Schema, records.schema)
            goal, names = schema.target.name, list(schema.used)
        every = None if public is None or not public.n else target_misfits(target, public.y, misfits)
        return HealthCheck.of([goal, *names], every)

    def _guided(
        self, records: FitRecords, public: Table | None, target: Target, coordinates: Coordinates
    ) -> Guided | None:
        """Models of the public rows that guide the fit, where it is asked for; and the user's own."""
        if records.own is not None:
            return self._guided_by(records.own, records.schema, public, target, coordinates)
        wanted = isinstance(self._configured(), Auto) if self.public_model == "auto" else True
        if self.public_model is None or not wanted or public is None or not public.n or is_sparse(public.X):
            return None
        bounds = coordinates.bounds
        target.encode_public(public.y)  # each must be usable
        y = target.index(public.y) if isinstance(target, Classes) else public.y
        edges = None if records.schema is None else FeaturePlan(records.schema).whole_numbers()
        return fit_guide(
            dense(public.X), y, lower=bounds.lower, upper=bounds.upper, limits=target.limits, edges=edges
        )

    def _guided_by(
        self,
        own: OwnModel,
        schema: Schema | None,
        public: Table | None,
        target: Target,
        coordinates: Coordinates,
    ) -> Guided:
        """By an estimator of the user's; public rows may be missing."""
        bounds = coordinates.bounds
        X, y = np.zeros((0, bounds.features + own.outputs)), np.zeros(0)
        if public is not None and public.n:
            target.encode_public(public.y)  # each must be usable
            X, y = dense(public.X), target.index(public.y) if isinstance(target, Classes) else public.y
        return own_guide(
            own, X, y, lower=bounds.lower, upper=bounds.upper, limits=target.limits,
            labels=target.labels if isinstance(target, Classes) else None,
            edges=None if schema is None else FeaturePlan(schema).whole_numbers(),
        )  # fmt: skip

    def _beyond_lines(self, method: Method, records: FitRecords, coordinates: Coordinates) -> Method:
        """`auto` with trees on top of its line, unless that is off."""
        if not isinstance(self._configured(), Auto) or not self.trees:
            return method
        features, guide = coordinates.bounds.features, coordinates.guide
        own = (
            tuple(ColumnGroup((column,)) for column in range(features))
            if records.schema is None
            else FeaturePlan(records.schema).groups()
        )
        said = range(features, features + (0 if guide is None else guide.size))
        groups = (*own, *(ColumnGroup((column,)) for column in said))
        return WithLeaves(method, groups=groups, intercept=coordinates.fit_intercept)

    def _compared(self, method: Method) -> Method:
        """The method; `auto` is compared with public rows alone on private records, unless that is off."""
        wanted = self.compare_with_public and isinstance(self._configured(), Auto)
        return PaidComparison(method) if wanted else method

    def _prepared(self, method: Method) -> Method:
        """The method as it is run."""
        return method

    def _learned(self, fitted: Fitted) -> None:
        """Store what a fit gives besides its weights."""

    @abstractmethod
    def _target(self, records: FitRecords, public: Table | None) -> Target:
        """What is predicted, from declarations, a schema and public targets."""

    @abstractmethod
    def _keep(self, weights: Floats, coordinates: Coordinates, target: Any) -> None:
        """Store the model; `target` is what `_target` returned."""

    @abstractmethod
    def predict(self, X: TableLike) -> Array:
        """The label or the number of every row."""

    def _persons(self, X: TableLike, given: ArrayLike | None) -> Persons | None:
        """Whose each row is; None where the unit is a record."""
        if given is not None:
            unit = "person" if self.unit == "record" else self.unit
            return some_persons(persons_of(private_names(given), unit=unit))
        if self.unit == "record":
            return None
        if not is_frame(X) or self.unit not in names_of(X, "X"):
            raise InputError(
                f"unit={self.unit!r} is a column of X that names persons, but X has no such column; pass "
                "a frame that has it, or fit(..., persons=names)"
            )
        return persons_in(open_private(X, "X"), self.unit)

    def _check_parameters(self) -> None:
        as_method(self.method)
        try:
            self._validate_params()
        except InvalidParameterError as error:
            raise InputError(str(error)) from None
        if unknown := [name for name in self.assume_public if name not in self._may_assume]:
            raise InputError(f"assume_public may hold {', '.join(self._may_assume)}; not {unknown[0]!r}")

    # -----------------------------------------------------------------------------------------------
    # data

    def _check_given(self, y: object, X_public: object, y_public: object) -> None:
        if y is None:
            name = type(self).__name__
            raise InputError(f"{name} requires y to be passed, but the target y is None")
        if X_public is None and y_public is not None:
            raise InputError("y_public are the targets of X_public, which is missing; pass both")

    def _array_records(
        self, X: TableLike, y: ArrayLike, X_public: TableLike | None, y_public: ArrayLike | None
    ) -> tuple[ArrayRecords, Table | None]:
        """Rows of numbers, and the public ones in the format of the private."""
        matrix = self._validated(
            private_table(X, advice=PASS_A_SCHEMA if is_frame(X) else ENCODE), reset=True
        )
        targets = private_targets(y, rows=matrix.shape[0], real=self._real_targets)
        private = ArrayRecords(Table(matrix, targets), X, y)
        if X_public is None:
            return self._asking(private, None), None
        table = check_table(_as_pandas(X_public), name="X_public")
        check_same_columns(X if is_frame(X) else matrix, table)
        records = _as_floats(table, like=matrix)
        if not np.isfinite(records.data if is_sparse(records) else records).all():
            raise InputError(
                "X_public must be finite; remove or fill the missing values, or pass X and X_public as "
                "frames, where a missing value has a weight of its own"
            )
        return self._asking(private, records), self._public_table(records, y_public)

    def _asking(self, records: ArrayRecords, public: Matrix | None) -> ArrayRecords:
        """The same records, about which the user's estimator is asked, if there is one; it is tried here."""
        if self.public_model is None or isinstance(self.public_model, str):
            return records
        if records.sparse:
            raise InputError("public_model is asked about dense rows; pass X.toarray(), or public_model=None")
        named = tuple(records.names) if is_frame(records.given) else ()
        wanted = [str(name) for name in getattr(self.public_model, "feature_names_in_", named)]
        columns = tuple(RawColumn(name, "number") for name in wanted) if named else None
        own = OwnModel(self.public_model, self._task_name, columns, named)
        own.check_names(named, "X")
        if public is None:
            bounds = self._bounds_of_numbers(records, None)
            shape = (_PROBES, bounds.features)
            public = np.random.default_rng(0).uniform(bounds.lower, bounds.upper, shape)  # of public bounds
        return replace(records, own=own.check(own.matrix(dense(public))))

    def _frame_records(
        self,
        X: TableLike,
        y: ArrayLike,
        X_public: TableLike | None,
        y_public: ArrayLike | None,
        schema: Schema,
        whose: Persons | None,
    ) -> tuple[SchemaRecords, Table | None]:
        """Rows of a frame with columns of all types, through a schema, whose products are chosen here."""
        if self.bounds is not None or self.centre is not None:
            raise InputError(
                "a frame that is read by a schema has its bounds there: leave out bounds and centre"
            )
        table = open_private(cast("Frame", X), "X")
        if not schema.target.classes and schema.target.bounds is None:
            schema = replace(schema, target=replace(schema.target, name=target_name(y, table.names)))
        check_frame(schema, table)
        targets = private_targets(y, rows=len(table), real=self._real_targets)
        frame = None if X_public is None else public_frame(schema, X_public)
        labels, labeled = self._public_targets(0 if frame is None else len(frame), y_public)
        method = self._configured()
        payer = open_payer(self.ledger, self.dataset)
        n = len(table) if whose is None else whose.count
        schema = with_interactions(
            schema, None if frame is None else frame[labeled], labels[labeled],
            method=method.name, n=n, epsilon=float(self.epsilon),
            delta=delta_of(self.delta, n, payer), relation=relation_of(method, self.relation, payer),
            unlabeled=int((~labeled).sum()), classes=self._declared_classes(),
        )  # fmt: skip
        public, own = None, own_model(self.public_model, schema, table.names, frame)
        if frame is not None and len(frame):
            features, misfits = FeaturePlan(schema, own).encode_checked(frame)
            public = Table(features.astype(np.float64), labels, misfits).apart(labeled)
        return SchemaRecords(schema, table, targets, (X, y), own=own), public

    def _public_table(self, records: Matrix, y_public: ArrayLike | None) -> Table | None:
        """Checked features with their targets; None if there are none."""
        targets, labeled = self._public_targets(int(records.shape[0]), y_public)
        return Table(records, targets).apart(labeled) if len(targets) else None

    def _public_targets(self, rows: int, y_public: ArrayLike | None) -> tuple[Array, Mask]:
        """One target for every public row, and which of them are there."""
        if y_public is None:
            return np.zeros(rows), np.zeros(rows, dtype=bool)
        targets = check_targets(y_public, rows=rows, of="X_public", name="y_public", real=self._real_targets)
        return targets, labeled_rows(targets)

    def _declared_classes(self) -> int:
        """How many classes the user declares; 0 if none."""
        declared = getattr(self, "classes", None)
        return 0 if declared is None else len(declared)

    def _validated(self, table: Matrix | pd.DataFrame, *, reset: bool) -> Matrix:
        """Float array or CSR. In `fit` values are not looked at; in prediction they must be finite."""
        try:
            checked = validate_data(
                self, table, reset=reset, dtype=_FLOATS, accept_sparse="csr", ensure_all_finite=not reset
            )
        except ValueError as error:
            raise InputError(str(error)) from None
        matrix: Matrix = checked if checked.dtype in _FLOATS else checked.astype(np.float64)
        return matrix

    def _resolve_coordinates(self, records: FitRecords, public: Table | None) -> Coordinates:
        """Bounds that were declared, or learned from public rows; never from private ones, unless assumed."""
        if isinstance(records, ArrayRecords):
            resolved = self._bounds_of_numbers(records, public)
        else:
            resolved = FeaturePlan(cast(Schema, records.schema)).bounds()
        return Coordinates(resolved, float(self.max_norm), bool(self.fit_intercept))

    def _bounds_of_numbers(self, records: ArrayRecords, public: Table | None) -> Bounds:
        bounds, centre, X = _as_pair(self.bounds), self.centre, records.table.X
        if records.sparse:
            if centre not in (None, "zero"):
                raise InputError(f"a sparse X keeps its zeros: centre must be 'zero' or None, not {centre!r}")
            centre = "zero"
        if bounds is None and public is None and "bounds" in self.assume_public:
            bounds = range_of_private_rows(X)
        public_rows = None if public is None else public.every
        resolved = resolve_bounds(bounds, public_rows, features=X.shape[1], centre=centre or "middle")
        return symmetric(resolved) if centre == "zero" else resolved

    def _task(
        self,
        method: Method,
        records: FitRecords,
        public: Table | None,
        target: Target,
        coordinates: Coordinates,
        payer: Payer | None,
        said: GuideColumns | None = None,
    ) -> Task:
        public_rows = PublicRows.empty(coordinates.p)
        if public is not None:
            public_rows = coordinates.public(public.X, public.y, target, said, public.unlabeled)
            given = own_weights(coordinates, target.loss.outputs)
            public_rows = public_rows if given is None else replace(public_rows, given=given)
        return Task(
            rows=UnreadRows(
                records.n,
                coordinates.p,
                max_norm=coordinates.max_norm,
                unit=_unit(records),
                partitioned=records.placed is not None,
            ),
            public=public_rows,
            loss=target.loss,
            epsilon=float(self.epsilon),
            delta=delta_of(self.delta, records.n, payer),
            relation=relation_of(method, self.relation, payer),
            regularization=float(self.regularization),
            target_bound=target.bound,
            residual=said is not None and said.offset is not None,
        )

    def _assumed(self, what: str, records: FitRecords, public: Table | None) -> bool:
        """Is this read off the private records, because the user says that it is no secret?"""
        shown = public is not None and (what == "bounds" or public.n > 0)
        known = getattr(self, what) is not None or records.schema is not None or shown
        return what in self.assume_public and not known

    def _assumptions(self, records: FitRecords, public: Table | None) -> tuple[str, ...]:
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
        for what in self._may_assume:
            if self._assumed(what, records, public):
                lines.append(read_off(what))
        return tuple(lines)

    def _details(self, records: FitRecords, public: Table | None, coordinates: Coordinates) -> Json:
        return {
            "private_records": records.n,
            "public_records": 0 if public is None else public.n,
            **_unlabeled(public),
            "features": int(coordinates.bounds.features),
            "max_norm": coordinates.max_norm,
            "fit_intercept": coordinates.fit_intercept,
            **({} if coordinates.guide is None else {"public_models": dict(coordinates.guide.scores)}),
            **({} if records.own is None else {"public_model": type(records.own.estimator).__name__}),
            **{f"{what}_from": self._source(what, records, public) for what in self._may_assume},
            **({} if self.health_check else {"health_check": OFF}),
        }

    def _source(self, what: str, records: FitRecords, public: Table | None) -> str:
        if getattr(self, what) is not None:
            return "declared"
        if records.schema is not None:
            return records.schema.source
        return "private records" if self._assumed(what, records, public) else "public records"

    def _scores(self, X: TableLike) -> tuple[Floats, Floats | None]:
        """(n, outputs) of the model, on rows that are bounded as in training; and the guide's offset."""
        check_is_fitted(self, "privacy_")
        coordinates: Coordinates = self._coordinates
        return coordinates.scores(self._encoded(X), self._weights, self._trees)

    def _encoded(self, X: TableLike) -> Matrix:
        """New records as numbers, not yet bounded."""
        if (unit := getattr(self, "unit", "record")) != "record":
            X = without_column(X, unit)
        schema: Schema | None = getattr(self, "schema_", None)  # of a model that an earlier version pickled
        own = self._coordinates.own
        if schema is not None:
            return encode_frame(schema, X, own)
        matrix = self._validated(check_table(_as_pandas(X)), reset=False)
        return matrix if own is None else _with_own(own, matrix)

    def __sklearn_clone__(self) -> Self:
        """As scikit-learn does it, with the fitted `public_model` itself and not an unfitted copy of it."""
        copy: Self = super().__sklearn_clone__()
        if hasattr(self, "public_model"):
            copy.public_model = self.public_model
        return copy

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags


_PROBES = 16  # rows within declared bounds that a public_model is tried on, if no row is public


def _with_own(own: OwnModel, X: Matrix) -> Matrix:
    """Rows of numbers, and behind them what the user's estimator says."""
    rows = dense(X)
    return np.hstack([rows, own.of_matrix(rows).astype(rows.dtype)])


def _unlabeled(public: Table | None) -> Json:
    """How many public rows have no target, for the statement."""
    return (
        {}
        if public is None or public.unlabeled is None
        else {"public_records_unlabeled": int(public.unlabeled.shape[0])}
    )


def _unit(records: FitRecords) -> str:
    return "record" if records.persons is None else records.persons.unit


def _as_pair(
    bounds: Bounds | tuple[ArrayLike, ArrayLike] | None,
) -> Bounds | tuple[Floats, Floats] | None:
    """Bounds as they are, or (lower, upper) as float arrays."""
    if bounds is None or isinstance(bounds, Bounds):
        return bounds
    try:
        lower, upper = (np.asarray(side, dtype=np.float64) for side in bounds)
    except (TypeError, ValueError):
        raise InputError(
            "bounds must be a pair (lower, upper), each a number or one for every feature"
        ) from None
    return lower, upper


def _as_pandas(X: TableLike) -> TableLike:
    """A frame of polars as one of pandas; anything else as it is."""
    return as_pandas(X, "X") if is_frame(X) and not hasattr(type(X), "iloc") else X


def _as_floats(table: Array | pd.DataFrame | csr_array, *, like: Matrix) -> Matrix:
    """A checked public table, sparse if the private one is."""
    if is_sparse(table):
        return table.tocsr().astype(np.float64) if is_sparse(like) else table.toarray().astype(np.float64)
    if hasattr(table, "to_numpy"):
        table = table.to_numpy(dtype=np.float64, na_value=np.nan)
    array = np.asarray(table, dtype=np.float64)
    return sp.csr_array(array) if is_sparse(like) else array
