"""Every operation of one pass over trial rows, watched, and which record each number of a tensor belongs to.

A pass over a batch is right for each record only if nothing in it depends on what the other records are or on
how many there are. Gradients that agree on a few rows do not show that: a branch may not be taken, a mask may
select equally many positions, a random number may be drawn once for all. But each of these is an operation,
so `OperationWatch` sees it whatever the rows:

    decisions   a number or a shape that follows from the values of records (`if x.max() > 2`, `x[mask]`), or
                from weights, buffers and random numbers, which another pass may see otherwise
    joins       operations that are not known to keep records apart (rowwise.py), that give each place in the
                batch something else, or that take a tensor which no operation made (another thread did)
    operands    how many numbers of records go into each operation: a maximum over the batch is one number,
                however many records there are, and joins them even where it changes nothing for trial rows
    draws       random operations, and how many numbers they draw
    reseeded    random numbers were drawn from a state that the draws before do not explain
    writes      in-place operations that put values of records into a tensor that was there before the pass
    kept        memory with values of records that somebody still holds after the pass
    trace       operations with their plain arguments, and tensors made of Python's numbers: the same for
                other values of records and other seeds, or these went through Python

Without decisions the control flow of a pass depends on shapes and on attributes only. Every later pass of
the same shape then performs the operations of the trial, which is why a trial says something about all.

In a pass over B records the numbers of a record lie at regular distances: in the memory that holds a batch,
byte o belongs to record (o // step) mod B. One number, `step`, says so for every view of that memory, so
reshapes, transposes, slices and `.data` need no rules. A tensor has a `Place` if one of its dimensions runs
through the records, all of them and in order, and the others stay within one.

`Sources` says where the other numbers of a pass come from. A record's contribution must not depend on its
place in the batch; so what has a row for each place, but no records, must be the same in all of them.
"""

from __future__ import annotations

import functools
import gc
import hashlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import compress

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from sidelight.oracles.network.batches import tensors
from sidelight.oracles.network.rowwise import Joined, Operation, Place, Places, place_of, repeated_for_all

__all__ = ["EVERYTHING", "Memories", "OperationWatch", "living", "memories_of", "observed"]

# They look at the form of a tensor, and not at its values.
_FORM_ONLY = frozenset((
    "empty_like", "zeros_like", "ones_like", "full_like", "rand_like", "randn_like", "randint_like",
    "new_empty", "new_zeros", "new_ones", "new_full", "new_empty_strided",
    "sym_size", "sym_numel", "sym_stride",
))  # fmt: skip
_BLANK = frozenset(("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided"))
_INDEXING = frozenset(("index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index"))
_TOTALS = frozenset(("nll_loss_backward", "nll_loss2d_backward"))  # their sum of weights, of a loss a record
# Ways from a tensor to Python that perform no operation.
_EXITS = frozenset((
    "tolist", "numpy", "__array__", "__dlpack__", "data_ptr", "untyped_storage", "storage", "apply_", "map_",
    "map2_", "__reduce_ex__", "tensor_split", "__cuda_array_interface__",
))  # fmt: skip
_NUMBERS = frozenset(("tolist", "numpy", "__array__", "__dlpack__"))  # of these, what gives values away
_DEPENDENT = (torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape)
_PLAIN = (bool, int, float, complex, str)


class _Call:
    """One operation: what goes into it, and what it will write into."""

    def __init__(
        self, func: OpOverload, args: tuple[object, ...], kwargs: dict[str, object], sources: Sources
    ) -> None:
        self.func, self.args, self.kwargs, self._sources = func, args, kwargs, sources
        self.name = func.overloadpacket.__name__
        self.leaves = list(_leaves((args, kwargs)))
        self.inputs = [x for x in self.leaves if isinstance(x, Tensor)]
        self.form_only = self.name in _FORM_ONLY
        self.private = not self.form_only and any(x in sources.records for x in self.inputs)
        self.follows = not self.form_only and any(map(sources.follows, self.inputs))
        self.draws = torch.Tag.nondeterministic_seeded in func.tags and not self._draws_nothing()
        known = self.form_only or self.lifts or all(x in sources.constants for x in self.inputs)
        self.constant = known and not self.draws and not self.follows
        self.written: list[Tensor] = []
        for place, name in _written(func):
            self.written.extend(_tensors(args[place] if place < len(args) else kwargs.get(name)))

    def look_before_writing(self) -> None:
        """What is known of the tensors that it writes into holds no longer when it is over."""
        self.fits = [self._sources.before_write(x) for x in self.written]
        self._earlier = {id(x): x.clone() for x in self.written if x in self._sources.constants}

    def alike(self, x: Tensor, place: Place) -> bool:
        """Whether an argument without records was the same for each, there."""
        if id(x) in self._earlier and x not in self._sources.blank:
            return equal_rows(self._earlier[id(x)], place.dim, self._sources.count, place.inner)
        return self._sources.is_alike(x, place)

    @property
    def lifts(self) -> bool:
        """Whether it makes a tensor of Python's numbers, or of an array."""
        return bool(self.name == "lift_fresh")

    def depends(self) -> bool:
        """Whether the values of its arguments give a number or a shape."""
        if self.name in _INDEXING:  # by numbers the shape is that of the numbers; by a mask, it is not
            masks = [x for x in _tensors(self.args[1]) if x.dtype in (torch.bool, torch.uint8)]
            values = None if self.name in ("index", "_unsafe_index") else self.args[2]
            return bool(masks) and (not isinstance(values, Tensor) or values.numel() > 1)
        return any(tag in self.func.tags for tag in _DEPENDENT)

    def _draws_nothing(self) -> bool:
        """Attention kernels are tagged as random whatever their dropout."""
        for place, argument in enumerate(self.func._schema.arguments):
            if argument.name == "dropout_p":
                given = self.args[place] if place < len(self.args) else None
                return not self.kwargs.get("dropout_p", argument.default_value if given is None else given)
        return False


