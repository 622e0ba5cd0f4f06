"""PNSGD: one noisy pass, private records first and public ones last; only the end is released.

Feldman, Mironov, Talwar & Thakurta, "Privacy Amplification by Iteration" (FOCS 2018).

    order: private records, in batches of b, then the public records
    for t = 1..N:  w ← Π_K( w − η( ∇ℓ(w; z_t) + λw + N(0, σ_w² I) ) )      noise on public steps too
    release the last w, and nothing else
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from sidelight.arrays import Floats
from sidelight.errors import AssumptionError, InputError, one_of
from sidelight.methods.declare import SMOOTH, method
from sidelight.methods.smooth import Smooth, check_batch_size, smooth
from sidelight.methods.task import PUBLIC_APART, Fitted, Flags, Plan, Task, check_method
from sidelight.oracles.linear.linear_oracle import check_public
from sidelight.oracles.linear.row_sums import RowSums
from sidelight.privacy import conversions, events
from sidelight.privacy.events import Indices, Relation
from sidelight.privacy.noise import Noise
from sidelight.privacy.release import Account, private_process

Step = tuple[RowSums, Indices, float]  # records, which of them, and the constant to divide their sum by


def record_rdp(*, order: float, lipschitz: float, std: float, position: int, steps: int) -> float:
    """D_a of the last of N iterates for record t: 2aL²/(σ_w²(N+1−t)) (Feldman et al. 2018)."""
    return 2 * order * lipschitz**2 / (std**2 * (steps + 1 - position))


def gdp_mu(*, lipschitz: float, std: float, steps_after: int) -> float:
    """μ = 2L/(σ_w√(k+1)) for a record with k steps after its own.

    Shifted interpolation: Bok, Su & Altschuler (ICML 2024), convex case, one pass.
    """
    return 2 * lipschitz / (std * math.sqrt(steps_after + 1))


def noise_std(
    *,
    epsilon: float,
    delta: float,
    lipschitz: float,
    steps_after: int,
    accounting: Literal["exact", "paper"] = "exact",
) -> float:
    """The least σ_w if k steps follow the last private one.

    exact: μ-GDP by `gdp_mu`, calibrated on the Gaussian curve. paper: ρ = 2L²/(σ_w²(k+1)) and the simple
    conversion.
    """
    if accounting == "paper":
        rho, _ = conversions.tcdp_totals(epsilon, delta, totals="paper")
        return lipschitz * math.sqrt(2 / (rho * (steps_after + 1)))
    return 2 * lipschitz / (conversions.gdp_mu(epsilon, delta) * math.sqrt(steps_after + 1)) * (1 + 1e-12)


def iterate(
    steps: Iterator[Step],
    noise: Noise,
    *,
    start: Floats,
    step_size: float,
    std: float,
    regularization: float,
    radius: float,
) -> Floats:
    """The noisy pass over `steps`, private ones first."""
    w = start
    for records, indices, divisor in steps:
        gradient = records.gradient(w, indices) / divisor + regularization * w
        w = w - step_size * (gradient + noise.normal(w.size, std=std))
        length = float(np.linalg.norm(w))
        if length > radius:
            w = w * (radius / length)
    return w


@method(
    group="convex algorithm",
    paper="Feldman et al., FOCS 2018",
    wins="very small ε with public records, processed last for amplification",
    loses="ε of 0.5 and more; no iterate but the last may be seen",
    losses=SMOOTH,
    small={"batch_size": 11},
)
@dataclass(frozen=True, kw_only=True)
class Pnsgd(Flags):
    """PNSGD: privacy amplification by iteration, public records last (Feldman et al., FOCS 2018).

    Guarantee: (ε, δ) under replace-one for the last iterate: μ-GDP with μ = 2L/(bσ_w√(n_pub + 1)).
    Assumes: a smooth convex loss (logistic, huber, softmax; square with its slope clipped), η ≤ 2/β, a convex
    domain (a ball), one pass over the private records, and that no iterate but the last is ever seen.
    Departs: noise by shifted interpolation (Bok, Su & Altschuler 2024) instead of the Rényi bound, a quarter
    less; `accounting="paper"` keeps the latter. Private records come in batches, L becomes L/b.

    Args:
        batch_size: b. None takes the one at which the default step size is a tenth of 2/β.
        step_size: η. None takes min(2/β, 1/(σ_w√(pN))).
        radius: of the ball that every iterate is projected to.
        finish: "last" is the only one there is; anything else is refused.
    """

    batch_size: int | None = None
    step_size: float | None = None
    radius: float = 10.0
    accounting: Literal["exact", "paper"] = "exact"
    regularization: float = 0.0
    finish: str = "last"

    name: ClassVar[str] = "pnsgd"
    relations: ClassVar[tuple[Relation, ...]] = ("replace-one",)

    def plan(self, task: Task) -> Plan:
        check_method(self, task)
        self._check()
        check_public(task.public, task.loss)
        problem = smooth(task, method=self.name, regularization=self.regularization)
        batch = self._batch_size(task, problem)
        std = noise_std(
            epsilon=task.epsilon,
            delta=task.delta,
            lipschitz=problem.data_bound / batch,
            steps_after=task.public.n,
            accounting=self.accounting,
        )
        steps = -(-task.n // batch) + task.public.n
        step_size = self._step_size(problem, std, task.dimension, steps)
        mu = gdp_mu(lipschitz=problem.data_bound / batch, std=std, steps_after=task.public.n)
        details = {
            "accounting": self.accounting,
            "batch_size": batch,
            "steps": steps,
            "public_steps": task.public.n,
            "step_size": step_size,
            "noise_std": std,
            "radius": self.radius,
            "regularization": problem.regularization,
        }
        assumptions = (
            *problem.assumptions,
            PUBLIC_APART,
            "only the last iterate is released; the iterates before it stay hidden",
        )
        state = {"problem": problem, "batch": batch, "std": std, "step_size": step_size}
        return Plan(events.gaussian(1 / mu), details=details, assumptions=assumptions, state=state)

    def run(self, task: Task, plan: Plan, *, account: Account, noise: Noise) -> Fitted:
        problem: Smooth = plan.state["problem"]

        def process(source: Noise) -> Floats:
            with np.errstate(all="ignore"):  # a warning about a private value would be an output
                return iterate(
                    _steps(task, problem, plan.state["batch"], source),
                    source,
                    start=np.zeros(task.dimension),
                    step_size=plan.state["step_size"],
                    std=plan.state["std"],
                    regularization=problem.regularization,
                    radius=self.radius,
                )

        last = private_process(process, event=plan.event, account=account, noise=noise)
        return Fitted(
            last.numpy().reshape(task.loss.outputs, task.p), [{"released": "last iterate", **plan.details}]
        )

    def _check(self) -> None:
        if self.finish != "last":
            raise AssumptionError(
                f"pnsgd protects its last iterate alone, so finish={self.finish!r} would release what is not "
                "protected: averages, votes and checkpoints show earlier iterates. Use dp_sgd for those"
            )
        one_of("accounting", self.accounting, ("exact", "paper"))
        if not self.radius > 0:
            raise InputError(f"radius must be positive, not {self.radius!r}")

    def _batch_size(self, task: Task, problem: Smooth) -> int:
        if self.batch_size is None:
            return self._balanced_batch(task, problem)
        check_batch_size(self.batch_size, task.n)
        return self.batch_size

    def _balanced_batch(self, task: Task, problem: Smooth) -> int:
        """The b at which 1/(σ_w√(pN)) is the step size asked for, or else 0.1·2/β; at most a fifth of n.

        Smaller batches take timid steps in much noise; larger ones leave the last word to the public steps.
        """
        step_size = self.step_size or 0.2 / problem.smoothness
        std = noise_std(
            epsilon=task.epsilon, delta=task.delta, lipschitz=problem.data_bound, steps_after=task.public.n
        )
        batch = (step_size * std * math.sqrt(task.dimension * task.n)) ** (2 / 3)
        return max(1, min(int(batch), task.n // 5))

    def _step_size(self, problem: Smooth, std: float, dimension: int, steps: int) -> float:
        largest = 2 / problem.smoothness
        if self.step_size is None:
            return min(largest, 1 / (std * math.sqrt(dimension * steps)))
        if not 0 < self.step_size <= largest:
            raise AssumptionError(
                f"pnsgd needs 0 < step_size <= 2/beta = {largest:.4g}, otherwise a step is not a "
                f"contraction and the amplification is lost; it was {self.step_size:g}"
            )
        return self.step_size


pnsgd = Pnsgd


def _steps(task: Task, problem: Smooth, batch: int, noise: Noise) -> Iterator[Step]:
    """Private batches in an order that does not depend on the data, then the public records, one per step.

    A last, smaller batch is divided by the same b: the bound 2L/b on what one record can do stays.
    """
    private = RowSums.of(task.rows, problem.loss)
    order = noise.generator.permutation(task.n)
    for start in range(0, task.n, batch):
        yield private, order[start : start + batch], float(batch)
    public = RowSums.of(task.public, problem.loss)
    for j in range(task.public.n):
        yield public, np.array([j]), 1.0
