"""How each layer's per-record gradients follow from its input and its output's gradient.

A rule takes a layer and its input and lists the layer's `Use`s of its parameters: which one, and how the
piece for it is built once the gradient of the output arrives. To teach the oracle a new layer, register one:

    @rule(MyLayer)
    def my_layer(layer, x):
        return [Use(layer.weight, lambda grad, count: Rows(..., layer.weight.shape))]

`grad` comes in the working precision, and `count` is the number of records: the first dimension of x and of
grad is count, or a multiple of it whose rows lie together record by record. Rules are never trusted: the
oracle compares them with plain gradients before the first private step (see check.py).

Attention and recurrent layers run as one operation that does not show its parts. While gradients are taken,
a stand-in replaces their forward: the same numbers from the same parameters, with every part in sight. Layers
whose gradient is not a sum over records are refused with the way out (`problem`). Spectral norms are held
while records go through the model (`settled_norms`).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from math import prod
from typing import Any, NamedTuple, Protocol, TypeAlias, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.utils.parametrizations import _SpectralNorm as SpectralNorm
from torch.nn.utils.parametrize import ParametrizationList

from sidelight.errors import AssumptionError
from sidelight.oracles.network.flat import modules_of
from sidelight.oracles.network.pieces import Convolution, Outer, Piece, Rows, Sparse, WindowGeometry


class Use(NamedTuple):
    """One use of a parameter: `build(grad, count)` makes its piece from the gradient of the output."""

    parameter: Tensor
    build: Callable[[Tensor, int], Piece]


Rule: TypeAlias = Callable[[Any, Tensor], list[Use]]
_RULES: dict[type[nn.Module], Rule] = {}
_NAMED: dict[str, Rule] = {}
_Entry = TypeVar("_Entry")


def rule(*kinds: type[nn.Module]) -> Callable[[Rule], Rule]:
    """Register a rule for layers of these classes, and for subclasses that keep their forward."""

    def register(function: Rule) -> Rule:
        _RULES.update(dict.fromkeys(kinds, function))
        return function

    return register


def rule_for_class(name: str) -> Callable[[Rule], Rule]:
    """The same for a class of a library that is not imported here, by its full name."""

    def register(function: Rule) -> Rule:
        _NAMED[name] = function
        return function

    return register


def rule_for(layer: nn.Module) -> Rule | None:
    """The rule of a layer, unless it has a forward of its own."""
    found = _registered(_RULES, layer)
    return _NAMED.get(_name_of_forward(type(layer))) if found is None else found  # type: ignore[arg-type]


def _registered(table: dict[type[nn.Module], _Entry], layer: nn.Module) -> _Entry | None:
    for kind in type(layer).__mro__:
        if kind in table and type(layer).forward is kind.forward:
            return table[kind]
    return None


@functools.lru_cache(maxsize=1024)
def _name_of_forward(layer: Any) -> str:
    """The full name of the class that a layer has its forward from."""
    kind = next(kind for kind in layer.__mro__ if "forward" in vars(kind))
    return f"{kind.__module__}.{kind.__qualname__}"


# ---------------------------------------------------------------------------------------------------
# layers whose own forward hides their parts: what stands in for it


class Tap(Protocol):
    """Says that `output` was computed from `source` with these uses of parameters."""

    def __call__(self, output: Tensor, source: Tensor, uses: Sequence[Use]) -> None: ...


StandIn: TypeAlias = Callable[..., object]  # (layer, tap, and what the layer's forward takes)
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
    return _registered(_STAND_INS, layer)


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
            "normalizes each record by the others of its batch. Replace it, "
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
        work = x if x.dtype == grad.dtype else x.to(grad.dtype)
        if grad.dim() == 2 and len(grad) == count:  # at one position
            return Outer(grad, work, weight.shape)
        left, right = _steps(grad, count, weight.shape[0]), _steps(work, count, weight.shape[1])
        return Outer(left, right, weight.shape)

    uses = [Use(weight, weight_piece)]
    return uses if bias is None else [*uses, Use(bias, lambda grad, count: _total(grad, count, bias.shape))]


@rule(nn.Linear)
def _linear(layer: nn.Linear, x: Tensor) -> list[Use]:
    return linear_uses(x, layer.weight, layer.bias)


@rule_for_class("transformers.pytorch_utils.Conv1D")
def _transposed_linear(layer: Any, x: Tensor) -> list[Use]:
    """The linear layers of GPT-2, whose weight has a row for each input."""
    weight, bias, x = layer.weight, layer.bias, x.detach()

    def weight_piece(grad: Tensor, count: int) -> Piece:
        left, right = _steps(x.to(grad.dtype), count, weight.shape[0]), _steps(grad, count, weight.shape[1])
        return Outer(left, right, weight.shape)

    return [Use(weight, weight_piece), Use(bias, lambda grad, count: _total(grad, count, bias.shape))]


@rule(nn.Conv1d, nn.Conv2d, nn.Conv3d)
def _convolution(layer: nn.Conv1d | nn.Conv2d | nn.Conv3d, x: Tensor) -> list[Use]:
    padding = layer.padding
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


def _scale_and_shift(
    layer: nn.LayerNorm | nn.RMSNorm, normalize: Callable[[Tensor], Tensor], x: Tensor
) -> list[Use]:
    """y = weight·x̂ + bias over the last dimensions."""
    weight, bias = layer.weight, getattr(layer, "bias", None)  # None without elementwise_affine
    uses = []
    if weight is not None:
        uses.append(Use(weight, lambda g, n: _total(normalize(x.to(g.dtype)).mul_(g), n, weight.shape)))
    if bias is not None:
        uses.append(Use(bias, lambda g, n: _total(g, n, bias.shape)))
    return uses


@rule(nn.GroupNorm)
def _group_norm(layer: nn.GroupNorm, x: Tensor) -> list[Use]:
    return _channel_scale(
        layer, lambda work: functional.group_norm(work, layer.num_groups, None, None, layer.eps), x
    )


@rule(nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d)
def _instance_norm(layer: _NormBase, x: Tensor) -> list[Use]:
    if layer.track_running_stats and not layer.training:
        return _fixed_norm(layer, x)
    return _channel_scale(layer, lambda work: functional.instance_norm(work, eps=layer.eps), x)


@rule(nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
def _fixed_norm(layer: _NormBase, x: Tensor) -> list[Use]:
    """With frozen averages (anything else is refused): a fixed scale and shift of each channel."""

    def normalize(work: Tensor) -> Tensor:
        if layer.running_mean is None or layer.running_var is None:
            raise AssumptionError(f"{type(layer).__name__} has no averages that could be frozen")
        mean, variance = layer.running_mean.to(work.dtype), layer.running_var.to(work.dtype)
        return functional.batch_norm(work, mean, variance, None, None, False, 0.0, layer.eps)

    return _channel_scale(layer, normalize, x)


def _channel_scale(
    layer: nn.GroupNorm | _NormBase, normalize: Callable[[Tensor], Tensor], x: Tensor
) -> list[Use]:
    """y = weight·x̂ + bias, channel by channel."""
    weight = getattr(layer, "weight", None)  # None without affine
    if weight is None:
        return []

    def weight_piece(grad: Tensor, count: int) -> Piece:
        return _channel_total(normalize(x.to(grad.dtype)).mul_(grad), count, weight.shape)

    return [Use(weight, weight_piece), *_channel_bias(layer.bias)]


def _channel_bias(bias: Tensor | None) -> list[Use]:
    return [] if bias is None else [Use(bias, lambda grad, count: _channel_total(grad, count, bias.shape))]


def _channel_total(values: Tensor, count: int, shape: torch.Size) -> Piece:
    return Rows(values.reshape(count, -1, shape[0], prod(values.shape[2:])).sum((1, 3)), shape)


def _steps(values: Tensor, count: int, width: int) -> Tensor:
    return values.reshape(count, values.numel() // (count * width), width)


def _total(values: Tensor, count: int, shape: torch.Size) -> Piece:
    if values.dim() == 2 and values.shape == (count, shape.numel()):
        return Rows(values, shape)
    steps = _steps(values, count, shape.numel())
    return Rows(steps[:, 0] if steps.shape[1] == 1 else steps.sum(1), shape)


# ---------------------------------------------------------------------------------------------------
# attention, with its projections in sight


@stand_in(nn.MultiheadAttention)
def attention(
    layer: nn.MultiheadAttention,
    tap: Tap,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    key_padding_mask: Tensor | None = None,
    need_weights: bool = True,
    attn_mask: Tensor | None = None,
    average_attn_weights: bool = True,
    is_causal: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """What layer(query, key, value, ...) returns. `is_causal` is a hint about attn_mask, and not needed."""
    if layer.bias_k is not None or layer.add_zero_attn or query.dim() != 3:
        raise AssumptionError(
            "MultiheadAttention needs inputs of three dimensions, and neither add_bias_kv nor add_zero_attn"
        )
    together = query is key is value
    inputs = [x if layer.batch_first else x.transpose(0, 1) for x in (query, key, value)]
    projected = _project(layer, tap, inputs, together)
    q, k, v = (x.view(*x.shape[:2], layer.num_heads, -1).transpose(1, 2) for x in projected)
    mask = _mask(attn_mask, key_padding_mask, q, k)
    dropout = layer.dropout if layer.training else 0.0
    weights = None
    if need_weights:
        scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
        weights = functional.dropout((scores if mask is None else scores + mask).softmax(-1), dropout)
        mixed = weights @ v
        weights = weights.mean(1) if average_attn_weights else weights
    else:
        mixed = functional.scaled_dot_product_attention(q, k, v, mask, dropout)
    mixed = mixed.transpose(1, 2).flatten(2)
    output = functional.linear(mixed, layer.out_proj.weight, layer.out_proj.bias)
    tap(output, mixed, linear_uses(mixed, layer.out_proj.weight, layer.out_proj.bias))
    return output if layer.batch_first else output.transpose(0, 1), weights


def _project(layer: nn.MultiheadAttention, tap: Tap, inputs: list[Tensor], together: bool) -> list[Tensor]:
    """The three projections; in self-attention they are one."""
    weight, bias, width = layer.in_proj_weight, layer.in_proj_bias, layer.embed_dim
    if weight is not None and together:
        all_three = functional.linear(inputs[0], weight, bias)
        tap(all_three, inputs[0], linear_uses(inputs[0], weight, bias))
        return list(all_three.chunk(3, -1))
    results = []
    for third, x in enumerate(inputs):
        part = slice(third * width, (third + 1) * width)
        own = (layer.q_proj_weight, layer.k_proj_weight, layer.v_proj_weight)[third]
        matrix = own if weight is None else weight[part]
        result = functional.linear(x, matrix, None if bias is None else bias[part])
        uses = linear_uses(x, own, None) if weight is None else [_third_of(weight, x, part)]
        tap(result, x, uses if bias is None else [*uses, _third_of(bias, None, part)])
        results.append(result)
    return results


def _third_of(parameter: Tensor, x: Tensor | None, part: slice) -> Use:
    """The use of some rows of a parameter: the gradient is zero in the others."""

    def build(grad: Tensor, count: int) -> Piece:
        steps = grad.reshape(count, -1, part.stop - part.start)
        padded = functional.pad(steps, (part.start, parameter.shape[0] - part.stop))
        if x is None:
            return Rows(padded.sum(1), parameter.shape)
        return Outer(
            padded, x.detach().to(grad.dtype).reshape(count, -1, parameter.shape[1]), parameter.shape
        )

    return Use(parameter, build)


def _mask(attn: Tensor | None, padding: Tensor | None, q: Tensor, k: Tensor) -> Tensor | None:
    """Both masks as one that is added to the scores (records × heads × queries × keys)."""
    total = None
    if attn is not None:
        total = _additive(attn, q)
        total = total if attn.dim() == 2 else total.view(q.shape[0], -1, *attn.shape[1:])
    if padding is not None:
        columns = _additive(padding, q)[:, None, None]
        total = columns if total is None else total + columns
    return total


def _additive(mask: Tensor, like: Tensor) -> Tensor:
    if mask.dtype != torch.bool:
        return mask.to(like.dtype)
    return torch.zeros_like(mask, dtype=like.dtype).masked_fill_(mask, -math.inf)


# ---------------------------------------------------------------------------------------------------
# a bilinear layer is a linear one of all products of its two inputs


@stand_in(nn.Bilinear)
def bilinear(layer: nn.Bilinear, tap: Tap, input1: Tensor, input2: Tensor) -> Tensor:
    """What layer(input1, input2) returns."""
    products = (input1[..., :, None] * input2[..., None, :]).flatten(-2)
    output = functional.linear(products, layer.weight.flatten(1), layer.bias)
    uses = linear_uses(products, layer.weight.flatten(1), layer.bias)
    tap(output, products, [Use(layer.weight, uses[0].build), *uses[1:]])
    return output


# ---------------------------------------------------------------------------------------------------
# recurrent layers, unrolled: the gradient of all gates of a direction is one tensor (records × time × gates),
# and every parameter's gradient an outer product of it with the inputs or with the states before each step


State: TypeAlias = tuple[Tensor, ...]  # (h,), or (h, c)


@stand_in(nn.RNN, nn.LSTM, nn.GRU)
def unrolled(
    layer: nn.RNNBase, tap: Tap, input: object, hx: Tensor | State | None = None
) -> tuple[Tensor, Tensor | State]:
    """What layer(input, hx) returns."""
    x = _checked(layer, input)
    x = x if layer.batch_first else x.transpose(0, 1)
    directions = 2 if layer.bidirectional else 1
    starts = _starts(layer, x, hx, directions)
    finals: list[State] = []
    for depth in range(layer.num_layers):
        outputs = []
        for direction in range(directions):
            suffix = f"l{depth}" + ("_reverse" if direction else "")
            output, final = _run(layer, tap, x, suffix, starts[depth * directions + direction])
            outputs.append(output)
            finals.append(final)
        x = torch.cat(outputs, -1) if directions > 1 else outputs[0]
        if layer.dropout and depth + 1 < layer.num_layers:
            x = functional.dropout(x, layer.dropout, layer.training)
    last = tuple(torch.stack(parts) for parts in zip(*finals, strict=True))
    return x if layer.batch_first else x.transpose(0, 1), last if len(last) > 1 else last[0]


def _checked(layer: nn.RNNBase, x: object) -> Tensor:
    name = type(layer).__name__
    if not isinstance(x, Tensor):
        raise AssumptionError(f"{name} got a packed sequence, whose rows mix records. Pass a padded one")
    if x.dim() != 3:
        raise AssumptionError(f"{name} needs an input of 3 dimensions, one of them the batch, not {x.dim()}")
    return x


def _starts(layer: nn.RNNBase, x: Tensor, hx: Tensor | State | None, directions: int) -> list[State]:
    """The state before the first step, for every layer and direction."""
    if hx is None:
        zeros = x.new_zeros(layer.num_layers * directions, x.shape[0], layer.hidden_size)
        hx = (zeros, zeros) if layer.mode == "LSTM" else zeros
    parts = hx if isinstance(hx, tuple) else (hx,)
    return list(zip(*(part.unbind(0) for part in parts), strict=True))


def _run(layer: nn.RNNBase, tap: Tap, x: Tensor, suffix: str, state: State) -> tuple[Tensor, State]:
    """One direction of one layer."""
    names = ("weight_ih", "weight_hh", *(("bias_ih", "bias_hh") if layer.bias else ()))
    parameters = [getattr(layer, f"{name}_{suffix}") for name in names]
    weight_in, weight_state, bias_in, bias_state = (*parameters, None, None)[:4]
    gates = functional.linear(x, weight_in, bias_in)
    before: dict[int, Tensor] = {}
    resets: dict[int, Tensor] = {}
    outputs: dict[int, Tensor] = {}
    times = range(x.shape[1])
    pieces = gates.unbind(1)
    for time in reversed(times) if suffix.endswith("reverse") else times:
        before[time] = state[0].detach()
        state, reset = _cell(
            layer, pieces[time], functional.linear(state[0], weight_state, bias_state), state
        )
        outputs[time] = state[0]
        if reset is not None:
            resets[time] = reset.detach()
    uses = linear_uses(x, weight_in, bias_in)
    tap(gates, x, [*uses, *_state_uses(before, resets, weight_state, bias_state)])
    return torch.stack([outputs[time] for time in times], 1), state


def _cell(layer: nn.RNNBase, fresh: Tensor, kept: Tensor, state: State) -> tuple[State, Tensor | None]:
    """One step: the new state, and GRU's reset gate."""
    if layer.mode == "LSTM":
        enter, forget, new, leave = (fresh + kept).chunk(4, -1)
        memory = forget.sigmoid() * state[1] + enter.sigmoid() * new.tanh()
        return (leave.sigmoid() * memory.tanh(), memory), None
    if layer.mode == "GRU":
        (reset, update, new), (reset_kept, update_kept, new_kept) = fresh.chunk(3, -1), kept.chunk(3, -1)
        reset, update = (reset + reset_kept).sigmoid(), (update + update_kept).sigmoid()
        new = (new + reset * new_kept).tanh()
        return ((1 - update) * new + update * state[0],), reset
    total = fresh + kept
    return (total.tanh() if layer.mode == "RNN_TANH" else total.relu(),), None


