"""A network's trainable parameters as one flat vector, which is all that a method ever sees.

And what is asked of gradients in that form: norms of M(g_i − o), then Σ c_i M(g_i − o). `ScaledNorms` is for
M = identity or a diagonal, `ProjectedNorms` for a projection on a few directions, of all parameters or of the
last ones. A `ClippedSumRule` is fixed for a whole batch; an `Answer` belongs to one micro-batch and receives
its pieces during the backward pass.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor, nn
from torch._utils import _flatten_dense_tensors, _unflatten_dense_tensors

from sidelight.arrays import Floats, Vector
from sidelight.clipping import Clip
from sidelight.errors import InputError
from sidelight.oracles.network.pieces import ClipCenter, Piece, Squares, plain_products

_MIN_NORM_SHARE = 2.0**-30  # of the origin's length: no norm is taken to be less
_FLOAT64_RECORDS = 8192  # records in a sum that is added up in float64, pass by pass
_LAZY_NUMBERS = 2**18  # numbers of a vector whose memory is worth a thought
_ALIGNMENT_BYTES = 64  # bytes


def trainable(model: nn.Module) -> list[nn.Parameter]:
    """The parameters that are trained, each once, in the order of the flat vector."""
    return [p for p in parameters_of(model) if p.requires_grad]


def parameters_of(model: nn.Module) -> list[nn.Parameter]:
    """What model.parameters() lists, in its order and in a fraction of its time."""
    every = (p for module in modules_of(model) for p in module._parameters.values() if p is not None)
    return list({id(p): p for p in every}.values())


def modules_of(model: nn.Module) -> list[nn.Module]:
    """What model.modules() lists, in its order and in a fraction of its time."""
    found, waiting = dict[int, nn.Module](), [model]
    while waiting:
        module = waiting.pop()
        if id(module) not in found:
            found[id(module)] = module
            waiting.extend(child for child in reversed(module._modules.values()) if child is not None)
    return list(found.values())


def tensor(vector: Vector) -> Tensor:
    """The vector, which for a network is a tensor."""
    if not isinstance(vector, Tensor):
        kind = type(vector).__name__
        raise InputError(
            f"a part gave a {kind} for a network, whose parameters and gradients are torch tensors"
        )
    return vector


def joined_flat(tensors: Sequence[Tensor]) -> Tensor:
    """All numbers of these tensors, of one type, in one vector of its own."""
    if len(tensors) == 1:
        return tensors[0].reshape(-1).clone()
    flat: Tensor = _flatten_dense_tensors(tensors)  # type: ignore[no-untyped-call]
    return flat


def views_of(flat: Tensor, parameters: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """The parts of a flat vector, in the shapes of these parameters."""
    views: tuple[Tensor, ...] = _unflatten_dense_tensors(flat, parameters)  # type: ignore[no-untyped-call]
    return views


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """The model in evaluation mode, and every module back in its own mode afterwards."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode


# ---------------------------------------------------------------------------------------------------
# norms of M(g_i − o), and their clipped sum


class Layout:
    """Where each parameter lies in the flat vector."""

    def __init__(self, parameters: Sequence[Tensor], dtype: torch.dtype) -> None:
        self.dtype, self.device = dtype, parameters[0].device
        self.parameters: list[Tensor] = list(parameters)
        self._slices: dict[Tensor, slice] = {}
        start = 0
        for parameter in parameters:
            self._slices[parameter] = slice(start, start + parameter.numel())
            start += parameter.numel()
        self.dimension = start

    def split(self, start: int) -> tuple[Layout | None, Layout | None]:
        """The parameters before this place of the flat vector, and those from there on."""
        parts = (
            [p for p in self.parameters if self._slices[p].stop <= start],
            [p for p in self.parameters if self._slices[p].start >= start],
        )
        first, last = (Layout(part, self.dtype) if part else None for part in parts)
        return first, last

    def __contains__(self, parameter: Tensor) -> bool:
        return parameter in self._slices

    def part(self, flat: Tensor, parameter: Tensor) -> Tensor:
        """A view of the parameter's place, in its shape."""
        return flat[self._slices[parameter]].view(parameter.shape)

    def parts(self, flat: Tensor) -> dict[Tensor, Tensor]:
        """The same of every parameter."""
        return dict(zip(self.parameters, views_of(flat, self.parameters), strict=True))

    def rows(self, matrix: Tensor, parameter: Tensor) -> Tensor:
        """The parameter's rows of a matrix with one row a coordinate."""
        return matrix[self._slices[parameter]]

    def vector(self, values: Vector, what: str) -> Tensor:
        """Values as a flat vector of this layout."""
        vector = torch.as_tensor(values).detach().to(self.device, self.dtype).reshape(-1)
        if vector.numel() != self.dimension or not math.isfinite(float(vector.sum())):
            raise InputError(f"{what} must be a finite vector of {self.dimension} numbers, one per parameter")
        return vector


