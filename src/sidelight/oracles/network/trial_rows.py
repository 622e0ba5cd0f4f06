"""Trial rows stand in for private ones where a model is examined: public rows or placeholders.

They are repeated until there are as many as a pass has, and changed in every way that a neighbor may differ.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias, TypeVar

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from sidelight.oracles.network.batches import Batch, each_tensor, row_count, take, tensors

_Tree = TypeVar("_Tree")
_MAX_TRIAL_ROWS = 8  # different rows in a trial


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
    picked = order[:_MAX_TRIAL_ROWS]
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


Change: TypeAlias = Callable[[Batch], Batch]  # rows as a neighbor may have them


def changes(whole: Batch, *, far: bool, absent: bool = False) -> list[list[Change]]:
    """How rows may be others, in groups that one batch can show: a NaN may hide what a large number does.

    far: also numbers that no data holds. Where records are taken alone, a model may do with these what it
    likes. Whole numbers, as of words, are not scaled. absent: also labels that the batch lacks.
    """
    near: list[Change] = [_another, _other_target]
    large, missing, labels = list[Change](), list[Change](), _has_integers(whole[1])
    if any(x.is_floating_point() for x in tensors(whole)):
        near, missing = [*near, _scaled(-1e3)], [_scaled(torch.nan)]
        large = [_scaled(1e10), _scaled(1e30)] if far else []
    if labels:
        missing.append(_labeled(-100))  # ignored ones
    groups = [near, large, missing, [_labeled(None)] if labels and absent else []]
    if row_count(whole) < 4:  # too few rows to show several at once
        groups = [[one] for group in groups for one in group]
    return [group for group in groups if group]


def mixed(whole: Batch, changed: Tensor, kind: Sequence[Change], turn: int) -> Batch:
    """A batch in which some rows are changed: in all of these ways in turn, and on from there next turn."""
    batch, places = whole, changed.nonzero().flatten()
    for number, change in enumerate(kind):
        these = places[(number - turn * len(places)) % len(kind) :: len(kind)]
        batch = chosen(change(whole), batch, torch.zeros_like(changed).index_fill_(0, these, True))
    return batch


def with_integers_beyond(whole: Batch) -> Iterator[Batch]:
    """Batches whose integers are none of the trial's: labels that it lacks, indices out of range."""
    if _has_integers(whole[1]):
        yield _labeled(None)(whole)
    if _has_integers(whole[0]):
        beyond = each_tensor(whole[0], lambda x: x + x.max() + 1 if _is_integer(x) else x), whole[1]
        count = row_count(whole)  # the last ones would read beyond the batch, and fail
        yield chosen(beyond, whole, torch.arange(count) < (count + 1) // 2)


def halves(count: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Half of the rows: even ones, odd ones, some by chance, and the rest."""
    even = torch.arange(count) % 2 == 0
    some = even[torch.randperm(count, generator=torch.Generator().manual_seed(count))]
    return even, ~even, some, ~some


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


OTHER_ROWS: list[list[Change]] = [[_another]]


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
