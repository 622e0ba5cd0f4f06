"""auto: picks a method and its parameters from n, p, ε, δ, the loss and public records alone.

No private value is looked at before the plan is charged. The rule, in order:

1. No public records: full-batch DP-SGD with heavy ball and averaging.
2. There are at least half as many public records as the private ones are worth under the noise
   (`effective_records`), or the noise leaves nothing of them: only_public.
3. Noise does not limit the step size even if the budget is shared (two classes): train public whitening and
   two strongly regularised candidates, and select one privately within the same budget.
4. Public whitening (METHODS 20).

`only_public` is always considered: its accuracy on held-out public records is in the report.
Every choice is recorded with its reason.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import numpy as np

from sidelight.data.rows import PublicRows
from sidelight.errors import InputError
from sidelight.methods.baselines import fit_public, only_public
from sidelight.methods.declare import method
from sidelight.methods.dp_sgd import dp_sgd
from sidelight.methods.finishing import MeanLastHalf
from sidelight.methods.public_whitening import public_whitening
from sidelight.methods.recipe import Recipe
from sidelight.methods.rehearsal import rehearse
from sidelight.methods.selection import PrivateSelection
from sidelight.methods.task import Fitted, Method, Plan, Task
from sidelight.privacy import conversions
from sidelight.privacy.events import Relation
from sidelight.privacy.noise import Noise
from sidelight.privacy.release import Account

_STEPS = 64
_ENOUGH_TO_REHEARSE = 200  # public records; below, synthetic data misleads more than it informs
_NOISY = 1.0  # c of the step-size rule, below which a rehearsal was measured to help (experiments/rehearsal)
_SHARE = 0.5  # of that bound, which no method reaches: a judgement
_DROWNED = 0.02  # c of the step-size rule, below which only the public records carry information


@dataclass(frozen=True)
class Auto:
    """Chooses, then is the method that it chose.

    Args:
        rehearsal: "never", "always", or "auto": simulate private training on data synthesised from public
            records, at the true n and ε, where there are at least 200 of them and the noise is strong.
    """

    rehearsal: Literal["auto", "always", "never"] = "auto"
    name: ClassVar[str] = "auto"
    relations: ClassVar[tuple[Relation, ...]] = ("replace-one", "add-or-remove-one")
    needs_public: ClassVar[bool] = False
    private: ClassVar[bool] = True

    def choose(self, task: Task) -> tuple[Method, list[str]]:
        """The method, and why."""
        if self.rehearsal not in ("auto", "always", "never"):
            raise InputError(f"rehearsal must be 'auto', 'always' or 'never', not {self.rehearsal!r}")
        if task.public.n == 0:
            return _plain(), ["no public records: full-batch DP-SGD with heavy ball and averaging needs none"]
        reasons = [_public_alone(task)]
        room = noise_room(task)
        if room < _DROWNED:
            reasons.append(
                f"{task.n} private records at epsilon={task.epsilon:g} drown in noise (step-size constant "
                f"{room:.3g}): public records alone are expected to do better"
            )
            return only_public(), reasons
        if task.public.n >= _SHARE * (worth := effective_records(task)) and self.rehearsal != "always":
            reasons.append(
                f"{task.public.n} public records, and private ones worth {worth:.0f} at best under "
                "this noise: no budget is spent"
            )
            return only_public(), reasons
        if self._rehearses(task, room):
            return _rehearsed(task, reasons)
        method, reason = _by_rule(task, room)
        return method, [*reasons, reason]

    def _rehearses(self, task: Task, room: float) -> bool:
        if self.rehearsal != "auto":
            return self.rehearsal == "always"
        return task.public.n >= _ENOUGH_TO_REHEARSE and room < _NOISY and task.loss.outputs == 1

    def plan(self, task: Task) -> Plan:
        method, reasons = self.choose(task)
        plan = method.plan(task)
        details = {**plan.details, "chosen": method.name, "reasons": reasons}
        return Plan(
            plan.event,
            plan.filtered,
            details,
            plan.assumptions,
            {"method": method, "plan": plan, "reasons": reasons},
        )

    def run(self, task: Task, plan: Plan, *, account: Account, noise: Noise) -> Fitted:
        method: Method = plan.state["method"]
        fitted = method.run(task, plan.state["plan"], account=account, noise=noise)
        fitted.notes.extend(plan.state["reasons"])
        return fitted


def noise_room(task: Task) -> float:
    """mμ/(64k√p): how long a step the noise allows, in units of the step-size rule (k = 2: square loss)."""
    mu = conversions.gdp_mu(task.epsilon, task.delta)
    k = 2 if task.loss.lipschitz is None else 1
    return task.n * mu / (64 * k * math.sqrt(task.dimension))


def effective_records(task: Task) -> float:
    """How many records without noise tell as much about a gradient as n private ones: n/(1 + p/(nμ²)).

    A mean of n unit gradients has the squared error 1/n, and the noise of one release adds p/(nμ)².
    """
    mu = conversions.gdp_mu(task.epsilon, task.delta)
    return task.n / (1 + task.dimension / (task.n * mu**2))


def _by_rule(task: Task, room: float) -> tuple[Method, str]:
    regression = task.target_bound is not None
    whitening = public_whitening(regression=regression, steps=_STEPS)
    cap = 16.0 if task.loss.smoothness is None else 4.0
    if room >= 2 * cap and not regression and task.loss.outputs == 1:
        raw = _plain()
        method = PrivateSelection(((whitening, 0.0), (raw, 0.3), (raw, 3.0)))
        return method, (
            "the budget is larger than one training can use: three candidates are trained on it, and one is "
            "selected privately"
        )
    return whitening, f"{task.public.n} public records condition the problem (public whitening)"


def _plain() -> Recipe:
    return dp_sgd(momentum=0.8, steps=_STEPS, finish=MeanLastHalf())


def _public_alone(task: Task) -> str:
    """What only_public achieves on held-out public records, in folds."""
    X = task.public.X
    y = task.public.y
    folds = [np.arange(len(y))[i :: min(len(y), 5)] for i in range(min(len(y), 5))]  # a sorted table, too
    if len(folds) < 2 or task.loss.outputs > 1:
        return "only_public was considered; there are too few public records to judge it"
    right, lost = 0.0, 0.0
    for held in folds:
        rest = np.setdiff1d(np.arange(len(y)), held)
        z = X[held] @ fit_public(replace(task, public=PublicRows(X[rest], y[rest])))[0]
        right += float(((z >= 0) == (y[held] > 0)).sum())
        lost += float(((z - y[held]) ** 2).sum())
    if task.target_bound is not None:
        return (
            f"only_public was considered: mean squared error {lost / len(y):.3g} in {len(folds)} public folds"
        )
    accuracy = right / len(y)
    return (
        f"only_public was considered: accuracy {accuracy:.3f} on {len(y)} public rows, in {len(folds)} folds"
    )


def _rehearsed(task: Task, reasons: list[str]) -> tuple[Method, list[str]]:
    regression = task.target_bound is not None
    candidates: list[Method] = [
        public_whitening(regression=regression, steps=_STEPS),
        public_whitening(regression=regression, steps=16),
        _plain(),
        only_public(),
    ]
    best, scores = rehearse(task, candidates)
    listed = ", ".join(f"{m.name} {s:.4f}" for m, s in zip(candidates, scores, strict=True))
    return candidates[best], [*reasons, f"rehearsed on data synthesised from public records: {listed}"]


@method(
    group="chosen for you",
    paper="Chooses among the methods of this project by public quantities alone",
    wins="take it first: it says what it chose, and why",
    loses="isotropic features, where whitening has nothing to gain; a public target range that is too narrow",
    ours=True,
    networks=True,
)
def auto(*, rehearsal: Literal["auto", "always", "never"] = "auto") -> Auto:
    """The default method: chooses from public quantities, at no privacy cost."""
    return Auto(rehearsal)
