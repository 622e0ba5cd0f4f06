"""Weight norm (torch.nn.utils.parametrizations.weight_norm) of a linear layer, in closed form.

Row r of the weight is g_r·u_r, with u_r = v_r/‖v_r‖. From the gradient G_r of that row follow those of the
length, ⟨G_r, u_r⟩, and of the direction, (g_r/‖v_r‖)(G_r − ⟨G_r, u_r⟩u_r). For G = L ⊗ R both need
⟨R, u_r⟩ alone, one product for all records.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import _WeightNorm
from torch.nn.utils.parametrize import ParametrizationList

from sidelight.oracles.network.pieces import (
    BLOCK,
    ClipCenter,
    Outer,
    Piece,
    Rows,
    Squares,
    block_dots,
    block_squares,
    chain,
    chunks,
    growth,
    product,
    tiny,
    underflow,
)


def normed_parts(piece: Piece, module: nn.Module) -> list[tuple[nn.Parameter, Piece]]:
    """The pieces of length and direction, from that of a weight; none where there is no closed form."""
    if type(piece) is not Outer or piece.steps > 1 or not isinstance(module, ParametrizationList):
        return []
    if len(module) != 1 or type(module[0]) is not _WeightNorm or module[0].dim not in (0, -2):
        return []
    length, direction = (module.get_parameter(name) for name in ("original0", "original1"))
    long: Tensor = torch.linalg.vector_norm(direction.detach().double(), dim=1, keepdim=True)
    unit, scale = direction.detach() / long, length.detach() / long
    left, right = piece.vectors
    tangent = TangentOuter(left * scale.to(left)[:, 0], right, unit.to(left))
    parts: list[tuple[nn.Parameter, Piece]] = [
        (length, Rows(left * tangent.along, length.shape)),
        (direction, tangent),
    ]
    return [(parameter, one) for parameter, one in parts if parameter.requires_grad]


class TangentOuter(Piece):
    """G_i = L_i ⊗ R_i less what lies along a unit vector u_r in each row r."""

    def __init__(self, left: Tensor, right: Tensor, unit: Tensor) -> None:
        self.left, self.right, self.unit = left, right, unit
        self.along = product(right, unit.T)  # ⟨R_i, u_r⟩
        self.count, self.shape, self.dtype = left.shape[0], unit.shape, left.dtype

    @property
    def held(self) -> int:
        return 2 * self.shape[0] + self.shape[1]

    def silence(self, records: Tensor) -> None:
        self.left, self.right, self.along = (
            x.masked_fill(records[:, None], 0.0) for x in (self.left, self.right, self.along)
        )

    def rows(self, low: int, high: int) -> Tensor:
        apart = self.right[low:high, None] - self.along[low:high, :, None] * self.unit
        return apart.mul_(self.left[low:high, :, None]).flatten(1)

    def row_error(self, scale: Tensor | None) -> Tensor:
        largest = 1.0 if scale is None else float(scale.abs().max())
        return 2 * self._growth * largest * (self._lengths() + tiny(self.size, self.dtype)).sqrt()

    @property
    def _growth(self) -> float:
        """Of products with unit vectors, here and in the sum, which are of length 1 to a rounding."""
        return 2 * growth(BLOCK + chain(max(self.shape)), self.dtype)

    def _lengths(self) -> Tensor:
        """At least ‖L‖²‖R‖²."""
        left, right = block_squares(self.left), block_squares(self.right)
        return (left + underflow(self.shape[0], self.dtype)) * (right + underflow(self.shape[1], self.dtype))

    def inner(self, direction: Tensor) -> Tensor:
        matrix, parts = direction.reshape(self.shape).to(self.dtype), []
        slopes = (matrix * self.unit).sum(1)
        for low, high in chunks(self.count, self.shape[0]):
            moved = product(self.right[low:high], matrix.T) - self.along[low:high] * slopes
            parts.append(block_dots(moved, self.left[low:high]))
        return torch.cat(parts)

    def add_weighted(self, factors: Tensor, out: Tensor) -> None:
        left, right, unit = (x.to(out.dtype) for x in (self.left, self.right, self.unit))
        total = (left * factors.to(out.dtype)[:, None]).T @ right
        out.view(self.shape).add_(total.sub_((total * unit).sum(1, keepdim=True) * unit))

    def squares(self, around: ClipCenter) -> Squares:
        """Σ_r L_r²(‖R‖² − ⟨R, u_r⟩²), a difference; around an origin or under a scale from the rows."""
        if around.origin is not None or around.scale is not None or self.size <= self.held:
            return super().squares(around)
        whole = self._lengths()
        slack = 2 * self._growth * whole + tiny(self.size, self.dtype)
        return Squares(whole - block_squares(self.left * self.along), slack)
