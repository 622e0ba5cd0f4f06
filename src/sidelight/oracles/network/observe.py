"""Every operation of one pass over trial rows, watched.

A pass over a batch is right for each record only if nothing in it depends on what the other records are or on
how many there are. Numbers that agree on a few rows do not show all of that: a branch may not be taken, a
mask may select equally many positions, a random number may be drawn once for all. But each of these is an
operation, so `OperationWatch` sees it whatever the rows:

    decisions   a number or a shape that follows from the values of records (`if x.max() > 2`, `x[mask]`), or
                from weights, buffers and random numbers, which another pass may see otherwise
    operands    how many numbers of records go into each operation: a maximum over the batch is one number,
                however many records there are, and joins them even where it changes nothing for trial rows
    along       operations that go along a dimension and keep its length (a sort, a cumulative sum), and that
                length: if it grows with the records, they are moved or joined, be it not yet in the trial
    draws       random operations, and how many numbers they draw
    reseeded    random numbers were drawn from a state that the draws before do not explain

Without decisions the control flow of a pass depends on shapes and on attributes only. Every later pass of
the same shape then performs the operations of the trial, which is why a trial says something about all.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from sidelight.oracles.network.batches import tensors

# They look at the form of a tensor, and not at its values.
_FORM_ONLY = frozenset((
    "empty_like", "zeros_like", "ones_like", "full_like", "rand_like", "randn_like", "randint_like",
    "new_empty", "new_zeros", "new_ones", "new_full", "new_empty_strided",
    "sym_size", "sym_numel", "sym_stride",
))  # fmt: skip
_INDEXING = frozenset(("index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index"))
_TOTALS = frozenset(("nll_loss_backward", "nll_loss2d_backward"))  # their sum of weights, of one loss
# They keep each record apart, in memory whose size follows from the longest target.
_BY_RECORD = frozenset(("_ctc_loss", "_ctc_loss_backward"))
# They read all of a dimension, and what comes out is as long.
_ALONG = frozenset((
    "sort", "argsort", "topk", "cumsum", "cumprod", "cummax", "cummin", "logcumsumexp", "_softmax",
    "_log_softmax", "flip", "roll", "gather", "index_select",
))  # fmt: skip
# Ways from a tensor to Python that perform no operation.
_EXITS = frozenset((
    "tolist", "numpy", "__array__", "__dlpack__", "data_ptr", "untyped_storage", "storage", "apply_", "map_",
    "map2_", "__reduce_ex__", "tensor_split", "__cuda_array_interface__",
))  # fmt: skip
_NUMBERS = frozenset(("tolist", "numpy", "__array__", "__dlpack__"))  # of these, what gives values away
_DEPENDENT = (torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape)


class _Memory:
    """The memory of some tensors."""

    def __init__(self) -> None:
        self._alive: dict[int, StorageWeakRef] = {}  # an address is not used again while it is referred to

    def __contains__(self, x: Tensor) -> bool:
        return _key_of(x) in self._alive

    def add(self, x: Tensor) -> None:
        key = _key_of(x)
        if key is not None and x.numel() and key not in self._alive:
            self._alive[key] = StorageWeakRef(x.untyped_storage())  # type: ignore[no-untyped-call]

    def discard(self, x: Tensor) -> None:
        self._alive.pop(_key_of(x) or 0, None)


def _key_of(x: Tensor) -> int | None:
    """The memory of a tensor; None for layouts that have none of their own."""
    try:
        return int(x.untyped_storage()._cdata)
    except (NotImplementedError, RuntimeError):
        return None


class _Call:
    """One operation, and what goes into it."""

    def __init__(
        self, func: OpOverload, args: tuple[object, ...], kwargs: dict[str, object], watch: OperationWatch
    ) -> None:
        self.func, self.args, self.kwargs = func, args, kwargs
        self.name = func.overloadpacket.__name__
        self.inputs = _tensors((args, kwargs))
        form_only = self.name in _FORM_ONLY
        self.private = not form_only and any(x in watch.records for x in self.inputs)
        self.steady = all(x in watch.constants for x in self.inputs)
        self.draws = _draws(func, args, kwargs)
        lifts = self.name == "lift_fresh"  # makes a tensor of Python's numbers
        self.constant = (form_only or lifts or self.steady) and not (self.draws or self.private)
        self.written = [
            x
            for place, name in _written(func)
            for x in _tensors(args[place] if place < len(args) else kwargs.get(name))
        ]

    def depends(self) -> bool:
        """Whether the values of its arguments give a number or a shape."""
        if self.name in _INDEXING:  # by numbers the shape is that of the numbers; by a mask, it is not
            masks = [x for x in _tensors(self.args[1]) if x.dtype in (torch.bool, torch.uint8)]
            values = None if self.name in ("index", "_unsafe_index") else self.args[2]
            return bool(masks) and (not isinstance(values, Tensor) or values.numel() > 1)
        return self.name not in _BY_RECORD and any(tag in self.func.tags for tag in _DEPENDENT)

    def lengths(self) -> list[int]:
        """How long the dimensions are that the operation goes along."""
        arguments = enumerate(self.func._schema.arguments)
        place, name, default = next(
            (i, one.name, one.default_value) for i, one in arguments if one.name in ("dim", "dims")
        )
        given = self.args[place] if place < len(self.args) else self.kwargs.get(name, default)
        x, dims = self.inputs[0], given if isinstance(given, list | tuple) else [given]
        return [x.shape[dim] for dim in dims if isinstance(dim, int)] if x.dim() and dims else [x.numel()]


class OperationWatch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes what a pass does with the values of `records`."""

    def __init__(self, records: object) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.decisions: list[str] = []
        self.operands: list[tuple[str, int]] = []
        self.along: list[tuple[str, list[int]]] = []
        self.forward = 0  # how many operands the forward pass has; the others are of the way back
        self.draws: list[tuple[str, int]] = []
        self.own_generator = self.reseeded = False
        self.records, self.constants = _Memory(), _Memory()
        self._state = _generators()
        self._drawn_from: set[tuple[object, ...]] = set()
        for leaf in tensors(records):
            self.records.add(leaf)

    def __torch_dispatch__(self, func: OpOverload, _: object, args: Any = (), kwargs: Any = None) -> object:
        call = _Call(func, args, kwargs or {}, self)
        self._note(call)
        state = _generators() if call.draws else b""
        before = {_key_of(x) for x in call.inputs}
        output = func(*args, **(kwargs or {}))
        outputs = _tensors(output)
        if call.draws:
            self._drew(call, state, [*call.written, *outputs])
        fresh = [x for x in outputs if _key_of(x) not in before or call.name == "lift_fresh"]
        for x in (*fresh, *call.written):
            self._mark(call, x)
        return output

    def _note(self, call: _Call) -> None:
        """Before an operation runs: what it decides, and what goes into it."""
        if (call.private or not call.steady) and call.depends():
            what = "" if call.private else " of a weight, a buffer or a random number"
            self.decisions.append(call.name + what)
        if call.private:
            counted = (x.numel() for x in call.inputs if x in self.records)
            total = call.name in _TOTALS
            if call.name in _ALONG:
                self.along.append((call.name, call.lengths()))
            if call.name not in _BY_RECORD:
                self.operands.extend((call.name, size) for size in counted if size > 1 or not total)

    def _mark(self, call: _Call, x: Tensor) -> None:
        """What is known of memory that an operation made or wrote into."""
        if call.private:
            self.records.add(x)
        if call.constant:
            self.constants.add(x)
        else:
            self.constants.discard(x)

    def _drew(self, call: _Call, state: bytes, outputs: list[Tensor]) -> None:
        """Draws go on where the last one ended, or are the same again, as checkpointing does it."""
        self.draws.append((call.name, next((x.numel() for x in outputs), 1)))
        if call.kwargs.get("generator") is not None:
            self.own_generator = True
            return
        start = (state, call.name, tuple((x.shape, x.stride(), x.dtype) for x in outputs))
        if state == self._state:
            self._drawn_from.add(start)
            self._state = _generators()
        elif start not in self._drawn_from:
            self.reseeded = True


