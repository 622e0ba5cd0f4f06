"""Correct models: attention and transformers."""

import math
from typing import Any

import torch
from tests.mistakes.pieces import CLASSES, TIMES, WORDS, head
from tests.mistakes.registry import (
    Group,
    Of,
    entropy,
    flags,
    floats,
    integers,
    scale,
    squares,
    then,
    token,
    tokens_entropy,
)  # fmt: skip
from torch import Tensor, nn
from torch.nn import functional

# ---------------------------------------------------------------------------------------------------

attend = Group("attention and transformers", TIMES, CLASSES, entropy)


def encoder(**options: Any) -> nn.TransformerEncoder:
    layer = nn.TransformerEncoderLayer(4, 2, 8, **{"dropout": 0.0, "batch_first": True, **options})
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)


def causal(length: int) -> Tensor:
    return torch.full((length, length), -math.inf).triu(1)


attend(
    "multi-head attention",
    lambda: Of(
        lambda m, x: m.b(m.a(x, x, x)[0].mean(1)), a=nn.MultiheadAttention(4, 2, batch_first=True), b=head(4)
    ),
)
attend(
    "multi-head attention, time first",
    lambda: Of(lambda m, x: m.b(_first(m.a, x).mean(0)), a=nn.MultiheadAttention(4, 2), b=head(4)),
)
attend(
    "multi-head attention without weights",
    lambda: Of(
        lambda m, x: m.b(m.a(x, x, x, need_weights=False)[0].mean(1)),
        a=nn.MultiheadAttention(4, 2, batch_first=True),
        b=head(4),
    ),
)
attend(
    "attention with a padding mask",
    lambda: Of(
        lambda m, x, mask: m.b(m.a(x, x, x, key_padding_mask=~mask)[0].mean(1)),
        a=nn.MultiheadAttention(4, 2, batch_first=True),
        b=head(4),
    ),
    (TIMES, flags(5)),
)
attend(
    "attention with a causal mask",
    lambda: Of(
        lambda m, x: m.b(m.a(x, x, x, attn_mask=causal(5))[0].mean(1)),
        a=nn.MultiheadAttention(4, 2, batch_first=True),
        b=head(4),
    ),
)
attend(
    "attention with bias_kv",
    lambda: Of(
        lambda m, x: m.b(m.a(x, x, x)[0].mean(1)),
        a=nn.MultiheadAttention(4, 2, add_bias_kv=True, batch_first=True),
        b=head(4),
    ),
)
attend(
    "cross-attention",
    lambda: Of(
        lambda m, x, y: m.b(m.a(x, y, y)[0].mean(1)),
        a=nn.MultiheadAttention(4, 2, kdim=3, vdim=3, batch_first=True),
        b=head(4),
    ),
    (TIMES, floats(7, 3)),
)
attend("attention of one's own", lambda: Of(_own_attention, q=nn.Linear(4, 12), o=nn.Linear(4, 4), b=head(4)))
attend(
    "scaled_dot_product_attention, causal",
    lambda: Of(_flash, q=nn.Linear(4, 12), o=nn.Linear(4, 4), b=head(4)),
)
attend(
    "attention with masked_fill",
    lambda: Of(_filled, q=nn.Linear(4, 12), o=nn.Linear(4, 4), b=head(4)),
    (TIMES, flags(5)),
)
attend("rotary positions", lambda: Of(_rotary, q=nn.Linear(4, 12), o=nn.Linear(4, 4), b=head(4)))
attend("relative position bias", lambda: Of(_relative, q=nn.Linear(4, 12), r=token(2, 9), b=head(4)))
attend("grouped-query attention", lambda: Of(_grouped, q=nn.Linear(4, 8), k=nn.Linear(4, 8), b=head(8)))
attend("linear attention", lambda: Of(_linear_attention, q=nn.Linear(4, 12), b=head(4)))
attend(
    "learned queries (Perceiver)",
    lambda: Of(
        lambda m, x: m.b(m.a(m.q.expand(len(x), -1, -1), x, x)[0].mean(1)),
        q=token(1, 3, 4),
        a=nn.MultiheadAttention(4, 2, batch_first=True),
        b=head(4),
    ),
)
attend("transformer encoder", lambda: Of(lambda m, x: m.b(m.a(x).mean(1)), a=encoder(), b=head(4)))
attend(
    "transformer encoder, time first",
    lambda: Of(lambda m, x: m.b(m.a(x.transpose(0, 1)).mean(0)), a=encoder(batch_first=False), b=head(4)),
)
attend(
    "transformer encoder, norm first",
    lambda: Of(lambda m, x: m.b(m.a(x).mean(1)), a=encoder(norm_first=True, activation="gelu"), b=head(4)),
)
attend(
    "transformer encoder with dropout",
    lambda: Of(lambda m, x: m.b(m.a(x).mean(1)), a=encoder(dropout=0.1), b=head(4)),
)
attend(
    "transformer encoder, nested tensors allowed",
    lambda: Of(
        lambda m, x: m.b(m.a(x).mean(1)),
        a=nn.TransformerEncoder(nn.TransformerEncoderLayer(4, 2, 8, batch_first=True), 1),
        b=head(4),
    ),
)
attend(
    "transformer encoder, padding mask",
    lambda: Of(
        lambda m, x, mask: m.b((m.a(x, src_key_padding_mask=~mask) * mask[..., None]).sum(1)),
        a=encoder(),
        b=head(4),
    ),
    (TIMES, flags(5)),
)
attend(
    "transformer encoder, time first, padding mask",
    lambda: Of(
        lambda m, x, mask: m.b(
            (m.a(x.transpose(0, 1), src_key_padding_mask=~mask) * mask.T[..., None]).sum(0)
        ),
        a=encoder(batch_first=False),
        b=head(4),
    ),
    (TIMES, flags(5)),
)
attend(
    "transformer encoder, time first, causal",
    lambda: Of(
        lambda m, x: m.b(m.a(x.transpose(0, 1), mask=causal(5)).mean(0)),
        a=encoder(batch_first=False),
        b=head(4),
    ),
)
attend(
    "transformer, encoder and decoder",
    lambda: Of(
        lambda m, x, y: m.b(m.a(x, y).mean(1)),
        a=nn.Transformer(4, 2, 1, 1, 8, 0.0, batch_first=True),
        b=head(4),
    ),
    (TIMES, floats(3, 4)),
)
attend(
    "transformer, time first",
    lambda: Of(
        lambda m, x, y: m.b(m.a(x.transpose(0, 1), y.transpose(0, 1)).mean(0)),
        a=nn.Transformer(4, 2, 1, 1, 8, 0.0),
        b=head(4),
    ),
    (TIMES, floats(3, 4)),
)
attend(
    "transformer decoder, causal",
    lambda: Of(
        lambda m, x, y: m.b(m.a(y, x, tgt_mask=causal(3)).mean(1)),
        a=nn.TransformerDecoder(nn.TransformerDecoderLayer(4, 2, 8, 0.0, batch_first=True), 1),
        b=head(4),
    ),
    (TIMES, floats(3, 4)),
)
attend(
    "BERT's shape, class token",
    lambda: Of(
        _bert,
        e=nn.Embedding(11, 4),
        p=nn.Embedding(6, 4),
        c=token(1, 1, 4),
        n=nn.LayerNorm(4),
        a=encoder(norm_first=True),
        b=head(4),
    ),
    WORDS,
)
attend("GPT's shape, next tokens", lambda: _gpt(), WORDS, integers(11, 5), tokens_entropy)
attend(
    "T5's shape, bias shared by layers",
    lambda: Of(_shared_bias, r=nn.Embedding(9, 1), q=nn.Linear(4, 12), p=nn.Linear(4, 12), b=head(4)),
)
attend(
    "ViT",
    lambda: Of(
        _vit,
        p=nn.Conv2d(3, 4, 4, 4),
        c=token(1, 1, 4),
        e=token(1, 5, 4),
        a=encoder(),
        n=nn.LayerNorm(4),
        b=head(4),
    ),
    floats(3, 8, 8),
)
attend(
    "ViT, positions without a leading 1",
    lambda: Of(
        _vit,
        p=nn.Conv2d(3, 4, 4, 4),
        c=token(1, 1, 4),
        e=token(5, 4),
        a=encoder(),
        n=nn.LayerNorm(4),
        b=head(4),
    ),
    floats(3, 8, 8),
)
attend(
    "layer scale in a transformer",
    lambda: Of(
        lambda m, x: m.b((x + m.s * m.a(x, x, x)[0]).mean(1)),
        a=nn.MultiheadAttention(4, 2, batch_first=True),
        s=scale(4, value=1e-4),
        b=head(4),
    ),
)
attend(
    "set transformer",
    lambda: Of(
        lambda m, x: m.b(m.c(m.s.expand(len(x), -1, -1), m.a(x, x, x)[0], m.a(x, x, x)[0])[0][:, 0]),
        a=nn.MultiheadAttention(4, 2, batch_first=True),
        c=nn.MultiheadAttention(4, 2, batch_first=True),
        s=token(1, 1, 4),
        b=head(4),
    ),
)
attend(
    "time series, PatchTST's shape",
    lambda: Of(
        lambda m, x: m.b(m.a(m.p(x.unfold(1, 4, 2))).flatten(1)),
        p=nn.Linear(4, 4),
        a=encoder(),
        b=nn.Linear(12, 2),
    ),
    floats(8),
    floats(2),
    squares,
)


