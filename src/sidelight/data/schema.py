"""What the columns of a table are: types, categories, bounds, the target; from public rows or declared.

A schema is JSON that a person can edit:

    {"sidelight_schema": 1,
     "target": {"name": "income", "task": "classification", "classes": ["<=50K", ">50K"]},
     "columns": {"age": {"type": "number", "bounds": [17, 90], "knots": [28, 37, 48]},
                 "sex": {"type": "category", "categories": ["Female", "Male"]},
                 "since": {"type": "date", "bounds": ["2019-01-01", "2024-12-31"], "parts": ["position"]},
                 "review": {"type": "text", "encoder": "minilm"},
                 "id": {"type": "ignore", "note": "looks like an identifier"}},
     "interactions": [["age", "hours"]]}

Whatever a private table holds, its records are read through a schema, and nothing of them flows back into it.

"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from sidelight.arrays import Json
from sidelight.data.date_parts import Part, date_from_dict, date_to_dict
from sidelight.data.moments import ISO, Format
from sidelight.data.schema_entries import (
    bounds_of,
    count_of,
    fields_of,
    is_number,
    list_of,
    one_of,
    real,
    short,
    texts_of,
)
from sidelight.errors import InputError, listed, spelled
from sidelight.features.encoders import Encoder, add_encoder, best_installed, open_encoder
from sidelight.files import read_whole, write_text

if TYPE_CHECKING:
    from sidelight.data.frames import Frame


FORMAT = 1
Kind = Literal["number", "boolean", "category", "code", "date", "text", "image", "ignore"]
TaskName = Literal["classification", "regression"]


# Columns that are texts; with an encoder of its own for each, or its name.
TextColumns = str | Sequence[str] | Mapping[str, str | Encoder | None]
KINDS: tuple[Kind, ...] = ("number", "boolean", "category", "code", "date", "text", "image", "ignore")
ENCODED: tuple[Literal["text", "image"], ...] = ("text", "image")  # through a public encoder
TASKS: tuple[TaskName, ...] = ("classification", "regression")


MOST_DIGITS = 15  # of a code: a float holds them exactly


_FIELDS = (
    "type", "bounds", "knots", "categories", "parts", "format", "digits", "prefix", "encoder", "dimension",
    "sha256", "unreadable", "note",
)  # fmt: skip


@dataclass(frozen=True)
class Column:
    """One feature.

    Args:
        kind: "number", "boolean", "category", "code", "date", "text", "image" (the path of a file), or
            "ignore" (may be in a table, is not used).
        bounds: of a number, or of a date (in seconds since 1970); values outside are clipped.
        knots: of a number: its effect is a broken line that bends there; rising, between the bounds.
        categories: of a category, or first digits of a code; any other value goes into one bucket "other".
        parts: of a date: what the model sees of it, of `PARTS`.
        format: of a date that is text: one of `data.values.FORMATS`.
        digits: how many a code has; a shorter one lost the zeros in front.
        prefix: how many of them count.
        encoder, dimension, sha256: of a text or image: what makes numbers of it (`sidelight.features`).
        note: for the reader.
        unreadable_is_missing: whether public values of a number or date may be none, and are then missing, as
            private ones always are. Otherwise such a public value is refused as a slip.
    """

    kind: Kind
    bounds: tuple[float, float] | None = None
    knots: tuple[float, ...] = ()
    categories: tuple[str, ...] = ()
    note: str = ""
    parts: tuple[Part, ...] = ()
    format: Format = ISO
    digits: int = 0
    prefix: int = 0
    encoder: str = ""
    dimension: int = 0
    sha256: str = ""
    unreadable_is_missing: bool = False

    def to_dict(self) -> Json:
        out: Json = {"type": self.kind}
        if self.kind == "date":
            out |= date_to_dict(self.bounds, self.parts, self.format)
        elif self.bounds is not None:
            out["bounds"] = [short(value) for value in self.bounds]
        if self.knots:
            out["knots"] = [short(value) for value in self.knots]
        if self.kind == "code":
            out |= {"digits": self.digits, "prefix": self.prefix}
        if self.kind in ("category", "code"):
            out["categories"] = list(self.categories)
        if self.kind in ENCODED:
            out |= {"encoder": self.encoder, "dimension": self.dimension, "sha256": self.sha256}
        if self.unreadable_is_missing:
            out["unreadable"] = "missing"
        return out | ({"note": self.note} if self.note else {})

    @classmethod
    def from_dict(cls, data: object, where: str) -> Column:
        body = fields_of(data, where, _FIELDS)
        kind = one_of(body.get("type"), KINDS, f"{where}: type")
        note = str(body.get("note", ""))
        if kind in ("boolean", "ignore"):
            return cls(kind, note=note)
        if kind == "category":
            names = _categories(body, where)
            return cls("category", categories=names, note=note)
        if kind == "code":
            digits = count_of(body.get("digits"), MOST_DIGITS, f"{where}: digits")
            prefix = count_of(body.get("prefix", digits), digits, f"{where}: prefix")
            names = _categories(body, where)
            return cls("code", categories=names, note=note, digits=digits, prefix=prefix)
        if kind == "text" or kind == "image":
            return encoded_column(kind, body, where, note)
        lenient = "unreadable" in body
        if lenient:
            one_of(body["unreadable"], ("missing",), f"{where}: unreadable")
        if kind == "date":
            limits, parts, how = date_from_dict(body, where)
            return cls("date", limits, note=note, parts=parts, format=how, unreadable_is_missing=lenient)
        bounds = bounds_of(body.get("bounds"), f"{where}: bounds")
        knots = tuple(
            real(knot, f"{where}: knots") for knot in list_of(body.get("knots", []), f"{where}: knots")
        )
        edges = (bounds[0], *knots, bounds[1])
        if knots and any(low >= high for low, high in pairwise(edges)):
            raise InputError(f"{where}: knots must rise, and lie between the bounds; or leave them out")
        return cls("number", bounds, knots, note=note, unreadable_is_missing=lenient)


@dataclass(frozen=True)
class TargetColumn:
    """What is predicted: one of `classes`, or a number within `bounds`."""

    name: str
    task: TaskName
    classes: tuple[str | float, ...] = ()
    bounds: tuple[float, float] | None = None

    def to_dict(self) -> Json:
        out: Json = {"name": self.name, "task": self.task}
        if self.task == "classification":
            return out | {"classes": list(self.classes)}
        return out | {"bounds": [short(value) for value in self.bounds or ()]}

    @classmethod
    def from_dict(cls, data: object) -> TargetColumn:
        body = fields_of(data, "target", ("name", "task", "classes", "bounds", "note"))
        name = body.get("name")
        if not isinstance(name, str) or not name:
            raise InputError("target: name must be the name of a column")
        if one_of(body.get("task"), TASKS, "target: task") == "regression":
            low, high = bounds_of(body.get("bounds"), "target: bounds")
            if low == high:
                raise InputError("target: bounds must be two different numbers")
            return cls(name, "regression", bounds=(low, high))
        given = list_of(body.get("classes"), "target: classes")
        texts = [label for label in given if isinstance(label, str)]
        numbers = [label for label in given if is_number(label)]
        classes: list[str] | list[float] = texts or numbers
        if len(classes) < len(given):
            raise InputError("target: classes must all be texts, or all be numbers")
        if len(classes) < 2 or len(set(classes)) < len(classes):
            raise InputError("target: classes must be at least two, each named once")
        return cls(name, "classification", classes=tuple(classes))


@dataclass(frozen=True, repr=False)
class Schema:
    """The target and the columns, by name; `source` says where they come from.

    interactions: pairs of numbers whose product the model sees; None leaves them to the fit, which chooses on
        public rows (`data.infer_schema`).
    """

    target: TargetColumn
    columns: Mapping[str, Column]
    source: str = field(default="declared", compare=False)
    interactions: tuple[tuple[str, str], ...] | None = None

    def __repr__(self) -> str:
        return f"Schema({self.target.name!r} from {len(self.used)} columns, {self.source})"

    @property
    def used(self) -> dict[str, Column]:
        """The columns that the model sees."""
        return {name: column for name, column in self.columns.items() if column.kind != "ignore"}

    @property
    def ignored(self) -> dict[str, Column]:
        return {name: column for name, column in self.columns.items() if column.kind == "ignore"}

    @classmethod
    def learn(
        cls,
        public: Frame,
        target: str,
        *,
        task: TaskName | None = None,
        ignore: tuple[str, ...] | list[str] = (),
        types: Mapping[str, str] | None = None,
        classes: Sequence[str | float] | None = None,
        target_bounds: tuple[float, float] | None = None,
    ) -> Schema:
        """From public rows alone: see `data.infer_schema` for the rules.

        types: what a column is, where you know better: a type of column, or the format of a date.
        classes, target_bounds: of the target, which the public rows then need not have.
        """
        from sidelight.data.infer_schema import learn

        return learn(
            public, target, task=task, ignore=tuple(ignore), types=types or {}, classes=classes,
            target_bounds=target_bounds,
        )  # fmt: skip

    def check_needed(self, names: list[str], where: str, *, target: bool = True) -> None:
        """Refuse a table that lacks a column, or has it twice. Names are public."""
        needed = [*self.used, *([self.target.name] if target else [])]
        if missing := [name for name in needed if name not in names]:
            if len(missing) == len(needed):  # perhaps its first record stands where the names should
                raise InputError(f"{where} lacks {named(missing)}: its first line must be the columns' names")
            raise InputError(f"{where} lacks {named(missing)}; it has {named(names, most=8)}")
        if twice := [name for name in needed if names.count(name) > 1]:
            raise InputError(f"{where} has more than one {named(twice)}")

    def check_columns(self, names: list[str], where: str, *, target: bool = True) -> None:
        """The same, and refuse a column that nobody declared."""
        self.check_needed(names, where, target=target)
        known = {*self.columns, self.target.name}
        if extra := [name for name in names if name not in known]:
            raise InputError(
                f"{where} has {named(extra)}, which the public table or the schema does not have. Remove "
                f"{'it' if len(extra) == 1 else 'them'}, or have each ignored: "
                f'{spelled("ignore=", "--ignore NAME")}, or "type": "ignore" in a schema'
            )

    def to_dict(self) -> Json:
        columns = {name: column.to_dict() for name, column in self.columns.items()}
        out: Json = {"sidelight_schema": FORMAT, "target": self.target.to_dict(), "columns": columns}
        return (
            out if self.interactions is None else out | {"interactions": [list(p) for p in self.interactions]}
        )

    @classmethod
    def from_dict(cls, data: object, *, source: str = "declared") -> Schema:
        names = ("sidelight_schema", "target", "columns", "interactions", "note")
        body = fields_of(data, "the schema", names)
        if body.get("sidelight_schema") != FORMAT:
            raise InputError(f'expected "sidelight_schema": {FORMAT}')
        target = TargetColumn.from_dict(body.get("target"))
        entries = body.get("columns")
        if not isinstance(entries, dict) or not entries:
            raise InputError("columns must be an object, one entry per column")
        columns = {name: Column.from_dict(entry, f"column {name!r}") for name, entry in entries.items()}
        if target.name in columns:
            raise InputError(f"{target.name!r} is the target and cannot be among the columns")
        schema = cls(target, columns, source, _pairs(body.get("interactions"), columns))
        if not schema.used:
            raise InputError("every column is ignored; a model needs at least one")
        return schema

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Schema:
        """A schema file; InputError says which entry is wrong."""
        file = Path(path)
        try:
            data = json.loads(read_whole(file).decode("utf-8"))
        except OSError as error:
            raise InputError(f"{file} cannot be read: {error.strerror or 'input failed'}") from None
        except (ValueError, RecursionError) as error:
            line = f" (line {error.lineno})" if isinstance(error, json.JSONDecodeError) else ""
            raise InputError(f"{file} is not valid JSON{line}; `sidelight schema` writes one") from None
        try:
            return cls.from_dict(data, source=f"declared in {file.name}")
        except InputError as error:
            raise InputError(f"{file} is not a schema: {error}") from None

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write it as JSON, whole or not at all."""
        write_text(path, self.to_text())

    def to_text(self) -> str:
        """JSON with one line per column."""

        def line(value: object) -> str:
            return json.dumps(value, ensure_ascii=False, allow_nan=False)

        rows = [f"    {line(name)}: {line(column.to_dict())}" for name, column in self.columns.items()]
        return (
            f'{{\n  "sidelight_schema": {FORMAT},\n  "target": {line(self.target.to_dict())},\n'
            '  "columns": {\n' + ",\n".join(rows) + f"\n  }}{self._pairs_text()}\n}}\n"
        )

    def _pairs_text(self) -> str:
        if self.interactions is None:
            return ""
        pairs = json.dumps([list(pair) for pair in self.interactions], ensure_ascii=False)
        return f',\n  "interactions": {pairs}'


