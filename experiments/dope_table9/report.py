"""The table, ours beside the paper's, and the page around it."""

from __future__ import annotations

from pathlib import Path

from experiments.dope_table9.cells import AUGMENTATIONS, EPSILONS, KEPT, METHODS, SETTINGS
from experiments.figures import markdown
from experiments.protocol import mean_and_error
from experiments.sweep import read

__all__ = ["page", "table"]

HERE = Path(__file__).parent
NAMES = {"dp_sgd": "DP-SGD", "dope_sgd": "DOPE-SGD", "only_public": "public images alone"}
ENDS = ("last", "mean", "vote")
HEADER = (
    "ε", "method", "setting", "augmentation", "last iterate", f"mean of last {KEPT}", "vote", "σ",
    "step size, limit", "runs", "paper",
)  # fmt: skip
Row = dict[str, str]


def table(runs: list[Row]) -> str:
    """Test accuracy in percent; the paper's numbers are with its 40,000 diffusion images and an ensemble."""
    known = {
        (row["method"], row["setting"], float(row["epsilon"])): row["accuracy"]
        for row in read(HERE / "paper.csv")
    }
    rows = []
    for epsilon in (0.0, *sorted(EPSILONS)):
        for method in ("only_public", *METHODS):
            for setting in SETTINGS:
                for augmentation in AUGMENTATIONS:
                    cell = (method, setting, augmentation, epsilon)
                    mine = [row for row in runs if _cell(row) == cell]
                    if mine:
                        augmented = augmentation != "none" or (method, setting) == ("dp_sgd", "cold")
                        paper = known.get((method, setting, epsilon), "") if augmented else ""
                        rows.append([*_line(mine, epsilon), paper])
    return markdown(HEADER, rows)


def page(runs: list[Row], text: Path) -> str:
    """What was run, the table, and a reading of it."""
    before, _, after = text.read_text().partition("<!-- table -->\n")
    choices = [
        [NAMES[row["method"]], row["start"], row["step_size"],
         row["limit"] if row["method"] == "dope_sgd" else "", f"{100 * float(row['accuracy']):.1f}",
         row["loss"]]
        for row in read(HERE / "choice.csv")
    ]  # fmt: skip
    header = ("method", "start", "step size", "limit", "accuracy, %", "loss")
    return f"{before}{table(runs)}\n{after.replace('<!-- choices -->', markdown(header, choices))}"


def _line(runs: list[Row], epsilon: float) -> list[str]:
    first = runs[0]
    noise = f"{float(first['noise_multiplier']):.2f}" if first["noise_multiplier"] else ""
    size = f"{float(first['step_size']):g}" if first["step_size"] else ""
    limit = f", {float(first['limit']):g}" if first["method"] == "dope_sgd" else ""
    return [
        f"{epsilon:g}", NAMES[first["method"]], "" if first["method"] == "only_public" else first["setting"],
        first["augmentation"], *(_percent(runs, end) for end in ENDS), noise, size + limit, str(len(runs)),
    ]  # fmt: skip


def _cell(row: Row) -> tuple[str, str, str, float]:
    return row["method"], row["setting"], row["augmentation"], float(row["epsilon"])


def _percent(runs: list[Row], end: str) -> str:
    values = [100 * float(row[end]) for row in runs if row[end]]
    if not values:
        return ""
    mean, error, count = mean_and_error(values)
    return f"{mean:.1f}" + (f" ± {error:.1f}" if count > 1 else "")
