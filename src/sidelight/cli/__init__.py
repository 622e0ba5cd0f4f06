"""The command `sidelight`: arguments in, results out; no maths.

Exit codes, for scripts:

    0    done
    1    anything else went wrong
    2    bad usage or bad input; a sentence on stderr says what was expected
    3    refused: it would exceed a privacy budget
    4    the ledger cannot be opened, written or trusted
    130  interrupted (Ctrl-C)

Nothing heavy is imported before a command has checked its arguments, so `--help` and typing errors answer
at once.
"""

from __future__ import annotations

import difflib
import importlib
import io
import os
import sys
import traceback
import warnings
from collections.abc import Sequence
from typing import TextIO

import click
from click.shell_completion import get_completion_class

from sidelight import __version__
from sidelight.errors import (
    IN_COMMAND,
    BudgetExceeded,
    LedgerError,
    MissingDependency,
    NotPrivateWarning,
    PrivacyWarning,
    RecordsWarning,
    SidelightError,
)
from sidelight.numbers import plain_down

__all__ = ["main"]

OK, FAILED, BAD_INPUT, REFUSED, LEDGER_UNUSABLE, INTERRUPTED = 0, 1, 2, 3, 4, 130

# One line each for the list of commands. The module of a command is imported when it is used.
COMMANDS = {
    "account": "What a training plan costs, or the noise that a budget needs.",
    "audit": "Attack a method and compare its claim with what is proven.",
    "compare": "What each method would reach, rehearsed on public rows.",
    "completion": "Print a script that completes commands in your shell.",
    "demo": "Compare methods with and without public rows on synthetic data.",
    "fit": "Fit a private model to a table, guided by a public one.",
    "ledger": "Create and read the ledger of what was spent.",
    "methods": "List methods, what each needs, and when it wins.",
    "predict": "Apply a model to a table.",
    "report": "Write the privacy report of a model and print its guarantee.",
    "schema": "Write the types and bounds of a public table to a file.",
}
_TOGETHER = {
    "methods": "compare",
    "predict": "fit",
    "schema": "fit",
}  # commands that are in the module of another
SHELLS = ("bash", "zsh", "fish")


class LazyGroup(click.Group):
    """A group that imports a command only when somebody uses it."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            near = difflib.get_close_matches(cmd_name, COMMANDS, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"expected one of {', '.join(sorted(COMMANDS))}"
            raise click.UsageError(f"no command {cmd_name!r}; {hint}", ctx=ctx)
        if (own := super().get_command(ctx, cmd_name)) is not None:
            return own
        module = importlib.import_module(f"sidelight.cli.{_TOGETHER.get(cmd_name, cmd_name)}_command")
        command: click.Command = getattr(module, cmd_name if cmd_name in _TOGETHER else "command")
        command.short_help = COMMANDS[cmd_name]
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, COMMANDS[name]) for name in self.list_commands(ctx)])


SETTINGS = {"help_option_names": ["-h", "--help"], "max_content_width": 80}


@click.command(cls=LazyGroup, context_settings=SETTINGS)
@click.version_option(__version__, prog_name="sidelight", message="%(prog)s %(version)s")
def cli() -> None:
    """Differentially private learning, guided by public data.

    \b
    Try it on synthetic data:
      sidelight demo
    Fit a private table with the help of a public one, apply the model,
    read its privacy report:
      sidelight fit private.csv --public public.csv --target income \\
          --epsilon 1 --out model
      sidelight predict model new.csv --out predictions.csv
      sidelight report model
    Choose a method and ε by rehearsing on public rows, at no budget:
      sidelight compare --public public.csv --target income --rows 50000
    How much noise does a budget need?
      sidelight account -q 0.01 --epsilon 2 --steps 1000 --delta 1e-5
    Give a dataset a lifetime budget, and see what is left:
      sidelight ledger init patients.ledger --name patients \\
          --relation add-or-remove-one --epsilon 3 --delta 1e-6
      sidelight ledger show patients.ledger

    \b
    Exit codes: 0 done · 2 bad input · 3 refused by a budget ·
    4 ledger unusable · 1 anything else
    """


@cli.command("completion", short_help=COMMANDS["completion"])
@click.argument("shell", type=click.Choice(SHELLS), metavar="bash|zsh|fish")
def completion(shell: str) -> None:
    """Print a script that completes commands, options, methods, relations and files in your shell.

    \b
      eval "$(sidelight completion bash)"     in ~/.bashrc
      eval "$(sidelight completion zsh)"      in ~/.zshrc, after compinit
      sidelight completion fish > ~/.config/fish/completions/sidelight.fish
    """
    maker = get_completion_class(shell)
    if maker is None:
        raise click.UsageError(f"this version of click has no completion for {shell}")
    click.echo(maker(cli, {}, "sidelight", "_SIDELIGHT_COMPLETE").source())


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code. No error leaves as a traceback.

    Output is written by click and rich, which flush as they write, and end in silence when the reader of a
    pipe is gone.
    """
    _tolerate_narrow_encodings()
    spelling = IN_COMMAND.set(True)
    try:
        with warnings.catch_warnings():
            _show_warnings_as_lines()
            args = list(sys.argv[1:] if argv is None else argv)
            code = cli.main(args, prog_name="sidelight", standalone_mode=False)
        return code if isinstance(code, int) else OK
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True)
        return BAD_INPUT
    except click.ClickException as error:
        return _fail(_usage(error), BAD_INPUT, context=getattr(error, "ctx", None))
    except (click.Abort, KeyboardInterrupt):
        return _fail("interrupted", INTERRUPTED)
    except SidelightError as error:
        return _fail(f"{error}{_what_would_fit(error)}", exit_code(error))
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        return _fail(f"{where}{error.strerror or 'input or output failed'}", FAILED)
    except Exception as error:
        return _bug(error)
    finally:
        IN_COMMAND.reset(spelling)


