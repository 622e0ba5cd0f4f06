"""What commands share: values that they take, and how results look, as tables and as JSON for scripts."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from decimal import ROUND_CEILING, ROUND_FLOOR
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.shell_completion import CompletionItem

from sidelight.numbers import rounded

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from sidelight.arrays import Json


def up(value: float, digits: int = 5) -> str:
    """A bound on what was lost (ε, noise), never printed smaller than it is."""
    return f"{rounded(value, digits, ROUND_CEILING):.{digits}g}"


def down(value: float, digits: int = 5) -> str:
    """What is left of a budget, never printed larger than it is."""
    return f"{rounded(value, digits, ROUND_FLOOR):.{digits}g}"


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


# ---------------------------------------------------------------------------------------------------
# values that several commands take, each with the sentence that a bad one gets


def number(expected: str, accepts: Callable[[float], bool]) -> Callable[[str], float]:
    """A type for click: a finite number in a range. A bad value is answered with the name of that range."""

    def parse(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not (math.isfinite(value) and accepts(value)):
            raise click.BadParameter(f"expected {expected}, got {text!r}")
        return value

    return parse


FILE = click.Path(path_type=Path)
LOSSES = ("logistic", "hinge", "huber", "square", "softmax")

# The ranges are those in which the accountants answer within seconds; they hold every plan that makes sense.
PROBABILITY = number("a probability from 1e-9 to 1, such as 0.01", lambda x: 1e-9 <= x <= 1)
DELTA = number("a number strictly between 0 and 1, such as 1e-5", lambda x: 0 < x < 1)
EPSILON = number("a number above 0 and at most 600, such as 1.5", lambda x: 0 < x <= 600)
NOISE = number("a number from 0.02 to 1e6, such as 1.5", lambda x: 0.02 <= x <= 1e6)

_count = number("a whole number from 1 to 1e6, such as 1000", lambda x: 1 <= x <= 1e6 and x.is_integer())


def count(text: str) -> int:
    """A number of steps, which may be written as 1e6."""
    return int(_count(text))


# Written out because importing them from sidelight.privacy would load dp-accounting; a test compares the two.
RELATIONS = ("add-or-remove-one", "replace-one")


class _Relation(click.ParamType):  # type: ignore[type-arg]  # generic in newer versions of click
    """What a neighbouring dataset is."""

    name = "relation"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if value not in RELATIONS:
            raise click.BadParameter(f"expected {' or '.join(RELATIONS)}, got {value!r}")
        return value

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        return [CompletionItem(name) for name in RELATIONS if name.startswith(incomplete)]


relation = _Relation()


def complete_methods(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Names of methods. In a list with commas the last one is completed, by what is not there yet."""
    from sidelight.methods.declare import homes

    before, comma, last = incomplete.rpartition(",")
    there = before.split(",")
    return [
        CompletionItem(before + comma + name, help=entry.wins)
        for name, entry in homes().items()
        if name.startswith(last) and name not in there
    ]


def column_types(ctx: click.Context, param: click.Parameter, given: tuple[str, ...]) -> dict[str, str]:
    """COLUMN=TYPE, any number of times; the last = counts, since a name may have one."""
    pairs = [text.rpartition("=") for text in given]
    if bad := [text for text, (name, _, kind) in zip(given, pairs, strict=True) if not name or not kind]:
        raise click.BadParameter(f"expected COLUMN=TYPE, such as zip=code, got {bad[0]!r}")
    return {name: kind for name, _, kind in pairs}