def _pairs(given: object, columns: Mapping[str, Column]) -> tuple[tuple[str, str], ...] | None:
    """Pairs of different numbers, each once."""
    if given is None:
        return None
    found: list[tuple[str, str]] = []
    for entry in list_of(given, "interactions"):
        pair = list_of(entry, "interactions: each")
        known = [one for one in pair if isinstance(one, str) and one in columns]
        if len(pair) != 2 or len(set(known)) != 2 or any(columns[one].kind != "number" for one in known):
            raise InputError(f"interactions: {pair!r} must be two different columns of numbers")
        if {*known} in [{*other} for other in found]:
            raise InputError(f"interactions: {known[0]} and {known[1]} are listed twice")
        found.append((known[0], known[1]))
    return tuple(found)


# ---------------------------------------------------------------------------------------------------
# what a person may write wrongly in a schema, each with a sentence of its own


_MOST_CATEGORIES = 10_000  # each is a feature


def _categories(body: Json, where: str) -> tuple[str, ...]:
    given = body.get("categories")
    if isinstance(given, list) and len(given) > _MOST_CATEGORIES:
        raise InputError(
            f"{where}: {len(given):,} categories, and at most {_MOST_CATEGORIES:,} are possible; keep the "
            "frequent ones, since any other value counts as 'other', or ignore the column"
        )
    return texts_of(given, f"{where}: categories")


