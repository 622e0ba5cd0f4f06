"""Networks as subjects of an audit: any recipe, any model, trained by `Trainer`, for records or persons."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from sidelight.arrays import Floats, Json
from sidelight.audit.result import Claim, Finding
from sidelight.audit.subjects import Outcome, Recorder, quiet
from sidelight.deep import PublicTraining, Trainer
from sidelight.errors import InputError, RelationError
from sidelight.methods.declare import as_method
from sidelight.methods.recipe import Recipe
from sidelight.privacy.contract import Contract, relation_of
from sidelight.privacy.events import Event, Relation
from sidelight.privacy.release import Account, Run
from sidelight.problems.flat_parameters import read

Data = tuple[Tensor, Tensor]
Names = list[int | None]  # whose each row is; None: nobody's
PersonData = tuple[Tensor, Tensor, Names]
LossPerRecord = Callable[[Tensor, Tensor], Tensor]
_CHANGED = 3  # the record in which neighbors differ
_FAR = 100.0
_QUICK: Json = {
    "steps": 4,
    "expected_batch_size": None,
    "validation": 0.25,
}
_BRIEF = PublicTraining(steps=10, batch_size=16)  # for methods that begin with public records


@dataclass(frozen=True, eq=False)
class Network:
    """A recipe on a network. Make one with `on_network`.

    A record is left out in two ways. It is filled with NaN: its gradient is then not finite, and it
    contributes zero. Or batches are one record shorter (`joined`), for a model may notice how many there are.
    """

    method: Recipe
    relation: Relation
    epsilon: float
    delta: float
    model: Callable[[int], nn.Module]  # the same fresh model every time, for inputs of this width
    loss: LossPerRecord
    private: Data
    public: Data | None
    options: Json = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.method.name

    @functools.cached_property
    def claim(self) -> Claim:
        with _watched() as (made, _):
            self.run(self._ordinary(), seed=0)
        contract = made[-1]
        return Claim(
            contract.event, self.relation, contract.delta, contract.private, contract.filtered, self.epsilon
        )

    def _ordinary(self) -> Any:
        return self.private

    def planning(self) -> list[Finding]:
        """Trainer plans before it reads a record, by construction; its tests say so."""
        return []

    @property
    def changed(self) -> int:
        return _CHANGED

    def neighbors(self) -> tuple[Data, list[Data]]:
        worlds = self._worlds()
        if self.relation == "add-or-remove-one":
            return self._without(), worlds
        far = torch.full_like(self.private[0][_CHANGED], _FAR)
        other = self._other(self.private[1][_CHANGED])
        return self._with(-far, self.private[1][_CHANGED]), [*worlds, self._with(-far, other)]

    def _worlds(self) -> list[Data]:
        """The dataset with a record that is ordinary, wrong, of any size, not finite, or that fails."""
        x, y = self.private[0][_CHANGED], self.private[1][_CHANGED]
        other = self._other(y)
        sizes = [(_FAR, y), (-_FAR, other), (0.0, other), (1e38, y), (torch.nan, y), (torch.inf, y)]
        filled = [(torch.full_like(x, value), target) for value, target in sizes]
        return [self._with(*record) for record in [(x, y), (x, self._impossible(y)), (x, other), *filled]]

    def joined(self) -> list[tuple[int | None, list[Data]]]:
        """Every kind of record joins all others; an ordinary one and one that fails join few as well."""
        if self.relation != "add-or-remove-one":
            return []
        worlds = self._worlds()
        return [(None, worlds), *((size, worlds[:2]) for size in (0, len(self.private[0]) // 2))]

    def extremes(self, direction: Floats | None = None) -> tuple[Data, Data]:
        x, y = self.private
        empty = torch.full_like(x, torch.nan)
        low, high = empty.clone(), empty.clone()
        high[_CHANGED] = 1.0
        if self.relation == "add-or-remove-one":
            return (low, y), (high, y)
        other = y.clone()
        other[_CHANGED] = self._other(y[_CHANGED])
        return (high, other), (high, y)

    def canaries(self, present: NDArray[np.bool_]) -> Data:
        """Canary i is the i-th unit vector, times √width."""
        x, y = self.private
        count = len(present)
        here = torch.from_numpy(np.asarray(present))
        inputs = torch.eye(count, dtype=x.dtype) * count**0.5
        target = y[:1].expand(count).clone()
        if self.relation == "add-or-remove-one":
            inputs[~here] = torch.nan
        else:
            target[~here] = self._other(y[0])
        return inputs, target

    def canary_scores(self, model: NDArray[np.float64], count: int) -> NDArray[np.float64]:
        raise InputError("networks are scored by their steps; this method has none")

    def run(self, world: Data, *, seed: int) -> Outcome:
        width = int(world[0].shape[1])
        public = self._public(width)
        trainer = Trainer(
            self.model(width), self.loss, method=self.method, epsilon=self.epsilon, delta=self.delta,
            relation=self.relation, random_state=seed, progress=False, **self.options,
        )  # fmt: skip
        with quiet(), _watched() as (_, recorder):
            self._fit(trainer, world, public)
        charged = recorder.charged
        parameters = read(trainer.model).double().numpy()
        outside = {"parameters": parameters, "history": trainer.history_, "charges": charged}
        notes = trainer.privacy_.to_dict()
        return Outcome({**outside, "statement": notes}, parameters, charged)

    def _fit(self, trainer: Trainer, world: Data, public: Data | None) -> None:
        trainer.fit(world, public)

    def _public(self, width: int) -> Data | None:
        """Public records, with zeros behind them where canaries need more columns."""
        if self.public is None or self.public[0].shape[1] == width:
            return self.public
        x, y = self.public
        wide = torch.zeros(len(x), width, dtype=x.dtype)
        columns = min(width, x.shape[1])
        wide[:, :columns] = x[:, :columns]
        return wide, y

    def _other(self, target: Tensor) -> Tensor:
        return 1 - target if target.is_floating_point() else torch.where(target == 0, 1, 0)

    def _impossible(self, target: Tensor) -> Tensor:
        """A target on which the loss fails, or is not finite."""
        return torch.full_like(target, torch.nan if target.is_floating_point() else 10**6)

    def _with(self, x: Tensor, y: Tensor) -> Data:
        inputs, targets = self.private[0].clone(), self.private[1].clone()
        inputs[_CHANGED], targets[_CHANGED] = x, y
        return inputs, targets

    def _without(self) -> Data:
        return self._with(torch.full_like(self.private[0][0], torch.nan), self.private[1][_CHANGED])


@dataclass(frozen=True, eq=False)
class PersonNetwork(Network):
    """The same for persons with `each` rows: neighbors differ in all rows of one, and in how many there are.

    A world holds names besides its rows. `protects`: "person"; or "record" for a run that clips every row by
    itself and claims its guarantee for persons all the same, which an audit should refute.
    """

    each: int = 4
    protects: Literal["person", "record"] = "person"

    @property
    def name(self) -> str:
        return f"{self.method.name}, {self.each} rows per person, clipped by {self.protects}"

    def _ordinary(self) -> Any:
        return (*self.private, self._names())

    @property
    def mine(self) -> slice:
        """The rows of the person in question."""
        return slice(_CHANGED * self.each, (_CHANGED + 1) * self.each)

    def neighbors(self) -> tuple[Any, list[Any]]:
        worlds = self._worlds()
        if self.relation == "add-or-remove-one":
            return self._filled(torch.nan), worlds
        return self._filled(-_FAR), [*worlds, self._filled(_FAR, other=True)]

    def _worlds(self) -> list[Any]:
        """Rows that are ordinary, wrong, of any size or broken; fewer rows; one that fails among others."""
        x, y = self.private
        impossible = y.clone()
        impossible[self.mine.start] = self._impossible(y[self.mine.start])
        filled = [(_FAR, False), (-_FAR, True), (0.0, True), (1e38, False), (torch.inf, False)]
        return [
            (x, y, self._names()), (x, impossible, self._names()), (x, y, self._names(1)),
            (self._filled(_FAR)[0], y, self._names(self.each - 1)),
            *(self._filled(value, other=other) for value, other in filled), self._filled(torch.nan, only=1),
        ]  # fmt: skip

    def joined(self) -> list[tuple[int | None, list[Any]]]:
        if self.relation != "add-or-remove-one" or self.protects == "record":
            return []
        worlds = self._worlds()
        return [(None, worlds), *((size, worlds[:2]) for size in (0, len(self.private[0]) // self.each // 2))]

    def extremes(self, direction: Floats | None = None) -> tuple[Any, Any]:
        low, high = super().extremes(direction)
        x = torch.full_like(self.private[0], torch.nan)
        x[self.mine] = 1.0
        other = self.private[1].clone()
        other[self.mine] = self._other(other[self.mine])
        if self.relation == "add-or-remove-one":
            return (low[0], low[1], self._names()), (x, high[1], self._names())
        return (x, other, self._names()), (x, self.private[1], self._names())

    def canaries(self, present: NDArray[np.bool_]) -> Any:
        """Every row of canary i is the i-th unit vector, times √width."""
        inputs, target = super().canaries(present)
        rows = torch.arange(len(present)).repeat_interleave(self.each)
        return inputs[rows], target[rows], rows.tolist()

    def _fit(self, trainer: Trainer, world: Any, public: Data | None) -> None:
        x, y, names = world
        if self.protects == "record":
            trainer.fit((x, y), public)
        else:
            trainer.unit, trainer.max_rows = "person", self.each
            trainer.fit((x, y), public, persons=names)

    def _names(self, left: int | None = None) -> Names:
        """Whose each row is; the person in question has all rows, or so many."""
        names: Names = [row // self.each for row in range(len(self.private[0]))]
        for row in range(self.mine.stop)[self.mine][self.each if left is None else left :]:
            names[row] = None
        return names

    def _filled(self, value: float, *, other: bool = False, only: int | None = None) -> PersonData:
        """The person's rows all of one value, or only so many of them."""
        x, y = self.private[0].clone(), self.private[1].clone()
        mine = self.mine if only is None else slice(self.mine.start, self.mine.start + only)
        x[mine] = value
        if other:
            y[mine] = self._other(y[mine])
        return x, y, self._names()


