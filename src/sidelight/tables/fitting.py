"""From two tables to a fitted model: read, check, encode, charge, train and score (`public_scores`)."""

from __future__ import annotations

import hashlib
import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from sidelight.arrays import Array, Json, TableLike
from sidelight.data.features import (
    FeaturePlan,
    check_encoders,
    check_public_values,
    encode_target,
    remembered_texts,
)
from sidelight.data.frames import Frame, as_pandas, check_storage, is_frame
from sidelight.data.persons import Persons
from sidelight.data.private_tables import (
    PrivateTable,
    assumed_of,
    of_spark,
    open_private,
    read_public,
    share_a_file,
)
from sidelight.data.record_storage import Engine, RecordStorage, bytes_of, storage_for
from sidelight.data.schema import ENCODED, Column, Schema, TaskName, TextColumns, text_types
from sidelight.data.table_files import TableSource, read_table, stored_types
from sidelight.data.values import as_text, as_truth, pandas
from sidelight.errors import InputError, PrivacyWarning, RelationError
from sidelight.estimators import PrivateClassifier, PrivateRegressor
from sidelight.estimators.fit_records import SchemaRecords, persons_in
from sidelight.estimators.frame_schemas import labeled_rows, own_model, table_facts
from sidelight.estimators.linear import PrivateLinear, PublicPart
from sidelight.estimators.model_folder import PUBLIC, REPORT, Facts, load, save
from sidelight.estimators.sklearn_context import warn_outside_fit
from sidelight.familiar_words import knows_familiar_words
from sidelight.methods.declare import as_method
from sidelight.methods.task import Method
from sidelight.privacy.contract import Payer, open_payer
from sidelight.privacy.events import Relation
from sidelight.privacy.ledger import Ledger
from sidelight.privacy.observer import Observer, check_observers
from sidelight.privacy.statement import PrivacyStatement
from sidelight.report.effects import Effects
from sidelight.tables.public_scores import Split, scores, split

if TYPE_CHECKING:
    import pandas as pd

    from sidelight.report import Card


# ---------------------------------------------------------------------------------------------------
# what it gives


@dataclass(eq=False)
class TableModel:
    """What `fit_tables` returns and a model folder holds.

    Args:
        schema: how tables are read.
        estimator: the fitted PrivateClassifier or PrivateRegressor, which takes frames.
        scores: what is known of the model's quality: see `tables.public_scores.scores`.
        data: rows, columns and sources, for the report.
    """

    schema: Schema
    estimator: PrivateLinear
    scores: Mapping[str, object] = field(default_factory=dict)
    data: Mapping[str, object] = field(default_factory=dict)
    _report: str = field(default="", init=False, repr=False)  # where it was written last, for a notebook

    def _repr_html_(self) -> str:
        """For a notebook: the guarantee, what the budget bought, and a link to the report."""
        from sidelight.report.notebook import budget_box, budget_words

        words = budget_words(self.privacy_, epsilon=None, delta=None, relation=None, method=None)
        return budget_box(f"TableModel of {self.schema.target.name}", words, self.privacy_, self._report)

    @property
    def privacy_(self) -> PrivacyStatement:
        """ε, δ, relation, method, events and assumptions of the fit."""
        return self.estimator.privacy_

    @property
    def history_(self) -> list[Json]:
        return self.estimator.history_

    def predict(self, frame: TableSource) -> Array:
        """The class, or the number, of every record of a frame or of a file."""
        return self.estimator.predict(self._readable(frame))

    def predict_proba(self, frame: TableSource) -> NDArray[np.float64]:
        """(n, classes) probabilities, in the order of `estimator.classes_`."""
        probabilities = getattr(self.estimator, "predict_proba", None)
        if probabilities is None:
            raise InputError(
                "this model has no probabilities: it is a regression, or it was saved with a "
                "loss that had none"
            )
        return np.asarray(probabilities(self._readable(frame)))

    def effects(self, X_public: TableSource | None = None) -> Effects:
        """What each column does, over public rows: see `PrivateClassifier.effects`."""
        return self.estimator.effects(None if X_public is None else self._readable(X_public))

    def predict_interval(self, frame: TableSource, coverage: float = 0.9) -> NDArray[np.float64]:
        """(n, 2): an interval around each predicted number, as `PrivateRegressor.predict_interval` has it."""
        if not isinstance(self.estimator, PrivateRegressor):
            raise InputError("intervals are for numbers, and this model predicts classes; use predict_proba")
        return self.estimator.predict_interval(self._readable(frame), coverage)

    def card(self) -> Card:
        """The privacy card of the fit; of a loaded model, the one that it was saved with."""
        return self.estimator.to_stored(data=self.data, scores=self.scores).card

    def save(
        self, folder: str | os.PathLike[str], *, overwrite: bool = False, facts: Facts | None = None
    ) -> None:
        """Write model.json, weights.safetensors, privacy.json and report.html, all or nothing.

        facts: what somebody declares for the report, or a TOML file of it (`report.facts`).
        """
        stored = self.estimator.to_stored(data=self.data, scores=self.scores)
        save(stored, folder, overwrite=overwrite, facts=facts)
        self._report = os.path.join(folder, REPORT)

    @classmethod
    def load(cls, folder: str | os.PathLike[str], *, trusted: Sequence[str] = ()) -> TableModel:
        """The model in a folder that `save`, or an estimator's `save`, wrote.

        trusted: types in the folder's `public_model` that are not scikit-learn's, if you trust its writer.
        """
        stored = load(folder, trusted=trusted)
        kind = PrivateClassifier if stored.schema.target.task == "classification" else PrivateRegressor
        return cls(stored.schema, kind.from_stored(stored), stored.scores, stored.data)

    def _readable(self, source: TableSource) -> TableLike:
        """A frame with the columns of the model, in which each record of a file is read by itself."""
        frame = source if is_frame(source) else read_table(source, typed=False)
        table = open_private(frame, "the table")
        self.schema.check_needed(table.names, "the table", target=False)
        check_storage(self.schema, stored_types(source), "the table", target=False)
        return frame if self.estimator.schema_ is not None else self._numbers(frame)

    def _numbers(self, frame: Frame) -> TableLike:
        """The columns of a model of plain numbers, in its order; truth values may be words."""
        names = list(self.schema.used)
        read = {name: np.empty(0) for name in names}
        for _, block in open_private(frame).blocks(dict.fromkeys(names, True)):
            read = {name: np.append(read[name], as_truth(block[name])) for name in names}
        columns = pandas().DataFrame(read)
        return columns if hasattr(self.estimator, "feature_names_in_") else columns.to_numpy()


