"""Operations that are known to keep records apart, and where the records are in what comes out.

`place_of` is given an operation whose arguments hold records. It returns their place in the output, or raises
`Joined`: the operation reads or writes across records, or nothing is known about it. What is not listed here
joins records; a model that uses it is taken record by record.

An argument without records must be the same for each of them (`Operation.same`). If it has a row for each
place in the batch, what a record gets depends on its place, and so on who stands before it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from math import prod
from typing import NamedTuple, TypeAlias, TypeVar

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.utils._pytree import tree_leaves

__all__ = ["Joined", "Operation", "Place", "Places", "place_of", "repeated_for_all"]


class Place(NamedTuple):
    """Where records are: shape[dim] = outer · records · inner."""

    dim: int
    inner: int


Places: TypeAlias = "Place | list[Place | None]"


class Joined(Exception):
    """Values of several records meet, or may."""


class Operation:
    """One call: its arguments by name, and where the records are in them."""

    def __init__(
        self,
        func: OpOverload,
        args: tuple[object, ...],
        kwargs: dict[str, object],
        outputs: Sequence[Tensor],
        *,
        place: Callable[[Tensor], Place | None],
        private: Callable[[Tensor], bool],
        constant: Callable[[Tensor], bool],
        alike: Callable[[Tensor, Place], bool],
        records: int,
    ) -> None:
        self.func, self.outputs, self.records = func, outputs, records
        self.name = func.overloadpacket.__name__
        self.place_in, self.private, self.constant, self.alike = place, private, constant, alike
        self.arguments: dict[str, object] = {}
        for number, one in enumerate(func._schema.arguments):
            default = one.default_value if one.has_default_value() else None
            self.arguments[one.name] = args[number] if number < len(args) else kwargs.get(one.name, default)

    def __getitem__(self, name: str) -> object:
        return self.arguments.get(name)

    def tensor(self, name: str) -> Tensor:
        """An argument that must be a tensor."""
        found = self[name]
        if not isinstance(found, Tensor):
            raise Joined
        return found

    def listed(self, name: str) -> list[Tensor | None]:
        """An argument that is a list of tensors, some of which may be missing."""
        found = self[name]
        if not isinstance(found, list | tuple):
            raise Joined
        return [x if isinstance(x, Tensor) else None for x in found]

    def number(self, name: str) -> int:
        """An argument that must be a whole number."""
        found = self[name]
        if not isinstance(found, int):
            raise Joined
        return found

    def numbers(self, name: str) -> list[int]:
        """Whole numbers, or truth values: one, several, or none."""
        found = self[name]
        if isinstance(found, int):
            return [found]
        given = found if isinstance(found, list | tuple) else []
        if not all(isinstance(one, int) for one in given):
            raise Joined
        return list(given)

    @property
    def out(self) -> Tensor:
        if not self.outputs:
            raise Joined
        return self.outputs[0]

    def place(self, x: object) -> Place | None:
        """None if it holds no records."""
        if not isinstance(x, Tensor) or not self.private(x) or not x.numel():
            return None
        found = self.place_in(x)
        if found is None:
            raise Joined
        return found

    def tensors(self, but: Sequence[str] = ()) -> list[Tensor]:
        """The tensor arguments, without those of these names."""
        chosen = [value for name, value in self.arguments.items() if name not in but]
        return [leaf for leaf in tree_leaves(chosen) if isinstance(leaf, Tensor)]

    def public(self, *names: str) -> None:
        """Raise if one of these arguments holds records."""
        if any(self.private(x) for name in names for x in tree_leaves(self[name]) if isinstance(x, Tensor)):
            raise Joined

    def common(self, *but: str) -> Place:
        """The one place that all private arguments have, counted from the left; the others are the same."""
        place = one_place(self.place(x) for x in self.tensors(but))
        for x in self.tensors(but):
            self.same(x, place)
        return place

    def same(self, x: object, place: Place) -> None:
        """Raise if this argument has no records, and yet another row for each of them, there."""
        if not isinstance(x, Tensor) or self.private(x) or not 0 <= place.dim < x.dim():
            return
        if x.shape[place.dim] > 1 and x.stride(place.dim) and not self.alike(x, place):
            raise Joined


Rule: TypeAlias = Callable[[Operation], Places]
_RULES: dict[str, Rule] = {}
_Function = TypeVar("_Function", bound=Rule)
_OVERWRITE = (  # what they are given as `self` is not read
    "copy_", "fill_", "zero_", "bernoulli_", "normal_", "uniform_", "exponential_",
)  # fmt: skip
_WEIGHTS = ("weight", "bias", "running_mean", "running_var", "boundaries", "sorted_sequence", "test_elements")


def place_of(operation: Operation) -> Places:
    """Where the records are in the outputs, for all of them or one by one."""
    if operation.func.namespace != "aten":
        raise Joined
    name = operation.name
    rule = _RULES.get(name) or _RULES.get(name.rstrip("_"))
    if rule is None and torch.Tag.pointwise in operation.func.tags:
        rule = pointwise
    if rule is None:
        raise Joined
    found: Places = rule(operation)
    return found


def keeps_apart(names: str) -> Callable[[_Function], _Function]:
    """Register what is known of these operations."""

    def register(function: _Function) -> _Function:
        _RULES.update(dict.fromkeys(names.split(), function))
        return function

    return register


def one_place(places: Iterable[Place | None]) -> Place:
    found = {place for place in places if place is not None}
    if len(found) != 1:
        raise Joined
    return found.pop()


def aligned(operation: Operation, x: Tensor, dims: int) -> Place | None:
    """The place of a tensor that is broadcast to this many dimensions."""
    place = operation.place(x)
    return None if place is None else Place(place.dim + dims - x.dim(), place.inner)


# ---------------------------------------------------------------------------------------------------
# number by number, and along dimensions


@keeps_apart("""
    _to_copy copy_ copy clone lift_fresh fill_ fill zero_ zero masked_fill_ bernoulli bernoulli_ normal_
    uniform_ exponential_ native_dropout _fused_dropout rsub complex polar nan_to_num
    hardswish hardswish_backward hardsigmoid_backward hardtanh_backward leaky_relu_backward elu_backward
    softplus_backward mish_backward log_sigmoid_forward log_sigmoid_backward softshrink_backward
    hardshrink_backward rrelu_with_noise rrelu_with_noise_backward _prelu_kernel _prelu_kernel_backward
    celu selu addcmul addcdiv dropout alpha_dropout isreal real_backward angle _conj_physical
    resolve_conj resolve_neg bitwise_not logical_not where poisson special_expit special_erf
    special_ndtr threshold_backward contiguous
