"""Per-record gradients of a module that has no rule: torch.func, for that module alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from sidelight.errors import AssumptionError
from sidelight.oracles.network.alike import SIMPLE
from sidelight.oracles.network.layers import on_gradient
from sidelight.oracles.network.pieces import Piece, Rows
from sidelight.oracles.network.rounding import CHUNK, chunks

__all__ = ["Call"]


class Call:
    """One call of a module: its arguments, and the gradients of its outputs as they arrive."""

    def __init__(
        self,
        module: nn.Module,
        parameters: dict[str, nn.Parameter],
        arguments: tuple[tuple[Any, ...], dict[str, Any]],
        batched: tuple[int, ...] | None,
        count: int,
    ) -> None:
        self.module, self.parameters, self._count = module, parameters, count
        self._leaves, self._spec = tree_flatten(arguments)
        positions = [i for i, leaf in enumerate(self._leaves) if isinstance(leaf, Tensor)]
        flags = batched if batched is not None else (1,) * len(positions)
        self._batched = [i for i, flag in zip(positions, flags, strict=True) if flag]
        self._grads: dict[int, Tensor] = {}

    def listen(self, output: Any) -> bool:
        """Ask for the gradients of the outputs; False if there will be none."""
        outputs = [(i, leaf) for i, leaf in enumerate(tree_leaves(output)) if isinstance(leaf, Tensor)]
        asked = [(i, leaf) for i, leaf in outputs if leaf.requires_grad]
        for i, leaf in asked:
            on_gradient(leaf, partial(self._keep, i))
        return bool(asked)

    def arguments_of_records(self) -> list[Tensor]:
        """The arguments that have rows of records."""
        return [self._leaves[i] for i in self._batched]

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
                with torch.enable_grad():
                    found: Tensor = each(parameter, [x[low:high] for x in data], some)
                return found.detach().flatten(1)
            except RuntimeError as error:
                raise AssumptionError(self._refusal(name, error)) from error

        return rows

    def _refusal(self, name: str, error: RuntimeError) -> str:
        kind = type(self.module).__name__
        advice = "Move the parameter into a small module of its own, or register a rule for it"
        if "randomness" in str(error):
            return f"{kind} mixes the parameter {name!r} with dropout or other randomness. {advice}"
        return f"{kind} has no rule, and torch.func cannot take the gradient of {name!r} by record. {advice}"


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
