"""Augmentation of private records: each row goes through `augment` alone, as a batch of one.

A transform that sees several records can make one decide about the others, whatever a trial of it shows: by
a maximum over the batch, by one random number for all, by failing on one. So it never sees two. Each row has
random numbers of its own, from a secret of the step and from its place, and what the transform remembers of
a row is taken back (`isolation`). The transforms of `sidelight.augment.images` are made row by row, with
random numbers for every row: they are given a whole batch, which comes to the same.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from sidelight.augment.images import each_row_alone
from sidelight.augment.mixing import seeded
from sidelight.deep.rows_alone import joined_rows, row_shape
from sidelight.errors import INTERRUPTS, InputError
from sidelight.oracles.network.batches import Batch, owned, row_count, take
from sidelight.oracles.network.state import Isolation, record_seed, reseed, silent

__all__ = ["PrivateAugment"]


class PrivateAugment:
    """Batches after `augment` (None changes nothing); `copies` consecutive rows are one record."""

    def __init__(self, augment: Callable[..., Any] | None, copies: int = 1) -> None:
        self.augment, self.copies = augment, copies
        self._isolation = Isolation(augment)

    def check(self) -> None:
        """Raise for a transform that holds what cannot be put back after a record."""
        self._isolation.check()

    def of_public(self, batch: Batch) -> Batch:
        """A row that is not private, alone like the private ones; what is wrong with it is told."""
        if self.augment is None:
            return batch
        try:
            with seeded(0):
                return self._made(batch[0], row_count(batch)), batch[1]
        except (InputError, *INTERRUPTS):
            raise
        except BaseException as error:
            told = str(error).strip().split("\n")[0]
            raise InputError(
                f"augment= fails ({type(error).__name__}: {told}) on a row that is not private. It is given "
                "one row at a time, as a batch of one"
            ) from error

    def __call__(self, batch: Batch, seed: int) -> list[Batch]:
        """Batches of rows of one shape. A record on which the transform fails is in none of them."""
        if self.augment is None:
            return [batch]
        with silent(), seeded(0):
            reseed(seed)
            if each_row_alone(self.augment) and (made := self._together(batch)) is not None:
                return [made]
            return self._one_by_one(batch, seed)

    def _together(self, batch: Batch) -> Batch | None:
        """All rows at once, for a transform that is known to keep them apart."""
        try:
            return self._made(batch[0], row_count(batch)), batch[1]
        except INTERRUPTS:
            raise
        except BaseException:
            return None

    def _one_by_one(self, batch: Batch, seed: int) -> list[Batch]:
        leaves, structure = tree_flatten(batch[0])

        def one(place: int) -> Any:
            row = [leaf[place : place + 1].clone() for leaf in leaves]  # it may write into it, or keep it
            return self._made(tree_unflatten(row, structure), 1)

        made = self._isolation.each(one, [(i, record_seed(seed, i)) for i in range(row_count(batch))])
        groups: dict[Any, tuple[list[Any], list[int]]] = {}
        for low in range(0, len(made), self.copies):
            places = range(low, low + self.copies)
            rows = made[low : low + self.copies]
            shapes = {None if row is None else row_shape(row) for row in rows}
            if None in shapes or len(shapes) > 1:
                continue
            together = groups.setdefault(shapes.pop(), ([], []))
            together[0].extend(rows)
            together[1].extend(places)
        return [(joined_rows(rows), take(batch[1], torch.tensor(kept))) for rows, kept in groups.values()]

    def _made(self, inputs: Any, count: int) -> Any:
        """The transform of these rows, in memory of its own, and as many as were given."""
        if self.augment is None:
            return inputs
        device = next(leaf.device for leaf in tree_leaves(inputs) if isinstance(leaf, Tensor))
        made = owned(self.augment(inputs), device)
        if row_count((made, ())) != count:
            raise InputError("augment= must return a row for every row that it is given, in the same order")
        return made
