"""`sidelight fit`, `predict` and `schema`: two tables in, a private model out, and its predictions."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from sidelight.cli import terminal
from sidelight.cli.terminal import FILE, LOSSES
from sidelight.errors import InputError, SidelightError
from sidelight.files import MODEL, check_output_folder, missing, read_whole

if TYPE_CHECKING:
    import pandas as pd

    from sidelight.arrays import Json
    from sidelight.data.schema import Schema, TaskName
    from sidelight.observers import FitProgress
    from sidelight.tables import TableModel

Command = TypeVar("Command", bound=Callable[..., object])
INTERRUPTED = 130
ENCODER = (
    "Turns texts into numbers: minilm, wordllama, hashed, or a model's folder; for images: a file saved by "
    "PatchFeatures. Default, for texts: the first of these that is installed."
)


def column_options(command: Command) -> Command:
    """What the columns of a table are: options of `fit` and `schema`."""
    options = (
        click.option(
            "--task", type=click.Choice(("classification", "regression")), help="Default: from the target."
        ),
        terminal.IGNORE,
        terminal.TYPES,
        click.option("--text", multiple=True, metavar="COLUMN", help="This column is text; may be repeated."),
        click.option("--image", multiple=True, metavar="COLUMN", help="This column holds paths of images."),
        click.option("--encoder", metavar="NAME", help=ENCODER),
    )  # fmt: skip
    for option in reversed(options):  # as decorators are applied
        command = option(command)
    return command


TRUST = click.option(
    "--trust", multiple=True, metavar="TYPE",
    help="Allow a type in your public model that is not scikit-learn's; may be repeated.",
)  # fmt: skip


@click.command("fit")
@click.argument("private", type=FILE)
@click.option("--public", type=FILE, metavar="TABLE", help="Public records with the same columns.")
@click.option("--target", metavar="COLUMN", help="What to predict.")
@click.option("--epsilon", type=terminal.EPSILON, required=True, metavar="ε", help="The budget of this fit.")
@click.option("--out", type=FILE, metavar="FOLDER", help="A new folder for the model.")
@click.option(
    "--delta", type=terminal.DELTA, metavar="δ", help="Default: the ledger's, or min(1e-5, 1/(100·n))."
)
@click.option(
    "--relation",
    type=terminal.relation,
    metavar="RELATION",
    help="Default: the ledger's, else add-or-remove-one if the method offers it.",
)
@click.option(
    "--method", default="auto", show_default=True, shell_complete=terminal.complete_methods,
    help="`sidelight methods` lists them.",
)  # fmt: skip
@click.option(
    "--loss", type=click.Choice(LOSSES), metavar="LOSS",
    help=f"One of {', '.join(LOSSES)}; default: logistic, or softmax for more than two classes.",
)  # fmt: skip
@click.option(
    "--class-weight", type=click.Choice(("balanced",)), metavar="balanced",
    help="Errors on rare classes count more, by public class rates.",
)  # fmt: skip
@click.option(
    "--public-model", type=FILE, metavar="FILE",
    help="A fitted scikit-learn model of yours, saved by skops: its residual is learned privately.",
)  # fmt: skip
@TRUST
@click.option("--schema", type=FILE, metavar="JSON", help="Declared columns (`sidelight schema`).")
@column_options
@click.option(
    "--unit", default="record", metavar="COLUMN",
    help="The column that names persons, if they have several rows: the guarantee then covers them all.",
)  # fmt: skip
@click.option(
    "--health-check/--no-health-check", default=True,
    help="Count ignored records and values that do not fit, with noise, for at most 2 % of the budget.",
)  # fmt: skip
@click.option("--ledger", type=FILE, metavar="FILE", help="Charge this ledger (`sidelight ledger init`).")
@click.option("--dataset", metavar="NAME", help="The dataset to charge, if the ledger has several.")
@click.option(
    "--validation", type=terminal.number("a share from 0 to 0.9, such as 0.2", lambda x: 0 <= x <= 0.9),
    metavar="SHARE", help="Public rows held out to score the model. Default: none; with --by a fifth.",
)  # fmt: skip
@click.option("--facts", type=FILE, metavar="TOML", help="Purpose, controller, … for the report.")
@click.option("--by", metavar="COLUMN", help="Also score held-out public rows for each value of this column.")
@click.option("--seed", type=click.IntRange(0), help="Reproducible noise, only for tests; reports say so.")
@click.option(
    "--memory", metavar="SIZE",
    help="Memory limit, such as 2GB: records that exceed it go to disk. Default: half of what is free.",
)  # fmt: skip
@click.option("--scratch", type=FILE, metavar="FOLDER", help="Disk folder; default: the temporary folder.")
@click.option(
    "--engine", type=click.Choice(("embedded", "ray")), default="embedded", show_default=True,
    help="Where records are held: in this process, or by Ray workers.",
)  # fmt: skip
@click.option("--workers", type=click.IntRange(1), metavar="N", help="Default: one Ray worker per processor.")
@click.option("--ray-address", metavar="ADDRESS", help="A running Ray cluster; default: start one here.")
@click.option("--overwrite", is_flag=True, help="Replace an existing model.")
@click.option("--dry-run", is_flag=True, help="Show plan and cost, and stop before the charge.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(**given: Any) -> None:
    """Fit a private model to the table PRIVATE (CSV, TSV or Parquet), with the help of a public one.

    PRIVATE and PUBLIC are files, folders of files, or patterns such as 'lake/*.parquet'.

    \b
      sidelight fit private.csv --public public.csv --target income \\
          --epsilon 1 --out model
      sidelight predict model new.csv --out predictions.csv

    \b
    To see plan and cost without charging anything, add --dry-run.

    \b
    Column types, categories, bounds and classes are learned from the public
    table alone. To see and change them, or to do without public records:
      sidelight schema public.csv --target income --out schema.json
      sidelight fit private.csv --public public.csv --schema schema.json \\
          --epsilon 1 --out model

    \b
    Charge a ledger, which refuses what its budget does not cover:
      sidelight ledger init patients.ledger --name patients \\
          --relation replace-one --epsilon 3 --delta 1e-6
      sidelight fit private.csv --public public.csv --target income \\
          --epsilon 1 --out model --ledger patients.ledger

    \b
    Free text, through a public encoder (docs/text.md):
      sidelight fit private.csv --public public.csv --target stars \\
          --text review --epsilon 1 --out model

    In the private table, unknown categories count as "other", numbers outside the bounds are clipped, missing
    values are marked, and a record without a usable target is ignored. How many there are is known only from
    a noisy count (--health-check). Its column names and its number of rows are taken to be public.
    """
    terminal.check_target(given["target"], given["schema"])
    if given["public"] is None and given["schema"] is None:
        raise InputError("--public or --schema is missing: bounds must come from public records or from you")
    from sidelight.data.private_tables import table_exists

    for name in ("private", "public", "public_model", "schema", "facts"):
        if given[name] is None or given[name].exists():
            continue
        if name not in ("private", "public") or not table_exists(given[name]):
            raise InputError(missing(given[name]))
    _run(given)


def _run(given: Json) -> None:
    out, overwrite, as_json = given.pop("out"), given.pop("overwrite"), given.pop("as_json")
    dry = given.pop("dry_run")
    if out is not None:
        check_output_folder(out, sign=MODEL, overwrite=overwrite)  # before a second of imports
    elif not dry:
        raise InputError("--out is missing: name a new folder for the model")

    from sidelight.observers import FitProgress
    from sidelight.report.facts import read_facts
    from sidelight.tables import fit_tables

    if (path := given.pop("public_model")) is not None:
        from sidelight.data.own_model import load_estimator

        given["public_model"] = load_estimator(read_whole(path), given["trust"])
    del given["trust"]
    file, seed = given.pop("facts"), given.pop("seed")
    facts = None if file is None else read_facts(file)  # before anything is spent
    if facts is not None and facts.get("public_is_public") is False and given["public"] is not None:
        raise InputError(
            f"{file}: public_is_public is false, so {given['public']} must not be used as public. "
            "Nothing was charged"
        )
    if dry:
        _dry_run(given, seed, facts or {})
        return
    progress = FitProgress(ledger=given["ledger"])
    runs = _runs(given["ledger"])
    try:
        with progress:
            model = fit_tables(**given, random_state=seed, observers=[progress])
            progress.on_stage("writing")
            _save(model, out, overwrite, facts)
    except KeyboardInterrupt:
        _print_spending(progress, given["ledger"], runs)
        raise click.exceptions.Exit(INTERRUPTED) from None
    if as_json:
        terminal.as_json(_as_data(model, out))
    else:
        from sidelight.cli.fit_summary import fit_summary

        click.echo(fit_summary(model, out))


def _dry_run(given: Json, seed: int | None, facts: Json) -> None:
    """Print the plan of this fit, which ends where the charge would be; then what refuses it, if anything."""
    from sidelight.cli.fit_summary import plan_summary
    from sidelight.privacy.observer import Observer, PlanOnly
    from sidelight.tables import fit_tables

    class _Stop(Observer):
        plan_only = True

    try:
        fit_tables(**given, random_state=seed, observers=[_Stop()])
    except PlanOnly as stopped:
        refused = stopped.refusal is not None
        click.echo(plan_summary(stopped.contract, given, _schema_of(given), facts, refused=refused))
        if stopped.refusal is not None:
            raise stopped.refusal from None
        return
    raise SidelightError("a dry run did not stop")  # every fit begins with a contract


def _schema_of(given: Json) -> Schema:
    from sidelight.data.schema import Schema, text_types
    from sidelight.tables import read_table

    if given["schema"] is not None:
        return Schema.read(given["schema"])
    types = given["types"] | text_types(given["text"], given["encoder"])
    types |= text_types(given["image"], given["encoder"], kind="image")
    public = read_table(given["public"])
    ignore = tuple(name for name in given["ignore"] if name in public.columns)
    return Schema.learn(public, given["target"], task=given["task"], ignore=ignore, types=types)


def _save(model: TableModel, out: Path, overwrite: bool, facts: Json | None) -> None:
    """Here the budget is spent, so what goes wrong is no bad input any more."""
    try:
        model.save(out, overwrite=overwrite, facts=facts)
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


def _print_spending(progress: FitProgress, ledger: Path | None, runs: int) -> None:
    """The only line of an interrupted fit."""
    if ledger is not None:
        outcome = f"its charge stays in {ledger}" if _runs(ledger) > runs else "nothing was charged"
    else:
        spent = progress.may_have_spent
        outcome = "what it planned to spend counts as spent" if spent else "nothing was spent"
    message = f"sidelight fit: interrupted; {outcome}, and nothing was written"
    click.echo(terminal.fold(message), err=True)


def _as_data(model: TableModel, out: Path) -> Json:
    from sidelight.privacy.statement import plain

    privacy = model.privacy_.to_dict()
    privacy.pop("events")
    data: Json = plain({"model": str(out), "privacy": privacy, "scores": model.scores, "data": model.data})
    return data


# ---------------------------------------------------------------------------------------------------
# `sidelight predict`: apply a model folder to a table


@click.command("predict")
@click.argument("model", type=FILE)
@click.argument("table", type=FILE)
@click.option("--out", type=FILE, required=True, metavar="CSV", help="File for the predictions; - is stdout.")
@click.option(
    "--keep", multiple=True, metavar="COLUMN", help="Copy this column of the table; may be repeated."
)
@click.option("--encoder", metavar="FOLDER", help="Where the encoder of the model's texts is now.")
@click.option("--proba", is_flag=True, help="Add a column with the probability of each class.")
@TRUST
@click.option("--overwrite", is_flag=True, help="Replace an existing file.")
@click.option("--json", "as_json", is_flag=True, help="Print what was done as JSON.")
def predict(
    model: Path,
    table: Path,
    out: Path,
    keep: tuple[str, ...],
    encoder: str | None,
    proba: bool,
    trust: tuple[str, ...],
    overwrite: bool,
    as_json: bool,
) -> None:
    """Apply the folder MODEL to the records of TABLE (CSV, TSV or Parquet): one prediction per record.

    \b
      sidelight predict model new.csv --out predictions.csv
      sidelight predict model new.csv --out - --proba | head

    The columns may be in any order; the target, and columns that the model does not know, are ignored.
    Predictions cost no budget: the model is already private. But *publishing* a score on private records is a
    separate release.
    """
    to_stdout = str(out) == "-"
    if as_json and to_stdout:
        raise InputError("--json: predictions go to stdout already; give --out a file")
    if not table.exists():
        raise InputError(missing(table))
    if not to_stdout and out.is_dir():
        raise InputError(f"--out: {out} is a folder; expected the name of a CSV file")
    if not to_stdout and (out.exists() or out.is_symlink()) and not overwrite:
        raise InputError(f"--out: {out} exists; choose another name, or --overwrite")
    from sidelight.data.table_files import write_csv
    from sidelight.features import open_encoder
    from sidelight.tables import TableModel, read_table

    if encoder is not None:
        open_encoder(encoder)  # found by its hash from now on
    fitted = TableModel.load(model, trusted=trust)
    frame = read_table(table, typed=False)
    if not len(frame):
        raise InputError(f"{table} has no records")
    if strange := [name for name in keep if name not in frame.columns]:
        raise InputError(f"--keep: {table} has no column {strange[0]!r}")
    target = fitted.schema.target.name
    predictions = _predictions(fitted, frame, keep, proba)
    if to_stdout:
        predictions.to_csv(sys.stdout, index=False)
        return
    write_csv(predictions, out)
    if as_json:
        terminal.as_json({"predictions": str(out), "records": len(predictions), "target": target})
    else:
        click.echo(terminal.fold(f"wrote {len(predictions):,} predictions of {target} to {out}"))


def _predictions(model: TableModel, frame: pd.DataFrame, keep: tuple[str, ...], proba: bool) -> pd.DataFrame:
    import pandas as pd

    target = model.schema.target.name
    name = f"predicted {target}" if target in keep else target
    columns = {column: frame[column].to_numpy() for column in keep} | {name: model.predict(frame)}
    if proba:
        shares, labels = model.predict_proba(frame), model.estimator.classes_
        columns |= {f"probability of {label}": shares[:, i] for i, label in enumerate(labels)}
    return pd.DataFrame(columns)


# ---------------------------------------------------------------------------------------------------
# `sidelight schema`: what the columns of a public table are, as JSON to edit


@click.command("schema")
@click.argument("public", type=FILE)
@click.option("--target", required=True, metavar="COLUMN", help="What to predict.")
@click.option("--out", type=FILE, metavar="JSON", help="Write here; never replaces a file. Default: stdout.")
@column_options
def schema(
    public: Path,
    target: str,
    out: Path | None,
    task: TaskName | None,
    ignore: tuple[str, ...],
    types: dict[str, str],
    text: tuple[str, ...],
    image: tuple[str, ...],
    encoder: str | None,
) -> None:
    """Write types, categories, bounds and classes of the table PUBLIC as JSON, for you to edit.

    \b
      sidelight schema public.csv --target income --out schema.json
      sidelight fit private.csv --public public.csv --schema schema.json \\
          --epsilon 1 --out model

    \b
    In the file, a column is one of
      {"type": "number", "bounds": [17, 90]}      values outside are clipped
      {"type": "boolean"}                         true or false
      {"type": "category", "categories": [...]}   any other value is "other"
      {"type": "code", "digits": 5, "prefix": 2, "categories": [...]}
                                                  first digits of a postcode
      {"type": "date", "bounds": ["2020-01-01", "2024-12-31"]}
      {"type": "text", "encoder": "minilm"}       through a public encoder
      {"type": "ignore"}                          not used
    More: docs/tables.md and docs/text.md.

    Never make a schema from the private table: bounds and categories would reveal individual records.
    """
    if not public.exists():
        raise InputError(missing(public))
    if out is not None and (out.exists() or out.is_symlink()):
        raise terminal.exists_already(out)
    from sidelight.cli.fit_summary import folded, ignored_columns
    from sidelight.data.schema import Schema, column_lines, text_types
    from sidelight.tables import read_table

    types |= text_types(text, encoder) | text_types(image, encoder, kind="image")
    schema = Schema.learn(read_table(public), target, task=task, ignore=ignore, types=types)
    if out is None:
        click.echo(schema.to_text(), nl=False)
        return
    schema.write(out)
    used = schema.used.values()
    texts = sum(column.kind in ("text", "image") for column in used)
    numbers = sum(column.kind in ("number", "boolean", "date") for column in used)
    categories = len(used) - numbers - texts
    found = f"{numbers} numbers and {categories} categories" + (
        f" and {texts} texts or images" if texts else ""
    )
    ignored = f"{len(schema.ignored)} column{'' if len(schema.ignored) == 1 else 's'} ignored"
    click.echo(terminal.fold(f"wrote {out}: {schema.target.task} of {target} from {found}; {ignored}"))
    for line in [*column_lines(schema), *(f"ignored {line}" for line in ignored_columns(schema))]:
        click.echo("\n".join(folded("", [line])))
    click.echo("next: edit it, then")
    fit = f"sidelight fit PRIVATE --public {public} --schema {out} --epsilon 1 --out model"
    click.echo(terminal.typed(fit))
