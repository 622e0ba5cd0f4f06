"""Gradients of one record at a time, for models whose layers cannot be watched in a batch.

Right by construction: a record goes through the model alone, as a batch of one, so nothing can depend on the
others, whatever the model does with masks, routes, shared or reparametrized weights. `by_vmap` does that for
many records at once (torch.func); it needs a control flow that does not depend on values. `by_loop` calls the
model once for each record. Both write gradients out: records × parameters, a few records at a time.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_unflatten

from sidelight.errors import INTERRUPTS, SidelightError
from sidelight.oracles.network.batches import Batch, call, row_count, seed_torch, take
from sidelight.oracles.network.capture import differentiate, working

__all__ = [
    "Gradients", "Losses", "by_loop", "by_vmap", "may_tell_of_a_record", "records_at_once",
]  # fmt: skip

Losses: TypeAlias = Callable[[Any, Any], Tensor]
Gradients: TypeAlias = dict[nn.Parameter, Tensor]  # one row a record, flat

_LARGEST = 2**25  # numbers in gradients that are written out at a time


def records_at_once(dimension: int, wanted: int) -> int:
    """How many records' gradients are written out at a time: a function of public sizes."""
    return max(1, min(wanted, _LARGEST // max(1, dimension)))


def by_vmap(model: nn.Module, loss: Losses, batch: Batch, count: int) -> Gradients:
    """Gradients of all trainable parameters by torch.func, with random numbers of each record's own."""
    parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
    leaves, spec = tree_flatten(batch)
    places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]

    def value(own: dict[str, Tensor], record: list[Tensor]) -> Tensor:
        filled = list(leaves)
        for i, x in zip(places, record, strict=True):
            filled[i] = x
        inputs, targets = tree_unflatten(filled, spec)
        args, kwargs = ((), inputs) if isinstance(inputs, dict) else (inputs, {})
        args = tuple(args) if isinstance(args, tuple | list) else (args,)
        outputs = torch.func.functional_call(model, own, args, kwargs)
        return loss(outputs, targets).mean()

    records = [leaves[i].detach().reshape(count, -1, *leaves[i].shape[1:]) for i in places]
    own = {name: p.detach() for name, p in parameters.items()}
    each = torch.func.vmap(torch.func.grad(value), in_dims=(None, 0), randomness="different")
    with torch.enable_grad(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="There is a performance drop")  # some layers have no rule
        found = each(own, records)
    return {p: _rows(found[name], p, count) for name, p in parameters.items()}


def by_loop(
    model: nn.Module,
    loss: Losses,
    batch: Batch,
    count: int,
    *,
    seed: int | None = None,
    restore: Callable[[], None] = lambda: None,
) -> Gradients:
    """The same, one call a record. A record on which the model or the loss fails has a gradient of NaN.

    `seed`: each record draws its random numbers from a seed of its own, however many the others drew.
    `restore` puts the model back after each record, so that none sees what another left behind.
    """
    parameters = [p for p in model.parameters() if p.requires_grad]
    rows = row_count(batch) // max(1, count)
    found = {p: p.new_zeros((count, p.numel()), dtype=working(p.dtype)) for p in parameters}
    for i in range(count):
        if seed is not None:
            seed_torch(seed + i * 0x9E3779B97F4A7C15)
        try:
            grads = _one_gradient(model, loss, take(batch, slice(i * rows, (i + 1) * rows)), parameters)
        except (SidelightError, *INTERRUPTS):
            raise
        except BaseException:  # memory too: here a record's values may say how much is wanted
            grads = [torch.full_like(p, torch.nan) for p in parameters]
        restore()
        for parameter, grad in zip(parameters, grads, strict=True):
            if grad is not None:
                found[parameter][i] = grad.reshape(-1)
    return found


def _one_gradient(
    model: nn.Module, loss: Losses, record: Batch, parameters: list[nn.Parameter]
) -> list[Tensor | None]:
    """The gradient of one record's mean loss over its rows, by plain automatic differentiation."""
    with torch.enable_grad():
        losses = loss(call(model, record[0]), record[1])
        if not losses.requires_grad:
            return [None] * len(parameters)
        return list(differentiate(losses.mean(), parameters))


def may_tell_of_a_record(error: BaseException) -> bool:
    """Whether an error may come from a record's values; what sidelight refuses, and memory, do not."""
    if isinstance(error, SidelightError | MemoryError | torch.OutOfMemoryError):
        return False
    return "allocate memory" not in str(error)


def _rows(grad: Tensor, parameter: Tensor, count: int) -> Tensor:
    return grad.detach().reshape(count, -1).to(working(parameter.dtype))
