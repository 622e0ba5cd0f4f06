"""Several candidates and a private choice between them, within one budget.

Where the budget is so large that the noise no longer limits the step size, a part of it is better spent on
finding out which candidate suits the data: each is trained, then the one with the most correct training
predictions is selected by the exponential mechanism.

    events: T Gaussians for each candidate, then one selection of ρ-zCDP (Gumbel noise of scale 2/√(8ρ))
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, cast

import numpy as np
from numpy.typing import NDArray

from sidelight.errors import AssumptionError
from sidelight.losses import Hinge
from sidelight.methods.dp_sgd import FixedNoise
from sidelight.methods.recipe import Recipe
from sidelight.methods.task import Fitted, Plan, Task, check_method
from sidelight.oracles.linear.linear_oracle import LinearOracle
from sidelight.privacy import calibrate, conversions, events
from sidelight.privacy.events import Relation
from sidelight.privacy.noise import Noise
from sidelight.privacy.release import Account, select


@dataclass(frozen=True)
class Correct(Hinge):
    """1 for a correct prediction, 0 for a wrong one: a score, not a loss to minimise."""

    name: ClassVar[str] = "correct"

    def value(self, z: NDArray[Any], y: NDArray[Any]) -> NDArray[Any]:
        return np.asarray(np.where(z >= 0, 1.0, -1.0) == y, dtype=np.float64)


@dataclass(frozen=True)
class PrivateSelection:
    """Trains full-batch candidates on equal shares, then selects one privately.

    Guarantee: the composition of all candidates' Gaussians and the selection, by PLD: the candidates that
    lose are paid for as well.
    """

    candidates: tuple[tuple[Recipe, float], ...]  # a recipe and its regularization
    share: float = 0.15  # of the zCDP budget, for the selection
    name: ClassVar[str] = "private_selection"
    relations: ClassVar[tuple[Relation, ...]] = ("replace-one", "add-or-remove-one")
    needs_public: ClassVar[bool] = False
    private: ClassVar[bool] = True

    def plan(self, task: Task) -> Plan:
        check_method(self, task)
        if task.loss.outputs > 1 or task.target_bound is not None:
            raise AssumptionError("a private selection by accuracy is for two classes")
        rho = self.share * conversions.zcdp_rho(task.epsilon, task.delta)
        steps = [int(cast(int, recipe.steps)) for recipe, _ in self.candidates]
        choice = events.ZeroConcentrated(rho)
        z = calibrate.least(
            lambda z: events.compose(events.repeat(events.gaussian(z), sum(steps)), choice),
            epsilon=task.epsilon, delta=task.delta, relation=task.relation,
        )  # fmt: skip
        parts = [self._with_noise(recipe, z, lam, task) for recipe, lam in self.candidates]
        plans = [recipe.plan(part) for recipe, part in parts]
        event = events.compose(*(plan.event for plan in plans), choice)
        details = {
            "candidates": [f"{recipe.name}, regularization {lam:g}" for recipe, lam in self.candidates],
            "noise_multiplier": z,
            "selection_rho": rho,
            "steps": sum(steps),
        }
        return Plan(event, False, details, (), {"parts": parts, "plans": plans, "rho": rho})

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
        oracle = LinearOracle(task.rows, Correct())
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
        winner.notes.append(f"selected privately: {plan.details['candidates'][best]}")
        return winner
