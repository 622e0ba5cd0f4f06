"""Random transforms of a batch: of images row by row, and blends of records (mixup).

Each is made once and then called with inputs, as the arguments `augment` and `public_augment` of a Trainer
want it: shift(4), flip(), Compose(crop(4), flip()).

The transforms of images (rows, channels, height, width) treat every row by itself: what a row becomes depends
on that row and on random numbers of its own, so private records may pass through many at a time; any other
transform of theirs is called once per row (`deep.private_records`). Random numbers come from PyTorch's own
generator, which a Trainer seeds with a secret for private records: known ones would tell which record was
where.

Mixup (Zhang et al., ICLR 2018) is not for private records. A blend of two has a gradient that both of them
move, and one record may be in many blends: clipping a blend bounds no record's influence. So `mixup` carries
the mark `mixes_records`, by which a Trainer refuses it as `augment=`, and `row_by_row` detects
transforms without the mark. No guarantee rests on either: a private record goes through `augment=` alone.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NoReturn

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from sidelight.errors import InputError, PrivacyConditionError, first_line, whole

Augment = Callable[[Any], Any]  # inputs of a batch, in any shape that the model takes, to the same
Padding = Literal["zeros", "reflect", "edge"]
_TORCH = {"zeros": "constant", "reflect": "reflect", "edge": "replicate"}


# ---------------------------------------------------------------------------------------------------
# images, row by row


def crop(padding: int = 4, *, size: int | None = None, fill: Padding = "zeros") -> Crop:
    """A random window of `size` pixels (None: as large as the image) after padding each side.

    fill: what lies outside the image: "zeros", its mirror image ("reflect"), or its "edge".
    """
    whole("padding", padding, least=0)
    whole("size", size, optional=True)
    if fill not in _TORCH:
        raise InputError(f"fill must be one of {', '.join(_TORCH)}, not {fill!r}")
    return Crop(int(padding), None if size is None else int(size), fill)


def shift(pixels: int = 2, *, fill: Padding = "zeros") -> Crop:
    """Every image moved at random by up to `pixels` each way."""
    return crop(pixels, fill=fill)


def flip(chance: float = 0.5, *, vertical: bool = False) -> Flip:
    """Left and right swapped with this probability; top and bottom if `vertical`."""
    if not 0 <= chance <= 1:
        raise InputError(f"chance must be in [0, 1], not {chance!r}")
    return Flip(float(chance), vertical)


@dataclass(frozen=True)
class Crop:
    """A window at a random position of the padded image."""

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
    """The image, or with some probability its mirror image."""

    chance: float
    vertical: bool
    mixes_records: ClassVar[bool] = False

    def __call__(self, images: Tensor) -> Tensor:
        rows = _sizes(images)[0]
        turned = torch.rand(rows, device=images.device) < self.chance
        return torch.where(turned[:, None, None, None], images.flip(2 if self.vertical else 3), images)


def each_row_alone(transform: object) -> bool:
    """Whether a transform is one of these, or made of them: every row by itself, with its own random numbers.

    By exact type: a subclass may do anything.
    """
    if isinstance(transform, Compose):
        return type(transform) is Compose and all(map(each_row_alone, transform.transforms))
    return type(transform) in (Crop, Flip)


def _places(rows: int, room: Sequence[int], device: torch.device) -> Tensor:
    """Row by row, the upper left corner of a window."""
    return torch.stack([torch.randint(0, most + 1, (rows,), device=device) for most in room], dim=1)


def _windows(images: Tensor, corners: Tensor, size: tuple[int, int]) -> Tensor:
    """The window of each image at its corner, by one indexing of a view of all windows."""
    each = torch.arange(len(images), device=images.device)
    windows = images.unfold(2, size[0], 1).unfold(3, size[1], 1)
    found: Tensor = windows[each, :, corners[:, 0], corners[:, 1]]
    return found


def _sizes(images: object) -> tuple[int, int, int, int]:
    if not isinstance(images, Tensor) or images.dim() != 4:
        found = f"shape {tuple(images.shape)}" if isinstance(images, Tensor) else type(images).__name__
        raise InputError(f"images must be a tensor of (rows, channels, height, width), not {found}")
    rows, channels, height, width = images.shape
    return rows, channels, height, width


# ---------------------------------------------------------------------------------------------------
# blends of public records, and compositions


def _blends(transform: object) -> bool:
    """Whether a transform takes inputs and targets together, which its mark `mixes_records` says."""
    return bool(getattr(transform, "mixes_records", False))


def mixup(alpha: float = 0.2, *, classes: int | None = None) -> Mixup:
    """Blends of public records.

    Class numbers become shares of `classes` classes, which cross-entropy takes as they are. Targets that are
    numbers are blended as numbers.
    """
    if not 0 < alpha < float("inf"):
        raise InputError(f"alpha must be positive, not {alpha!r}")
    if classes is not None and classes < 2:
        raise InputError(f"classes must be at least 2, not {classes!r}")
    return Mixup(float(alpha), classes)


@dataclass(frozen=True)
class Mixup:
    """λ·one + (1 − λ)·another, for inputs and targets alike, with λ ~ Beta(α, α) for each row."""

    alpha: float
    classes: int | None
    mixes_records: ClassVar[bool] = True

    def pair(self, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Blended inputs, and targets with the share of each class."""
        if not (isinstance(inputs, Tensor) and inputs.is_floating_point()):
            raise InputError("mixup blends numbers: give inputs as a tensor of float, for bytes images / 255")
        rows, targets = len(inputs), self._numbers(targets)
        share = torch.distributions.Beta(self.alpha, self.alpha).sample((rows,)).to(inputs.device)
        other = torch.randperm(rows, device=inputs.device)
        return _blend(inputs, share, other), _blend(targets, share, other)

    def __call__(self, inputs: object) -> NoReturn:
        raise InputError("mixup blends targets too: call .pair(inputs, targets), or leave it to a Trainer")

    def _numbers(self, targets: Tensor) -> Tensor:
        if targets.is_floating_point():
            return targets
        if self.classes is None:
            raise InputError(
                "mixup needs classes=, the number of classes, for targets that are class numbers"
            )
        if targets.numel() and not 0 <= int(targets.min()) <= int(targets.max()) < self.classes:
            raise InputError(
                f"a class number is not in 0 … {self.classes - 1}, as classes={self.classes} says"
            )
        return nn.functional.one_hot(targets.long(), self.classes).to(torch.get_default_dtype())


