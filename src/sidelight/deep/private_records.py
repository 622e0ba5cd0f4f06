"""Private records, each made into a row by itself.

A record is alone: its row depends on its item and on public things. So `collate` never sees two private
records together. Where there are public records it sees a private one beside the longest of these, so that a
collate which pads to the longest pads (almost) all private records to one public length; where there are
none, it sees a private record alone, and rows of one length are trained on together. Either way no record
changes what another becomes, whether or not the model minds padding.

An item that cannot be read or collated, or that is made of other parts or types than most are, is left out,
and without a word: an error would tell of it.

Its random numbers are its own as well: generators begin anew for every record, from a secret of the step and
the record's number. What the dataset or `collate` keeps (the longest so far, a buffer) is put back or copied.
"""

from __future__ import annotations

import logging
import signal
import threading
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.data import DataLoader

from sidelight.augment.mixing import seeded
from sidelight.deep.rows_alone import ITEMS, RowsAlone, joined_rows, row_shape, same_parts, same_shapes
from sidelight.errors import INTERRUPTS, InputError
from sidelight.oracles.network.batches import CHUNK, Batch, Chunks, Loading, Records, not_interrupted, take
from sidelight.oracles.network.state import record_seed, silent

__all__ = ["PrivateRecords"]

_TRIED = 64  # records whose usual form is taken to be public, and that there is one
_PUBLIC = 64  # public records among which the longest is sought
_PAIRS = 8  # public records with which collate is asked for their order


class PrivateRecords:
    """The records of a private dataset, of which nothing is read before `learn`."""

    def __init__(self, dataset: Any, loading: Loading, device: torch.device) -> None:
        self._plain = Records(dataset, loading, device)
        self._loading, self._device = loading, device
        self._alone = RowsAlone(self._plain.dataset, loading.collate, device)
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
        self._alone.isolation.check()
        if self._loading.workers:
            self._start_workers()

    def forget(self) -> None:
        """Put back what a fingerprint of the records has left in the dataset."""
        self._alone.isolation.restore()

    def learn(self) -> Batch:
        """The form that most of the first records have: taken to be public, and decided by no single one."""
        if self._form is None:
            with seeded(0):  # a run that is resumed looks again, and must then draw what it would have drawn
                tried = [(i, record_seed(0, i)) for i in range(min(_TRIED, len(self)))]
                rows = [row for row in self._rows(tried) if row is not None]
            if not rows:
                raise InputError(f"the private dataset gives no record that can be trained on. {ITEMS}")
            usual = max(_by_shape(rows).values(), key=len)
            self._form = self._moved(take(usual[0], slice(0, 0)))
        return self._form

    def batches(self, indices: Sequence[int] | np.ndarray[Any, Any] | None, *, seed: int = 0) -> list[Batch]:
        """The records at these places (None: all), in batches of rows of one shape; at least one batch.

        `seed`: a secret, from which the random numbers that a record's item may draw follow.
        """
        form = self.learn()
        if self._plain.in_tensors:
            return [self._plain.fetch(indices)] if indices is None or len(indices) else [form]
        wanted = np.arange(len(self)) if indices is None else np.asarray(indices, dtype=np.int64)
        found = _grouped([group for chunk in self._fetched(wanted, seed) for group in chunk])
        usable = [batch for batch in found if same_parts(batch, form)]
        return [moved for batch in usable if (moved := self._fitting(batch, form)) is not None] or [form]

    def close(self) -> None:
        """End the workers."""
        self._loader = None

    def _try_on(self, public: Records) -> None:
        rows = [self._alone.row(public.dataset[i]) for i in range(min(_PUBLIC, len(public)))]
        if self._loading.collate is not None:
            longest = max(range(len(rows)), key=lambda i: sum(leaf.numel() for leaf in tree_leaves(rows[i])))
            beside = (public.dataset[longest],)
            self._alone = RowsAlone(self._alone.dataset, self._alone.collate, self._device, beside)
            self._alone.row(public.dataset[0])
            self._alone.refuse_another_order([public.dataset[i] for i in range(min(_PAIRS, len(public)))])

    def _start_workers(self) -> None:
        try:
            with _interrupts_ignored():  # a process that is started so ignores them from its first moment on
                self._fetched(np.arange(0), 0)
        except Exception as error:
            raise InputError(
                f"{self._loading.workers} workers cannot be started ({type(error).__name__}): dataset and "
                "collate must be defined on the top level of a module, or use Loading(workers=0)"
            ) from None

    def _rows(self, wanted: list[tuple[int, int]]) -> list[Batch | None]:
        with silent():
            return self._alone.__getitems__(wanted)

    def _fetched(self, wanted: np.ndarray[Any, Any], seed: int) -> list[Any]:
        """Lists of batches, a list a chunk."""
        workers = self._loading.workers
        size = min(CHUNK, max(1, -(-len(wanted) // max(1, 2 * workers))))
        each = [(int(i), record_seed(seed, int(i))) for i in wanted]
        self._chunks.now = [each[i : i + size] for i in range(0, len(each), size)]
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
        with silent(), seeded(0):  # records leave the generators of this process as they were
            return list(self._loader)

    def _fitting(self, batch: Batch, form: Batch) -> Batch | None:
        """On the device; None for records of another form than the usual one that it has no room for."""
        try:
            return self._moved(batch)
        except INTERRUPTS:
            raise
        except BaseException:
            if same_shapes(batch, form):
                raise
            return None

    def _moved(self, batch: Batch) -> Batch:
        moved: Batch = tree_map(lambda x: x.to(self._device), batch)
        return moved


def _grouped(batches: Sequence[Batch | None]) -> list[Batch]:
    """One batch for each shape of a row."""
    return list(map(joined_rows, _by_shape([batch for batch in batches if batch is not None]).values()))


def _by_shape(batches: Sequence[Batch]) -> dict[Any, list[Batch]]:
    groups: dict[Any, list[Batch]] = {}
    for batch in batches:
        groups.setdefault(row_shape(batch), []).append(batch)
    return groups


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
