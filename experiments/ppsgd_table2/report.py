"""The paper's table beside ours, in Markdown and CSV."""

from __future__ import annotations

import csv
import math
from pathlib import Path
from typing import Any

from experiments import figures
from experiments.ppsgd_table2.columns import COLUMNS
from experiments.protocol import mean_and_error

PAPER_COLUMNS = ("PPSGD", "SgdAdv", "Agd", "OutPert", "ObjPert", "PNSGD", "AgdAvg", "OnlyPub", "NonPriv")
PRIVATE = PAPER_COLUMNS[:-1]
OURS = ("ppsgd", "ppsgd_whitened", "whitening_origin", "auto")
REGRESSION = ("cadata", "stability")
Row = dict[str, Any]
Cell = tuple[str, str, str]


def summarize(runs: list[dict[str, str]]) -> list[Row]:
    """One row a cell and column: mean, standard error, number of repeats, mean seconds."""
    groups: dict[tuple[str, ...], list[dict[str, str]]] = {}
    for run in runs:
        key = tuple(run[name] for name in ("dataset", "loss", "epsilon", "ranges", "column"))
        groups.setdefault(key, []).append(run)
    rows = []
    for (dataset, loss, epsilon, ranges, column), members in groups.items():
        good = [member for member in members if member["seconds"]]
        mean, error, n = mean_and_error(float(member["value"]) for member in good)
        note = "" if good else members[0]["value"]
        seconds = mean_and_error(float(member["seconds"]) for member in good)[0]
        rows.append(
            {"dataset": dataset, "loss": loss, "epsilon": epsilon, "ranges": ranges, "column": column,
             "group": COLUMNS[column].group, "mean": mean, "se": error, "n": n, "seconds": seconds,
             "note": note}
        )  # fmt: skip
    return rows


def write_csv(rows: list[Row], path: Path) -> None:
    columns = ("dataset", "loss", "epsilon", "ranges", "column", "mean", "se", "n", "seconds", "note")
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(columns)
        for row in rows:
            digits = {"mean": 5, "se": 5, "seconds": 3}
            writer.writerow(
                f"{row[name]:.{digits[name]}f}" if name in digits else row[name] for name in columns
            )


def read_paper(path: Path) -> dict[Cell, dict[str, float]]:
    with path.open(newline="") as file:
        return {
            (row["dataset"], row["loss"], row["epsilon"]): {name: float(row[name]) for name in PAPER_COLUMNS}
            for row in csv.DictReader(file)
        }


def markdown(summary: list[Row], paper: dict[Cell, dict[str, float]]) -> str:
    """Ours against the paper's best first, then column by column, then with a user's ranges."""
    best = best_of_groups(summary)
    cells = [cell for cell in paper if any(key[:3] == cell for key in best)]
    cells += sorted({(key[0], key[1], key[2]) for key in best} - set(cells))
    parts = [_headline(cells, best, paper), _columns(cells, best, paper), _ranges(cells, best)]
    return "\n\n".join(part for part in parts if part)


def best_of_groups(summary: list[Row]) -> dict[tuple[str, ...], Row]:
    """(dataset, loss, ε, ranges, group) → its best setting by mean, among those with the most repeats."""
    best: dict[tuple[str, ...], Row] = {}
    for row in summary:
        key = (row["dataset"], row["loss"], row["epsilon"], row["ranges"], row["group"])
        rival = best.get(key)
        if row["n"] and (
            rival is None
            or row["n"] > rival["n"]
            or (row["n"] == rival["n"] and _better(row["mean"], rival["mean"], row["dataset"]))
        ):
            best[key] = row
    return best


def _better(value: float, other: float, dataset: str) -> bool:
    return value < other if dataset in REGRESSION else value > other


