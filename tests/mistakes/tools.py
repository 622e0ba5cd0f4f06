"""What tests of mistakes share: gradients of single records by plain autograd, and the sums they lead to."""

from collections.abc import Callable
from typing import Any

import torch
from tests.oracles.networks import private_sum
from torch import Tensor, nn

from sidelight.methods.parts import Flat
from sidelight.oracles.network.batches import Batch, call, row_count, take
from sidelight.oracles.network.network_oracle import NetworkOracle

Loss = Callable[[Any, Any], Tensor]


def entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    """Cross-entropy, one number per record."""
    return nn.functional.cross_entropy(outputs, targets, reduction="none")


def labeled(count: int, *, features: int = 6, classes: int = 3, seed: int = 1) -> tuple[Tensor, Tensor]:
    """Random records with labels."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, features, generator=generator)
    return x, torch.randint(0, classes, (count,), generator=generator)


def clipped_one_by_one(model: nn.Module, loss: Loss, batch: Batch, clip_norm: float) -> Tensor:
    """The sum of clipped gradients, each from a batch of one by plain autograd."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    total = torch.zeros(sum(p.numel() for p in parameters))
    for i in range(row_count(batch)):
        inputs, targets = take(batch, slice(i, i + 1))
        value = loss(call(model, inputs), targets).sum()
        found = torch.autograd.grad(value, parameters, allow_unused=True)
        parts = [torch.zeros_like(p) if g is None else g for p, g in zip(parameters, found, strict=True)]
        flat = torch.cat([part.flatten() for part in parts])
        total += flat * min(1.0, clip_norm / max(float(flat.norm()), 1e-12))
    return total


def assert_exact(
    oracle: NetworkOracle, loss: Loss, batch: Batch, *, clip_norm: float = 1.0, rtol: float = 1e-4
) -> None:
    """The oracle's sum is that of single records."""
    want = clipped_one_by_one(oracle.model, loss, batch, clip_norm)
    got = private_sum(oracle, batch, Flat(clip_norm))
    off = float((got - want).norm()) / float(want.norm())
    assert off <= rtol, f"the sum is off by {off:.3g} of its length, by route {oracle.route.kind}"