def _first(layer: nn.MultiheadAttention, x: Tensor) -> Tensor:
    x = x.transpose(0, 1)
    found: Tensor = layer(x, x, x)[0]
    return found


def _heads(x: Tensor, parts: int = 3) -> tuple[Tensor, ...]:
    split = x.view(*x.shape[:2], parts, 2, -1).permute(2, 0, 3, 1, 4)
    return tuple(split)


def _merged(x: Tensor) -> Tensor:
    return x.transpose(1, 2).flatten(2)


def _own_attention(m: Any, x: Tensor) -> Tensor:
    q, k, v = _heads(m.q(x))
    return m.b(m.o(_merged((q @ k.transpose(-1, -2) / 2**0.5).softmax(-1) @ v)).mean(1))


def _flash(m: Any, x: Tensor) -> Tensor:
    q, k, v = _heads(m.q(x))
    return m.b(m.o(_merged(functional.scaled_dot_product_attention(q, k, v, is_causal=True))).mean(1))


def _filled(m: Any, x: Tensor, mask: Tensor) -> Tensor:
    q, k, v = _heads(m.q(x))
    scores = (q @ k.transpose(-1, -2)).masked_fill(~mask[:, None, None], -1e9)
    return m.b(m.o(_merged(scores.softmax(-1) @ v)).mean(1))


