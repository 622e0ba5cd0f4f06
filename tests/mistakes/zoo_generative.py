"""Correct models: generative models, and language models."""

from typing import Any

import torch
from tests.mistakes.pieces import IMAGE, VECTOR, WORDS
from tests.mistakes.registry import (
    Group,
    Of,
    entropy,
    flags,
    floats,
    integers,
    squares,
    then,
    token,
    tokens_entropy,
)  # fmt: skip
from torch import Tensor, nn
from torch.nn import functional

# ---------------------------------------------------------------------------------------------------

generative = Group("generative models", VECTOR, VECTOR, squares)
generative("autoencoder", lambda: then(nn.Linear(6, 3), nn.ReLU(), nn.Linear(3, 6)))
generative(
    "autoencoder, tied decoder",
    lambda: Of(
        lambda m, x: functional.linear(m.a(x).tanh(), m.a.weight.T, m.v), a=nn.Linear(6, 3), v=token(6)
    ),
)
generative(
    "convolutional autoencoder",
    lambda: then(nn.Conv2d(3, 4, 2, 2), nn.ReLU(), nn.ConvTranspose2d(4, 3, 2, 2)),
    IMAGE,
    IMAGE,
)
generative(
    "VAE",
    lambda: Of(_vae, e=nn.Linear(6, 8), d=nn.Linear(4, 6)),
    loss=lambda z, y: squares(z[0], y) + z[1],
    random=True,
)
generative(
    "VAE by torch.distributions",
    lambda: Of(_vae_distribution, e=nn.Linear(6, 8), d=nn.Linear(4, 6)),
    loss=lambda z, y: squares(z[0], y) + z[1],
    random=True,
)
generative(
    "diffusion",
    lambda: Of(_diffusion, a=nn.Linear(7, 16), b=nn.Linear(16, 6)),
    loss=lambda z, y: z.square().mean(1),
    random=True,
)
generative(
    "diffusion with a table of steps",
    lambda: _diffusion_table(),
    loss=lambda z, y: z.square().mean(1),
    random=True,
)
generative(
    "flow matching",
    lambda: Of(_flow_matching, a=nn.Linear(7, 16), b=nn.Linear(16, 6)),
    loss=lambda z, y: z.square().mean(1),
    random=True,
)
generative(
    "masked autoencoder",
    lambda: Of(_mae, a=nn.Linear(6, 12), b=nn.Linear(12, 6)),
    loss=lambda z, y: z.square().mean(1),
    random=True,
)
generative(
    "masked tokens by random order",
    lambda: Of(_mae_tokens, a=nn.Linear(2, 8), b=nn.Linear(8, 6)),
    random=True,
)
generative(
    "dropout in evaluation too",
    lambda: Of(
        lambda m, x: m.b(functional.dropout(m.a(x).relu(), 0.5)), a=nn.Linear(6, 8), b=nn.Linear(8, 6)
    ),
    random=True,
)
generative(
    "Gumbel softmax",
    lambda: Of(
        lambda m, x: m.b(functional.gumbel_softmax(m.a(x), tau=1.0)), a=nn.Linear(6, 4), b=nn.Linear(4, 6)
    ),
    random=True,
)
generative(
    "noisy inputs",
    lambda: Of(
        lambda m, x: m.b(m.a(x + 0.1 * torch.randn_like(x)).relu()), a=nn.Linear(6, 8), b=nn.Linear(8, 6)
    ),
    random=True,
)
generative(
    "a coupling flow",
    lambda: Of(_coupling, a=nn.Linear(3, 8), b=nn.Linear(8, 6)),
    loss=lambda z, y: 0.5 * z[0].square().sum(1) - z[1],
)
generative("autoregressive (MADE)", lambda: _made_model())
generative(
    "PixelCNN's masked convolution",
    lambda: Of(
        lambda m, x: functional.conv2d(x, m.a.weight * m.k, m.a.bias, padding=1),
        a=nn.Conv2d(3, 3, 3),
        k=torch.ones(3, 3, 3, 3).tril(),
    ),
    IMAGE,
    IMAGE,
)
generative(
    "mixture density",
    lambda: Of(lambda m, x: m.a(x).chunk(3, 1), a=nn.Linear(6, 9)),
    targets=floats(1),
    loss=lambda z, y: _mixture(z, y),
)
generative(
    "masked language model",
    lambda: Of(lambda m, x: m.b(m.a(x).tanh()), a=nn.Embedding(11, 4), b=nn.Linear(4, 11)),
    WORDS,
    (WORDS, flags(5)),
    lambda z, y: _masked_words(z, y),
)
generative(
    "language model, ignored labels",
    lambda: Of(lambda m, x: m.b(m.a(x).tanh()), a=nn.Embedding(11, 4), b=nn.Linear(4, 11)),
    WORDS,
    integers(11, 5),
    lambda z, y: _ignoring(z, y),
)
generative(
    "language model, shifted",
    lambda: Of(lambda m, x: m.b(m.a(x).tanh()), a=nn.Embedding(11, 4), b=nn.Linear(4, 11)),
    WORDS,
    WORDS,
    lambda z, y: tokens_entropy(z[:, :-1], y[:, 1:]),
)
generative(
    "energy-based, noise contrast",
    lambda: Of(
        lambda m, x: m.b(m.a(torch.cat([x, torch.randn_like(x)], 1).view(-1, 2, 6)).tanh())[..., 0],
        a=nn.Linear(6, 8),
        b=nn.Linear(8, 1),
    ),
    loss=lambda z, y: functional.softplus(z[:, 0]) + functional.softplus(-z[:, 1]),
    random=True,
)


