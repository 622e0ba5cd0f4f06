"""One loss per record: of PyTorch's losses, and the scores in what a model gives."""

from __future__ import annotations

import functools
import inspect
from copy import copy
from types import FunctionType

from torch import Tensor, nn
from torch.nn import functional

from sidelight.errors import InputError
from sidelight.oracles.network.batches import Losses

_ELEMENTWISE = (nn.MSELoss, nn.L1Loss, nn.SmoothL1Loss, nn.HuberLoss, nn.BCELoss, nn.BCEWithLogitsLoss)


def scores_of(outputs: object) -> Tensor:
    """The scores in what a model gave: the tensor itself, or `logits` of the named parts of transformers."""
    found = getattr(outputs, "logits", None)
    if isinstance(found, Tensor):
        return found
    if isinstance(outputs, Tensor):
        return outputs
    raise InputError(
        f"the model gives {type(outputs).__name__}, in which no scores are found; a tensor, or an output "
        "with `logits`, was expected"
    )


def per_example(loss: Losses) -> Losses:
    """The loss with one number per record.

    A loss module with reduction='mean' becomes a copy with 'none'; elementwise losses (MSELoss and its like)
    then take the mean over each record's own elements. So does a function of torch.nn.functional that has a
    reduction; any other is used as it is.
    """
    if isinstance(loss, FunctionType) and loss.__module__ == functional.__name__:
        return _of_function(loss)
    reduction = getattr(loss, "reduction", "none")
    if not isinstance(loss, nn.Module) or reduction == "none":
        return loss
    if reduction != "mean" or getattr(loss, "weight", None) is not None:
        how = f"reduction={reduction!r}" if reduction != "mean" else "class weights and reduction='mean'"
        raise InputError(
            f"{type(loss).__name__} with {how} has no meaning for one record alone. Pass reduction='none', "
            "which gives one loss per record"
        )
    single = copy(loss)
    vars(single)["reduction"] = "none"
    if not isinstance(loss, _ELEMENTWISE):
        return single
    return functools.partial(mean_of_record, single)


def _of_function(loss: FunctionType) -> Losses:
    """A loss of torch.nn.functional, by record."""
    if "reduction" not in inspect.signature(loss).parameters:
        return loss
    single = functools.partial(loss, reduction="none")
    by_place = loss in (functional.cross_entropy, functional.nll_loss)
    return single if by_place else functools.partial(mean_of_record, single)


def mean_of_record(loss: Losses, outputs: object, targets: object) -> Tensor:
    """The mean of each record's own losses, for one that gives several."""
    losses = loss(outputs, targets)
    return losses.flatten(1).mean(1) if losses.dim() > 1 else losses
