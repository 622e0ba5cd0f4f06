"""Activations of a model's frozen part, computed once per record and remembered.

Modules without anything to train, before the first trainable one, give a record the same numbers in every
pass. They are found on rows that are not private: their outputs have one row per record, are the same bit for
bit under other random numbers and other values of the trainable parameters, and the model's outputs follow
from them alone. In a pass by layers they then hand out what they gave before, and those whose outputs only
such modules use are not run.

What is remembered is known by the bytes of a record's own inputs, so a record that an augmentation changes is
computed anew. Records that are new are computed in blocks of one size, filled up with rows that are not
private: what a block gives for a record does not depend on how many there are. Nothing is found, and
everything is computed as before, where the frozen part draws random numbers (dropout in training mode), is
called twice, or branches by values.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import TreeSpec, tree_flatten, tree_leaves, tree_unflatten

from sidelight.errors import INTERRUPTS
from sidelight.oracles.network.batches import (
    Batch,
    call,
    copied,
    joined,
    row_count,
    seed_torch,
    take,
    tensors,
)
from sidelight.oracles.network.module_calls import swap
from sidelight.oracles.network.trial_rows import cycled

__all__ = ["FrozenPart", "find_frozen_part"]

_BLOCK = 8  # records whose activations are computed together, at most
_MOST_TRIED = 64  # modules of which each is tried for whether its output is needed
_SIMPLE = (bool, int, float, str, type(None))
_FORGETFUL = 0.1  # fewer of the rows being remembered than this, once memory is full, is not worth it


@dataclass
class _Output:
    """What a module gave: its tensors, and what they are put into."""

    module: nn.Module
    leaves: list[Any]
    spec: TreeSpec

    @property
    def tensors(self) -> list[Tensor]:
        return [x for x in self.leaves if isinstance(x, Tensor)]

    def with_tensors(self, values: Sequence[Tensor]) -> object:
        some = iter(values)
        return tree_unflatten([next(some) if isinstance(x, Tensor) else x for x in self.leaves], self.spec)

    def by_row(self, rows: int) -> bool:
        """Whether it has one row per record."""
        plain = all(isinstance(x, (Tensor, *_SIMPLE)) for x in self.leaves)
        return plain and bool(self.tensors) and all(
            x.dim() > 0 and len(x) == rows and x.layout is torch.strided
            for x in self.tensors
        )  # fmt: skip

    def equals(self, other: _Output) -> bool:
        alike = self.module is other.module and self.spec == other.spec
        return alike and _same(self.leaves, other.leaves)


@dataclass
class FrozenPart:
    """The modules that hand out what they gave before, and what that was.

    kept: whose outputs are remembered; skipped: whose outputs only those use.
    most: bytes of activations that are remembered.
    """

    model: nn.Module
    kept: list[_Output]
    skipped: list[_Output]
    fill: Batch
    most: int
    _known: dict[bytes, tuple[Tensor, ...]] = field(default_factory=dict)
    _secret: bytes = field(default_factory=lambda: secrets.token_bytes(16))
    _bytes: int = 0
    _asked: int = 0
    _found: int = 0
    _versions: tuple[int, ...] = ()

    @contextmanager
    def given(self, inputs: object) -> Iterator[None]:
        """Inside, a pass over these inputs gets the activations of its records; new ones are computed now."""
        rows = self._rows(inputs)
        if rows is None:
            yield
            return
        values = [torch.stack(some) for some in zip(*rows, strict=True)]
        with ExitStack() as stack:
            self._hand_out(stack, values)
            yield

    def _hand_out(self, stack: ExitStack, values: Sequence[Tensor]) -> None:
        left, count = list(values), len(values[0])
        for one in self.kept:
            mine, left = left[: len(one.tensors)], left[len(one.tensors) :]
            _replace(stack, one.module, partial(one.with_tensors, mine))
        for one in self.skipped:
            empty = [x.new_full((count, *x.shape[1:]), torch.nan) for x in one.tensors]
            _replace(stack, one.module, partial(one.with_tensors, empty))

    def _rows(self, inputs: object) -> list[tuple[Tensor, ...]] | None:
        """The activations of each row; None where they are no longer remembered."""
        if not self.most or not row_count((inputs, ())):
            return None
        self._forget_if_changed()
        keys = _keys(inputs, self._secret)
        new = {key: place for place, key in enumerate(keys) if key not in self._known}
        fresh = self._computed(inputs, new)
        rows = [fresh.get(key) or self._known[key] for key in keys]
        for key, row in fresh.items():
            size = sum(x.numel() * x.element_size() for x in row)
            if self._bytes + size <= self.most:
                self._known[key] = row
                self._bytes += size
            else:
                self._asked += 1
        self._found += len(keys) - len(new)
        if self._asked > max(1000, len(self._known)) and self._found < _FORGETFUL * self._asked:
            self._known.clear()  # what the model sees is new each time
            self.most = 0
        return rows

    def _computed(self, inputs: object, new: dict[bytes, int]) -> dict[bytes, tuple[Tensor, ...]]:
        """Activations of the rows that are new, in blocks of one size."""
        found: dict[bytes, tuple[Tensor, ...]] = {}
        keys, places = list(new), torch.tensor(list(new.values()), dtype=torch.int64)
        size = row_count((self.fill[0], ()))
        for low in range(0, len(keys), size):
            some = take((inputs, ()), places[low : low + size].to(tensors(inputs)[0].device))
            block = joined(some, take((self.fill[0], ()), slice(0, size - row_count(some))))
            leaves = _tensors_of(self.model, [one.module for one in self.kept], block[0])
            for place, key in enumerate(keys[low : low + size]):
                found[key] = tuple(x[place].clone() for x in leaves)
        return found

    def _forget_if_changed(self) -> None:
        """Frozen weights that somebody has written into are other weights."""
        modules = [one.module for one in (*self.kept, *self.skipped)]
        state = (x for module in modules for x in (*module.parameters(), *module.buffers()))
        versions = tuple(x._version for x in state)
        if versions != self._versions:
            self._known.clear()
            self._bytes, self._versions = 0, versions


def _replace(stack: ExitStack, module: nn.Module, give: Callable[[], object]) -> None:
    swap(stack, module.__dict__, "forward", lambda *_, **__: give())


def _keys(inputs: object, secret: bytes) -> list[bytes]:
    """What tells one row of these inputs from another."""
    parts = [x.detach().cpu().contiguous() for x in tensors(inputs)]
    flat = [x.reshape(len(x), -1).view(torch.uint8).numpy() for x in parts]
    keys = []
    for row in range(len(flat[0])):
        digest = hashlib.blake2b(key=secret, digest_size=16)
        for x in flat:
            digest.update(x[row])
        keys.append(digest.digest())
    return keys


# ---------------------------------------------------------------------------------------------------
# found on rows that are not private


def find_frozen_part(model: nn.Module, rows: Batch, *, most: int, held: int = _BLOCK) -> FrozenPart | None:
    """The frozen part of a model, or None where there is none that can be remembered.

    rows: a few that are not private. Whatever fails on them is for others to say.
    held: rows that there is memory for.
    """
    frozen = [p for p in model.parameters() if not p.requires_grad]
    if not most or not frozen:
        return None
    try:
        fill = copied(cycled(rows, max(2, min(held, _BLOCK))))  # one row would not show what rows are
        kept, skipped = _split(model, fill[0])
    except INTERRUPTS:
        raise
    except Exception:  # a model that cannot be taken apart like this is run as a whole
        return None
    covered = {id(p) for one in (*kept, *skipped) for p in one.module.parameters()}
    if not kept or not any(id(p) in covered for p in frozen):
        return None
    return FrozenPart(model, kept, skipped, fill, most)


def _split(model: nn.Module, inputs: object) -> tuple[list[_Output], list[_Output]]:
    """Modules whose outputs are needed, and modules whose outputs only those use."""
    reference, first = _observed(model, inputs, seed=1)
    second = _observed(model, inputs, seed=2, parameters=_moved(model))[1]
    steady = [
        one for one in first
        if one.by_row(row_count((inputs, ()))) and any(one.equals(other) for other in second)
        and sum(one.module is other.module for other in first) == 1
    ]  # fmt: skip
    same = partial(_gives, model, inputs, reference)
    if not steady or not same(steady, []):
        return [], []
    floating = [one for one in steady if all(x.is_floating_point() for x in one.tensors)]
    last = steady[-1:]
    others = [one for one in floating if one is not last[0]]
    if len(others) == len(steady) - 1 and same(last, others):
        return last, others
    kept, skipped = list(steady), list[_Output]()
    for one in others if len(steady) <= _MOST_TRIED else ():
        fewer = [x for x in kept if x is not one]
        if same(fewer, [*skipped, one]):
            kept, skipped = fewer, [*skipped, one]
    return kept, skipped


def _gives(
    model: nn.Module, inputs: object, reference: object, kept: list[_Output], skipped: list[_Output]
) -> bool:
    """Whether the outputs are those of the model, whatever the skipped modules give."""
    for filler in (torch.nan, 1e3, -1e3):
        with ExitStack() as stack:
            for one in kept:
                _replace(stack, one.module, partial(one.with_tensors, [x.clone() for x in one.tensors]))
            for one in skipped:
                others = [torch.full_like(x, filler) for x in one.tensors]
                _replace(stack, one.module, partial(one.with_tensors, others))
            seed_torch(1)
            with torch.enable_grad():
                found = call(model, _own(inputs))
        if not _same(found, reference):
            return False
    return True


def _observed(
    model: nn.Module, inputs: object, *, seed: int, parameters: dict[str, Tensor] | None = None
) -> tuple[object, list[_Output]]:
    """The model's outputs, and those of its outermost modules without anything to train."""
    seen, inside = list[_Output](), list[nn.Module]()
    still = [m for m in model.modules() if not any(p.requires_grad for p in m.parameters())]

    def watch(module: nn.Module, forward: Callable[..., object], *args: Any, **named: Any) -> object:
        if inside:
            return forward(*args, **named)
        inside.append(module)
        try:
            output = forward(*args, **named)
        finally:
            inside.pop()
        leaves, spec = tree_flatten(output)
        trained = any(isinstance(x, Tensor) and x.requires_grad for x in leaves)
        own = [] if trained else [x.detach().clone() if isinstance(x, Tensor) else x for x in leaves]
        seen.append(_Output(module, own, spec))
        return output

    with ExitStack() as stack, torch.enable_grad():
        for module in still:
            swap(stack, module.__dict__, "forward", partial(watch, module, module.forward))
        if parameters is not None:
            stack.enter_context(_with_parameters(model, parameters))
        seed_torch(seed)
        output = call(model, _own(inputs))
    return output, seen


