"""A network: its private batches come from a source, and an optimizer moves its parameters."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from sidelight.arrays import Floats, Json, Vector
from sidelight.clipping import Clip, Details, Metric
from sidelight.errors import INTERRUPTS, InputError
from sidelight.oracles.network.batches import Batch, Ready, row_count
from sidelight.oracles.network.flat import tensor
from sidelight.oracles.network.network_oracle import NetworkOracle
from sidelight.privacy.events import Indices, Relation, Sampler
from sidelight.privacy.noise import Noise
from sidelight.privacy.release import BoundedSum, joined
from sidelight.problems.base import Constants, Problem
from sidelight.problems.datasets import Records
from sidelight.problems.flat_parameters import read, set_gradients, write
from sidelight.problems.network_public import HeldOut, NetworkGuide
from sidelight.problems.network_ranks import Ranks, Seeds, SumQuestion
from sidelight.problems.public_training import PublicTraining, train_well


class Batches:
    """Where private records come from, in batches of one shape."""

    def of(self, indices: Indices | None) -> Iterable[Ready]:
        """The records at these indices (None: all) as the model sees them: augmented, if records are, and
        perhaps of several shapes. There may be none."""
        raise NotImplementedError

    def empty(self) -> Batch:
        """A batch without records."""
        raise NotImplementedError

    def forgives(self, batch: Batch) -> bool:
        """Whether a batch that the model refuses, for the shape of its records, is left out silently."""
        return False


class NetworkProblem(Problem):
    """A model under an oracle. Nothing of its loss is known in advance.

    Args:
        n: private records, or persons.
        guide: public records, or None.
        batches: private ones; None until they may be read.
        warm_up: how plain training on public records is done.
        augmentations: that many consecutive rows of a batch are one record, or one person.
        unit: what one of the n is: "record", or what names persons.
        ranks: processes that sum a share of each batch, of which this one is rank 0, or None; `seeds` are
            then those that oracle and batches draw from.
    """

    has_optimizer = True
    public_from = "a public dataset"
    constants: ClassVar[Constants] = Constants()

    def __init__(
        self,
        oracle: NetworkOracle,
        *,
        n: int,
        guide: NetworkGuide | None = None,
        batches: Batches | None = None,
        warm_up: PublicTraining | None = None,
        seed: int = 0,
        augmentations: int = 1,
        micro_batch: int | None = None,
        unit: str = "record",
        ranks: Ranks | None = None,
        seeds: Seeds | None = None,
    ) -> None:
        self.oracle, self.guide, self.batches = oracle, guide, batches
        self._unit, self.ranks, self.seeds = unit, ranks, seeds
        self.warm_up, self.seed = warm_up or PublicTraining(), seed
        self.augmentations, self.micro_batch = augmentations, micro_batch
        self.move: Callable[[], None] | None = None  # an optimizer's step
        self.score: Callable[[int], Details] | None = None  # scores on held-out public records, after a step
        self.schedule: Callable[[int], tuple[float, ...]] | None = None  # step sizes of a number of steps
        self.decay = 0.0  # the share of the parameters that a longest step of the optimizer takes off
        self.public_training: Json = {}  # what was chosen for the warm start, and why
        self._n = n

    @property
    def n(self) -> int:
        return self._n

    @property
    def unit(self) -> str:  # type: ignore[override]
        return self._unit

    @property
    def dimension(self) -> int:
        return self.oracle.dimension

    @property
    def public(self) -> NetworkGuide | None:
        return self.guide

    @property
    def details(self) -> Details:
        chosen = {"public_training": self.public_training} if self.public_training else {}
        return {"parameters": self.dimension, **chosen}

    def default_clip_norm(self) -> float:
        """1. It is not a bound on gradients and need not be one."""
        return 1.0

    # -----------------------------------------------------------------------------------------------
    # public records

    def start(self) -> Tensor:
        """Where the network is: at zero all its units would stay alike."""
        return read(self.oracle.model)

    def pretrained(self, lam: float) -> Tensor:
        """Plain steps on public records, as `warm_up` says; `lam` is not used."""
        self.public_training = train_well(self.oracle, self._records(), self.warm_up, seed=self.seed)
        return read(self.oracle.model)

    @property
    def held_out(self) -> HeldOut | None:
        """Public records that nothing is trained on, to score networks with."""
        records = None if self.guide is None else self.guide.held_out
        return None if records is None or not len(records) else HeldOut(self.oracle, records)

    def refit(self, params: Vector, lam: float) -> Tensor:
        """Plain steps from `params`, pulled toward them; chosen as those of a warm start are."""
        start = tensor(params)
        write(self.oracle.model, start)
        train_well(self.oracle, self._records(), self.warm_up, seed=self.seed, pull=(start, lam))
        return read(self.oracle.model)

    def public_smoothness(self) -> float | None:
        """Estimated at the present parameters."""
        return None if self.guide is None else self.guide.smoothness()

    def longest_direction(self, metric: Metric) -> None:
        return None

    def public_loss(self, params: Vector) -> float | None:
        """The loss that came with the last public gradient."""
        return None if self.guide is None else self.guide.last_loss

    def held_out_losses(self, params: Vector) -> Floats | None:
        judge = self.held_out
        return None if judge is None else judge.score_at(params).losses

    def scores(self, step: int) -> Details:
        found = {} if self.score is None else self.score(step)
        return {**found, **self._route()} if step == 1 else found

    def _route(self) -> Details:
        """How gradients are taken, and why by no faster way: for the first line of the history."""
        route = self.oracle.route
        return {"route": route.kind} | ({"route_reason": route.reason} if route.reason else {})

    def begin_step(self, step: int) -> None:
        if self.guide is not None:
            self.guide.draw(step)

    def _records(self) -> Records:
        if self.guide is None or self.guide.records is None:
            raise InputError("training on public records needs a public dataset")
        return self.guide.records

    # -----------------------------------------------------------------------------------------------
    # a step

    def check_metric(self, metric: Metric) -> None:
        self.oracle.check_metric(metric)

    def clipped_sum(
        self,
        params: Vector,
        indices: Indices | None = None,
        *,
        clip: Clip,
        origin: Vector | None = None,
        metric: Metric = None,
        relation: Relation,
    ) -> BoundedSum:
        start = None if origin is None else tensor(origin)
        if self.ranks is None or self.seeds is None:
            return self._sum(indices, clip=clip, origin=start, metric=metric, relation=relation)
        return self.ranks.ask(self, self.oracle.model, self._question(indices, clip, start, metric, relation))

    def count_ignored(self, indices: Indices | None, *, relation: Relation) -> BoundedSum:
        """How many of these records (None: all) contribute nothing to a sum: they cannot be read, the model
        fails on them, or their gradient is not finite. One record, or person, moves it by at most 1."""
        if self.ranks is None or self.seeds is None:
            return self._ignored(np.arange(self.n) if indices is None else indices, relation)
        return self.ranks.ask(self, self.oracle.model, self._question(indices, None, None, None, relation))

    def _question(
        self,
        indices: Indices | None,
        clip: Clip | None,
        origin: Tensor | None,
        metric: Metric,
        relation: Relation,
    ) -> SumQuestion:
        seed = 0 if self.seeds is None else self.seeds()
        return SumQuestion(indices, seed, self.oracle.expected, clip, origin, metric, relation, buffers={})

    def own_sum(self, question: SumQuestion, indices: Indices) -> BoundedSum:
        """This process's share of a question to all ranks."""
        if self.ranks is not None and self.seeds is not None:
            self.seeds.begin(question, self.ranks.rank)
        self.oracle.expected = question.expected
        try:
            if question.clip is None:
                return self._ignored(indices, question.relation)
            return self._sum(
                indices, clip=question.clip, origin=question.origin, metric=question.metric,
                relation=question.relation,
            )  # fmt: skip
        finally:
            if self.seeds is not None:
                self.seeds.end()

    def _sum(
        self,
        indices: Indices | None,
        *,
        clip: Clip,
        origin: Tensor | None,
        metric: Metric,
        relation: Relation,
    ) -> BoundedSum:
        def of(batch: Batch, weights: Tensor | None = None) -> BoundedSum:
            return self.oracle.clipped_sum(
                batch, clip=clip, origin=origin, metric=metric, relation=relation, weights=weights,
                micro_batch=self.micro_batch, augmentations=self.augmentations,
            )  # fmt: skip

        return self._over(indices, of)

    def _ignored(self, indices: Indices, relation: Relation) -> BoundedSum:
        unread = len(indices)

        def of(batch: Batch, weights: Tensor | None = None) -> BoundedSum:
            nonlocal unread
            found = self.oracle.count_ignored(
                batch, relation=relation, weights=weights, micro_batch=self.micro_batch,
                augmentations=self.augmentations,
            )  # fmt: skip
            unread -= row_count(batch) // self.augmentations
            return found

        read = self._over(indices, of)
        device = self.oracle.parameters[0].device
        missing = torch.full((1,), float(unread), dtype=torch.float64, device=device)
        return joined([read, BoundedSum(missing, sensitivity=1.0, relation=relation)])

    def _over(self, indices: Indices | None, of: Callable[..., BoundedSum]) -> BoundedSum:
        """The answers for all batches, added up; a batch that the model refuses for its shape is left out."""
        if self.batches is None:
            raise InputError("this problem has no private records yet")
        sums = []
        for batch, weights in self.batches.of(indices):
            try:
                sums.append(of(batch, weights))
            except INTERRUPTS:
                raise
            except BaseException:  # memory too: a record's length decides how much is wanted
                if not self.batches.forgives(batch):
                    raise
        return joined(sums or [of(self.batches.empty())])

    def apply(self, params: Vector, direction: Vector, *, step_size: float) -> Tensor:
        """Hand the direction to the optimizer as a gradient."""
        parameters = set_gradients(self.oracle.model, tensor(direction))
        if self.move is not None:
            self.move()
        return read(self.oracle.model, parameters)

    def step_sizes(self, steps: int) -> tuple[float, ...]:
        return () if self.schedule is None else self.schedule(steps)

    def shrinkage(self, step_size: float) -> float:
        return self.decay


class CallersProblem(NetworkProblem):
    """A network whose batches are drawn, and whose parameters are moved, by the caller."""

    deferred = True
    accumulate = False  # whether a direction is added to what is in p.grad

    def begin_step(self, step: int) -> None:
        """Nothing: the caller gives the public batch of a step."""

    def sample(self, sampler: Sampler, noise: Noise) -> None:
        return None

    def apply(self, params: Vector, direction: Vector, *, step_size: float) -> Tensor:
        """Put the direction into p.grad."""
        parameters = set_gradients(self.oracle.model, tensor(direction), add=self.accumulate)
        return read(self.oracle.model, parameters)
