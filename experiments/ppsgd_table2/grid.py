"""Cells, jobs, and what one job does."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from experiments import datasets, protocol
from experiments.ppsgd_table2.columns import COLUMNS, Run
from sidelight.errors import SidelightError

FIELDS = ("dataset", "loss", "epsilon", "ranges", "column", "repeat")
FAST = ("auto", "ppsgd", "ppsgd_paper_1_0.1", "only_public", "sgd_adv_1")  # for --quick
USER = ("auto", "ppsgd", "ppsgd_whitened", "only_public", "whitening_origin", "non_private")


class Cell(NamedTuple):
    dataset: str
    loss: str
    epsilon: float


def _cells(name: str, losses: Sequence[str], epsilons: Sequence[float]) -> list[Cell]:
    return [Cell(name, loss, epsilon) for loss in losses for epsilon in epsilons]


CELLS = [
    *(
        cell
        for name in ("adult-a", "ipums-br", "ipums-us", "magic04", "mini-boo-ne", "skin")
        for cell in _cells(name, ("hinge", "square"), (0.1, 0.5))
    ),
    *(cell for name in ("cadata", "stability") for cell in _cells(name, ("square",), (0.3, 0.7))),
]
QUICK = [Cell("synthetic", "hinge", 0.5)]
PUBLIC_SHARE = {"skin": 1e-4, "mini-boo-ne": 1e-4, "synthetic": 0.01}  # the others: 0.1 %


def present_cells(console: Any) -> list[Cell]:
    """The cells whose dataset is in the folder; the others are named."""
    missing = {cell.dataset for cell in CELLS if not datasets.available(cell.dataset)}
    if missing:
        console.print(f"not in {datasets.folder()}, left out: {', '.join(sorted(missing))}")
    return [cell for cell in CELLS if cell.dataset not in missing]


def jobs(
    cells: Iterable[Cell],
    *,
    repeats: int,
    ranges: Sequence[str],
    only: Sequence[str] | None = None,
    quick: bool = False,
) -> list[dict[str, Any]]:
    """Every run, the slow columns last; `only` picks those that have all its words, e.g. "adult-a auto"."""
    cells, names = list(cells), [name for name in COLUMNS if not quick or name in FAST]
    made = [
        {**cell._asdict(), "ranges": kind, "column": name, "repeat": repeat}
        for kind in ranges
        for cell in cells
        for name in names
        for repeat in range(min(repeats, COLUMNS[name].repeats))
        if kind == "all" or (name in USER and (kind == "public" or cell.dataset in protocol.DECLARED))
    ]
    order = {cell.dataset: k for k, cell in enumerate(cells)}
    # Neighbors in the list share a split, which a process keeps.
    made.sort(key=lambda job: (COLUMNS[job["column"]].turn, order[job["dataset"]], job["repeat"]))
    if only:
        made = [job for job in made if any(_matches(job, text) for text in only)]
    return made


def _matches(job: dict[str, Any], text: str) -> bool:
    words = {str(value) for value in job.values()}
    return all(word in words for word in text.split())


def run(job: dict[str, Any]) -> dict[str, Any]:
    """One fit on one split. A method that refuses the task has no value, and the table says so."""
    split = split_of(job["dataset"], job["repeat"], job["ranges"])
    column = COLUMNS[job["column"]]
    method = column.make(Run(split.regression, split.private.n))
    try:
        fitted, seconds = protocol.fit(
            method, split, loss=column.loss(job["loss"]), epsilon=job["epsilon"], seed=job["repeat"]
        )
    except SidelightError as error:
        return {"value": f"{type(error).__name__}", "seconds": ""}
    return {"value": f"{split.score(fitted.coef):.6f}", "seconds": f"{seconds:.3f}"}


@lru_cache(maxsize=2)
def split_of(dataset: str, repeat: int, ranges: protocol.Ranges) -> protocol.Split:
    data = synthetic() if dataset == "synthetic" else protocol.table(dataset)
    share = PUBLIC_SHARE.get(dataset, 1e-3)
    return protocol.split(data, repeat=repeat, public_share=share, ranges=ranges)


def synthetic(rows: int = 4000, features: int = 10) -> datasets.Dataset:
    """Two Gaussian clouds, for trying the command out."""
    rng = np.random.default_rng(0)
    y = rng.choice([-1.0, 1.0], rows)
    X = rng.standard_normal((rows, features)) + 0.5 * y[:, None]
    return datasets.Dataset("synthetic", X, y, "binary")
