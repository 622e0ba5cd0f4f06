"""Many small runs: in parallel, with a progress bar, resumable.

A job is a dictionary of strings and numbers. Its result is one line of a CSV, written as soon as it is there;
a job whose line exists already is not run again, so that a sweep can be stopped and started at will.
"""

from __future__ import annotations

import argparse
import csv
import ctypes
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

Job = dict[str, Any]
Key = tuple[str, ...]


def one_thread() -> None:
    """One thread a process. Call it before NumPy is imported; child processes inherit it."""
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = "1"


def options(
    folder: Path,
    about: str | None,
    *,
    repeats: int,
    workers: int = 1,
    docs: str | None = None,
    quick: str | None = None,
    again: bool = False,
) -> argparse.ArgumentParser:
    """What a sweep is started with; an experiment may add options of its own.

    Args:
        folder: of the experiment, where runs.csv is kept unless --out says otherwise.
        docs, quick: help texts of options that not every experiment has.
        again: whether runs of a method can be forgotten (`forget`).
    """
    parser = argparse.ArgumentParser(prog=f"python -m experiments.{folder.name}", description=about)
    parser.add_argument("--repeats", type=int, default=repeats)
    parser.add_argument("--workers", type=int, default=workers)
    parser.add_argument("--out", type=Path, default=folder, help="folder of runs.csv")
    if docs is not None:
        parser.add_argument("--docs", type=Path, help=docs)
    if quick is not None:
        parser.add_argument("--quick", action="store_true", help=quick)
    if again:
        parser.add_argument(
            "--again", action="append", default=[], metavar="METHOD", help="forget its runs first"
        )
    return parser


def keep_memory() -> None:
    """Memory that tensors leave stays with the process (glibc).

    Returned to the system and asked for anew at every step, tensors of tens of megabytes cost as much
    processor time as the step itself.
    """
    if sys.platform == "linux" and hasattr(libc := ctypes.CDLL(None), "mallopt"):
        mmap_max, trim_threshold, top_pad = -4, -1, -2
        libc.mallopt(mmap_max, 0)
        libc.mallopt(trim_threshold, 2**31 - 1)
        libc.mallopt(top_pad, 2**27)


def read(path: Path) -> list[dict[str, str]]:
    """The lines so far."""
    if not path.exists():
        return []
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def forget(path: Path, methods: Sequence[str], *, column: str = "method") -> None:
    """Remove the runs of these methods, which have changed; `column` is what names them."""
    lines = read(path)
    if not lines or not methods:
        return
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(lines[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(line for line in lines if line[column] not in methods)


def sweep(
    jobs: Sequence[Job],
    run: Callable[[Job], dict[str, Any]],
    path: Path,
    *,
    fields: Sequence[str],
    results: Sequence[str],
    workers: int = 2,
    title: str = "runs",
    most: int | None = None,
) -> list[dict[str, str]]:
    """Run what `path` lacks, at most so many jobs of it, and return every line of the file.

    `fields` identify a job, `results` come from run.
    """
    done = {_key(row, fields) for row in read(path)}
    left = [job for job in jobs if _key(job, fields) not in done][:most]
    path.parent.mkdir(parents=True, exist_ok=True)
    columns = [*fields, *results]
    fresh = not path.exists()
    with path.open("a", newline="") as file, _bar() as bar:
        writer = csv.DictWriter(file, columns, lineterminator="\n")
        if fresh:
            writer.writeheader()
            file.flush()  # a run that is stopped before its first line leaves a file that can be read
        task = bar.add_task(title, total=len(left))
        for job, outcome in _outcomes(left, run, workers):
            writer.writerow({**{name: job[name] for name in fields}, **outcome})
            file.flush()
            bar.advance(task)
    return read(path)


def page_of_runs(
    argv: list[str] | None,
    *,
    folder: Path,
    about: str | None,
    names: Sequence[str],
    quick: Sequence[str],
    epsilons: tuple[float, ...],
    jobs: Callable[[Sequence[str], int, tuple[float, ...]], list[Job]],
    run: Callable[[Job], dict[str, Any]],
    fields: Sequence[str],
    results: Sequence[str],
    page: Callable[[list[dict[str, str]]], str],
    option: str = "--tables",
) -> None:
    """The command of an experiment whose runs make one page: what is missing is run, then the page is made.

    Args:
        names: what --tables (or `option`) chooses from; `quick` takes its place with --quick, at ε = 1.
        jobs: of names, a number of repeats, and every ε.
    """
    parser = options(
        folder, about, repeats=3, docs=f"folder to write {folder.name}.md to", again=True,
        quick="one small table that is made up, one split",
    )  # fmt: skip
    parser.add_argument(option, nargs="+", default=list(names), dest="names")
    args = parser.parse_args(argv)
    runs = args.out / "runs.csv"
    forget(runs, args.again, column=fields[1])
    todo = jobs(quick, 1, (1.0,)) if args.quick else jobs(args.names, args.repeats, epsilons)
    lines = sweep(todo, run, runs, fields=fields, results=results, workers=args.workers, title="fits")
    if args.docs:
        (args.docs / f"{folder.name}.md").write_text(page(lines))
    else:
        print(page(lines))


def _outcomes(
    jobs: Sequence[Job], run: Callable[[Job], dict[str, Any]], workers: int
) -> Iterable[tuple[Job, dict[str, Any]]]:
    if workers < 2:
        yield from ((job, run(job)) for job in jobs)
        return
    # spawn: a fresh interpreter, so that the number of threads is read before NumPy starts any.
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        futures = {pool.submit(run, job): job for job in jobs}
        for future in as_completed(futures):
            yield futures[future], future.result()


def _key(row: Job, fields: Sequence[str]) -> Key:
    return tuple(str(row[name]) for name in fields)


def _bar() -> Progress:
    text, count = TextColumn("{task.description}"), MofNCompleteColumn()
    return Progress(text, BarColumn(), count, TimeRemainingColumn())
