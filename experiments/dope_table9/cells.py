"""The cells of Tables 1, 2 and 9 as arguments of a Trainer, in the order in which they are run."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from sidelight.deep import MeanLogits
from sidelight.methods.dope_sgd import dope_sgd
from sidelight.methods.dp_sgd import dp_sgd
from sidelight.methods.recipe import Recipe

__all__ = [
    "AUGMENTATIONS",
    "BATCH",
    "DELTA",
    "EPSILONS",
    "GENERATED",
    "HEADLINE",
    "KEPT",
    "METHODS",
    "PUBLIC_BATCH",
    "REST",
    "SETTINGS",
    "STEPS",
    "ConvNet",
    "linear_decay",
    "method_of",
    "sgd",
    "train_publicly",
]

METHODS, SETTINGS = ("dp_sgd", "dope_sgd"), ("cold", "cold-ext", "warm", "warm-ext")
AUGMENTATIONS = ("none", "transforms", "diffusion")
EPSILONS, DELTA = (2.0, 1.0, 4.0, 6.0), 1e-5
BATCH, STEPS, PUBLIC_BATCH = 1024, 800, 256
KEPT = 200  # iterates for the ensembles
WARM_STEPS, WARM_BATCH = 2_000, 128

# Method, setting, augmentation. DP-SGD, cold, uses no public image; of public images alone ε does not matter.
Cell = tuple[str, str, str]
HEADLINE: tuple[Cell, ...] = (
    ("dp_sgd", "cold", "none"),
    ("dope_sgd", "cold", "transforms"),
    ("only_public", "warm", "transforms"),
    ("dp_sgd", "warm", "transforms"),
    ("dope_sgd", "warm-ext", "transforms"),
)
REST: tuple[Cell, ...] = (
    ("only_public", "warm", "none"),
    ("dp_sgd", "warm-ext", "transforms"),
    ("dope_sgd", "warm", "transforms"),
    ("dp_sgd", "warm", "none"),
    ("dope_sgd", "cold", "none"),
    ("dope_sgd", "cold-ext", "transforms"),
    ("dp_sgd", "cold-ext", "transforms"),
)
# With a pool of generated images; only on demand, for a diffusion model has to be trained first.
GENERATED: tuple[Cell, ...] = (
    ("only_public", "warm", "diffusion"),
    ("dp_sgd", "warm", "diffusion"),
    ("dope_sgd", "warm-ext", "diffusion"),
)


class ConvNet(nn.Module):
    """Three convolutions and a linear layer, 34,602 parameters; takes bytes, or numbers in [0, 1]."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 16, 5, stride=2, padding=2)
        self.conv2 = nn.Conv2d(16, 32, 3, padding=1)
        self.conv3 = nn.Conv2d(32, 64, 3, padding=1)
        self.head = nn.Linear(64 * 4 * 4, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = x / 255 if x.dtype == torch.uint8 else x
        x = ((x - 0.5) / 0.25).contiguous(memory_format=torch.channels_last)  # a fifth faster on a CPU
        x = nn.functional.relu(self.conv1(x))
        for layer in (self.conv2, self.conv3):
            x = nn.functional.relu(nn.functional.max_pool2d(layer(x), 2))
        out: Tensor = self.head(x.flatten(1))
        return out


def method_of(name: str, setting: str, limit: float) -> Recipe:
    """DP-SGD or DOPE-SGD, keeping its last iterates. A warm start is made beforehand, once for all cells."""
    finish, extended = MeanLogits(KEPT), setting.endswith("-ext")
    if name == "dp_sgd":
        return dp_sgd(clip_norm=1.0, finish=finish).with_parts(extended=extended)
    return dope_sgd(clip_norm=1.0, origin_limit=limit, start="cold", extended=extended, finish=finish)


def sgd(step_size: float) -> Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]:
    return lambda parameters: torch.optim.SGD(parameters, lr=step_size)


def linear_decay(steps: int) -> Any:
    return lambda optimizer: torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / steps)


def train_publicly(model: nn.Module, public: tuple[Tensor, Tensor], *, seed: int, quick: bool) -> None:
    """Plain AdamW with one cycle on public images: the warm start of every method, and `only_public`."""
    steps = 2 if quick else WARM_STEPS
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.05)
    cycle = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=2e-3, total_steps=steps + 1)
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        rows = torch.randint(len(public[1]), (WARM_BATCH,), generator=generator)
        loss = nn.functional.cross_entropy(model(public[0][rows]), public[1][rows])
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        cycle.step()
