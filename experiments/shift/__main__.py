"""python -m experiments.shift [--repeats 3] [--docs docs/reproductions] [--again METHOD] [--quick]

The default with public rows that differ from the private ones, beside the default without public rows, beside
models of the public rows alone, which are free, and beside public rows that do not differ. Runs what is
missing from OUT/runs.csv.
"""

from __future__ import annotations

from experiments.sweep import one_thread

one_thread()

from collections.abc import Sequence  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import Any  # noqa: E402

from experiments.public_pays.contenders import FREE  # noqa: E402
from experiments.shift import contenders, report, shifts  # noqa: E402
from experiments.sweep import Job, page_of_runs  # noqa: E402

HERE = Path(__file__).parent
FIELDS = ("shift", "method", "epsilon", "repeat")
EPSILONS = (0.1, 0.5, 1.0, 3.0)
ALL = {**shifts.SHIFTS, **shifts.TOY}


def jobs(names: Sequence[str], repeats: int, epsilons: tuple[float, ...]) -> list[Job]:
    """What does not depend on the shift is run once for each table, under its name."""
    places = list(dict.fromkeys(ALL[name].table for name in names))
    kinds = [name for name in names if ALL[name].kind]
    found: list[Job] = []
    for method, where, budgets in (
        *((free, names, epsilons[:1]) for free in FREE),
        (contenders.NONE, places, epsilons), (contenders.OURS, names, epsilons),
        (contenders.SAME, places, epsilons), (contenders.LEARNED, kinds, epsilons),
    ):  # fmt: skip
        found += [
            {"shift": name, "method": method, "epsilon": epsilon, "repeat": repeat}
            for repeat in range(repeats) for name in where for epsilon in budgets
        ]  # fmt: skip
    return found


def run(job: Job) -> dict[str, Any]:
    shift = ALL.get(job["shift"], shifts.Shift(job["shift"], ""))
    return contenders.run(job["method"], shift, epsilon=float(job["epsilon"]), repeat=int(job["repeat"]))


def main(argv: list[str] | None = None) -> None:
    page_of_runs(
        argv, folder=HERE, about=__doc__, names=list(shifts.SHIFTS), quick=list(shifts.TOY),
        option="--shifts", epsilons=EPSILONS, jobs=jobs, run=run, fields=FIELDS,
        results=contenders.RESULTS, page=report.page,
    )  # fmt: skip


if __name__ == "__main__":
    main()
