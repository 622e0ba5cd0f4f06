"""Datasets as users bring them: which can be trained on, how a ledger knows one, how records are fetched.

`Records` fetches them from a map-style dataset by their numbers, as batches (oracles/network/batches.py).
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, TypeAlias, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils._pytree import tree_map
from torch.utils.data import (
    ConcatDataset,
    DataLoader,
    Dataset,
    IterableDataset,
    Subset,
    TensorDataset,
    default_collate,
)

from sidelight.arrays import Array
from sidelight.errors import INTERRUPTS, InputError, SidelightError, callable_or_none, first_line, whole
from sidelight.oracles.network.batches import Batch, each_tensor, row_count, take
from sidelight.privacy.identity import Identity

_PAIR = "pass a dataset, or a pair of tensors (inputs, targets) with one row per record"
_BY_NUMBER = "private records are drawn at random, so a dataset needs len() and items by index (map-style)"


def as_dataset(data: object, *, public: bool = False) -> Dataset[object]:
    """A map-style dataset as it is; a pair of tensors as one. Whatever else is refused, by its type alone.

    Arrays of NumPy are taken of public records: of private ones, a missing value decides an array's type.
    """
    if isinstance(data, tuple | list):
        return _from_pair(data, public=public)
    if isinstance(data, DataLoader):
        raise InputError(
            "a DataLoader shuffles, but the accounting needs batches that are drawn at random: pass its "
            "dataset instead.\n"
            "    from sidelight.deep import Loading\n"
            "    loading = Loading(collate=loader.collate_fn, workers=loader.num_workers)\n"
            "    Trainer(..., expected_batch_size=loader.batch_size, loading=loading)"
            ".fit(loader.dataset, ...)"
        )
    if isinstance(data, IterableDataset):
        raise InputError(
            f"{type(data).__name__} is an IterableDataset; {_BY_NUMBER}: store its records first"
        )
    if isinstance(data, Mapping):
        return NamedRows(data)
    frame = hasattr(data, "columns") and not isinstance(data, Dataset)  # a dataset may have columns too
    if isinstance(data, Tensor | np.ndarray | str) or frame:
        raise InputError(f"{type(data).__name__} is not a dataset of (inputs, targets); {_PAIR}")
    if isinstance(data, Subset):
        _check_subset(data)
    if not (hasattr(data, "__getitem__") and isinstance(data, Sized)):
        raise InputError(f"{type(data).__name__} is not a dataset: {_BY_NUMBER}")
    try:
        len(data)
    except Exception:
        raise InputError(
            f"{type(data).__name__} does not say how many records it has; {_BY_NUMBER}"
        ) from None
    return cast(Dataset[object], data)  # in all that is used of one


class NamedRows(Dataset[object]):
    """Tensors by name, as a tokenizer gives them: an item is a dictionary with one row of each."""

    def __init__(self, named: Mapping[str, object]) -> None:
        self.tensors = {str(name): part for name, part in named.items() if isinstance(part, Tensor)}
        lengths = {len(part) if part.dim() else -1 for part in self.tensors.values()}
        if len(self.tensors) < len(named) or len(lengths) != 1 or "labels" not in self.tensors:
            raise InputError(
                "a dictionary of records has tensors with one row per record, equally many in each, and one "
                "of them is 'labels'"
            )
        self.column_names = list(self.tensors)

    def __len__(self) -> int:
        return len(self.tensors["labels"])

    def __getitem__(self, place: int) -> dict[str, Tensor]:
        return {name: part[place] for name, part in self.tensors.items()}


def record_count(dataset: object) -> int:
    """How many records it has: torch's Dataset declares no length, and every map-style one has it."""
    if not isinstance(dataset, Sized):
        raise InputError(f"{type(dataset).__name__} is not a dataset: {_BY_NUMBER}")
    return len(dataset)


def _check_subset(data: Subset[object]) -> None:
    rows = np.asarray(data.indices)
    size = record_count(as_dataset(data.dataset))
    if rows.size and (rows.dtype.kind not in "iu" or rows.min() < -size or rows.max() >= size):
        raise InputError("a Subset names records that its dataset does not have")


def as_tensor(array: Array) -> Tensor:
    """Of a NumPy array of numbers; floats in PyTorch's default type, which models have."""
    if array.dtype.kind not in "biuf":
        raise InputError(f"an array of type {array.dtype} holds no numbers; {_PAIR}")
    made = torch.as_tensor(np.ascontiguousarray(array))
    return made.to(torch.get_default_dtype()) if made.is_floating_point() else made


