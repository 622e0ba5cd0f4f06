"""A recipe on a network: the same one private step, with tensors."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from sidelight.deep.ensemble import TailMean
from sidelight.deep.guide import NetworkGuide
from sidelight.errors import InputError, RelationError
from sidelight.methods.finishing import MeanLastHalf, Reuse
from sidelight.methods.loop import Loop
from sidelight.methods.recipe import Recipe, default_steps
from sidelight.methods.setting import Network, Setting
from sidelight.privacy.events import Event, Relation, check_relation

__all__ = ["NetworkLoop", "NetworkLoss", "network_setting", "refuse_linear"]

_ON_NETWORKS = (
    "dp_sgd, dope_sgd, coupling, dpmd, adamix, adadps, sample_mechanism, ppsgd, only_public, only_private, "
    "full_private, non_private, auto"
)
Apply = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class NetworkLoss:
    """What parts ask of a loss. A network's has no constants that are known in advance.

    `lipschitz` becomes the clip norm where a recipe gives none. It is no bound and need not be one: every
    gradient is clipped, so no guarantee rests on it.
    """

    name: str = "network's"
    task: str = "network"
    lipschitz: float = 1.0
    smoothness: float = math.inf  # estimated on public records where it is needed
    outputs: int = 2  # so that exact mirror maps, which are for scalar models, are refused


def network_setting(
    recipe: Recipe,
    *,
    n: int,
    dimension: int,
    epsilon: float,
    delta: float,
    relation: Relation,
    guide: NetworkGuide | None,
    network: Network,
    check_public: bool = True,
) -> Setting:
    """The public constants of a run; `recipe` carries steps and expected_batch_size already."""
    refuse_linear(recipe)
    recipe._check()
    guide = guide if recipe.public_rows == "guide" else None
    if check_relation(relation) not in recipe.relations:
        raise RelationError(f"{recipe.name} gives {' or '.join(recipe.relations)}, not {relation}")
    if check_public and recipe.needs_public and (guide is None or guide.size == 0):
        raise InputError(f"{recipe.name} needs public records; pass a public dataset")
    public = guide.size if guide is not None and recipe.extended else 0
    batch, sampler = recipe._sampler(n, n + public, relation)
    setting = Setting(
        n=n, dimension=dimension, batch=batch, steps=0, epsilon=epsilon, delta=delta, relation=relation,
        sampler=sampler, loss=NetworkLoss(), max_norm=1.0, guide=guide, step_size=1.0, network=network,
    )  # fmt: skip
    steps = recipe.steps or getattr(recipe.noise, "planned_steps", None) or default_steps(setting)
    if int(steps) != steps or steps < 1:
        raise InputError(f"steps must be a whole number of at least 1, not {steps!r}")
    return replace(setting, steps=int(steps), max_steps=recipe.steps)


def refuse_linear(method: Any) -> None:
    """Raise InputError for a method that asks for what a linear model alone has."""
    if not (isinstance(method, Recipe) and method.on_networks):
        name = getattr(method, "name", type(method).__name__)
        raise InputError(f"{name} is for linear models. Networks take: {_ON_NETWORKS}")


class NetworkLoop(Loop):
    """`Loop`, where an optimizer moves the parameters.

    `apply` takes the gradient that the method has made of private and public ones, and returns the new
    parameters. The setting's step size is 1: the optimizer has its own.
    """

    def __init__(self, recipe: Recipe, setting: Setting, *, apply: Apply) -> None:
        self._apply = apply
        super().__init__(recipe.with_parts(finish=_lean(recipe.finish)), setting)

    def choices(self) -> dict[str, Any]:
        """What was fixed before training, for the report."""
        s = self.setting
        return {
            "steps": s.steps,
            "expected_batch_size": s.batch,
            "sampling_probability": s.rate,
            "clip_norm": self.first_clip.bound,
            "parameters": s.dimension,
            **getattr(self.update, "details", {}),
        }

    def _record(self, t: int, z: float, event: Event, bound: float, std: float, gradient: Any) -> None:
        super()._record(t, z, event, bound, std, gradient)
        if gradient is not None:
            self._note_loss()

    def _adapt(self, metric: Any) -> None:
        super()._adapt(metric)
        if self.recipe.clip.needs_after or self.recipe.noise.needs_after:
            self._note_loss()

    def _note_loss(self) -> None:
        """The public loss where the public gradient was taken; it came with the gradient."""
        self.history[-1]["public_loss"] = self.setting.guide.last_loss

    def _move(self, direction: Any, metric: Any, gradient: Any, t: int) -> Any:
        held, self.w = self.w, torch.zeros_like(self.w)
        try:
            # From w = 0 with step size 1 the new w is minus the gradient, without rounding.
            moved = -super()._move(direction, metric, gradient, t)
        finally:
            self.w = held
        return self._apply(moved)


def _lean(finish: Any) -> Any:
    """The same finish without keeping half of all iterates in memory."""
    if isinstance(finish, MeanLastHalf):
        return TailMean()
    if isinstance(finish, Reuse):
        return replace(finish, inner=_lean(finish.inner))
    return finish
