"""The records of a fit: before they are read, and what is done with them around it.

What is public about private records is known at once: how many there are, their columns and types. The
records themselves are read by `read`, which the contract calls after the charge.

`privacy_` speaks of one fit. A pipeline that first fits a scaler to the private rows, a search that scores on
them and chooses, a score on them: each tells about private records without any noise. They are seen here by
who calls (the stack) and by what is the same object, never by comparing records: that would tell about them.
"""

from __future__ import annotations

import os
import sys
import warnings
import weakref
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from types import FrameType, MappingProxyType
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np
import scipy.sparse as sp
from numpy.typing import ArrayLike

from sidelight.arrays import Array, Json, Mask, Matrix, TableLike
from sidelight.data.coordinates import Coordinates
from sidelight.data.features import FeaturePlan, check_encoders, check_public_values
from sidelight.data.frames import as_pandas, check_storage, is_frame, is_mixed, storage
from sidelight.data.infer_schema import LEARNED, learn_columns
from sidelight.data.own_model import OwnModel, own_columns, probe_rows
from sidelight.data.partitions import EncodedTable, PartitionedRows, block_rows
from sidelight.data.placing import Holder, Placed
from sidelight.data.private_tables import PrivateTable, open_private
from sidelight.data.rows import Names, Persons, stacked
from sidelight.data.schema import ENCODED, Schema, TargetColumn, Task
from sidelight.data.targets import Classes, RealTarget, Target
from sidelight.data.values import as_codes, is_missing
from sidelight.errors import InputError, NotPrivateWarning, users_line
from sidelight.features.encoders import may_remember
from sidelight.privacy.identity import Identity
from sidelight.privacy.observer import Observer

if TYPE_CHECKING:
    import pandas as pd

__all__ = [
    "DECLARED",
    "PASS_A_SCHEMA",
    "ArrayRecords",
    "FitRecords",
    "SchemaRecords",
    "ScoreWarning",
    "Table",
    "TableOrigin",
    "check_frame",
    "encode_frame",
    "encoders_assumed",
    "frame_schema",
    "labeled_rows",
    "labels_of",
    "memory_around",
    "own_model",
    "persons_in",
    "public_frame",
    "read_schema",
    "refuse_transformed_target",
    "remember_records",
    "some_persons",
    "table_facts",
    "target_name",
    "warn_of_score",
    "warn_of_surroundings",
    "with_target",
]


DECLARED = "the schema was declared without looking at the private records"
PASS_A_SCHEMA = (
    "Pass X_public and y_public, a public frame with the same columns and its targets, from which types and "
    "categories are learned; or schema=, which declares them (docs/tables.md)"
)


@dataclass(frozen=True, eq=False)
class Table:
    """Features and targets as numbers and labels, not yet bounded; and which values are misfits, if known.

    `unlabeled` are the features of public rows without a target.
    ours: X is a copy that nobody else holds, a view of an array with room for more columns: bounded rows may
    take its place, so that there are never two copies of all records.
    """

    X: Matrix
    y: Array
    misfits: Mask | None = None
    unlabeled: Matrix | None = None
    ours: bool = False

    @property
    def n(self) -> int:
        return int(self.X.shape[0])

    @property
    def labels(self) -> Array | None:
        """The targets; None if there is none."""
        return self.y if self.n else None

    @property
    def every(self) -> Matrix:
        """The features of all rows, with a target or without."""
        return self.X if self.unlabeled is None else stacked(self.X, self.unlabeled)

    def apart(self, labeled: Mask) -> Table:
        """The same public rows, of which only some have a target."""
        if labeled.all():
            return self
        misfits = None if self.misfits is None else self.misfits[labeled]
        return Table(self.X[labeled], self.y[labeled], misfits, self.X[~labeled])


@dataclass(frozen=True)
class TableOrigin:
    """What a statement says of where a table came from, and the observers of the fit."""

    assumptions: tuple[str, ...] = ()
    observers: tuple[Observer, ...] = ()


class FitRecords(Protocol):
    """Private records. Everything here but `read` and `persons` is public."""

    @property
    def n(self) -> int:
        """Records, or persons."""

    @property
    def persons(self) -> Persons | None:
        """Whose each row is, if the unit of privacy is a person."""

    @property
    def schema(self) -> Schema | None:
        """How a table is read; None for numbers."""

    @property
    def placed(self) -> Placed | None:
        """Where blocks of the records go; None holds all of them in memory."""

    @property
    def own(self) -> OwnModel | None:
        """The user's estimator, which is asked about every record."""

    @property
    def y(self) -> Array | None:
        """The targets, if they are apart from the table. Only their type may be looked at before `read`."""

    def identity(self) -> Identity:
        """What a ledger recognises the records by."""

    def read(self, room: int = 0) -> Table:
        """The records. Called after the charge. `room`: for how many columns there should be space."""


def persons_in(table: PrivateTable, unit: str) -> Persons:
    """Whose each row of a table is, by the column `unit`; how many there are is public, as n is elsewhere."""
    names = Names()
    codes = [as_codes(block[unit], names.code) for _, block in table.blocks({unit: False})]
    return some_persons(Persons(np.concatenate(codes), len(names), unit))