""")
def pointwise(operation: Operation) -> Place:
    dims = operation.out.dim()
    found = one_place(aligned(operation, x, dims) for x in operation.tensors(("out",)))
    whole = operation.out.shape[found.dim] if 0 <= found.dim < dims else -1
    lengths = {x.shape[found.dim - dims] for x in operation.tensors() if operation.place(x) is not None}
    if lengths != {whole}:
        raise Joined
    unread = ("out", "self") if operation.name in _OVERWRITE else ("out",)
    for x in operation.tensors(unread):
        operation.same(x, Place(found.dim + x.dim() - dims, found.inner))
    return found


@keeps_apart("""
    mse_loss mse_loss_backward smooth_l1_loss smooth_l1_loss_backward huber_loss huber_loss_backward
    binary_cross_entropy binary_cross_entropy_backward soft_margin_loss soft_margin_loss_backward
""")
def _losses(operation: Operation) -> Place:
    if operation["reduction"] != 0:
        raise Joined
    return pointwise(operation)


@keeps_apart("bucketize isin searchsorted")
def _looked_up(operation: Operation) -> Place:
    operation.public("boundaries", "sorted_sequence", "test_elements", "sorter")
    if operation.name == "searchsorted" and operation.tensor("sorted_sequence").dim() > 1:
        raise Joined
    return operation.common(*_WEIGHTS)


@keeps_apart("""
    sum mean amax amin max min prod any all argmax argmin logsumexp norm linalg_vector_norm var std
    var_mean std_mean aminmax count_nonzero nansum nanmean median nanmedian mode kthvalue _softmax
    _log_softmax _softmax_backward_data _log_softmax_backward_data _safe_softmax softmax log_softmax
    cumsum cumprod cummax cummin _cummax_helper _cummin_helper logcumsumexp _logcumsumexp sort argsort
    topk flip roll glu glu_backward _fft_c2c _fft_r2c _fft_c2r unfold_backward
