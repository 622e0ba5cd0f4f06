"""From two tables to a fitted model: read, check, encode, charge, train."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal

import numpy as np

from sidelight.arrays import Json
from sidelight.data.features import FeaturePlan, check_public_values, encode_target
from sidelight.data.frames import as_pandas, check_storage, is_frame
from sidelight.data.rows import Persons
from sidelight.data.schema import Column, Schema, Task
from sidelight.data.table_files import PrivateTable, TableSource, assumed_of_file, open_private, read_table
from sidelight.errors import InputError, PrivacyWarning, RelationError
from sidelight.estimator_base import PrivateLinear
from sidelight.estimator_records import (
    SchemaRecords,
    Table,
    TableOrigin,
    persons_in,
    table_facts,
    warn_of_surroundings,
)
from sidelight.estimators import PrivateClassifier, PrivateRegressor
from sidelight.methods.declare import get_method
from sidelight.methods.task import Method, relation_of
from sidelight.privacy.contract import Observer, Payer, open_payer
from sidelight.privacy.events import Relation
from sidelight.privacy.ledger import Ledger
from sidelight.tables.interactions import with_interactions
from sidelight.tables.model import TableModel
from sidelight.tables.validation import Split, scores, split

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["fit_tables"]


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
    class_weight: Mapping[object, float] | Literal["balanced"] | None = None,
    ledger: Ledger | str | os.PathLike[str] | None = None,
    dataset: str | None = None,
    schema: Schema | str | os.PathLike[str] | None = None,
    task: Task | None = None,
    ignore: Sequence[str] = (),
    types: Mapping[str, str] | None = None,
    unit: str = "record",
    validation: float = 0.2,
    random_state: int | None = None,
    observer: Observer | None = None,
) -> TableModel:
    """A linear model of the target under (ε, δ)-differential privacy for the records of `private`.

    Types, categories, bounds and classes come from `schema`, or else are learned from `public`; never from
    `private`, whose columns and number of rows are public knowledge. A private record without a usable target
    is ignored: it contributes zero to every sum, and nobody learns that there is one.

    Args:
        private, public: frames of pandas or polars, or paths of CSV, TSV or Parquet files, with the same
            columns in any order.
        target: the column to predict; may be left out if `schema` names it.
        method, loss, epsilon, delta, relation, regularization, random_state: as in `PrivateClassifier`. With
            a ledger, delta=None and relation=None take those of the dataset.
        class_weight: as in `PrivateClassifier`; for a classification.
        ledger, dataset: who pays.
        schema: a Schema or the path of one.
        task: "classification" or "regression"; None decides by the public target (`data.recognising`).
        ignore: columns that are not used.
        types: what columns are, where the public rows do not show it: {"zip": "code", "since": "date"}.
        unit: what the guarantee is for: a "record", or all rows of a person, by the name of the column that
            names persons; it is no feature, and the public table need not have it.
        validation: the share of public rows that is held out to compare the model with `only_public`.
        observer: is notified of each stage, of the charge, of releases and of steps.
    """
    observer = observer or Observer()
    payer = open_payer(ledger, dataset)
    chosen = get_method(method) if isinstance(method, str) else method
    observer.on_stage("reading the tables")
    _check_different(private, public)
    public_frame = None if public is None else public_frame_of(public)
    table = open_private(private)
    if not len(table):
        raise InputError("the private table has no records")
    persons = _persons(table, unit)
    unused = tuple(ignore) if persons is None or schema is not None else (*ignore, unit)
    schema = _schema(schema, public_frame, target, task, unused, types or {}, also=table.names)
    _check(schema, chosen, table, public_frame, unit)
    if persons is None:
        _warn_of_a_copy(table, public_frame)
    parts = split(schema, public_frame, validation)
    model = _estimator(schema, loss, class_weight)
    model.set_params(
        method=chosen, epsilon=epsilon, regularization=regularization, random_state=random_state,
        relation=_relation(relation, chosen, payer), delta=_delta(delta, payer), unit=unit,
        ledger=None if payer is None else payer.ledger, dataset=None if payer is None else payer.dataset,
    )  # fmt: skip
    model._check_parameters()
    schema = with_interactions(
        schema, parts.fit, method=chosen, n=len(table) if persons is None else persons.count,
        epsilon=epsilon, delta=model.delta, relation=relation_of(chosen, model.relation),
    )  # fmt: skip
    model.set_params(schema=schema)
    observer.on_stage("planning")
    origin = TableOrigin(_assumptions(private), (observer,))
    _train(model, SchemaRecords(schema, table, persons=persons), parts, origin)
    observer.on_stage("scoring on public rows")
    data = _data(schema, model, public_frame, parts)
    return TableModel(schema, model, scores(model, schema, parts), data)


def _check_different(private: TableSource, public: TableSource | None) -> None:
    """The one mistake that gives everything away: to call the private records public."""
    paths = [source for source in (private, public) if isinstance(source, str | os.PathLike)]
    same = len(paths) == 2 and all(map(os.path.exists, paths)) and os.path.samefile(*paths)
    if same or private is public:
        raise InputError("the private table cannot be its own public table: nothing of it would be protected")


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
    frame = as_pandas(source, "the public table") if is_frame(source) else read_table(source)
    if not len(frame):
        raise InputError("the public table has no records")
    return frame


def _schema(
    given: Schema | str | os.PathLike[str] | None,
    public: pd.DataFrame | None,
    target: str | None,
    task: Task | None,
    ignore: tuple[str, ...],
    types: Mapping[str, str] = MappingProxyType({}),
    *,
    also: Sequence[str] = (),
) -> Schema:
    """What was given, or what the public rows show. `also` are columns that may be ignored as well."""
    if given is None:
        if public is None:
            raise InputError("without a public table, columns and bounds must be declared: pass a schema")
        if target is None:
            raise InputError("say which column to predict: target")
        extra = [name for name in ignore if name in also and name not in public.columns]
        in_public = tuple(name for name in ignore if name not in extra)
        learned = Schema.learn(public, target, task=task, ignore=in_public, types=types)
        unused = {name: Column("ignore", note="as you asked") for name in extra}
        return replace(learned, columns={**learned.columns, **unused})
    schema = given if isinstance(given, Schema) else Schema.read(given)
    if target is not None and target != schema.target.name:
        raise InputError(f"the target is {target!r}, but the schema's is {schema.target.name!r}")
    if task is not None and task != schema.target.task:
        raise InputError(f"the task is {task}, but the schema says {schema.target.task}")
    if ignore:
        raise InputError('with a schema, columns are ignored there: "type": "ignore"')
    if types:
        raise InputError("with a schema, types are declared there")
    return schema


def _check(
    schema: Schema, method: Method, private: PrivateTable, public: pd.DataFrame | None, unit: str
) -> None:
    """Everything that would stop the fit later, from names, types and public rows alone."""
    named = [] if unit == "record" else [unit]
    if named and (unit in schema.used or unit == schema.target.name):
        raise InputError(
            f'{unit!r} names persons (unit), so it is no feature: "type": "ignore" in the schema'
        )
    schema.check_columns([name for name in private.names if name not in named], "the private table")
    check_storage(schema, private.stored, "the private table")
    if public is None:
        if method.needs_public:
            raise InputError(f"{method.name} needs public records; give a public table")
        return
    schema.check_columns([name for name in public.columns if name not in named], "the public table")
    check_public_values(schema, public, "the public table")
    _check_target(schema, public[schema.target.name])


def _check_target(schema: Schema, values: pd.Series) -> None:
    encoded = encode_target(schema, values)
    unusable = [label is None for label in encoded] if encoded.dtype == object else ~np.isfinite(encoded)
    bad = np.flatnonzero(unusable)
    if bad.size:
        raise InputError(
            f"record {bad[0] + 1} of the public table has no {schema.target.name!r} that the schema knows; "
            "correct or remove it"
        )


def _estimator(
    schema: Schema,
    loss: str | None,
    class_weight: Mapping[object, float] | Literal["balanced"] | None = None,
) -> PrivateLinear:
    if schema.target.task == "classification":
        return PrivateClassifier(loss=loss, class_weight=class_weight)
    if class_weight is not None:
        raise InputError("class_weight is for a classification, and the target is a number")
    return PrivateRegressor(loss=loss)


def _relation(requested: Relation | None, method: Method, payer: Payer | None) -> Relation | None:
    """The user's, or that of the dataset in the ledger; None leaves it to the method."""
    if payer is None:
        return requested
    known = payer.ledger.datasets()
    if payer.dataset not in known:
        raise InputError(f"the ledger has no dataset {payer.dataset!r}; it has {', '.join(known) or 'none'}")
    registered = known[payer.dataset].relation
    if requested is not None and requested != registered:
        raise RelationError(f"the ledger's dataset {payer.dataset!r} is {registered}, not {requested}")
    return registered


