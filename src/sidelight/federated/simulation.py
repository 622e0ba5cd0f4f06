"""Simulate clients within one process, many at a time.

    users = SimulatedUsers(model, loss, X, y, local=fed_avg(steps=5, step_size=0.1))
    while (ask := server.open_round()) is not None:
        server.close_round(users.answers(ask))

`local_update` is the same for one client, for a Flower app or other code on a device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from sidelight.arrays import Array
from sidelight.errors import InputError, positive, whole
from sidelight.federated.server import Ask
from sidelight.oracles.updates import UpdateBlock

Losses: TypeAlias = Callable[[Tensor, Tensor], Tensor]  # outputs, targets → one loss per record
Weights: TypeAlias = dict[str, Tensor]
_AT_ONCE = 2**21  # numbers in the updates of clients that are computed together: they stay in cache


@dataclass(frozen=True)
class Local:
    """The local training of a client.

    Args:
        steps: gradient steps; 1 on all of its records is FedSGD.
        step_size: η of each.
        batch_size: records of a step, in turn; None takes all of them.
    """

    steps: int = 1
    step_size: float = 1.0
    batch_size: int | None = None

    def __post_init__(self) -> None:
        whole("steps", self.steps)
        positive("step_size", self.step_size)
        whole("batch_size", self.batch_size, optional=True)

    def rows(self, step: int, count: int) -> list[int]:
        """The records of a step, out of those that a client has."""
        size = count if self.batch_size is None else min(self.batch_size, count)
        return [(step * size + i) % count for i in range(size)]


def fed_sgd(step_size: float = 1.0) -> Local:
    """FedSGD: one step on all records. The update is step_size times the client's mean gradient."""
    return Local(1, step_size)


def fed_avg(*, steps: int, step_size: float, batch_size: int | None = None) -> Local:
    """FedAvg: several local steps. The update is the parameters given minus those arrived at."""
    return Local(steps, step_size, batch_size)


def parameters_of(model: nn.Module) -> list[Array]:
    """The trained parameters as arrays, as `FederatedServer` and clients take them."""
    return [p.detach().cpu().numpy().copy() for p in model.parameters() if p.requires_grad]


def local_update(
    model: nn.Module, loss: Losses, x: Tensor, y: Tensor, *, arrays: Sequence[Array], local: Local
) -> list[Array]:
    """The update of one client that holds these records, given these parameters."""
    users = SimulatedUsers(model, loss, x[None], y[None], local=local)
    flat = users.updates([0], arrays)[0]
    sizes = np.cumsum([array.size for array in arrays])[:-1]
    pieces = zip(np.split(flat, sizes), arrays, strict=True)
    return [piece.reshape(array.shape).astype(array.dtype) for piece, array in pieces]


class SimulatedUsers:
    """Clients 0, 1, 2, … that hold X[k], y[k]; updates are computed for many of them at once.

    A model with state of its own (batch norm) is refused, and so is one that draws random numbers.

    Args:
        X, y: (clients, records of each, …). `held` marks the records that exist, if some clients have fewer.
    """

    def __init__(
        self,
        model: nn.Module,
        loss: Losses,
        X: Tensor,
        y: Tensor,
        *,
        local: Local,
        held: Tensor | None = None,
    ) -> None:
        if X.shape[:2] != y.shape[:2] or (held is not None and held.shape != X.shape[:2]):
            raise InputError("X, y and held have one row per client, and in it one entry per record")
        if any(True for _ in model.buffers()):
            raise InputError(
                "a model with buffers (batch norm, say) has no update that is its client's alone"
            )
        self.model, self.loss, self.local = model, loss, local
        self.X, self.y = X, y
        self.held = torch.ones(X.shape[:2], dtype=X.dtype) if held is None else held.to(X.dtype)
        self._names = [name for name, p in model.named_parameters() if p.requires_grad]
        self._step = vmap(grad(self._mean_loss), in_dims=(0, 0, 0, 0))
        self._first = vmap(grad(self._mean_loss), in_dims=(None, 0, 0, 0))

    def __len__(self) -> int:
        return len(self.X)

    def answers(self, ask: Ask) -> Iterator[UpdateBlock]:
        """What the asked clients send, in blocks."""
        clients = [int(client) for client in ask.clients if isinstance(client, int | np.integer)]
        each = max(1, _AT_ONCE // max(1, sum(array.size for array in ask.arrays)))
        for low in range(0, len(clients), each):
            some = clients[low : low + each]
            yield UpdateBlock(some, self.updates(some, ask.arrays))

    def updates(self, clients: Sequence[int], arrays: Sequence[Array]) -> Array:
        """One flat update per row."""
        start = {name: torch.from_numpy(a) for name, a in zip(self._names, arrays, strict=True)}
        chosen = torch.as_tensor(list(clients))
        X, y, held = self.X[chosen], self.y[chosen], self.held[chosen]
        weights, given = start, self._first  # all clients have the same parameters, until they have moved
        for step in range(self.local.steps):
            rows = self.local.rows(step, X.shape[1])
            found = given(weights, X[:, rows], y[:, rows], held[:, rows])
            weights = {name: weights[name] - self.local.step_size * found[name] for name in self._names}
            given = self._step
        moved = [(start[name] - weights[name]).reshape(len(clients), -1) for name in self._names]
        return torch.cat(moved, dim=1).detach().numpy()

    def _mean_loss(self, weights: Weights, x: Tensor, y: Tensor, held: Tensor) -> Tensor:
        losses = self.loss(functional_call(self.model, weights, (x,)), y)
        return (losses * held).sum() / held.sum().clamp(min=1.0)
