"""python -m experiments.peers [--repeats 3] [--docs docs/reproductions] [--again METHOD] [--quick]

Ours by default, other private libraries, our own methods one by one, public rows alone and no privacy: the
same tables, the same splits, one run. `make peers-env` installs the other libraries; one that is not there is
left out. Runs what is missing from OUT/runs.csv; stop it and start it again as you like. --again forgets the
runs of a contender first, after it has changed. On the newer tables everything but other libraries is taken
from the runs of `experiments.public_pays`, which has to be run first.
"""

from __future__ import annotations

from experiments.sweep import one_thread, options

one_thread()

from pathlib import Path  # noqa: E402
from typing import Any  # noqa: E402

from experiments.peers import contenders, report, splits, subprocesses  # noqa: E402
from experiments.public_pays import __main__ as public_pays  # noqa: E402
from experiments.public_pays.contenders import GIVEN  # noqa: E402
from experiments.sweep import Job, forget, read, sweep  # noqa: E402

HERE = Path(__file__).parent
FIELDS = ("dataset", "method", "epsilon", "repeat")


def jobs(repeats: int, *, quick: bool = False) -> list[Job]:
    """One split after the other, so that a sweep that is stopped has the same splits of everything."""
    tables = splits.TOYS if quick else (*splits.CLASSES, *splits.NUMBERS, *splits.APART, *splits.NEW)
    return [
        {"dataset": name, "method": method, "epsilon": epsilon, "repeat": repeat}
        for repeat in range(1 if quick else repeats)
        for name in tables
        for method in contenders.contenders(name)
        if method in (*subprocesses.PEERS, GIVEN) or name not in splits.NEW  # the others: `public_pays`
        if method not in subprocesses.PEERS or subprocesses.installed(method)
        for epsilon in ((1.0,) if quick else _epsilons(name, method))
    ]


def _epsilons(name: str, method: str) -> tuple[float, ...]:
    epsilons = public_pays.EPSILONS if name in splits.NEW else report.EPSILONS
    return epsilons[:1] if method in contenders.FREE else epsilons


def shared_lines() -> list[dict[str, str]]:
    """Runs of `public_pays` on the new tables: the same splits, and everything but other libraries."""
    return [line for line in read(public_pays.HERE / "runs.csv") if line["dataset"] in splits.NEW]


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
    lines += [] if args.quick else shared_lines()
    if args.docs:
        report.plots(lines, args.docs)
        if not args.quick:
            report.home_picture(lines, args.docs.parent / "images" / "what-public-rows-buy.svg")
        (args.docs / "peers.md").write_text(report.page(lines))
    else:
        print(report.page(lines))


if __name__ == "__main__":
    main()
