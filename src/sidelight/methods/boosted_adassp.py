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
from sidelight.errors import InputError
from sidelight.methods.adassp import (
    HALF,
    Releases,
    adaptive_ridge,
    check_regression,
    clipping_note,
    ridge_of_task,
)
from sidelight.methods.declare import method
from sidelight.methods.parts import Flat
from sidelight.methods.task import Fitted, Plan, Task, check_method
from sidelight.oracles.linear.linear_oracle import LinearOracle
from sidelight.oracles.linear.moments import MomentOracle, unpack
from sidelight.privacy import conversions, events
from sidelight.privacy.events import RELATIONS, Relation
from sidelight.privacy.noise import Noise
from sidelight.privacy.release import Account, BoundedSum

__all__ = ["BoostedAdaSsp", "Residuals", "boosted_adassp"]


class Residuals:
    """Σ (y − x·w)x, each term clipped to length X·bound: of private records, and of public ones."""

    def __init__(self, task: Task, bound: float, *, public: bool) -> None:
        self._oracle, self._relation = LinearOracle(task.rows, HALF), task.relation
        self._clip = Flat(task.max_norm * bound)
        self._X = dense(task.public.X) if public else np.zeros((0, task.p))
        self._y = task.public.y if public else np.zeros(0)

    def downhill(self, w: Floats) -> BoundedSum:
        """The negative of the private sum: the gradient of half the squares."""
        return self._oracle.clipped_sum(w, clip=self._clip, relation=self._relation)

    def public(self, w: Floats) -> Floats:
        return np.asarray(self._X.T @ (self._y - self._X @ w))

    @property
    def public_moment(self) -> Floats:
        return np.asarray(self._X.T @ self._X)


@dataclass(frozen=True)
class BoostedAdaSsp:
    """See `boosted_adassp`."""

    rounds: int = 5
    round_share: float = 0.7
    eigenvalue_share: float = 0.02
    residual_bound: float | None = None
    failure: float = 0.05
    pool_public: bool = True

    name: ClassVar[str] = "boosted_adassp"
    relations: ClassVar[tuple[Relation, ...]] = RELATIONS
    needs_public: ClassVar[bool] = False
    private: ClassVar[bool] = True

    def plan(self, task: Task) -> Plan:
        check_method(self, task)
        self._check()
        bound = check_regression(task, method=self.name) / 2
        bound = bound if self.residual_bound is None else float(self.residual_bound)
        mu = conversions.gdp_mu(task.epsilon, task.delta) * (1 - 1e-12)
        rest = 1 - self.round_share - self.eigenvalue_share
        z = {
            "eigenvalue": 1 / (mu * math.sqrt(self.eigenvalue_share)),
            "matrix": 1 / (mu * math.sqrt(rest)),
            "round": math.sqrt(self.rounds / self.round_share) / mu,
        }
        pooled = self.pool_public and task.public.n > 0
        note = ("the public records do not depend on the private ones",) if pooled else ()
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
        moments = MomentOracle(task.rows, HALF)
        residuals = Residuals(task, plan.state["bound"], public=plan.state["public"])
        least, least_std = released(
            moments.least_eigenvalue(relation=task.relation), z["eigenvalue"], "least eigenvalue"
        )
        packed, std = released(moments.second_moment(relation=task.relation), z["matrix"], "second moment")
        ridge = adaptive_ridge(
            noisy_least=float(least[0]),
            least_std=least_std,
            std=std,
            p=task.p,
            delta=task.delta,
            failure=self.failure,
        )
        weight = ridge_of_task(task)
        values, vectors = np.linalg.eigh(unpack(packed, task.p) + residuals.public_moment)
        values = np.maximum(values, 0.0) + max(ridge, weight)
        safe = np.where(values > 0, values, np.inf)
        w = np.zeros(task.p)
        for _ in range(self.rounds):
            noisy = released(residuals.downhill(w), z["round"], "products with residuals")[0]
            b = residuals.public(w) - noisy - weight * w
            w = w + vectors @ ((vectors.T @ b) / safe)
        note = f"the ridge of each round adapted to {ridge:.4g}"
        return Fitted(w.reshape(1, task.p), released.history, [note])

    def _check(self) -> None:
        if int(self.rounds) != self.rounds or self.rounds < 1:
            raise InputError(f"rounds must be a whole number of at least 1, not {self.rounds!r}")
        shares = self.round_share, self.eigenvalue_share
        if not (min(shares) > 0 and sum(shares) < 1):
            raise InputError(
                "round_share and eigenvalue_share must be positive and leave something for the matrix, not "
                f"{self.round_share!r} and {self.eigenvalue_share!r}"
            )
        if not 0 < self.failure < 1:
            raise InputError(f"failure must be in (0, 1), not {self.failure!r}")
        bound = self.residual_bound
        if bound is not None and not (bound > 0 and math.isfinite(bound)):
            raise InputError(f"residual_bound must be a positive number, or None, not {bound!r}")


@method(
    group="convex algorithm",
    paper="Tang et al., SaTML 2024, Algorithm 1",
    wins="regression without public records: ahead of adassp, whose ridge the rounds undo",
    loses="to auto with public records; to dp_newton(slope_share=0.35) with or without them",
    departs=(
        "the matrix, its least eigenvalue and the rounds get shares of μ², composed exactly; 5 rounds, where "
        "the authors have 100, whose noise adds up",
        "the second moment is released as a packed triangle, and an eigenvalue that noise made negative is 0",
        "residuals are clipped together with their rows, to a bound that is declared or public",
        "public records, where there are any, are added to the sums without noise",
    ),
    losses=("square",),
    small={"rounds": 3},
)
def boosted_adassp(
    *,
    rounds: int = 5,
    round_share: float = 0.7,
    eigenvalue_share: float = 0.02,
    residual_bound: float | None = None,
    failure: float = 0.05,
    pool_public: bool = True,
) -> BoostedAdaSsp:
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
    return BoostedAdaSsp(
        rounds=rounds,
        round_share=round_share,
        eigenvalue_share=eigenvalue_share,
        residual_bound=residual_bound,
        failure=failure,
        pool_public=pool_public,
    )
