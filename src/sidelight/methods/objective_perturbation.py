"""Objective perturbation and AMP: noise inside the problem, its solution as the output.

    θ* = argmin_θ Σ_i ℓ(θ; z_i) + (Λ/2)‖θ‖² + b·θ,    b ~ N(0, σ_b² I)

Kifer, Smith & Thakurta, "Private Convex Empirical Risk Minimization and High-dimensional Regression" (COLT
2012); Iyengar, Near, Song, Thakkar, Thakurta & Wang, "Toward Practical Differentially Private Convex
Optimization" (IEEE S&P 2019); Redberg, Koskela & Wang, "Improving the Privacy and Practicality of Objective
Perturbation for Differentially Private Linear Learners" (NeurIPS 2023, arXiv:2401.00583v1), whose Algorithm 1
is `amp`, accounted by the curve of `objective_perturbation`. The loss is f(x·θ; y) with |f'|‖x‖ ≤ L and
f''‖x‖² ≤ β.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

import numpy as np

from sidelight.arrays import Floats
from sidelight.errors import AssumptionError, InputError, PrivacyConditionError, one_of
from sidelight.methods.declare import ONE_OUTPUT, method
from sidelight.methods.smooth import Smooth, smooth
from sidelight.methods.task import Fitted, Flags, Plan, Task, check_method
from sidelight.oracles.linear.row_sums import RowSums
from sidelight.privacy import accountants, conversions, events
from sidelight.privacy.events import RELATIONS, Event, Relation
from sidelight.privacy.noise import Noise
from sidelight.privacy.release import Account, perturbed_solution, private_process
from sidelight.solvers import attainable, minimize

_RANK: dict[Relation, int] = {"add-or-remove-one": 1, "replace-one": 2}
_ACCURACY = 1e-8  # of the exact minimizer: ‖gradient‖ ≤ 1e-8 Λ, so within 1e-8 of it; half is for rounding


def kst_noise(*, epsilon: float, delta: float, lipschitz: float, curvature: float) -> tuple[float, float]:
    """(σ_b, least Λ) of Kifer, Smith & Thakurta 2012, its Gaussian version. For add-or-remove-one alone.

    σ_b = L√(8 log(2/δ) + 4ε)/ε, Λ ≥ 2β/ε. Under replace-one an explicit instance breaks it (vector K7).
    """
    std = lipschitz * math.sqrt(8 * math.log(2 / delta) + 4 * epsilon) / epsilon
    return std, 2 * curvature / epsilon


class AmpNoise(NamedTuple):
    """The published scales of AMP, in its mean form: Λ, σ₁ inside the objective, σ₂ on its solution."""

    ridge: float
    inside: float
    outside: float


def amp_noise(
    *,
    epsilon: float,
    delta: float,
    n: int,
    lipschitz: float,
    curvature: float,
    gradient_tolerance: float,
    output_share: float = 0.01,
    noise_share: float = 0.9,
    rank: int = 2,
    ridge: float = 0.0,
) -> AmpNoise:
    """Λ, σ₁ and σ₂ of Iyengar et al. 2019 (replace-one), with σ₂ doubled.

    Given one exact minimizer, two approximate ones lie in a ball of radius nγ/Λ and differ by up to its
    diameter, 2nγ/Λ; the reference implementation takes the radius (vector K6).
    """
    eps_out, delta_out = output_share * epsilon, output_share * delta
    eps_in, delta_in = epsilon - eps_out, delta - delta_out
    eps_noise = noise_share * eps_in
    if not 0 < eps_in - eps_noise < 1:
        raise PrivacyConditionError(
            f"AMP needs 0 < eps1 - eps3 < 1, but it is {eps_in - eps_noise:.3g}: use accounting='tight'"
        )
    ridge = max(ridge, rank * curvature / (eps_in - eps_noise))
    inside = 2 * lipschitz / n * (1 + math.sqrt(2 * math.log(1 / delta_in))) / eps_noise
    diameter = 2 * n * gradient_tolerance / ridge
    outside = diameter * (1 + math.sqrt(2 * math.log(1 / delta_out))) / eps_out
    return AmpNoise(ridge, inside, outside)


def log_determinant(curvature: float, ridge: float) -> float:
    """c0 = log(1 + β/Λ): what one record changes in log det of the Jacobian θ ↦ b (METHODS 7.3)."""
    return math.log1p(curvature / ridge)


def default_ridge(
    task: Task, problem: Smooth, *, least: float, norm_guess: float | None, rank: int, share: float
) -> float:
    """Λ: the task's nλ if it has one; else what balances noise and shrinkage for ‖θ‖ near `norm_guess`.

    Noise costs about σ_b²p/2Λ and the regularizer Λ‖θ‖²/2, equal at Λ = σ_b√p/‖θ‖. Never below `least`.
    """
    if norm_guess is None:  # the scale of a margin is free, that of a regression is not
        norm_guess = 10.0 if task.loss.task == "regression" else 30.0
    if task.regularization > 0:
        return max(least, task.n * task.regularization)
    std = conversions.objective_noise(
        epsilon=task.epsilon,
        delta=task.delta,
        lipschitz=problem.data_bound,
        log_determinant=share * task.epsilon,
        rank=rank,
    )
    return max(least, std * math.sqrt(task.dimension) / norm_guess)


def rounding(task: Task, problem: Smooth, *, ridge: float, std: float) -> float:
    """What rounding may leave of the gradient (of sums) at the minimizer, from public numbers.

    ‖b‖ is below σ_b(√p + 10) but for a chance of e^{-50}, which does not depend on the records.
    """
    target = 1.0 if task.target_bound is None else task.target_bound
    losses = problem.loss.value(np.zeros(2), np.array([-target, target]))
    return attainable(
        n=task.n,
        slope=problem.data_bound,
        curvature=problem.curvature,
        ridge=ridge,
        linear=std * (math.sqrt(task.dimension) + 10),
        start=float(losses.max()),
    )


def least_exact_ridge(task: Task, problem: Smooth, *, least: float, std: float) -> float:
    """The least Λ from `least` on with which float64 finds the minimizer to the accuracy that is promised.

    Below, whether a solver arrives would depend on the records. About 1e-5·n for rows of norm 1.
    """
    return conversions._first_true(
        lambda ridge: rounding(task, problem, ridge=ridge, std=std) <= _ACCURACY / 2 * ridge,
        least,
        max(2 * least, problem.data_bound * task.n),
    )


def _solve(task: Task, problem: Smooth, linear: Floats, *, ridge: float, tolerance: float) -> Floats:
    """The minimizer of the perturbed objective, in sum form. For use inside privacy.release only."""
    return minimize(
        [RowSums.of(task.rows, problem.loss)],
        ridge=ridge,
        linear=linear,
        tolerance=tolerance,
        curvature=task.n * problem.curvature,
    ).w


@method(
    group="convex algorithm",
    paper="Kifer, Smith & Thakurta, COLT 2012; Redberg, Koskela & Wang, NeurIPS 2023",
    wins="two classes without public records, at small ε with slope_share=0.35; also isotropic features",
    loses="small ε with public records at hand",
    losses=ONE_OUTPUT,
)
@dataclass(frozen=True, kw_only=True)
class PerturbedObjective(Flags):
    """Objective perturbation (Kifer, Smith & Thakurta, COLT 2012), for a loss of one linear output.

    Guarantee: (ε, δ) by the curve of METHODS 7.3, under add-or-remove-one or replace-one.
    `accounting="kst"` takes the noise of 2012, which holds under add-or-remove-one alone.
    Assumes: convex, with bounded slope and curvature (logistic, huber; square with its slope clipped), and an
    exact solver: ‖gradient‖ ≤ 1e-8 Λ. `amp` needs no exactness. Λ is at least what float64 needs for that
    (about 1e-5·n), so that the solver converges for all records.
    Departs: the proof of 2012 treats the gradient of a record as independent of b; on a line it is bounded
    for all b, which is what the curve here uses. It is the hockey-stick curve of Redberg, Koskela & Wang
    2023 with log(1 + β/Λ) in place of −log(1 − β/Λ); theirs is for add-or-remove-one alone.

    Args:
        determinant_share: the share of ε that log(1 + β/Λ) may take; it bounds Λ from below.
        norm_guess: ‖θ‖ that Λ is chosen for if the task has no regularization of its own. None takes 30
            (square: 10).
        slope_share: below 1, the slope of the loss is clipped to this share of its largest, and the noise is
            smaller by as much. The loss stays convex: it continues as a straight line.
    """

    accounting: Literal["tight", "kst"] = "tight"
    determinant_share: float = 0.5
    norm_guess: float | None = None
    slope_share: float = 1.0

    name: ClassVar[str] = "objective_perturbation"

    @property
    def relations(self) -> tuple[Relation, ...]:  # type: ignore[override]
        return ("add-or-remove-one",) if self.accounting == "kst" else RELATIONS

    def plan(self, task: Task) -> Plan:
        self._check(task)
        problem = smooth(
            task, method=self.name, regularization=0.0, scalar=True, slope_share=self.slope_share
        )
        rank = _RANK[task.relation]
        least = problem.curvature / math.expm1(self.determinant_share * task.epsilon)
        if self.accounting == "kst":
            std, least = kst_noise(
                epsilon=task.epsilon,
                delta=task.delta,
                lipschitz=problem.data_bound,
                curvature=problem.curvature,
            )
        else:
            std = self._noise(task, problem, ridge=least)  # a larger Λ needs less
        least = least_exact_ridge(task, problem, least=least, std=std)
        ridge = default_ridge(
            task, problem, least=least, norm_guess=self.norm_guess, rank=rank, share=self.determinant_share
        )
        constant = log_determinant(problem.curvature, ridge)
        if self.accounting == "tight":
            std = self._noise(task, problem, ridge=ridge)
        return Plan(
            events.ObjectivePerturbation(constant, rank * problem.data_bound / std, rank),
            details={"accounting": self.accounting, "regularization": ridge / task.n, "noise_std": std},
            assumptions=(
                *problem.assumptions,
                f"the solver is exact: its solution is within {_ACCURACY:g} of it",
            ),
            state={"problem": problem, "ridge": ridge, "std": std},
        )

    def run(self, task: Task, plan: Plan, *, account: Account, noise: Noise) -> Fitted:
        problem, ridge, std = plan.state["problem"], plan.state["ridge"], plan.state["std"]
        solution = perturbed_solution(
            lambda b: _solve(task, problem, b, ridge=ridge, tolerance=_ACCURACY / 2 * ridge),
            dimension=task.dimension,
            std=std,
            lipschitz=problem.data_bound,
            relation=task.relation,
            event=plan.event,
            account=account,
            noise=noise,
        )
        history = [{"released": "minimizer", "noise_std": std, "regularization": ridge / task.n}]
        return Fitted(solution.numpy().reshape(1, task.p), history)

    @staticmethod
    def _noise(task: Task, problem: Smooth, *, ridge: float) -> float:
        return (1 + 1e-12) * conversions.objective_noise(
            epsilon=task.epsilon,
            delta=task.delta,
            lipschitz=problem.data_bound,
            log_determinant=log_determinant(problem.curvature, ridge),
            rank=_RANK[task.relation],
        )

    def _check(self, task: Task) -> None:
        one_of("accounting", self.accounting, ("tight", "kst"))
        if not 0 < self.determinant_share < 1 or (self.norm_guess is not None and not self.norm_guess > 0):
            raise InputError("determinant_share must be in (0, 1) and norm_guess positive")
        check_method(self, task)


objective_perturbation = PerturbedObjective


@method(
    group="convex algorithm",
    paper="Iyengar et al., S&P 2019; Redberg, Koskela & Wang, NeurIPS 2023, Algorithm 1",
    wins="like objective_perturbation, for solvers that stop early",
    loses="never better than objective_perturbation with an exact solver",
    losses=ONE_OUTPUT,
)
@dataclass(frozen=True, kw_only=True)
class Amp(Flags):
    """Approximate minima perturbation (Iyengar et al., S&P 2019; Redberg, Koskela & Wang 2023, Algorithm 1).

    Guarantee: (ε, δ) for any solver that reaches ‖gradient‖ ≤ γ: objective perturbation composed with one
    Gaussian release of sensitivity 2nγ/Λ, under replace-one or add-or-remove-one. "tight" composes the two
    exactly, as the paper of 2023 does with Rényi bounds; "paper" uses the formulas of 2019, for replace-one.
    Assumes: convex, with bounded slope and curvature (logistic, huber; square with its slope clipped).
    Departs: the output noise is twice the published one (vector K6); γ is one that the solver always
    reaches, while the reference implementation doubles it on failure, depending on the data.

    Args:
        gradient_tolerance: γ, on the gradient of the mean objective. None takes 1/n², or what float64 can
            tell from 0 if that is more.
        output_share: ε₂/ε and δ₂/δ, for the output noise.
        noise_share: ε₃/ε₁, what of the rest is for b; the remainder bounds Λ from below.
        norm_guess: as in `objective_perturbation`; for "tight" only.
        slope_share: as in `objective_perturbation`.
    """

    accounting: Literal["tight", "paper"] = "tight"
    gradient_tolerance: float | None = None
    output_share: float = 0.01
    noise_share: float = 0.9
    norm_guess: float | None = None
    slope_share: float = 1.0

    name: ClassVar[str] = "amp"

    @property
    def relations(self) -> tuple[Relation, ...]:  # type: ignore[override]
        return ("replace-one",) if self.accounting == "paper" else RELATIONS

    def plan(self, task: Task) -> Plan:
        check_method(self, task)
        one_of("accounting", self.accounting, ("tight", "paper"))
        if not (0 < self.output_share < 1 and 0 < self.noise_share < 1):
            raise InputError("output_share and noise_share must be in (0, 1)")
        gamma = task.n**-2.0 if self.gradient_tolerance is None else self.gradient_tolerance
        if not gamma > 0 or (self.norm_guess is not None and not self.norm_guess > 0):
            raise InputError("gradient_tolerance and norm_guess must be positive")
        problem = smooth(
            task, method=self.name, regularization=0.0, scalar=True, slope_share=self.slope_share
        )
        scale = self._tight if self.accounting == "tight" else self._published
        scales = scale(task, problem, gamma)
        least = rounding(task, problem, ridge=scales.ridge, std=task.n * scales.inside) / task.n
        if gamma < 2 * least and self.gradient_tolerance is not None:
            raise AssumptionError(
                f"gradient_tolerance={gamma:.3g} is below what float64 can tell from 0 on {task.n} records, "
                f"{2 * least:.3g}: whether a solver gets there would depend on the records. Raise it, or "
                "use None"
            )
        gamma = max(gamma, 2 * least)
        scales = scale(task, problem, gamma)
        details = {
            "accounting": self.accounting,
            "regularization": scales.ridge / task.n,
            "gradient_tolerance": gamma,
            "noise_std_inside": scales.inside,
            "noise_std_outside": scales.outside,
        }
        state = {"problem": problem, "scales": scales, "tolerance": task.n * gamma}
        return Plan(
            _amp_event(task, problem, scales, gamma),
            details=details,
            assumptions=problem.assumptions,
            state=state,
        )

    def run(self, task: Task, plan: Plan, *, account: Account, noise: Noise) -> Fitted:
        problem, scales = plan.state["problem"], plan.state["scales"]

        def process(source: Noise) -> Floats:
            inside = source.normal(task.dimension, std=task.n * scales.inside)  # in sum form
            solution = _solve(task, problem, inside, ridge=scales.ridge, tolerance=plan.state["tolerance"])
            return np.asarray(solution + source.normal(task.dimension, std=scales.outside))

        noisy = private_process(process, event=plan.event, account=account, noise=noise)
        history: list[dict[str, object]] = [{"released": "approximate minimizer", **plan.details}]
        return Fitted(noisy.numpy().reshape(1, task.p), history)

    def _published(self, task: Task, problem: Smooth, gamma: float) -> AmpNoise:
        return amp_noise(
            epsilon=task.epsilon,
            delta=task.delta,
            n=task.n,
            lipschitz=problem.data_bound,
            curvature=problem.curvature,
            gradient_tolerance=gamma,
            output_share=self.output_share,
            noise_share=self.noise_share,
            ridge=task.n * task.regularization,
        )

    def _tight(self, task: Task, problem: Smooth, gamma: float) -> AmpNoise:
        """σ₂ by the exact Gaussian curve from a small share; then the least σ₁ with which all is (ε, δ)."""
        share, rank = (1 - self.noise_share) * (1 - self.output_share), _RANK[task.relation]
        least = problem.curvature / (share * task.epsilon)
        ridge = default_ridge(task, problem, least=least, norm_guess=self.norm_guess, rank=rank, share=share)
        eps_out, delta_out = self.output_share * task.epsilon, self.output_share * task.delta
        multiplier = accountants.noise_multiplier(epsilon=eps_out, delta=delta_out, relation=task.relation)
        constant = log_determinant(problem.curvature, ridge)
        least_inside = accountants.least(
            lambda z: events.compose(
                events.ObjectivePerturbation(constant, 1 / z, rank), events.gaussian(multiplier)
            ),
            epsilon=task.epsilon,
            delta=task.delta,
            relation=task.relation,
        )
        return AmpNoise(
            ridge,
            rank * problem.data_bound / task.n * least_inside * (1 + 1e-9),
            multiplier * 2 * task.n * gamma / ridge,
        )


amp = Amp


def _amp_event(task: Task, problem: Smooth, scales: AmpNoise, gamma: float) -> Event:
    rank = _RANK[task.relation]
    inside = events.ObjectivePerturbation(
        log_determinant(problem.curvature, scales.ridge),
        rank * problem.data_bound / (task.n * scales.inside),
        rank,
    )
    diameter = 2 * task.n * gamma / scales.ridge
    return events.compose(inside, events.gaussian(scales.outside / diameter))
