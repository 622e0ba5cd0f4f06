"""The experiment runs in a small version, resumes, and has every cell of its tables once."""

from pathlib import Path
from typing import Any

import pytest
import torch
from experiments.deep_tables import figure2
from experiments.deep_tables.__main__ import arguments, finish_of, jobs, main, method_of
from experiments.deep_tables.cells import FIELDS, TABLES, job
from experiments.deep_tables.problems import problem
from experiments.deep_tables.report import figure2 as figure2_table
from experiments.deep_tables.report import page
from experiments.sweep import read


@pytest.mark.filterwarnings("ignore:a seed")
def test_a_small_version_runs_and_resumes(tmp_path: Path, capsys: Any) -> None:
    command = ["--quick", "--out", str(tmp_path), "--docs", str(tmp_path / "page.md")]
    main(command)
    runs = read(tmp_path / "runs.csv")
    assert [row["method"] for row in runs] == ["dp_sgd", "dope_sgd", "dope_sgd", "coupling"]
    assert all(0 < float(row["spent"]) <= 2 for row in runs)
    assert all(float(row["accuracy"]) > 0.5 for row in runs)
    assert "## DOPE-SGD, Table 1" in (tmp_path / "page.md").read_text()
    main(command)
    assert read(tmp_path / "runs.csv") == runs


def test_a_cell_of_several_tables_runs_once() -> None:
    planned = jobs(arguments(["--seeds", "1"]))
    keys = [tuple(str(one[name]) for name in FIELDS) for one in planned]
    assert len(set(keys)) == len(keys) < sum(map(len, TABLES.values()))
    assert {one["seed"] for one in jobs(arguments(["--seeds", "2", "--table", "Table 9"]))} == {0, 1}


def test_every_cell_has_a_method_and_a_finish() -> None:
    for one in jobs(arguments([])):
        finish_of(one["finish"])
        if one["method"] not in ("only_public", "non_private"):
            options = dict(part.split("=") for part in one["option"].split(",") if "=" in part)
            assert method_of(one, options).steps is None


def test_no_copy_of_a_held_out_record_is_learned_from() -> None:
    records = problem("invented", 0)
    (rows, labels), (held, _) = records.public(80, copies=2)
    assert len(rows) == len(labels) == 3 * 72 and len(held) == 8
    assert torch.equal(rows[:72], records.pool[0][8:80]) and torch.equal(held, records.pool[0][:8])
    assert records.copies is not None and torch.equal(rows[72:144], records.copies[8:80])
    wrong = records.public(80, corrupt="labels 1.0")[0][1]
    assert (wrong != labels[:72]).any() and torch.equal(records.public(80)[0][1], labels[:72])


def test_the_page_leaves_cells_that_were_not_run_empty_and_shows_the_papers_numbers() -> None:
    row = {name: str(value) for name, value in job("cifar", "dp_sgd").items()}
    text = page([{**row, "accuracy": "0.5"}])
    assert "| dp_sgd | cold | 0 | last | 50.0 | 64.9 |" in text
    assert "| dp_sgd | warm | 0 | last |  | 68.1 |" in text


@pytest.mark.filterwarnings("ignore:a seed")
def test_released_gradients_are_compared_with_those_without_noise(tmp_path: Path) -> None:
    figure2.main(["--problem", "invented", "--seeds", "1", "--out", str(tmp_path)])
    rows = read(tmp_path / "figure2.csv")
    assert {(row["start"], row["method"]) for row in rows} == {
        (start, method) for start in ("warm", "cold") for method in ("dp_sgd", "dope_sgd")
    }
    assert all(-1 <= float(row["cosine"]) <= 1 for row in rows)
    assert figure2_table(rows).count("\n") == 5
    weight = torch.nn.Linear(1, 2, bias=False)
    records = torch.ones(4, 1), torch.zeros(4, dtype=torch.int64)
    made = figure2.Comparing(weight.parameters(), 0.1, weight, records)
    loss = torch.nn.functional.cross_entropy(weight(records[0]), records[1])
    loss.backward()
    made.step()
    assert made.dots[0][1] == pytest.approx(1, abs=1e-5)  # its own gradient, compared with itself
