"""What the columns of a table are: types, categories, bounds, the target; from public rows or declared.

A schema is JSON that a person can edit:

    {"sidelight_schema": 1,
     "target": {"name": "income", "task": "classification", "classes": ["<=50K", ">50K"]},
     "columns": {"age": {"type": "number", "bounds": [17, 90], "knots": [28, 37, 48]},
                 "sex": {"type": "category", "categories": ["Female", "Male"]},
                 "id": {"type": "ignore", "note": "looks like an identifier"}}}

Whatever a private table holds, its records are read through a schema, and nothing of them flows back into it.
"""

from __future__ import annotations

import json
import math
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

from sidelight.errors import InputError

__all__ = ["FORMAT", "Column", "Schema", "TargetColumn", "Task"]

FORMAT = 1
Kind = Literal["number", "category", "ignore"]
Task = Literal["classification", "regression"]
KINDS = ("number", "category", "ignore")
TASKS = ("classification", "regression")


@dataclass(frozen=True)
class Column:
    """One feature.

    Args:
        kind: "number", "category", or "ignore" (may be in a table, is not used).
        bounds: of a number; values outside are clipped.
        knots: of a number: its effect is a broken line that bends there; rising, between the bounds.
        categories: of a category; any other value goes into one bucket "other".
        note: for the reader.
    """

    kind: Kind
    bounds: tuple[float, float] | None = None
    knots: tuple[float, ...] = ()
    categories: tuple[str, ...] = ()
    note: str = ""

    def to_dict(self) -> dict[str, Any]:
        out: dict[str, Any] = {"type": self.kind}
        if self.bounds is not None:
            out["bounds"] = [_short(value) for value in self.bounds]
        if self.knots:
            out["knots"] = [_short(value) for value in self.knots]
        if self.kind == "category":
            out["categories"] = list(self.categories)
        return out | ({"note": self.note} if self.note else {})

    @classmethod
    def from_dict(cls, data: Any, where: str) -> Column:
        body = _object(data, where, ("type", "bounds", "knots", "categories", "note"))
        kind = _one_of(body.get("type"), KINDS, f"{where}: type")
        note = str(body.get("note", ""))
        if kind == "ignore":
            return cls("ignore", note=note)
        if kind == "category":
            names = _texts(body.get("categories"), f"{where}: categories")
            return cls("category", categories=names, note=note)
        bounds = _bounds(body.get("bounds"), f"{where}: bounds")
        knots = tuple(
            _real(one, f"{where}: knots") for one in _list(body.get("knots", []), f"{where}: knots")
        )
        edges = (bounds[0], *knots, bounds[1])
        if knots and any(low >= high for low, high in pairwise(edges)):
            raise InputError(f"{where}: knots must rise, and lie between the bounds")
        return cls("number", bounds, knots, note=note)


@dataclass(frozen=True)
class TargetColumn:
    """What is predicted: one of `classes`, or a number within `bounds`."""

    name: str
    task: Task
    classes: tuple[Any, ...] = ()  # texts, or numbers
    bounds: tuple[float, float] | None = None

    def to_dict(self) -> dict[str, Any]:
        out: dict[str, Any] = {"name": self.name, "task": self.task}
        if self.task == "classification":
            return out | {"classes": list(self.classes)}
        assert self.bounds is not None
        return out | {"bounds": [_short(value) for value in self.bounds]}

    @classmethod
    def from_dict(cls, data: Any) -> TargetColumn:
        body = _object(data, "target", ("name", "task", "classes", "bounds", "note"))
        name = body.get("name")
        if not isinstance(name, str) or not name:
            raise InputError("target: name must be the name of a column")
        if _one_of(body.get("task"), TASKS, "target: task") == "regression":
            low, high = _bounds(body.get("bounds"), "target: bounds")
            if low == high:
                raise InputError("target: bounds must be two different numbers")
            return cls(name, "regression", bounds=(low, high))
        classes = _list(body.get("classes"), "target: classes")
        numbers = all(_is_number(one) for one in classes)
        if not numbers and not all(isinstance(one, str) for one in classes):
            raise InputError("target: classes must all be texts, or all be numbers")
        if len(classes) < 2 or len(set(classes)) < len(classes):
            raise InputError("target: classes must be at least two, each named once")
        return cls(name, "classification", classes=tuple(classes))