class RunningSum:
    """A sum under way: Σ c_i g_i, and Σ c_i. `terms`: the type in which those of one pass are added up.
    `rest`: the sum of the parameters that are not projected, if others are.

    It has no memory before something is added: until then that of a forward pass may be at its largest.
    """

    def __init__(
        self, size: int, dtype: torch.dtype, device: torch.device, *,
        terms: torch.dtype | None = None, rest: RunningSum | None = None,
    ) -> None:  # fmt: skip
        self.rest = rest
        self.size, self.dtype, self.device, self.terms = size, dtype, device, terms or dtype
        self.weight = torch.zeros((), dtype=torch.float64, device=device)
        self._value: Tensor | None = None

    @property
    def value(self) -> Tensor:
        if self._value is None:
            self._value = fresh_zeros(self.size, self.dtype, self.device)
        return self._value

    @value.setter
    def value(self, value: Tensor) -> None:
        self._value = value


def fresh_zeros(size: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """A vector of zeros; of a long one, memory is taken where it is written to, page by page.

    So the sum of a pass grows while the pieces that are in it are freed.
    """
    if device.type != "cpu" or size < _LAZY_NUMBERS or dtype not in (torch.float32, torch.float64):
        return torch.zeros(size, dtype=dtype, device=device)
    kind = np.dtype(np.float64 if dtype == torch.float64 else np.float32)
    # NumPy asks for memory of zeros, where PyTorch writes them; and it is to begin as PyTorch's does.
    memory = np.zeros(size * kind.itemsize + _ALIGNMENT_BYTES, dtype=np.uint8)
    start = -memory.ctypes.data % _ALIGNMENT_BYTES
    return torch.from_numpy(memory[start : start + size * kind.itemsize].view(kind))


class Answer(Protocol):
    """The pieces of one micro-batch, and what follows from them."""

    def receive(self, parameter: Tensor, piece: Piece) -> None: ...

    def norms(self) -> Tensor:
        """Upper bounds of ‖M(g_i − o)‖ (float64)."""

    def silence(self, records: Tensor) -> None:
        """Make what these records (a mask) contribute zero, so that a factor of 0 is enough."""

    def add(self, factors: Tensor, total: RunningSum) -> None:
        """total += Σ c_i M(g_i − o), up to what `finished` does once. The answer is used up."""


class ClippedSumRule(Protocol):
    """Which norms and which sum."""

    def answer(self, count: int) -> Answer: ...

    def new_total(self, records: int, clip: Clip) -> RunningSum: ...

    def finished(self, total: RunningSum) -> Tensor: ...


def _loses_digits(dtype: torch.dtype, clip: Clip, length: float) -> bool:
    """Whether a sum of up to `_FLOAT64_RECORDS` records around an origin of this length is to be taken in
    float64 (see `ScaledNorms`). How many there are is private, and is not asked."""
    if not length:
        return False
    # The largest factor is that of a record at the origin, whose norm is `_MIN_NORM_SHARE` of its length.
    largest = float(_factors_of(clip, np.array([_MIN_NORM_SHARE * length]))[0])
    return torch.finfo(dtype).eps * _FLOAT64_RECORDS * largest * length > 0.01 * clip.bound


def _factors_of(clip: Clip, norms: Floats) -> Floats:
    """clip.factors of norms outside of PyTorch; a clip of somebody's own may know tensors alone."""
    if type(clip).__module__.startswith("sidelight."):
        return clip.factors(norms)
    return np.asarray(clip.factors(torch.from_numpy(norms)), dtype=np.float64)


class ScaledNorms:
    """M = identity, or M = diag(scale)."""

    def __init__(self, layout: Layout, origin: Tensor | None, scale: Tensor | None) -> None:
        self.layout, self.origin, self.scale = layout, origin, scale
        self.around = {parameter: self._around(parameter) for parameter in layout.parameters}
        self.length = math.sqrt(sum(around.length**2 for around in self.around.values()))

    def _around(self, parameter: Tensor) -> ClipCenter:
        parts = (None if v is None else self.layout.part(v, parameter) for v in (self.origin, self.scale))
        return ClipCenter.at(*parts)

    def answer(self, count: int) -> Answer:
        return _Norms(self, count)

    def new_total(self, records: int, clip: Clip) -> RunningSum:
        """Around a large origin Σ c_i g_i is much larger than what is left when Σ c_i·o is taken away, and so
        it is around any origin where a clip enlarges short vectors. The rounding of such a sum would not be
        small against one record, so it is taken in float64. So is one that the scale makes much smaller
        afterwards: before, it may overflow. And the sums of many passes are added up in float64: where a
        pass ends decides how each is rounded, and one record in front moves all of those ends."""
        shrunk = self.scale is not None and float(self.scale.abs().min()) < 1e-30 * max(1.0, clip.bound)
        many = records > _FLOAT64_RECORDS and self.length > 0
        wide = shrunk or many or _loses_digits(self.layout.dtype, clip, self.length)
        terms = torch.float64 if wide else self.layout.dtype
        dtype = torch.float64 if records > _FLOAT64_RECORDS else terms
        return RunningSum(self.layout.dimension, dtype, self.layout.device, terms=terms)

    def finished(self, total: RunningSum) -> Tensor:
        value = total.value
        if self.origin is not None:
            value.add_(self.origin, alpha=-float(total.weight))
        if self.scale is not None:
            value *= self.scale
        return value.to(self.layout.dtype)


class _Norms:
    """Pieces hold the tensors of the backward pass. Their norms are taken when it is over, and nothing of the
    model runs between them and the sum: a backward of one's own may write into what a layer was given."""

    def __init__(self, question: ScaledNorms, count: int) -> None:
        self._question, self._count = question, count
        self._pieces: list[tuple[Tensor, Piece]] = []
        self._received = set[Tensor]()

    def receive(self, parameter: Tensor, piece: Piece) -> None:
        self._pieces.append((parameter, piece))
        self._received.add(parameter)

    def norms(self) -> Tensor:
        with plain_products(self._question.layout.device):
            return self.squares().roots() * (1 + 1e-12)

    def squares(self) -> Squares:
        """Parameters that had no part in the loss have g = 0, and only the origin's share of the norm."""
        length = self._question.length
        every = [piece.squares(self._question.around[parameter]) for parameter, piece in self._pieces]
        if not every:
            zeros = torch.zeros(self._count, dtype=torch.float64, device=self._question.layout.device)
            every.append(Squares(zeros, zeros))
        value, slack = functools.reduce(Squares.__add__, every)
        if not length:
            return Squares(value, slack)
        around = self._question.around.items()
        silent = sum(a.length**2 for p, a in around if p not in self._received)
        # So c_i·o stays below 2³⁰ C, also for a record at the origin: float64 holds Σ c_i(g_i − o) well.
        return Squares(value + silent, slack + (_MIN_NORM_SHARE * length) ** 2)

    def silence(self, records: Tensor) -> None:
        for _, piece in self._pieces:
            piece.silence(records)

    def add(self, factors: Tensor, total: RunningSum) -> None:
        same = total.dtype == total.terms
        value = total.value if same else fresh_zeros(total.size, total.terms, total.device)
        parts = self._question.layout.parts(value)
        if total.size >= _LAZY_NUMBERS:  # first those that free more than the sum grows by
            self._pieces.sort(key=lambda one: one[1].count * one[1].held - one[1].size)
        while self._pieces:  # each is freed once it is in the sum
            parameter, piece = self._pieces.pop()
            piece.add_weighted(factors, parts[parameter])
        if not same:
            total.value += value
        if self._question.origin is not None:
            total.weight += factors.double().sum()


@dataclass(frozen=True, eq=False)
class TailProjection:
    """Coordinates `start` … of a flat vector in a basis (their number × k), the others as they are."""

    basis: Tensor
    start: int

    def apply(self, vector: Vector) -> Tensor:
        """M v."""
        whole = tensor(vector)
        return torch.cat([whole[: self.start], self.basis.T @ whole[self.start :]])

    def lift(self, vector: Vector) -> Tensor:
        """Mᵀ v."""
        whole = tensor(vector)
        return torch.cat([whole[: self.start], self.basis @ whole[self.start :]])


class ProjectedNorms:
    """M g = basisᵀ g from coordinate `start` on: k inner products a record; the numbers before stay as they
    are. All of these are what is clipped and summed."""

    def __init__(self, layout: Layout, origin: Tensor | None, basis: Tensor, start: int = 0) -> None:
        first, last = layout.split(start)
        if last is None or last.dimension != len(basis):
            raise InputError(
                f"the basis has {len(basis)} rows, not one for each number from parameter {start} on. "
                "To project the last layer alone, freeze the others: p.requires_grad_(False)"
            )
        self.layout, self.basis = last, basis.detach().to(layout.device, layout.dtype)
        begin, end = (None, None) if origin is None else (origin[:start], origin[start:])
        self.rest = None if first is None else ScaledNorms(first, begin, None)
        self.start = None if end is None else self.basis.double().T @ end.double()

    def answer(self, count: int) -> Answer:
        return _Projected(self, count)

    def new_total(self, records: int, clip: Clip) -> RunningSum:
        rest = None if self.rest is None else self.rest.new_total(records, clip)
        return RunningSum(self.basis.shape[1], torch.float64, self.layout.device, rest=rest)

    def finished(self, total: RunningSum) -> Tensor:
        value = total.value.to(self.layout.dtype)
        if self.rest is None or total.rest is None:
            return value
        return torch.cat([self.rest.finished(total.rest), value])


class _Projected:
    def __init__(self, question: ProjectedNorms, count: int) -> None:
        self._question = question
        basis = question.basis
        self._values = torch.zeros(count, basis.shape[1], dtype=torch.float64, device=basis.device)
        if question.start is not None:
            self._values -= question.start
        self._rest = None if question.rest is None else question.rest.answer(count)

    def receive(self, parameter: Tensor, piece: Piece) -> None:
        if self._rest is not None and parameter not in self._question.layout:
            self._rest.receive(parameter, piece)
            return
        directions = self._question.layout.rows(self._question.basis, parameter)
        for column in range(directions.shape[1]):
            self._values[:, column] += piece.inner(directions[:, column].reshape(parameter.shape))

    def norms(self) -> Tensor:
        norms: Tensor = torch.linalg.vector_norm(self._values, dim=1)
        norms = norms if self._rest is None else torch.hypot(self._rest.norms(), norms)
        return norms * (1 + 2e-12)

    def silence(self, records: Tensor) -> None:
        self._values = self._values.masked_fill(records[:, None], 0.0)
        if self._rest is not None:
            self._rest.silence(records)

    def add(self, factors: Tensor, total: RunningSum) -> None:
        total.value += factors.double() @ self._values
        if self._rest is not None and total.rest is not None:
            self._rest.add(factors, total.rest)
