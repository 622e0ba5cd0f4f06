"""What the columns of a table are: types, categories, bounds, the target; from public rows or declared.

A schema is JSON that a person can edit:

    {"sidelight_schema": 1,
     "target": {"name": "income", "task": "classification", "classes": ["<=50K", ">50K"]},
     "columns": {"age": {"type": "number", "bounds": [17, 90], "knots": [28, 37, 48]},
                 "sex": {"type": "category", "categories": ["Female", "Male"]},
                 "since": {"type": "date", "bounds": ["2019-01-01", "2024-12-31"], "parts": ["position"]},
                 "id": {"type": "ignore", "note": "looks like an identifier"}},
     "interactions": [["age", "hours"]]}

Whatever a private table holds, its records are read through a schema, and nothing of them flows back into it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from sidelight.arrays import Json
from sidelight.data.calendar import Part, date_from_dict, date_to_dict
from sidelight.data.date_values import ISO, Format
from sidelight.data.declared import (
    MOST_DIGITS,
    bounds_of,
    count_of,
    fields_of,
    is_number,
    list_of,
    named,
    one_of,
    real,
    short,
    texts_of,
)
from sidelight.errors import InputError
from sidelight.files import write_text

if TYPE_CHECKING:
    from sidelight.data.frames import Frame

__all__ = ["FORMAT", "Column", "Schema", "TargetColumn", "Task"]

FORMAT = 1
Kind = Literal["number", "boolean", "category", "code", "date", "ignore"]
Task = Literal["classification", "regression"]
KINDS: tuple[Kind, ...] = ("number", "boolean", "category", "code", "date", "ignore")
TASKS: tuple[Task, ...] = ("classification", "regression")


@dataclass(frozen=True)
class Column:
    """One feature.

    Args:
        kind: "number", "boolean", "category", "code", "date", or "ignore" (may be in a table, is not used).
        bounds: of a number, or of a date (in seconds since 1970); values outside are clipped.
        knots: of a number: its effect is a broken line that bends there; rising, between the bounds.
        categories: of a category, or first digits of a code; any other value goes into one bucket "other".
        parts: of a date: what the model sees of it, of `data.calendar.PARTS`.
        format: of a date that is text: one of `data.date_values.FORMATS`.
        digits: how many a code has; a shorter one lost the zeros in front.
        prefix: how many of them count.
        note: for the reader.
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
        return out | ({"note": self.note} if self.note else {})

    @classmethod
    def from_dict(cls, data: object, where: str) -> Column:
        fields = ("type", "bounds", "knots", "categories", "parts", "format", "digits", "prefix", "note")
        body = fields_of(data, where, fields)
        kind = one_of(body.get("type"), KINDS, f"{where}: type")
        note = str(body.get("note", ""))
        if kind in ("boolean", "ignore"):
            return cls(kind, note=note)
        if kind == "category":
            names = texts_of(body.get("categories"), f"{where}: categories")
            return cls("category", categories=names, note=note)
        if kind == "code":
            digits = count_of(body.get("digits"), MOST_DIGITS, f"{where}: digits")
            prefix = count_of(body.get("prefix", digits), digits, f"{where}: prefix")
            names = texts_of(body.get("categories"), f"{where}: categories")
            return cls("code", categories=names, note=note, digits=digits, prefix=prefix)
        if kind == "date":
            limits, parts, how = date_from_dict(body, where)
            return cls("date", limits, note=note, parts=parts, format=how)
        bounds = bounds_of(body.get("bounds"), f"{where}: bounds")
        knots = tuple(
            real(knot, f"{where}: knots") for knot in list_of(body.get("knots", []), f"{where}: knots")
        )
        edges = (bounds[0], *knots, bounds[1])
        if knots and any(low >= high for low, high in pairwise(edges)):
            raise InputError(f"{where}: knots must rise, and lie between the bounds; or leave them out")
        return cls("number", bounds, knots, note=note)


@dataclass(frozen=True)
class TargetColumn:
    """What is predicted: one of `classes`, or a number within `bounds`."""

    name: str
    task: Task
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
        public rows (`data.interactions`).
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
        task: Task | None = None,
        ignore: tuple[str, ...] | list[str] = (),
        types: Mapping[str, str] | None = None,
    ) -> Schema:
        """From public rows alone: see `data.learning` and `data.recognising` for the rules.

        types: what a column is, where you know better: a type of column, or the format of a date.
        """
        from sidelight.data.learning import learn

        return learn(public, target, task=task, ignore=tuple(ignore), types=types or {})

    def check_needed(self, names: list[str], where: str, *, target: bool = True) -> None:
        """Refuse a table that lacks a column, or has it twice. Names are public."""
        needed = [*self.used, *([self.target.name] if target else [])]
        if missing := [name for name in needed if name not in names]:
            raise InputError(f"{where} lacks {named(missing)}; it has {named(names, most=8)}")
        if twice := [name for name in needed if names.count(name) > 1]:
            raise InputError(f"{where} has more than one {named(twice)}")

    def check_columns(self, names: list[str], where: str, *, target: bool = True) -> None:
        """The same, and refuse a column that nobody declared."""
        self.check_needed(names, where, target=target)
        known = {*self.columns, self.target.name}
        if extra := [name for name in names if name not in known]:
            raise InputError(
                f"{where} has {named(extra)}, which the schema does not know. Remove it, or ignore "
                'it: --ignore NAME, or "type": "ignore" in a schema file'
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
        listed = body.get("columns")
        if not isinstance(listed, dict) or not listed:
            raise InputError("columns must be an object, one entry per column")
        columns = {name: Column.from_dict(entry, f"column {name!r}") for name, entry in listed.items()}
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
            data = json.loads(file.read_bytes().decode("utf-8"))
        except OSError as error:
            raise InputError(f"{file} cannot be read: {error.strerror or 'input failed'}") from None
        except (ValueError, RecursionError) as error:
            line = f" (line {error.lineno})" if isinstance(error, json.JSONDecodeError) else ""
            raise InputError(f"{file} is no valid JSON{line}; `sidelight schema` writes one") from None
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
            raise InputError(f"interactions: {known[0]} and {known[1]} are there twice")
        found.append((known[0], known[1]))
    return tuple(found)
