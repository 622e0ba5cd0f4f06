"""Gradients of single records written out: by torch.func, and one record at a time.

For models whose layers cannot be watched in a batch. Both are right by construction: a record goes through
the model alone, as a batch of one, so nothing can depend on the others, whatever the model does with masks,
routes, shared or reparametrized weights. `by_vmap` does that for many records at once (torch.func); it needs
a control flow that does not depend on values. `by_loop` calls the model once for each record. Both write
gradients out: records × parameters, a few records at a time.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import ExitStack

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_unflatten

from sidelight.errors import INTERRUPTS, SidelightError
from sidelight.oracles.network.batches import Batch, Losses, call, row_count, seed_torch, take
from sidelight.oracles.network.flat import trainable
from sidelight.oracles.network.module_calls import unroll
from sidelight.oracles.network.pieces import working
from sidelight.oracles.network.routes import Gradients, gradients_of

_MAX_NUMBERS = 2**25  # numbers in gradients that are written out at a time


def records_at_once(dimension: int, wanted: int) -> int:
    """How many records' gradients are written out at a time: a function of public sizes."""
    return max(1, min(wanted, _MAX_NUMBERS // max(1, dimension)))


class WithLoss(nn.Module):
    """A model and its loss, so that torch.func puts parameters in their places for both."""

    def __init__(self, model: nn.Module, loss: Losses) -> None:
        super().__init__()
        self.model, self._loss = model, [loss]  # which may be a module: its parameters are not the model's

    def forward(self, inputs: object, targets: object) -> Tensor:
        return self._loss[0](call(self.model, inputs), targets)


def by_vmap(
    model: nn.Module,
    loss: Losses,
    batch: Batch,
    count: int,
    weights: Tensor | None = None,
    *,
    randomness: str = "different",
) -> Gradients:
    """Gradients of all trainable parameters by torch.func, with random numbers of each record's own.

    randomness: "same" gives every record the numbers that it would draw alone from the present state.
    """
    parameters = {f"model.{name}": p for name, p in model.named_parameters() if p.requires_grad}
    both = WithLoss(model, loss)
    records, filled = by_record(batch, count)

    def value(own: dict[str, Tensor], record: list[Tensor], shares: Tensor | None) -> Tensor:
        return _of_record(torch.func.functional_call(both, own, filled(record)), shares)

    own = {name: p.detach() for name, p in parameters.items()}
    shares = None if weights is None else weights.reshape(count, -1)
    places_of = (None, 0, None if shares is None else 0)
    each = torch.func.vmap(torch.func.grad(value), in_dims=places_of, randomness=randomness)
    with ExitStack() as stack, torch.enable_grad(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="There is a performance drop")  # some layers have no rule
        unroll(stack, model)
        found = each(own, records, shares)
    return {p: _rows(found[name], p, count) for name, p in parameters.items()}


def by_record(batch: Batch, count: int) -> tuple[list[Tensor], Callable[[list[Tensor]], Batch]]:
    """The tensors of a batch with a first dimension of records, and how to make a batch of one record's."""
    leaves, spec = tree_flatten(batch)
    places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]

    def filled(record: list[Tensor]) -> Batch:
        whole = list(leaves)
        for i, x in zip(places, record, strict=True):
            whole[i] = x
        made: Batch = tree_unflatten(whole, spec)
        return made

    return [leaves[i].detach().reshape(count, -1, *leaves[i].shape[1:]) for i in places], filled


def by_loop(
    model: nn.Module,
    loss: Losses,
    batch: Batch,
    count: int,
    weights: Tensor | None = None,
    *,
    seed: int | None = None,
    restore: Callable[[], None] = lambda: None,
    strict: bool = False,
) -> Gradients:
    """The same, one call per record. A record on which the model or the loss fails has a gradient of NaN.

    `strict`: for rows that are not private, where a failure raises.
    `seed`: each record draws its random numbers from a seed of its own, however many the others drew.
    `restore` puts the model back after each record, so that none sees what another left behind.
    """
    parameters = trainable(model)
    rows = row_count(batch) // max(1, count)
    found = {p: p.new_zeros((count, p.numel()), dtype=working(p.dtype)) for p in parameters}
    for i in range(count):
        if seed is not None:
            seed_torch(seed + i * 0x9E3779B97F4A7C15)
        try:
            some = slice(i * rows, (i + 1) * rows)
            inputs, targets = take(batch, some)
            with torch.enable_grad():
                losses = loss(call(model, inputs), targets)
                mean = _of_record(losses, None if weights is None else weights[some])
                grads = gradients_of(mean, parameters)
        except (SidelightError, *INTERRUPTS):
            raise
        except BaseException:  # memory too: here a record's values may say how much is wanted
            if strict:
                raise
            grads = {p: torch.full_like(p, torch.nan) for p in parameters}
        restore()
        for parameter, grad in grads.items():
            found[parameter][i] = grad.reshape(-1)
    return found


def _of_record(losses: Tensor, weights: Tensor | None) -> Tensor:
    """The mean of a record's losses, or their sum by these weights."""
    return losses.mean() if weights is None else (losses * weights.to(losses)).sum()


def is_record_dependent(error: BaseException) -> bool:
    """Whether an error may come from a record's values; what sidelight refuses, and memory, do not."""
    if isinstance(error, SidelightError | MemoryError | torch.OutOfMemoryError):
        return False
    return "allocate memory" not in str(error)


def _rows(grad: Tensor, parameter: Tensor, count: int) -> Tensor:
    return grad.detach().reshape(count, -1).to(working(parameter.dtype))