def _tensors_of(model: nn.Module, modules: Sequence[nn.Module], inputs: object) -> list[Tensor]:
    """What these modules give for these inputs: every tensor, in order."""
    found: dict[int, list[Tensor]] = {}

    def watch(module: nn.Module, forward: Callable[..., object], *args: Any, **named: Any) -> object:
        output = forward(*args, **named)
        found[id(module)] = [x.detach().clone() for x in tree_leaves(output) if isinstance(x, Tensor)]
        return output

    with ExitStack() as stack, torch.no_grad():
        for module in modules:
            swap(stack, module.__dict__, "forward", partial(watch, module, module.forward))
        call(model, _own(inputs))
    return [x for module in modules for x in found[id(module)]]


def _own(inputs: object) -> object:
    return copied((inputs, ()))[0]


def _moved(model: nn.Module) -> dict[str, Tensor]:
    """Other values of everything that is trained."""
    return {
        name: p.detach() + 0.1 * (1 + p.detach().abs())
        for name, p in model.named_parameters()
        if p.requires_grad
    }


@contextmanager
def _with_parameters(model: nn.Module, values: dict[str, Tensor]) -> Iterator[None]:
    """The model with these parameters, which it gets as attributes of its modules."""
    places = {id(p): values[name] for name, p in model.named_parameters() if name in values}
    with ExitStack() as stack:
        for module in model.modules():
            held = vars(module)["_parameters"]
            for name, p in list(held.items()):
                if p is not None and id(p) in places:
                    swap(stack, held, name, nn.Parameter(places[id(p)]))
        yield


def _same(found: object, reference: object) -> bool:
    a, b = tree_flatten(found)[0], tree_flatten(reference)[0]
    if len(a) != len(b):
        return False
    return all(
        torch.equal(x, y) if isinstance(x, Tensor) and isinstance(y, Tensor) else _alike(x, y)
        for x, y in zip(a, b, strict=True)
    )


def _alike(x: object, y: object) -> bool:
    return isinstance(x, _SIMPLE) and type(x) is type(y) and x == y
