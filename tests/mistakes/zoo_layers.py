"""Correct models: one for each layer that people use, as in the test suite of Opacus."""

from typing import Any

import torch
from tests.mistakes.pieces import CLASSES, IMAGE, TIMES, VECTOR, head
from tests.mistakes.registry import Group, Of, entropy, flags, floats, integers, scale, then, token
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import parametrizations

LINE, VOLUME, WORDS_6 = floats(2, 8), floats(1, 4, 4, 4), integers(11, 6)


# ---------------------------------------------------------------------------------------------------

dense = Group("dense layers", VECTOR, CLASSES, entropy)
dense("linear", lambda: head(6))
dense("linear without a bias", lambda: nn.Linear(6, 3, bias=False))
dense("MLP", lambda: then(nn.Linear(6, 8), nn.ReLU(), head(8)))
dense("MLP with in-place ReLU", lambda: then(nn.Linear(6, 8), nn.ReLU(inplace=True), head(8)))
dense("MLP with GELU and dropout", lambda: then(nn.Linear(6, 8), nn.GELU(), nn.Dropout(0.2), head(8)))
dense("PReLU, one slope", lambda: then(nn.Linear(6, 8), nn.PReLU(), head(8)))
dense("PReLU, a slope per channel", lambda: then(nn.Linear(6, 8), nn.PReLU(8), head(8)))
dense("bias only", lambda: _bias_only())
dense(
    "frozen features, trained head", lambda: then(nn.Linear(6, 8).requires_grad_(False), nn.Tanh(), head(8))
)
dense("linear over positions", lambda: then(nn.Linear(4, 8), nn.Tanh(), lambda x: x.mean(1), head(8)), TIMES)
dense("linear over two dimensions", lambda: then(nn.Linear(8, 4), nn.Flatten(), head(96)), IMAGE)
dense("a layer used twice", lambda: Of(lambda m, x: m.b(m.a(m.a(x).tanh())), a=nn.Linear(6, 6), b=head(6)))
dense(
    "two inputs",
    lambda: Of(lambda m, x, y: m.b(m.a(x) + m.c(y)), a=nn.Linear(6, 4), c=nn.Linear(4, 4), b=head(4)),
    (VECTOR, floats(4)),
)
dense(
    "named inputs",
    lambda: Of(lambda m, left, right: m.b((m.a(left) * right).tanh()), a=nn.Linear(6, 4), b=head(4)),
    {"left": VECTOR, "right": floats(4)},
)
dense("bilinear", lambda: Of(lambda m, x: m.a(x[:, :3], x[:, 3:]), a=nn.Bilinear(3, 3, 3)))
dense(
    "bilinear of two inputs",
    lambda: Of(lambda m, x, y: m.b(m.a(x, y).tanh()), a=nn.Bilinear(6, 4, 5), b=head(5)),
    (VECTOR, floats(4)),
)
dense(
    "bilinear between layers",
    lambda: Of(
        lambda m, x: m.b(m.c(m.a(x).tanh(), m.d(x).tanh())),
        a=nn.Linear(6, 4),
        d=nn.Linear(6, 4),
        c=nn.Bilinear(4, 4, 5),
        b=head(5),
    ),
)
dense("a parameter of one's own, x @ w", lambda: Of(lambda m, x: x @ m.w + m.b, w=token(6, 3), b=token(3)))
dense(
    "einsum with a parameter",
    lambda: Of(lambda m, x: torch.einsum("btd,dc->bc", x, m.w), w=token(4, 3)),
    TIMES,
)
dense(
    "highway",
    lambda: Of(
        lambda m, x: m.b(m.g(x).sigmoid() * m.a(x).relu() + (1 - m.g(x).sigmoid()) * x),
        a=nn.Linear(6, 6),
        g=nn.Linear(6, 6),
        b=head(6),
    ),
)
dense("GLU", lambda: then(nn.Linear(6, 16), nn.GLU(), head(8)))
dense(
    "SwiGLU",
    lambda: Of(
        lambda m, x: m.c(functional.silu(m.a(x)) * m.b(x)), a=nn.Linear(6, 8), b=nn.Linear(6, 8), c=head(8)
    ),
)
dense("maxout", lambda: then(nn.Linear(6, 16), lambda x: x.view(-1, 8, 2).amax(2), head(8)))
dense("a checkpointed block", lambda: Of(_checkpointed, a=nn.Linear(6, 8), b=head(8)))
dense(
    "float64",
    lambda: then(nn.Linear(6, 8), nn.Tanh(), head(8)).double(),
    lambda g, n: torch.randn(n, 6, generator=g).double(),
)


