"""Operations that are known to keep records apart, and where the records are in what comes out.

`place_of` is given an operation whose arguments hold records. It returns their place in the output, or raises
`Joined`: the operation reads or writes across records, or nothing is known about it. What is not listed here
joins records; a model that uses it is taken record by record.

An argument without records must be the same for each of them (`Operation.same`). If it has a row for each
place in the batch, what a record gets depends on its place, and so on who stands before it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any, TypeAlias, TypeVar

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from sidelight.oracles.network.provenance import Place

__all__ = [
    "Joined", "Operation", "Places", "aligned", "keeps_apart", "one_place", "place_of", "pointwise",
    "repeated_for_all",
]  # fmt: skip

Places: TypeAlias = "Place | list[Place | None]"


class Joined(Exception):
    """Values of several records meet, or may."""


class Operation:
    """One call: its arguments by name, and where the records are in them."""

    def __init__(
        self,
        func: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
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
        self.arguments: dict[str, Any] = {}
        for number, one in enumerate(func._schema.arguments):
            default = one.default_value if one.has_default_value() else None
            self.arguments[one.name] = args[number] if number < len(args) else kwargs.get(one.name, default)

    def __getitem__(self, name: str) -> Any:
        return self.arguments.get(name)

    @property
    def out(self) -> Tensor:
        if not self.outputs:
            raise Joined
        return self.outputs[0]

    def place(self, x: Any) -> Place | None:
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

    def same(self, x: Any, place: Place) -> None:
        """Raise if this argument has no records, and yet another row for each of them, there."""
        if not isinstance(x, Tensor) or self.private(x) or not 0 <= place.dim < x.dim():
            return
        if x.shape[place.dim] > 1 and x.stride(place.dim) and not self.alike(x, place):
            raise Joined


Rule: TypeAlias = Callable[[Operation], Any]  # a place, or one for each output
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


def one_place(places: Any) -> Place:
    found = {place for place in places if place is not None}
    if len(found) != 1:
        raise Joined
    return Place(*found.pop())


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
    if operation.name == "searchsorted" and operation["sorted_sequence"].dim() > 1:
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
    dims = operation["dims"] if "dims" in operation.arguments else operation["dim"]
    dims = [dims] if isinstance(dims, int) else dims
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
    parts = [x for x in operation["tensors"] if x.numel()]
    place = operation.common()
    if place.dim == operation["dim"] % operation.out.dim():
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
    return Place(place.dim + (operation["dim"] % operation.out.dim() <= place.dim), place.inner)


@keeps_apart("constant_pad_nd")
def _padded(operation: Operation) -> Place:
    place, pad = operation.common(), operation["pad"]
    at = 2 * (operation.out.dim() - 1 - place.dim)
    if any(pad[at : at + 2]):
        raise Joined
    return place


@keeps_apart("repeat")
def _repeated(operation: Operation) -> Place:
    place = operation.common()
    return Place(place.dim + operation.out.dim() - operation["self"].dim(), place.inner)


def repeated_for_all(operation: Operation) -> Place:
    """The same, of what has no records yet: once for each of them."""
    x = operation["self"]
    if operation.private(x):
        return _repeated(operation)
    sizes = (1,) * (operation.out.dim() - x.dim()) + tuple(x.shape)
    for dim, times in enumerate(operation["repeats"]):
        if times > 1 and times % operation.records == 0:
            return Place(dim, sizes[dim])
    raise Joined


@keeps_apart("select_backward slice_backward")
def _selected_back(operation: Operation) -> Place:
    place, sizes = operation.common(), operation["input_sizes"]
    dim = operation["dim"] % len(sizes)
    if operation.name == "select_backward":
        return Place(place.dim + (dim <= place.dim), place.inner)
    if dim == place.dim and operation["grad_output"].shape[dim] != sizes[dim]:
        raise Joined
    return place


@keeps_apart("transpose_ swapaxes_ swapdims_ t_ squeeze_ unsqueeze_ detach_")
def _seen_otherwise(operation: Operation) -> Place:
    """The same memory in another shape: the operation is over, so this is the new one."""
    return operation.common()


@keeps_apart("_reshape_copy _reshape_alias view_copy")
def _reshaped(operation: Operation) -> Place:
    """The same numbers in the same order."""
    place, x = operation.common(), operation["self"]
    step = prod(x.shape[place.dim + 1 :]) * place.inner
    for dim in range(operation.out.dim()):
        after = prod(operation.out.shape[dim + 1 :])
        inner, rest = divmod(step, after)
        if inner and not rest and not operation.out.shape[dim] % (operation.records * inner):
            return Place(dim, inner)
    raise Joined
