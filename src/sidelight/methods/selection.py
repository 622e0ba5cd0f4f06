"""Which of several candidates suits the data: tried on synthetic records, or chosen privately.

A *rehearsal* simulates private training on data synthesised from public records, at the true n and ε. Half of
the public records make the synthetic private data (a bootstrap with noise of a kernel's width), a quarter
stay public, a quarter are the test set. It spends nothing, and is as reliable as the public records. Measured
with 300 and 1000 public records (docs/reproductions/rehearsal.md), it helps where the noise is strong and
costs a little elsewhere; `auto` follows that.

Where the budget is so large that the noise no longer limits the step size, a part of it is better spent on a
*private selection*: each candidate is trained, then the one with the most correct training predictions is
selected by the exponential mechanism.

    events: T Gaussians for each candidate, then one selection of ρ-zCDP (Gumbel noise of scale 2/√(8ρ))
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from sidelight.arrays import Array, Floats, dense
from sidelight.data.rows import PrivateRows, PublicRows
from sidelight.errors import AssumptionError, InputError
from sidelight.losses import Kind, Loss
from sidelight.methods.parts import FixedNoise
from sidelight.methods.recipe import Recipe
from sidelight.methods.task import Fitted, Method, Plan, Task, check_method
from sidelight.oracles.linear.partition_oracle import oracle_of
from sidelight.privacy import calibrate, conversions, events
from sidelight.privacy.events import RELATIONS, Event, Relation
from sidelight.privacy.noise import Noise
from sidelight.privacy.release import Account, select

__all__ = []


MOST_ROWS = 5_000  # a larger private set is rehearsed at this size, with less noise: n·μ is kept
_NO_NOISE = 500.0  # an ε at which noise no longer matters


class _NoAccount:
    """Synthetic records are public: nothing is charged."""

    def charge(self, event: Event) -> None: ...


def rehearse(
    task: Task, candidates: Sequence[Method], *, repeats: int = 2, seed: int = 0
) -> tuple[int, list[float]]:
    """The index of the best candidate, and the mean score of each (accuracy, or minus the squared error)."""
    X = dense(task.public.X)
    scores = np.zeros((repeats, len(candidates)))
    for r in range(repeats):
        rng = np.random.default_rng(seed + r)  # public data only: no private record is sampled here
        order = rng.permutation(len(X))
        train, guide, test = np.split(order, [len(X) // 2, 3 * len(X) // 4])
        synthetic = _synthetic(task, X, train, guide, rng)
        for c, method in enumerate(candidates):
            plan = method.plan(synthetic)
            coef = method.run(synthetic, plan, account=_NoAccount(), noise=Noise(seed + r)).coef
            scores[r, c] = _score(task, X[test] @ coef.T, task.public.y[test])
    mean = [float(s) for s in scores.mean(axis=0)]
    return int(np.argmax(mean)), mean


def _synthetic(task: Task, X: Floats, train: Array, guide: Array, rng: np.random.Generator) -> Task:
    """The task on synthetic private records."""
    n = min(task.n, MOST_ROWS)
    chosen = rng.choice(train, size=n)
    width = X[train].std(axis=0) * len(train) ** (-1 / (X.shape[1] + 4))
    rows = X[chosen] + rng.normal(size=(n, X.shape[1])) * width * 0.5
    return replace(
        task,
        rows=PrivateRows(rows, task.public.y[chosen], max_norm=task.max_norm),
        public=PublicRows(X[guide], task.public.y[guide]),
        epsilon=scaled_epsilon(task.epsilon, task.delta, rows=task.n, rehearsed=n),
    )


def scaled_epsilon(epsilon: float, delta: float, *, rows: int, rehearsed: int) -> float:
    """The ε at which a mean of the rehearsed rows has as much noise as one of all rows at the true ε."""
    if rehearsed == rows:
        return epsilon
    mu = conversions.gdp_mu(epsilon, delta) * rows / rehearsed
    return max(epsilon, min(conversions.gaussian_epsilon(delta, mu), _NO_NOISE))


def _score(task: Task, z: Floats, y: Array) -> float:
    if task.target_bound is not None:
        return -float(((z[:, 0] - y) ** 2).mean())
    if task.loss.outputs > 1:
        return float((z.argmax(axis=1) == y).mean())
    return float(((z[:, 0] >= 0) == (y > 0)).mean())


# ---------------------------------------------------------------------------------------------------
# private selection


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
    takes_partitions: ClassVar[bool] = True

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
        oracle = oracle_of(task.rows, CorrectPredictions())
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