def _rotary(m: Any, x: Tensor) -> Tensor:
    q, k, v = _heads(m.q(x))
    angle = torch.arange(5)[:, None] * torch.tensor([1.0])
    cos, sin = angle.cos(), angle.sin()

    def turned(y: Tensor) -> Tensor:
        a, b = y[..., :1], y[..., 1:]
        return torch.cat([a * cos - b * sin, a * sin + b * cos], -1)

    return m.b(m.o(_merged((turned(q) @ turned(k).transpose(-1, -2)).softmax(-1) @ v)).mean(1))


def _relative(m: Any, x: Tensor) -> Tensor:
    q, k, v = _heads(m.q(x))
    place = torch.arange(5)
    bias = m.r[:, place[:, None] - place + 4]
    return m.b(_merged((q @ k.transpose(-1, -2) + bias).softmax(-1) @ v).mean(1))


def _grouped(m: Any, x: Tensor) -> Tensor:
    q = m.q(x).view(*x.shape[:2], 4, 2).transpose(1, 2)
    k, v = _heads(m.k(x), 2)
    k, v = k.repeat_interleave(2, 1), v.repeat_interleave(2, 1)
    return m.b(_merged((q @ k.transpose(-1, -2)).softmax(-1) @ v).mean(1))


def _linear_attention(m: Any, x: Tensor) -> Tensor:
    q, k, v = m.q(x).chunk(3, -1)
    q, k = functional.elu(q) + 1, functional.elu(k) + 1
    weight = q @ k.sum(1, keepdim=True).transpose(1, 2)
    return m.b((q @ (k.transpose(1, 2) @ v) / weight).mean(1))


def _bert(m: Any, x: Tensor) -> Tensor:
    words = torch.cat([m.c.expand(len(x), -1, -1), m.e(x)], 1)
    places = torch.arange(words.shape[1]).expand(len(x), -1)
    return m.b(m.a(m.n(words + m.p(places)))[:, 0])


class _Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.LayerNorm(4), nn.LayerNorm(4)
        self.qkv, self.out = nn.Linear(4, 12), nn.Linear(4, 4)
        self.mlp = then(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 4), nn.Dropout(0.1))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = _heads(self.qkv(self.one(x)))
        scores = (q @ k.transpose(-1, -2)).masked_fill(causal(5) < 0, -math.inf)
        x = x + self.out(_merged(scores.softmax(-1) @ v))
        return x + self.mlp(self.two(x))


def _gpt() -> nn.Module:
    def run(m: Any, x: Tensor) -> Tensor:
        x = m.words(x) + m.places(torch.arange(x.shape[1]))
        return m.head(m.norm(m.blocks(x)))

    words = nn.Embedding(11, 4)
    model = Of(
        run, words=words, places=nn.Embedding(5, 4), blocks=nn.Sequential(_Block(), _Block()),
        norm=nn.LayerNorm(4), head=nn.Linear(4, 11, bias=False),
    )  # fmt: skip
    model.head.weight = words.weight  # type: ignore[union-attr]
    return model


def _shared_bias(m: Any, x: Tensor) -> Tensor:
    place = torch.arange(5)
    bias = m.r(place[:, None] - place + 4)[..., 0]
    for layer in (m.q, m.p):
        q, k, v = layer(x).chunk(3, -1)
        x = x + (q @ k.transpose(1, 2) + bias).softmax(-1) @ v
    return m.b(x.mean(1))


def _vit(m: Any, x: Tensor) -> Tensor:
    patches = m.p(x).flatten(2).transpose(1, 2)
    x = torch.cat([m.c.expand(len(x), -1, -1), patches], 1) + m.e
    return m.b(m.n(m.a(x))[:, 0])
