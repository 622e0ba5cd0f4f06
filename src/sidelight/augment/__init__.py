"""More from the public data: transforms of images, and synthetic tables.

Transforms treat every row by itself and may serve private records too; `mixup` blends records, so it is for
public ones only, and a Trainer refuses it as `augment=`. `synthesise` makes rows of a mixed table. Names load
on first use: tables need no PyTorch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sidelight.augment.synthesis import synthesise
    from sidelight.augment.transforms import Compose, crop, flip, mixup, shift

__all__ = ["Compose", "crop", "flip", "mixup", "shift", "synthesise"]

_LAZY = {
    "Compose": "sidelight.augment.transforms",
    "crop": "sidelight.augment.transforms",
    "flip": "sidelight.augment.transforms",
    "mixup": "sidelight.augment.transforms",
    "shift": "sidelight.augment.transforms",
    "synthesise": "sidelight.augment.synthesis",
}


def __getattr__(name: str) -> object:
    if name not in _LAZY:
        raise AttributeError(f"module 'sidelight.augment' has no attribute {name!r}")
    return getattr(importlib.import_module(_LAZY[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
