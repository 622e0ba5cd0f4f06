"""The tables and the page."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments.networks_auto.tasks import DEVELOPED, SCORED_ONCE
from experiments.protocol import mean_and_error
from experiments.sweep import read

__all__ = ["page", "table"]

Row = dict[str, str]
METHODS = {
    "auto": "bare call", "only_public": "`only_public`", "public by hand": "public by hand",
    "opacus by hand, cold": "Opacus by hand, cold", "opacus by hand, warm": "Opacus by hand, warm",
    "no privacy": "no privacy",
}  # fmt: skip
BY_NAME = (
    "dp_sgd", "only_private", "full_private", "dope_sgd", "coupling", "sample_mechanism", "dpmd", "adamix",
    "adadps", "ppsgd",
)  # fmt: skip
PRIVATE = ("auto", "opacus by hand, cold", "opacus by hand, warm", *BY_NAME)
PUBLIC = ("only_public", "public by hand")
_CLEARLY = 2  # standard errors of a paired difference
_COLUMNS = {
    "length": "‖g‖", "around_public": "around public", "around_best": "around best",
    "noise_to_signal": "noise", "public": "public", "one_step": "one step", "released": "released",
    "around": "DOPE", "mixed": "Coupling", "weight": "weight",
}  # fmt: skip


def table(runs: Sequence[Row], what: str = "accuracy", *, scale: float = 100, digits: int = 2) -> str:
    """A line for each problem and ε, a column for each method: means over seeds, and their errors."""
    run = {row["method"] for row in runs}
    methods = {**METHODS, **{name: f"`{name}`" for name in BY_NAME if name in run}}
    lines = [f"| problem | ε | seeds | {' | '.join(methods.values())} |", "|---" * (3 + len(methods)) + "|"]
    for task, epsilon in cells(runs):
        found = [values(runs, task, epsilon, method, what) for method in methods]
        seeds = found[0] or {seed for one in found for seed in one}  # those of the bare call: the same splits
        mine = [[scale * value for seed, value in one.items() if seed in seeds] for one in found]
        shown = [_mean(one, digits) for one in mine]
        lines.append(f"| {task} | {epsilon} | {len(found[0]) or '–'} | {' | '.join(shown)} |")
    return "\n".join(lines)


def cells(runs: Sequence[Row]) -> list[tuple[str, str]]:
    """Problems and ε with a private run, in the order of the experiment."""
    known = {(row["task"], row["epsilon"]) for row in runs if row["method"] in PRIVATE}
    order = [*DEVELOPED, *SCORED_ONCE, *sorted({task for task, _ in known} - {*DEVELOPED, *SCORED_ONCE})]
    return sorted(known, key=lambda cell: (order.index(cell[0]), float(cell[1])))


def values(runs: Sequence[Row], task: str, epsilon: str, method: str, what: str) -> dict[str, float]:
    """By seed; of a method without private steps at any ε."""
    wanted = epsilon if method in PRIVATE else "0"
    return {
        row["seed"]: float(row[what])
        for row in runs
        if (row["task"], row["method"], row["epsilon"]) == (task, method, wanted)
    }


def _mean(found: Sequence[float], digits: int) -> str:
    if not found:
        return "–"
    average, error, count = mean_and_error(list(found))
    return f"{average:.{digits}f}" + (f" ± {error:.{digits}f}" if count > 1 else "")


@dataclass(frozen=True)
class Gain:
    """The bare call less the best of its rivals in one cell, on the seeds that all have."""

    task: str
    epsilon: str
    rival: str
    mean: float
    error: float  # of the paired difference; not a number for one seed

    @property
    def clearly_behind(self) -> bool:
        """By more than two standard errors."""
        return self.mean < -_CLEARLY * self.error


def gains(
    runs: Sequence[Row], tasks: Sequence[str], rivals: Sequence[str], what: str = "accuracy"
) -> list[Gain]:
    """One for each problem and ε; of accuracy in points, of log loss so that lower is better."""
    found, sign = [], 100.0 if what == "accuracy" else -1.0
    for task, epsilon in cells(runs):
        ours = values(runs, task, epsilon, "auto", what)
        every = {rival: values(runs, task, epsilon, rival, what) for rival in rivals}
        others = {rival: one for rival, one in every.items() if one}
        shared = [seed for seed in ours if all(seed in other for other in others.values())]
        if task in tasks and shared and others:
            best = max(others, key=lambda rival: sign * sum(others[rival][seed] for seed in shared))
            paired = [sign * (ours[seed] - others[best][seed]) for seed in shared]
            found.append(Gain(task, epsilon, best, *mean_and_error(paired)[:2]))
    return found


def verdict(runs: Sequence[Row], tasks: Sequence[str]) -> str:
    """In how many cells of these problems the bare call is where it should be."""
    parts = []
    for rivals, name in ((PRIVATE[1:], "the best private column"), (PUBLIC, "the better public column")):
        found = gains(runs, tasks, rivals)
        judged = [one for one in found if not math.isnan(one.error)]
        if not found:
            return "none"
        level = sum(not one.clearly_behind for one in judged)
        ahead, worst = sum(one.mean >= 0 for one in found), min(one.mean for one in found)
        clear = (
            f", and not clearly behind it in {level} of the {len(judged)} with several seeds"
            if judged
            else ""
        )
        parts.append(
            f"at or above {name} in {ahead} of {len(found)} cells (worst: {worst:+.2f} points){clear}"
        )
    return "; ".join(parts)


def losses(runs: Sequence[Row]) -> str:
    """Every cell in which the bare call's mean is behind, with the paired standard error over seeds."""
    tasks, lines = [*DEVELOPED, *SCORED_ONCE], []
    for what, rivals, unit, digits in (
        ("accuracy", PRIVATE[1:], "points", 2), ("accuracy", PUBLIC, "points", 2), ("loss", PUBLIC, "", 3),
    ):  # fmt: skip
        behind = [one for one in gains(runs, tasks, rivals, what) if one.mean < 0]
        whose = "the best private column" if rivals is not PUBLIC else "the better public column"
        cells_ = [
            f"{'**' * one.clearly_behind}*{one.task}* at ε = {one.epsilon}: {one.mean:.{digits}f}"
            f"{'' if math.isnan(one.error) else f' ± {one.error:.{digits}f}'} "
            f"({METHODS.get(one.rival, one.rival)}){'**' * one.clearly_behind}"
            for one in behind
        ]
        named = "log loss" if what == "loss" else f"accuracy, {unit}"
        lines.append(f"- {named}, against {whose}: {'; '.join(cells_) or 'nowhere'}.")
    return "\n".join(lines)


