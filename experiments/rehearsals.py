"""A rehearsal of private steps on public records, for experiments that choose a step size by one.

Some public records play the private ones, under the noise of the real plan. `Trainer` chose so until its
default became a rule: the verdicts of a few hundred records were no better than one setting for all.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import ConcatDataset, Dataset, Subset

from sidelight.arrays import Json
from sidelight.audit.tape import NoAccount
from sidelight.augment.transforms import Augment, augmented
from sidelight.deep import gradient_points as rules
from sidelight.deep.gradient_points import RealPlan, Use, at_point
from sidelight.errors import AssumptionError
from sidelight.methods.parts import Cold, FixedNoise, Last
from sidelight.methods.recipe import Recipe
from sidelight.oracles.network.batches import Batch, Ready, take
from sidelight.oracles.network.flat import trainable
from sidelight.oracles.network.layers import refresh_norms
from sidelight.oracles.network.network_oracle import NetworkOracle
from sidelight.oracles.network.passes import records_a_pass
from sidelight.privacy.events import Indices, Relation
from sidelight.privacy.noise import Noise
from sidelight.problems.datasets import Records
from sidelight.problems.flat_parameters import read, write
from sidelight.problems.network import Batches, NetworkProblem
from sidelight.problems.network_public import HeldOut, NetworkGuide, Score
from sidelight.problems.public_training import PublicTraining, plain_steps

__all__ = ["Average", "NetworkRehearsal", "decayed_sgd", "decaying", "plan_for", "step_size_for"]

_WALKS = {"none": (15.0, 6.0), "mixed": (10.0, 4.0), "origin": (10.0, 2.0), "scaled": (5.0, 2.0)}
_LONG_NOISE = 0.3  # of C: with longer noise in one step, fewer steps
_ROWS, _FEWEST_ROWS = 128, 32  # of a batch that stands in for a private one, at most and at least
_REHEARSED_EPOCHS = 20  # over the stand-ins: they are few, and are not to be learned by heart
_MOST = 512  # public records and stand-ins whose gradients are looked at
_SHARE = 0.2  # of the training time, at most
_LEAST_SECONDS = 5.0  # that a rehearsal may take in any case


def plan_for(
    n: int,
    dimension: int,
    *,
    epsilon: float,
    delta: float,
    relation: Relation,
    batch: float | None = None,
    steps: int | None = None,
    seed: int = 0,
) -> RealPlan:
    """The plan that `Trainer` had then: B = n/30, and fewer steps where the noise of one is long."""
    size = min(float(n), batch or (n if n <= 1024 else max(512, math.ceil(n / 30))))
    how: dict[str, Any] = {
        "epsilon": epsilon,
        "delta": delta,
        "relation": relation,
        "batch": size,
        "seed": seed,
    }
    plan = rules.plan_for(n, dimension, steps=steps or max(50, round(20 * n / size)), **how)
    while steps is None and plan.steps >= 100 and plan.noise * math.sqrt(dimension) > _LONG_NOISE:
        plan = rules.plan_for(n, dimension, steps=plan.steps // 2, **how)
    return plan


def decaying(step: int, steps: int) -> float:
    """The share of the step size at this step: all of it in the first half, then in a line to nothing."""
    return min(1.0, 2 * (steps - step) / max(1, steps))


def decayed_sgd(
    parameters: Iterable[torch.nn.Parameter], step_size: float, steps: int
) -> tuple[torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler]:
    """Plain SGD whose step size decays."""
    optimizer = torch.optim.SGD(parameters, lr=step_size)
    return optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: decaying(step, steps))


def step_size_for(plan: RealPlan, dimension: int, *, public: Use) -> float:
    """The rule that `Trainer` had then: the noise of all steps moves all parameters so far together."""
    distance, longest = _WALKS[public]
    walked = distance / (plan.noise * math.sqrt(dimension) * math.sqrt(plan.steps))
    return min(longest, max(0.25, walked))


class Average:
    """A running average of iterates in which the s-th weighs as much as s."""

    def __init__(self, start: Tensor) -> None:
        self._dtype, self._sum = start.dtype, start.double()

    def add(self, step: int, params: Tensor) -> None:
        """Add the iterate after step `step`, which counts from 0."""
        self._sum.add_(params.double() - self._sum, alpha=2 / (step + 2))

    @property
    def value(self) -> Tensor:
        return self._sum.to(self._dtype)


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
        rows = [np.arange(min(_MOST, len(some))) for some in (self.public, self.stand_ins)]
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
