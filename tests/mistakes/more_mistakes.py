"""Mistakes of a second round, each with what becomes of it."""

import itertools
import random
from typing import Any

import numpy as np
import torch
from tests.mistakes.mistake_list import (
    DRAWS,
    ELSEWHERE,
    LOSSES,
    MEMORY,
    MISTAKES,
    MIXED,
    MODELS,
    OTHER,
    USES,
    Mistake,
    Model,
    between,
    mistake,
    perceptron,
    remembers,
)  # fmt: skip
from tests.mistakes.registry import Of, entropy, floats
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import parametrizations

__all__ = ["ELSEWHERE", "MISTAKES", "Mistake"]


class Rescaled(torch.autograd.Function):
    """Its backward divides by the largest gradient of the batch."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        return grads[0] / (grads[0].abs().max() + 1e-12)


class Bounded(Rescaled):
    """Its backward clips the gradient of the batch, if that is large."""

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        return grads[0] * min(1.0, 10.0 / float(grads[0].norm() + 1e-12))


def _rescaled_by_a_hook(m: Any, h: Tensor) -> Tensor:
    if h.requires_grad:
        h.register_hook(lambda g: g / (g.norm() + 1e-12))  # type: ignore[no-untyped-call]
    return h


mistake(MODELS, "a division by the largest of the batch", between(lambda m, h: h / h.abs().max()), MIXED)
mistake(
    MODELS,
    "a quantile of the batch",
    between(lambda m, h: h.minimum(torch.quantile(h.detach(), 0.99))),
    MIXED,
)
mistake(MODELS, "a temperature from the batch", between(lambda m, h: h / (h.std() + 1e-6)), MIXED)
mistake(
    MODELS,
    "an embedding of the place in the batch",
    lambda: Of(
        lambda m, x: m.b(m.a(x).tanh() + m.e(torch.arange(len(x)))), a=nn.Linear(6, 8), e=nn.Embedding(64, 8),
        b=nn.Linear(8, 3),
    ),
    MIXED,
)  # fmt: skip
mistake(MODELS, "transpose, then reshape", between(lambda m, h: h.T.reshape(len(h), -1)), MIXED)
mistake(
    MODELS,
    "attention over the wrong dimension",
    lambda: Of(lambda m, x: m.b(m.a(x, x, x)[0].mean(1)), a=nn.MultiheadAttention(4, 2), b=nn.Linear(4, 3)),
    MIXED,
    inputs=floats(5, 4),
)
mistake(MODELS, "the last row left out", between(lambda m, h: torch.cat([h[:-1], 0 * h[-1:]])), MIXED)
mistake(MODELS, "a cumulative maximum over records", between(lambda m, h: h.cummax(0).values), MIXED)
mistake(
    MODELS,
    "a gradient normalized by a hook",
    between(_rescaled_by_a_hook),
    route="vmap",
    why="told apart by layer",
    random=True,
)
mistake(
    MODELS,
    "a gradient divided by the largest of the batch",
    between(lambda m, h: Rescaled.apply(h)),  # type: ignore[no-untyped-call]
    route="loop",
    why="torch.func cannot",
    random=True,
)
mistake(
    MODELS,
    "a gradient clipped in the batch",
    between(lambda m, h: Bounded.apply(h)),  # type: ignore[no-untyped-call]
    route="loop",
    why="decides by values",
    random=True,
)
mistake(
    MODELS,
    "statistics of the batch, if any record is far away",
    between(lambda m, h: h - h.mean(0) if (h > 0.9999).any() else h),
    random=True,
)
mistake(
    MODELS,
    "statistics of the batch, unless all records are near",
    between(lambda m, h: h if (h.abs() < 0.99999).all() else h - h.mean(0)),
    random=True,
)


def _hot(z: Tensor, y: Tensor) -> Tensor:
    hot = functional.one_hot(y)  # as many classes as the batch has
    return (z[:, : hot.shape[1]] - hot).square().sum(1)


def _unique(z: Tensor, y: Tensor) -> Tensor:
    _, place, counts = y.unique(return_inverse=True, return_counts=True)  # type: ignore[no-untyped-call]
    return entropy(z, y) / counts[place]


def _focal(z: Tensor, y: Tensor) -> Tensor:
    return entropy(z, y) / (y == 1).sum().clamp(min=1)


def _triplet(z: Tensor, y: Tensor) -> Tensor:
    return entropy(z, y) + (torch.cdist(z, z) * (y[:, None] == y)).max(1).values


def _decorrelated(z: Tensor, y: Tensor) -> Tensor:
    return entropy(z, y) + (z.T @ z / len(z) - torch.eye(3)).square().sum()


def _ranked(z: Tensor, y: Tensor) -> Tensor:
    return functional.softplus(z[:, :1] - z[:, 0]).mean(1)


mistake(
    LOSSES, "a division by the size of the batch", perceptron, MIXED, loss=lambda z, y: entropy(z, y) / len(z)
)
mistake(LOSSES, "one-hot without the number of classes", perceptron, MIXED, loss=_hot)
mistake(LOSSES, "weights by how often a label is there", perceptron, MIXED, loss=_unique)
mistake(LOSSES, "a division by the positives of the batch", perceptron, MIXED, loss=_focal)
mistake(LOSSES, "the hardest positive of the batch", perceptron, MIXED, loss=_triplet)
mistake(LOSSES, "decorrelation over the batch", perceptron, MIXED, loss=_decorrelated)
mistake(LOSSES, "ranks within the batch", perceptron, MIXED, loss=_ranked)
mistake(
    LOSSES,
    "labels mixed with the neighbor's",
    perceptron,
    MIXED,
    loss=lambda z, y: 0.7 * entropy(z, y) + 0.3 * entropy(z, y.roll(1)),
)

mistake(DRAWS, "features permuted by NumPy", between(lambda m, h: h[:, np.random.permutation(8)]), OTHER)
mistake(
    DRAWS,
    "a generator of NumPy made in forward",
    between(lambda m, h: h * float(np.random.default_rng().random())),
    OTHER,
)
mistake(DRAWS, "a layer chosen by Python", between(lambda m, h: random.choice([h.tanh, h.relu])()), OTHER)
mistake(
    DRAWS,
    "one dropout mask for the batch",
    between(lambda m, h: 2 * h * torch.bernoulli(torch.full((8,), 0.5))),
    route="vmap",
    why="several records at once",
    random=True,
)


class Confusion:
    """A loss that counts what was confused."""

    def __init__(self) -> None:
        self.matrix = np.zeros((3, 3))

    def __call__(self, z: Tensor, y: Tensor) -> Tensor:
        np.add.at(self.matrix, (y.numpy(), z.detach().argmax(1).numpy()), 1)
        return entropy(z, y)


def _averaged(m: Any, x: Tensor) -> None:
    m.ema = 0.9 * getattr(m, "ema", 0.0) + 0.1 * x.detach().mean(0)


def _steps() -> nn.Module:
    model: Any = Model(lambda m, x: next(m.steps))
    model.steps = itertools.count()
    return model


remembers("a running average in an attribute", _averaged, "ema")
remembers(
    "a teacher that follows in forward",
    lambda m, x: m.frozen.data.mul_(0.9).add_(0.1 * m.first.weight.detach().mean(0)),
    "frozen",
)
remembers("a queue of keys in a buffer", lambda m, x: m.average.copy_(x.detach()[0]), "average")
mistake(MEMORY, "a confusion matrix in the loss", perceptron, "matrix", loss=Confusion())
mistake(MEMORY, "steps from itertools.count", _steps, "a count \\('steps'\\)")
mistake(
    USES,
    "a penalty on a normed weight, from forward",
    lambda: Of(
        lambda m, x: (m.a(x), m.a.weight.square().sum()), a=parametrizations.weight_norm(nn.Linear(6, 3))
    ),
    loss=lambda z, y: entropy(z[0], y) + 1e-4 * z[1],
    route="vmap",
    why="outside of the layer",
)