def _bias_only() -> nn.Module:
    model = then(nn.Linear(6, 8), nn.Tanh(), head(8))
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name.endswith("bias"))
    return model


def _checkpointed(m: Any, x: Tensor) -> Tensor:
    from torch.utils.checkpoint import checkpoint

    hidden: Tensor = checkpoint(lambda x: m.a(x).tanh(), x, use_reentrant=False)
    return m.b(hidden)


# ---------------------------------------------------------------------------------------------------

conv = Group("convolutions", IMAGE, CLASSES, entropy)
conv("conv 1d", lambda: then(nn.Conv1d(2, 4, 3), nn.ReLU(), nn.Flatten(), head(24)), LINE)
conv(
    "conv 1d, dilated and causal",
    lambda: then(
        lambda x: functional.pad(x, (4, 0)), nn.Conv1d(2, 4, 3, dilation=2), nn.ReLU(), nn.Flatten(), head(32)
    ),
    LINE,
)
conv("conv 2d", lambda: then(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), head(144)))
conv("conv 2d, stride and padding", lambda: then(nn.Conv2d(3, 4, 3, 2, 1), nn.ReLU(), nn.Flatten(), head(64)))
conv(
    "conv 2d, reflected padding",
    lambda: then(nn.Conv2d(3, 4, 3, padding=1, padding_mode="reflect"), nn.ReLU(), nn.Flatten(), head(256)),
)
conv(
    "conv 2d, circular padding",
    lambda: then(nn.Conv2d(3, 4, 3, padding=1, padding_mode="circular"), nn.ReLU(), nn.Flatten(), head(256)),
)
conv(
    "conv 2d, padding='same'",
    lambda: then(nn.Conv2d(3, 4, 3, padding="same"), nn.ReLU(), nn.Flatten(), head(256)),
)
conv("conv 2d, grouped", lambda: then(nn.Conv2d(3, 6, 3, groups=3), nn.ReLU(), nn.Flatten(), head(216)))
conv(
    "conv 2d, depthwise separable",
    lambda: then(nn.Conv2d(3, 3, 3, groups=3), nn.Conv2d(3, 4, 1), nn.ReLU(), nn.Flatten(), head(144)),
)
conv("conv 3d", lambda: then(nn.Conv3d(1, 3, 2), nn.ReLU(), nn.Flatten(), head(81)), VOLUME)
conv("transposed conv 1d", lambda: then(nn.ConvTranspose1d(2, 3, 3), nn.ReLU(), nn.Flatten(), head(30)), LINE)
conv(
    "transposed conv 2d",
    lambda: then(nn.ConvTranspose2d(3, 2, 2, 2), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), head(8)),
)
conv(
    "transposed conv 3d",
    lambda: then(nn.ConvTranspose3d(1, 2, 2), nn.ReLU(), nn.AdaptiveAvgPool3d(1), nn.Flatten(), head(2)),
    VOLUME,
)
conv("max pooling", lambda: then(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), head(36)))
conv(
    "adaptive pooling",
    lambda: then(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), head(4)),
)
conv(
    "pixel shuffle",
    lambda: then(nn.Conv2d(3, 4, 3), nn.PixelShuffle(2), nn.AdaptiveAvgPool2d(2), nn.Flatten(), head(4)),
)
conv(
    "unfold and linear patches",
    lambda: then(
        nn.Unfold(4, stride=4),
        lambda x: x.transpose(1, 2),
        nn.Linear(48, 6),
        nn.Tanh(),
        nn.Flatten(),
        head(24),
    ),
)
conv(
    "functional conv with a parameter",
    lambda: Of(
        lambda m, x: m.b(functional.conv2d(x, m.w).relu().mean((2, 3))), w=token(4, 3, 3, 3), b=head(4)
    ),
)
conv(
    "channels last",
    lambda: then(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), head(144)).to(  # type: ignore[call-overload]
        memory_format=torch.channels_last
    ),
)
conv(
    "upsampling",
    lambda: then(
        nn.Conv2d(3, 2, 3),
        nn.Upsample(scale_factor=2, mode="bilinear"),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        head(8),
    ),
)
conv(
    "resized to a fixed size",
    lambda: then(lambda x: functional.interpolate(x, (5, 5)), nn.Conv2d(3, 2, 3), nn.Flatten(), head(18)),
)

# ---------------------------------------------------------------------------------------------------

