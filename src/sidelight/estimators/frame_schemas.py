"""Frames and their schema: how columns are read, as declared or as public rows show."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np

from sidelight.arrays import Array, Json, Mask, TableLike
from sidelight.data.features import FeaturePlan, check_encoders, check_public_values
from sidelight.data.frames import as_pandas, check_storage, is_frame, is_mixed, storage
from sidelight.data.infer_schema import LEARNED, learn_columns
from sidelight.data.own_model import OwnModel, own_columns, probe_rows
from sidelight.data.private_tables import PrivateTable, open_private
from sidelight.data.schema import ENCODED, Schema, TargetColumn, TaskName
from sidelight.data.targets import Classes, RealTarget, Target
from sidelight.data.values import is_missing
from sidelight.errors import InputError
from sidelight.features.encoders import may_remember

if TYPE_CHECKING:
    import pandas as pd

DECLARED = "the schema was declared without looking at the private records"
PASS_A_SCHEMA = (
    "Pass X_public and y_public, a public frame with the same columns and its targets, from which types and "
    "categories are learned; or schema=, which declares them (docs/tables.md)"
)


def read_schema(given: Schema | str | os.PathLike[str] | None, task: TaskName) -> Schema | None:
    """A schema, or that of a file, for an estimator of this task."""
    schema = given if given is None or isinstance(given, Schema) else Schema.read(given)
    if schema is not None and schema.target.task != task:
        other = {"classification": "PrivateClassifier", "regression": "PrivateRegressor"}[schema.target.task]
        raise InputError(f"the schema is for a {schema.target.task}; take {other}")
    return schema


def frame_schema(
    X: TableLike,
    X_public: object,
    declared: Schema | None,
    target: TargetColumn,
    texts: Mapping[str, str] = MappingProxyType({}),
    *,
    bounded: bool = False,
) -> Schema | None:
    """How the columns of X are read: as declared, or as a public frame shows; None if they are plain numbers.

    Two frames are read by a schema, unless the public one holds numbers only whose bounds the user declares
    (`bounded`). The private one has no say: the type of a private column may be the work of one odd cell.
    `texts` are columns that the user calls texts, with their encoders.
    """
    if texts and (declared is not None or not (is_frame(X) and is_frame(X_public))):
        other = "the schema says which columns are" if declared is not None else "X and X_public must have"
        raise InputError(f"text= is for frames whose types are learned from X_public: {other} texts")
    if declared is not None:
        if not is_frame(X):
            raise InputError(f"schema= describes the columns of a frame, and X is a {type(X).__name__}")
        return declared
    if not (is_frame(X) and is_frame(X_public)) or (bounded and not is_mixed(X_public)):
        return None
    public = as_pandas(X_public, "X_public")
    if strange := [name for name in texts if name not in public.columns]:
        raise InputError(f"X_public has no column {strange[0]!r} to read as text")
    columns = learn_columns(public, texts)
    return Schema(target, columns, LEARNED)


def labeled_rows(targets: Array) -> Mask:
    """Which public rows have a target; one that is missing is no error."""
    return np.array([not is_missing(one) for one in targets.tolist()], dtype=bool)


def check_frame(schema: Schema, table: PrivateTable) -> None:
    """Refuse a private frame that the schema cannot read, by names and types."""
    if not len(table):
        raise InputError("X has no records")
    schema.check_columns(table.names, "X", target=False)
    check_storage(schema, table.stored, "X", target=False)
    check_encoders(schema)


def public_frame(schema: Schema, X_public: object) -> pd.DataFrame:
    """A public frame as one of pandas, of which every value must be usable."""
    if not is_frame(X_public):
        raise InputError(
            f"X is a frame with columns, so X_public must be one; it is a {type(X_public).__name__}"
        )
    frame = as_pandas(X_public, "X_public")
    schema.check_columns(list(frame.columns), "X_public", target=False)
    check_storage(schema, storage(frame), "X_public", target=False)
    check_public_values(schema, frame, "X_public")
    return frame


def own_model(
    given: object, schema: Schema, names: list[str], public: pd.DataFrame | None
) -> OwnModel | None:
    """An estimator of the user's for a table with these columns, tried on public rows; None if it is none."""
    if given is None or isinstance(given, str):
        return None
    features = [name for name in names if name != schema.target.name]
    own = OwnModel(given, schema.target.task, own_columns(given, features, public, schema))
    if public is not None and len(public):
        return own.check(own.frame(public))
    return own.check(own.frame(probe_rows(schema)), "rows that the schema describes")