def _vae(m: Any, x: Tensor) -> Any:
    mean, spread = m.e(x).chunk(2, 1)
    latent = mean + torch.randn_like(mean) * (0.5 * spread).exp()
    return m.d(latent), -0.5 * (1 + spread - mean.square() - spread.exp()).sum(1)


def _vae_distribution(m: Any, x: Tensor) -> Any:
    mean, spread = m.e(x).chunk(2, 1)
    posterior = torch.distributions.Normal(mean, functional.softplus(spread) + 1e-3)
    prior = torch.distributions.Normal(torch.zeros_like(mean), torch.ones_like(mean))
    return m.d(posterior.rsample()), torch.distributions.kl_divergence(posterior, prior).sum(1)


def _diffusion(m: Any, x: Tensor) -> Tensor:
    step, noise = torch.rand(len(x), 1), torch.randn_like(x)
    noisy = (1 - step).sqrt() * x + step.sqrt() * noise
    return m.b(functional.silu(m.a(torch.cat([noisy, step], 1)))) - noise


def _diffusion_table() -> nn.Module:
    def run(m: Any, x: Tensor) -> Tensor:
        step, noise = torch.randint(0, 10, (len(x),)), torch.randn_like(x)
        kept = m.kept[step][:, None]
        noisy = kept.sqrt() * x + (1 - kept).sqrt() * noise
        return m.b(functional.silu(m.a(noisy) + m.t(step))) - noise

    model = Of(run, a=nn.Linear(6, 8), t=nn.Embedding(10, 8), b=nn.Linear(8, 6))
    model.register_buffer("kept", torch.linspace(0.99, 0.1, 10))
    return model


def _flow_matching(m: Any, x: Tensor) -> Tensor:
    time, noise = torch.rand(len(x), 1), torch.randn_like(x)
    between = (1 - time) * noise + time * x
    return m.b(functional.silu(m.a(torch.cat([between, time], 1)))) - (x - noise)


def _mae(m: Any, x: Tensor) -> Tensor:
    hidden = (torch.rand_like(x) < 0.5).to(x.dtype)
    return (m.b(m.a(x * (1 - hidden)).relu()) - x) * hidden


def _mae_tokens(m: Any, x: Tensor) -> Tensor:
    tokens = m.a(x.view(len(x), 3, 2))
    kept = torch.rand(len(x), 3).argsort(1)[:, :2, None].expand(-1, -1, 8)
    return m.b(tokens.gather(1, kept).mean(1))


def _coupling(m: Any, x: Tensor) -> Any:
    left, right = x.chunk(2, 1)
    log_scale, shift = m.b(m.a(left).tanh()).chunk(2, 1)
    return torch.cat([left, right * log_scale.tanh().exp() + shift], 1), log_scale.tanh().sum(1)


def _made_model() -> nn.Module:
    def run(m: Any, x: Tensor) -> Tensor:
        return functional.linear(x, m.a.weight * m.mask, m.a.bias)

    model = Of(run, a=nn.Linear(6, 6))
    model.register_buffer("mask", torch.ones(6, 6).tril(-1))
    return model


def _mixture(z: Any, y: Tensor) -> Tensor:
    weight, mean, spread = z
    logs = weight.log_softmax(1) - 0.5 * ((y - mean) / spread.exp()).square() - spread
    return -logs.logsumexp(1)


def _masked_words(z: Tensor, y: Any) -> Tensor:
    losses, hidden = entropy(z.transpose(1, 2), y[0]), y[1].float()
    return (losses * hidden).sum(1) / hidden.sum(1).clamp(min=1)


def _ignoring(z: Tensor, y: Tensor) -> Tensor:
    y = y.masked_fill(y < 3, -100)
    losses = functional.cross_entropy(z.transpose(1, 2), y, reduction="none", ignore_index=-100)
    return losses.sum(1) / (y != -100).sum(1).clamp(min=1)
