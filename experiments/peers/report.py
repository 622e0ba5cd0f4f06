"""The page of the comparison: what came out, where ours is behind, a table for each dataset, plots."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from experiments import figures
from experiments.peers.contenders import ALONE, FREE, OWN, SAME, contenders
from experiments.peers.splits import APART, CLASSES, MANY_CLASSES, NEW, NEW_NUMBERS, NUMBERS, is_regression
from experiments.peers.subprocesses import HERE, PEERS
from experiments.protocol import mean_and_error
from experiments.public_pays.contenders import BEFORE, OURS, WITHOUT

EPSILONS = (0.1, 0.3, 1.0, 3.0)
NAMES = {
    "accuracy": "accuracy", "auc": "AUC", "log_loss": "log loss", "r2": "R²", "rmse": "RMSE",
}  # fmt: skip
LOWER = ("log_loss", "rmse")  # is better
MARGIN = 0.005  # ours is behind another method of ours if by more than this
DRAWN = (OURS, BEFORE, *PEERS, *ALONE[:2], *WITHOUT)
LEAST_DRAWN = -0.2  # an R² below is not on the picture

Lines = Sequence[dict[str, str]]
Cell = dict[str, float]  # a score of each split, by its number


def scores_of(dataset: str) -> tuple[str, ...]:
    """What is compared, the first score first. RMSE would say the same as R²."""
    if is_regression(dataset):
        return ("r2",)
    return ("accuracy", "log_loss") if dataset in MANY_CLASSES else ("auc", "accuracy", "log_loss")


@dataclass(frozen=True)
class Rivals:
    """Whom ours is compared with, and by how much it may be behind.

    Args:
        title: of the row.
        names: of the rivals.
        margin: ours counts as behind if it is by more than this,
        beyond_error: and by more than the standard error over splits.
    """

    title: str
    names: tuple[str, ...]
    margin: float = 0.0
    beyond_error: bool = False


METHODS = (*sorted({*OWN[False], *OWN[True]}), BEFORE)
JOINT = (1, 2)  # of GROUPS: what is free, and our own methods
GROUPS = (
    Rivals("every other private library", tuple(PEERS)),
    Rivals("everything that is free (models of public rows), but for the standard error", ALONE, 0.0, True),
    Rivals(f"our own methods (a line alone is one), or at most {MARGIN:g} behind the best", METHODS, MARGIN),
    Rivals("the old default (a line alone), but for the standard error", (BEFORE,), 0.0, True),
    Rivals("logistic or ridge regression without privacy", WITHOUT[:1]),
    Rivals("boosting without privacy", WITHOUT[1:]),
)


@dataclass(frozen=True)
class Loss:
    """A cell in which a rival's mean is better than ours."""

    dataset: str
    epsilon: float
    score: str
    ours: float
    rival: str
    theirs: float
    behind: float  # in the score's own units, of the mean over common splits
    error: float


