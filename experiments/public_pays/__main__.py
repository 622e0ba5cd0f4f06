"""python -m experiments.public_pays [--repeats 3] [--docs docs/reproductions] [--again METHOD] [--quick]

The default (two tables and ε) beside what costs nothing: linear models and boosting of the public rows;
beside our other methods, our default as a line alone, and models without privacy. Half of the
tables were used to develop the default, the other half was held back. Runs what is missing from
OUT/runs.csv.
"""

from __future__ import annotations

from experiments.sweep import one_thread

one_thread()

from collections.abc import Sequence  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import Any  # noqa: E402

from experiments.public_pays import contenders, report, tables  # noqa: E402
from experiments.sweep import Job, page_of_runs  # noqa: E402

HERE = Path(__file__).parent
FIELDS = ("dataset", "method", "epsilon", "repeat")
EPSILONS = (0.1, 0.5, 1.0, 3.0)


def jobs(names: Sequence[str], repeats: int, epsilons: tuple[float, ...]) -> list[Job]:
    found: list[Job] = []
    for repeat in range(repeats):
        for name in names:
            regression = name in tables.REGRESSIONS
            classes = 0 if regression else report.CLASSES.get(name, 2)
            for method in contenders.contenders(regression=regression, classes=classes):
                free = method in (*contenders.FREE, *contenders.WITHOUT)
                found += [
                    {"dataset": name, "method": method, "epsilon": epsilon, "repeat": repeat}
                    for epsilon in (epsilons[:1] if free else epsilons)
                ]
    return found


def run(job: Job) -> dict[str, Any]:
    data = tables.split(job["dataset"], int(job["repeat"]))
    return contenders.run(job["method"], data, epsilon=float(job["epsilon"]), seed=int(job["repeat"]))


def main(argv: list[str] | None = None) -> None:
    page_of_runs(
        argv, folder=HERE, about=__doc__, names=[*tables.DEVELOPED, *tables.SCORED_ONCE], quick=[tables.TOY],
        epsilons=EPSILONS, jobs=jobs, run=run, fields=FIELDS, results=contenders.RESULTS, page=report.page,
    )  # fmt: skip


if __name__ == "__main__":
    main()
