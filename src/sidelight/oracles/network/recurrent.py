"""Recurrent layers, unrolled.

PyTorch runs an RNN as one operation that does not show the gates. While gradients are taken, its forward is
replaced by this one: the same numbers from the same parameters, one step at a time. The gradient of all gates
of a direction is one tensor (records × time × gates), and every parameter's gradient is an outer product of
it with the inputs or with the states before each step.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional

from sidelight.errors import AssumptionError
from sidelight.oracles.network.layers import Tap, Use, linear_uses, stand_in

__all__ = ["unrolled"]

State: TypeAlias = tuple[Tensor, ...]  # (h,), or (h, c)


@stand_in(nn.RNN, nn.LSTM, nn.GRU)
def unrolled(layer: Any, tap: Tap, input: Any, hx: Any = None) -> Any:
    """What layer(input, hx) returns."""
    _check(layer, input)
    x = input if layer.batch_first else input.transpose(0, 1)
    directions = 2 if layer.bidirectional else 1
    starts = _starts(layer, x, hx, directions)
    finals: list[State] = []
    for depth in range(layer.num_layers):
        outputs = []
        for direction in range(directions):
            suffix = f"l{depth}" + ("_reverse" if direction else "")
            output, final = _run(layer, tap, x, suffix, starts[depth * directions + direction])
            outputs.append(output)
            finals.append(final)
        x = torch.cat(outputs, -1) if directions > 1 else outputs[0]
        if layer.dropout and depth + 1 < layer.num_layers:
            x = functional.dropout(x, layer.dropout, layer.training)
    last = tuple(torch.stack(parts) for parts in zip(*finals, strict=True))
    return x if layer.batch_first else x.transpose(0, 1), last if len(last) > 1 else last[0]


def _check(layer: Any, x: Any) -> None:
    name = type(layer).__name__
    if not isinstance(x, Tensor):
        raise AssumptionError(f"{name} got a packed sequence, whose rows mix records. Pass a padded one")
    if x.dim() != 3:
        raise AssumptionError(f"{name} needs an input of 3 dimensions, one of them the batch, not {x.dim()}")


def _starts(layer: Any, x: Tensor, hx: Any, directions: int) -> list[State]:
    """The state before the first step, for every layer and direction."""
    if hx is None:
        zeros = x.new_zeros(layer.num_layers * directions, x.shape[0], layer.hidden_size)
        hx = (zeros, zeros) if layer.mode == "LSTM" else zeros
    parts = hx if isinstance(hx, tuple) else (hx,)
    return list(zip(*(part.unbind(0) for part in parts), strict=True))


def _run(layer: Any, tap: Tap, x: Tensor, suffix: str, state: State) -> tuple[Tensor, State]:
    """One direction of one layer."""
    names = ("weight_ih", "weight_hh", *(("bias_ih", "bias_hh") if layer.bias else ()))
    parameters = [getattr(layer, f"{name}_{suffix}") for name in names]
    weight_in, weight_state, bias_in, bias_state = (*parameters, None, None)[:4]
    gates = functional.linear(x, weight_in, bias_in)
    before: dict[int, Tensor] = {}
    resets: dict[int, Tensor] = {}
    outputs: dict[int, Tensor] = {}
    times = range(x.shape[1])
    pieces = gates.unbind(1)
    for time in reversed(times) if suffix.endswith("reverse") else times:
        before[time] = state[0].detach()
        state, reset = _cell(
            layer, pieces[time], functional.linear(state[0], weight_state, bias_state), state
        )
        outputs[time] = state[0]
        if reset is not None:
            resets[time] = reset.detach()
    uses = linear_uses(x, weight_in, bias_in)
    tap(gates, x, [*uses, *_state_uses(before, resets, weight_state, bias_state)])
    return torch.stack([outputs[time] for time in times], 1), state


def _cell(layer: Any, fresh: Tensor, kept: Tensor, state: State) -> tuple[State, Tensor | None]:
    """One step: the new state, and GRU's reset gate."""
    if layer.mode == "LSTM":
        enter, forget, new, leave = (fresh + kept).chunk(4, -1)
        memory = forget.sigmoid() * state[1] + enter.sigmoid() * new.tanh()
        return (leave.sigmoid() * memory.tanh(), memory), None
    if layer.mode == "GRU":
        (reset, update, new), (reset_kept, update_kept, new_kept) = fresh.chunk(3, -1), kept.chunk(3, -1)
        reset, update = (reset + reset_kept).sigmoid(), (update + update_kept).sigmoid()
        new = (new + reset * new_kept).tanh()
        return ((1 - update) * new + update * state[0],), reset
    total = fresh + kept
    return (total.tanh() if layer.mode == "RNN_TANH" else total.relu(),), None


def _state_uses(
    before: dict[int, Tensor], resets: dict[int, Tensor], weight: Tensor, bias: Tensor | None
) -> list[Use]:
    """The uses of the state's weights: their gates have the same gradient, but that GRU resets a third."""
    states = torch.stack([before[time] for time in sorted(before)], 1)

    def inner_gradient(grad: Tensor) -> Tensor:
        if not resets:
            return grad
        reset = torch.stack([resets[time] for time in sorted(resets)], 1).to(grad.dtype)
        width = reset.shape[-1]
        return torch.cat([grad[..., : 2 * width], grad[..., 2 * width :] * reset], -1)

    def through(use: Use) -> Use:
        return Use(use.parameter, lambda grad, count: use.build(inner_gradient(grad), count))

    return [through(use) for use in linear_uses(states, weight, bias)]
