"""Private records, each made into a row by itself.

A record is alone: its row depends on its item and on public things. So `collate` never sees two private
records together. Where there are public records it sees a private one beside the longest of these, so that a
collate which pads to the longest pads (almost) all private records to one public length; where there are
none, it sees a private record alone, and rows of one length are trained on together. Either way no record
changes what another becomes, whether or not the model minds padding.

An item that cannot be read or collated, or that is made of other parts or types than most are, is left out,
and without a word: an error would tell of it.
"""

from __future__ import annotations

import signal
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map
from torch.utils.data import DataLoader, default_collate

from sidelight.augment.mixing import seeded
from sidelight.errors import InputError, SidelightError
from sidelight.oracles.network.batches import Batch, row_count, take
from sidelight.oracles.network.records import CHUNK, Chunks, Loading, Records, not_interrupted

__all__ = ["PrivateRecords", "same_parts", "same_shapes"]

_TRIED = 64  # records whose usual form is taken to be public, and that there is one
_PUBLIC = 64  # public records among which the longest is sought
_ITEMS = (
    "an item of a dataset must be (inputs, targets), tensors or numbers; Loading(collate=...) makes it so"
)


class PrivateRecords:
    """The records of a private dataset, of which nothing is read before `learn`."""

    def __init__(self, dataset: Any, loading: Loading, device: torch.device) -> None:
        self._plain = Records(dataset, loading, device)
        self._loading, self._device = loading, device
        self._alone = _Alone(self._plain.dataset, loading.collate)
        self._chunks = Chunks()
        self._loader: DataLoader[Any] | None = None
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
        if self._loading.workers:
            self._start_workers()

    def learn(self) -> Batch:
        """The form that most of the first records have: taken to be public, and decided by no single one."""
        if self._form is None:
            with seeded(0):  # a run that is resumed looks again, and must then draw what it would have drawn
                rows = [row for i in range(min(_TRIED, len(self))) if (row := self._row(i)) is not None]
            if not rows:
                raise InputError(f"the private dataset gives no record that can be trained on. {_ITEMS}")
            usual = max(_by_shape(rows).values(), key=len)
            self._form = self._moved(take(usual[0], slice(0, 0)))
        return self._form

    def batches(self, indices: Sequence[int] | np.ndarray[Any, Any] | None) -> list[Batch]:
        """The records at these places (None: all), in batches of rows of one shape; at least one batch."""
        form = self.learn()
        if self._plain.in_tensors:
            return [self._plain.fetch(indices)] if indices is None or len(indices) else [form]
        wanted = np.arange(len(self)) if indices is None else np.asarray(indices, dtype=np.int64)
        found = [group for chunk in self._fetched(wanted) for group in chunk]
        return [self._moved(batch) for batch in _grouped(found) if same_parts(batch, form)] or [form]

    def close(self) -> None:
        """End the workers."""
        self._loader = None

    def _try_on(self, public: Records) -> None:
        rows = [self._alone.row(public.dataset[i]) for i in range(min(_PUBLIC, len(public)))]
        if self._loading.collate is not None:
            longest = max(range(len(rows)), key=lambda i: sum(leaf.numel() for leaf in tree_leaves(rows[i])))
            self._alone = _Alone(self._alone.dataset, self._alone.collate, (public.dataset[longest],))
            self._alone.row(public.dataset[0])

    def _start_workers(self) -> None:
        try:
            with _interrupts_ignored():  # a process that is started so ignores them from its first moment on
                list(self._fetched(np.arange(0)))
        except Exception as error:
            raise InputError(
                f"{self._loading.workers} workers cannot be started ({type(error).__name__}): dataset and "
                "collate must be defined on the top level of a module, or use Loading(workers=0)"
            ) from None

    def _row(self, place: int) -> Batch | None:
        with _unheard():
            return self._alone[place]

    def _fetched(self, wanted: np.ndarray[Any, Any]) -> Any:
        workers = self._loading.workers
        size = min(CHUNK, max(1, -(-len(wanted) // max(1, 2 * workers))))
        self._chunks.now = [wanted[i : i + size].tolist() for i in range(0, len(wanted), size)]
        if self._loader is None:
            self._loader = DataLoader(
                self._alone,
                batch_sampler=self._chunks,
                num_workers=workers,
                persistent_workers=workers > 0,  # one set of processes for all steps
                collate_fn=_grouped,
                worker_init_fn=_in_worker,
                generator=torch.Generator().manual_seed(0),  # leaves PyTorch's own generator alone
            )
        with _unheard():
            yield from self._loader

    def _moved(self, batch: Batch) -> Batch:
        moved: Batch = tree_map(lambda x: x.to(self._device), batch)
        return moved


@dataclass(frozen=True)
class _Alone(torch.utils.data.Dataset[Any]):
    """A dataset whose items are batches of one row; None for a record that cannot be one."""

    dataset: Any
    collate: Callable[[list[Any]], Any] | None
    beside: tuple[Any, ...] = ()  # a public item, or none

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, place: int) -> Batch | None:
        try:
            return self.row(self.dataset[place])
        except Exception:  # it may quote the record
            return None

    def row(self, item: Any) -> Batch:
        """One row. Raises for an item that is no record: call it with public ones only."""
        try:
            made = (self.collate or default_collate)([item, *self.beside])
        except SidelightError:
            raise
        except Exception as error:
            what = "collate" if self.collate is not None else "putting a record into a batch"
            told = str(error).strip().split("\n")[0]
            raise InputError(
                f"{what} fails ({type(error).__name__}: {told}) on one record. {_ITEMS}"
            ) from error
        if not isinstance(made, tuple | list) or len(made) != 2:
            raise InputError(_ITEMS)
        batch = (made[0], made[1])
        if not all(isinstance(leaf, Tensor) for leaf in tree_leaves(batch)):
            raise InputError(_ITEMS)
        if row_count(batch) != 1 + len(self.beside):
            raise InputError("collate must give one row for each record, also if there is only one record")
        return take(batch, slice(0, 1))


def same_parts(one: Batch, other: Batch) -> bool:
    """Whether two batches are made of the same parts: structure, types and numbers of dimensions."""
    return _parts(one) == _parts(other)


def same_shapes(one: Batch, other: Batch) -> bool:
    """Whether rows of two batches have the same parts and sizes."""
    return _shape(one) == _shape(other)


def _shape(batch: Batch) -> tuple[Any, ...]:
    leaves, structure = tree_flatten(batch)
    return (str(structure), *((leaf.dtype, leaf.shape[1:]) for leaf in leaves))


def _parts(batch: Batch) -> tuple[str, list[Any]]:
    leaves, structure = tree_flatten(batch)
    return str(structure), [(leaf.dtype, leaf.dim()) for leaf in leaves]


def _grouped(batches: Sequence[Batch | None]) -> list[Batch]:
    """One batch for each shape of a row."""
    groups = _by_shape([batch for batch in batches if batch is not None]).values()
    return [some[0] if len(some) == 1 else tree_map(lambda *x: torch.cat(x), *some) for some in groups]


def _by_shape(batches: Sequence[Batch]) -> dict[Any, list[Batch]]:
    groups: dict[Any, list[Batch]] = {}
    for batch in batches:
        groups.setdefault(_shape(batch), []).append(batch)
    return groups


def _unheard() -> warnings.catch_warnings[None]:
    """A warning may quote a record, or come only for some."""
    return warnings.catch_warnings(action="ignore")


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
