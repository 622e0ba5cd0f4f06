"""Plain training on public records: warm starts, model reuse, and the method that uses nothing else."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

from sidelight.augment.mixing import augmented
from sidelight.errors import AssumptionError, InputError
from sidelight.oracles.network.flat import read, set_gradients, trainable
from sidelight.oracles.network.network_oracle import NetworkOracle
from sidelight.oracles.network.records import Records
from sidelight.problems.network_guide import Augment, public_indices

__all__ = ["Optimizer", "PublicTraining", "Scheduler", "plain_steps"]

Optimizer = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]


class _Steps(Protocol):
    """A learning-rate scheduler, as far as training uses it."""

    def step(self) -> object: ...


Scheduler = Callable[[torch.optim.Optimizer], _Steps]

_AWAY = 2**40  # steps of plain training draw other batches than private steps do


@dataclass(frozen=True)
class PublicTraining:
    """Plain steps on public records (DOPE-SGD's warm start; with `augment` its warm-aug).

    Args:
        steps: how many.
        batch_size: public records per step.
        optimizer: parameters → optimizer; None is SGD with step size 0.1 and momentum 0.9.
        augment: inputs → inputs, for instance random shifts of images; or `mixup`.
        scheduler: optimizer → scheduler, stepped after every step.
    """

    steps: int = 300
    batch_size: int = 128
    optimizer: Optimizer | None = None
    augment: Augment | None = None
    scheduler: Scheduler | None = None

    def __post_init__(self) -> None:
        if self.steps < 0 or self.batch_size < 1:
            raise InputError("public training needs steps of at least 0 and batch_size of at least 1")

    def make_optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        if self.optimizer is not None:
            return self.optimizer(trainable(model))
        return torch.optim.SGD(trainable(model), lr=0.1, momentum=0.9)


def plain_steps(
    oracle: NetworkOracle,
    records: Records,
    how: PublicTraining,
    *,
    seed: int,
    pull: tuple[Tensor, float] | None = None,
    each: Callable[[int], bool] | None = None,
) -> None:
    """Train without privacy, in place; `pull` = (w₀, λ) adds λ‖w − w₀‖².

    `each` is called after every step, and ends the training by returning False.
    """
    model = oracle.model
    optimizer = how.make_optimizer(model)
    scheduler = None if how.scheduler is None else how.scheduler(optimizer)
    for step in range(how.steps):
        indices = public_indices(len(records), how.batch_size, seed=seed, step=_AWAY + step)
        inputs, targets = records.fetch(indices)
        gradient = oracle.mean_gradient(augmented(how.augment, inputs, targets))
        if pull is not None:
            gradient = gradient + 2 * pull[1] * (read(model) - pull[0])
        set_gradients(model, gradient)
        optimizer.step()
        if scheduler is not None:
            scheduler.step()
        if each is not None and not each(step):
            break
    optimizer.zero_grad(set_to_none=True)
    if not bool(read(model).isfinite().all()):
        raise AssumptionError("plain training on public records diverged; lower its step size")
