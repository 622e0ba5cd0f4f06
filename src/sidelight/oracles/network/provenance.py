"""Which record each number of a tensor belongs to.

In a pass over B records the numbers of a record lie at regular distances: in the memory that holds a batch,
byte o belongs to record (o // step) mod B. One number, `step`, says so for every view of that memory, so
reshapes, transposes, slices and `.data` need no rules. A tensor has a `Place` if one of its dimensions runs
through the records, all of them and in order, and the others stay within one.

`Sources` says where the other numbers of a pass come from. A record's contribution must not depend on its
place in the batch; so what has a row for each place, but no records, must be the same in all of them.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from itertools import compress
from typing import NamedTuple

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

__all__ = ["EVERYTHING", "Memories", "Place", "Sources", "equal_rows", "key_of", "living"]


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


class Sources:
    """What is known of the memory that a pass over records uses.

    records     values of records
    drawn       random numbers, of which each record has its own
    alike       neither: made from weights and buffers, with a row for each record that is the same for all
    constants   follows from shapes and Python's numbers alone
    blank       nobody has written into it yet
    forms       made like a tensor that holds records, whatever will be written into it
    born        made during the pass; what was there before is `alive`
    """

    def __init__(self, count: int, alive: Memories) -> None:
        self.count, self.alive = count, alive
        self.records, self.drawn, self.alike = Memories(count), Memories(count), Memories(count)
        self.constants, self.blank, self.forms = Memories(count), Memories(count), Memories(count)
        self.born = Memories(count)

    def follows(self, x: Tensor) -> bool:
        """Whether it is another one for each record."""
        return x in self.records or x in self.drawn

    def place(self, x: Tensor) -> Place | None:
        """Where its records are, or the random numbers of each; None if that cannot be said."""
        found = {memory.place(x) for memory in (self.records, self.drawn) if x in memory}
        return found.pop() if len(found) == 1 else None

    def from_nowhere(self, x: Tensor) -> bool:
        """Whether no operation made it, and it was not there before: another thread did, or other code."""
        return bool(x.numel()) and not (self.follows(x) or x in self.born or x in self.alive)

    def is_alike(self, x: Tensor, place: Place) -> bool:
        """Whether it has no records and is the same for each of them, there, whatever the weights are."""
        if x.shape[place.dim] == 1 or not x.stride(place.dim) or x in self.blank:
            return True
        if x in self.constants:
            return equal_rows(x, place.dim, self.count, place.inner)
        return self.alike.place(x) == place

    def place_of_alike(self, x: Tensor) -> Place | None:
        """The first dimension along which it has a row for each record, all the same."""
        if x in self.alike:
            return self.alike.place(x)
        for dim, length in enumerate(x.shape):
            known = x in self.constants or not x.stride(dim)
            if length == self.count and known and self.is_alike(x, Place(dim, 1)):
                return Place(dim, 1)
        return None

    def by_record(self, x: Tensor) -> bool:
        """Whether its rows belong to the first record, then to the second, and so on, equally many each."""
        if not x.dim() or x.shape[0] % self.count:
            return False
        place = Place(0, x.shape[0] // self.count)
        return self.place(x) == place if self.follows(x) else self.is_alike(x, place)

    def place_of_draw(self, x: Tensor, like: Tensor | None) -> Place | None:
        """Where each record's own numbers are in fresh random ones: as in `like`, or by their shape."""
        if like is not None and like.shape == x.shape and self.follows(like):
            return self.place(like)
        if x in self.forms:
            return self.forms.place(x)
        exact = [Place(dim, 1) for dim, length in enumerate(x.shape) if length == self.count]
        longer = [Place(d, n // self.count) for d, n in enumerate(x.shape) if n and n % self.count == 0]
        return next(iter((*exact, *longer)), None)

    def before_write(self, x: Tensor) -> Callable[[Place], bool]:
        """Asked before something is written there: may all of this memory then have that place?"""
        if self.follows(x) or x in self.blank or _covers(x):
            return lambda place: True
        if x in self.constants:
            held = x.new_empty(0).set_(x.untyped_storage()).clone()
            return lambda place: _equal_steps(held, x.stride(place.dim) * place.inner, self.count)
        known = self.alike.place(x) if x in self.alike else None
        return lambda place: place == known


def key_of(x: Tensor) -> int | None:
    """The memory of a tensor; None for layouts that have none of their own."""
    try:
        return int(x.untyped_storage()._cdata)
    except (NotImplementedError, RuntimeError):
        return None


def living() -> Memories:
    """The memory of every tensor that Python knows now."""
    found, objects, kinds = Memories(1), gc.get_objects(), _subclasses(Tensor)
    with torch._C.DisableTorchFunctionSubclass():
        # There are a million objects and more: the search itself must not run in Python.
        for x in compress(objects, map(kinds.__contains__, map(type, objects))):
            found.mark(x, None)
    return found


class _Everything(Memories):
    """All memory there is, for whoever does not ask what is new."""

    def __contains__(self, x: Tensor) -> bool:
        return True


EVERYTHING = _Everything(1)


def _subclasses(kind: type) -> set[type]:
    return {kind}.union(*map(_subclasses, type.__subclasses__(kind)))


def _covers(x: Tensor) -> bool:
    return x.numel() * x.element_size() == x.untyped_storage().nbytes()


def equal_rows(x: Tensor, dim: int, count: int, inner: int) -> bool:
    """Whether shape[dim] = outer · count · inner numbers are the same for all of `count`."""
    if x.shape[dim] % (count * inner):
        return False
    rows = x.detach().unflatten(dim, (-1, count, inner))  # type: ignore[no-untyped-call]
    first = rows.narrow(dim + 1, 0, 1)
    return bool(((rows == first) | ((rows != rows) & (first != first))).all())


def _equal_steps(held: Tensor, step: int, count: int) -> bool:
    return not held.numel() % (step * count) and equal_rows(held, 0, count, step)
