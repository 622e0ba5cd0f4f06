"""One private step on gradients that a test writes down, to compare with numbers worked out by hand."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from tests.contracts.replay import Nothing, SilentNoise

from sidelight.data.rows import UnreadRows
from sidelight.losses import Logistic
from sidelight.methods.part_kinds import Setting, Start
from sidelight.methods.recipe import Loop, Recipe
from sidelight.privacy.events import FullBatch
from sidelight.privacy.release import BoundedSum
from sidelight.problems.base import LinearProblem


@dataclass(frozen=True)
class At(Start):
    """Starts at given parameters."""

    params: Any

    def __call__(self, setting: Setting) -> Any:
        return np.array(self.params, dtype=np.float64)


class GivenGuide:
    """Public records with these gradients, wherever one stands."""

    def __init__(self, gradients: Any) -> None:
        self._gradients = np.atleast_2d(np.asarray(gradients, dtype=np.float64))
        self.size, self.refresh = len(self._gradients), 1

    def mean_loss(self, params: Any) -> float:
        return 0.0

    def mean_gradient(self, params: Any) -> Any:
        return self._gradients.mean(axis=0)

    def weighted_gradient(self, params: Any, weights: Any) -> Any:
        return (weights[:, None] * self._gradients).mean(axis=0)

    def gradients(self, params: Any) -> Any:
        return self._gradients

    def gradient_norms(self, params: Any, *, metric: Any = None, origin: Any = None) -> Any:
        moved = self._gradients - (0.0 if origin is None else origin)
        return np.array([np.linalg.norm(g if metric is None else metric.apply(g)) for g in moved])


def given_sum(gradients: Any) -> Any:
    """A `clipped_sum` over these gradients, record by record."""

    def clipped_sum(
        params: Any, indices: Any, *, clip: Any, origin: Any, metric: Any, relation: Any
    ) -> BoundedSum:
        total = 0.0
        for g in np.asarray(gradients, dtype=np.float64):
            v = g if origin is None else g - origin
            v = v if metric is None else metric.apply(v)
            total = total + v * clip.factors(np.array([np.linalg.norm(v)]))[0]
        return BoundedSum(total, sensitivity=clip.bound, relation=relation)

    return clipped_sum


def setting(dimension: int, *, batch: float, guide: Any = None, step_size: float = 0.1) -> Setting:
    problem = LinearProblem(UnreadRows(10, dimension, max_norm=1.0), Logistic(), public=guide)
    return Setting(
        problem, batch=batch, steps=1, epsilon=1.0, delta=1e-5, relation="add-or-remove-one",
        sampler=FullBatch(), step_size=step_size,
    )  # fmt: skip


def one_step(recipe: Recipe, gradients: Any, where: Setting) -> Loop:
    """The loop after one step without noise."""
    loop = Loop(recipe, where)
    loop.clipped_sum = given_sum(gradients)
    assert loop.step(0, 1.0, account=Nothing(), noise=SilentNoise(0))
    return loop
