"""What comes of the clipped sum of any network: is it the sum of per-record gradients, and of those alone?

It is asked in two ways. A network that draws no random numbers is compared with float64 gradients of each
record alone, at many batch sizes, and with neighbors. One that does is asked for the sum of many copies of
one record: if contributions are independent, variances add up; if copies share a draw, so do deviations.
Import once torch is there.
"""

import copy
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from tests.contracts.model_state import same_state, state
from tests.private_values import value_of
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from sidelight.errors import SidelightError
from sidelight.methods.parts import Flat
from sidelight.oracles.network.batches import Batch, call, row_count, take
from sidelight.oracles.network.network_oracle import NetworkOracle
from sidelight.privacy.events import Relation

torch.set_num_threads(1)

RELATION: Relation = "add-or-remove-one"
SIZES = (0, 1, 2, 3, 7, 32, 300)
FEW = ("an ordinary", "an ordinary, first,", "a nan", "a failing")
DISTINCT = 28  # records of which longer batches are made up, so that their gradients are taken once
PASS = 8  # records in a pass: few, so that batches take several


@dataclass(frozen=True)
class Subject:
    """A network with its loss; `records(n)` are n different records, `public` rows to check it with."""

    model: nn.Module
    loss: Callable[[Any, Any], Tensor]
    records: Callable[[int], Batch]
    public: Batch | None = None
    draws: bool = False  # random numbers, in forward or loss
    steady: bool = True  # how many are drawn does not depend on values
    reference: nn.Module | None = None  # the same model, where float64 needs another form of it

    def alone(self, records: Batch) -> Tensor:
        """Gradients of each record by itself."""
        return per_record(self.model if self.reference is None else self.reference, self.loss, records)


@dataclass(frozen=True)
class Outcome:
    """`verdict` is right, consistent, refused, refused late, raised or wrong; `details` say what was seen.

    Consistent: the sum of what the oracle gives for each record by itself, though that is not its gradient in
    a batch of one. A model that looks at the number of rows, which is the same in every pass, may be so.
    """

    verdict: str
    details: str = ""

    @property
    def safe(self) -> bool:
        return self.verdict in ("right", "refused")

    def __str__(self) -> str:
        return f"{self.verdict}: {self.details}" if self.details else self.verdict


def seeded(seed: int) -> None:
    """Every generator that a network may draw from."""
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed)


def sum_of(oracle: NetworkOracle, batch: Batch, bound: float, seed: int = 0) -> Tensor:
    """The private sum, which only tests may look at, in float64; `seed` gives every random number."""
    seeded(seed)
    oracle.draw_seed = lambda: seed
    value: Tensor = value_of(oracle.clipped_sum(batch, clip=Flat(bound), relation=RELATION))
    return value.detach().double()


def outcome_of(subject: Subject, *, copies: int = 12, draws: int = 8) -> Outcome:
    """What comes of this network: refused by a check of public rows, or right whatever the records are.

    Where random numbers are drawn: `copies` of a record are added up, `draws` times.
    """
    seeded(0)
    oracle = NetworkOracle(subject.model, subject.loss, example=subject.public, pass_size=PASS)
    try:
        oracle.check(subject.records(2))
    except SidelightError as error:
        return Outcome("refused" if "\n" not in str(error) else "raised", str(error))
    except Exception as error:
        return Outcome("raised", f"{type(error).__name__}: {error} (in the check)")
    before = state(subject.model)  # what it makes of public rows, once, is its own business
    try:
        found = _spread(oracle, subject, copies, draws) if subject.draws else _exact(oracle, subject)
    except SidelightError as error:
        return Outcome("refused late", str(error))
    except Exception as error:
        return Outcome("raised", f"{type(error).__name__}: {error} (after the check)")
    after = state(subject.model)
    changed = sorted(name for name in before if not same_state(before[name], after.get(name)))
    if changed:
        return Outcome("wrong", f"what the model saw stays in {', '.join(changed)}")
    return found


