"""Which record each number of a tensor belongs to.

In a pass over B records the numbers of a record lie at regular distances: in the memory that holds a batch,
byte o belongs to record (o // step) mod B. One number, `step`, says so for every view of that memory, so
reshapes, transposes, slices and `.data` need no rules. A tensor has a `Place` if one of its dimensions runs
through the records, all of them and in order, and the others stay within one.
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

__all__ = ["Memories", "Place", "key_of"]


class Place(NamedTuple):
    """Where records are: shape[dim] = outer · records · inner."""

    dim: int
    inner: int


class Memories:
    """Memory with values of records. A step of None: values of several are mixed in it."""

    def __init__(self, records: int) -> None:
        self.records = records
        self._steps: dict[int, int | None] = {}
        self._alive: dict[int, StorageWeakRef] = {}  # an address is not used again while it is referred to

    def __contains__(self, x: Tensor) -> bool:
        return key_of(x) in self._steps

    def mark(self, x: Tensor, place: Place | None) -> None:
        """This tensor now holds values of records, which lie like that."""
        key = key_of(x)
        if key is None or not x.numel():
            return
        step = None if place is None else self._step(x, place)
        if key in self._steps:
            step = step if self._steps[key] == step else None
        else:
            self._alive[key] = StorageWeakRef(x.untyped_storage())  # type: ignore[no-untyped-call]
        self._steps[key] = step

    def forget(self, x: Tensor) -> None:
        """This memory holds something else now."""
        self._steps.pop(key_of(x) or 0, None)

    def place(self, x: Tensor) -> Place | None:
        """Where the records of this tensor are; None if that cannot be said."""
        key = key_of(x)
        step = None if key is None else self._steps.get(key)
        return None if step is None else self._place(x, step)

    def live(self, but: set[int]) -> bool:
        """Whether somebody still holds such memory, other than these."""
        held = (ref for key, ref in self._alive.items() if key not in but)
        return any(not ref.expired() for ref in held)  # type: ignore[no-untyped-call]

    def _step(self, x: Tensor, place: Place) -> int | None:
        if place.dim >= x.dim():
            return None
        step = x.stride(place.dim) * x.element_size() * place.inner
        return step if step and self._place(x, step) == place else None

    def _place(self, x: Tensor, step: int) -> Place | None:
        size, found = x.element_size(), None
        start = x.storage_offset() * size
        extent = start % step  # how far the other dimensions reach within one record
        if (start // step) % self.records:
            return None
        for dim, (length, stride) in enumerate(zip(x.shape, x.stride(), strict=True)):
            stride *= size
            if length == 1 or stride % (step * self.records) == 0:
                continue
            if (length - 1) * stride < step:
                extent += (length - 1) * stride
                continue
            inner, rest = divmod(step, stride) if stride <= step else (0, 1)
            if found is not None or rest or length % (self.records * inner):
                return None
            found = Place(dim, inner)
        if found is None or extent >= x.stride(found.dim) * size:
            return None
        return found


def key_of(x: Tensor) -> int | None:
    """The memory of a tensor; None for layouts that have none of their own."""
    try:
        return int(x.untyped_storage()._cdata)
    except (NotImplementedError, RuntimeError):
        return None
