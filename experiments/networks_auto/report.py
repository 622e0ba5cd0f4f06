"""The tables and the page."""

from __future__ import annotations

import json
from collections.abc import Sequence
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
PRIVATE = ("auto", "opacus by hand, cold", "opacus by hand, warm")
_BEHIND = 0.5  # points
_COLUMNS = {
    "length": "‖g‖", "around_public": "around public", "around_best": "around best",
    "noise_to_signal": "noise", "public": "public", "one_step": "one step", "released": "released",
    "around": "DOPE", "mixed": "Coupling", "weight": "weight",
}  # fmt: skip


def table(runs: Sequence[Row], what: str = "accuracy", *, scale: float = 100, digits: int = 2) -> str:
    """A line for each problem and ε, a column for each method: means over seeds, and their errors."""
    lines = [f"| problem | ε | seeds | {' | '.join(METHODS.values())} |", "|---" * (3 + len(METHODS)) + "|"]
    for task, epsilon in cells(runs):
        found = [values(runs, task, epsilon, method, what) for method in METHODS]
        shown = [_mean([scale * value for value in one.values()], digits) for one in found]
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


def verdict(runs: Sequence[Row], tasks: Sequence[str]) -> str:
    """In how many cells of these problems the bare call is where it should be."""
    private = gains(runs, tasks, PRIVATE[1:])
    free = gains(runs, tasks, ("only_public", "public by hand"))
    if not private or not free:
        return "none"
    level, above = sum(gain >= -_BEHIND for gain in private), sum(gain >= 0 for gain in free)
    return (
        f"within {_BEHIND:g} points of the best private setting by hand, or better, in {level} of "
        f"{len(private)} cells (worst: {min(private):+.2f}), and not below public records alone in "
        f"{above} of {len(free)} (worst: {min(free):+.2f})"
    )


def gains(runs: Sequence[Row], tasks: Sequence[str], rivals: Sequence[str]) -> list[float]:
    """Points of the bare call over the best rival, for each problem and ε, on the seeds that all have."""
    found = []
    for task, epsilon in cells(runs):
        ours = values(runs, task, epsilon, "auto", "accuracy")
        others = [values(runs, task, epsilon, rival, "accuracy") for rival in rivals]
        shared = [seed for seed in ours if all(seed in other for other in others)]
        if task in tasks and shared:
            best = max(sum(other[seed] for seed in shared) for other in others)
            found.append(100 * (sum(ours[seed] for seed in shared) - best) / len(shared))
    return found


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
