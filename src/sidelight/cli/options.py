"""Values that several commands take, each with the sentence that a bad one gets."""

from __future__ import annotations

import math
from collections.abc import Callable

import click
from click.shell_completion import CompletionItem


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
