"""`sidelight compare`: what each method would reach, rehearsed on public rows; spends nothing."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sidelight.cli import grids, options, show
from sidelight.errors import InputError

if TYPE_CHECKING:
    from rich.console import Console

    from sidelight.comparison.rehearsals import Rehearsal
    from sidelight.comparison.stages import Comparison

FILE = click.Path(path_type=Path)
LOSSES = ("logistic", "hinge", "huber", "square", "softmax")
_rows = options.number(
    "a whole number from 1 to 1e9, such as 50000", lambda x: 1 <= x <= 1e9 and x.is_integer()
)


def count(text: str) -> int:
    """A number of rows, which may be written as 5e4 or 50,000."""
    return int(_rows(text.replace(",", "")))


def names(text: str) -> tuple[str, ...]:
    """Methods, with commas; whether they exist is checked with the rest."""
    found = tuple(one.strip() for one in text.split(",") if one.strip())
    if not found or len(set(found)) < len(found):
        raise click.BadParameter(f"expected different names, such as auto,dp_sgd, got {text!r}")
    return found


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
    shell_complete=options.complete_methods,
    help="Such as auto,dp_sgd,only_public. Default: eight.",
)
@click.option("--delta", type=options.DELTA, metavar="δ", help="Default: min(1e-5, rows^-1.1).")
@click.option("--relation", type=options.relation, metavar="RELATION", help="Default: each method's own.")
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

    It reads no private record and spends nothing. A quarter of the public rows judges, in turn; half make
    synthetic rows that stand in for the private table; a quarter stays public. The numbers are expectations
    on synthetic data: on three tables they were two to three points too high for private methods.
    """
    public, out, as_json = given.pop("public"), given.pop("out"), given.pop("as_json")
    for path in (public, given["schema"]):
        if path is not None and not path.exists():
            raise InputError(f"{path} does not exist")
    if given["target"] is None and given["schema"] is None:
        raise InputError("--target is missing: say which column to predict")
    if out is not None and not out.resolve().parent.is_dir():
        raise InputError(f"--out: there is no folder {out.parent}")
    found = _rehearse(public, given, quiet=as_json)
    if out is not None:
        from sidelight.report import write_report

        write_report(found.card(), out)
    if as_json:
        show.as_json(found.to_dict() | ({"report": str(out)} if out is not None else {}))
    else:
        _print(show.console(), found, out)


def _rehearse(public: Path, given: dict[str, Any], *, quiet: bool) -> Rehearsal:
    from sidelight.comparison.rehearsals import DEFAULT_METHODS, compare

    given["methods"] = given["methods"] or DEFAULT_METHODS
    screen = show.console()
    with grids.Board(screen, title="Rehearsing on synthetic rows", quiet=quiet, sparks=True) as board:
        return compare(public, **given, progress=board.show)


def _print(screen: Console, found: Rehearsal, out: Path | None) -> None:
    one = found.comparison
    unit = "accuracy in %" if one.score == "accuracy" else one.score
    screen.print(
        f"[bold]Expected {unit} for {found.target}[/] with {found.rows:,} private and {found.public_rows:,} "
        f"public rows, δ = {found.delta:.2g}"
    )
    screen.print(grids.grid(one, width=screen.width, sparks=True))
    screen.print(f"{_advice(one)}\n")
    for method, reason in one.refused.items():
        screen.print(f"[dim]{method} refused:[/] ", end="")
        screen.print(reason, markup=False, style="dim")
    for note in found.notes:
        screen.print(note, style="dim", markup=False)
    if out is not None:
        screen.print(f"Written: {out}", markup=False)


def _advice(found: Comparison) -> str:
    """What can be told apart, and what cannot."""
    lines = []
    for epsilon in found.epsilons:
        best = found.best(epsilon)
        if best is None:
            continue
        level = [m for m in found.methods if m != best and found.level(m, epsilon)]
        others = f", not to be told from {', '.join(level)}" if level else ""
        lines.append(f"ε = {epsilon:g}: {best}{others}")
    if not lines:
        return "No method could be rehearsed."
    return "[green]*[/] best, [green]~[/] within two standard errors of it:\n" + "\n".join(lines)
