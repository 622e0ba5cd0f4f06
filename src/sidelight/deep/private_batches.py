"""The private records of a trainer as a problem asks for them: in batches, augmented."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from torch import Tensor
from torch.utils._pytree import tree_map

from sidelight.deep.private_augment import PrivateAugment
from sidelight.deep.private_records import PrivateRecords
from sidelight.deep.rows_alone import same_shapes
from sidelight.oracles.network.batches import Batch, row_count
from sidelight.problems.network import Batches
from sidelight.samplers import Indices

__all__ = ["RecordBatches"]


class RecordBatches(Batches):
    """Every record enters as often as `augment` says, through it; `nothing` is a batch without records.

    draw_seed: a secret a call, for the random numbers of items and of their augmentation.
    """

    def __init__(
        self,
        records: PrivateRecords,
        nothing: Batch,
        *,
        augment: PrivateAugment,
        draw_seed: Callable[[], int],
    ) -> None:
        self._records, self._nothing, self._augment = records, nothing, augment
        self._draw_seed = draw_seed

    def of(self, indices: Indices | None) -> Iterable[Batch]:
        seed = self._draw_seed()  # whether or not a dataset needs it: tensors and items are the same run
        return (rows for rows in self._records.batches(indices, seed=seed) if row_count(rows))

    def ready(self, batch: Batch) -> list[Batch]:
        copies = self._augment.copies
        batch = _repeated(batch, copies) if copies > 1 else batch
        return [batch] if self._augment.augment is None else self._augment(batch, self._draw_seed())

    def empty(self) -> Batch:
        return self._nothing

    def forgives(self, batch: Batch) -> bool:
        """Records of another shape than the one that was checked: that the model fails on it is theirs."""
        return not same_shapes(batch, self._nothing)


def _repeated(batch: Batch, copies: int) -> Batch:
    repeated: Batch = tree_map(
        lambda x: x.repeat_interleave(copies, 0) if isinstance(x, Tensor) else x, batch
    )
    return repeated
