"""Gradients of single records that are written out for one module alone.

For a module that has no rule (`Call`), torch.func takes the gradient of each record. A weight that is
computed from others (torch.nn.utils.parametrize) hands gradients on to them (`handed_on`).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from sidelight.errors import AssumptionError
from sidelight.oracles.network.flat import modules_of
from sidelight.oracles.network.layers import on_gradient, stand_in_for
from sidelight.oracles.network.normed_pieces import normed_parts
from sidelight.oracles.network.pieces import CHUNK, Piece, Rows, chunks
from sidelight.oracles.network.snapshots import SIMPLE

Arguments: TypeAlias = tuple[tuple[object, ...], dict[str, object]]  # by place, and by name
_MAX_NUMBERS = 2**25  # numbers of a computed weight's gradients that are held for all records of a pass


def swap(stack: ExitStack, where: dict[str, object], name: str, value: object) -> None:
    """Put a value into a dictionary until the stack closes."""
    if name in where:
        stack.callback(where.__setitem__, name, where[name])
    else:
        stack.callback(where.__delitem__, name)
    where[name] = value


class Call:
    """One call of a module: its arguments, and the gradients of its outputs as they arrive."""

    def __init__(
        self,
        module: nn.Module,
        parameters: dict[str, nn.Parameter],
        arguments: Arguments,
        batched: tuple[int, ...] | None,
        count: int,
    ) -> None:
        self.module, self.parameters, self._count = module, parameters, count
        self._leaves, self._spec = tree_flatten(arguments)
        positions = [i for i, leaf in enumerate(self._leaves) if isinstance(leaf, Tensor)]
        flags = batched if batched is not None else (1,) * len(positions)
        self._batched = [i for i, flag in zip(positions, flags, strict=True) if flag]
        self._grads: dict[int, Tensor] = {}

    def listen(self, output: object) -> bool:
        """Ask for the gradients of the outputs; False if there will be none."""
        outputs = [(i, leaf) for i, leaf in enumerate(tree_leaves(output)) if isinstance(leaf, Tensor)]
        asked = [(i, leaf) for i, leaf in outputs if leaf.requires_grad]
        if any(leaf.is_leaf for _, leaf in asked):  # its gradient joins records, and a hook would stay on it
            raise AssumptionError(f"{type(self.module).__name__} returns one of its own parameters")
        for i, leaf in asked:
            on_gradient(leaf, partial(self._keep, i))
        return bool(asked)

    def _keep(self, output: int, grad: Tensor) -> None:
        self._grads[output] = grad.detach()

    def pieces(self) -> Iterator[tuple[nn.Parameter, Piece]]:
        """One piece a parameter, if any gradient arrived."""
        if not self._grads:
            return
        self._refuse_hidden()
        data = [self._split(self._leaves[i].detach()) for i in self._batched]
        cotangents = {i: self._split(grad) for i, grad in self._grads.items()}
        held = sum(x[0].numel() for x in (*data, *cotangents.values()))
        for name, parameter in self.parameters.items():
            make = self._maker(name, data, cotangents)
            yield parameter, Computed(make, self._count, parameter, held)

    def _refuse_hidden(self) -> None:
        """Raise for an argument that may hold tensors where nobody looks: each record would get all rows."""
        for leaf in self._leaves:
            if not isinstance(leaf, (Tensor, *SIMPLE)):
                raise AssumptionError(
                    f"{type(self.module).__name__} takes a {type(leaf).__name__}, which may hide tensors of "
                    "records. Hand them over as tensors, or in a list, tuple or dictionary"
                )

    def _split(self, x: Tensor) -> Tensor:
        return x.reshape(self._count, x.shape[0] // self._count, *x.shape[1:])

    def _maker(
        self, name: str, data: list[Tensor], cotangents: dict[int, Tensor]
    ) -> Callable[[int, int], Tensor]:
        """records → gradients of one parameter."""

        def value(own: Tensor, inputs: list[Tensor], weights: dict[int, Tensor]) -> Tensor:
            leaves = [leaf.detach() if isinstance(leaf, Tensor) else leaf for leaf in self._leaves]
            for i, x in zip(self._batched, inputs, strict=True):
                leaves[i] = x
            args, kwargs = tree_unflatten(leaves, self._spec)
            output = tree_leaves(torch.func.functional_call(self.module, {name: own}, args, kwargs))
            dots = [(output[i] * weight.to(output[i].dtype)).sum() for i, weight in weights.items()]
            return torch.stack(dots).sum()

        each = torch.func.vmap(torch.func.grad(value), in_dims=(None, 0, 0))
        parameter = self.parameters[name].detach()

        def rows(low: int, high: int) -> Tensor:
            some = {i: weight[low:high] for i, weight in cotangents.items()}
            try:
                with torch.enable_grad(), ExitStack() as stack:
                    unroll(stack, self.module)
                    stack.enter_context(Decomposed())
                    found: Tensor = each(parameter, [x[low:high] for x in data], some)
                return found.detach().reshape(high - low, -1)
            except RuntimeError as error:
                raise AssumptionError(self._refusal(name, error)) from error

        return rows

    def _refusal(self, name: str, error: RuntimeError) -> str:
        kind = type(self.module).__name__
        advice = "Move the parameter into a small module of its own, or register a rule for it"
        if "randomness" in str(error):
            return f"{kind} mixes the parameter {name!r} with dropout or other randomness. {advice}"
        return f"{kind} has no rule, and torch.func cannot take the gradient of {name!r} by record. {advice}"


def unroll(stack: ExitStack, model: nn.Module) -> None:
    """Recurrent layers step by step until the stack closes: torch.func cannot take them at once."""
    for module in modules_of(model):
        if isinstance(module, nn.RNNBase) and (replacement := stand_in_for(module)) is not None:
            swap(stack, module.__dict__, "forward", partial(replacement, module, lambda *_: None))


class Computed(Piece):
    """Gradients made anew whenever they are asked for, in the same chunks, so with the same numbers."""

    def __init__(
        self, make: Callable[[int, int], Tensor], count: int, parameter: nn.Parameter, held: int
    ) -> None:
        self._make, self._held, self.count, self.shape = make, held, count, parameter.shape
        self._device = parameter.device
        self.dtype = torch.float64 if parameter.dtype == torch.float64 else torch.float32
        self._silent: Tensor | None = None

    @property
    def held(self) -> int:
        return max(self._held, CHUNK // max(1, self.count))

    def rows(self, low: int, high: int) -> Tensor:
        rows = self._make(low, high).to(self.dtype)
        return rows if self._silent is None else rows.masked_fill(self._silent[low:high, None], 0.0)

    def silence(self, records: Tensor) -> None:
        self._silent = records

    def row_error(self, scale: Tensor | None) -> Tensor:
        return torch.zeros(self.count, dtype=torch.float64, device=self._device)

    def inner(self, direction: Tensor) -> Tensor:
        flat = direction.reshape(-1).to(self.dtype)
        return torch.cat([(self.rows(*some) @ flat).double() for some in chunks(self.count, self.size)])

    def add_weighted(self, factors: Tensor, out: Tensor) -> None:
        for low, high in chunks(self.count, self.size):
            Rows(self.rows(low, high), self.shape).add_weighted(factors[low:high], out)


# ---------------------------------------------------------------------------------------------------
# a weight that is computed from others


def handed_on(
    piece: Piece, module: nn.Module, value: Tensor, parameters: Sequence[nn.Parameter]
) -> Iterator[tuple[nn.Parameter, Piece]]:
    """The pieces of those parameters from which a module computed a value."""
    if in_closed_form := normed_parts(piece, module):
        yield from in_closed_form
        return
    if piece.count * piece.size <= _MAX_NUMBERS:
        parts = [_through(piece, value, parameters, *some) for some in chunks(piece.count, piece.size)]
        for one, rows in zip(parameters, zip(*parts, strict=True), strict=True):
            yield one, Rows(torch.cat(rows).to(piece.dtype), one.shape)
        return
    for one in parameters:
        make = partial(_through_one, piece, value, one)
        yield one, Computed(make, piece.count, one, piece.held)


def _through(
    piece: Piece, value: Tensor, parameters: Sequence[nn.Parameter], low: int, high: int
) -> list[Tensor]:
    """Gradients of parameters from those of a value that was computed from them, record by record."""
    rows = piece.rows(low, high).reshape(high - low, *value.shape).to(value.dtype)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="There is a performance drop")
        found = torch.autograd.grad(value, parameters, rows, retain_graph=True, is_grads_batched=True)
    return [x.reshape(high - low, -1) for x in found]


def _through_one(piece: Piece, value: Tensor, parameter: nn.Parameter, low: int, high: int) -> Tensor:
    return _through(piece, value, [parameter], low, high)[0]


class Decomposed(TorchFunctionMode):
    """Weight norm and distances by operations that have a gradient for many records at once."""

    def __torch_function__(self, func: Any, types: object, args: Any = (), kwargs: Any = None) -> object:
        if func is torch._weight_norm:
            direction, length, dim = args
            return direction * (length / torch.norm_except_dim(direction, 2, dim))
        if func is torch.cdist and len(args) == 2 and not {"p"} & set(kwargs or {}):
            return torch.linalg.vector_norm(args[0][..., :, None, :] - args[1][..., None, :, :], dim=-1)
        return func(*args, **(kwargs or {}))
