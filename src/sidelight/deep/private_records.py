"""Private records on their way to the model: fetched, collated and augmented, each by itself.

What a record becomes depends on its item and on public things. So `collate` never sees two private records
together. Where there are public records it sees a private one beside the longest of these, so that a collate
which pads to the longest pads (almost) all private records to one public length; where there are none, it
sees one private record, and rows of one length are trained on together. Either way no record changes what
another becomes, whether or not the model minds padding.

Nor does `augment` see two. A transform of several records can make one decide about the others, whatever a
trial of it shows: by a maximum over the batch, by one random number for all, by failing on one. The
transforms of `sidelight.augment` are made row by row, with random numbers for every row: they are given a
whole batch, which comes to the same.

An item that cannot be read, collated or augmented, or that is made of other parts or types than most are, is
left out silently: an error would reveal it.

A record's random numbers are its own as well: generators begin anew for every record, from a secret of the
step and the record's number. What the dataset, `collate` or `augment` keeps (the longest so far, a buffer) is
put back or copied (`problems.isolation.Isolation`).
"""

from __future__ import annotations

import contextlib
import copy
import itertools
import logging
import signal
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_unflatten
from torch.utils.data import DataLoader, Dataset

from sidelight.arrays import Array
from sidelight.augment.transforms import ROW_FOR_ROW, Augment, each_row_alone, seeded
from sidelight.errors import INTERRUPTS, InputError, SidelightError, first_line
from sidelight.oracles.network.batches import Batch, Ready, row_count, take
from sidelight.oracles.network.silence import silent
from sidelight.privacy.events import Indices
from sidelight.privacy.identity import digest_of
from sidelight.problems.datasets import (
    CHUNK,
    Chunks,
    Loading,
    Records,
    collate_plainly,
    not_interrupted,
    paired,
    record_count,
)
from sidelight.problems.isolation import Isolation, owned, record_seed, reseed
from sidelight.problems.network import Batches

_TRIED = 64  # records whose usual form is taken to be public, and that there is one
_PUBLIC = 64  # public records among which the longest is sought
_PAIRS = 8  # public records with which collate is asked for their order
_SEEDS = 4  # with which collate is asked for the order of two records
_ITEMS = (
    "an item of a dataset must be (inputs, targets), tensors or numbers, or a dictionary of these with "
    "'labels'; Loading(collate=...) makes it so"
)

Shape: TypeAlias = tuple[object, ...]  # structure, types and sizes of rows that can be joined
Rows = TypeVar("Rows")  # a tensor, or a structure of tensors, with equally many rows


class RecordBatches(Batches):
    """The private records of a trainer as a problem asks for them: in batches, augmented.

    nothing: a batch without records, as the model sees it.
    draw_seed: a secret for each call, for the random numbers of items and of their augmentation.
    """

    def __init__(
        self,
        records: PrivateRecords,
        nothing: Batch,
        *,
        augment: PrivateAugment,
        draw_seed: Callable[[], int],
    ) -> None:
        self._records, self._nothing, self._augment = records, nothing, augment
        self._draw_seed = draw_seed

    def of(self, indices: Indices | None) -> Iterator[Ready]:
        seed = self._draw_seed()  # whether or not a dataset needs it: tensors and items are the same run
        for rows in self._records.batches(indices, seed=seed):
            if row_count(rows):
                yield from map(Ready, self._augmented(repeated(rows, self._augment.copies)))

    def _augmented(self, batch: Batch) -> list[Batch]:
        return [batch] if self._augment.augment is None else self._augment(batch, self._draw_seed())

    def empty(self) -> Batch:
        return self._nothing

    def forgives(self, batch: Batch) -> bool:
        """Records of another shape than the one that was checked: that the model fails on it is theirs."""
        return not _same_shapes(batch, self._nothing)


