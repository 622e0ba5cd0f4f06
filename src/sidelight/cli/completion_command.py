"""`sidelight completion`: a script that completes commands, options, methods, relations and files.

All of it is click's: files and choices complete by their types, relations and methods by those of `options`.
"""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

__all__ = ["VARIABLE", "command"]

SHELLS = ("bash", "zsh", "fish")
VARIABLE = "_SIDELIGHT_COMPLETE"  # set by the script when it asks


@click.command("completion", short_help="Print a script that completes commands in your shell.")
@click.argument("shell", type=click.Choice(SHELLS), metavar="bash|zsh|fish")
def command(shell: str) -> None:
    """Print a script that completes commands, options, methods, relations and files in your shell.

    \b
      eval "$(sidelight completion bash)"     in ~/.bashrc
      eval "$(sidelight completion zsh)"      in ~/.zshrc, after compinit
      sidelight completion fish > ~/.config/fish/completions/sidelight.fish
    """
    maker = get_completion_class(shell)
    if maker is None:
        raise click.UsageError(f"this version of click has no completion for {shell}")
    root = click.get_current_context().find_root().command
    click.echo(maker(root, {}, "sidelight", VARIABLE).source())
