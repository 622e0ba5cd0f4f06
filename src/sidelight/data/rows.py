"""The opaque holder of private records, and its public sibling.

Every row of a `PrivateRows` has norm at most `max_norm`: it clips, and never raises on a value, because an
exception is an output too. A record that cannot be used (a non-finite entry, a target that the loss is not
defined for, a row of zeros) becomes a *null record*: x = 0, y = 0, dropped by every oracle. How many there
are is private: only the health check counts them, with noise (`methods.health_check`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import numpy as np
import scipy.sparse as sp
from numpy.typing import ArrayLike, NDArray

from sidelight.arrays import Array, Floats, Mask, Matrix, TableLike, is_sparse, squared_lengths
from sidelight.data.values import number_of
from sidelight.errors import InputError, PrivacyConditionError, positive
from sidelight.privacy.events import Relation
from sidelight.privacy.noise import Noise
from sidelight.privacy.release import BoundedSum

if TYPE_CHECKING:
    from scipy.sparse import csr_array


BLOCK = 2**18  # numbers in a block of rows: 2 MB as float64, which stays in cache between two passes


class Contents(NamedTuple):
    """What an oracle sees. `norms` are never below the true norms; `null` marks null records."""

    X: Matrix
    y: Floats
    norms: Floats
    null: Mask


class PrivateRows:
    """Bounded private records.

    Args:
        X: (n, p), a float array or a CSR matrix; float32 stays float32. It is not copied when nothing has to
            be clipped, so do not write to it afterwards.
        y: (n,) targets: ±1, a real number, or a class index.
        max_norm: bound on the ℓ2 norm of a row. Longer rows are scaled down to it.
        admits: says which targets the loss is defined for (`loss.admits`); records with another are null.
        misfits: (n, columns) values that the table's description does not cover, for the health check.
    """

    __slots__ = ("_contents", "_tally", "kept", "max_norm", "n", "p")
    n: int
    p: int
    max_norm: float
    kept: dict[str, tuple[object, Any]]  # what questions about these rows remember, by number
    unit: str = "record"  # of privacy: what one of the n is
    partitioned: bool = False  # whether they lie in blocks, and sums over all are all that can be asked

    def __init__(
        self,
        X: TableLike,
        y: ArrayLike,
        *,
        max_norm: float,
        admits: Callable[[Array], Mask] | None = None,
        misfits: Mask | None = None,
        tallied: Floats | None = None,
    ) -> None:
        positive("max_norm", max_norm)
        matrix, targets = as_matrix(X), as_targets(y)
        self.n, self.p = matrix.shape
        self.max_norm = float(max_norm)
        if len(targets) != self.n:
            raise InputError("y must have one target for each row of X")  # how many may be private
        null = ~np.isfinite(targets)
        if admits is not None:
            with np.errstate(all="ignore"):
                null |= ~admits(targets)
        matrix, norms = shrink_rows(matrix, self.max_norm, zero=null)
        null |= norms <= _NULL
        targets = np.where(null, 0.0, targets)
        self._contents = Contents(_read_only_rows(matrix), _read_only(targets), norms, null)
        self._tally = tally(null, misfits)
        if tallied is not None:  # the misfits of all records, by column
            self._tally = np.append(self._tally, tallied)
        self.kept = {}

    def compute(
        self, fn: Callable[[Matrix, Floats], Floats], *, sensitivity: float, relation: Relation
    ) -> BoundedSum:
        """fn(X, y) for a whole algorithm with a proof of its own (output perturbation, RSGD-AR).

        The caller vouches for the sensitivity of fn over rows of norm at most `max_norm`. Null records are in
        X and y as x = 0, y = 0: their gradient is zero.
        """
        with np.errstate(all="ignore"):  # a warning about a private value would be an output
            value = fn(self._contents.X, self._contents.y)
        return BoundedSum(value, sensitivity=sensitivity, relation=relation)

    def summed(self, question: Callable[[PrivateRows], BoundedSum]) -> BoundedSum:
        """The question's sum over all records: it is asked of these rows, or of every block of them."""
        return question(self)

    def mapped(self, matrix: Array, *, max_norm: float) -> PrivateRows:
        """The rows x → matrix·x (a public linear map), then clipped to `max_norm`."""
        return PrivateRows(map_rows(self._contents.X, matrix), self._contents.y, max_norm=max_norm)

    def joined(self, public: PublicRows) -> PrivateRows:
        """These records and the public ones, all treated as private from here on."""
        return PrivateRows(*joined_rows(self._contents, public), max_norm=self.max_norm)

    def bind(self, noise: Noise) -> None:
        """Let a repeatable source depend on these records, so that no other records share its noise."""
        X, y = self._contents.X, self._contents.y
        parts = (X.data, X.indices, X.indptr) if is_sparse(X) else (X,)
        noise.bind("rows", self.n, self.p, *parts, y)

    def __len__(self) -> int:
        return self.n

    def __repr__(self) -> str:
        return f"PrivateRows(n={self.n}, p={self.p})"

    def __reduce__(self) -> NoReturn:
        raise TypeError("PrivateRows holds private records and is not pickled")