def _delta(requested: float | None, payer: Payer | None) -> float | None:
    if requested is not None or payer is None:
        return requested
    return payer.ledger.datasets()[payer.dataset].budget.delta


def _persons(table: PrivateTable, unit: str) -> Persons | None:
    """Whose each row is; their number has to be known before the charge."""
    if unit == "record":
        return None
    if unit not in table.names:
        raise InputError(f"the private table has no column {unit!r} that names persons (unit)")
    return persons_in(table, unit)


def _train(model: PrivateLinear, records: SchemaRecords, parts: Split, origin: TableOrigin) -> None:
    """As `PrivateLinear.fit` does it, with the target among the columns."""
    schema = records.schema
    around = warn_of_surroundings()
    model._check_parameters()
    public = None
    if parts.fit is not None:
        features = np.asarray(FeaturePlan(schema).encode(parts.fit), dtype=np.float64)
        public = Table(features, encode_target(schema, parts.fit[schema.target.name]))
    model._fit_records(records, public, origin=origin, around=around)
    model.n_features_in_ = len(schema.columns)
    model.feature_names_in_ = np.array(list(schema.columns), dtype=object)


def _assumptions(private: TableSource) -> tuple[str, ...]:
    return () if is_frame(private) else assumed_of_file(private)


def _data(schema: Schema, model: PrivateLinear, public: pd.DataFrame | None, parts: Split) -> Json:
    """For the report: sizes, names and sources, all public."""
    return table_facts(schema, model.privacy_.details) | {
        "public_records": 0 if public is None else len(public),
        "public_records_held_out": parts.held_out_rows,
    }