def some_persons(persons: Persons) -> Persons:
    """The same persons, if there is one: their number is public, and nothing can be planned for none."""
    if persons.count == 0:
        raise InputError(f"no row names a person ({persons.unit})")
    return persons


def _of_persons(identity: Identity, persons: Persons | None) -> Identity:
    """The same of persons: how many rows they have is in no output."""
    return identity if persons is None else replace(identity, records=persons.count, unit=persons.unit)


@dataclass(frozen=True, eq=False)
class ArrayRecords:
    """Rows of an array, of a sparse matrix or of a frame of numbers."""

    table: Table
    given: TableLike  # X as the user passed it
    targets: object
    persons: Persons | None = None
    schema: None = None
    placed: None = None
    own: OwnModel | None = None

    @property
    def n(self) -> int:
        return self.table.n if self.persons is None else self.persons.count

    @property
    def y(self) -> Array:
        return self.table.y

    @property
    def sparse(self) -> bool:
        return bool(sp.issparse(self.table.X))

    @property
    def names(self) -> list[str]:
        """Of the features: those of a frame, or x0, x1, …"""
        named = list(map(str, getattr(self.given, "columns", ()))) if is_frame(self.given) else []
        features = int(self.table.X.shape[1])
        return named if len(named) == features else [f"x{place}" for place in range(features)]

    def identity(self) -> Identity:
        return _of_persons(Identity.of(_shaped(self.given, self.table.X), self.targets), self.persons)

    def read(self, room: int = 0) -> Table:
        return self.table


@dataclass(frozen=True, eq=False)
class SchemaRecords:
    """Rows of a table with columns of all types; the target is a column of it, or `y`."""

    schema: Schema
    table: PrivateTable
    y: Array | None = None
    given: tuple[object, ...] = ()  # X and y as the user passed them, if they are apart
    persons: Persons | None = None
    placed: Placed | None = None  # where blocks of them go, if they do not fit in memory
    own: OwnModel | None = None

    @property
    def n(self) -> int:
        return len(self.table) if self.persons is None else self.persons.count

    def identity(self) -> Identity:
        identity = Identity.of(*self.given) if self.given else self.table.identity()
        return _of_persons(identity, self.persons)

    def read(self, room: int = 0) -> Table:
        plan = FeaturePlan(self.schema, self.own)
        with np.errstate(all="ignore"):  # a warning about a private value would be an output
            if self.y is not None:
                X, misfits = plan.encode_table(self.table, room=room)
                return Table(X, self.y, misfits, ours=True)
            return Table(*plan.encode_private(self.table, room=room), ours=True)

    def read_blocks(
        self, holder: Holder, target: Target, coordinates: Coordinates, observers: tuple[Observer, ...]
    ) -> PartitionedRows:
        """The records in blocks. Called after the charge; whoever calls closes them."""
        source = EncodedTable(self.schema, self.table, target, coordinates, block_rows(coordinates.p))

        def progress(done: int) -> None:
            for observer in observers:
                observer.on_read(done, self.n)

        blocks = holder.hold(source, progress)
        return PartitionedRows(blocks, p=coordinates.p, max_norm=coordinates.max_norm)


def _shaped(X: TableLike, records: Matrix) -> TableLike:
    """X, if it has the shape of its records; a list has none, and an array of lists only their number."""
    return X if len(getattr(X, "shape", ())) == records.ndim else records


# ---------------------------------------------------------------------------------------------------
# frames and their schema


def read_schema(given: Schema | str | os.PathLike[str] | None, task: Task) -> Schema | None:
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
        return FeaturePlan(schema, own).encode_table(table)[0]


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


# ---------------------------------------------------------------------------------------------------
# what scikit-learn does around a fit with the private records, and no budget covers


_SEARCHES = ("sklearn.model_selection._search", "sklearn.model_selection._validation")
_OTHERS = (
    "sklearn.calibration",
    "sklearn.compose._target",
    "sklearn.ensemble",
    "sklearn.feature_selection",
    "sklearn.multiclass",
    "sklearn.multioutput",
    "sklearn.semi_supervised",
)
_PIPELINES = ("sklearn.pipeline", "imblearn.pipeline")
_SCORED = (
    "scikit-learn scores on private records around this fit; scores, and choices made by them, are covered "
    "by nothing"
)
_INSTEAD_OF_STEPS = (
    "Fit it to public rows and freeze it, as in sklearn.frozen.FrozenEstimator(MinMaxScaler().fit("
    "X_public)); or leave it out: bounds= scales features, and a frame is encoded by its schema"
)
_INSTEAD_OF_SEARCHES = (
    "Choose on public rows (`sidelight compare` rehearses methods for free), and pass ledger= so that every "
    "fit is counted: each one spends"
)


class _Held(NamedTuple):
    """A container that was fitted: the object (of an array: the owner of its memory), where, how many."""

    owner: weakref.ref[object] | None
    memory: tuple[int, int] | None
    n: int | None


_fitted: weakref.WeakKeyDictionary[object, _Held] = weakref.WeakKeyDictionary()