norm = Group("norms and parametrizations", IMAGE, CLASSES, entropy)
norm("group norm", lambda: _normed(nn.GroupNorm(2, 4)))
norm("group norm without affine", lambda: _normed(nn.GroupNorm(2, 4, affine=False)))
norm("instance norm 2d", lambda: _normed(nn.InstanceNorm2d(4, affine=True)))
norm(
    "instance norm 1d",
    lambda: then(nn.Conv1d(2, 4, 3), nn.InstanceNorm1d(4, affine=True), nn.ReLU(), nn.Flatten(), head(24)),
    LINE,
)
norm("batch norm with frozen averages", lambda: _normed(nn.BatchNorm2d(4).eval()))
norm("layer norm", lambda: then(nn.Linear(6, 8), nn.LayerNorm(8), nn.ReLU(), head(8)), VECTOR)
norm("layer norm over an image", lambda: _normed(nn.LayerNorm([4, 6, 6])))
norm(
    "layer norm without affine",
    lambda: then(nn.Linear(6, 8), nn.LayerNorm(8, elementwise_affine=False), head(8)),
    VECTOR,
)
norm("RMS norm", lambda: then(nn.Linear(6, 8), nn.RMSNorm(8), nn.ReLU(), head(8)), VECTOR)
norm("RMS norm of one's own", lambda: Of(_own_rms, a=nn.Linear(6, 8), w=scale(8), b=head(8)), VECTOR)
norm(
    "layer norm for channels first",
    lambda: Of(_channels_first, a=nn.Conv2d(3, 4, 3), w=scale(4), v=scale(4, value=0.1), b=head(4)),
)
norm("local response norm", lambda: _normed(nn.LocalResponseNorm(2)))
norm(
    "global response norm",
    lambda: Of(
        _global_response, a=nn.Conv2d(3, 4, 3), w=scale(1, 4, 1, 1), v=scale(1, 4, 1, 1, value=0.1), b=head(4)
    ),
)
norm("weight norm", lambda: then(parametrizations.weight_norm(nn.Linear(6, 8)), nn.Tanh(), head(8)), VECTOR)
norm(
    "weight norm of a convolution",
    lambda: then(parametrizations.weight_norm(nn.Conv2d(3, 4, 3)), nn.ReLU(), nn.Flatten(), head(144)),
)
norm(
    "spectral norm", lambda: then(parametrizations.spectral_norm(nn.Linear(6, 8)), nn.Tanh(), head(8)), VECTOR
)
norm(
    "orthogonal weights",
    lambda: then(parametrizations.orthogonal(nn.Linear(6, 6)), nn.Tanh(), head(6)),
    VECTOR,
)
norm("standardized weights", lambda: Of(_standardized, a=nn.Conv2d(3, 4, 3), b=head(4)))
norm(
    "cosine classifier",
    lambda: Of(
        lambda m, x: m.s * functional.linear(functional.normalize(m.a(x)), functional.normalize(m.b.weight)),
        a=nn.Linear(6, 8),
        b=nn.Linear(8, 3, bias=False),
        s=scale(value=4.0),
    ),
    VECTOR,
)
norm(
    "masked weights (pruned)",
    lambda: Of(
        lambda m, x: m.b(
            functional.linear(x, m.a.weight * (m.a.weight.detach().abs() > 0.1), m.a.bias).tanh()
        ),
        a=nn.Linear(6, 8),
        b=head(8),
    ),
    VECTOR,
)


def _normed(layer: nn.Module) -> nn.Module:
    return then(nn.Conv2d(3, 4, 3), layer, nn.ReLU(), nn.Flatten(), head(144))


def _own_rms(m: Any, x: Tensor) -> Tensor:
    hidden = m.a(x)
    return m.b(m.w * hidden * torch.rsqrt(hidden.pow(2).mean(-1, keepdim=True) + 1e-6))


def _channels_first(m: Any, x: Tensor) -> Tensor:
    x = m.a(x)
    mean, spread = x.mean(1, keepdim=True), x.var(1, keepdim=True, unbiased=False)
    x = (x - mean) / (spread + 1e-6).sqrt()
    return m.b((m.w[:, None, None] * x + m.v[:, None, None]).relu().mean((2, 3)))


def _global_response(m: Any, x: Tensor) -> Tensor:
    x = m.a(x).relu()
    size = x.norm(p=2, dim=(2, 3), keepdim=True)
    return m.b((m.w * (x * size / (size.mean(1, keepdim=True) + 1e-6)) + m.v + x).mean((2, 3)))