# ---------------------------------------------------------------------------------------------------
# from two tables to a fitted model


@knows_familiar_words
def fit_tables(
    private: TableSource,
    public: TableSource | None = None,
    *,
    target: str | None = None,
    epsilon: float,
    method: str | Method = "auto",
    loss: str | None = None,
    delta: float | None = None,
    relation: Relation | None = None,
    regularization: float = 0.0,
    classes: Sequence[str | float] | None = None,
    target_bounds: tuple[float, float] | None = None,
    class_weight: Mapping[object, float] | Literal["balanced"] | None = None,
    public_model: object = "auto",
    compare_with_public: bool = True,
    trees: bool = True,
    ledger: Ledger | str | os.PathLike[str] | None = None,
    dataset: str | None = None,
    schema: Schema | str | os.PathLike[str] | None = None,
    task: TaskName | None = None,
    ignore: Sequence[str] = (),
    types: Mapping[str, str] | None = None,
    text: TextColumns | None = None,
    image: TextColumns | None = None,
    encoder: str | None = None,
    unit: str = "record",
    health_check: bool = True,
    validation: float | None = None,
    by: str | None = None,
    random_state: int | None = None,
    observers: Sequence[Observer] = (),
    memory: str | int | None = None,
    scratch: str | os.PathLike[str] | None = None,
    engine: Engine = "embedded",
    workers: int | None = None,
    ray_address: str | None = None,
) -> TableModel:
    """A linear model of the target under (ε, δ)-differential privacy for the records of `private`.

    Types, categories, bounds and classes come from `schema`, or else are learned from `public`; never from
    `private`, whose columns and number of rows are public knowledge. A private record without a usable target
    is ignored: it contributes zero to every sum, and nobody learns that there is one. A noisy count says
    whether it is most of them (`health_check`).

    Args:
        private, public: frames of pandas, polars or Spark (which is collected), or paths of CSV, TSV or
            Parquet files, with the same columns in any order. A folder of files, or a pattern such as
            "lake/*.parquet", is one table.
        target: the column to predict; may be left out if `schema` names it. Public rows may lack it, all or
            some: see "Public rows without labels" in docs/tables.md.
        classes, target_bounds: the labels, or (low, high) of a number; None takes those of the public rows.
        method, loss, epsilon, delta, relation, regularization, random_state: as in `PrivateClassifier`. With
            a ledger, delta=None and relation=None take those of the dataset.
        class_weight: as in `PrivateClassifier`; for a classification.
        public_model, compare_with_public, trees: as in `PrivateClassifier`.
        ledger, dataset: who pays.
        schema: a Schema or the path of one.
        task: "classification" or "regression"; None decides by the public target (`data.infer_schema`).
        ignore: columns that are not used.
        types: what columns are, where the public rows do not show it: {"zip": "code", "since": "date"}.
        text: columns that are texts: a name, several, or {name: encoder}; a public encoder makes numbers of
            each (docs/text.md).
        image: columns that are paths of images; their encoder is what `PatchFeatures.save` wrote
            (docs/text.md).
        encoder: of those texts: "minilm", "wordllama", "hashed", or the folder of a transformer; None takes
            the first of these that is installed.
        unit: what the guarantee is for: a "record", or all rows of a person, by the name of the column that
            names persons; it is no feature, and the public table need not have it.
        health_check: as in `PrivateClassifier`: whether a noisy count of ignored records, and of values that
            do not fit by column, is part of the plan.
        validation: the share of public rows that is held out to score the model. None: no row, so that all
            of them take part in the fit (with `by`, a fifth).
        by: a column of the public table; the held-out rows are also scored for each of its values.
        observers: are notified of each stage, of the charge, of releases and of steps.
        memory: what the process may take, as in "2GB". Records that need more are encoded into blocks on
            disk, and methods that read all of them together refuse. None: half of what the machine has free.
        scratch: the folder for that; None takes the system's for temporary files.
        engine: "embedded", or "ray": workers of a cluster of Ray hold the blocks.
        workers, ray_address: of Ray; how many, and of which cluster. None starts one on this machine.
    """
    observers = check_observers(observers)
    payer = open_payer(ledger, dataset)
    _check_relation(relation, payer)
    if delta is None and payer is not None:
        delta = payer.registered.budget.delta
    chosen = as_method(method)
    _notify(observers, "reading the tables")
    _check_different(private, public)
    private, public = of_spark(private), of_spark(public)
    public_frame = None if public is None else public_frame_of(public)
    if by is not None and (public_frame is None or by not in public_frame.columns):
        raise InputError(f"the public table has no column {by!r} to score by")
    if engine == "ray" and not is_frame(private):
        private = os.path.abspath(private)  # workers have folders of their own
    table = open_private(private)
    if not len(table):
        raise InputError("the private table has no records")
    persons = _persons(table, unit)
    unused = tuple(ignore) if persons is None or schema is not None else (*ignore, unit)
    declared = {**(types or {}), **text_types(text, encoder), **text_types(image, encoder, kind="image")}
    schema = _schema(
        schema, public_frame, target, task, unused, declared, also=table.names, classes=classes,
        target_bounds=target_bounds,
    )  # fmt: skip
    _check(schema, chosen, table, public_frame, unit)
    if persons is None:
        _warn_of_a_copy(table, public_frame)
    parts = _split(schema, public_frame, validation, by=by)
    model = _estimator(schema, epsilon, loss, class_weight)
    if classes is not None:
        model.set_params(classes=schema.target.classes)
    if target_bounds is not None:
        model.set_params(target_bounds=schema.target.bounds)
    model.set_params(
        method=chosen, regularization=regularization, random_state=random_state,
        relation=relation, delta=delta, unit=unit, health_check=health_check,
        public_model=public_model, compare_with_public=compare_with_public, trees=trees,
        ledger=None if payer is None else payer.ledger, dataset=None if payer is None else payer.dataset,
    )  # fmt: skip
    model.check_parameters()
    targets = None if parts.fit is None else encode_target(schema, parts.fit[schema.target.name])
    n = len(table) if persons is None else persons.count
    placed = _placed(private, unit, RecordStorage(scratch, engine, workers, ray_address), memory)
    unlabeled = 0 if parts.unlabeled is None else len(parts.unlabeled)
    schema = model.with_products(schema, parts.fit, targets, n=n, unlabeled=unlabeled)
    model.set_params(schema=schema)
    _notify(observers, "planning")
    if engine == "ray" and any(column.kind in ENCODED for column in schema.used.values()):
        raise InputError("Ray workers cannot encode texts or images; use engine='embedded'")
    if placed is not None:
        placed = storage_for(n, FeaturePlan(schema).size + 1, memory=memory, placed=placed)
    assumed = (*assumed_of(private), *(placed.assumptions if placed else ()))
    own = own_model(public_model, schema, [name for name in table.names if name != unit], public_frame)
    with remembered_texts(schema, public_frame):
        records = SchemaRecords(schema, table, persons=persons, placed=placed, own=own)
        part = _train(model, records, parts, targets, assumed, observers)
        _notify(observers, "scoring on public rows")
        data = _data(schema, model, public_frame, parts) | _public_file(public)
        return TableModel(schema, model, scores(model, schema, parts, part, by=by), data)


