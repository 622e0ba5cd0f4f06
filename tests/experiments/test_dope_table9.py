"""The experiment runs from end to end in a small version, stops, and goes on where it was."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("diffusers")

from experiments.dope_table9.__main__ import ensembles, main  # noqa: E402
from experiments.dope_table9.cells import BATCH, CELLS, GENERATED, ConvNet, method_of  # noqa: E402
from experiments.dope_table9.images import enlarged, split, transformed  # noqa: E402

from sidelight.oracles.network.flat import read  # noqa: E402


def test_quick_version_runs_resumes_and_writes_its_page(tmp_path: Path, capsys: Any) -> None:
    command = [
        "--quick",
        "--generated",
        "--only",
        "warm-ext",
        "--out",
        str(tmp_path),
        "--docs",
        str(tmp_path / "docs" / "page.md"),
    ]
    main(command)
    first = (tmp_path / "runs.csv").read_text()
    assert len(first.splitlines()) == 1 + sum(cell[1] == "warm-ext" for cell in CELLS + GENERATED)
    assert "| DOPE-SGD | warm-ext | diffusion |" in capsys.readouterr().out
    page = (tmp_path / "docs" / "page.md").read_text()
    assert page.startswith("# Table 9") and "| DP-SGD | warm-ext | none |" in page
    main(command)  # everything is there: nothing is added
    assert (tmp_path / "runs.csv").read_text() == first


def test_public_private_and_validation_images_are_disjoint_and_balanced() -> None:
    images = split(seed=0, quick=True)
    parts = {name: {x.numpy().tobytes() for x in getattr(images, name)[0]} for name in ("private", "public")}
    parts["validation"] = {x.numpy().tobytes() for x in images.validation[0]}
    assert sum(map(len, parts.values())) == len(set().union(*parts.values())) == 500
    assert images.public[1].bincount().tolist() == [6] * 10
    assert images.validation[1].bincount().tolist() == [2] * 10


def test_the_enlarged_set_is_made_of_public_images_with_their_classes(tmp_path: Path) -> None:
    public = split(seed=0, quick=True).public
    made, labels = transformed(public, 130, seed=0)
    assert torch.equal(labels, public[1].repeat(3)[:130])
    bright = [(x.float().mean(0) > 150).sum() for x in made]  # the square that tells the class is still there
    assert min(bright) > 0
    assert len(enlarged(public, "none", seed=0, quick=True, out=tmp_path)) == 60
    assert len(enlarged(public, "transforms", seed=0, quick=True, out=tmp_path)) == 200
    assert len(enlarged(public, "diffusion", seed=0, quick=True, out=tmp_path)) == 120


def test_the_network_and_the_methods_are_as_the_page_says() -> None:
    assert sum(p.numel() for p in ConvNet().parameters()) == 34_602
    assert BATCH == 512
    assert method_of("dp_sgd", "warm-ext").extended and not method_of("dp_sgd", "warm").extended
    assert method_of("dope_sgd", "warm-ext").extended and not method_of("dope_sgd", "cold").extended


def test_ensembles_are_of_the_iterates_given() -> None:
    torch.manual_seed(0)
    model, images = ConvNet(), split(seed=0, quick=True).test
    one = read(model)
    found = ensembles(model, torch.stack([one, one]), images)
    assert found["last"] == found["mean"] == found["vote"]
    assert torch.equal(read(model), one)
