"""What dataset, collate and augment remember, wherever they keep it, reaches no other record."""

import collections
import itertools
import random
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.contracts import helper_with_state
from tests.contracts.test_records_alone import FAR, WIDTH, C, Items, X, Y, model, moved, private_sum
from torch import Tensor, nn
from torch.utils.data import Dataset, TensorDataset

from sidelight.deep import Loading, Trainer
from sidelight.deep.private_records import PrivateAugment
from sidelight.errors import AssumptionError
from sidelight.methods.dp_sgd import dp_sgd
from sidelight.problems.isolation import Isolation

pytestmark = [
    pytest.mark.usefixtures("same_noise"),
    pytest.mark.filterwarnings("ignore:.*random_state", "ignore:This DataLoader will create"),
]


def largest_of(x: Tensor) -> float:
    return max(1.0, float(x.abs().max()))


def times(x: Tensor) -> range:
    """How often a transform draws: the record says."""
    return range(1 + int(x.abs().sum()) % 7)


def of_numpy() -> Any:
    source = np.random.default_rng(0)
    return lambda x: x + [float(source.normal() * 3) for _ in times(x)][-1]


def of_random_state() -> Any:
    source = np.random.RandomState(0)
    return lambda x: x * [source.uniform(-3, 3) for _ in times(x)][-1]


def of_torch() -> Any:
    source = torch.Generator().manual_seed(0)
    return lambda x: x + [3 * torch.randn((), generator=source) for _ in times(x)][-1]


def of_python() -> Any:
    source = random.Random(0)
    return lambda x: x * [source.uniform(-3, 3) for _ in times(x)][-1]


STATS = {"largest": 1.0}


class Helped:
    def __call__(self, x: Tensor) -> Tensor:
        return self.scaled(x)

    def scaled(self, x: Tensor) -> Tensor:
        STATS["largest"] = max(STATS["largest"], largest_of(x))
        return x / STATS["largest"] * 2


class OfClass(nn.Module):
    largest = 1.0

    def forward(self, x: Tensor) -> Tensor:
        OfClass.largest = max(OfClass.largest, largest_of(x))
        return x / OfClass.largest * 2


def of_module() -> Any:
    return lambda x: helper_with_state.scale(x) * 2


def of_deque() -> Any:
    seen = collections.deque([1.0] * 2000, maxlen=2000)

    def scaled(x: Tensor) -> Tensor:
        seen.append(largest_of(x))
        return x / max(seen) * 2

    return scaled


def of_large_array(size: int = 50_000) -> Any:
    seen = np.ones(size)

    def scaled(x: Tensor) -> Tensor:
        seen[7] = max(seen[7], largest_of(x))
        return x / seen[7] * 2

    return scaled


def of_large_tensor(size: int = 50_000) -> Any:
    seen = torch.ones(size)

    def scaled(x: Tensor) -> Tensor:
        seen[7] = max(float(seen[7]), largest_of(x))
        return x / seen[7] * 2

    return scaled


REMEMBERING: dict[str, Callable[[], Any]] = {
    "NumPy's generator": of_numpy,
    "RandomState": of_random_state,
    "PyTorch's generator": of_torch,
    "Python's generator": of_python,
    "a global of a method": Helped,
    "a class": OfClass,
    "another module": of_module,
    "a long deque": of_deque,
    "a large array": of_large_array,
    "a large tensor": of_large_tensor,
    "a bank of arrays": lambda: of_large_array(400_000),
    "a bank of tensors": lambda: of_large_tensor(800_000),
}


@pytest.mark.parametrize("where", ["augment", "dataset", "collate"])
@pytest.mark.parametrize("name", REMEMBERING)
def test_what_is_remembered_of_one_record_reaches_no_other(
    monkeypatch: pytest.MonkeyPatch, name: str, where: str
) -> None:
    """5 to 15 C before."""
    if where == "dataset" and "bank" in name:
        pytest.skip("an array of more than 1 MB of a dataset is data, which it only reads: an assumption")
    sums = []
    for first in (X[0], FAR):
        remember, rows = REMEMBERING[name](), torch.cat([first[None], X[1:]])

        def collate(items: list[Any], remember: Any = remember) -> Any:
            return remember(torch.stack([x for x, _ in items])), torch.stack([y for _, y in items])

        options: Any = {"augment": {"augment": remember}, "collate": {"loading": Loading(collate=collate)}}
        data: Any = Items(rows, Y, remember) if where == "dataset" else Items(rows, Y)
        data = TensorDataset(rows, Y) if where == "augment" else data
        sums.append(private_sum(monkeypatch, data, **options.get(where, {})))
    assert moved(*sums) <= 2 * C + 1e-3


