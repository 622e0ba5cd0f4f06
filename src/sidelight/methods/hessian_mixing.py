"""Iterative Hessian Mixing: regression by Newton steps whose matrix is a Gaussian sketch of the records.

Lev, Shenfeld, Srinivasan, Ligett & Wilson, "Near-Optimal Private Linear Regression via Iterative Hessian
Mixing" (ICML 2026, arXiv:2601.07545v2); the sketch is that of Sheffet (ICML 2017) and of "The Gaussian Mixing
Mechanism" (NeurIPS 2025).

    for t = 1..T:
      Y ← S X + √γ N,   S (k × n) and N (k × p) standard Gaussian                k rows of N(0, XᵀX + γI)
      b ← Σ_i clip_C(y_i − x_i·w) x_i + N(0, s² I)                               sensitivity XC (2XC replaced)
      w ← w + (YᵀY/k)⁻¹ b
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from sidelight.errors import InputError, fraction
from sidelight.methods.adassp import HALF, Releases, clipping_note, ridge_of_task, solve
from sidelight.methods.boosted_adassp import Residuals, check_rounds, residual_bound_of
from sidelight.methods.declare import method
from sidelight.methods.task import PUBLIC_APART, Fitted, Flags, Plan, Task, check_method
from sidelight.privacy import accountants, conversions, events
from sidelight.privacy.events import Event
from sidelight.privacy.noise import Noise
from sidelight.privacy.release import Account, release_sketch
from sidelight.problems.base import moments_of


def sketch_size(*, p: int, rounds: int, delta: float) -> int:
    """k = 6·max(p, log(4T/ϱ)) with ϱ = δ/10, as in the paper's experiments.

    A sketch of k rows has the curvature right to a share of about √(p/k); the steps converge while
    that is below a half.
    """
    return math.ceil(6 * max(p, math.log(40 * rounds / delta)))


@method(
    group="convex algorithm",
    paper="Lev, Shenfeld, Srinivasan, Ligett & Wilson, ICML 2026",
    wins="regression without public records: ahead of adassp at every ε that was tried",
    loses="to boosted_adassp and dp_newton, whose matrix is released once; to auto with public records",
    losses=("square",),
    small={"rounds": 2},
)
@dataclass(frozen=True, kw_only=True)
class HessianMixing(Flags):
    """Iterative Hessian Mixing: Newton steps on Gaussian sketches (Lev et al., ICML 2026).

    Guarantee: (ε, δ) under either relation, from T sketches and T Gaussian releases of all records. The rows
    of a sketch are k draws from N(0, XᵀX + γX²I), of which one record changes one direction by a factor of
    at most 1 + 1/γ: N(0, 1 + 1/γ) against N(0, 1), k times, is the worst pair (METHODS 26).
    Assumes: rows of bounded norm and residuals of bounded size, by clipping. Public records do not depend on
    the private ones.
    Departs: the sketch is accounted by its exact loss, composed with the sums, where the paper has a Rényi
    bound and halves ε; γ is fixed, where the paper subtracts a released least eigenvalue that is
    right but for a share of δ; YᵀY is drawn from its law; a residual is clipped together with its row; public
    records are added to the sums without noise; 5 rounds, where the paper's experiments have 3, C of half the
    bound on targets and more of the budget for the sums, chosen on synthetic Gaussian rows.

    Args:
        rounds: T.
        sketch_rows: k. None takes 6·max(p, log(40T/δ)).
        round_share: of the budget (of μ²) that goes into sums of residuals; the rest is for the sketches.
        residual_bound: C. None takes half the bound on targets.
        pool_public: whether public records join the sums.
    """

    rounds: int = 5
    sketch_rows: int | None = None
    round_share: float = 0.7
    residual_bound: float | None = None
    pool_public: bool = True

    name: ClassVar[str] = "hessian_mixing"
    takes_partitions: ClassVar[bool] = True

    def plan(self, task: Task) -> Plan:
        check_method(self, task)
        self._check()
        bound = residual_bound_of(task, self.residual_bound, method=self.name)
        rows = self.sketch_rows or sketch_size(p=task.p, rounds=self.rounds, delta=task.delta)
        if rows < 4 * task.p:
            raise InputError(f"sketch_rows must be at least 4 times the {task.p} features, not {rows}")
        mu = conversions.gdp_mu(task.epsilon, task.delta) * (1 - 1e-12)
        z = math.sqrt(self.rounds / self.round_share) / mu
        gamma = self._gamma(task, rows=rows, z=z, mu=mu)
        pooled = self.pool_public and task.public.n > 0
        note = (PUBLIC_APART,) if pooled else ()
        details = {
            "rounds": self.rounds,
            "sketch_rows": rows,
            "gamma": gamma,
            "residual_bound": bound,
            "noise_multiplier": z,
            "public_pooled": pooled,
        }
        return Plan(
            self._event(rows, gamma, z),
            details=details,
            assumptions=(*clipping_note(task, bound, what="residual"), *note),
            state={"z": z, "rows": rows, "gamma": gamma, "bound": bound, "public": pooled},
        )

    def run(self, task: Task, plan: Plan, *, account: Account, noise: Noise) -> Fitted:
        state, released = plan.state, Releases(account, noise)
        moment = moments_of(task.rows, HALF).matrix(relation=task.relation)
        residuals = Residuals(task, state["bound"], public=state["public"])
        ridge = state["gamma"] * task.max_norm**2
        event = events.GaussianSketch(state["rows"], 1 / state["gamma"])
        weight, w = ridge_of_task(task), np.zeros(task.p)
        for _ in range(self.rounds):
            drawn = release_sketch(moment, ridge=ridge, event=event, account=account, noise=noise)
            released.note("sketch", rows=state["rows"], ridge=ridge)
            matrix = np.asarray(drawn.numpy()) / state["rows"] + residuals.public_moment
            w = w + solve(matrix, residuals.released(w, state["z"], released), weight)
        return Fitted(w.reshape(1, task.p), released.history)

    def _event(self, rows: int, gamma: float, z: float) -> Event:
        return events.compose(
            events.repeat(events.GaussianSketch(rows, 1 / gamma), self.rounds),
            events.repeat(events.gaussian(z), self.rounds),
        )

    def _gamma(self, task: Task, *, rows: int, z: float, mu: float) -> float:
        """The least γ, in units of X², for which sketches and sums together are (ε, δ)."""
        if 1 - self.round_share < 1e-6:
            raise InputError("round_share must leave something for the sketches")
        near = math.sqrt(rows * self.rounds / (1 - self.round_share)) / mu  # what it would be as a Gaussian
        return accountants.least(
            lambda gamma: self._event(rows, gamma, z),
            epsilon=task.epsilon,
            delta=task.delta,
            relation=task.relation,
            enough=10 * near + 10,
        )

    def _check(self) -> None:
        check_rounds(self.rounds, self.residual_bound)
        rows = self.sketch_rows
        if rows is not None and not (int(rows) == rows and 1 <= rows <= 80_000):
            raise InputError(f"sketch_rows must be a whole number from 1 to 80000, or None, not {rows!r}")
        fraction("round_share", self.round_share)


hessian_mixing = HessianMixing