def encode_frame(schema: Schema, X: object, own: OwnModel | None = None) -> Array:
    """Features of new records, read as in `fit`: any value will do, and columns are found by their names."""
    if not is_frame(X):
        raise InputError(
            f"this model was fitted to a frame with columns, but X is a {type(X).__name__}; pass a frame"
        )
    table = open_private(X, "X")
    schema.check_needed(table.names, "X", target=False)
    check_storage(schema, storage(X), "X", target=False)
    if own is not None:
        own.check_names(table.names, "X")
    with np.errstate(all="ignore"):
        return FeaturePlan(schema, own).encode_private(table, targets=False).X


def encoders_assumed(schema: Schema | None) -> list[str]:
    """What a statement says of the encoders of texts: a line for each, and one more for somebody's own."""
    used = {} if schema is None else schema.used
    texts = [(name, column) for name, column in used.items() if column.kind in ENCODED]
    lines = [
        f"the encoder {column.encoder} of {name!r} ({column.sha256}) was not trained on the private records, "
        "nor chosen by looking at them"
        for name, column in texts
        if not column.encoder.startswith("hashed")
    ]
    lines += [
        f"the encoder {column.encoder} of {name!r} keeps nothing of a text beyond its call; it was given "
        "texts one at a time, and tried on public ones only"
        for name, column in texts
        if may_remember(column.sha256)
    ]
    return lines


def target_name(y: object, taken: list[str]) -> str:
    """What the target is called: the name of a series, or one that no column has."""
    name = getattr(y, "name", None)
    names = [*([name] if isinstance(name, str) and name else []), "target", "y", "label"]
    free = [one for one in names if one not in taken]
    return free[0] if free else "target of " + ", ".join(taken)


def labels_of(target: TargetColumn, public: Array | None, *, apart: bool) -> Array | None:
    """The classes of a schema. Those that are the words true and false may be truth values:

    if public labels are such or numbers; without public labels, if labels are `apart` from the table. The
    type of private labels has no say, since one missing label changes it.
    """
    if not target.classes:
        return None
    words = {str(label).lower() for label in target.classes}
    if words == {"false", "true"} and (apart if public is None else public.dtype.kind in "biuf"):
        return np.array([False, True])
    return np.asarray(target.classes)


def target_column(name: str, target: Target) -> TargetColumn:
    """The same as an entry of a schema; truth values as words, as tables have them."""
    if isinstance(target, RealTarget):
        return TargetColumn(name, "regression", bounds=(target.scale.low, target.scale.high))
    if not isinstance(target, Classes):
        raise InputError(f"a {type(target).__name__} cannot be the target of a table")
    labels = [str(label) if isinstance(label, bool) else label for label in target.labels.tolist()]
    return TargetColumn(name, "classification", classes=tuple(labels))


def with_target(schema: Schema, target: Target) -> Schema:
    """The schema with what is predicted; as it was, if that is the same in another order."""
    known, found = schema.target, target_column(schema.target.name, target)
    same = set(known.classes) == set(found.classes) and known.bounds == found.bounds
    return schema if same else replace(schema, target=found)


def table_facts(schema: Schema, details: Mapping[str, object]) -> Json:
    """For a report: sizes, names and sources, all public."""
    target = schema.target
    return {
        "target": target.name,
        "task": target.task,
        "private_records": details.get("private_records"),
        "public_records": details.get("public_records"),
        "columns": list(schema.used),
        "ignored_columns": list(schema.ignored),
        "products": [f"{first} × {second}" for first, second in schema.interactions or ()],
        "features": details.get("features"),
        "columns_from": schema.source,
        **({"classes": list(target.classes)} if target.task == "classification" else {}),
        **({"target_bounds": list(target.bounds)} if target.bounds else {}),
    }
