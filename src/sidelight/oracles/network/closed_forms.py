"""What PyTorch's own activations and losses do to gradients, written out: `stack.py` goes through them.

Each takes rows of records and gives rows of records; none looks at another row. The gradients of activations
are PyTorch's own functions, those that its backward pass calls.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional

from sidelight.oracles.network.flat import mean_of_record

__all__ = ["ACTIVATIONS", "LOSSES", "Activation", "RecordLoss", "Slopes", "loss_behind"]

_aten = torch.ops.aten

# ---------------------------------------------------------------------------------------------------
# activations


class Activation(NamedTuple):
    """The value, and the gradient of the input: `slope(gradient of the output, input, output)`."""

    value: Callable[[Tensor], Tensor]
    slope: Callable[[Tensor, Tensor, Tensor], Tensor]
    flattens: bool = False


def _relu(layer: nn.ReLU) -> Activation:
    return Activation(torch.relu, lambda grad, x, out: _aten.threshold_backward.default(grad, out, 0))


def _tanh(layer: nn.Tanh) -> Activation:
    return Activation(torch.tanh, lambda grad, x, out: _aten.tanh_backward.default(grad, out))


def _sigmoid(layer: nn.Sigmoid) -> Activation:
    return Activation(torch.sigmoid, lambda grad, x, out: _aten.sigmoid_backward.default(grad, out))


def _gelu(layer: nn.GELU) -> Activation:
    how = layer.approximate
    return Activation(
        lambda x: functional.gelu(x, approximate=how),
        lambda grad, x, out: _aten.gelu_backward.default(grad, x, approximate=how),
    )


def _silu(layer: nn.SiLU) -> Activation:
    return Activation(functional.silu, lambda grad, x, out: _aten.silu_backward.default(grad, x))


def _leaky_relu(layer: nn.LeakyReLU) -> Activation:
    slope = layer.negative_slope
    return Activation(
        lambda x: functional.leaky_relu(x, slope),
        lambda grad, x, out: _aten.leaky_relu_backward.default(grad, x, slope, False),
    )


def _elu(layer: nn.ELU) -> Activation:
    alpha = layer.alpha
    return Activation(
        lambda x: functional.elu(x, alpha),
        lambda grad, x, out: _aten.elu_backward.default(grad, alpha, 1, 1, False, x),
    )


def _identity(layer: nn.Identity) -> Activation:
    return Activation(lambda x: x, lambda grad, x, out: grad)


def _flatten(layer: nn.Flatten) -> Activation | None:
    """Before the first Linear, below which no gradient is wanted; after it, rows are flat already."""
    if (layer.start_dim, layer.end_dim) != (1, -1):
        return None
    return Activation(lambda x: x.flatten(1), lambda grad, x, out: grad, flattens=True)


class _Known(NamedTuple):
    """How to make the closed form of a module (None: this one has none), and which attributes it has beside
    those of every module."""

    make: Callable[..., Activation | None]
    names: frozenset[str] = frozenset()


ACTIVATIONS: dict[type[nn.Module], _Known] = {
    nn.ReLU: _Known(_relu, frozenset(("inplace",))),
    nn.Tanh: _Known(_tanh),
    nn.Sigmoid: _Known(_sigmoid),
    nn.GELU: _Known(_gelu, frozenset(("approximate",))),
    nn.SiLU: _Known(_silu, frozenset(("inplace",))),
    nn.LeakyReLU: _Known(_leaky_relu, frozenset(("negative_slope", "inplace"))),
    nn.ELU: _Known(_elu, frozenset(("alpha", "inplace"))),
    nn.Identity: _Known(_identity),
    nn.Flatten: _Known(_flatten, frozenset(("start_dim", "end_dim"))),
}

# ---------------------------------------------------------------------------------------------------
# losses


class Slopes(NamedTuple):
    """The gradient of each record's loss with respect to its scores, a row each.

    failed: records on which the loss would raise, with a row of zeros; None: there is none.
    """

    rows: Tensor
    failed: Tensor | None = None


class RecordLoss(NamedTuple):
    """fits: whether it takes scores, so many of them, and these targets."""

    fits: Callable[[int, Tensor], bool]
    slopes: Callable[[Tensor, Tensor], Slopes]
    values: Callable[[Tensor, Tensor], Tensor]


def _cross_entropy(loss: nn.CrossEntropyLoss) -> RecordLoss | None:
    ignored = loss.ignore_index
    if loss.label_smoothing != 0.0:
        return None

    def fits(scores: int, targets: Tensor) -> bool:
        return targets.dim() == 1 and targets.dtype is torch.int64 and not 0 <= ignored < scores

    def values(scores: Tensor, targets: Tensor) -> Tensor:
        return functional.cross_entropy(scores, targets, ignore_index=ignored, reduction="none")

    return RecordLoss(fits, functools.partial(_off_target, ignored), values)


def _off_target(ignored: int, scores: Tensor, targets: Tensor) -> Slopes:
    """softmax − one-hot. Zero for the class that is ignored; one that does not exist has failed.

    Its own class has minus the sum of the others: p − 1 of a sure record is 0 or an ulp, and where a clip
    normalises, the last bit of a score would turn the whole contribution.
    """
    rows, inside = torch.softmax(scores, 1), targets.clamp(0, scores.shape[1] - 1)
    own = inside[:, None]
    rows.scatter_(1, own, 0.0)
    rows.scatter_(1, own, rows.sum(1, keepdim=True).neg_())
    if torch.equal(inside, targets):
        return Slopes(rows)
    odd = inside != targets
    return Slopes(rows.masked_fill_(odd[:, None], 0.0), odd & (targets != ignored))


def _squares(loss: nn.MSELoss) -> RecordLoss:
    """The mean of a record's squared differences."""
    return RecordLoss(
        _a_target_for_each_score,
        lambda scores, targets: Slopes((scores - targets).mul_(2 / scores.shape[1])),
        lambda scores, targets: (scores - targets).square_().mean(1),
    )


