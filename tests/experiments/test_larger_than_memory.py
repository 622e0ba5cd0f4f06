"""The experiment with tables larger than memory runs in a small version, and cleans up."""

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow")

from experiments.larger_than_memory.__main__ import main
from experiments.larger_than_memory.report import page, table
from experiments.sweep import read

HERE = Path(__file__).parents[2] / "experiments" / "larger_than_memory"


def test_a_small_version_runs_and_removes_its_table(tmp_path: Path, capsys: Any) -> None:
    lake = tmp_path / "lake"
    command = ["--rows", "3000", "--engine", "memory", "blocks", "--steps", "4"]
    main([*command, "--folder", str(lake), "--out", str(tmp_path)])
    runs = {row["engine"]: row for row in read(tmp_path / "runs.csv")}
    assert set(runs) == {"memory", "blocks"} and not lake.exists()
    assert all(0.1 < float(row["peak_gb"]) < 2 and float(row["spent"]) <= 1 for row in runs.values())
    assert min(float(row["accuracy"]) for row in runs.values()) > 0.6
    assert "| 3,000 | blocks on disk |" in capsys.readouterr().out


def test_the_page_says_what_was_measured(tmp_path: Path) -> None:
    runs = read(HERE / "runs.csv")
    pytest.importorskip("matplotlib")
    made = page(runs, tmp_path / "larger_than_memory.md")
    assert made == (HERE.parents[1] / "docs/reproductions/larger_than_memory.md").read_text()
    assert table(runs) in made and (tmp_path / "larger_than_memory.svg").exists()
    largest = {row["engine"]: row for row in runs if row["rows"] == "20000000"}
    assert float(largest["blocks"]["peak_gb"]) < 2
    assert json.dumps(runs)
