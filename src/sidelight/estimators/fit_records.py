"""The records of a fit, and how they are read.

What is public about private records is known at once: how many there are, their columns and types. The
records themselves are read by `reading`, which the contract asks for after the charge.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol, TypeAlias

import numpy as np
import scipy.sparse as sp

from sidelight.arrays import Array, Mask, Matrix, TableLike, dense
from sidelight.data.coordinates import MOST_CHECKED, Coordinates
from sidelight.data.features import FeaturePlan
from sidelight.data.frames import is_frame
from sidelight.data.leaves import ColumnGroup
from sidelight.data.own_model import OwnModel, probe_rows
from sidelight.data.partitions import EncodedTable, PartitionedRows, block_rows
from sidelight.data.persons import Names, Persons
from sidelight.data.private_tables import PrivateTable
from sidelight.data.record_storage import RecordStorage
from sidelight.data.rows import PrivateRows, stacked
from sidelight.data.schema import Schema
from sidelight.data.targets import Target
from sidelight.data.values import as_codes
from sidelight.errors import InputError
from sidelight.estimators.frame_schemas import target_name
from sidelight.privacy.identity import Identity
from sidelight.privacy.observer import Observer

if TYPE_CHECKING:
    import pandas as pd


Read: TypeAlias = Callable[[Target, Coordinates, tuple[Observer, ...]], PrivateRows]


@dataclass(frozen=True, eq=False)
class PublicTable:
    """Features and targets of public rows as numbers and labels, not yet bounded.

    `misfits` are values that do not fit their column, if known; `unlabeled` the features of rows without a
    target.
    """

    X: Matrix
    y: Array
    misfits: Mask | None = None
    unlabeled: Matrix | None = None

    @property
    def n(self) -> int:
        """Rows with a target."""
        return int(self.X.shape[0])

    @property
    def labels(self) -> Array | None:
        """The targets; None if there is none."""
        return self.y if self.n else None

    @property
    def every(self) -> Matrix:
        """The features of all rows, with a target or without."""
        return self.X if self.unlabeled is None else stacked(self.X, self.unlabeled)


class FitRecords(Protocol):
    """Private records. Everything here but `reading` and `persons` is public."""

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
    def placed(self) -> RecordStorage | None:
        """Where blocks of the records go; None holds all of them in memory."""

    @property
    def own(self) -> OwnModel | None:
        """The user's estimator, which is asked about every record."""

    @property
    def y(self) -> Array | None:
        """The targets, if they are apart from the table. Only their type may be looked at."""

    @property
    def goal(self) -> str:
        """What the target is called."""

    @property
    def checked(self) -> list[str]:
        """The columns whose misfits a health check counts."""

    @property
    def edges(self) -> Array | None:
        """Where whole numbers begin and end among the features; None: each is one."""

    def groups(self, features: int) -> tuple[ColumnGroup, ...]:
        """The features that each column became."""

    def identity(self) -> Identity:
        """What a ledger recognizes the records by."""

    @contextmanager
    def reading(self) -> Iterator[Read]:
        """A function that reads the records, to be called after the charge."""


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

    X: Matrix
    y: Array
    given: TableLike  # X as the user passed it
    targets: object
    persons: Persons | None = None
    schema: None = None
    placed: None = None
    edges: None = None
    own: OwnModel | None = None

    @property
    def n(self) -> int:
        return int(self.X.shape[0]) if self.persons is None else self.persons.count

    @property
    def sparse(self) -> bool:
        return bool(sp.issparse(self.X))

    @property
    def names(self) -> list[str]:
        """Of the features: those of a frame, or x0, x1, …"""
        named = list(map(str, getattr(self.given, "columns", ()))) if is_frame(self.given) else []
        features = int(self.X.shape[1])
        return named if len(named) == features else [f"x{place}" for place in range(features)]

    @property
    def goal(self) -> str:
        return target_name(self.targets, self.names)

    @property
    def checked(self) -> list[str]:
        return [] if self.sparse or self.X.shape[1] > MOST_CHECKED else self.names

    def groups(self, features: int) -> tuple[ColumnGroup, ...]:
        return tuple(ColumnGroup((column,)) for column in range(features))

    def identity(self) -> Identity:
        return _of_persons(Identity.of(_shaped(self.given, self.X), self.targets), self.persons)

    @contextmanager
    def reading(self) -> Iterator[Read]:
        def read(target: Target, coordinates: Coordinates, _: tuple[Observer, ...]) -> PrivateRows:
            X = with_own(self.own, self.X)
            return coordinates.of_target(X, self.y, target, self.persons, checked=self.X)

        yield read


