"""`sidelight audit`: try to prove a method's claim wrong."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

import click

from sidelight.cli import terminal
from sidelight.errors import InputError
from sidelight.numbers import plain_down, plain_up

if TYPE_CHECKING:
    from sidelight.arrays import Json
    from sidelight.audit.result import AuditResult
    from sidelight.audit.suite import SuitePlan

REFUTED = 1
KINDS = ("replay", "many-run", "one-run")
_confidence = terminal.number("a confidence strictly between 0 and 1, such as 0.95", lambda x: 0 < x < 1)
_whole = terminal.number(
    "a whole number from 20 to 1e6, such as 400", lambda x: 20 <= x <= 1e6 and x == int(x)
)
_seed = terminal.number("a whole number from 0 to 1e9", lambda x: 0 <= x <= 1e9 and x == int(x))


@click.command("audit")
@click.argument("methods", nargs=-1, metavar="[METHOD]...", shell_complete=terminal.complete_methods)
@click.option("--all", "everything", is_flag=True, help="Every method, under every relation it offers.")
@click.option(
    "--kind",
    "kinds",
    type=click.Choice(KINDS),
    multiple=True,
    help="Which audit; may be repeated. Default: all, or replay if no method is named.",
)
@click.option(
    "--model", type=click.Choice(("linear", "network")), default="linear", show_default=True,
    help="What is trained; networks need PyTorch.",
)  # fmt: skip
@click.option("--relation", type=terminal.relation, metavar="RELATION", help="Only this one. Default: all.")
@click.option("--epsilon", "-e", type=terminal.EPSILON, default=1.0, metavar="ε", help="Claim. [default: 1]")
@click.option("--delta", "-d", type=terminal.DELTA, default=1e-5, metavar="δ", help="Claim. [default: 1e-5]")
@click.option(
    "--runs", type=_whole, default=400, metavar="N", help="Runs on each of two datasets. [default: 400]"
)
@click.option(
    "--canaries", type=_whole, default=1000, metavar="M", help="Records in a one-run audit. [default: 1000]"
)
@click.option(
    "--confidence", type=_confidence, default=0.95, metavar="P", help="For lower bounds. [default: 0.95]"
)
@click.option(
    "--seed", type=_seed, default=0, metavar="K", help="Another seed is another audit. [default: 0]"
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option(
    "--out", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE", help="Also write the JSON here."
)
def command(
    methods: tuple[str, ...], everything: bool, kinds: tuple[str, ...], model: str, relation: str | None,
    epsilon: float, delta: float, runs: float, canaries: float, confidence: float, seed: float,
    as_json: bool, out: Path | None,
) -> int:  # fmt: skip
    """Attack a method and compare its claim with what is proven.

    \b
    replay     record a run, replay it with one record changed, and compare
               what moved with what was declared; also: is everything charged,
               and drawn as charged?
    many-run   train many times on two neighboring datasets, and derive a
               lower bound on ε from wrong guesses
    one-run    plant many canaries in a single training run, and derive a
               lower bound on ε from guesses

    \b
      sidelight audit                        # a replay of the main methods
      sidelight audit dope_sgd               # all three audits of one method
      sidelight audit --all --kind replay    # a replay of every method
      sidelight audit my_module:my_recipe --epsilon 4 --json

    Everything runs on synthetic records. What an audit shows about its records is not private, so it never
    takes your private table; a guarantee holds for every dataset, and the built-in ones are hard cases.

    A claim that is refuted ends with exit code 1, and the method's name on stderr.
    """
    if everything and methods:
        raise click.UsageError("name methods to audit, or pass --all, not both")
    if out is not None and not out.parent.is_dir():
        raise InputError(f"{out.parent} is not a folder; --out writes a file into an existing one")
    settings: Json = {
        "kinds": kinds or (KINDS if methods or everything else ("replay",)), "model": model,
        "relation": relation, "epsilon": epsilon, "delta": delta,
        "runs": int(runs), "canaries": int(canaries), "confidence": confidence, "seed": int(seed),
    }  # fmt: skip
    results = _audited(methods if methods or everything else _quick(model), settings)
    document = {
        "passed": all(result.passed for result in results),
        "results": [result.to_dict() for result in results],
    }
    if out is not None:
        from sidelight.files import write_text

        write_text(out, terminal.to_text(document) + "\n")
    if as_json:
        terminal.as_json(document)
    else:
        _show(results)
    return _verdict(results)


_MAIN = (
    "auto", "dp_sgd", "ppsgd", "dope_sgd", "coupling", "public_whitening", "precision_weighting", "dp_newton",
    "hessian_mixing", "objective_perturbation",
)  # fmt: skip


def _quick(model: str) -> tuple[str, ...]:
    """What is audited where no method is named: `auto`, what it chooses from, and main ones of papers."""
    from sidelight.methods.declare import DECLARATIONS

    if model == "linear":
        return _MAIN
    return tuple(name for name in _MAIN if name != "auto" and DECLARATIONS[name].networks)


def _audited(methods: tuple[str, ...], settings: Json) -> list[AuditResult]:
    from sidelight.audit import suite

    suite.check_names(methods)
    plan = suite.SuitePlan(methods, **settings) if methods else suite.SuitePlan.everything(**settings)
    return _with_progress(plan)


def _with_progress(plan: SuitePlan) -> list[AuditResult]:
    """Audits take seconds to minutes each: a terminal sees which one runs."""
    import sys

    from rich.console import Console

    from sidelight.audit import suite

    results: list[AuditResult] = []
    console = Console(stderr=True)
    if not sys.stderr.isatty():
        return list(suite.run(plan))
    with console.status("auditing …") as status:
        for one in suite.run(plan):
            results.append(one)
            done = f"{len(results)} audit{'s' if len(results) > 1 else ''} done"
            status.update(f"{done}, last: {one.method} ({one.kind}, {one.relation})")
    return results


# A terminal has 80 columns: all of these beside the longest name of a method take 79.
_COLUMNS = ("method", "relation", "claim", "many ≥", "one ≥", "move", "verdict")
_SHORT = {"add-or-remove-one": "add", "replace-one": "replace"}


def _show(results: list[AuditResult]) -> None:
    table = [[_SHORT.get(cell, cell) for cell in cells(group)] for group in grouped(results)]
    shown = [i for i, name in enumerate(_COLUMNS) if any(row[i] for row in table)]
    names = [_COLUMNS[i] for i in shown]
    rows = terminal.table(*names, numbers=tuple(name for name in names if name in _COLUMNS[2:6]))
    for row in table:
        terminal.add_row(rows, *(row[i] for i in shown))
    screen = terminal.console()
    screen.print(rows)
    sure = min(one.confidence for one in results)
    proven = {"many ≥": "many runs", "one ≥": "one run"}
    found = " and by ".join(words for name, words in proven.items() if name in names)
    bounds = f", and what was proven by {found}, with confidence {sure:g}" if found else ""
    screen.print(
        f"Relations are add-or-remove-one and replace-one. The claim is ε at δ = {results[0].delta:g}"
        f"{bounds}. A move is the largest change that one record made to a private sum, in units "
        "of its declared sensitivity: above 1 would be a fault."
    )
    for one in results:
        for finding in one.findings:
            screen.print(f"{one.method} ({one.kind}): {finding}", markup=False)


def grouped(results: list[AuditResult]) -> list[dict[str, AuditResult]]:
    """The audits of each method under each relation, by kind."""
    groups: dict[tuple[str, str], dict[str, AuditResult]] = {}
    for one in results:
        groups.setdefault((one.method, one.relation), {})[one.kind] = one
    return list(groups.values())


def cells(group: dict[str, AuditResult]) -> list[str]:
    """One row of the table."""
    first = next(iter(group.values()))
    replay = group.get("neighbor replay")
    claim = "none" if math.isinf(first.claimed_epsilon) else plain_up(first.claimed_epsilon, 4)
    share = "" if replay is None else _share(replay)
    bounds = [plain_down(group[k].lower_bound, 3) if k in group else "" for k in ("many-run", "one-run")]
    passed = all(one.passed for one in group.values())
    return [first.method, first.relation, claim, *bounds, share, "passed" if passed else "REFUTED"]


def _share(replay: AuditResult) -> str:
    if not replay.details.get("private_sums"):
        return "no sum"
    return f"{replay.details['largest_share']:.3f}"


def _verdict(results: list[AuditResult]) -> int:
    refuted = list(dict.fromkeys(one.method for one in results if not one.passed))
    if not refuted:
        return 0
    click.echo(terminal.fold(f"sidelight audit: refuted: {'; '.join(refuted)}"), err=True)
    return REFUTED
