"""Correct models: more blocks and heads, and weights that are computed from others."""

from typing import Any

import torch
from tests.mistakes.registry import (
    Group,
    Of,
    entropy,
    flags,
    floats,
    integers,
    positive,
    scale,
    then,
    token,
)  # fmt: skip
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import parametrizations
from torch.utils.checkpoint import checkpoint

CLASSES, VECTOR, IMAGE, STEPS = integers(3), floats(6), floats(3, 6, 6), floats(5, 4)
blocks = Group("blocks and heads", VECTOR, CLASSES, entropy)


def head(width: int) -> nn.Linear:
    return nn.Linear(width, 3)


def _squeezed(m: Any, x: Tensor) -> Tensor:
    h = m.d(m.c(x).relu()).relu()
    return m.h((h * m.f(h.mean((2, 3))).sigmoid()[:, :, None, None]).mean((2, 3)))


def _mixture(z: Tensor, y: Tensor) -> Tensor:
    weight, mean, width = z.chunk(3, 1)
    return -torch.logsumexp(weight.log_softmax(1) - 0.5 * ((y - mean) / width.exp()) ** 2 - width, 1)


def _pinball(z: Tensor, y: Tensor) -> Tensor:
    level = torch.tensor([0.1, 0.5, 0.9]).to(z)
    return torch.maximum(level * (y - z), (level - 1) * (y - z)).mean(1)


def _ordinal(z: Tensor, y: Tensor) -> Tensor:
    below = (y[:, None] <= torch.arange(2)).to(z)
    return functional.binary_cross_entropy_with_logits(z, below, reduction="none").sum(1)


def _rotary(m: Any, x: Tensor) -> Tensor:
    q, k, v = (t[:, None] for t in m.q(m.n(x)).chunk(3, -1))
    q, k = (t * m.cos + t.roll(2, -1) * m.sin for t in (q, k))
    return m.o(functional.scaled_dot_product_attention(q, k, v, is_causal=True)[:, 0].mean(1))


def _alibi(m: Any, x: Tensor) -> Tensor:
    q, k, v = (t[:, None] for t in m.a(x).chunk(3, -1))
    bias = -(torch.arange(5)[:, None] - torch.arange(5)).abs().to(x)
    return m.b(functional.scaled_dot_product_attention(q, k, v, attn_mask=bias)[:, 0].mean(1))


def _masked_cell(m: Any, x: Tensor, there: Tensor) -> Tensor:
    h = x.new_zeros(len(x), 8)
    for t in range(x.shape[1]):
        h = torch.where(there[:, t, None], m.c(x[:, t], h), h)
    return m.b(h)


def _packed(m: Any, x: Tensor, there: Tensor) -> Tensor:
    lengths = there.sum(1).cpu()
    packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
    return m.b(m.a(packed)[1][-1])


def _gated(m: Any, x: Tensor) -> Tensor:
    x = functional.pad(x, (1, 0))
    return m.b((m.f(x).tanh() * m.g(x).sigmoid()).mean(2))


def _unet(m: Any, x: Tensor) -> Tensor:
    skip = m.c(x).relu()
    return m.o(torch.cat([skip, m.u(m.d(skip).relu())], 1)).mean((2, 3))


def _squashed(m: Any, x: Tensor) -> Tensor:
    v = m.a(x).view(-1, 3, 4)
    length = v.norm(dim=-1)
    return length * length / (1 + length**2)


def _graph_attention(m: Any, x: Tensor, edges: Tensor) -> Tensor:
    h = m.a(x)
    scores = m.s(h) + m.d(h).transpose(1, 2)
    return m.b((scores.masked_fill(~(edges | torch.eye(4, dtype=torch.bool)), -1e9).softmax(2) @ h).mean(1))


def _deep(m: Any, x: Tensor) -> Tensor:
    for _ in range(3):
        x = m.n(x + m.a(x).tanh())
    return m.b(x)


def _validated(m: Any, x: Tensor) -> Tensor:
    if (x.abs() > 1e9).any():
        raise ValueError("out of range")
    assert torch.isfinite(x).all()
    return m.b(m.a(x).tanh())


def _standardized(m: Any, x: Tensor) -> Tensor:
    w = m.c.weight
    w = (w - w.mean((1, 2, 3), keepdim=True)) / w.std((1, 2, 3), keepdim=True)
    return m.b(functional.conv2d(x, w, m.c.bias).relu().mean((2, 3)))


