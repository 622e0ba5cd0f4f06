"""The table and the page, from the lines of runs.csv, rehearsal.csv and the paper's numbers."""

from __future__ import annotations

from pathlib import Path

from experiments.coupling_table3.columns import ALIKE, COLUMNS, PAPER
from experiments.protocol import mean_and_error
from experiments.sweep import read

__all__ = ["page", "rehearsed", "table"]

HERE = Path(__file__).parent
Rows = list[dict[str, str]]


def table(runs: Rows) -> str:
    """Test accuracy in percent, ours beside the paper's."""
    known = {(row["column"], float(row["r_pub"])): row["accuracy"] for row in read(HERE / "paper.csv")}
    shares = sorted({float(row["r_pub"]) for row in runs})
    heads = "".join(f" r_pub = {share:g} | paper |" for share in shares)
    lines = [f"| column |{heads}", "|---|" + "---|---|" * len(shares)]
    for column in COLUMNS:
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


def rehearsed(rows: Rows) -> str:
    """What was tried on public images alone, in the order in which it was tried."""
    lines = ["| setting | correct, % | loss |", "|---|---|---|"]
    for row in rows:
        accuracy, loss = 100 * float(row["accuracy"]), float(row["loss"])
        lines.append(f"| {row['setting']} | {accuracy:.1f} | {loss:.4f} |")
    return "\n".join(lines)


def page(runs: Rows) -> str:
    """The whole page: text.md with its tables put in."""
    text = (HERE / "text.md").read_text()
    tried = read(HERE / "rehearsal.csv")
    return text.replace("{{table}}", table(runs)).replace("{{rehearsal}}", rehearsed(tried))
