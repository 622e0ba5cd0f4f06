"""Whole training steps of one model by each method: what `benchmarks.step` measures.

A step draws its batch, computes its gradient, adds the noise and moves an optimizer. Each method indexes the
same tensors with what its own sampler draws: none waits for a data loader.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD, Optimizer
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.models import Batch, Case

__all__ = ["STEPS", "Step"]

Step = Callable[[], None]
CLIP, NOISE, EPOCH = 1.0, 1.0, 20  # batches in an epoch, on average


def _optimizer(model: nn.Module) -> Optimizer:
    return SGD(model.parameters(), lr=1e-3, momentum=0.9)


def _taken(data: Batch, indices: Any) -> Batch:
    return data[0][indices], data[1][indices]


def plain(case: Case) -> Step:
    """PyTorch without privacy: shuffled batches of a fixed size."""
    model, data = case.build(), case.draw(EPOCH * case.batch)
    optimizer = _optimizer(model)

    def step() -> None:
        inputs, targets = _taken(data, torch.randperm(len(data[0]))[: case.batch])
        optimizer.zero_grad()
        case.loss(model(inputs), targets).mean().backward()
        optimizer.step()

    return step


def private(case: Case) -> Step:
    """DP-SGD by `PrivateStep`."""
    from sidelight import PrivateStep

    model, data = case.build(), case.draw(EPOCH * case.batch)
    optimizer = _optimizer(model)
    step = PrivateStep(
        model, case.loss, method="dp_sgd", noise_multiplier=NOISE, n_private=len(data[0]),
        expected_batch_size=case.batch,
    )  # fmt: skip

    def whole() -> None:
        step(_taken(data, torch.from_numpy(step.sample())))
        optimizer.step()

    return whole


def opacus(case: Case, mode: str) -> Step:
    """Opacus' engine in this mode. Models that it does not take are replaced by those that it does."""
    from opacus import PrivacyEngine

    model, data = (case.untied or case.build)(), case.draw(EPOCH * case.batch)
    made = PrivacyEngine().make_private(
        module=model, optimizer=_optimizer(model), criterion=_Mean(case.loss), noise_multiplier=NOISE,
        data_loader=DataLoader(TensorDataset(*data), batch_size=case.batch), max_grad_norm=CLIP,
        grad_sample_mode=mode,
    )  # fmt: skip
    private_model: Any = made[0]
    optimizer, criterion = made[1], made[2] if len(made) == 4 else _Mean(case.loss)
    draws = made[-1].batch_sampler

    def step() -> None:
        inputs, targets = _taken(data, torch.tensor(next(iter(draws))))
        optimizer.zero_grad()
        criterion(private_model(inputs), targets).backward()
        optimizer.step()

    return step


class _Mean(nn.Module):
    """A loss as Opacus asks for it: the mean, or one number per record where it sets `reduction`."""

    def __init__(self, loss: Callable[[Any, Any], Tensor]) -> None:
        super().__init__()
        self.reduction, self._loss = "mean", loss

    def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
        losses = self._loss(outputs, targets)
        return losses.mean() if self.reduction == "mean" else losses


STEPS: dict[str, Callable[[Case], Step]] = {
    "plain": plain,
    "sidelight, dp_sgd": private,
    "Opacus, hooks": partial(opacus, mode="hooks"),
    "Opacus, functorch": partial(opacus, mode="functorch"),
    "Opacus, ghost": partial(opacus, mode="ghost"),
}
