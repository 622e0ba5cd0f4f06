"""How good a network is, by public records that it was not trained on. Everything here is public.

Classes are scored by cross-entropy at the best temperature: noise and long training change how sure a network
is of itself, and not only what it predicts. Choices between networks should see the second alone, and an
accuracy on a few hundred records is too coarse to see it. Other targets are scored by the user's loss.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from sidelight.arrays import Floats, Vector
from sidelight.oracles.network.batches import call
from sidelight.oracles.network.flat import evaluating, read, tensor, write
from sidelight.oracles.network.network_oracle import NetworkOracle
from sidelight.oracles.network.records import Records

__all__ = ["HeldOut", "Score"]

_MOST = 2000  # records that are looked at: a score takes a moment, and is asked for often
_TEMPERATURES = torch.logspace(-1.5, 1.0, 26)


@dataclass(frozen=True)
class Score:
    """Losses of held-out records, one each (at the best temperature for classes); lower is better."""

    losses: Floats
    accuracy: float | None = None

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
        told = "" if self.accuracy is None else f", accuracy {self.accuracy:.4f}"
        return f"loss {self.loss:.4f}{told}"


class HeldOut:
    """Scores a model, at its present parameters or at others, on public records that were set apart."""

    def __init__(self, oracle: NetworkOracle, records: Records) -> None:
        self.oracle, self.records = oracle, records
        stride = max(1, math.ceil(len(records) / _MOST))
        self._rows = np.arange(0, len(records), stride)

    def __len__(self) -> int:
        return len(self._rows)

    def score(self) -> Score:
        """Of the model as it is."""
        model, parts = self.oracle.model, list[tuple[Tensor, Tensor]]()
        with torch.no_grad(), evaluating(model):
            for low in range(0, len(self._rows), 512):
                inputs, targets = self.records.fetch(self._rows[low : low + 512])
                outputs = call(model, inputs)
                parts.append((outputs, targets) if _classes(outputs, targets) else
                             (self.oracle.loss(outputs, targets).reshape(-1), targets))  # fmt: skip
        values = torch.cat([found for found, _ in parts]).double()
        if values.dim() == 1:
            return Score(np.asarray(values.cpu().numpy(), dtype=np.float64))
        labels = torch.cat([targets for _, targets in parts])
        right = float((values.argmax(1) == labels).double().mean())
        return Score(_at_best_temperature(values.cpu(), labels.cpu()), right)

    def score_at(self, params: Vector) -> Score:
        """At these parameters; the model is left as it was."""
        before = read(self.oracle.model).clone()
        write(self.oracle.model, tensor(params))
        try:
            return self.score()
        finally:
            write(self.oracle.model, before)


def _classes(outputs: object, targets: object) -> bool:
    """Whether these are outputs a class, and class numbers."""
    if not (isinstance(outputs, Tensor) and isinstance(targets, Tensor)):
        return False
    if outputs.dim() != 2 or outputs.shape[1] < 2 or targets.dim() != 1 or targets.is_floating_point():
        return False
    return bool(((targets >= 0) & (targets < outputs.shape[1])).all())


def _at_best_temperature(outputs: Tensor, labels: Tensor) -> Floats:
    entropy = nn.CrossEntropyLoss(reduction="none")
    by_temperature = [entropy(outputs * float(t), labels.long()) for t in _TEMPERATURES]
    best = min(by_temperature, key=lambda losses: float(losses.nan_to_num(nan=math.inf).mean()))
    return np.asarray(best.numpy(), dtype=np.float64)