def _shown(row: Row | None) -> str:
    if row is None:
        return "–"
    error = "" if math.isnan(row["se"]) else f" ± {row['se']:.4f}".replace("0.", ".")
    return f"{row['mean']:.4f}".replace("0.", ".", 1) + error + (f" ({row['n']})" if row["n"] < 20 else "")


def _plain(value: float) -> str:
    return f"{value:.4f}".replace("0.", ".", 1)


def _headline(
    cells: list[Cell], best: dict[tuple[str, ...], Row], paper: dict[Cell, dict[str, float]]
) -> str:
    """The paper's best, our columns, and in how many cells each of ours is better."""
    rows = []
    for cell in cells:
        old, top = ("–", "–")
        if cell in paper:
            old, top = _plain(paper[cell]["PPSGD"]), _plain(_paper_best(paper[cell], cell[0]))
        ours = [_shown(best.get((*cell, "all", name))) for name in (*OURS, "NonPriv")]
        rows.append([f"{cell[0]} {cell[1]}", cell[2], old, top, *ours])
    header = ["cell", "ε", "paper's PPSGD", "paper's best private", *OURS, "NonPriv"]
    parts = ["## Ours against the paper's best", _counts(cells, best, paper), figures.markdown(header, rows)]
    return "\n\n".join(part for part in parts if part)


def _counts(cells: list[Cell], best: dict[tuple[str, ...], Row], paper: dict[Cell, dict[str, float]]) -> str:
    """In how many cells the mean of a column is better than the paper's."""
    lines = []
    for name in (*reversed(OURS), "PPSGD"):
        pairs = [(best.get((*cell, "all", name)), paper[cell], cell[0]) for cell in cells if cell in paper]
        found = [(row["mean"], old, dataset) for row, old, dataset in pairs if row]
        if found:
            wins = sum(_better(mean, old["PPSGD"], dataset) for mean, old, dataset in found)
            tops = sum(_better(mean, _paper_best(old, dataset), dataset) for mean, old, dataset in found)
            label = '`ppsgd(accounting="tcdp")`' if name == "PPSGD" else f"`{name}`"
            lines.append(
                f"- {label} is better than the paper's PPSGD in {wins} of {len(found)} cells, "
                f"and better than the paper's best private method in {tops}."
            )
    return "\n".join(lines)


def _paper_best(row: dict[str, float], dataset: str) -> float:
    values = [row[name] for name in PRIVATE]
    return min(values) if dataset in REGRESSION else max(values)


def _columns(cells: list[Cell], best: dict[tuple[str, ...], Row], paper: dict[Cell, dict[str, float]]) -> str:
    rows = []
    for cell in cells:
        if cell not in paper:
            continue
        for label, row in (
            ("paper", [_plain(paper[cell][name]) for name in PAPER_COLUMNS]),
            ("ours", [_shown(best.get((*cell, "all", name))) for name in PAPER_COLUMNS]),
        ):
            rows.append([f"{cell[0]} {cell[1]}", cell[2], label, *row])
    if not rows:
        return ""
    return "## The paper's nine columns\n\n" + figures.markdown(["cell", "ε", "", *PAPER_COLUMNS], rows)


def _ranges(cells: list[Cell], best: dict[tuple[str, ...], Row]) -> str:
    """The same fits with the ranges that a user has."""
    names = ("ppsgd", "ppsgd_whitened", "auto")
    rows = []
    for cell in cells:
        for kind in ("all", "public", "declared"):
            found = [best.get((*cell, kind, name)) for name in names]
            if kind != "all" and not any(found):
                continue
            rows.append([f"{cell[0]} {cell[1]}", cell[2], kind, *(_shown(row) for row in found)])
    if not any(row[2] != "all" for row in rows):
        return ""
    return "## Where the ranges of features come from\n\n" + figures.markdown(
        ["cell", "ε", "ranges", *names], rows
    )


def page(tables: str) -> str:
    """The Markdown page around the tables."""
    return (Path(__file__).parent / "page.md").read_text().replace("{tables}", tables)
