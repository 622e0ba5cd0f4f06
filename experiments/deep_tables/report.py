"""The tables and the page: every cell beside the paper's number."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import mean

from experiments.deep_tables.cells import FIELDS, TABLES, Cell
from experiments.protocol import mean_and_error
from experiments.sweep import read

__all__ = ["figure2", "page"]

Row = dict[str, str]
_SHOWN = ("problem", "method", "epsilon", "public", "start", "copies", "corrupt", "finish", "option")
_NAMED = ("method", "epsilon", "start", "public", "copies", "finish", "corrupt")
_NAMES = {"epsilon": "ε", "public": "public records", "corrupt": "public data", "option": "setting"}


def page(runs: Sequence[Row]) -> str:
    """The page of the documentation."""
    known: dict[tuple[str, ...], list[float]] = {}
    for row in runs:
        known.setdefault(_key(row), []).append(100 * float(row["accuracy"]))
    paper = {
        (row["table"], row["cell"]): row["accuracy"] for row in read(Path(__file__).parent / "paper.csv")
    }
    parts = [f"## {name}\n\n{_table(name, cells, known, paper)}" for name, cells in TABLES.items()]
    text = (Path(__file__).parent / "text.md").read_text()
    text = text.replace("{tables}", "\n\n".join(parts)).replace("{delta}", _deltas(known))
    return text.replace("{figure2}", figure2(read(Path(__file__).parent / "figure2.csv")))


def figure2(rows: Sequence[Row]) -> str:
    """Dot product and cosine of released and true gradients, by thirds of the run."""
    lines = ["| start | method | first third | second | last |", "|---|---|---|---|---|"]
    steps = 1 + max((int(row["step"]) for row in rows), default=0)
    for start, method in dict.fromkeys((row["start"], row["method"]) for row in rows):
        cells = []
        for third in range(3):
            mine = [
                row
                for row in rows
                if (row["start"], row["method"]) == (start, method) and 3 * int(row["step"]) // steps == third
            ]
            dot, cosine = (mean(float(row[name]) for row in mine) for name in ("dot", "cosine"))
            cells.append(f"{dot:.3f} ({cosine:.2f})")
        lines.append(f"| {start} | {method} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _key(row: Row | Cell) -> tuple[str, ...]:
    return tuple(str(row[name]) for name in FIELDS if name != "seed")


def _table(
    name: str,
    cells: Sequence[Cell],
    known: dict[tuple[str, ...], list[float]],
    paper: dict[tuple[str, str], str],
) -> str:
    """One line per cell; only columns in which cells differ."""
    differ = [field for field in _SHOWN if len({str(cell[field]) for cell in cells}) > 1]
    heads = [_NAMES.get(field, field) for field in differ]
    lines = [f"| {' | '.join(heads)} | accuracy, % | paper |", "|" + "---|" * (len(heads) + 2)]
    for cell in {_key(cell): cell for cell in cells}.values():  # a cell that two settings share stands once
        found = known.get(_key(cell))
        value = "" if found is None else _score(found)
        values = [_cell(field, cell[field]) for field in differ]
        named = (str(cell[field]) for field in _NAMED)
        theirs = paper.get((name, " ".join(named).strip()), "") if not cell["option"] else ""
        lines.append(f"| {' | '.join(values)} | {value} | {theirs} |")
    return "\n".join(lines)


def _score(found: Sequence[float]) -> str:
    average, error, count = mean_and_error(found)
    return f"{average:.1f}" + (f" ± {error:.1f}" if count > 1 else "")


def _cell(field: str, value: object) -> str:
    if field == "corrupt":
        return {"": "as it is", "domain": "negatives in other colors", "classes": "classes renamed"}.get(
            str(value), f"{str(value).removeprefix('labels ')} of the labels random"
        )
    return f"{value:g}" if isinstance(value, float) else str(value)


def _deltas(known: dict[tuple[str, ...], list[float]]) -> str:
    """Δ = (NonPriv − max(OnlyPub, FullPriv))/(NonPriv − method), where all of them are there."""
    cells = TABLES["Coupling, Figure 1"]
    settings = dict.fromkeys((c["epsilon"], c["public"]) for c in cells if c["method"] == "coupling")
    lines = ["| ε | public records | Coupling | DPMD | AdaMix |", "|---|---|---|---|---|"]
    for epsilon, public in settings:
        found = {
            cell["method"]: mean(known[_key(cell)])
            for cell in cells
            if cell["public"] == public and cell["epsilon"] in (0.0, epsilon) and _key(cell) in known
        }
        if not {"non_private", "only_public", "full_private"} <= set(found):
            continue
        top, low = found["non_private"], max(found["only_public"], found["full_private"])
        ratios = [
            _ratio(top - low, top - found[m]) if m in found else "" for m in ("coupling", "dpmd", "adamix")
        ]
        lines.append(f"| {epsilon:g} | {public} | {' | '.join(ratios)} |")
    return "\n".join(lines)


def _ratio(above: float, below: float) -> str:
    return "∞" if below <= 0 else f"{above / below:.2f}"
