"""The private batches of a loop of one's own: what `sample` drew, and whether a step was given just that.

The accounting holds for batches as the sampler draws them. A loop that gives all rows, rows twice, or the
batches of a shuffled loader releases more than is charged, and nothing in its output shows it. So what
`sample` drew is noted, each draw is used by one step, and a step with another number of records is refused.

These refusals follow from the caller's indices: from how many rows they make, and of how many persons these
are said to be. They follow from no value in a row: what is refused is the loop, and that tells of no record.
A row that cannot be used keeps its place in the batch and contributes zero; it is not for the loop to drop.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sized
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike
from torch import Tensor

from sidelight.arrays import Json
from sidelight.data.persons import Names
from sidelight.deep.person_records import batch_of_persons, distinct_persons
from sidelight.errors import InputError
from sidelight.oracles.network.batches import Batch, Ready, only_tensors, row_count, take
from sidelight.privacy.events import FixedSize, Indices, Sampler
from sidelight.problems.datasets import paired
from sidelight.problems.network import Batches

_UNLIKELY = 1e-12  # the chance at which batches are no longer taken for what the sampler draws
_ORDER = "Each draw is for one step, in the order of the calls of sample()"
_OWN = "If a sampler of your own draws exactly what the plan says, pass PrivateStep(..., own_sampling=True)"


class Draws(Protocol):
    """What the next batch may hold."""

    def check(self, given: int, indices: Indices | None) -> None:
        """Raise InputError if so many records, or persons, cannot be the next draw."""

    def use(self, given: int) -> None:
        """A step takes this draw; no other step will."""


class SampledDraws:
    """What `sample` drew and no step has used yet, oldest first: a loader may draw ahead.

    exact: a batch holds every record that was drawn. A loop that drops some of a large batch lets one
    record decide about another. Persons may be fewer: one who was drawn may have no rows.
    everyone: how many there are, where each step takes all of them, so that nothing need be drawn; else 0.
    in_turn: whether records take turns: a draw is then for one step by its number, and for no other.
    """

    def __init__(self, *, exact: bool, everyone: int = 0, in_turn: bool = False) -> None:
        self._waiting: deque[Indices] = deque()
        self._exact, self.everyone, self._in_turn = exact, everyone, in_turn
        self.used = 0  # draws that a step used, or that were passed over

    def add(self, drawn: Indices) -> None:
        """These were drawn, for one step."""
        self._waiting.append(drawn)

    def check(self, given: int, indices: Indices | None) -> None:
        if self._in_turn and len(self._waiting) > 1:
            self._find(indices)
        drawn = self._next()
        if indices is not None and not _within(indices, drawn, all_of_them=self._exact):
            raise InputError(
                f"indices= names what sample() did not draw for this step. {_ORDER}: give those "
                "that it returned, each once"
            )
        if given > len(drawn) or (self._exact and given < len(drawn)):
            what = "records" if self._exact else "persons"
            raise InputError(
                f"the batch has {'more' if given > len(drawn) else 'fewer'} {what} than sample() drew for "
                f"this step. {_ORDER}: give those that it returned, each once and none left out (under "
                "torchrun, those of this rank)"
            )

    def use(self, given: int) -> None:
        self.used += 1
        if self._waiting:
            self._waiting.popleft()

    def _find(self, indices: Indices | None) -> None:
        """Pass over draws before that of these records: their steps were not taken."""
        if indices is None:
            raise InputError(
                f"{len(self._waiting)} draws wait for a step, and records take turns with this noise: pass "
                "indices=, what sample() returned for this batch"
            )
        for place, drawn in enumerate(self._waiting):
            if _within(indices, drawn, all_of_them=self._exact):
                for _ in range(place):
                    self.use(0)
                return

    def _next(self) -> Indices:
        if not self._waiting and not self.everyone:
            raise InputError(
                "this step has no sample: call sample() before each step (under torchrun, on every rank) and "
                f"give the records that it names. {_OWN}"
            )
        return self._waiting[0] if self._waiting else np.arange(self.everyone)


class OwnDraws:
    """Batches that the caller draws: refused if the sampler's would hardly ever have such sizes.

    Two tests, each wrong about batches that are drawn as planned with a chance of at most 1e-12 per step:
    more records so far than Binomial(steps · n, q) gives, and one of the n + 1 sizes more often than its
    probability allows, as the batches of a shuffled loader have it. Both by Chernoff's bound. Where each
    batch has a fixed size, it must have that.
    """

    def __init__(self, sampler: Sampler, n: int, *, exact: bool) -> None:
        self._n, self._rate, self._exact = n, sampler.expected_batch_size(n) / n, exact
        self._size = int(sampler.size) if isinstance(sampler, FixedSize) else None
        self._often = 1.0 if self._size is not None else _likeliest(n, self._rate)
        self._steps = self._total = 0
        self._sizes: Counter[int] = Counter()

    def check(self, given: int, indices: Indices | None) -> None:
        if indices is not None:
            raise InputError("indices= are compared with what sample() drew; own_sampling=True draws nothing")
        if self._size is not None and (given > self._size or (self._exact and given < self._size)):
            raise InputError(f"under replace-one every batch has {self._size} records; draw it with sample()")
        if given > self._n:
            raise InputError(f"the batch has more records than n_private={self._n}, all that there are")
        steps, alike = self._steps + 1, self._sizes[given] + 1
        if _excess(self._total + given, steps * self._n, self._rate) > -math.log(_UNLIKELY):
            raise InputError(
                f"the batches so far have far more records than Poisson sampling at rate {self._rate:.3g} "
                "draws: give each record that was drawn once, or state the rate that you sample at"
            )
        if _excess(alike, steps, self._often) > math.log(self._n + 1) - math.log(_UNLIKELY):
            raise InputError(
                f"{alike} of {steps} batches have the same size, as those of a shuffled DataLoader do. "
                "Poisson batches differ in size: draw them with sample(), or with a Poisson sampler"
            )

    def use(self, given: int) -> None:
        self._steps, self._total = self._steps + 1, self._total + given
        self._sizes[given] += 1


class ReturningPersons:
    """Whether persons come back in the next batch as often as the sampler lets them.

    Of the persons of a batch each is in the next one with probability q, and so no more of them than
    Binomial(persons, q) gives (Chernoff): wrong about batches that are drawn as planned with a chance of at
    most 1e-12 per step. A loop that takes the numbers of persons for those of rows, or that counts a person
    once for each row, draws a person with k rows about k times as often.
    """

    def __init__(self, rate: float) -> None:
        self._rate, self._known = rate, Names()
        self._last: set[int] = set()
        self._again = self._trials = 0

    def codes(self, names: ArrayLike | Tensor | None) -> set[int]:
        """The persons of a batch, by numbers that are the same in all batches."""
        return distinct_persons(names, self._known)

    def _lasting(self, persons: set[int]) -> set[int]:
        """The same; none of them if they are numbered anew in each batch: 0, 1, …"""
        anew = {self._known.code(number) for number in range(len(persons))}
        return set() if persons == anew else persons

    def check(self, persons: set[int]) -> None:
        persons = self._lasting(persons)
        again, trials = self._again + len(persons & self._last), self._trials + len(self._last)
        if trials and _excess(again, trials, self._rate) > -math.log(_UNLIKELY):
            raise InputError(
                "the same persons come back far more often than they are drawn: sample() names persons, not "
                "rows. Give all rows of those that it names, and count each person once in n_private"
            )

    def use(self, persons: set[int]) -> None:
        persons = self._lasting(persons)
        self._again, self._trials = self._again + len(persons & self._last), self._trials + len(self._last)
        self._last = persons


def _within(indices: Indices, drawn: Indices, *, all_of_them: bool) -> bool:
    """Whether these are records of the draw, none of them twice."""
    mine = np.sort(indices.reshape(-1))
    if all_of_them:
        return np.array_equal(mine, drawn)
    return bool(np.isin(mine, drawn).all()) and len(np.unique(mine)) == len(mine)


def _excess(count: int, trials: int, rate: float) -> float:
    """−log of a bound on P(Binomial(trials, rate) ≥ count): trials · KL(count/trials ‖ rate), Chernoff."""
    share = count / trials
    if share <= rate:
        return 0.0
    rest = 0.0 if share == 1 else (1 - share) * math.log((1 - share) / (1 - rate))
    return trials * (share * math.log(share / rate) + rest)


def _likeliest(n: int, rate: float) -> float:
    """The largest probability of Binomial(n, rate)."""
    mode = math.floor((n + 1) * rate)
    if mode >= n:
        return 1.0
    ways = math.lgamma(n + 1) - math.lgamma(mode + 1) - math.lgamma(n - mode + 1)
    return math.exp(ways + mode * math.log(rate) + (n - mode) * math.log1p(-rate))


# ---------------------------------------------------------------------------------------------------


class GivenBatch(Batches):
    """The one batch that the caller has just given; with max_rows, of rows of persons.

    copies: consecutive rows that are one record.
    """

    draws: Draws
    returning: ReturningPersons | None = None  # where the unit is a person

    def __init__(self, max_rows: int | None, draw_seed: Callable[[], int], copies: int = 1) -> None:
        self._batch: Batch | None = None
        self._used = False
        self._copies = copies
        self._max_rows, self._draw_seed = max_rows, draw_seed
        self._names: ArrayLike | Tensor | None = None
        self._persons: set[int] = set()
        self._indices: Indices | None = None

    @property
    def details(self) -> Json:
        return {} if self._max_rows is None else {"max_rows": self._max_rows}

    def give(self, batch: Batch, persons: ArrayLike | Tensor | None, indices: ArrayLike | None) -> None:
        """The batch of the next step; whose its rows are, and which records, if the caller says so."""
        rows = check_pair(batch, self._copies)
        if (persons is None) != (self._max_rows is None):
            raise InputError(
                "unit= and persons= go together: PrivateStep(..., unit='patient') counts persons, and "
                "step(batch, persons=names) says whose each row is"
            )
        if persons is not None and (len(persons) if isinstance(persons, Sized) else -1) != rows:
            raise InputError("persons must be a vector with one name for each row of the batch")
        self._indices = None if indices is None else np.asarray(indices, dtype=np.int64)
        self._batch, self._names, self._used = batch, persons, False
        self._persons = set() if self.returning is None else self.returning.codes(persons)

    def check(self) -> None:
        """Refuse a batch that is not the next draw."""
        self.draws.check(self._given(), self._indices)
        if self.returning is not None:
            self.returning.check(self._persons)

    def _given(self) -> int:
        if self._batch is None:
            raise InputError("there is no batch yet")
        return row_count(self._batch) // self._copies if self.returning is None else len(self._persons)

    def of(self, indices: Indices | None) -> Iterable[Ready]:
        if self._batch is None:
            return []
        if not self._used:
            self.check()  # on a rank other than 0 for the first time: the other ranks are notified here
            self.draws.use(self._given())
            if self.returning is not None:
                self.returning.use(self._persons)
            self._used = True
        if self._max_rows is None:
            return [Ready(self._batch)]
        return batch_of_persons(self._batch, self._names, self._max_rows, self._draw_seed())

    def empty(self) -> Batch:
        if self._batch is None:
            raise InputError("there is no batch yet")
        return take(self._batch, slice(0, 0))


def as_pair(batch: object) -> Batch:
    """(inputs, targets), also from the list that a DataLoader gives, or from named parts with `labels`."""
    if (pair := paired(batch)) is None:
        raise InputError(
            "a batch is a pair (inputs, targets), or a dictionary with 'labels': tensors with one row per "
            "record"
        )
    return pair


def check_pair(batch: object, augmentations: int) -> int:
    """How many rows a batch has, if it is a pair of equally many rows, `augmentations` for each record."""
    pair = as_pair(batch)
    only_tensors(pair)
    rows = row_count(pair)
    if rows % augmentations:
        raise InputError(f"the batch is not a whole number of records of augmentations={augmentations} rows")
    return rows