def _margin(z: Tensor, y: Tensor) -> Tensor:
    return entropy(8 * (z - 0.2 * functional.one_hot(y, 3)), y)


class Noisy(nn.Module):
    """One noisy weight for all records (NoisyNet)."""

    def __init__(self) -> None:
        super().__init__()
        self.mean, self.width = token(3, 6), scale(3, 6, value=0.1)

    def forward(self, x: Tensor) -> Tensor:
        return functional.linear(x, self.mean + self.width * torch.randn(3, 6))


class Rotary(Of):
    def __init__(self) -> None:
        super().__init__(_rotary, q=nn.Linear(4, 12), o=head(4), n=nn.RMSNorm(4))
        self.register_buffer("cos", torch.rand(5, 4))
        self.register_buffer("sin", torch.rand(5, 4))


def two() -> dict[str, nn.Module]:
    return {"a": nn.Linear(6, 8), "b": head(8)}


blocks(
    "squeeze and excitation, depthwise",
    lambda: Of(
        _squeezed,
        c=nn.Conv2d(3, 8, 3, padding=1),
        d=nn.Conv2d(8, 8, 3, groups=8),
        f=nn.Linear(8, 8),
        h=head(8),
    ),
    IMAGE,
)
blocks(
    "FiLM, two layers",
    lambda: Of(
        lambda m, x, c: m.b(m.a(x).tanh() * m.g(c) + m.s(c)), **two(), g=nn.Linear(4, 8), s=nn.Linear(4, 8)
    ),
    (VECTOR, floats(4)),
)
blocks(
    "mixture density, three parts",
    lambda: then(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 9)),
    None,
    floats(1),
    _mixture,
)
blocks("quantile regression", lambda: then(nn.Linear(6, 8), nn.Tanh(), head(8)), None, floats(1), _pinball)
blocks(
    "Poisson regression",
    lambda: nn.Linear(6, 1),
    None,
    positive(1),
    lambda z, y: functional.poisson_nll_loss(z, y, reduction="none").mean(1),
)
blocks(
    "ordinal thresholds",
    lambda: Of(lambda m, x: m.t.cumsum(0)[None] - m.a(x), t=scale(2), a=nn.Linear(6, 1)),
    None,
    None,
    _ordinal,
)
blocks(
    "tokens of numbers (FT-Transformer)",
    lambda: Of(
        lambda m, x: m.b(m.t(x[..., None] * m.w + m.c).mean(1)), w=token(6, 8), c=token(6, 8), b=head(8),
        t=nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True),
    ),
)  # fmt: skip
blocks(
    "masked mean of a set",
    lambda: Of(
        lambda m, x, k: m.b((m.a(x).tanh() * k[..., None]).sum(1) / k.sum(1, keepdim=True)),
        a=nn.Linear(4, 8), b=head(8),
    ),
    (STEPS, flags(5)),
)  # fmt: skip
blocks(
    "latents that attend (Perceiver)",
    lambda: Of(
        lambda m, x: m.b(m.a(m.l.expand(len(x), -1, -1), x, x)[0].mean(1)), l=token(1, 3, 4),
        a=nn.MultiheadAttention(4, 2, batch_first=True), b=head(4),
    ),
    STEPS,
)  # fmt: skip
blocks(
    "U-Net, one level",
    lambda: Of(
        _unet, c=nn.Conv2d(3, 4, 3, padding=1), d=nn.Conv2d(4, 8, 2, 2), u=nn.ConvTranspose2d(8, 4, 2, 2),
        o=nn.Conv2d(8, 3, 1),
    ),
    IMAGE,
)  # fmt: skip
blocks(
    "pixel shuffle, then a head",
    lambda: then(nn.Conv2d(3, 8, 3, padding=1), nn.PixelShuffle(2), nn.Flatten(), head(288)),
    IMAGE,
)
blocks("rotary attention", Rotary, STEPS)
blocks("ALiBi", lambda: Of(_alibi, a=nn.Linear(4, 12), b=head(4)), STEPS)
blocks("GRU cell with a mask", lambda: Of(_masked_cell, c=nn.GRUCell(4, 8), b=head(8)), (STEPS, flags(5)))
blocks("packed GRU", lambda: Of(_packed, a=nn.GRU(4, 8, batch_first=True), b=head(8)), (STEPS, flags(5)))
blocks(
    "gated convolution (WaveNet)",
    lambda: Of(_gated, f=nn.Conv1d(4, 8, 2), g=nn.Conv1d(4, 8, 2), b=head(8)),
    floats(4, 6),
)
blocks("capsules", lambda: Of(_squashed, a=nn.Linear(6, 12)))
blocks(
    "hypernetwork, bmm",
    lambda: Of(lambda m, x, c: torch.bmm(m.h(c).view(-1, 3, 6), x[..., None])[..., 0], h=nn.Linear(4, 18)),
    (VECTOR, floats(4)),
)
blocks(
    "LoRA written out",
    lambda: Of(
        lambda m, x: m.w(x) + x @ m.low @ m.high, w=head(6).requires_grad_(False), low=token(6, 2),
        high=scale(2, 3, value=0.0),
    ),
)  # fmt: skip
blocks(
    "several dropouts of a record",
    lambda: Of(
        lambda m, x: torch.stack([m.b(m.d(m.a(x).tanh())) for _ in range(3)]).mean(0), **two(),
        d=nn.Dropout(0.3),
    ),
    random=True,
)  # fmt: skip
blocks("noisy weights", Noisy, random=True)
blocks(
    "graph attention",
    lambda: Of(_graph_attention, a=nn.Linear(3, 8), s=nn.Linear(8, 1), d=nn.Linear(8, 1), b=head(8)),
    (floats(4, 3), flags(4, 4)),
)
blocks(
    "additive margin",
    lambda: Of(
        lambda m, x: functional.linear(functional.normalize(m.a(x)), functional.normalize(m.w)),
        a=nn.Linear(6, 8), w=token(3, 8),
    ),
    None, None, _margin,
)  # fmt: skip
blocks(
    "interpolation",
    lambda: then(
        nn.Conv2d(3, 4, 3), lambda x: functional.interpolate(x, scale_factor=2, mode="bilinear"),
        nn.AdaptiveAvgPool2d(2), nn.Flatten(), head(16),
    ),
    IMAGE,
)  # fmt: skip
blocks(
    "checkpointing of a block",
    lambda: Of(lambda m, x: m.b(checkpoint(m.a, x, use_reentrant=False).tanh()), **two()),
)
blocks("one block, used three times", lambda: Of(_deep, n=nn.LayerNorm(6), a=nn.Linear(6, 6), b=head(6)))
blocks("input that is validated", lambda: Of(_validated, **two()))
blocks("standardized convolution", lambda: Of(_standardized, c=nn.Conv2d(3, 4, 3), b=head(4)), IMAGE)

