"""The table, ours beside the paper's, and the page around it."""

from __future__ import annotations

from pathlib import Path

from experiments.dope_table9.cells import AUGMENTATIONS, KEPT, METHODS, SETTINGS
from experiments.protocol import mean_and_error
from experiments.sweep import read

__all__ = ["page", "table"]

HERE = Path(__file__).parent
NAMES = {"dp_sgd": "DP-SGD", "dope_sgd": "DOPE-SGD", "only_public": "public images alone"}
ENDS = ("last", "mean", "vote")


def table(runs: list[dict[str, str]]) -> str:
    """Test accuracy in percent; the paper's numbers are with its 40,000 diffusion images and an ensemble."""
    known = {(row["method"], row["setting"]): row["accuracy"] for row in read(HERE / "paper.csv")}
    lines = [
        f"| method | setting | augmentation | last iterate | mean of last {KEPT} | vote | σ | runs | paper |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for method in ("only_public", *METHODS):
        for setting in SETTINGS:
            for augmentation in AUGMENTATIONS:
                mine = [row for row in runs if _cell(row) == (method, setting, augmentation)]
                if mine:
                    ends = " | ".join(_percent(mine, end) for end in ENDS)
                    augmented = augmentation != "none" or (method, setting) == ("dp_sgd", "cold")
                    paper = known.get((method, setting), "") if augmented else ""
                    noise = mine[0]["noise_multiplier"] and f"{float(mine[0]['noise_multiplier']):.2f}"
                    start = "" if method == "only_public" else setting
                    lines.append(
                        f"| {NAMES[method]} | {start} | {augmentation} | {ends} | {noise} | {len(mine)} | "
                        f"{paper} |"
                    )
    return "\n".join(lines)


def page(runs: list[dict[str, str]], text: Path) -> str:
    """What was run, the table, and a reading of it."""
    before, _, after = text.read_text().partition("<!-- table -->\n")
    return f"{before}{table(runs)}\n{after}"


def _cell(row: dict[str, str]) -> tuple[str, str, str]:
    return row["method"], row["setting"], row["augmentation"]


def _percent(runs: list[dict[str, str]], end: str) -> str:
    values = [100 * float(row[end]) for row in runs if row[end]]
    if not values:
        return ""
    mean, error, count = mean_and_error(values)
    return f"{mean:.1f}" + (f" ± {error:.1f}" if count > 1 else "")