def _notify(observers: tuple[Observer, ...], stage: str) -> None:
    for observer in observers:
        observer.on_stage(stage)


def _check_different(private: TableSource, public: TableSource | None) -> None:
    """The one mistake that gives everything away: to call the private records public."""
    if private is public or (public is not None and share_a_file(private, public)):
        raise InputError(
            "the private table cannot be its own public table: none of its records would be protected"
        )


def _warn_of_a_copy(private: PrivateTable, public: pd.DataFrame | None) -> None:
    """By the sizes, which are public: to compare records would tell about them."""
    if public is not None and len(public) == len(private):
        warnings.warn(
            "the public table has as many records as the private one: if it is a copy, nothing is protected",
            PrivacyWarning,
            stacklevel=3,
        )


def public_frame_of(source: TableSource) -> pd.DataFrame:
    """The public table as a frame of pandas with texts for names."""
    frame = as_pandas(source, "the public table") if is_frame(source) else read_public(source)
    if not len(frame):
        raise InputError("the public table has no records")
    return frame


def _schema(
    given: Schema | str | os.PathLike[str] | None,
    public: pd.DataFrame | None,
    target: str | None,
    task: TaskName | None,
    ignore: tuple[str, ...],
    types: Mapping[str, str] = MappingProxyType({}),
    *,
    also: Sequence[str] = (),
    classes: Sequence[str | float] | None = None,
    target_bounds: tuple[float, float] | None = None,
) -> Schema:
    """What was given, or what the public rows show. `also` are columns that may be ignored as well."""
    if given is None:
        if public is None:
            raise InputError("without a public table, columns and bounds must be declared: pass a schema")
        if target is None:
            raise InputError("target is missing: say which column to predict")
        extra = [name for name in ignore if name in also and name not in public.columns]
        in_public = tuple(name for name in ignore if name not in extra)
        learned = Schema.learn(
            public, target, task=task, ignore=in_public, types=types, classes=classes,
            target_bounds=target_bounds,
        )  # fmt: skip
        unused = {name: Column("ignore", note="as you asked") for name in extra}
        return replace(learned, columns={**learned.columns, **unused})
    schema = given if isinstance(given, Schema) else Schema.read(given)
    if target is not None and target != schema.target.name:
        raise InputError(f"the target is {target!r}, but the schema's is {schema.target.name!r}")
    if task is not None and task != schema.target.task:
        raise InputError(f"the task is {task}, but the schema says {schema.target.task}")
    if ignore:
        raise InputError('with a schema, declare ignored columns there: "type": "ignore"')
    if types or classes is not None or target_bounds is not None:
        raise InputError("with a schema, types, classes and target_bounds are declared there")
    return schema


