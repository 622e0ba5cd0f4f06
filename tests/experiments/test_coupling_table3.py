"""The experiment runs from end to end in a small version, stops, and goes on where it was."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from experiments.coupling_table3 import rehearse  # noqa: E402
from experiments.coupling_table3.__main__ import arguments, jobs, main  # noqa: E402
from experiments.coupling_table3.columns import ALIKE, COLUMNS, Cnn  # noqa: E402
from experiments.coupling_table3.digits import shifted, warped  # noqa: E402
from experiments.coupling_table3.report import table  # noqa: E402
from experiments.sweep import read  # noqa: E402


def test_quick_version_runs_and_resumes(tmp_path: Path, capsys: Any) -> None:
    chosen = ["OnlyPub", "Coupling", "Ours"]
    command = ["--quick", "--r-pub", "0.2", "--out", str(tmp_path), "--docs", str(tmp_path / "page.md")]
    command += [word for column in chosen for word in ("--only", column)]
    main(command)
    first = (tmp_path / "runs.csv").read_text()
    assert len(first.splitlines()) == 1 + len(chosen)
    printed = capsys.readouterr().out
    assert "| column | r_pub = 0.2 | paper |" in printed and "| 98.36 |" in printed
    assert printed.strip().splitlines()[-1] in (tmp_path / "page.md").read_text()
    main(command)  # everything is there: nothing is added
    assert (tmp_path / "runs.csv").read_text() == first


def test_every_private_column_spends_what_it_was_given(tmp_path: Path) -> None:
    chosen = [name for name in COLUMNS if not name.startswith(("NonPriv", "OnlyPub"))]
    main(["--quick", "--r-pub", "0.2", "--out", str(tmp_path), *(w for c in chosen for w in ("--only", c))])
    spent = {row["column"]: float(row["epsilon"]) for row in read(tmp_path / "runs.csv")}
    assert set(spent) == set(chosen)
    assert all(1.9 < epsilon <= 2 for epsilon in spent.values())


def test_columns_that_use_all_records_alike_run_once_and_show_twice() -> None:
    planned = [job["r_pub"] for job in jobs(arguments([])) if job["column"] in ALIKE]
    assert planned == [0.05] * len(ALIKE)
    runs = [{"column": "FullPriv", "r_pub": "0.05", "accuracy": "0.9"}]
    runs.append({"column": "OnlyPub", "r_pub": "0.2", "accuracy": "0.95"})
    lines = table(runs).splitlines()
    assert "| FullPriv | 90.00 | 95.27 | 90.00 | 95.27 |" in lines
    assert "| OnlyPub |  | 95.58 | 95.00 | 98.00 |" in lines


def test_rehearsal_uses_public_images_alone(tmp_path: Path, capsys: Any) -> None:
    rehearse.main(["--quick", "--out", str(tmp_path)])
    first = (tmp_path / "rehearsal.csv").read_text()
    assert len(first.splitlines()) == 1 + len(rehearse.SETTINGS)
    public = (torch.arange(300.0).reshape(-1, 1, 1, 1).expand(-1, 1, 28, 28), torch.zeros(300).long())
    known, stand_in, check = rehearse.thirds(public, copies=2)
    assert [len(part[1]) for part in (known, stand_in, check)] == [100, 200, 100]
    assert not set(known[0][:, 0, 0, 0].tolist()) & set(check[0][:, 0, 0, 0].tolist())


def test_the_network_is_that_of_the_appendix() -> None:
    assert sum(p.numel() for p in Cnn().parameters()) == 26_010


def test_shifts_move_images_by_at_most_two_pixels() -> None:
    image = torch.zeros(50, 1, 28, 28)
    image[:, 0, 14, 14] = 1
    moved = shifted(image)
    places = moved.nonzero()[:, 2:]
    assert moved.shape == image.shape and len(places) == 50
    assert int((places - 14).abs().max()) == 2


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
