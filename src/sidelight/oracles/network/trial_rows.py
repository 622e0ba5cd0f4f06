"""Trial rows stand in for private ones where a model is examined: public rows or placeholders.

They are repeated until there are as many as a pass has, and changed in every way that a neighbor may differ.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from sidelight.oracles.network.batches import Batch, each_tensor, row_count, take, tensors

__all__ = [
    "chosen",
    "cycled",
    "distinct_rows",
    "only_row",
    "other_rows",
    "variations",
    "with_integers_beyond",
]

_Tree = TypeVar("_Tree")
_MOST = 8  # different rows in a trial


def distinct_rows(batch: Batch) -> Batch | None:
    """Up to eight rows, first those whose targets differ; None if no two have different inputs."""
    count = row_count(batch)
    if count < 2:
        return None
    keys = [_bytes(batch[0], i) for i in range(count)]
    if len(set(keys)) < 2:
        return None
    order: list[int] = []
    for wanted in (_bytes(batch[1], i) for i in range(count)), iter(keys):
        seen: set[bytes] = set()
        for i, key in enumerate(wanted):
            if key not in seen and i not in order:
                order.append(i)
            seen.add(key)
    picked = order[:_MOST]
    if len({keys[i] for i in picked}) < 2:
        picked[-1] = next(i for i in range(count) if keys[i] != keys[picked[0]])
    return take(batch, torch.tensor(picked, device=tensors(batch)[0].device))


def _bytes(tree: object, row: int) -> bytes:
    rows = (x[row].detach().cpu() for x in tensors(tree))
    return b"".join(x.contiguous().view(-1).view(torch.uint8).numpy().tobytes() for x in rows)


def cycled(rows: Batch, count: int) -> Batch:
    """`count` rows: these, over and over."""
    return take(rows, torch.arange(count, device=tensors(rows)[0].device) % row_count(rows))


def only_row(rows: Batch, row: int, count: int) -> Batch:
    """`count` rows, all of them this one."""
    return cycled(take(rows, slice(row, row + 1)), count)


def variations(whole: Batch, *, far: bool) -> Iterator[tuple[Tensor, Batch]]:
    """Batches in which some rows are others, near or also far: which ones, and the batch.

    far: also numbers that no data holds. Where records are taken alone, a model may do with these what it
    likes. Whole numbers, as of words, are not scaled.
    """
    beyond = (_scaled(1e10), _scaled(1e30)) if far else ()
    scaled = (_scaled(-1e3), *beyond, _scaled(torch.nan))
    numbers = any(x.is_floating_point() for x in tensors(whole))
    labels = (_labeled(None), _labeled(-100)) if _has_integers(whole[1]) else ()  # ignored ones too
    for changed in _halves(row_count(whole)):
        for change in (_another, _other_target, *labels, *(scaled if numbers else ())):
            yield changed, chosen(change(whole), whole, changed)


def with_integers_beyond(whole: Batch) -> Iterator[Batch]:
    """Batches whose integers are none of the trial's: labels that it lacks, indices out of range."""
    if _has_integers(whole[1]):
        yield _labeled(None)(whole)
    if _has_integers(whole[0]):
        beyond = each_tensor(whole[0], lambda x: x + x.max() + 1 if _is_integer(x) else x), whole[1]
        count = row_count(whole)  # the last ones would read beyond the batch, and fail
        yield chosen(beyond, whole, torch.arange(count) < (count + 1) // 2)


def other_rows(whole: Batch) -> Iterator[tuple[Tensor, Batch]]:
    """Batches in which some rows are other rows: which ones, and the batch."""
    for changed in _halves(row_count(whole)):
        yield changed, chosen(_another(whole), whole, changed)


def _halves(count: int) -> tuple[Tensor, Tensor, Tensor]:
    """Half of the rows: even ones, odd ones, and some by chance."""
    some = torch.rand(count, generator=torch.Generator().manual_seed(count)) < 0.5
    return torch.arange(count) % 2 == 0, torch.arange(count) % 2 == 1, some


def chosen(first: Batch, second: Batch, rows: Tensor) -> Batch:
    """Rows of the first batch where the mask says so, and of the second elsewhere."""

    def pick(a: object, b: object) -> object:
        if not (isinstance(a, Tensor) and isinstance(b, Tensor)):
            return a
        return torch.where(rows.to(a.device).view(-1, *[1] * (a.dim() - 1)), a, b.to(a.device))

    mixed: Batch = tree_map(pick, first, second)
    return mixed


def _another(whole: _Tree) -> _Tree:
    return each_tensor(whole, lambda x: x.roll(1, 0))


def _other_target(whole: Batch) -> Batch:
    return whole[0], _another(whole[1])


def _is_integer(x: Tensor) -> bool:
    return bool(x.numel()) and not (x.is_floating_point() or x.is_complex() or x.dtype == torch.bool)


def _has_integers(tree: object) -> bool:
    return any(map(_is_integer, tensors(tree)))


def _labeled(value: int | None) -> Callable[[Batch], Batch]:
    """All targets that are integers become this one, or the first beyond those of the batch."""

    def one(x: Tensor) -> Tensor:
        return torch.full_like(x, int(x.max()) + 1 if value is None else value) if _is_integer(x) else x

    return lambda whole: (whole[0], each_tensor(whole[1], one))


def _scaled(factor: float) -> Callable[[Batch], Batch]:
    return lambda whole: each_tensor(whole, lambda x: x * factor if x.is_floating_point() else x)
