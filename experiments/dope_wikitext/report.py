"""The tables and the page."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import mean

from experiments.sweep import read

__all__ = ["page", "table"]

Row = dict[str, str]
HERE = Path(__file__).parent
METHODS = ("dp_sgd, cold", "dp_sgd, warm", "dope_sgd", "dope_sgd, no limit", "coupling", "auto")
EPSILONS = ("1.0", "2.0", "4.0", "6.0")


def table(runs: Sequence[Row], *, public: str = "wikitext") -> str:
    """Perplexity by ε and method: the mean, and each seed's; the paper's in the last columns."""
    mine = [row for row in runs if row["public"] == public]
    elsewhere = ("dp_sgd, warm", "dope_sgd", "dope_sgd, no limit")
    methods = (
        [name for name in METHODS if name != "dope_sgd, no limit"] if public == "wikitext" else elsewhere
    )
    paper = {(row["public"], row["epsilon"]): row for row in _paper()}
    theirs = ("cold", "warm", "dope_sgd")
    head = ["ε", "public text alone", *methods, *(f"paper: {name}" for name in theirs)]
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    for epsilon in EPSILONS if public == "wikitext" else ("2.0",):
        cells = [f"{float(epsilon):g}", _cell(mine, "only_public", "0.0")]
        cells += [_cell(mine, method, epsilon) for method in methods]
        known = paper.get((public, epsilon), {})
        lines.append(f"| {' | '.join([*cells, *(known.get(name, '') for name in theirs)])} |")
    return "\n".join(lines)


def _cell(rows: Sequence[Row], method: str, epsilon: str) -> str:
    found = [float(row["perplexity"]) for row in rows if (row["method"], row["epsilon"]) == (method, epsilon)]
    if not found:
        return "not run"
    each = f" ({', '.join(f'{value:.0f}' for value in found)})" if len(found) > 1 else ""
    return f"{mean(found):.0f}{each}"


def gains(runs: Sequence[Row]) -> str:
    """By how much each method is below DP-SGD from the same warm start, seed by seed."""
    lines = ["| public text | ε | method | perplexity below DP-SGD, warm, by seed |", "|---|---|---|---|"]
    base = {_place(row): float(row["perplexity"]) for row in runs if row["method"] == "dp_sgd, warm"}
    for public, epsilon, method in dict.fromkeys(
        (row["public"], row["epsilon"], row["method"]) for row in _ordered(runs)
    ):
        some = [
            row for row in runs if (row["public"], row["epsilon"], row["method"]) == (public, epsilon, method)
        ]
        found = [
            f"{base[_place(row)] - float(row['perplexity']):+.1f}" for row in some if _place(row) in base
        ]
        if found and method not in ("dp_sgd, warm", "only_public"):
            lines.append(f"| {public} | {float(epsilon):g} | {method} | {', '.join(found)} |")
    return "\n".join(lines)


def _place(row: Row) -> tuple[str, str, str]:
    return row["public"], row["epsilon"], row["seed"]


def _ordered(runs: Sequence[Row]) -> list[Row]:
    return sorted(runs, key=lambda row: (row["public"] != "wikitext", float(row["epsilon"]), row["method"]))


def order(runs: Sequence[Row]) -> str:
    """Whether the paper's order (cold, warm, DOPE-SGD from the worst to the best) repeats, for each ε."""
    lines = []
    for epsilon in EPSILONS:
        found = {
            name: [float(row["perplexity"]) for row in runs if _is(row, "wikitext", name, epsilon)]
            for name in ("dp_sgd, cold", "dp_sgd, warm", "dope_sgd")
        }
        if not all(found.values()):
            continue
        cold, warm, dope = (mean(values) for values in found.values())
        seeds = min(map(len, found.values()))
        lines.append(
            f"- ε = {float(epsilon):g} ({seeds} seed{'s' * (seeds > 1)}): warm below cold: "
            f"{_yes(warm < cold)}; DOPE-SGD below DP-SGD, warm: {_yes(dope < warm)}."
        )
    return "\n".join(lines) or "- No budget has all three columns yet."


def _is(row: Row, public: str, method: str, epsilon: str) -> bool:
    return (row["public"], row["method"], row["epsilon"]) == (public, method, epsilon)


def _yes(repeats: bool) -> str:
    return "as in the paper" if repeats else "**not** as in the paper"


