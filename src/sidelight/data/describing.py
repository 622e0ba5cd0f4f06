"""What was recognised in a table, in one line for all columns that were treated alike."""

from __future__ import annotations

from sidelight.data.declared import named
from sidelight.data.schema import Column, Schema

__all__ = ["column_lines"]

_MOST_NAMES = 5


def column_lines(schema: Schema) -> list[str]:
    """Lines for whatever is neither a plain number nor a plain category; `ignored` columns have notes."""
    groups: dict[str, list[str]] = {}
    for name, column in schema.used.items():
        if text := _treatment(column):
            groups.setdefault(text, []).append(name)
    lines = [f"{named(names, most=_MOST_NAMES)}: {text}" for text, names in groups.items()]
    if pairs := [f"{first} × {second}" for first, second in schema.interactions or ()]:
        lines.append(
            f"{named(pairs, most=_MOST_NAMES)}: products, so that one effect may depend on the other"
        )
    return lines


def _treatment(column: Column) -> str:
    if column.kind == "boolean":
        return "true or false"
    if column.kind == "date":
        order = "" if column.format == "year-month-day" else f", written {column.format}"
        return f"dates{order}; used as {', '.join(column.parts)}"
    if column.kind == "code":
        first = "all" if column.prefix == column.digits else f"the first {column.prefix}"
        return f"codes; used are {first} of {column.digits} digits"
    return column.note
