"""Datasets as users bring them: which can be trained on, how a ledger knows one, what two of them share."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor
from torch.utils.data import ConcatDataset, DataLoader, Dataset, IterableDataset, Subset, TensorDataset

from sidelight.errors import InputError
from sidelight.privacy.identity import Identity

__all__ = ["as_dataset", "identity_of", "root_of", "shared_records"]

_PAIR = "pass a dataset, or a pair of tensors (inputs, targets) with one row a record"
_BY_NUMBER = (
    "private records are drawn by chance, one by one, so a dataset has len() and items by number (map-style)"
)


def as_dataset(data: Any) -> Dataset[Any]:
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
    if isinstance(data, Tensor | np.ndarray | Mapping | str) or hasattr(data, "columns"):
        raise InputError(f"{type(data).__name__} is no dataset of (inputs, targets); {_PAIR}")
    if isinstance(data, Subset):
        _check_subset(data)
    if not (hasattr(data, "__getitem__") and hasattr(data, "__len__")):
        raise InputError(f"{type(data).__name__} is no dataset: {_BY_NUMBER}")
    try:
        len(data)
    except Exception:
        raise InputError(
            f"{type(data).__name__} does not say how many records it has; {_BY_NUMBER}"
        ) from None
    return data  # type: ignore[no-any-return]


def _check_subset(data: Subset[Any]) -> None:
    inside, rows = as_dataset(data.dataset), np.asarray(data.indices)
    size = len(inside)  # type: ignore[arg-type]
    if rows.size and (rows.dtype.kind not in "iu" or rows.min() < -size or rows.max() >= size):
        raise InputError(f"a Subset names records that its dataset of {size} records does not have")


def _from_pair(data: Any) -> Dataset[Any]:
    if len(data) == 2 and all(isinstance(one, np.ndarray) for one in data):
        raise InputError(f"{_PAIR}: torch.as_tensor(array) makes one of a NumPy array")
    if len(data) != 2 or not all(isinstance(one, Tensor) and one.dim() for one in data):
        raise InputError(_PAIR)
    if len(data[0]) != len(data[1]):
        raise InputError("inputs and targets must have equally many rows")
    return TensorDataset(*data)


def root_of(dataset: Any) -> Any:
    """The dataset inside of subsets; of a concatenation, its first one."""
    while isinstance(dataset, Subset | ConcatDataset):
        dataset = dataset.dataset if isinstance(dataset, Subset) else dataset.datasets[0]
    return dataset


# ---------------------------------------------------------------------------------------------------
# by what a ledger knows a dataset again


def identity_of(dataset: Any) -> Identity:
    """Number of records, and the shape of one where tensors show it, or columns where the dataset has names.

    Its items are read only if the owner of the ledger's dataset agreed; they must then be the same each time.
    """
    root = root_of(dataset)
    if type(root) is TensorDataset:
        shape = tuple(root.tensors[0].shape[1:])
        if root is dataset:
            return Identity(len(dataset), shape=shape, contents=lambda: root.tensors)
        return Identity(len(dataset), shape=shape, contents=lambda: (_items(dataset),))
    names = getattr(root, "column_names", None)  # as Hugging Face's datasets have them
    named = isinstance(names, list | tuple) and all(isinstance(name, str) for name in names)
    columns = dict.fromkeys(names) if named and names is not None else None
    return Identity(len(dataset), columns=columns, contents=lambda: (_items(dataset),))


def _items(dataset: Any) -> Iterator[Any]:
    for place in range(len(dataset)):
        try:
            yield dataset[place]
        except Exception:
            yield None  # an error would tell of a record


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
