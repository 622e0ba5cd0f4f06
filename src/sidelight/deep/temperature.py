"""The temperature of a classifier's probabilities, from held-out public records, folded into its last layer.

It is chosen after training from the released model and public records, so it costs nothing. A network whose
last layer is linear and gives the scores keeps its predictions: all scores are multiplied by one number.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from sidelight.oracles.network.batches import Batch, call
from sidelight.oracles.network.flat import evaluating
from sidelight.oracles.network.network_oracle import NetworkOracle
from sidelight.problems.datasets import Records
from sidelight.problems.network_public import are_classes, outputs_of

__all__ = ["fold_temperature", "scale_scores", "scales_scores"]

_FEWEST = 32  # held-out records
_FACTORS = np.exp(np.linspace(math.log(1 / 16), math.log(16), 65))
_SAME = 1e-3  # of the largest score: whether scores follow the last layer


def fold_temperature(oracle: NetworkOracle, held_out: Records | None) -> list[str]:
    """Multiply the last layer by the factor under which held-out records are likeliest; a note on it.

    Nothing is done without a last linear layer that gives the scores, with fewer than 32 held-out records,
    where the gain is within its standard error, or where the loss itself does not fall.
    """
    last = _last_linear(oracle.model)
    if last is None or held_out is None or len(held_out) < _FEWEST:
        return []
    before = _scores(oracle, held_out)
    if before is None or (factor := _best_factor(before)) == 1.0:
        return []
    kept = [parameter.detach().clone() for parameter in last.parameters()]
    scale_scores(oracle.model, factor)
    after = _scores(oracle, held_out)
    if after is None or not _follows(after, before, factor):
        with torch.no_grad():
            for parameter, old in zip(last.parameters(), kept, strict=True):
                parameter.copy_(old)
        return []
    return [
        f"the last layer was multiplied by {factor:.2f} after training: probabilities then fit "
        f"{len(held_out):,} held-out public records best"
    ]


def scale_scores(model: nn.Module, factor: float) -> None:
    """Multiply the last linear layer, if there is one, and with it the scores."""
    last = _last_linear(model)
    with torch.no_grad():
        for parameter in () if last is None else last.parameters():
            parameter.mul_(factor)


def scales_scores(model: nn.Module, example: Batch) -> bool:
    """Whether the scores of these public rows are multiplied where the last linear layer is."""
    if _last_linear(model) is None:
        return False
    with evaluating(model), torch.no_grad():
        before = call(model, example[0])
        scale_scores(model, 2.0)
        try:
            after = call(model, example[0])
        finally:
            scale_scores(model, 0.5)
    return float((after - 2 * before).abs().max()) <= _SAME * float(after.abs().max())


class _Found(NamedTuple):
    scores: Tensor
    labels: Tensor
    loss: float  # the user's


def _last_linear(model: nn.Module) -> nn.Linear | None:
    found = [one for one in model.modules() if isinstance(one, nn.Linear)]
    trained = [one for one in found if one.weight.requires_grad]
    return trained[-1] if trained and trained[-1] is found[-1] else None


def _scores(oracle: NetworkOracle, records: Records) -> _Found | None:
    """Of a model with one score per class; None for others, and if a number is not finite."""
    scores, labels, losses = list[Tensor](), list[Tensor](), list[Tensor]()
    for outputs, targets in outputs_of(oracle.model, records):
        if not are_classes(found := getattr(outputs, "logits", outputs), targets):
            return None
        with torch.no_grad():
            losses.append(oracle.loss(outputs, targets).reshape(-1).double().cpu())
        scores.append(found.double().cpu())
        labels.append(targets.long().cpu())
    found = _Found(torch.cat(scores), torch.cat(labels), float(torch.cat(losses).mean()))
    return found if bool(found.scores.isfinite().all()) and math.isfinite(found.loss) else None


def _best_factor(found: _Found) -> float:
    """The likeliest, if it is better than 1 by more than the standard error of the gain.

    One record more, of any class, is counted: else no factor is too large for scores that are all right.
    """
    entropy = nn.CrossEntropyLoss(reduction="none", label_smoothing=1 / (1 + len(found.labels)))
    losses = {float(factor): entropy(float(factor) * found.scores, found.labels) for factor in _FACTORS}
    best = min(losses, key=lambda factor: float(losses[factor].mean()))
    gains = entropy(found.scores, found.labels) - losses[best]
    clear = float(gains.mean()) > float(gains.std()) / math.sqrt(len(gains))
    return best if clear else 1.0


def _follows(after: _Found, before: _Found, factor: float) -> bool:
    """Whether all scores were multiplied, and the user's own loss has fallen."""
    expected = factor * before.scores
    off = float((after.scores - expected).abs().max())
    return off <= _SAME * float(expected.abs().max()) and after.loss < before.loss
