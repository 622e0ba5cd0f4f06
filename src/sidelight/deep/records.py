"""Records of a map-style dataset, fetched by their numbers, and which records two datasets share."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_map
from torch.utils.data import ConcatDataset, DataLoader, Dataset, Subset, TensorDataset

from sidelight.deep.settings import callable_or_none, whole
from sidelight.errors import InputError
from sidelight.oracles.batches import Batch, row_count, take

__all__ = ["Loading", "Records", "shared_records"]

_CHUNK = 256  # records that a worker fetches at a time, at most


@dataclass(frozen=True)
class Loading:
    """How records are brought to the model. Speed and memory only: nothing here changes a result.

    Args:
        workers: processes that fetch records; 0 fetches in this one.
        micro_batch: records whose activations are held at a time; None takes a batch at once.
        collate: makes a batch (inputs, targets) of a list of records; None is PyTorch's own.
    """

    workers: int = 0
    micro_batch: int | None = None
    collate: Callable[[list[Any]], Any] | None = None

    def __post_init__(self) -> None:
        whole("workers", self.workers, least=0)
        whole("micro_batch", self.micro_batch, optional=True)
        callable_or_none("collate", self.collate)


class Records:
    """A dataset whose items are (inputs, targets)."""

    def __init__(self, dataset: Dataset[Any], loading: Loading, device: torch.device) -> None:
        if not (hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__")):
            raise InputError(
                "a dataset must have len() and items by number (map-style): private records are sampled by "
                f"chance, one by one, and {type(dataset).__name__} does not allow that"
            )
        self.dataset, self.loading, self.device = dataset, loading, device
        self._chunks = _Chunks()
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
        if batch is None:
            parts = list(self._from_loader(wanted))
            batch = parts[0] if len(parts) == 1 else tree_map(lambda *some: torch.cat(some), *parts)
        return self._moved(batch)

    def blocks(self, size: int = 1024) -> Iterator[Batch]:
        """All records in order, some at a time."""
        for low in range(0, len(self), size):
            yield self.fetch(np.arange(low, min(low + size, len(self))))

    def form(self) -> Batch | None:
        """A batch without rows, made without reading a record; None if only a record would tell."""
        dataset = self.dataset
        while isinstance(dataset, Subset | ConcatDataset):
            dataset = dataset.dataset if isinstance(dataset, Subset) else dataset.datasets[0]
        if self.loading.collate is not None or type(dataset) is not TensorDataset:
            return None
        return self._moved(_pair([tensor[:0] for tensor in dataset.tensors]))

    def _from_tensors(self, wanted: np.ndarray[Any, Any]) -> Batch | None:
        """Straight from the tensors of a TensorDataset, or of a subset of one."""
        dataset, rows = self.dataset, wanted
        if self.loading.collate is not None:
            return None
        while isinstance(dataset, Subset):
            rows, dataset = np.asarray(dataset.indices)[rows], dataset.dataset
        if type(dataset) is not TensorDataset:
            return None
        places = torch.from_numpy(rows)
        return _pair([tensor[places] for tensor in dataset.tensors])

    def _from_loader(self, wanted: np.ndarray[Any, Any]) -> Iterator[Batch]:
        size = min(_CHUNK, -(-len(wanted) // max(1, 2 * self.loading.workers)))
        self._chunks.now = [wanted[i : i + size].tolist() for i in range(0, len(wanted), size)]
        if self._loader is None:
            workers = self.loading.workers
            self._loader = DataLoader(
                self.dataset,
                batch_sampler=self._chunks,
                num_workers=workers,
                persistent_workers=workers > 0,  # one set of processes for all steps
                collate_fn=self.loading.collate,
                worker_init_fn=_not_interrupted,
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


def _not_interrupted(worker: int) -> None:
    """Ctrl-C reaches every process of a terminal; the step at hand still needs its records."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


class _Chunks:
    """The batches of the step at hand, for a loader that is made once."""

    def __init__(self) -> None:
        self.now: list[list[int]] = []

    def __iter__(self) -> Iterator[list[int]]:
        return iter(self.now)

    def __len__(self) -> int:
        return len(self.now)


def _pair(batch: Any) -> Batch:
    if not isinstance(batch, tuple | list) or len(batch) != 2:
        raise InputError(
            "an item of a dataset must be (inputs, targets); pass Loading(collate=...) to make it so"
        )
    return batch[0], batch[1]


# ---------------------------------------------------------------------------------------------------
# does a dataset hold records of another?


def shared_records(one: Any, other: Any) -> bool:
    """Whether some record is in both, as far as subsets, concatenations and tensors tell."""
    mine, theirs = _places(one, None), _places(other, None)
    return any(a.overlaps(b) for a in mine for b in theirs)


@dataclass(frozen=True, eq=False)
class _Place:
    """Some rows of a dataset, or (for tensors) an interval of memory a row."""

    root: int
    rows: np.ndarray[Any, Any]

    def overlaps(self, other: _Place) -> bool:
        return self.root == other.root and bool(np.isin(self.rows, other.rows).any())


def _places(dataset: Any, rows: np.ndarray[Any, Any] | None) -> list[_Place]:
    if isinstance(dataset, Subset):
        own = np.asarray(dataset.indices)
        return _places(dataset.dataset, own if rows is None else own[rows])
    wanted = np.arange(len(dataset)) if rows is None else rows
    if isinstance(dataset, ConcatDataset):
        starts = np.concatenate([[0], dataset.cumulative_sizes])
        parts = zip(dataset.datasets, starts[:-1], starts[1:], strict=True)
        found = [_places(part, wanted[(wanted >= low) & (wanted < high)] - low) for part, low, high in parts]
        return [place for some in found for place in some]
    if isinstance(dataset, TensorDataset) and dataset.tensors[0].numel():
        first = dataset.tensors[0]
        step = max(1, first.stride(0)) * first.element_size()
        return [_Place(first.untyped_storage().data_ptr(), first.data_ptr() + wanted * step)]
    return [_Place(id(dataset), wanted)]
