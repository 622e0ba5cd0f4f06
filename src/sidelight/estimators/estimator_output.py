"""What a fitted estimator gives besides predictions: a folder, a report, effects, a line of text, a box."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self, cast

import numpy as np
from sklearn.utils import estimator_html_repr
from sklearn.utils.validation import check_is_fitted

from sidelight.arrays import Array, Floats, Json, TableLike
from sidelight.data.coordinates import Coordinates
from sidelight.data.features import FeaturePlan
from sidelight.data.leaves import LeafModel
from sidelight.data.schema import Column, Schema, TaskName
from sidelight.data.targets import Target
from sidelight.errors import InputError
from sidelight.estimators.frame_schemas import table_facts, target_column, target_name
from sidelight.methods.declare import DECLARATIONS
from sidelight.privacy.statement import PrivacyStatement
from sidelight.report.effects import Effects, Model, effects_of, sample_rows

if TYPE_CHECKING:
    from sidelight.estimators.model_folder import Facts, StoredModel
    from sidelight.report import Card
    from sidelight.report.card import HasDict


class EstimatorOutput:
    """`save`, `load`, `report` and the display of an estimator."""

    _task_name: ClassVar[TaskName] = "classification"

    privacy_: PrivacyStatement
    history_: list[Json]
    schema_: Schema | None
    n_features_in_: int
    coef_: Floats
    intercept_: Floats | float
    _coordinates: Coordinates
    _weights: Floats
    _trees: LeafModel | None = None
    _fitted_target: Target
    _stored: StoredModel | None = None  # what a loaded model was made from
    _public_sample: TableLike | None = None  # for effects
    _report: str = ""  # where it was written last, for a notebook

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
        `facts` are declared for the report: a mapping, or a TOML file (`report.facts`).
        """
        from sidelight.estimators.model_folder import save

        save(self.to_stored(), folder, overwrite=overwrite, facts=facts)

    @classmethod
    def load(cls, folder: str | os.PathLike[str], *, trusted: Sequence[str] = ()) -> Self:
        """The estimator in a folder that `save` or `sidelight fit` wrote.

        trusted: types in the folder's `public_model` that are not scikit-learn's, if you trust its writer.
        """
        from sidelight.estimators.model_folder import load

        stored = load(folder, trusted=trusted)
        if stored.schema.target.task != cls._task_name:
            other = "PrivateRegressor" if cls._task_name == "classification" else "PrivateClassifier"
            raise InputError(f"{folder} holds a {stored.schema.target.task}: {other}.load opens it")
        return cls.from_stored(stored)

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
            title: the name of this model for readers.
            scores: of public records, as `sidelight.report.Card` has them.
            comparison: scores of methods over ε, for a chart.
            audits: results of `sidelight.audit`.
            facts: declared facts, or a TOML file of them (`report.facts`).
        """
        from sidelight.estimators.model_folder import with_facts
        from sidelight.report import write_report

        card = with_facts(self._card(title, scores=scores, comparison=comparison, audits=audits), facts)
        write_report(card, path)
        self._report = os.fspath(path)
        return card

    def effects(self, X_public: TableLike | None = None) -> Effects:
        """What each column does: the mean prediction by its value, the largest effects first.

        The released model predicts public rows: no private record is read. A notebook draws the result.

        Args:
            X_public: PUBLIC rows to average over, since the result reveals them. None uses some of those
                given to `fit`; for a loaded model, its saved effects.
        """
        check_is_fitted(self, "privacy_")
        if X_public is None and self._stored is not None:
            return Effects.from_dict(self._stored.card.effects)
        rows = self._public_sample if X_public is None else sample_rows(X_public)
        return effects_of(cast(Model, self), rows)

    # -----------------------------------------------------------------------------------------------
    # to a folder and back

    def _card(self, title: str = "", *, data: Mapping[str, object] | None = None, **given: Any) -> Card:
        """Of a loaded model, the card that it was saved with, and what is given besides."""
        from sidelight.report import card_of

        check_is_fitted(self, "privacy_")
        if self._stored is not None:
            new = {name: value for name, value in given.items() if value}
            made = card_of(self, **new)
            kept = {name: getattr(made, name) for name in new} | ({"title": title} if title else {})
            return replace(self._stored.card, **kept)
        schema: Schema | None = getattr(self, "schema_", None)
        if data is None and schema is not None:
            data = table_facts(schema, self.privacy_.details)
        named = title or ("" if schema is None else f"A model that predicts {schema.target.name!r}")
        with suppress(Exception):  # a charged fit is stored even if its figures fail
            given["effects"] = self.effects()
        return card_of(self, title=named, data=data, **given)

    def to_stored(
        self, *, data: Mapping[str, object] | None = None, scores: Mapping[str, object] | None = None
    ) -> StoredModel:
        """What a folder of this model holds; of a loaded model what its folder held.

        data, scores: for a reader; None takes what the model itself knows.
        """
        from sidelight.estimators.model_folder import StoredModel

        check_is_fitted(self, "privacy_")
        if self._stored is not None:
            return self._stored
        card = self._card(data=data, scores=scores)
        known: Schema | None = getattr(self, "schema_", None)
        schema = self.schema_of_numbers() if known is None else known
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

    def schema_of_numbers(self) -> Schema:
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
    def from_stored(cls, stored: StoredModel) -> Self:
        """The estimator that wrote a folder, with the settings stored there."""
        from sidelight.estimators.model_folder import statement_of

        statement = statement_of(stored.card)
        model = cls(**_settings(statement), **cls._described(stored))
        model.privacy_, model.history_ = statement, list(stored.card.history)
        model.schema_ = None if stored.numbers else stored.schema
        model.n_features_in_ = len(stored.schema.columns)
        if stored.numbers != "unnamed":
            model.feature_names_in_ = np.array(list(stored.schema.columns), dtype=object)  # type: ignore[attr-defined]
        model._trees = stored.trees
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
        from sidelight.report.notebook import budget_line

        parameters: str = super().__repr__(N_CHAR_MAX)  # type: ignore[call-arg]
        return f"{parameters} {budget_line(self._budget())}"

    def _repr_html_(self) -> str:
        from sidelight.report.notebook import budget_box

        diagram: str = estimator_html_repr(self)
        statement = getattr(self, "privacy_", None)
        return budget_box(type(self).__name__, self._budget(), statement, self._report) + diagram

    def _repr_mimebundle_(self, **_: object) -> dict[str, str]:
        return {"text/plain": repr(self), "text/html": self._repr_html_()}

    def _budget(self) -> dict[str, str]:
        from sidelight.report.notebook import budget_words

        given = {name: getattr(self, name, None) for name in ("epsilon", "delta", "relation", "method")}
        given["method"] = getattr(given["method"], "name", given["method"])
        return budget_words(getattr(self, "privacy_", None), **given)


def _settings(statement: PrivacyStatement) -> Json:
    """The budget and the method, where they are what a user could have asked for."""
    epsilon = statement.details.get("epsilon_requested", statement.epsilon)
    asked = isinstance(epsilon, int | float) and 0 < epsilon < math.inf
    return {
        "epsilon": epsilon if asked else 1.0,
        "delta": statement.delta,
        "relation": statement.relation,
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
