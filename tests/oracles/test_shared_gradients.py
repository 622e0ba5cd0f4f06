"""Branches that are added up get one gradient tensor. Each of their biases counts, and counts once."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.private_values import value_of
from torch import Tensor, nn

from sidelight.methods.parts import Flat
from sidelight.oracles.network.network_oracle import NetworkOracle

LOSS = nn.CrossEntropyLoss(reduction="none")


class Sum(nn.Module):
    def __init__(self, *branches: nn.Module) -> None:
        super().__init__()
        self.branches = nn.ModuleList(branches)

    def forward(self, x: Tensor) -> Tensor:
        first, *others = (branch(x) for branch in self.branches)
        for other in others:
            first = first + other
        return first


def linear(*, weight: bool = True, bias: bool = True) -> nn.Linear:
    made = nn.Linear(6, 5)
    made.weight.requires_grad_(weight)
    made.bias.requires_grad_(bias)
    return made


def normed() -> nn.Module:
    return nn.Sequential(linear(weight=False, bias=False), nn.LayerNorm(5))


def deep() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 5), nn.LayerNorm(5))


MODELS: dict[str, Callable[[], nn.Module]] = {
    "two layers": lambda: Sum(linear(), linear()),
    "a second bias alone": lambda: Sum(linear(), linear(weight=False)),
    "eight biases alone": lambda: Sum(linear(), *(linear(weight=False) for _ in range(8))),
    "a bias first": lambda: Sum(linear(weight=False), linear()),
    "one bias, two weights": lambda: Sum(linear(), linear(bias=False)),
    "a norm's shift": lambda: Sum(linear(), normed()),
    "two norms": lambda: Sum(linear(), normed(), normed()),
    "wide and deep": lambda: Sum(linear(), deep()),
    "biases alone": lambda: Sum(linear(weight=False), linear(weight=False)),
}  # fmt: skip


@pytest.mark.parametrize("scale", [0.05, 1.0])
@pytest.mark.parametrize("name", MODELS)
def test_every_shared_gradient_counts_once(name: str, scale: float) -> None:
    torch.manual_seed(0)
    model, x, y = MODELS[name](), scale * torch.randn(1, 6), torch.tensor([1])
    exact = copy.deepcopy(model).double()
    trained = [p for p in exact.parameters() if p.requires_grad]
    true = torch.cat([g.reshape(-1) for g in torch.autograd.grad(LOSS(exact(x.double()), y).sum(), trained)])
    oracle = NetworkOracle(model, LOSS)
    assert float(oracle.norms((x, y))[0]) == pytest.approx(float(true.norm()), rel=1e-4)
    total = oracle.clipped_sum((x, y), clip=Flat(0.01), relation="add-or-remove-one")
    assert 0.999 < float(value_of(total).double().norm()) / 0.01 <= 1


class TwoTypes(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.single, self.double_ = nn.Linear(6, 5), nn.Linear(6, 5).double()

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.single(x) + self.double_(x.double()).float()
        return out


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_parameters_of_two_types_around_an_origin(dtype: Any) -> None:
    torch.manual_seed(0)
    oracle = NetworkOracle(TwoTypes(), LOSS)
    batch = torch.randn(1, 6), torch.tensor([2])
    origin = torch.randn(oracle.dimension, dtype=dtype)
    total = oracle.clipped_sum(batch, clip=Flat(0.01), origin=origin, relation="add-or-remove-one")
    assert 0.999 < float(value_of(total).double().norm()) / 0.01 <= 1
