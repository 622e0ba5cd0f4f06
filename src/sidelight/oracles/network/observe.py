"""Every operation of one pass over trial rows, watched.

A pass over a batch is right for each record only if nothing in it depends on what the other records are or on
how many there are. Gradients that agree on a few rows do not show that: a branch may not be taken, a mask may
select equally many positions, a random number may be drawn once for all. But each of these is an operation,
so `OperationWatch` sees it whatever the rows:

    decisions   a number or a shape that follows from the values of records (`if x.max() > 2`, `x[mask]`), or
                from weights, buffers and random numbers, which another pass may see otherwise
    joins       operations that are not known to keep records apart (rowwise.py)
    operands    how many numbers of records go into each operation: a maximum over the batch is one number,
                however many records there are, and joins them even where it changes nothing for trial rows
    draws       random operations, and how many numbers they draw
    writes      in-place operations that put values of records into a tensor that was there before the pass
    kept        memory with values of records that somebody still holds after the pass
    trace       operations with their plain arguments, and tensors that come from nowhere: the same for other
                values of records, or these went through Python or another thread

Without decisions the control flow of a pass depends on shapes and on attributes only. Every later pass of
the same shape then performs the operations of the trial, which is why a trial says something about all.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from sidelight.oracles.network import indexing, layer_places
from sidelight.oracles.network.provenance import Memories, Place, key_of
from sidelight.oracles.network.rowwise import Joined, Operation, place_of

__all__ = ["OperationWatch", "observed"]

_RULES = (indexing, layer_places)  # imported so that they are registered
# They look at the form of a tensor, and not at its values.
_FORM_ONLY = frozenset((
    "empty_like", "zeros_like", "ones_like", "full_like", "rand_like", "randn_like", "randint_like",
    "new_empty", "new_zeros", "new_ones", "new_full", "new_empty_strided",
    "sym_size", "sym_numel", "sym_stride",
))  # fmt: skip
_INDEXING = frozenset(("index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index"))
_TOTALS = frozenset(("nll_loss_backward", "nll_loss2d_backward"))  # their sum of weights, of a loss a record
# Ways from a tensor to Python that perform no operation.
_EXITS = frozenset((
    "tolist", "numpy", "__array__", "__dlpack__", "data_ptr", "untyped_storage", "storage", "apply_", "map_",
    "map2_", "__reduce_ex__", "tensor_split", "__cuda_array_interface__",
))  # fmt: skip
_DEPENDENT = (torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape)
_PLAIN = (bool, int, float, complex, str)
_SMALL = 2**16  # numbers of a tensor from nowhere that are compared


class OperationWatch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes what a pass does with the values of `records`, `count` rows."""

    def __init__(self, records: Any, count: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.decisions: list[str] = []
        self.joins: list[str] = []
        self.operands: list[tuple[str, int]] = []
        self.forward = 0  # how many operands the forward pass has; the others are of the way back
        self.draws: list[tuple[str, int]] = []
        self.writes: list[str] = []
        self.trace: list[Any] = []
        self.own_generator = False
        self._memories = Memories(count)
        self._constants = Memories(count)  # follow from shapes and Python's numbers alone
        self._born = Memories(count)  # made during the pass
        self._given = {key for leaf in _tensors(records) if (key := key_of(leaf)) is not None}
        for leaf in _tensors(records):
            self._memories.mark(leaf, Place(0, 1))

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        name = func.overloadpacket.__name__
        inputs = _tensors((args, kwargs))
        private = name not in _FORM_ONLY and any(map(self.holds_records, inputs))
        self._note(func, name, args, kwargs, inputs, private)
        steady = name in _FORM_ONLY or name == "lift_fresh" or all(x in self._constants for x in inputs)
        written = self._written(func, args, kwargs)
        before = {key_of(x) for x in inputs}
        output = func(*args, **kwargs)
        drawn = torch.Tag.nondeterministic_seeded in func.tags and not _draws_nothing(func, args, kwargs)
        if drawn:
            self.own_generator |= kwargs.get("generator") is not None
            self.draws.append((name, next((x.numel() for x in (*written, *_tensors(output))), 1)))
        fresh = [x for x in _tensors(output) if key_of(x) not in before]
        for x in fresh:
            self._born.mark(x, None)
        for x in written:
            if private and x not in self._born and not self.holds_records(x):
                self.writes.append(name)
            if not steady or drawn:
                self._constants.forget(x)
        if steady and not drawn and not private:
            for x in fresh:
                self._constants.mark(x, None)
        if private:
            self._placed(func, args, kwargs, [*fresh, *written])
        return output

    def _note(
        self, func: Any, name: str, args: Any, kwargs: dict[str, Any], inputs: list[Tensor], private: bool
    ) -> None:
        """Before an operation runs: what it decides, and what goes into it."""
        steady = all(x in self._constants for x in inputs)
        if (private or not steady) and self._depends(func, name, args):
            self.decisions.append(name if private else f"{name} of a weight, a buffer or a random number")
        if private:
            counted = (x.numel() for x in inputs if self.holds_records(x))
            self.operands.extend((name, size) for size in counted if size > 1 or name not in _TOTALS)
        plain = tuple(x if x == x else "nan" for x in tree_leaves((args, kwargs)) if isinstance(x, _PLAIN))
        self.trace.append((name, plain))
        nowhere = (x for x in inputs if not self.holds_records(x) and x not in self._born)
        self.trace.extend(_print(x) for x in nowhere if not x.requires_grad and x.numel() <= _SMALL)

    def _placed(self, func: Any, args: Any, kwargs: dict[str, Any], outputs: list[Tensor]) -> None:
        """Where the records are in what an operation made; views need nothing."""
        if not outputs:
            return
        operation = Operation(
            func, args, kwargs, outputs, place=self._memories.place, private=self.holds_records,
            constant=lambda x: x in self._constants, records=self._memories.records,
        )  # fmt: skip
        try:
            found = place_of(operation)
        except Joined:
            found = []
            self.joins.append(operation.name)
        places = found if isinstance(found, list) else [found] * len(outputs)
        for number, x in enumerate(outputs):
            self._memories.mark(x, places[number] if number < len(places) else None)

    def holds_records(self, x: Tensor) -> bool:
        """Whether values of records are in the memory of this tensor."""
        return x in self._memories

    def kept(self) -> bool:
        """After the pass, once its results are dropped: whether memory with values of records lives on."""
        if self._memories.live(self._given):
            gc.collect()
        return self._memories.live(self._given)

    @staticmethod
    def _depends(func: Any, name: str, args: tuple[Any, ...]) -> bool:
        if name in _INDEXING:  # by numbers the shape is that of the numbers; by a mask, the values give it
            masks = [x for x in _tensors(args[1]) if x.dtype in (torch.bool, torch.uint8)]
            return bool(masks) and (name in ("index", "_unsafe_index") or args[2].numel() > 1)
        return any(tag in func.tags for tag in _DEPENDENT)

    @staticmethod
    def _written(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Tensor]:
        found: list[Tensor] = []
        for place, argument in enumerate(func._schema.arguments):
            if argument.alias_info is not None and argument.alias_info.is_write:
                value = args[place] if place < len(args) else kwargs.get(argument.name)
                found.extend(_tensors(value))
        return found


class _Functions(TorchFunctionMode):
    """Sees the calls that leave PyTorch without an operation."""

    def __init__(self, observer: OperationWatch) -> None:
        super().__init__()
        self._observer = observer

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name = getattr(func, "__name__", "")
        given = args[1:] if name == "tensor_split" else args
        if name in _EXITS and any(map(self._observer.holds_records, _tensors(given))):
            self._observer.decisions.append(name)
        return func(*args, **(kwargs or {}))


@contextmanager
def observed(records: Any) -> Iterator[OperationWatch]:
    """Watch what happens inside."""
    observer = OperationWatch(records, max(1, len(_tensors(records)[0])))
    with _Functions(observer), observer:
        yield observer


def _tensors(tree: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


def _print(x: Tensor) -> Any:
    """Something to compare a tensor by."""
    try:
        return x.shape, x.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes()
    except (RuntimeError, TypeError, NotImplementedError):
        return x.shape


def _draws_nothing(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Attention kernels are tagged as random whatever their dropout."""
    for place, argument in enumerate(func._schema.arguments):
        if argument.name == "dropout_p":
            value = args[place] if place < len(args) else kwargs.get("dropout_p", argument.default_value)
            return not value
    return False
