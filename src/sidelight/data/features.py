"""Records of a table as rows of numbers, through a schema.

    number    one ramp for each piece between its bounds and knots: 0 below the piece, 1 above it, a line
              within (all ½ if it is missing), and a 0/1 column that says so
    boolean   a number between 0 and 1 whose values may be words (true, no, …)
    category  one 0/1 column for each category, one for any other value, one for a missing one
    code      the same for its first digits
    date      one or more columns for each of its parts (position in its range, year, season, weekday, hour),
              and one for a missing one; k parts are weighted by 1/√k, so that a date is no longer than a
              number or a category
    text      the numbers that a public encoder makes of it (or of the image at that path), a row of length 1,
              and a column for a missing one
    product   of two numbers, each mapped to [−1, 1] by the mean of its ramps: see `data.infer_schema`

What a record becomes depends on that record and the schema alone, and no value is an error.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sidelight.arrays import Array, Floats, Mask
from sidelight.data.coordinates import Bounds
from sidelight.data.date_parts import Part, hours, seasons, spanned_years, weekdays, years
from sidelight.data.leaves import ColumnGroup
from sidelight.data.moments import as_moment, iso_of
from sidelight.data.own_model import OwnModel
from sidelight.data.private_tables import PrivateTable
from sidelight.data.schema import ENCODED, Column, Schema, TargetColumn, first_digits
from sidelight.data.targets import LabelReader
from sidelight.data.values import (
    ColumnData,
    as_indices,
    as_number,
    as_text,
    as_truth,
    category_indices,
    spellings,
)
from sidelight.errors import InputError
from sidelight.features.encoders import encode_texts, encoder_by_hash, remembered

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa


CHANGED = "the private table changed while it was read: its number of records differs"


class EncodedRows(NamedTuple):
    """Records as numbers, their targets, and which values are misfits: (rows, columns of the schema).

    A misfit is missing, not readable as its type, none of the categories, or outside the bounds.
    """

    X: NDArray[np.float32]
    y: Array
    misfits: Mask


class FeaturePlan:
    """The encoding that a schema describes."""

    def __init__(self, schema: Schema, own: OwnModel | None = None) -> None:
        """own: an estimator of the user's, whose outputs stand behind the features of every record."""
        self.schema, self.own = schema, own
        self.pairs = schema.interactions or ()
        parts = [f"{name}: {part}" for name, column in schema.used.items() for part in _parts(column)]
        self.names = [*parts, *(f"{first} × {second}" for first, second in self.pairs)]

    @property
    def size(self) -> int:
        return len(self.names)

    @property
    def width(self) -> int:
        """Of an encoded row: its features, and what the user's estimator says."""
        return self.size + (0 if self.own is None else self.own.outputs)

    def bounds(self) -> Bounds:
        """Of every encoded column, and what maps to 0."""
        rows = [limit for column in self.schema.used.values() for limit in _limits(column)]
        reach = max(1.0, math.sqrt(len(self.pairs) / len(self.schema.used)) / 2)
        rows += [(-reach, reach, 0.0)] * len(self.pairs)
        lower, upper, center = (np.array(side, dtype=np.float64) for side in zip(*rows, strict=True))
        return Bounds(lower, upper, center)

    def encode(self, frame: pd.DataFrame) -> NDArray[np.float32]:
        """(n, width) numbers of a frame of pandas that has the columns of the schema, in any order."""
        return self.encode_checked(frame)[0]

    def encode_checked(self, frame: pd.DataFrame) -> tuple[NDArray[np.float32], Mask]:
        """The same, and which values are misfits."""
        out = np.zeros((len(frame), self.width), dtype=np.float32)
        return out, self.encode_into(out, frame)

    def encode_into(self, out: NDArray[np.float32], columns: Mapping[str, ColumnData]) -> Mask:
        """The same into zeros, of columns as `data.values` takes them; returns the misfits."""
        at, misfits = 0, np.empty((len(out), len(self.schema.used)), dtype=bool)
        for place, (name, column) in enumerate(self.schema.used.items()):
            width = len(_parts(column))
            misfits[:, place] = _FILL[column.kind](out[:, at : at + width], columns[name], column)
            at += width
        if self.pairs:
            scales = ranks(self.schema, out)
            for place, (first, second) in enumerate(self.pairs, start=at):
                np.multiply(scales[first], scales[second], out=out[:, place])
        if self.own is not None:
            out[:, self.size :] = self.own.of_columns(columns, len(out))
        return misfits

    def places(self) -> dict[str, slice]:
        """Where the parts of each column are; products are behind them."""
        ends = np.cumsum([0, *(len(_parts(column)) for column in self.schema.used.values())]).tolist()
        return {name: slice(*ends[k : k + 2]) for k, name in enumerate(self.schema.used)}

    def whole_numbers(self) -> Array:
        """Where columns begin and end if the ramps of a number count as one, and products are left out."""
        found: list[int] = []
        for name, at in self.places().items():
            number = self.schema.used[name].kind == "number"
            found += [at.start, at.stop - 1] if number else range(at.start, at.stop)
        return np.array([*found, self.size - len(self.pairs)], dtype=np.int32)

    def groups(self) -> tuple[ColumnGroup, ...]:
        """Which encoded columns belong together; products are left out."""
        return tuple(_group(self.schema.used[name], place) for name, place in self.places().items())

    def encode_private(self, table: PrivateTable, *, room: int = 0, targets: bool = True) -> EncodedRows:
        """All records of a private table, block by block.

        room: of how many columns X is a view. targets: whether the table has some; else y is empty.
        """
        wide = np.zeros((len(table), max(room, self.width)), dtype=np.float32)
        X, misfits = wide[:, : self.width], np.zeros((len(table), len(self.schema.used)), dtype=bool)
        y, at = [np.empty(0)], 0
        for rows, block in table.blocks(self._kinds(targets=targets)):
            if at + rows <= len(X):
                misfits[at : at + rows] = self.encode_into(X[at : at + rows], block)
                if targets:
                    y.append(encode_target(self.schema, block[self.schema.target.name]))
            at += rows
        if at != len(X):
            raise InputError(CHANGED)
        return EncodedRows(X, np.concatenate(y[1:] or y), misfits)

    def encode_pieces(self, table: PrivateTable, within: range, most: int) -> Iterator[EncodedRows]:
        """Some records of a private file, in pieces of at most so many records."""
        target = self.schema.target
        some = None if len(within) == len(table) else within  # all are read without an end: one more is seen
        for rows, block in table.blocks(self._kinds(targets=True), some):
            for start in range(0, rows, most):
                piece = {name: _part(column, slice(start, start + most)) for name, column in block.items()}
                X = np.zeros((min(most, rows - start), self.width), dtype=np.float32)
                misfits = self.encode_into(X, piece)
                yield EncodedRows(X, encode_target(self.schema, piece[target.name]), misfits)

    def _kinds(self, *, targets: bool) -> dict[str, bool]:
        """The columns that are needed, and whether each is best parsed as numbers."""
        own = () if self.own is None else self.own.columns or ()
        more = {column.name: column.kind == "number" for column in own}
        used = {name: column.kind == "number" for name, column in self.schema.used.items()}
        target = {self.schema.target.name: _as_number(self.schema.target)} if targets else {}
        return {n: used.get(n, True) and more.get(n, True) for n in {**used, **more}} | target


