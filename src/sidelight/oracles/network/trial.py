"""Rows to try a model with: public ones or placeholders, as many as a pass has, and changed in every way."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from sidelight.oracles.network.batches import Batch, row_count, take

__all__ = ["chosen", "cycled", "distinct_rows", "far_away", "variations"]

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
    device = next(leaf for leaf in tree_leaves(batch) if isinstance(leaf, Tensor)).device
    return take(batch, torch.tensor(picked, device=device))


def _bytes(tree: Any, row: int) -> bytes:
    leaves = (leaf[row].detach().cpu() for leaf in tree_leaves(tree) if isinstance(leaf, Tensor))
    return b"".join(leaf.contiguous().view(-1).view(torch.uint8).numpy().tobytes() for leaf in leaves)


def cycled(rows: Batch, count: int) -> Batch:
    """`count` rows: these, over and over."""
    first = next(leaf for leaf in tree_leaves(rows) if isinstance(leaf, Tensor))
    return take(rows, torch.arange(count, device=first.device) % row_count(rows))


def variations(whole: Batch, *, far: bool) -> Iterator[tuple[Tensor, Batch]]:
    """Batches in which some rows are others, near or also far: which ones, and the batch."""
    count = row_count(whole)
    halves = torch.rand(count, generator=torch.Generator().manual_seed(count)) < 0.5
    for changed in (torch.arange(count) % 2 == 0, torch.arange(count) % 2 == 1, halves):
        beyond = (_scaled(1e10), _scaled(1e30)) if far else ()
        for change in (_another, _other_target, _scaled(-1e3), *beyond, _not_a_number):
            yield changed, chosen(change(whole), whole, changed)


def far_away(whole: Batch) -> Batch:
    """The batch in which half of the rows are others, and far from any data."""
    changed = torch.rand(row_count(whole), generator=torch.Generator().manual_seed(1)) < 0.5
    return chosen(_scaled(1e10)(_another(whole)), whole, changed)


def chosen(first: Batch, second: Batch, rows: Tensor) -> Batch:
    """Rows of the first batch where the mask says so, and of the second elsewhere."""

    def pick(a: Any, b: Any) -> Any:
        if not isinstance(a, Tensor):
            return a
        return torch.where(rows.to(a.device).view(-1, *[1] * (a.dim() - 1)), a, b.to(a.device))

    mixed: Batch = tree_map(pick, first, second)
    return mixed


def _rolled(tree: Any, by: int) -> Any:
    return tree_map(lambda leaf: leaf.roll(by, 0) if isinstance(leaf, Tensor) else leaf, tree)


def _another(whole: Batch) -> Batch:
    return _rolled(whole[0], 1), _rolled(whole[1], 1)


def _other_target(whole: Batch) -> Batch:
    return whole[0], _rolled(whole[1], 1)


def _floats(tree: Any, factor: float) -> Any:
    def one(leaf: Any) -> Any:
        return leaf * factor if isinstance(leaf, Tensor) and leaf.is_floating_point() else leaf

    return tree_map(one, tree)


def _scaled(factor: float) -> Callable[[Batch], Batch]:
    return lambda whole: (_floats(whole[0], factor), _floats(whole[1], factor))


def _not_a_number(whole: Batch) -> Batch:
    return _floats(whole[0], torch.nan), _floats(whole[1], torch.nan)
