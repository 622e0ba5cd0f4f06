"""Before the charge: public records are tried, and optimizer and scheduler go through the plan on zeros.

A schedule that is shorter than the plan, an optimizer that takes no dense gradients, or a public record that
cannot be read would end a run whose whole plan is charged. All of them are public, so they are tried before.
"""

from __future__ import annotations

import copy
import inspect
import math
import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import CellType, FunctionType
from typing import Protocol, TypeVar, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from sidelight.arrays import Json
from sidelight.augment.transforms import augmented
from sidelight.errors import InputError, SidelightError, first_line
from sidelight.oracles.network.batches import tensors
from sidelight.oracles.network.flat import trainable
from sidelight.oracles.network.network_oracle import NetworkOracle
from sidelight.problems.datasets import Records
from sidelight.problems.flat_parameters import read, write
from sidelight.problems.network_public import outputs_of
from sidelight.problems.public_training import PublicTraining

T = TypeVar("T")
_MOST_TRIED = 20_000  # public records
_MOST_COMPARED = 32  # public records whose outputs are compared with each other: one block
_FEWEST_COMPARED = 8  # fewer may be alike by chance
_ROUNDING = 1e-6  # of the largest output
_TRIAL_STEP = 0.1  # of the length of all parameters


class RateSchedule(Protocol):
    """What is asked of a learning-rate scheduler."""

    def step(self) -> object: ...

    def state_dict(self) -> Json: ...

    def load_state_dict(self, state: Json, /) -> object: ...


def attempted(what: str, act: Callable[[], T]) -> T:
    """What `act` returns; its failure as one line that begins with `what`. Of public things only.

    Random numbers that it draws are drawn again afterwards: a seeded run is the same with and without it.
    """
    devices = [torch.cuda.current_device()] if torch.cuda.is_available() else []
    try:
        with torch.random.fork_rng(devices=devices):
            return act()
    except SidelightError:
        raise
    except Exception as error:
        raise InputError(f"{what} ({first_line(error)}). Nothing was charged") from error


def try_records(oracle: NetworkOracle, records: Records, name: str) -> None:
    """Raise InputError if model or loss fail on one of these public records (of many: on every k-th)."""
    rows = np.arange(0, len(records), math.ceil(max(1, len(records)) / _MOST_TRIED))

    def act() -> int:
        odd = 0
        for outputs, targets in outputs_of(oracle.model, records, rows):
            with torch.no_grad():
                odd += int((~oracle.loss(outputs, targets).isfinite()).sum())
        return odd

    if odd := attempted(f"the model or the loss fails on a record of {name}", act):
        raise InputError(
            f"the loss is not finite on {odd:,} of {len(rows):,} records of {name}; check their inputs and "
            "labels, and the model's first weights. Nothing was charged"
        )


def refuse_constant(oracle: NetworkOracle, records: Records) -> None:
    """Raise InputError if the model gives one output for all of these public records, and training keeps it.

    A last layer that begins at zero gives one output too. A plain gradient step moves its outputs apart;
    it does not if the model drops its inputs, or if no gradient passes its last activation.
    """
    rows = np.arange(0, len(records), math.ceil(max(1, len(records)) / _MOST_COMPARED))
    batch = records.fetch(rows)
    if len(rows) < _FEWEST_COMPARED or _alike(batch[0], len(rows)) or not _constant(oracle, records, rows):
        return
    start = read(oracle.model)
    try:
        gradient = oracle.mean_gradient(batch)
        length = _TRIAL_STEP * max(1.0, float(start.norm())) / max(float(gradient.norm()), 1e-30)
        write(oracle.model, start - length * gradient.to(start))
        constant = _constant(oracle, records, rows)
    finally:
        write(oracle.model, start)
    if constant:
        raise InputError(
            f"the model gives the same output for {len(rows)} different public records, and a gradient step "
            "does not change that: does it use its inputs, and does a gradient pass its last activation? "
            "Nothing was charged"
        )


def _constant(oracle: NetworkOracle, records: Records, rows: NDArray[np.int64]) -> bool:
    return all(_alike(outputs, len(rows)) for outputs, _ in outputs_of(oracle.model, records, rows))


def _alike(values: object, count: int) -> bool:
    """Whether these are numbers of `count` records, and the same ones for each but for rounding."""
    found = [one.detach().double() for one in tensors(getattr(values, "logits", values))]
    mine = [one for one in found if one.dim() and len(one) == count]
    apart = [float((one - one[:1]).abs().max()) <= _ROUNDING * float(one.abs().max()) for one in mine]
    return bool(apart) and all(apart)


