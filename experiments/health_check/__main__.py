"""What the health check costs, and what it sees:  python -m experiments.health_check [--splits 10]

For each split of a table: 225 public rows, 5,000 private ones, 20 % to test; the defaults of
`PrivateClassifier` with and without the check. The mismatch: all private labels in another spelling.
"""

from __future__ import annotations

from experiments.sweep import one_thread

one_thread()

import argparse  # noqa: E402  (threads are fixed before NumPy is imported)
import csv  # noqa: E402
import warnings  # noqa: E402
from collections.abc import Sequence  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import Any, NamedTuple  # noqa: E402

import numpy as np  # noqa: E402

from experiments.probabilities.__main__ import frame  # noqa: E402
from sidelight.errors import RecordsWarning  # noqa: E402
from sidelight.estimators import PrivateClassifier  # noqa: E402

TABLES = {"adult": "income", "ipums-br": "y", "magic04": "y"}
EPSILONS = (0.3, 1.0)
PUBLIC, PRIVATE = 225, 5_000
RUNS = Path(__file__).with_name("runs.csv")


class Cell(NamedTuple):
    table: str
    split: int
    epsilon: float
    health_check: bool
    mismatch: bool
    accuracy: float
    ignored_low: int
    ignored_high: int
    warned: bool


def measure(name: str, split: int, whole: Any | None = None) -> list[Cell]:
    """The runs of one split, each with fresh noise."""
    target = TABLES[name]
    whole = (frame(name) if whole is None else whole).sample(frac=1, random_state=split)
    public, rest = whole[:PUBLIC], whole[PUBLIC : int(0.8 * len(whole))]
    private, test = rest[:PRIVATE], whole[int(0.8 * len(whole)) :]
    runs = [(epsilon, checked, False) for epsilon in EPSILONS for checked in (True, False)]
    return [run(name, split, target, (public, private, test), *one) for one in [*runs, (1.0, True, True)]]


def run(
    name: str, split: int, target: str, parts: Sequence[Any], epsilon: float, checked: bool, mismatch: bool
) -> Cell:
    (Xp, yp), (X, y), (Xt, yt) = ((part.drop(columns=target), part[target]) for part in parts)
    if mismatch:
        y = y.astype(str) + "."
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model = PrivateClassifier(epsilon=epsilon, health_check=checked).fit(X, y, Xp, yp)
    found: Any = model.privacy_.details["health_check"]
    low, high = found.get("ignored", (-1, -1))
    warned = any(issubclass(one.category, RecordsWarning) for one in caught)
    accuracy = float(np.mean(model.predict(Xt) == yt.to_numpy()))
    return Cell(name, split, epsilon, checked, mismatch, round(accuracy, 5), low, high, warned)


def table(cells: list[Cell]) -> list[str]:
    """Accuracy with the check and without, the paired difference, and how far splits lie apart."""
    head = ("table", "ε", "accuracy with the check", "without", "difference ± standard error", "sd of splits")
    lines = [f"| {' | '.join(head)} |", f"|{' --- |' * len(head)}"]
    for name, epsilon in dict.fromkeys((c.table, c.epsilon) for c in cells):
        mine = [c for c in cells if (c.table, c.epsilon, c.mismatch) == (name, epsilon, False)]
        on, off = (np.array([c.accuracy for c in mine if c.health_check == side]) for side in (True, False))
        apart, error = on - off, (on - off).std(ddof=1) / np.sqrt(len(on))
        numbers = f"{on.mean():.4f} | {off.mean():.4f} | {apart.mean():+.4f} ± {error:.4f}"
        lines.append(f"| {name} | {epsilon:g} | {numbers} | {off.std(ddof=1):.4f} |")
    seen = [c for c in cells if c.mismatch]
    warned = sum(c.warned for c in seen)
    lowest = min((c.ignored_low for c in seen), default=0)
    sound = [c for c in cells if c.health_check and not c.mismatch]
    false = sum(c.warned for c in sound)
    lines.append("")
    lines.append(
        f"Labels in another spelling at ε = 1: {warned} of {len(seen)} fits warned; the interval began at "
        f"{lowest:,} of {PRIVATE:,} or above. Of {len(sound)} fits on sound tables, {false} warned."
    )
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m experiments.health_check", description=__doc__)
    parser.add_argument("--splits", type=int, default=10)
    parser.add_argument("--tables", nargs="+", default=list(TABLES), choices=list(TABLES))
    parser.add_argument("--out", type=Path, default=RUNS)
    options = parser.parse_args()
    cells: list[Cell] = []
    for name in options.tables:
        whole = frame(name)
        for split in range(options.splits):
            cells += measure(name, split, whole)
    with options.out.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(Cell._fields)
        writer.writerows(cells)
    print("\n".join(table(cells)))


if __name__ == "__main__":
    main()
