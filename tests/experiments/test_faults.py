"""The fault run in small: four kills of `fit` and sixteen hostile files (python -m experiments.faults)."""

import csv
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("pandas")
ROOT = Path(__file__).resolve().parents[2]
FAULTS = ROOT / "experiments/faults"


@pytest.mark.skipif(not hasattr(__import__("os"), "pidfd_open"), reason="needs Linux")
def test_kills_leave_nothing_and_hostile_files_get_one_clear_line() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "experiments.faults", "--quick"],
        capture_output=True, text=True, cwd=ROOT, timeout=600, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert [line.split()[0] for line in done.stdout.splitlines()] == ["0"] * 6


def test_the_committed_runs_are_as_large_as_the_page_says_and_without_a_fault() -> None:
    kills = list(csv.DictReader((FAULTS / "kills.csv").read_text().splitlines()))
    files = list(csv.DictReader((FAULTS / "files.csv").read_text().splitlines()))
    assert len(files) >= 500
    assert not any(int(row[key]) for row in kills for key in ("lost", "leftovers after it", "next run"))
    assert not any(int(row[key]) for row in files for key in ("unclear", "quotes", "slow"))
    assert any(int(row["leftovers at the kill"]) for row in kills)  # else nothing was there to be swept
    page = (ROOT / "docs/reproductions/faults.md").read_text()
    real = sum(row["killed"] == "True" for row in kills)
    assert real >= 200 and f"the {real} kills" in page and f"the {len(files)} files" in page