def by_name(rows: Sequence[Row]) -> str:
    """Accuracy of every method by its name: one column per architecture."""
    found = {(row["method"], row["architecture"]): 100 * float(row["accuracy"]) for row in rows}
    methods, networks = (list(dict.fromkeys(key[k] for key in found)) for k in (0, 1))
    lines = [f"| correct, % | {' | '.join(networks)} |", "|---|" + "---|" * len(networks)]
    for method in methods:
        shown = [f"{one:.1f}" if (one := found.get((method, net))) else "–" for net in networks]
        lines.append(f"| `{method}` | {' | '.join(shown)} |")
    return "\n".join(lines)


def step_rule(rows: Sequence[Row]) -> str:
    """Accuracy and loss of the records that score, for each distance that the noise may walk."""
    sizes = sorted({float(row["size"]) for row in rows})
    heads = "".join(f" {size:g} |" for size in sizes)
    lines = [f"| problem | ε | start | the rule |{heads}", "|---|---|---|---|" + "---|" * len(sizes)]
    for key in dict.fromkeys((row["problem"], row["epsilon"], row["start"], row["rule"]) for row in rows):
        mine = {
            float(row["size"]): f"{100 * float(row['accuracy']):.2f} ({float(row['loss']):.3f})"
            for row in rows
            if (row["problem"], row["epsilon"], row["start"], row["rule"]) == key
        }
        lines.append(f"| {' | '.join(key)} | {' | '.join(mine.get(size, '–') for size in sizes)} |")
    return "\n".join(lines)


def ways(rows: Sequence[Row]) -> str:
    """Accuracy at points between the start and the trained network, in %."""
    points = [name for name in (rows[0] if rows else {}) if name.replace(".", "").isdigit()]
    heads = ("problem", "seed", "ε", "B", "T", "η/(1 − momentum)", *points)
    lines = [f"| {' | '.join(heads)} |", "|" + "---|" * len(heads)]
    for row in rows:
        plan = [row[name] for name in ("problem", "seed", "epsilon", "batch", "steps", "size")]
        found = [f"{100 * float(row[point]):.2f}" for point in points]
        lines.append(f"| {' | '.join([*plan, *found])} |")
    return "\n".join(lines)


def diagnoses(known: dict[str, Any]) -> str:
    """A line a problem and point."""
    heads = ("problem", "at", *_COLUMNS.values(), "method")
    lines = [f"| {' | '.join(heads)} |", "|" + "---|" * len(heads)]
    for name, found in known.items():
        for point in found["points"]:
            shown = [name, point["where"], *(_cell(point[column]) for column in _COLUMNS), point["method"]]
            lines.append(f"| {' | '.join(shown)} |")
    return "\n".join(lines)


def words(known: dict[str, Any]) -> str:
    """What is said about each problem."""
    return "\n".join(f"- **{name}**: {found['words']}" for name, found in known.items())


def _cell(value: float | None) -> str:
    return "–" if value is None else f"{value:.2g}" if abs(value) < 0.995 else f"{value:.3g}"


def page(runs: Sequence[Row], *, planned: int) -> str:
    """The page of the documentation."""
    here = Path(__file__).parent
    known = json.loads((here / "diagnoses.json").read_text())
    grid = [row for row in runs if row["task"] != "mnist"]
    parts = {
        "done": f"{len(grid)} of {planned}",
        "accuracy": table(runs),
        "loss": table(runs, "loss", scale=1, digits=3),
        "seconds": table(runs, "seconds", scale=1, digits=0),
        "developed": verdict(runs, DEVELOPED),
        "once": verdict(runs, SCORED_ONCE),
        "losses": losses(runs),
        "by_name": by_name(read(here / "by_name.csv")),
        "step_rule": step_rule(read(here / "step_rule.csv")),
        "ways": ways(read(here / "way.csv")),
        "diagnoses": diagnoses(known),
        "diagnosis_words": words(known),
    }
    text = (here / "text.md").read_text()
    for name, part in parts.items():
        text = text.replace("{" + name + "}", part)
    return text