def named(names: list[str], most: int = 5) -> str:
    return f"column{'s' if len(names) > 1 else ''} {listed(names, most)}"


# ---------------------------------------------------------------------------------------------------
# codes and dates, as far as a model sees them


def first_digits(text: str | None, *, digits: int, prefix: int) -> str | None:
    """What counts of a code; None if it is missing. One stored as a number gets the zeros in front back."""
    if text is None:
        return None
    return (text.zfill(digits) if text.isdecimal() else text)[:prefix]


# ---------------------------------------------------------------------------------------------------
# texts and images in a schema file


def encoded_column(kind: Literal["text", "image"], body: Json, where: str, note: str = "") -> Column:
    """A text or image with its encoder; dimension and hash are the encoder's own, and may be left out."""
    name = body.get("encoder") or (best_installed() if kind == "text" else None)
    if name is None:
        raise InputError(f"{where}: images need an encoder: the file that PatchFeatures.save wrote")
    if not isinstance(name, str):
        raise InputError(f"{where}: encoder must be the name of one, or the path of a folder, not {name!r}")
    known = body.get("sha256")
    if isinstance(known, str):  # of a model that was fitted: opened when there is something to encode
        size = count_of(body.get("dimension"), _MOST_NUMBERS, f"{where}: dimension")
        return Column(kind, note=note, encoder=name, dimension=size, sha256=known)
    encoder = open_encoder(name)
    return Column(kind, note=note, encoder=name, dimension=encoder.dimension, sha256=encoder.sha256)


