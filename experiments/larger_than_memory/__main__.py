"""python -m experiments.larger_than_memory [--rows 1e5 …] [--engine memory blocks ray] [--docs PATH]

One table of 30 columns (`table`), 5,000 public rows, ε = 1, sixteen steps of precision weighting (what auto
chooses, with a quarter of its steps). Each fit is a process of its own. Three ways to hold the records:

    memory   all of them, as a table that fits is held
    blocks   encoded blocks on disk: fit_tables(…, memory="2GB") where the table needs more, else forced
    ray      the same with two workers of Ray on this machine

Memory is the peak of the resident set, as the kernel has it for one process (`VmHWM`); with Ray it is the
sum over the driver, the cluster and the workers, looked at five times a second. The table is written to
--folder and removed at the end, unless --keep is given; a run whose line exists is not repeated.
"""

from __future__ import annotations

from experiments.sweep import one_thread

one_thread()

import argparse  # noqa: E402  (threads are fixed before NumPy is imported)
import json  # noqa: E402
import os  # noqa: E402
import shutil  # noqa: E402
import subprocess  # noqa: E402
import sys  # noqa: E402
import tempfile  # noqa: E402
import time  # noqa: E402
from dataclasses import replace  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import Any  # noqa: E402

from experiments.larger_than_memory.processes import Tree, watch  # noqa: E402
from experiments.larger_than_memory.report import page, table  # noqa: E402
from experiments.larger_than_memory.table import lake  # noqa: E402
from experiments.sweep import Job, read, sweep  # noqa: E402
from sidelight.privacy.observer import Observer  # noqa: E402

HERE = Path(__file__).parent
FIELDS = ("rows", "engine")
RESULTS = ("features", "seconds", "reading_seconds", "cpu_seconds", "peak_gb", "accuracy", "spent")
SIZES = (100_000, 300_000, 1_000_000, 3_000_000, 10_000_000, 20_000_000)
ENGINES = ("memory", "blocks", "ray")
MOST_IN_MEMORY = 3_000_000  # rows that are held as a whole here


def arguments(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m experiments.larger_than_memory", description=__doc__)
    parser.add_argument("--rows", type=float, nargs="+", default=SIZES)
    parser.add_argument("--engine", nargs="+", choices=ENGINES, default=ENGINES)
    parser.add_argument("--steps", type=int, default=16)
    parser.add_argument("--folder", type=Path, help="where the table is written; default: a temporary folder")
    parser.add_argument("--keep", action="store_true", help="leave the table there")
    parser.add_argument("--out", type=Path, default=HERE)
    parser.add_argument("--docs", type=Path, help="also write the page, and the picture beside it")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> None:
    args = arguments(argv)
    if args.child:
        print(json.dumps(fit(json.loads(args.child))))
        return
    folder = args.folder or Path(tempfile.mkdtemp(prefix="sidelight-table-"))
    jobs = [
        {"rows": int(rows), "engine": engine}
        for rows in args.rows
        for engine in args.engine
        if engine != "memory" or rows <= MOST_IN_MEMORY
    ]
    try:
        runs = sweep(
            jobs, lambda job: outcome(job, folder, args.steps), args.out / "runs.csv",
            fields=FIELDS, results=RESULTS, workers=1, title="larger than memory",
        )  # fmt: skip
    finally:
        if not args.keep:
            shutil.rmtree(folder, ignore_errors=True)
    print(table(runs))
    if args.docs:
        args.docs.write_text(page(read(args.out / "runs.csv"), args.docs))


def outcome(job: Job, folder: Path, steps: int) -> dict[str, Any]:
    """A fit in a process of its own, and what it took."""
    given = {**job, "table": str(lake(folder, job["rows"])), "folder": str(folder), "steps": steps}
    command = [sys.executable, "-m", "experiments.larger_than_memory", "--child", json.dumps(given)]
    begun = time.perf_counter()
    child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    tree: Tree = watch(child.pid)
    printed = ""
    if child.stdout is not None:
        with child.stdout:
            printed = child.stdout.read()
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)  # it need not be waited for again
    tree.stop()
    if status != 0:
        raise RuntimeError(f"the fit of {job} failed")
    alone, found = job["engine"] != "ray", json.loads(printed)
    peak_alone = int(found.pop("own_peak"))
    peak = peak_alone if alone else tree.peak
    cpu = usage.ru_utime + usage.ru_stime if alone else tree.cpu_seconds
    measured = {"seconds": time.perf_counter() - begun, "cpu_seconds": cpu, "peak_gb": peak / 1e9}
    return {**found, **{name: f"{value:.4g}" for name, value in measured.items()}}


class Clock(Observer):
    """When training began: after the last record was read."""

    def __init__(self) -> None:
        self.started = self.read = time.perf_counter()

    def on_start(self, **_: object) -> None:
        self.started = self.read = time.perf_counter()

    def on_read(self, done: int, records: int) -> None:
        self.read = time.perf_counter()


def fit(given: Job) -> dict[str, Any]:
    """The fit itself, and its accuracy on 50,000 further rows of the population."""
    import numpy as np
    import pandas as pd

    from sidelight.data import record_storage
    from sidelight.data.features import FeaturePlan
    from sidelight.data.schema import Schema
    from sidelight.methods.precision import precision_weighting
    from sidelight.tables import fit_tables

    folder = Path(given["folder"])
    public, test = (pd.read_parquet(folder / f"{name}.parquet") for name in ("public", "test"))
    learned = Schema.learn(public, "buys")
    # The population is linear, so that numbers need no knots and no products: 75 features.
    columns = {name: replace(column, knots=()) for name, column in learned.columns.items()}
    schema = replace(learned, columns=columns, interactions=())
    if given["engine"] == "blocks":
        record_storage.fits_in_memory = lambda n, p, memory: False
    clock = Clock()
    on_ray = given["engine"] == "ray"
    model = fit_tables(
        given["table"], public, schema=schema, epsilon=1, method=precision_weighting(steps=given["steps"]),
        memory="8GB" if given["engine"] == "memory" else "2GB", observers=[clock],
        engine="ray" if on_ray else "embedded", workers=2 if on_ray else None,
    )  # fmt: skip
    right = np.asarray(model.predict(test)) == test["buys"].to_numpy()
    return {
        "features": FeaturePlan(schema).size + 1,
        "reading_seconds": f"{clock.read - clock.started:.4g}",
        "accuracy": f"{right.mean():.5f}",
        "spent": f"{model.privacy_.epsilon:.4f}",
        "own_peak": own_peak(),
    }


def own_peak() -> int:
    """The most memory that this process has had, in bytes; `ru_maxrss` would count what its parent had."""
    status = Path("/proc/self/status").read_text()
    return 1024 * next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM"))


if __name__ == "__main__":
    main()
