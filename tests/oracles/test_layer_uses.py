"""Layers used in unusual ways (twice, in part, shared, sequence first), against torch.func in float64."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from tests.oracles.networks import assert_sums_agree, private_sum, squared_error
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from sidelight.methods.parts import Flat
from sidelight.oracles.network.network_oracle import NetworkOracle


def normal(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(11))


def whole(below: int, *shape: int) -> Tensor:
    return torch.randint(0, below, shape, generator=torch.Generator().manual_seed(11))


class Twice(nn.Module):
    """A layer that is called two times."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        once = self.layer(x)
        first = once[0] if isinstance(once, tuple) else once
        again = self.layer(torch.tanh(first))
        return again[0] if isinstance(again, tuple) else again  # type: ignore[no-any-return]


class Attending(nn.Module):
    """Self-attention, two times with the same projections."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        y = self.attention(x, x, x, need_weights=False)[0]
        return self.attention(y, x, x, need_weights=False)[0]  # type: ignore[no-any-return]


class SequenceFirst(nn.Module):
    """A recurrent layer with the batch in its second dimension, and a state to begin with."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer, self.start = layer, nn.Linear(3, 4)

    def forward(self, x: Tensor) -> Tensor:
        state = torch.tanh(self.start(x[:, 0]))[None]
        hx = (state, 2 * state) if isinstance(self.layer, nn.LSTM) else state
        return self.layer(x.transpose(0, 1), hx)[0].transpose(0, 1)  # type: ignore[no-any-return]


class Shared(nn.Module):
    """One kernel in two convolutions that move it differently, and one bias."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 3, 3, padding=1), nn.Conv2d(3, 3, 3, stride=2, dilation=2)
        self.second.weight, self.second.bias = self.first.weight, self.first.bias

    def forward(self, x: Tensor) -> Tensor:
        return self.second(torch.tanh(self.first(x)))  # type: ignore[no-any-return]


class Tables(nn.Module):
    """A table that is looked up twice, and is a matrix too."""

    def __init__(self, words: int) -> None:
        super().__init__()
        self.words, self.other = nn.Embedding(words, 4), nn.Embedding(words, 4)
        self.head = nn.Linear(4, words)
        self.other.weight = self.head.weight = self.words.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.words(x) * self.other(x.flip(1))))  # type: ignore[no-any-return]


class Blocks(nn.Module):
    """Every block under gradient checkpointing, with a convolution, a norm and attention inside."""

    def __init__(self, again: bool) -> None:
        super().__init__()
        self.again = again
        self.image = nn.Sequential(nn.Conv1d(2, 4, 3, padding=1), nn.GroupNorm(2, 4), nn.Tanh())
        self.words = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        run = partial(checkpoint, use_reentrant=False) if self.again else (lambda block, x: block(x))
        return run(self.words, run(self.image, x).transpose(1, 2))  # type: ignore[no-any-return]


def only(model: nn.Module, wanted: str) -> nn.Module:
    """The model with the parameters of this name trained, and the others frozen."""
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(wanted in name)
    return model


def some(model: nn.Module) -> nn.Module:
    """The model with every other parameter frozen."""
    for number, parameter in enumerate(model.parameters()):
        parameter.requires_grad_(number % 2 == 0)
    return model


def small() -> nn.Module:
    layers = nn.Conv1d(2, 4, 3), nn.GroupNorm(2, 4), nn.Tanh(), nn.Flatten(), nn.Linear(12, 3)
    return nn.Sequential(*layers)


CASES: dict[str, tuple[Callable[[], nn.Module], Tensor]] = {
    "Linear-twice": (lambda: Twice(nn.Linear(5, 5)), normal(4, 5)),
    "Linear-twice-sequence": (lambda: Twice(nn.Linear(9, 9)), normal(4, 2, 9)),
    "Conv2d-twice": (lambda: Twice(nn.Conv2d(3, 3, 3, padding=1)), normal(4, 3, 4, 4)),
    "Conv2d-twice-groups": (lambda: Twice(nn.Conv2d(4, 4, 3, padding=1, groups=2)), normal(4, 4, 3, 3)),
    "Conv2d-shared": (Shared, normal(4, 3, 7, 7)),
    "LayerNorm-twice": (lambda: Twice(nn.LayerNorm(5)), normal(4, 3, 5)),
    "GroupNorm-twice": (lambda: Twice(nn.GroupNorm(2, 6)), normal(4, 6, 3)),
    "InstanceNorm3d": (
        lambda: nn.Sequential(nn.InstanceNorm3d(2, affine=True), nn.Tanh()),
        normal(4, 2, 2, 3, 2),
    ),
    "InstanceNorm-frozen": (
        lambda: nn.Sequential(
            nn.InstanceNorm1d(3, affine=True, track_running_stats=True).eval(), nn.Tanh()
        ).eval(),
        normal(4, 3, 5),
    ),
    "LSTM-twice": (lambda: Twice(nn.LSTM(4, 4, batch_first=True)), normal(4, 3, 4)),
    "GRU-twice": (lambda: Twice(nn.GRU(4, 4, batch_first=True)), normal(4, 3, 4)),
    "LSTM-sequence-first": (lambda: SequenceFirst(nn.LSTM(3, 4)), normal(4, 5, 3)),
    "GRU-sequence-first": (lambda: SequenceFirst(nn.GRU(3, 4)), normal(4, 5, 3)),
    "RNN-tanh": (lambda: nn.RNN(3, 4, batch_first=True, bidirectional=True), normal(4, 5, 3)),
    "attention-twice": (Attending, normal(4, 3, 4)),
    "decoder-layer": (
        lambda: Decoding(nn.TransformerDecoderLayer(4, 2, 8, dropout=0.0, batch_first=True)),
        normal(4, 3, 4),
    ),
    "table-three-times": (lambda: Tables(40), whole(40, 4, 3)),
    "table-three-times-few-words": (lambda: Tables(5), whole(5, 4, 3)),
    "PReLU-twice": (lambda: Twice(nn.PReLU(5)), normal(4, 5)),
    "Bilinear": (lambda: Squared(nn.Bilinear(3, 3, 2)), normal(4, 3)),
    "bias-only": (lambda: only(small(), "bias"), normal(4, 2, 5)),
    "bias-only-attention": (lambda: only(Attending(), "bias"), normal(4, 3, 4)),
    "bias-only-LSTM": (lambda: only(nn.LSTM(3, 4, batch_first=True), "bias"), normal(4, 3, 3)),
    "half-frozen": (lambda: some(small()), normal(4, 2, 5)),
    "half-frozen-attention": (lambda: some(Attending()), normal(4, 3, 4)),
    "half-frozen-GRU": (lambda: some(nn.GRU(3, 4, 2, batch_first=True)), normal(4, 3, 3)),
    "half-frozen-tables": (lambda: only(Tables(40), "words"), whole(40, 4, 3)),
}


class Squared(nn.Module):
    """A layer of two arguments, both the same."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Any:
        return self.layer(x, x)


