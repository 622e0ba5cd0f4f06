"""How long the steps of a method are, and where it begins, where neither the user nor the method says.

A step is η/C: a contribution is no longer than the clip norm C, which some methods take from public
gradients, and η is what `auto` rehearses. The rule (`step_size_for`) gives a first η. With enough public
records to rehearse on, longer and shorter steps are tried under the noise of the real plan, and one that is
better by more than a standard error replaces the first. Where a paper leaves the start open a cold and a warm
one are rehearsed, each with step sizes of its own; and so are lengths of DOPE-SGD's origin, with the best of
them. No private record is read, and nothing is charged.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

from sidelight.arrays import Json
from sidelight.deep.gradient_points import RealPlan, Use, step_size_for, use_of
from sidelight.deep.network_auto import NetworkRehearsal, rehearsal_of
from sidelight.methods.dope_sgd import NETWORK_LIMIT, OpenStart, PublicGradient, Warm
from sidelight.methods.part_kinds import Setting
from sidelight.methods.recipe import Recipe
from sidelight.oracles.network.flat import read, tensor, write
from sidelight.problems.network import NetworkProblem
from sidelight.problems.network_public import Score

if TYPE_CHECKING:
    from sidelight.deep.prepare import Preparation

__all__ = ["Pace", "choose_pace"]

_FEWEST = 100  # public records, besides those set apart, without which a rehearsal says nothing
_ORIGIN_LIMITS = (NETWORK_LIMIT / 2, 2 * NETWORK_LIMIT)
_MOST_TRIALS = 6  # of step sizes, for each start
_LONGER = 1  # times that a step from a cold start may double: a rehearsal has fewer steps than the run


@dataclass(frozen=True)
class Pace:
    """What was chosen, and why. JSON can hold it."""

    step_size: float | None  # η; None: an optimizer, or a method, has its own
    origin_limit: float = NETWORK_LIMIT  # of an origin that leaves it open
    evidence: Json = field(default_factory=dict)

    def applied(self, recipe: Recipe) -> Recipe:
        """The recipe with this limit, if it has none of its own."""
        origin = recipe.origin
        if not (isinstance(origin, PublicGradient) and origin.limit is None):
            return recipe
        return recipe.with_parts(origin=PublicGradient(self.origin_limit))

    def to_json(self) -> Json:
        return asdict(self)


def choose_pace(fit: Preparation, problem: NetworkProblem, recipe: Recipe, setting: Setting) -> Pace:
    """The step size and the start; the model is left there."""
    trainer, learn, model = fit.trainer, fit.public, problem.oracle.model
    if trainer.optimizer is not None or recipe.step_size is not None:
        write(model, tensor(recipe.start(setting)))
        return Pace(None)
    stage = _stage(recipe, setting, fit.seed)
    few = learn is None or len(learn) < _FEWEST or problem.guide is None
    if learn is None or few or trainer.scheduler is not None:
        write(model, tensor(recipe.start(setting)))
        return Pace(_by_rule(recipe, stage, problem.dimension, use_of(recipe)))
    cold, warm = read(model), None
    if isinstance(recipe.start, OpenStart | Warm):
        begin = Warm() if isinstance(recipe.start, OpenStart) else recipe.start
        warm = tensor(begin(setting))
        write(model, cold)
    found = _Search(
        recipe, rehearsal_of(fit, problem, learn, stage), problem.dimension, warm=warm is not None
    )
    pace, is_warm = found.best()
    if warm is not None and is_warm:
        write(model, warm)
    elif warm is None:
        write(model, tensor(recipe.start(setting)))
    else:
        problem.public_training = {}  # a cold start did better
    return pace


def _stage(recipe: Recipe, setting: Setting, seed: int) -> RealPlan:
    """The plan of the run, with the noise of its first step."""
    multiplier = recipe.noise.begin(setting).at(0)
    return RealPlan(
        batch=setting.batch, steps=setting.steps, noise_multiplier=multiplier or 0.0, n=setting.n,
        epsilon=setting.epsilon, delta=setting.delta, relation=setting.relation, seed=seed,
    )  # fmt: skip


def _by_rule(recipe: Recipe, stage: RealPlan, dimension: int, use: Use) -> float:
    return (1 - recipe.momentum) * step_size_for(stage, dimension, public=use)


class _Search:
    """Step sizes of a recipe in a rehearsal, from a warm start, from a cold one, or from both."""

    def __init__(self, recipe: Recipe, rehearsal: NetworkRehearsal, dimension: int, *, warm: bool) -> None:
        self.recipe, self.rehearsal, self.dimension, self.warm = recipe, rehearsal, dimension, warm
        self.shown: dict[str, str] = {}

    def best(self) -> tuple[Pace, bool]:
        """The pace, and whether it is from a warm start."""
        open_start = isinstance(self.recipe.start, OpenStart)
        found = dict[bool, tuple[float, Score]]()
        if self.warm:
            found[True] = self._sizes(True)
        if open_start or not self.warm:
            found[False] = self._sizes(False)
        is_warm = min(found, key=lambda warm: found[warm][1].loss)
        size, score = found[is_warm]
        limit = self._limit(size, score, is_warm)
        evidence: Json = {"rehearsal": self.shown}
        if open_start:
            evidence["start"] = "warm" if is_warm else "cold"
        return Pace(size, limit, evidence), is_warm

    def _limit(self, size: float, best: Score, warm: bool) -> float:
        """The longest origin, if it is open."""
        found = NETWORK_LIMIT
        if self.recipe == Pace(None).applied(self.recipe):
            return found
        for limit in _ORIGIN_LIMITS:
            if self.rehearsal.out_of_time:
                break
            score = self._run(size, warm, Pace(size, limit))
            gain, error = score.gain_over(best)
            if gain > error:
                found, best = limit, score
        return found

    def _sizes(self, warm: bool) -> tuple[float, Score]:
        r, use = self.rehearsal, use_of(self.recipe)
        first = _by_rule(self.recipe, r.stage, self.dimension, "mixed" if warm and use == "none" else use)
        longer = _MOST_TRIALS if warm else _LONGER
        return _searched(
            lambda size: self._run(size, warm, Pace(size)), first, longer=longer, ended=lambda: r.out_of_time
        )

    def _run(self, size: float, warm: bool, pace: Pace) -> Score:
        r, recipe = self.rehearsal, pace.applied(self.recipe)
        score = r.run(recipe, size, r.start if warm else r.cold)
        around = "" if recipe == self.recipe else f", origin limit {pace.origin_limit:g}"
        self.shown[f"{'warm' if warm else 'cold'} start, step size {size:.3g}{around}"] = str(score)
        return score


def _searched(
    run: Callable[[float], Score], first: float, *, longer: int, ended: Callable[[], bool]
) -> tuple[float, Score]:
    """Double the step while that helps; if it does not, halve it while that helps."""
    tried = {first: run(first)}
    best = first
    for factor, most in ((2.0, longer), (0.5, _MOST_TRIALS)):
        size = first
        for _ in range(most):
            if ended() or len(tried) >= _MOST_TRIALS:
                break
            size *= factor
            tried[size] = run(size)
            gain, error = tried[size].gain_over(tried[best])
            if not gain > error:
                break
            best = size
        if best != first:
            break
    return best, tried[best]