def digest_of_sample(dataset: Dataset[object]) -> str:
    """A digest of some records, spread over the dataset: other processes compare it with theirs.

    It is private. Each record is read as if it were the only one, with random numbers of its own, and one
    that cannot be read is silent.
    """
    count = record_count(dataset)
    places = np.unique(np.linspace(0, max(0, count - 1), min(_TRIED, count)).astype(np.int64))
    with silent(), seeded(0):
        items = Isolation(dataset).each(
            lambda i: dataset[i], [(int(i), record_seed(0, int(i))) for i in places]
        )
    return digest_of(items).hex()


# ---------------------------------------------------------------------------------------------------
# fetched and collated


def repeated(batch: Batch, copies: int) -> Batch:
    """Every row so many times."""
    if copies == 1:
        return batch
    more: Batch = tree_map(lambda x: x.repeat_interleave(copies, 0) if isinstance(x, Tensor) else x, batch)
    return more


class PlacedRows(NamedTuple):
    """Rows of one shape, and which of those that were asked for they are."""

    rows: Batch
    places: Indices


class PrivateRecords:
    """The records of a private dataset, of which nothing is read before `learn`."""

    def __init__(self, dataset: Dataset[object], loading: Loading, device: torch.device) -> None:
        self._plain = Records(dataset, loading, device)
        self._loading, self._device = loading, device
        self._single = SingleRows(self._plain.dataset, loading.collate, device)
        self._chunks = Chunks()
        self._loader: DataLoader[Batch | None] | None = None
        self._form: Batch | None = None

    def __len__(self) -> int:
        return len(self._plain)

    def form(self) -> Batch | None:
        """A batch without rows, made without reading a record; None if only a record would tell."""
        if self._form is None:
            self._form = self._plain.form()
        return self._form

    def prepare(self, public: Records | None) -> None:
        """Before the charge: collate public records as private ones will be, and start the workers."""
        if self._plain.in_tensors:
            return
        if public is not None and len(public):
            self._try_on(public)
        self._single.isolation.check()
        if self._loading.workers:
            self._start_workers()

    def forget(self) -> None:
        """Put back what a fingerprint of the records has left in the dataset."""
        self._single.isolation.restore()

    def learn(self) -> Batch:
        """The form that most of the first records have: taken to be public, and decided by no single one."""
        if self._form is None:
            with (
                silent(),
                seeded(0),
            ):  # a resumed run looks again, and must then draw what it would have drawn
                tried = [(i, record_seed(0, i)) for i in range(min(_TRIED, len(self)))]
                rows = [row for row in self._single.__getitems__(tried) if row is not None]
            if not rows:
                raise InputError(f"the private dataset gives no record that can be trained on. {_ITEMS}")
            usual = max(_by_shape(rows).values(), key=len)
            self._form = self._moved(take(usual[0], slice(0, 0)))
        return self._form

    def batches(self, indices: Sequence[int] | Array | None, *, seed: int = 0) -> list[Batch]:
        """The records at these places (None: all), in batches of rows of one shape; at least one batch.

        `seed`: a secret, from which the random numbers that a record's item may draw follow.
        """
        if self._plain.in_tensors and indices is not None and len(indices):
            self.learn()
            return [self._plain.fetch(indices)]
        return [found.rows for found in self.placed(indices, seed=seed)] or [self.learn()]

    def placed(self, indices: Sequence[int] | Array | None, *, seed: int = 0) -> list[PlacedRows]:
        """The same, with the places that the rows had; there may be no batch."""
        form = self.learn()
        wanted = np.arange(len(self)) if indices is None else np.asarray(indices, dtype=np.int64)
        if self._plain.in_tensors:
            return [PlacedRows(self._plain.fetch(indices), np.arange(len(wanted)))] if len(wanted) else []
        groups: dict[Shape, list[PlacedRows]] = {}
        start = 0
        for chunk, asked in zip(self._fetched(wanted, seed), self._chunks.now, strict=True):
            for rows, places in chunk:
                groups.setdefault(_row_shape(rows), []).append(PlacedRows(rows, places + start))
            start += len(asked)
        found = (_together(group) for group in groups.values())
        usable = (one for one in found if same_parts(one.rows, form))
        fitting = ((self._fitting(one.rows, form), one.places) for one in usable)
        return [PlacedRows(rows, places) for rows, places in fitting if rows is not None]

    def close(self) -> None:
        """End the workers."""
        self._loader = None

    def _try_on(self, public: Records) -> None:
        rows = [self._single.row(public.dataset[i]) for i in range(min(_PUBLIC, len(public)))]
        if self._loading.collate is not None:
            longest = max(range(len(rows)), key=lambda i: sum(leaf.numel() for leaf in tree_leaves(rows[i])))
            beside = (public.dataset[longest],)
            self._single = SingleRows(self._single.dataset, self._single.collate, self._device, beside)
            self._single.row(public.dataset[0])
            self._single.refuse_another_order([public.dataset[i] for i in range(min(_PAIRS, len(public)))])

    def _start_workers(self) -> None:
        try:
            with _interrupts_ignored():  # a process that is started so ignores them from its first moment on
                self._fetched(np.arange(0), 0)
        except Exception as error:
            raise InputError(
                f"{self._loading.workers} workers cannot be started ({type(error).__name__}): dataset and "
                "collate must be defined on the top level of a module, or use Loading(workers=0)"
            ) from None

    def _fetched(self, wanted: Array, seed: int) -> list[list[PlacedRows]]:
        """Lists of batches, one for each chunk of records, with places in the chunk."""
        workers = self._loading.workers
        size = min(CHUNK, max(1, -(-len(wanted) // max(1, 2 * workers))))
        each = [(int(i), record_seed(seed, int(i))) for i in wanted]
        self._chunks.now = [each[i : i + size] for i in range(0, len(each), size)]
        if self._loader is None:
            self._loader = DataLoader(
                self._single,
                batch_sampler=self._chunks,
                num_workers=workers,
                persistent_workers=workers > 0,  # one set of processes for all steps
                collate_fn=_grouped,
                worker_init_fn=_in_worker,
                generator=torch.Generator().manual_seed(0),  # leaves PyTorch's own generator alone
            )
        with silent(), seeded(0):  # records leave the generators of this process as they were
            return list(self._loader)

    def _fitting(self, batch: Batch, form: Batch) -> Batch | None:
        """On the device; None for records of another form than the usual one that it has no room for."""
        try:
            return self._moved(batch)
        except INTERRUPTS:
            raise
        except BaseException:
            if _same_shapes(batch, form):
                raise
            return None

    def _moved(self, batch: Batch) -> Batch:
        moved: Batch = tree_map(lambda x: x.to(self._device), batch)
        return moved


@contextmanager
def _interrupts_ignored() -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread may set handlers
        return
    previous = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)


def _in_worker(worker: int) -> None:
    not_interrupted(worker)
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)


@dataclass(frozen=True)
class SingleRows(Dataset["Batch | None"]):
    """A dataset of batches of one row, by number and seed; None for a record that cannot be one."""

    dataset: Dataset[object]
    collate: Callable[[list[object]], object] | None
    device: torch.device
    beside: tuple[object, ...] = ()  # a public item, or none
    isolation: Isolation = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "isolation", Isolation(self.dataset, code=(self.collate,)))

    def __len__(self) -> int:
        return record_count(self.dataset)

    def __getitem__(self, wanted: tuple[int, int]) -> Batch | None:
        return self.__getitems__([wanted])[0]

    def __getitems__(self, wanted: list[tuple[int, int]]) -> list[Batch | None]:
        """The records at these places, each with its seed; one after the other, none with another."""
        return self.isolation.each(lambda place: self.row(self.dataset[place]), wanted)

    def row(self, item: object) -> Batch:
        """One row. Raises for an item that is not a record: call it with public ones only."""
        batch = self._batch([item, *copy.deepcopy(self.beside)])  # collate may pad what it is given in place
        row: Batch = owned(take(batch, slice(0, 1)), self.device)  # a collate may use its buffer again
        return row

    def refuse_another_order(self, public: list[object]) -> None:
        """Raise InputError for a collate that sorts or shuffles: the first row would be a public record's."""
        longest = self.beside[0]
        for other, seed in itertools.product([*public, _shortened(longest)], range(_SEEDS)):
            with seeded(seed), contextlib.suppress(InputError):  # half a record may be none
                if self._moves(other, longest, seed):
                    break
        else:
            return
        raise InputError(
            "collate gives rows in another order than the records that it was given (sorted by length, say), "
            "so rows cannot be matched to records. Keep them in their order"
        )

    def _moves(self, other: object, longest: object, seed: int) -> bool:
        """Whether two public records change places, or are reordered."""

        def rows(*items: object) -> list[Batch]:
            reseed(seed)
            batch = owned(self._batch(copy.deepcopy(list(items))), self.device)
            return [take(batch, slice(i, i + 1)) for i in range(len(items))]

        one, two = rows(other, longest)
        if _same_numbers(one, two) or _same_numbers(rows(other)[0], rows(longest)[0]):
            return False
        alike = rows(longest, longest)[0]
        moved = _same_numbers(one, alike) and not _same_numbers(two, alike)
        return moved or _same_numbers(one, rows(longest, other)[0])

    def _batch(self, items: list[object]) -> Batch:
        try:
            made = (self.collate or collate_plainly)(items)
        except (SidelightError, *INTERRUPTS):
            raise
        except BaseException as error:
            what = "collate" if self.collate is not None else "putting a record into a batch"
            raise InputError(f"{what} fails ({first_line(error)}) on one record. {_ITEMS}") from error
        if (batch := paired(made)) is None:
            raise InputError(_ITEMS)
        if not all(isinstance(leaf, Tensor) for leaf in tree_leaves(batch)):
            raise InputError(_ITEMS)
        if row_count(batch) != len(items):
            raise InputError("collate must give one row for each record, also if there is only one record")
        return batch