def _from_pair(data: Sequence[object], *, public: bool) -> TensorDataset:
    if not public and any(isinstance(part, np.ndarray) for part in data):
        raise InputError(
            f"{_PAIR}: torch.as_tensor(array) makes one of a NumPy array. PrivateNetClassifier and "
            "PrivateNetRegressor take arrays, of any type, value by value"
        )
    parts = [as_tensor(part) if isinstance(part, np.ndarray) else part for part in data]
    tensors = [part for part in parts if isinstance(part, Tensor) and part.dim()]
    if len(data) != 2 or len(tensors) != 2:
        raise InputError(_PAIR)
    if len(tensors[0]) != len(tensors[1]):
        raise InputError("inputs and targets must have equally many rows")
    return TensorDataset(*tensors)


def root_of(dataset: object) -> object:
    """The dataset inside of subsets; of a concatenation, its first one."""
    while isinstance(dataset, Subset | ConcatDataset):
        dataset = dataset.dataset if isinstance(dataset, Subset) else dataset.datasets[0]
    return dataset


# ---------------------------------------------------------------------------------------------------
# by what a ledger knows a dataset again


def identity_of(dataset: Dataset[object]) -> Identity:
    """Number of records, and the shape of one where tensors show it, or columns where the dataset has names.

    Its items are read only if the owner of the ledger's dataset agreed; they must then be the same each time.
    """
    root, count = root_of(dataset), record_count(dataset)
    if isinstance(root, TensorDataset) and type(root) is TensorDataset:
        shape = tuple(root.tensors[0].shape[1:])
        if root is dataset:
            return Identity(count, shape=shape, contents=lambda: root.tensors)
        return Identity(count, shape=shape, contents=lambda: (_items(dataset),))
    names = getattr(root, "column_names", None)  # as Hugging Face's datasets have them
    named = isinstance(names, list | tuple) and all(isinstance(name, str) for name in names)
    columns = dict.fromkeys(names) if named and names is not None else None
    return Identity(count, columns=columns, contents=lambda: (_items(dataset),))


def _items(dataset: Dataset[object]) -> Iterator[object]:
    for index in range(record_count(dataset)):
        try:
            item: object = dataset[index]
        except INTERRUPTS:
            raise
        except BaseException:
            item = None  # an error would tell of a record
        yield item


# ---------------------------------------------------------------------------------------------------
# records of a map-style dataset


CHUNK = 256  # records that a worker fetches at a time, at most


@dataclass(frozen=True)
class Loading:
    """How records are brought to the model. Speed and memory only: nothing here changes a result.

    Args:
        workers: processes that fetch records; 0 fetches in this one.
        micro_batch: records whose activations are held at a time; None takes a batch at once.
        collate: makes a batch (inputs, targets) of a list of records; None is PyTorch's own. Private records
            are given to it one by one, and what it keeps from one is put back (`private_records`).
        cache_bytes: memory for the activations of a model's frozen part, which are then computed once per
            record; 0 computes them in every step, as with augmentation or checkpoints.
    """

    workers: int = 0
    micro_batch: int | None = None
    collate: Callable[[list[Any]], object] | None = None
    cache_bytes: int = 2**30

    def __post_init__(self) -> None:
        whole("workers", self.workers, least=0)
        whole("micro_batch", self.micro_batch, optional=True)
        whole("cache_bytes", self.cache_bytes, least=0)
        callable_or_none("collate", self.collate)


