"""BoostedAdaSSP: gradient boosting whose every round is a regression from noisy sufficient statistics.

Tang, Aydore, Kearns, Rho, Roth, Wang, Wang & Wu, "Improved Differentially Private Regression via Gradient
Boosting" (SaTML 2024, arXiv:2303.03451v2), Algorithm 1.

    λ̃, A ← the least eigenvalue of XᵀX and XᵀX itself, with noise, once          as in AdaSSP
    for t = 1..T:
      b ← Σ_i clip_τ(y_i − x_i·w) x_i + N(0, s² I)                               sensitivity Xτ (2Xτ replaced)
      w ← w + (A + λI)⁻¹ b
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from sidelight.arrays import Floats, dense
from sidelight.errors import InputError, fraction, positive
from sidelight.methods.adassp import (
    HALF,
    Releases,
    check_regression,
    clipping_note,
    inverse_of,
    released_moment,
    ridge_of_task,
)
from sidelight.methods.declare import method
from sidelight.methods.parts import Flat
from sidelight.methods.task import PUBLIC_APART, Fitted, Flags, Plan, Task, check_method
from sidelight.privacy import conversions, events
from sidelight.privacy.noise import Noise
from sidelight.privacy.release import Account
from sidelight.problems.base import oracle_of


def check_rounds(rounds: int, residual_bound: float | None) -> None:
    """What methods that go on from residuals have in common."""
    if int(rounds) != rounds or rounds < 1:
        raise InputError(f"rounds must be a whole number of at least 1, not {rounds!r}")
    positive("residual_bound", residual_bound, optional=True)


def residual_bound_of(task: Task, given: float | None, *, method: str) -> float:
    """The bound given, or half of that on targets; refuses a task that is no regression."""
    half = check_regression(task, method=method) / 2
    return half if given is None else float(given)


class Residuals:
    """Σ (y − x·w)x, each term clipped to length X·bound: of private records, and of public ones."""

    def __init__(self, task: Task, bound: float, *, public: bool) -> None:
        self._ridge = ridge_of_task(task)
        self._oracle, self._relation = oracle_of(task.rows, HALF), task.relation
        self._clip = Flat(task.max_norm * bound)
        self._X = dense(task.public.X) if public else np.zeros((0, task.p))
        self._y = task.public.y if public else np.zeros(0)

    def released(self, w: Floats, z: float, releases: Releases) -> Floats:
        """b of a round: the private sum with noise, the public one, and the pull of the task's ridge."""
        downhill = self._oracle.clipped_sum(w, clip=self._clip, relation=self._relation)  # half the squares'
        noisy = releases(downhill, z, "products with residuals")[0]
        return np.asarray(self._X.T @ (self._y - self._X @ w) - noisy - self._ridge * w)

    @property
    def public_moment(self) -> Floats:
        return np.asarray(self._X.T @ self._X)


@method(
    group="convex algorithm",
    paper="Tang et al., SaTML 2024, Algorithm 1",
    wins="regression without public records: ahead of adassp, whose ridge the rounds undo",
    loses="to auto with public records; to dp_newton(slope_share=0.35) with or without them",
    losses=("square",),
    small={"rounds": 3},
)
@dataclass(frozen=True, kw_only=True)
class BoostedAdaSsp(Flags):
    """BoostedAdaSSP: gradient boosting of AdaSSP (Tang et al., SaTML 2024, Algorithm 1).

    Guarantee: (ε, δ) under either relation, from T + 2 Gaussian releases of all records: the least eigenvalue
    of XᵀX, XᵀX itself, and the products of rows and clipped residuals in each round. They compose exactly.
    Assumes: rows of bounded norm and residuals of bounded size, by clipping. Public records do not depend on
    the private ones.
    Departs: shares of μ² in place of shares of ε; XᵀX is released as a packed triangle, with √2 less noise
    off the diagonal, and its negative eigenvalues count as 0; a residual is clipped together with its row, to
    ‖(y − x·w)x‖ ≤ Xτ; public records are added to the sums without noise; 5 rounds, τ of half the
    bound on targets and these shares, chosen on synthetic Gaussian rows, where the authors' code has 100
    rounds of equal noise.

    Args:
        rounds: T.
        round_share: of the budget (of μ²) that goes into the rounds.
        eigenvalue_share: of the budget that goes into the least eigenvalue; the rest is for the matrix.
        residual_bound: τ. None takes half the bound on targets.
        failure: ϱ, how often the noise may be stronger than the ridge expects.
        pool_public: whether public records join the sums.
    """

    rounds: int = 5
    round_share: float = 0.7
    eigenvalue_share: float = 0.02
    residual_bound: float | None = None
    failure: float = 0.05
    pool_public: bool = True

    name: ClassVar[str] = "boosted_adassp"
    takes_partitions: ClassVar[bool] = True

    def plan(self, task: Task) -> Plan:
        check_method(self, task)
        self._check()
        bound = residual_bound_of(task, self.residual_bound, method=self.name)
        mu = conversions.gdp_mu(task.epsilon, task.delta) * (1 - 1e-12)
        rest = 1 - self.round_share - self.eigenvalue_share
        z = {
            "eigenvalue": 1 / (mu * math.sqrt(self.eigenvalue_share)),
            "matrix": 1 / (mu * math.sqrt(rest)),
            "round": math.sqrt(self.rounds / self.round_share) / mu,
        }
        pooled = self.pool_public and task.public.n > 0
        note = (PUBLIC_APART,) if pooled else ()
        return Plan(
            events.compose(
                events.gaussian(z["eigenvalue"]),
                events.gaussian(z["matrix"]),
                events.repeat(events.gaussian(z["round"]), self.rounds),
            ),
            details={
                "rounds": self.rounds,
                "residual_bound": bound,
                "public_pooled": pooled,
                **{f"noise_multiplier_{name}": value for name, value in z.items()},
            },
            assumptions=(*clipping_note(task, bound, what="residual"), *note),
            state={"z": z, "bound": bound, "public": pooled},
        )

    def run(self, task: Task, plan: Plan, *, account: Account, noise: Noise) -> Fitted:
        z, released = plan.state["z"], Releases(account, noise)
        residuals = Residuals(task, plan.state["bound"], public=plan.state["public"])
        matrix, ridge = released_moment(
            task, released, eigenvalue_z=z["eigenvalue"], matrix_z=z["matrix"], failure=self.failure
        )
        step_for = inverse_of(matrix + residuals.public_moment, max(ridge, ridge_of_task(task)))
        w = np.zeros(task.p)
        for _ in range(self.rounds):
            w = w + step_for(residuals.released(w, z["round"], released))
        note = f"the ridge of each round adapted to {ridge:.4g}"
        return Fitted(w.reshape(1, task.p), released.history, [note])

    def _check(self) -> None:
        check_rounds(self.rounds, self.residual_bound)
        shares = self.round_share, self.eigenvalue_share
        if not (min(shares) > 0 and sum(shares) < 1):
            raise InputError(
                "round_share and eigenvalue_share must be positive and leave something for the matrix, not "
                f"{self.round_share!r} and {self.eigenvalue_share!r}"
            )
        fraction("failure", self.failure)


boosted_adassp = BoostedAdaSsp
