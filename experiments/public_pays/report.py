"""The page: in how many cells the default is behind what is free, a table for each dataset."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from experiments import figures
from experiments.protocol import mean_and_error
from experiments.public_pays.contenders import BEFORE, FREE, OURS, OWN, WITHOUT
from experiments.public_pays.tables import DEVELOPED, REGRESSIONS, SCORED_ONCE

HERE = Path(__file__).parent
CLASSES = {"satellite": 6, "poker": 8, "flights carrier": 16}
NAMES = {"auc": "AUC", "accuracy": "accuracy", "r2": "R²"}
MARGIN = 0.005

Lines = Sequence[dict[str, str]]
Cell = dict[str, float]


def score_of(dataset: str) -> str:
    return "r2" if dataset in REGRESSIONS else "accuracy" if dataset in CLASSES else "auc"


class Results:
    """The runs, by cell."""

    def __init__(self, lines: Lines) -> None:
        self.lines = lines
        found = {line["dataset"] for line in lines}
        self.datasets = [name for name in (*DEVELOPED, *SCORED_ONCE) if name in found]
        self.datasets += sorted(found - set(self.datasets))
        self.epsilons = sorted({float(line["epsilon"]) for line in lines})

    def cell(self, dataset: str, method: str, epsilon: float) -> Cell:
        at = self.epsilons[0] if method in (*FREE, *WITHOUT) else epsilon
        return {
            line["repeat"]: float(line[score_of(dataset)])
            for line in self.lines
            if line["dataset"] == dataset and line["method"] == method and float(line["epsilon"]) == at
        }

    def mean(self, dataset: str, method: str, epsilon: float) -> tuple[float, float]:
        return mean_and_error(self.cell(dataset, method, epsilon).values())[:2]

    def behind(self, dataset: str, rival: str, epsilon: float) -> tuple[float, float]:
        """By how much the rival is ahead of ours, paired by split, and the error of that."""
        ours, theirs = self.cell(dataset, OURS, epsilon), self.cell(dataset, rival, epsilon)
        common = sorted(set(ours) & set(theirs))
        return mean_and_error(theirs[k] - ours[k] for k in common)[:2] if common else (math.nan, math.nan)


def page(lines: Lines) -> str:
    results = Results(lines)
    parts = ["# Does public data pay?", (HERE / "page.md").read_text().strip(), "## Summary"]
    parts += [_summary(results), "## Does more budget help?", _rising(results)]
    parts += ["## Half of the gap to boosting", _gap(results)]
    for title, names in (("Developed on", DEVELOPED), ("Held back", SCORED_ONCE)):
        parts += [
            f"## {title}: {name} ({NAMES[score_of(name)]})\n\n{_table(results, name)}"
            for name in names
            if name in results.datasets
        ]
    others = [name for name in results.datasets if name not in (*DEVELOPED, *SCORED_ONCE)]
    parts += [f"## {name}\n\n{_table(results, name)}" for name in others]
    return "\n\n".join(parts) + "\n"


def _groups(results: Results) -> list[tuple[str, tuple[str, ...], float]]:
    own = tuple(sorted({*OWN[False], *OWN[True]}))
    return [
        ("what is free (linear and boosting on public rows)", FREE, 0.0),
        (f"our own other methods by more than {MARGIN:g}", own, MARGIN),
        ("a line alone", (BEFORE,), 0.0),
    ]


def lost_cells(results: Results, rivals: Sequence[str], names: Sequence[str], margin: float) -> list[str]:
    """Cells in which a rival is ahead by more than the margin and by more than the error."""
    found = []
    for name in names:
        for epsilon in results.epsilons:
            for rival in rivals:
                behind, error = results.behind(name, rival, epsilon)
                if behind > margin and behind > (0.0 if math.isnan(error) else error):
                    found.append(f"{name} at ε = {epsilon:g} ({rival}, by {behind:.4f})")
                    break
    return found


def _summary(results: Results) -> str:
    rows = []
    details = []
    for title, names in (("developed on", DEVELOPED), ("held back", SCORED_ONCE)):
        there = [name for name in names if name in results.datasets]
        cells = len(there) * len(results.epsilons)
        for rival_title, rivals, margin in _groups(results):
            lost = lost_cells(results, rivals, there, margin)
            rows.append([title, rival_title, f"{cells - len(lost)} of {cells}"])
            details += [f"- {title}, behind {rival_title}: {'; '.join(lost)}."] if lost else []
    header = ["tables", "not behind", "cells"]
    text = "Cells (a table and an ε) in which the default is not behind by more than the standard error:"
    return "\n\n".join([text, figures.markdown(header, rows), "\n".join(details)]).strip()


def _rising(results: Results) -> str:
    """Steps from one ε to the next at which the default loses more than the error."""
    steps, lost = 0, []
    for name in results.datasets:
        for low, high in pairwise(results.epsilons):
            before, after = results.cell(name, OURS, low), results.cell(name, OURS, high)
            common = sorted(set(before) & set(after))
            if not common:
                continue
            fall, error = mean_and_error(before[k] - after[k] for k in common)[:2]
            steps += 1
            if fall > (0.0 if math.isnan(error) else error):
                lost.append(f"{name} from ε = {low:g} to {high:g} (by {fall:.4f} ± {error:.4f})")
    where = f": {'; '.join(lost)}" if lost else ""
    return (
        f"From one ε to the next the default loses more than the standard error in {len(lost)} of {steps} "
        f"steps{where}."
    )


def _gap(results: Results) -> str:
    """What share of the way from a linear model to boosting, both without privacy, is gone at each ε."""
    rows = []
    for name in results.datasets:
        linear, boosted = (results.mean(name, rival, 1.0)[0] for rival in WITHOUT)
        if math.isnan(linear) or math.isnan(boosted) or boosted <= linear:
            continue
        ours = [results.mean(name, OURS, epsilon)[0] for epsilon in results.epsilons]
        shares = [f"{100 * (one - linear) / (boosted - linear):.0f} %" for one in ours]
        rows.append([name, f"{linear:.4f}", f"{boosted:.4f}", *shares])
    header = ["table", "linear", "boosting", *(f"ε = {epsilon:g}" for epsilon in results.epsilons)]
    text = (
        "The share of the way from a linear model to boosting, both without privacy, that the default has "
        "gone. Below 0 it is behind the linear model. Tables where boosting is not ahead are left out."
    )
    return text + "\n\n" + figures.markdown(header, rows)


def _table(results: Results, dataset: str) -> str:
    names = [
        name
        for name in (OURS, BEFORE, *OWN[dataset in REGRESSIONS], *FREE, *WITHOUT)
        if results.cell(dataset, name, results.epsilons[0]) or results.cell(dataset, name, 1.0)
    ]
    rows = []
    for name in names:
        level = name in (*FREE, *WITHOUT)
        cells = []
        for epsilon in results.epsilons:
            mean, error = results.mean(dataset, name, epsilon)
            shown = f"{mean:.4f}" + ("" if math.isnan(error) else f" ± {error:.4f}")
            cells.append(shown if not level or epsilon == results.epsilons[0] else "")
        rows.append([name, *cells])
    return figures.markdown(["", *(f"ε = {epsilon:g}" for epsilon in results.epsilons)], rows)
