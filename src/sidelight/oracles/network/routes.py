"""Gradients of single records by layer, from one pass over a batch.

`Capture` takes one forward and one backward pass that leave a piece for every trainable parameter. Inside
`with Capture(...)`, layers report their inputs, and the gradients of their outputs arrive during the backward
pass. Gradients of parameters are not computed: the pass is asked only for the outputs of the first layers, so
it costs less than a plain one. A parameter's piece is handed to `receive` when its last use has arrived, and
what it no longer needs is freed while the pass continues. On leaving, the model is as it was: no hooks, no
wrappers, the same parameters. A module that has no rule is given to torch.func, it alone (`Call`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple, TypeAlias, cast

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.nn.utils.parametrize import ParametrizationList
from torch.utils._pytree import tree_map

from sidelight.errors import AssumptionError
from sidelight.oracles.network.batches import tensors
from sidelight.oracles.network.flat import modules_of
from sidelight.oracles.network.layers import Rule, StandIn, Use, on_gradient, rule_for, stand_in_for
from sidelight.oracles.network.module_calls import Arguments, Call, Decomposed, handed_on, swap
from sidelight.oracles.network.pieces import (
    Piece,
    Rows,
    plain_products,
    working,
)
from sidelight.oracles.network.shared_pieces import merged


@dataclass(frozen=True)
class Wiring:
    """What the check found out about a model: how many rows of its layers' arguments belong to one record.

    A number below 0: they are in the second dimension, as time comes first by default in recurrent layers and
    transformers.
    `expanded` are containers that use bare parameters (class tokens, positions, scales, temperatures) beside
    tensors of records. They are handed out with one row per record, so that each has a gradient: along a
    first dimension of 1 that they have (0), or with as many dimensions as is said there.
    """

    batched: dict[nn.Module, tuple[int, ...]] = field(default_factory=dict)
    expanded: dict[nn.Module, int] = field(default_factory=dict)


class Watched(NamedTuple):
    """A module that reports its parameters' uses, and how: `own` are the parameters that belong to itself."""

    module: nn.Module
    own: dict[str, nn.Parameter]
    rule: Rule | None = None
    stand_in: StandIn | None = None
    expanded: int | None = None  # see Wiring
    computes: bool = False  # a layer's weight from `own`, and from no record (torch.nn.utils.parametrize)


def watched_modules(model: nn.Module, wiring: Wiring) -> list[Watched]:
    """The modules that a capture watches; the same as long as the model's state is (`CodeState.altered`)."""
    computed = [m for m in modules_of(model) if isinstance(m, ParametrizationList)]
    inside = {m for one in computed for m in one.modules() if m is not one}
    others = (module for module in modules_of(model) if module not in inside)
    return [one for module in others if (one := _how_to_watch(module, wiring)) is not None]


def _how_to_watch(module: nn.Module, wiring: Wiring) -> Watched | None:
    replacement, own = stand_in_for(module), own_parameters(module)
    if replacement is not None and any(p.requires_grad for p in module.parameters()):
        return Watched(module, own, stand_in=replacement)
    if isinstance(module, ParametrizationList):
        own = {name: p for name, p in module.named_parameters() if p.requires_grad}
        return Watched(module, own, computes=True) if own else None
    if not own:
        return None
    return Watched(module, own, rule=rule_for(module), expanded=wiring.expanded.get(module))


