"""Random transforms of a batch of images (rows, channels, height, width), each row by itself.

Each is made once and then called with inputs, as the arguments `augment` and `public_augment` of a Trainer
want it: shift(4), flip(), Compose(crop(4), flip()). What a row becomes depends on that row and on random
numbers of its own, so private records may pass through many at a time; any other transform of theirs is
called once a row (`deep.private_augment`). Random numbers come from PyTorch's own generator, which a Trainer
seeds with a secret for private records: known ones would tell which record was where.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from sidelight.errors import InputError

__all__ = ["Compose", "crop", "each_row_alone", "flip", "shift"]

Padding = Literal["zeros", "reflect", "edge"]
_TORCH = {"zeros": "constant", "reflect": "reflect", "edge": "replicate"}


@dataclass(frozen=True)
class Crop:
    """A window of random place from the padded image."""

    padding: int
    size: int | None
    fill: Padding
    mixes_records: ClassVar[bool] = False

    def __call__(self, images: Tensor) -> Tensor:
        rows, _, height, width = _sizes(images)
        tall, wide = (height, width) if self.size is None else (self.size, self.size)
        room = height + 2 * self.padding - tall, width + 2 * self.padding - wide
        if min(room) < 0:
            raise InputError(f"a window of {self.size} pixels does not fit into {height} × {width} images")
        if self.padding >= min(height, width) and self.fill == "reflect":
            raise InputError(f"an image of {height} × {width} pixels has no {self.padding} pixels to reflect")
        padded = nn.functional.pad(images, (self.padding,) * 4, mode=_TORCH[self.fill])
        return _windows(padded, _places(rows, room, images.device), (tall, wide))


@dataclass(frozen=True)
class Flip:
    """The image, or with some chance its mirror image."""

    chance: float
    vertical: bool
    mixes_records: ClassVar[bool] = False

    def __call__(self, images: Tensor) -> Tensor:
        rows = _sizes(images)[0]
        turned = torch.rand(rows, device=images.device) < self.chance
        return torch.where(turned[:, None, None, None], images.flip(2 if self.vertical else 3), images)


class Compose:
    """One transform after another. It mixes records if one of them does (see `mixing`)."""

    def __init__(self, *transforms: Callable[..., Any]) -> None:
        self.transforms = transforms

    @property
    def mixes_records(self) -> bool:
        return any(getattr(one, "mixes_records", False) for one in self.transforms)

    def __call__(self, inputs: Any) -> Any:
        for transform in self.transforms:
            inputs = transform(inputs)
        return inputs

    def pair(self, inputs: Any, targets: Any) -> tuple[Any, Any]:
        """Inputs and targets, where a transform blends both."""
        for transform in self.transforms:
            if getattr(transform, "mixes_records", False):
                inputs, targets = transform.pair(inputs, targets)  # type: ignore[attr-defined]
            else:
                inputs = transform(inputs)
        return inputs, targets

    def __repr__(self) -> str:
        return f"Compose({', '.join(map(repr, self.transforms))})"


def each_row_alone(transform: Any) -> bool:
    """Whether a transform is one of these, or made of them: every row by itself, with its own random numbers.

    By the very type: a class that is derived from one of them may do anything.
    """
    if type(transform) is Compose:
        return all(map(each_row_alone, transform.transforms))
    return type(transform) in (Crop, Flip)


def crop(padding: int = 4, *, size: int | None = None, fill: Padding = "zeros") -> Crop:
    """A random window of `size` pixels (None: as large as the image) after padding each side.

    fill: what lies outside the image: "zeros", its mirror image ("reflect"), or its "edge".
    """
    _check_count(padding, "padding", 0)
    if size is not None:
        _check_count(size, "size", 1)
    if fill not in _TORCH:
        raise InputError(f"fill must be one of {', '.join(_TORCH)}, not {fill!r}")
    return Crop(int(padding), None if size is None else int(size), fill)


def shift(pixels: int = 2, *, fill: Padding = "zeros") -> Crop:
    """Every image moved by up to `pixels` each way, by chance."""
    return crop(pixels, fill=fill)


def flip(chance: float = 0.5, *, vertical: bool = False) -> Flip:
    """Left and right exchanged with this chance; top and bottom if `vertical`."""
    if not 0 <= chance <= 1:
        raise InputError(f"chance must be in [0, 1], not {chance!r}")
    return Flip(float(chance), vertical)


def _places(rows: int, room: Sequence[int], device: torch.device) -> Tensor:
    """Row by row, the upper left corner of a window."""
    return torch.stack([torch.randint(0, most + 1, (rows,), device=device) for most in room], dim=1)


def _windows(images: Tensor, corners: Tensor, size: tuple[int, int]) -> Tensor:
    """From each image the window at its corner: one indexing of a view of all windows."""
    each = torch.arange(len(images), device=images.device)
    windows = images.unfold(2, size[0], 1).unfold(3, size[1], 1)
    found: Tensor = windows[each, :, corners[:, 0], corners[:, 1]]
    return found


def _sizes(images: Any) -> tuple[int, int, int, int]:
    if not isinstance(images, Tensor) or images.dim() != 4:
        told = f"shape {tuple(images.shape)}" if isinstance(images, Tensor) else type(images).__name__
        raise InputError(f"images must be a tensor of (rows, channels, height, width), not {told}")
    rows, channels, height, width = images.shape
    return rows, channels, height, width


def _check_count(value: Any, name: str, least: int) -> None:
    if isinstance(value, bool) or value != int(value) or value < least:
        raise InputError(f"{name} must be a whole number of at least {least}, not {value!r}")
