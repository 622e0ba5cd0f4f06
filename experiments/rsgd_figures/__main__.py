"""python -m experiments.rsgd_figures [--repeats 3] [--workers 2] [--out DIR] [--docs DIR] [--quick]

Runs what is missing from OUT/runs.csv, prints the tables, and with --docs writes the page and the plots.
"""

from __future__ import annotations

from experiments.sweep import one_thread, options

one_thread()

from pathlib import Path  # noqa: E402

from experiments import datasets, figures  # noqa: E402
from experiments.rsgd_figures import jobs as work  # noqa: E402
from experiments.sweep import sweep  # noqa: E402

HERE = Path(__file__).parent
TITLES = {
    "1": "Figure 1: logistic regression",
    "2": "Figure 2: huberized SVM",
    "3": "Figure 3: CPU seconds of a fit on KDD Cup 99, ε = 0.5",
}
Panels = dict[str, dict[str, dict[float, list[float]]]]


def panels(runs: list[dict[str, str]], figure: str, measure: str) -> Panels:
    """One panel per dataset, one line per method. What does not depend on ε is drawn at every ε."""
    made: Panels = {}
    for run in runs:
        if run["figure"] != figure or not run["seconds"]:
            continue
        line = made.setdefault(run["dataset"], {}).setdefault(run["method"], {})
        xs = [float(run["rows"])] if figure == "3" else [float(run["epsilon"])]
        if run["method"] == "NonPrivate" and figure != "3":
            xs = list(work.EPSILONS)
        for x in xs:
            line.setdefault(x, []).append(float(run[measure]))
    return {name: {m: lines[m] for m in work.METHODS if m in lines} for name, lines in made.items()}


def page(runs: list[dict[str, str]], folder: Path | None) -> str:
    parts = ["# RSGD-AR's figures, again", (HERE / "page.md").read_text().strip()]
    for figure, title in TITLES.items():
        parts.append(f"## {title}")
        x_name = "rows" if figure == "3" else "ε"
        for measure in ("cpu_seconds",) if figure == "3" else ("accuracy", "objective"):
            shown = panels(runs, figure, measure)
            if not shown:
                continue
            name = f"rsgd_figure{figure}_{measure}.svg"
            label = measure.replace("_", " ")
            if folder and figures.plot(
                shown, folder / name, x_name=x_name, y_name=label, log_x=figure != "3"
            ):
                parts.append(f"![{title}, {label}]({name})")
            for dataset, lines in shown.items():
                digits = 2 if figure == "3" else 4
                parts += [f"### {dataset}: {label}", figures.panel_table(lines, x_name, digits)]
    return "\n\n".join(parts) + "\n"


def main(argv: list[str] | None = None) -> None:
    parser = options(
        HERE,
        __doc__,
        repeats=3,
        workers=2,
        docs="the folder for the page and the plots",
        quick="a small synthetic table, to try it out",
    )
    args = parser.parse_args(argv)
    names = ["synthetic"] if args.quick else [n for n, key in work.TABLES.items() if datasets.available(key)]
    jobs = work.jobs(repeats=1 if args.quick else args.repeats, names=names, quick=args.quick)
    runs = sweep(
        jobs, work.run, args.out / "runs.csv", fields=work.FIELDS, results=work.RESULTS,
        workers=args.workers, title="RSGD-AR's figures",
    )  # fmt: skip
    text = page(runs, args.docs)
    print(text)
    if args.docs:
        (args.docs / "rsgd_figures.md").write_text(text)


if __name__ == "__main__":
    main()
