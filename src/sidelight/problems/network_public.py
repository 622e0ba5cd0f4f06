"""The public side of a network: what its public records say, how it is trained on them, and how it is scored.

`NetworkGuide` answers the questions of `PublicOracle` with flat tensors: gradients, norms, losses
and curvature. `HeldOut` says how good a network is, by public records that it was not trained on: classes are
scored by cross-entropy at the best temperature, since noise and long training change how sure a network is of
itself, and not only what it predicts. Choices between networks should see the second alone, and an accuracy
on a few hundred records is too coarse to see it. Other targets are scored by the user's loss.

`PublicTraining` is plain training on public records: warm starts, model reuse, and the method that uses
nothing else. Where the user gives no number of steps, `train_well` chooses on held-out public records: the
step size among a few, by short trials (half of it where every batch is augmented), and then where to stop,
among ten looks, at the iterate and at an average of iterates, at a run whose step size rises and falls.
Nothing here is secret.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from sidelight.arrays import Floats, Json, Vector
from sidelight.augment.transforms import Augment, augmented
from sidelight.clipping import Metric
from sidelight.errors import AssumptionError, InputError
from sidelight.oracles.network.batches import Batch, call, row_count, take, tensors
from sidelight.oracles.network.flat import evaluating, read, set_gradients, tensor, trainable, write
from sidelight.oracles.network.network_oracle import NetworkOracle
from sidelight.problems.datasets import Records

__all__ = [
    "Average", "HeldOut", "NetworkGuide", "Optimizer", "PublicTraining", "Score", "are_classes", "outputs_of",
    "plain_steps", "train_well", "with_rate",
]  # fmt: skip

_MOST_NUMBERS = 2**27  # of a matrix of gradients: half a gigabyte
_REACH = 1e-3  # of the parameters' length: between two gradients whose difference is the curvature


def public_indices(size: int, count: int, *, seed: int, step: int) -> NDArray[np.int64]:
    """`count` distinct public records for a step. A function of the seed and the step: nothing to store."""
    if count >= size:
        return np.arange(size)
    return np.sort(np.random.default_rng([seed, step]).choice(size, count, replace=False))


class NetworkGuide:
    """Answers about a network at given parameters, from a batch of public records.

    Args:
        records: public records, of which `draw` takes a batch; without them `show` sets it.
        batch_size: public records in each answer.
        held_out: other public records, for losses that training has not already made small.
        gradient_rows: at most so many gradients are written out, where a part needs them one by one.
    """

    def __init__(
        self,
        oracle: NetworkOracle,
        records: Records | None = None,
        *,
        batch_size: int = 640,
        held_out: Records | None = None,
        augment: Augment | None = None,
        size: int | None = None,
        seed: int = 0,
        micro_batch: int | None = None,
        gradient_rows: int = 256,
    ) -> None:
        self.oracle, self.records, self.held_out = oracle, records, held_out
        self.batch_size, self.augment, self.seed = batch_size, augment, seed
        self.micro_batch, self.gradient_rows = micro_batch, gradient_rows
        self.size = (0 if records is None else len(records)) if size is None else size
        self.last_loss: float | None = None  # of the present batch, where its mean gradient was taken last
        self.refresh = 10  # gradients one by one are expensive
        self._batch: Batch | None = None
        self._drawn: int | None = None  # the step whose batch is fetched when it is asked for

    def draw(self, step: int) -> None:
        """Take the public batch of this step; it is read once a part of the method asks for it."""
        self.last_loss = None
        if self.records is not None and len(self.records):
            self._drawn = step

    def show(self, batch: Batch | None) -> None:
        """Answer from this batch; None takes the present one away."""
        self._batch, self._drawn, self.last_loss = batch, None, None

    @property
    def batch(self) -> Batch:
        if self._drawn is not None and self.records is not None:
            step, self._drawn = self._drawn, None
            indices = public_indices(len(self.records), self.batch_size, seed=self.seed, step=step)
            self._batch = augmented(self.augment, *self.records.fetch(indices))
        if self._batch is None or row_count(self._batch) == 0:
            raise InputError("this method needs public records; pass a public dataset or a public batch")
        return self._batch

    def mean_gradient(self, params: Vector) -> Tensor:
        """The mean gradient, not clipped."""
        write(self.oracle.model, params := tensor(params))
        batch, rows = self.batch, row_count(self.batch)
        size = rows if self.micro_batch is None else self.micro_batch
        if size >= rows:
            self.last_loss, gradient = self.oracle.loss_and_gradient(batch)
            return gradient
        total, self.last_loss = torch.zeros_like(params), 0.0
        for low in range(0, rows, size):
            some = take(batch, slice(low, low + size))
            loss, gradient = self.oracle.loss_and_gradient(some)
            total += gradient * (row_count(some) / rows)
            self.last_loss += loss * (row_count(some) / rows)
        return total

    def gradient_norms(
        self, params: Vector, *, metric: Metric = None, origin: Vector | None = None
    ) -> Floats:
        """‖M(g_j − o)‖ of each record of the batch."""
        write(self.oracle.model, tensor(params))
        start = None if origin is None else tensor(origin)
        norms = self.oracle.norms(self.batch, origin=start, metric=metric, micro_batch=self.micro_batch)
        return np.asarray(norms.numpy(), dtype=np.float64)

    def weighted_gradient(self, params: Vector, weights: Floats) -> Tensor:
        """The mean of w_j g_j over the batch."""
        write(self.oracle.model, params := tensor(params))
        rows, parameters = row_count(self.batch), self.oracle.parameters
        size, total = self.micro_batch or rows, torch.zeros_like(params)
        for low in range(0, rows, size):
            inputs, targets = take(self.batch, slice(low, low + size))
            with torch.enable_grad():
                losses = self.oracle.loss(call(self.oracle.model, inputs), targets)
                by = torch.as_tensor(weights[low : low + size]).to(losses)
                found = torch.autograd.grad((by * losses).sum(), parameters, allow_unused=True)
            pairs = zip(parameters, found, strict=True)
            parts = [torch.zeros_like(p) if g is None else g for p, g in pairs]
            total += torch.cat([part.detach().reshape(-1).to(total) for part in parts]) / rows
        return total

    def gradients(self, params: Vector) -> Tensor:
        """The gradients of at most `gradient_rows` records, one per row."""
        write(self.oracle.model, params := tensor(params))
        count = min(row_count(self.batch), self.gradient_rows)
        if count * params.numel() > _MOST_NUMBERS:
            raise InputError(
                f"{count} gradients of {params.numel()} parameters are too many to write out. Train fewer "
                "parameters (freeze all but the last layer: p.requires_grad_(False)), leave the metric out, "
                "or project the last layer alone (metric=LastLayer(), of sidelight.deep)"
            )
        return torch.stack(
            [self.oracle.mean_gradient(take(self.batch, slice(i, i + 1))) for i in range(count)]
        )

    def mean_loss(self, params: Vector) -> float:
        """The mean loss of the held-out records, or without these of the batch."""
        write(self.oracle.model, tensor(params))
        held, model = self.held_out, self.oracle.model
        total, count = 0.0, 0
        with torch.no_grad(), evaluating(model):
            seen = (
                outputs_of(model, held)
                if held is not None and len(held)
                else iter([(call(model, self.batch[0]), self.batch[1])])
            )
            for outputs, targets in seen:
                losses = self.oracle.loss(outputs, targets)
                total, count = total + float(losses.double().sum()), count + len(losses)
        return total / count

    def smoothness(self, *, iterations: int = 20) -> float:
        """|λ| of the largest eigenvalue of the mean loss's Hessian at the present parameters.

        Power iteration. Products with the Hessian are differences of gradients of the public batch: second
        derivatives of fused layers (attention, LSTM) are not there for every device.
        """
        model = self.oracle.model
        center = read(model)
        reach = _REACH * max(1.0, float(center.norm()))
        v = torch.randn(center.shape, generator=torch.Generator().manual_seed(0)).to(center)
        eigenvalue = 0.0
        try:
            for _ in range(iterations):
                length = float(v.norm())
                if not 0 < length < math.inf:
                    break
                v = v / length
                ahead, behind = (self._gradient_at(center + h * v) for h in (reach, -reach))
                v = (ahead - behind) / (2 * reach)
                eigenvalue = float(v.double().norm())
        finally:
            write(model, center)
        return eigenvalue

    def _gradient_at(self, params: Tensor) -> Tensor:
        write(self.oracle.model, params)
        with evaluating(self.oracle.model):
            return self.oracle.mean_gradient(self.batch)


# ---------------------------------------------------------------------------------------------------
# scores on held-out records


_MOST_SCORED = 2000  # records that are looked at: a score takes a moment, and is asked for often
_TEMPERATURES = torch.logspace(-1.5, 1.0, 26)


@dataclass(frozen=True)
class Score:
    """Losses of held-out records, one each (at the best temperature for classes); lower is better.

    chance: the mean loss of whoever knows the shares of the classes and nothing else.
    """

    losses: Floats
    accuracy: float | None = None
    chance: float | None = None

    @property
    def loss(self) -> float:
        """The mean; infinity for a network that gives no finite numbers."""
        mean = float(self.losses.mean())
        return mean if math.isfinite(mean) else math.inf

    def gain_over(self, other: Score) -> tuple[float, float]:
        """By how much the mean loss is below the other's, and the standard error of that (paired)."""
        if not (math.isfinite(self.loss) and math.isfinite(other.loss)):
            return (-math.inf if math.isfinite(other.loss) else math.inf), 0.0
        gains = other.losses - self.losses
        return float(gains.mean()), float(gains.std() / math.sqrt(len(gains)))

    def __str__(self) -> str:
        accuracy = "" if self.accuracy is None else f", accuracy {self.accuracy:.4f}"
        return f"loss {self.loss:.4f}{accuracy}"


