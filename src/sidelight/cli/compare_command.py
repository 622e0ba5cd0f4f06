"""`sidelight compare`: what each method would reach, rehearsed on public rows; spends nothing.

`sidelight methods`: what methods there are, what each needs, and when it wins.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sidelight.cli import terminal
from sidelight.cli.terminal import FILE, LOSSES
from sidelight.errors import InputError
from sidelight.files import missing

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


@click.command("compare")
@click.option(
    "--public", type=FILE, required=True, metavar="FILE", help="Public records: CSV, TSV or Parquet."
)
@click.option("--target", metavar="COLUMN", help="What to predict.")
@click.option(
    "--rows", type=count, required=True, metavar="N", help="How many records the private table has."
)
@terminal.EPSILONS
@click.option(
    "--methods",
    type=names,
    metavar="LIST",
    shell_complete=terminal.complete_methods,
    help="Such as auto,dp_sgd,only_public. Default: eight methods.",
)
@click.option(
    "--score", type=click.Choice(SCORES), metavar="SCORE",
    help=f"Show this score, on real and on synthetic rows: {', '.join(SCORES)}.",
)  # fmt: skip
@click.option("--delta", type=terminal.DELTA, metavar="δ", help="Default: min(1e-5, 1/(100·rows)).")
@click.option(
    "--relation",
    type=terminal.relation,
    metavar="RELATION",
    help="Default: add-or-remove-one if a method offers it.",
)
@click.option("--loss", type=click.Choice(LOSSES), metavar="LOSS", help=f"One of {', '.join(LOSSES)}.")
@click.option("--task", type=click.Choice(("classification", "regression")), help="Default: from the target.")
@terminal.IGNORE
@terminal.TYPES
@click.option("--schema", type=FILE, metavar="JSON", help="Declared columns (`sidelight schema`).")
@click.option(
    "--repeats", type=terminal.repeats, default="1", show_default=True, metavar="N",
    help="How often to split the public rows anew.",
)  # fmt: skip
@click.option(
    "--seed", type=click.IntRange(0, 2**31), default=0, show_default=True, metavar="N", help="Random seed."
)
@click.option("--out", type=FILE, metavar="HTML", help="Also write a report with a chart.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(**given: Any) -> None:
    """What each method would reach at each ε, rehearsed on rows synthesized from public ones.

    \b
      sidelight compare --public public.csv --target income --rows 50000
      sidelight compare --public public.csv --target income --rows 50000 \\
          --epsilon 0.1,1 --out compare.html

    It reads no private record and spends nothing. In turn, a quarter of the public rows is the test set;
    half become synthetic rows that stand in for the private table; a quarter stays public. Each range is
    where the score of a real fit is expected. The ranking is more reliable than the scores.
    """
    public, out, as_json = given.pop("public"), given.pop("out"), given.pop("as_json")
    given["random_state"] = given.pop("seed")
    score = given.pop("score")
    for path in (public, given["schema"]):
        if path is not None and not path.exists():
            raise InputError(missing(path))
    terminal.check_target(given["target"], given["schema"])
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
    with terminal.ProgressTable(
        screen, title="Rehearsing on synthetic rows", quiet=quiet, sparks=True
    ) as board:
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
    screen.print(terminal.grid(comparison, width=screen.width, sparks=score is None, measure=score))
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
        return f"baseline: {100 * found['value']:.1f}\u202f% (always predicting {found['label']!r})"
    return f"baseline: R² = 0, error {found['root_mean_squared_error']:.3g} (always predicting the mean)"


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


# ---------------------------------------------------------------------------------------------------
# what methods there are


SHORT = {"add-or-remove-one": "add/remove", "replace-one": "replace"}


@click.command("methods")
@click.argument("name", required=False, metavar="[NAME]", shell_complete=terminal.complete_methods)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def methods(name: str | None, as_json: bool) -> None:
    """List methods, what each needs, and when it wins and loses.

    \b
      sidelight methods              the list
      sidelight methods dope_sgd     one of them: parameters, guarantee, …
      sidelight methods --json | jq -r '.methods[] | select(.networks) | .name'
    """
    from sidelight.methods.declare import METHODS, describe

    if name is not None:
        facts = describe(name)
        terminal.as_json(facts) if as_json else _print_one(terminal.console(), facts)
        return
    everything = [describe(method) for method in METHODS]
    if as_json:
        terminal.as_json({"methods": everything})
    else:
        _print_all(terminal.console(), everything)


def _print_all(screen: Console, methods: list[Json]) -> None:
    rows = terminal.table("method", "when it wins, and when it loses")
    for method in methods:
        needs = f"\n[dim]  needs {method['needs']}[/]" if method["needs"] else ""
        text = f"[green]+[/] {method['wins']}\n[red]−[/] {method['loses']}{needs}"
        rows.add_row(f"[bold]{method['name']}[/]\n[dim]{_facts(method)}[/]", text)
    screen.print(rows)
    screen.print(
        "[dim]replace, add/remove: what a neighboring dataset is; the first is the default. "
        "public: needs public rows. networks: also for Trainer.[/]\n"
        "More of one: sidelight methods NAME. Which suits your data: sidelight compare --help."
    )


def _facts(method: Json) -> str:
    """The second and third line of the first column."""
    relations = ", ".join(SHORT[relation] for relation in method["relations"])
    if not method["private"]:
        relations = "[red]no guarantee at all[/]"
    flags = [
        word
        for word, is_so in (("public", method["needs_public"]), ("networks", method["networks"]))
        if is_so
    ]
    return "\n".join([relations, " · ".join(flags)] if flags else [relations])


def _print_one(screen: Console, method: Json) -> None:
    from rich.markup import escape

    facts = terminal.table("", "")
    facts.show_header = False
    lines = {
        "paper": method["paper"],
        "relation": ", or ".join(method["relations"])
        + (" (the first by default)" if method["relations"][1:] else ""),
        "public records": "needed" if method["needs_public"] else "not needed",
        "also needs": method["needs"],
        "networks": "yes, in Trainer and PrivateStep" if method["networks"] else "no, linear models only",
        "wins": method["wins"],
        "loses": method["loses"],
        "guarantee": method.get("guarantee", ""),
        "assumes": method.get("assumes", ""),
        "departs": method.get("departs", ""),
    }
    screen.print(f"[bold]{method['name']}[/] {escape(method['summary'])}")
    for title, text in lines.items():
        if text:
            terminal.add_row(facts, title, text)
    screen.print(facts)
    _print_parameters(screen, method)


def _print_parameters(screen: Console, method: Json) -> None:
    if not method["parameters"]:
        screen.print("It has no parameters.")
        return
    rows = terminal.table("parameter", "default", "meaning", "type")
    for item in method["parameters"]:
        terminal.add_row(rows, item["name"], str(item["default"]), item["meaning"], item["type"])
    screen.print(rows)
    screen.print(f"To use it: sidelight fit … --method {method['name']}", markup=False)