def try_training(oracle: NetworkOracle, records: Records, how: PublicTraining) -> None:
    """Raise InputError if plain steps on these public records cannot be taken as `how` says."""
    optimizer = sound_optimizer(lambda _: how.make_optimizer(oracle.model), trainable(oracle.model))
    rehearse(optimizer, sound_scheduler(how.scheduler, optimizer), steps=how.steps_for(len(records)))
    two = range(min(2, len(records)))
    attempted(
        "plain training on public records fails; see its augment= and the loss",
        lambda: oracle.mean_gradient(augmented(how.augment, *records.fetch(two))),
    )


def sound_optimizer(
    make: Callable[[list[nn.Parameter]], object], parameters: list[nn.Parameter]
) -> torch.optim.Optimizer:
    """What optimizer= makes, if it can take a step with a gradient that is given."""
    made = attempted("optimizer= fails", lambda: make(parameters))
    if not isinstance(made, torch.optim.Optimizer):
        raise InputError(
            f"optimizer= returned {type(made).__name__}; it must return an optimizer of the parameters that "
            "it is given, as lambda p: torch.optim.SGD(p, lr=0.1) does"
        )
    if isinstance(made, torch.optim.LBFGS):
        raise InputError(
            "LBFGS asks for the loss several times per step, and each would be a release; use another"
        )
    if not {id(p) for p in _parameters(made)} & {id(p) for p in parameters}:
        raise InputError(
            "optimizer= returned an optimizer of other parameters than those that it is given, so nothing "
            "would be trained"
        )
    return made


def sound_scheduler(
    make: Callable[[torch.optim.Optimizer], T] | None,
    optimizer: torch.optim.Optimizer,
    *,
    scored: bool = False,
) -> T | None:
    """A scheduler that is stepped after every step, or None; `scored`: or with every public score."""
    made = None if make is None else attempted("scheduler= fails", lambda: make(optimizer))
    if isinstance(made, ReduceLROnPlateau):
        if scored:
            return made
        raise InputError("ReduceLROnPlateau needs scores: hold out public records by validation=")
    if made is not None and not _steps_alone(made):
        raise InputError(
            f"scheduler= returned {type(made).__name__}; its step() must need no score and no other argument"
        )
    return made


def _steps_alone(scheduler: object) -> bool:
    """Whether step() takes nothing, as far as its signature says."""
    step = getattr(scheduler, "step", None)
    try:
        inspect.signature(step).bind()  # type: ignore[arg-type]
    except TypeError:  # no function, or one that asks for more
        return False
    except ValueError:  # no signature
        return True
    return True


def rehearse(
    optimizer: torch.optim.Optimizer, scheduler: T | None, *, steps: int
) -> tuple[torch.optim.Optimizer, T | None]:
    """Take every step of a plan with zero gradients, on copies whose parameters are one number each.

    Raises InputError for the step that fails. Optimizer, scheduler, parameters and random numbers stay as
    they are. Returns the copies as the plan leaves them; where none can be made, what was given. A scheduler
    that is no LRScheduler may do anything in its step(), a copy too, and is not rehearsed.

    An optimizer that keeps sizes or weights elsewhere, or divides by the gradient, fails on such copies
    alone: it is tried again on copies of full size, with gradients of 1e-3, up to the step that failed.
    """
    waits = isinstance(scheduler, ReduceLROnPlateau)  # for scores
    known = scheduler if isinstance(scheduler, LRScheduler) and not waits else None
    try:
        small, schedule = _copies(optimizer, known, _first)
    except Exception:  # something in them has no copies: there is nothing to try
        return optimizer, scheduler
    name = type(optimizer).__name__
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the run itself will give them
        for step in range(1, steps + 1):
            try:
                attempted(f"{name} fails at step {step} of {steps}", small.step)
            except InputError:
                _rehearse_in_full(optimizer, known, step, steps)
                return optimizer, scheduler
            if schedule is not None:
                _rehearse_schedule(schedule, small, step, steps)
    return small, scheduler if schedule is None else cast(T, schedule)


def _rehearse_in_full(
    optimizer: torch.optim.Optimizer, scheduler: LRScheduler | None, last: int, steps: int
) -> None:
    """The steps up to `last`, on copies with the sizes of the model and with gradients that are not zero."""
    large, schedule = _copies(optimizer, scheduler, Tensor.clone)
    for parameter in _parameters(large):
        if parameter.grad is not None:
            parameter.grad.fill_(1e-3)
    for step in range(1, last + 1):
        attempted(f"{type(optimizer).__name__} fails at step {step} of {steps}", large.step)
        if schedule is not None:
            _rehearse_schedule(schedule, large, step, steps)


