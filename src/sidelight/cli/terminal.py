"""What commands share: values that they take, and how results look, as tables and as JSON for scripts."""

from __future__ import annotations

import json
import math
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

import click
from click.shell_completion import CompletionItem

from sidelight.errors import InputError

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.live import Live
    from rich.progress import Progress, TaskID
    from rich.table import Table

    from sidelight.arrays import Json
    from sidelight.comparison.stages import Comparison


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


def fold(text: str) -> str:
    """Text in lines of at most 80 columns; a word, such as a path, stays whole."""
    words = " ".join(text.split())
    lines = textwrap.wrap(
        words, subsequent_indent="  ", width=80, break_long_words=False, break_on_hyphens=False
    )
    return "\n".join(lines)


def typed(command: str, indent: str = "  ") -> str:
    """A command to type, over lines of at most 80 columns that a shell reads as one."""
    lines = [indent]
    for word in command.replace(" --", "\n--").split("\n"):
        if len(lines[-1]) + len(word) > 78 and lines[-1].strip():
            lines[-1] += "\\"
            lines.append(f"{indent}    ")
        lines[-1] += f"{word} "
    return "\n".join(line.rstrip() for line in lines)


def console() -> Console:
    """A console that breaks no numbers: a pipe gets 80 columns, a terminal its own width."""
    import os
    import sys

    from rich.console import Console

    width = None if sys.stdout.isatty() or "COLUMNS" in os.environ else 80
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

    rows.add_row(*(Text("".join(c if _is_shown(c) else "\ufffd" for c in cell)) for cell in cells))


def _is_shown(character: str) -> bool:
    """Printable, or a space that keeps a number and its unit on one line."""
    return character.isprintable() or character in "\u00a0\u202f"


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
    """What a neighboring dataset is."""

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


# What shells complete, without importing any of it: a test compares it with `METHODS`.
METHOD_NAMES = (
    "auto",
    "adadps",
    "adamix",
    "coupling",
    "dope_sgd",
    "dp_sgd",
    "dpmd",
    "full_private",
    "only_private",
    "ppsgd",
    "precision_weighting",
    "public_whitening",
    "sample_mechanism",
    "sgd_adv",
    "adassp",
    "agd_avg",
    "amp",
    "boosted_adassp",
    "dp_agd",
    "dp_newton",
    "hessian_mixing",
    "nsgd",
    "objective_perturbation",
    "output_perturbation",
    "pmt",
    "pnsgd",
    "rsgd_ar",
    "majority",
    "non_private",
    "only_public",
)


