"""The columns of Table 3, and two of our own; every setting by a rule.

B, the number of steps and the decay are those of `Trainer`, which a method gets that leaves them open. The
step size, and Coupling's weight or DOPE-SGD's limit, come from a rehearsal: private steps on
public images under the noise of the real plan. Step sizes first; another weight or limit must then be better
by two standard errors, as in `auto`.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from experiments.coupling_table3.digits import Pair
from experiments.rehearsals import NetworkRehearsal, decaying, plan_for
from sidelight.deep import PublicTraining, Trainer
from sidelight.deep.gradient_points import RealPlan
from sidelight.deep.prepare import public_parts
from sidelight.methods.adamix import adamix
from sidelight.methods.coupling import Weight, pooled_weight
from sidelight.methods.dope_sgd import PublicGradient
from sidelight.methods.dp_sgd import dp_sgd
from sidelight.methods.dpmd import dpmd
from sidelight.methods.parts import BestOnPublic, Cold
from sidelight.methods.precision import SPREAD, public_precision
from sidelight.methods.recipe import Recipe
from sidelight.oracles.network.network_oracle import NetworkOracle
from sidelight.problems.flat_parameters import write
from sidelight.problems.public_training import one_cycle

__all__ = ["ALIKE", "COLUMNS", "PAPER", "Cnn", "Images", "bare", "chosen", "network"]

# r_pub and seed → private, public and test images
Images = Callable[[float, int], tuple[Pair, Pair, Pair]]

# The columns of the paper; the others are ours.
PAPER = ("FullPriv", "NonPriv", "OnlyPub", "OnlyPriv", "AdaMix", "DPMD", "Coupling")
COLUMNS = (*PAPER, "DOPE", "Ours")

# Which records are public is all the same to them: they run once.
ALIKE = ("FullPriv", "NonPriv")

EPSILON, DELTA = 2.0, 1e-5
STEP_SIZES = (0.5, 1.0, 2.0, 4.0)  # those of `auto`
# AdaMix clips at a quantile of public gradients, which are short after a warm start.
LONGER = (1.0, 4.0, 16.0, 64.0)


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


def network(seed: int) -> Cnn:
    """The network before training; its layout in memory makes it faster, and changes nothing else."""
    torch.manual_seed(seed)
    return Cnn().to(memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]


def bare(model: nn.Module, seed: int, **options: Any) -> Trainer:
    """`Trainer` with a budget and nothing else, but for these options."""
    return Trainer(
        model,
        nn.CrossEntropyLoss(),
        epsilon=EPSILON,
        delta=DELTA,
        random_state=seed,
        progress=False,
        **options,
    )


# ---------------------------------------------------------------------------------------------------
# columns whose private steps are rehearsed


@dataclass(frozen=True)
class Candidate:
    """A recipe and its step size."""

    label: str
    recipe: Recipe
    step_size: float

    def __str__(self) -> str:
        return f"{self.label}, step size {self.step_size:g}"


@dataclass(frozen=True)
class Chosen:
    """A network where private steps begin, and how they are taken."""

    model: Cnn
    best: Candidate
    plan: RealPlan
    evidence: str  # every candidate and its score, as JSON

    def trainer(self, seed: int) -> Trainer:
        """With the plan's decay; B and the number of steps are left to `Trainer`."""
        return bare(
            self.model,
            seed,
            method=self.best.recipe.with_parts(start=Cold()),
            optimizer=lambda parameters: torch.optim.SGD(parameters, lr=self.best.step_size),
            scheduler=lambda optimizer: torch.optim.lr_scheduler.LambdaLR(
                optimizer, lambda step: decaying(step, self.plan.steps)
            ),
        )


@dataclass(frozen=True)
class WarmStart:
    """A network after training on public images, as OnlyPub does it, and what was chosen for that."""

    state: dict[str, Tensor]
    found: dict[str, Any]


@cache
def _warm_start(share: float, seed: int, images: Images) -> WarmStart:
    private, public, _ = images(share, seed)
    trainer = bare(network(seed), seed, method="only_public").fit(private, public)
    state = {name: value.clone() for name, value in trainer.model.state_dict().items()}
    found: Any = trainer.privacy_.details["public_training"]
    return WarmStart(state, found)


