"""The private records of a trainer as a problem asks for them: in batches, augmented."""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor
from torch.utils._pytree import tree_map

from sidelight.augment.mixing import augmented_records
from sidelight.deep.private_records import PrivateRecords, same_shapes
from sidelight.oracles.network.batches import Batch, row_count
from sidelight.problems.network import Batches
from sidelight.problems.network_guide import Augment
from sidelight.samplers import Indices

__all__ = ["RecordBatches"]


class RecordBatches(Batches):
    """Every record enters `copies` times, through `augment`; `nothing` is a batch without records."""

    def __init__(
        self, records: PrivateRecords, nothing: Batch, *, augment: Augment | None, copies: int
    ) -> None:
        self._records, self._nothing, self._augment, self._copies = records, nothing, augment, copies

    def of(self, indices: Indices | None) -> Iterable[Batch]:
        return (rows for rows in self._records.batches(indices) if row_count(rows))

    def ready(self, batch: Batch) -> Batch:
        batch = _repeated(batch, self._copies) if self._copies > 1 else batch
        made: Batch = augmented_records(self._augment, batch, self._copies, like=self._nothing)
        return made

    def empty(self) -> Batch:
        return self._nothing

    def forgives(self, batch: Batch) -> bool:
        """Records of another shape than the one that was checked: that the model refuses it is theirs."""
        return not same_shapes(batch, self._records.learn())


def _repeated(batch: Batch, copies: int) -> Batch:
    repeated: Batch = tree_map(
        lambda x: x.repeat_interleave(copies, 0) if isinstance(x, Tensor) else x, batch
    )
    return repeated