def diagnosis(runs: Sequence[Row]) -> str:
    """What public records say of the origin at the warm start."""
    names = ("concentration", "no_limit", "norm", "origin", "cosine", "unknown")
    head = ["public text", "seed", "‖g − o‖/‖g‖", "no limit", "‖g‖", "‖ĝ‖", "cosine", "unknown test words"]
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    for row in runs:
        if row["method"] == "only_public":
            cells = [row["public"], row["seed"], *(row[name] for name in names)]
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def rehearsals(runs: Sequence[Row]) -> str:
    """The step sizes that were tried, and the cosines under noise, for each method, public text and seed."""
    head = ["public text", "seed", "method", "held-out loss by step size", "taken", "cosines"]
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    for cells in dict.fromkeys(
        (row["public"], row["seed"], row["method"], row["rehearsed"], row["step_size"], row["cosines"])
        for row in runs
        if row["rehearsed"]
    ):
        shown = (*cells[:5], cells[5] if cells[2] == "dp_sgd, warm" else "")
        lines.append(f"| {' | '.join(shown)} |")
    return "\n".join(lines)


def fine_tuning(runs: Sequence[Row]) -> str:
    """Table 6's shape, of the runs of experiments.coupling_text: accuracy by ε, LoRA, 5 % public."""
    wanted = [row for row in runs if (row["dataset"], row["r_pub"]) == ("sst2", "0.05")]
    columns = {
        "dp_sgd, warm": ("lora", "DP-SGD, warm"), "dope_sgd, warm": ("lora", "DOPE"),
        "coupling, warm": ("lora", "Coupling"), "features, auto": ("features", "Ours"),
    }  # fmt: skip
    paper = {"0.25": ("21.30", "19.16"), "0.5": ("21.29", "19.14"), "1.0": ("21.23", "19.09")}
    theirs = ("paper, perplexity: dp_sgd, warm", "paper, perplexity: dope_sgd")
    head = ["ε", "public phrases alone", *columns, *theirs]
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    alone = [row for row in wanted if (row["kind"], row["column"]) == ("lora", "OnlyPub")]
    base = _accuracies({row["seed"]: row for row in alone}.values())
    for epsilon, known in paper.items():
        some = [row for row in wanted if row["epsilon"] == epsilon]
        cells = [
            _accuracies([row for row in some if (row["kind"], row["column"]) == one])
            for one in columns.values()
        ]
        lines.append(f"| {' | '.join([f'{float(epsilon):g}', base, *cells, *known])} |")
    return "\n".join(lines)


def larger(runs: Sequence[Row], more: Sequence[Row]) -> str:
    """The same cells with three and a half times as many gradients."""
    before, after = (
        {(*_place(row), row["method"]): float(row["perplexity"]) for row in some if row["epsilon"] != "0.0"}
        for some in (runs, more)
    )
    cells = [f"{cell[3]} {value:.0f} ({before[cell]:.0f})" for cell, value in after.items() if cell in before]
    return (
        "`--steps 16 --batch 1024` (16,384 gradients instead of 4,608), ε = 1, seed 0; in brackets twelve "
        f"steps of 384: {', '.join(cells)}."
    )


def _accuracies(rows: Iterable[Row]) -> str:
    values = [100 * float(row["accuracy"]) for row in rows]
    each = f" ({', '.join(f'{value:.1f}' for value in values)})" if len(values) > 1 else ""
    return f"{mean(values):.1f}{each}" if values else "not run"


def _paper() -> list[Row]:
    return read(HERE / "paper.csv")


def page(runs: Sequence[Row]) -> str:
    """The page of the documentation."""
    text = (HERE / "page.md").read_text()
    for name, made in (
        ("{table}", table(runs)),
        ("{elsewhere}", table(runs, public="sst2")),
        ("{gains}", gains(runs)),
        ("{diagnosis}", diagnosis(runs)),
        ("{rehearsals}", rehearsals(runs)),
        ("{fine_tuning}", fine_tuning(read(HERE.parent / "coupling_text" / "runs.csv"))),
        ("{order}", order(runs)),
        ("{larger}", larger(runs, read(HERE / "larger.csv"))),
        ("{seconds}", f"{sum(float(row['seconds']) for row in runs) / 60:.0f}"),
    ):
        text = text.replace(name, made)
    return text
