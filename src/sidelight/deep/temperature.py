"""The temperature of a classifier's probabilities, from public records, folded into its last layer.

It is chosen after training from the released model and held-out public records, so it costs nothing. Without
these, a network of public records alone takes the one under which its training fits the folds that it had not
seen (`problems/public_training.py`). A network whose last layer is linear and gives the scores keeps its
predictions: all scores are multiplied by one number.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from sidelight.deep.per_example import scores_of
from sidelight.oracles.network.batches import Batch, call
from sidelight.oracles.network.flat import evaluating
from sidelight.oracles.network.network_oracle import NetworkOracle
from sidelight.problems.datasets import Records
from sidelight.problems.network_public import are_classes, likeliest_factor, outputs_of

_FEWEST = 32  # held-out records
_SAME = 1e-3  # of the largest score: whether scores follow the last layer


def fold_temperature(
    oracle: NetworkOracle,
    held_out: Records | None,
    *,
    learned: Records | None = None,
    factor: float = 1.0,
) -> list[str]:
    """Multiply the last layer by the factor under which held-out records are likeliest; a note on it.

    Nothing is done without a last linear layer that gives the scores, where the gain is within its standard
    error, or where the loss itself does not fall.

    Args:
        held_out: fewer than 32 do not say.
        learned, factor: the records that the network was trained on, and a factor that is known for such
            training; it is taken where no records are held out.
    """
    if held_out is not None and len(held_out):
        return _by_held_out(oracle, held_out) if len(held_out) >= _FEWEST else []
    if factor == 1.0 or learned is None or not _multiplied(oracle, learned, factor, _is_cross_entropy):
        return []
    return [
        f"the last layer was multiplied by {factor:.2f} after training: in folds, the probabilities of "
        "networks that were trained so then fit public records that they had not seen best"
    ]


def _by_held_out(oracle: NetworkOracle, held_out: Records) -> list[str]:
    before = None if _last_linear(oracle.model) is None else _scores(oracle, held_out)
    if before is None or (factor := likeliest_factor(before.scores, before.labels)) == 1.0:
        return []
    if not _multiplied(oracle, held_out, factor, lambda before, after: after.loss < before.loss):
        return []
    return [
        f"the last layer was multiplied by {factor:.2f} after training: probabilities then fit "
        f"{len(held_out):,} held-out public records best"
    ]


def _multiplied(
    oracle: NetworkOracle, records: Records, factor: float, agreed: Callable[[_Found, _Found], bool]
) -> bool:
    """Whether the last layer was multiplied: the scores follow it, and `agreed` on before and after.

    Otherwise it is as it was.
    """
    last = _last_linear(oracle.model)
    before = None if last is None else _scores(oracle, records)
    if last is None or before is None:
        return False
    kept = [parameter.detach().clone() for parameter in last.parameters()]
    scale_scores(oracle.model, factor)
    after = _scores(oracle, records)
    if after is not None and _follows(after, before, factor) and agreed(before, after):
        return True
    with torch.no_grad():
        for parameter, old in zip(last.parameters(), kept, strict=True):
            parameter.copy_(old)
    return False


def _is_cross_entropy(before: _Found, after: _Found) -> bool:
    """Whether the loss is the one that probabilities have, as far as two means show."""
    return all(
        math.isclose(one.loss, float(nn.functional.cross_entropy(one.scores, one.labels)), rel_tol=1e-3)
        for one in (before, after)
    )


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
        before = scores_of(call(model, example[0]))
        scale_scores(model, 2.0)
        try:
            after = scores_of(call(model, example[0]))
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


def _follows(after: _Found, before: _Found, factor: float) -> bool:
    """Whether all scores were multiplied."""
    expected = factor * before.scores
    off = float((after.scores - expected).abs().max())
    return off <= _SAME * float(expected.abs().max())
