"""python -m experiments.ppsgd_figures [--repeats 5] [--workers 2] [--out DIR] [--docs DIR] [--quick]

Runs what is missing from OUT/runs.csv, prints the tables, and with --docs writes the page and the plots.
"""

from __future__ import annotations

from experiments.sweep import one_thread, options

one_thread()

from pathlib import Path  # noqa: E402

from experiments import figures  # noqa: E402
from experiments.ppsgd_figures import jobs as work  # noqa: E402
from experiments.sweep import sweep  # noqa: E402

HERE = Path(__file__).parent


def panels(runs: list[dict[str, str]], figure: str) -> dict[str, dict[str, dict[float, list[float]]]]:
    """Figure 2: one panel per parameter, one line per loss and ε. Figure 3: by loss, and by method."""
    made: dict[str, dict[str, dict[float, list[float]]]] = {}
    for run in runs:
        if run["figure"] != figure or not run["seconds"]:
            continue
        if figure == "2":
            title, line, x = run["parameter"], f"{run['loss']}, ε = {run['epsilon']}", float(run["value"])
        else:
            title, line, x = f"{run['loss']} loss", run["method"], float(run["epsilon"])
        made.setdefault(title, {}).setdefault(line, {}).setdefault(x, []).append(float(run["accuracy"]))
    return made


def page(runs: list[dict[str, str]], folder: Path | None) -> str:
    parts = ["# PPSGD's figures, again", (HERE / "page.md").read_text().strip()]
    for figure, x_name, title in (
        ("2", "value", "Figure 2: the five parameters"),
        ("3", "ε", "Figure 3: comparison"),
    ):
        shown = panels(runs, figure)
        parts.append(f"## {title}")
        name = f"ppsgd_figure{figure}.svg"
        if folder and figures.plot(shown, folder / name, x_name=x_name, y_name="accuracy"):
            parts.append(f"![{title}]({name})")
        for panel, lines in shown.items():
            parts += [f"### {panel}", figures.panel_table(lines, x_name)]
    return "\n\n".join(parts) + "\n"


def main(argv: list[str] | None = None) -> None:
    parser = options(
        HERE,
        __doc__,
        repeats=5,
        workers=2,
        docs="the folder for the page and the plots",
        quick="a few runs, to try it out",
    )
    args = parser.parse_args(argv)
    jobs = work.jobs(repeats=1 if args.quick else args.repeats, quick=args.quick)
    runs = sweep(
        jobs, work.run, args.out / "runs.csv", fields=work.FIELDS, results=work.RESULTS,
        workers=args.workers, title="PPSGD's figures",
    )  # fmt: skip
    text = page(runs, args.docs)
    print(text)
    if args.docs:
        (args.docs / "ppsgd_figures.md").write_text(text)


if __name__ == "__main__":
    main()