@dataclass(frozen=True)
class Schema:
    """The target and the columns, by name; `source` says where they come from."""

    target: TargetColumn
    columns: Mapping[str, Column]
    source: str = field(default="declared", compare=False)

    @property
    def used(self) -> dict[str, Column]:
        """The columns that the model sees."""
        return {name: column for name, column in self.columns.items() if column.kind != "ignore"}

    @property
    def ignored(self) -> dict[str, Column]:
        return {name: column for name, column in self.columns.items() if column.kind == "ignore"}

    @classmethod
    def learn(
        cls, public: Any, target: str, *, task: Task | None = None, ignore: tuple[str, ...] | list[str] = ()
    ) -> Schema:
        """From public rows alone: see `data.learning` for the rules."""
        from sidelight.data.learning import learn

        return learn(public, target, task=task, ignore=tuple(ignore))

    def check_needed(self, names: list[str], where: str, *, target: bool = True) -> None:
        """Refuse a table that lacks a column, or has it twice. Names are public."""
        needed = [*self.used, *([self.target.name] if target else [])]
        if missing := [name for name in needed if name not in names]:
            raise InputError(f"{where} lacks {_named(missing)}; it has {_named(names, most=8)}")
        if twice := [name for name in needed if names.count(name) > 1]:
            raise InputError(f"{where} has more than one {_named(twice)}")

    def check_columns(self, names: list[str], where: str) -> None:
        """The same, and refuse a column that nobody declared."""
        self.check_needed(names, where)
        known = {*self.columns, self.target.name}
        if extra := [name for name in names if name not in known]:
            raise InputError(
                f"{where} has {_named(extra)}, which the schema does not know. Remove it, or tell to ignore "
                'it: --ignore NAME, or "type": "ignore" in a schema file'
            )

    def to_dict(self) -> dict[str, Any]:
        columns = {name: column.to_dict() for name, column in self.columns.items()}
        return {"sidelight_schema": FORMAT, "target": self.target.to_dict(), "columns": columns}

    @classmethod
    def from_dict(cls, data: Any, *, source: str = "declared") -> Schema:
        body = _object(data, "the schema", ("sidelight_schema", "target", "columns", "note"))
        if body.get("sidelight_schema") != FORMAT:
            raise InputError(f'expected "sidelight_schema": {FORMAT}')
        target = TargetColumn.from_dict(body.get("target"))
        listed = body.get("columns")
        if not isinstance(listed, dict) or not listed:
            raise InputError("columns must be an object, one entry a column")
        columns = {name: Column.from_dict(one, f"column {name!r}") for name, one in listed.items()}
        if target.name in columns:
            raise InputError(f"{target.name!r} is the target and cannot be among the columns")
        schema = cls(target, columns, source)
        if not schema.used:
            raise InputError("every column is ignored; a model needs at least one")
        return schema

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Schema:
        """A schema file; InputError says which entry is wrong."""
        place = Path(path)
        try:
            data = json.loads(place.read_bytes().decode("utf-8"))
        except OSError as error:
            raise InputError(f"{place} cannot be read: {error.strerror or 'input failed'}") from None
        except (ValueError, RecursionError) as error:
            line = f" (line {error.lineno})" if isinstance(error, json.JSONDecodeError) else ""
            raise InputError(f"{place} is no valid JSON{line}; `sidelight schema` writes one") from None
        try:
            return cls.from_dict(data, source=f"declared in {place.name}")
        except InputError as error:
            raise InputError(f"{place} is not a schema: {error}") from None

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write it as JSON, whole or not at all."""
        place = Path(path)
        temporary = None
        try:
            handle, temporary = tempfile.mkstemp(dir=place.parent, prefix=f".{place.name}.")
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(self.to_text())
            os.chmod(temporary, 0o644)
            os.replace(temporary, place)
            temporary = None
        except OSError as error:
            reason = error.strerror or "output failed"
            raise InputError(f"{place} cannot be written: {reason}") from None
        finally:
            if temporary is not None:
                Path(temporary).unlink(missing_ok=True)

    def to_text(self) -> str:
        """JSON with one line a column."""

        def one(value: Any) -> str:
            return json.dumps(value, ensure_ascii=False, allow_nan=False)

        rows = [f"    {one(name)}: {one(column.to_dict())}" for name, column in self.columns.items()]
        return (
            f'{{\n  "sidelight_schema": {FORMAT},\n  "target": {one(self.target.to_dict())},\n'
            '  "columns": {\n' + ",\n".join(rows) + "\n  }\n}\n"
        )


# What a person may write wrongly, each with a sentence of its own.


def _object(data: Any, where: str, fields: tuple[str, ...]) -> dict[str, Any]:
    if not isinstance(data, dict):
        raise InputError(f"{where} must be an object with {', '.join(fields)}")
    if strange := [name for name in data if name not in fields]:
        raise InputError(f"{where} has no field {strange[0]!r}; expected {', '.join(fields)}")
    return data


def _one_of(value: Any, known: tuple[str, ...], where: str) -> Any:
    if value not in known:
        raise InputError(f"{where} must be {' or '.join(known)}, not {value!r}")
    return value


def _list(value: Any, where: str) -> list[Any]:
    if not isinstance(value, list):
        raise InputError(f"{where} must be a list")
    return value


def _texts(value: Any, where: str) -> tuple[str, ...]:
    names = [str(one) if _is_number(one) else one for one in _list(value, where)]
    if not names or not all(isinstance(one, str) for one in names) or len(set(names)) < len(names):
        raise InputError(f"{where} must be a list of texts, at least one, each named once")
    return tuple(names)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= 1e300


def _real(value: Any, where: str) -> float:
    if not _is_number(value):
        raise InputError(f"{where} must be a number of at most 1e300, not {value!r}")
    return float(value)


def _bounds(value: Any, where: str) -> tuple[float, float]:
    if not isinstance(value, list) or len(value) != 2:
        raise InputError(f"{where} must be [low, high]")
    low, high = (_real(one, where) for one in value)
    if not low <= high:
        raise InputError(f"{where} are reversed: {low:g} is above {high:g}")
    return low, high


def _short(value: float) -> float | int:
    """17 and not 17.0, where that is the same number."""
    whole = math.isfinite(value) and float(value).is_integer() and abs(value) < 2**53
    return int(value) if whole else float(value)


def _named(names: list[str], most: int = 5) -> str:
    shown = ", ".join(repr(name) for name in names[:most])
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return f"column{'s' if len(names) > 1 else ''} {shown}{more}"
