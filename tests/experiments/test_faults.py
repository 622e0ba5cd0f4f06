"""The fault run in small: four kills of `fit` and sixteen hostile files (python -m experiments.faults)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("pandas")
ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.skipif(not hasattr(__import__("os"), "pidfd_open"), reason="needs Linux")
def test_kills_leave_nothing_and_hostile_files_get_one_clear_line() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "experiments.faults", "--quick"],
        capture_output=True, text=True, cwd=ROOT, timeout=600, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert [line.split()[0] for line in done.stdout.splitlines()] == ["0"] * 6