def contents(rows: PrivateRows) -> Contents:
    """The records themselves. For oracles, which answer with a BoundedSum; nobody else has a use for it."""
    if rows.unit != "record":
        raise PrivacyConditionError("this method bounds the influence of one row, but a person has several")
    return rows._contents


def joined_rows(held: Contents, public: PublicRows) -> tuple[Matrix, Floats]:
    """Private rows, and public ones below them."""
    return stacked(held.X, public.X), np.concatenate([held.y, public.y])


@dataclass(frozen=True, eq=False)
class PublicRows:
    """Public records, bounded like the private ones. Bad values are an error here: nothing is secret.

    `unlabeled` are features of further public records, without a target: they count in second moments.
    `given` are (outputs, p) weights of a public model that was fitted elsewhere, if there is one.
    """

    X: Matrix
    y: Floats
    unlabeled: Matrix | None = None
    given: Floats | None = None

    def __post_init__(self) -> None:
        if self.unlabeled is not None:
            more = as_matrix(self.unlabeled)
            check_finite(more)
            object.__setattr__(self, "unlabeled", _read_only_rows(more))
        matrix, targets = as_matrix(self.X), as_targets(self.y)
        if matrix.shape[0] != len(targets):
            raise InputError(f"X_public has {matrix.shape[0]} rows, but y_public has {len(targets)} targets")
        check_finite(matrix, targets)
        object.__setattr__(self, "X", _read_only_rows(matrix))
        object.__setattr__(self, "y", _read_only(targets))

    @classmethod
    def empty(cls, p: int) -> PublicRows:
        """No public records, p features."""
        return cls(np.zeros((0, p)), np.zeros(0))

    @property
    def n(self) -> int:
        """Of those with a target."""
        return int(self.X.shape[0])

    @property
    def p(self) -> int:
        return int(self.X.shape[1])

    @cached_property
    def every(self) -> Matrix:
        """The features of all public records, with a target or without."""
        return self.X if self.unlabeled is None else stacked(self.X, self.unlabeled)

    def __len__(self) -> int:
        return self.n


def stacked(first: Matrix, second: Matrix) -> Matrix:
    """The rows of both."""
    if sp.issparse(first) or sp.issparse(second):
        return sp.vstack([sp.csr_array(first), sp.csr_array(second)], format="csr")
    return np.vstack([first, second.astype(first.dtype, copy=False)])


def check_finite(X: Matrix, y: Array | None = None) -> None:
    """Raise InputError for a missing or infinite value in public rows, or in their targets."""
    if not np.isfinite(_values(X)).all() or (y is not None and not np.isfinite(y).all()):
        raise InputError("public rows must be finite; remove or fill the missing values")


def as_matrix(X: TableLike) -> Matrix:
    """X as a C-contiguous float32/float64 array, or as CSR without duplicates; copied only if it must be."""
    if sp.issparse(X):
        sparse: csr_array = X
        csr = sparse.tocsr()
        # A new object on the same arrays: what the old one remembers about itself may be stale.
        csr = sp.csr_array((csr.data, csr.indices, csr.indptr), shape=csr.shape)
        if csr.dtype not in (np.float32, np.float64):
            with np.errstate(all="ignore"):  # a long double beyond float64 becomes infinite
                csr = csr.astype(np.float64)
        if not csr.has_canonical_format:  # the norm of a row with duplicates is not the norm of its entries
            csr = csr.copy()
            csr.sum_duplicates()
        return csr
    array = np.asarray(X)
    if array.ndim != 2:
        raise InputError(f"X must be a matrix with one record per row; it has {array.ndim} dimension(s)")
    if array.dtype not in (np.float32, np.float64):
        array = _to_float(array, "X")
    return np.ascontiguousarray(array)


