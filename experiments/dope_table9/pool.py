"""A pool of generated images on disk: blocks of bytes that are mapped into memory, not read.

    pool.json        what it was made from and with (a fingerprint), the shape and type of an image
    labels.npy       the class of every image that was asked for
    00000.npy, …     blocks of images, uint8 (rows, channels, height, width)

Every file is written beside its place and then moved there, so a reader never meets half a file, and filling
goes on after the last whole block.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset

from sidelight.errors import InputError
from sidelight.files import whole_file, write_text

__all__ = ["Pool", "fill"]

Bytes = NDArray[np.uint8]
_FORM = 1  # of the files


class Pool(Dataset[tuple[Tensor, Tensor]]):
    """A map-style dataset of (image, class), as long as there are whole blocks of it.

    An image is bytes, or numbers in [0, 1], as the images were from which it was made. Pass it, or a
    ConcatDataset of it and the public records, wherever public records go.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)
        self.about = _about(self.folder)
        self._labels = _array(self.folder / "labels.npy", (None,))
        self._blocks = list(self._whole_blocks())
        self._size = min(len(self._labels), sum(len(block) for block in self._blocks))

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, place: int) -> tuple[Tensor, Tensor]:
        if not -self._size <= place < self._size:
            raise IndexError(f"there are {self._size} images")
        place = place % self._size
        block, row = divmod(place, self.about["block"])
        image = torch.from_numpy(np.array(self._blocks[block][row]))
        return (image if self.about["bytes"] else image / 255), torch.tensor(int(self._labels[place]))

    @property
    def asked(self) -> int:
        """How many images there will be when it is full."""
        return len(self._labels)

    def _whole_blocks(self) -> Iterator[Bytes]:
        for number in range(-(-len(self._labels) // self.about["block"])):
            path = _block(self.folder, number)
            if not path.exists():
                return
            yield _array(path, (self.about["block"], *self.about["shape"]))


def fill(
    folder: str | os.PathLike[str],
    labels: NDArray[np.int64],
    make: Callable[[int, NDArray[np.int64]], Bytes],
    *,
    count: int,
    about: dict[str, Any],
    block: int,
    done: Callable[[int], None] = lambda count: None,
) -> Pool:
    """Make the blocks that are missing: make(number, labels of the block) → images.

    `labels` are those of whole blocks, though only the first `count` images belong to the pool yet: a larger
    pool begins with the same blocks.
    `about` must hold "shape" and "bytes", and is compared with what the folder says; `done` hears how many
    images there are.
    """
    place = Path(folder)
    place.mkdir(parents=True, exist_ok=True)
    about = {**about, "block": block, "form": _FORM}
    if (place / "pool.json").exists() and _about(place) != about:
        raise InputError(f"{place} holds a pool made from other images or settings; choose another folder")
    with whole_file(place / "labels.npy") as new:
        np.save(new, labels[:count])
    write_text(place / "pool.json", json.dumps(about, indent=1, sort_keys=True))
    for number in range(-(-count // block)):
        if not _block(place, number).exists():
            images = make(number, labels[number * block : (number + 1) * block])
            with whole_file(_block(place, number)) as new:
                np.save(new, images)
        done(min(count, (number + 1) * block))
    return Pool(place)


def _block(folder: Path, number: int) -> Path:
    return folder / f"{number:05d}.npy"


def _about(folder: Path) -> dict[str, Any]:
    try:
        about = json.loads((folder / "pool.json").read_bytes())
        complete = about["form"] == _FORM and about["block"] > 0 and {"shape", "bytes"} <= about.keys()
    except FileNotFoundError:
        raise InputError(f"{folder} holds no pool of images: it has no pool.json") from None
    except (OSError, ValueError, KeyError, TypeError):
        complete = False
    if not complete:
        raise InputError(f"{folder / 'pool.json'} cannot be read; make the pool anew in another folder")
    return dict(about)


def _array(path: Path, shape: tuple[int | None, ...]) -> NDArray[Any]:
    try:
        found: NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError):
        raise InputError(f"{path} cannot be read; delete it and fill the pool again") from None
    if len(found.shape) != len(shape) or any(
        b not in (None, a) for a, b in zip(found.shape, shape, strict=True)
    ):
        raise InputError(f"{path} does not fit its pool; delete it and fill the pool again")
    return found
