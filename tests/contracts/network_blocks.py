"""Pieces of networks, sound and odd, from (records, time, width) to the same shape.

PLAIN ones treat each record by itself in ways that people write every day: they should be accepted. The
others use parameters in odd places or select positions, and `mistaken_blocks` has more: whatever is made of
them must be refused, or right.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import parametrizations

T, D = 4, 6

Build = Callable[[], nn.Module]


class Block(nn.Module):
    """A layer of its own, and a function of the layer and its input."""

    def __init__(self, layer: nn.Module | None, run: Callable[[Any, Tensor], Tensor], **more: Any) -> None:
        super().__init__()
        self.layer, self._run = layer, run
        for name, value in more.items():
            setattr(self, name, value)

    def forward(self, x: Tensor) -> Tensor:
        return self._run(self, x)


def block(layer: Callable[[], nn.Module] | None, run: Callable[[Any, Tensor], Tensor], **more: Any) -> Build:
    """Builds a Block; what is in `more` becomes an attribute, made by the function given."""
    return lambda: Block(None if layer is None else layer(), run, **{k: make() for k, make in more.items()})


class InTraining(nn.Module):
    """Does what its block does in training only; else its layer, if it has one, and nothing more."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            out: Tensor = self.inner(x)
            return out
        layer = getattr(self.inner, "layer", None)
        return layer(x) if isinstance(layer, nn.Linear) else x


def line() -> nn.Module:
    return nn.Linear(D, D)


def parameter(*shape: int, **options: Any) -> Callable[[], nn.Parameter]:
    return lambda: nn.Parameter(0.3 * torch.randn(shape), **options)


def _cells(self: Any, x: Tensor) -> Tensor:
    state = self.layer(x[:, 0], None)
    for t in range(1, x.shape[1]):
        state = self.layer(x[:, t], state)
    return x + state[0][:, None]


PLAIN: dict[str, Build] = {
    "linear": block(line, lambda s, x: torch.tanh(s.layer(x))),
    "residual": block(line, lambda s, x: x + functional.gelu(s.layer(x))),
    "layer norm": block(lambda: nn.LayerNorm(D), lambda s, x: s.layer(x)),
    "RMS norm": block(lambda: nn.RMSNorm(D), lambda s, x: s.layer(x)),
    "group norm": block(lambda: nn.GroupNorm(2, D), lambda s, x: s.layer(x.mT).mT),
    "convolution": block(lambda: nn.Conv1d(D, D, 3, padding=1), lambda s, x: s.layer(x.mT).mT),
    "attention": block(
        lambda: nn.MultiheadAttention(D, 2, batch_first=True),
        lambda s, x: s.layer(x, x, x, need_weights=False)[0],
    ),
    "LSTM": block(lambda: nn.LSTM(D, D, batch_first=True), lambda s, x: s.layer(x)[0]),
    "GRU": block(lambda: nn.GRU(D, D, batch_first=True), lambda s, x: s.layer(x)[0]),
    "used twice": block(line, lambda s, x: s.layer(torch.tanh(s.layer(x)))),
    "positions": block(lambda: nn.Embedding(T, D), lambda s, x: x + s.layer(torch.arange(T))),
    "class token": block(None, lambda s, x: x + s.token, token=parameter(1, 1, D)),
    "causal sum": block(line, lambda s, x: s.layer(x).cumsum(1) / T),
    "sorted in time": block(line, lambda s, x: s.layer(x).sort(1).values),
    "masked by sign": block(line, lambda s, x: s.layer(x) * (x > 0)),
    "padding mask": block(line, lambda s, x: s.layer(x).masked_fill((x.sum(-1) > 0)[..., None], 0.0) + x),
}


# ---------------------------------------------------------------------------------------------------
# parameters in odd places and shapes


