"""Nothing that the command prints is wider than a terminal of eighty columns."""

from collections.abc import Iterator

import click
import pytest
from tests.cli.conftest import Run

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
