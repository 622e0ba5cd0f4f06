"""python -m experiments.peers [--repeats 3] [--docs docs/reproductions] [--again METHOD] [--quick]

Ours by default, other private libraries, our own methods one by one, public rows alone and no privacy: the
same tables, the same splits, one run. `make peers-env` installs the other libraries; one that is not there is
left out. Runs what is missing from OUT/runs.csv; stop it and start it again as you like. --again forgets the
runs of a contender first, after it has changed.
"""

from __future__ import annotations

from experiments.sweep import one_thread, options

one_thread()

from pathlib import Path  # noqa: E402
from typing import Any  # noqa: E402

from experiments.peers import contenders, report, splits, subprocesses  # noqa: E402
from experiments.sweep import Job, forget, sweep  # noqa: E402

HERE = Path(__file__).parent
FIELDS = ("dataset", "method", "epsilon", "repeat")


def jobs(repeats: int, *, quick: bool = False) -> list[Job]:
    """One split after the other, so that a sweep that is stopped has the same splits of everything."""
    epsilons = (1.0,) if quick else report.EPSILONS
    return [
        {"dataset": name, "method": method, "epsilon": epsilon, "repeat": repeat}
        for repeat in range(1 if quick else repeats)
        for name in (splits.TOYS if quick else (*splits.CLASSES, *splits.NUMBERS, *splits.APART))
        for method in contenders.contenders(regression=splits.is_regression(name), apart=name in splits.APART)
        if method not in subprocesses.PEERS or subprocesses.installed(method)
        for epsilon in (epsilons[:1] if method in contenders.FREE else epsilons)
    ]


def run(job: Job) -> dict[str, Any]:
    repeat = int(job["repeat"])
    data = splits.split(job["dataset"], repeat)
    return contenders.run(job["method"], data, epsilon=float(job["epsilon"]), seed=repeat)


def main(argv: list[str] | None = None) -> None:
    parser = options(
        HERE, __doc__, repeats=3, docs="folder to write peers.md and its plots to", again=True,
        quick="two small tables that are made up, one split",
    )  # fmt: skip
    args = parser.parse_args(argv)
    runs = args.out / "runs.csv"
    forget(runs, args.again)
    if subprocesses.missing():
        print(subprocesses.missing())
    lines = sweep(
        jobs(args.repeats, quick=args.quick), run, runs,
        fields=FIELDS, results=contenders.RESULTS, workers=args.workers, title="fits",
    )  # fmt: skip
    if args.docs:
        report.plots(lines, args.docs)
        if not args.quick:
            report.home_picture(lines, args.docs.parent / "images" / "what-public-rows-buy.svg")
        (args.docs / "peers.md").write_text(report.page(lines))
    else:
        print(report.page(lines))


if __name__ == "__main__":
    main()
