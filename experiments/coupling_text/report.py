"""The tables, beside the paper's numbers, and the page."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import mean, stdev

from experiments.sweep import read

__all__ = ["KINDS", "page", "table"]

Row = dict[str, str]
HERE = Path(__file__).parent
COLUMNS = (
    "Ours", "OnlyPub", "NonPriv", "Coupling", "DOPE", "DPMD", "AdaMix", "DP-SGD, warm", "Opacus", "FullPriv",
    "OnlyPriv",
)  # fmt: skip
KINDS = {
    "hashed": "hashed words, linear model",
    "wordllama": "wordllama, linear model",
    "features": "MiniLM's features, linear model",
    "tuned": "features, last block tuned by public texts",
    "tuned_all": "features, six blocks tuned by public texts",
    "tune_encoder": "the same by `tune_encoder`",
    "lora": "last block, LoRA",
    "lora_all": "all six blocks, LoRA",
    "full": "all six blocks, all weights",
}


def table(runs: Sequence[Row], dataset: str = "sst2") -> str:
    """A line for each way of training, share of public texts and budget."""
    mine = [row for row in runs if row["dataset"] == dataset]
    columns = [one for one in COLUMNS if any(row["column"] == one for row in mine)]
    lines = [f"| | r_pub | ε | {' | '.join(columns)} |", "|---|---|---|" + "---|" * len(columns)]
    for kind, name in KINDS.items():
        for r_pub, epsilon in sorted({(r["r_pub"], r["epsilon"]) for r in mine if r["kind"] == kind}):
            some = [r for r in mine if (r["kind"], r["r_pub"], r["epsilon"]) == (kind, r_pub, epsilon)]
            cells = [_cell([r for r in some if r["column"] == one]) for one in columns]
            lines.append(f"| {name} | {r_pub} | {float(epsilon):g} | {' | '.join(cells)} |")
    if dataset == "sst2":
        paper = {row["column"]: row["accuracy"] for row in read(HERE / "paper.csv")}
        cells = [paper.get(one, "–") for one in columns]
        lines.append(f"| *Coupling paper, distilled RoBERTa, fine-tuned* | 0.05 | 2 | {' | '.join(cells)} |")
    return "\n".join(lines)


def _cell(rows: Sequence[Row]) -> str:
    values = [100 * float(row["accuracy"]) for row in rows]
    if not values:
        return "–"
    return f"{values[0]:.1f}" if len(values) == 1 else f"{mean(values):.1f} ± {stdev(values):.1f}"


def times(runs: Sequence[Row]) -> str:
    """Seconds of one processor: encoding all texts once, and then one run of each way."""
    mine = [row for row in runs if row["dataset"] == "sst2"]
    lines = ["| | encoding, s | training, s |", "|---|---|---|"]
    timed = [(kind, column) for kind in KINDS for column in ("Ours", "FullPriv", "Opacus")]
    for kind, column in timed:
        some = [row for row in mine if (row["kind"], row["column"]) == (kind, column)]
        if some:
            most = max(float(row["seconds"]) for row in some)
            once = max(float(row["encoding_seconds"]) for row in mine if row["kind"] == kind)
            lines.append(f"| {KINDS[kind]}: {column} | {once:.0f} | {most:.0f} |")
    return "\n".join(lines)


def page(runs: Sequence[Row]) -> str:
    text = (HERE / "page.md").read_text()
    for name, made in (("sst2", table(runs)), ("qnli", table(runs, "qnli")), ("times", times(runs))):
        text = text.replace(f"{{{name}}}", made)
    return text
