"""The pages of correlated noise are what the committed runs say."""

import csv
from pathlib import Path

import pytest

pytest.importorskip("torch")

from benchmarks import correlated as benchmark
from benchmarks.sections import section
from experiments.correlated_noise import report
from experiments.correlated_noise.runs import FIELDS, chosen, jobs, run
from experiments.sweep import read

ROOT = Path(__file__).parents[2]
RUNS = ROOT / "experiments" / "correlated_noise" / "runs.csv"


def test_the_page_is_made_of_the_runs() -> None:
    page = (ROOT / "docs" / "reproductions" / "correlated_noise.md").read_text()
    assert page == report.page(read(RUNS))


def test_the_page_of_the_benchmark_is_made_of_its_rows() -> None:
    with (ROOT / benchmark.DATA).open(newline="") as file:
        assert section(ROOT / benchmark.PAGE, "correlated") == benchmark.page(list(csv.DictReader(file)))


def test_every_run_is_one_that_the_command_makes() -> None:
    asked = {
        tuple(str(job[name]) for name in FIELDS)
        for part in ("map", "linear", "networks", "federated")
        for job in jobs(part, 3)
    }
    assert {tuple(row[name] for name in FIELDS) for row in read(RUNS)} <= asked


def test_a_plan_on_the_map_gains_where_batches_are_small() -> None:
    found = [
        float(run(job)["noise_in_model"])
        for job in jobs("map", 1)
        if (job["n"], job["passes"], job["epsilon"]) == (10_000, 1, "2")
    ]
    assert found[0] < found[1] <= 1


def test_step_sizes_are_chosen_on_public_records() -> None:
    row = dict.fromkeys(FIELDS, "x")
    rows = [
        {**row, "step_size": size, "seed": seed, "public_accuracy": public, "accuracy": test}
        for size, seed, public, test in (("1", "0", "0.9", "0.1"), ("2", "0", "0.8", "0.9"))
    ]
    assert chosen(rows) == rows[:1]
