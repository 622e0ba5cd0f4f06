"""`sidelight predict`: apply a model folder to a table."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from sidelight.cli import show
from sidelight.errors import InputError

if TYPE_CHECKING:
    import pandas as pd

    from sidelight.tables import TableModel

FILE = click.Path(path_type=Path)


@click.command("predict", short_help="Apply a model to a table.")
@click.argument("model", type=FILE)
@click.argument("table", type=FILE)
@click.option("--out", type=FILE, required=True, metavar="CSV", help="Where predictions go; - is stdout.")
@click.option(
    "--keep", multiple=True, metavar="COLUMN", help="Copy this column of the table; may be repeated."
)
@click.option("--proba", is_flag=True, help="Add a column of probability for each class.")
@click.option("--overwrite", is_flag=True, help="Replace a file that is there.")
@click.option("--json", "as_json", is_flag=True, help="Print what was done as JSON.")
def command(
    model: Path, table: Path, out: Path, keep: tuple[str, ...], proba: bool, overwrite: bool, as_json: bool
) -> None:
    """Apply the folder MODEL to the records of TABLE (CSV, TSV or Parquet): one prediction per record.

    \b
      sidelight predict model new.csv --out predictions.csv
      sidelight predict model new.csv --out - --proba | head

    The columns may be in any order; others than those of the model, and the target, are not looked at.
    Predictions cost no budget: the model is already private. But to *publish* a score on private records is a
    release of its own.
    """
    to_stdout = str(out) == "-"
    if as_json and to_stdout:
        raise InputError("--json: predictions go to stdout already; give --out a file")
    if not table.exists():
        raise InputError(f"{table} does not exist")
    if not to_stdout and out.is_dir():
        raise InputError(f"--out: {out} is a folder; expected the name of a CSV file")
    if not to_stdout and (out.exists() or out.is_symlink()) and not overwrite:
        raise InputError(f"--out: {out} exists; choose another name, or --overwrite")
    from sidelight.data.table_files import write_csv
    from sidelight.tables import TableModel, read_table

    fitted = TableModel.load(model)
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
        show.as_json({"predictions": str(out), "records": len(predictions), "target": target})
    else:
        click.echo(f"wrote {len(predictions):,} predictions of {target} to {out}")


def _predictions(model: TableModel, frame: pd.DataFrame, keep: tuple[str, ...], proba: bool) -> pd.DataFrame:
    import pandas as pd

    target = model.schema.target.name
    name = f"predicted {target}" if target in keep else target
    columns = {column: frame[column].to_numpy() for column in keep} | {name: model.predict(frame)}
    if proba:
        shares, labels = model.predict_proba(frame), model.estimator.classes_
        columns |= {f"probability of {label}": shares[:, i] for i, label in enumerate(labels)}
    return pd.DataFrame(columns)
