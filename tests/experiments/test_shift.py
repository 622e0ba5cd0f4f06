"""Public rows of another kind: the quick version, and the page that is published, against its data."""

from pathlib import Path
from typing import Any

import numpy as np
from experiments.shift import __main__ as experiment
from experiments.shift import report, shifts
from experiments.sweep import read

ROOT = Path(__file__).parents[2]


def test_quick_version_runs_and_resumes(tmp_path: Path, capsys: Any) -> None:
    command = ["--quick", "--out", str(tmp_path)]
    experiment.main(command)
    first = (tmp_path / "runs.csv").read_text()
    assert "AUC: shifted public rows" in capsys.readouterr().out
    experiment.main(command)
    assert (tmp_path / "runs.csv").read_text() == first


def test_public_rows_are_of_the_kind_and_private_ones_of_all_kinds() -> None:
    data = shifts.split(shifts.TOY["toy, job"], 0, shifted=True)
    assert set(data.public.job) == {"nurse"}
    assert set(data.private.job) == set(data.test.job) == {"nurse", "smith", "clerk"}
    assert not set(data.public.index) & set(data.private.index)


def test_labels_are_turned() -> None:
    rows = shifts.split(shifts.Shift("toy", ""), 0, shifted=False).public
    turned = shifts._turned(rows, np.array([True] * len(rows)))
    assert (turned["target"] != rows["target"]).all()


def test_the_page_is_made_of_the_committed_runs() -> None:
    page = (ROOT / "docs/reproductions/shift.md").read_text()
    assert page == report.page(read(experiment.HERE / "runs.csv")), "python -m experiments.shift --docs …"
