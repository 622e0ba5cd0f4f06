"""`sidelight compare`: what each method would reach, rehearsed on public rows; spends nothing."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sidelight.cli import grids, terminal
from sidelight.cli.terminal import FILE, LOSSES
from sidelight.errors import InputError

if TYPE_CHECKING:
    from rich.console import Console

    from sidelight.arrays import Json
    from sidelight.comparison.rehearsals import Rehearsal
    from sidelight.comparison.stages import Comparison

SCORES = (
    *("balanced_accuracy", "auc", "log_loss", "calibration_error"),
    *("root_mean_squared_error", "mean_absolute_error"),
)
_rows = terminal.number(
    "a whole number from 1 to 1e9, such as 50000", lambda x: 1 <= x <= 1e9 and x.is_integer()
)


def count(text: str) -> int:
    """A number of rows, which may be written as 5e4 or 50,000."""
    return int(_rows(text.replace(",", "")))


def names(text: str) -> tuple[str, ...]:
    """Methods, with commas; whether they exist is checked with the rest."""
    methods = tuple(part.strip() for part in text.split(",") if part.strip())
    if not methods or len(set(methods)) < len(methods):
        raise click.BadParameter(f"expected different names, such as auto,dp_sgd, got {text!r}")
    return methods


@click.command(
    "compare", short_help="What each method would reach, rehearsed on public rows; spends nothing."
)
@click.option(
    "--public", type=FILE, required=True, metavar="FILE", help="Public records: CSV, TSV or Parquet."
)
@click.option("--target", metavar="COLUMN", help="What to predict.")
@click.option(
    "--rows", type=count, required=True, metavar="N", help="How many records the private table has."
)
@grids.EPSILON
@click.option(
    "--methods",
    type=names,
    metavar="LIST",
    shell_complete=terminal.complete_methods,
    help="Such as auto,dp_sgd,only_public. Default: eight.",
)
@click.option(
    "--score", type=click.Choice(SCORES), metavar="SCORE",
    help=f"Show this one, on real and on synthetic rows: {', '.join(SCORES)}.",
)  # fmt: skip
@click.option("--delta", type=terminal.DELTA, metavar="δ", help="Default: min(1e-5, rows^-1.1).")
@click.option(
    "--relation",
    type=terminal.relation,
    metavar="RELATION",
    help="Default: add-or-remove-one where a method can.",
)
@click.option("--loss", type=click.Choice(LOSSES), metavar="LOSS", help=f"One of {', '.join(LOSSES)}.")
@click.option("--task", type=click.Choice(("classification", "regression")), help="Default: by the target.")
@click.option("--schema", type=FILE, metavar="JSON", help="Columns as you declare them (`sidelight schema`).")
@click.option(
    "--repeats", type=grids.repeats, default="1", show_default=True, metavar="N",
    help="How often the public rows are cut anew.",
)  # fmt: skip
@click.option(
    "--seed", type=click.IntRange(0, 2**31), default=0, show_default=True, metavar="N", help="Of it all."
)
@click.option("--out", type=FILE, metavar="HTML", help="Also write a report with a chart.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(**given: Any) -> None:
    """What each method would reach at each ε, rehearsed on rows synthesised from public ones.

    \b
      sidelight compare --public public.csv --target income --rows 50000 --epsilon 0.1,0.5,1,2
      sidelight compare --public public.csv --target income --rows 50000 --out compare.html

    It reads no private record and spends nothing. A quarter of the public rows is the test set, in turn; half
    make synthetic rows that stand in for the private table; a quarter stays public. Each range is where the
    score of a real fit is expected; which method is best is told more reliably than how good it is.
    """
    public, out, as_json = given.pop("public"), given.pop("out"), given.pop("as_json")
    score = given.pop("score")
    for path in (public, given["schema"]):
        if path is not None and not path.exists():
            raise InputError(f"{path} does not exist")
    if given["target"] is None and given["schema"] is None:
        raise InputError("--target is missing: say which column to predict")
    if out is not None and not out.resolve().parent.is_dir():
        raise InputError(f"--out: there is no folder {out.parent}")
    rehearsal = _rehearse(public, given, quiet=as_json)
    if out is not None:
        from sidelight.report import write_report

        write_report(rehearsal.card(), out)
    if as_json:
        terminal.as_json(rehearsal.to_dict() | ({"report": str(out)} if out is not None else {}))
    else:
        _print(terminal.console(), rehearsal, out, score)


def _rehearse(public: Path, given: Json, *, quiet: bool) -> Rehearsal:
    from sidelight.comparison.rehearsals import DEFAULT_METHODS, compare

    given["methods"] = given["methods"] or DEFAULT_METHODS
    screen = terminal.console()
    with grids.Board(screen, title="Rehearsing on synthetic rows", quiet=quiet, sparks=True) as board:
        return compare(public, **given, progress=board.show)


def _print(screen: Console, rehearsal: Rehearsal, out: Path | None, score: str | None) -> None:
    from sidelight.scoring import NAMES

    comparison = rehearsal.comparison
    unit = "accuracy in %" if comparison.score == "accuracy" else comparison.score
    unit = unit if score is None else NAMES[score]
    screen.print(
        f"[bold]Range of {unit} for {rehearsal.target}[/] with {rehearsal.rows:,} private and "
        f"{rehearsal.public_rows:,} public rows, δ = {rehearsal.delta:.2g}"
    )
    screen.print(_baseline(rehearsal), markup=False)
    screen.print(grids.grid(comparison, width=screen.width, sparks=score is None, measure=score))
    screen.print(f"{_advice(comparison)}\n")
    for method, reason in comparison.refused.items():
        screen.print(f"[dim]{method} refused:[/] ", end="")
        screen.print(reason, markup=False, style="dim")
    for note in rehearsal.notes:
        screen.print(note, style="dim", markup=False)
    if out is not None:
        screen.print(f"Written: {out}", markup=False)


def _baseline(rehearsal: Rehearsal) -> str:
    found = rehearsal.baseline
    if rehearsal.task == "classification":
        return f"{100 * found['value']:.1f} % of the public rows are {found['label']!r}: beat that."
    return f"Always the mean has R² = 0, and an error of {found['root_mean_squared_error']:.3g}: beat that."


def _advice(comparison: Comparison) -> str:
    """Which methods differ by more than the error, and which do not."""
    lines = []
    for epsilon in comparison.epsilons:
        best = comparison.best(epsilon)
        if best is None:
            continue
        level = [m for m in comparison.methods if m != best and comparison.level(m, epsilon)]
        others = f", not distinguishable from {', '.join(level)}" if level else ""
        lines.append(f"ε = {epsilon:g}: {best}{others}")
    if not lines:
        return "No method could be rehearsed."
    head = "[green]*[/] best on synthetic rows, [green]~[/] within two standard errors of it:\n"
    return head + "\n".join(lines)