@dataclass(frozen=True, eq=False)
class SchemaRecords:
    """Rows of a table with columns of all types; the target is a column of it, or `y`."""

    schema: Schema
    table: PrivateTable
    y: Array | None = None
    given: tuple[object, ...] = ()  # X and y as the user passed them, if they are apart
    persons: Persons | None = None
    placed: RecordStorage | None = None  # where blocks of them go, if they do not fit in memory
    own: OwnModel | None = None

    @property
    def n(self) -> int:
        return len(self.table) if self.persons is None else self.persons.count

    @property
    def goal(self) -> str:
        return self.schema.target.name

    @property
    def checked(self) -> list[str]:
        return list(self.schema.used)

    @property
    def edges(self) -> Array:
        return FeaturePlan(self.schema).whole_numbers()

    def groups(self, features: int) -> tuple[ColumnGroup, ...]:
        return FeaturePlan(self.schema).groups()

    def public_table(
        self, fit: pd.DataFrame | None, labels: Array | None, unlabeled: pd.DataFrame | None
    ) -> PublicTable | None:
        """Public rows with labels, and rows without, as numbers; None if there are neither."""
        plan, more = FeaturePlan(self.schema, self.own), None
        if unlabeled is not None and len(unlabeled):
            more = plan.encode(unlabeled).astype(np.float64)
        if fit is not None and len(fit) and labels is not None:
            features, misfits = plan.encode_checked(fit)
            return PublicTable(features.astype(np.float64), labels, misfits, more)
        return None if more is None else PublicTable(more[:0], np.zeros(0), None, more)

    def identity(self) -> Identity:
        identity = Identity.of(*self.given) if self.given else self.table.identity()
        return _of_persons(identity, self.persons)

    def encoded(self, room: int = 0) -> tuple[Matrix, Array, Mask]:
        """The records as numbers, with space for `room` columns. Called after the charge."""
        plan = FeaturePlan(self.schema, self.own)
        with np.errstate(all="ignore"):  # a warning about a private value would be an output
            if self.y is None:
                return plan.encode_private(self.table, room=room)
            X, _, misfits = plan.encode_private(self.table, room=room, targets=False)
            return X, self.y, misfits

    @contextmanager
    def reading(self) -> Iterator[Read]:
        """In memory; or in blocks, which are closed with the fit."""

        def read(target: Target, coordinates: Coordinates, _: tuple[Observer, ...]) -> PrivateRows:
            X, y, misfits = self.encoded(coordinates.p)
            # Bounded rows take the place of X, so that there are never two copies of all records.
            return coordinates.of_target(X, y, target, self.persons, misfits, in_place=True)

        if self.placed is None:
            yield read
            return
        blocks = []

        def read_blocks(
            target: Target, coordinates: Coordinates, observers: tuple[Observer, ...]
        ) -> PrivateRows:
            source = EncodedTable(self.schema, self.table, target, coordinates, block_rows(coordinates.p))

            def progress(done: int) -> None:
                for observer in observers:
                    observer.on_read(done, self.n)

            blocks.append(holder.hold(source, progress))
            return PartitionedRows(blocks[0], p=coordinates.p, max_norm=coordinates.max_norm)

        with self.placed.started(self.table.files) as holder:
            if self.own is not None:
                holder.check_own(self.own, probe_rows(self.schema))
            try:
                yield read_blocks
            finally:
                for held in blocks:
                    held.close()


def with_own(own: OwnModel | None, X: Matrix) -> Matrix:
    """Rows of numbers, and behind them what the user's estimator says, if there is one."""
    if own is None:
        return X
    rows = dense(X)
    return np.hstack([rows, own.of_matrix(rows).astype(rows.dtype)])


def _shaped(X: TableLike, records: Matrix) -> TableLike:
    """X, if it has the shape of its records; a list has none, and an array of lists only their number."""
    return X if len(getattr(X, "shape", ())) == records.ndim else records