def as_targets(y: ArrayLike) -> Floats:
    """y as a vector of float64."""
    array = np.asarray(y)
    if array.ndim != 1:
        raise InputError(f"y must be a vector, one target per record; it has {array.ndim} dimension(s)")
    return _to_float(array, "y")


def blocks_of(n: int, p: int) -> Iterator[slice]:
    """Slices of rows that fit in cache together."""
    rows = max(1, BLOCK // max(1, p))
    for start in range(0, n, rows):
        yield slice(start, min(n, start + rows))


def row_norms(X: Matrix) -> Floats:
    """‖x_i‖, rounded upwards: never below the true norm, finite or not. A zero row has about 1e-154."""
    if is_sparse(X):
        # Row sums of a copy that shares the structure: duplicates were summed before.
        squares = sp.csr_array((np.square(X.data, dtype=np.float64), X.indices, X.indptr), shape=X.shape)
        total = np.asarray(squares.sum(axis=1), dtype=np.float64).ravel()
    else:
        total = np.empty(X.shape[0])
        for block in blocks_of(*X.shape):
            total[block] = squared_lengths(X[block])
    np.sqrt(total + np.finfo(np.float64).tiny, out=total)
    total *= 1 + (X.shape[1] + 8) * _EPS
    return total


def shrink_rows(
    X: Matrix, max_norm: float, *, zero: Mask | None = None, normalize: bool = False
) -> tuple[Matrix, Floats]:
    """X with every row scaled to norm at most `max_norm` (or to it, if `normalize`), and the norms.

    Rows with a non-finite entry, and those that `zero` marks, become 0. X itself is returned if no row has
    to change, a copy otherwise. Scaled rows end a few ulp below the bound, so that rounding cannot lift them
    above it.
    """
    with np.errstate(all="ignore"):
        norms = row_norms(X)
        bad = np.zeros(X.shape[0], dtype=bool) if zero is None else zero.copy()
        huge = np.flatnonzero(~np.isfinite(norms))
        if huge.size:
            X = X.copy()
            bad[huge] |= _rescale_or_report(X, huge)
            norms = row_norms(X)
        scale = max_norm * (1 - 8 * np.finfo(X.dtype).eps - 2 * (X.shape[1] + 8) * _EPS) / norms
        touched = (norms > _NULL) & (normalize | (norms > max_norm))
        if not (touched.any() or bad.any()):
            return X, norms
        factors = np.where(bad, 0.0, np.where(touched, scale, 1.0))
        X = _scaled(X, factors, bad)
        return X, row_norms(X)


def map_rows(X: Matrix, matrix: Array) -> Array:
    """X·matrixᵀ, dense, in the float type of X, block by block."""
    matrix = np.asarray(matrix, dtype=np.float64)
    if matrix.ndim != 2 or matrix.shape[1] != X.shape[1]:
        raise InputError(f"the map must have {X.shape[1]} columns, one per feature, not shape {matrix.shape}")
    out = np.empty((X.shape[0], matrix.shape[0]), dtype=X.dtype)
    for block in blocks_of(*X.shape):
        out[block] = X[block] @ matrix.T
    return out


_EPS = float(np.finfo(np.float64).eps)
_NULL = 4e-154  # what row_norms gives for a row of zeros, and a little more


def _rescale_or_report(X: Matrix, rows: NDArray[np.intp]) -> Mask:
    """Which of these rows are non-finite. Those that are not, but whose squares overflow, are scaled down."""
    if is_sparse(X):
        part = X[rows]
        owner = np.repeat(np.arange(rows.size), np.diff(part.indptr))
        bad = np.zeros(rows.size, dtype=bool)
        bad[owner[~np.isfinite(part.data)]] = True
        largest = np.zeros(rows.size)
        np.maximum.at(largest, owner, np.abs(part.data))
        entries = np.concatenate([np.arange(X.indptr[row], X.indptr[row + 1]) for row in rows])
        X.data[entries] = part.data / np.where(bad, 1.0, largest)[owner]
        return bad
    part = X[rows]
    bad = np.asarray(~np.isfinite(part).all(axis=1))
    X[rows] = part / np.where(bad, 1.0, np.abs(part).max(axis=1))[:, None]
    return bad


def _scaled(X: Matrix, factors: Floats, bad: Mask) -> Matrix:
    """A copy of X with row i times factors[i]; 0 where it is bad."""
    if is_sparse(X):
        spread = np.repeat(factors, np.diff(X.indptr))
        data = (X.data * spread).astype(X.dtype, copy=False)
        data[np.repeat(bad, np.diff(X.indptr))] = 0
        return sp.csr_array((data, X.indices, X.indptr), shape=X.shape)
    out = np.empty_like(X)
    for block in blocks_of(*X.shape):
        np.multiply(X[block], factors[block, None], out=out[block], casting="same_kind")
    out[bad] = 0
    return out


def _values(X: Matrix) -> Array:
    values: Array = X.data if is_sparse(X) else X
    return values


def _to_float(array: Array, name: str) -> Floats:
    if array.dtype == object:  # value by value: none may raise, or change what another becomes
        values = (number_of(one) for one in array.ravel().tolist())
        return np.fromiter(values, dtype=np.float64, count=array.size).reshape(array.shape)
    if array.dtype.kind not in "biuf":
        raise InputError(f"{name} must be numeric, but its type is {array.dtype}; encode other columns first")
    with np.errstate(all="ignore"):
        return array.astype(np.float64, copy=False)


def _read_only(array: Array) -> Array:
    """A view that nobody can write through."""
    view = array.view()
    view.flags.writeable = False
    return view


def _read_only_rows(X: Matrix) -> Matrix:
    if not is_sparse(X):
        return _read_only(X)
    return sp.csr_array((_read_only(X.data), X.indices, X.indptr), shape=X.shape)


# ---------------------------------------------------------------------------------------------------
# records that nobody has read yet


class UnreadRows(PrivateRows):
    """n, p and the bound on norms, which are public, and no records.

    A method plans with these, before the charge. So a plan that looks at a private record is not a promise
    that somebody has to keep: it fails.
    """

    __slots__ = ("partitioned", "unit")

    def __init__(
        self, n: int, p: int, *, max_norm: float, unit: str = "record", partitioned: bool = False
    ) -> None:
        self.n, self.p, self.max_norm, self.unit = n, p, float(max_norm), unit
        self.partitioned = partitioned

    @property
    def _contents(self) -> NoReturn:  # type: ignore[override]
        raise PrivacyConditionError(
            "a plan asked for private records, which are read only after they were charged; "
            "plan with n, p, bounds and public records"
        )

    _tally = _contents


# ---------------------------------------------------------------------------------------------------
# how many records could not be used, and where values did not fit: private counts for the health check


MISFITS_IN_FULL = 4  # of a record; of one that has more, each counts less
_FRACTION = 2.0**20  # contributions are multiples of 2⁻²⁰: sums of up to 2³³ of them are exact


def tally(
    null: Mask, misfits: Mask | None = None, groups: tuple[NDArray[np.intp], NDArray[np.intp]] | None = None
) -> Floats:
    """(1 + columns,): null records, then misfits by column. `groups`: order and offsets of persons' rows.

    Guarantee: a record adds 0 or 1 to the first entry, and to the others a vector of length at most
    √MISFITS_IN_FULL: min(1, √(MISFITS_IN_FULL/m)) for each of its m misfits. A person adds the mean of
    their rows. No entry is negative, and sums are exact, so that no record changes how others are rounded.
    """
    flags = np.zeros((len(null), 0), dtype=bool) if misfits is None else misfits
    total = np.zeros(1 + flags.shape[1])
    if groups is None:
        for block in blocks_of(len(null), len(total)):
            total += _marks(null[block], flags[block]).sum(axis=0)
        return total
    order, offsets = groups
    sizes = np.diff(offsets)
    sums = np.zeros((len(sizes), len(total)))
    some = np.flatnonzero(sizes)
    if len(some):
        sums[some] = np.add.reduceat(_marks(null[order], flags[order]), offsets[some], axis=0)
    means = sums / np.maximum(sizes, 1)[:, None]
    return np.asarray((np.floor(means * _FRACTION) / _FRACTION).sum(axis=0))


def _marks(null: Mask, flags: Mask) -> Floats:
    """(rows, 1 + columns): what each row adds to a tally."""
    count = np.maximum(flags.sum(axis=1), MISFITS_IN_FULL)
    weight = np.floor(np.sqrt(MISFITS_IN_FULL / count) * _FRACTION) / _FRACTION
    return np.column_stack([null.astype(np.float64), weight[:, None] * flags])


def tally_of(rows: PrivateRows) -> Floats:
    """The tally of these records: private. For oracles, which answer with a BoundedSum."""
    return rows._tally