# ---------------------------------------------------------------------------------------------------

computed = Group("weights that are computed from others", VECTOR, CLASSES, entropy)


def normed(inputs: int, outputs: int) -> nn.Module:
    return parametrizations.weight_norm(nn.Linear(inputs, outputs))


def _tied() -> nn.Module:
    """The direction of a normed weight is the weight of another layer."""
    model: Any = Of(lambda m, x: m.c(m.b(m.a(x).tanh()).tanh()), a=normed(6, 6), b=nn.Linear(6, 6), c=head(6))
    model.b.weight = model.a.parametrizations.weight.original1
    return model


computed(
    "weight norm, a layer used twice",
    lambda: Of(lambda m, x: m.b(m.a(m.a(x).tanh())), a=normed(6, 6), b=head(6)),
)
computed("weight norm, its direction tied", _tied)
computed(
    "weight norm behind a gate",
    lambda: Of(lambda m, x: m.b(x) + m.g * m.a(x), a=normed(6, 3), b=head(6), g=scale(3, value=0.0)),
)
computed(
    "weight norm of a table",
    lambda: Of(
        lambda m, x: m.b(m.e(x).mean(1)), e=parametrizations.weight_norm(nn.Embedding(11, 4)), b=head(4)
    ),
    integers(11, 5),
)
computed(
    "weight norm of a transposed convolution",
    lambda: then(parametrizations.weight_norm(nn.ConvTranspose1d(4, 4, 2)), nn.Flatten(), head(28)),
    floats(4, 6),
)
