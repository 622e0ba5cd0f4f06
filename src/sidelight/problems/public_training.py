"""Plain training on public records: warm starts, model reuse, and the method that uses nothing else.

Where the user gives no number of steps, `train_well` does what a practitioner does: AdamW, whose step size
rises and falls once. Step size, epochs, weight decay and label smoothing are chosen on folds of the public
records. A first guess stands until another setting is better on the same folds by more than a standard error,
and the choice takes at most `_PATIENCE` times the processor time of the training itself. The network is then
trained once on all public records, with what was chosen. Nothing here is secret.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, replace
from typing import Protocol, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.data import Subset

from sidelight.arrays import Json
from sidelight.augment.transforms import Augment, augmented
from sidelight.errors import AssumptionError, InputError
from sidelight.oracles.network.batches import Batch, call
from sidelight.oracles.network.flat import trainable
from sidelight.oracles.network.network_oracle import NetworkOracle
from sidelight.problems.datasets import Records
from sidelight.problems.flat_parameters import read, set_gradients, write
from sidelight.problems.network_public import HeldOut, Score, are_classes, likeliest_factor, public_indices

Optimizer = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]


class _Steps(Protocol):
    """A learning-rate scheduler, as far as training uses it."""

    def step(self) -> object: ...


Scheduler = Callable[[torch.optim.Optimizer], _Steps]
Pull: TypeAlias = tuple[Tensor, float]  # (w₀, λ) adds λ‖w − w₀‖² to the mean loss

FACTOR = "factor_of_scores"  # in what was chosen: under which unseen public records are likeliest
_AWAY = 2**40  # steps of plain training draw other batches than private steps do
_FOLDS = 3
_MIN_PUBLIC_RECORDS = 30  # public records, without which nothing is chosen
_FEWEST_BATCHES = 8  # of an epoch: fewer records than 8 batches make smaller ones
_FEWEST_STEPS, _MOST_STEPS = 100, 6000
_AUGMENTED = 3  # times as many epochs where every batch is made anew by augmentation
_PATIENCE, _LEAST_SECONDS = 4.0, 8.0  # trainings that the choice may take, and seconds in any case
_MOST_SCORES = 2**22  # that are kept of a fold
_RISE = 0.2  # of the steps, until the step size is longest


@dataclass(frozen=True)
class CycleSetting:
    """How AdamW is run: the first guess, and what else is tried."""

    step_size: float = 2e-3
    epochs: int = 40
    weight_decay: float = 0.05
    label_smoothing: float = 0.05  # of cross-entropy

    def others(self) -> tuple[tuple[CycleSetting, ...], ...]:
        """Settings that differ in one thing, thing by thing."""
        return (
            (replace(self, step_size=4 * self.step_size), replace(self, step_size=self.step_size / 4)),
            (replace(self, epochs=self.epochs // 4), replace(self, epochs=3 * self.epochs)),
            (replace(self, weight_decay=0.01, label_smoothing=0.0),
             replace(self, weight_decay=1.0, label_smoothing=0.1)),
        )  # fmt: skip

    def __str__(self) -> str:
        return (
            f"step size {self.step_size:g}, {self.epochs} epochs, weight decay {self.weight_decay:g}, "
            f"label smoothing {self.label_smoothing:g}"
        )


@dataclass(frozen=True)
class PublicTraining:
    """Plain steps on public records (DOPE-SGD's warm start; with `augment` its warm-aug).

    Args:
        steps: how many. None: chosen on folds of the public records, with all that is left out here.
        batch_size: public records per step; at most an eighth of them if `steps` is None.
        optimizer: parameters → optimizer; None is SGD with step size 0.1 and momentum 0.9 for a number of
            steps that is given, else AdamW with a step size that rises and falls once.
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

    def steps_for(self, size: int, epochs: int = CycleSetting.epochs) -> int:
        """T for so many public records."""
        if self.steps is not None:
            return self.steps
        passes = epochs * (1 if self.augment is None else _AUGMENTED)
        steps = math.ceil(passes * size / self._batch_for(size))
        return min(_MOST_STEPS, max(min(_FEWEST_STEPS, 4 * epochs), steps))

    def _batch_for(self, size: int) -> int:
        return min(self.batch_size, max(1, size // _FEWEST_BATCHES))

    def make_optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        if self.optimizer is not None:
            return self.optimizer(trainable(model))
        return torch.optim.SGD(trainable(model), lr=0.1, momentum=0.9)

    def set_to(self, setting: CycleSetting, size: int) -> PublicTraining:
        """With everything that is left out as this setting has it."""
        steps = self.steps_for(size, setting.epochs)
        fixed = replace(self, steps=steps, batch_size=self._batch_for(size))
        return fixed if self.optimizer is not None else one_cycle(
            fixed, setting.step_size, weight_decay=setting.weight_decay
        )  # fmt: skip


def one_cycle(how: PublicTraining, step_size: float, *, weight_decay: float = 0.01) -> PublicTraining:
    """AdamW, its step size up to this in the first part of the steps and then down to nothing."""
    steps = how.steps or 1
    rise = max(1, round(_RISE * steps))

    def optimizer(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.AdamW(parameters, lr=step_size, weight_decay=weight_decay)

    def share(step: int) -> float:
        if step + 1 < rise:
            return (step + 1) / rise
        fallen = min(1.0, (step - rise) / max(1, steps - rise))
        return 0.5 * (1 + math.cos(math.pi * max(0.0, fallen)))

    schedule = how.scheduler or (lambda made: torch.optim.lr_scheduler.LambdaLR(made, share))
    return replace(how, optimizer=optimizer, scheduler=schedule)


def plain_steps(
    oracle: NetworkOracle,
    records: Records,
    how: PublicTraining,
    *,
    seed: int,
    smoothing: float = 0.0,
    pull: Pull | None = None,
    each: Callable[[int], bool] | None = None,
) -> None:
    """Train without privacy, in place.

    `each` is called after every step, and ends the training by returning False. `smoothing` is that of
    labels; a loss that is not cross-entropy is left as it is.
    """
    model = oracle.model
    optimizer = how.make_optimizer(model)
    scheduler = None if how.scheduler is None else how.scheduler(optimizer)
    for step in range(how.steps_for(len(records))):
        indices = public_indices(len(records), how.batch_size, seed=seed, step=_AWAY + step)
        batch = augmented(how.augment, *records.fetch(indices))
        if smoothing:
            _smoothed(oracle, batch, smoothing)
        else:
            set_gradients(model, oracle.mean_gradient(batch))
        if pull is not None:
            set_gradients(model, 2 * pull[1] * (read(model) - pull[0]), add=True)
        optimizer.step()
        if scheduler is not None:
            scheduler.step()
        if each is not None and not each(step):
            break
    optimizer.zero_grad(set_to_none=True)
    if not bool(read(model).isfinite().all()):
        raise AssumptionError("plain training on public records diverged; lower its step size")


def _smoothed(oracle: NetworkOracle, batch: Batch, smoothing: float) -> None:
    """The gradient of the mean loss with smoothed labels, into p.grad."""
    inputs, targets = batch
    with torch.enable_grad():
        outputs = call(oracle.model, inputs)
        losses = oracle.loss(outputs, targets)
        scores = getattr(outputs, "logits", outputs)
        if is_cross_entropy(losses, scores, targets):
            evenly = -torch.log_softmax(scores, dim=1).mean(dim=1)
            losses = (1 - smoothing) * losses + smoothing * evenly
        found = torch.autograd.grad(losses.mean(), oracle.parameters, allow_unused=True)
    for parameter, gradient in zip(oracle.parameters, found, strict=True):
        parameter.grad = torch.zeros_like(parameter) if gradient is None else gradient


def is_cross_entropy(losses: Tensor, scores: object, targets: object) -> bool:
    if not (isinstance(scores, Tensor) and isinstance(targets, Tensor) and are_classes(scores, targets)):
        return False
    with torch.no_grad():
        plain = nn.functional.cross_entropy(scores, targets.long(), reduction="none")
        return bool(torch.allclose(plain, losses, rtol=1e-3, atol=1e-5))


# ---------------------------------------------------------------------------------------------------
# trained well: everything that is left out is chosen on folds


def train_well(
    oracle: NetworkOracle,
    records: Records,
    how: PublicTraining,
    *,
    seed: int,
    pull: Pull | None = None,
    each: Callable[[int], bool] | None = None,
) -> Json:
    """Train in place on all these records, and say what was chosen. With a number of steps, as `how` says."""
    if how.steps is not None:
        plain_steps(oracle, records, how, seed=seed, pull=pull, each=each)
        return {"steps": how.steps}
    race = _Race(oracle, records, how, seed=seed, pull=pull)
    setting = race.won()
    if race.start_beats(setting):
        return {"steps": 0, "kept": "the start", "on_folds": race.shown}
    fixed = how.set_to(setting, len(records))
    plain_steps(oracle, records, fixed, seed=seed, smoothing=setting.label_smoothing, pull=pull, each=each)
    chosen = asdict(setting) if how.optimizer is None else {"epochs": setting.epochs}
    factor = race.factor(setting)
    return {
        "steps": fixed.steps, **chosen, **({} if factor == 1.0 else {FACTOR: factor}), "on_folds": race.shown,
    }  # fmt: skip


class _Race:
    """Settings on the same folds of the public records, against the best so far."""

    def __init__(
        self, oracle: NetworkOracle, records: Records, how: PublicTraining, *, seed: int, pull: Pull | None
    ) -> None:
        self.oracle, self.records, self.how, self.seed, self.pull = oracle, records, how, seed, pull
        order = np.random.default_rng([seed, 2**42]).permutation(len(records))
        self.folds: list[NDArray[np.int64]] = [np.sort(part) for part in np.array_split(order, _FOLDS)]
        self.start, self.found = read(oracle.model), dict[CycleSetting, list[Score]]()
        self.ends = math.inf

    def won(self) -> CycleSetting:
        """The setting to train with; the model is left as it was."""
        best = CycleSetting()
        if len(self.records) < _MIN_PUBLIC_RECORDS:
            return best
        began = time.process_time()
        self._run(best)
        taken = (time.process_time() - began) * _FOLDS / (_FOLDS - 1)
        self.ends = began + max(_LEAST_SECONDS, _PATIENCE * taken)
        for tried in range(len(best.others())):
            for other in best.others()[tried]:
                if self._in_question(other) and self._beats(other, best):
                    best = other
                    break
        return best

    def start_beats(self, best: CycleSetting) -> bool:
        """Whether the network as it is does better on the folds than after training on the others."""
        folds = len(self.found.get(best, []))
        if not folds:
            return False
        scored = [HeldOut(self.oracle, self._some(out)).score().losses for out in self.folds[:folds]]
        gain, error = Score(np.concatenate(scored)).gain_over(self._score(best, folds))
        return gain > error

    def factor(self, setting: CycleSetting) -> float:
        """By which the scores of networks that were trained so fit the folds that they have not seen."""
        seen = [one.classes for one in self.found.get(setting, []) if one.classes is not None]
        scores, labels = (torch.cat([one[k] for one in seen]) if seen else torch.zeros(0) for k in (0, 1))
        return 1.0 if len(labels) < _MIN_PUBLIC_RECORDS else likeliest_factor(scores, labels)

    def _in_question(self, other: CycleSetting) -> bool:
        """Whether the setting differs in something that the user has not fixed."""
        return self.how.optimizer is None or other == replace(CycleSetting(), epochs=other.epochs)

    def _beats(self, other: CycleSetting, best: CycleSetting) -> bool:
        """Whether it is better by more than a standard error on the folds that there is time for."""
        gain, error = 0.0, 0.0
        for fold in range(1, _FOLDS + 1):
            for one in (best, other):
                while len(self.found.get(one, [])) < fold:
                    if time.process_time() > self.ends:
                        return False
                    self._run(one)
            gain, error = self._score(other, fold).gain_over(self._score(best, fold))
            if abs(gain) > 2 * error:
                break
        return gain > error

    def _score(self, setting: CycleSetting, folds: int) -> Score:
        return Score(np.concatenate([one.losses for one in self.found[setting][:folds]]))

    def _run(self, setting: CycleSetting) -> None:
        """Train on all folds but the next, and score that."""
        done = self.found.setdefault(setting, [])
        out = self.folds[len(done)]
        rest = np.setdiff1d(np.arange(len(self.records)), out)
        learn, judge = (self._some(rows) for rows in (rest, out))
        try:
            plain_steps(
                self.oracle, learn, self.how.set_to(setting, len(learn)), seed=self.seed,
                smoothing=setting.label_smoothing, pull=self.pull,
            )  # fmt: skip
            score = HeldOut(self.oracle, judge).score()
            small = score.classes is not None and score.classes[0].numel() <= _MOST_SCORES
            done.append(score if small else replace(score, classes=None))
        except AssumptionError:  # it diverged
            done.append(Score(np.full(len(out), math.inf)))
        finally:
            write(self.oracle.model, self.start)

    def _some(self, rows: NDArray[np.int64]) -> Records:
        return Records(Subset(self.records.dataset, rows.tolist()), self.records.loading, self.records.device)

    @property
    def shown(self) -> dict[str, str]:
        """What was found, for the report."""
        return {
            str(
                setting
            ): f"loss {self._score(setting, len(folds)).losses.mean():.4f} on {len(folds)} of {_FOLDS} folds"
            for setting, folds in self.found.items()
        }
