"""The experiment runs from end to end in a small version, stops, and goes on where it was."""

from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("diffusers")

from experiments.dope_table9.__main__ import ensembles, main
from experiments.dope_table9.cells import (
    BATCH,
    GENERATED,
    HEADLINE,
    REST,
    STEPS,
    ConvNet,
    method_of,
)
from experiments.dope_table9.choice import chosen
from experiments.dope_table9.images import enlarged, split, transformed

from sidelight.methods.dope_sgd import PublicGradient
from sidelight.problems.flat_parameters import read


def test_quick_version_runs_resumes_and_writes_its_page(tmp_path: Path, capsys: Any) -> None:
    command = [
        "--quick", "--generated", "--seeds", "1", "--epsilons", "2", "--only", "warm-ext",
        "--out", str(tmp_path), "--docs", str(tmp_path / "docs" / "page.md"),
    ]  # fmt: skip
    main(command)
    first = (tmp_path / "runs.csv").read_text()
    cells = HEADLINE + REST + GENERATED
    assert len(first.splitlines()) == 1 + sum(cell[1] == "warm-ext" for cell in cells)
    assert "| 2 | DOPE-SGD | warm-ext | diffusion |" in capsys.readouterr().out
    page = (tmp_path / "docs" / "page.md").read_text()
    assert page.startswith("# Tables 1, 2 and 9") and "| 2 | DP-SGD | warm-ext | transforms |" in page
    main(command)  # everything is there: nothing is added
    assert (tmp_path / "runs.csv").read_text() == first


def test_no_cell_is_run_before_every_choice_is_there(tmp_path: Path) -> None:
    main(["--quick", "--most", "1", "--out", str(tmp_path)])
    assert len((tmp_path / "choice.csv").read_text().splitlines()) == 2
    assert len((tmp_path / "runs.csv").read_text().splitlines()) == 1


def test_the_choice_is_the_best_rehearsal_of_its_method_and_start(tmp_path: Path) -> None:
    path = tmp_path / "choice.csv"
    path.write_text(
        "method,start,step_size,limit,accuracy,loss\n"
        "dp_sgd,cold,8.0,0.0,.9,.1\ndope_sgd,warm,1.0,0.1,.5,.4\ndope_sgd,warm,2.0,0.2,.5,.3\n"
        "dope_sgd,cold,4.0,0.2,.7,.1\n"
    )
    assert chosen(path, "dope_sgd", "warm") == chosen(path, "dope_sgd", "warm-ext") == (2.0, 0.2)


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
    for augmentation, count in (("none", 60), ("transforms", 200), ("diffusion", 120)):
        images, classes = enlarged(public, augmentation, seed=0, quick=True, out=tmp_path)
        assert len(images) == len(classes) == count


def test_the_network_and_the_methods_are_as_the_page_says() -> None:
    assert sum(p.numel() for p in ConvNet().parameters()) == 34_602
    assert (BATCH, STEPS) == (1024, 800)
    for name in ("dp_sgd", "dope_sgd"):
        assert method_of(name, "warm-ext", 0.1).extended and not method_of(name, "warm", 0.1).extended
    assert method_of("dope_sgd", "cold", 0.1).origin == PublicGradient(0.1)


def test_ensembles_are_of_the_iterates_given() -> None:
    torch.manual_seed(0)
    model, images = ConvNet(), split(seed=0, quick=True).test
    one = read(model)
    found = ensembles(model, torch.stack([one, one]), images)
    assert found["last"] == found["mean"] == found["vote"]
    assert torch.equal(read(model), one)
