"""A network's trainable parameters as one flat vector, which is all that a method ever sees."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import copy
from typing import Any

import torch
from torch import Tensor, nn

from sidelight.arrays import Vector
from sidelight.errors import InputError
from sidelight.oracles.network.capture import working

__all__ = ["evaluating", "per_example", "read", "set_gradients", "tensor", "train_mode", "trainable", "write"]

_ELEMENTWISE = (nn.MSELoss, nn.L1Loss, nn.SmoothL1Loss, nn.HuberLoss, nn.BCELoss, nn.BCEWithLogitsLoss)


def trainable(model: nn.Module) -> list[nn.Parameter]:
    """The parameters that are trained, each once, in the order of the flat vector."""
    return [p for p in model.parameters() if p.requires_grad]


def tensor(vector: Vector) -> Tensor:
    """The vector, which for a network is a tensor."""
    if not isinstance(vector, Tensor):
        kind = type(vector).__name__
        raise InputError(
            f"a part gave a {kind} for a network, whose parameters and gradients are torch tensors"
        )
    return vector


def read(model: nn.Module) -> Tensor:
    """A copy of the parameters."""
    parameters = trainable(model)
    dtype = working(*(p.dtype for p in parameters))
    return torch.cat([p.detach().reshape(-1).to(dtype) for p in parameters])


def write(model: nn.Module, vector: Tensor) -> None:
    """Set the parameters, in place."""
    with torch.no_grad():
        for parameter, part in zip(trainable(model), _split(model, vector), strict=True):
            parameter.copy_(part)


def set_gradients(model: nn.Module, vector: Tensor, *, add: bool = False) -> None:
    """Put a gradient into .grad of every trainable parameter, in place of what was there or added to it."""
    for parameter, part in zip(trainable(model), _split(model, vector), strict=True):
        new = part.to(parameter.dtype)
        parameter.grad = new.clone() if parameter.grad is None or not add else parameter.grad + new


def _split(model: nn.Module, vector: Tensor) -> list[Tensor]:
    parameters = trainable(model)
    parts = torch.split(vector, [p.numel() for p in parameters])
    return [part.view(p.shape) for part, p in zip(parts, parameters, strict=True)]


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """The model in evaluation mode, and every module back in its own mode afterwards."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode


def train_mode(model: nn.Module) -> None:
    """The model in training mode, but for norms whose averages were frozen with .eval(): they stay so."""
    norms = nn.modules.batchnorm._NormBase
    frozen = [m for m in model.modules() if isinstance(m, norms) and m.track_running_stats and not m.training]
    model.train()
    for module in frozen:
        module.eval()


def per_example(loss: Callable[[Any, Any], Tensor]) -> Callable[[Any, Any], Tensor]:
    """The loss with one number a record.

    A loss module with reduction='mean' becomes a copy with 'none'; elementwise losses (MSELoss and its like)
    then take the mean over each record's own elements. A function is used as it is.
    """
    reduction = getattr(loss, "reduction", "none")
    if not isinstance(loss, nn.Module) or reduction == "none":
        return loss
    if reduction != "mean" or getattr(loss, "weight", None) is not None:
        raise InputError(
            f"{type(loss).__name__} with reduction={reduction!r} and its weights has no meaning for one "
            "record alone. Pass reduction='none', which gives one loss a record"
        )
    single: Any = copy(loss)
    single.reduction = "none"
    if not isinstance(loss, _ELEMENTWISE):
        return single  # type: ignore[no-any-return]
    return lambda outputs, targets: _mean_of_record(single(outputs, targets))


def _mean_of_record(losses: Tensor) -> Tensor:
    return losses.flatten(1).mean(1) if losses.dim() > 1 else losses