def _check(
    schema: Schema, method: Method, private: PrivateTable, public: pd.DataFrame | None, unit: str
) -> None:
    """Everything that would stop the fit later, from names, types and public rows alone."""
    named = [] if unit == "record" else [unit]
    if named and (unit in schema.used or unit == schema.target.name):
        raise InputError(
            f'{unit!r} names persons (unit), so it cannot be a feature: set "type": "ignore" in the schema'
        )
    schema.check_columns([name for name in private.names if name not in named], "the private table")
    check_storage(schema, private.stored, "the private table")
    check_encoders(schema)
    if public is None:
        if method.needs_public:
            raise InputError(f"{method.name} needs public records; pass a public table")
        return
    known = [name for name in public.columns if name not in named]
    schema.check_columns(known, "the public table", target=False)
    check_public_values(schema, public, "the public table")
    if schema.target.name in known:
        _check_target(schema, public[schema.target.name])


def _split(schema: Schema, public: pd.DataFrame | None, share: float | None, *, by: str | None) -> Split:
    """Public rows with a target for the fit and for scores, and those without."""
    if public is None:
        return split(None, share, by=by)
    there = np.zeros(len(public), dtype=bool)
    if schema.target.name in public.columns:
        there = labeled_rows(as_text(public[schema.target.name]))
    parts = split(public[there] if there.any() else None, share, by=by)
    return parts if there.all() else replace(parts, unlabeled=public[~there])