def _shortened(item: object) -> object:
    """Half of whatever has a length in an item; a record that may never have been."""
    if isinstance(item, dict):
        return {key: _shortened(value) for key, value in item.items()}
    if isinstance(item, list | tuple) and not all(isinstance(x, int | float) for x in item):
        return type(item)([_shortened(x) for x in item]) if type(item) in (list, tuple) else item
    if isinstance(item, str | list | tuple) or (isinstance(item, Tensor | np.ndarray) and item.ndim > 0):
        return item[: max(1, len(item) // 2)]
    return item


# ---------------------------------------------------------------------------------------------------
# augmented


class PrivateAugment:
    """Batches after `augment` (None changes nothing); `copies` consecutive rows are one record.

    dataset: whose records they are. What is large in it is data, which a transform only reads.
    """

    def __init__(self, augment: Augment | None, copies: int = 1, *, dataset: object = None) -> None:
        self.augment, self.copies = augment, copies
        self._isolation = Isolation(None if augment is None else dataset, code=(augment,))

    def check(self) -> None:
        """Raise for a transform that holds what cannot be put back after a record."""
        self._isolation.check()

    def of_public(self, batch: Batch) -> Batch:
        """A row that is not private, by itself like the private ones; an error says what is wrong with it."""
        if self.augment is None:
            return batch
        try:
            with seeded(0):
                return self._made(batch[0], row_count(batch)), batch[1]
        except (InputError, *INTERRUPTS):
            raise
        except BaseException as error:
            raise InputError(
                f"augment= fails ({first_line(error)}) on a row that is not private. It is given one row at "
                "a time, as a batch of one"
            ) from error

    def __call__(self, batch: Batch, seed: int) -> list[Batch]:
        """Batches of rows of one shape. A record on which the transform fails is in none of them."""
        if self.augment is None:
            return [batch]
        with silent(), seeded(0):
            reseed(seed)
            if each_row_alone(self.augment) and (made := self._together(batch)) is not None:
                return [made]
            return self._one_by_one(batch, seed)

    def _together(self, batch: Batch) -> Batch | None:
        """All rows at once, for a transform that is known to keep them apart."""
        try:
            return self._made(batch[0], row_count(batch)), batch[1]
        except INTERRUPTS:
            raise
        except BaseException:
            return None

    def _one_by_one(self, batch: Batch, seed: int) -> list[Batch]:
        leaves, structure = tree_flatten(batch[0])

        def one(place: int) -> object:
            row = [leaf[place : place + 1].clone() for leaf in leaves]  # it may write into it, or keep it
            return self._made(tree_unflatten(row, structure), 1)

        made = self._isolation.each(one, [(i, record_seed(seed, i)) for i in range(row_count(batch))])
        groups: dict[Shape, tuple[list[object], list[int]]] = {}
        for low in range(0, len(made), self.copies):
            rows = made[low : low + self.copies]
            shapes = {None if row is None else _row_shape(row) for row in rows}
            shape = shapes.pop()
            if shape is None or shapes:
                continue  # the transform failed on a copy, or made them of several shapes
            together, places = groups.setdefault(shape, ([], []))
            together.extend(rows)
            places.extend(range(low, low + self.copies))
        return [(_joined(rows), take(batch[1], torch.tensor(kept))) for rows, kept in groups.values()]

    def _made(self, inputs: object, count: int) -> object:
        """The transform of these rows, in memory of its own, and as many as were given."""
        if self.augment is None:
            return inputs
        device = next(leaf.device for leaf in tree_leaves(inputs) if isinstance(leaf, Tensor))
        made = owned(self.augment(inputs), device)
        if row_count((made, ())) != count:
            raise InputError(ROW_FOR_ROW)
        return made


# ---------------------------------------------------------------------------------------------------
# rows of one shape


def same_parts(one: Batch, other: Batch) -> bool:
    """Whether two batches are made of the same parts: structure, types and numbers of dimensions."""
    return _parts(one) == _parts(other)


def _parts(batch: Batch) -> tuple[str, list[tuple[torch.dtype, int]]]:
    leaves, structure = tree_flatten(batch)
    return str(structure), [(leaf.dtype, leaf.dim()) for leaf in leaves]


def _same_shapes(one: Batch, other: Batch) -> bool:
    """Whether rows of two batches have the same parts and sizes."""
    return _row_shape(one) == _row_shape(other)


def _same_numbers(one: Batch, other: Batch) -> bool:
    """Whether two batches are equal."""
    pairs = zip(tree_leaves(one), tree_leaves(other), strict=False)
    return _same_shapes(one, other) and all(torch.equal(a, b) for a, b in pairs)


def _row_shape(rows: object) -> Shape:
    """What the rows of tensors in a structure have in common: structure, types and sizes."""
    if isinstance(rows, Tensor):
        return rows.dtype, rows.shape[1:]
    leaves, structure = tree_flatten(rows)
    return (str(structure), *((leaf.dtype, leaf.shape[1:]) for leaf in leaves))


def _grouped(batches: Sequence[Batch | None]) -> list[PlacedRows]:
    """One batch for each shape of a row, and the places of its rows."""
    groups: dict[Shape, list[PlacedRows]] = {}
    for place, batch in enumerate(batches):
        if batch is not None:
            groups.setdefault(_row_shape(batch), []).append(PlacedRows(batch, np.array([place])))
    return list(map(_together, groups.values()))


def _together(parts: Sequence[PlacedRows]) -> PlacedRows:
    return PlacedRows(_joined([part.rows for part in parts]), np.concatenate([part.places for part in parts]))


def _by_shape(batches: Sequence[Batch]) -> dict[Shape, list[Batch]]:
    groups: dict[Shape, list[Batch]] = {}
    for batch in batches:
        groups.setdefault(_row_shape(batch), []).append(batch)
    return groups


def _joined(parts: Sequence[Rows]) -> Rows:
    """Rows of one shape, together."""
    if len(parts) == 1:
        return parts[0]
    together: Rows = tree_map(lambda *some: torch.cat(some), *parts)
    return together
