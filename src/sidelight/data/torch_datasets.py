"""Datasets as users bring them: which can be trained on, how a ledger knows one, what two of them share."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass
from typing import cast

import numpy as np
from torch import Tensor
from torch.utils.data import ConcatDataset, DataLoader, Dataset, IterableDataset, Subset, TensorDataset

from sidelight.arrays import Array
from sidelight.errors import INTERRUPTS, InputError
from sidelight.privacy.identity import Identity

__all__ = ["as_dataset", "identity_of", "record_count", "repeats_a_record", "root_of", "shared_records"]

_PAIR = "pass a dataset, or a pair of tensors (inputs, targets) with one row per record"
_BY_NUMBER = (
    "private records are drawn by chance, one by one, so a dataset has len() and items by number (map-style)"
)


def as_dataset(data: object) -> Dataset[object]:
    """A map-style dataset as it is; a pair of tensors as one. Whatever else is refused, by its type alone."""
    if isinstance(data, tuple | list):
        return _from_pair(data)
    if isinstance(data, DataLoader):
        raise InputError(
            "batches are drawn by chance and not by a DataLoader: pass its dataset, fit(loader.dataset), and "
            "to the trainer expected_batch_size=loader.batch_size, "
            "loading=Loading(collate=loader.collate_fn, workers=loader.num_workers)"
        )
    if isinstance(data, IterableDataset):
        raise InputError(
            f"{type(data).__name__} is an IterableDataset; {_BY_NUMBER}: store its records first"
        )
    if isinstance(data, Mapping):
        return NamedRows(data)
    if isinstance(data, Tensor | np.ndarray | str) or hasattr(data, "columns"):
        raise InputError(f"{type(data).__name__} is no dataset of (inputs, targets); {_PAIR}")
    if isinstance(data, Subset):
        _check_subset(data)
    if not (hasattr(data, "__getitem__") and isinstance(data, Sized)):
        raise InputError(f"{type(data).__name__} is no dataset: {_BY_NUMBER}")
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
                "a dictionary of records has tensors with one row a record, equally many in each, and one of "
                "them is 'labels'"
            )
        self.column_names = list(self.tensors)

    def __len__(self) -> int:
        return len(self.tensors["labels"])

    def __getitem__(self, place: int) -> dict[str, Tensor]:
        return {name: part[place] for name, part in self.tensors.items()}


def record_count(dataset: object) -> int:
    """How many records it has: torch's Dataset declares no length, and every map-style one has it."""
    if not isinstance(dataset, Sized):
        raise InputError(f"{type(dataset).__name__} is no dataset: {_BY_NUMBER}")
    return len(dataset)


def _check_subset(data: Subset[object]) -> None:
    rows = np.asarray(data.indices)
    size = record_count(as_dataset(data.dataset))
    if rows.size and (rows.dtype.kind not in "iu" or rows.min() < -size or rows.max() >= size):
        raise InputError(f"a Subset names records that its dataset of {size} records does not have")


def _from_pair(data: Sequence[object]) -> TensorDataset:
    if len(data) == 2 and all(isinstance(part, np.ndarray) for part in data):
        raise InputError(f"{_PAIR}: torch.as_tensor(array) makes one of a NumPy array")
    tensors = [part for part in data if isinstance(part, Tensor) and part.dim()]
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
# does a dataset hold records of another?


def repeats_a_record(dataset: object) -> bool:
    """Whether a subset or a concatenation names a record twice, as far as these and tensors tell."""
    rows: dict[int, list[Array]] = {}
    for part in _parts(dataset, None) if isinstance(dataset, Subset | ConcatDataset) else ():
        rows.setdefault(part.root, []).append(part.rows)
    every = [np.concatenate(some) for some in rows.values()]
    return any(len(np.unique(one)) < len(one) for one in every)


def shared_records(first: object, second: object) -> bool:
    """Whether some record is in both, as far as subsets, concatenations and tensors tell."""
    return any(a.overlaps(b) for a in _parts(first, None) for b in _parts(second, None))


@dataclass(frozen=True, eq=False)
class _Rows:
    """Some rows of a dataset, or (for tensors) the address of each row in memory."""

    root: int
    rows: Array

    def overlaps(self, other: _Rows) -> bool:
        return self.root == other.root and bool(np.isin(self.rows, other.rows).any())


def _parts(dataset: object, rows: Array | None) -> list[_Rows]:
    if isinstance(dataset, Subset):
        size = max(1, record_count(dataset.dataset))
        indices = np.asarray(dataset.indices, dtype=np.int64) % size  # −1 is the last
        return _parts(dataset.dataset, indices if rows is None else indices[rows])
    numbers = np.arange(record_count(dataset)) if rows is None else rows
    if isinstance(dataset, ConcatDataset):
        starts = np.concatenate([[0], dataset.cumulative_sizes])
        parts = zip(dataset.datasets, starts[:-1], starts[1:], strict=True)
        return [
            rows_of_part
            for part, low, high in parts
            for rows_of_part in _parts(part, numbers[(numbers >= low) & (numbers < high)] - low)
        ]
    if isinstance(dataset, TensorDataset) and dataset.tensors[0].numel():
        first = dataset.tensors[0]
        step = max(1, first.stride(0)) * first.element_size()
        return [_Rows(first.untyped_storage().data_ptr(), first.data_ptr() + numbers * step)]
    return [_Rows(id(dataset), numbers)]
