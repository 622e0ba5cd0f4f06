"""Plain training on public records: warm starts, model reuse, and the method that uses nothing else.

Where the user gives no number of steps, `train_well` chooses on held-out public records: the step size among
a few, by short trials, and then the best of ten looks at a training run whose step size rises and falls.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

import torch
from torch import Tensor, nn

from sidelight.arrays import Json
from sidelight.augment.transforms import Augment, augmented
from sidelight.errors import AssumptionError, InputError
from sidelight.oracles.network.flat import read, set_gradients, trainable, write
from sidelight.oracles.network.network_oracle import NetworkOracle
from sidelight.oracles.network.records import Records
from sidelight.problems.held_out import HeldOut, Score
from sidelight.problems.network_guide import public_indices

__all__ = ["Optimizer", "PublicTraining", "Scheduler", "plain_steps", "train_well", "with_rate"]

Optimizer = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]


class _Steps(Protocol):
    """A learning-rate scheduler, as far as training uses it."""

    def step(self) -> object: ...


Scheduler = Callable[[torch.optim.Optimizer], _Steps]

_AWAY = 2**40  # steps of plain training draw other batches than private steps do

_RATES = (1e-3, 4e-3, 1.6e-2)  # step sizes of Adam that are tried
_RATE = 2e-3  # without held-out records to choose by
_TRIAL = 5  # a trial has this part of the steps
_LOOKS = 10  # at held-out records in a run
_EPOCHS, _FEWEST, _MOST = 80, 300, 2000  # passes over the public records, and the limits of the steps
_AUGMENTED = 3  # times as many steps where every batch is made anew by augmentation


@dataclass(frozen=True)
class PublicTraining:
    """Plain steps on public records (DOPE-SGD's warm start; with `augment` its warm-aug).

    Args:
        steps: how many. None: a number by the size of the public data, and the best of ten looks at
            held-out public records.
        batch_size: public records per step.
        optimizer: parameters → optimizer; None is SGD with step size 0.1 and momentum 0.9 for a number of
            steps that is given, else AdamW with a step size that is chosen on held-out public records.
        augment: inputs → inputs, for instance random shifts of images; or `mixup`.
        scheduler: optimizer → scheduler, stepped after every step.
    """

    steps: int | None = None
    batch_size: int = 128
    optimizer: Optimizer | None = None
    augment: Augment | None = None
    scheduler: Scheduler | None = None

    def __post_init__(self) -> None:
        if (self.steps is not None and self.steps < 0) or self.batch_size < 1:
            raise InputError("public training needs steps of at least 0 and batch_size of at least 1")

    def steps_for(self, size: int) -> int:
        """T for so many public records."""
        if self.steps is not None:
            return self.steps
        passes = math.ceil(_EPOCHS * size / min(self.batch_size, max(1, size)))
        return min(_MOST, max(_FEWEST, passes)) * (1 if self.augment is None else _AUGMENTED)

    def make_optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        if self.optimizer is not None:
            return self.optimizer(trainable(model))
        return torch.optim.SGD(trainable(model), lr=0.1, momentum=0.9)


def plain_steps(
    oracle: NetworkOracle,
    records: Records,
    how: PublicTraining,
    *,
    seed: int,
    pull: tuple[Tensor, float] | None = None,
    each: Callable[[int], bool] | None = None,
) -> None:
    """Train without privacy, in place; `pull` = (w₀, λ) adds λ‖w − w₀‖².

    `each` is called after every step, and ends the training by returning False.
    """
    model = oracle.model
    optimizer = how.make_optimizer(model)
    scheduler = None if how.scheduler is None else how.scheduler(optimizer)
    for step in range(how.steps_for(len(records))):
        indices = public_indices(len(records), how.batch_size, seed=seed, step=_AWAY + step)
        inputs, targets = records.fetch(indices)
        gradient = oracle.mean_gradient(augmented(how.augment, inputs, targets))
        if pull is not None:
            gradient = gradient + 2 * pull[1] * (read(model) - pull[0])
        set_gradients(model, gradient)
        optimizer.step()
        if scheduler is not None:
            scheduler.step()
        if each is not None and not each(step):
            break
    optimizer.zero_grad(set_to_none=True)
    if not bool(read(model).isfinite().all()):
        raise AssumptionError("plain training on public records diverged; lower its step size")


# ---------------------------------------------------------------------------------------------------
# trained well: the step size, and where to stop, by held-out public records


def train_well(
    oracle: NetworkOracle,
    records: Records,
    how: PublicTraining,
    *,
    held_out: HeldOut | None,
    seed: int,
    each: Callable[[int], bool] | None = None,
) -> Json:
    """Train in place, and say what was chosen. With a number of steps in `how`, as it says."""
    if how.steps is not None:
        plain_steps(oracle, records, how, seed=seed, each=each)
        return {"steps": how.steps}
    judged = held_out if held_out is not None and len(held_out) >= 2 else None
    how = replace(how, steps=how.steps_for(len(records)))
    evidence: Json = {"steps": how.steps}
    if how.optimizer is None:
        rate, trials = _RATE, dict[str, str]()
        if judged is not None:
            rate, trials = _chosen_rate(oracle, records, how, judged, seed)
        how = with_rate(how, rate)
        evidence |= {"optimizer": "AdamW", "step_size": rate, "trials": trials}
    return evidence | _best_look(oracle, records, how, judged, seed, each)


def _chosen_rate(
    oracle: NetworkOracle, records: Records, how: PublicTraining, held_out: HeldOut, seed: int
) -> tuple[float, dict[str, str]]:
    """The best of a few step sizes in short trials, all from the same start."""
    start, found = read(oracle.model), dict[float, Score]()
    brief = replace(how, steps=max(100, (how.steps or 0) // _TRIAL))
    for rate in _RATES:
        try:
            plain_steps(oracle, records, with_rate(brief, rate), seed=seed)
            found[rate] = held_out.score()
        except AssumptionError:  # it diverged
            continue
        finally:
            write(oracle.model, start)
    if not found:
        return _RATES[0], {"all": "diverged"}
    best = min(found, key=lambda rate: found[rate].loss)
    return best, {f"step size {rate:g}": str(score) for rate, score in found.items()}


def with_rate(how: PublicTraining, rate: float) -> PublicTraining:
    """AdamW, its step size up to `rate` in the first part of the steps and then down to nothing."""
    steps = how.steps or 1
    made = replace(how, optimizer=partial(torch.optim.AdamW, lr=rate, weight_decay=0.01))
    if how.scheduler is not None:
        return made
    rise = max(1, round(0.15 * steps))

    def share(step: int) -> float:
        if step + 1 < rise:
            return (step + 1) / rise
        fallen = min(1.0, (step - rise) / max(1, steps - rise))
        return 0.5 * (1 + math.cos(math.pi * max(0.0, fallen)))

    return replace(made, scheduler=lambda optimizer: torch.optim.lr_scheduler.LambdaLR(optimizer, share))


def _best_look(
    oracle: NetworkOracle,
    records: Records,
    how: PublicTraining,
    held_out: HeldOut | None,
    seed: int,
    each: Callable[[int], bool] | None,
) -> Json:
    """Train, look at held-out records now and then, and keep the parameters of the best look."""
    if held_out is None:
        plain_steps(oracle, records, how, seed=seed, each=each)
        return {}
    steps, score = how.steps or 0, held_out.score()
    best: tuple[float, int, Tensor, Score] = (score.loss, 0, read(oracle.model), score)

    def look(step: int) -> bool:
        nonlocal best
        if (step + 1) % max(1, steps // _LOOKS) == 0 or step + 1 == steps:
            score = held_out.score()
            if score.loss <= best[0]:
                best = (score.loss, step + 1, read(oracle.model), score)
        return True if each is None else each(step)

    plain_steps(oracle, records, how, seed=seed, each=look)
    write(oracle.model, best[2])
    return {"kept_after": best[1], "held_out": str(best[3])}
