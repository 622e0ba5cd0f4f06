"""The experiment runs from end to end in a small version, stops, and goes on where it was."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from experiments.coupling_table3 import columns
from experiments.coupling_table3.__main__ import arguments, jobs, main
from experiments.coupling_table3.columns import ALIKE, Cnn
from experiments.coupling_table3.digits import warped
from experiments.coupling_table3.report import shared, table, with_coupling
from experiments.sweep import read


def test_quick_version_runs_resumes_and_spends_what_it_was_given(
    tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(columns, "STEP_SIZES", (0.5, 2.0))
    monkeypatch.setattr(columns, "LONGER", (1.0,))
    rehearsed = {"AdaMix": 2, "DOPE": 4}  # candidates, and the start
    chosen = ["FullPriv", *rehearsed]
    command = ["--quick", "--r-pub", "0.2", "--out", str(tmp_path), "--docs", str(tmp_path / "page.md")]
    command += [word for column in chosen for word in ("--only", column)]
    main(command)
    runs = {row["column"]: row for row in read(tmp_path / "runs.csv")}
    assert set(runs) == set(chosen)
    assert all(1.9 < float(row["epsilon"]) <= 2 for row in runs.values())
    for column, count in rehearsed.items():
        tried = json.loads(runs[column]["evidence"])
        assert len(tried) == count and runs[column]["chosen"] in tried
    printed = capsys.readouterr().out
    assert "| column | r_pub = 0.2 | paper |" in printed and "| 74.58 |" in printed
    page = (tmp_path / "page.md").read_text()
    assert printed.strip().splitlines()[-1] in page and f"| {runs['DOPE']['chosen']} |" in page
    main(command)  # everything is there: nothing is added
    assert {row["column"]: row for row in read(tmp_path / "runs.csv")} == runs


def test_a_run_of_auto_that_chose_coupling_is_that_column_too() -> None:
    ours = {
        "column": "Ours",
        "r_pub": "0.2",
        "seed": "0",
        "accuracy": "0.99",
        "chosen": "coupling, step size 4",
    }
    assert [row["column"] for row in with_coupling([ours])] == ["Ours", "Coupling"]
    own = {**ours, "column": "Coupling", "accuracy": "0.98"}
    assert with_coupling([ours, own]) == [ours, own]
    assert with_coupling([{**ours, "chosen": "dp_sgd, step size 4"}])[1:] == []


def test_columns_that_use_all_records_alike_run_once_and_show_twice() -> None:
    planned = [job["r_pub"] for job in jobs(arguments([])) if job["column"] in ALIKE]
    assert planned == [0.05] * len(ALIKE)
    runs = [{"column": "FullPriv", "r_pub": "0.05", "accuracy": "0.9"}]
    runs.append({"column": "OnlyPub", "r_pub": "0.2", "accuracy": "0.95"})
    lines = table(runs).splitlines()
    assert "| FullPriv | 90.00 | 95.27 | 90.00 | 95.27 |" in lines
    assert "| OnlyPub |  | 95.58 | 95.00 | 98.00 |" in lines


def test_runs_of_the_bare_call_are_taken_from_the_page_that_has_them(tmp_path: Path) -> None:
    head = "task,method,seed,accuracy,start,chosen,step_size\n"
    lines = ["mnist,auto,0,0.98,0.97,coupling,4.0", "mnist,only_public,1,0.96,,,", "adult,auto,0,0.8,0.7,,"]
    (tmp_path / "runs.csv").write_text(head + "\n".join(lines) + "\n")
    found = {(row["column"], row["seed"]): row["accuracy"] for row in shared(tmp_path / "runs.csv")}
    assert found == {
        ("Ours", "0"): "0.98",
        ("Coupling", "0"): "0.98",
        ("OnlyPub", "0"): "0.97",
        ("OnlyPub", "1"): "0.96",
    }


def test_the_network_is_that_of_the_appendix() -> None:
    assert sum(p.numel() for p in Cnn().parameters()) == 26_010


def test_warps_treat_every_image_by_itself() -> None:
    images = torch.zeros(20, 1, 28, 28)
    images[:, 0, 10:18, 12:16] = 1
    torch.manual_seed(0)
    first = warped(images)
    other = images.clone()
    other[1:] = torch.rand(19, 1, 28, 28)
    torch.manual_seed(0)
    assert torch.equal(first[0], warped(other)[0])
    assert first.shape == images.shape and not torch.allclose(first[0], first[1])
    assert first.sum((1, 2, 3)).min() > 10
