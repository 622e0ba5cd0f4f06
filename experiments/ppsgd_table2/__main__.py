"""python -m experiments.ppsgd_table2 [--repeats 20] [--workers 2] [--only TEXT] [--ranges all] [--quick]

Runs what is missing from OUT/runs.csv, then writes OUT/results.csv and prints the tables. Stop it and start
it again as you like. The datasets are looked for in $SIDELIGHT_DATA (see experiments.datasets).
"""

from __future__ import annotations

from experiments.sweep import one_thread, options

one_thread()

import argparse  # noqa: E402  (threads are fixed before NumPy is imported)
from pathlib import Path  # noqa: E402

from rich.console import Console  # noqa: E402

from experiments.ppsgd_table2 import grid, report  # noqa: E402
from experiments.sweep import sweep  # noqa: E402

HERE = Path(__file__).parent


def arguments(argv: list[str] | None = None) -> argparse.Namespace:
    parser = options(
        HERE, __doc__, repeats=20, workers=2, docs="also write the tables to this Markdown file",
        quick="one cell of a synthetic table, to try it out",
    )  # fmt: skip
    parser.add_argument("--only", action="append", help="jobs with this text, e.g. 'adult-a hinge 0.5 auto'")
    parser.add_argument("--ranges", nargs="+", choices=("all", "public", "declared"), default=["all"])
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> None:
    args, console = arguments(argv), Console()
    cells = grid.QUICK if args.quick else grid.present_cells(console)
    jobs = grid.jobs(
        cells, repeats=2 if args.quick else args.repeats, ranges=args.ranges, only=args.only, quick=args.quick
    )
    runs = sweep(
        jobs, grid.run, args.out / "runs.csv", fields=grid.FIELDS, results=("value", "seconds"),
        workers=args.workers, title="Table 2",
    )  # fmt: skip
    summary = report.summarize(runs)
    report.write_csv(summary, args.out / "results.csv")
    text = report.markdown(summary, report.read_paper(HERE / "paper.csv"))
    console.print(text, markup=False, soft_wrap=True)
    if args.docs:
        args.docs.write_text(report.page(text))


if __name__ == "__main__":
    main()
