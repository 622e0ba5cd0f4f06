"""Squared norms of many small pieces at once.

A private step of a small model is made of calls that take longer than the arithmetic in them. A layer at one
position has ‖G_i‖² = ‖L_i‖²·‖R_i‖², and written-out rows are their own vectors: so all that is wanted are
the lengths of short vectors, one call for each kind. They are put into one table, and everything else
(squares, products, sums over parameters, bounds on rounding errors) is done for the whole table.

The bounds are those of `Outer.own_squares`, `expand` and `Piece.squares`, or larger: the largest γ of all
pieces stands for each of them, and around an origin Σ_j ‖G_ij‖·‖O_j‖ ≤ ‖G_i‖·‖O‖ (Cauchy and Schwarz).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor

from sidelight.oracles.network.pieces import (
    BLOCK,
    Around,
    Outer,
    Piece,
    Rows,
    Squares,
    chain,
    growth,
    tiny,
    underflow,
)

__all__ = ["bounds_of", "joins", "joint_squares"]

_Rows: TypeAlias = list[tuple[Rows, Around]]


def joins(piece: Piece, around: Around) -> bool:
    """Whether a piece can be among those whose squares are taken together."""
    if around.scale is not None or around.factored is not None or not piece.count:
        return False
    if around.origin is not None and around.origin.dtype != piece.dtype:  # parameters of several types
        return False
    if type(piece) is Outer:
        return piece.steps == 1 and piece.p <= BLOCK and piece.q <= BLOCK
    return type(piece) is Rows and piece.size <= BLOCK


def joint_squares(pieces: Sequence[tuple[Piece, Around]]) -> Squares:
    """Σ_j ‖G_ij − O_j‖² over pieces that `joins` takes, all of one type, and a bound on its error."""
    outer = [(one, around) for one, around in pieces if isinstance(one, Outer)]
    rows = [(one, around) for one, around in pieces if isinstance(one, Rows)]
    factors = [one.vectors for one, _ in outer]
    kept, biases = _without_biases(rows, [left for left, _ in factors])
    vectors = [*(left for left, _ in factors), *(right for _, right in factors)]
    vectors += [_difference(*one) for one in kept]
    sizes = tuple((one.p, one.q, bias) for (one, _), bias in zip(outer, biases, strict=True))
    bounds = bounds_of(sizes, tuple(one.size for one, _ in kept), vectors[0].dtype, vectors[0].device)
    squares = _squared_lengths(vectors).add_(bounds.less)
    value, own = (squares[: len(outer)] * squares[len(outer) : 2 * len(outer)]).sum(0), None
    if kept:
        own = squares[2 * len(outer) :].sum(0)
    if not outer or outer[0][1].origin is None:
        value = value if own is None else value.add_(own)
        return Squares(value, torch.add(bounds.floor, value, alpha=bounds.gamma))
    value, slack = _moved(value, bounds, factors, [around for _, around in outer])
    return Squares(value, slack) if own is None else Squares(value + own, slack.add_(own, alpha=bounds.gamma))


def _without_biases(rows: _Rows, left: Sequence[Tensor]) -> tuple[_Rows, list[bool]]:
    """Rows that are no layer's left factor, and which layers have such a bias: ‖L‖²‖R‖² + ‖L‖² then.

    Branches that are added up have one gradient, and so one tensor for several rows and left factors: each
    layer takes one row with it at most.
    """
    places: dict[int, list[int]] = {}
    for place, (one, around) in enumerate(rows):
        if around.origin is None:
            places.setdefault(id(one.rows(0, one.count)), []).append(place)
    taken = [places[id(factor)].pop() if places.get(id(factor)) else None for factor in left]
    return [one for place, one in enumerate(rows) if place not in taken], [one is not None for one in taken]


def _difference(one: Rows, around: Around) -> Tensor:
    rows = one.rows(0, one.count)
    return rows if around.origin is None else rows - around.origin.reshape(-1)


def _squared_lengths(vectors: Sequence[Tensor]) -> Tensor:
    """One row (float64) for each, of at most BLOCK numbers a record."""
    lengths = torch.empty(len(vectors), len(vectors[0]), dtype=vectors[0].dtype, device=vectors[0].device)
    for vector, out in zip(vectors, lengths.unbind(0), strict=True):
        torch.linalg.vector_norm(vector, dim=1, out=out)
    return lengths.double().square_()


class RoundingBounds(NamedTuple):
    """γ of all; what underflow may have taken from each squared length (and 1 for a bias); a floor."""

    gamma: float
    less: Tensor
    floor: Tensor


@functools.lru_cache(maxsize=256)
def bounds_of(
    outer: tuple[tuple[int, int, bool], ...],
    rows: tuple[int, ...],
    dtype: torch.dtype,
    device: torch.device,
) -> RoundingBounds:
    """(‖L‖² + a)(‖R‖² + b) is the bound ‖L‖²‖R‖² + a‖R‖² + b‖L‖² + ab of `Outer.own_squares`."""
    left, right = [underflow(p, dtype) for p, _, _ in outer], [underflow(q, dtype) + b for _, q, b in outer]
    roundings = [BLOCK, *(BLOCK + chain(p) + chain(max(p, q)) + 1 for p, q, _ in outer)]
    numbers = sum(rows) + sum(p * q + p * bias for p, q, bias in outer)
    less = torch.tensor([*left, *right, *[0.0] * len(rows)], dtype=torch.float64, device=device)
    floor = torch.tensor(tiny(numbers, dtype), dtype=torch.float64, device=device)
    return RoundingBounds(growth(max(roundings), dtype), less[:, None], floor)


def _moved(
    own: Tensor, bounds: RoundingBounds, factors: Sequence[tuple[Tensor, Tensor]], around: Sequence[Around]
) -> Squares:
    """Σ_j ‖G_ij − O_j‖² = Σ_j ‖G_ij‖² − 2⟨G_ij, O_j⟩ + ‖O_j‖², and what the difference can lose."""
    dots = [
        torch.linalg.vecdot(right @ one.origin.reshape(left.shape[1], right.shape[1]).T, left)
        for (left, right), one in zip(factors, around, strict=True)
        if one.origin is not None
    ]
    squared = sum(one.length**2 for one in around)
    inner = torch.stack(dots).double().sum(0)
    slack = torch.add(bounds.floor, own, alpha=bounds.gamma)
    slack.add_((own + slack).sqrt_(), alpha=2 * bounds.gamma * math.sqrt(squared))
    return Squares(torch.sub(own, inner, alpha=2).add_(squared), slack.add_(bounds.gamma * squared))
