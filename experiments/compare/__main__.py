"""Does `sidelight compare` tell the truth?  python -m experiments.compare --out docs/reproductions/compare.md

For each draw of a table: a few public rows, 20 % to test, the rest private. The range that
`sidelight.compare` gives from the public rows alone stands beside what real fits on the private rows reach on
the test part.
"""

from __future__ import annotations

from experiments.sweep import one_thread

one_thread()

import argparse  # noqa: E402  (threads are fixed before NumPy is imported)
import warnings  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import Any, NamedTuple  # noqa: E402

import numpy as np  # noqa: E402
from scipy.stats import spearmanr  # noqa: E402

import sidelight  # noqa: E402
from experiments import datasets  # noqa: E402
from sidelight.errors import NotPrivateWarning  # noqa: E402
from sidelight.tables import fit_tables  # noqa: E402

# table: (target, public rows); Adult has 0.5 % of its training rows
TABLES = {
    "adult-raw": ("income", 195), "ipums-br": ("y", 150), "magic04": ("y", 76), "kdd": ("y", 150),
    "skin": ("y", 100), "stability": ("y", 80), "cadata": ("y", 100),
}  # fmt: skip
MOST_ROWS = 40_000
EPSILONS = (0.1, 1.0)
METHODS = (
    *("only_public", "only_private", "ppsgd", "dope_sgd", "coupling", "objective_perturbation", "auto"),
    "non_private",
)
MARK = "<!-- measured -->"


class Cell(NamedTuple):
    table: str
    draw: int
    method: str
    epsilon: float
    harsh: float
    kind: float
    low: float
    high: float
    real: float


def frame(name: str) -> Any:
    """A table with its target as the last column; numbers above their median, or above 0, are "yes"."""
    import pandas as pd

    if name == "adult-raw":
        return datasets.load_table(name).drop(columns="split")
    if name == "kdd":
        table = datasets.load_table("kddcup99").drop_duplicates().sample(MOST_ROWS, random_state=0)
        return table.drop(columns="label").assign(y=np.where(table["label"] == "normal", "no", "yes"))
    data = datasets.load(name)
    columns = [f"x{i + 1}" for i in range(data.X.shape[1])]
    made = pd.DataFrame(np.asarray(data.X, dtype=float), columns=columns)
    made = made.assign(y=np.where(data.y > (np.median(data.y) if name == "cadata" else 0), "yes", "no"))
    return made.sample(MOST_ROWS, random_state=0) if len(made) > 2 * MOST_ROWS else made


def measure(name: str, draw: int, *, methods: tuple[str, ...] = METHODS) -> list[Cell]:
    """Ranges and real scores of one draw."""
    target, count = TABLES[name]
    whole = frame(name)
    order = np.random.default_rng(draw).permutation(len(whole))
    cut = int(0.8 * len(whole))
    public, private, test = (
        whole.iloc[rows].reset_index(drop=True) for rows in (order[:count], order[count:cut], order[cut:])
    )
    found = sidelight.compare(
        public, rows=len(private), target=target, epsilon=EPSILONS, methods=methods, random_state=draw
    )
    cells = []
    for row in found.comparison.rows():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", NotPrivateWarning)
            model = fit_tables(
                private, public, target=target, epsilon=row["epsilon"], method=row["method"], validation=0.0,
                random_state=draw,
            )  # fmt: skip
        real = float(np.mean(np.asarray(model.predict(test)) == test[target].to_numpy()))
        cells.append(
            Cell(
                name, draw, row["method"], row["epsilon"], row["on_real_rows"], row["on_synthetic_rows"],
                row["low"], row["high"], real,
            )
        )  # fmt: skip
        print(*(f"{part:.4f}" if isinstance(part, float) else part for part in cells[-1]), flush=True)
    return cells


def cells_table(cells: list[Cell]) -> list[str]:
    """One row a method and ε, averaged over draws; in percent."""
    lines = [
        "| table | method | ε | range | real rows (pessimistic) | synthetic rows (optimistic) | real fit |",
        "|---|---|---|---|---|---|---|",
    ]
    for key in dict.fromkeys((c.table, c.method, c.epsilon) for c in cells):
        mine = [c for c in cells if (c.table, c.method, c.epsilon) == key]
        low, high, harsh, kind, real = (
            100 * float(np.mean([getattr(c, part) for c in mine]))
            for part in ("low", "high", "harsh", "kind", "real")
        )
        lines.append(
            f"| {key[0]} | `{key[1]}` | {key[2]:g} | {low:.0f} – {high:.0f} | {harsh:.1f} | {kind:.1f} | "
            f"{real:.1f} |"
        )
    return lines


def summary_table(cells: list[Cell]) -> list[str]:
    """How often the truth is in the range, and what either kind of test rows would have told alone."""
    lines = [
        "| table | public rows | truth in the range | width of the range | test rows | off by | "
        "rank correlation | lost by its choice |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name in dict.fromkeys(c.table for c in cells):
        mine = [c for c in cells if c.table == name]
        covered = np.mean([c.low <= c.real <= c.high for c in mine])
        width = np.mean([c.high - c.low for c in mine])
        for part, words in (("kind", "synthetic (ranks)"), ("harsh", "real")):
            off = np.array([getattr(c, part) - c.real for c in mine])
            first = (
                f"{name} | {TABLES[name][1]} | {covered:.0%} | {100 * width:.1f}"
                if part == "kind"
                else " | | | "
            )
            lines.append(
                f"| {first} | {words} | {100 * off.mean():+.1f} | {_rank(mine, part):.2f} | "
                f"{_regret(mine, part):.1f} |"
            )
    return lines


def _rank(cells: list[Cell], part: str) -> float:
    """Of all methods and ε of a draw, then averaged."""
    found = []
    for draw in {c.draw for c in cells}:
        mine = [c for c in cells if c.draw == draw]
        scores = [getattr(c, part) for c in mine]
        flat = len(set(scores)) == 1  # no rank at all
        found.append(0.0 if flat else spearmanr(scores, [c.real for c in mine]).statistic)
    return float(np.mean(found))


def _regret(cells: list[Cell], part: str) -> float:
    """Points that the method which looks best is behind the one that is."""
    found = []
    for draw, epsilon in {(c.draw, c.epsilon) for c in cells}:
        mine = [c for c in cells if (c.draw, c.epsilon) == (draw, epsilon) and c.method != "non_private"]
        found.append(max(c.real for c in mine) - max(mine, key=lambda c: getattr(c, part)).real)
    return 100 * float(np.mean(found))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m experiments.compare", description=__doc__)
    parser.add_argument("--draws", type=int, default=3)
    parser.add_argument("--tables", nargs="+", default=list(TABLES), choices=list(TABLES))
    parser.add_argument("--out", type=Path, help="a page whose measured part is replaced")
    options = parser.parse_args()
    cells = [c for name in options.tables for draw in range(options.draws) for c in measure(name, draw)]
    text = "\n".join([*summary_table(cells), "", *cells_table(cells)])
    print(text)
    if options.out:
        before, _, _ = options.out.read_text().partition(MARK)
        note = f"Means over {options.draws} draws, made by `python -m experiments.compare`, in percent.\n"
        options.out.write_text(f"{before}{MARK}\n{note}\n{text}\n")


if __name__ == "__main__":
    main()
