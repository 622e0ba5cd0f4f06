"""The table and the page."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from experiments.protocol import mean_and_error
from experiments.sweep import read

__all__ = ["page", "table"]

Row = dict[str, str]
_COLUMNS = {
    "length": "‖g‖", "around_public": "around public", "around_best": "around best",
    "noise_to_signal": "noise", "public": "public", "one_step": "one step", "released": "released",
    "around": "DOPE", "mixed": "Coupling", "weight": "weight",
}  # fmt: skip


def table(runs: Sequence[Row]) -> str:
    """A line a problem and method: accuracy in percent, ε, what was chosen, and seconds."""
    lines = [
        "| task | method | accuracy, % | ε | chosen | step | weight | seconds |",
        "|---|---|---|---|---|---|---|---|",
    ]
    rows = [*runs, *starts(runs)]
    tasks = dict.fromkeys(row["task"] for row in runs)
    for task, method in sorted(
        dict.fromkeys((row["task"], row["method"]) for row in rows),
        key=lambda pair: list(tasks).index(pair[0]),
    ):
        mine = [row for row in rows if (row["task"], row["method"]) == (task, method)]
        cells = [
            task,
            method,
            _accuracy(mine),
            *(_all(mine, name) for name in ("epsilon", "chosen", "step_size", "weight")),
        ]
        lines.append(f"| {' | '.join(cells)} | {_seconds(mine)} |")
    return "\n".join(lines)


def starts(runs: Sequence[Row]) -> list[Row]:
    """Public records alone, where they had no run of their own: where the private steps of `auto` began."""
    known = {(row["task"], row["seed"]) for row in runs if row["method"] == "only_public"}
    own = {"method": "only_public", "epsilon": "0", "chosen": "only_public", "step_size": "", "weight": ""}
    return [
        {**row, **own, "accuracy": row["start"], "seconds": ""}
        for row in runs
        if row["method"] == "auto" and row["start"] and (row["task"], row["seed"]) not in known
    ]


def _accuracy(rows: Sequence[Row]) -> str:
    """The mean and its standard error, and every seed."""
    values = [100 * float(row["accuracy"]) for row in sorted(rows, key=lambda row: row["seed"])]
    average, error, count = mean_and_error(values)
    if count == 1:
        return f"{average:.2f} (one seed)"
    return f"{average:.2f} ± {error:.2f} ({', '.join(f'{v:.2f}' for v in values)})"


def _seconds(rows: Sequence[Row]) -> str:
    known = [float(row["seconds"]) for row in rows if row["seconds"]]
    return f"{mean(known):.0f}" if known else ""


def _all(rows: Sequence[Row], name: str) -> str:
    """Every value of a column, once; numbers in short."""
    return ", ".join(dict.fromkeys(_short(row[name]) for row in rows))


def _short(text: str) -> str:
    try:
        return f"{float(text):.3g}"
    except ValueError:
        return text


def rehearsals(runs: Sequence[Row]) -> str:
    """What each rehearsal saw, for the first seed of every problem."""
    parts = []
    for row in runs:
        evidence = json.loads(row["evidence"])
        if row["method"] != "auto" or row["seed"] != "0" or "rehearsal" not in evidence:
            continue
        lines = [
            f"**{row['task']}** (warm start alone: {evidence['rehearsed_start']})",
            "",
            "| candidate | held-out public records |",
            "|---|---|",
        ]
        lines += [f"| {name} | {score} |" for name, score in evidence["rehearsal"].items()]
        notes = [note for note in evidence.get("notes", ()) if note.startswith("finish")]
        parts.append("\n".join([*lines, "", *notes]))
    return "\n\n".join(parts)


def caps(rows: Sequence[Row]) -> str:
    """With and without a limit on public gradients."""
    lines = ["| method | limit | step size | loss | correct, % |", "|---|---|---|---|---|"]
    for row in rows:
        limit = "none" if row["limit"] == "inf" else row["limit"]
        share = 100 * float(row["accuracy"])
        lines.append(f"| {row['method']} | {limit} | {row['step_size']} | {row['loss']} | {share:.1f} |")
    return "\n".join(lines)


def by_name(rows: Sequence[Row]) -> str:
    """Accuracy of every method by its name: one column per architecture."""
    found = {(row["method"], row["architecture"]): 100 * float(row["accuracy"]) for row in rows}
    methods, networks = (list(dict.fromkeys(key[k] for key in found)) for k in (0, 1))
    lines = [f"| correct, % | {' | '.join(networks)} |", "|---|" + "---|" * len(networks)]
    for method in methods:
        cells = [f"{one:.1f}" if (one := found.get((method, net))) else "–" for net in networks]
        lines.append(f"| `{method}` | {' | '.join(cells)} |")
    return "\n".join(lines)


def warm_starts(rows: Sequence[Row]) -> str:
    """What held-out images keep of a training on augmented ones, by two rules."""
    heads = [f"{what}, {slack} s.e." for slack in ("0.5", "2") for what in ("kept", "loss", "correct, %")]
    lines = [f"| step size | {' | '.join(heads)} |", "|---|" + "---|" * len(heads)]
    for row in rows:
        cells = [
            cell
            for slack in ("0.5", "2")
            for cell in (
                row[f"kept {slack}"],
                row[f"loss {slack}"],
                f"{100 * float(row[f'accuracy {slack}']):.1f}",
            )
        ]
        lines.append(f"| {row['rate']} | {' | '.join(cells)} |")
    return "\n".join(lines)


def step_rule(rows: Sequence[Row]) -> str:
    """Accuracy of the records that score, for each multiple of the step size that the rule had."""
    factors = sorted({float(row["factor"]) for row in rows})
    heads = [f"× {factor:g}" for factor in factors]
    lines = [
        f"| method | records | network | ε | {' | '.join(heads)} |",
        "|---|---|---|---|" + "---|" * len(heads),
    ]
    known: dict[str, dict[tuple[str, ...], dict[float, list[float]]]] = {}
    for row in rows:
        cells = known.setdefault(row["method"], {})
        cell = cells.setdefault((row["problem"], row["network"], f"{float(row['epsilon']):g}"), {})
        cell.setdefault(float(row["factor"]), []).append(100 * float(row["accuracy"]))
    for method, cells in known.items():
        for where, cell in cells.items() if method == "dp_sgd" else ():
            values = [f"{mean(cell[factor]):.2f}" if factor in cell else "" for factor in factors]
            lines.append(f"| {method} | {' | '.join((*where, *values))} |")
        tried = sorted(set.intersection(*(set(cell) for cell in cells.values())))
        means = {factor: mean(mean(cell[factor]) for cell in cells.values()) for factor in tried}
        shown = [f"**{means[factor]:.2f}**" if factor in means else "" for factor in factors]
        lines.append(f"| {method} | mean of {len(cells)} | | | {' | '.join(shown)} |")
    return "\n".join(lines)


def ideas(rows: Sequence[Row]) -> str:
    """Accuracy of private records that were set apart, a column an idea."""
    names = list(dict.fromkeys(row["idea"] for row in rows))
    lines = [f"| task | seeds | {' | '.join(names)} |", "|---|---|" + "---|" * len(names)]
    for task in dict.fromkeys(row["task"] for row in rows):
        mine = [row for row in rows if row["task"] == task]
        cells = [
            mean_and_error([100 * float(row["accuracy"]) for row in mine if row["idea"] == name])
            for name in names
        ]
        shown = [
            f"{average:.2f}" + (f" ± {error:.2f}" if count > 1 else "") for average, error, count in cells
        ]
        lines.append(f"| {task} | {len({row['seed'] for row in mine})} | {' | '.join(shown)} |")
    return "\n".join(lines)


def diagnoses(known: dict[str, Any]) -> str:
    """A line a problem and point."""
    heads = ("problem", "at", *_COLUMNS.values(), "method")
    lines = [f"| {' | '.join(heads)} |", "|" + "---|" * len(heads)]
    for name, found in known.items():
        for point in found["points"]:
            cells = [name, point["where"], *(_cell(point[column]) for column in _COLUMNS), point["method"]]
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def words(known: dict[str, Any]) -> str:
    """What is said about each problem."""
    return "\n".join(f"- **{name}**: {found['words']}" for name, found in known.items())


def _cell(value: float | None) -> str:
    return "–" if value is None else f"{value:.2g}" if abs(value) < 0.995 else f"{value:.3g}"


def page(runs: Sequence[Row]) -> str:
    """The page of the documentation."""
    here = Path(__file__).parent
    text = (here / "text.md").read_text()
    text = text.replace("{table}", table(runs)).replace("{rehearsals}", rehearsals(runs))
    known = json.loads((here / "diagnoses.json").read_text())
    text = text.replace("{diagnoses}", diagnoses(known)).replace("{diagnosis_words}", words(known))
    text = text.replace("{warm_starts}", warm_starts(read(here / "warm_starts.csv")))
    text = text.replace("{step_rule}", step_rule(read(here / "step_rule.csv")))
    text = text.replace("{by_name}", by_name(read(here / "by_name.csv")))
    text = text.replace("{ideas}", ideas(read(here / "ideas.csv")))
    return text.replace("{caps}", caps(read(here / "caps.csv")))
