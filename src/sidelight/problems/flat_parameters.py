"""The trainable parameters of a model, read and set as one flat vector."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from sidelight.oracles.network.flat import joined_flat, trainable, views_of
from sidelight.oracles.network.pieces import working


def read(model: nn.Module, parameters: Sequence[nn.Parameter] | None = None) -> Tensor:
    """A copy of the parameters; `parameters`: those that are trained, where somebody knows them."""
    parameters = trainable(model) if parameters is None else parameters
    dtype = working(*(p.dtype for p in parameters))
    with torch.no_grad():
        return joined_flat([p if p.dtype == dtype else p.to(dtype) for p in parameters])


def write(model: nn.Module, vector: Tensor) -> None:
    """Set the parameters, in place."""
    parameters = trainable(model)
    with torch.no_grad():
        torch._foreach_copy_(list[Tensor](parameters), views_of(vector, parameters))


def set_gradients(model: nn.Module, vector: Tensor, *, add: bool = False) -> list[nn.Parameter]:
    """Put a gradient into .grad of every trainable parameter, in place of what was there or added to it.

    Returns these parameters.
    """
    parameters, own = trainable(model), vector.clone()  # of which every gradient is a part
    for parameter, part in zip(parameters, views_of(own, parameters), strict=True):
        new = part if part.dtype == parameter.dtype else part.to(parameter.dtype)
        parameter.grad = new if parameter.grad is None or not add else parameter.grad + new
    return parameters


def drop_gradients(optimizer: torch.optim.Optimizer) -> None:
    """optimizer.zero_grad(), without what PyTorch does around it (which takes longer than the rest)."""
    if type(optimizer).zero_grad is not torch.optim.Optimizer.zero_grad:
        optimizer.zero_grad(set_to_none=True)
        return
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            parameter.grad = None


def train_mode(model: nn.Module) -> None:
    """The model in training mode, but for norms whose averages were frozen with .eval(): they stay so."""
    norms = nn.modules.batchnorm._NormBase
    frozen = [m for m in model.modules() if isinstance(m, norms) and m.track_running_stats and not m.training]
    model.train()
    for module in frozen:
        module.eval()