def _state_uses(
    before: dict[int, Tensor], resets: dict[int, Tensor], weight: Tensor, bias: Tensor | None
) -> list[Use]:
    """The uses of the state's weights: their gates have the same gradient, but that GRU resets a third."""
    states = torch.stack([before[time] for time in sorted(before)], 1)

    def inner_gradient(grad: Tensor) -> Tensor:
        if not resets:
            return grad
        reset = torch.stack([resets[time] for time in sorted(resets)], 1).to(grad.dtype)
        width = reset.shape[-1]
        return torch.cat([grad[..., : 2 * width], grad[..., 2 * width :] * reset], -1)

    def through(use: Use) -> Use:
        return Use(use.parameter, lambda grad, count: use.build(inner_gradient(grad), count))

    return [through(use) for use in linear_uses(states, weight, bias)]


# ---------------------------------------------------------------------------------------------------
# spectral norms, which improve their estimate of a weight's largest singular value at every forward pass. How
# many passes a step has depends on how many records it drew, and so would the estimate. It follows from the
# weights alone, so it is held while they run, and improved once per step by whoever moves the weights


def refresh_norms(model: nn.Module) -> None:
    """One improvement of every estimate, as a forward pass in training mode would make it."""
    with torch.no_grad():
        for module in modules_of(model):
            if isinstance(module, ParametrizationList) and any(norm.training for norm in _norms(module)):
                module()


@contextmanager
def settled_norms(model: nn.Module) -> Iterator[None]:
    """Estimates stay as they are."""
    training = [norm for norm in _norms(model) if norm.training]
    for norm in training:
        norm.training = False
    try:
        yield
    finally:
        for norm in training:
            norm.training = True


def _norms(model: nn.Module) -> list[nn.Module]:
    return [module for module in modules_of(model) if isinstance(module, SpectralNorm)]
