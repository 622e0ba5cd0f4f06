"""An origin that is a mean gradient of public records, by the factors that it was made of.

The mean gradient of m records for the weight of a layer is O = Σ_j d_j ⊗ a_j, with the slopes d_j of its
outputs and its inputs a_j. The inner product with a record's gradient L ⊗ R is then

    ⟨L ⊗ R, O⟩ = Σ_j ⟨L, d_j⟩⟨R, a_j⟩          m(p + q) multiplications, where LᵀOR takes pq

Around a public batch that is smaller than the layer is wide, this is most of what an origin costs.

What origin is asked about is for the method to say: the mean, the mean shortened, or any other vector, and a
tensor can be changed after it was given away. So nobody is believed: at each use O is compared with
t·Σ_j d_j ⊗ a_j on random vectors (Freivalds 1977), with the t that a few rows have. An origin that is
something else takes the usual way. By how much O and the product can differ by rounding is part of the bound
on the norms.
"""

from __future__ import annotations

import functools
import math
import secrets
from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor

from sidelight.oracles.network.pieces import (
    BLOCK,
    Squares,
    block_dots,
    block_squares,
    chain,
    growth,
    product,
    underflow,
)

__all__ = ["FactoredOrigin", "MeanFactors"]

_PROBES = 8  # random vectors; with so many, what O is off by is 8 times what it seems with probability 10⁻⁶
_MISSED = 8.0
_SAMPLED = 32  # rows at least
_CANCELLED = 32.0  # Σ‖d_j‖‖a_j‖ of the origin's length: with more of it, norms would be rounded up too far
_WHOLE = 32  # kernels may compute the last columns otherwise, and so a record's by its place


class FactoredOrigin(NamedTuple):
    """O = t·Σ_j d_j ⊗ a_j, up to `error` in norm.

    left, right: d (m × p) and a (m × q).
    spread: at least |t|·Σ_j ‖d_j‖‖a_j‖, which rounding errors are in proportion to.
    lost: what underflow can take from an inner product, beside what is in proportion to the record's factors.
    """

    left: Tensor
    right: Tensor
    times: float
    spread: float
    error: float
    lost: float

    def inner(self, left: Tensor, right: Tensor) -> Tensor:
        """⟨L_i ⊗ R_i, O⟩ for each record (float64)."""
        return self.times * block_dots(product(left, self.left.T), product(right, self.right.T))

    def squares(self, own: Squares, length: float, left: Tensor, right: Tensor) -> Squares:
        """‖G_i − O‖² of G_i = L_i ⊗ R_i, given ‖G_i‖² and ‖O‖ (as `pieces.expand`).

        An inner product is off by γ·‖G_i‖·Σ_j‖d_j‖‖a_j‖ and by ‖G_i‖ times the error of O. Underflow in
        ⟨L, d_j⟩ takes up to e·‖R‖‖a_j‖ ≤ e·(‖R‖² + ‖a_j‖²)/2 from it: the first is in the slack of ‖G_i‖²,
        where e·‖R‖² stands as well, the second is `lost`.
        """
        gamma = growth(BLOCK + chain(left.shape[1]) + chain(right.shape[1]), left.dtype)
        value = own.value - 2 * self.inner(left, right) + length**2
        norms = (own.value + own.slack).sqrt()
        slack = 2 * own.slack + 2 * (gamma * self.spread + self.error) * norms
        return Squares(value, slack + (gamma * length**2 + self.lost))


class _Kept(NamedTuple):
    """d, a, and a few rows of the mean itself (float64)."""

    left: Tensor
    right: Tensor
    sample: Tensor


class MeanFactors:
    """The factors of a mean gradient, for those weights where they are less work than the matrix."""

    def __init__(self, layers: Iterable[tuple[Tensor, Tensor, Tensor, Tensor]]) -> None:
        """layers: weights, slopes of their outputs (m × p), their inputs (m × q), and the means (p × q)."""
        self._kept = {
            weight: _Kept(left, right, _sampled(mean))
            for weight, left, right, mean in layers
            if _saved(left, right) > 0
        }

    def origin(self, weight: Tensor, part: Tensor, length: float, rows: int) -> FactoredOrigin | None:
        """An origin's part for this weight, of this length; None where the factors do not give it.

        rows: records in a pass. A public number, as everything here: how the norm of a record is rounded must
        not depend on how many others there are.
        """
        kept = self._kept.get(weight)
        if kept is None or rows * _saved(kept.left, kept.right) <= 2 * _PROBES:
            return None
        if part.dtype is not kept.left.dtype or part.shape != (kept.left.shape[1], kept.right.shape[1]):
            return None  # the model was changed since
        left, right, sample = kept
        times = float((_sampled(part) * sample).sum() / sample.square().sum())
        slopes, inputs = _lengths(left), _lengths(right)
        spread = abs(times) * float(slopes @ inputs)
        error = growth(len(left), part.dtype) * spread
        if not (0 < spread <= _CANCELLED * length and _distance(part, kept, times) <= error):
            return None
        # What underflow in ⟨L, d_j⟩ and ⟨R, a_j⟩ can take from twice the inner product (see `squares`).
        p, q = (underflow(one.shape[1], one.dtype) for one in (left, right))
        lost = p * float(inputs.sum()) ** 2 + q * float(slopes.sum()) ** 2
        lost += 2 * len(left) * p * q + 2 * underflow(len(left), left.dtype)
        return FactoredOrigin(left, right, times, spread, _MISSED * error, (1 + abs(times)) ** 2 * lost)


def _saved(left: Tensor, right: Tensor) -> float:
    """Which part of the work for one record the factors save; nothing where they cannot be used."""
    (rows, p), q = left.shape, right.shape[1]
    return 1 - rows * (p + q) / (p * q) if rows and rows % _WHOLE == 0 else 0.0


def _sampled(matrix: Tensor) -> Tensor:
    """Some rows, which tell by what a matrix was multiplied, to a rounding of each number (float64)."""
    return matrix[:: max(1, len(matrix) // _SAMPLED)].double()


def _distance(part: Tensor, kept: _Kept, times: float) -> float:
    """How far t·Σ_j d_j ⊗ a_j seems to be from an origin: E‖zᵀM‖² = ‖M‖² for a z of independent normals."""
    probes = _probes(len(part), part.dtype)
    made = (probes @ kept.left.T) @ kept.right
    return float((probes @ part).double().sub_(made, alpha=times).norm()) / math.sqrt(_PROBES)


@functools.lru_cache(maxsize=64)
def _probes(length: int, dtype: torch.dtype) -> Tensor:
    """Random vectors that nobody outside of this process knows, or an origin could be made to pass. They have
    a generator of their own: what is drawn elsewhere must not depend on this."""
    source = torch.Generator("cpu").manual_seed(secrets.randbits(63))
    return torch.randn(_PROBES, length, generator=source, dtype=dtype, device="cpu")


def _lengths(rows: Tensor) -> Tensor:
    """At least ‖x_j‖ of each row (float64)."""
    squares = block_squares(rows) + underflow(rows.shape[1], rows.dtype)
    return squares.sqrt_() * (1 + growth(BLOCK, rows.dtype))
