"""An augmentation or a collate with a large memory carries no private record to the next."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import Dataset, TensorDataset

from sidelight.deep import Loading
from sidelight.deep.private_records import PrivateAugment, PrivateRecords
from sidelight.problems.isolation import Isolation

SHAPE = (3, 32, 32)


class Bank:
    """Blends an image with an earlier one."""

    def __init__(self, size: int = 1500) -> None:
        self.bank = torch.zeros(size, *SHAPE)

    def __call__(self, x: Tensor) -> Tensor:
        blended = x + self.bank[:1]
        self.bank[:1] = x
        return blended


class UnnoticedBank(Bank):
    """Writes past the version of its tensor, and only what is bright: no trial row is."""

    def __call__(self, x: Tensor) -> Tensor:
        blended = x + self.bank[-1:]
        if float(x.max()) > 5:
            self.bank.data[-1:] = x
        return blended


class ArrayBank(Bank):
    def __init__(self) -> None:
        self.images = np.zeros((1500, *SHAPE), dtype=np.float32)

    def __call__(self, x: Tensor) -> Tensor:
        blended = x + torch.as_tensor(self.images[-1:].copy())
        self.images[-1:] = x.numpy()
        return blended


class ListOfImages(Bank):
    """More entries than a thousand, each with contents of its own."""

    def __init__(self) -> None:
        self.images = [torch.zeros(1, *SHAPE) for _ in range(1200)]

    def __call__(self, x: Tensor) -> Tensor:
        blended = x + self.images[1100]
        self.images[1100].copy_(x)
        return blended


class TwoLists(Bank):
    """What is written where depends on what was written: the second list is touched only once the first is
    put back after every record."""

    def __init__(self) -> None:
        self.first, self.second = [0.0] * 2000, [0.0] * 2000

    def __call__(self, x: Tensor) -> Tensor:
        blended = x + self.second[0]
        if not self.first[0] and float(x.mean()) == 2:
            self.second[0] = 7.0
        self.first[0] = 1.0
        return blended


BANKS = [Bank, UnnoticedBank, ArrayBank, ListOfImages, TwoLists]


class Items(Dataset[Any]):
    def __init__(self, x: Tensor) -> None:
        self.x = x

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, place: int) -> Any:
        return self.x[place], torch.tensor(0)


def images(changed: float) -> Tensor:
    """Four images, of which the second one is another."""
    return torch.stack([torch.full(SHAPE, value) for value in (1.0, changed, 1.0, 1.0)])


@pytest.mark.parametrize("bank", BANKS)
def test_a_bank_of_earlier_images_carries_no_record_to_another(bank: type[Bank]) -> None:
    found = []
    for value in (1.0, 7.0, 2.0):
        augment = PrivateAugment(bank())
        augment.check()
        found.append(augment((images(value), torch.zeros(4)), 5)[0][0][[0, 2, 3]])
    assert torch.equal(found[0], found[1]) and torch.equal(found[0], found[2])


@pytest.mark.parametrize("bank", BANKS)
def test_a_bank_of_a_collate_carries_no_record_to_another(bank: type[Bank]) -> None:
    made = bank()

    def collate(items: list[Any]) -> Any:
        return torch.cat([made(x[None]) for x, _ in items]), torch.stack([y for _, y in items])

    found = []
    for value in (1.0, 7.0, 2.0):
        records = PrivateRecords(Items(images(value)), Loading(collate=collate), torch.device("cpu"))
        found.append(records.batches([0, 1, 2, 3], seed=1)[0][0][[0, 2, 3]])
    assert torch.equal(found[0], found[1]) and torch.equal(found[0], found[2])


class Shifted(Items):
    """A dataset with a transform as a method, which reaches all of its records."""

    def shift(self, x: Tensor) -> Tensor:
        return x + 1


def test_data_that_an_augmentation_reaches_is_not_copied() -> None:
    data = Shifted(torch.zeros(1500, *SHAPE))
    augment = PrivateAugment(data.shift, dataset=data)
    augment.check()
    state: Any = augment._isolation._state
    assert not any(held.copy.numel() > 2**22 for held in state._held)
    (inputs, _), *_ = augment((images(1.0), torch.zeros(4)), 5)
    assert torch.equal(inputs, images(1.0) + 1)


def test_data_of_a_dataset_is_neither_copied_nor_compared() -> None:
    isolation = Isolation(TensorDataset(torch.zeros(2**22 + 1), torch.zeros(2**22 + 1)))
    isolation.check()
    state: Any = isolation._state
    assert not state._held
