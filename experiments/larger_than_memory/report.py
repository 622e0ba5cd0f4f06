"""The table, the picture, and the page."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from experiments.figures import markdown, plot

__all__ = ["page", "table"]

Row = dict[str, str]
HERE = Path(__file__).parent
NAMES = {"memory": "in memory", "blocks": "blocks on disk", "ray": "2 workers of Ray"}
COLUMNS = {"seconds": "{:.0f}", "cpu_seconds": "{:.0f}", "peak_gb": "{:.2f}", "accuracy": "{:.4f}"}


def table(runs: Sequence[Row]) -> str:
    """A line for each run."""
    header = ["rows", "records are held", "seconds", "processor seconds", "peak memory, GB", "accuracy"]
    ordered = sorted(runs, key=lambda row: (int(row["rows"]), list(NAMES).index(row["engine"])))
    lines = [
        [
            f"{int(row['rows']):,}",
            NAMES[row["engine"]],
            *(form.format(float(row[name])) for name, form in COLUMNS.items()),
        ]
        for row in ordered
    ]
    return markdown(header, lines)


def page(runs: Sequence[Row], path: Path) -> str:
    """The page; its picture is written beside it."""
    panels = {
        title: {
            NAMES[engine]: {float(row["rows"]): [float(row[name])] for row in runs if row["engine"] == engine}
            for engine in NAMES
        }
        for name, title in (("cpu_seconds", "processor seconds"), ("peak_gb", "peak memory, GB"))
    }
    plot(panels, path.with_suffix(".svg"), x_name="rows", y_name="", columns=2)
    return (HERE / "text.md").read_text().replace("{table}", table(runs))
