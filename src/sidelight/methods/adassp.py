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
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from sidelight.arrays import Floats, dense
from sidelight.errors import AssumptionError, InputError
from sidelight.losses import Square
from sidelight.methods.declare import method
from sidelight.methods.parts import Flat
from sidelight.methods.smooth import check_public
from sidelight.methods.task import Fitted, Plan, Task, check_method
from sidelight.oracles.linear.linear_oracle import LinearOracle
from sidelight.oracles.linear.moments import MomentOracle, check_features, unpack
from sidelight.privacy import calibrate, events
from sidelight.privacy.events import Relation
from sidelight.privacy.noise import Noise
from sidelight.privacy.release import Account, BoundedSum, release

__all__ = ["AdaSsp", "adaptive_ridge", "adassp", "solve"]

_HALF = Square(0.5)  # its gradient at 0 is −y x and its Hessian x xᵀ: the sufficient statistics


def adaptive_ridge(
    *, noisy_least: float, least_std: float, std: float, p: int, delta: float, failure: float
) -> float:
    """λ of lines 2 and 3: what the noise on XᵀX may take from its eigenvalues, less what they surely have."""
    surely = max(noisy_least - least_std * math.sqrt(math.log(6 / delta)), 0.0)
    return max(0.0, std * math.sqrt(p * math.log(2 * p * p / failure)) - surely)


def solve(matrix: Floats, vector: Floats, ridge: float) -> Floats:
    """(matrix + ridge·I)⁻¹ vector, for a noisy matrix: an eigenvalue that noise made negative counts as 0."""
    values, vectors = np.linalg.eigh(matrix)
    values = np.maximum(values, 0.0) + ridge
    safe = np.where(values > 0, values, np.inf)
    return np.asarray(vectors @ ((vectors.T @ vector) / safe))


@dataclass(frozen=True)
class AdaSsp:
    """See `adassp`."""

    failure: float = 0.05
    pool_public: bool = True

    name: ClassVar[str] = "adassp"
    relations: ClassVar[tuple[Relation, ...]] = ("add-or-remove-one", "replace-one")
    needs_public: ClassVar[bool] = False
    private: ClassVar[bool] = True

    def plan(self, task: Task) -> Plan:
        check_method(self, task)
        if not 0 < self.failure < 1:
            raise InputError(f"failure must be in (0, 1), not {self.failure!r}")
        if task.loss.task != "regression" or not isinstance(task.loss, Square):
            raise AssumptionError(
                f"adassp is linear regression, and the task has the {task.loss.name} loss; use loss='square' "
                "with PrivateRegressor, or dp_newton for other smooth losses"
            )
        if task.target_bound is None or not 0 < task.target_bound < math.inf:
            raise AssumptionError("adassp needs a bound on targets; pass target_bounds=(low, high)")
        check_features(task.p, method=self.name)
        check_public(task.public, task.loss)
        z = calibrate.noise_multiplier(
            epsilon=task.epsilon, delta=task.delta, steps=3, relation=task.relation
        )
        pooled = self.pool_public and task.public.n > 0
        note = ("the public records do not depend on the private ones",) if pooled else ()
        assumptions = (
            f"every row has norm at most {task.max_norm:g}, by clipping",
            f"a target beyond ±{task.target_bound:g} is clipped, with its row, to a product of that size",
        )
        return Plan(
            events.repeat(events.gaussian(z), 3),
            details={"noise_multiplier": z, "failure": self.failure, "public_pooled": pooled},
            assumptions=(*assumptions, *note),
            state={"z": z, "bound": float(task.target_bound), "scale": task.loss.scale},
        )

    def run(self, task: Task, plan: Plan, *, account: Account, noise: Noise) -> Fitted:
        z: float = plan.state["z"]
        history: list[dict[str, object]] = []
        moments, gradients = MomentOracle(task.rows, _HALF), LinearOracle(task.rows, _HALF)

        def released(total: BoundedSum, what: str) -> tuple[Floats, float]:
            std = z * total.sensitivity
            history.append({"step": len(history), "released": what, "noise_multiplier": z, "noise_std": std})
            noisy = release(total, std=std, event=events.gaussian(z), account=account, noise=noise)
            return np.asarray(noisy.numpy()), std

        least, least_std = released(moments.least_eigenvalue(relation=task.relation), "least eigenvalue")
        packed, std = released(moments.second_moment(relation=task.relation), "second moment")
        clip = Flat(task.max_norm * plan.state["bound"])
        slopes = gradients.clipped_sum(np.zeros(task.p), clip=clip, relation=task.relation)
        vector = -released(slopes, "products with targets")[0]
        matrix = unpack(packed, task.p)
        if self.pool_public:
            X, y = dense(task.public.X), task.public.y
            matrix, vector = matrix + X.T @ X, vector + X.T @ y
        ridge = adaptive_ridge(
            noisy_least=float(least[0]),
            least_std=least_std,
            std=std,
            p=task.p,
            delta=task.delta,
            failure=self.failure,
        )
        scale: float = plan.state["scale"]
        ridge = max(ridge, task.n * task.regularization / (2 * scale))
        w = solve(matrix, vector, ridge)
        return Fitted(w.reshape(1, task.p), history, [f"the ridge adapted to {ridge:.4g}"])


@method(
    group="convex algorithm",
    paper="Wang, UAI 2018, Algorithm 2",
    wins="regression in one pass, with nothing to tune: large ε, or many rows for few features",
    loses="small ε: its ridge expects the worst noise, and dp_newton and public_whitening are ahead",
    departs=(
        "the noise comes from the exact Gaussian curve of three releases; the paper gives each a third of ε "
        "and of δ",
        "the second moment is released as a packed triangle, with less noise off its diagonal",
        "rows and targets are clipped to bounds that are declared or public; the paper takes them as given",
        "public records, where there are any, are added to the sums without noise",
    ),
    losses=("square",),
)
def adassp(*, failure: float = 0.05, pool_public: bool = True) -> AdaSsp:
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
    return AdaSsp(failure=failure, pool_public=pool_public)
