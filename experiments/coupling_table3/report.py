"""The table and the page: lines of runs.csv, bare calls of an earlier default, and the paper's numbers."""

from __future__ import annotations

import json
from pathlib import Path

from experiments.coupling_table3.accounting import figure5, table6
from experiments.coupling_table3.columns import ALIKE, COLUMNS, PAPER
from experiments.protocol import mean_and_error
from experiments.sweep import read

__all__ = ["page", "shared", "table", "with_coupling"]

HERE = Path(__file__).parent
AUGMENTED = ("OnlyPub, augmented", "Ours, augmented")
Rows = list[dict[str, str]]


def starts(runs: Rows) -> Rows:
    """Public records alone, where they had no run of their own: where the private steps of `auto` began."""
    known = {(row["task"], row["seed"]) for row in runs if row["method"] == "only_public"}
    own = {"method": "only_public", "epsilon": "0", "chosen": "only_public", "step_size": "", "weight": ""}
    return [
        {**row, **own, "accuracy": row["start"], "seconds": ""}
        for row in runs
        if row["method"] == "auto" and row["start"] and (row["task"], row["seed"]) not in known
    ]


def shared(path: Path = HERE / "bare_calls.csv") -> Rows:
    """Bare calls, when the default rehearsed, that are columns of this table: the same splits and seeds."""
    names = {"auto": "Ours", "only_public": "OnlyPub"}
    runs, rows = read(path), list[dict[str, str]]()
    for row in [*runs, *starts(runs)]:
        if row["task"] in ("mnist", "mnist, augmented") and row["method"] in names:
            size = f", step size {float(row['step_size']):g}" if row["step_size"] else ""
            rows.append({
                "column": names[row["method"]] + (", augmented" if "augmented" in row["task"] else ""),
                "r_pub": "0.05", "seed": row["seed"], "accuracy": row["accuracy"], "evidence": "",
                "chosen": f"{row['chosen']}{size}" if row["method"] == "auto" else "",
            })  # fmt: skip
    return with_coupling(rows)


def with_coupling(rows: Rows) -> Rows:
    """Where `auto` chose Coupling, its run is that column's too: the same candidates, start and finish."""
    known = {(row["r_pub"], row["seed"]) for row in rows if row["column"] == "Coupling"}
    same = [
        {**row, "column": "Coupling", "evidence": ""}
        for row in rows
        if row["column"] == "Ours" and row["chosen"].startswith("coupling")
    ]
    return [*rows, *(row for row in same if (row["r_pub"], row["seed"]) not in known)]


def table(runs: Rows) -> str:
    """Test accuracy in percent, ours beside the paper's."""
    known = {(row["column"], float(row["r_pub"])): row["accuracy"] for row in read(HERE / "paper.csv")}
    shares = sorted({float(row["r_pub"]) for row in runs})
    heads = "".join(f" r_pub = {share:g} | paper |" for share in shares)
    lines = [f"| column |{heads}", "|---|" + "---|---|" * len(shares)]
    for column in (*COLUMNS, *AUGMENTED):
        mine = [row for row in runs if row["column"] == column]
        if mine:
            cells = [_cell(mine, column, share) for share in shares]
            paper = [known.get((column, share), "") if column in PAPER else "" for share in shares]
            pairs = " | ".join(f"{a} | {b}" for a, b in zip(cells, paper, strict=True))
            lines.append(f"| {column} | {pairs} |")
    return "\n".join(lines)


def _cell(rows: Rows, column: str, share: float) -> str:
    here = [row for row in rows if column in ALIKE or float(row["r_pub"]) == share]
    if not here:
        return ""
    mean, error, count = mean_and_error(100 * float(row["accuracy"]) for row in here)
    return f"{mean:.2f}" + (f" ± {error:.2f} ({count})" if count > 1 else "")


def choices(runs: Rows) -> str:
    """What was chosen, one line per run."""
    lines = ["| column | r_pub | seed | chosen |", "|---|---|---|---|"]
    for row in sorted(
        runs, key=lambda row: (float(row["r_pub"]), (*COLUMNS, *AUGMENTED).index(row["column"]))
    ):
        if row["chosen"]:
            lines.append(f"| {row['column']} | {row['r_pub']} | {row['seed']} | {row['chosen']} |")
    return "\n".join(lines)


def rehearsals(runs: Rows) -> str:
    """What each rehearsal saw, for the first seed."""
    lines = ["| column | r_pub | candidate | held-out public images |", "|---|---|---|---|"]
    for row in runs:
        if row["seed"] == "0" and row["evidence"]:
            found = json.loads(row["evidence"])
            lines += [
                f"| {row['column']} | {row['r_pub']} | {name} | {score} |" for name, score in found.items()
            ]
    return "\n".join(lines)


def superseded(rows: Rows) -> str:
    """Runs of earlier settings, and why they stand here no more."""
    lines = ["| column | r_pub | seed | accuracy, % | why |", "|---|---|---|---|---|"]
    for row in rows:
        accuracy = 100 * float(row["accuracy"])
        lines.append(f"| {row['column']} | {row['r_pub']} | {row['seed']} | {accuracy:.2f} | {row['why']} |")
    return "\n".join(lines)


def page(runs: Rows) -> str:
    """The whole page: text.md with its tables put in."""
    text = (HERE / "text.md").read_text()
    parts = {
        "table": table(runs), "choices": choices(runs), "rehearsals": rehearsals(runs),
        "superseded": superseded(read(HERE / "superseded.csv")), "table6": table6(), "figure5": figure5(),
    }  # fmt: skip
    for name, part in parts.items():
        text = text.replace(f"{{{{{name}}}}}", part)
    return text
