"""The page: how far the default is behind the better of no public rows and public rows alone."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from experiments import figures
from experiments.protocol import mean_and_error
from experiments.public_pays.contenders import FREE
from experiments.shift.contenders import NONE, OURS, PRIVATE, SAME
from experiments.shift.shifts import SHIFTS, TOY

HERE = Path(__file__).parent
WITHIN, WITHOUT_SHIFT = 0.005, 0.003  # AUC
ALL = {**SHIFTS, **TOY}

Lines = Sequence[dict[str, str]]


class Results:
    """The runs, by cell."""

    def __init__(self, lines: Lines) -> None:
        self.lines = lines
        found = {line["shift"] for line in lines}
        self.shifts = [name for name in ALL if name in found]
        self.tables = list(dict.fromkeys(ALL[name].table for name in self.shifts))
        self.epsilons = sorted({float(line["epsilon"]) for line in lines})

    def values(self, shift: str, method: str, epsilon: float, score: str = "auc") -> list[float]:
        """Of all splits. What does not depend on the shift is found under the name of its table."""
        where = ALL[shift].table if method in (NONE, SAME) and shift in ALL else shift
        at = self.epsilons[0] if method in FREE else epsilon
        return [
            float(line[score])
            for line in self.lines
            if line["shift"] == where and line["method"] == method and float(line["epsilon"]) == at
        ]

    def mean(self, shift: str, method: str, epsilon: float, score: str = "auc") -> tuple[float, float]:
        return mean_and_error(self.values(shift, method, epsilon, score))[:2]

    def best_free(self, shift: str, score: str = "auc") -> str:
        sign = 1 if score == "auc" else -1
        return max(FREE, key=lambda name: sign * self.mean(shift, name, self.epsilons[0], score)[0])

    def behind(self, shift: str, epsilon: float) -> float:
        """How far the default is behind the better of no public rows and public rows alone."""
        rivals = (self.mean(shift, one, epsilon)[0] for one in (NONE, self.best_free(shift)))
        return max(rivals) - self.mean(shift, OURS, epsilon)[0]


def page(lines: Lines) -> str:
    results = Results(lines)
    parts = ["# Public rows of another kind", (HERE / "page.md").read_text().strip(), "## Summary"]
    parts += [_summary(results), "## No shift", _no_shift(results)]
    for name in results.shifts:
        parts.append(f"## {name}: public rows are {ALL[name].words}\n\n{_table(results, name)}")
    return "\n\n".join(parts) + "\n"


def _summary(results: Results) -> str:
    rows = []
    close = 0
    for name in results.shifts:
        behind = [results.behind(name, epsilon) for epsilon in results.epsilons]
        close += sum(one <= WITHIN for one in behind)
        rows.append([name, *(f"{-one:+.4f}" for one in behind), _warned(results, name)])
    cells = len(results.shifts) * len(results.epsilons)
    text = (
        f"AUC of the default with shifted public rows, minus the better of *{NONE}* and *public rows alone*. "
        f"In {close} of {cells} cells ({100 * close / max(cells, 1):.0f} %) it is at most {WITHIN:g} behind."
    )
    header = ["shift", *(f"ε = {epsilon:g}" for epsilon in results.epsilons), "fits that warn"]
    return text + "\n\n" + figures.markdown(header, rows)


def _warned(results: Results, name: str) -> str:
    told = [one for epsilon in results.epsilons for one in results.values(name, OURS, epsilon, "warned")]
    return f"{sum(told):.0f} of {len(told)}"


def _no_shift(results: Results) -> str:
    """What a guard against shift costs where there is none."""
    rows = []
    for table in results.tables:
        cells = []
        for epsilon in results.epsilons:
            same, none = results.mean(table, SAME, epsilon)[0], results.mean(table, NONE, epsilon)[0]
            cells.append(f"{same:.4f} ({same - none:+.4f})")
        rows.append([table, *cells, _warned_without(results, table)])
    header = ["table", *(f"ε = {epsilon:g}" for epsilon in results.epsilons), "fits that warn"]
    text = f"AUC with {SAME}, and in parentheses what they add to *{NONE}*."
    return text + "\n\n" + figures.markdown(header, rows)


def _warned_without(results: Results, table: str) -> str:
    told = [one for epsilon in results.epsilons for one in results.values(table, SAME, epsilon, "warned")]
    return f"{sum(told):.0f} of {len(told)}"


def _table(results: Results, shift: str) -> str:
    rows = []
    for score, words in (("auc", "AUC"), ("log_loss", "log loss")):
        for name in (*PRIVATE, *FREE):
            if not results.values(shift, name, results.epsilons[0]):
                continue
            cells = []
            for epsilon in results.epsilons:
                mean, error = results.mean(shift, name, epsilon, score)
                shown = f"{mean:.4f}" + ("" if math.isnan(error) else f" ± {error:.4f}")
                cells.append(shown if name not in FREE or epsilon == results.epsilons[0] else "")
            rows.append([f"{words}: {name}", *cells])
    return figures.markdown(["", *(f"ε = {epsilon:g}" for epsilon in results.epsilons)], rows)