# ---------------------------------------------------------------------------------------------------
# the sum, record by record


def per_record(model: nn.Module, loss: Callable[[Any, Any], Tensor], batch: Batch) -> Tensor:
    """One gradient a row: each record alone, through a float64 copy, by plain automatic differentiation."""
    model = copy.deepcopy(model).double()
    batch = tree_map(_double, batch)
    parameters = [p for p in model.parameters() if p.requires_grad]
    rows = []
    for i in range(row_count(batch)):
        one = take(batch, slice(i, i + 1))
        total = loss(call(model, one[0]), one[1]).sum()
        grads = torch.autograd.grad(total, parameters, allow_unused=True)
        rows.append(torch.cat([_flat(g, p) for g, p in zip(grads, parameters, strict=True)]))
    return torch.stack(rows)


def _double(leaf: Any) -> Any:
    return leaf.double() if isinstance(leaf, Tensor) and leaf.is_floating_point() else leaf


def _flat(gradient: Tensor | None, parameter: Tensor) -> Tensor:
    if gradient is None:
        return torch.zeros(parameter.numel(), dtype=torch.float64)
    gradient = torch.view_as_real(gradient) if gradient.is_complex() else gradient
    return gradient.detach().reshape(-1).double()


def clipped(rows: Tensor, bound: float) -> Tensor:
    """Each row, no longer than the bound; zero where it is not finite."""
    rows = rows.where(rows.isfinite().all(1, keepdim=True), 0.0)
    return rows * (bound / rows.norm(dim=1).clamp(min=1e-300)).clamp(max=1)[:, None]


def _exact(oracle: NetworkOracle, subject: Subject) -> Outcome:
    """Sums against the reference, and neighbors that differ in number, in content and in failure."""
    records = subject.records(DISTINCT)
    rows = subject.alone(records)
    bound, tolerance = max(float(rows.norm(dim=1).median()), 1e-3), _tolerance(subject.model)
    for size in (1, 13):
        few = take(records, slice(0, size))
        here = sum_of(oracle, few, bound)
        for what, other in neighbors(few, records):
            if size == 1 and what not in FEW:
                continue
            moved = float((sum_of(oracle, other, bound) - here).norm()) / bound
            if not moved <= 1 + tolerance * size:
                return Outcome("wrong", f"{what} record more moves the sum of {size} by {moved:.3g} C")
    sizes = SIZES if oracle.route.kind == "layers" else SIZES[:-1]  # elsewhere each record is a call
    sums = {n: sum_of(oracle, take(records, torch.arange(n) % DISTINCT), bound) for n in sizes}
    wrong = _off(sums, clipped(rows, bound), bound, tolerance)
    if wrong is None:
        return Outcome("right")
    own = torch.stack([sum_of(oracle, take(records, slice(i, i + 1)), bound) for i in range(DISTINCT)])
    consistent = _off(sums, own, bound, tolerance) is None and float(own.norm(dim=1).max()) <= bound * (
        1 + tolerance
    )
    return Outcome("consistent" if consistent else "wrong", wrong)


def _off(sums: dict[int, Tensor], want: Tensor, bound: float, tolerance: float) -> str | None:
    """The first of these sums that is not what its records add up to."""
    for size, value in sums.items():
        off = float((value - want[torch.arange(size) % DISTINCT].sum(0)).norm()) / bound
        if not off <= tolerance * max(size, 1):
            return f"{off:.3g} C off the per-record sum, for {size} records"
    return None


def _tolerance(model: nn.Module) -> float:
    return 1e-7 if all(p.dtype in (torch.float64, torch.complex128) for p in model.parameters()) else 3e-4


def neighbors(batch: Batch, records: Batch) -> Iterator[tuple[str, Batch]]:
    """The batch with one record more: ordinary ones, of every size, not finite, and such as fail."""
    new = take(records, slice(-1, None))
    yield "an ordinary", _joined(batch, new)
    yield "an ordinary, first,", _joined(new, batch)
    for value in (0.0, -50.0, 1e38, float("inf"), float("nan")):
        yield f"a {value:g}", _joined(batch, (tree_map(lambda x, v=value: _filled(x, v), new[0]), new[1]))
    yield "a failing", _joined(batch, (new[0], tree_map(_impossible, new[1])))
    yield "a failing, first,", _joined((new[0], tree_map(_impossible, new[1])), batch)