def _part(column: ColumnData, rows: slice) -> ColumnData:
    """Values of an Arrow column, the form in which private files are read."""
    arrow: pa.ChunkedArray = column
    return arrow[rows]


def _as_number(target: TargetColumn) -> bool:
    return target.task == "regression" or not (_is_text(target) or _is_truth(target))


def ranks(schema: Schema, encoded: NDArray[np.float32]) -> dict[str, NDArray[np.float32]]:
    """For each number in encoded rows, its position between bounds and knots, in [−1, 1]; 0 if missing."""
    places = FeaturePlan(replace(schema, interactions=None)).places()
    return {
        name: 2 * encoded[:, places[name].start : places[name].stop - 1].mean(axis=1) - 1
        for name, column in schema.used.items()
        if column.kind == "number"
    }


def _parts(column: Column) -> list[str]:
    if column.kind == "boolean":
        return ["true", "missing"]
    if column.kind == "date":
        return _date_names(column)
    if column.kind == "number":
        return [*(f"{low:g} to {high:g}" for low, high in _pieces(column)), "missing"]
    if column.kind in ENCODED:
        return [*(f"{column.encoder} {k}" for k in range(column.dimension)), "missing"]
    rest = "…" if column.prefix < column.digits else ""
    return [*(f"= {category}{rest}" for category in column.categories), "other", "missing"]


