"""make pictures: the pictures of the pages on tables, networks, the ledger and audits.

    python docs/_hooks/pictures.py     writes docs/images/{tables,networks,ledger,audit}.svg

Each is drawn from committed results of our own runs, or (the ledger) computed while it is drawn.
"""

from __future__ import annotations

import csv
import json
from collections import defaultdict
from pathlib import Path
from statistics import mean

import matplotlib

matplotlib.use("svg")
matplotlib.rcParams.update({"svg.hashsalt": "sidelight", "svg.fonttype": "none", "font.size": 10})

import matplotlib.pyplot as plt  # noqa: E402
from matplotlib.axes import Axes  # noqa: E402

from sidelight import BudgetExceeded, Ledger  # noqa: E402
from sidelight.accounting import gaussian, noise_multiplier  # noqa: E402

ROOT = Path(__file__).parents[2]
IMAGES, RESULTS = ROOT / "docs/images", ROOT / "experiments"
TASKS = {"mnist": "MNIST", "adult": "Adult", "magic": "MAGIC", "sst2": "SST-2, bags of words"}
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
    plt.savefig(IMAGES / f"{name}.svg", metadata={"Date": None})
    plt.close()


def axes(width: float = 6.5, height: float = 3.2) -> Axes:
    _, axis = plt.subplots(figsize=(width, height))
    axis.grid(alpha=0.3)
    axis.spines[["top", "right"]].set_visible(False)
    return axis


def tables() -> None:
    """Accuracy of `sidelight fit` on Adult, beside public rows alone and no privacy."""
    found: dict[str, dict[float, list[float]]] = defaultdict(lambda: defaultdict(list))
    for row in rows("adult_tables/runs.csv"):
        found[row["method"]][float(row["epsilon"])].append(100 * float(row["accuracy"]))
    axis = axes()
    for style, method in zip("osv^", ("auto", "public_whitening", "dp_sgd"), strict=False):
        xs = sorted(found[method])
        axis.plot(xs, [mean(found[method][x]) for x in xs], style + "-", ms=4, label=method)
    for line, method in (("--", "non_private"), (":", "only_public")):
        level = mean(value for values in found[method].values() for value in values)
        axis.axhline(level, color="0.3", ls=line, lw=1.2, label=f"{method}, whatever ε is")
    axis.set(xscale="log", xlabel="ε (smaller: more private)", ylabel="accuracy on Adult's test rows, %")
    axis.set_xticks(ticks := sorted(found["auto"]), [f"{x:g}" for x in ticks])
    axis.minorticks_off()
    axis.legend(frameon=False, fontsize=8, loc="lower right")
    save("tables")


def networks() -> None:
    """What `Trainer` reaches at ε = 2, beside the same network trained on the public records alone."""
    found = {
        (row["task"], row["method"]): 100 * float(row["accuracy"]) for row in rows("networks_auto/runs.csv")
    }
    axis, names = axes(height=2.6), list(TASKS.values())
    for style, method, name in (
        ("o", "only_public", "public records alone, ε = 0"),
        ("D", "auto", "Trainer with private records, ε = 2"),
    ):
        axis.plot([found[task, method] for task in TASKS], names, style, label=name)
    for place, task in enumerate(TASKS):
        low, high = found[task, "only_public"], found[task, "auto"]
        axis.plot([low, high], [place, place], color="0.6", zorder=0)
        axis.annotate(f"+{high - low:.1f} points", (high + 0.7, place), va="center", fontsize=8)
    axis.set(xlabel="test accuracy, %", xlim=(68, 105), xticks=range(70, 101, 5))
    axis.invert_yaxis()
    axis.legend(frameon=False, fontsize=8, loc="lower right")
    save("networks")


def ledger() -> None:
    """Fits of ε = 0.5 against a budget of 3, until one is refused."""
    noise = noise_multiplier(epsilon=EACH, delta=DELTA, relation="add-or-remove-one")
    book, event = Ledger.in_memory(), gaussian(noise)
    book.register("people", relation="add-or-remove-one", epsilon=BUDGET, delta=DELTA)
    spent: list[float] = []
    while True:
        try:
            with book.begin("people", event, relation="add-or-remove-one", method="a fit") as run:
                run.charge(event)
        except BudgetExceeded:
            break
        spent.append(book.total("people").epsilon)
    axis, count = axes(), range(1, len(spent) + 1)
    axis.plot(
        [0, *count], [0, *(EACH * k for k in count)], "s--", ms=3, color="C1", label="the sum of their ε"
    )
    axis.plot([0, *count], [0, *spent], "o-", ms=4, color="C0", label="what they cost together")
    axis.axhline(BUDGET, color="C3", lw=1.2)
    axis.annotate(f"lifetime budget ε = {BUDGET:g}", (0.1, BUDGET + 0.08), color="C3", fontsize=9)
    axis.annotate(
        f"fit {len(spent) + 1} is refused", (len(spent), spent[-1]), (len(spent) - 5.5, 0.6), fontsize=9,
        arrowprops={"arrowstyle": "->", "color": "0.4"},
    )  # fmt: skip
    axis.set(
        xlabel=f"fits of ε = {EACH:g} each",
        ylabel=f"ε at δ = {DELTA:g}",
        ylim=(0, max(BUDGET, EACH * len(spent)) * 1.08),
    )
    axis.set_xticks(range(0, len(spent) + 1, 5))
    axis.legend(frameon=False, loc="upper left", bbox_to_anchor=(0, 0.9))
    save("ledger")


def audit() -> None:
    """The ε that is claimed, and the ε that attacks prove."""
    proven: dict[tuple[str, str], float] = defaultdict(float)
    claimed: dict[str, float] = {}
    for row in json.loads((RESULTS / "audit_table/results.json").read_text()):
        if row["model"] == "linear" and row["method"] in TRIED and row["kind"] != "neighbour replay":
            key = row["method"], row["kind"]
            proven[key] = max(proven[key], float(row["lower_bound"]))
            claimed[row["method"]] = float(row["claimed_epsilon"])
    names = [name for name in TRIED if name in claimed]
    axis = axes(height=3.4)
    axis.scatter(
        [claimed[name] for name in names],
        names,
        marker="|",
        s=220,
        color="C3",
        label="claimed: never more than this",
    )
    axis.scatter(
        [proven[name, "one-run"] for name in names], names, color="C0", label="proven by a one-run attack"
    )
    axis.scatter(
        [proven[name, "many-run"] for name in names],
        names,
        marker="s",
        s=22,
        color="C2",
        label="proven by many runs",
    )
    axis.set(xlabel="ε at δ = 1e-5", xlim=(-0.1, 4.6))
    axis.invert_yaxis()
    axis.legend(frameon=False, fontsize=8, loc="upper center", bbox_to_anchor=(0.62, 0.75))
    save("audit")


if __name__ == "__main__":
    for draw in (tables, networks, ledger, audit):
        draw()
