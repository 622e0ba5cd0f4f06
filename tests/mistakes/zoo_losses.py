"""Correct models: losses that people train with."""

from typing import Any

import torch
from tests.mistakes.pieces import CLASSES, IMAGE, VECTOR, WORDS, head
from tests.mistakes.registry import (
    Group,
    Of,
    binary,
    entropy,
    floats,
    integers,
    positive,
    scale,
    squares,
    then,
    token,
)  # fmt: skip
from torch import Tensor, nn
from torch.nn import functional

# ---------------------------------------------------------------------------------------------------

losses = Group("losses", VECTOR, CLASSES, entropy)


def mlp(width: int) -> nn.Module:
    return then(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, width))


def of(kind: Any, **options: Any) -> Any:
    """A loss of PyTorch, one number per record."""
    return kind(reduction="none", **options)


losses(
    "embedding and MLP, BCEWithLogitsLoss",
    lambda: Of(lambda m, x: m.b(m.a(x).mean(1).relu())[:, 0], a=nn.Embedding(11, 8), b=nn.Linear(8, 1)),
    WORDS,
    binary(),
    nn.BCEWithLogitsLoss(reduction="none"),
)
losses(
    "BCEWithLogitsLoss with pos_weight",
    lambda: then(mlp(1), lambda x: x[:, 0]),
    targets=binary(),
    loss=nn.BCEWithLogitsLoss(reduction="none", pos_weight=torch.tensor(2.0)),
)
losses(
    "binary cross-entropy after sigmoid",
    lambda: then(mlp(1), lambda x: x[:, 0].sigmoid()),
    targets=binary(),
    loss=nn.BCELoss(reduction="none"),
)
losses(
    "multi-label",
    lambda: mlp(4),
    targets=binary(4),
    loss=lambda z, y: functional.binary_cross_entropy_with_logits(z, y, reduction="none").mean(1),
)
losses(
    "cross-entropy with fixed class weights",
    lambda: mlp(3),
    loss=nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 0.5]), reduction="none"),
)
losses("label smoothing", lambda: mlp(3), loss=nn.CrossEntropyLoss(label_smoothing=0.1, reduction="none"))
losses(
    "soft labels",
    lambda: mlp(3),
    targets=positive(3),
    loss=lambda z, y: -(y / y.sum(1, keepdim=True) * z.log_softmax(1)).sum(1),
)
losses(
    "focal loss",
    lambda: mlp(3),
    loss=lambda z, y: (lambda ce: (1 - (-ce).exp()).square() * ce)(entropy(z, y)),
)
losses("NLL of log-softmax", lambda: then(mlp(3), nn.LogSoftmax(1)), loss=nn.NLLLoss(reduction="none"))
losses(
    "ArcFace margin",
    lambda: Of(
        lambda m, x: functional.normalize(m.a(x)) @ functional.normalize(m.w, dim=0),
        a=nn.Linear(6, 4),
        w=token(4, 3),
    ),
    loss=lambda z, y: entropy(8 * (z - 0.2 * functional.one_hot(y, 3)), y),
)
losses("multi-margin", lambda: mlp(3), loss=nn.MultiMarginLoss(reduction="none"))
losses("squared error", lambda: mlp(2), targets=floats(2), loss=squares)
losses(
    "Huber", lambda: then(mlp(1), lambda x: x[:, 0]), targets=floats(), loss=nn.HuberLoss(reduction="none")
)
losses(
    "quantiles",
    lambda: mlp(2),
    targets=floats(1),
    loss=lambda z, y: (
        lambda e: torch.maximum(torch.tensor([0.1, 0.9]) * e, torch.tensor([-0.9, -0.1]) * e).sum(1)
    )(y - z),
)
losses(
    "Poisson",
    lambda: then(mlp(1), lambda x: x[:, 0]),
    targets=positive(),
    loss=nn.PoissonNLLLoss(reduction="none"),
)
losses(
    "Gaussian with a learned variance",
    lambda: mlp(2),
    targets=floats(),
    loss=lambda z, y: 0.5 * (z[:, 1] + (y - z[:, 0]).square() / z[:, 1].exp()),
)
losses(
    "discrete survival",
    lambda: mlp(4),
    targets=integers(4),
    loss=lambda z, y: (
        (functional.softplus(z) * (torch.arange(4) <= y[:, None])).sum(1) - z.gather(1, y[:, None])[:, 0]
    ),
)
losses(
    "ordinal",
    lambda: Of(lambda m, x: m.a(x) - m.t.cumsum(0), a=nn.Linear(6, 1), t=scale(2, value=0.5)),
    loss=lambda z, y: functional.binary_cross_entropy_with_logits(
        z, (y[:, None] > torch.arange(2)).float(), reduction="none"
    ).sum(1),
)
losses(
    "KL to a teacher",
    lambda: mlp(3),
    targets=floats(3),
    loss=lambda z, y: functional.kl_div(z.log_softmax(1), y.softmax(1), reduction="none").sum(1),
)
losses(
    "a frozen teacher inside the loss",
    lambda: mlp(3),
    targets=VECTOR,
    loss=Of(lambda m, z, y: (z - m.t(y)).square().mean(1), t=nn.Linear(6, 3).requires_grad_(False)),
)
losses(
    "cosine embedding",
    lambda: mlp(4),
    targets=floats(4),
    loss=lambda z, y: 1 - functional.cosine_similarity(z, y),
)
losses(
    "dice per record",
    lambda: then(nn.Conv2d(3, 1, 3, padding=1), nn.Sigmoid(), lambda x: x[:, 0]),
    IMAGE,
    binary(8, 8),
    lambda z, y: 1 - 2 * (z * y).sum((1, 2)) / (z + y).sum((1, 2)).clamp(min=1),
)
losses(
    "segmentation with ignored pixels",
    lambda: nn.Conv2d(3, 3, 3, padding=1),
    IMAGE,
    integers(4, 8, 8),
    lambda z, y: _ignored_pixels(z, y),
)
losses(
    "policy gradient", lambda: mlp(3), targets=(CLASSES, floats()), loss=lambda z, y: entropy(z, y[0]) * y[1]
)
losses(
    "DPO on pairs",
    lambda: Of(lambda m, x: m.b(m.a(x)).log_softmax(-1), a=nn.Embedding(11, 4), b=nn.Linear(4, 11)),
    integers(11, 2, 5),
    integers(11, 2, 5),
    lambda z, y: (
        -functional.logsigmoid((lambda s: s[:, 0] - s[:, 1])(z.gather(3, y[..., None])[..., 0].sum(2)))
    ),
)
losses("an L2 penalty in the loss", lambda: _penalized())


def _ignored_pixels(z: Tensor, y: Tensor) -> Tensor:
    losses = functional.cross_entropy(z, y, reduction="none", ignore_index=3)
    return losses.sum((1, 2)) / (y != 3).sum((1, 2)).clamp(min=1)


def _penalized() -> nn.Module:
    return Of(
        lambda m, x: m.b(m.a(x).tanh()) + 0.01 * m.a.weight.square().sum(), a=nn.Linear(6, 8), b=head(8)
    )
