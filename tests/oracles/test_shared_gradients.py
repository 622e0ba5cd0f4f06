"""Branches that are added up get one gradient tensor. Each of their biases counts, and counts once."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest

torch = pytest.importorskip("torch")

from torch import Tensor, nn  # noqa: E402

from sidelight.methods.parts import Flat  # noqa: E402
from sidelight.oracles.network.network_oracle import NetworkOracle  # noqa: E402

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
    assert 0.999 < float(total._value.double().norm()) / 0.01 <= 1