def _check_target(schema: Schema, values: pd.Series) -> None:
    """Each target that is there must be usable."""
    there = labeled_rows(as_text(values))
    encoded = encode_target(schema, values)
    unusable = [label is None for label in encoded] if encoded.dtype == object else ~np.isfinite(encoded)
    bad = np.flatnonzero(there & unusable)
    if bad.size:
        raise InputError(
            f"record {bad[0] + 1} of the public table has no {schema.target.name!r} that the schema knows; "
            "correct or remove it"
        )


def _estimator(
    schema: Schema,
    epsilon: float,
    loss: str | None,
    class_weight: Mapping[object, float] | Literal["balanced"] | None = None,
) -> PrivateLinear:
    if schema.target.task == "classification":
        return PrivateClassifier(epsilon=epsilon, loss=loss, class_weight=class_weight)
    if class_weight is not None:
        raise InputError("class_weight needs a classification target, and this one is numeric")
    return PrivateRegressor(epsilon=epsilon, loss=loss)


def _check_relation(requested: Relation | None, payer: Payer | None) -> None:
    if payer is not None and requested not in (None, payer.registered.relation):
        raise RelationError(
            f"the ledger's dataset {payer.dataset!r} is {payer.registered.relation}, not {requested}"
        )


def _persons(table: PrivateTable, unit: str) -> Persons | None:
    """Whose each row is; their number has to be known before the charge."""
    if unit == "record":
        return None
    if unit not in table.names:
        raise InputError(f"the private table has no column {unit!r} that names persons (unit)")
    return persons_in(table, unit)


def _placed(
    private: TableSource, unit: str, placed: RecordStorage, memory: str | int | None
) -> RecordStorage | None:
    """Where blocks would go; None for what is in memory already, or has to be."""
    if memory is not None:
        bytes_of(memory)
        if unit != "record":  # how many rows persons have is private, and so whether they fit
            raise InputError("memory cannot be limited with unit: all rows of persons are held in memory")
    if placed.engine not in ("embedded", "ray"):
        raise InputError(f"engine must be 'embedded' or 'ray', not {placed.engine!r}")
    if placed.engine == "embedded":
        return None if is_frame(private) or unit != "record" else placed
    if is_frame(private):
        raise InputError("Ray workers read files, but the private table is a frame; write it as Parquet")
    if unit != "record":
        raise InputError(
            "with engine='ray' the unit is a record: several workers may hold rows of one person"
        )
    return placed


def _train(
    model: PrivateLinear, records: SchemaRecords, parts: Split, targets: Array | None,
    assumed: tuple[str, ...], observers: tuple[Observer, ...],
) -> PublicPart | None:  # fmt: skip
    """As `PrivateLinear.fit` does it, with the target among the columns."""
    part = model.fit_records(
        records,
        records.public_table(parts.fit, targets, parts.unlabeled),
        assumptions=(*warn_outside_fit(), *assumed),
        observers=observers,
        sample=parts.unlabeled if parts.fit is None else parts.fit,
    )
    columns = list(records.schema.columns)
    model.n_features_in_, model.feature_names_in_ = len(columns), np.array(columns, dtype=object)
    return None if part.y is None else part


def _data(schema: Schema, model: PrivateLinear, public: pd.DataFrame | None, parts: Split) -> Json:
    """For the report: sizes, names and sources, all public."""
    return table_facts(schema, model.privacy_.details) | {
        "public_records": 0 if public is None else len(public),
        "public_records_held_out": parts.held_out_rows,
    }


def _public_file(public: TableSource | None) -> Json:
    """The SHA-256 of a public table in one file, which is public; {} for frames, folders and patterns."""
    if public is None or is_frame(public) or not os.path.isfile(public):
        return {}
    with open(public, "rb") as file:
        return {PUBLIC: "sha256:" + hashlib.file_digest(file, "sha256").hexdigest()}
