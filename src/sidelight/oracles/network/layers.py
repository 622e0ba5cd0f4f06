"""How each layer's per-record gradients follow from its input and its output's gradient.

A rule takes a layer and its input and lists the layer's `Use`s of its parameters: which one, and how the
piece for it is built once the gradient of the output arrives. To teach the oracle a new layer, register one:

    @rule(MyLayer)
    def my_layer(layer, x):
        return [Use(layer.weight, lambda grad, count: Rows(..., layer.weight.shape))]

`grad` comes in the working precision, and `count` is the number of records: the first dimension of x and of
grad is count, or a multiple of it whose rows lie together record by record. Rules are never trusted: the
oracle compares them with plain gradients before the first private step (see check.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any, NamedTuple, Protocol, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional

from sidelight.oracles.linear.sparse import Sparse
from sidelight.oracles.network.convolution import Convolution, WindowGeometry
from sidelight.oracles.network.pieces import Outer, Piece, Rows

__all__ = [
    "Rule", "StandIn", "Tap", "Use", "linear_uses", "on_gradient", "problem", "rule", "rule_for", "stand_in",
    "stand_in_for",
]  # fmt: skip


class Use(NamedTuple):
    """One use of a parameter: `build(grad, count)` makes its piece from the gradient of the output."""

    parameter: Tensor
    build: Callable[[Tensor, int], Piece]


Rule: TypeAlias = Callable[[Any, Tensor], list[Use]]
_RULES: dict[type[nn.Module], Rule] = {}


def rule(*kinds: type[nn.Module]) -> Callable[[Rule], Rule]:
    """Register a rule for layers of these classes, and for subclasses that keep their forward."""

    def register(function: Rule) -> Rule:
        _RULES.update(dict.fromkeys(kinds, function))
        return function

    return register


def rule_for(layer: nn.Module) -> Rule | None:
    """The rule of a layer, unless it has a forward of its own."""
    for kind in type(layer).__mro__:
        if kind in _RULES and type(layer).forward is kind.forward:
            return _RULES[kind]
    return None


# ---------------------------------------------------------------------------------------------------
# layers whose own forward hides their parts: what stands in for it


class Tap(Protocol):
    """Says that `output` was computed from `source` with these uses of parameters."""

    def __call__(self, output: Tensor, source: Tensor, uses: Sequence[Use]) -> None: ...


StandIn: TypeAlias = Callable[..., Any]  # (layer, tap, and what the layer's forward takes)
_STAND_INS: dict[type[nn.Module], StandIn] = {}


def on_gradient(tensor: Tensor, receive: Callable[[Tensor], None]) -> None:
    """Call `receive` with the tensor's gradient when a backward pass has it."""
    tensor.register_hook(receive)  # type: ignore[no-untyped-call]


def stand_in(*kinds: type[nn.Module]) -> Callable[[StandIn], StandIn]:
    """Register a forward that taps what the layer's own forward hides."""

    def register(function: StandIn) -> StandIn:
        _STAND_INS.update(dict.fromkeys(kinds, function))
        return function

    return register


def stand_in_for(layer: nn.Module) -> StandIn | None:
    """The stand-in of a layer, unless it has a forward of its own."""
    for kind in type(layer).__mro__:
        if kind in _STAND_INS and type(layer).forward is kind.forward:
            return _STAND_INS[kind]
    return None


# ---------------------------------------------------------------------------------------------------
# what PyTorch's layers do


_OLD_NORMS = ("torch.nn.utils.weight_norm", "torch.nn.utils.spectral_norm")


def problem(layer: nn.Module) -> str | None:
    """Why the gradient of this layer is not a sum over records, and the way out; None if it is."""
    if any(type(hook).__module__ in _OLD_NORMS for hook in layer._forward_pre_hooks.values()):
        return (
            "has a norm of torch.nn.utils that writes into the layer at every call. Take the one of the same "
            "name in torch.nn.utils.parametrizations"
        )
    tracks = bool(getattr(layer, "track_running_stats", False))
    if isinstance(layer, nn.modules.batchnorm._BatchNorm) and (layer.training or not tracks):
        return (
            "normalises each record by the others of its batch. Replace it, "
            "sidelight.deep.replace_batch_norm(model), or freeze its averages with .eval()"
        )
    if isinstance(layer, nn.modules.instancenorm._InstanceNorm) and layer.training and tracks:
        return (
            "would keep averages of private records in its buffers. Build it with track_running_stats=False"
        )
    if isinstance(layer, nn.RNNBase) and layer.proj_size:
        return "has a proj_size, for which there is no rule. Use a Linear layer after it instead"
    if isinstance(layer, nn.Embedding | nn.EmbeddingBag):
        if layer.max_norm is not None:
            return "rescales rows of its table in place as records touch them. Build it with max_norm=None"
        if layer.scale_grad_by_freq:
            return "divides by counts over the whole batch. Build it with scale_grad_by_freq=False"
        if layer.sparse:
            return "asks for sparse gradients, which are not per record. Build it with sparse=False"
    return None


