"""`sidelight ledger`: create and read the file that records what was spent."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from sidelight.cli import terminal
from sidelight.errors import InputError, LedgerError, listed, nearest
from sidelight.files import missing
from sidelight.numbers import plain_down, plain_up

if TYPE_CHECKING:
    from sidelight.arrays import Json
    from sidelight.privacy.events import Relation
    from sidelight.privacy.ledger import Ledger

FILE = click.argument("file", type=click.Path(path_type=Path))
NAME = click.option("--name", metavar="DATASET", help="Only this dataset.")
JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


@click.group("ledger")
def command() -> None:
    """Create and read the ledger of what was spent.

    A ledger gives each dataset a lifetime budget. Every run writes its charge there before it reads the data,
    and a run that would overspend is refused (exit code 3).

    \b
    Give a dataset a budget, once:
      sidelight ledger init patients.ledger --name patients \\
          --relation add-or-remove-one --epsilon 3 --delta 1e-6
    What is left, and who spent the rest?
      sidelight ledger show patients.ledger
      sidelight ledger charges patients.ledger
    For a reviewer, or a script:
      sidelight ledger export patients.ledger --out patients.json
      sidelight ledger show patients.ledger --json | jq .datasets

    A ledger that is missing, damaged, locked or read-only ends with exit code 4. It is never repaired
    silently.
    """


@command.command("init", short_help="Give a dataset a lifetime budget.")
@FILE
@click.option("--name", required=True, metavar="DATASET", help="Name of the dataset.")
@click.option(
    "--relation",
    type=terminal.relation,
    required=True,
    metavar="RELATION",
    help="Neighboring relation.",
)
@click.option("--epsilon", type=terminal.EPSILON, required=True, metavar="ε", help="For all runs together.")
@click.option("--delta", type=terminal.DELTA, required=True, metavar="δ", help="Keep it below 1 / records.")
@click.option("--fingerprint", is_flag=True, help="Also bind it to a keyed hash of its contents.")
@click.option(
    "--any-size", is_flag=True, help="Runs may use any number of its records: folds, a growing table."
)
def init(
    file: Path,
    name: str,
    relation: Relation,
    epsilon: float,
    delta: float,
    fingerprint: bool,
    any_size: bool,
) -> None:
    """Give a dataset a lifetime budget, in a new ledger or in one that exists.

    \b
      sidelight ledger init patients.ledger --name patients \\
          --relation add-or-remove-one --epsilon 3 --delta 1e-6

    The budget is for all runs ever, and cannot be raised later. Repeating the command changes nothing;
    another budget for the same name is refused.

    \b
    Relations
      add-or-remove-one  a neighbor has one record more or less
      replace-one        a neighbor has one record exchanged

    The first run binds the dataset to its columns and its number of records, and runs on other
    records are refused (exit code 2). With --fingerprint their contents are compared too: they are
    read for that, and the ledger keeps a keyed hash of them, which makes it as private as the table.
    """
    if not name.strip():
        raise InputError("--name: expected the name of a dataset, got an empty one")
    if fingerprint and any_size:
        raise InputError("--any-size: a part has other contents than the whole; leave out --fingerprint")
    from sidelight.privacy.ledger import Ledger
    from sidelight.privacy.statement import warn_of_epsilon
    from sidelight.report.decision import when_spent
    from sidelight.report.guarantee import beforehand

    new = not (file.exists() or file.is_symlink())
    with Ledger.create(file) if new else Ledger.open(file) as ledger:
        known = ledger.datasets().get(name)
        if known and (known.relation, known.budget.epsilon, known.budget.delta) != (relation, epsilon, delta):
            budget = f"ε = {known.budget.epsilon:g}, δ = {known.budget.delta:g}, {known.relation}"
            raise InputError(
                f"--name: {name} has {budget} already, and a budget is for life; use another name"
            )
        ledger.register(
            name, relation=relation, epsilon=epsilon, delta=delta, fingerprint=fingerprint, any_size=any_size
        )
    what = "is already" if known else "is now"
    click.echo(
        terminal.fold(
            f"{name} {what} in {file}, with ε = {epsilon:g} and δ = {delta:g} for all runs, {relation}"
        )
    )
    attacker = f"an attacker who knows every other record and {beforehand(relation)},"
    click.echo(terminal.fold(when_spent(epsilon, delta, attacker)))
    warn_of_epsilon(epsilon)


@command.command("show", short_help="What each dataset has spent, and what is left.")
@FILE
@NAME
@JSON
def show_(file: Path, name: str | None, as_json: bool) -> None:
    """What each dataset has spent, and what is left.

    \b
      sidelight ledger show patients.ledger
      sidelight ledger show patients.ledger --name patients --json

    \b
    spent  total cost of all runs
    used   the stricter total, which counts: it also covers runs that were
           chosen after seeing earlier results
    left   the largest ε of one more run that would be admitted

    Below that: what each dataset is bound to, and how many runs were compared with it.
    """
    with _open(file, name) as ledger:
        data = ledger.export(name)
    if as_json:
        terminal.as_json({**data, "datasets": {k: _summary(v) for k, v in data["datasets"].items()}})
        return
    if not data["datasets"]:
        click.echo(f"{file} holds no dataset yet; `sidelight ledger init` adds one")
        return
    numbers = ("δ", "budget ε", "spent", "used", "left", "runs")
    rows = terminal.table("dataset", *numbers, numbers=numbers)
    for key, one in data["datasets"].items():
        total = one["total"]
        spent = [plain_up(float(total[which]), 4) for which in ("epsilon", "epsilon_adaptive")]
        left = plain_down(float(one["remaining"]), 4)
        budget = [f"{total['delta']:g}", f"{total['budget']:g}"]
        terminal.add_row(rows, key, *budget, *spent, left, str(len(one["runs"])))
    screen = terminal.console()
    screen.print(rows)
    for key, one in data["datasets"].items():
        screen.print(f"{_what_was_checked(key, one)}; {one['total']['relation']}", markup=False)
    screen.print(
        "spent: total cost of all runs. used: the stricter total, which also covers runs chosen after seeing "
        "earlier results. left: the largest ε of one more run. Spent and left do not add up to the budget, "
        "because losses compose to less than their sum.",
        style="dim",
    )


@command.command("rebind", short_help="Accept the same records in another form.")
@FILE
@click.option(
    "--name", required=True, metavar="DATASET", help="Dataset whose next run may have another form."
)
def rebind(file: Path, name: str) -> None:
    """Let the next run on a dataset bind it to further records, once.

    \b
      sidelight ledger rebind patients.ledger --name patients

    For its owner, who knows that they are the same records: with other columns, as an array instead of a
    table, or a table that grew. Earlier forms stay accepted; the budget, and what was spent of it, stay as
    they are.
    """
    with _open(file, name) as ledger:
        ledger.rebind(name)
    click.echo(f"the next run on {name} may use another form of its records; its budget is unchanged")


@command.command("charges", short_help="Every run that was charged.")
@FILE
@NAME
@JSON
def charges(file: Path, name: str | None, as_json: bool) -> None:
    """Every run that was charged, in order, with the most that it may have released.

    \b
      sidelight ledger charges patients.ledger --name patients
    """
    with _open(file, name) as ledger:
        names = [name] if name is not None else list(ledger.datasets())
        found = sorted((c for n in names for c in ledger.charges(n)), key=lambda c: c.number)
    if as_json:
        terminal.as_json({"charges": [charge.to_dict() for charge in found]})
        return
    if not found:
        click.echo("nothing was charged yet")
        return
    from sidelight.privacy import events

    rows = terminal.table("#", "time (UTC)", "dataset", "method", "at most", "note", numbers=("#",))
    for column in rows.columns[1:4]:  # what is long is "at most" and the note
        column.no_wrap = True
    for charge in found:
        what = events.describe(charge.event) + (" (lowered)" if charge.lowered else "")
        when = charge.time[:19].replace("T", " ")
        terminal.add_row(rows, str(charge.order), when, charge.dataset, charge.method, what, charge.note)
    terminal.console().print(rows)


@command.command("export", short_help="Everything as JSON, for a reviewer.")
@FILE
@NAME
@click.option(
    "--out", type=click.Path(path_type=Path), metavar="JSON", help="Write here; never replaces a file."
)
@click.option("--fingerprints", is_flag=True, help="Include hashes of the data, which are private.")
def export(file: Path, name: str | None, out: Path | None, fingerprints: bool) -> None:
    """Datasets, budgets, every event and the totals, as JSON.

    \b
      sidelight ledger export patients.ledger --out patients.json
    """
    with _open(file, name) as ledger:
        data = ledger.export(name, fingerprints=fingerprints)
    if out is None:
        terminal.as_json(data)
        return
    _write_new(out, terminal.to_text(data) + "\n")
    click.echo(f"wrote {out}")


def _open(file: Path, name: str | None) -> Ledger:
    if not file.exists():
        raise LedgerError(f"{missing(file)}; `sidelight ledger init` makes a ledger")
    from sidelight.privacy.ledger import Ledger

    ledger = Ledger.open(file)
    if name is not None and name not in (known := ledger.datasets()):
        near = nearest(name, known) or f" It has {listed(list(known)) if known else 'none yet'}"
        raise InputError(f"--name: the ledger has no dataset {name!r}.{near}")
    return ledger


def _what_was_checked(name: str, dataset: Json) -> str:
    """To what a dataset is bound, and which runs were compared with that."""
    runs = dataset["runs"]
    if not dataset["bound_to"]:
        later = "; no run showed its records" if runs else ""
        return f"{name}: bound to nothing yet, its first fit binds it{later}"
    forms = " or ".join(_form(form, dataset["any_size"]) for form in dataset["bound_to"])
    bare = sum(run["records_checked"] is None for run in runs)
    unchecked = f"; {bare} of {len(runs)} runs showed no records" if bare else ""
    more = "; the next run may add another form" if dataset["open_to_another_form"] else ""
    return f"{name}: bound to {forms}{unchecked}{more}"


def _form(form: Json, any_size: bool) -> str:
    from sidelight.privacy.identity import Identity

    known = Identity.from_facts(form).describe()
    size = " (any number is accepted)" if any_size else ""
    return f"{known}{size}, keyed fingerprint: {'yes' if form['contents'] else 'no'}"


def _summary(dataset: Json) -> Json:
    """What `show` shows: no single runs."""
    known = {name: dataset[name] for name in ("bound_to", "any_size", "open_to_another_form")}
    return {**dataset["total"], "remaining": dataset["remaining"], "runs": len(dataset["runs"]), **known}


def _write_new(path: Path, text: str) -> None:
    """Write a file that was not there: the name may be a slip, and the ledger itself is a file too."""
    try:
        with open(path, "x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise terminal.exists_already(path) from None
    except OSError as error:
        raise InputError(f"--out: {path} cannot be written: {error.strerror or error}") from error