def _what_would_fit(error: SidelightError) -> str:
    """What to type instead, if a budget refused a fit of which a smaller one would be admitted."""
    left = error.left if isinstance(error, BudgetExceeded) else None
    return f" Try --epsilon {plain_down(left, 3)}." if left else ""


def exit_code(error: SidelightError) -> int:
    """What a script sees for an error of ours."""
    if isinstance(error, BudgetExceeded):
        return REFUSED
    if isinstance(error, LedgerError):
        return LEDGER_UNUSABLE
    if isinstance(error, MissingDependency):
        return FAILED
    return BAD_INPUT if isinstance(error, ValueError) else FAILED


def _fail(message: str, code: int, *, context: click.Context | None = None) -> int:
    """One sentence on stderr: which command, and what was expected."""
    path = context.command_path if context is not None else "sidelight"
    _say(f"{path}: {message}")
    return code


def _say(message: str) -> None:
    from sidelight.cli.terminal import fold

    click.echo(fold(message), err=True)


def _usage(error: click.ClickException) -> str:
    """Click's message in our form: the long name of the option, then what was expected."""
    if not isinstance(error, click.BadParameter) or error.param is None or error.ctx is None:
        return error.format_message()
    option = isinstance(error.param, click.Option)
    name = max(error.param.opts, key=len) if option else error.param.make_metavar(error.ctx)
    if isinstance(error, click.MissingParameter):
        return f"{name} is missing; `{error.ctx.command_path} --help` shows examples"
    return f"{name}: {error.message}"


def _bug(error: Exception) -> int:
    """An error that is not ours. Its text may quote private data, so it is shown only on request."""
    if os.environ.get("SIDELIGHT_DEBUG"):
        traceback.print_exc()
        return FAILED
    frame = traceback.extract_tb(error.__traceback__)[-1]
    location = f"{os.path.basename(frame.filename)}:{frame.lineno}"
    return _fail(
        f"internal error ({type(error).__name__} at {location}), which is a bug. "
        "SIDELIGHT_DEBUG=1 shows the traceback, which may quote your data.",
        FAILED,
    )


_OURS = (PrivacyWarning, NotPrivateWarning, RecordsWarning)


def _show_warnings_as_lines() -> None:
    """Our own warnings become one sentence each; those of other packages are no business of this user."""

    def show(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        if issubclass(category, _OURS):
            _say(f"warning: {message}")

    for category in _OURS:
        warnings.simplefilter("always", category)
    warnings.showwarning = show


def _tolerate_narrow_encodings() -> None:
    """A terminal that cannot show ε gets a question mark, not a crash."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
