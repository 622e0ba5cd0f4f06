"""`sidelight completion`, as shells use it."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest

from sidelight import cli


def asked(*words: str, shell: str = "bash") -> list[str]:
    """What a shell is told when the last of these words is completed."""
    env = os.environ | {
        "_SIDELIGHT_COMPLETE": f"{shell}_complete",
        "COMP_WORDS": " ".join(("sidelight", *words)),
        "COMP_CWORD": str(len(words)),
    }
    command = [sys.executable, "-m", "sidelight"]
    done = subprocess.run(command, capture_output=True, text=True, env=env, timeout=60, check=False)
    assert done.stderr == ""
    return done.stdout.splitlines()


def test_commands_and_options_are_completed() -> None:
    assert asked("comp") == ["plain,compare", "plain,completion"]
    assert "plain,--relation" in asked("account", "--")


def test_methods_are_completed_also_in_a_list() -> None:
    assert asked("methods", "rs") == ["plain,rsgd_ar"]
    assert asked("compare", "--methods", "auto,rs") == ["plain,auto,rsgd_ar"]
    assert "plain,auto,auto" not in asked("compare", "--methods", "auto,")
    assert asked("fit", "--method", "rs") == asked("audit", "rs") == ["plain,rsgd_ar"]


def test_relations_and_shells_are_completed() -> None:
    assert asked("account", "--relation", "re") == ["plain,replace-one"]
    assert asked("ledger", "init", "x", "--relation", "a") == ["plain,add-or-remove-one"]
    assert asked("completion", "") == ["plain,bash", "plain,zsh", "plain,fish"]


def test_files_are_left_to_the_shell() -> None:
    assert asked("compare", "--public", "pub") == ["file,pub"]
    assert asked("ledger", "show", "p") == ["file,p"]


def test_every_parameter_of_every_command_that_is_a_file_is_known_as_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A new command whose file option nobody thought of fails here."""
    monkeypatch.setenv("_SIDELIGHT_COMPLETE", "bash_complete")
    context = click.Context(cli.cli)
    todo = [cli.cli.get_command(context, name) for name in cli.COMMANDS]
    forgotten = []
    while todo:
        one = todo.pop()
        assert one is not None
        todo += one.commands.values() if isinstance(one, click.Group) else []
        for parameter in one.params:
            if isinstance(parameter.type, click.Path):
                types = {item.type for item in parameter.shell_complete(context, "x")}
                forgotten += [] if types & {"file", "dir"} else [(one.name, parameter.name)]
    assert forgotten == []


def test_completing_methods_loads_nothing_heavy() -> None:
    code = (
        "import sys, click\nfrom sidelight.cli import terminal\n"
        "terminal.complete_methods(click.Context(click.Command('x')), click.Option(['--x']), '')\n"
        "print(*(m for m in ('numpy', 'scipy', 'sklearn', 'torch', 'rich') if m in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


@pytest.mark.parametrize("shell", cli.SHELLS)
def test_the_script_is_for_that_shell(run: Any, shell: str) -> None:
    outcome = run("completion", shell)
    assert outcome.code == 0 and f"_SIDELIGHT_COMPLETE={shell}_complete" in outcome.out
    program = shutil.which(shell)
    if program:  # it parses
        subprocess.run([program, "-n"], input=outcome.out, text=True, check=True, timeout=30)


def test_bash_really_completes(run: Any, tmp_path: Path) -> None:
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("this system has no bash")
    program = tmp_path / "sidelight"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m sidelight "$@"\n')
    program.chmod(0o755)
    script = run("completion", "bash").out + (
        "\nCOMP_WORDS=(sidelight methods public_); COMP_CWORD=2\n"
        f'_sidelight_completion "{program}"\necho "${{COMPREPLY[@]}}"\n'
    )
    env = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run(
        [bash, "-c", script], capture_output=True, text=True, env=env, check=True, timeout=60
    )
    assert done.stdout.split() == ["public_whitening"]


def test_another_shell_is_one_line(run: Any) -> None:
    run("completion", "tcsh").is_one_line_error(2, "is not one of 'bash', 'zsh', 'fish'")
    run("completion").is_one_line_error(2, "missing")
