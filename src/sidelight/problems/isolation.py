"""Calls of code that makes records, each with one private record and as if it were the only one."""

from __future__ import annotations

import functools
import hashlib
import random
from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from sidelight.errors import INTERRUPTS, InputError
from sidelight.oracles.network.batches import seed_torch
from sidelight.oracles.network.snapshots import Generators
from sidelight.oracles.network.state import CodeState

T = TypeVar("T")
_Tree = TypeVar("_Tree")  # tensors in tuples, lists and dictionaries; what comes out has the same structure


class Isolation:
    """Calls of code, each with one private record and as if it were the only one.

    A dataset, `collate` and `augment` see a private record alone, but they may remember: the longest record
    so far, a running mean, how far a generator has moved. Whatever a call has changed is put back, and each
    record has random numbers of its own, in generators of the process as in those that the code holds: they
    depend neither on how many records came before nor on how many numbers these drew.

    data: datasets, which only read what is large in them (state.py); of `code` everything is put back.
    """

    def __init__(self, *data: object, code: tuple[object, ...] = ()) -> None:
        self._data, self._code = data, code
        self._state: CodeState | None = None

    def __reduce__(self) -> tuple[Callable[..., Isolation], tuple[object, ...]]:
        return functools.partial(Isolation, code=self._code), self._data  # another process has its own copies

    def check(self) -> None:
        """Raise AssumptionError for code that holds what cannot be put back."""
        self._present()

    def each(self, make: Callable[[int], T], wanted: Sequence[tuple[int, int]]) -> list[T | None]:
        """What `make` gives for each place, with its seed; None where it fails (an error may quote it)."""
        if not wanted:
            return []
        state = self._present()
        try:
            return [_one(state, make, *one) for one in wanted]
        finally:
            state.restore()

    def restore(self) -> None:
        """Put back what was changed since the last call or check."""
        if self._state is not None:
            self._state.restore()

    def _present(self) -> CodeState:
        """The state as it is now: calls with public records may have changed it."""
        if self._state is None or self._state.changed() is not None:
            self._state = CodeState(*self._code, data=self._data)
        else:
            self._state.renew_generators()
        return self._state


def _one(state: CodeState, make: Callable[[int], T], place: int, seed: int) -> T | None:
    reseed(seed, state.generators)
    try:
        return make(place)
    except INTERRUPTS:
        raise
    except BaseException:
        return None
    finally:
        state.restore_after_record()


def record_seed(secret: int, number: int) -> int:
    """The seed of one record, which reveals nothing about those of the others."""
    digest = hashlib.blake2b(f"{secret} {number}".encode(), digest_size=8)
    return int.from_bytes(digest.digest(), "big")


def reseed(seed: int, held: Sequence[Generators] = ()) -> None:
    """Let the generators of PyTorch, NumPy and Python begin here, and others that somebody holds."""
    seed_torch(seed)
    np.random.seed(seed >> 32)
    random.seed(seed)
    for number, generator in enumerate(held):
        _reseed_one(generator, record_seed(seed, number))


def _reseed_one(generator: Generators, seed: int) -> None:
    if isinstance(generator, np.random.BitGenerator):
        fresh = type(generator)(seed)
        generator.__setstate__((fresh.state, fresh.seed_seq))  # type: ignore[attr-defined]
    elif isinstance(generator, torch.Generator):
        generator.manual_seed(seed % 2**63)
    else:
        generator.seed(seed % 2**32)


def owned(tree: _Tree, device: torch.device) -> _Tree:
    """Tensors that user code has made, plain, in memory of their own: it may use a buffer again.

    Raises InputError for what is not a tensor, and for tensors without a plain row of numbers: sparse,
    nested, quantized, or of another device than the processor or `device`.
    """

    def one(leaf: object) -> Tensor:
        if not isinstance(leaf, Tensor) or not _plain(leaf) or leaf.device.type not in ("cpu", device.type):
            raise InputError("a batch is made of plain tensors, with one row per record")
        own: Tensor = leaf.detach().resolve_conj().resolve_neg()
        return own.clone(memory_format=torch.contiguous_format)

    with torch._C.DisableTorchFunctionSubclass():  # a subclass may do anything at every touch
        made: _Tree = tree_map(one, tree)
        return made


def _plain(x: Tensor) -> bool:
    return x.layout is torch.strided and not x.is_nested and not x.is_quantized
