"""RSGD-AR and NSGD: shuffled mini-batch descent, averages and restarts, one noise at the end.

Chen, Lee & Kifer, "Renyi Differentially Private ERM for Smooth Objectives" (AISTATS 2019).

    π ← uniform permutation; split π into batches B_1..B_m of sizes ν_1..ν_m; w ← 0; h ← 0
    for epoch s = 1..T:
      h += 1; η ← η0/h
      for j = 1..m:  w ← w − η( (1/ν_j) Σ_{i∈B_j} ∇ℓ_i(w) + λw )
      if s mod τ == 0:  w ← mean of the iterates since the last mean; h ← 0
    release w + N(0, std² I)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple, TypedDict

import numpy as np
from scipy.optimize import minimize_scalar

from sidelight.arrays import Floats, Matrix
from sidelight.errors import AssumptionError, InputError, one_of
from sidelight.methods.declare import SMOOTH, method
from sidelight.methods.smooth import Smooth, batch_sizes, contraction, smooth, warn_expansion
from sidelight.methods.task import Fitted, Flags, Plan, Task, check_method
from sidelight.oracles.linear.row_sums import RowSums
from sidelight.privacy import accountants, conversions, events
from sidelight.privacy.events import Indices, Relation
from sidelight.privacy.noise import Noise
from sidelight.privacy.release import Account, release

Gradient = Callable[[Floats, int], Floats]  # the mean gradient over batch j at w, data part alone


class ScheduledStep(NamedTuple):
    """One move of the algorithm: a step on a batch, or (batch None) the average and restart."""

    epoch: int
    batch: int | None
    step_size: float


def schedule(
    *, batches: int, epochs: int, step_size: float, average_every: int | None
) -> Iterator[ScheduledStep]:
    """The moves, in order. The descent and the sensitivity recursion both read it, so they cannot differ."""
    since_restart = 0
    for epoch in range(1, epochs + 1):
        since_restart += 1
        for j in range(batches):
            yield ScheduledStep(epoch, j, step_size / since_restart)
        if average_every and epoch % average_every == 0:
            yield ScheduledStep(epoch, None, 0.0)
            since_restart = 0


def sensitivities(
    *,
    batch_sizes: Sequence[int],
    epochs: int,
    step_size: float,
    average_every: int | None,
    data_bound: float,
    smoothness: float,
    strong_convexity: float,
) -> Floats:
    """Δ_j: how far one replaced record of batch j moves the result (Algorithm 2 of Chen, Lee & Kifer).

    A step contracts what is there by κ = max(|1−ημ|, |1−ηL|) and adds 2ηR/ν_j to batch j; an average
    averages. `data_bound` R bounds a record's gradient without the regularizer, which is the same in both
    worlds; `smoothness` and `strong_convexity` are with it. Quadratics attain every Δ_j.
    """
    sizes = np.asarray(batch_sizes, dtype=float)
    moved, total, count = np.zeros(sizes.size), np.zeros(sizes.size), 0
    for _, j, eta in schedule(
        batches=sizes.size, epochs=epochs, step_size=step_size, average_every=average_every
    ):
        if j is None:
            moved, total, count = total / count, np.zeros(sizes.size), 0
            continue
        moved *= contraction(eta, smoothness=smoothness, strong_convexity=strong_convexity)
        moved[j] += 2 * eta * data_bound / sizes[j]
        total += moved
        count += 1
    return moved


def descend(
    gradient: Gradient, moves: Iterator[ScheduledStep], *, start: Floats, regularization: float
) -> Floats:
    """The algorithm without its noise. The gradient is used as it is: normalizing it voids the proof."""
    w, total, count = start, np.zeros_like(start), 0
    for _, j, eta in moves:
        if j is None:
            w, total, count = total / count, np.zeros_like(start), 0
            continue
        w = w - eta * (gradient(w, j) + regularization * w)
        total += w
        count += 1
    return w


# ---------------------------------------------------------------------------------------------------
# accounting


def mixture_std(deltas: Floats, shares: Floats, *, epsilon: float, delta: float) -> float:
    """The least std with Σ_j q_j δ_G(ε; Δ_j/std) ≤ δ.

    Both worlds share π, so their laws are mixtures of Gaussians whose means differ by Δ_{j(π)}, and the
    hockey-stick divergence is jointly convex. It is attained when j is published.
    """
    unit = 1 / conversions.gdp_mu(epsilon, delta)

    def private(std: float) -> bool:
        return float(shares @ np.asarray(conversions.gaussian_delta_bound(epsilon, deltas / std))) <= delta

    return conversions._first_true(private, 0.5 * unit * float(deltas.min()), unit * float(deltas.max()))


def renyi_epsilon(
    deltas: Floats,
    shares: Floats,
    *,
    std: float,
    delta: float,
    conversion: Literal["improved", "classic"] = "improved",
) -> float:
    """ε of the paper: r_a = log Σ_j q_j e^{a(a−1)Δ_j²/2std²}/(a−1) (Proposition 3), at the best order.

    conversion: "classic" is the paper's, r_a + log(1/δ)/(a−1); "improved" is never larger (`rdp_to_dp`).
    """

    def at(t: float) -> float:
        order = 1 + math.exp(t)
        exponents = order * (order - 1) * (deltas / std) ** 2 / 2
        top = float(exponents.max())
        moment = top + math.log(float(shares @ np.exp(exponents - top)))
        return conversions.rdp_to_dp(order, moment / (order - 1), delta, conversion=conversion)

    best = minimize_scalar(
        at, bounds=(math.log(1e-4), math.log(1e6)), method="bounded", options={"xatol": 1e-12}
    )
    return float(at(best.x))


def renyi_std(deltas: Floats, shares: Floats, *, epsilon: float, delta: float) -> float:
    """The least std for which `renyi_epsilon` is at most ε."""
    exact = mixture_std(deltas, shares, epsilon=epsilon, delta=delta)  # never above
    return conversions._first_true(
        lambda std: renyi_epsilon(deltas, shares, std=std, delta=delta) <= epsilon, exact, 2 * exact
    )


# ---------------------------------------------------------------------------------------------------
# the methods


class _Moves(TypedDict):
    """The arguments of `schedule` that a method fixes."""

    epochs: int
    step_size: float
    average_every: int | None


@dataclass(frozen=True, kw_only=True)
class _Descent(Flags):
    """What RSGD-AR and NSGD share: mini-batch descent with a fixed plan, and one Gaussian release."""

    epochs: int = 20
    batch_size: int | None = None
    step_size: float = 0.5
    regularization: float = 0.001

    name: ClassVar[str]
    relations: ClassVar[tuple[Relation, ...]] = ("replace-one",)

    @property
    def _average_every(self) -> int | None:
        return None

    def _bounds(self, task: Task) -> tuple[Smooth, Sequence[int], Floats]:
        """The problem, the batch sizes and Δ_j, from public quantities only."""
        every = self._average_every
        if self.epochs < 1 or not self.step_size > 0 or (every is not None and every < 1):
            raise InputError("epochs and average_every must be at least 1, and step_size must be positive")
        problem = smooth(task, method=self.name, regularization=self.regularization)
        warn_expansion(self.name, self.step_size, problem)
        sizes = batch_sizes(task.n, self.batch_size)
        with np.errstate(over="ignore"):  # refused below
            deltas = sensitivities(
                batch_sizes=sizes,
                data_bound=problem.data_bound,
                smoothness=problem.smoothness,
                strong_convexity=problem.strong_convexity,
                **self._moves(),
            )
        if not np.isfinite(deltas).all():
            raise AssumptionError(f"the sensitivity of {self.name} overflows: lower step_size or epochs")
        # η = 1/L = 1/μ forgets all but the last batch; an event wants positive numbers, and larger is safe.
        return problem, sizes, np.maximum(deltas, 1e-9 * deltas.max())

    def _moves(self) -> _Moves:
        return {"epochs": self.epochs, "step_size": self.step_size, "average_every": self._average_every}

    def _details(
        self, problem: Smooth, sizes: Sequence[int], deltas: Floats, std: float
    ) -> dict[str, object]:
        return {
            **self._moves(),
            "batches": len(sizes),
            "batch_size": max(sizes),
            "regularization": problem.regularization,
            "largest_sensitivity": float(deltas.max()),
            "smallest_sensitivity": float(deltas.min()),
            "noise_std": std,
        }

    def _release(
        self, task: Task, plan: Plan, order: Indices | None, *, account: Account, noise: Noise
    ) -> Fitted:
        problem, sizes, std = plan.state["problem"], plan.state["sizes"], plan.state["std"]
        batches = np.split(np.arange(task.n) if order is None else order, np.cumsum(sizes)[:-1])
        moves = schedule(batches=len(sizes), **self._moves())

        def algorithm(X: Matrix, y: Floats) -> Floats:
            records = RowSums(X, y, problem.loss)
            return descend(
                lambda w, j: records.gradient(w, batches[j]) / sizes[j],
                moves,
                start=np.zeros(task.dimension),
                regularization=problem.regularization,
            )

        result = task.rows.compute(algorithm, sensitivity=plan.state["sensitivity"], relation=task.relation)
        noisy = release(result, std=std, event=plan.event, account=account, noise=noise)
        return Fitted(noisy.numpy().reshape(task.loss.outputs, task.p), self._history(std))

    def _history(self, std: float) -> list[dict[str, object]]:
        history: list[dict[str, object]] = []
        for epoch, batch, step_size in schedule(batches=1, **self._moves()):
            if batch is None:
                history[-1]["averaged"] = True
            else:
                history.append({"epoch": epoch, "step_size": step_size, "averaged": False})
        return [*history, {"released": "last iterate", "noise_std": std}]


@method(
    group="convex algorithm",
    paper="Chen, Lee & Kifer, AISTATS 2019",
    wins="one noisy output: isotropic features, or where accuracy saturates",
    loses="correlated features",
    losses=SMOOTH,
)
@dataclass(frozen=True, kw_only=True)
class RsgdAr(_Descent):
    """RSGD-AR: shuffle once, descend, average and restart, add noise once (Chen, Lee & Kifer, AISTATS 2019).

    Guarantee: (ε, δ) under replace-one, δ(ε) ≤ Σ_j (ν_j/n) δ_G(ε; Δ_j/std) with Δ from `sensitivities`.
    `accounting="paper"` uses Proposition 3 (a Rényi mixture) instead, which never needs less noise. It goes
    from Rényi to (ε, δ) by the improved conversion of `rdp_to_dp`: a little less noise than in the paper.
    Assumes: a smooth convex loss (logistic, huber, softmax; square with its slope clipped), rows of bounded
    norm, and a plan fixed in advance: nothing here stops early.
    Departs: batches are balanced and weighted by ν_j/n, where the paper takes them equal; the largest Δ_j is
    used, not the last; averages are at epochs τ, 2τ, …; gradients are never normalized, as they are in the
    released code, whose steps are then not contractions, so that its bound does not hold.

    Args:
        average_every: τ, in epochs; None never averages. Epochs after the last average are not averaged.
        batch_size: None takes a tenth of the records.
        regularization: λ if the task has none of its own.
    """

    accounting: Literal["exact", "paper"] = "exact"
    average_every: int | None = 10
    name: ClassVar[str] = "rsgd_ar"

    @property
    def _average_every(self) -> int | None:
        return self.average_every

    def plan(self, task: Task) -> Plan:
        one_of("accounting", self.accounting, ("exact", "paper"))
        check_method(self, task)
        problem, sizes, deltas = self._bounds(task)
        shares = np.asarray(sizes) / task.n  # a record is in batch j with probability ν_j/n, not 1/m
        least = mixture_std if self.accounting == "exact" else renyi_std
        std = least(deltas, shares, epsilon=task.epsilon, delta=task.delta) * (1 + 1e-12)
        return Plan(
            events.MixtureOfSensitivities(std / deltas, shares),
            details={"accounting": self.accounting, **self._details(problem, sizes, deltas, std)},
            assumptions=problem.assumptions,
            state={"problem": problem, "sizes": sizes, "std": std, "sensitivity": float(deltas.max())},
        )

    def run(self, task: Task, plan: Plan, *, account: Account, noise: Noise) -> Fitted:
        order = noise.generator.permutation(task.n)  # drawn once, independent of the data
        return self._release(task, plan, order, account=account, noise=noise)


rsgd_ar = RsgdAr


@method(
    group="convex algorithm",
    paper="a baseline of Chen, Lee & Kifer, AISTATS 2019",
    wins="baseline for rsgd_ar",
    loses="nearly everywhere",
    losses=SMOOTH,
)
@dataclass(frozen=True, kw_only=True)
class Nsgd(_Descent):
    """NSGD: mini-batch descent in the order of the records, noise once (baseline of Chen, Lee & Kifer 2019).

    Guarantee: (ε, δ) under replace-one, one Gaussian release of sensitivity max_j Δ_j, calibrated exactly.
    Assumes: as `rsgd_ar`, and an order of the records that does not depend on their contents.
    Departs: takes the largest Δ_j; "the last batch is worst" holds for equal batches without averages only.
    """

    name: ClassVar[str] = "nsgd"

    def plan(self, task: Task) -> Plan:
        check_method(self, task)
        problem, sizes, deltas = self._bounds(task)
        sensitivity = float(deltas.max())
        multiplier = accountants.noise_multiplier(
            epsilon=task.epsilon, delta=task.delta, relation=task.relation
        )
        std = multiplier * sensitivity
        state = {"problem": problem, "sizes": sizes, "std": std, "sensitivity": sensitivity}
        return Plan(
            events.gaussian(multiplier),
            details=self._details(problem, sizes, deltas, std),
            assumptions=problem.assumptions,
            state=state,
        )

    def run(self, task: Task, plan: Plan, *, account: Account, noise: Noise) -> Fitted:
        return self._release(task, plan, None, account=account, noise=noise)


nsgd = Nsgd