_MOST_NUMBERS = 65_536  # that one text becomes


def text_types(
    text: TextColumns | None, encoder: str | None = None, *, kind: Literal["text", "image"] = "text"
) -> dict[str, str]:
    """Types ("text:minilm") of the columns that a user calls texts or images; `encoder` is for all."""
    if text is None:
        return {}
    if isinstance(text, str):
        text = (text,)
    named = text if isinstance(text, Mapping) else dict.fromkeys(text, encoder)
    found = {}
    for column, one in named.items():
        if one is not None and not isinstance(one, str):
            if not all(hasattr(type(one), field) or hasattr(one, field) for field in _ENCODES):
                raise InputError(
                    f"{kind}[{column!r}] must be the name of an encoder, its folder, or an Encoder"
                )
            one = add_encoder(one).name
        found[column] = kind if one is None else f"{kind}:{one}"
    return found


_ENCODES = ("name", "dimension", "sha256", "encode")


# ---------------------------------------------------------------------------------------------------
# what was recognized in a table, in one line for all columns that are treated alike


def column_lines(schema: Schema) -> list[str]:
    """Lines for columns that are neither plain numbers nor plain categories; `ignored` columns have notes."""
    groups: dict[str, list[str]] = {}
    for name, column in schema.used.items():
        if text := _treatment(column):
            groups.setdefault(text, []).append(name)
    lines = [f"{named(names)}: {text}" for text, names in groups.items()]
    if pairs := [f"{first} × {second}" for first, second in schema.interactions or ()]:
        what = "products" if len(pairs) > 1 else "a product"
        lines.append(f"{named(pairs)}: {what}, so that the effect of one may depend on the other")
    return lines


def _treatment(column: Column) -> str:
    if column.kind == "boolean":
        return "true or false"
    if column.kind == "date":
        order = "" if column.format == "year-month-day" else f", written {column.format}"
        note = f"; {column.note}" if column.note else ""
        return f"dates{order}; used as {', '.join(column.parts)}{note}"
    if column.kind in ENCODED:
        encoder = f"{column.encoder} ({column.sha256[:14]}…)"
        return f"{column.kind}; {column.dimension} numbers by the encoder {encoder}"
    if column.kind == "code":
        first = "all" if column.prefix == column.digits else f"the first {column.prefix}"
        return f"codes; {first} of {column.digits} digits {'is' if column.prefix == 1 else 'are'} used"
    return column.note