class Records:
    """A dataset whose items are (inputs, targets), and need no protection: errors say what is wrong."""

    def __init__(self, dataset: Dataset[object], loading: Loading, device: torch.device) -> None:
        self.dataset = as_dataset(dataset)
        self.loading, self.device = loading, device
        self._chunks = Chunks()
        self._loader: DataLoader[object] | None = None
        self._empty: Batch | None = None

    def __len__(self) -> int:
        return record_count(self.dataset)

    def fetch(self, indices: Sequence[int] | NDArray[np.int64] | None) -> Batch:
        """The records at these places (None: all), as one batch on the device; there may be none."""
        wanted = np.arange(len(self)) if indices is None else np.asarray(indices, dtype=np.int64)
        if not len(wanted):
            return self._without_rows()
        batch = self._from_tensors(wanted)
        return self._moved(self._collated(wanted) if batch is None else batch)

    def _collated(self, wanted: NDArray[np.int64]) -> Batch:
        try:
            parts = list(self._from_loader(wanted))
            return parts[0] if len(parts) == 1 else tree_map(lambda *some: torch.cat(some), *parts)
        except SidelightError:
            raise
        except Exception as error:
            raise InputError(
                f"records of a public dataset cannot be put into a batch ({first_line(error)}). "
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
        return self._gather is not None

    @cached_property
    def _gather(self) -> Gather | None:
        return None if self.loading.collate is not None else gather_for(self.dataset)

    def _from_tensors(self, wanted: NDArray[np.int64]) -> Batch | None:
        """Straight from the tensors of a TensorDataset, or of subsets and concatenations of such."""
        return None if self._gather is None else _pair(self._gather(wanted))

    def _from_loader(self, wanted: NDArray[np.int64]) -> Iterator[Batch]:
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
                collate_fn=self.loading.collate or collate_plainly,
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
        return each_tensor(batch, lambda x: x.to(self.device))

    def close(self) -> None:
        """End the workers."""
        self._loader = None


def not_interrupted(worker: int) -> None:
    """Ctrl-C reaches every process of a terminal; the step at hand still needs its records."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


Gather: TypeAlias = Callable[[NDArray[np.int64]], list[Tensor]]  # rows by their numbers


def gather_for(dataset: object) -> Gather | None:
    """How to take rows from the tensors of a dataset at once; None where items must be asked for.

    For a TensorDataset, and for subsets and concatenations of such whose rows have one form. A class of
    somebody's own, which may do more than these, is asked for its items.
    """
    if type(dataset) is TensorDataset:
        return partial(_rows_of, dataset.tensors)
    if type(dataset) is Subset:
        inner, indices = gather_for(dataset.dataset), np.asarray(dataset.indices, dtype=np.int64)
        size = record_count(dataset.dataset)
        return None if inner is None else lambda rows: inner(indices[rows] % size)  # −1 is the last
    if type(dataset) is ConcatDataset:
        parts = [gather_for(part) for part in dataset.datasets]
        found = [part for part in parts if part is not None]
        if len(found) < len(parts) or len({_form_of_rows(part(np.arange(0))) for part in found}) > 1:
            return None
        return partial(_from_parts, found, np.asarray(dataset.cumulative_sizes))
    return None


def _rows_of(tensors: Sequence[Tensor], rows: NDArray[np.int64]) -> list[Tensor]:
    places = torch.from_numpy(rows)
    return [x.index_select(0, places) if x.is_cpu else x[places] for x in tensors]


def _form_of_rows(tensors: Sequence[Tensor]) -> tuple[object, ...]:
    return tuple((x.dtype, x.shape[1:], x.device) for x in tensors)


def _from_parts(parts: Sequence[Gather], ends: NDArray[np.int64], rows: NDArray[np.int64]) -> list[Tensor]:
    """Rows of a concatenation, in the order in which they are asked for."""
    which, starts = np.searchsorted(ends, rows, side="right"), np.concatenate([[0], ends[:-1]])
    order = np.argsort(which, kind="stable")
    taken = [part(rows[which == number] - starts[number]) for number, part in enumerate(parts)]
    back = torch.from_numpy(np.argsort(order, kind="stable"))
    return [torch.cat(some)[back] for some in zip(*taken, strict=True)]


class Chunks:
    """The batches of the step at hand, for a loader that is made once: what a dataset is asked for."""

    def __init__(self) -> None:
        self.now: Sequence[Sequence[object]] = []

    def __iter__(self) -> Iterator[list[object]]:
        return map(list, self.now)

    def __len__(self) -> int:
        return len(self.now)


def paired(batch: object) -> Batch | None:
    """(inputs, targets) as a pair, or named parts whose `labels` are the targets; None for anything else."""
    if isinstance(batch, Mapping):
        named = {str(name): part for name, part in batch.items() if name != "labels"}
        return (named, batch["labels"]) if named and "labels" in batch else None
    return (batch[0], batch[1]) if isinstance(batch, tuple | list) and len(batch) == 2 else None


def _pair(batch: object) -> Batch:
    if (pair := paired(batch)) is None:
        raise InputError(
            "an item of a dataset must be (inputs, targets), or a dictionary with 'labels'; pass "
            "Loading(collate=...) to make it so"
        )
    return pair


def collate_plainly(items: list[Any]) -> object:
    """PyTorch's own batch; of dictionaries, as tokenizers give them, one tensor for each name.

    A list of numbers is a row there (PyTorch would make a tensor of each place in it); a text is left out.
    """
    if not all(isinstance(item, Mapping) for item in items):
        return default_collate(items)
    names = [name for name, value in items[0].items() if not isinstance(value, str)]
    return {name: torch.stack([torch.as_tensor(item[name]) for item in items]) for name in names}
