"""A tiny diffusion model learns, fills its pool, is interrupted, goes on, and serves a Trainer."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("diffusers")

from experiments.dope_table9 import denoising
from experiments.dope_table9.diffusion import Diffusion, Pool, generate_pool
from torch import nn
from torch.utils.data import ConcatDataset, TensorDataset

from sidelight.deep import PublicTraining, Trainer
from sidelight.errors import InputError, MissingDependency
from sidelight.methods.dope_sgd import dope_sgd

TINY = Diffusion(
    channels=(8, 16), layers=1, attention=False, steps=6, batch_size=8, sampling_steps=3, save_every=2
)


def halves(rows: int = 24) -> Any:
    """Class 0 is bright above, class 2 bright below; there is no class 1."""
    labels = 2 * (torch.arange(rows) % 2)
    images = torch.full((rows, 1, 8, 8), 0.1)
    images[labels == 0, :, :4] = 0.9
    images[labels == 2, :, 4:] = 0.9
    return images, labels


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def fill(folder: Path, *, count: int = 9, **options: Any) -> Pool:
    return generate_pool(folder, *halves(), count=count, seed=0, settings=TINY, block=4, **options)


def test_a_pool_is_a_dataset_of_images_and_classes_in_turn(tmp_path: Path) -> None:
    pool = fill(tmp_path / "pool")
    assert len(pool) == pool.asked == 9
    assert [int(label) for _, label in (pool[i] for i in range(9))] == [0, 2, 0, 2, 0, 2, 0, 2, 0]
    image, _ = pool[8]
    assert image.shape == (1, 8, 8) and image.dtype == torch.float32
    assert float(image.min()) >= 0 and float(image.max()) <= 1
    assert torch.equal(pool[-1][0], image)
    with pytest.raises(IndexError):
        pool[9]
    assert isinstance(pool._blocks[0], np.memmap)


def test_bytes_give_bytes(tmp_path: Path) -> None:
    images, labels = halves()
    pool = generate_pool(tmp_path, (255 * images).byte(), labels, count=3, seed=0, settings=TINY, block=4)
    assert pool[0][0].dtype == torch.uint8 and pool.about["bytes"]


class Interrupted(Exception):
    pass


@pytest.mark.parametrize(("what", "after"), [("training", 3), ("images", 4)])
def test_an_interrupted_call_goes_on_to_the_same_images(tmp_path: Path, what: str, after: int) -> None:
    whole = fill(tmp_path / "whole", count=12)

    def interrupt(now: str, done: int, of: int) -> None:
        if (now, done) == (what, after):
            raise Interrupted

    with pytest.raises(Interrupted):
        fill(tmp_path / "broken", count=12, told=interrupt)
    assert len(Pool(tmp_path / "broken")) == (0 if what == "training" else 4)
    resumed = fill(tmp_path / "broken", count=12)
    assert len(resumed) == len(whole) == 12
    assert files(tmp_path / "broken") == files(tmp_path / "whole")


def test_a_larger_pool_begins_with_the_smaller_one(tmp_path: Path) -> None:
    smaller = fill(tmp_path)
    before = [smaller[i] for i in range(9)]
    blocks = {name: data for name, data in files(tmp_path).items() if name[0] == "0"}
    larger = fill(tmp_path, count=15)
    assert len(larger) == 15
    assert all(torch.equal(a, b) for i in range(9) for a, b in zip(larger[i], before[i], strict=True))
    assert blocks.items() <= files(tmp_path).items()


def test_nothing_half_written_is_left_behind(tmp_path: Path, monkeypatch: Any) -> None:
    def broken(*args: Any) -> None:
        args[0].write_bytes(b"half")
        raise OSError("no space left on device")

    fill(tmp_path, count=4)
    before = files(tmp_path)
    monkeypatch.setattr(np, "save", broken)
    with pytest.raises(InputError, match="no space"):
        fill(tmp_path, count=8)
    assert files(tmp_path) == before


def test_a_folder_belongs_to_its_images_and_settings(tmp_path: Path) -> None:
    fill(tmp_path, count=4)
    images, labels = halves()
    with pytest.raises(InputError, match="other images"):
        generate_pool(tmp_path, 1 - images, labels, count=4, seed=0, settings=TINY, block=4)
    with pytest.raises(InputError, match="other images"):
        generate_pool(tmp_path, images, labels, count=4, seed=1, settings=TINY, block=4)


@pytest.mark.parametrize("name", ["pool.json", "labels.npy", "00000.npy", "unet.safetensors"])
def test_a_damaged_file_is_named(tmp_path: Path, name: str) -> None:
    fill(tmp_path, count=4)
    (tmp_path / name).write_bytes(b"\x00 not what was written")
    with pytest.raises(InputError, match=name.replace(".", r"\.")):
        Pool(tmp_path)
        fill(tmp_path, count=8)
    with pytest.raises(InputError, match="pool"):
        Pool(tmp_path / "elsewhere")


def test_the_model_learns_which_class_looks_how(tmp_path: Path) -> None:
    how = Diffusion(
        channels=(16, 16), layers=1, attention=False, steps=80, batch_size=8, learning_rate=3e-3, decay=0.9,
        mirror=True, sampling_steps=8,
    )  # fmt: skip
    pool = generate_pool(tmp_path, *halves(), count=16, seed=0, settings=how, block=16)
    above = torch.stack(
        [image[:, :4].mean() - image[:, 4:].mean() for image, _ in (pool[i] for i in range(16))]
    )
    classes = torch.tensor([pool[i][1] for i in range(16)])
    assert bool((above[classes == 0] > 0.3).all()) and bool((above[classes == 2] < -0.3).all())


def test_a_trainer_takes_it_as_public_data_and_for_the_warm_start(tmp_path: Path) -> None:
    images, labels = halves(40)
    pool = generate_pool(tmp_path, images, labels, count=8, seed=0, settings=TINY, block=4)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 3))
    trainer = Trainer(
        model, nn.CrossEntropyLoss(), method=dope_sgd(clip_norm=1.0, start="warm", extended=True),
        epsilon=8.0, delta=1e-3, steps=3, expected_batch_size=10,
        warm_up=PublicTraining(steps=40, batch_size=16), random_state=0, validation=0, progress=False,
    )  # fmt: skip
    trainer.fit(halves(60), ConcatDataset([TensorDataset(images, labels), pool]))
    assert trainer.privacy_.details["public_records"] == 48
    assert trainer.evaluate(halves(20))["accuracy"] == 1.0


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"images": torch.zeros(4, 8, 8)}, "rows, channels"),
        ({"images": torch.full((24, 1, 8, 8), 2.0)}, r"numbers in \[0, 1\]"),
        ({"images": torch.zeros(24, 1, 8, 8, dtype=torch.int32)}, "bytes"),
        ({"images": torch.zeros(24, 1, 7, 7)}, "multiples of 2"),
        ({"labels": torch.zeros(3, dtype=torch.int64)}, "one class number"),
        ({"labels": torch.full((24,), -1)}, "negative"),
        ({"count": 0}, "at least 1"),
        ({"seed": -1}, "seed"),
    ],
)
def test_bad_input_is_told_in_a_sentence(tmp_path: Path, change: dict[str, Any], words: str) -> None:
    images, labels = halves()
    given = {"images": images, "labels": labels, "count": 4, "seed": 0, "settings": TINY, **change}
    with pytest.raises(InputError, match=words):
        generate_pool(tmp_path / "new", **given)
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    "options", [{"channels": ()}, {"channels": (12,)}, {"sampling_steps": 0}, {"decay": 1.0}, {"layers": 0}]
)
def test_bad_settings_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        Diffusion(**options)


def test_without_diffusers_one_sentence_says_what_to_install(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setitem(sys.modules, "diffusers", None)
    denoising._scheduler.cache_clear()
    with pytest.raises(MissingDependency, match=r"\[experiments\]"):
        fill(tmp_path / "new")
    assert not (tmp_path / "new").exists()