def _standardized(m: Any, x: Tensor) -> Tensor:
    weight = m.a.weight
    weight = (weight - weight.mean((1, 2, 3), keepdim=True)) / weight.std((1, 2, 3), keepdim=True)
    return m.b(functional.conv2d(x, weight, m.a.bias).relu().mean((2, 3)))


# ---------------------------------------------------------------------------------------------------

embed = Group("embeddings", WORDS_6, CLASSES, entropy)
embed("embedding", lambda: then(nn.Embedding(11, 4), lambda x: x.mean(1), head(4)))
embed(
    "embedding with padding_idx",
    lambda: then(nn.Embedding(11, 4, padding_idx=0), lambda x: x.sum(1), head(4)),
)
embed("embedding bag", lambda: then(nn.EmbeddingBag(11, 4, mode="mean"), head(4)))
embed("embedding bag, sum", lambda: then(nn.EmbeddingBag(11, 4, mode="sum"), head(4)))
embed(
    "tied embeddings",
    lambda: Of(
        lambda m, x: functional.linear(m.b(m.a(x)).tanh(), m.a.weight),
        a=nn.Embedding(11, 4),
        b=nn.Linear(4, 4),
    ),
    targets=integers(11, 6),
    loss=lambda z, y: entropy(z.transpose(1, 2), y).mean(1),
)
embed(
    "tied by the same parameter",
    lambda: _tied(),
    targets=integers(11, 6),
    loss=lambda z, y: entropy(z.transpose(1, 2), y).mean(1),
)
embed(
    "factored embedding",
    lambda: then(nn.Embedding(11, 2), nn.Linear(2, 6, bias=False), lambda x: x.mean(1), head(6)),
)
embed(
    "position embedding",
    lambda: Of(
        lambda m, x: m.b((m.a(x) + m.p(torch.arange(6))).tanh().mean(1)),
        a=nn.Embedding(11, 4),
        p=nn.Embedding(6, 4),
        b=head(4),
    ),
)
embed(
    "position parameter",
    lambda: Of(
        lambda m, x: m.b((m.a(x) + m.p).tanh().mean(1)), a=nn.Embedding(11, 4), p=token(1, 6, 4), b=head(4)
    ),
)
embed(
    "position parameter without a leading 1",
    lambda: Of(
        lambda m, x: m.b((m.a(x) + m.p).tanh().mean(1)), a=nn.Embedding(11, 4), p=token(6, 4), b=head(4)
    ),
)
embed(
    "masked mean of embeddings",
    lambda: Of(_masked_mean, a=nn.Embedding(11, 4), b=head(4)),
    (WORDS_6, flags(6)),
)
embed(
    "embedding and numbers",
    lambda: Of(
        lambda m, x, y: m.b(torch.cat([m.a(x).mean(1), m.c(y)], 1).relu()),
        a=nn.Embedding(11, 4),
        c=nn.Linear(6, 4),
        b=head(8),
    ),
    (WORDS_6, VECTOR),
)
embed("a table of parameters, w[x]", lambda: Of(lambda m, x: m.b(m.w[x].mean(1)), w=token(11, 4), b=head(4)))
embed(
    "one-hot words",
    lambda: Of(
        lambda m, x: m.b(m.a(functional.one_hot(x, 11).float()).tanh().mean(1)), a=nn.Linear(11, 4), b=head(4)
    ),
)
embed(
    "factorization machine",
    lambda: Of(_factorization, a=nn.Embedding(11, 4), w=nn.Embedding(11, 1), b=nn.Linear(1, 3)),
)
embed(
    "matrix factorization",
    lambda: Of(
        lambda m, u, i: (m.u(u) * m.i(i)).sum(1) + m.v(i)[:, 0],
        u=nn.Embedding(7, 4),
        i=nn.Embedding(11, 4),
        v=nn.Embedding(11, 1),
    ),
    (integers(7), integers(11)),
    floats(),
    lambda z, y: (z - y).square(),
)


def _tied() -> nn.Module:
    model = then(nn.Embedding(11, 4), nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 11, bias=False))
    model[3].weight = model[0].weight  # type: ignore[index]
    return model


def _masked_mean(m: Any, x: Tensor, mask: Tensor) -> Tensor:
    weight = mask.float()[..., None]
    return m.b((m.a(x) * weight).sum(1) / weight.sum(1))


def _factorization(m: Any, x: Tensor) -> Tensor:
    vectors = m.a(x)
    pairs = 0.5 * (vectors.sum(1).square() - vectors.square().sum(1)).sum(1, keepdim=True)
    return m.b(m.w(x).sum(1) + pairs)
