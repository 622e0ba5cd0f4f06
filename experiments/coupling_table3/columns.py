"""The columns of Table 3, and some of our own, as arguments of a Trainer.

The paper's columns have B = 1000 and 20 epochs, as in its appendix A.2, and one setting each: a grid on
private records, as in the paper, would have to be paid for. Two of them, DOPE and DPMD, were changed after a
first run (superseded.csv has it).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from experiments.coupling_table3.digits import shifted, warped
from sidelight.deep import PublicTraining
from sidelight.methods.adamix import adamix
from sidelight.methods.baselines import non_private, only_public
from sidelight.methods.coupling import coupling
from sidelight.methods.dope_sgd import dope_sgd
from sidelight.methods.dp_sgd import full_private, only_private
from sidelight.methods.dpmd import dpmd
from sidelight.methods.parts import Last

__all__ = ["ALIKE", "COLUMNS", "PAPER", "Cnn", "cosine", "strong_warm_up"]

# The columns of the paper; the others are ours.
PAPER = ("FullPriv", "NonPriv", "OnlyPub", "OnlyPriv", "AdaMix", "DPMD", "Coupling")

# Which records are public is all the same to them: they run once.
ALIKE = ("FullPriv", "NonPriv")

_TOP = 4e-3


class Cnn(nn.Module):
    """The network of appendix A.1, 26,010 parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 16, 8, 2, padding=3)
        self.conv2 = nn.Conv2d(16, 32, 4, 2)
        self.fc1 = nn.Linear(512, 32)
        self.fc2 = nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = nn.functional.max_pool2d(nn.functional.relu(self.conv1(x)), 2, 1)
        x = nn.functional.max_pool2d(nn.functional.relu(self.conv2(x)), 2, 1)
        out: Tensor = self.fc2(nn.functional.relu(self.fc1(x.flatten(1))))
        return out


def _sgd(step_size: float) -> Any:
    return {"optimizer": lambda parameters: torch.optim.SGD(parameters, lr=step_size)}


def _plain() -> Any:
    return {"optimizer": lambda parameters: torch.optim.SGD(parameters, lr=0.05, momentum=0.9)}


def cosine(step_size: float, steps: int) -> dict[str, Any]:
    """SGD whose step size falls to nothing by the end."""
    return {
        **_sgd(step_size),
        "scheduler": lambda optimizer: torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps),
    }


def strong_warm_up(steps: int) -> PublicTraining:
    """Adam on warped public images, its step size up to 0.004 and down again."""

    def optimizer(parameters: Any) -> torch.optim.Optimizer:
        return torch.optim.AdamW(parameters, lr=_TOP, weight_decay=0.01)

    def schedule(optimizer: torch.optim.Optimizer) -> Any:
        return torch.optim.lr_scheduler.OneCycleLR(
            optimizer, _TOP, total_steps=steps + 1, pct_start=0.15, cycle_momentum=False
        )

    return PublicTraining(
        steps=steps, batch_size=128, augment=warped, optimizer=optimizer, scheduler=schedule
    )


def _warm(steps: int = 3000) -> Any:
    return {"warm_up": PublicTraining(steps=steps, batch_size=128, augment=shifted)}


def _coupling(**options: Any) -> Any:
    return coupling(weight=0.05, reduction="mean", gamma=0.01, **options)


COLUMNS: dict[str, dict[str, Any]] = {
    "FullPriv": {"method": full_private(clip_norm=1.0), **_sgd(0.5)},
    "NonPriv": {"method": non_private(), **_plain()},
    "OnlyPub": {"method": only_public(), **_plain(), "expected_batch_size": 128},
    "OnlyPriv": {"method": only_private(clip_norm=1.0), **_sgd(0.5)},
    # As in the paper without a warm-up; it trains the last layer, in the span of its public gradients.
    "AdaMix": {"method": adamix(rank=50), **_sgd(0.5), **_warm(0), "last_layer": True},
    "DPMD": {"method": dpmd(warm=False, clip_norm=1.0, finish=Last()), **_sgd(0.2)},
    "Coupling": {"method": _coupling(), **_sgd(0.5)},
    "Coupling, Eq. (5)": {"method": coupling(gamma=0.01), **_sgd(0.5)},
    "DOPE": {"method": dope_sgd(clip_norm=1.0, finish=Last()), **_sgd(0.1)},
    "DOPE, warm": {"method": dope_sgd(clip_norm=1.0), **_sgd(0.1), **_warm(), "public_augment": shifted},
    "Coupling, warm": {"method": _coupling(), **_sgd(0.5), **_warm(), "public_augment": shifted},
    "OnlyPub, warped": {
        "method": only_public(),
        "warm_up": strong_warm_up(6000),
        "expected_batch_size": 128,
        "epochs": 0,  # the steps of the warm-up
        "validation": 0.0,
    },
    "Ours": {
        "method": coupling(weight=0.1, reduction="mean", gamma=0.1),
        "cosine": 0.3,
        "warm_up": strong_warm_up(6000),
        "public_augment": warped,
        "expected_batch_size": 2000,
        "epochs": 12,
        "validation": 0.0,
    },
}
