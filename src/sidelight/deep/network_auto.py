"""auto for networks: every choice from public records and public numbers, before anything is charged.

With public records: a warm start on them; B = n/30, C = 1, and 20 epochs, or fewer where the noise of a step
would be long; beside the private gradient a public one of length 1 at most (Coupling); step size, weight and
method by a rehearsal under the real plan's noise (`NetworkRehearsal`). If the rehearsed private steps do not
help, none is taken and nothing is spent. Without public records: DP-SGD with the same plan and a step size by
rule. Settings that the user gave are kept. Checkpoints hold the choice: a resumed run does not choose again.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import ConcatDataset, Dataset, Subset

from sidelight.arrays import Json
from sidelight.augment.transforms import Augment, augmented
from sidelight.deep.gradient_points import RealPlan, at_point, plan_for, step_size_for
from sidelight.deep.guard import decayed_sgd
from sidelight.errors import AssumptionError, InputError
from sidelight.methods.auto import NoAccount
from sidelight.methods.coupling import Weight, pooled_weight
from sidelight.methods.dope_sgd import NETWORK_LIMIT, PublicGradient, Warm
from sidelight.methods.parts import BestOnPublic, Cold, ConstantNoise, FixedNoise, Flat, Last, PrivateOnly
from sidelight.methods.precision import SPREAD, public_precision
from sidelight.methods.recipe import Recipe
from sidelight.oracles.network.batches import Batch, Ready, take
from sidelight.oracles.network.flat import read, trainable, write
from sidelight.oracles.network.layers import refresh_norms
from sidelight.oracles.network.network_oracle import NetworkOracle
from sidelight.oracles.network.passes import records_a_pass
from sidelight.privacy.contract import delta_of
from sidelight.privacy.events import Indices
from sidelight.privacy.noise import Noise
from sidelight.problems.datasets import Records
from sidelight.problems.network import Batches, NetworkProblem
from sidelight.problems.network_public import (
    Average,
    HeldOut,
    NetworkGuide,
    PublicTraining,
    Score,
    plain_steps,
    with_rate,
)

if TYPE_CHECKING:
    from sidelight.deep.prepare import Preparation

__all__ = [
    "Choice", "NetworkRehearsal", "choose", "real_plan", "recipe_of", "rehearsal_of",
]  # fmt: skip

_STEP_SIZES = (2.0, 1.0, 4.0, 0.5)  # in the order in which they are rehearsed
_LIMIT = 1.0  # the longest public gradient
_DIAGNOSED = 512  # public records and stand-ins whose gradients are looked at
_FEWEST = 100  # public records, besides those set apart, without which a rehearsal says nothing
_ROWS, _FEWEST_ROWS = 128, 32  # of a batch that stands in for a private one, at most and at least
_REHEARSED_EPOCHS = 20  # over the stand-ins: they are few, and are not to be learned by heart
_SHARE = 0.2  # of the training time, at most
_LEAST_SECONDS = 5.0  # that a rehearsal may take in any case

Method = Literal["coupling", "dope_sgd", "dp_sgd", "only_public"]


@dataclass(frozen=True)
class Choice:
    """What was chosen, and why. JSON can hold it."""

    method: Method
    batch: float
    steps: int
    step_size: float
    weight: float = 0.0
    reasons: tuple[str, ...] = ()
    evidence: Json = field(default_factory=dict, compare=False)

    @property
    def details(self) -> Json:
        """The choice and its evidence, for the report."""
        chosen: Json = {"chosen": self.method, "reasons": list(self.reasons), **self.evidence}
        return chosen if self.method == "only_public" else {**chosen, "step_size": self.step_size}

    def to_json(self) -> Json:
        return asdict(self)

    @classmethod
    def from_json(cls, saved: Json) -> Choice:
        return cls(**{**saved, "reasons": tuple(saved["reasons"])})


def recipe_of(choice: Choice, *, guided: bool) -> Recipe:
    """The recipe of a choice."""
    mixed = choice.method == "coupling"
    return Recipe(
        name="auto",
        start=Warm() if guided else Cold(),
        origin=PublicGradient(NETWORK_LIMIT) if choice.method == "dope_sgd" else None,
        clip=Flat(1.0),
        noise=ConstantNoise(),
        mix=Weight(choice.weight, _LIMIT) if mixed else PrivateOnly(),
        finish=BestOnPublic() if guided else Last(),
        steps=choice.steps,
        expected_batch_size=choice.batch,
        step_size=choice.step_size,
    )


def choose(fit: Preparation, problem: NetworkProblem) -> Choice:
    """The whole plan; the model is left where training begins."""
    stage = real_plan(fit, problem.dimension)
    learn = fit.public
    guided = learn is not None and len(learn) > 0
    step_size = step_size_for(stage, problem.dimension, public="mixed" if guided else "none")
    base = Choice("dp_sgd", stage.batch, stage.steps, step_size)
    if learn is not None and guided:
        pooled = pooled_weight(n_public=len(learn), n_private=stage.n)
        return _guided(replace(base, method="coupling", weight=pooled), fit, problem, learn, stage)
    if fit.trainer.warm_up is not None:
        raise InputError("warm_up trains on public records; pass a public dataset")
    why = "no public records: DP-SGD with a step size set by the length of its noise"
    return replace(base, reasons=(why,))


def _guided(
    base: Choice, fit: Preparation, problem: NetworkProblem, learn: Records, stage: RealPlan
) -> Choice:
    """A warm start, and what a rehearsal says."""
    trainer, model = fit.trainer, problem.oracle.model
    problem.warm_up = replace(problem.warm_up, augment=problem.warm_up.augment or trainer.public_augment)
    before = read(model)
    warm = problem.pretrained(0.0)
    if len(learn) < _FEWEST or trainer.optimizer is not None:
        few = len(learn) < _FEWEST
        why = f"{len(learn):,} public records are few" if few else "the optimizer is the user's"
        return replace(base, reasons=(f"{why}: nothing was rehearsed; public records count by their share",))
    write(model, before)
    rehearsal = rehearsal_of(fit, problem, learn, stage)
    write(model, warm)
    return _rehearsed(base, rehearsal, noise_weight=_noise_weight(stage, problem.dimension, len(learn)))


def rehearsal_of(
    fit: Preparation, problem: NetworkProblem, learn: Records, stage: RealPlan
) -> NetworkRehearsal:
    """A rehearsal with the warm start that was chosen, if there is one; the model stands before it."""
    found = problem.public_training
    rehearsal = NetworkRehearsal(
        problem.oracle, learn, fit.held_out, stage, augment=fit.trainer.public_augment,
        warm_up=_same_training(problem) if found else problem.warm_up,
        share=_kept_share(problem) if found else 0.0, averaged=found.get("kept") == "average",
    )  # fmt: skip
    rehearsal.limit_time(stage.steps * _seconds_a_step(problem.oracle, learn, stage.batch))
    return rehearsal


def _noise_weight(stage: RealPlan, dimension: int, n_public: int) -> float:
    """The weight that public gradients have by precision, which the noise of private ones makes larger."""
    kappa = public_precision(
        n_public=n_public, n_private=stage.n, dimension=dimension, noise_multiplier=stage.noise_multiplier,
        sensitivity_factor=1 if stage.relation == "add-or-remove-one" else 2, batch=stage.batch,
        steps=stage.steps, spread=SPREAD,
    )  # fmt: skip
    return kappa / (1 + kappa)


def real_plan(fit: Preparation, dimension: int) -> RealPlan:
    """Batch and steps as the user gave them, else by rule; and the noise that they need."""
    n, trainer = fit.n, fit.trainer
    return plan_for(
        n, dimension, epsilon=trainer.epsilon, delta=delta_of(trainer.delta, n, fit.payer),
        relation=fit.relation, batch=fit.recipe.expected_batch_size, steps=fit.recipe.steps, seed=fit.seed,
    )  # fmt: skip


def _kept_share(problem: NetworkProblem) -> float:
    """The part of its steps after which the warm start was best."""
    found = problem.public_training
    return int(found["kept_after"]) / max(1, int(found["steps"])) if "kept_after" in found else 1.0


def _same_training(problem: NetworkProblem) -> PublicTraining:
    """The warm start as it was chosen, for the public records of the rehearsal, which are fewer."""
    how, found = problem.warm_up, problem.public_training
    if how.steps is not None:
        return how
    fewer = replace(how, steps=max(100, int(found["steps"]) // 2))
    return fewer if how.optimizer is not None else with_rate(fewer, float(found["step_size"]))


# ---------------------------------------------------------------------------------------------------
# the rehearsal: step sizes first, then weights and an origin with the best of them
#
# It has far fewer stand-ins than there are private records, and so thinks too well of public gradients, which
# keep a network from learning the stand-ins by heart. Public records count by their share, n_pub/(n_pub + n),
# unless something else is better by more than two standard errors. And what is better than the warm start
# must also be better than as many steps along public gradients alone, which cost nothing.


def _rehearsed(base: Choice, rehearsal: NetworkRehearsal, *, noise_weight: float) -> Choice:
    tried: dict[Choice, Score] = {}
    for step_size in _STEP_SIZES:
        _try(replace(base, step_size=step_size), rehearsal, tried)
    best = min(tried, key=lambda one: tried[one].loss)
    others = (
        replace(best, method="dp_sgd", weight=0.0),
        replace(best, weight=noise_weight),
        replace(best, method="dope_sgd", weight=0.0),
    )
    for other in others:
        _try(other, rehearsal, tried)
        better, error = tried[other].gain_over(tried[best]) if other in tried else (0.0, 0.0)
        best = other if better > 2 * error else best
    return _if_worth_it(best, tried, rehearsal)


def _if_worth_it(best: Choice, tried: dict[Choice, Score], rehearsal: NetworkRehearsal) -> Choice:
    """The best candidate, or no private steps at all; with the evidence."""
    control = replace(best, method="coupling", weight=1.0)  # public steps alone
    without = rehearsal.run(recipe_of(control, guided=True), control.step_size)
    gain, error = tried[best].gain_over(min(rehearsal.start_score, without, key=lambda score: score.loss))
    evidence: Json = {
        "diagnosis": rehearsal.diagnosed(),
        "rehearsal": {_label(one): str(score) for one, score in tried.items()},
        "rehearsed_start": str(rehearsal.start_score),
        "rehearsed_public_steps": str(without),
        "rehearsed_gain": f"{gain:.4f} ± {error:.4f}",
        "rehearsed_with": (
            f"{len(rehearsal.public):,} public records as public, {len(rehearsal.stand_ins):,} as private, "
            f"{len(rehearsal.judge)} to score; {rehearsal.steps} steps with the noise of the real plan"
        ),
    }
    if not gain > _worth(rehearsal.start_score):
        why = "in the rehearsal private steps were no better than public records alone: no budget is spent"
        return replace(best, method="only_public", reasons=(why,), evidence=evidence)
    why = f"{_label(best)} did best in a rehearsal on public records, and better than these alone"
    return replace(best, reasons=(why,), evidence=evidence)


def _worth(start: Score) -> float:
    """The least gain that is worth a budget: of cross-entropy 0.001, of other losses a hundredth."""
    return 0.001 if start.accuracy is not None else 0.01 * abs(start.loss)


def _try(one: Choice, rehearsal: NetworkRehearsal, tried: dict[Choice, Score]) -> None:
    """Rehearse a candidate, unless time is up; the first is rehearsed in any case."""
    if one not in tried and not (tried and rehearsal.out_of_time):
        tried[one] = rehearsal.run(recipe_of(one, guided=True), one.step_size)


def _label(one: Choice) -> str:
    if one.method == "dope_sgd":
        return f"dope_sgd, origin limit {NETWORK_LIMIT:g}, step size {one.step_size:g}"
    weighted = f"coupling, weight {one.weight:.3g}" if one.method == "coupling" else "dp_sgd"
    return f"{weighted}, step size {one.step_size:g}"


class _PublicBatches(Batches):
    """Public records in the place of private ones."""

    def __init__(self, records: Records) -> None:
        self._records = records

    def of(self, indices: Indices | None) -> Iterable[Ready]:
        return [Ready(self._records.fetch(indices))]

    def empty(self) -> Batch:
        return take(self._records.fetch([0]), slice(0, 0))


class NetworkRehearsal:
    """Private steps on public records, under the noise of the real plan.

    Some public records play the public ones: the network is warm-started on them, and they give the public
    gradients. Others play the private ones. The rest, with those that were set apart, scores. A rehearsed
    batch is smaller than a real one, and the noise multiplier is smaller by the same factor: the noise of the
    averaged gradient, which decides most, is that of the real plan. No private record is read: everything
    here is a function of public records and public numbers, and nothing is charged.

    Args:
        oracle: of the model, which stands at the parameters that training would begin with; it is left there.
        learn, held_out: public records; the second are those that nothing is trained on.
        warm_up: the training on public records, with a number of steps and an optimizer.
        share: the part of these steps that is taken.
        averaged: whether it ends in the average of its iterates.
        augment: for public batches.
    """

    def __init__(
        self,
        oracle: NetworkOracle,
        learn: Records,
        held_out: Records | None,
        stage: RealPlan,
        *,
        warm_up: PublicTraining,
        share: float,
        augment: Augment | None,
        averaged: bool = False,
    ) -> None:
        self.oracle, self.stage, self.augment = oracle, stage, augment
        self.public, self.stand_ins, judges = _roles(learn, held_out, stage)
        self.judge = HeldOut(oracle, judges)
        self.steps = max(1, min(stage.steps, max(60, stage.steps // 6)))
        passes = math.ceil(_REHEARSED_EPOCHS * len(self.stand_ins) / self.steps)
        self.batch = float(min(_ROWS, len(self.stand_ins), max(passes, _FEWEST_ROWS), math.ceil(stage.batch)))
        before = self.cold = read(oracle.model)
        taken = round(share * warm_up.steps_for(len(self.public)))
        average = Average(before)

        def each(step: int) -> bool:
            average.add(step, read(oracle.model))
            return step + 1 < taken

        if taken:
            plain_steps(oracle, self.public, warm_up, seed=stage.seed, each=each)
        self.start = average.value if averaged and taken else read(oracle.model)
        write(oracle.model, self.start)
        self.start_score = self.judge.score()
        write(oracle.model, before)
        self.began, self.seconds_allowed = time.process_time(), math.inf

    def limit_time(self, seconds_of_training: float) -> None:
        """Stop after a fifth of the processor time that training is expected to take."""
        self.began = time.process_time()
        self.seconds_allowed = max(_LEAST_SECONDS, _SHARE * seconds_of_training)

    @property
    def out_of_time(self) -> bool:
        return time.process_time() - self.began > self.seconds_allowed

    def diagnosed(self) -> Json:
        """What the noise leaves of a gradient at the warm start, with unseen stand-ins (`diagnosis`)."""
        before = read(self.oracle.model)
        write(self.oracle.model, self.start)
        rows = [np.arange(min(_DIAGNOSED, len(some))) for some in (self.public, self.stand_ins)]
        public = augmented(self.augment, *self.public.fetch(rows[0]))
        point = at_point(
            self.oracle, public, self.stand_ins.fetch(rows[1]), self.stage, where="warm start",
            loss=self.start_score.loss,
        )  # fmt: skip
        write(self.oracle.model, before)
        return {**asdict(point), "method": point.method, "words": point.words}

    def run(self, recipe: Recipe, step_size: float, start: Tensor | None = None) -> Score:
        """How well the recipe does with this step size, for a clip norm of 1; the model is left as it was.

        start: None is the warm one.
        """
        before = read(self.oracle.model)
        try:
            self._train(recipe, step_size, self.start if start is None else start)
            return self.judge.score()
        except AssumptionError:  # it diverged
            return Score(np.array([math.inf]))
        finally:
            write(self.oracle.model, before)

    def _train(self, recipe: Recipe, step_size: float, start: Tensor) -> None:
        s, oracle = self.stage, self.oracle
        guide = NetworkGuide(
            oracle, self.public, batch_size=_ROWS, seed=s.seed, augment=self.augment
        )  # fmt: skip
        problem = NetworkProblem(
            oracle, n=len(self.stand_ins), guide=guide, batches=_PublicBatches(self.stand_ins), seed=s.seed,
            micro_batch=records_a_pass(self.batch),
        )  # fmt: skip
        write(oracle.model, start)
        played = recipe.with_parts(
            start=Cold(), finish=Last(), steps=self.steps, expected_batch_size=self.batch,
            noise=FixedNoise(s.noise_multiplier * self.batch / s.batch),
        )  # fmt: skip
        setting = played.setting(problem, epsilon=s.epsilon, delta=s.delta, relation=s.relation)
        problem.begin_step(0)
        torch.manual_seed(s.seed)  # the same public batches and augmentation for every candidate
        loop = played.begin(setting)
        size = step_size / loop.first_clip.bound
        optimizer, schedule = decayed_sgd(trainable(oracle.model), size, self.steps)

        def move() -> None:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            refresh_norms(oracle.model)
            schedule.step()

        problem.move = move
        loop.train(account=NoAccount(), noise=Noise(s.seed))


def _roles(learn: Records, held_out: Records | None, stage: RealPlan) -> tuple[Records, Records, Records]:
    """Public records as public ones, as private ones, and as judges.

    Of those to learn from a fifth judges. The rest is shared as public and private records are, but at most
    three fifths of it are private: a warm start needs its own.
    """
    order = np.random.default_rng([stage.seed, 2**42]).permutation(len(learn))
    judges, rest = order[: len(order) // 5], order[len(order) // 5 :]
    private = max(2, round(len(rest) * min(0.6, stage.n / (stage.n + len(learn)))))
    parts = [np.sort(some).tolist() for some in (rest[private:], rest[:private], judges)]
    public, stand_ins, scoring = (Subset(learn.dataset, rows) for rows in parts)
    judging = scoring if held_out is None else ConcatDataset([scoring, held_out.dataset])

    def records(some: Dataset[object]) -> Records:
        return Records(some, learn.loading, learn.device)

    return records(public), records(stand_ins), records(judging)


def _seconds_a_step(oracle: NetworkOracle, records: Records, batch: float) -> float:
    """What the sum over a private batch of this size takes, measured on public records."""
    rows = min(len(records), math.ceil(batch), _DIAGNOSED)
    some, found = records.fetch(np.arange(rows)), list[float]()
    for _ in range(2):  # the first time the model is examined
        began = time.process_time()
        oracle.norms(some)
        found.append(time.process_time() - began)
    return min(found) * batch / rows
