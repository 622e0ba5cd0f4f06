"""AdaSSP: linear regression from noisy sufficient statistics, with a ridge that adapts to the data.

Wang, "Revisiting differentially private linear regression: optimal and adaptive prediction & estimation in
unbounded domain" (UAI 2018, arXiv:1803.02596v2), Algorithm 2. With s the noise on the second moment,

    λ̃  ← max(λ_min(XᵀX) + N(0, s₁²) − s₁√log(6/δ), 0)             sensitivity X²
    λ  ← max(0, s√(p log(2p²/ϱ)) − λ̃)                             ‖noise‖ is below that but for ϱ
    A  ← XᵀX + E,  b ← Xᵀy + N(0, s₂² I)                          X² (√2X² replaced), XY (2XY replaced)
    w  ← (A + λI)⁻¹ b
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from sidelight.arrays import Floats, dense
from sidelight.errors import AssumptionError, fraction
from sidelight.losses import Square
from sidelight.methods.declare import method
from sidelight.methods.parts import Flat
from sidelight.methods.task import PUBLIC_APART, Fitted, Flags, Plan, Task, check_method
from sidelight.oracles.linear.linear_oracle import check_public
from sidelight.oracles.linear.row_sums import check_features, unpack
from sidelight.privacy import accountants, events
from sidelight.privacy.noise import Noise
from sidelight.privacy.release import Account, BoundedSum, release
from sidelight.problems.base import moments_of, oracle_of

HALF = Square(0.5)  # its gradient at 0 is −y x and its Hessian x xᵀ: the sufficient statistics


def adaptive_ridge(
    *, noisy_least: float, least_std: float, std: float, p: int, delta: float, failure: float
) -> float:
    """λ of lines 2 and 3: what the noise on XᵀX may take from its eigenvalues, less what they surely have."""
    surely = max(noisy_least - least_std * math.sqrt(math.log(6 / delta)), 0.0)
    return max(0.0, std * math.sqrt(p * math.log(2 * p * p / failure)) - surely)


def ridge_of_task(task: Task) -> float:
    """The regularizer of the task, for sums of x xᵀ: the loss has 2·scale times as much curvature."""
    scale = task.loss.scale if isinstance(task.loss, Square) else 0.5
    return task.n * task.regularization / (2 * scale)


def solve(matrix: Floats, vector: Floats, ridge: float) -> Floats:
    """(matrix + ridge·I)⁻¹ vector, for a noisy matrix: an eigenvalue that noise made negative counts as 0."""
    return inverse_of(matrix, ridge)(vector)


def inverse_of(matrix: Floats, ridge: float) -> Callable[[Floats], Floats]:
    """`solve` with one matrix for several vectors."""
    values, vectors = np.linalg.eigh(matrix)
    values = np.maximum(values, 0.0) + ridge
    safe = np.where(values > 0, values, np.inf)
    return lambda vector: np.asarray(vectors @ ((vectors.T @ vector) / safe))


def check_regression(task: Task, *, method: str) -> float:
    """The bound on targets of a task that is linear regression; anything else is refused by name."""
    if task.loss.task != "regression" or not isinstance(task.loss, Square):
        raise AssumptionError(
            f"{method} is linear regression, and the task has the {task.loss.name} loss; use loss='square' "
            "with PrivateRegressor, or dp_newton for other smooth losses"
        )
    if task.target_bound is None or not 0 < task.target_bound < math.inf:
        raise AssumptionError(f"{method} needs a bound on targets; pass target_bounds=(low, high)")
    check_features(task.p, method=method)
    check_public(task.public, task.loss)
    return float(task.target_bound)


def clipping_note(task: Task, bound: float, *, what: str = "target") -> tuple[str, str]:
    """What is clipped, for the statement."""
    return (
        f"every row has norm at most {task.max_norm:g}, by clipping",
        f"a {what} beyond ±{bound:g} is clipped: its product with the row is scaled down to that size",
    )


class Releases:
    """Gaussian releases of one run, each noted in its history."""

    def __init__(self, account: Account, noise: Noise) -> None:
        self._account, self._noise = account, noise
        self.history: list[dict[str, object]] = []

    def __call__(self, total: BoundedSum, z: float, what: str) -> tuple[Floats, float]:
        """The noisy sum, and the standard deviation of its noise."""
        std = z * total.sensitivity
        self.note(what, noise_multiplier=z, noise_std=std)
        noisy = release(total, std=std, event=events.gaussian(z), account=self._account, noise=self._noise)
        return np.asarray(noisy.numpy()), std

    def note(self, what: str, **numbers: object) -> None:
        self.history.append({"step": len(self.history), "released": what, **numbers})


def released_moment(
    task: Task, released: Releases, *, eigenvalue_z: float, matrix_z: float, failure: float
) -> tuple[Floats, float]:
    """XᵀX with noise, and the ridge that its noise and its noisy least eigenvalue ask for."""
    moments = moments_of(task.rows, HALF)
    least, least_std = released(
        moments.least_eigenvalue(relation=task.relation), eigenvalue_z, "least eigenvalue"
    )
    packed, std = released(moments.second_moment(relation=task.relation), matrix_z, "second moment")
    ridge = adaptive_ridge(
        noisy_least=float(least[0]), least_std=least_std, std=std, p=task.p, delta=task.delta, failure=failure
    )
    return unpack(packed, task.p), ridge


@method(
    group="convex algorithm",
    paper="Wang, UAI 2018, Algorithm 2",
    wins="regression in one pass, with nothing to tune: large ε, or many rows for few features",
    loses="small ε: its ridge expects the worst noise, and dp_newton and public_whitening are ahead",
    losses=("square",),
)
@dataclass(frozen=True, kw_only=True)
class AdaSsp(Flags):
    """AdaSSP: regression from noisy sufficient statistics (Wang, UAI 2018, Algorithm 2).

    Guarantee: (ε, δ) under either relation, from three Gaussian releases of all records with one multiplier:
    the least eigenvalue of XᵀX, XᵀX itself, and Xᵀy. The ridge is made of the first: post-processing.
    Assumes: rows and targets of bounded norm, by clipping. Public records do not depend on the private ones.
    Departs: the noise comes from the exact Gaussian curve, where the paper splits ε and δ in thirds; XᵀX is
    released as a packed triangle, with √2 less noise off the diagonal; an eigenvalue of the noisy
    matrix below 0 counts as 0; public records are added to the sums without noise.

    Args:
        failure: ϱ, how often the noise may be stronger than the ridge expects.
        pool_public: whether public records join the sums.
    """

    failure: float = 0.05
    pool_public: bool = True

    name: ClassVar[str] = "adassp"
    takes_partitions: ClassVar[bool] = True

    def plan(self, task: Task) -> Plan:
        check_method(self, task)
        fraction("failure", self.failure)
        bound = check_regression(task, method=self.name)
        z = accountants.noise_multiplier(
            epsilon=task.epsilon, delta=task.delta, steps=3, relation=task.relation
        )
        pooled = self.pool_public and task.public.n > 0
        note = (PUBLIC_APART,) if pooled else ()
        return Plan(
            events.repeat(events.gaussian(z), 3),
            details={"noise_multiplier": z, "failure": self.failure, "public_pooled": pooled},
            assumptions=(*clipping_note(task, bound), *note),
            state={"z": z, "bound": bound},
        )

    def run(self, task: Task, plan: Plan, *, account: Account, noise: Noise) -> Fitted:
        z: float = plan.state["z"]
        released = Releases(account, noise)
        matrix, ridge = released_moment(task, released, eigenvalue_z=z, matrix_z=z, failure=self.failure)
        clip = Flat(task.max_norm * plan.state["bound"])
        slopes = oracle_of(task.rows, HALF).clipped_sum(np.zeros(task.p), clip=clip, relation=task.relation)
        vector = -released(slopes, z, "products with targets")[0]
        if self.pool_public:
            X, y = dense(task.public.X), task.public.y
            matrix, vector = matrix + X.T @ X, vector + X.T @ y
        ridge = max(ridge, ridge_of_task(task))
        w = solve(matrix, vector, ridge)
        return Fitted(w.reshape(1, task.p), released.history, [f"the ridge adapted to {ridge:.4g}"])


adassp = AdaSsp
