"""A private record made into a row, by itself or beside a public one."""

from __future__ import annotations

import contextlib
import copy
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map
from torch.utils.data import default_collate

from sidelight.augment.mixing import seeded
from sidelight.errors import INTERRUPTS, InputError, SidelightError
from sidelight.oracles.network.batches import Batch, owned, row_count, take
from sidelight.oracles.network.state import Isolation, reseed

__all__ = ["ITEMS", "RowsAlone", "joined_rows", "row_shape", "same_parts", "same_shapes"]

_SEEDS = 4  # with which collate is asked for the order of two records
ITEMS = "an item of a dataset must be (inputs, targets), tensors or numbers; Loading(collate=...) makes it so"


@dataclass(frozen=True)
class RowsAlone(torch.utils.data.Dataset[Any]):
    """A dataset of batches of one row, by number and seed; None for a record that cannot be one."""

    dataset: Any
    collate: Callable[[list[Any]], Any] | None
    device: torch.device
    beside: tuple[Any, ...] = ()  # a public item, or none
    isolation: Isolation = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "isolation", Isolation(self.dataset, self.collate))

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, wanted: tuple[int, int]) -> Batch | None:
        return self.__getitems__([wanted])[0]

    def __getitems__(self, wanted: list[tuple[int, int]]) -> list[Batch | None]:
        """The records at these places, each with its seed; one after the other, none with another."""
        return self.isolation.each(lambda place: self.row(self.dataset[place]), wanted)

    def row(self, item: Any) -> Batch:
        """One row. Raises for an item that is no record: call it with public ones only."""
        batch = self._batch([item, *copy.deepcopy(self.beside)])  # collate may pad what it is given in place
        row: Batch = owned(take(batch, slice(0, 1)), self.device)  # a collate may use its buffer again
        return row

    def refuse_another_order(self, public: list[Any]) -> None:
        """Raise InputError for a collate that sorts or shuffles: the first row would be a public record's."""
        longest = self.beside[0]
        for other, seed in itertools.product([*public, _shortened(longest)], range(_SEEDS)):
            with seeded(seed), contextlib.suppress(InputError):  # half a record may be none
                if self._moves(other, longest, seed):
                    break
        else:
            return
        raise InputError(
            "collate gives rows in another order than the records that it was given (sorted by length, say), "
            "so a row cannot be told to be a record's. Leave them in their order"
        )

    def _moves(self, other: Any, longest: Any, seed: int) -> bool:
        """Whether two public records change places, or come in one order whatever the order they had."""

        def rows(*items: Any) -> list[Batch]:
            reseed(seed)
            batch = owned(self._batch(copy.deepcopy(list(items))), self.device)
            return [take(batch, slice(i, i + 1)) for i in range(len(items))]

        one, two = rows(other, longest)
        if _same_numbers(one, two) or _same_numbers(rows(other)[0], rows(longest)[0]):
            return False
        alike = rows(longest, longest)[0]
        moved = _same_numbers(one, alike) and not _same_numbers(two, alike)
        return moved or _same_numbers(one, rows(longest, other)[0])

    def _batch(self, items: list[Any]) -> Batch:
        try:
            made = (self.collate or default_collate)(items)
        except (SidelightError, *INTERRUPTS):
            raise
        except BaseException as error:
            what = "collate" if self.collate is not None else "putting a record into a batch"
            told = str(error).strip().split("\n")[0]
            raise InputError(
                f"{what} fails ({type(error).__name__}: {told}) on one record. {ITEMS}"
            ) from error
        if not isinstance(made, tuple | list) or len(made) != 2:
            raise InputError(ITEMS)
        batch = (made[0], made[1])
        if not all(isinstance(leaf, Tensor) for leaf in tree_leaves(batch)):
            raise InputError(ITEMS)
        if row_count(batch) != len(items):
            raise InputError("collate must give one row for each record, also if there is only one record")
        return batch


def same_parts(one: Batch, other: Batch) -> bool:
    """Whether two batches are made of the same parts: structure, types and numbers of dimensions."""
    return _parts(one) == _parts(other)


def same_shapes(one: Batch, other: Batch) -> bool:
    """Whether rows of two batches have the same parts and sizes."""
    return row_shape(one) == row_shape(other)


def _same_numbers(one: Batch, other: Batch) -> bool:
    """Whether two batches are equal."""
    pairs = zip(tree_leaves(one), tree_leaves(other), strict=False)
    return same_shapes(one, other) and all(torch.equal(a, b) for a, b in pairs)


def _shortened(item: Any) -> Any:
    """Half of whatever has a length in an item; a record that may never have been."""
    if isinstance(item, dict):
        return {key: _shortened(value) for key, value in item.items()}
    if isinstance(item, list | tuple) and not all(isinstance(x, int | float) for x in item):
        return type(item)([_shortened(x) for x in item]) if type(item) in (list, tuple) else item
    sized = isinstance(item, str | list | tuple) or (isinstance(item, Tensor | np.ndarray) and item.ndim > 0)
    return item[: max(1, len(item) // 2)] if sized else item


def row_shape(rows: Any) -> tuple[Any, ...]:
    """What the rows of tensors in a structure have in common: structure, types and sizes."""
    if isinstance(rows, Tensor):
        return rows.dtype, rows.shape[1:]
    leaves, structure = tree_flatten(rows)
    return (str(structure), *((leaf.dtype, leaf.shape[1:]) for leaf in leaves))


def joined_rows(parts: Sequence[Any]) -> Any:
    """Rows of one shape, together."""
    if len(parts) == 1:
        return parts[0]
    return torch.cat(list(parts)) if isinstance(parts[0], Tensor) else tree_map(_cat, *parts)


def _cat(*parts: Tensor) -> Tensor:
    return torch.cat(parts)


def _parts(batch: Batch) -> tuple[str, list[Any]]:
    leaves, structure = tree_flatten(batch)
    return str(structure), [(leaf.dtype, leaf.dim()) for leaf in leaves]
