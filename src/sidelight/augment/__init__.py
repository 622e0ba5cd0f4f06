"""More from the public data: transforms of images, and synthetic tables.

Transforms treat every row by itself and may serve private records too; `mixup` blends records, so it is for
public ones only, and a Trainer refuses it as `augment=`. `synthesize` makes rows of a mixed table. Names load
on first use: tables need no PyTorch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sidelight.lazy_names import load

if TYPE_CHECKING:
    from sidelight.augment.synthesis import synthesize
    from sidelight.augment.transforms import Compose, crop, flip, mixup, shift

__all__ = ["Compose", "crop", "flip", "mixup", "shift", "synthesize"]

_HOMES = {
    "Compose": "sidelight.augment.transforms",
    "crop": "sidelight.augment.transforms",
    "flip": "sidelight.augment.transforms",
    "mixup": "sidelight.augment.transforms",
    "shift": "sidelight.augment.transforms",
    "synthesize": "sidelight.augment.synthesis",
}


def __getattr__(name: str) -> object:
    return load(__name__, _HOMES, name)


def __dir__() -> list[str]:
    return sorted(__all__)
