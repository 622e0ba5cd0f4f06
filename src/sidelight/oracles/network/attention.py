"""Attention, with its projections in sight.

nn.MultiheadAttention projects inside one call. While gradients are taken, its forward is replaced by this
one: the same numbers from the same parameters, with the inputs and outputs of each projection at hand.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from sidelight.errors import AssumptionError
from sidelight.oracles.network.layers import Tap, Use, linear_uses, stand_in
from sidelight.oracles.network.pieces import Outer, Piece, Rows

__all__ = ["attention"]


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