class _Complex(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(0.3 * torch.randn(D, D, dtype=torch.complex128))

    def forward(self, x: Tensor) -> Tensor:
        return (x.to(torch.complex128) @ self.weight).abs().to(x.dtype)


ODD: dict[str, Build] = {
    "temperature": block(line, lambda s, x: s.layer(x) * s.scale.exp(), scale=parameter()),
    "gate": block(line, lambda s, x: s.layer(x) * s.gate, gate=parameter(D)),
    "bare positions": block(None, lambda s, x: x + s.places, places=parameter(T, D)),
    "positions[None]": block(lambda: nn.Embedding(T, D), lambda s, x: x + s.layer(torch.arange(T))[None]),
    "positions of each": block(
        lambda: nn.Embedding(T, D), lambda s, x: x + s.layer(torch.arange(T).expand(x.shape[0], T))
    ),
    "functional weight": block(line, lambda s, x: functional.linear(x, s.layer.weight)),
    "transposed weight": block(line, lambda s, x: torch.tanh(s.layer(x)) @ s.layer.weight),
    "weight norm": block(lambda: parametrizations.weight_norm(line()), lambda s, x: s.layer(x)),
    "spectral norm": block(lambda: parametrizations.spectral_norm(line()).eval(), lambda s, x: s.layer(x)),
    "orthogonal": block(lambda: parametrizations.orthogonal(line()), lambda s, x: s.layer(x)),
    "weight decay term": block(line, lambda s, x: s.layer(x) + 0.1 * (s.layer.weight**2).sum()),
    "time first": block(line, lambda s, x: s.layer(x.transpose(0, 1)).transpose(0, 1)),
    "time-first LSTM": block(
        lambda: nn.LSTM(D, D), lambda s, x: s.layer(x.transpose(0, 1).contiguous())[0].transpose(0, 1)
    ),
    "flattened": block(line, lambda s, x: s.layer(x.reshape(-1, D)).view(x.shape)),
    "flattened the other way": block(
        line, lambda s, x: s.layer(x.transpose(0, 1).reshape(-1, D)).view(T, -1, D).transpose(0, 1)
    ),
    "one dimension more": block(line, lambda s, x: s.layer(x[None])[0]),
    "LSTM cell": block(lambda: nn.LSTMCell(D, D), _cells),
    "embedding bag": block(
        lambda: nn.EmbeddingBag(8, D), lambda s, x: x + s.layer((x[..., 0] > 0).long() + 2)[:, None]
    ),
    "complex": _Complex,
    "in place": block(line, lambda s, x: s.layer(x).relu_()),
    "squeezed": block(line, lambda s, x: s.layer(x.squeeze()).reshape(x.shape)),
    "chunked": block(line, lambda s, x: torch.cat([s.layer(c) for c in torch.split(x, 2)]) if len(x) else x),
    "record by record": block(line, lambda s, x: torch.stack([s.layer(r) for r in x]) if len(x) else x),
    "last record apart": block(
        line, lambda s, x: torch.cat([s.layer(x[:-1]), x[-1:]]) if len(x) > 2 else s.layer(x)
    ),
}


# ---------------------------------------------------------------------------------------------------
# selected positions, and routing


def _selected(self: Any, x: Tensor) -> Tensor:
    """A layer for the positions that are asked for, and no others."""
    asked = x[..., 0] > 0
    out = torch.zeros_like(x)
    out[asked] = self.layer(x[asked])
    return out


def _unpadded(self: Any, x: Tensor) -> Tensor:
    places = (x[..., 0] > -0.5).flatten().nonzero()[:, 0]
    dense = self.layer(x.reshape(-1, D).index_select(0, places))
    return torch.zeros_like(x).view(-1, D).index_copy(0, places, dense).view(x.shape)


def _routed(self: Any, x: Tensor) -> Tensor:
    """Each position goes to the expert of its largest score."""
    tokens = x.reshape(-1, D)
    chosen = self.router(tokens).softmax(-1).max(-1)
    out = torch.zeros_like(tokens)
    for number, expert in enumerate(self.experts):
        mine = (chosen.indices == number).nonzero()[:, 0]
        out = out.index_add(0, mine, expert(tokens[mine]) * chosen.values[mine, None])
    return x + out.view(x.shape)


def _sorted_routing(self: Any, x: Tensor) -> Tensor:
    """Positions of the whole batch, sorted by expert, so that each expert has a slice."""
    tokens = x.reshape(-1, D)
    order = self.router(tokens).argmax(-1).argsort(stable=True)
    return self.layer(tokens[order])[order.argsort()].view(x.shape)


def _experts_choose(self: Any, x: Tensor) -> Tensor:
    tokens = x.reshape(-1, D)
    taken = self.router(tokens)[:, 0].topk(min(4, len(tokens))).indices
    return x + torch.zeros_like(tokens).index_add(0, taken, self.layer(tokens[taken])).view(x.shape)


def _experts() -> nn.ModuleList:
    return nn.ModuleList(line() for _ in range(3))


def router() -> nn.Module:
    return nn.Linear(D, 3)


SELECTING: dict[str, Build] = {
    "x[mask]": block(line, _selected),
    "unpadded": block(line, _unpadded),
    "routed": block(None, _routed, router=router, experts=_experts),
    "routed, sorted": block(line, _sorted_routing, router=router),
    "experts choose": block(line, _experts_choose, router=router),
    "top of each record": block(
        line, lambda s, x: x + s.layer(x.topk(2, dim=1).values).mean(1, keepdim=True)
    ),
}