def chosen(column: str, share: float, seed: int, images: Images) -> Chosen:
    """The column's settings, from public images and public numbers."""
    private, public, _ = images(share, seed)
    model = network(seed)
    warm = None if column == "OnlyPriv" else _warm_start(share, seed, images)
    rehearsal = _rehearsal(model, len(private[1]), public, seed, warm, last_layer=column == "AdaMix")
    learned = len(public[1]) - int(0.1 * len(public[1]))  # the rest is held out
    first, *others = _recipes(column, rehearsal.stage, n_public=learned, dimension=_size(model))
    step_sizes = LONGER if column == "AdaMix" else STEP_SIZES
    tried = {
        one: rehearsal.run(one.recipe, one.step_size) for one in (Candidate(*first, s) for s in step_sizes)
    }
    best = min(tried, key=lambda one: tried[one].loss)
    for label, recipe in others:
        other = Candidate(label, recipe, best.step_size)
        tried[other] = rehearsal.run(recipe, best.step_size)
        gain, error = tried[other].gain_over(tried[best])
        best = other if gain > 2 * error else best
    if warm is not None:
        model.load_state_dict(warm.state)
    seen = {"start": str(rehearsal.start_score), **{str(one): str(score) for one, score in tried.items()}}
    return Chosen(model, best, rehearsal.stage, json.dumps(seen))


def _rehearsal(
    model: Cnn, n: int, public: Pair, seed: int, warm: WarmStart | None, *, last_layer: bool
) -> NetworkRehearsal:
    """From the start that the real run has, trained on fewer images; of the last layer alone if so asked."""
    learn, held_out = public_parts(bare(model, seed), TensorDataset(*public), seed, torch.device("cpu"))
    if learn is None:
        raise SystemExit("there are no public images")
    loss = nn.CrossEntropyLoss(reduction="none")

    def made(warm_up: PublicTraining, share: float, averaged: bool) -> NetworkRehearsal:
        plan = plan_for(
            n, _size(model), epsilon=EPSILON, delta=DELTA, relation="add-or-remove-one", seed=seed
        )
        oracle = NetworkOracle(model, loss, example=learn.fetch(range(16)))
        return NetworkRehearsal(
            oracle, learn, held_out, plan, warm_up=warm_up, share=share, augment=None, averaged=averaged
        )

    if warm is None:
        return made(PublicTraining(steps=1), 0.0, False)
    found = warm.found
    fewer = one_cycle(PublicTraining(steps=max(100, found["steps"] // 2)), found["step_size"])
    rehearsal = made(fewer, 1.0, False)
    if not last_layer:
        return rehearsal
    write(model, rehearsal.start)
    model.requires_grad_(False)
    model.fc2.requires_grad_(True)
    return made(PublicTraining(steps=1), 0.0, False)


def _recipes(column: str, plan: RealPlan, *, n_public: int, dimension: int) -> list[tuple[str, Recipe]]:
    """The column's recipe first, then with another weight or limit. C = 1, public gradients of length 1."""
    plain = dp_sgd(clip_norm=1.0)
    if column == "OnlyPriv":
        return [("DP-SGD", plain)]
    guided = plain.with_parts(finish=BestOnPublic())
    if column == "AdaMix":
        return [("AdaMix", adamix().with_parts(finish=BestOnPublic()))]
    if column == "DPMD":
        return [("DPMD, limit 1", dpmd(clip_norm=1.0, public_limit=1.0, finish=BestOnPublic()))]
    if column == "DOPE":
        return [
            (f"DOPE, limit {limit:g}", guided.with_parts(origin=PublicGradient(limit)))
            for limit in (0.5, 1.0)
        ]
    kappa = public_precision(
        n_public=n_public, n_private=plan.n, dimension=dimension, noise_multiplier=plan.noise_multiplier,
        sensitivity_factor=1, batch=plan.batch, steps=plan.steps, spread=SPREAD,
    )  # fmt: skip
    weights = pooled_weight(n_public=n_public, n_private=plan.n), kappa / (1 + kappa)
    return [(f"Coupling, weight {w:.3g}", guided.with_parts(mix=Weight(w, 1.0))) for w in weights]


def _size(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters() if p.requires_grad)
