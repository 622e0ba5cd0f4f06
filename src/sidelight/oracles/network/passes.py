"""How trial passes are made, and what a route is."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn

from sidelight.errors import AssumptionError
from sidelight.oracles.network.batches import Batch, row_count, take
from sidelight.oracles.network.capture import Wiring, tensors

__all__ = [
    "FAILURES", "SEED", "Gradients", "Route", "devices", "eagerly", "fresh", "quiet", "told_compiling",
    "untouched",
]  # fmt: skip

Gradients = dict[nn.Parameter, Tensor]
SEED = 5
FAILURES = (RuntimeError, TypeError, ValueError, LookupError, AttributeError, AssumptionError)


@dataclass(frozen=True)
class Route:
    """How per-record gradients are taken, and why by no faster way.

    static: the model decides by values of records (`if mask.all()`), but not while it is being compiled;
        so it is told that it is.
    """

    kind: Literal["layers", "vmap", "loop"]
    wiring: Wiring = field(default_factory=Wiring)
    static: bool = False
    reason: str = ""


@contextlib.contextmanager
def told_compiling(static: bool) -> Iterator[None]:
    """Libraries ask torch.compiler.is_compiling() before they branch on values; answer yes."""
    flag = "_is_compiling_flag"
    before = getattr(torch.compiler, flag, False)
    if static:
        setattr(torch.compiler, flag, True)
    try:
        yield
    finally:
        if static:
            setattr(torch.compiler, flag, before)


def fresh(batch: Batch) -> Batch:
    """A copy, since a model may write into its input."""
    return take(batch, torch.arange(row_count(batch), device=tensors(batch)[0].device))


def devices(model: nn.Module) -> list[torch.device]:
    device = next(model.parameters()).device
    return [device] if device.type == "cuda" else []


def untouched(model: nn.Module) -> Any:
    """Whatever is drawn inside has no influence on what is drawn afterwards."""
    return torch.random.fork_rng(devices=devices(model))


def eagerly() -> Any:
    """Compiled modules and functions run as they are written, so that their layers can be watched."""
    return torch.compiler.set_stance("force_eager")


@contextlib.contextmanager
def quiet(model: nn.Module) -> Iterator[None]:
    """No dropout, no autocast; random states and modes are left as they were."""
    device = next(model.parameters()).device
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        with (
            torch.enable_grad(),
            torch.autocast(device.type, enabled=False),
            torch.backends.cudnn.flags(enabled=False),  # its RNNs have no gradient in this mode
        ):
            yield
    finally:
        for module, training in modes:
            module.training = training
