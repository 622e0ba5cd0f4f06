"""A recipe on a network: the same one private step, with tensors."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from sidelight.deep.ensemble import TailMean
from sidelight.deep.guide import NetworkGuide
from sidelight.errors import InputError, RelationError
from sidelight.methods.finishing import MeanLastHalf, Reuse
from sidelight.methods.loop import Loop
from sidelight.methods.part import FinishRule
from sidelight.methods.recipe import Recipe
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
    guide = guide if recipe.public_rows == "guide" else None
    if check_relation(relation) not in recipe.relations:
        raise RelationError(f"{recipe.name} gives {' or '.join(recipe.relations)}, not {relation}")
    if check_public and recipe.needs_public and (guide is None or guide.size == 0):
        raise InputError(f"{recipe.name} needs public records; pass a public dataset")
    batch, sampler = recipe.sampler(n, 0 if guide is None else guide.size, relation)
    setting = Setting(
        n=n, dimension=dimension, batch=batch, steps=0, epsilon=epsilon, delta=delta, relation=relation,
        sampler=sampler, loss=NetworkLoss(), max_norm=1.0, guide=guide, step_size=1.0, network=network,
    )  # fmt: skip
    return recipe.with_steps(setting)


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
        self._optimizer_step = apply
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
            **self.mix.details,
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

    def _apply(self, direction: Tensor) -> Tensor:
        return self._optimizer_step(direction)


def _lean(finish: FinishRule) -> FinishRule:
    """The same finish without keeping half of all iterates in memory."""
    if isinstance(finish, MeanLastHalf):
        return TailMean()
    if isinstance(finish, Reuse):
        return replace(finish, inner=_lean(finish.inner))
    return finish
