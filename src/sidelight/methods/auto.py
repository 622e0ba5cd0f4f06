"""auto: picks a method and its parameters from n, p, ε, δ, the loss and public records alone.

No private value is looked at before the plan is charged. The rule, in order:

1. No public records: DP-Newton for a smooth loss and few features, with slopes clipped to half of the
   steepest (`_slope_share`); else full-batch DP-SGD with heavy ball.
2. The public gradients' precision is twenty times that of the private ones under the noise (κ ≥ 20 in
   `precision`): only_public, and no budget is spent.
3. Two classes, at most five features, and noise that does not limit the step size: precision weighting and
   two strongly regularised candidates, of which one is selected privately within the same budget.
4. Precision weighting: the more public rows there are and the stronger the noise, the more they count.

`only_public` is always considered: its score on held-out public records is in the report. Every choice is
recorded with its reason.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

from sidelight.errors import InputError
from sidelight.methods.baselines import best_on_folds, only_public
from sidelight.methods.declare import method
from sidelight.methods.dp_newton import dp_newton
from sidelight.methods.dp_sgd import dp_sgd
from sidelight.methods.parts import MeanLastHalf
from sidelight.methods.precision import precision_weighting, public_precision, spread_of
from sidelight.methods.recipe import Recipe
from sidelight.methods.selection import PrivateSelection, rehearse
from sidelight.methods.task import Fitted, Method, Plan, Task
from sidelight.privacy import conversions
from sidelight.privacy.events import RELATIONS, Relation
from sidelight.privacy.noise import Noise
from sidelight.privacy.release import Account

_STEPS = 64
_ONLY_PUBLIC = 20.0  # κ from which private records would move the model by less than a twentieth
_HANDFUL = 5  # features, up to which candidates are worth a private choice between them
_FEW_FEATURES = 200  # for a private matrix of second derivatives


@dataclass(frozen=True)
class Auto:
    """Chooses, then is the method that it chose.

    Args:
        rehearsal: "never" follows the rule; "always" simulates private training on data synthesised from
            public records, at the true n and ε, and takes what does best there.
    """

    rehearsal: Literal["never", "always"] = "never"
    name: ClassVar[str] = "auto"
    relations: ClassVar[tuple[Relation, ...]] = RELATIONS
    needs_public: ClassVar[bool] = False
    private: ClassVar[bool] = True
    takes_persons: ClassVar[bool] = True
    takes_partitions: ClassVar[bool] = True

    def choose(self, task: Task) -> tuple[Method, list[str]]:
        """The method, and why."""
        if self.rehearsal not in ("always", "never"):
            raise InputError(f"rehearsal must be 'always' or 'never', not {self.rehearsal!r}")
        if task.public.n == 0:
            return _without_public(task)
        reasons = [_public_alone(task)]
        if self.rehearsal == "always":
            return _rehearsed(task, reasons)
        kappa = worth_of_public(task)
        share = f"{kappa / (1 + kappa):.1%}"
        if kappa >= _ONLY_PUBLIC:
            reasons.append(
                f"{task.n} private records at epsilon={task.epsilon:g} are worth less than a twentieth of "
                f"{task.public.n} public ones (share of these: {share}): no budget is spent"
            )
            return only_public(), reasons
        reasons.append(f"{task.public.n} public records count {share} by precision (precision weighting)")
        weighting = precision_weighting(steps=_STEPS)
        if _plenty(task):
            reasons.append(
                "the budget is larger than one training of so few parameters can use: three candidates are "
                "trained on it, and one is selected privately"
            )
            return PrivateSelection(((weighting, 0.0), (_plain(), 0.3), (_plain(), 3.0))), reasons
        return weighting, reasons

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


def worth_of_public(task: Task) -> float:
    """κ: the precision of the public gradients over that of the private ones with all their noise."""
    problem = task.problem(guided=True, joined=False, half_square=True)
    weighting = precision_weighting(steps=_STEPS)
    setting = weighting.setting(problem, epsilon=task.epsilon, delta=task.delta, relation=task.relation)
    mu = conversions.gdp_mu(task.epsilon, task.delta)
    return public_precision(
        n_public=task.public.n,
        n_private=task.n,
        dimension=task.dimension,
        noise_multiplier=math.sqrt(_STEPS) / mu,
        sensitivity_factor=1 if task.relation == "add-or-remove-one" else 2,
        batch=task.n,
        steps=_STEPS,
        spread=spread_of(setting),
    )


def _plenty(task: Task) -> bool:
    """Few parameters, and a step size that the noise of 64 steps would let be far longer than is stable."""
    if task.loss.outputs > 1 or task.target_bound is not None or task.p > _HANDFUL or task.unit != "record":
        return False
    room = task.n * conversions.gdp_mu(task.epsilon, task.delta) / (_STEPS * math.sqrt(task.dimension))
    return room >= 32


def _without_public(task: Task) -> tuple[Method, list[str]]:
    smooth = task.loss.smoothness is not None and task.loss.outputs == 1
    if smooth and task.p <= _FEW_FEATURES and task.unit == "record":
        why = "no public records: DP-Newton conditions the problem from private ones"
        return dp_newton(slope_share=_slope_share(task)), [why]
    return _plain(), ["no public records: full-batch DP-SGD with heavy ball and averaging needs none"]


def _slope_share(task: Task) -> float:
    """Where slopes are clipped, as a share of the steepest: noise shrinks with it.

    Of logistic loss that is the slope at a margin of 0: a record that is misclassified counts as one that is
    undecided. Below, all records would pull alike at w = 0, and the rate of a rare class would be lost. Of a
    regression it is the residual of a target that is half-way from the middle of its bounds to their end,
    which is where targets are on average if they fill them. Huber's hinge is steepest at 0 already.
    """
    return 0.5 if task.loss.name == "logistic" or task.target_bound is not None else 1.0


def _plain() -> Recipe:
    return dp_sgd(momentum=0.8, steps=_STEPS, finish=MeanLastHalf())


def _public_alone(task: Task) -> str:
    """What only_public achieves on held-out public records, in folds."""
    public = task.public
    if public.n < 10:
        return "only_public was considered; there are too few public records to judge it"
    _, z, y = best_on_folds(public, task.loss)
    if task.target_bound is not None:
        score = f"R² {1 - ((z[:, 0] - y) ** 2).mean() / max(float(y.var()), 1e-300):.3f}"
    else:
        right = z.argmax(axis=1) == y if task.loss.outputs > 1 else (z[:, 0] >= 0) == (y > 0)
        score = f"accuracy {right.mean():.3f}"
    return f"only_public was considered: {score} in 5 folds of {len(y)} public rows"


def _rehearsed(task: Task, reasons: list[str]) -> tuple[Method, list[str]]:
    candidates: list[Method] = [
        precision_weighting(steps=_STEPS),
        precision_weighting(steps=16),
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
    loses="public rows of another population; a public target range that is too narrow",
    ours=True,
    networks=True,
)
def auto(*, rehearsal: Literal["never", "always"] = "never") -> Auto:
    """The default method: chooses from public quantities, at no privacy cost."""
    return Auto(rehearsal)
