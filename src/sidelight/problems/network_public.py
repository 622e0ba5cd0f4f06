"""The public side of a network: what its public records say, how it is trained on them, and how it is scored.

`NetworkGuide` answers the questions of `PublicOracle` with flat tensors: gradients, norms, losses
and curvature. `HeldOut` says how good a network is, by public records that it was not trained on: classes are
scored by cross-entropy at the best temperature, since noise and long training change how sure a network is of
itself, and not only what it predicts. Choices between networks should see the second alone, and an accuracy
on a few hundred records is too coarse to see it. Other targets are scored by the user's loss.
Plain training on public records is in public_training.py. Nothing here is secret.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from sidelight.arrays import Floats, Vector
from sidelight.augment.transforms import Augment, augmented
from sidelight.clipping import Diagonal, Metric
from sidelight.errors import InputError
from sidelight.oracles.network.batches import Batch, call, row_count, take, tensors
from sidelight.oracles.network.flat import evaluating, tensor
from sidelight.oracles.network.network_oracle import NetworkOracle
from sidelight.problems.datasets import Records
from sidelight.problems.flat_parameters import read, write

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
        self.curvatures: tuple[list[float], list[float]] | None = None  # once measured; in checkpoints
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

    def spectrum(self, metric: Metric = None) -> tuple[Floats, Floats]:
        """Curvatures of the mean loss where the run was planned, and the share of the noise with each."""
        if self.curvatures is None:
            values, shares = self._ritz_values(metric)
            self.curvatures = values.tolist(), shares.tolist()
        return np.array(self.curvatures[0]), np.array(self.curvatures[1])

    def _ritz_values(self, metric: Metric = None, *, products: int = 10) -> tuple[Floats, Floats]:
        """Those at the present parameters; under a diagonal metric S those of √S·H·√S, for noise S^(−1/2)z.

        Lanczos from a random start, orthogonalized in full: its Ritz values and the squares of their first
        components are a Gauss quadrature of the spectral density.
        """
        center = read(self.oracle.model)
        reach = _REACH * max(1.0, float(center.norm()))
        first = torch.randn(center.shape, generator=torch.Generator().manual_seed(0)).to(center)
        scale = 1.0 if not isinstance(metric, Diagonal) else tensor(metric.scale).to(center) ** 0.5
        first = first / scale
        basis, diagonal, beside = [first / first.norm()], list[float](), list[float]()
        try:
            for _ in range(products):
                v = basis[-1]
                moved = scale * v
                far = reach / float(moved.norm())
                ahead, behind = (self._gradient_at(center + h * moved) for h in (far, -far))
                image = scale * (ahead - behind) / (2 * far)
                diagonal.append(float(image @ v))
                for old in basis:
                    image = image - (image @ old) * old
                length = float(image.norm())
                if not 1e-9 < length < math.inf:
                    break
                beside.append(length)
                basis.append(image / length)
        finally:
            write(self.oracle.model, center)
        rest = beside[: len(diagonal) - 1]
        matrix = np.diag(diagonal) + np.diag(rest, 1) + np.diag(rest, -1)
        if not np.isfinite(matrix).all():
            return np.zeros(1), np.ones(1)
        values, vectors = np.linalg.eigh(matrix)
        return values, vectors[0] ** 2

    def _gradient_at(self, params: Tensor) -> Tensor:
        write(self.oracle.model, params)
        with evaluating(self.oracle.model):
            return self.oracle.mean_gradient(self.batch)


# ---------------------------------------------------------------------------------------------------
# scores on held-out records


_MOST_SCORED = 2000  # records that are looked at: a score takes a moment, and is asked for often
_FACTORS = np.exp(np.linspace(math.log(1 / 16), math.log(16), 65))
_TEMPERATURES = torch.logspace(-1.5, 1.0, 26)


@dataclass(frozen=True)
class Score:
    """Losses of held-out records, one each (at the best temperature for classes); lower is better.

    chance: the mean loss of whoever knows the shares of the classes and nothing else.
    classes: the scores and the labels, where there are classes.
    """

    losses: Floats
    accuracy: float | None = None
    chance: float | None = None
    classes: tuple[Tensor, Tensor] | None = None

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
        values, labels = values.cpu(), labels.cpu().long()
        return Score(_at_best_temperature(values, labels), right, _chance(labels), (values, labels))

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


def likeliest_factor(scores: Tensor, labels: Tensor) -> float:
    """By which scores fit these records best; 1 unless that is better by more than the gain's standard error.

    One record more, of any class, is counted: else no factor is too large for scores that are all right.
    """
    entropy = nn.CrossEntropyLoss(reduction="none", label_smoothing=1 / (1 + len(labels)))
    losses = {float(factor): entropy(float(factor) * scores, labels) for factor in _FACTORS}
    best = min(losses, key=lambda factor: float(losses[factor].mean()))
    gains = entropy(scores, labels) - losses[best]
    clear = float(gains.mean()) > float(gains.std()) / math.sqrt(len(gains))
    return best if clear else 1.0


def _at_best_temperature(outputs: Tensor, labels: Tensor) -> Floats:
    entropy = nn.CrossEntropyLoss(reduction="none")
    by_temperature = [entropy(outputs * float(t), labels.long()) for t in _TEMPERATURES]
    best = min(by_temperature, key=lambda losses: float(losses.nan_to_num(nan=math.inf).mean()))
    return np.asarray(best.numpy(), dtype=np.float64)