Gradients: TypeAlias = dict[nn.Parameter, Tensor]  # one row per record, flat


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
        watched: Sequence[Watched] | None = None,
    ) -> None:
        self._watched = watched_modules(model, wiring) if watched is None else watched
        self._watch_only = receive is None  # the passes alone, without what is made of them
        receive = receive or (lambda *_: None)
        self._wiring, self._receive = wiring, receive
        self._rows, self._count = rows, count
        self._recording = True
        self._edges: list[GradientEdge] = []
        self._expected: Counter[Tensor] = Counter()
        self._pending: dict[Tensor, list[Piece]] = {}
        self._calls: list[Call] = []
        self._computed: dict[nn.Module, Tensor] = {}  # weights that a layer is given, without their history
        self._histories: dict[Tensor, tuple[nn.Module, Tensor, list[nn.Parameter]]] = {}
        self._stack = ExitStack()

    def __enter__(self) -> Capture:
        with ExitStack() as stack:
            stack.enter_context(torch.enable_grad())
            for one in self._watched:
                self._watch(one, stack)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()
        # The graph holds our hooks, these hold us, and we the graph: no collector would see that circle.
        for held in (self._calls, self._edges, self._pending, self._computed, self._histories):
            held.clear()

    def _watch(self, one: Watched, stack: ExitStack) -> None:
        module = one.module
        if one.computes:
            if not self._watch_only:
                swap(stack, module.__dict__, "forward", partial(self._compute, one, module.forward))
        elif one.stand_in is not None:
            swap(stack, module.__dict__, "forward", partial(one.stand_in, module, self.tap))
        elif one.expanded is not None:
            for name, parameter in one.own.items():
                swap(stack, vars(module)["_parameters"], name, self._expanded(parameter, one.expanded))
        elif one.rule is not None:  # a hook would do, and take longer
            swap(stack, module.__dict__, "forward", partial(self._forward, one, module.forward))
        else:
            handle = module.register_forward_hook(partial(self._passed, one), with_kwargs=True, prepend=True)
            stack.callback(handle.remove)

    def _forward(
        self, one: Watched, forward: Callable[..., object], *args: object, **kwargs: object
    ) -> object:
        """What a layer's own forward gives, noted."""
        output = forward(*args, **kwargs)
        other = self._passed(one, one.module, args, kwargs, output)
        return output if other is None else other

    def _compute(self, one: Watched, forward: Callable[[], Tensor]) -> Tensor:
        """A weight that is computed from others: its pieces become theirs when they have arrived."""
        if one.module not in self._computed:
            with Decomposed():
                value = forward()
            weight = self._computed[one.module] = value.detach().requires_grad_()
            self._histories[weight] = one.module, value, list(one.own.values())
            self._expected.update(one.own.values())
        return self._computed[one.module]

    def _expanded(self, parameter: nn.Parameter, rank: int) -> Tensor:
        rows = one_per_row(parameter, rank, self._rows)

        def build(grad: Tensor, count: int) -> Piece:
            return Rows(grad.reshape(count, -1, parameter.numel()).sum(1), parameter.shape)

        self.tap(rows, torch.empty(0), [Use(parameter, build)])
        return rows

    def _passed(
        self,
        one: Watched,
        module: nn.Module,
        args: tuple[object, ...],
        kwargs: dict[str, object],
        output: object,
    ) -> object:
        """After a layer's forward: note its input. If that carries no records, the output is repeated."""
        batched = self._wiring.batched.get(module)
        repeated = batched is not None and not any(batched)
        rule = one.rule
        alone = not kwargs and len(args) == 1 and type(args[0]) is Tensor
        inputs = cast("list[Tensor]", list(args)) if alone else tensors((args, kwargs))
        self._check_rows(module, inputs, batched)
        if repeated:
            deep = rule is None or inputs[0].dim() > 1  # a list of places has no dimension of rows
            output = tree_map(lambda x: self._repeat(x, deep) if isinstance(x, Tensor) else x, output)
        if self._recording and torch.is_grad_enabled():
            if rule is None:
                output = _separate(output)
                self._note_call(one, (args, kwargs), output)
                return output
            elif not isinstance(output, Tensor):
                raise AssumptionError(f"{type(module).__name__} gives no tensor, so it has no gradient")
            else:
                x = self._repeat(inputs[0].detach(), deep) if repeated else inputs[0]
                if batched is not None and batched[0] < 0:
                    uses = [_time_first(use) for use in rule(module, x.detach().transpose(0, 1))]
                else:
                    uses = rule(module, x.detach())
                self.tap(output, x, uses)
        return output if repeated else None

    def _check_rows(self, module: nn.Module, inputs: list[Tensor], batched: tuple[int, ...] | None) -> None:
        """Every call has as many rows per record as the check saw: none were selected by their values."""
        if batched is None or (batched == (1,) and len(inputs) == 1 and inputs[0].shape[0] == self._rows):
            return
        wanted = [abs(each) * self._rows for each in batched or ()]
        pairs = zip(inputs, batched or (), strict=False)
        found = [x.shape[int(each < 0)] if each else 0 for x, each in pairs]
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
        for use in uses:
            self._expected[use.parameter] += 1
        target = _storage_owner(output)
        if not source.requires_grad:  # nothing trainable before it: the backward pass may end here
            self._edges.append(get_gradient_edge(target))
        on_gradient(target, partial(self._arrived, _Tapped(uses, source, source._version, output.shape)))

    def _arrived(self, tapped: _Tapped, grad: Tensor) -> None:
        if self._watch_only:
            return
        if tapped.source._version != tapped.version:
            raise AssumptionError(
                "the input of a layer was changed in place after the layer used it, so its gradient is lost. "
                "Use the out-of-place operation there"
            )
        uses, tapped.uses, tapped.source = tapped.uses, [], torch.empty(0)  # freed as the pass continues
        with plain_products(grad.device):
            values = grad.detach() if grad.requires_grad else grad
            values = values if values.shape == tapped.shape else values.reshape(tapped.shape)
            values = values.to(working(grad.dtype, uses[0].parameter.dtype))
            while uses:
                use = uses.pop(0)
                piece = use.build(values, self._count)
                self._deliver(use.parameter, piece)

    def _note_call(self, one: Watched, arguments: Arguments, output: object) -> None:
        batched = self._wiring.batched.get(one.module)
        call = Call(one.module, one.own, arguments, batched, self._count)
        if call.listen(output):
            self._calls.append(call)
            self._expected.update(call.parameters.values())
            ends = [x for x in tensors(output) if x.requires_grad]  # a parameter's gradient joins records
            reached = ends if self._watch_only else call.parameters.values()
            self._edges.extend(map(get_gradient_edge, reached))  # what follows is reached

    def backward(self, losses: Tensor, weights: Tensor | None = None) -> None:
        """Send every piece to `receive`: gradients of a record's Σ weights·losses, or of its mean."""
        self._recording = False  # checkpointing runs forwards again; those are not new uses
        if losses.requires_grad and self._edges:
            even = torch.full_like(losses, self._count / self._rows)
            differentiate(losses, self._edges, even if weights is None else weights.to(even))
        if self._watch_only:
            return
        self._stack.close()  # what follows calls modules again, as they are
        for one in self._calls:
            with plain_products(losses.device):
                for parameter, piece in one.pieces():
                    self._deliver(parameter, piece)
        while self._pending:  # some of their uses had no part in the loss
            self._finish(next(iter(self._pending)))

    def _deliver(self, parameter: Tensor, piece: Piece) -> None:
        if self._expected[parameter] == 1:
            self._hand_over(parameter, piece)
            return
        self._pending.setdefault(parameter, []).append(piece)
        if len(self._pending[parameter]) == self._expected[parameter]:
            self._finish(parameter)

    def _finish(self, parameter: Tensor) -> None:
        self._hand_over(parameter, merged(self._pending.pop(parameter)))

    def _hand_over(self, parameter: Tensor, piece: Piece) -> None:
        if parameter not in self._histories:
            self._receive(parameter, piece.settled())
            return
        for one, part in handed_on(piece, *self._histories.pop(parameter)):
            self._deliver(one, part)


