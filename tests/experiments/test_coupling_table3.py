"""The experiment runs from end to end in a small version, stops, and goes on where it was."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from experiments.coupling_table3.__main__ import main  # noqa: E402
from experiments.coupling_table3.columns import COLUMNS, Cnn, shifted  # noqa: E402


def test_quick_version_runs_and_resumes(tmp_path: Path, capsys: Any) -> None:
    chosen = ["OnlyPub", "Coupling", "DOPE"]
    command = ["--quick", "--r-pub", "0.2", "--out", str(tmp_path)]
    command += [word for column in chosen for word in ("--only", column)]
    main(command)
    first = (tmp_path / "runs.csv").read_text()
    assert len(first.splitlines()) == 1 + len(chosen)
    assert "| Coupling | 0.2 |" in capsys.readouterr().out
    main(command)  # everything is there: nothing is added
    assert (tmp_path / "runs.csv").read_text() == first
    assert set(chosen) <= set(COLUMNS)


def test_the_network_is_that_of_the_appendix() -> None:
    assert sum(p.numel() for p in Cnn().parameters()) == 26_010


def test_shifts_move_images_by_at_most_two_pixels() -> None:
    image = torch.zeros(50, 1, 28, 28)
    image[:, 0, 14, 14] = 1
    moved = shifted(image)
    places = moved.nonzero()[:, 2:]
    assert moved.shape == image.shape and len(places) == 50
    assert int((places - 14).abs().max()) == 2
