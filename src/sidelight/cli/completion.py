"""`sidelight completion`: a script that completes commands, options, methods, relations and files.

What an option holds is known by its name, so that commands need not think of completion: `teach` is called on
each while a shell asks.
"""

from __future__ import annotations

from collections.abc import Callable

import click
from click.shell_completion import CompletionItem, get_completion_class

from sidelight.cli import options

__all__ = ["VARIABLE", "command", "teach"]

SHELLS = ("bash", "zsh", "fish")
VARIABLE = "_SIDELIGHT_COMPLETE"  # set by the script when it asks

Completer = Callable[[click.Context, str], list[CompletionItem]]


@click.command("completion", short_help="Print a script that completes commands in your shell.")
@click.argument("shell", metavar="bash|zsh|fish")
def command(shell: str) -> None:
    """Print a script that completes commands, options, methods, relations and files in your shell.

    \b
      eval "$(sidelight completion bash)"     in ~/.bashrc
      eval "$(sidelight completion zsh)"      in ~/.zshrc, after compinit
      sidelight completion fish > ~/.config/fish/completions/sidelight.fish
    """
    if shell not in SHELLS:
        raise click.UsageError(f"expected bash, zsh or fish, got {shell!r}")
    maker = get_completion_class(shell)
    if maker is None:
        raise click.UsageError(f"this version of click has no completion for {shell}")
    root = click.get_current_context().find_root().command
    click.echo(maker(root, {}, "sidelight", VARIABLE).source())


def teach(one: click.Command) -> click.Command:
    """Give every parameter of a command (and of those below it) the completion that its name calls for."""
    for parameter in one.params:
        completer = _completer(parameter)
        if completer is not None:
            setattr(parameter, "shell_complete", completer)  # noqa: B010 - a method, exchanged on this object
    if isinstance(one, click.Group):
        for below in one.commands.values():
            teach(below)
    return one


def _completer(parameter: click.Parameter) -> Completer | None:
    name = parameter.name or ""
    if isinstance(parameter, click.Option) and parameter.is_flag:
        return None
    if name in BY_NAME:
        return BY_NAME[name]
    if name == "name" and isinstance(parameter, click.Argument):
        return methods
    return folders if name in FOLDERS else files if name in FILES else None


def methods(ctx: click.Context, incomplete: str) -> list[CompletionItem]:
    """Names of methods. In a list with commas the last one is completed, by what is not there yet."""
    from sidelight.methods.declare import homes

    before, comma, last = incomplete.rpartition(",")
    there = before.split(",")
    return [
        CompletionItem(before + comma + name, help=home.wins)
        for name, home in homes().items()
        if name.startswith(last) and name not in there
    ]


def relations(ctx: click.Context, incomplete: str) -> list[CompletionItem]:
    return _among(options.RELATIONS, incomplete)


def losses(ctx: click.Context, incomplete: str) -> list[CompletionItem]:
    return _among(("logistic", "hinge", "huber", "square", "softmax"), incomplete)


def shells(ctx: click.Context, incomplete: str) -> list[CompletionItem]:
    return _among(SHELLS, incomplete)


def files(ctx: click.Context, incomplete: str) -> list[CompletionItem]:
    """Left to the shell, which knows files best."""
    return [CompletionItem(incomplete, type="file")]


def folders(ctx: click.Context, incomplete: str) -> list[CompletionItem]:
    return [CompletionItem(incomplete, type="dir")]


def _among(names: tuple[str, ...], incomplete: str) -> list[CompletionItem]:
    return [CompletionItem(name) for name in names if name.startswith(incomplete)]


BY_NAME: dict[str, Completer] = {
    "method": methods,
    "methods": methods,
    "method_names": methods,
    "relation": relations,
    "loss": losses,
    "shell": shells,
}
FILES = ("private", "public", "file", "path", "table", "new", "schema", "ledger", "out", "test", "rows_file")
FOLDERS = ("model", "folder")