def _logistic(loss: nn.BCEWithLogitsLoss) -> RecordLoss:
    """The mean of a record's binary cross-entropies.

    Its slope is σ(s) − t, written so that it keeps its digits at t = 1, too (see `_off_target`).
    """

    def slopes(scores: Tensor, targets: Tensor) -> Slopes:
        rows = torch.sigmoid(scores).mul_(1 - targets)
        return Slopes(rows.sub_(torch.sigmoid(-scores).mul_(targets)).mul_(1 / scores.shape[1]))

    def values(scores: Tensor, targets: Tensor) -> Tensor:
        return functional.binary_cross_entropy_with_logits(scores, targets, reduction="none").mean(1)

    return RecordLoss(_a_target_for_each_score, slopes, values)


def _a_target_for_each_score(scores: int, targets: Tensor) -> bool:
    return targets.dim() == 2 and targets.shape[1] == scores and targets.is_floating_point()


class _KnownLoss(NamedTuple):
    """means: whether it is the mean of a record's own numbers (`flat.per_example`)."""

    make: Callable[..., RecordLoss | None]
    names: frozenset[str]
    means: bool


_REDUCTION = frozenset(("reduction",))
LOSSES: dict[type[nn.Module], _KnownLoss] = {
    nn.CrossEntropyLoss: _KnownLoss(_cross_entropy, _REDUCTION | {"ignore_index", "label_smoothing"}, False),
    nn.MSELoss: _KnownLoss(_squares, _REDUCTION, True),
    nn.BCEWithLogitsLoss: _KnownLoss(_logistic, _REDUCTION, True),
}

_Given: TypeAlias = object  # what a user passes as a loss, made to give one number per record


def loss_behind(loss: _Given) -> nn.Module | None:
    """The module of a loss that is known by its class; None for any other."""
    means = type(loss) is functools.partial and loss.func is mean_of_record
    module: object = loss.args[0] if isinstance(loss, functools.partial) and means else loss
    if not isinstance(module, nn.Module) or type(module) not in LOSSES:
        return None
    return module if LOSSES[type(module)].means == means and module.reduction == "none" else None
