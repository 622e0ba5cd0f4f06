"""Persons with several rows on their way to a network: `max_rows` rows of a batch, and one contribution.

A person with rows R contributes clip_C(M(ḡ − o)), where ḡ is the mean gradient of these rows. A batch holds
`max_rows` rows for every person: a person with fewer is filled up with rows of their
own that weigh nothing. So how many rows a person has moves nobody else's rows, changes nobody else's random
numbers, and no size of a pass. Of a person with more, `max_rows` are taken, drawn anew at each step from
numbers of this person's own.

A row that cannot be read, or names nobody, is left out. A batch has rows of one shape, so of a person with
rows of several shapes those of the most frequent one are taken. A person without a usable row, or with a row
on which the model fails, contributes zero.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset

from sidelight.augment.transforms import seeded
from sidelight.data.persons import Names, Persons, grouped, persons_of, private_names
from sidelight.deep.private_records import PlacedRows, PrivateAugment, PrivateRecords, RecordBatches, repeated
from sidelight.errors import InputError
from sidelight.oracles.network.batches import Batch, Ready, take, tensors
from sidelight.oracles.network.silence import silent
from sidelight.privacy.events import Indices
from sidelight.problems.datasets import record_count
from sidelight.problems.isolation import Isolation, record_seed

Key: TypeAlias = Callable[[object], object]  # an item of a dataset → the name of the person whose it is
_UNNAMED = "person"


def given_persons(dataset: Dataset[object], unit: str | Key, names: object) -> Persons | None:
    """Whose each row is, by names beside the dataset or by a key function; None where the unit is a record.

    Names are private: one that is missing, or on which the key fails, is nobody's, silently. How many persons
    there are is public, as the number of records is elsewhere.
    """
    if names is None and unit == "record":
        return None
    if names is None and isinstance(unit, str):
        raise InputError(f"unit={unit!r} needs the person of every row: fit(private, public, persons=names)")
    if names is not None and not isinstance(unit, str):
        raise InputError("unit= is a function that names persons, so persons= has no place; pass one of them")
    label = _label(unit)
    found = _by_key(dataset, unit) if callable(unit) else private_names(_on_host(names))
    persons = persons_of(found, unit=label)
    if len(persons.codes) != record_count(dataset):
        raise InputError("persons must be a vector with one name for each row")  # how many is private
    if persons.count == 0:
        raise InputError(f"no row names a person ({label})")
    return persons


def _on_host(names: object) -> object:
    return names.detach().cpu().numpy() if isinstance(names, Tensor) else names


def _label(unit: str | Key) -> str:
    if isinstance(unit, str):
        return _UNNAMED if unit == "record" else unit
    name = str(getattr(unit, "__name__", _UNNAMED))
    return name if name.isidentifier() else _UNNAMED  # a lambda has no name


def _by_key(dataset: Dataset[object], key: Key) -> list[object]:
    """The name of every row, each read as if it were the only one."""
    places = [(i, record_seed(0, i)) for i in range(record_count(dataset))]
    with silent(), seeded(0):
        return list(Isolation(dataset, code=(key,)).each(lambda i: _plain_name(key(dataset[i])), places))


def _plain_name(name: object) -> object:
    """A tensor or an array of one value by what it holds."""
    item = getattr(name, "item", None)
    return item() if callable(item) and getattr(name, "ndim", None) == 0 else name


def with_public(persons: Persons, rows: int) -> Persons:
    """These persons and, each as a person of its own, so many public rows behind them."""
    more = np.arange(persons.count, persons.count + rows, dtype=np.intp)
    return Persons(np.concatenate([persons.codes, more]), persons.count + rows, persons.unit)


class PersonBatches(RecordBatches):
    """The rows of persons as a problem asks for them; indices are numbers of persons."""

    def __init__(
        self,
        records: PrivateRecords,
        nothing: Batch,
        *,
        persons: Persons,
        max_rows: int,
        augment: PrivateAugment,
        draw_seed: Callable[[], int],
    ) -> None:
        super().__init__(records, nothing, augment=augment, draw_seed=draw_seed)
        self._persons, self._max_rows = persons, max_rows
        self._order, self._offsets = grouped(persons)

    def of(self, indices: Indices | None) -> Iterator[Ready]:
        seed = self._draw_seed()
        wanted = np.arange(self._persons.count) if indices is None else np.asarray(indices, dtype=np.int64)
        rows, owners = _rows_of(wanted, self._order, self._offsets, self._max_rows, seed)
        for some in of_persons(self._records.placed(rows, seed=seed), owners, self._max_rows):
            copies = self._augment.copies // self._max_rows
            # What weighs a row goes through the augmentation beside its target, which that leaves alone.
            inputs, targets = some.rows
            batch = repeated((inputs, (targets, some.weights)), copies)
            for made, (goal, weights) in self._augmented(batch):
                yield Ready((made, goal), weights / copies)


def batch_of_persons(batch: Batch, names: object, max_rows: int, seed: int) -> Iterator[Ready]:
    """A batch of rows, arranged by the persons whose they are."""
    persons = persons_of(private_names(_on_host(names)))
    rows, owners = _rows_of(np.arange(persons.count), *grouped(persons), max_rows, seed)
    taken = take(batch, torch.from_numpy(rows).to(tensors(batch)[0].device))
    return of_persons([PlacedRows(taken, np.arange(len(rows)))], owners, max_rows)


def distinct_persons(names: object, known: Names) -> set[int]:
    """The different persons that these names are of, by the numbers that `known` has for them."""
    found = private_names(_on_host(names))
    codes = {known.code(name) for name in (np.unique(found) if isinstance(found, np.ndarray) else found)}
    return {code for code in codes if code >= 0}


def _rows_of(
    persons: Indices, order: NDArray[np.intp], offsets: NDArray[np.intp], max_rows: int, seed: int
) -> tuple[Indices, NDArray[np.intp]]:
    """The rows that are taken of these persons, and which of them each belongs to.

    No guarantee rests on which rows are drawn of a person who has more: all of them are this person's.
    """
    parts = []
    for person in persons.tolist():
        mine = order[offsets[person] : offsets[person + 1]]
        if len(mine) > max_rows:
            own = np.random.default_rng(record_seed(seed, -1 - person))  # numbers from 0 on are rows' own
            mine = np.sort(own.choice(mine, size=max_rows, replace=False))
        parts.append(mine)
    owners = np.repeat(np.arange(len(parts)), [len(part) for part in parts])
    return np.concatenate([np.zeros(0, dtype=np.int64), *parts]), owners


def of_persons(parts: Sequence[PlacedRows], owners: NDArray[np.intp], max_rows: int) -> Iterator[Ready]:
    """`max_rows` consecutive rows for each person, and what each row weighs: 1/|R|, or 0 if it fills up.

    parts: rows of one shape each, and their places; owners: the person of each place, who has at most
    `max_rows` of them.
    """
    count = int(owners.max()) + 1 if len(owners) else 0
    shapes = _shape_of_each(parts, owners, count)
    for number, (rows, places) in enumerate(parts):
        mine = owners[places]
        kept = np.flatnonzero(shapes[mine] == number)
        order = kept[np.lexsort((places[kept], mine[kept]))]
        _, first, sizes = np.unique(mine[order], return_index=True, return_counts=True)
        if not len(first):
            continue
        slot = np.arange(max_rows)[None, :]
        filled = slot < sizes[:, None]
        picked = order[first[:, None] + np.where(filled, slot, 0)]
        weights = torch.from_numpy(np.where(filled, 1.0 / sizes[:, None], 0.0).reshape(-1))
        device = tensors(rows)[0].device
        yield Ready(take(rows, torch.from_numpy(picked.reshape(-1)).to(device)), weights.to(device))


def _shape_of_each(parts: Sequence[PlacedRows], owners: NDArray[np.intp], count: int) -> NDArray[np.intp]:
    """For each person the part that has most of their rows; of several the one with their first row."""
    best, first, most = (np.full(count, start, dtype=np.intp) for start in (-1, len(owners), 0))
    for number, (_, places) in enumerate(parts):
        mine = owners[places]
        sizes = np.bincount(mine, minlength=count)
        begins = np.full(count, len(owners), dtype=np.intp)
        np.minimum.at(begins, mine, places)
        better = (sizes > most) | ((sizes == most) & (begins < first))
        best[better], first[better], most[better] = number, begins[better], sizes[better]
    return best
