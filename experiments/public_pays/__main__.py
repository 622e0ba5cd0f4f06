"""python -m experiments.public_pays [--repeats 3] [--docs docs/reproductions] [--again METHOD] [--quick]

The default (two tables and ε) beside what costs nothing: linear models and boosting of the public rows;
beside our other methods, our default as a line alone, and models without privacy. Half of the
tables were used to develop the default, the other half was held back. Runs what is missing from
OUT/runs.csv.
"""

from __future__ import annotations

from experiments.sweep import one_thread, options

one_thread()

from pathlib import Path  # noqa: E402
from typing import Any  # noqa: E402

from experiments.public_pays import contenders, report, tables  # noqa: E402
from experiments.sweep import Job, forget, sweep  # noqa: E402

HERE = Path(__file__).parent
FIELDS = ("dataset", "method", "epsilon", "repeat")
EPSILONS = (0.1, 0.5, 1.0, 3.0)


def jobs(names: tuple[str, ...], repeats: int, epsilons: tuple[float, ...]) -> list[Job]:
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
    parser = options(
        HERE, __doc__, repeats=3, docs="folder to write public_pays.md to", again=True,
        quick="one small table that is made up, one split",
    )  # fmt: skip
    parser.add_argument("--tables", nargs="+", default=[*tables.DEVELOPED, *tables.SCORED_ONCE])
    args = parser.parse_args(argv)
    runs = args.out / "runs.csv"
    forget(runs, args.again)
    names = (tables.TOY,) if args.quick else tuple(args.tables)
    todo = jobs(names, 1 if args.quick else args.repeats, EPSILONS[2:3] if args.quick else EPSILONS)
    lines = sweep(
        todo, run, runs, fields=FIELDS, results=contenders.RESULTS, workers=args.workers, title="fits"
    )
    if args.docs:
        (args.docs / "public_pays.md").write_text(report.page(lines))
    else:
        print(report.page(lines))


if __name__ == "__main__":
    main()
