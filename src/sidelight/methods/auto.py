"""auto: picks a method and its parameters from n, p, ε, δ, the loss and public records alone.

No private value is looked at before the plan is charged. The rule, in order:

1. No public records: DP-Newton for a smooth loss and few features, with slopes clipped to half of the
   steepest (`_slope_share`); else full-batch DP-SGD with heavy ball. Public records without labels: public
   whitening.
2. The public gradients' precision is twenty times that of the private ones under the noise (κ ≥ 20 in
   `precision`): only_public, and no budget is spent.
3. Two classes, at most five features, and noise that does not limit the step size: precision weighting and
   two strongly regularized candidates, of which one is selected privately within the same budget.
4. Precision weighting: the more public rows there are and the stronger the noise, the more they count. The
   further their gradients turn out to be from private ones, the less (`measured_shift`); and if the first
   step shows that they are of another kind, the run goes on without them (`public_guard`).

`only_public` is always considered: its score on held-out public records is in the report. Every choice is
recorded with its reason.

Where the budget is so large that the noise no longer limits the step size, a part of it is better spent on a
*private selection*: each candidate is trained, then the one with the most correct training predictions is
selected by the exponential mechanism.

    events: T Gaussians for each candidate, then one selection of ρ-zCDP (Gumbel noise of scale 2/√(8ρ))
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from sidelight.arrays import Array, Floats
from sidelight.errors import AssumptionError, InputError
from sidelight.losses import RAMP, Kind, Loss
from sidelight.methods.baselines import best_on_folds, only_public
from sidelight.methods.declare import method
from sidelight.methods.dp_newton import DpNewton, dp_newton
from sidelight.methods.dp_sgd import dp_sgd
from sidelight.methods.parts import FixedNoise, MeanLastHalf
from sidelight.methods.precision import BARELY_RIGHT, precision_weighting, public_precision, spread_of
from sidelight.methods.public_guard import PublicGuard
from sidelight.methods.public_whitening import public_whitening
from sidelight.methods.recipe import Recipe
from sidelight.methods.task import Fitted, Flags, Method, Plan, Task, check_method
from sidelight.privacy import accountants, conversions, events
from sidelight.privacy.noise import Noise
from sidelight.privacy.release import Account, BoundedSum, select
from sidelight.problems.base import oracle_of

_STEPS = 64
_ONLY_PUBLIC = 20.0  # κ from which private records would move the model by less than a twentieth
_HANDFUL = 5  # features, up to which candidates are worth a private choice between them
_FEW_FEATURES = 200  # for a private matrix of second derivatives
_STRONG, _FEW_STEPS, _MANY_STEPS = 5.0, 16, 58  # of DP-Newton, by the noise
_SOME_FEATURES = 500  # for one that is asked for only where public rows are of another kind


@dataclass(frozen=True)
class Auto(Flags):
    """Chooses, then is the method that it chose."""

    name: ClassVar[str] = "auto"
    takes_persons: ClassVar[bool] = True
    takes_partitions: ClassVar[bool] = True

    def choose(self, task: Task) -> tuple[Method, list[str]]:
        """The method, and why."""
        if task.public.n == 0:
            return _without_labels(task) if task.public.every.shape[0] else _without_public(task)
        reasons = [_public_alone(task)]
        kappa = worth_of_public(task)
        share = f"{100 * kappa / (1 + kappa):.1f}\u202f%"
        if kappa >= _ONLY_PUBLIC:
            reasons.append(
                f"{task.n:,} private records at epsilon={task.epsilon:g} add less than 1/20 as much as "
                f"{task.public.n:,} public ones (whose share is {share}): no budget is spent"
            )
            return only_public(), reasons
        reasons.append(
            f"the {task.public.n:,} public records get {share} of the weight, by their precision "
            "(precision weighting)"
        )
        weighting = precision_weighting(steps=_STEPS)
        if _plenty(task):
            reasons.append(
                "the budget is larger than one training of so few parameters can use: three candidates are "
                "trained on it, and one is selected privately"
            )
            return PrivateSelection(((weighting, 0.0), (_plain(), 0.3), (_plain(), 3.0))), reasons
        return _guarded(weighting, task), reasons

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
        why = "no public records: DP-Newton learns the curvature from the private ones"
        return dp_newton(steps=_newton_steps(task), slope_share=_slope_share(task)), [why]
    return _plain(), ["no public records: full-batch DP-SGD with heavy ball and averaging needs none"]


def _newton_steps(task: Task) -> int:
    """Few steps in strong noise, whose walk they would lengthen; else as many as it takes to arrive.

    The measure is the variance of the noise over that of a mean of n gradients. Set on Adult, magic04, cadata
    and grid stability without public rows.
    """
    factor = 1 if task.relation == "add-or-remove-one" else 2
    mu = conversions.gdp_mu(task.epsilon, task.delta)
    strong = task.dimension * factor**2 > _STRONG * 0.3 * task.n * mu**2
    return _FEW_STEPS if strong else _MANY_STEPS


def _without_labels(task: Task) -> tuple[Method, list[str]]:
    size = int(task.public.every.shape[0])
    why = (
        f"the {size:,} public records have no labels: their second moments make steps equally long in all "
        "directions (public whitening). Public models, trees and the paid comparison need labels, and are off"
    )
    slope = task.problem(guided=False).constants.first_slope
    return public_whitening(clip_norm=None if slope is None else BARELY_RIGHT * slope), [why]


def _guarded(weighting: Recipe, task: Task) -> Method:
    """Precision weighting that goes on without public rows if the first step shows that they are far off."""
    smooth = task.loss.smoothness is not None or task.loss.name == "square"
    if not smooth or task.unit != "record" or task.p > _SOME_FEATURES or _worth_of_noise(task) < task.p:
        return weighting
    share = _slope_share(task) if task.loss.outputs == 1 else 1.0
    return PublicGuard(weighting, DpNewton(slope_share=share))


def _worth_of_noise(task: Task) -> float:
    """n′: how many private gradients have a mean that varies as much as the noise of all steps.

    If these are fewer than a row has features, private records do not determine a model without public ones.
    """
    factor = 1 if task.relation == "add-or-remove-one" else 2
    return (task.n * conversions.gdp_mu(task.epsilon, task.delta) / factor) ** 2 / task.dimension


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
    if task.residual:
        return "private records are fitted to the residual of the best public model"
    _, z, y = best_on_folds(public, task.loss)
    if task.target_bound is not None:
        score = f"R² {1 - ((z[:, 0] - y) ** 2).mean() / max(float(y.var()), 1e-300):.3f}"
    else:
        right = z.argmax(axis=1) == y if task.loss.outputs > 1 else (z[:, 0] >= 0) == (y > 0)
        score = f"accuracy {100 * right.mean():.1f}\u202f%"
    return f"only_public was considered: {score} in 5 folds of {len(y):,} public rows"


@method(
    group="chosen for you",
    paper="Chooses among the methods of this project by public quantities alone",
    wins="the default: it chooses a method and states the reason",
    loses="a public target range that is too narrow; a schema learned from rows of another kind",
    ours=True,
    networks=True,
)
def auto() -> Auto:
    """The default method: chooses from public quantities, at no privacy cost."""
    return Auto()


# ---------------------------------------------------------------------------------------------------
# private selection


@dataclass(frozen=True)
class CorrectPredictions(Loss):
    """1 for a correct prediction, 0 for a wrong one: a score to count, not a loss to minimize.

    Between scores of ±10⁻⁶ it is a ramp. Scores are to be of order 1: see `correct_predictions`.
    """

    name: ClassVar[str] = "correct"
    task: ClassVar[Kind] = "binary"

    lipschitz = None
    smoothness = None

    def value(self, z: Array, y: Array) -> Array:
        return np.asarray(np.clip(0.5 + y * z / (2 * RAMP), 0, 1), dtype=np.float64)

    def slope(self, z: Array, y: Array) -> Array:
        raise InputError("a count of correct predictions has no slope")

    def curvature(self, z: Array, y: Array) -> Array:
        raise InputError("a count of correct predictions has no curvature")


def correct_predictions(task: Task, models: Floats) -> BoundedSum:
    """How many private records each model (a flat vector of weights) predicts correctly.

    Models are scaled to scores of at most 1, which changes no prediction: 10⁻⁶ is then far above the rounding
    of a score, by which records would change sides when a block has one row more.
    """
    lengths = np.maximum(np.linalg.norm(models, axis=1, keepdims=True), np.finfo(np.float64).tiny)
    scaled = models / lengths / task.max_norm
    return oracle_of(task.rows, CorrectPredictions()).clipped_losses(
        scaled, bound=1.0, relation=task.relation
    )


@dataclass(frozen=True)
class PrivateSelection(Flags):
    """Trains full-batch candidates on equal shares, then selects one privately.

    Guarantee: the composition of all candidates' Gaussians and the selection, by PLD: the candidates that
    lose are paid for as well.
    """

    candidates: tuple[tuple[Recipe, float], ...]  # a recipe and its regularization
    share: float = 0.15  # of the zCDP budget, for the selection
    name: ClassVar[str] = "private_selection"
    takes_partitions: ClassVar[bool] = True

    def plan(self, task: Task) -> Plan:
        check_method(self, task)
        if task.loss.outputs > 1 or task.target_bound is not None:
            raise AssumptionError("private selection by accuracy needs two classes")
        rho = self.share * conversions.zcdp_rho(task.epsilon, task.delta)
        steps = [recipe.steps for recipe, _ in self.candidates if recipe.steps is not None]
        if len(steps) < len(self.candidates):
            raise InputError("a private selection shares its budget by steps: every candidate needs steps=")
        choice = events.ZeroConcentrated(rho)
        z = accountants.least(
            lambda z: events.compose(events.repeat(events.gaussian(z), sum(steps)), choice),
            epsilon=task.epsilon, delta=task.delta, relation=task.relation,
        )  # fmt: skip
        parts = [self._with_noise(recipe, z, lam, task) for recipe, lam in self.candidates]
        plans = [recipe.plan(part) for recipe, part in parts]
        event = events.compose(*(plan.event for plan in plans), choice)
        details = {
            "candidates": [self._label(recipe, lam) for recipe, lam in self.candidates],
            "noise_multiplier": z,
            "selection_rho": rho,
            "steps": sum(steps),
        }
        return Plan(event, False, details, (), {"parts": parts, "plans": plans, "rho": rho})

    @staticmethod
    def _label(recipe: Recipe, lam: float) -> str:
        return f"{recipe.name}, regularization {lam:g}"

    @staticmethod
    def _with_noise(recipe: Recipe, z: float, lam: float, task: Task) -> tuple[Recipe, Task]:
        return recipe.with_parts(noise=FixedNoise(z)), replace(
            task, regularization=lam or task.regularization
        )

    def run(self, task: Task, plan: Plan, *, account: Account, noise: Noise) -> Fitted:
        pairs = zip(plan.state["parts"], plan.state["plans"], strict=True)
        fitted = [
            recipe.run(replace(part, rows=task.rows), p, account=account, noise=noise)
            for (recipe, part), p in pairs
        ]
        scores = correct_predictions(task, np.stack([f.coef.reshape(-1) for f in fitted]))
        rho: float = plan.state["rho"]
        # Scores are monotone when a record is added or removed, so half the noise does there.
        scale = (1 if task.relation == "add-or-remove-one" else 2) / (8 * rho) ** 0.5
        best = select(
            scores,
            scale=scale,
            mechanism="gumbel",
            monotone=True,
            event=events.ZeroConcentrated(rho),
            account=account,
            noise=noise,
        )
        winner: Fitted = fitted[best]
        winner.notes.append(f"selected privately: {self._label(*self.candidates[best])}")
        return winner
