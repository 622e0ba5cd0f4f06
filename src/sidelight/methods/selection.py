"""Several candidates and a private choice between them, within one budget.

Where the budget is so large that the noise no longer limits the step size, a part of it is better spent on
finding out which candidate suits the data: each is trained, then the one with the most correct training
predictions is selected by the exponential mechanism.

    events: T Gaussians for each candidate, then one selection of ρ-zCDP (Gumbel noise of scale 2/√(8ρ))
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from sidelight.arrays import Array
from sidelight.errors import AssumptionError, InputError
from sidelight.losses import Kind, Loss
from sidelight.methods.dp_sgd import FixedNoise
from sidelight.methods.recipe import Recipe
from sidelight.methods.task import Fitted, Plan, Task, check_method
from sidelight.oracles.linear.linear_oracle import LinearOracle
from sidelight.privacy import calibrate, conversions, events
from sidelight.privacy.events import RELATIONS, Relation
from sidelight.privacy.noise import Noise
from sidelight.privacy.release import Account, select


@dataclass(frozen=True)
class CorrectPredictions(Loss):
    """1 for a correct prediction, 0 for a wrong one: a score to count, not a loss to minimise."""

    name: ClassVar[str] = "correct"
    task: ClassVar[Kind] = "binary"

    @property
    def lipschitz(self) -> None:
        return None

    @property
    def smoothness(self) -> None:
        return None

    def value(self, z: Array, y: Array) -> Array:
        return np.asarray(np.where(z >= 0, 1.0, -1.0) == y, dtype=np.float64)

    def slope(self, z: Array, y: Array) -> Array:
        raise InputError("a count of correct predictions has no slope")

    def curvature(self, z: Array, y: Array) -> Array:
        raise InputError("a count of correct predictions has no curvature")


@dataclass(frozen=True)
class PrivateSelection:
    """Trains full-batch candidates on equal shares, then selects one privately.

    Guarantee: the composition of all candidates' Gaussians and the selection, by PLD: the candidates that
    lose are paid for as well.
    """

    candidates: tuple[tuple[Recipe, float], ...]  # a recipe and its regularization
    share: float = 0.15  # of the zCDP budget, for the selection
    name: ClassVar[str] = "private_selection"
    relations: ClassVar[tuple[Relation, ...]] = RELATIONS
    needs_public: ClassVar[bool] = False
    private: ClassVar[bool] = True

    def plan(self, task: Task) -> Plan:
        check_method(self, task)
        if task.loss.outputs > 1 or task.target_bound is not None:
            raise AssumptionError("a private selection by accuracy is for two classes")
        rho = self.share * conversions.zcdp_rho(task.epsilon, task.delta)
        steps = [recipe.steps for recipe, _ in self.candidates if recipe.steps is not None]
        if len(steps) < len(self.candidates):
            raise InputError("a private selection shares its budget by steps: every candidate needs steps=")
        choice = events.ZeroConcentrated(rho)
        z = calibrate.least(
            lambda z: events.compose(events.repeat(events.gaussian(z), sum(steps)), choice),
            epsilon=task.epsilon, delta=task.delta, relation=task.relation,
        )  # fmt: skip
        parts = [self._with_noise(recipe, z, lam, task) for recipe, lam in self.candidates]
        plans = [recipe.plan(part) for recipe, part in parts]
        event = events.compose(*(plan.event for plan in plans), choice)
        details = {
            "candidates": [self._label(recipe, lam) for recipe, lam in self.candidates],
            "noise_multiplier": z,
            "selection_rho": rho,
            "steps": sum(steps),
        }
        return Plan(event, False, details, (), {"parts": parts, "plans": plans, "rho": rho})

    @staticmethod
    def _label(recipe: Recipe, lam: float) -> str:
        return f"{recipe.name}, regularization {lam:g}"

    @staticmethod
    def _with_noise(recipe: Recipe, z: float, lam: float, task: Task) -> tuple[Recipe, Task]:
        return recipe.with_parts(noise=FixedNoise(z)), replace(
            task, regularization=lam or task.regularization
        )

    def run(self, task: Task, plan: Plan, *, account: Account, noise: Noise) -> Fitted:
        pairs = zip(plan.state["parts"], plan.state["plans"], strict=True)
        fitted = [
            recipe.run(replace(part, rows=task.rows), p, account=account, noise=noise)
            for (recipe, part), p in pairs
        ]
        oracle = LinearOracle(task.rows, CorrectPredictions())
        scores = oracle.clipped_losses(
            np.stack([f.coef.reshape(-1) for f in fitted]), bound=1.0, relation=task.relation
        )
        rho: float = plan.state["rho"]
        # Scores are monotone when a record is added or removed, so half the noise does there.
        scale = (1 if task.relation == "add-or-remove-one" else 2) / (8 * rho) ** 0.5
        best = select(
            scores,
            scale=scale,
            mechanism="gumbel",
            monotone=True,
            event=events.ZeroConcentrated(rho),
            account=account,
            noise=noise,
        )
        winner: Fitted = fitted[best]
        winner.notes.append(f"selected privately: {self._label(*self.candidates[best])}")
        return winner
