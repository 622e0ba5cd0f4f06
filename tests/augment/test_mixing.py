"""Mixup is for public records; as a transform of private ones it is refused, with or without its mark."""

import random
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from sidelight.augment import Compose, flip, mixup, shift
from sidelight.augment.transforms import row_by_row
from sidelight.deep import PublicTraining, Trainer
from sidelight.errors import InputError, PrivacyConditionError
from sidelight.methods.dope_sgd import dope_sgd
from sidelight.privacy.ledger import Ledger

TWO = torch.rand(2, 1, 6, 6, generator=torch.Generator().manual_seed(3))


def test_blends_say_how_much_of_each_class_is_in_them() -> None:
    labels = torch.arange(40) % 4
    images = labels[:, None].float().expand(40, 5)  # the input tells its class
    made, shares = mixup(1.0, classes=4).pair(images, labels)
    assert shares.shape == (40, 4) and torch.allclose(shares.sum(1), torch.ones(40))
    assert torch.allclose(made[:, 0], shares @ torch.arange(4.0), atol=1e-5)
    assert ((shares > 0.01) & (shares < 0.99)).any()


def test_numbers_are_blended_as_numbers() -> None:
    x = torch.rand(30, 1)
    made, targets = mixup(0.5).pair(x, 3 * x)
    assert torch.allclose(targets, 3 * made, atol=1e-6) and not torch.equal(made, x)


def test_a_composition_blends_at_its_place() -> None:
    both = Compose(shift(1), mixup(classes=3), flip())
    images, shares = both.pair(torch.rand(8, 1, 6, 6), torch.arange(8) % 3)
    assert both.mixes_records and not Compose(shift(1), flip()).mixes_records
    assert images.shape == (8, 1, 6, 6) and shares.shape == (8, 3)


def blend(images: Any) -> Any:
    """A mixup without a mark, as a user would write it."""
    return 0.7 * images + 0.3 * images[torch.randperm(len(images))]


def center(images: Any) -> Any:
    return images - images.mean(0)


def shuffled(images: Any) -> Any:
    return images[torch.randperm(len(images))]


def paste(images: Any) -> Any:
    """A corner of the neighbor, sometimes: NumPy's and Python's chance."""
    made = images.clone()
    if random.random() < 0.5 or np.random.rand() < 0.5:
        made[:, :, :2, :2] = images.roll(1, 0)[:, :, :2, :2]
    return made


@pytest.mark.parametrize(
    "change", [mixup(classes=2), Compose(flip(), mixup()), blend, center, shuffled, paste]
)
def test_what_blends_records_is_refused_for_private_ones(change: Any) -> None:
    with pytest.raises(PrivacyConditionError, match="blends records"):
        row_by_row(change, TWO)


def noisy(images: Any) -> Any:
    return images + 0.1 * torch.randn_like(images)


def own_chance(generator: Any = torch.Generator().manual_seed(0)) -> Any:  # noqa: B008
    return lambda images: images + torch.rand(images.shape, generator=generator)


@pytest.mark.parametrize("change", [None, shift(2), flip(), Compose(shift(1), flip()), noisy, own_chance()])
def test_what_treats_rows_alone_passes_and_leaves_random_numbers_as_they_were(change: Any) -> None:
    before = torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate()
    row_by_row(change, TWO)
    assert torch.equal(before[0], torch.get_rng_state()) and before[2] == random.getstate()
    assert (before[1] == np.random.get_state()[1]).all()


def network() -> Any:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(36, 2))


def data(rows: int, seed: int) -> Any:
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, 2, (rows,), generator=generator)
    return torch.rand(rows, 1, 6, 6, generator=generator) + labels[:, None, None, None] * 0.5, labels


def trainer(**options: Any) -> Any:
    return Trainer(
        network(), nn.CrossEntropyLoss(), method=dope_sgd(clip_norm=1.0), epsilon=8.0, delta=1e-3, steps=4,
        expected_batch_size=30, random_state=0, progress=False, **options,
    )  # fmt: skip


@pytest.mark.parametrize("change", [mixup(classes=2), blend])
@pytest.mark.parametrize("public", [True, False])
def test_a_trainer_refuses_it_before_anything_is_charged(change: Any, public: bool) -> None:
    ledger = Ledger.in_memory()
    ledger.register("images", relation="add-or-remove-one", epsilon=20, delta=0.01)
    made = trainer(augment=change, ledger=ledger, dataset="images")
    made.method = dope_sgd(clip_norm=1.0) if public else "dp_sgd"
    with pytest.raises(PrivacyConditionError, match="blends records"):
        made.fit(data(90, 1), data(40, 2) if public else None)
    assert not ledger.charges("images")


def test_public_batches_and_the_warm_start_may_be_blended() -> None:
    change = Compose(shift(1), mixup(classes=2))
    plain = PublicTraining(steps=30, batch_size=20, augment=change)
    made = trainer(public_augment=change, augment=Compose(shift(1), flip()), augmentations=2, warm_up=plain)
    made.fit(data(90, 1), data(40, 2))
    assert made.evaluate(data(200, 3))["accuracy"] > 0.7


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: mixup(0), "alpha"),
        (lambda: mixup(classes=1), "classes must be"),
        (lambda: mixup()(TWO), "targets too"),
        (lambda: mixup().pair(TWO, torch.tensor([0, 1])), "needs classes="),
        (lambda: mixup(classes=2).pair(TWO, torch.tensor([0, 2])), "class number"),
        (lambda: mixup(classes=2).pair((255 * TWO).byte(), torch.tensor([0, 1])), "blends numbers"),
    ],
)
def test_bad_input_is_told_in_a_sentence(make: Any, words: str) -> None:
    with pytest.raises(InputError, match=words):
        make()
