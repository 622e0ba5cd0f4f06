"""`sidelight schema`: what the columns of a public table are, as JSON to edit."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from sidelight.errors import InputError

if TYPE_CHECKING:
    from sidelight.data.schema import Task

FILE = click.Path(path_type=Path)


@click.command("schema", short_help="Write the types and bounds of a public table, to edit.")
@click.argument("public", type=FILE)
@click.option("--target", required=True, metavar="COLUMN", help="What to predict.")
@click.option("--out", type=FILE, metavar="JSON", help="Write here; never replaces a file. Default: stdout.")
@click.option("--task", type=click.Choice(("classification", "regression")), help="Default: by the target.")
@click.option("--ignore", multiple=True, metavar="COLUMN", help="Do not use this column; may be repeated.")
def command(public: Path, target: str, out: Path | None, task: Task | None, ignore: tuple[str, ...]) -> None:
    """Types, categories, bounds and classes of the table PUBLIC, as JSON that a person can edit.

    \b
      sidelight schema public.csv --target income --out schema.json
      sidelight fit private.csv --public public.csv --schema schema.json --epsilon 1 --out model

    \b
    In the file, a column is one of
      {"type": "number", "bounds": [17, 90]}      values outside are clipped
      {"type": "category", "categories": [...]}   any other value counts as "other"
      {"type": "ignore"}                          not used

    Never make a schema from the private table: bounds and categories would tell about single records.
    """
    if not public.exists():
        raise InputError(f"{public} does not exist")
    if out is not None and (out.exists() or out.is_symlink()):
        raise InputError(f"--out: {out} exists and is not replaced; choose another name")
    from sidelight.tables import Schema, read_table

    schema = Schema.learn(read_table(public), target, task=task, ignore=ignore)
    if out is None:
        click.echo(schema.to_text(), nl=False)
        return
    schema.write(out)
    used = schema.used.values()
    numbers = sum(column.kind == "number" for column in used)
    click.echo(
        f"wrote {out}: {schema.target.task} of {target} from {numbers} numbers and {len(used) - numbers} "
        f"categories; {len(schema.ignored)} columns ignored"
    )
    click.echo(
        f"next: edit it, then sidelight fit PRIVATE --public {public} --schema {out} --epsilon 1 --out model"
    )