""")
def _along(operation: Operation) -> Place:
    """Reductions, and what reads or moves numbers along given dimensions: not along that of records."""
    if torch.Tag.pointwise in operation.func.tags:  # max and min of two tensors
        return pointwise(operation)
    dims = operation.numbers("dims" if "dims" in operation.arguments else "dim")
    place = operation.common()
    width = max(x.dim() for x in operation.tensors() if operation.place(x) is not None)
    if operation.name == "unfold_backward":
        width -= 1
    if not dims or place.dim in [dim % width for dim in dims]:
        raise Joined
    if operation.out.dim() >= width:
        return place
    return Place(place.dim - len({dim % width for dim in dims if dim % width < place.dim}), place.inner)


# ---------------------------------------------------------------------------------------------------
# put together, taken apart


@keeps_apart("cat")
def _cat(operation: Operation) -> Place:
    parts = [x for x in operation.listed("tensors") if x is not None and x.numel()]
    place = operation.common()
    if place.dim == operation.number("dim") % operation.out.dim():
        whole = operation.records * place.inner
        if any(operation.place(x) is None or x.shape[place.dim] % whole for x in parts):
            raise Joined
    return place


@keeps_apart("tril triu")
def _triangle(operation: Operation) -> Place:
    """Of the last two dimensions, by their places."""
    place = operation.common()
    if place.dim >= operation.out.dim() - 2:
        raise Joined
    return place


@keeps_apart("stack")
def _stack(operation: Operation) -> Place:
    place = operation.common()
    return Place(place.dim + (operation.number("dim") % operation.out.dim() <= place.dim), place.inner)


@keeps_apart("constant_pad_nd")
def _padded(operation: Operation) -> Place:
    place, pad = operation.common(), operation.numbers("pad")
    at = 2 * (operation.out.dim() - 1 - place.dim)
    if any(pad[at : at + 2]):
        raise Joined
    return place


@keeps_apart("repeat")
def _repeated(operation: Operation) -> Place:
    place = operation.common()
    return Place(place.dim + operation.out.dim() - operation.tensor("self").dim(), place.inner)


def repeated_for_all(operation: Operation) -> Place:
    """The same, of what has no records yet: once for each of them."""
    x = operation.tensor("self")
    if operation.private(x):
        return _repeated(operation)
    sizes = (1,) * (operation.out.dim() - x.dim()) + tuple(x.shape)
    for dim, times in enumerate(operation.numbers("repeats")):
        if times > 1 and times % operation.records == 0:
            return Place(dim, sizes[dim])
    raise Joined


@keeps_apart("select_backward slice_backward")
def _selected_back(operation: Operation) -> Place:
    place, sizes = operation.common(), operation.numbers("input_sizes")
    dim = operation.number("dim") % len(sizes)
    if operation.name == "select_backward":
        return Place(place.dim + (dim <= place.dim), place.inner)
    if dim == place.dim and operation.tensor("grad_output").shape[dim] != sizes[dim]:
        raise Joined
    return place


@keeps_apart("transpose_ swapaxes_ swapdims_ t_ squeeze_ unsqueeze_ detach_")
def _seen_otherwise(operation: Operation) -> Place:
    """The same memory in another shape: the operation is over, so this is the new one."""
    return operation.common()


@keeps_apart("_reshape_copy _reshape_alias view_copy")
def _reshaped(operation: Operation) -> Place:
    """The same numbers in the same order."""
    place, x = operation.common(), operation.tensor("self")
    step = prod(x.shape[place.dim + 1 :]) * place.inner
    for dim in range(operation.out.dim()):
        after = prod(operation.out.shape[dim + 1 :])
        inner, rest = divmod(step, after)
        if inner and not rest and not operation.out.shape[dim] % (operation.records * inner):
            return Place(dim, inner)
    raise Joined


# ---------------------------------------------------------------------------------------------------
# what layers do with records: normalisation, convolution, products, attention, tables


def _before(operation: Operation, last: int, *but: str) -> Place:
    """For operations that look at the last dimensions only."""
    operation.public(*but)
    if any(operation.numbers("output_mask")[1:]):  # gradients of weights, which are sums over records
        raise Joined
    place = operation.common(*but)
    if any(place.dim >= x.dim() - last for x in operation.tensors(but) if operation.place(x)):
        raise Joined
    return place


@keeps_apart("native_layer_norm native_layer_norm_backward _fused_rms_norm _fused_rms_norm_backward")
def _layer_norm(operation: Operation) -> Place:
    return _before(operation, len(operation.numbers("normalized_shape")), "weight", "bias")


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
    records, groups = operation.records, operation.number("groups")
    each = {"input": 1, "grad_output": 1, "weight": 0, "bias": 0}  # where channels are
    for name, dim in each.items():
        x = operation[name]
        if not isinstance(x, Tensor):
            continue
        place = operation.place(x)
        if place is not None and (place != (dim, x.shape[dim] // records) or x.shape[dim] % groups):
            raise Joined
        operation.same(x, Place(dim, max(1, x.shape[dim] // records)))
    if groups % records or operation["transposed"]:
        raise Joined
    backward = operation.name == "convolution_backward"
    dims = [
        dim
        for dim, asked in zip((1, 0, 0), operation.numbers("output_mask") or (True,), strict=False)
        if asked
    ]
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
    if any(operation.numbers("output_mask")[1:]) or len(places) != 1 or places[0].dim != 1:
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
    if place.dim or operation.tensor("self").dim() != (4 if operation.name == "im2col" else 3):
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
    first, second = (operation.tensor(name) for name in names[added : added + 2])
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
    extra, dims = operation.tensor(names[0]), operation.out.dim()
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
    names = ("attn_mask", "attn_bias")
    masks = [x for name in names if isinstance(x := operation[name], Tensor)]
    place = one_place((operation.common(*names), *(aligned(operation, x, 4) for x in masks)))
    if place.dim > 1:
        raise Joined
    for x in masks:
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
    place, offsets = operation.common("weight", "offsets"), operation.tensor("offsets")
    width = operation.tensor("indices").numel() // max(
        1, offsets.numel() - bool(operation["include_last_offset"])
    )
    regular = torch.equal(offsets, torch.arange(len(offsets), device=offsets.device) * width)
    if not operation.constant(offsets) or not regular or not width or place.inner % width:
        raise Joined
    return [Place(0, place.inner // width)]


# ---------------------------------------------------------------------------------------------------
# numbers taken or put by index


@keeps_apart("gather scatter scatter_add scatter_reduce gather_backward")
def _gathered(operation: Operation) -> Place:
    """Row by row, but for one dimension."""
    place, dim = operation.common(), operation.number("dim") % max(1, operation.tensor("self").dim())
    lengths = {x.shape[place.dim] for x in operation.tensors() if x.dim() == operation.tensor("self").dim()}
    if dim == place.dim or len(lengths) != 1:
        raise Joined
    return place


@keeps_apart("index_add index_copy index_fill")
def _put_along(operation: Operation) -> Place:
    operation.public("index")
    place = operation.common("index")
    if place.dim == operation.number("dim") % operation.out.dim():
        raise Joined
    return place


@keeps_apart("index_select")
def _taken_along(operation: Operation) -> Place:
    """Of records by an index that is the same for all, or of a table by an index of theirs."""
    source, index = operation.place(operation["self"]), operation.place(operation["index"])
    dim = operation.number("dim") % max(1, operation.tensor("self").dim())
    if source is None and index is not None:
        return Place(dim, index.inner)
    if source is None or index is not None:
        raise Joined
    return source if source.dim != dim else _followed(operation, operation.tensor("index"), source, dim)


def _followed(operation: Operation, index: Tensor, source: Place, dim: int) -> Place:
    """Where records are after a constant index along them, if that keeps their order."""
    if not operation.constant(index) or index.dim() != 1:
        raise Joined
    record = index.remainder(operation.tensor("self").shape[source.dim]) // source.inner % operation.records
    for inner in {source.inner, len(index) // operation.records}:
        if inner and len(index) % (inner * operation.records) == 0:
            expected = torch.arange(len(index), device=index.device) // inner % operation.records
            if torch.equal(record, expected):
                return Place(dim, inner)
    raise Joined


class _Indices:
    """Several indices at once, as in x[:, i, j]: where each dimension goes."""

    def __init__(self, operation: Operation) -> None:
        self.operation, self.x = operation, operation.tensor("self")
        self.by: dict[int, Tensor] = {}
        dim = 0
        for index in operation.listed("indices"):
            if index is None:
                dim += 1
                continue
            parts = self._masks(index) if index.dtype in (torch.bool, torch.uint8) else (index,)
            for part in parts:
                self.by[dim] = part
                dim += 1
        if not self.by:
            raise Joined
        self.shape = torch.broadcast_tensors(*self.by.values())[0].shape  # type: ignore[no-untyped-call]
        dims = sorted(self.by)
        together = dims == list(range(dims[0], dims[0] + len(dims)))
        self.start = dims[0] if together else 0

    def _masks(self, mask: Tensor) -> tuple[Tensor, ...]:
        if self.operation.private(mask) or not self.operation.constant(mask):
            raise Joined
        found = mask.nonzero(as_tuple=True)
        return tuple(found)

    def output(self, dim: int) -> int:
        """Where a dimension that is not indexed goes."""
        before = sum(1 for one in range(dim) if one not in self.by)
        return before if before < self.start else before + len(self.shape)

    def source(self, dim: int) -> int | None:
        """The dimension that goes there; None for those of the indices."""
        return next((d for d in range(self.x.dim()) if d not in self.by and self.output(d) == dim), None)

    def same(self, place: Place, but: int | None = None) -> Place:
        """This place in the output, if what has no records is the same for each there.

        but: the dimension whose index counts the records.
        """
        at = place.dim - self.start - len(self.shape)
        for dim, index in self.by.items():
            if dim != but:
                self.operation.same(index, Place(at + index.dim(), place.inner))
        source = self.source(place.dim)
        if source is not None:
            self.operation.same(self.x, Place(source, place.inner))
        return place

    def in_output(self, index: Tensor) -> Place | None:
        """The place of an index with records, in the output."""
        place = self.operation.place(index) if self.operation.private(index) else None
        if place is None:
            return None
        return Place(self.start + place.dim + len(self.shape) - index.dim(), place.inner)

    def counts(self, dim: int, along: int) -> bool:
        """Whether the index of a dimension is 0, 1, 2, … along this one of the output, whatever happens."""
        index = self.by[dim].expand(self.shape)
        if not self.operation.constant(self.by[dim]) or index.shape[along] != self.x.shape[dim]:
            return False
        line = torch.arange(index.shape[along], device=index.device)
        return torch.equal(index, line.view(-1, *[1] * (index.dim() - 1 - along)).expand_as(index))


@keeps_apart("index _unsafe_index")
def by_index(operation: Operation) -> Place:
    """x[i, j]: an index along records must be 0, 1, 2, …; others belong to their record."""
    indices = _Indices(operation)
    asked = {place for index in indices.by.values() if (place := indices.in_output(index)) is not None}
    place = operation.place(operation["self"])
    if place is None:
        return indices.same(one_place(asked))
    if place.dim not in indices.by:
        return indices.same(one_place((Place(indices.output(place.dim), place.inner), *asked)))
    for along in range(len(indices.shape)):
        if indices.counts(place.dim, along):
            found = one_place((Place(indices.start + along, place.inner), *asked))
            return indices.same(found, place.dim)
    raise Joined


@keeps_apart("index_put _index_put_impl _index_put_impl_ _unsafe_index_put")
def _put_by_index(operation: Operation) -> Place:
    """x[i, j] = values, also the way back from x[i, j]."""
    own, values = operation.place(operation["self"]), operation.tensor("values")
    masks = [i for i in operation.listed("indices") if i is not None and operation.private(i)]
    if (
        len(operation.listed("indices")) == 1
        and masks
        and masks[0].dtype == torch.bool
        and values.numel() == 1
    ):
        place = one_place((own, operation.place(masks[0]), operation.place(values)))
        operation.same(operation["self"], place)
        return place
    indices = _Indices(operation)
    width = len(indices.shape) + operation.tensor("self").dim() - len(indices.by)
    given = operation.place(values)
    found = {at for index in indices.by.values() if (at := indices.in_output(index)) is not None}
    if given is not None:
        found.add(Place(given.dim + width - values.dim(), given.inner))
    if not found and own is not None and own.dim not in indices.by:
        found.add(Place(indices.output(own.dim), own.inner))
    place = one_place(found)
    dim = indices.source(place.dim)
    counted = None
    if dim is None:
        along = place.dim - indices.start
        dim = counted = next((d for d in indices.by if indices.counts(d, along)), None)
    if dim is None:
        raise Joined
    indices.same(place, counted)
    operation.same(values, Place(place.dim + values.dim() - width, place.inner))
    operation.same(operation["self"], Place(dim, place.inner))
    return one_place((own, Place(dim, place.inner)))