def on_network(
    method: str | Recipe,
    *,
    relation: Relation | None = None,
    epsilon: float = 1.0,
    delta: float = 1e-5,
    model: Callable[[int], nn.Module] | None = None,
    loss: LossPerRecord | None = None,
    private: Data | None = None,
    public: Data | None = None,
    rows_per_person: int = 1,
    protects: Literal["person", "record"] = "person",
    **options: Any,
) -> Network:
    """A recipe on a network, to be audited by `replay_neighbors`, `many_runs` or `one_run`.

    Args:
        method: a recipe (your own too), or its name.
        model: width of the inputs → a fresh model, the same every time; None is a small MLP of two classes.
        loss: (outputs, targets) → one loss per record.
        private, public: a pair of tensors each, of synthetic or public records: what an audit shows of its
            records is not private. Inputs are float, one row per record. None generates some.
        rows_per_person: how many consecutive rows belong to one person; neighbors differ in all of them.
        protects: "record" clips every row by itself, and lets the run claim its guarantee for persons.
        options: further settings of `Trainer`: steps, expected_batch_size, optimizer, ...
    """
    recipe = as_method(method)
    if not isinstance(recipe, Recipe):
        raise InputError("networks are trained by recipes of steps, for instance dp_sgd() or dope_sgd()")
    chosen = relation_of(recipe, relation)
    if chosen not in recipe.relations:
        raise RelationError(f"{recipe.name} supports {' or '.join(recipe.relations)} only, not {chosen}")
    begins_warm = recipe.start.needs_public
    data = _blobs(40 * rows_per_person, 1) if private is None else private
    guide = _blobs(16, 2) if public is None and private is None else public
    settings = (recipe, chosen, epsilon, delta, model or _small, loss or _cross_entropy, data, guide)
    more = {**_QUICK, **({"warm_up": _BRIEF} if begins_warm else {}), **options}
    if rows_per_person == 1:
        return Network(*settings, more)
    if len(data[0]) % rows_per_person or len(data[0]) <= (_CHANGED + 1) * rows_per_person:
        raise InputError(
            f"private must be whole persons of {rows_per_person} rows, and more than {_CHANGED + 1}"
        )
    return PersonNetwork(*settings, more, each=rows_per_person, protects=protects)


