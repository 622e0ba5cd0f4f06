"""Every operation of one pass over trial rows, watched.

A pass over a batch is right for each record only if nothing in it depends on what the other records are or on
how many there are. Gradients that agree on a few rows do not show that: a branch may not be taken, a mask may
select equally many positions, a random number may be drawn once for all. But each of these is an operation
that PyTorch tags, so `OperationWatch` sees it whatever the rows:

    decisions   a number or a shape that follows from the values of records (`if x.max() > 2`, `x[mask]`)
    operands    how many numbers of records go into each operation: a maximum over the batch is one number,
                however many records there are, and joins them even where it changes nothing for trial rows
    draws       random operations, and how many numbers they draw
    writes      in-place operations that put values of records into a tensor that was there before the pass
    kept        tensors computed from records that somebody still holds after the pass

Without decisions the control flow of a pass depends on shapes and on public values only. Every later pass of
the same shape then performs the operations of the trial, which is why a trial says something about all.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

__all__ = ["OperationWatch", "observed"]

# They look at the form of a tensor, and not at its values.
_FORM_ONLY = frozenset((
    "empty_like", "zeros_like", "ones_like", "full_like", "rand_like", "randn_like", "randint_like",
    "new_empty", "new_zeros", "new_ones", "new_full", "new_empty_strided",
    "sym_size", "sym_numel", "sym_stride",
))  # fmt: skip
_INDEXING = frozenset(("index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index"))
_ALONG = frozenset((
    "gather", "index_select", "scatter", "scatter_", "scatter_add", "scatter_add_", "index_add", "index_add_",
    "index_copy", "index_copy_", "scatter_reduce", "scatter_reduce_", "index_reduce", "index_reduce_",
    "index_fill", "index_fill_", "segment_reduce",
))  # fmt: skip
_ORDERED = frozenset((
    "cumsum", "cumsum_", "cumprod", "cumprod_", "cummax", "cummin", "_cummax_helper", "_cummin_helper",
    "logcumsumexp", "_logcumsumexp", "sort", "argsort", "topk", "kthvalue", "median", "mode",
    "_softmax", "_log_softmax", "renorm",
))  # fmt: skip
_FLAT = frozenset(("take", "put", "put_", "masked_scatter", "masked_scatter_"))  # along all numbers
_TOTALS = frozenset(("nll_loss_backward", "nll_loss2d_backward"))  # their sum of weights, of a loss a record
# Ways from a tensor to Python that perform no operation.
_EXITS = frozenset(("tolist", "numpy", "__array__", "__dlpack__", "data_ptr", "untyped_storage", "storage"))
_DEPENDENT = (torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape)


class OperationWatch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes what a pass does with the values of `records`."""

    def __init__(self, records: Any) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.decisions: list[str] = []
        self.operands: list[tuple[str, int]] = []
        self.forward = 0  # how many operands the forward pass has; the others are of the way back
        self.draws: list[tuple[str, int]] = []
        self.moves: list[tuple[str, int]] = []
        self.writes: list[str] = []
        self.own_generator = False
        self._private: dict[int, Any] = {}  # storages with values of records; held, so that none is reused
        self._born: dict[int, Any] = {}  # storages made during the pass
        self._alive: list[weakref.ref[Tensor]] = []
        self._given = {id(leaf) for leaf in _tensors(records)}
        for leaf in _tensors(records):
            self._mark(leaf)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        name = func.overloadpacket.__name__
        inputs = _tensors((args, kwargs))
        private = any(map(self.holds_records, inputs)) and name not in _FORM_ONLY
        if private and self._depends(func, name, args):
            self.decisions.append(name)
        if private:
            self.moves.extend((name, size) for size in self._moved(func, name, args, kwargs))
            counted = (x.numel() for x in inputs if self.holds_records(x))
            self.operands.extend((name, size) for size in counted if size > 1 or name not in _TOTALS)
        written = self._written(func, args, kwargs)
        output = func(*args, **kwargs)
        if torch.Tag.nondeterministic_seeded in func.tags and not _draws_nothing(func, args, kwargs):
            self.own_generator |= kwargs.get("generator") is not None
            self.draws.append((name, next((x.numel() for x in (*written, *_tensors(output))), 1)))
        before = {key for x in inputs if (key := _key(x)) is not None}
        for x in _tensors(output):
            key = _key(x)
            if key is not None and key not in before:
                self._born[key] = x.untyped_storage()
            if private:
                self._mark(x)
        for x in written if private else ():
            if _key(x) not in self._born and _key(x) not in self._private:
                self.writes.append(name)
            self._mark(x)
        return output

    def holds_records(self, x: Tensor) -> bool:
        """Whether values of records are in the memory of this tensor."""
        return _key(x) in self._private

    def kept(self) -> bool:
        """After the pass, once its results are dropped: whether a tensor with values of records lives on."""
        if any(ref() is not None for ref in self._alive):
            gc.collect()
        return any(ref() is not None for ref in self._alive)

    def _mark(self, x: Tensor) -> None:
        key = _key(x)
        if key is not None:
            self._private[key] = x.untyped_storage()

    def remember(self, tree: Any) -> None:
        """Watch how long these tensors live, if they hold values of records."""
        new = (x for x in _tensors(tree) if id(x) not in self._given and self.holds_records(x))
        self._alive.extend(weakref.ref(x) for x in new)

    @staticmethod
    def _depends(func: Any, name: str, args: tuple[Any, ...]) -> bool:
        if name in _INDEXING:  # by numbers the shape is that of the numbers; by a mask, the values give it
            masks = [x for x in _tensors(args[1]) if x.dtype in (torch.bool, torch.uint8)]
            return bool(masks) and (name in ("index", "_unsafe_index") or args[2].numel() > 1)
        return any(tag in func.tags for tag in _DEPENDENT)

    def _moved(self, func: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[int]:
        """The lengths along which this operation moves or adds up values by what records hold.

        Compared between passes of two sizes: a length that grows with the number of records is one along
        which they meet (tokens sorted by expert, features put where a mask is set, a running count).
        """
        if name in _INDEXING:
            for place, index in enumerate(args[1]):
                if isinstance(index, Tensor) and self.holds_records(index):
                    yield args[0].shape[place]
        elif name in _FLAT:
            if any(self.holds_records(x) for x in _tensors(args[1:])):
                yield args[0].numel()
        elif name in ("roll", "flip"):
            dims = args[-1] if args[1:] else kwargs.get("dims", ())
            yield from (args[0].shape[dim] for dim in dims) if dims else (args[0].numel(),)
        elif name in _ALONG or name in _ORDERED:
            dim = next((i for i, a in enumerate(func._schema.arguments) if a.name == "dim"), None)
            where = args[dim] if dim is not None and dim < len(args) else kwargs.get("dim", -1)
            index = any(self.holds_records(x) for x in _tensors(args[2:3])) or name in _ORDERED
            if index and isinstance(where, int) and args[0].dim():
                yield args[0].shape[where]

    @staticmethod
    def _written(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Tensor]:
        found: list[Tensor] = []
        for place, argument in enumerate(func._schema.arguments):
            if argument.alias_info is not None and argument.alias_info.is_write:
                value = args[place] if place < len(args) else kwargs.get(argument.name)
                found.extend(_tensors(value))
        return found


class _Functions(TorchFunctionMode):
    """Sees the calls that leave PyTorch without an operation, and what modules and functions return."""

    def __init__(self, observer: OperationWatch) -> None:
        super().__init__()
        self._observer = observer

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name = getattr(func, "__name__", "")
        if name in _EXITS and any(map(self._observer.holds_records, _tensors(args))):
            self._observer.decisions.append(name)
        output = func(*args, **(kwargs or {}))
        self._observer.remember(output)
        return output


@contextmanager
def observed(records: Any) -> Iterator[OperationWatch]:
    """Watch what happens inside."""
    observer = OperationWatch(records)
    with _Functions(observer), observer:
        yield observer


def _tensors(tree: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


def _key(x: Tensor) -> int | None:
    """The memory of a tensor; None for layouts that have none of their own."""
    try:
        return int(x.untyped_storage()._cdata)
    except (NotImplementedError, RuntimeError):
        return None


def _draws_nothing(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Attention kernels are tagged as random whatever their dropout."""
    for place, argument in enumerate(func._schema.arguments):
        if argument.name == "dropout_p":
            value = args[place] if place < len(args) else kwargs.get("dropout_p", argument.default_value)
            return not value
    return False