class OperationWatch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes what a pass does with the values of `records`, `count` rows; `alive` was there before."""

    def __init__(self, records: object, count: int, alive: Memories) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.decisions: list[str] = []
        self.joins: list[str] = []
        self.operands: list[tuple[str, int]] = []
        self.forward = 0  # how many operands the forward pass has; the others are of the way back
        self.draws: list[tuple[str, int]] = []
        self.writes: list[str] = []
        self.trace: list[object] = []
        self.own_generator = self.reseeded = self.nowhere = False
        self._state = _generators()
        self._drawn_from: set[tuple[object, ...]] = set()
        self._sources = Sources(count, alive)
        for leaf in tensors(records):
            self._sources.records.mark(leaf, Place(0, 1))

    def __torch_dispatch__(
        self,
        func: OpOverload,
        types: object,
        args: tuple[object, ...] = (),
        kwargs: dict[str, object] | None = None,
    ) -> object:
        call = _Call(func, args, kwargs or {}, self._sources)
        self._note(call)
        call.look_before_writing()
        state = _generators() if call.draws else b""
        before = {key_of(x) for x in call.inputs}
        output = func(*args, **(kwargs or {}))
        fresh = [x for x in _tensors(output) if key_of(x) not in before or call.lifts]
        if call.draws:
            self._drew(call, state, [*call.written, *_tensors(output)])
        if not call.constant and (fresh or call.written):
            self._placed(call, fresh)
        self._mark(call, fresh)
        return output

    def _note(self, call: _Call) -> None:
        """Before an operation runs: what it decides, and what goes into it."""
        steady = all(x in self._sources.constants for x in call.inputs)
        if (call.private or not steady) and call.depends():
            what = "" if call.private else " of a weight, a buffer or a random number"
            self.decisions.append(call.name + what)
        if call.private:
            counted = (x.numel() for x in call.inputs if self.holds_records(x))
            total = call.name in _TOTALS
            self.operands.extend((call.name, size) for size in counted if size > 1 or not total)
            there = (x not in self._sources.born and not self.holds_records(x) for x in call.written)
            self.writes.extend(call.name for before in there if before)
        plain = (x for x in call.leaves if isinstance(x, _PLAIN))
        self.trace.append((call.name, tuple(x if x == x else "nan" for x in plain)))
        nowhere = [x for x in call.inputs if self._sources.from_nowhere(x)]
        if call.lifts:
            self.trace.extend(map(_print, nowhere))
        elif nowhere:
            self.nowhere = True
            self.joins.append(f"{call.name} of a tensor that comes from nowhere")

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

    def _mark(self, call: _Call, fresh: list[Tensor]) -> None:
        """What else is known of the memory that an operation made or wrote into."""
        sources = self._sources
        like = call.inputs[0] if call.form_only and call.inputs else None
        for x in fresh:
            sources.born.mark(x, None)
            if call.constant:
                sources.constants.mark(x, None)
            if call.name in _BLANK:
                sources.blank.mark(x, None)
            if like is not None and like.shape == x.shape and sources.follows(like):
                sources.forms.mark(x, sources.place(like))
        for x in call.written:
            sources.blank.forget(x)
            if not call.constant:
                sources.constants.forget(x)

    def _placed(self, call: _Call, fresh: list[Tensor]) -> None:
        """Where the records are in what an operation made; views need nothing."""
        sources, outputs = self._sources, [*fresh, *call.written]
        apart = call.follows or call.draws
        memory = sources.records if call.private else sources.drawn if apart else sources.alike
        places: list[Place | None] = [None] * len(outputs)
        try:
            found = self._place_of(call, outputs)
            places = list(found) if isinstance(found, list) else [found] * len(outputs)
            places += [None] * (len(outputs) - len(places))
            written = zip(places[len(fresh) :], call.fits, strict=False)
            if not all(fit(place) for place, fit in written if place is not None):
                raise Joined
        except Joined:
            places = [None] * len(outputs)
            if apart:
                self.joins.append(call.name)
        for x, place in zip(outputs, places, strict=False):
            if apart or place is not None:
                memory.mark(x, place)
            else:
                memory.forget(x)

    def _place_of(self, call: _Call, outputs: list[Tensor]) -> Places:
        sources = self._sources
        apart = call.follows or call.draws
        operation = Operation(
            call.func, call.args, call.kwargs, outputs,
            place=sources.place if apart else sources.place_of_alike,
            private=sources.follows if apart else lambda x: sources.place_of_alike(x) is not None,
            constant=lambda x: x in sources.constants, alike=call.alike, records=sources.count,
        )  # fmt: skip
        if call.draws and not call.follows:
            like = call.inputs[0] if call.form_only and call.inputs else None
            place = sources.place_of_draw(operation.out, like)
            if place is None:
                raise Joined
            for x in call.inputs if not (call.form_only or call.written) else call.inputs[1:]:
                operation.same(x, place)
            return place
        if not apart and call.name == "repeat":
            return repeated_for_all(operation)
        return place_of(operation)

    def rows_of(self, x: Tensor) -> None:
        """A layer's gradients are told apart by the rows of this tensor: they must go record by record."""
        with torch._C.DisableTorchFunction(), _disable_current_modes():
            if x.numel() and not self._sources.by_record(x):
                self.joins.append("the order of a layer's rows")

    def holds_records(self, x: Tensor) -> bool:
        """Whether values of records are in the memory of this tensor."""
        return x in self._sources.records

    def is_constant(self, x: Tensor) -> bool:
        """Whether it follows from shapes and Python's numbers alone."""
        return x in self._sources.constants

    def kept(self) -> bool:
        """After the pass, once its results are dropped: whether memory with values of records lives on."""
        for generation in range(3):  # what a pass made is young; to look at all there is takes long
            if not self._sources.records.live():
                return False
            gc.collect(generation)
        return self._sources.records.live()


