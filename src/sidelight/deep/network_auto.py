"""auto for networks: a warm start on public records, and DP-SGD from there, by rules of public numbers alone.

    start        plain training on all public records, chosen on folds of them (problems/public_training.py);
                 without public records the network as it is
    plan         B = n/8, C = 1, 20 epochs or fewer (`plan_for`)
    steps        SGD with momentum; the step size is as long as the noise allows and falls along a cosine
    comparison   private records say how far to go from the start to the result (deep/paid_choice.py)

No step is taken, and no budget spent, where the noise would hide what private records say in a comparison,
and they weigh less than the public ones: n·μ < n_public, with μ that of Gaussian differential privacy.
Settings that the user gave are kept. Checkpoints hold the choice: a resumed run does not choose again.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Literal

from sidelight.arrays import Json
from sidelight.deep.gradient_points import RealPlan, Use, plan_for, step_size_for, use_of
from sidelight.deep.paid_choice import too_coarse
from sidelight.errors import InputError
from sidelight.methods.dope_sgd import NETWORK_LIMIT, OpenStart, PublicGradient, Warm
from sidelight.methods.part_kinds import Setting
from sidelight.methods.parts import Cold, ConstantNoise, Flat, Last
from sidelight.methods.recipe import Recipe
from sidelight.privacy import conversions
from sidelight.privacy.contract import delta_of
from sidelight.problems.network import NetworkProblem

if TYPE_CHECKING:
    from sidelight.deep.prepare import Preparation

Method = Literal["dp_sgd", "only_public"]


@dataclass(frozen=True)
class Choice:
    """What was chosen, and why. JSON can hold it."""

    method: Method
    batch: float
    steps: int
    step_size: float
    reasons: tuple[str, ...] = ()

    @property
    def details(self) -> Json:
        """The choice, for the report."""
        return {"chosen": self.method, "reasons": list(self.reasons)}

    def to_json(self) -> Json:
        return asdict(self)

    @classmethod
    def from_json(cls, saved: Json) -> Choice:
        return cls(**{**saved, "reasons": tuple(saved["reasons"])})


def recipe_of(choice: Choice, *, guided: bool) -> Recipe:
    """The recipe of a choice."""
    return Recipe(
        name="auto",
        start=Warm() if guided else Cold(),
        clip=Flat(1.0),
        noise=ConstantNoise(),
        finish=Last(),
        steps=choice.steps,
        expected_batch_size=choice.batch,
        step_size=choice.step_size,
    )


def choose(fit: Preparation, problem: NetworkProblem) -> Choice:
    """The whole plan; the model is left where training begins."""
    plan = real_plan(fit, problem.dimension)
    public = 0 if fit.public is None else len(fit.public)
    size = step_size_for(plan, public=_use(fit))
    if not public:
        if fit.trainer.warm_up is not None:
            raise InputError("warm_up trains on public records; pass a public dataset")
        why = "no public records: DP-SGD with a step size set by the length of its noise"
        return Choice("dp_sgd", plan.batch, plan.steps, size, (why,))
    problem.warm_up = replace(problem.warm_up, augment=problem.warm_up.augment or fit.trainer.public_augment)
    problem.pretrained(0.0)
    weight = plan.n * conversions.gdp_mu(plan.epsilon, plan.delta)
    blind = too_coarse(plan.n, epsilon=plan.epsilon, delta=plan.delta, relation=plan.relation)
    if blind and weight < public:
        why = (
            f"under this noise {plan.n:,} private records weigh as much as {weight:.0f} public ones, and "
            f"there are {public:,}: no budget is spent"
        )
        return Choice("only_public", plan.batch, plan.steps, size, (why,))
    why = "DP-SGD from a warm start on all public records, with a step size set by the length of its noise"
    return Choice("dp_sgd", plan.batch, plan.steps, size, (why,))


def real_plan(fit: Preparation, dimension: int) -> RealPlan:
    """Batch and steps as the user gave them, or a method has them, else by rule; and the noise they need."""
    n, trainer = fit.n, fit.trainer
    batch = trainer.expected_batch_size if fit.auto else fit.recipe.expected_batch_size
    return plan_for(
        n, dimension, epsilon=trainer.epsilon, delta=delta_of(trainer.delta, n, fit.payer),
        relation=fit.relation, batch=batch, steps=fit.recipe.steps, seed=fit.seed, public=_use(fit),
    )  # fmt: skip


def _use(fit: Preparation) -> Use:
    """What public records are for; of `auto`, a start from which the way may be cut short."""
    if not fit.auto:
        return use_of(fit.recipe)
    return "path" if fit.public is not None and len(fit.public) else "none"


# ---------------------------------------------------------------------------------------------------
# another method by its name: what it leaves open


def by_name(recipe: Recipe, *, guided: bool) -> Recipe:
    """A warm start where the paper leaves it open, and a short origin where its length is.

    A network's public gradient may be many times as long as a clipped private one.
    """
    if guided and isinstance(recipe.start, OpenStart):
        recipe = recipe.with_parts(start=Warm())
    if isinstance(recipe.origin, PublicGradient) and recipe.origin.limit is None:
        recipe = recipe.with_parts(origin=PublicGradient(NETWORK_LIMIT))
    return recipe


def step_size_by_rule(recipe: Recipe, setting: Setting, *, seed: int) -> float:
    """The first step size for a clip norm of 1, of the plan of the run with the noise of its first step."""
    multiplier = recipe.noise.begin(setting).at(0)
    plan = RealPlan(
        batch=setting.batch, steps=setting.steps, noise_multiplier=multiplier or 0.0, n=setting.n,
        epsilon=setting.epsilon, delta=setting.delta, relation=setting.relation, seed=seed,
    )  # fmt: skip
    return step_size_for(plan, public=use_of(recipe))
