"""One forward and one backward pass that leave a piece for every trainable parameter.

Inside `with Capture(...)`, layers report their inputs, and the gradients of their outputs arrive during the
backward pass. Gradients of parameters are not computed: the pass is asked only for the outputs of the first
layers, so it costs less than a plain one. A parameter's piece is handed to `receive` when its last use has
arrived, and what it no longer needs is freed while the pass goes on. On leaving, the model is as it was: no
hooks, no wrappers, the same parameters.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.utils._pytree import tree_leaves, tree_map

from sidelight.errors import AssumptionError
from sidelight.oracles.network.fallback import Call
from sidelight.oracles.network.layers import Use, on_gradient, rule_for, stand_in_for
from sidelight.oracles.network.pieces import Piece, Rows
from sidelight.oracles.network.rounding import plain_products
from sidelight.oracles.network.shared import merged

__all__ = ["Capture", "Wiring", "differentiate", "own_parameters", "tensors", "working"]


@dataclass(frozen=True)
class Wiring:
    """What the check found out about a model: how many rows of its layers' arguments belong to one record.

    `expanded` are containers whose bare parameters start with a dimension of 1 (class tokens, positions):
    they are handed out with that dimension as long as the batch, so that each record has a gradient.
    """

    batched: dict[nn.Module, tuple[int, ...]] = field(default_factory=dict)
    expanded: frozenset[nn.Module] = frozenset()


@dataclass
class _Tapped:
    """An output whose gradient is awaited."""

    uses: list[Use]
    source: Tensor
    version: int
    shape: torch.Size


class Capture:
    """Watches one pass over `rows` rows, which are `count` records (each of rows/count augmentations)."""

    def __init__(
        self,
        model: nn.Module,
        wiring: Wiring,
        *,
        rows: int,
        count: int,
        receive: Callable[[Tensor, Piece], None] | None,
        watch: Callable[[Tensor], None] = lambda x: None,
    ) -> None:
        self._watch_only = receive is None  # the passes alone, without what is made of them
        self._watch_rows = watch  # told of every tensor whose rows are taken for records, in order
        receive = receive or (lambda *_: None)
        self._model, self._wiring, self._receive = model, wiring, receive
        self._rows, self._count = rows, count
        self._recording = True
        self._edges: list[GradientEdge] = []
        self._expected: Counter[Tensor] = Counter()
        self._pending: dict[Tensor, list[Piece]] = {}
        self._calls: list[Call] = []
        self._stack = ExitStack()

    def __enter__(self) -> Capture:
        with ExitStack() as stack:
            stack.enter_context(torch.enable_grad())
            for module in self._model.modules():
                self._watch(module, stack)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()
        # The graph holds our hooks, these hold us, and we the graph: no collector would see that circle.
        self._calls.clear()
        self._edges.clear()
        self._pending.clear()

    def _watch(self, module: nn.Module, stack: ExitStack) -> None:
        replacement = stand_in_for(module)
        own = own_parameters(module)
        if replacement is not None and any(p.requires_grad for p in module.parameters()):
            _swap(stack, module.__dict__, "forward", partial(replacement, module, self.tap))
        elif own and module in self._wiring.expanded:
            for name, parameter in own.items():
                _swap(stack, module._parameters, name, self._expanded(parameter))
        elif own:
            handle = module.register_forward_hook(self._passed, with_kwargs=True, prepend=True)
            stack.callback(handle.remove)

    def _expanded(self, parameter: nn.Parameter) -> Any:
        rows = parameter.expand(self._rows, *parameter.shape[1:])

        def build(grad: Tensor, count: int) -> Piece:
            return Rows(grad.reshape(count, -1, parameter.numel()).sum(1), parameter.shape)

        self.tap(rows, torch.empty(0), [Use(parameter, build)])
        return rows

    def _passed(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Any:
        """After a layer's forward: note its input. If that carries no records, the output is repeated."""
        batched = self._wiring.batched.get(module)
        repeated = batched is not None and not any(batched)
        rule = rule_for(module)
        inputs = tensors((args, kwargs))
        self._check_rows(module, inputs, batched)
        if repeated:
            deep = rule is None or inputs[0].dim() > 1  # a list of places has no dimension of rows
            output = tree_map(lambda x: self._repeat(x, deep) if isinstance(x, Tensor) else x, output)
        if self._recording and torch.is_grad_enabled():
            if rule is None:
                self._note_call(module, (args, kwargs), output)
            else:
                x = self._repeat(inputs[0].detach(), deep) if repeated else inputs[0]
                self.tap(output, x, rule(module, x.detach()))
        return output if repeated else None

    def _check_rows(self, module: nn.Module, inputs: list[Tensor], batched: tuple[int, ...] | None) -> None:
        """Every call has as many rows a record as the check saw: none were selected by their values."""
        wanted = [each * self._rows for each in batched or ()]
        found = [x.shape[0] if each else 0 for x, each in zip(inputs, batched or (), strict=False)]
        if batched is not None and (len(inputs) != len(batched) or found != wanted):
            raise AssumptionError(
                f"{type(module).__name__} was called with another number of rows than in the trial, so they "
                "cannot be told apart by record. Select no rows by their values before a layer"
            )

    def _repeat(self, x: Tensor, leading: bool) -> Tensor:
        """The same for every row: along a first dimension of 1 if there is one, else along a new one."""
        x = x if leading and x.shape[0] == 1 else x[None]
        return x.expand(self._rows, *x.shape[1:])

    def tap(self, output: Tensor, source: Tensor, uses: Sequence[Use]) -> None:
        """See `layers.Tap`."""
        uses = [use for use in uses if use.parameter.requires_grad]
        if not (self._recording and output.requires_grad and uses):
            return
        self._expected.update(use.parameter for use in uses)
        self._watch_rows(output)
        self._watch_rows(source)
        target = _storage_owner(output)
        if not source.requires_grad:  # nothing trainable before it: the backward pass may end here
            self._edges.append(get_gradient_edge(target))
        on_gradient(
            target, partial(self._arrived, _Tapped(list(uses), source, source._version, output.shape))
        )

    def _arrived(self, tapped: _Tapped, grad: Tensor) -> None:
        if self._watch_only:
            self._watch_rows(grad)
            return
        if tapped.source._version != tapped.version:
            raise AssumptionError(
                "the input of a layer was changed in place after the layer used it, so its gradient is lost. "
                "Use the out-of-place operation there"
            )
        uses, tapped.uses, tapped.source = tapped.uses, [], torch.empty(0)  # freed as the pass goes on
        with plain_products(grad.device):
            values = grad.detach().reshape(tapped.shape).to(working(grad.dtype, uses[0].parameter.dtype))
            while uses:
                use = uses.pop(0)
                piece = use.build(values, self._count)
                self._deliver(use.parameter, piece)

    def _note_call(self, module: nn.Module, arguments: Any, output: Any) -> None:
        batched = self._wiring.batched.get(module)
        call = Call(module, own_parameters(module), arguments, batched, self._count)
        if call.listen(output):
            self._calls.append(call)
            self._expected.update(call.parameters.values())
            ends = [x for x in tensors(output) if x.requires_grad]  # a parameter's gradient joins records
            for x in (*call.arguments_of_records(), *ends):
                self._watch_rows(x)
            reached = ends if self._watch_only else call.parameters.values()
            self._edges.extend(map(get_gradient_edge, reached))  # what follows is reached

    def backward(self, losses: Tensor) -> None:
        """Send every piece to `receive`."""
        self._watch_rows(losses)
        self._recording = False  # checkpointing runs forwards again; those are not new uses
        if losses.requires_grad and self._edges:
            differentiate(losses, self._edges, torch.full_like(losses, self._count / self._rows))
        if self._watch_only:
            return
        self._stack.close()  # what follows calls modules again, as they are
        for call in self._calls:
            with plain_products(losses.device):
                for parameter, piece in call.pieces():
                    self._deliver(parameter, piece)
        for waiting in list(self._pending):  # some of their uses had no part in the loss
            self._finish(waiting)

    def _deliver(self, parameter: Tensor, piece: Piece) -> None:
        self._pending.setdefault(parameter, []).append(piece)
        if len(self._pending[parameter]) == self._expected[parameter]:
            self._finish(parameter)

    def _finish(self, parameter: Tensor) -> None:
        self._receive(parameter, merged(self._pending.pop(parameter)).settled())


