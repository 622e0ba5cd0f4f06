"""The table, beside the paper's, and the page."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import mean

from experiments.sweep import read

__all__ = ["page", "table"]

Row = dict[str, str]
HERE = Path(__file__).parent
PAPER = "DOPE-SGD paper, Table 2"
BUDGETS = ("0", "1", "2")


def table(runs: Sequence[Row]) -> str:
    """A line for each number of patches and of private images, then the paper's lines."""
    lines = [
        "| | private images | public alone | ε = 1 | ε = 2 | features, minutes | fit, minutes | peak, GB |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for patches, private in dict.fromkeys((row["patches"], row["private"]) for row in runs):
        mine = [row for row in runs if (row["patches"], row["private"]) == (patches, private)]
        cells = [f"{patches} patches", f"{int(private):,}", *(_accuracy(mine, budget) for budget in BUDGETS)]
        cells += [_most(mine, name) for name in ("feature_minutes", "fit_minutes", "peak_gb")]
        lines.append(f"| {' | '.join(cells)} |")
    for row in read(HERE / "paper.csv"):
        cells = [f"{PAPER}: {row['setting']}", "48,000", *(row[budget] or "–" for budget in BUDGETS)]
        lines.append(f"| {' | '.join(cells)} | GPUs, not stated | – | – |")
    return "\n".join(lines)


def _accuracy(rows: Sequence[Row], budget: str) -> str:
    """The mean in percent, and the seeds' own values if there are several."""
    values = [100 * float(row["accuracy"]) for row in rows if float(row["epsilon"]) == float(budget)]
    if len(values) < 2:
        return f"{values[0]:.2f}" if values else "–"
    return f"{mean(values):.2f} ({', '.join(f'{value:.2f}' for value in values)})"


def _most(rows: Sequence[Row], name: str) -> str:
    return f"{max(float(row[name]) for row in rows):.1f}"


def page(runs: Sequence[Row]) -> str:
    return (HERE / "text.md").read_text().replace("{table}", table(runs))