def complete_methods(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Names of methods. In a list with commas the last one is completed, by what is not there yet."""
    before, comma, last = incomplete.rpartition(",")
    there = before.split(",")
    return [
        CompletionItem(before + comma + name)
        for name in METHOD_NAMES
        if name.startswith(last) and name not in there
    ]


def column_types(ctx: click.Context, param: click.Parameter, given: tuple[str, ...]) -> dict[str, str]:
    """COLUMN=TYPE, any number of times; the last = counts, since a name may have one."""
    pairs = [text.rpartition("=") for text in given]
    if bad := [text for text, (name, _, kind) in zip(given, pairs, strict=True) if not name or not kind]:
        raise click.BadParameter(f"expected COLUMN=TYPE, such as zip=code, got {bad[0]!r}")
    return {name: kind for name, _, kind in pairs}


IGNORE = click.option(
    "--ignore", multiple=True, metavar="COLUMN", help="Do not use this column; may be repeated."
)
TYPES = click.option(
    "--type", "types", multiple=True, callback=column_types, metavar="COLUMN=TYPE",
    help="Type of a column: number, boolean, category, code, date, text; may be repeated.",
)  # fmt: skip


# ---------------------------------------------------------------------------------------------------
# methods against ε, for demo and compare: a table that fills in while fits run


_BARS = "▁▂▃▄▅▆▇█"


def epsilons(text: str) -> tuple[float, ...]:
    """A list such as 0.1,0.5,1,2: sorted, each once."""
    values = [EPSILON(part.strip()) for part in text.split(",")]
    if len(set(values)) < len(values):
        raise click.BadParameter(f"expected different numbers, such as 0.1,0.5,1,2, got {text!r}")
    if len(values) > 12:
        raise click.BadParameter(f"expected at most 12 numbers, got {len(values)}")
    return tuple(sorted(values))


EPSILONS = click.option(
    "--epsilon", type=epsilons, default="0.1,0.5,1,2", show_default=True, metavar="LIST", help="Budgets."
)


def repeats(text: str) -> int:
    """How often everything is done anew."""
    value = number("a whole number from 1 to 100", lambda x: 1 <= x <= 100 and x.is_integer())(text)
    return int(value)


def score_text(value: float, score: str) -> str:
    """An accuracy in percent, an R² as it is."""
    return f"{100 * value:.1f}" if score == "accuracy" else f"{value:.3f}"


def _whole(value: float, score: str) -> str:
    """An end of a range, which is not known to a tenth of a percent."""
    return f"{100 * value:.0f}" if score == "accuracy" else f"{value:.2f}"


def signed(pair: tuple[float, float] | None, score: str) -> str:
    """A difference with its standard error."""
    if pair is None:
        return "–"
    sign = "+" if pair[0] >= 0 else "−"
    return f"{sign}{score_text(abs(pair[0]), score)} ±{score_text(pair[1], score)}"


def grid(comparison: Comparison, *, width: int, sparks: bool = False, measure: str | None = None) -> Table:
    """A row per method, a column per ε. * marks the best private one, ~ those that are level with it.

    measure: another score to show, of `scoring.NAMES`; marks and bars stay those of the first.
    """
    cells = 3 + len(f"{score_text(0.5, comparison.score)} – {score_text(0.5, comparison.score)}*")
    names = max(map(len, comparison.methods))
    taken = names + 3 + len(comparison.epsilons) * cells
    many = len(comparison.epsilons) > 1  # one bar compares nothing
    bare, sparks = taken > width, sparks and many and taken + 12 <= width  # bars go first, then the errors
    heads = [f"ε = {epsilon:g}" for epsilon in comparison.epsilons]
    rows = table("method", *heads, *(["over ε"] if sparks else []), numbers=tuple(heads))
    for column in rows.columns:
        column.no_wrap = True
    for method in comparison.methods:
        line = [
            _cell(comparison, method, epsilon, bare=bare, measure=measure) for epsilon in comparison.epsilons
        ]
        style = "dim" if method == "non_private" else ""
        rows.add_row(method, *line, *([sparkline(comparison, method)] if sparks else []), style=style)
    return rows


def _cell(
    comparison: Comparison, method: str, epsilon: float, *, bare: bool, measure: str | None = None
) -> str:
    score = comparison.of(method, epsilon)
    if score is None:
        return "[dim]refused[/] " if method in comparison.refused else "[dim]·[/] "
    mark, style = " ", ""
    if method == comparison.best(epsilon):
        mark, style = "*", "bold green"
    elif comparison.level(method, epsilon):
        mark, style = "~", "green"
    if measure is not None:
        ends = comparison.measures(method, epsilon).get(measure)
        text = "–" if ends is None else f"{ends[0]:.3g} – {ends[1]:.3g}"
    elif (ends := comparison.range(method, epsilon)) is not None:
        text = f"{_whole(ends[0], comparison.score)} – {_whole(ends[1], comparison.score)}"
    else:
        text = score_text(score[0], comparison.score)
        if not bare:
            text += f" [dim]±{score_text(comparison.error(method, epsilon), comparison.score)}[/]"
    return f"[{style}]{text}{mark}[/]" if style else f"{text}{mark}"


def sparkline(comparison: Comparison, method: str) -> str:
    """Bars over ε, on one scale for all methods."""
    every = [s[0] for m in comparison.methods for e in comparison.epsilons if (s := comparison.of(m, e))]
    low, high = (min(every), max(every)) if every else (0.0, 1.0)
    reach = (high - low) or 1.0
    scores = [comparison.of(method, epsilon) for epsilon in comparison.epsilons]
    return "".join(" " if score is None else _BARS[round((score[0] - low) / reach * 7)] for score in scores)


class ProgressTable:
    """The table while it fills in, on a terminal; a bar on stderr if only that is one; else nothing."""

    def __init__(self, screen: Console, *, title: str, quiet: bool = False, sparks: bool = False) -> None:
        self.screen, self.title, self.sparks = screen, title, sparks
        self._table = not quiet and sys.stdout.isatty()
        self._bar = not self._table and sys.stderr.isatty()
        self._live: Live | None = None
        self._progress: tuple[Progress, TaskID] | None = None

    def __enter__(self) -> Self:
        if self._table:
            from rich.live import Live

            self._live = Live(console=self.screen, refresh_per_second=8, transient=True)
            self._live.start()
        elif self._bar:
            from rich.console import Console
            from rich.progress import Progress

            progress = Progress(console=Console(stderr=True), transient=True)
            progress.start()
            self._progress = progress, progress.add_task(self.title, total=None)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()
        if self._progress is not None:
            self._progress[0].stop()

    def show(self, comparison: Comparison, method: str, epsilon: float, done: int, total: int) -> None:
        """Called before each fit."""
        if self._live is not None:
            self._live.update(self._screenful(comparison, f"{method} at ε = {epsilon:g}", done, total))
        elif self._progress is not None:
            bar, task = self._progress
            bar.update(task, completed=done, total=total, description=f"{self.title}: {method}")

    def _screenful(self, comparison: Comparison, now: str, done: int, total: int) -> RenderableType:
        from rich.console import Group
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        line = Table.grid(padding=(0, 2))
        line.add_row(
            ProgressBar(total=total, completed=done, width=24), f"[dim]fit {done + 1} of {total}: {now}[/]"
        )
        return Group(
            Text.from_markup(f"[bold]{self.title}[/]"),
            grid(comparison, width=self.screen.width, sparks=self.sparks),
            line,
        )


# ---------------------------------------------------------------------------------------------------
# what several commands refuse


def exists_already(path: Path) -> InputError:
    """Of --out: nothing is replaced, as the name may be a slip."""
    return InputError(f"--out: {path} exists and is not replaced; choose another name")


def check_target(target: str | None, schema: Path | None) -> None:
    """Refuse a table of which nobody says what to predict."""
    if target is None and schema is None:
        raise InputError("--target is missing: say which column to predict")