def _blend(values: Tensor, share: Tensor, other: Tensor) -> Tensor:
    kept = share.to(values.dtype).reshape(-1, *[1] * (values.dim() - 1))
    return kept * values + (1 - kept) * values[other]


class Compose:
    """One transform after another, as arguments or in a list. It mixes records if one of them does."""

    def __init__(self, *transforms: Augment | Sequence[Augment]) -> None:
        given = [one if isinstance(one, Sequence) else (one,) for one in transforms]
        self.transforms: tuple[Augment, ...] = tuple(transform for some in given for transform in some)

    @property
    def mixes_records(self) -> bool:
        return any(map(_blends, self.transforms))

    def __call__(self, inputs: Any) -> Any:
        for transform in self.transforms:
            inputs = transform(inputs)
        return inputs

    def pair(self, inputs: object, targets: object) -> tuple[Any, Any]:
        """Inputs and targets, where a transform blends both."""
        for transform in self.transforms:
            inputs, targets = augmented(transform, inputs, targets)
        return inputs, targets

    def __repr__(self) -> str:
        return f"Compose({', '.join(map(repr, self.transforms))})"


def augmented(augment: Augment | None, inputs: object, targets: object) -> tuple[Any, Any]:
    """A public batch after `augment`, which may blend its records."""
    if augment is None:
        return inputs, targets
    if _blends(augment):
        return augment.pair(inputs, targets)  # type: ignore[attr-defined, no-any-return]
    return augment(inputs), targets


# ---------------------------------------------------------------------------------------------------
# does a transform of private records blend them?

ROW_FOR_ROW = "augment= must return one row per input row, in the same order"
_REFUSED = (
    "augment= blends records: each result depends on other records of its batch, so clipping bounds nobody's "
    "influence. Transform every private row by itself; mixup is for public_augment="
)


def row_by_row(augment: Augment | None, inputs: object = None) -> None:
    """Raise if a transform of private records blends them.

    By its mark, and by trial: with the same random numbers, the first of two rows must become the same
    whatever the second is. `inputs` are two rows that are not private. No guarantee rests on this: private
    rows are given to the transform one by one, and what blends would then not do what it was written for.
    """
    if augment is None:
        return
    if _blends(augment):
        raise PrivacyConditionError(_REFUSED)
    if inputs is None:
        return
    if _row_count(augmented_rows(augment, inputs)) != _row_count(inputs):
        raise InputError(ROW_FOR_ROW)
    for seed in range(8):
        for first in (0, 1):
            pair, alone = _rows(inputs, [first, 1 - first]), _rows(inputs, [first, first])
            becomes = _outcome(augment, pair, seed)
            if not _same(becomes, _outcome(augment, pair, seed)):
                return  # its random numbers are not ours to repeat
            if not _same(becomes, _outcome(augment, alone, seed)):
                raise PrivacyConditionError(_REFUSED)


def augmented_rows(augment: Augment | None, inputs: object) -> object:
    """Rows that are not private after `augment`; what it raises is passed on."""
    if augment is None:
        return inputs
    try:
        with seeded(0):
            return augment(tree_map(_copy, inputs))
    except Exception as error:
        raise InputError(f"augment= fails ({first_line(error)}) on rows that are not private") from error


def _row_count(inputs: object) -> int:
    return len(next(leaf for leaf in tree_leaves(inputs) if isinstance(leaf, Tensor)))


def _rows(inputs: object, places: list[int]) -> object:
    return tree_map(lambda x: x[places] if isinstance(x, Tensor) else x, inputs)


def _outcome(augment: Augment, inputs: object, seed: int) -> list[object]:
    """What becomes of the first row."""
    with seeded(seed):
        return list(tree_leaves(_rows(augment(tree_map(_copy, inputs)), [0])))


def _copy(x: object) -> object:
    return x.clone() if isinstance(x, Tensor) else x


def _same(one: list[object], other: list[object]) -> bool:
    return len(one) == len(other) and all(
        a.shape == b.shape and torch.allclose(a.double(), b.double(), rtol=1e-3, atol=1e-6, equal_nan=True)
        for a, b in zip(one, other, strict=True)
        if isinstance(a, Tensor) and isinstance(b, Tensor)
    )


@contextlib.contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Random numbers from a seed; afterwards every generator has its former state."""
    numbers, python = np.random.get_state(), random.getstate()
    try:
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            np.random.seed(seed)
            random.seed(seed)
            yield
    finally:
        np.random.set_state(numbers)
        random.setstate(python)
