"""make pictures: the pictures of README, home, guides and reproductions.

    python -m docs._hooks.pictures     writes docs/images/*.svg and docs/reproductions/*.svg

Each is drawn from committed results of our own runs, or (the ledger) computed while it is drawn.
"""

from __future__ import annotations

import csv
import json
from collections import defaultdict
from math import nan, sqrt
from pathlib import Path
from statistics import mean, stdev

from experiments.figures import FREE, OTHER, OURS, PUBLIC, THIRD, use_look

use_look()

import matplotlib.pyplot as plt  # noqa: E402
from experiments.larger_than_memory import report as larger  # noqa: E402
from experiments.peers import __main__ as peers_main  # noqa: E402
from experiments.peers import report as peers  # noqa: E402
from experiments.ppsgd_figures import __main__ as ppsgd_figures  # noqa: E402
from experiments.rsgd_figures import __main__ as rsgd_figures  # noqa: E402
from matplotlib.axes import Axes  # noqa: E402

from sidelight import BudgetExceeded, Ledger  # noqa: E402
from sidelight.accounting import gaussian, noise_multiplier  # noqa: E402

ROOT = Path(__file__).parents[2]
IMAGES, RESULTS = ROOT / "docs/images", ROOT / "experiments"
TRIED = (
    "auto",
    "dp_sgd",
    "ppsgd",
    "dope_sgd",
    "coupling",
    "public_whitening",
    "output_perturbation",
    "pnsgd",
)
BUDGET, EACH, DELTA = 3.0, 0.5, 1e-6


def rows(name: str) -> list[dict[str, str]]:
    with (RESULTS / name).open(newline="") as file:
        return list(csv.DictReader(file))


def save(name: str) -> None:
    plt.tight_layout()
    plt.savefig(IMAGES / f"{name}.svg", metadata={"Date": None}, transparent=True)
    plt.close()


def axes(width: float = 6.5, height: float = 3.2) -> Axes:
    _, axis = plt.subplots(figsize=(width, height))
    axis.grid(alpha=0.3)
    axis.spines[["top", "right"]].set_visible(False)
    return axis


def center_and_error(values: list[float]) -> tuple[float, float]:
    """The mean and its standard error."""
    return mean(values), stdev(values) / sqrt(len(values)) if len(values) > 1 else 0.0


def tables() -> None:
    """Accuracy of `sidelight fit` on Adult, beside public rows alone and no privacy."""
    found: dict[str, dict[float, list[float]]] = defaultdict(lambda: defaultdict(list))
    for row in rows("adult_tables/runs.csv"):
        found[row["method"]][float(row["epsilon"])].append(100 * float(row["accuracy"]))
    axis = axes()
    for style, method, color in (
        ("o", "auto", OURS),
        ("s", "public_whitening", OTHER),
        ("v", "dp_sgd", THIRD),
    ):
        xs = sorted(found[method])
        ys, errors = zip(*(center_and_error(found[method][x]) for x in xs), strict=True)
        axis.errorbar(xs, ys, errors, fmt=style + "-", ms=4, capsize=3, color=color, label=method)
    for line, method, color in (("--", "non_private", FREE), (":", "only_public", PUBLIC)):
        level = mean(value for values in found[method].values() for value in values)
        axis.axhline(level, color=color, ls=line, lw=1.4, label=f"{method}, the same at every ε")
    axis.set(xscale="log", xlabel="ε (smaller: more private)", ylabel="accuracy on Adult's test rows, %")
    axis.set_xticks(ticks := sorted(found["auto"]), [f"{x:g}" for x in ticks])
    axis.minorticks_off()
    axis.legend(frameon=False, fontsize=8, loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2)
    save("tables")


def networks() -> None:
    """What `Trainer` reaches at ε = 2, beside public records alone and no privacy."""
    found: dict[tuple[str, str], list[float]] = defaultdict(list)
    for row in rows("networks_auto/runs.csv"):
        if row["method"] != "auto" or float(row["epsilon"]) == 2:
            found[row["task"], row["method"]].append(100 * float(row["accuracy"]))
    shown = (
        ("s", "only_public", "public records alone", PUBLIC),
        ("o", "auto", "Trainer, ε = 2", OURS),
        ("|", "no privacy", "no privacy", FREE),
    )
    tasks = sorted({task for task, _ in found if all((task, method) in found for _, method, _, _ in shown)})
    seeds = sorted({len(found[task, "auto"]) for task in tasks})
    axis = axes(height=0.9 + 0.3 * len(tasks))
    for style, method, name, color in shown:
        xs, errors = zip(*(center_and_error(found[task, method]) for task in tasks), strict=True)
        spread, size = [error or nan for error in errors], 9 if style == "|" else 5
        axis.errorbar(xs, tasks, xerr=spread, fmt=style, ms=size, capsize=3, color=color, label=name)
    for place, task in enumerate(tasks):
        low, high = mean(found[task, "only_public"]), mean(found[task, "auto"])
        axis.plot([low, high], [place, place], color=FREE, zorder=0)
    counts = "–".join(str(count) for count in dict.fromkeys((seeds[0], seeds[-1])))
    about = "one seed" if seeds[-1] == 1 else f"mean of {counts} seeds ± one standard error"
    axis.set(xlabel=f"test accuracy, %, {about}")
    axis.invert_yaxis()
    axis.legend(frameon=False, fontsize=8, loc="lower center", bbox_to_anchor=(0.45, 1.0), ncols=3)
    save("networks")