def linear_uses(x: Tensor, weight: Tensor, bias: Tensor | None) -> list[Use]:
    """The uses of functional.linear(x, weight, bias)."""
    x = x.detach()

    def weight_piece(grad: Tensor, count: int) -> Piece:
        left, right = _steps(grad, count, weight.shape[0]), _steps(x.to(grad.dtype), count, weight.shape[1])
        return Outer(left, right, weight.shape)

    uses = [Use(weight, weight_piece)]
    return uses if bias is None else [*uses, Use(bias, lambda grad, count: _total(grad, count, bias.shape))]


@rule(nn.Linear)
def _linear(layer: nn.Linear, x: Tensor) -> list[Use]:
    return linear_uses(x, layer.weight, layer.bias)


@rule(nn.Conv1d, nn.Conv2d, nn.Conv3d)
def _convolution(layer: nn.Conv1d | nn.Conv2d | nn.Conv3d, x: Tensor) -> list[Use]:
    padding: Any = layer.padding
    if layer.padding_mode != "zeros" or isinstance(padding, str):
        mode = "constant" if layer.padding_mode == "zeros" else layer.padding_mode
        x = functional.pad(x.detach(), layer._reversed_padding_repeated_twice, mode=mode)
        padding = (0,) * len(layer.stride)
    move = WindowGeometry(tuple(layer.stride), tuple(padding), tuple(layer.dilation), layer.groups)

    def weight_piece(grad: Tensor, count: int) -> Piece:
        return Convolution(grad, x.to(grad.dtype), layer.weight.shape, move, count)

    return [Use(layer.weight, weight_piece), *_channel_bias(layer.bias)]


@rule(nn.Embedding)
def _embedding(layer: nn.Embedding, x: Tensor) -> list[Use]:
    def table_piece(grad: Tensor, count: int) -> Piece:
        index, values = x.reshape(count, -1), _steps(grad, count, layer.embedding_dim)
        if layer.padding_idx is not None:
            values = values * (index != layer.padding_idx)[..., None]
        return Sparse(index, values, layer.weight.shape)

    return [Use(layer.weight, table_piece)]


@rule(nn.LayerNorm)
def _layer_norm(layer: nn.LayerNorm, x: Tensor) -> list[Use]:
    shape = list(layer.normalized_shape)
    return _scale_and_shift(layer, lambda work: functional.layer_norm(work, shape, None, None, layer.eps), x)


@rule(nn.RMSNorm)
def _rms_norm(layer: nn.RMSNorm, x: Tensor) -> list[Use]:
    shape = list(layer.normalized_shape)
    return _scale_and_shift(layer, lambda work: functional.rms_norm(work, shape, None, layer.eps), x)


def _scale_and_shift(layer: Any, normalise: Callable[[Tensor], Tensor], x: Tensor) -> list[Use]:
    """y = weight·x̂ + bias over the last dimensions."""
    weight, bias = layer.weight, getattr(layer, "bias", None)
    uses = []
    if weight is not None:
        uses.append(Use(weight, lambda g, n: _total(normalise(x.to(g.dtype)).mul_(g), n, weight.shape)))
    if bias is not None:
        uses.append(Use(bias, lambda g, n: _total(g, n, bias.shape)))
    return uses


@rule(nn.GroupNorm)
def _group_norm(layer: nn.GroupNorm, x: Tensor) -> list[Use]:
    return _channel_scale(
        layer, lambda work: functional.group_norm(work, layer.num_groups, None, None, layer.eps), x
    )


@rule(nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d)
def _instance_norm(layer: Any, x: Tensor) -> list[Use]:
    if layer.track_running_stats and not layer.training:
        return _fixed_norm(layer, x)
    return _channel_scale(layer, lambda work: functional.instance_norm(work, eps=layer.eps), x)


@rule(nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
def _fixed_norm(layer: Any, x: Tensor) -> list[Use]:
    """With frozen averages (anything else is refused): a fixed scale and shift of each channel."""

    def normalise(work: Tensor) -> Tensor:
        mean, variance = layer.running_mean.to(work.dtype), layer.running_var.to(work.dtype)
        return functional.batch_norm(work, mean, variance, None, None, False, 0.0, layer.eps)

    return _channel_scale(layer, normalise, x)


def _channel_scale(layer: Any, normalise: Callable[[Tensor], Tensor], x: Tensor) -> list[Use]:
    """y = weight·x̂ + bias, channel by channel."""
    if layer.weight is None:
        return []

    def weight_piece(grad: Tensor, count: int) -> Piece:
        return _channel_total(normalise(x.to(grad.dtype)).mul_(grad), count, layer.weight.shape)

    return [Use(layer.weight, weight_piece), *_channel_bias(layer.bias)]


def _channel_bias(bias: Tensor | None) -> list[Use]:
    return [] if bias is None else [Use(bias, lambda grad, count: _channel_total(grad, count, bias.shape))]


def _channel_total(values: Tensor, count: int, shape: torch.Size) -> Piece:
    return Rows(values.reshape(count, -1, shape[0], prod(values.shape[2:])).sum((1, 3)), shape)


def _steps(values: Tensor, count: int, width: int) -> Tensor:
    return values.reshape(count, values.numel() // (count * width), width)


def _total(values: Tensor, count: int, shape: torch.Size) -> Piece:
    steps = _steps(values, count, shape.numel())
    return Rows(steps[:, 0] if steps.shape[1] == 1 else steps.sum(1), shape)
