"""DP-Newton: a few gradient steps, each preconditioned by a private matrix of second derivatives.

Ganesh, Haghifam, Steinke & Thakurta, "Faster Differentially Private Convex Optimization via Second-Order
Methods" (NeurIPS 2023, arXiv:2305.13209v1).

    H ← Σ c x_i x_iᵀ + E,  c ≥ ℓ''                          packed triangle, sensitivity cX² (√2cX² replaced)
    H ← V max(Λ, λ0) Vᵀ  ("clip"), or  V max(Λ, 0) Vᵀ + λ0 I  ("add"),   H = V Λ Vᵀ
    for t = 0..T−1:
      g ← Σ ∇ℓ_i(w) + N(0, σ² I)                            sensitivity R (2R replaced)
      w ← w − (H + nλ I)⁻¹ (g + nλ w)
    mean of the last half of the iterates
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import numpy as np

from sidelight.arrays import Floats
from sidelight.errors import InputError, fraction, positive
from sidelight.methods.baselines import fit_public
from sidelight.methods.declare import SMOOTH, method
from sidelight.methods.parts import Flat
from sidelight.methods.smooth import Smooth, smooth
from sidelight.methods.task import PUBLIC_APART, Fitted, Flags, Plan, Task, check_method
from sidelight.oracles.linear.row_sums import check_features, unpack
from sidelight.privacy import conversions, events
from sidelight.privacy.noise import Noise
from sidelight.privacy.release import Account, BoundedSum, release
from sidelight.problems.base import moments_of, oracle_of

Modification = Literal["clip", "add"]
Curvature = Literal["bound", "hessian"]
_EDGE = math.sqrt(2)  # ‖E‖ of a symmetric Gaussian matrix, packed noise of std s, is about √2·s√p


def multipliers(
    *, epsilon: float, delta: float, steps: int, matrices: int, share: float
) -> tuple[float, float]:
    """(z of a matrix, z of a gradient): together exactly (ε, δ), with `share` of μ² for the matrices.

    Gaussian releases compose as μ² = Σ 1/z² (Dong, Roth & Su 2022, Corollary 3.3).
    """
    mu = conversions.gdp_mu(epsilon, delta) * (1 - 1e-12)
    return math.sqrt(matrices / share) / mu, math.sqrt(steps / (1 - share)) / mu


def least_curvature(
    *, matrix_std: float, gradient_std: float, steps: int, p: int, dimension: int, norm_guess: float
) -> float:
    """λ0, from the noise alone: where the matrix stops being a curvature, or a step stops being one.

    Below √2·s√p an eigenvalue of H may be noise. And T steps along a direction of no curvature add up to
    noise of T·σ₁/λ0 (σ₁ = σ/√T is that of one release with all of the budget), like a ridge of λ0/T; the
    ridge that balances it against a model of length ‖w‖ is σ₁√d/‖w‖, as in objective perturbation.
    """
    walk = math.sqrt(steps) * gradient_std * math.sqrt(dimension) / norm_guess
    return max(_EDGE * matrix_std * math.sqrt(p), walk)


def modified(matrix: Floats, least: float, modification: Modification) -> tuple[Floats, Floats]:
    """Eigenvectors and eigenvalues, none of these below `least`: clipped there, or all shifted by it."""
    values, vectors = np.linalg.eigh(matrix)
    values = np.maximum(values, least) if modification == "clip" else np.maximum(values, 0.0) + least
    return vectors, values


@method(
    group="convex algorithm",
    paper="Ganesh, Haghifam, Steinke & Thakurta, NeurIPS 2023, Algorithm 3",
    wins="no public records and a smooth loss; fast. auto uses it there, with slope_share=0.5",
    loses="with public records, where auto is ahead; a rare class at ε = 0.1 with slope_share below 0.5",
    losses=SMOOTH,
    small={"steps": 4},
    variants={
        "hessian": {"steps": 3, "curvature": "hessian", "modification": "add"},
        "clipped": {"steps": 3, "slope_share": 0.35},
    },
)
@dataclass(frozen=True, kw_only=True)
class DpNewton(Flags):
    """DP-Newton: preconditioned gradient steps (Ganesh et al., NeurIPS 2023, after its Algorithm 3).

    Guarantee: (ε, δ) under either relation. One matrix (or T of them) and T gradients, all of all records,
    are Gaussian releases of sums with exact sensitivities; they compose exactly, μ² = Σ 1/z².
    Assumes: rows of bounded norm, and a loss with bounded slope and curvature (logistic, huber, softmax;
    square with its slope clipped). Public records, if any, do not depend on the private ones.
    Departs: the matrix itself is released, once, and serves all steps; the paper adds noise to each Newton
    step, whose sensitivity it bounds. The least eigenvalue follows from the noise and is not selected
    privately. The curvature is the bound of the loss, c Σ x xᵀ, and the mean of the last half of the iterates
    is returned. Public records give the start.

    Args:
        curvature: "bound", one matrix for all steps, or "hessian", released anew at every step (one output).
        curvature_share: of the budget (of μ²) that goes into matrices.
        modification: of eigenvalues: "clip" at the least one, or "add" it to all.
        least_eigenvalue: λ0 of a sum over records; None: a rule that looks at the noise.
        norm_guess: the length of the model that the rule expects; None: 30, for a regression 10.
        slope_share: below 1, the slope of the loss is clipped to this share of its largest, and the noise on
            gradients is smaller by as much; for one output.
    """

    steps: int = 16
    curvature: Curvature = "bound"
    curvature_share: float = 0.1
    modification: Modification = "clip"
    least_eigenvalue: float | None = None
    norm_guess: float | None = None
    slope_share: float = 1.0

    name: ClassVar[str] = "dp_newton"
    takes_partitions: ClassVar[bool] = True

    def plan(self, task: Task) -> Plan:
        check_method(self, task)
        self._check()
        check_features(task.p, method=self.name)
        problem = smooth(
            task,
            method=self.name,
            regularization=0.0,
            scalar=self.curvature == "hessian",
            slope_share=self.slope_share,
        )
        matrices = 1 if self.curvature == "bound" else self.steps
        z_matrix, z_gradient = multipliers(
            epsilon=task.epsilon,
            delta=task.delta,
            steps=self.steps,
            matrices=matrices,
            share=self.curvature_share,
        )
        least = self._least(task, problem, z_matrix, z_gradient)
        event = events.compose(
            events.repeat(events.gaussian(z_matrix), matrices),
            events.repeat(events.gaussian(z_gradient), self.steps),
        )
        public = task.public.n > 0
        details = {
            "steps": self.steps,
            "curvature": self.curvature,
            "noise_multiplier_curvature": z_matrix,
            "noise_multiplier_gradient": z_gradient,
            "least_eigenvalue": least,
            "start": "public" if public else "zero",
        }
        note = (PUBLIC_APART,) if public else ()
        start = fit_public(task).reshape(-1) if public else np.zeros(task.dimension)
        state = {"problem": problem, "z": (z_matrix, z_gradient), "least": least, "start": start, "copies": 1}
        return Plan(event, details=details, assumptions=(*problem.assumptions, *note), state=state)

    def plan_of_releases(self, task: Task, *, releases: int, noise_multiplier: float) -> Plan:
        """The same from zero, in so many releases of one kind: several of the matrix are averaged."""
        copies = max(1, round(self.curvature_share * releases))
        steps, z = releases - copies, noise_multiplier
        problem = smooth(task, method=self.name, regularization=0.0, slope_share=self.slope_share)
        least = replace(self, steps=steps)._least(task, problem, z / math.sqrt(copies), z)
        start = np.zeros(task.dimension)
        state = {"problem": problem, "z": (z, z), "least": least, "start": start, "copies": copies}
        return Plan(events.repeat(events.gaussian(z), releases), state={**state, "steps": steps})

    def run(self, task: Task, plan: Plan, *, account: Account, noise: Noise) -> Fitted:
        problem, (z_matrix, z_gradient) = plan.state["problem"], plan.state["z"]
        gradients, moments = oracle_of(task.rows, problem.loss), moments_of(task.rows, problem.loss)
        history: list[dict[str, object]] = []

        def released(total: BoundedSum, z: float, what: str) -> Floats:
            std = z * total.sensitivity
            history.append({"step": len(history), "released": what, "noise_multiplier": z, "noise_std": std})
            event = events.gaussian(z)
            return np.asarray(release(total, std=std, event=event, account=account, noise=noise).numpy())

        def back(w: Floats | None) -> Callable[[Floats], Floats]:
            total, copies = moments.second_moment(w, relation=task.relation), plan.state["copies"]
            packed = sum(released(total, z_matrix, "curvature") for _ in range(copies)) / copies
            matrix = unpack(np.asarray(packed), task.p)
            return self._inverse(matrix, plan.state["least"], task)

        ridge, w = task.n * task.regularization, plan.state["start"]
        inverse = back(None) if self.curvature == "bound" else None
        iterates, steps = [], plan.state.get("steps", self.steps)
        for _ in range(steps):
            move = inverse or back(w)
            total = gradients.clipped_sum(w, clip=Flat(problem.data_bound), relation=task.relation)
            w = w - move(released(total, z_gradient, "gradient") + ridge * w)
            iterates.append(w)
        mean = np.mean(iterates[steps // 2 :], axis=0)
        return Fitted(mean.reshape(task.loss.outputs, task.p), history)

    def _inverse(self, matrix: Floats, least: float, task: Task) -> Callable[[Floats], Floats]:
        vectors, values = modified(matrix, least, self.modification)
        values = values + task.n * task.regularization

        def move(gradient: Floats) -> Floats:
            rows = gradient.reshape(task.loss.outputs, task.p)
            return np.asarray(((rows @ vectors) / values) @ vectors.T).reshape(-1)

        return move

    def _least(self, task: Task, problem: Smooth, z_matrix: float, z_gradient: float) -> float:
        if self.least_eigenvalue is not None:
            return float(self.least_eigenvalue)
        removed = task.relation == "add-or-remove-one"
        guess = 10.0 if task.loss.task == "regression" else 30.0  # as objective perturbation has it
        return least_curvature(
            matrix_std=z_matrix * problem.curvature * (1 if removed else math.sqrt(2)),
            gradient_std=z_gradient * problem.data_bound * (1 if removed else 2),
            steps=self.steps,
            p=task.p,
            dimension=task.dimension,
            norm_guess=guess if self.norm_guess is None else self.norm_guess,
        )

    def _check(self) -> None:
        if self.curvature not in ("bound", "hessian") or self.modification not in ("clip", "add"):
            raise InputError(
                "curvature must be 'bound' or 'hessian' and modification 'clip' or 'add', not "
                f"{self.curvature!r} and {self.modification!r}"
            )
        if int(self.steps) != self.steps or self.steps < 1:
            raise InputError(f"steps must be a whole number of at least 1, not {self.steps!r}")
        fraction("curvature_share", self.curvature_share)
        positive("least_eigenvalue", self.least_eigenvalue, optional=True)
        positive("norm_guess", self.norm_guess, optional=True)


dp_newton = DpNewton
