"""Output perturbation: full-batch gradient descent, noise on the result.

Zhang, Zheng, Mou & Wang, "Efficient Private ERM for Smooth Objectives" (IJCAI 2017).

    w ← 0; repeat T times: w ← w − η( (1/n) Σ_i ∇ℓ_i(w) + λw )
    release w + N(0, std² I)
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from sidelight.arrays import Floats, Matrix
from sidelight.errors import AssumptionError, InputError, PrivacyConditionError, one_of
from sidelight.methods.declare import SMOOTH, method
from sidelight.methods.smooth import Smooth, contraction, smooth, warn_expansion
from sidelight.methods.task import Fitted, Flags, Plan, Task, check_method
from sidelight.oracles.linear.row_sums import RowSums
from sidelight.privacy import accountants, conversions, events
from sidelight.privacy.events import Relation
from sidelight.privacy.noise import Noise
from sidelight.privacy.release import Account, release


def sensitivity(
    *,
    n: int,
    iterations: int,
    step_size: float,
    data_bound: float,
    smoothness: float,
    strong_convexity: float,
) -> float:
    """Δ = (2ηR/n) Σ_{k<T} κ^k under replace-one, κ = max(|1−ημ|, |1−ηL|) (METHODS 6).

    At η = 2/(L+μ) its limit for T → ∞ is 2R/(nμ) (Proposition 2 of Chen, Lee & Kifer, AISTATS 2019); with
    μ = 0 and η ≤ 2/L it is 2ηRT/n. Quadratics attain it.
    """
    kappa = contraction(step_size, smoothness=smoothness, strong_convexity=strong_convexity)
    if kappa in (0, 1):
        total = float(iterations if kappa == 1 else 1)
    else:
        growth = iterations * math.log(kappa)
        total = math.expm1(growth) / (kappa - 1) if growth < 700 else math.inf
    return 2 * step_size * data_bound / n * total


def zhang_sensitivity(
    *,
    n: int,
    iterations: int,
    step_size: float,
    data_bound: float,
    smoothness: float,
    strong_convexity: float,
) -> float:
    """The published bounds: 3RTη/n (convex) or 5R(L+μ)/(nμL) (strongly convex), whichever is smaller.

    Zhang et al. 2017. Both exceed `sensitivity` for η ≤ 2/(L+μ), and are refused above.
    """
    largest = 2 / (smoothness + strong_convexity)
    if step_size > largest * (1 + 1e-12):
        raise PrivacyConditionError(
            f"the published sensitivity needs step_size <= 2/(L+mu) = {largest:.4g}, not {step_size:.4g}"
        )
    convex = 3 * data_bound * iterations * step_size / n
    if strong_convexity == 0:
        return convex
    limit = 5 * data_bound * (smoothness + strong_convexity) / (n * strong_convexity * smoothness)
    return min(convex, limit)


def descend(
    gradient: Callable[[Floats], Floats],
    *,
    start: Floats,
    iterations: int,
    step_size: float,
    regularization: float,
) -> Floats:
    """The algorithm without its noise; `gradient` is the mean over all records, data part alone."""
    w = start
    for _ in range(iterations):
        w = w - step_size * (gradient(w) + regularization * w)
    return w


@method(
    group="convex algorithm",
    paper="Zhang et al., IJCAI 2017",
    wins="isotropic features, or where accuracy saturates",
    loses="correlated features",
    losses=SMOOTH,
)
@dataclass(frozen=True, kw_only=True)
class OutputPerturbation(Flags):
    """Output perturbation by gradient descent (Zhang et al., IJCAI 2017).

    Guarantee: (ε, δ) under replace-one: one Gaussian release of the sensitivity in `sensitivity`, calibrated
    exactly. `accounting="paper"` takes the published sensitivity, up to 2.5 times larger.
    Assumes: a smooth convex loss (logistic, huber, softmax; square with its slope clipped), rows of bounded
    norm, and a number of iterations fixed in advance: nothing here stops early.
    Departs: noise by the exact Gaussian curve instead of √(2 log(2/δ))Δ/ε, and a sharper sensitivity.

    Args:
        iterations: T. More of them fit better and need more noise. None takes 5 to 1000, so that the noise
            has a norm of about 2 (square: 0.2).
        step_size: None takes 1/L.
        regularization: λ if the task has none of its own.
    """

    iterations: int | None = None
    step_size: float | None = None
    accounting: Literal["exact", "paper"] = "exact"
    regularization: float = 0.001

    name: ClassVar[str] = "output_perturbation"
    relations: ClassVar[tuple[Relation, ...]] = ("replace-one",)

    def plan(self, task: Task) -> Plan:
        check_method(self, task)
        problem = smooth(task, method=self.name, regularization=self.regularization)
        step = self._step_size(problem)
        iterations = self._iterations(task, problem, step)
        bound = {"exact": sensitivity, "paper": zhang_sensitivity}[self.accounting](
            n=task.n,
            iterations=iterations,
            step_size=step,
            data_bound=problem.data_bound,
            smoothness=problem.smoothness,
            strong_convexity=problem.strong_convexity,
        )
        if not math.isfinite(bound):
            raise AssumptionError(
                "the sensitivity of output_perturbation overflows: lower step_size or iterations"
            )
        multiplier = accountants.noise_multiplier(
            epsilon=task.epsilon, delta=task.delta, relation=task.relation
        )
        details = {
            "accounting": self.accounting,
            "iterations": iterations,
            "step_size": step,
            "regularization": problem.regularization,
            "sensitivity": bound,
            "noise_std": multiplier * bound,
        }
        state = {
            "problem": problem,
            "iterations": iterations,
            "step_size": step,
            "sensitivity": bound,
            "std": multiplier * bound,
        }
        return Plan(
            events.gaussian(multiplier), details=details, assumptions=problem.assumptions, state=state
        )

    def run(self, task: Task, plan: Plan, *, account: Account, noise: Noise) -> Fitted:
        problem: Smooth = plan.state["problem"]

        def algorithm(X: Matrix, y: Floats) -> Floats:
            records = RowSums(X, y, problem.loss)
            return descend(
                lambda w: records.gradient(w) / task.n,
                start=np.zeros(task.dimension),
                iterations=plan.state["iterations"],
                step_size=plan.state["step_size"],
                regularization=problem.regularization,
            )

        result = task.rows.compute(algorithm, sensitivity=plan.state["sensitivity"], relation=task.relation)
        noisy = release(result, std=plan.state["std"], event=plan.event, account=account, noise=noise)
        history: list[dict[str, object]] = [
            {
                "iterations": plan.state["iterations"],
                "released": "last iterate",
                "noise_std": plan.state["std"],
            }
        ]
        return Fitted(noisy.numpy().reshape(task.loss.outputs, task.p), history)

    def _iterations(self, task: Task, problem: Smooth, step: float) -> int:
        """As given, or as many as leave noise of this norm on the result if nothing contracted."""
        if self.iterations is not None:
            return self.iterations
        mu = conversions.gdp_mu(task.epsilon, task.delta)
        noise_of_one = 2 * step * problem.data_bound * math.sqrt(task.dimension) / (task.n * mu)
        # The scale of a margin is free, that of a regression is not.
        bearable = 0.2 if task.loss.task == "regression" else 2.0
        return max(5, min(1000, round(bearable / noise_of_one)))

    def _step_size(self, problem: Smooth) -> float:
        one_of("accounting", self.accounting, ("exact", "paper"))
        if (self.iterations is not None and self.iterations < 1) or (
            self.step_size is not None and not self.step_size > 0
        ):
            raise InputError("iterations must be at least 1 and step_size positive")
        if self.step_size is None:
            return 1 / problem.smoothness
        warn_expansion(self.name, self.step_size, problem)
        return self.step_size


output_perturbation = OutputPerturbation
