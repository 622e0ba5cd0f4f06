"""What a stand-in for a layer's forward is given, and where stand-ins are registered."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeAlias

from torch import Tensor, nn

from sidelight.oracles.network.layers import Use

__all__ = ["StandIn", "Tap", "on_gradient", "stand_in", "stand_in_for"]


class Tap(Protocol):
    """Says that `output` was computed from `source` with these uses of parameters."""

    def __call__(self, output: Tensor, source: Tensor, uses: Sequence[Use]) -> None: ...


StandIn: TypeAlias = Callable[..., Any]  # (layer, tap, and what the layer's forward takes)
_STAND_INS: dict[type[nn.Module], StandIn] = {}


def on_gradient(tensor: Tensor, receive: Callable[[Tensor], None]) -> None:
    """Call `receive` with the tensor's gradient when a backward pass has it."""
    tensor.register_hook(receive)  # type: ignore[no-untyped-call]


def stand_in(*kinds: type[nn.Module]) -> Callable[[StandIn], StandIn]:
    """Register a forward that taps what the layer's own forward hides."""

    def register(function: StandIn) -> StandIn:
        _STAND_INS.update(dict.fromkeys(kinds, function))
        return function

    return register


def stand_in_for(layer: nn.Module) -> StandIn | None:
    """The stand-in of a layer, unless it has a forward of its own."""
    for kind in type(layer).__mro__:
        if kind in _STAND_INS and type(layer).forward is kind.forward:
            return _STAND_INS[kind]
    return None
