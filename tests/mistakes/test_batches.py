"""Mistakes by which one record changes what another contributes: refused, or each record is taken alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from tests.mistakes.tools import Loss, entropy, labeled  # noqa: E402
from torch import Tensor, nn  # noqa: E402
from torch.nn import functional  # noqa: E402

from sidelight.errors import AssumptionError  # noqa: E402
from sidelight.methods.parts import Flat  # noqa: E402
from sidelight.oracles.network.network_oracle import NetworkOracle  # noqa: E402

CLIP = 0.1


class Between(nn.Module):
    """An MLP with a mistake between its layers."""

    def __init__(self, change: Callable[[Any, Tensor], Tensor] = lambda model, h: h) -> None:
        super().__init__()
        self.first, self.last, self.change = nn.Linear(6, 8), nn.Linear(8, 3), change
        self.gate = nn.Parameter(torch.zeros(8))

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.change(self, self.first(x).tanh()))


def _mixup(model: Any, h: Tensor) -> Tensor:
    return 0.8 * h + 0.2 * h[torch.randperm(len(h))]


def _capacity(model: Any, h: Tensor) -> Tensor:
    """An expert takes the first half of its records, and drops the others."""
    chosen = h[:, 0] > 0
    return h * (chosen.cumsum(0) <= len(h) // 4).to(h.dtype)[:, None]


def _numpy(model: Any, h: Tensor) -> Tensor:
    return h * float(np.random.rand())


def _reseeded(model: Any, h: Tensor) -> Tensor:
    torch.manual_seed(0)
    return functional.dropout(h, 0.5)


def _own_generator(model: Any, h: Tensor) -> Tensor:
    return h + torch.randn(h.shape, generator=torch.Generator().manual_seed(1))


def _trimmed(model: Any, h: Tensor) -> Tensor:
    """To the longest of the batch, with a norm over what is left."""
    longest = int((h.abs() > 0.1).sum(1).max())
    return functional.pad(h[:, :longest] / max(1, longest), (0, 8 - longest))


MODELS: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "batch statistics": lambda model, h: (h - h.mean(0)) / (h.std(0) + 1e-3),
    "the wrong dimension of softmax": lambda model, h: h.softmax(0),
    "a norm over the whole batch": lambda model, h: h / h.norm(),
    "attention over records": lambda model, h: (h @ h.T).softmax(1) @ h,
    "a cumulative sum over records": lambda model, h: h.cumsum(0),
    "a gate that opens later": lambda model, h: h + model.gate * h.mean(0),
    "mixup": _mixup,
    "the capacity of an expert": _capacity,
    "weights by place": lambda model, h: h * torch.linspace(0, 1, len(h))[:, None],
    "NumPy's random numbers": _numpy,
    "a seed in forward": _reseeded,
    "a generator of its own": _own_generator,
    "trimming to the longest": _trimmed,
    "a draw for the whole batch": lambda model, h: h * torch.rand(1),
    "a maximum that rarely matters": lambda model, h: h / (h.detach().abs().max() / 100).clamp(min=1),
}


def _class_weights(z: Tensor, y: Tensor) -> Tensor:
    weights = torch.tensor([1.0, 2.0, 5.0])[y]
    return entropy(z, y) * weights / weights.mean()


def _balanced(z: Tensor, y: Tensor) -> Tensor:
    """Weights by how often a class is in the batch."""
    return entropy(z, y) / functional.one_hot(y, 3).sum(0).clamp(min=1)[y]


def _dice(z: Tensor, y: Tensor) -> Tensor:
    p, hot = z.softmax(1), functional.one_hot(y, 3)
    return (1 - 2 * (p * hot).sum() / (p + hot).sum()).expand(len(z))


def _info_nce(z: Tensor, y: Tensor) -> Tensor:
    return entropy(functional.normalize(z) @ functional.normalize(z.detach()).T, torch.arange(len(z)))


def _supervised_contrast(z: Tensor, y: Tensor) -> Tensor:
    same = (y[:, None] == y).float()
    return -(same * (z @ z.T).log_softmax(1)).sum(1) / same.sum(1)


def _cox(z: Tensor, y: Tensor) -> Tensor:
    risk = z[:, 0]
    return torch.stack([(risk.exp() * (y >= one)).sum().log() for one in y]) - risk


def _hard_half(z: Tensor, y: Tensor) -> Tensor:
    losses = entropy(z, y)
    return losses * (losses >= losses.detach().median())


def _negatives(z: Tensor, y: Tensor) -> Tensor:
    return (z - z.roll(1, 0)).square().sum(1).neg().exp() + entropy(z, y)


LOSSES: dict[str, Loss] = {
    "class weights of the batch": _class_weights,
    "classes balanced by the batch": _balanced,
    "dice": _dice,
    "InfoNCE": _info_nce,
    "a supervised contrast": _supervised_contrast,
    "Cox": _cox,
    "the harder half": _hard_half,
    "negatives from the batch": _negatives,
}


def _moves_at_most_its_bound(model: nn.Module, loss: Loss) -> bool:
    """False if the model was refused before a private record was read."""
    (x, y), example = labeled(20), labeled(8, seed=2)
    oracle = NetworkOracle(model, loss, example=example, draw_seed=lambda: 5)
    try:
        oracle.check((x, y))
    except AssumptionError as refused:
        assert "\n" not in str(refused)
        return False
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.5 * torch.randn(p.shape))  # as training would move it
    whole = _total(oracle, (x, y))
    for value in (0.0, 1e3, 1e9, torch.nan):
        other = x.clone()
        other[-1] = value
        assert float((_total(oracle, (other, y)) - whole).norm()) <= 2 * CLIP * (1 + 1e-6)
    assert float((_total(oracle, (x[:-1], y[:-1])) - whole).norm()) <= CLIP * (1 + 1e-6)
    return True


def _total(oracle: NetworkOracle, batch: Any) -> Tensor:
    return oracle.clipped_sum(batch, clip=Flat(CLIP), relation="add-or-remove-one")._value.clone()


@pytest.mark.parametrize("mistake", MODELS)
def test_a_model_that_mixes_records_is_refused_or_takes_each_alone(mistake: str) -> None:
    torch.manual_seed(0)
    _moves_at_most_its_bound(Between(MODELS[mistake]), entropy)


@pytest.mark.parametrize("mistake", LOSSES)
def test_a_loss_over_the_batch_is_refused(mistake: str) -> None:
    torch.manual_seed(0)
    assert not _moves_at_most_its_bound(Between(), LOSSES[mistake])


def test_weights_by_place_in_training_are_seen_beside_dropout() -> None:
    def weighted(model: Any, h: Tensor) -> Tensor:
        return h * torch.linspace(0, 1, len(h))[:, None] if model.training else h

    torch.manual_seed(0)
    model = nn.Sequential(Between(weighted), nn.Dropout(0.1))
    with pytest.raises(AssumptionError):
        NetworkOracle(model, entropy, example=labeled(8, seed=2)).check(labeled(20))


def test_the_wrong_batch_dimension_is_refused() -> None:
    model = nn.LSTM(6, 3)  # which takes time first

    class Tagger(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm = model

        def forward(self, x: Tensor) -> Tensor:
            return self.lstm(x)[0][:, -1]

    x, y = torch.randn(8, 8, 6), torch.randint(0, 3, (8,))
    with pytest.raises(AssumptionError):
        NetworkOracle(Tagger(), entropy, example=(x, y)).check((x, y))


def test_a_flattened_gather_with_an_index_out_of_range_reads_no_other_record() -> None:
    class Picks(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.head = nn.Linear(2, 4), nn.Linear(4, 3)

        def forward(self, x: Tensor, place: Tensor) -> Tensor:
            words = self.embed(x.view(-1, 2))
            return self.head(words[torch.arange(len(x)) * 3 + place].tanh())

    torch.manual_seed(0)
    (x, y), place = labeled(12), torch.arange(12) % 3
    oracle = NetworkOracle(Picks(), entropy, example=((x[:6], place[:6]), y[:6]))
    bad = place.clone()
    bad[3] = 5  # a word of the next record
    other = x.clone()
    other[4] = 100.0
    moved = float((_total(oracle, ((other, bad), y)) - _total(oracle, ((x, bad), y))).norm())
    assert moved <= 2 * CLIP * (1 + 1e-6)
