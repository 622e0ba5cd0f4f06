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
COLUMNS = (("only_public", 0.0), ("auto", 1.0), ("auto", 2.0), ("non_private", 0.0))
PUBLISHED = ("0", "1", "2")
LINE = ("features", "patches", "private")


def table(runs: Sequence[Row]) -> str:
    """A line for each kind of features, number of patches and of private images, then the paper's lines."""
    lines = [
        "| | private images | public alone | ε = 1 | ε = 2 | no privacy | features, minutes | fit, minutes "
        "| peak, GB |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for line in dict.fromkeys(tuple(row[name] for name in LINE) for row in runs):
        mine = [row for row in runs if tuple(row[name] for name in LINE) == line]
        features, patches, private = line
        cells = [f"{features}, {patches} patches", f"{int(private):,}"]
        cells += [_accuracy(mine, *column) for column in COLUMNS]
        cells += [_most(mine, name) for name in ("feature_minutes", "fit_minutes", "peak_gb")]
        lines.append(f"| {' | '.join(cells)} |")
    for row in read(HERE / "paper.csv"):
        cells = [f"{PAPER}: {row['setting']}", "48,000", *(row[budget] or "–" for budget in PUBLISHED)]
        lines.append(f"| {' | '.join(cells)} | – | GPUs, not stated | – | – |")
    return "\n".join(lines)


def _accuracy(rows: Sequence[Row], method: str, budget: float) -> str:
    """The mean in percent, and the seeds' own values if there are several."""
    mine = [row for row in rows if row["method"] == method and float(row["epsilon"]) == budget]
    values = [100 * float(row["accuracy"]) for row in mine]
    if len(values) < 2:
        return f"{values[0]:.2f}" if values else "–"
    return f"{mean(values):.2f} ({', '.join(f'{value:.2f}' for value in values)})"


def _most(rows: Sequence[Row], name: str) -> str:
    """Of the private fits."""
    return f"{max(float(row[name]) for row in rows if row['method'] == 'auto'):.1f}"


def choice() -> str:
    """What folds of public images say, by filters and by what is made of their averages."""
    found = {
        (row["filters"], row["power"], row["kernel"]): row["accuracy"] for row in read(HERE / "choice.csv")
    }
    made = {
        ("1.0", "none"): "averages",
        ("0.5", "none"): "square roots",
        ("0.5", "2"): "similarities",
    }
    lines = [f"| filters | {' | '.join(made.values())} |", "|---|---|---|---|"]
    for filters in dict.fromkeys(name for name, _, _ in found):
        lines.append(f"| {filters} | {' | '.join(found[filters, *key] for key in made)} |")
    return "\n".join(lines)


def page(runs: Sequence[Row]) -> str:
    return (HERE / "text.md").read_text().replace("{table}", table(runs)).replace("{choice}", choice())
