"""Users whose data stays with them: a client's update takes the place of a record's gradient.

A round is open between two moments: `open` says which parameters were sent, `answers` are what came back.
The loop asks in between, as it asks a linear model or a network; nobody is asked twice in a round.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import ClassVar, NoReturn

import numpy as np

from sidelight.arrays import Array, Floats, Vector, floats
from sidelight.clipping import Clip, Details, Metric
from sidelight.data.rows import PublicRows
from sidelight.errors import InputError, PrivacyConditionError
from sidelight.oracles.updates import Answer, Client, UpdateOracle, first_answers
from sidelight.privacy.events import Indices, Relation, Sampler
from sidelight.privacy.noise import Noise
from sidelight.privacy.release import BoundedSum
from sidelight.problems.base import Constants, Problem


class PublicUsers:
    """Clients that consented to be public: their updates at the parameters of the present round.

    Their mean is what a public gradient is elsewhere. A public client that is offline, or sends something
    unusable, is left out of it; in a round in which all of them are, the mean is zero.
    """

    refresh = 1

    def __init__(self, clients: Sequence[Client], dimension: int) -> None:
        self.clients, self.size, self.dimension = tuple(clients), len(clients), dimension
        self._at: Floats | None = None
        self._updates = np.zeros((0, dimension))

    @property
    def answered(self) -> int:
        """Public clients whose update of this round is usable."""
        return len(self._updates)

    def show(self, params: Floats, answers: Iterable[Answer]) -> None:
        """The updates of a round that was sent `params`."""
        rows = first_answers(answers, self.clients, self.dimension)
        stacked = np.concatenate([np.zeros((0, self.dimension)), *rows])
        with np.errstate(all="ignore"):
            lengths = np.linalg.norm(stacked, axis=1)
        self._at, self._updates = params, stacked[np.isfinite(lengths)]

    def knows(self, params: Floats) -> bool:
        """Whether there are updates at these parameters."""
        return self._at is not None and np.array_equal(self._at, params) and self.answered > 0

    def mean_gradient(self, params: Vector) -> Floats:
        updates = self._of(params)
        return np.asarray(updates.mean(axis=0)) if len(updates) else np.zeros(self.dimension)

    def gradient_norms(self, params: Vector, *, metric: Metric = None, origin: Vector | None = None) -> Array:
        apart = self._of(params) - (0.0 if origin is None else floats(origin))
        rows = apart if metric is None else [floats(metric.apply(row)) for row in apart]
        return np.array([float(np.linalg.norm(row)) for row in rows] or [0.0])

    def weighted_gradient(self, params: Vector, weights: Floats) -> Floats:
        updates = self._of(params)
        if not len(updates):
            return np.zeros(self.dimension)
        return np.asarray((weights[:, None] * updates).mean(axis=0))

    def gradients(self, params: Vector) -> Floats:
        updates = self._of(params)
        return updates if len(updates) else np.zeros((1, self.dimension))

    @property
    def rows(self) -> PublicRows:
        raise self._without_rows("rows of features")

    def losses(self, params: Vector) -> NoReturn:
        raise self._without_rows("losses")

    def mean_loss(self, params: Vector) -> NoReturn:
        raise self._without_rows("the loss")

    def _without_rows(self, what: str) -> InputError:
        return InputError(
            f"this method asks public records for {what}, and public clients send updates alone. Take "
            "another part: coupling(weight=0.3, reduction='mean') in place of the weight of Eq. (5), say"
        )

    def _of(self, params: Vector) -> Floats:
        if self._at is None or not np.array_equal(self._at, floats(params)):
            raise InputError("public clients have sent no updates at these parameters")
        return self._updates


class UsersProblem(Problem):
    """Clients of which some are sampled in every round. Nothing of their loss is known to the server.

    `deferred`: what adapts to the public gradient at the new parameters sees it in the next round, when the
    public clients are asked anyway.
    """

    unit = "client id"
    deferred = True
    public_from = "public= clients"
    constants: ClassVar[Constants] = Constants(loss="clients'")

    def __init__(self, start: Floats, clients: Sequence[Client], guide: PublicUsers | None) -> None:
        self.clients, self.guide = tuple(clients), guide
        self._start, self._oracle = start, UpdateOracle(len(start))
        self._cohort: tuple[Client, ...] | None = None  # drawn for this round, and not summed yet
        self.answers: list[Answer] = []

    @property
    def n(self) -> int:
        return len(self.clients)

    @property
    def dimension(self) -> int:
        return len(self._start)

    @property
    def public(self) -> PublicUsers | None:
        return self.guide

    @property
    def details(self) -> Details:
        return {"parameters": self.dimension}

    def default_clip_norm(self) -> float:
        """The median length of the public clients' updates in the round before the first; else refused."""
        if self.guide is not None and self.guide.answered:
            median = float(np.median(np.linalg.norm(self.guide.gradients(self._start), axis=1)))
            if median > 0:
                return median
        raise InputError("there are no public clients to take a clip norm from; pass clip_norm to the method")

    def start(self) -> Floats:
        return self._start

    def begin_at(self, params: Floats) -> None:
        """Begin at the parameters that public clients alone have led to."""
        self._start = params

    def pretrained(self, lam: float) -> NoReturn:
        raise InputError(
            "the server has no public records to start from. Pass warm_rounds=, rounds of public clients "
            "alone; or pre-train on data of theirs that you hold, and pass the parameters as the start"
        )

    def refit(self, params: Vector, lam: float) -> NoReturn:
        raise InputError("the server has no public records to refit on; take another finish")

    def public_smoothness(self) -> None:
        return None

    def longest_direction(self, metric: Metric) -> None:
        return None

    def public_loss(self, params: Vector) -> None:
        return None

    def draw(self, sampler: Sampler, noise: Noise) -> tuple[Client, ...]:
        """The private clients of the next round, drawn by the server from the cryptographic source."""
        places = sampler.indices(self.n, noise)
        self._cohort = self.clients if places is None else tuple(self.clients[place] for place in places)
        return self._cohort

    def sample(self, sampler: Sampler, noise: Noise) -> None:
        """`draw` has drawn them: they had to be asked before the loop could sum."""
        return None

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
        if self._cohort is None:
            raise PrivacyConditionError("a cohort is summed once, and the drawn one has been")
        cohort, self._cohort = self._cohort, None
        return self._oracle.clipped_sum(
            self.answers, cohort, clip=clip, origin=origin, metric=metric, relation=relation
        )

    def apply(self, params: Vector, direction: Vector, *, step_size: float) -> Floats:
        return floats(params) - step_size * floats(direction)