def _filled(leaf: Any, value: float) -> Any:
    if not leaf.is_floating_point():
        return leaf if np.isfinite(value) and abs(value) < 1 else torch.full_like(leaf, 10**6)
    return torch.full_like(leaf, value)


def _impossible(leaf: Any) -> Any:
    return torch.full_like(leaf, float("nan") if leaf.is_floating_point() else 10**6)


def _joined(first: Batch, second: Batch) -> Batch:
    """Records of both, in this order."""
    mine, theirs = tree_leaves(first), iter(tree_leaves(second))
    parts = iter([torch.cat([a, next(theirs)]) for a in mine])
    joined: Batch = tree_map(lambda _: next(parts), first)
    return joined


# ---------------------------------------------------------------------------------------------------
# random numbers


def _spread(oracle: NetworkOracle, subject: Subject, copies: int, draws: int) -> Outcome:
    """Contributions of different records are independent, and do not depend on who else is there."""
    first = subject.records(3)
    redrawn = _redrawn(oracle, subject) if subject.steady else None
    if redrawn is not None:
        return Outcome("wrong", redrawn)
    alone, bound = _alone(subject, take(first, slice(0, 1)), 16 * draws)
    many = take(first, torch.zeros(copies, dtype=torch.long))
    together = _many_sums(oracle, many, bound, draws)
    ratio = float(together.var(0).sum() / (copies * alone.var(0).sum()).clamp(min=1e-12 * bound**2))
    if ratio > 4:
        return Outcome(
            "wrong", f"the sum of {copies} records varies {ratio:.3g} times as much as if independent"
        )
    others = [
        pair for pair in neighbors(many, first) if pair[0] in ("an ordinary, first,", "a nan", "a failing")
    ]
    for what, batch in [("no", many), *others]:
        sums = together if batch is many else _many_sums(oracle, batch, bound, draws)
        moved = float((sums.mean(0) - copies * alone.mean(0)).norm()) / bound
        noise = sums.var(0).sum() / draws + copies**2 * alone.var(0).sum() / len(alone)
        if not moved <= (0 if batch is many else 1) + 4 * float(noise.sqrt()) / bound + 1e-3 * copies:
            return Outcome("wrong", f"{what} record more, and the mean of the sum is off by {moved:.3g} C")
    return Outcome("right")


def _redrawn(oracle: NetworkOracle, subject: Subject) -> str | None:
    """From one seed others draw the same, whatever a record holds and whether it is there."""
    records = subject.records(12)
    _, bound = _alone(subject, take(records, slice(0, 1)), 9)
    for size in (2, 9):
        few = take(records, slice(0, size))
        without = sum_of(oracle, few, bound)
        for what, batch in neighbors(few, records):
            if "first" in what:
                continue  # then the others sit in other places, and draw other numbers
            moved = float((sum_of(oracle, batch, bound) - without).norm()) / bound
            if not moved <= 1 + _tolerance(subject.model) * size:
                return f"from one seed, {what} record more moves the sum of {size} by {moved:.3g} C"
    return None


def _alone(subject: Subject, record: Batch, draws: int) -> tuple[Tensor, float]:
    """What one record contributes by itself, again and again, and a bound that clips about half of it."""
    seeded(0)
    rows = subject.alone(take(record, torch.zeros(draws, dtype=torch.long)))
    bound = max(float(np.nanmedian(rows.norm(dim=1))), 1e-3)
    return clipped(rows, bound), bound


def _many_sums(oracle: NetworkOracle, batch: Batch, bound: float, draws: int) -> Tensor:
    return torch.stack([sum_of(oracle, batch, bound, seed) for seed in range(draws)])