def differentiate(
    total: Tensor, inputs: Sequence[Tensor] | Sequence[GradientEdge], weights: Tensor | None = None
) -> tuple[Tensor | None, ...]:
    """The gradient of `total` (of Σ weights·total), None where it does not depend on an input."""
    try:
        return torch.autograd.grad(total, inputs, weights, allow_unused=True)
    except RuntimeError as error:
        if "use_reentrant" not in str(error) and "heckpointing" not in str(error):
            raise
        message = "checkpoint(..., use_reentrant=True) hides layers; pass use_reentrant=False"
        raise AssumptionError(message) from None


def gradients_of(loss: Tensor, parameters: Sequence[nn.Parameter]) -> Gradients:
    """The gradient of one number, zero for parameters that it does not depend on."""
    found = differentiate(loss, parameters) if loss.requires_grad else [None] * len(parameters)
    pairs = zip(parameters, found, strict=True)
    return {p: torch.zeros_like(p) if grad is None else grad for p, grad in pairs}


def own_parameters(module: nn.Module) -> dict[str, nn.Parameter]:
    """Trainable parameters that belong to the module itself, not to its children."""
    return {name: p for name, p in module.named_parameters(recurse=False) if p.requires_grad}


def _separate(output: object) -> object:
    """Several outputs of a module as tensors of their own: one may be computed from another."""
    if len([x for x in tensors(output) if x.requires_grad]) < 2:
        return output
    return tree_map(lambda x: x.clone() if isinstance(x, Tensor) else x, output)


def one_per_row(parameter: Tensor, rank: int, rows: int) -> Tensor:
    """The parameter for each row; rank: see `Wiring.expanded`."""
    missing = max(0, rank - parameter.dim())
    whole = parameter.view(*[1] * missing, *parameter.shape)
    return whole.expand(rows, *whole.shape[1:])


def _time_first(use: Use) -> Use:
    """The use of a layer whose input and output have records in their second dimension."""
    return Use(use.parameter, lambda grad, count: use.build(grad.transpose(0, 1), count))


def _storage_owner(output: Tensor) -> Tensor:
    """The tensor itself, or what it is a mere reshape of.

    An in-place operation on a view (relu_ after Linear, on three dimensions) re-routes the gradient around
    the view, so a hook there would stay silent; the base keeps receiving it.
    """
    base = output._base if output._is_view() else None
    if base is None or base.is_leaf or base.numel() != output.numel() or not base.requires_grad:
        return output  # a hook on a leaf, a parameter, would outlive the pass
    return base if base.is_contiguous() and output.is_contiguous() else output
