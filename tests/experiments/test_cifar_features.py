"""The experiment with features runs from end to end in a small version, stops, and goes on where it was."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

from experiments.cifar_features import choice
from experiments.cifar_features.__main__ import arguments, chunked, jobs, main, split
from experiments.cifar_features.report import page, table
from experiments.sweep import read

from sidelight.features import PatchFeatures

ROOT = Path(__file__).parents[2]


def test_quick_version_learns_and_resumes(tmp_path: Path, capsys: Any) -> None:
    command = [
        "--quick",
        "--patches",
        "16",
        "--epsilon",
        "2",
        "--cache",
        str(tmp_path),
        "--out",
        str(tmp_path),
    ]
    main(command)
    first = (tmp_path / "runs.csv").read_text()
    runs = {row["method"]: row for row in read(tmp_path / "runs.csv")}
    assert set(runs) == {"auto", "only_public", "non_private"}
    assert float(runs["auto"]["spent"]) <= 2 and float(runs["only_public"]["spent"]) == 0
    assert min(float(row["accuracy"]) for row in runs.values()) > 0.5  # of ten classes
    assert "| similarities, 16 patches | 48,000 | " in capsys.readouterr().out
    main(command)
    assert (tmp_path / "runs.csv").read_text() == first


def test_parts_have_no_image_in_common() -> None:
    parts = split(seed=0, private=200, quick=True)
    seen = [{image.tobytes() for image in part[0]} for part in (parts.public, parts.private, parts.test)]
    assert [len(images) for images in seen] == [200, 200, 100]
    assert not (seen[0] & seen[1] or seen[0] & seen[2] or seen[1] & seen[2])
    assert np.bincount(parts.public[1]).tolist() == [20] * 10


def test_settings_are_compared_on_public_images(tmp_path: Path) -> None:
    choice.main(["--quick", "--patches", "8", "--out", str(tmp_path)])
    found = {
        (row["filters"], row["power"], row["kernel"]): row["accuracy"]
        for row in read(tmp_path / "choice.csv")
    }
    assert len(found) == 9 and max(map(float, found.values())) > 40  # of ten classes
    assert set(found) == {
        (row["filters"], row["power"], row["kernel"])
        for row in read(ROOT / "experiments/cifar_features/choice.csv")
    }


def test_what_settings_were_chosen_on_is_private_with_no_seed() -> None:
    chosen_on = {image.tobytes() for image in split(seed=0, private=500, quick=True).public[0]}
    for seed in (1, 2):
        parts = split(seed=seed, private=500, quick=True)
        assert not chosen_on & {image.tobytes() for image in parts.private[0]}
        assert chosen_on != {image.tobytes() for image in parts.public[0]}


def test_public_alone_runs_once_for_all_budgets() -> None:
    listed = [(job["method"], job["epsilon"]) for job in jobs(arguments(["--epsilon", "1", "2"]))]
    assert listed == [("auto", 1.0), ("auto", 2.0), ("only_public", 0.0), ("non_private", 0.0)]


def test_chunks_are_computed_once(tmp_path: Path) -> None:
    images = split(seed=0, private=200, quick=True).public[0]
    made = PatchFeatures(patches=8, first_patches=4, mirror=False).fit(images)
    rows = chunked(made, images, tmp_path / "rows")
    assert np.array_equal(rows, made.transform(images))
    np.save(tmp_path / "rows" / "0-200.npy", rows[::-1])
    assert np.array_equal(chunked(made, images, tmp_path / "rows"), rows[::-1])


def test_table_has_every_line_of_the_paper() -> None:
    row = {
        "seed": "0", "features": "two layers", "patches": "512", "private": "48000", "method": "auto",
        "epsilon": "2.0", "accuracy": "0.7", "feature_minutes": "9.04", "fit_minutes": "1.0",
        "peak_gb": "2.0",
    }  # fmt: skip
    lines = table([row, row | {"accuracy": "0.72", "seed": "1"}]).splitlines()
    assert (
        lines[2]
        == "| two layers, 512 patches | 48,000 | – | – | 71.00 (70.00, 72.00) | – | 9.0 | 1.0 | 2.0 |"
    )
    assert sum("DOPE-SGD paper" in line for line in lines) == 4 and "| 72.1 | 75.1 |" in lines[-1]


def test_the_page_is_that_of_the_committed_runs() -> None:
    written = (ROOT / "docs/reproductions/cifar_features.md").read_text()
    assert written == page(read(ROOT / "experiments/cifar_features/runs.csv")), "--docs makes it anew"