class Results:
    """The runs, by cell."""

    def __init__(self, lines: Lines) -> None:
        self.lines = lines
        self.cells: dict[tuple[str, str, str], list[dict[str, str]]] = {}
        for line in lines:
            key = line["dataset"], line["method"], str(float(line["epsilon"]))
            self.cells.setdefault(key, []).append(line)
        found = {line["dataset"] for line in lines}
        known = [name for name in (*CLASSES, *NUMBERS, *NEW, *APART) if name in found]
        self.datasets = known + sorted(found - set(known))
        self._epsilons = {
            name: sorted({float(one["epsilon"]) for one in lines if one["dataset"] == name})
            for name in self.datasets
        }

    def epsilons(self, dataset: str) -> list[float]:
        return self._epsilons[dataset]

    def cell(self, dataset: str, method: str, epsilon: float, score: str) -> Cell:
        at = self._epsilons[dataset][0] if method in FREE else epsilon
        found = self.cells.get((dataset, method, str(float(at))), [])
        return {line["repeat"]: float(line[score]) for line in found if line.get(score)}

    def mean(self, dataset: str, method: str, epsilon: float, score: str) -> float:
        return mean_and_error(self.cell(dataset, method, epsilon, score).values())[0]

    def seconds(self, dataset: str, method: str) -> float:
        """The median over ε and splits."""
        times = sorted(
            float(one["seconds"])
            for key, lines in self.cells.items() if key[:2] == (dataset, method)
            for one in lines
        )  # fmt: skip
        return times[len(times) // 2] if times else math.nan

    def loss(self, dataset: str, rival: str, epsilon: float, score: str) -> Loss | None:
        """How far ours is behind this rival on the splits that both have run; None if it is not."""
        ours, theirs = (self.cell(dataset, name, epsilon, score) for name in (OURS, rival))
        common = sorted(set(ours) & set(theirs))
        sign = -1 if score in LOWER else 1
        behind, error, count = mean_and_error(sign * (theirs[k] - ours[k]) for k in common)
        if not count or behind <= 0:
            return None
        means = [sum(cell[k] for k in common) / count for cell in (ours, theirs)]
        return Loss(dataset, epsilon, score, means[0], rival, means[1], behind, error)


def losses(results: Results, rivals: Rivals, *, first: bool = False) -> list[Loss]:
    """In each cell, the rival that is furthest ahead of ours, if ours counts as behind it.

    first: by the first score of each table alone.
    """
    found = []
    for dataset, epsilon, score in _cells(results, rivals, first=first):
        ahead = [results.loss(dataset, rival, epsilon, score) for rival in rivals.names]
        counted = [one for one in ahead if one is not None and _counts(one, rivals)]
        if counted:
            found.append(max(counted, key=lambda one: one.behind))
    return found


def _counts(one: Loss, rivals: Rivals) -> bool:
    error = 0.0 if math.isnan(one.error) else one.error
    return one.behind > rivals.margin and (not rivals.beyond_error or one.behind > error)


def _lost(results: Results, rivals: Rivals, *, first: bool = False) -> set[tuple[str, float, str]]:
    return {(one.dataset, one.epsilon, one.score) for one in losses(results, rivals, first=first)}


def lost_jointly(results: Results, *, first: bool = False) -> set[tuple[str, float, str]]:
    """Cells behind what is free, beyond the error, or more than the margin behind a method of ours."""
    return set().union(*(_lost(results, GROUPS[one], first=first) for one in JOINT))


def _cells(results: Results, rivals: Rivals, *, first: bool) -> list[tuple[str, float, str]]:
    """Where ours and a rival have run."""
    return [
        (dataset, epsilon, score)
        for dataset in results.datasets
        for score in (scores_of(dataset)[:1] if first else scores_of(dataset))
        for epsilon in results.epsilons(dataset)
        if results.cell(dataset, OURS, epsilon, score)
        and any(results.cell(dataset, rival, epsilon, score) for rival in rivals.names)
    ]


def page(lines: Lines) -> str:
    results = Results(lines)
    parts = ["# Beside other libraries", _introduction(results)]
    parts += ["## What came out", _summary(results), _pictures(results)]
    if true := probabilities(results):
        parts += ["## Are probabilities true?", true]
    parts += ["## Where the default is behind", _behind(results)]
    for dataset in results.datasets:
        names = " / ".join(NAMES[score] for score in scores_of(dataset))
        apart = " (stands apart)" if dataset in APART else ""
        parts += [f"## {dataset}{apart}: {names}", _table(results, dataset)]
    return "\n\n".join(part for part in parts if part) + "\n"


def _introduction(results: Results) -> str:
    splits = {name: len({one["repeat"] for one in results.lines if one["method"] == name}) for name in PEERS}
    counts = ", ".join(f"{name} {count}" for name, count in splits.items() if count) or "none were installed"
    ours = len({one["repeat"] for one in results.lines if one["method"] == OURS})
    text = (HERE / "page.md").read_text().strip()
    return text.format(
        repeats=ours, peers=counts,
        ebm=_version("ebm", "interpret-core"), diffprivlib=_version("diffprivlib", "diffprivlib"),
        xgboost=_version("xgboost", "dp-xgboost"),
    )  # fmt: skip


def _version(file: str, package: str) -> str:
    pins = dict(line.split("==") for line in (HERE / f"{file}.txt").read_text().splitlines() if "==" in line)
    return pins[package]


def _summary(results: Results) -> str:
    """In how many cells ours is level with each group, by the first score and by every score."""
    every = [score for score in NAMES if any(score in scores_of(name) for name in results.datasets)]
    groups = [
        (one.title, one, {False: _lost(results, one), True: _lost(results, one, first=True)})
        for one in GROUPS
    ]
    both = {first: lost_jointly(results, first=first) for first in (False, True)}
    groups.insert(JOINT[1] + 1, ("both of the two above", GROUPS[JOINT[1]], both))
    rows = []
    for title, rivals, lost in groups:
        first = len(_cells(results, rivals, first=True))
        level = first - len(lost[True])
        share = f"{level} of {first}" + (f" ({100 * level / first:.0f} %)" if first else "")
        cells = [cell[2] for cell in _cells(results, rivals, first=False)]
        gone = [cell[2] for cell in lost[False]]
        by_score = [f"{cells.count(one) - gone.count(one)} of {cells.count(one)}" for one in every]
        rows.append([title, share, *by_score])
    text = (
        "Cells (a table and an ε) in which the default's mean is at least as good. The first score of a "
        "table is AUC for two classes, accuracy for more, and R² for numbers:"
    )
    return text + "\n\n" + figures.markdown(["as", "first score", *(NAMES[score] for score in every)], rows)


def probabilities(results: Results) -> str:
    """Log loss and calibration error beside the same model without privacy, in every cell."""
    rows, goals = [], [0, 0, 0]
    for dataset in (name for name in results.datasets if not is_regression(name)):
        for epsilon in results.epsilons(dataset):
            ours, same = (
                [results.mean(dataset, name, epsilon, score) for score in ("log_loss", "ece")]
                for name in (OURS, SAME)
            )
            if any(map(math.isnan, (*ours, *same))):
                continue
            ratio, difference = ours[0] / same[0], ours[1] - same[1]
            if epsilon >= 1:
                goals = [a + b for a, b in zip(goals, (1, ratio <= 1.03, difference <= 0.01), strict=True)]
            losses_of, errors = (
                [number(value, score) for value in pair]
                for score, pair in (("log_loss", (ours[0], same[0])), ("ece", (ours[1], same[1])))
            )
            rows.append([dataset, f"{epsilon:g}", *losses_of, f"{ratio:.3f}", *errors, f"{difference:+.4f}"])
    header = [
        "table",
        "ε",
        "log loss",
        "without privacy",
        "ratio",
        "calibration error",
        "without privacy",
        "difference",
    ]
    text = (
        "From ε = 1 on, the log loss is within 3 % of that of `non_private` (the same features and loss, "
        f"a ridge from folds) in {goals[1]} of {goals[0]} cells, and the calibration error within .01 in "
        f"{goals[2]}. A ratio below 1 means that trees, or the scale that is fitted to records, more than "
        "make up for the noise."
    )
    return (text + "\n\n" + figures.markdown(header, rows)) if rows else ""


def _behind(results: Results) -> str:
    parts = []
    for rivals in GROUPS[:4]:
        found = losses(results, rivals)
        parts.append(f"**Not as good as {rivals.title}**:" + ("" if found else " nowhere."))
        if found:
            parts.append(
                figures.markdown(["table", "score", "ε", "default", "the best of them", "", "behind by"],
                                 [_loss_row(one) for one in found])
            )  # fmt: skip
    return "\n\n".join(parts)


def _loss_row(one: Loss) -> list[str]:
    spread = "" if math.isnan(one.error) else f" ± {number(one.error, one.score)}"
    ours, theirs, behind = (number(value, one.score) for value in (one.ours, one.theirs, one.behind))
    return [one.dataset, NAMES[one.score], f"{one.epsilon:g}", ours, one.rival, theirs, behind + spread]


def _table(results: Results, dataset: str) -> str:
    epsilons = results.epsilons(dataset)
    header = ["contender", *(f"ε = {epsilon:g}" for epsilon in epsilons), "CPU seconds"]
    rows = []
    for name in contenders(dataset):
        cells = [
            " / ".join(_shown(results, dataset, name, epsilon, score) for score in scores_of(dataset))
            for epsilon in epsilons
        ]
        if name in FREE:
            cells = [cells[0], *("" for _ in cells[1:])]
        seconds = results.seconds(dataset, name)
        shown = "–" if math.isnan(seconds) else f"{seconds:.2f}"
        rows.append([_label(name, is_regression(dataset)), *cells, shown])
    return figures.markdown(header, rows)


def _label(name: str, regression: bool) -> str:
    if name in (*OWN[regression], SAME, "only_public"):
        return f"`{name}`"
    if name == "commonest class or mean":
        return "mean of the public rows" if regression else "commonest class of the public rows"
    return name.replace("linear", "ridge regression" if regression else "logistic regression")


def _shown(results: Results, dataset: str, name: str, epsilon: float, score: str) -> str:
    """In bold: the best of a column among the default and other private libraries."""
    mean = results.mean(dataset, name, epsilon, score)
    if math.isnan(mean):
        return "–"
    contest = [results.mean(dataset, one, epsilon, score) for one in (OURS, *PEERS)]
    known = [value for value in contest if not math.isnan(value)]
    best = (min if score in LOWER else max)(known, default=math.nan)
    text = number(mean, score)
    return f"**{text}**" if name in (OURS, *PEERS) and mean == best else text


def number(value: float, score: str) -> str:
    if score == "rmse":
        return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"
    if value < -10 or value > 10:
        return "< −10" if value < 0 else "> 10"
    return f"{value:.4f}".replace("0.", ".", 1) if abs(value) < 1 else f"{value:.3f}"


def _pictures(results: Results) -> str:
    return "\n\n".join(f"![{title}]({file})" for file, title, _, names in PICTURES if _known(results, names))


PICTURES = (
    ("peers_auc.svg", "AUC by ε, one panel per table", "auc", (*CLASSES, "flights late")),
    ("peers_accuracy.svg", "Accuracy by ε, tables of several classes", "accuracy", MANY_CLASSES),
    (
        "peers_r2.svg",
        f"R² by ε, one panel per table; below {LEAST_DRAWN:g} not drawn",
        "r2",
        (*NUMBERS, *NEW_NUMBERS),
    ),
)


def _known(results: Results, names: Sequence[str]) -> list[str]:
    return [name for name in names if name in results.datasets]


def plots(lines: Lines, folder: Path) -> None:
    """The pictures of the page, if matplotlib is there; what does not depend on ε is a level line."""
    results = Results(lines)
    for file, _, score, names in PICTURES:
        panels = {name: _panel(results, name, score) for name in _known(results, names)}
        if panels:
            figures.plot(panels, folder / file, x_name="ε", y_name=NAMES[score])


def home_picture(lines: Lines, path: Path) -> None:
    """What public rows buy, on two tables: for the first page of the documentation."""
    results = Results(lines)
    names = {
        OURS: "sidelight: private and public rows",
        SAME: "the same without privacy",
        "only_public": "public rows alone, nothing spent",
        "dp_newton": "private rows alone (dp_newton)",
    }
    panels = {}
    for title, dataset in HOME.items():
        epsilons = results.epsilons(dataset)
        panel = {
            shown: {ε: list(results.cell(dataset, name, ε, "auc").values()) for ε in epsilons}
            for name, shown in names.items()
        }
        panel["the best other private library"] = {
            ε: max(
                (list(results.cell(dataset, peer, ε, "auc").values()) for peer in PEERS),
                key=lambda values: sum(values) / len(values),
            )
            for ε in epsilons
        }
        panels[title] = panel
    figures.plot(
        panels, path, x_name="ε (smaller: more private)", y_name="AUC",
        columns=2, legend_columns=2, ticks=epsilons,
    )  # fmt: skip


HOME = {"Adult: who earns more than $50,000": "adult", "MAGIC: which showers are gamma rays": "magic04"}


def _panel(results: Results, dataset: str, score: str) -> dict[str, dict[float, list[float]]]:
    panel: dict[str, dict[float, list[float]]] = {}
    for name in DRAWN:
        points = {
            epsilon: list(cell.values())
            for epsilon in results.epsilons(dataset)
            if (cell := results.cell(dataset, name, epsilon, score)) and _drawn(cell.values(), score)
        }
        if points:
            panel[name] = points
    return panel


def _drawn(values: Iterable[float], score: str) -> bool:
    return score != "r2" or min(values) >= LEAST_DRAWN
