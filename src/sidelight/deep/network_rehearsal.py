"""A rehearsal for networks: private steps on public records, under the noise of the real plan.

Some public records play the public ones: the network is warm-started on them, and they give the public
gradients. Others play the private ones. The rest, with those that were set apart, scores. A rehearsed batch
is smaller than a real one, and the noise multiplier is smaller by the same factor: the noise of the averaged
gradient, which decides most, is that of the real plan. No private record is read: everything here is a
function of public records and public numbers, and nothing is charged.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
import torch
from torch.utils.data import ConcatDataset, Subset

from sidelight.errors import AssumptionError
from sidelight.methods.dp_sgd import FixedNoise
from sidelight.methods.recipe import Cold, Last, Recipe
from sidelight.oracles.network.batches import Batch, Records, take
from sidelight.oracles.network.flat import read, trainable, write
from sidelight.oracles.network.layers import refresh_norms
from sidelight.oracles.network.network_oracle import NetworkOracle, records_a_pass
from sidelight.privacy.events import Event, Relation
from sidelight.privacy.noise import Noise
from sidelight.problems.network import Batches, NetworkProblem
from sidelight.problems.network_public import (
    Augment,
    HeldOut,
    NetworkGuide,
    PublicTraining,
    Score,
    plain_steps,
)
from sidelight.samplers import Indices

__all__ = ["FEWEST", "NetworkRehearsal", "RealPlan", "decayed_sgd", "decaying", "seconds_a_step"]

FEWEST = 100  # public records, besides those set apart, without which a rehearsal says nothing
_ROWS, _FEWEST_ROWS = 128, 32  # of a batch that stands in for a private one, at most and at least
_EPOCHS = 20  # over the stand-ins: they are few, and are not to be learned by heart
_SHARE = 0.2  # of the training time, at most
_LEAST_SECONDS = 5.0  # that a rehearsal may take in any case


def decaying(step: int, steps: int) -> float:
    """The share of the step size at this step: all of it in the first half, then in a line to nothing."""
    return min(1.0, 2 * (steps - step) / max(1, steps))


def decayed_sgd(
    parameters: Iterable[torch.nn.Parameter], step_size: float, steps: int, *, scale: Callable[[], float]
) -> tuple[torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler]:
    """SGD whose step size decays; `scale` shortens it further while the run goes on."""
    optimizer = torch.optim.SGD(parameters, lr=step_size)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: scale() * decaying(step, steps))
    return optimizer, schedule


@dataclass(frozen=True)
class RealPlan:
    """The real plan, as far as a rehearsal needs it; all of it public."""

    batch: float  # B
    steps: int  # T
    noise_multiplier: float
    n: int  # private records
    epsilon: float
    delta: float
    relation: Relation
    seed: int


class _PublicBatches(Batches):
    """Public records in the place of private ones."""

    def __init__(self, records: Records) -> None:
        self._records = records

    def of(self, indices: Indices | None) -> Iterable[Batch]:
        return [self._records.fetch(indices)]

    def empty(self) -> Batch:
        return take(self._records.fetch([0]), slice(0, 0))


class _NoAccount:
    """Public records cost nothing."""

    def charge(self, event: Event) -> None: ...


class NetworkRehearsal:
    """Public records in three roles, and a network that was warm-started on one of them.

    Args:
        oracle: of the model, which stands at the parameters that training would begin with; it is left there.
        learn, held_out: public records; the second are those that nothing is trained on.
        warm_up: the training on public records, with a number of steps and an optimizer.
        share: the part of these steps that is taken.
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
    ) -> None:
        self.oracle, self.stage, self.augment = oracle, stage, augment
        self.public, self.stand_ins, judges = _roles(learn, held_out, stage)
        self.judge = HeldOut(oracle, judges)
        self.steps = max(1, min(stage.steps, max(60, stage.steps // 6)))
        passes = math.ceil(_EPOCHS * len(self.stand_ins) / self.steps)
        self.batch = float(min(_ROWS, len(self.stand_ins), max(passes, _FEWEST_ROWS), math.ceil(stage.batch)))
        before = read(oracle.model)
        taken = round(share * warm_up.steps_for(len(self.public)))
        if taken:
            plain_steps(oracle, self.public, warm_up, seed=stage.seed, each=lambda step: step + 1 < taken)
        self.start = read(oracle.model)
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

    def run(self, recipe: Recipe, step_size: float) -> Score:
        """How well the recipe does with this step size; the model is left as it was."""
        before = read(self.oracle.model)
        try:
            self._train(recipe, step_size)
            return self.judge.score()
        except AssumptionError:  # it diverged
            return Score(np.array([math.inf]))
        finally:
            write(self.oracle.model, before)

    def _train(self, recipe: Recipe, step_size: float) -> None:
        s, oracle = self.stage, self.oracle
        guide = NetworkGuide(
            oracle, self.public, batch_size=_ROWS, seed=s.seed, augment=self.augment
        )  # fmt: skip
        problem = NetworkProblem(
            oracle, n=len(self.stand_ins), guide=guide, batches=_PublicBatches(self.stand_ins), seed=s.seed,
            micro_batch=records_a_pass(self.batch),
        )  # fmt: skip
        write(oracle.model, self.start)
        optimizer, schedule = decayed_sgd(
            trainable(oracle.model), step_size, self.steps, scale=lambda: 1.0
        )  # fmt: skip

        def move() -> None:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            refresh_norms(oracle.model)
            schedule.step()

        problem.move = move
        played = recipe.with_parts(
            start=Cold(), finish=Last(), steps=self.steps, expected_batch_size=self.batch,
            noise=FixedNoise(s.noise_multiplier * self.batch / s.batch),
        )  # fmt: skip
        setting = played.setting(problem, epsilon=s.epsilon, delta=s.delta, relation=s.relation)
        problem.begin_step(0)
        torch.manual_seed(s.seed)  # the same public batches and augmentation for every candidate
        played.begin(setting).train(account=_NoAccount(), noise=Noise(s.seed))


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
    return tuple(Records(some, learn.loading, learn.device) for some in (public, stand_ins, judging))  # type: ignore[return-value]


def seconds_a_step(oracle: NetworkOracle, records: Records, batch: float) -> float:
    """What the sum over a private batch of this size takes, measured on public records."""
    rows = min(len(records), math.ceil(batch), oracle.pass_size)
    some, found = records.fetch(np.arange(rows)), list[float]()
    for _ in range(2):  # the first time the model is examined
        began = time.process_time()
        oracle.norms(some)
        found.append(time.process_time() - began)
    return min(found) * batch / rows
