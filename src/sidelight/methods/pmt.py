"""PMT: rows whitened by the second moments of public rows, truncated, then noisy sums or Newton steps.

Cao, Bi & Zhang, "Differentially Private Truncation of Unbounded Data via Public Second Moments"
(arXiv:2602.22282v1); for regression alone, arXiv:2508.18037v1.

    Σ̂ ← (X̂ᵀX̂ + I)/m ;  M ← Σ̂^(−1/2) ;  x̃ ← Mx·min(1, R/‖Mx‖)                  R = √p + √(2 log n)
    square:    A ← Σ x̃x̃ᵀ + E ;  b ← Σ y x̃ + N(0, s² I)                          R² (√2R²), RY (2RY replaced)
               w̃ ← (A + nλM²)⁻¹ b
    else T times:  H ← Σ ℓ''x̃x̃ᵀ + E ;  g ← Σ ℓ'x̃ + N(0, s² I) ;  w̃ ← w̃ − (H + nλM²)⁻¹(g + nλM²w̃)
    w ← M w̃
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from sidelight.arrays import Floats, Matrix, dense
from sidelight.data.rows import UnreadRows
from sidelight.errors import InputError, fraction, positive
from sidelight.methods.adassp import Releases
from sidelight.methods.declare import ONE_OUTPUT, method
from sidelight.methods.dp_newton import least_curvature, modified, multipliers
from sidelight.methods.parts import Flat
from sidelight.methods.smooth import Smooth, smooth
from sidelight.methods.task import PUBLIC_APART, Fitted, Flags, Plan, Task, check_method
from sidelight.oracles.linear.linear_oracle import LinearOracle
from sidelight.oracles.linear.row_sums import MomentOracle, check_features, unpack
from sidelight.privacy import events
from sidelight.privacy.noise import Noise
from sidelight.privacy.release import Account


def public_root(rows: Matrix) -> Floats:
    """M = ((X̂ᵀX̂ + I)/m)^(−1/2): with it, rows like the public ones have second moments near 1."""
    X = dense(rows)
    values, vectors = np.linalg.eigh(X.T @ X + np.eye(X.shape[1]))
    return np.asarray((vectors * np.sqrt(len(X) / np.maximum(values, 1.0))) @ vectors.T)


def truncation_radius(n: int, p: int) -> float:
    """R = √p + √(2 log n): a standard Gaussian vector is longer with a chance of at most 1/n."""
    return math.sqrt(p) + math.sqrt(2 * math.log(max(n, 2)))


@method(
    group="convex algorithm",
    paper="Cao, Bi & Zhang, 2026",
    wins="an earlier relative of public_whitening; as good with few features and ε ≥ 1",
    loses="small ε and many features: rows of length √p make a matrix of sensitivity p",
    losses=ONE_OUTPUT,
    small={"steps": 2},
)
@dataclass(frozen=True, kw_only=True)
class Pmt(Flags):
    """PMT: public-moment-guided truncation (Cao, Bi & Zhang, arXiv:2602.22282v1).

    Guarantee: (ε, δ) under either relation. Rows are mapped by a public matrix and truncated to a public
    radius, one by one; T matrices and T gradients of all records are Gaussian releases, composed exactly.
    Assumes: a loss of one output with bounded slope and curvature (logistic, huber; square with its slope
    clipped). Public records do not depend on the private ones.
    Departs: the public second moment gets a ridge of 1/m; the radius is √p + √(2 log n), which
    depends on dimension and sample size alone, as the paper asks, with the constants of a Gaussian
    vector; sums are composed exactly, and eigenvalues of a noisy matrix are at least what the
    noise alone may give. The regularizer is that of the original coordinates, as in the paper.

    Args:
        steps: Newton steps. None: 1 for the square loss, which is sufficient statistics with noise; else 8.
        curvature_share: of the budget (of μ²) that goes into matrices. None: a half for the square
            loss, else a fifth; steps and shares were chosen on synthetic Gaussian rows.
        radius: R, of whitened rows. None: by dimension and sample size.
    """

    steps: int | None = None
    curvature_share: float | None = None
    radius: float | None = None

    name: ClassVar[str] = "pmt"
    needs_public: ClassVar[bool] = True

    def plan(self, task: Task) -> Plan:
        check_method(self, task)
        self._check()
        check_features(task.p, method=self.name)
        radius = truncation_radius(task.n, task.p) if self.radius is None else float(self.radius)
        seen = replace(task, rows=UnreadRows(task.n, task.p, max_norm=radius))
        problem = smooth(seen, method=self.name, regularization=0.0, scalar=True)
        steps, share = (1, 0.5) if task.loss.task == "regression" else (8, 0.2)
        steps, share = self.steps or steps, self.curvature_share or share
        z_matrix, z_gradient = multipliers(
            epsilon=task.epsilon, delta=task.delta, steps=steps, matrices=steps, share=share
        )
        event = events.compose(
            events.repeat(events.gaussian(z_matrix), steps), events.repeat(events.gaussian(z_gradient), steps)
        )
        details = {
            "steps": steps,
            "radius": radius,
            "noise_multiplier_curvature": z_matrix,
            "noise_multiplier_gradient": z_gradient,
        }
        return Plan(
            event,
            details=details,
            assumptions=(*problem.assumptions, PUBLIC_APART),
            state={
                "problem": problem,
                "z": (z_matrix, z_gradient),
                "root": public_root(task.public.X),
                "shape": (steps, radius),
            },
        )

    def run(self, task: Task, plan: Plan, *, account: Account, noise: Noise) -> Fitted:
        problem, (z_matrix, z_gradient) = plan.state["problem"], plan.state["z"]
        (steps, radius), root = plan.state["shape"], plan.state["root"]
        rows = task.rows.mapped(root, max_norm=radius)
        gradients, moments = LinearOracle(rows, problem.loss), MomentOracle(rows, problem.loss)
        released, w = Releases(account, noise), np.zeros(task.p)
        penalty = task.n * task.regularization * (root @ root)
        least, squares = self._least(task, problem, z_matrix), task.loss.task == "regression"
        for _ in range(steps):
            curved = moments.second_moment(None if squares else w, relation=task.relation)
            matrix = unpack(released(curved, z_matrix, "curvature")[0], task.p)
            slopes = gradients.clipped_sum(w, clip=Flat(problem.data_bound), relation=task.relation)
            gradient = released(slopes, z_gradient, "gradient")[0]
            vectors, values = modified(matrix, least, "clip")
            w = w - np.linalg.solve((vectors * values) @ vectors.T + penalty, gradient + penalty @ w)
        return Fitted((root @ w).reshape(1, task.p), released.history)

    @staticmethod
    def _least(task: Task, problem: Smooth, z_matrix: float) -> float:
        """What the noise alone may give an eigenvalue: below, there is no telling."""
        reach = problem.curvature * (1 if task.relation == "add-or-remove-one" else math.sqrt(2))
        shape = {"p": task.p, "dimension": task.p, "steps": 1}
        return least_curvature(matrix_std=z_matrix * reach, gradient_std=0.0, norm_guess=1.0, **shape)

    def _check(self) -> None:
        if self.steps is not None and (int(self.steps) != self.steps or self.steps < 1):
            raise InputError(f"steps must be a whole number of at least 1, or None, not {self.steps!r}")
        fraction("curvature_share", self.curvature_share, optional=True)
        positive("radius", self.radius, optional=True)


pmt = Pmt
