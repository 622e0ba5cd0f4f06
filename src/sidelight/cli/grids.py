"""Methods against ε on a screen, for `demo` and `compare`: a table that fills in while fits run."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import TYPE_CHECKING, Self

import click

from sidelight.cli import terminal

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.live import Live
    from rich.progress import Progress, TaskID
    from rich.table import Table

    from sidelight.comparison.stages import Comparison

__all__ = ["EPSILON", "Board", "epsilons", "grid", "number", "signed", "sparkline"]

_BARS = "▁▂▃▄▅▆▇█"


def epsilons(text: str) -> tuple[float, ...]:
    """A list such as 0.1,0.5,1,2: sorted, each once."""
    values = [terminal.EPSILON(part.strip()) for part in text.split(",")]
    if len(set(values)) < len(values):
        raise click.BadParameter(f"expected different numbers, such as 0.1,0.5,1,2, got {text!r}")
    if len(values) > 12:
        raise click.BadParameter(f"expected at most 12 numbers, got {len(values)}")
    return tuple(sorted(values))


EPSILON = click.option(
    "--epsilon", type=epsilons, default="0.1,0.5,1,2", show_default=True, metavar="LIST", help="Budgets."
)


def repeats(text: str) -> int:
    """How often everything is done anew."""
    value = terminal.number("a whole number from 1 to 100", lambda x: 1 <= x <= 100 and x.is_integer())(text)
    return int(value)


def number(value: float, score: str) -> str:
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
    return f"{sign}{number(abs(pair[0]), score)} ±{number(pair[1], score)}"


def grid(comparison: Comparison, *, width: int, sparks: bool = False, measure: str | None = None) -> Table:
    """A row per method, a column per ε. * marks the best private one, ~ those that are level with it.

    measure: another score to show, of `scoring.NAMES`; marks and bars stay those of the first.
    """
    cells = 3 + len(f"{number(0.5, comparison.score)} – {number(0.5, comparison.score)}*")
    names = max(map(len, comparison.methods))
    taken = names + 3 + len(comparison.epsilons) * cells
    bare, sparks = taken > width, sparks and taken + 12 <= width  # first the bars go, then the errors
    heads = [f"ε = {epsilon:g}" for epsilon in comparison.epsilons]
    rows = terminal.table("method", *heads, *(["over ε"] if sparks else []), numbers=tuple(heads))
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
        text = number(score[0], comparison.score)
        if not bare:
            text += f" [dim]±{number(comparison.error(method, epsilon), comparison.score)}[/]"
    return f"[{style}]{text}{mark}[/]" if style else f"{text}{mark}"


def sparkline(comparison: Comparison, method: str) -> str:
    """Bars over ε, on one scale for all methods."""
    every = [s[0] for m in comparison.methods for e in comparison.epsilons if (s := comparison.of(m, e))]
    low, high = (min(every), max(every)) if every else (0.0, 1.0)
    reach = (high - low) or 1.0
    scores = [comparison.of(method, epsilon) for epsilon in comparison.epsilons]
    return "".join(" " if score is None else _BARS[round((score[0] - low) / reach * 7)] for score in scores)


class Board:
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
