"""The cells of the table as arguments of a Trainer.

Settings were fixed before any run on private images. The step sizes follow ten trials of 30 steps in which
public images stood in for the private ones, and judgement where nothing was tried (0.1, and warm-ext):
DOPE-SGD, whose origin is not clipped, diverged at 1. `--rehearse` runs such trials through the Trainer. The
paper searched a grid for each cell, on the private data, and did not count it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from sidelight.deep import MeanLogits, PublicTraining
from sidelight.methods.dope_sgd import dope_sgd
from sidelight.methods.dp_sgd import dp_sgd
from sidelight.methods.recipe import Recipe

__all__ = [
    "AUGMENTATIONS",
    "BATCH",
    "CELLS",
    "GENERATED",
    "KEPT",
    "METHODS",
    "PUBLIC_BATCH",
    "SETTINGS",
    "ConvNet",
    "method_of",
    "optimizer_of",
    "warm_up",
]

METHODS, SETTINGS = ("dp_sgd", "dope_sgd"), ("cold", "warm", "warm-ext")
AUGMENTATIONS = ("none", "transforms", "diffusion")
BATCH, PUBLIC_BATCH, KEPT = 512, 256, 50  # KEPT: iterates for the ensembles
STEP_SIZE = {
    "dp_sgd": {"cold": 1.0, "warm": 0.5, "warm-ext": 0.2},
    "dope_sgd": {"cold": 0.2, "warm": 0.1, "warm-ext": 0.1},
}

# Method, setting, augmentation; in the order in which they are run. DP-SGD, cold, uses no public image.
CELLS: tuple[tuple[str, str, str], ...] = (
    ("only_public", "warm", "none"),
    ("only_public", "warm", "transforms"),
    ("dp_sgd", "cold", "none"),
    ("dp_sgd", "warm", "transforms"),
    ("dope_sgd", "warm", "transforms"),
    ("dope_sgd", "warm-ext", "transforms"),
    ("dp_sgd", "warm-ext", "transforms"),
    ("dope_sgd", "cold", "transforms"),
    ("dp_sgd", "warm", "none"),
    ("dope_sgd", "warm", "none"),
    ("dope_sgd", "cold", "none"),
    ("dope_sgd", "warm-ext", "none"),
    ("dp_sgd", "warm-ext", "none"),
)
# With a pool of generated images; only on demand, for a diffusion model has to be trained first.
GENERATED: tuple[tuple[str, str, str], ...] = (
    ("only_public", "warm", "diffusion"),
    ("dp_sgd", "warm", "diffusion"),
    ("dope_sgd", "warm", "diffusion"),
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
        x = (x - 0.5) / 0.25
        x = nn.functional.relu(self.conv1(x))
        for layer in (self.conv2, self.conv3):
            x = nn.functional.max_pool2d(nn.functional.relu(layer(x)), 2)
        out: Tensor = self.head(x.flatten(1))
        return out


def method_of(name: str, setting: str) -> Recipe:
    """DP-SGD or DOPE-SGD, keeping its last iterates. A warm start is made beforehand, once for all cells."""
    finish = MeanLogits(KEPT)
    if name == "dp_sgd":
        return dp_sgd(clip_norm=1.0, finish=finish).with_parts(extended=setting == "warm-ext")
    return dope_sgd(clip_norm=1.0, start="cold", extended=setting == "warm-ext", finish=finish)


def optimizer_of(method: str, setting: str, step_size: float | None = None) -> Any:
    rate = STEP_SIZE[method][setting] if step_size is None else step_size
    return lambda parameters: torch.optim.SGD(parameters, lr=rate)


def warm_up(augmentation: str, *, quick: bool) -> PublicTraining:
    """Plain steps on public images: fewer where they are always the same."""
    steps = 2 if quick else 400 if augmentation == "none" else 1500
    return PublicTraining(
        steps=steps,
        batch_size=128,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.05, momentum=0.9, weight_decay=5e-4),
    )