def _group(column: Column, place: slice) -> ColumnGroup:
    columns = tuple(range(place.start, place.stop))
    if column.kind in ("number", "boolean"):
        return ColumnGroup(columns[:-1], "sum")
    return ColumnGroup(columns, "subset" if column.kind in ("category", "code") else "each")


def _pieces(column: Column) -> list[tuple[float, float]]:
    """Of a number; ends are the bounds, which may be the same."""
    low, high = column.bounds or (0.0, 1.0)  # a number has bounds, or a schema refuses it
    return list(pairwise((low, *column.knots, high)))


def _limits(column: Column) -> list[tuple[float, float, float]]:
    """(lower, upper, center) of each part; wider than needed for ramps, so that k of them weigh 1/√k each."""
    indicator = (0.0, 1.0, 0.0)
    if column.kind in ("category", "code"):
        return [indicator] * len(_parts(column))
    if column.kind == "date":
        return _date_limits(column)
    if column.kind in ENCODED:
        return [*([(-1.0, 1.0, 0.0)] * column.dimension), indicator]
    pieces = len(_pieces(column))
    half = math.sqrt(pieces) / 2
    return [*([(0.5 - half, 0.5 + half, 0.5)] * pieces), indicator]


def _fill_number(out: NDArray[np.float32], values: ColumnData, column: Column) -> Mask:
    numbers = as_truth(values) if column.kind == "boolean" else as_number(values)
    missing = np.isnan(numbers)
    ramp = np.empty_like(numbers)
    for i, (low, high) in enumerate(_pieces(column)):
        width = high / 2 - low / 2  # halves: the difference of two large bounds may overflow
        if width > 0:
            np.clip(numbers, low, high, out=ramp)
            ramp /= 2
            ramp -= low / 2
            ramp /= width
            np.clip(ramp, 0, 1, out=ramp)
            ramp[missing] = 0.5
        else:
            ramp[:] = 0.5
        out[:, i] = ramp
    out[:, -1] = missing
    low, high = column.bounds or (0.0, 1.0)
    return np.asarray(missing | (numbers < low) | (numbers > high))


def _fill_category(out: NDArray[np.float32], values: ColumnData, column: Column) -> Mask:
    other = len(column.categories)
    positions = {**spellings(column.categories), None: other + 1}
    if column.kind == "code":
        positions = {**dict(zip(column.categories, range(other), strict=True)), None: other + 1}
    shorten = partial(first_digits, digits=column.digits, prefix=column.prefix)
    name = shorten if column.kind == "code" else lambda text: text
    hot = as_indices(values, lambda text: positions.get(name(text), other))
    out[np.arange(len(out)), hot] = 1
    return np.asarray(hot >= other)


_TEXTS = 16_384  # at a time


def _fill_text(out: NDArray[np.float32], values: ColumnData, column: Column) -> Mask:
    """A missing text, or what is none, is zeros and marked. Of some thousand, equal ones are encoded once."""
    encoder = encoder_by_hash(column.encoder, column.sha256)
    places: dict[str | None, int] = {}
    where = as_indices(values, lambda text: places.setdefault(text, len(places)))
    texts = list(places)
    for start in range(0, len(out), _TEXTS):  # a bound on memory beside `out`
        some, again = np.unique(where[start : start + _TEXTS], return_inverse=True)
        out[start : start + _TEXTS, :-1] = encode_texts(encoder, [texts[place] for place in some])[again]
    missing = np.array([text is None for text in texts], dtype=bool)[where]
    out[:, -1] = missing
    return missing


def check_encoders(schema: Schema) -> None:
    """Refuse a schema whose encoders are not here: before anything is charged, since it needs no record."""
    for name, column in schema.used.items():
        if column.kind in ENCODED:
            size = encoder_by_hash(column.encoder, column.sha256).dimension
            if size != column.dimension:
                raise InputError(
                    f"column {name!r}: the encoder {column.encoder} gives {size} numbers, and not "
                    f"{column.dimension}"
                )


@contextmanager
def remembered_texts(schema: Schema, public: pd.DataFrame | None) -> Iterator[None]:
    """Within it, the texts of a PUBLIC table are encoded once, however often they are asked for."""
    with ExitStack() as stack:
        for name, column in schema.used.items():
            if column.kind in ENCODED and public is not None:
                encoder = encoder_by_hash(column.encoder, column.sha256)
                stack.enter_context(remembered(encoder, as_text(public[name]).tolist()))
        yield


_DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")


def _date_names(column: Column) -> list[str]:
    return [*(name for part in column.parts for name in _names(part, column)), "missing"]


def _date_limits(column: Column) -> list[tuple[float, float, float]]:
    """(lower, upper, center) of each column."""
    wide = math.sqrt(len(column.parts))
    shapes = {
        "position": (0.5 - wide / 2, 0.5 + wide / 2, 0.5),
        "year": (0.0, wide, 0.0),
        "month": (-wide, wide, 0.0),
        "weekday": (0.0, wide, 0.0),
        "hour": (-wide, wide, 0.0),
    }
    parts = [shapes[part] for part in column.parts for _ in _names(part, column)]
    return [*parts, (0.0, 1.0, 0.0)]


def _fill_date(out: NDArray[np.float32], values: ColumnData, column: Column) -> Mask:
    """`out` is zeros. A missing date is the middle of its range, and in no year, season, day or hour."""
    moments = as_moment(values, column.format)
    there = ~np.isnan(moments)
    known, at = moments[there], 0
    for part in column.parts:
        width = len(_names(part, column))
        out[there, at : at + width] = _values(part, known, column)
        if part == "position":
            out[~there, at] = 0.5
        at += width
    out[:, -1] = ~there
    low, high = column.bounds or (-math.inf, math.inf)
    return np.asarray(~there | (moments < low) | (moments > high))


def _values(part: Part, known: Floats, column: Column) -> Floats:
    low, high = column.bounds or (0.0, 1.0)
    if part == "position":
        return np.clip((known - low) / (high - low), 0, 1)[:, None]
    if part == "year":
        first = spanned_years((low, high))
        return _one_hot(years(np.clip(known, low, high)) - first[0], len(first))
    if part == "weekday":
        return _one_hot(weekdays(known), 7)
    angle = seasons(known) if part == "month" else hours(known)
    return np.column_stack([np.sin(angle), np.cos(angle)])


def _one_hot(places: NDArray[np.int64], size: int) -> Floats:
    return np.asarray(places[:, None] == np.arange(size), dtype=np.float64)


def _names(part: Part, column: Column) -> list[str]:
    low, high = column.bounds or (0.0, 1.0)
    if part == "position":
        return [f"{iso_of(low)} to {iso_of(high)}"]
    if part == "year":
        return [f"in {year}" for year in spanned_years((low, high))]
    if part == "weekday":
        return [f"on {day}" for day in _DAYS]
    return [f"sine of the {part}", f"cosine of the {part}"]


# What a type of column becomes. A new type is a reader here, names above and limits.
_FILL = {
    "number": _fill_number,
    "boolean": _fill_number,
    "category": _fill_category,
    "code": _fill_category,
    "date": _fill_date,
    "text": _fill_text,
    "image": _fill_text,
}


def encode_target(schema: Schema, values: ColumnData) -> Array:
    """Labels or numbers for the estimator; None or NaN for anything else, which is not an error."""
    target = schema.target
    if target.task == "regression":
        return as_number(values)
    labels = np.array([*target.classes, None if _is_text(target) else np.nan], dtype=object)
    found: Array = labels[category_indices(values, LabelReader(np.asarray(target.classes)).place)]
    return found if _is_text(target) else found.astype(np.float64)


def _is_text(target: TargetColumn) -> bool:
    return isinstance(target.classes[0], str)


def _is_truth(target: TargetColumn) -> bool:
    return set(target.classes) == {0, 1}


def check_public_values(schema: Schema, public: pd.DataFrame, where: str) -> None:
    """Refuse a public value that is not a number or date, naming its record."""
    for name, column in schema.used.items():
        if column.kind not in ("number", "date") or column.unreadable_is_missing:
            continue
        values = public[name]
        there = np.array([text is not None for text in as_text(values)], dtype=bool)
        read = as_moment(values, column.format) if column.kind == "date" else as_number(values)
        wrong = np.flatnonzero(there & ~np.isfinite(read))
        if wrong.size:
            raise InputError(
                f"column {name!r} of {where} is not a {column.kind} in record {wrong[0] + 1}; correct it, "
                'declare another type, or add "unreadable": "missing" to the column in the schema'
            )
