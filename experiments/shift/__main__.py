"""python -m experiments.shift [--repeats 3] [--docs docs/reproductions] [--again METHOD] [--quick]

The default with public rows that differ from the private ones, beside the default without public rows, beside
models of the public rows alone, which are free, and beside public rows that do not differ. Runs what is
missing from OUT/runs.csv.
"""

from __future__ import annotations

from experiments.sweep import one_thread, options

one_thread()

from pathlib import Path  # noqa: E402
from typing import Any  # noqa: E402

from experiments.public_pays.contenders import FREE  # noqa: E402
from experiments.shift import contenders, report, shifts  # noqa: E402
from experiments.sweep import Job, forget, sweep  # noqa: E402

HERE = Path(__file__).parent
FIELDS = ("shift", "method", "epsilon", "repeat")
EPSILONS = (0.1, 0.5, 1.0, 3.0)
ALL = {**shifts.SHIFTS, **shifts.TOY}


def jobs(names: list[str], repeats: int, epsilons: tuple[float, ...]) -> list[Job]:
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
    parser = options(
        HERE, __doc__, repeats=3, docs="folder to write shift.md to", again=True,
        quick="one small table that is made up, one split",
    )  # fmt: skip
    parser.add_argument("--shifts", nargs="+", default=list(shifts.SHIFTS))
    args = parser.parse_args(argv)
    runs = args.out / "runs.csv"
    forget(runs, args.again)
    names = list(shifts.TOY) if args.quick else args.shifts
    todo = jobs(names, 1 if args.quick else args.repeats, EPSILONS[2:3] if args.quick else EPSILONS)
    lines = sweep(
        todo, run, runs, fields=FIELDS, results=contenders.RESULTS, workers=args.workers, title="fits"
    )
    if args.docs:
        (args.docs / "shift.md").write_text(report.page(lines))
    else:
        print(report.page(lines))


if __name__ == "__main__":
    main()
