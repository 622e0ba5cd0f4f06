"""User code that is given private records one at a time: nothing of one call is left for the next.

A dataset, `collate` and `augment` see a private record alone, but they may remember: the longest record so
far, a running mean, how far a generator has moved. `Isolation` puts back whatever a call has changed, in all
places that can be reached (`oracles.network.reach`), and gives each record random numbers of its own, in
generators of the process as in those that the code holds: they depend neither on how many records came
before nor on how many numbers these drew.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np
import torch

from sidelight.errors import INTERRUPTS
from sidelight.oracles.network.batches import seed_torch
from sidelight.oracles.network.snapshots import Cell
from sidelight.oracles.network.state import Held, has_numbers, is_file, put_back, reached

__all__ = ["Isolation", "record_seed", "reseed"]

_DATA = 2**22  # numbers in a tensor that is taken for data
_QUICK = 2**12  # numbers in a tensor that are compared after every record; of more, the version is

T = TypeVar("T")


def record_seed(secret: int, number: int) -> int:
    """The seed of one record, which tells nothing about those of the others."""
    digest = hashlib.blake2b(f"{secret} {number}".encode(), digest_size=8)
    return int.from_bytes(digest.digest(), "big")


def reseed(seed: int, held: Sequence[Any] = ()) -> None:
    """Let the generators of PyTorch, NumPy and Python begin here, and others that somebody holds."""
    seed_torch(seed)
    np.random.seed(seed >> 32)
    random.seed(seed)
    for number, generator in enumerate(held):
        _reseed_one(generator, record_seed(seed, number))


def _reseed_one(generator: Any, seed: int) -> None:
    if isinstance(generator, np.random.BitGenerator):
        fresh: Any = type(generator)(seed)
        generator.__setstate__((fresh.state, fresh.seed_seq))  # type: ignore[attr-defined]
    elif isinstance(generator, torch.Generator):
        generator.manual_seed(seed % 2**63)
    else:
        generator.seed(seed % 2**32)


class Isolation:
    """Calls of code that reaches `roots`, each as if it were the only one."""

    def __init__(self, *roots: Any) -> None:
        self._roots = roots
        self._state: _CallState | None = None

    def __reduce__(self) -> Any:
        return Isolation, self._roots  # another process searches its own copies

    def check(self) -> None:
        """Raise AssumptionError for code that holds what cannot be put back."""
        self._present()

    def each(self, make: Callable[[int], T], wanted: Sequence[tuple[int, int]]) -> list[T | None]:
        """What `make` gives for each place, with its seed; None where it fails: an error may quote a record.

        What takes long to compare is compared once, at the end. If it has changed, records have seen what
        others left, and all are made again, one by one.
        """
        if not wanted:
            return []
        state = self._present()
        try:
            found = [_one(state, make, *one) for one in wanted]
            if state.crossed():
                found = [_one(state, make, *one) for one in wanted]
        finally:
            state.restore_all()
        return found

    def restore(self) -> None:
        """Put back what was changed since the last call or check."""
        if self._state is not None:
            self._state.restore_all()

    def _present(self) -> _CallState:
        """The state as it is now: calls with public records may have changed it."""
        if self._state is None or self._state.changed():
            self._state = _CallState(*self._roots)
        return self._state


def _one(state: _CallState, make: Callable[[int], T], place: int, seed: int) -> T | None:
    reseed(seed, state.generators)
    try:
        return make(place)
    except INTERRUPTS:
        raise
    except BaseException:
        return None
    finally:
        state.restore()


class _CallState:
    """What code that may hold data can change, at one moment."""

    def __init__(self, *roots: Any) -> None:
        cells, tensors = reached(*roots, data=True)
        self._generators = [cell for cell in cells if cell.generator]
        others = [cell for cell in cells if not cell.generator]
        self._quick = [cell for cell in others if not cell.large]
        self._slow = [cell for cell in others if cell.large]
        data = [x for x in tensors if has_numbers(x) and x.numel() <= _DATA]
        self._held = [Held(x, copied=True, compared=x.numel() <= _QUICK) for x in data]
        self.generators = [cell.owner for cell in self._generators]

    def changed(self) -> bool:
        """Whether something is not as it was; generators are noted where they are now."""
        for cell in self._generators:
            cell.content = cell.read(cell.owner)
        cells = any(cell.changed() for cell in (*self._quick, *self._slow) if not cell.memo)
        return cells or any(held.changed() for held in self._held)

    def crossed(self) -> bool:
        """Whether something was changed that is not put back after each record; from now on it is."""
        changed = [cell for cell in self._slow if cell.changed()]
        if changed:
            self._slow = [cell for cell in self._slow if not any(cell is one for one in changed)]
            self._quick.extend(changed)
            self.restore()
        return bool(changed)

    def restore(self) -> None:
        """After a record: as if it had not been there."""
        put_back(self._quick, self._held, first=_adopt_files)

    def restore_all(self) -> None:
        """After the last record."""
        put_back((*self._quick, *self._slow, *self._generators), self._held)


def _adopt_files(cell: Cell) -> None:
    """A file of records that is opened at the first use stays open: what is in it depends on no use."""
    if cell.read is dict:
        for name, value in cell.owner.items():
            if is_file(value) and cell.content.get(name) is None:
                cell.content[name] = value
