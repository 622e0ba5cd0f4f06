"""How the columns of a table are stored, and whether a schema can read that.

The type that a Parquet file or a frame declares for a column is public. It need not be the schema's: numbers
may be stored as texts, truth values as numbers, and each value is read by the type of the schema. But a list
is no number, whatever is in it, and a column that cannot be read is better refused than missing throughout.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from sidelight.errors import InputError

if TYPE_CHECKING:
    import pyarrow as pa

    from sidelight.data.schema import Schema

__all__ = ["Storage", "check_storage", "storage_of_arrow", "storage_of_frame"]

# "number", "truth", "text", "date", "time", "any" for objects, "floats" for those of pandas; or the name of
# another type.
Storage = str

# What may hold anything: objects, and floats of pandas, which a column of nothing but gaps is made of. One
# record with a value in it would make it another type, and so the type says nothing.
_OPEN = ("any", "floats")
_READABLE: Mapping[str, tuple[Storage, ...]] = {
    "number": ("number", "truth", "text", *_OPEN),
    "boolean": ("truth", "number", "text", *_OPEN),
    "category": ("text", "number", "truth", "date", "time", *_OPEN),
    "code": ("text", "number", *_OPEN),
    "date": ("date", "text", *_OPEN),
    "date as yearmonthday": ("date", "text", "number", *_OPEN),
    "date as time": ("time", "date", "text", *_OPEN),
}
_BETTER = {
    "number": "a number",
    "boolean": "a truth value",
    "category": "text",
    "code": "text",
    "date": "a date or timestamp",
}


def check_storage(schema: Schema, stored: Mapping[str, Storage], where: str, *, target: bool = True) -> None:
    """Refuse a column whose type cannot be read as the schema's, by its name and type alone."""
    for name, column in schema.used.items():
        kind = column.kind
        special = f"{kind} as {column.format}"
        _check(name, stored.get(name, "any"), special if special in _READABLE else kind, where, "type")
    if target:
        texts = schema.target.task == "classification" and isinstance(schema.target.classes[0], str)
        name = schema.target.name
        _check(name, stored.get(name, "any"), "category" if texts else "number", where, "target")


def _check(name: str, stored: Storage, kind: str, where: str, what: str) -> None:
    if stored in _READABLE[kind]:
        return
    other = (
        "declare it otherwise in a schema file, or --ignore it" if what == "type" else "correct the schema"
    )
    better = _BETTER[kind.partition(" ")[0]]
    raise InputError(
        f"column {name!r} of {where} is stored as {stored}, which cannot be read as the schema's {kind}; "
        f"store it as {better} (cast it where the table is written), or {other}"
    )


def storage_of_arrow(kind: pa.DataType) -> Storage:
    """Of a type of Arrow, which is what a Parquet file declares."""
    from pyarrow import types

    if types.is_dictionary(kind):
        return storage_of_arrow(kind.value_type)
    if types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind):
        return "number"
    if types.is_boolean(kind):
        return "truth"
    if types.is_null(kind):
        return "any"
    if types.is_date(kind) or types.is_timestamp(kind):
        return "date"
    if types.is_time(kind):
        return "time"
    texts = (types.is_string, types.is_large_string, types.is_string_view)
    binary = (types.is_binary, types.is_large_binary, types.is_binary_view, types.is_fixed_size_binary)
    return "text" if any(is_kind(kind) for is_kind in (*texts, *binary)) else str(kind)


def storage_of_frame(frame: Any) -> dict[str, Storage]:
    """Of the columns of a pandas frame, by their types."""
    return {str(name): _of_dtype(kind) for name, kind in zip(frame.columns, frame.dtypes, strict=True)}


def _of_dtype(dtype: Any) -> Storage:
    if hasattr(dtype, "pyarrow_dtype"):
        return storage_of_arrow(dtype.pyarrow_dtype)
    if hasattr(dtype, "categories"):
        return "any"  # which categories there are, and so their type, may be the work of one record
    kinds = {"b": "truth", "i": "number", "u": "number", "f": "floats", "U": "text", "S": "text", "T": "text"}
    kind = getattr(dtype, "kind", "O")
    return "date" if kind == "M" else kinds.get(kind, "any") if kind != "m" else str(dtype)