def warn_of_surroundings() -> tuple[str, ...]:
    """Warn of what is around the `fit` that calls this; the same as lines for its statement."""
    advice: dict[str, str] = {}  # what is not covered, and what to do instead
    for frame in _callers():
        module = _module(frame)
        if module.startswith(_PIPELINES) and frame.f_code.co_name.startswith("fit"):
            for name in _learning_steps(frame.f_locals.get("self")):
                line = f"{name} of a pipeline was fitted to the private records, and is covered by nothing"
                advice[line] = _INSTEAD_OF_STEPS
        elif module.startswith(_SEARCHES):
            advice[_SCORED] = _INSTEAD_OF_SEARCHES
        elif module.startswith(_OTHERS):
            line = f"{module} works with the private records around this fit, which is covered by nothing"
            advice[line] = "Fit the estimator by itself, and pass ledger= if it is fitted more than once"
    for what, instead in advice.items():
        warnings.warn(f"{what}. {instead}. See docs/pitfalls.md", NotPrivateWarning, stacklevel=users_line())
    return tuple(advice)


def refuse_transformed_target(y_public: object) -> None:
    """Refuse public targets below scikit-learn's TransformedTargetRegressor: it transforms y alone."""
    if y_public is not None and any(_module(frame) == "sklearn.compose._target" for frame in _callers()):
        raise InputError(
            "TransformedTargetRegressor transforms y, but not y_public. Transform both yourself, or leave it "
            "out: public_model tries the logarithm of the target"
        )


def remember_records(estimator: object, X: object, n: int | None) -> None:
    """Remember which container was fitted, outside of the estimator: a pickle of it holds nothing of that.

    n is None where the number of rows is private, as that of persons' rows is.
    """
    try:
        owner = weakref.ref(_owner(X))
    except TypeError:  # a list
        owner = None
    _fitted[estimator] = _Held(owner, _memory(X), n)


def warn_of_score(estimator: object, X: object) -> None:
    """Warn of a score on what was fitted, or on as many records: by objects and sizes, not by contents."""
    held = _fitted.get(estimator)
    if held is None or any(_module(frame).startswith(_SEARCHES) for frame in _callers()):
        return  # of a search, its fits have warned
    if held.owner is not None and held.owner() is _owner(X) and _overlap(held.memory, _memory(X)):
        what = "a score on the private records is a release that no budget covers"
    elif held.n is not None and held.n == _length(X):
        what = (
            f"these are as many records as were fitted ({held.n:,}): if they are the private ones, a score "
        )
        what += "on them is a release that no budget covers"
    else:
        return
    warnings.warn(
        f"{what}. Keep it to yourself, or score on public rows; see docs/pitfalls.md",
        NotPrivateWarning,
        stacklevel=users_line(),
    )


class ScoreWarning:
    """Of scikit-learn's mixins for classifiers and regressors: a score that warns on what was fitted."""

    def score(self, X: TableLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> float:
        """The share of correct labels, or R². Warns on records that were fitted: it would be a release."""
        warn_of_score(self, X)
        return float(super().score(X, y, sample_weight))  # type: ignore[misc]


def _callers() -> Iterator[FrameType]:
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        yield frame
        frame = frame.f_back


def _module(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", ""))


def _learning_steps(pipeline: object) -> list[str]:
    """The steps before the last that learn from what they are fitted to."""
    steps = list(getattr(pipeline, "steps", ()))[:-1]
    return [f"step {name!r} ({type(step).__name__})" for name, step in steps if _learns(step)]


def _learns(step: object) -> bool:
    from sklearn.utils import get_tags

    if step is None or isinstance(step, str) or type(step).__name__ == "FrozenEstimator":
        return False
    for parts in ("steps", "transformers", "transformer_list"):
        if isinstance(inner := getattr(step, parts, None), list):
            return any(_learns(part[1]) for part in inner)
    try:
        return bool(get_tags(step).requires_fit)
    except Exception:  # a step that is no estimator of scikit-learn's
        return True


def memory_around(X: object) -> tuple[int, int] | None:
    """The memory of the array that X is a part of; None for what is no array."""
    return _memory(_owner(X))


def _owner(X: object) -> object:
    """The array whose memory this is a view of; anything else is its own."""
    while isinstance(X, np.ndarray) and isinstance(X.base, np.ndarray):
        X = X.base
    return X


def _memory(X: object) -> tuple[int, int] | None:
    """The first byte of an array, and the one after its last."""
    if not isinstance(X, np.ndarray) or not X.size:
        return None
    start = int(X.__array_interface__["data"][0])
    steps = [(size - 1) * stride for size, stride in zip(X.shape, X.strides, strict=True)]
    low, high = sum(min(step, 0) for step in steps), sum(max(step, 0) for step in steps)
    return start + low, start + high + X.itemsize


def _overlap(first: tuple[int, int] | None, second: tuple[int, int] | None) -> bool:
    return first is None or second is None or (first[0] < second[1] and second[0] < first[1])


def _length(X: object) -> int | None:
    shape = getattr(X, "shape", None)
    if shape:
        return int(shape[0])
    return len(X) if isinstance(X, list | tuple) else None