def differentiate(
    total: Tensor, inputs: Sequence[Any], weights: Tensor | None = None
) -> tuple[Tensor | None, ...]:
    """The gradient of `total` (of Σ weights·total), None where it does not depend on an input."""
    try:
        return torch.autograd.grad(total, inputs, weights, allow_unused=True)
    except RuntimeError as error:
        if "use_reentrant" not in str(error) and "heckpointing" not in str(error):
            raise
        message = "checkpoint(..., use_reentrant=True) hides layers; pass use_reentrant=False"
        raise AssumptionError(message) from None


def own_parameters(module: nn.Module) -> dict[str, nn.Parameter]:
    """Trainable parameters that belong to the module itself, not to its children."""
    return {name: p for name, p in module.named_parameters(recurse=False) if p.requires_grad}


def tensors(tree: Any) -> list[Tensor]:
    """The tensors in nested arguments, in order."""
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


def working(*dtypes: torch.dtype) -> torch.dtype:
    """The precision for norms and sums: float64 for float64 parameters, else float32."""
    return torch.float64 if torch.float64 in dtypes else torch.float32


def _storage_owner(output: Tensor) -> Tensor:
    """The tensor itself, or what it is a mere reshape of.

    An in-place operation on a view (relu_ after Linear, on three dimensions) re-routes the gradient around
    the view, so a hook there would stay silent; the base keeps receiving it.
    """
    base = output._base if output._is_view() else None
    if base is None or base.is_leaf or base.numel() != output.numel() or not base.requires_grad:
        return output  # a hook on a leaf, a parameter, would outlive the pass
    return base if base.is_contiguous() and output.is_contiguous() else output


def _swap(stack: ExitStack, where: dict[str, Any], name: str, value: Any) -> None:
    """Put a value into a dictionary until the stack closes."""
    if name in where:
        stack.callback(where.__setitem__, name, where[name])
    else:
        stack.callback(where.__delitem__, name)
    where[name] = value
