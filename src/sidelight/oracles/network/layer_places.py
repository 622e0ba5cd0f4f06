"""What layers do with records: normalisation, convolution, products, attention, tables. See rowwise.py."""

from __future__ import annotations

import torch

from sidelight.oracles.network.provenance import Place
from sidelight.oracles.network.rowwise import (
    Joined,
    Operation,
    Places,
    aligned,
    keeps_apart,
    one_place,
    pointwise,
)

__all__ = ["product"]


def _before(operation: Operation, last: int, *but: str) -> Place:
    """For operations that look at the last dimensions only."""
    operation.public(*but)
    if any((operation["output_mask"] or [False])[1:]):  # gradients of weights, which are sums over records
        raise Joined
    place = operation.common(*but)
    if any(place.dim >= x.dim() - last for x in operation.tensors(but) if operation.place(x)):
        raise Joined
    return place


@keeps_apart("native_layer_norm native_layer_norm_backward _fused_rms_norm _fused_rms_norm_backward")
def _layer_norm(operation: Operation) -> Place:
    return _before(operation, len(operation["normalized_shape"]), "weight", "bias")


@keeps_apart("native_group_norm native_group_norm_backward grid_sampler_2d "
       "grid_sampler_3d grid_sampler_2d_backward grid_sampler_3d_backward channel_shuffle")  # fmt: skip
def _rows_first(operation: Operation) -> Place:
    """Layers of (records, channels, …)."""
    place = _before(operation, 0, "weight", "bias")
    said = operation["N"]  # how many rows a group norm is told of
    if place.dim or said not in (None, operation.out.shape[0]):
        raise Joined
    return place


@keeps_apart("convolution convolution_backward")
def _convolution(operation: Operation) -> Places:
    """Records in rows; or in channels, if each has groups of its own, as torch.func does it."""
    if any(place is not None and place.dim == 1 for place in map(operation.place, operation.tensors())):
        return _grouped(operation)
    return _rows_first(operation)