def outputs_of(
    model: nn.Module, records: Records, rows: NDArray[np.int64] | None = None
) -> Iterator[tuple[Any, Any]]:
    """Outputs and targets of these records (None: all), block by block, in evaluation mode.

    A block has 32 records at first, and then as many as have about 2²⁴ scores: a score for every word at
    every place of a text is much.
    """
    wanted = np.arange(len(records)) if rows is None else rows
    low, size = 0, 32
    with evaluating(model):
        while low < len(wanted):
            inputs, targets = records.fetch(wanted[low : low + size])
            with torch.no_grad():
                outputs = call(model, inputs)
            yield outputs, targets
            numbers = sum(x.numel() for x in tensors(getattr(outputs, "logits", outputs)))
            count, low = len(wanted[low : low + size]), low + size
            size = max(1, min(1024, 2**24 * count // max(1, numbers)))


class HeldOut:
    """Scores a model, at its present parameters or at others, on public records that were set apart."""

    def __init__(self, oracle: NetworkOracle, records: Records) -> None:
        self.oracle, self.records = oracle, records
        stride = max(1, math.ceil(len(records) / _MOST_SCORED))
        self._rows = np.arange(0, len(records), stride)

    def __len__(self) -> int:
        return len(self._rows)

    def score(self) -> Score:
        """The score of the model at its present parameters."""
        parts = list[tuple[Tensor, Tensor]]()
        for outputs, targets in outputs_of(self.oracle.model, self.records, self._rows):
            found = getattr(outputs, "logits", outputs)
            with torch.no_grad():
                parts.append((found, targets) if are_classes(found, targets) else
                             (self.oracle.loss(outputs, targets).reshape(-1), targets))  # fmt: skip
        values = torch.cat([found for found, _ in parts]).double()
        if values.dim() == 1:
            return Score(np.asarray(values.cpu().numpy(), dtype=np.float64))
        labels = torch.cat([targets for _, targets in parts])
        right = float((values.argmax(1) == labels).double().mean())
        return Score(_at_best_temperature(values.cpu(), labels.cpu()), right, _chance(labels))

    def score_at(self, params: Vector) -> Score:
        """At these parameters; the model is left as it was."""
        before = read(self.oracle.model).clone()
        write(self.oracle.model, tensor(params))
        try:
            return self.score()
        finally:
            write(self.oracle.model, before)


def are_classes(outputs: object, targets: object) -> bool:
    """Whether these are outputs a class, and class numbers."""
    if not (isinstance(outputs, Tensor) and isinstance(targets, Tensor)):
        return False
    if outputs.dim() != 2 or outputs.shape[1] < 2 or targets.dim() != 1 or targets.is_floating_point():
        return False
    return bool(((targets >= 0) & (targets < outputs.shape[1])).all())


def _chance(labels: Tensor) -> float | None:
    """The entropy of the classes' shares; None where there is one class.

    That of a few labels is too low by (K − 1)/2n (Miller 1955), which is added.
    """
    counts = torch.bincount(labels.long()).double()
    shares = counts / len(labels)
    entropy = -float(torch.xlogy(shares, shares).sum())
    return entropy + (int((counts > 0).sum()) - 1) / (2 * len(labels)) if entropy > 0 else None


def _at_best_temperature(outputs: Tensor, labels: Tensor) -> Floats:
    entropy = nn.CrossEntropyLoss(reduction="none")
    by_temperature = [entropy(outputs * float(t), labels.long()) for t in _TEMPERATURES]
    best = min(by_temperature, key=lambda losses: float(losses.nan_to_num(nan=math.inf).mean()))
    return np.asarray(best.numpy(), dtype=np.float64)


# ---------------------------------------------------------------------------------------------------
# plain training on public records


Optimizer = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]


class _Steps(Protocol):
    """A learning-rate scheduler, as far as training uses it."""

    def step(self) -> object: ...


Scheduler = Callable[[torch.optim.Optimizer], _Steps]
Pull: TypeAlias = tuple[Tensor, float]  # (w₀, λ) adds λ‖w − w₀‖² to the mean loss

_AWAY = 2**40  # steps of plain training draw other batches than private steps do

_RATES = (1e-3, 4e-3, 1.6e-2)  # step sizes of Adam that are tried
_RATE = 2e-3  # without held-out records to choose by
_TRIAL = 5  # a trial has this part of the steps,
_SHORTER = 0.5  # and prefers steps that are too long for a whole run on augmented records
_LATER = 0.5  # standard errors by which a later look may be worse than the best,
_LATER_AUGMENTED = 2.0  # and where every batch is new, so that few records are learned by heart
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
    pull: Pull | None = None,
    each: Callable[[int], bool] | None = None,
) -> None:
    """Train without privacy, in place.

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
    pull: Pull | None = None,
    each: Callable[[int], bool] | None = None,
) -> Json:
    """Train in place, and say what was chosen. With a number of steps in `how`, as it says."""
    if how.steps is not None:
        plain_steps(oracle, records, how, seed=seed, pull=pull, each=each)
        return {"steps": how.steps}
    judged = held_out if held_out is not None and len(held_out) >= 2 else None
    how = replace(how, steps=how.steps_for(len(records)))
    evidence: Json = {"steps": how.steps}
    if how.optimizer is None:
        rate, trials = _RATE, dict[str, str]()
        if judged is not None:
            rate, trials = _chosen_rate(oracle, records, how, judged, seed, pull)
            rate *= 1.0 if how.augment is None else _SHORTER
        how = with_rate(how, rate)
        evidence |= {"optimizer": "AdamW", "step_size": rate, "trials": trials}
    return evidence | _best_look(oracle, records, how, judged, seed, pull, each)


def _chosen_rate(
    oracle: NetworkOracle,
    records: Records,
    how: PublicTraining,
    held_out: HeldOut,
    seed: int,
    pull: Pull | None,
) -> tuple[float, dict[str, str]]:
    """The best of a few step sizes in short trials, all from the same start."""
    start, found = read(oracle.model), dict[float, Score]()
    brief = replace(how, steps=max(100, (how.steps or 0) // _TRIAL))
    for rate in _RATES:
        try:
            plain_steps(oracle, records, with_rate(brief, rate), seed=seed, pull=pull)
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
    pull: Pull | None,
    each: Callable[[int], bool] | None,
) -> Json:
    """Train, look at held-out records now and then, and keep the parameters of a good look.

    A look is at the last iterate and at an average in which the s-th iterate weighs s; the better one counts.
    Kept is the last look that is not clearly worse than the best: held-out records are few, and the best of
    ten by a hair is often one that came too early. With augmentation it must be worse by two standard errors:
    there the loss of unseen records falls to the end of the schedule, and a few hundred held-out ones, most
    of which are right by then, do not show it.
    """
    if held_out is None:
        plain_steps(oracle, records, how, seed=seed, pull=pull, each=each)
        return {}
    steps, kept = how.steps or 0, _Kept(0, "the start", read(oracle.model), held_out.score())
    average, best = Average(kept.params), kept.score
    slack = _LATER if how.augment is None else _LATER_AUGMENTED

    def look(step: int) -> bool:
        nonlocal kept, best
        average.add(step, read(oracle.model))
        if (step + 1) % max(1, steps // _LOOKS) == 0 or step + 1 == steps:
            both = {"iterate": read(oracle.model), "average": average.value}
            looks = [_Kept(step + 1, what, w, held_out.score_at(w)) for what, w in both.items()]
            now = min(looks, key=lambda one: one.score.loss)
            best = min(best, now.score, key=lambda score: score.loss)
            gain, error = now.score.gain_over(best)
            kept = now if gain >= -slack * error else kept
        return True if each is None else each(step)

    plain_steps(oracle, records, how, seed=seed, pull=pull, each=look)
    write(oracle.model, kept.params)
    return {"kept_after": kept.step, "kept": kept.what, "held_out": str(kept.score)}


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


class _Kept(NamedTuple):
    """The best look so far."""

    step: int
    what: str
    params: Tensor
    score: Score
