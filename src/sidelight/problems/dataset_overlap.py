"""Which records two datasets share, and which were split off the dataset of another.

Records are never compared, which would tell about them. Subsets, concatenations and tensors say which rows
they hold. A dataset of any other class is one of its own; the datasets that it keeps in its attributes (what
it transforms, say) and the table of a Hugging Face dataset say where its records come from.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import ConcatDataset, Dataset, Subset, TensorDataset

from sidelight.arrays import Array
from sidelight.errors import PrivacyConditionError
from sidelight.problems.datasets import NamedRows, record_count


def repeats_a_record(dataset: object) -> bool:
    """Whether a subset or a concatenation names a record twice, as far as these and tensors tell."""
    rows: dict[Hashable, list[Array]] = {}
    for part in _parts(dataset) if isinstance(dataset, Subset | ConcatDataset) else ():
        rows.setdefault(part.root, []).append(part.rows)
    every = [np.concatenate(some) for some in rows.values()]
    return any(len(np.unique(one)) < len(one) for one in every)


def shared_records(first: object, second: object) -> bool:
    """Whether some record is in both."""
    return len(places_within(first, second)) > 0


def places_within(dataset: object, other: object) -> NDArray[np.intp]:
    """The places of those records of `dataset` that `other` holds too."""
    theirs = _parts(other)
    found = [a.places[np.isin(a.rows, b.rows)] for a in _parts(dataset) for b in theirs if a.root == b.root]
    return np.unique(np.concatenate([np.empty(0, dtype=np.intp), *found]))


def check_held_out(validation: object, private: object, public: object) -> None:
    """Refuse scores on private records, and on what was split off their dataset and not declared public.

    Scores are released without noise, and steer a run. Records beside the private ones in one dataset are as
    private as these (`random_split`), unless the user says by `public` that they are not.
    """
    if shared_records(validation, private):
        raise PrivacyConditionError("validation holds private records; pass public or test records")
    bases = {base for part in _parts(private) for base in part.bases}
    beside = [part.places for part in _parts(validation) if bases & part.bases]
    declared = np.empty(0, dtype=np.intp) if public is None else places_within(validation, public)
    if beside and not np.isin(np.concatenate(beside), declared).all():
        raise PrivacyConditionError(
            "validation was split off the dataset of the private records, and its scores are released "
            "without noise. Pass records from elsewhere; or, if these need no protection, say so by adding "
            "them to the public ones: fit(private, ConcatDataset([public, validation]))"
        )


def rows_in_memory(dataset: object, low: int, high: int) -> bool:
    """Whether some tensors of a dataset lie between these addresses."""
    memory = [part.rows for part in _parts(dataset) if isinstance(part.root, tuple)]
    return any(bool(((low <= rows) & (rows < high)).any()) for rows in memory)


@dataclass(frozen=True, eq=False)
class _Rows:
    """Some rows of a dataset, or (for tensors) the address of each row in memory."""

    root: Hashable  # whose rows these are: a dataset, or the memory of a device
    rows: Array
    places: NDArray[np.intp]  # of these rows in the dataset that was asked about
    bases: frozenset[Hashable]  # where they come from: datasets, storages of tensors


def _parts(
    dataset: object, rows: Array | None = None, places: Array | None = None, seen: set[int] | None = None
) -> list[_Rows]:
    """seen: datasets whose bases are being looked for. One may keep the parts that it was split into."""
    numbers = np.arange(record_count(dataset)) if rows is None else rows
    places = np.arange(len(numbers)) if places is None else places
    if isinstance(dataset, Subset):
        size = max(1, record_count(dataset.dataset))
        indices = np.asarray(dataset.indices, dtype=np.int64) % size  # −1 is the last
        return _parts(dataset.dataset, indices[numbers], places, seen)
    if isinstance(dataset, ConcatDataset):
        starts = np.concatenate([[0], dataset.cumulative_sizes])
        found = []
        for part, low, high in zip(dataset.datasets, starts[:-1], starts[1:], strict=True):
            within = (numbers >= low) & (numbers < high)
            found += _parts(part, numbers[within] - low, places[within], seen)
        return found
    if isinstance(dataset, TensorDataset) and dataset.tensors[0].numel():
        return [_addresses(dataset.tensors[0], numbers, places)]
    if isinstance(dataset, NamedRows):  # made anew of the same tensors at each call
        given = (part for part in dataset.tensors.values() if part.numel() and part.stride(0))
        named = {part.data_ptr(): part for part in given}  # labels may be the input_ids themselves
        return [_addresses(part, numbers, places) for part in named.values()]
    return [_Rows(id(dataset), numbers, places, frozenset(_bases(dataset, set() if seen is None else seen)))]


def _addresses(rows: Tensor, numbers: Array, places: Array) -> _Rows:
    step = max(1, rows.stride(0)) * rows.element_size()
    base = frozenset([(str(rows.device), rows.untyped_storage().data_ptr())])
    return _Rows((str(rows.device),), rows.data_ptr() + numbers * step, places, base)


def _bases(dataset: object, seen: set[int]) -> Iterator[Hashable]:
    """A dataset of some class and, in turn, those that it keeps."""
    if id(dataset) in seen:
        return
    seen.add(id(dataset))
    yield id(dataset)
    kept = dict(getattr(dataset, "__dict__", {}))
    if "_data" in kept and "_indices" in kept:  # parts of a Hugging Face dataset share its table
        yield id(kept["_data"])
    for value in kept.values():
        for one in value if isinstance(value, list | tuple) and len(value) < _MAX_ENTRIES else (value,):
            if isinstance(one, Subset | ConcatDataset | TensorDataset | NamedRows):
                yield from (base for part in _parts(one, seen=seen) for base in part.bases)
            elif isinstance(one, Dataset):
                yield from _bases(one, seen)


_MAX_ENTRIES = 1000  # entries of a list that are looked through for datasets