class _Functions(TorchFunctionMode):
    """Sees the calls that leave PyTorch without an operation."""

    def __init__(self, observer: OperationWatch) -> None:
        super().__init__()
        self._observer = observer

    def __torch_function__(
        self,
        func: Callable[..., object],
        types: object,
        args: tuple[object, ...] = (),
        kwargs: dict[str, object] | None = None,
    ) -> object:
        name = getattr(func, "__name__", "")
        given = args[1:] if name == "tensor_split" else args
        if name in _EXITS and any(map(self._observer.holds_records, tensors(given))):
            self._observer.decisions.append(name)
        elif name in _NUMBERS and not all(map(self._observer.is_constant, tensors(given))):
            self._observer.decisions.append(f"{name} of a weight, a buffer or a random number")
        return func(*args, **(kwargs or {}))


@contextmanager
def observed(records: object, alive: Memories) -> Iterator[OperationWatch]:
    """Watch what happens inside; `alive`: what was there before (`living()`)."""
    observer = OperationWatch(records, max(1, len(tensors(records)[0])), alive)
    with _Functions(observer), observer:
        yield observer
    observer.reseeded |= _generators() != observer._state


def _tensors(tree: object) -> list[Tensor]:
    return [leaf for leaf in _leaves(tree) if isinstance(leaf, Tensor)]


def _leaves(tree: object) -> Iterator[object]:
    """What goes into an operation or comes out of it, which is in lists and the like if in anything."""
    if isinstance(tree, list | tuple):
        for one in tree:
            yield from _leaves(one)
    elif isinstance(tree, dict):
        yield from _leaves(list(tree.values()))
    else:
        yield tree


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


def _print(x: Tensor) -> object:
    """Something to compare a tensor by."""
    try:
        content = x.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes()
        return x.shape, hashlib.blake2b(content).digest()
    except (RuntimeError, TypeError, NotImplementedError):
        return x.shape


# ---------------------------------------------------------------------------------------------------
# which record each number of a tensor belongs to


class Memories:
    """Memory with values of records. A step of None: values of several are mixed in it."""

    def __init__(self, records: int) -> None:
        self.records = records
        self.complete = True  # whether all memory of its kind is in here
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

    def live(self) -> bool:
        """Whether somebody still holds such memory."""
        return any(not ref.expired() for ref in self._alive.values())  # type: ignore[no-untyped-call]

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
    objects, kinds = gc.get_objects(), _subclasses(Tensor)
    # There are a million objects and more: the search itself must not run in Python.
    return memories_of(compress(objects, map(kinds.__contains__, map(type, objects))), complete=True)


def memories_of(tensors: Iterable[Tensor], *, complete: bool) -> Memories:
    """The memory of these tensors; complete: there is no other."""
    found = Memories(1)
    found.complete = complete
    with torch._C.DisableTorchFunctionSubclass():
        for x in tensors:
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
