"""The page that the runs make."""

from __future__ import annotations

import importlib
import inspect
import math
from collections.abc import Sequence

import numpy as np

from experiments.correlated_noise.runs import chosen

Row = dict[str, str]
NAMES = {
    "independent": "DP-SGD, amplified",
    "banded": "`BandedNoise()`",
    "banded, curvature": "with public curvature",
    "turns, independent": "in turns, independent",
    "turns, banded": "in turns, 16 bands",
    "turns, inverse": "in turns, 16 bands of the inverse",
    "none": "no privacy",
}
AUTO = [importlib.import_module(f"sidelight.{name}") for name in ("methods.auto", "deep.network_auto")]
NOT_AMPLIFIED = ("turns, banded", "turns, independent")
AMPLIFIED = ("banded", "independent")


def page(rows: Sequence[Row]) -> str:
    parts = {name: [row for row in rows if row["part"] == name] for name in ("map", "linear", "networks")}
    clients = [row for row in rows if row["part"] == "federated"]
    lines = [
        "# Correlated noise: where it pays",
        "",
        "Correlated noise ([what it is and when to want it](../correlated.md)) against our own DP-SGD",
        "with the same steps and batches, at δ = 1e-5. `python -m experiments.correlated_noise` makes every",
        "number here; means over seeds with their standard errors. Plans and runs are from before turns",
        "could be charged as secret ([specification](../specification.md), section 28).",
        "",
        *_short(parts, clients),
        "",
        "## What plans alone say",
        "",
        "The noise in the models of a run (root mean square of all iterates and the last one, plain steps),",
        "in proportion to that of DP-SGD with amplification by sampling. Below 1 correlation gains; 1 means",
        "that independent noise is best. Bands are those that `BandedNoise()` tries. In brackets: bands, and",
        "the probability of a record whose turn it is.",
        "",
        *_map(parts["map"]),
        "",
        *_told(parts["map"]),
        "",
        "## Federated, when it is no secret who takes part",
        "",
        "MNIST, 2,850 clients with 20 images each, softmax regression, one private step per round. Who is",
        "asked can be seen on the network; then nothing is amplified, and clients take turns. The first",
        "column counts on a cohort that stays secret, and is for comparison: if that can be had, it is the",
        f"best of them. The step size is the best of {_sizes(clients)} on 3,000 public images,",
        "for each column by itself; no column chooses one at either end. Accuracy in %."
        if _inside(clients)
        else "for each column by itself. Accuracy in %.",
        "",
        *_table(chosen(clients), ("independent", "turns, independent", "turns, banded", "turns, inverse")),
        "",
        *_verdict(chosen(clients), *NOT_AMPLIFIED),
        "",
        "## Linear models, small batches",
        "",
        "Logistic regression; the step size is that of `dp_sgd` for the noise at hand. Its steps are as long",
        "as the loss allows, so that directions of much curvature forget earlier noise by themselves, and",
        "what is taken back later only adds noise: bands made for plain sums can lose, and public curvature",
        "tells. The last column is the best model of the loss without privacy. Accuracy in %.",
        "",
        *_table(parts["linear"], ("independent", "banded", "banded, curvature", "none")),
        "",
        *_verdict(parts["linear"], *AMPLIFIED),
        *_verdict(parts["linear"], "banded, curvature", "independent"),
        "",
        "## Networks, small batches",
        "",
        "One hidden layer of 64 units, plain SGD. The step size is the best on public records of",
        *_grids(parts["networks"]),
        "The last column has as many steps with batches of that size, without clipping and without noise.",
        "Accuracy in %.",
        "",
        *_table(chosen(parts["networks"]), ("independent", "banded", "none")),
        "",
        *_verdict(chosen(parts["networks"]), *AMPLIFIED),
    ]
    return "\n".join(lines) + "\n"


def _short(parts: dict[str, list[Row]], clients: Sequence[Row]) -> list[str]:
    """What the tables say, and whether `auto` knows this noise."""
    without = _gains(chosen(clients), *NOT_AMPLIFIED)
    amplified = [*_gains(parts["linear"], *AMPLIFIED), *_gains(chosen(parts["networks"]), *AMPLIFIED)]
    up, down = sum(g >= 1 for g in amplified), sum(g <= -1 for g in amplified)
    knows = any("BandedNoise" in inspect.getsource(module) for module in AUTO)
    return [
        f"In short: where nothing is amplified, correlation changes accuracy by {min(without):+.1f} to "
        f"{max(without):+.1f} points.",
        f"With amplification, {up} of {len(amplified)} linear models and networks gain a point or more, and "
        f"{down} lose one or more;",
        "the other differences are small, and the last column of the tables says what could be gained at",
        f"most. `auto` {'may choose' if knows else 'does not choose'} this noise.",
    ]


