"""The public side of a network: gradients, norms, losses and curvature of public records.

It answers the questions of `PublicOracle` with flat tensors. Nothing here is secret.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from sidelight.arrays import Floats, Vector
from sidelight.augment.mixing import augmented
from sidelight.clipping import Metric
from sidelight.errors import InputError
from sidelight.oracles.network.batches import Batch, call, row_count, take
from sidelight.oracles.network.flat import evaluating, tensor, trainable, write
from sidelight.oracles.network.network_oracle import NetworkOracle
from sidelight.oracles.network.records import Records

__all__ = ["Augment", "NetworkGuide", "public_indices"]

Augment = Callable[[Any], Any]  # inputs of a batch, of whatever shape the model takes, to the same

_MOST_NUMBERS = 2**27  # of a matrix of gradients: half a gigabyte


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

    @property
    def rows(self) -> NoReturn:
        raise InputError(
            "this part of the method looks at the feature rows of a linear model, and a network has none. "
            "Choose another part: weight='noise' for Coupling, metric=SecondMoments() for a metric"
        )

    def losses(self, params: Vector) -> NoReturn:
        raise InputError("this part of the method looks at every public loss of a linear model")

    def draw(self, step: int) -> None:
        """Take the public batch of this step."""
        self.last_loss = None
        if self.records is not None and len(self.records):
            indices = public_indices(len(self.records), self.batch_size, seed=self.seed, step=step)
            inputs, targets = self.records.fetch(indices)
            self._batch = augmented(self.augment, inputs, targets)

    def show(self, batch: Batch | None) -> None:
        """Answer from this batch; None takes the present one away."""
        self._batch, self.last_loss = batch, None

    @property
    def batch(self) -> Batch:
        if self._batch is None or row_count(self._batch) == 0:
            raise InputError("this method needs public records; pass a public dataset or a public batch")
        return self._batch

    def mean_gradient(self, params: Vector) -> Tensor:
        """The mean gradient, not clipped."""
        write(self.oracle.model, params := tensor(params))
        batch, rows = self.batch, row_count(self.batch)
        size = rows if self.micro_batch is None else self.micro_batch
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
        held = self.held_out
        batches = held.blocks() if held is not None and len(held) else iter([self.batch])
        total, count = 0.0, 0
        with torch.no_grad(), evaluating(self.oracle.model):
            for inputs, targets in batches:
                losses = self.oracle.loss(call(self.oracle.model, inputs), targets)
                total, count = total + float(losses.double().sum()), count + len(losses)
        return total / count

    def smoothness(self, *, iterations: int = 20) -> float:
        """|λ| of the largest eigenvalue of the mean loss's Hessian at the present parameters.

        Power iteration on Hessian-vector products of the public batch.
        """
        generator = torch.Generator().manual_seed(0)
        parameters = trainable(self.oracle.model)
        eigenvalue, v = 0.0, [torch.randn(p.shape, generator=generator).to(p) for p in parameters]
        with evaluating(self.oracle.model), torch.enable_grad():
            gradients = self._graph(parameters)
            for _ in range(iterations):
                length = _length(v)
                if not 0 < length < float("inf"):
                    break
                v = [x / length for x in v]
                v = self._product(gradients, parameters, v)
                eigenvalue = _length(v)
        return eigenvalue

    def _graph(self, parameters: list[nn.Parameter]) -> list[Tensor]:
        losses = self.oracle.loss(call(self.oracle.model, self.batch[0]), self.batch[1])
        gradients = torch.autograd.grad(losses.mean(), parameters, create_graph=True, allow_unused=True)
        return [torch.zeros_like(p) if g is None else g for p, g in zip(parameters, gradients, strict=True)]

    def _product(
        self, gradients: list[Tensor], parameters: list[nn.Parameter], v: list[Tensor]
    ) -> list[Tensor]:
        dot = torch.stack([(g * x).sum() for g, x in zip(gradients, v, strict=True)]).sum()
        if not dot.requires_grad:
            return [torch.zeros_like(p) for p in parameters]
        bent = torch.autograd.grad(dot, parameters, retain_graph=True, allow_unused=True)
        return [torch.zeros_like(p) if h is None else h for p, h in zip(parameters, bent, strict=True)]


def _length(vectors: list[Tensor]) -> float:
    return float(sum(float((x.detach().double() ** 2).sum()) for x in vectors) ** 0.5)
