"""How results look: numbers rounded to the safe side, tables, and JSON that scripts can read."""

from __future__ import annotations

import json
import math
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from sidelight.arrays import Json


def up(value: float, digits: int = 5) -> str:
    """A bound on what was lost (ε, noise), never printed smaller than it is."""
    return _rounded(value, digits, ROUND_CEILING)


def down(value: float, digits: int = 5) -> str:
    """What is left of a budget, never printed larger than it is."""
    return _rounded(value, digits, ROUND_FLOOR)


def _rounded(value: float, digits: int, rounding: str) -> str:
    value = float(value)  # NumPy's own floats print differently
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    exact = Decimal(value)  # the binary value itself, so that a printed 1.83 is never below it
    shortest = Decimal(repr(value))
    if len(shortest.normalize().as_tuple().digits) <= digits:
        return f"{value:.{digits}g}"  # the number that was typed, as it was typed
    last = Decimal(1).scaleb(exact.adjusted() - digits + 1)
    return f"{float(exact.quantize(last, rounding=rounding)):.{digits}g}"


def as_json(data: Json) -> None:
    """Print a dictionary as JSON. Infinity has no JSON, so it is written as a word."""
    click.echo(to_text(data))


def to_text(data: Json) -> str:
    return json.dumps(_words(data), indent=2, allow_nan=False, ensure_ascii=False)


def _words(value: object) -> object:
    if isinstance(value, dict):
        return {key: _words(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_words(item) for item in value]
    if isinstance(value, float) and math.isinf(value):
        return "infinity" if value > 0 else "-infinity"
    return value


def console() -> Console:
    """A console that breaks no numbers: a pipe gets 100 columns, a terminal its own width."""
    import os
    import sys

    from rich.console import Console

    width = None if sys.stdout.isatty() or "COLUMNS" in os.environ else 100
    return Console(width=width, highlight=False)


def table(*columns: str, numbers: tuple[str, ...] = ()) -> Table:
    """An empty table in the style of all others; the named columns are aligned to the right."""
    from rich import box
    from rich.table import Table

    result = Table(box=box.SIMPLE_HEAD, header_style="bold", pad_edge=False)
    for column in columns:
        right = column in numbers
        result.add_column(column, justify="right" if right else "left", no_wrap=right, overflow="fold")
    return result


def add_row(rows: Table, *cells: str) -> None:
    """Add text that somebody else may have chosen: shown as it is, without markup or escape sequences."""
    from rich.text import Text

    rows.add_row(*(Text("".join(c if c.isprintable() else "\ufffd" for c in cell)) for cell in cells))
