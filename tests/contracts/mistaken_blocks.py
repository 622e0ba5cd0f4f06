"""Pieces of networks that mix records, branch on the batch, keep state or draw random numbers."""

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from tests.contracts.network_blocks import Build, D, T, block, line, parameter
from torch import Tensor, nn
from torch.nn import functional

# ---------------------------------------------------------------------------------------------------
# records mixed, and branches on the batch


MIXING: dict[str, Build] = {
    "batch norm": block(lambda: nn.BatchNorm1d(D), lambda s, x: s.layer(x.mT).mT),
    "functional batch norm": block(
        line, lambda s, x: s.layer(functional.batch_norm(x.mT, None, None, training=True).mT)
    ),
    "batch mean": block(line, lambda s, x: s.layer(x - x.mean(0))),
    "detached batch mean": block(line, lambda s, x: s.layer(x) - s.layer(x).mean(0).detach()),
    "softmax over records": block(line, lambda s, x: s.layer(x).softmax(0)),
    "sum over records": block(line, lambda s, x: s.layer(x).cumsum(0) / 10),
    "sorted records": block(line, lambda s, x: s.layer(x).sort(0).values),
    "shifted records": block(line, lambda s, x: s.layer(x) + 0.1 * x.roll(1, 0)),
    "first record": block(line, lambda s, x: s.layer(x - x[:1])),
    "largest of all": block(line, lambda s, x: s.layer(x / x.abs().amax().clamp(min=1.0)) if len(x) else x),
    "attention over records": block(
        lambda: nn.MultiheadAttention(D, 2), lambda s, x: s.layer(x, x, x, need_weights=False)[0]
    ),
    "if many": block(line, lambda s, x: s.layer(2 * x if x.shape[0] > 3 else x)),
    "if very many": block(line, lambda s, x: s.layer(2 * x if x.shape[0] > 20 else x)),
    "by number": block(line, lambda s, x: s.layer(x) / max(x.shape[0], 1)),
    "if positive": block(line, lambda s, x: s.layer(x) if x.sum() > 0 else x + 0 * s.layer(x)),
    "early exit": block(line, lambda s, x: x if len(x) and x.max() > 2.5 else s.layer(x)),
    "if any is large": block(line, lambda s, x: s.layer(x) * (0.5 if (x.abs() > 3.5).any() else 1.0)),
}

# Mixing that sleeps while all numbers are small, as those of trial rows are. Nothing here decides anything in
# Python, so only the way that values take from record to record gives it away.
ASLEEP: dict[str, Build] = {
    "where any is large": block(line, lambda s, x: s.layer(x) * torch.where((x.abs() > 3.5).any(), 0.5, 1.0)),
    "what is beyond 3.5": block(line, lambda s, x: s.layer(x + functional.relu(x.roll(1, 0) - 3.5))),
    "largest beyond 3.5": block(
        line, lambda s, x: s.layer(x / x.abs().amax(0).clamp(min=3.5) if len(x) else x)
    ),
    "beyond the mean": block(line, lambda s, x: s.layer(x) + functional.relu(x.mean(0) - 2).detach()),
    "counted": block(line, lambda s, x: s.layer(x) * (1 + (x > 3.5).sum()).to(x.dtype).rsqrt()),
    "not finite": block(line, lambda s, x: s.layer(x) * x.isfinite().all()),
}


# ---------------------------------------------------------------------------------------------------
# records mixed on the way back only: no loss shows it


def _hooked(change: Callable[[Tensor], Tensor]) -> Callable[[Any, Tensor], Tensor]:
    def run(self: Any, x: Tensor) -> Tensor:
        out: Tensor = self.layer(x)
        if out.requires_grad:
            out.register_hook(change)  # type: ignore[no-untyped-call]
        return torch.tanh(out)

    return run


