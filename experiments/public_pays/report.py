"""The page: in how many cells the default is behind what is free, a table for each dataset."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from experiments import figures
from experiments.protocol import mean_and_error
from experiments.public_pays.contenders import BEFORE, FREE, OURS, OWN, WITHOUT
from experiments.public_pays.tables import DEVELOPED, REGRESSIONS, ROWS, SCORED_ONCE

HERE = Path(__file__).parent
CLASSES = {"satellite": 6, "poker": 8, "flights carrier": 16}
NAMES = {"auc": "AUC", "accuracy": "accuracy", "r2": "R²"}
SCORES = "AUC for two classes, accuracy for more, R² for numbers"
MARGIN = 0.005
MANY = 30_000  # rows

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

    def cell(self, dataset: str, method: str, epsilon: float, score: str = "") -> Cell:
        at = self.epsilons[0] if method in (*FREE, *WITHOUT) else epsilon
        score = score or score_of(dataset)
        return {
            line["repeat"]: float(line[score])
            for line in self.lines
            if line["dataset"] == dataset and line["method"] == method and float(line["epsilon"]) == at
            if line.get(score)
        }

    def mean(self, dataset: str, method: str, epsilon: float, score: str = "") -> tuple[float, float]:
        return mean_and_error(self.cell(dataset, method, epsilon, score).values())[:2]

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
    if probable := _probabilities(results):
        parts += ["## Probabilities of several classes", probable]
    for title, names in (("Developed on", DEVELOPED), ("Held back", SCORED_ONCE)):
        parts += [
            f"## {title}: {name} ({NAMES[score_of(name)]})\n\n{_table(results, name)}"
            for name in names
            if name in results.datasets
        ]
    others = [name for name in results.datasets if name not in (*DEVELOPED, *SCORED_ONCE)]
    parts += [f"## {name}\n\n{_table(results, name)}" for name in others]
    return "\n\n".join(parts) + "\n"


ALL_OWN = (*sorted({*OWN[False], *OWN[True]}), BEFORE)


def _lost(results: Results, names: Sequence[str]) -> dict[str, list[str]]:
    """What counts as a lost cell, in words, and the cells."""
    best = f"the best of our other methods (a line alone is one) by more than {MARGIN:g}"
    free = lost_cells(results, FREE, names, 0.0)
    own = lost_cells(results, ALL_OWN, names, MARGIN, strict=True)
    joint = dict.fromkeys(one.split(" (")[0] for one in (*free, *own))
    return {
        "behind what is free (linear and boosting on public rows), beyond the error": free,
        f"behind {best}": own,
        f"behind {best}, beyond the error": lost_cells(results, ALL_OWN, names, MARGIN),
        "either of the first two": list(joint),
        "behind a line alone, beyond the error": lost_cells(results, (BEFORE,), names, 0.0),
    }


def lost_cells(
    results: Results, rivals: Sequence[str], names: Sequence[str], margin: float, *, strict: bool = False
) -> list[str]:
    """Cells in which a rival is ahead by more than the margin and, if not `strict`, more than the error."""
    found = []
    for name in names:
        for epsilon in results.epsilons:
            ahead = [(*results.behind(name, rival, epsilon), rival) for rival in rivals]
            lost = [
                (behind, error, rival)
                for behind, error, rival in ahead
                if behind > margin and (strict or behind > (0.0 if math.isnan(error) else error))
            ]
            if lost:
                behind, error, rival = max(lost)
                spread = "" if math.isnan(error) else f" ± {error:.4f}"
                found.append(f"{name} at ε = {epsilon:g} ({rival}, by {behind:.4f}{spread})")
    return found


def _summary(results: Results) -> str:
    """For each half and both: in how many cells the default is not behind, and where it is."""
    rows, details = [], []
    halves = {"developed on": DEVELOPED, "held back": SCORED_ONCE, "all": (*DEVELOPED, *SCORED_ONCE)}
    for title, names in halves.items():
        there = [name for name in names if name in results.datasets]
        cells = len(there) * len(results.epsilons)
        for words, lost in _lost(results, there).items():
            share = f"{100 * (cells - len(lost)) / cells:.0f} %" if cells else ""
            rows.append([title, f"not {words}", f"{cells - len(lost)} of {cells}", share])
            details += [f"- {title}, {words}: {'; '.join(lost)}."] if lost and title != "all" else []
    text = f"Cells (a table and an ε) of the default. Of {SCORES}, the mean of the splits that both have run:"
    return "\n\n".join(
        [text, figures.markdown(["tables", "the default is", "cells", ""], rows), "\n".join(details)]
    ).strip()


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
    rows, count, half = [], 0, 0
    for name in results.datasets:
        linear, boosted = (results.mean(name, rival, 1.0)[0] for rival in WITHOUT)
        if math.isnan(linear) or math.isnan(boosted) or boosted <= linear:
            continue
        ours = [results.mean(name, OURS, epsilon)[0] for epsilon in results.epsilons]
        shares = dict(
            zip(results.epsilons, ((one - linear) / (boosted - linear) for one in ours), strict=True)
        )
        counts = _is_counted(name)
        count, half = count + counts, half + (counts and shares.get(1.0, math.nan) >= 0.5)
        shown = [f"{100 * one:.0f} %" for one in shares.values()]
        rows.append([
            name, f"{ROWS.get(name, 0):,}", _kind(name), "yes" if counts else "no", f"{linear:.4f}",
            f"{boosted:.4f}", *shown, _reason(shares),
        ])  # fmt: skip
    header = ["table", "rows", "target", "counts", "linear", "boosting"]
    header += [*(f"ε = {epsilon:g}" for epsilon in results.epsilons), "half at ε = 1?"]
    text = (
        "The share of the way from a linear model to boosting, both without privacy, that the default has "
        "gone. Below 0 it is behind the linear model. Tables where boosting is not ahead are left out. A "
        f"table counts if it has more than {MANY:,} rows or a number as target. **At ε = 1 half of the way "
        f"or more is gone on {half} of {count} tables that count.**"
    )
    return text + "\n\n" + figures.markdown(header, rows)


def _is_counted(name: str) -> bool:
    return name in REGRESSIONS or ROWS.get(name, 0) > MANY


def _kind(name: str) -> str:
    return "number" if name in REGRESSIONS else f"{CLASSES.get(name, 2)} classes"


def _reason(shares: dict[float, float]) -> str:
    """Whether the noise at ε = 1 keeps the default from half of the gap, or what it can express."""
    most = max(shares)
    if shares.get(1.0, math.nan) >= 0.5:
        return "yes"
    if shares[most] >= 0.5:
        return f"at ε = {most:g}: noise"
    return f"nor at ε = {most:g}"


def _probabilities(results: Results) -> str:
    """Log loss and calibration error of tables of several classes."""
    rows = []
    for name in (name for name in results.datasets if name in CLASSES):
        for method in (OURS, BEFORE, *OWN[False][:1], *FREE, *WITHOUT):
            fixed = method in (*FREE, *WITHOUT)
            cells = [
                " / ".join(
                    "–"
                    if math.isnan(mean := results.mean(name, method, epsilon, score)[0])
                    else f"{mean:.3f}"
                    for score in ("log_loss", "ece")
                )
                for epsilon in (results.epsilons[:1] if fixed else results.epsilons)
            ]
            rows.append([name, method, *cells, *([""] * (len(results.epsilons) - 1) if fixed else [])])
    text = (
        "Log loss / calibration error of the most probable class (15 bins of equally many rows). "
        "A dash: not measured."
    )
    header = ["table", "", *(f"ε = {epsilon:g}" for epsilon in results.epsilons)]
    return f"{text}\n\n{figures.markdown(header, rows)}" if rows else ""


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
