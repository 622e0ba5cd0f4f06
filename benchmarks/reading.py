"""How long a table takes from its file to a model, and how much memory: python -m benchmarks.reading [rows]

One synthetic CSV (seven numbers, two categories, a boolean, a date and a class) is written, then in one run:
Arrow's reader, our reader with the encoding, scikit-learn's LogisticRegression on the encoded rows, and a
whole private fit. Each is timed by wall clock and by CPU, since the machine may be shared; memory is the peak
of a fresh process above what its imports take.
"""

from __future__ import annotations

import gc
import json
import platform
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np

from benchmarks.memory import status

STEPS = ("arrow", "read", "logistic", "fit")
PUBLIC = 500


def write(folder: Path, rows: int) -> None:
    import pandas as pd

    rng = np.random.default_rng(0)
    n = rows + PUBLIC
    frame = pd.DataFrame({f"x{i}": rng.normal(0, 1, n).round(4) for i in range(6)})
    frame["age"] = rng.integers(18, 90, n)
    frame["job"] = rng.choice([f"job{i}" for i in range(12)], n)
    frame["land"] = rng.choice(["AT", "DE", "FR"], n)
    frame["member"] = rng.choice(["true", "false"], n)
    days = pd.Timestamp("2019-01-01") + pd.to_timedelta(rng.integers(0, 1800, n), "D")
    frame["since"] = days.strftime("%Y-%m-%d")
    frame["y"] = np.where(frame.x0 + frame.x1 + (frame.land == "AT") + rng.normal(0, 1, n) > 0.5, "yes", "no")
    frame[:PUBLIC].to_csv(folder / "public.csv", index=False)
    frame[PUBLIC:].to_csv(folder / "private.csv", index=False)


def arrow(folder: Path) -> Callable[[], object]:
    from pyarrow import csv

    return lambda: csv.read_csv(folder / "private.csv")


def read(folder: Path) -> Callable[[], object]:
    from sidelight.data.features import FeaturePlan
    from sidelight.data.private_tables import open_private
    from sidelight.tables import Schema, read_table

    plan = FeaturePlan(Schema.learn(read_table(folder / "public.csv"), "y"))
    return lambda: plan.encode_private(open_private(folder / "private.csv"))


def logistic(folder: Path) -> Callable[[], object]:
    from sklearn.linear_model import LogisticRegression

    X, y = read(folder)()  # type: ignore[misc]
    return lambda: LogisticRegression(max_iter=200).fit(X, y == "yes")


def fit(folder: Path) -> Callable[[], object]:
    from sidelight.methods.registry import get_method

    import sidelight.estimators  # noqa: F401  (imports are no part of what is measured)
    from sidelight.tables import fit_tables

    get_method("auto")
    warnings.simplefilter("ignore")  # of a seed

    def whole() -> object:
        return fit_tables(
            folder / "private.csv", folder / "public.csv", target="y", epsilon=1.0, random_state=0
        )

    return whole


def measure(step: str, folder: Path) -> dict[str, float]:
    """In a process of its own: seconds of wall clock and CPU, and megabytes above what it started with."""
    task = {"arrow": arrow, "read": read, "logistic": logistic, "fit": fit}[step](folder)
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak so far (Linux)
    before = status("VmRSS")
    wall, cpu = time.perf_counter(), time.process_time()
    found = task()
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    peak = status("VmHWM") - before
    size = found[0].nbytes / 1e6 if step == "read" else 0.0  # type: ignore[index]
    return {"seconds": wall, "cpu": cpu, "megabytes": peak / 1e6, "encoded": size}


def main(rows: int) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write(folder, rows)
        size = (folder / "private.csv").stat().st_size / 1e6
        print(f"{rows:,} rows, {size:.0f} MB of CSV; Python {platform.python_version()}")
        print("| step | seconds | CPU seconds | peak MB |\n| --- | --- | --- | --- |")
        for step in STEPS:
            command = [sys.executable, "-m", "benchmarks.reading", "--step", step, name]
            done = subprocess.run(command, check=True, capture_output=True, text=True)
            got = json.loads(done.stdout)
            encoded = f" (encoded: {got['encoded']:.0f})" if got["encoded"] else ""
            print(f"| {step} | {got['seconds']:.2f} | {got['cpu']:.2f} | {got['megabytes']:.0f}{encoded} |")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--step"]:
        print(json.dumps(measure(sys.argv[2], Path(sys.argv[3]))))
    else:
        main(int(float(sys.argv[1])) if len(sys.argv) > 1 else 1_000_000)
