"""What a charge costs in a ledger that grows, and a total over many plans.

    python -m benchmarks.ledger [FOLDER]

A charge should cost the same in a long ledger as in a short one. Times are processor time; FOLDER is where
the files are made (a fast disk shows most), else the folder for temporary files.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

from sidelight.accounting import poisson, repeat
from sidelight.privacy.ledger import Ledger

ROUNDS = (100, 900, 4_000, 5_000)  # runs of one plan, one after the other
PLANS = (100, 1_000)  # different plans, all in one total


def one_run(ledger: Ledger, probability: float) -> None:
    plan = repeat(poisson(probability, 2.0), 5)
    with ledger.begin("records", plan, relation="add-or-remove-one", method="benchmark") as run:
        run.charge(poisson(probability, 2.0))


def new(folder: Path) -> Ledger:
    ledger = Ledger.create(folder / "benchmark.ledger")
    ledger.register("records", relation="add-or-remove-one", epsilon=1e6, delta=1e-6)
    return ledger


def charges(folder: Path) -> None:
    print("runs in the ledger    ms a run, of processor time (begin, one charge, settled)")
    done = 0
    with new(folder) as ledger:
        for count in ROUNDS:
            start = time.process_time()
            for _ in range(count):
                one_run(ledger, 0.001)
            spent = time.process_time() - start
            print(f"{done:>6,} to {done + count:>6,}      {1e3 * spent / count:6.2f}")
            done += count


def totals(folder: Path, plans: int) -> None:
    with new(folder) as ledger:
        for number in range(plans):
            one_run(ledger, 0.001 + number * 1e-6)
        start = time.process_time()
        epsilon = ledger.total("records").epsilon
        spent = time.process_time() - start
        print(f"total over {plans:>5,} different plans: {spent:5.2f} s (ε = {epsilon:.4f})")


def main() -> None:
    where = sys.argv[1] if len(sys.argv) > 1 else None
    for job in (charges, *(lambda folder, plans=plans: totals(folder, plans) for plans in PLANS)):
        with tempfile.TemporaryDirectory(dir=where) as folder:
            job(Path(folder))


if __name__ == "__main__":
    main()