@pytest.mark.parametrize("workers", [0, 1])
def test_a_generator_of_a_dataset_begins_anew_for_every_record(workers: int) -> None:
    from sidelight.deep.private_records import PrivateRecords

    seen = []
    for wanted in ([4, 5, 6], [1, 2, 3, 6]):
        records = PrivateRecords(Drawing(), Loading(workers=workers), torch.device("cpu"))
        seen.append(records.batches(wanted, seed=8)[0][0][-1])
        records.close()
    assert torch.equal(*seen)


class Drawing(Dataset[Any]):
    def __init__(self) -> None:
        self.source = np.random.default_rng(3)

    def __len__(self) -> int:
        return 80

    def __getitem__(self, place: int) -> Any:
        return torch.as_tensor(self.source.normal(size=WIDTH), dtype=torch.float32), torch.tensor(0)


def test_every_row_has_other_numbers_of_a_generator_that_augment_holds() -> None:
    augment = PrivateAugment(of_numpy())
    once, again = (augment((torch.zeros(9, WIDTH), Y[:9]), seed)[0][0] for seed in (1, 2))
    assert len({float(row[0]) for row in (*once, *again)}) == 18


@pytest.mark.parametrize("held", [itertools.cycle([1.0, -1.0]), (1.0 for _ in itertools.count())])
@pytest.mark.parametrize("where", ["augment", "dataset", "collate"])
def test_an_iterator_is_refused_before_the_charge(held: Any, where: str) -> None:
    def change(x: Any) -> Any:
        return x * next(held)

    options: Any = {"augment": {"augment": change}, "collate": {"loading": Loading(collate=change)}}
    data: Any = Items(X, Y, change) if where == "dataset" else Items(X, Y)
    trainer = Trainer(
        model(), nn.CrossEntropyLoss(), method=dp_sgd(steps=1), epsilon=1.0, delta=1e-5, progress=False,
        **options.get(where, {}),
    )  # fmt: skip
    with pytest.raises(AssumptionError, match=type(held).__name__):
        trainer.fit(data)
    assert not hasattr(trainer, "privacy_")


# ---------------------------------------------------------------------------------------------------
# data stays as fast as it was


class Large(Dataset[Any]):
    """What datasets hold: a matrix, a list of names, a frame's worth of dictionaries."""

    def __init__(self) -> None:
        self.x = np.zeros((200_000, 8))
        self.names = [(f"{i}.png", i % 3) for i in range(200_000)]
        self.rows = [{"text": str(i)} for i in range(200_000)]

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, place: int) -> Any:
        return torch.as_tensor(self.x[place]), self.names[place][1], self.rows[place]["text"]


def test_data_is_neither_copied_nor_searched() -> None:
    isolation = Isolation(Large())
    isolation.check()
    state: Any = isolation._state
    assert len(state._things) < 300
    assert not any(isinstance(one.content, np.ndarray) for one in state._things)


def test_a_list_that_fills_as_records_are_read_is_emptied_again() -> None:
    class Caching(Items):
        def __init__(self) -> None:
            super().__init__(X, Y)
            self.cache: list[Any] = [None] * 2000

        def __getitem__(self, place: int) -> Any:
            before = sum(x is not None for x in self.cache)
            self.cache[place] = place
            return before

    data = Caching()
    isolation = Isolation(data)
    for _ in range(2):
        assert isolation.each(data.__getitem__, [(i, i) for i in range(20)]) == [0] * 20
        assert data.cache == [None] * 2000


def test_an_archive_that_is_opened_at_the_first_record_stays_open(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "some.zip", "w") as archive:
        archive.writestr("a", "1")

    class Archived:
        archive: Any = None

        def __call__(self, place: int) -> Any:
            if self.archive is None:
                self.archive = zipfile.ZipFile(tmp_path / "some.zip")
            return self.archive.read("a")

    data = Archived()
    isolation = Isolation(data)
    assert isolation.each(data, [(0, 0), (1, 1)]) == [b"1", b"1"]
    first = data.archive
    assert isolation.each(data, [(2, 2)]) == [b"1"] and data.archive is first
    first.close()


def test_the_statement_says_where_nothing_was_searched() -> None:
    trainer = Trainer(
        model(), nn.CrossEntropyLoss(), method=dp_sgd(steps=1), epsilon=1.0, delta=1e-5, progress=False
    ).fit(TensorDataset(X, Y))
    assert any("files, other processes or C code" in line for line in trainer.privacy_.assumptions)
