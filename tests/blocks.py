"""Blocks of records that tests have in their hands."""

from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from typing import Any

from sidelight.arrays import Array, Floats
from sidelight.data.partitions import PartitionedRows, ScratchBlocks
from sidelight.data.rows import PrivateRows

__all__ = ["ArrayBlocks", "in_blocks"]


class ArrayBlocks:
    """Rows of an array in blocks of these sizes."""

    def __init__(
        self,
        X: Array,
        y: Floats,
        sizes: Sequence[int],
        *,
        max_norm: float = 1.0,
        admits: Callable[..., Any] | None = None,
    ) -> None:
        self.X, self.y, self.sizes, self.max_norm, self.admits = X, y, tuple(sizes), max_norm, admits
        self.width = int(X.shape[1])

    def read(self, blocks: range) -> Iterator[tuple[int, PrivateRows]]:
        ends = [0, *accumulate(self.sizes)]
        for block in blocks:
            part = slice(ends[block], ends[block + 1])
            yield block, PrivateRows(self.X[part], self.y[part], max_norm=self.max_norm, admits=self.admits)


def in_blocks(
    X: Array, y: Floats, size: int, *, max_norm: float = 1.0, admits: Callable[..., Any] | None = None
) -> PartitionedRows:
    """The rows in blocks of `size`, on disk."""
    sizes = [min(size, len(y) - start) for start in range(0, len(y), size)]
    source = ArrayBlocks(X, y, sizes, max_norm=max_norm, admits=admits)
    return PartitionedRows(ScratchBlocks(source), p=source.width, max_norm=max_norm)
