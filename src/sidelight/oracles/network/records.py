"""Records of a map-style dataset, fetched by their numbers."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_map
from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset

from sidelight.arguments import callable_or_none, whole
from sidelight.data.torch_datasets import as_dataset, root_of
from sidelight.errors import InputError, SidelightError
from sidelight.oracles.network.batches import Batch, row_count, take

__all__ = ["CHUNK", "Chunks", "Loading", "Records", "not_interrupted"]

CHUNK = 256  # records that a worker fetches at a time, at most


@dataclass(frozen=True)
class Loading:
    """How records are brought to the model. Speed and memory only: nothing here changes a result.

    Args:
        workers: processes that fetch records; 0 fetches in this one.
        micro_batch: records whose activations are held at a time; None takes a batch at once.
        collate: makes a batch (inputs, targets) of a list of records; None is PyTorch's own. Private records
            are given to it one by one, and what it keeps from one is put back (`private_records`).
    """

    workers: int = 0
    micro_batch: int | None = None
    collate: Callable[[list[Any]], Any] | None = None

    def __post_init__(self) -> None:
        whole("workers", self.workers, least=0)
        whole("micro_batch", self.micro_batch, optional=True)
        callable_or_none("collate", self.collate)


class Records:
    """A dataset whose items are (inputs, targets), and need no protection: what is wrong is told."""

    def __init__(self, dataset: Dataset[Any], loading: Loading, device: torch.device) -> None:
        self.dataset: Any = as_dataset(dataset)
        self.loading, self.device = loading, device
        self._chunks = Chunks()
        self._loader: DataLoader[Any] | None = None
        self._empty: Batch | None = None

    def __len__(self) -> int:
        return len(self.dataset)

    def fetch(self, indices: Sequence[int] | np.ndarray[Any, Any] | None) -> Batch:
        """The records at these places (None: all), as one batch on the device; there may be none."""
        wanted = np.arange(len(self)) if indices is None else np.asarray(indices, dtype=np.int64)
        if not len(wanted):
            return self._without_rows()
        batch = self._from_tensors(wanted)
        return self._moved(self._collated(wanted) if batch is None else batch)

    def _collated(self, wanted: np.ndarray[Any, Any]) -> Batch:
        try:
            parts = list(self._from_loader(wanted))
            return parts[0] if len(parts) == 1 else tree_map(lambda *some: torch.cat(some), *parts)
        except SidelightError:
            raise
        except Exception as error:
            told = str(error).strip().split("\n")[0]
            raise InputError(
                f"records of a public dataset cannot be put into a batch ({type(error).__name__}: {told}). "
                "Its items must be (inputs, targets), tensors or numbers; Loading(collate=...) makes them so"
            ) from error

    def blocks(self, size: int = 1024) -> Iterator[Batch]:
        """All records in order, some at a time."""
        for low in range(0, len(self), size):
            yield self.fetch(np.arange(low, min(low + size, len(self))))

    def form(self) -> Batch | None:
        """A batch without rows, made without reading a record; None if only a record would tell."""
        dataset = root_of(self.dataset)
        if self.loading.collate is not None or type(dataset) is not TensorDataset:
            return None
        return self._moved(_pair([tensor[:0] for tensor in dataset.tensors]))

    @property
    def in_tensors(self) -> bool:
        """Whether rows are taken straight from tensors, which no record can make fail."""
        dataset = self.dataset
        while isinstance(dataset, Subset):
            dataset = dataset.dataset
        return self.loading.collate is None and type(dataset) is TensorDataset

    def _from_tensors(self, wanted: np.ndarray[Any, Any]) -> Batch | None:
        """Straight from the tensors of a TensorDataset, or of a subset of one."""
        if not self.in_tensors:
            return None
        dataset, rows = self.dataset, wanted
        while isinstance(dataset, Subset):
            rows, dataset = np.asarray(dataset.indices)[rows], dataset.dataset
        places = torch.from_numpy(rows)
        return _pair([tensor[places] for tensor in dataset.tensors])

    def _from_loader(self, wanted: np.ndarray[Any, Any]) -> Iterator[Batch]:
        size = min(CHUNK, -(-len(wanted) // max(1, 2 * self.loading.workers)))
        if self.loading.collate is not None:
            size = len(wanted)  # it may pad to the longest, and parts of several lengths are no batch
        self._chunks.now = [wanted[i : i + size].tolist() for i in range(0, len(wanted), size)]
        if self._loader is None:
            workers = self.loading.workers
            self._loader = DataLoader(
                self.dataset,
                batch_sampler=self._chunks,
                num_workers=workers,
                persistent_workers=workers > 0,  # one set of processes for all steps
                collate_fn=self.loading.collate,
                worker_init_fn=not_interrupted,
                generator=torch.Generator().manual_seed(0),  # leaves PyTorch's own generator alone
            )
        for batch in self._loader:
            yield _pair(batch)

    def _without_rows(self) -> Batch:
        if self._empty is None:
            self._empty = take(self.fetch([0]), slice(0, 0))  # shapes and types of records are public
        return self._empty

    def _moved(self, batch: Batch) -> Batch:
        row_count(batch)
        moved: Batch = tree_map(lambda x: x.to(self.device) if isinstance(x, Tensor) else x, batch)
        return moved

    def close(self) -> None:
        """End the workers."""
        self._loader = None


def not_interrupted(worker: int) -> None:
    """Ctrl-C reaches every process of a terminal; the step at hand still needs its records."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


class Chunks:
    """The batches of the step at hand, for a loader that is made once: what a dataset is asked for."""

    def __init__(self) -> None:
        self.now: list[list[Any]] = []

    def __iter__(self) -> Iterator[list[Any]]:
        return iter(self.now)

    def __len__(self) -> int:
        return len(self.now)


def _pair(batch: Any) -> Batch:
    if not isinstance(batch, tuple | list) or len(batch) != 2:
        raise InputError(
            "an item of a dataset must be (inputs, targets); pass Loading(collate=...) to make it so"
        )
    return batch[0], batch[1]
