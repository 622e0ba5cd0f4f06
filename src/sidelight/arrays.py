"""Names for the types that every room shares: arrays, tables, JSON objects. Imports nothing of ours.

`Any` stands here once instead of in every signature: NumPy's stubs allow no arithmetic on an array whose
number type is unknown, and a JSON object holds values of every type.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, Self, TypeAlias, TypeGuard, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

if TYPE_CHECKING:
    import pandas as pd
    from scipy.sparse import csr_array


Array = NDArray[Any]
Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]
Json = dict[str, Any]
Matrix: TypeAlias = "Array | csr_array"  # rows of features
TableLike: TypeAlias = "ArrayLike | pd.DataFrame | csr_array"  # what a user passes as X


class Dtype(Protocol):
    """The type of an array's numbers."""

    @property
    def itemsize(self) -> int: ...


class Truths(Protocol):
    """What a comparison gives."""

    def all(self) -> object: ...


class Vector(Protocol):
    """A NumPy array or a torch tensor: what a part may do with either, without importing torch.

    Both operands of an operation come from the same problem, and so are of the same kind.
    """

    @property
    def dtype(self) -> Dtype: ...

    @property
    def ndim(self) -> int: ...

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def T(self) -> Self: ...  # noqa: N802

    def __len__(self) -> int: ...

    def __float__(self) -> float:
        """The value of an array of one number."""

    def __array__(self) -> Array: ...

    def __abs__(self) -> Self: ...

    def __lt__(self, other: float, /) -> Truths: ...

    def __add__(self, other: Self | float, /) -> Self: ...

    def __radd__(self, other: float, /) -> Self: ...

    def __sub__(self, other: Self | float, /) -> Self: ...

    def __mul__(self, other: Self | float, /) -> Self: ...

    def __rmul__(self, other: float, /) -> Self: ...

    def __truediv__(self, other: Self | float, /) -> Self: ...

    def __rtruediv__(self, other: float, /) -> Self: ...

    def __pow__(self, other: float, /) -> Self: ...

    def __matmul__(self, other: Self, /) -> Self: ...

    def reshape(self, shape: tuple[int, ...], /) -> Self: ...

    def clip(self, min: float) -> Self: ...

    def sum(self) -> Self: ...

    def max(self) -> Self: ...

    def var(self) -> Self: ...

    def mean(self, axis: int, /) -> Self: ...


V = TypeVar("V", bound=Vector)


def floats(vector: Vector) -> Floats:
    """An array in float64, not copied if it is one."""
    return np.asarray(vector, dtype=np.float64)


def length(vector: Vector) -> float:
    """‖v‖, in the precision of the vector."""
    return float((vector**2).sum() ** 0.5)


_ADDED = 4_096  # numbers; above 8,192, where NumPy divides a sum depends on the place of the row


def squared_lengths(rows: Array) -> Floats:
    """‖x_i‖² of the rows of an array, in float64; to the last bit, no row around x_i has a say."""
    total = np.zeros(len(rows))
    for start in range(0, rows.shape[1], _ADDED):
        part = rows[:, start : start + _ADDED].astype(np.float64, copy=False)
        total += np.einsum("ij,ij->i", part, part)
    return total


def is_sparse(matrix: Matrix) -> TypeGuard[csr_array]:
    """Whether it is a sparse matrix of SciPy, not an array."""
    return hasattr(matrix, "toarray")


def dense(matrix: Matrix) -> Floats:
    """The matrix written out, in float64; an array that is so already is not copied."""
    return np.asarray(matrix.toarray() if is_sparse(matrix) else matrix, dtype=np.float64)
