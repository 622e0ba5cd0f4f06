"""One cell of each experiment is run again: the committed row is what today's code gives.

Private cells of older rows drew their noise from another stream of the generator, so a rerun has the same law
and other draws. There a cell without noise is run again, which tests the split, the training and the score.
"""

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from experiments import datasets
from experiments.sweep import read

FOLDER = Path(__file__).parent.parent.parent / "experiments"
_CLOSE = 0.002  # of an accuracy: other processors round otherwise
Job = dict[str, Any]


def federated() -> tuple[Callable[[Job], dict[str, Any]], Job]:
    from experiments.dope_federated.__main__ import Size, run

    rehearsal = read(FOLDER / "dope_federated" / "rehearsal.csv")
    job = {"split": "skewed", "local": "FedSGD", "epsilon": 0.5, "method": "dope_sgd", "seed": 1}
    return lambda job: run(Size(), rehearsal, job), job


def table2() -> tuple[Callable[[Job], dict[str, Any]], Job]:
    from experiments.ppsgd_table2.grid import run

    cell = {"dataset": "adult-a", "loss": "hinge", "epsilon": 0.1, "ranges": "all"}
    return run, {**cell, "column": "only_public", "repeat": 0}


def rsgd() -> tuple[Callable[[Job], dict[str, Any]], Job]:
    from experiments.rsgd_figures.jobs import jobs, run

    wanted = (job for job in jobs(repeats=1, names=["Adult"]) if job["method"] == "NonPrivate")
    return run, next(wanted)


def networks() -> tuple[Callable[[Job], dict[str, Any]], Job]:
    from experiments.networks_auto.__main__ import run

    return run, {"task": "magic", "method": "public by hand", "epsilon": "0", "seed": 0}


@pytest.mark.parametrize(
    ("folder", "column", "made", "data"),
    [
        ("dope_federated", "accuracy", federated, "mnist"),
        ("ppsgd_table2", "value", table2, "adult-a"),
        ("rsgd_figures", "accuracy", rsgd, "adult-a"),
        ("networks_auto", "accuracy", networks, "magic04"),
    ],
)
def test_a_committed_row_is_what_a_rerun_gives(folder: str, column: str, made: Any, data: str) -> None:
    if not datasets.available(data):
        pytest.skip(f"{data} is not in {datasets.folder()}")
    run, job = made()
    committed = [
        row
        for row in read(FOLDER / folder / "runs.csv")
        if all(row[name] == str(value) for name, value in job.items())
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        again = run(job)
    assert len(committed) == 1
    assert float(again[column]) == pytest.approx(float(committed[0][column]), abs=_CLOSE)
