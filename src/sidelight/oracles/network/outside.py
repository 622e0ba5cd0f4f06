"""Parameters that are used outside of the module that holds them, found by autograd.

A pass by layers knows what a module's own forward does with its parameters, and nothing else: a penalty on a
weight in the loss, a functional use of another module's weight or a hook would be missing from the gradient.
In a trial that share may be too small to be seen, and grow with the weights. So it is not looked for in
numbers. Modules are given the values of their parameters, through which no gradient goes; whatever then still
leads from the losses to a parameter is a use outside.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial

import torch
from torch import Tensor, nn

from sidelight.errors import AssumptionError
from sidelight.oracles.network.batches import Batch, Losses, call
from sidelight.oracles.network.flat import trainable
from sidelight.oracles.network.module_calls import swap
from sidelight.oracles.network.routes import Watched, one_per_row
from sidelight.oracles.network.written_out import WithLoss


def graph_leaves(value: Tensor) -> list[Tensor]:
    """The tensors that a backward pass from here would leave a gradient in."""
    found, seen, waiting = list[Tensor](), set[object](), [value.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if type(node).__name__ == "AccumulateGrad":
            found.append(node.variable)  # type: ignore[attr-defined]
        waiting.extend(following for following, _ in node.next_functions)
    return found


def refuse_untrained(model: nn.Module, loss: Losses, passes: Sequence[Sequence[Tensor]]) -> None:
    """Raise if losses depend on a tensor that asks for a gradient and is no parameter of the model.

    passes: the leaves of at least two passes. What only one of them has was made by it, as an input is that
    a model differentiates with respect to.
    """
    own = set(model.parameters())
    for leaf in passes[0]:
        if leaf not in own and all(any(leaf is x for x in leaves) for leaves in passes[1:]):
            raise AssumptionError(
                f"the loss depends on {_name_of(leaf, model, loss)}, which requires a gradient and is no "
                "parameter of the model, so it would never be trained. Register it in the model, or call "
                "requires_grad_(False) on it"
            )


def _name_of(leaf: Tensor, model: nn.Module, loss: Losses) -> str:
    inner = getattr(loss, "__wrapped__", loss)
    if isinstance(inner, nn.Module):
        for name, parameter in inner.named_parameters():
            if parameter is leaf:
                return f"the parameter {name!r} of {type(inner).__name__}"
    return f"a tensor of shape {tuple(leaf.shape)}"


def used_outside_modules(
    model: nn.Module, loss: Losses, batch: Batch, watched: Sequence[Watched], rows: int
) -> bool:
    """Whether a gradient would reach a parameter past the modules that a pass by layers watches."""
    parameters = trainable(model)  # before others are put in their places
    with torch.enable_grad(), _values_only(watched, rows) as tokens:
        losses = loss(call(model, batch[0]), batch[1])
        return _reaches(losses, parameters) or _joins_rows(losses, tokens)


def used_outside_torch_func(model: nn.Module, loss: Losses, batch: Batch) -> bool:
    """Whether a gradient would reach a parameter by another way than as an attribute of its module."""
    values = {f"model.{name}": p.detach() for name, p in model.named_parameters()}
    with torch.enable_grad():
        losses: Tensor = torch.func.functional_call(WithLoss(model, loss), values, batch)
    return _reaches(losses, trainable(model))


def _reaches(losses: Tensor, parameters: Iterable[Tensor]) -> bool:
    wanted = set(parameters)
    return any(leaf in wanted for leaf in graph_leaves(losses))


def _joins_rows(losses: Tensor, tokens: Sequence[Tensor]) -> bool:
    """Whether losses of even rows depend on what odd rows were given of a parameter that has rows."""
    if not tokens or not losses.requires_grad or len(losses) < 2:
        return False
    found = torch.autograd.grad(losses[::2].sum(), tokens, allow_unused=True)
    return any(bool(grad[1::2].any()) for grad in found if grad is not None)


@contextmanager
def _values_only(watched: Sequence[Watched], rows: int) -> Iterator[list[Tensor]]:
    """Modules compute with the values of their own parameters; what is given to each row is handed out."""
    tokens = list[Tensor]()
    with ExitStack() as stack:
        for one in watched:
            if one.computes:
                continue  # by the layer that it computes a weight for
            if one.expanded is not None:
                for name, parameter in one.own.items():
                    each = one_per_row(parameter.detach(), one.expanded, rows).clone().requires_grad_()
                    tokens.append(each)
                    swap(stack, vars(one.module)["_parameters"], name, each)
            else:
                swap(stack, vars(one.module), "forward", partial(_forward, one, one.module.forward))
        yield tokens


def _forward(one: Watched, forward: Callable[..., object], *args: object, **kwargs: object) -> object:
    """A module's forward, or that of its stand-in, with the values of its parameters."""
    computed = getattr(one.module, "parametrizations", None)
    inside = [one.module] if one.stand_in is None else list(one.module.modules())
    inside += list(computed.modules()) if isinstance(computed, nn.ModuleDict) else []
    with ExitStack() as stack:
        for module in inside:
            held = vars(module)["_parameters"]
            for name, parameter in list(held.items()):
                if isinstance(parameter, Tensor):
                    swap(stack, held, name, parameter.detach())
        if one.stand_in is not None:
            return one.stand_in(one.module, lambda *_: None, *args, **kwargs)
        return forward(*args, **kwargs)