class Decoding(Squared):
    def forward(self, x: Tensor) -> Any:
        return self.layer(x, torch.tanh(x))


@pytest.mark.filterwarnings("ignore:There is a performance drop")  # Bilinear, in torch.func
@pytest.mark.parametrize("name", CASES)
def test_a_clipped_sum_is_that_of_torch_func(name: str) -> None:
    torch.manual_seed(0)
    build, x = CASES[name]
    model, batch = build().double(), (x, normal(len(x)))
    assert_sums_agree(model, batch, Flat(0.1))
    assert_sums_agree(model, batch, Flat(0.1), augmentations=2)


def test_gradient_checkpointing_changes_nothing() -> None:
    """torch.func cannot follow checkpoints, so the same blocks without them are what it is compared with."""
    torch.manual_seed(0)
    plain, batch = Blocks(again=False).double(), (normal(4, 2, 3), normal(4))
    assert_sums_agree(plain, batch, Flat(0.1))
    again = Blocks(again=True).double()
    again.load_state_dict(plain.state_dict())
    sums = [
        private_sum(NetworkOracle(model, squared_error), batch, Flat(0.1), origin=origin)
        for origin in (None, torch.full((sum(p.numel() for p in plain.parameters()),), 0.1).double())
        for model in (plain, again)
    ]
    for one, other in (sums[:2], sums[2:]):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-13)


class WithItsScale(nn.Module):
    """Hands one of its own parameters to the loss: a temperature, or learned uncertainty weights."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.head, self.log_scale = nn.Linear(3, 2), nn.Parameter(torch.full(shape, 0.3))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.head(x), self.log_scale


def uncertain_error(outputs: tuple[Tensor, Tensor], targets: Tensor) -> Tensor:
    """Kendall, Gal and Cipolla (2018): each task is weighted by a learned variance."""
    found, log_scale = outputs
    return ((found - targets[:, None]) ** 2 * torch.exp(-log_scale) + log_scale).sum(1)


@pytest.mark.parametrize("shape", [(1,), (2,), (1, 1), (1, 2), ()])
def test_a_parameter_may_be_an_output_of_the_model(shape: tuple[int, ...]) -> None:
    model = WithItsScale(shape).double()
    batch = normal(9, 3), normal(9)
    assert_sums_agree(model, batch, Flat(0.7), loss=uncertain_error)
    assert not model.log_scale._backward_hooks