class _Backwards(torch.autograd.Function):
    """The identity, whose gradient is that of the batch's mean."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        return grads[0].mean(0, keepdim=True).expand_as(grads[0]) if len(grads[0]) else grads[0]


def _module_hook() -> nn.Module:
    layer = line()
    layer.register_full_backward_hook(
        lambda module, ins, outs: tuple(g if g is None else g - g.mean(0) for g in ins)  # type: ignore
    )
    return layer


BACKWARDS: dict[str, Build] = {
    "gradient less its mean": block(line, _hooked(lambda g: g - g.mean(0))),
    "gradient clipped in the batch": block(line, _hooked(lambda g: g / g.norm().clamp(min=1e-3))),
    "large gradients clipped in the batch": block(
        line, _hooked(lambda g: g * (20 / (g.norm() + 1e-9)).clamp(max=1))
    ),
    "gradient shifted": block(line, _hooked(lambda g: g.roll(1, 0))),
    "a function's gradient": block(
        line,
        lambda s, x: _Backwards.apply(torch.tanh(s.layer(x))),  # type: ignore[no-untyped-call]
    ),
    "a module's hook": block(_module_hook, lambda s, x: torch.tanh(s.layer(torch.tanh(x)))),
    "gradient of each, scaled": block(line, _hooked(lambda g: 0.5 * g)),
}


# ---------------------------------------------------------------------------------------------------
# state written in forward

SEEN: list[Tensor] = [torch.zeros(D)]  # a global


def _remember(self: Any, x: Tensor) -> Tensor:
    return x.detach().mean((0, 1)) if len(x) else torch.zeros(D, dtype=x.dtype)


def _in_data(self: Any, x: Tensor) -> Tensor:
    out = self.layer(x + self.mean)
    self.mean.data = 0.9 * self.mean.data + 0.1 * _remember(self, x)
    return out


def _in_copy(self: Any, x: Tensor) -> Tensor:
    out = self.layer(x + self.mean)
    with torch.no_grad():
        self.mean.copy_(0.9 * self.mean + 0.1 * _remember(self, x))
    return out


def _in_attribute(self: Any, x: Tensor) -> Tensor:
    out = self.layer(x if self.seen is None else x + 0.1 * self.seen)
    self.seen = _remember(self, x)
    return out


def _in_list(self: Any, x: Tensor) -> Tensor:
    self.log.append(_remember(self, x))
    return self.layer(x)


def _in_global(self: Any, x: Tensor) -> Tensor:
    out = self.layer(x + 0.1 * SEEN[0].to(x.dtype))
    SEEN[0] = _remember(self, x)
    return out


def _in_number(self: Any, x: Tensor) -> Tensor:
    self.total += float(x.detach().sum())
    return self.layer(x)


def _in_weight(self: Any, x: Tensor) -> Tensor:
    self.layer.bias.data = self.layer.bias.data + 0.1 * _remember(self, x)
    return self.layer(x)


STATEFUL: dict[str, Build] = {
    "frozen parameter, .data": block(line, _in_data, mean=parameter(D, requires_grad=False)),
    "frozen parameter, copy_": block(line, _in_copy, mean=parameter(D, requires_grad=False)),
    "attribute": block(line, _in_attribute, seen=lambda: None),
    "list": block(line, _in_list, log=list),
    "global": block(line, _in_global),
    "number": block(line, _in_number, total=float),
    "trained weight, .data": block(line, _in_weight),
}


# ---------------------------------------------------------------------------------------------------
# random numbers


def _noise(shape: Callable[[Tensor], tuple[int, ...]]) -> Callable[[Any, Tensor], Tensor]:
    return lambda s, x: s.layer(x) + torch.randn(shape(x), dtype=x.dtype)


def _gumbel(self: Any, x: Tensor) -> Tensor:
    return self.layer(x) * functional.gumbel_softmax(x, tau=1.0, dim=-1)


def _drop(draw: Callable[[], float]) -> Callable[[Any, Tensor], Tensor]:
    return lambda s, x: s.layer(x) if draw() < 0.5 else x + 0 * s.layer(x)


RANDOM: dict[str, Build] = {
    "dropout": block(line, lambda s, x: functional.dropout(s.layer(x), 0.5)),
    "dropout module": block(line, lambda s, x: s.drop(s.layer(x)), drop=lambda: nn.Dropout(0.3)),
    "channel dropout": block(line, lambda s, x: functional.dropout1d(s.layer(x).mT, 0.5).mT),
    "noise of each": block(line, _noise(lambda x: tuple(x.shape))),
    "stochastic depth": block(
        line, lambda s, x: x + s.layer(x) * (torch.rand(x.shape[0], 1, 1, dtype=x.dtype) < 0.5)
    ),
    "gumbel": block(line, _gumbel),
    "rrelu": block(line, lambda s, x: functional.rrelu(s.layer(x), 0.1, 0.9, training=True)),
    "LayerDrop": block(line, _drop(lambda: float(torch.rand(())))),
    "LayerDrop, tensor": block(line, lambda s, x: s.layer(x) * (torch.rand((), dtype=x.dtype) < 0.5)),
    "LayerDrop, random": block(line, _drop(random.random)),
    "LayerDrop, numpy": block(line, _drop(lambda: float(np.random.random()))),
    "noise of all": block(line, _noise(lambda x: (T, D))),
    "noise of all, one": block(line, _noise(lambda x: (1, T, D))),
    "mask of all": block(
        line, lambda s, x: s.layer(x) * torch.bernoulli(torch.full((D,), 0.5, dtype=x.dtype))
    ),
    "dropout of the weight": block(
        line, lambda s, x: functional.linear(x, functional.dropout(s.layer.weight, 0.5))
    ),
    "dropout, time first": block(
        line, lambda s, x: functional.dropout(s.layer(x).transpose(0, 1), 0.5).transpose(0, 1)
    ),
    "shuffled records": block(line, lambda s, x: s.layer(x + 0.5 * x[torch.randperm(len(x))])),
    "own generator": block(
        line, lambda s, x: s.layer(x) * (torch.rand((), generator=s.source) < 0.5), source=torch.Generator
    ),
}
