"""Mixup: blends of public records (Zhang et al., ICLR 2018). Not for private ones.

A blend of two private records has a gradient that both of them move, and one record may be in many blends:
clipping a blend bounds no record's influence. So `mixup` carries the mark `mixes_records`, by which a Trainer
refuses it as `augment=`, and `row_by_row` finds out about transforms that carry no mark. No guarantee rests
on either: a private record goes through `augment=` alone (`deep.private_augment`).
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_map

from sidelight.errors import InputError, PrivacyConditionError

__all__ = ["augmented", "augmented_rows", "mixup", "row_by_row", "seeded"]


@dataclass(frozen=True)
class Mixup:
    """λ·one + (1 − λ)·another, for inputs and targets alike, with λ ~ Beta(α, α) for each row."""

    alpha: float
    classes: int | None
    mixes_records: ClassVar[bool] = True

    def pair(self, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Blended inputs, and targets that say how much of what is in them."""
        if not (isinstance(inputs, Tensor) and inputs.is_floating_point()):
            raise InputError("mixup blends numbers: give inputs as a tensor of float, for bytes images / 255")
        rows, targets = len(inputs), self._numbers(targets)
        share = torch.distributions.Beta(self.alpha, self.alpha).sample((rows,)).to(inputs.device)
        other = torch.randperm(rows, device=inputs.device)
        return _blend(inputs, share, other), _blend(targets, share, other)

    def __call__(self, inputs: Any) -> Any:
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


def augmented(augment: Callable[..., Any] | None, inputs: Any, targets: Any) -> tuple[Any, Any]:
    """A public batch after `augment`, which may blend its records."""
    if augment is None:
        return inputs, targets
    if getattr(augment, "mixes_records", False):
        blended: tuple[Any, Any] = augment.pair(inputs, targets)  # type: ignore[attr-defined]
        return blended
    return augment(inputs), targets


def row_by_row(augment: Callable[..., Any] | None, inputs: Any = None) -> None:
    """Raise if a transform of private records blends them.

    By its mark, and by trial: with the same random numbers, the first of two rows must become the same
    whatever the second is. `inputs` are two rows that are not private. No guarantee rests on this: private
    rows are given to the transform one by one, and what blends would then not do what it was written for.
    """
    if augment is None:
        return
    if getattr(augment, "mixes_records", False):
        raise PrivacyConditionError(_REFUSED)
    if inputs is None:
        return
    if len(_first_leaf(augmented_rows(augment, inputs))) != len(_first_leaf(inputs)):
        raise InputError("augment= must return a row for every row that it is given, in the same order")
    for seed in range(8):
        for first in (0, 1):
            pair, alone = _rows(inputs, [first, 1 - first]), _rows(inputs, [first, first])
            becomes = _outcome(augment, pair, seed)
            if not _same(becomes, _outcome(augment, pair, seed)):
                return  # its random numbers are not ours to repeat
            if not _same(becomes, _outcome(augment, alone, seed)):
                raise PrivacyConditionError(_REFUSED)


def augmented_rows(augment: Callable[..., Any] | None, inputs: Any) -> Any:
    """Rows that are not private after `augment`; what it raises is told."""
    if augment is None:
        return inputs
    try:
        with seeded(0):
            return augment(tree_map(_copy, inputs))
    except Exception as error:
        told = str(error).strip().split("\n")[0]
        raise InputError(
            f"augment= fails ({type(error).__name__}: {told}) on rows that are not private"
        ) from error


def _first_leaf(inputs: Any) -> Any:
    return next(leaf for leaf in tree_flatten(inputs)[0] if isinstance(leaf, Tensor))


_REFUSED = (
    "augment= blends records: what one becomes depends on others of its batch, so clipping bounds nobody's "
    "influence. Transform every private row by itself; mixup is for public_augment="
)


def _blend(values: Tensor, share: Tensor, other: Tensor) -> Tensor:
    kept = share.to(values.dtype).reshape(-1, *[1] * (values.dim() - 1))
    return kept * values + (1 - kept) * values[other]


def _rows(inputs: Any, places: list[int]) -> Any:
    return tree_map(lambda x: x[places] if isinstance(x, Tensor) else x, inputs)


def _outcome(augment: Callable[..., Any], inputs: Any, seed: int) -> list[Any]:
    """What becomes of the first row."""
    with seeded(seed):
        return tree_flatten(_rows(augment(tree_map(_copy, inputs)), [0]))[0]


def _copy(x: Any) -> Any:
    return x.clone() if isinstance(x, Tensor) else x


def _same(one: list[Any], other: list[Any]) -> bool:
    return len(one) == len(other) and all(
        a.shape == b.shape and torch.allclose(a.double(), b.double(), rtol=1e-3, atol=1e-6, equal_nan=True)
        for a, b in zip(one, other, strict=True)
        if isinstance(a, Tensor) and isinstance(b, Tensor)
    )


@contextlib.contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Random numbers from a seed; afterwards every generator goes on as if nothing had happened."""
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
