"""Nothing that the command prints is wider than a terminal of eighty columns."""

from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from tests.cli.conftest import Run
from tests.tables.small import write_tables

from sidelight.cli import cli


def commands(path: tuple[str, ...], command: click.Command) -> Iterator[tuple[str, ...]]:
    yield path
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            assert inner is not None
            yield from commands((*path, name), inner)


EVERY = list(commands((), cli))


def test_every_command_is_seen() -> None:
    assert len(EVERY) >= 16 and ("ledger", "init") in EVERY


@pytest.mark.parametrize("path", EVERY, ids=" ".join)
def test_a_help_screen_fits_a_terminal(run: Run, path: tuple[str, ...]) -> None:
    outcome = run(*path, "--help")
    assert outcome.code == 0
    assert [line for line in outcome.out.splitlines() if len(line) > 80] == []


def test_a_command_gives_no_advice_on_python(run: Run) -> None:
    assert "PrivateClassifier" not in run("methods", "dope_sgd").out


FIT = "fit private.csv --public public.csv --target sick --epsilon 1"
TYPED = (  # in this order, in one folder
    "schema public.csv --target sick --out columns-of-the-public-table-as-they-were-learned.json",
    "ledger init the-patients.ledger --name patients --relation replace-one --epsilon 3 --delta 1e-6",
    f"{FIT} --ledger the-patients.ledger --dry-run",
    f"{FIT} --ledger the-patients.ledger --method public_whitening --out a-model-of-the-patients",
    "ledger show the-patients.ledger",
    "predict a-model-of-the-patients new.csv --out predictions-of-the-model-of-the-patients.csv",
    "report a-model-of-the-patients",
    "compare --public public.csv --target sick --rows 300 --epsilon 1 --methods dp_sgd --repeats 1",
    "account --sampling-probability 0.01 --noise-multiplier 1 --steps 100 --delta 1e-5",
    "methods",
    "demo --epsilon 1 --repeats 1 --out here",
    "demo --tour",
)


def test_what_commands_print_fits_a_terminal(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_tables(tmp_path)
    monkeypatch.chdir(tmp_path)
    for line in TYPED:
        outcome = run(*line.split())
        assert outcome.code == 0, (line, outcome.err)
        printed = [*outcome.out.splitlines(), *outcome.folded.splitlines()]
        wide = [one for one in printed if len(one) > 80 and len(one.split()) > 1]
        assert printed and wide == [], line


def test_one_budget_has_no_bars(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_tables(tmp_path)
    monkeypatch.chdir(tmp_path)
    rehearse = "compare --public public.csv --target sick --rows 300 --methods only_public --repeats 1"
    args = [*rehearse.split(), "--epsilon"]
    assert "over ε" not in run(*args, "1").out and "over ε" in run(*args, "1,2").out


def test_a_misspelled_type_gets_the_nearest_one(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_tables(tmp_path)
    monkeypatch.chdir(tmp_path)
    outcome = run("schema", "public.csv", "--target", "sick", "--type", "age=numbr")
    outcome.is_one_line_error(2, "Did you mean 'number'?")
    assert "category" not in outcome.err