def ledger() -> None:
    """Fits of ε = 0.5 against a budget of 3, until one is refused: what counts is `used`."""
    noise = noise_multiplier(epsilon=EACH, delta=DELTA, relation="add-or-remove-one")
    book, event = Ledger.in_memory(), gaussian(noise)
    budget = book.register("people", relation="add-or-remove-one", epsilon=BUDGET, delta=DELTA).budget
    used: list[float] = []
    while True:
        try:
            with book.begin("people", event, relation="add-or-remove-one", method="a fit") as run:
                run.charge(event)
        except BudgetExceeded:
            break
        used.append(book.total("people").epsilon_adaptive)
    fits, refused = len(used), budget.used(budget.spent([event] * (len(used) + 1)))
    axis, count = axes(), range(1, fits + 1)
    axis.plot(
        [0, *count], [0, *(EACH * k for k in count)], "s--", ms=3, color=FREE, label="the sum of their ε"
    )
    axis.plot([0, *count], [0, *used], "o-", ms=4, color=OURS, label="used: what they cost together")
    axis.plot(
        [fits + 1],
        [refused],
        "x",
        ms=9,
        mew=2.5,
        color=PUBLIC,
        label="refused: it would exceed the budget",
    )
    axis.axhline(BUDGET, color=PUBLIC, lw=1.2)
    axis.annotate(f"lifetime budget ε = {BUDGET:g}", (0.2, BUDGET + 0.1), color=PUBLIC, fontsize=9)
    axis.set(xlabel=f"fits of ε = {EACH:g} each", ylabel=f"ε at δ = {DELTA:g}", ylim=(0, 2 * BUDGET))
    axis.set_xticks(range(0, fits + 2, 5))
    axis.legend(frameon=False, fontsize=8, loc="upper right")
    save("ledger")


def audit() -> None:
    """The ε that is claimed, and the ε that attacks prove."""
    proven: dict[tuple[str, str], float] = defaultdict(float)
    claimed: dict[str, float] = {}
    for row in json.loads((RESULTS / "audit_table/results.json").read_text()):
        if row["model"] == "linear" and row["method"] in TRIED and row["kind"] != "neighbor replay":
            key = row["method"], row["kind"]
            proven[key] = max(proven[key], float(row["lower_bound"]))
            claimed[row["method"]] = float(row["claimed_epsilon"])
    names = [name for name in TRIED if name in claimed]
    axis = axes(height=3.4)
    for kind, style, color, words in (
        ("one-run", "s", OTHER, "proven by one run"), ("many-run", "o", OURS, "proven by many runs"),
    ):  # fmt: skip
        axis.plot([proven[name, kind] for name in names], names, style, ms=5, color=color, label=words)
    ends = [claimed[name] for name in names]
    axis.plot(ends, names, "|", ms=15, mew=2.5, color=PUBLIC, label="claimed")
    axis.set(
        xlabel="ε at δ = 1e-5: a sound claim is never below what is proven", xlim=(-0.1, 1.1 * max(ends))
    )
    axis.invert_yaxis()
    axis.legend(frameon=False, fontsize=8, loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=3)
    save("audit")


def reproductions() -> None:
    """The pictures of the pages that experiments write, and the first one of README and home."""
    pages = ROOT / "docs/reproductions"
    for experiment in (ppsgd_figures, rsgd_figures):
        experiment.page(rows(f"{experiment.__name__.split('.')[1]}/runs.csv"), pages)
    larger.page(rows("larger_than_memory/runs.csv"), pages / "larger_than_memory.md")
    fits = rows("peers/runs.csv") + peers_main.shared_lines()
    peers.plots(fits, pages)
    peers.home_picture(fits, IMAGES / "what-public-rows-buy.svg")


if __name__ == "__main__":
    for draw in (tables, networks, ledger, audit, reproductions):
        draw()
