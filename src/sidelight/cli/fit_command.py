"""`sidelight fit`: two tables in, a private model out."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sidelight.cli import options, show
from sidelight.errors import InputError, SidelightError

if TYPE_CHECKING:
    from sidelight.arrays import Json
    from sidelight.cli.progress import Progress
    from sidelight.privacy.statement import PrivacyStatement
    from sidelight.tables import TableModel

FILE = click.Path(path_type=Path)
INTERRUPTED = 130
LOSSES = ("logistic", "hinge", "huber", "square", "softmax")


@click.command("fit", short_help="Fit a private model to a table, with the help of a public one.")
@click.argument("private", type=FILE)
@click.option("--public", type=FILE, metavar="TABLE", help="Public records with the same columns.")
@click.option("--target", metavar="COLUMN", help="What to predict.")
@click.option("--epsilon", type=options.EPSILON, required=True, metavar="ε", help="The budget of this fit.")
@click.option("--out", type=FILE, required=True, metavar="FOLDER", help="Where the model goes; a new folder.")
@click.option("--delta", type=options.DELTA, metavar="δ", help="Default: the ledger's, or min(1e-5, n^-1.1).")
@click.option("--relation", type=options.relation, metavar="RELATION", help="Default: the method's own.")
@click.option(
    "--method", default="auto", show_default=True, shell_complete=options.complete_methods,
    help="`sidelight methods` lists them.",
)  # fmt: skip
@click.option("--loss", type=click.Choice(LOSSES), metavar="LOSS", help=f"One of {', '.join(LOSSES)}.")
@click.option("--task", type=click.Choice(("classification", "regression")), help="Default: by the target.")
@click.option("--schema", type=FILE, metavar="JSON", help="Columns as you declare them (`sidelight schema`).")
@click.option("--ignore", multiple=True, metavar="COLUMN", help="Do not use this column; may be repeated.")
@click.option("--ledger", type=FILE, metavar="FILE", help="Who pays (`sidelight ledger init`).")
@click.option("--dataset", metavar="NAME", help="Which dataset of the ledger, if it has several.")
@click.option(
    "--validation", type=options.number("a share from 0 to 0.9, such as 0.2", lambda x: 0 <= x <= 0.9),
    default="0.2", show_default=True, metavar="SHARE", help="Public rows held out to score the model.",
)  # fmt: skip
@click.option("--seed", type=click.IntRange(0), help="Repeatable noise: for tests only; the report says so.")
@click.option("--overwrite", is_flag=True, help="Replace a model that is there.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(**given: Any) -> None:
    """Fit a private model to the table PRIVATE (CSV, TSV or Parquet), with the help of a public one.

    \b
      sidelight fit private.csv --public public.csv --target income --epsilon 1 --out model
      sidelight predict model new.csv --out predictions.csv

    \b
    Column types, categories, bounds and classes are learned from the public table alone. To see and change
    them, or to do without public records:
      sidelight schema public.csv --target income --out schema.json
      sidelight fit private.csv --public public.csv --schema schema.json --epsilon 1 --out model

    \b
    Let a ledger pay, and refuse what its budget does not cover:
      sidelight ledger init patients.ledger --name patients --relation replace-one --epsilon 3 --delta 1e-6
      sidelight fit private.csv --public public.csv --target income --epsilon 1 --out model \\
          --ledger patients.ledger

    In the private table, unknown categories count as "other", numbers outside the bounds are clipped, missing
    values are marked, and a record without a usable target is ignored; no message mentions any of
    these. Its column names and its number of rows are taken to be public.
    """
    if given["target"] is None and given["schema"] is None:
        raise InputError("--target is missing: say which column to predict")
    if given["public"] is None and given["schema"] is None:
        raise InputError("--public or --schema is missing: bounds must come from public records or from you")
    for name in ("private", "public", "schema"):
        if given[name] is not None and not given[name].exists():
            raise InputError(f"{given[name]} does not exist")
    _run(given)


def _run(given: Json) -> None:
    from sidelight.cli.progress import Progress
    from sidelight.tables import fit_tables
    from sidelight.tables.folder import MODEL
    from sidelight.tables.output_folder import check_output_folder

    out, overwrite, as_json = given.pop("out"), given.pop("overwrite"), given.pop("as_json")
    check_output_folder(out, sign=MODEL, overwrite=overwrite)
    seed = given.pop("seed")
    progress = Progress(ledger=given["ledger"])
    runs = _runs(given["ledger"])
    try:
        with progress:
            model = fit_tables(**given, random_state=seed, observer=progress)
            progress.on_stage("writing")
            _save(model, out, overwrite)
    except KeyboardInterrupt:
        _say_what_was_spent(progress, given["ledger"], runs)
        raise click.exceptions.Exit(INTERRUPTED) from None
    if as_json:
        show.as_json(_as_data(model, out))
    else:
        click.echo(_summary(model, out))


def _save(model: TableModel, out: Path, overwrite: bool) -> None:
    """Here the budget is spent, so what goes wrong is no bad input any more."""
    try:
        model.save(out, overwrite=overwrite)
    except (InputError, OSError) as error:
        reason = (
            str(error) if isinstance(error, InputError) else f"{out}: {error.strerror or 'output failed'}"
        )
        raise SidelightError(f"the model was not saved, but what it cost is spent: {reason}") from None


def _runs(ledger: Path | None) -> int:
    """How many runs the ledger holds; it raises if there is no ledger to open."""
    if ledger is None:
        return 0
    from sidelight.privacy.ledger import Ledger

    book = Ledger.open(ledger)
    return sum(len(book.charges(name)) for name in book.datasets())


def _say_what_was_spent(progress: Progress, ledger: Path | None, runs: int) -> None:
    """The only line of an interrupted fit."""
    if ledger is not None:
        outcome = f"its charge stays in {ledger}" if _runs(ledger) > runs else "nothing was charged"
    else:
        spent = progress.may_have_spent
        outcome = "what it planned to spend counts as spent" if spent else "nothing was spent"
    click.echo(f"sidelight fit: interrupted; {outcome}, and nothing was written", err=True)


def _as_data(model: TableModel, out: Path) -> Json:
    from sidelight.privacy.statement import plain

    privacy = model.privacy_.to_dict()
    privacy.pop("events")
    data: Json = plain({"model": str(out), "privacy": privacy, "scores": model.scores, "data": model.data})
    return data


def _summary(model: TableModel, out: Path) -> str:
    """What was learned, what it cost, how good it is as far as public rows tell, and what to type next."""
    from sidelight.privacy.statement import plain

    statement, data = model.privacy_, plain(model.data)
    columns, details = f"{len(data['columns'])} columns", plain(statement.details)
    reasons = [*details.get("reasons", ()), *details.get("notes", ())]
    lines = [
        f"fitted   {data['target']} from {columns}: {data['private_records']:,} private and "
        f"{data['public_records']:,} public records",
        f"spent    {_guarantee(statement)}",
        f"method   {_method(statement)}",
        *[f"         {line}" for line in dict.fromkeys(reasons)],
        f"quality  {_quality(plain(model.scores))}",
        *[
            f"ignored  {name}: {column.note or 'as declared'}"
            for name, column in model.schema.ignored.items()
        ],
        *[f"note     {line}" for line in statement.assumptions if "seed" in line],
        f"wrote    {out}: model.json, weights.safetensors, privacy.json, report.html",
        f"next     sidelight predict {out} new.csv --out predictions.csv",
        f"         open {out / 'report.html'} in a browser",
    ]
    return "\n".join(lines)


def _guarantee(statement: PrivacyStatement) -> str:
    if statement.epsilon == 0:
        return "nothing: the private records were not used"
    if statement.epsilon == float("inf"):
        return f"no guarantee at all: {statement.method} does not protect the private records"
    receipt = statement.ledger
    paid = f", run {receipt['run']} of dataset {receipt['dataset']}" if receipt else ", no ledger"
    epsilon, delta = show.up(statement.epsilon, 4), show.up(statement.delta, 3)
    return f"ε = {epsilon}, δ = {delta}, {statement.relation}{paid}"


def _method(statement: PrivacyStatement) -> str:
    chosen, name = statement.details.get("chosen"), statement.method
    return name if chosen in (None, name) else f"{name}, which chose {chosen}"


def _quality(scores: Json) -> str:
    """Never more digits than the error allows."""
    if not scores:
        return "not known: no public rows were held out (--validation)"
    name = scores["name"].replace("_", " ")
    rows = f"{scores['rows']} public rows that were held out"
    text = f"{name} {_pm(scores, 'public_validation')} on {rows}"
    if "only_public" in scores:
        text += f"; only_public {_pm(scores, 'only_public')}; difference {_pm(scores, 'difference', '+')}"
    return text


def _pm(scores: Json, name: str, sign: str = "") -> str:
    return f"{scores[name]:{sign}.3g} ± {scores[name + '_error']:.2g}"