class ChangedDraws(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Some rows draw other random numbers, those in between and all that follows the same ones; or, if no
    rows are given, every row draws those of the first."""

    def __init__(self, count: int, rows: Tensor | None = None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._count, self._rows = count, rows

    def __torch_dispatch__(self, func: OpOverload, _: object, args: Any = (), kwargs: Any = None) -> object:
        output = func(*args, **(kwargs or {}))
        if not (drawn := _tensors(output) if _draws(func, args, kwargs or {}) else []):
            return output
        first, others = [x.clone() for x in drawn], drawn
        if self._rows is not None:
            state = torch.default_generator.get_state()
            others = [x.clone() for x in _tensors(func(*args, **(kwargs or {})))]
            torch.default_generator.set_state(state)
        for x, one, other in zip(drawn, first, others, strict=True):
            x.copy_(self._changed(one, other))
        return output

    def _changed(self, one: Tensor, other: Tensor) -> Tensor:
        """Numbers of rows by the dimension that has one entry, or several, for each."""
        dim = _row_dimension(one, self._count)
        if dim is None:
            return one
        each = one.shape[dim] // self._count
        if self._rows is None:
            return one.index_select(dim, torch.arange(one.shape[dim], device=one.device) % each)
        rows = self._rows.to(one.device).repeat_interleave(each)
        return torch.where(rows.view(-1, *[1] * (one.dim() - dim - 1)), other, one)


def _row_dimension(x: Tensor, count: int) -> int | None:
    """The dimension that has one entry, or several, for each row."""
    exact = (dim for dim, length in enumerate(x.shape) if length == count)
    longer = (dim for dim, length in enumerate(x.shape) if length and length % count == 0)
    return next(itertools.chain(exact, longer), None)


def _draws(func: OpOverload, args: tuple[object, ...], kwargs: dict[str, object]) -> bool:
    """Whether an operation draws random numbers; attention is tagged as random whatever its dropout."""
    if torch.Tag.nondeterministic_seeded not in func.tags:
        return False
    for place, argument in enumerate(func._schema.arguments):
        if argument.name == "dropout_p":
            given = args[place] if place < len(args) else None
            return bool(kwargs.get("dropout_p", argument.default_value if given is None else given))
    return True


class _Functions(TorchFunctionMode):
    """Sees the calls that leave PyTorch without an operation."""

    def __init__(self, watch: OperationWatch) -> None:
        super().__init__()
        self._watch = watch

    def __torch_function__(self, func: Any, types: object, args: Any = (), kwargs: Any = None) -> object:
        name = getattr(func, "__name__", "")
        given = tensors(args[1:] if name == "tensor_split" else args)
        if name in _EXITS and any(x in self._watch.records for x in given):
            self._watch.decisions.append(name)
        elif name in _NUMBERS and not all(x in self._watch.constants for x in given):
            self._watch.decisions.append(f"{name} of a weight, a buffer or a random number")
        return func(*args, **(kwargs or {}))


@contextmanager
def observed(records: object) -> Iterator[OperationWatch]:
    """Watch what happens inside."""
    watch = OperationWatch(records)
    with _Functions(watch), watch:
        yield watch
    watch.reseeded |= _generators() != watch._state


def _tensors(tree: object) -> list[Tensor]:
    """What goes into an operation or comes out of it, which is in lists and the like if in anything."""
    if isinstance(tree, Tensor):
        return [tree]
    if isinstance(tree, dict):
        tree = list(tree.values())
    return [x for one in tree for x in _tensors(one)] if isinstance(tree, list | tuple) else []


@functools.lru_cache(maxsize=4096)
def _written(func: OpOverload) -> list[tuple[int, str]]:
    """The arguments that an operation writes into: their places and names."""
    arguments = enumerate(func._schema.arguments)
    return [(i, one.name) for i, one in arguments if one.alias_info is not None and one.alias_info.is_write]


def _generators() -> bytes:
    """The states of PyTorch's generators."""
    states = [torch.default_generator.get_state()]
    if torch.cuda.is_available():
        states.extend(torch.cuda.get_rng_state_all())
    return b"".join(state.numpy().tobytes() for state in states)