def _grouped(operation: Operation) -> Places:
    records, groups = operation.records, operation["groups"]
    each = {"input": 1, "grad_output": 1, "weight": 0, "bias": 0}  # where channels are
    for name, dim in each.items():
        x = operation[name]
        place = operation.place(x)
        if place is not None and (place != (dim, x.shape[dim] // records) or x.shape[dim] % groups):
            raise Joined
        if x is not None:
            operation.same(x, Place(dim, max(1, x.shape[dim] // records)))
    if groups % records or operation["transposed"]:
        raise Joined
    backward = operation.name == "convolution_backward"
    dims = [dim for dim, asked in zip((1, 0, 0), operation["output_mask"] or (True,), strict=False) if asked]
    if backward and len(dims) != len(operation.outputs):
        raise Joined
    return [Place(dim, x.shape[dim] // records) for dim, x in zip(dims, operation.outputs, strict=False)]


@keeps_apart("""
    native_batch_norm _native_batch_norm_legit_no_training native_batch_norm_backward cudnn_batch_norm
    _batch_norm_no_update
""")
def _frozen_batch_norm(operation: Operation) -> Places:
    if operation["training"] or operation["train"]:
        return _of_instances(operation)
    place = _before(operation, 0, "weight", "bias", "running_mean", "running_var")
    if place.dim == 1:
        raise Joined
    return place


def _of_instances(operation: Operation) -> Places:
    """Instance norm: statistics of each channel, and a record has channels of its own."""
    operation.public("weight", "bias", "running_mean", "running_var")
    own = [x for x in operation.tensors() if operation.private(x)]
    found = {(operation.place(x), x.dim() > 1) for x in own if x.numel()}
    places = [place for place, main in found if main and place is not None]
    if any((operation["output_mask"] or [False])[1:]) or len(places) != 1 or places[0].dim != 1:
        raise Joined
    each = Place(0, places[0].inner)  # means and deviations, one a channel
    for x in operation.tensors():
        operation.same(x, each if x.dim() == 1 else places[0])
    if any(place != each for place, main in found if not main):
        raise Joined
    return [places[0], each, each]


def _spatial(name: str) -> int:
    return next((n for n in (3, 2, 1) if f"{n}d" in name), 3)


@keeps_apart("""
    max_pool2d_with_indices max_pool2d_with_indices_backward max_pool3d_with_indices
    max_pool3d_with_indices_backward avg_pool2d avg_pool2d_backward avg_pool3d avg_pool3d_backward
    _adaptive_avg_pool2d _adaptive_avg_pool2d_backward _adaptive_avg_pool3d
    _adaptive_avg_pool3d_backward adaptive_max_pool2d adaptive_max_pool2d_backward adaptive_max_pool3d
    adaptive_max_pool3d_backward fractional_max_pool2d reflection_pad1d reflection_pad2d
    reflection_pad3d reflection_pad1d_backward reflection_pad2d_backward reflection_pad3d_backward
    replication_pad1d replication_pad2d replication_pad3d replication_pad1d_backward
    replication_pad2d_backward replication_pad3d_backward upsample_nearest1d upsample_nearest2d
    upsample_nearest3d _upsample_nearest_exact1d _upsample_nearest_exact2d _upsample_nearest_exact3d
    upsample_bilinear2d _upsample_bilinear2d_aa upsample_bicubic2d _upsample_bicubic2d_aa
    upsample_linear1d upsample_trilinear3d pixel_shuffle pixel_unshuffle
""")
def _pooled(operation: Operation) -> Place:
    return _before(operation, _spatial(operation.name))


@keeps_apart("""
    upsample_nearest1d_backward upsample_nearest2d_backward upsample_nearest3d_backward
    upsample_bilinear2d_backward upsample_bicubic2d_backward upsample_linear1d_backward
    upsample_trilinear3d_backward _upsample_nearest_exact1d_backward _upsample_nearest_exact2d_backward
    _upsample_nearest_exact3d_backward _upsample_bilinear2d_aa_backward _upsample_bicubic2d_aa_backward
""")
def _pooled_back(operation: Operation) -> Place:
    return _before(operation, _spatial(operation.name))


@keeps_apart("im2col col2im")
def _windows(operation: Operation) -> Place:
    place = operation.common()
    if place.dim or operation["self"].dim() != (4 if operation.name == "im2col" else 3):
        raise Joined
    return place


@keeps_apart("nll_loss_forward nll_loss2d_forward nll_loss_backward nll_loss2d_backward multi_margin_loss")
def _nll(operation: Operation) -> Place:
    operation.public("weight")
    place = operation.common("weight", "total_weight")  # without a reduction the total is not used
    if operation["reduction"] != 0 or place.dim:
        raise Joined
    return place


@keeps_apart("mm addmm mv addmv bmm baddbmm")
def product(operation: Operation) -> Place:
    names = list(operation.arguments)
    added = operation.name in ("addmm", "addmv", "baddbmm")
    first, second = (operation[name] for name in names[added : added + 2])
    a, b, rows = operation.place(first), operation.place(second), first.dim() - 2
    batch = [place for place in (a, b) if place is not None and rows and place.dim == 0]
    if batch:  # a product for each
        place = one_place((a, b))
        for x in (first, second):
            operation.same(x, place)
    elif a is not None and b is None and a.dim == rows:
        place = a
    elif b is not None and a is None and b.dim == second.dim() - 1 and second.dim() > 1:
        place = b
    elif a is None and b is None:
        return pointwise(operation)
    else:
        raise Joined  # a sum over records
    if not added:
        return place
    extra, dims = operation[names[0]], operation.out.dim()
    operation.same(extra, Place(place.dim + extra.dim() - dims, place.inner))
    return one_place((place, aligned(operation, extra, dims)))


@keeps_apart("""
    _scaled_dot_product_flash_attention_for_cpu _scaled_dot_product_flash_attention_for_cpu_backward
    _scaled_dot_product_flash_attention _scaled_dot_product_flash_attention_backward
    _scaled_dot_product_efficient_attention _scaled_dot_product_efficient_attention_backward
    _scaled_dot_product_cudnn_attention _scaled_dot_product_cudnn_attention_backward
    _scaled_dot_product_attention_math
""")
def _attention(operation: Operation) -> Place:
    masks = ("attn_mask", "attn_bias")
    place = one_place(
        (
            operation.common(*masks),
            *(aligned(operation, operation[name], 4) for name in masks if operation[name] is not None),
        )
    )
    if place.dim > 1:
        raise Joined
    for x in (operation[name] for name in masks if operation[name] is not None):
        operation.same(x, Place(place.dim + x.dim() - 4, place.inner))
    return place


@keeps_apart("embedding")
def _embedding(operation: Operation) -> Place:
    operation.public("weight")
    return operation.common("weight")


@keeps_apart("_embedding_bag _embedding_bag_forward_only")
def _bags(operation: Operation) -> Places:
    """Bags of equally many places, one after the other."""
    operation.public("weight", "offsets")
    place, offsets = operation.common("weight", "offsets"), operation["offsets"]
    width = operation["indices"].numel() // max(1, offsets.numel() - bool(operation["include_last_offset"]))
    regular = torch.equal(offsets, torch.arange(len(offsets), device=offsets.device) * width)
    if not operation.constant(offsets) or not regular or not width or place.inner % width:
        raise Joined
    return [Place(0, place.inner // width)]