def _small(width: int) -> nn.Module:
    """A small network of two classes."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(width, 6), nn.Tanh(), nn.Linear(6, 2))


def _cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    return nn.functional.cross_entropy(outputs, targets, reduction="none")


def _blobs(n: int, seed: int) -> Data:
    """Two classes in four dimensions."""
    generator = torch.Generator().manual_seed(seed)
    y = torch.randint(0, 2, (n,), generator=generator)
    return torch.randn(n, 4, generator=generator) + 2.0 * y[:, None] - 1.0, y


# ---------------------------------------------------------------------------------------------------
# what the trainer agreed on, and what it was charged


class _RecordedAccount:
    """The trainer's own account; its charges are recorded, too."""

    def __init__(self, account: Account, recorder: Recorder) -> None:
        self._account, self._recorder = account, recorder

    def charge(self, event: Event) -> None:
        self._account.charge(event)
        self._recorder.charge(event)


@contextmanager
def _watched() -> Iterator[tuple[list[Contract], Recorder]]:
    """The contracts that trainers agree on, and what they are charged."""
    made: list[Contract] = []
    recorder, original = Recorder(), Contract.begin

    def begin(self: Contract) -> tuple[Run, Account]:
        made.append(self)
        run, account = original(self)
        return run, _RecordedAccount(account, recorder)

    Contract.begin = begin  # type: ignore[method-assign]
    try:
        yield made, recorder
    finally:
        Contract.begin = original  # type: ignore[method-assign]
