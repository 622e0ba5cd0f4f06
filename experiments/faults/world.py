"""A small folder as users have it (two tables, a schema, a model, a ledger), and commands run in it.

A command runs in a child that is forked from a process which has imported everything: it costs a third of a
second instead of two, and a kill is as sudden as that of a process of its own.
"""

from __future__ import annotations

import os
import resource
import select
import shlex
import shutil
import signal
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

# Everything that a command would import, so that a child need not.
import sidelight.estimators.model_folder
import sidelight.observers
import sidelight.report
import sidelight.tables  # noqa: F401
from sidelight.cli import main
from sidelight.privacy.ledger import Ledger
from sidelight.privacy.noise import Noise

__all__ = ["LEDGER", "SECRET", "Outcome", "charges", "make", "run", "start", "world"]

LEDGER = "book.ledger"
SECRET = "Wallenstein"  # a word of the private table alone: no message may quote it
_SCHEMA = "schema public.csv --target sick --out schema.json"
_FIT = "fit private.csv --public public.csv --target sick --epsilon 1 --out model"


@dataclass(frozen=True)
class Outcome:
    """How a command ended. A code below 0 is the signal that ended it."""

    code: int
    output: str
    wall: float
    cpu: float


def world(template: Path, folder: Path) -> Path:
    """A fresh copy, with a ledger of its own that nothing was charged to."""
    shutil.copytree(template, folder, symlinks=True)
    Ledger.create(folder / LEDGER).register("people", relation="add-or-remove-one", epsilon=9, delta=1e-5)
    return folder


def make(folder: Path) -> Path:
    """The template: made by the commands themselves."""
    folder.mkdir(parents=True)
    _write_tables(folder)
    (folder / "facts.toml").write_text('purpose = "to try"\ncontroller = "nobody"\n')
    for command in (_SCHEMA, _FIT):
        done = run(command, folder)
        if done.code:
            raise RuntimeError(f"sidelight {command}: {done.output}")
    return folder


def _write_tables(folder: Path) -> None:
    rng = np.random.default_rng(0)

    def lines(rows: int, target: bool) -> list[str]:
        age, pay = rng.integers(18, 80, rows), rng.normal(3, 1, rows).round(2)
        job = rng.choice(["nurse", "smith", "clerk"], rows)
        sick = np.where(age + 15 * (job == "smith") + rng.normal(0, 6, rows) > 55, "yes", "no")
        columns = (age, job, pay, sick) if target else (age, job, pay)
        head = "age,job,pay,sick" if target else "age,job,pay"
        return [head, *(",".join(map(str, row)) for row in zip(*columns, strict=True))]

    private = lines(300, True)
    private[1] = f"41,{SECRET},3.1,yes"
    for name, content in (("private", private), ("public", lines(60, True)), ("new", lines(30, False))):
        (folder / f"{name}.csv").write_text("\n".join(content) + "\n")


def charges(folder: Path) -> int:
    """Runs that the ledger of a world holds; it must open."""
    return len(Ledger.open(folder / LEDGER).charges("people"))


def start(command: str, folder: Path, output: Path, *, noisy: Callable[[], None] | None = None) -> int:
    """Begin `sidelight command` in a child; its process id. `noisy` is called before noise is drawn."""
    sys.stdout.flush()
    sys.stderr.flush()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forking beside threads, which do nothing
        child = os.fork()
    if child:
        return child
    code = 70
    try:
        file = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(file, 1)
        os.dup2(file, 2)
        os.chdir(folder)
        if noisy is not None:
            _announce(noisy)
        code = main(shlex.split(command))
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code)


def _announce(noisy: Callable[[], None]) -> None:
    def announced(draw: Callable[..., object]) -> Callable[..., object]:
        def drawn(*given: object, **named: object) -> object:
            noisy()
            return draw(*given, **named)

        return drawn

    for name in ("normal", "normal_like"):
        setattr(Noise, name, announced(getattr(Noise, name)))


def run(command: str, folder: Path, *, seconds: float = 120.0) -> Outcome:
    """`sidelight command` in a folder, killed after so many seconds."""
    with tempfile.TemporaryDirectory() as beside:
        output, began = Path(beside) / "output", time.monotonic()
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        child = start(command, folder, output)
        status = _wait(child, seconds)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        wall = time.monotonic() - began
        said = output.read_text(errors="replace") if output.exists() else ""
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Outcome(os.waitstatus_to_exitcode(status), said, wall, cpu)


def _wait(child: int, seconds: float) -> int:
    handle = os.pidfd_open(child)
    try:
        if not select.select([handle], [], [], seconds)[0]:
            os.kill(child, signal.SIGKILL)
        return os.waitpid(child, 0)[1]
    finally:
        os.close(handle)