def _sizes(rows: Sequence[Row]) -> str:
    return ", ".join(sorted({row["step_size"] for row in rows if row["noise"] != "none"}, key=float))


def _grids(rows: Sequence[Row]) -> list[str]:
    problems = sorted({row["problem"] for row in rows})
    told = [f"{_sizes([r for r in rows if r['problem'] == name])} ({name})" for name in problems]
    return ["; ".join(told) + "."]


def _inside(rows: Sequence[Row]) -> bool:
    """Whether no step size that was chosen is the least or the largest one."""
    sizes = {float(row["step_size"]) for row in rows}
    return bool(sizes) and not {min(sizes), max(sizes)} & {float(r["step_size"]) for r in chosen(rows)}


def _map(rows: Sequence[Row]) -> list[str]:
    epsilons = sorted({row["epsilon"] for row in rows}, key=float)
    lines = [
        f"| n | batch | passes | {' | '.join(f'ε = {e}' for e in epsilons)} |",
        "|---" * (3 + len(epsilons)) + "|",
    ]
    kinds = sorted({(int(r["n"]), int(r["batch"]), int(r["passes"])) for r in rows})
    for kind in kinds:
        shown = []
        for epsilon in epsilons:
            found = [
                r for r in rows
                if (int(r["n"]), int(r["batch"]), int(r["passes"])) == kind and r["epsilon"] == epsilon
            ]  # fmt: skip
            shown.append(_cell(found[0]) if found else "–")
        lines.append(f"| {kind[0]:,} | {kind[1]:,} | {kind[2]} | {' | '.join(shown)} |")
    return lines


def _cell(row: Row) -> str:
    return f"{float(row['noise_in_model']):.2f} ({row['bands']}, {float(row['in_turn']):.2g})"


def _told(rows: Sequence[Row]) -> list[str]:
    ratios = [float(row["noise_in_model"]) for row in rows]
    if not ratios:
        return []
    gains = sum(r < 0.95 for r in ratios)
    return [
        f"Of {len(ratios)} plans, correlation lowers the noise by more than 5 % in {gains}; the median is "
        f"{float(np.median(ratios)):.2f}, the least",
        f"{min(ratios):.2f}.",
    ]


def _cells(rows: Sequence[Row]) -> list[tuple[str, int, int, float]]:
    found = {(r["problem"], int(r["batch"]), int(r["passes"]), float(r["epsilon"])) for r in rows}
    return sorted(cell for cell in found if cell[3] < math.inf)


def _scores(rows: Sequence[Row], cell: tuple[str, int, int, float], noise: str) -> dict[str, float]:
    if noise == "none":
        cell = (*cell[:3], math.inf)
    return {
        r["seed"]: 100 * float(r["accuracy"])
        for r in rows
        if (r["problem"], int(r["batch"]), int(r["passes"]), float(r["epsilon"])) == cell
        and r["noise"] == noise
    }


def _table(rows: Sequence[Row], noises: tuple[str, ...]) -> list[str]:
    lines = [
        f"| problem | batch | passes | ε | seeds | {' | '.join(NAMES[n] for n in noises)} |",
        "|---" * (5 + len(noises)) + "|",
    ]
    for cell in _cells(rows):
        found = [_scores(rows, cell, noise) for noise in noises]
        seeds = min(len(one) for one in found if one)
        shown = [_mean(list(one.values())) for one in found]
        lines.append(f"| {cell[0]} | {cell[1]} | {cell[2]} | {cell[3]:g} | {seeds} | {' | '.join(shown)} |")
    return lines


def _mean(values: Sequence[float]) -> str:
    if not values:
        return "–"
    error = float(np.std(values, ddof=1)) / math.sqrt(len(values)) if len(values) > 1 else math.nan
    return f"{float(np.mean(values)):.2f}" + (f" ± {error:.2f}" if len(values) > 1 else "")


def _verdict(rows: Sequence[Row], ours: str, base: str) -> list[str]:
    """How many cells gain a point, and how many lose one, seed by seed."""
    gains = _gains(rows, ours, base)
    if not gains:
        return []
    up, down = sum(g >= 1 for g in gains), sum(g <= -1 for g in gains)
    return [
        f"{NAMES[ours][0].upper()}{NAMES[ours][1:]} against {NAMES[base]}: {up} of {len(gains)} plans gain",
        f"a point or more, {down} lose one or more; from {min(gains):+.1f} to {max(gains):+.1f} points.",
    ]


def _gains(rows: Sequence[Row], ours: str, base: str) -> list[float]:
    """Points gained in each cell, over the seeds of both."""
    gains = []
    for cell in _cells(rows):
        a, b = _scores(rows, cell, ours), _scores(rows, cell, base)
        both = a.keys() & b.keys()
        if both:
            gains.append(float(np.mean([a[seed] - b[seed] for seed in both])))
    return gains