def relative_rates(optimizer: torch.optim.Optimizer, scheduler: object, steps: int) -> tuple[float, ...]:
    """The learning rate of each step, relative to the largest; empty where that is not known beforehand."""
    if not isinstance(scheduler, LRScheduler) or isinstance(scheduler, ReduceLROnPlateau):
        return ()
    rates: list[float] = []
    try:
        small, schedule = _copies(optimizer, scheduler, _first)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for _ in range(steps):
                rates.append(float(small.param_groups[0]["lr"]))
                small.step()
                if schedule is not None:
                    schedule.step()
    except Exception:  # whether it can be run at all is for `rehearse` to say
        return ()
    top = max(rates, default=0.0)
    known = 0 < top < math.inf and all(0 <= rate <= top for rate in rates)
    return tuple(rate / top for rate in rates) if known else ()


def _rehearse_schedule(
    schedule: LRScheduler, optimizer: torch.optim.Optimizer, step: int, steps: int
) -> None:
    name = type(schedule).__name__
    attempted(f"{name} fails at step {step} of {steps}", schedule.step)
    if not all(math.isfinite(float(group.get("lr", 0))) for group in optimizer.param_groups):
        raise InputError(
            f"{name} sets a learning rate that is not finite at step {step} of {steps}. Nothing was charged"
        )


def _copies(
    optimizer: torch.optim.Optimizer, scheduler: LRScheduler | None, sized: Callable[[Tensor], Tensor]
) -> tuple[torch.optim.Optimizer, LRScheduler | None]:
    """Copies of both, with what `sized` makes of each tensor, and what functions of theirs remember.

    Not by copy.deepcopy(optimizer), which leaves attributes of one's own out, and not with its `step`: a
    scheduler has put one there that moves the original.
    """
    made = type(optimizer).__new__(type(optimizer))
    memo: dict[int, object] = {id(optimizer): made}
    for parameter in _parameters(optimizer):
        memo[id(parameter)] = _with_gradient(parameter, sized)
    for held in _tensors([*optimizer.state.values()]):
        memo.setdefault(id(held), sized(held.detach()))
    for function in {*_functions(scheduler, set())}:
        memo[id(function)] = _own_function(function, memo)
    for key, value in vars(optimizer).items():
        if key != "step":
            made.__dict__[key] = OrderedDict() if key.endswith("_hooks") else copy.deepcopy(value, memo)
    return made, copy.deepcopy(scheduler, memo)


def _functions(thing: object, seen: set[int]) -> Iterator[FunctionType]:
    """Functions of a scheduler, of those inside it, and of its lists: each may remember what it gave."""
    if id(thing) in seen:
        return
    seen.add(id(thing))
    inside = vars(thing).values() if isinstance(thing, LRScheduler) else thing
    if isinstance(thing, FunctionType):
        yield thing
    elif isinstance(inside, Iterable) and isinstance(thing, LRScheduler | list | tuple):
        for one in inside:
            yield from _functions(one, seen)


def _own_function(function: FunctionType, memo: dict[int, object]) -> FunctionType:
    """The same with copies of the variables around it. TypeError for one with an iterator among globals."""
    named = (function.__globals__.get(name) for name in function.__code__.co_names)
    if any(isinstance(one, Iterator) for one in named):
        raise TypeError("an iterator of the module would be used up")
    cells = tuple(CellType(copy.deepcopy(cell.cell_contents, memo)) for cell in function.__closure__ or ())
    return FunctionType(
        function.__code__, function.__globals__, function.__name__, function.__defaults__, cells
    )


def _with_gradient(parameter: Tensor, sized: Callable[[Tensor], Tensor]) -> Tensor:
    made = nn.Parameter(sized(parameter.detach()), parameter.requires_grad)
    made.grad = torch.zeros_like(made) if parameter.requires_grad else None
    return made


def _first(tensor: Tensor) -> Tensor:
    return tensor[(slice(0, 1),) * tensor.dim()].clone()


def _parameters(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _tensors(values: Sequence[object]) -> list[Tensor]:
    """Tensors in a state, which is a dictionary for each parameter."""
    inside = [one for value in values for one in (value.values() if isinstance(value, dict) else [value])]
    return [one for one in inside if isinstance(one, Tensor)]
