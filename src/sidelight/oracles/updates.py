"""The private side of federated learning: what clients sent becomes one bounded sum.

A client k that was sampled contributes clip_C(M(u_k − o)), where u_k is its update (a gradient, or the
parameters it was given minus those it came back with). Clipping is done here, by the server: a client that
clips itself, or says that it did, is not believed.

Everything else that may come in a round (nothing, too late, twice, from somebody who was not asked, of
another shape or type, NaN, infinity, bytes that are no array) contributes exactly zero, after the origin is
subtracted, and leaves no trace: no error, no warning, no count.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from sidelight.arrays import Array, Floats, Vector, floats
from sidelight.clipping import Clip, Metric, checked_origin
from sidelight.data.rows import row_norms
from sidelight.errors import InputError, guarded
from sidelight.privacy.events import Relation, check_relation
from sidelight.privacy.release import BoundedSum

Client: TypeAlias = Hashable  # the name of a client, which is the unit of privacy
_UNIT = 2.0**-53


@dataclass(frozen=True, eq=False)
class UpdateBlock:
    """The flat updates of several clients, one per row; a simulation answers in these."""

    clients: Sequence[Client]
    updates: Array


# A client and its flat update; or a function that gives it, which is called where no error gets out.
Answer: TypeAlias = "tuple[Client, Array | Callable[[], Array]] | UpdateBlock"


@dataclass(frozen=True)
class Form:
    """The arrays that a model consists of, by shape and type: public, and what every update must look like.

    The types are float64, float32 or float16; whole numbers cannot be trained with noise.
    """

    shapes: tuple[tuple[int, ...], ...]
    types: tuple[str, ...]

    @classmethod
    def of(cls, arrays: Sequence[Array]) -> Form:
        """Of the parameters that training begins with."""
        if not arrays:
            raise InputError("the start has no arrays; pass the parameters that training begins with")
        for place, array in enumerate(arrays):
            if not isinstance(array, np.ndarray) or array.dtype.name not in ("float64", "float32", "float16"):
                kind = getattr(getattr(array, "dtype", None), "name", type(array).__name__)
                raise InputError(
                    f"array {place} of the start is of {kind}. Parameters are arrays of float64, float32 or "
                    "float16; leave counters (as those of batch norm) out of what is exchanged"
                )
            if not np.isfinite(array).all():
                raise InputError(f"array {place} of the start contains NaN or inf; pass finite values")
        return cls(tuple(array.shape for array in arrays), tuple(array.dtype.name for array in arrays))

    @property
    def sizes(self) -> list[int]:
        return [int(np.prod(shape, dtype=np.int64)) for shape in self.shapes]

    @property
    def dimension(self) -> int:
        return sum(self.sizes)

    def flat(self, arrays: Sequence[Array]) -> Floats:
        """One vector of arrays that have exactly this form; InputError for others."""
        given = tuple(arrays)
        fits = all(type(one) is np.ndarray for one in given)
        if not fits or tuple(one.shape for one in given) != self.shapes:
            raise InputError("an update has the shapes of the parameters, array by array")
        if tuple(one.dtype.name for one in given) != self.types:
            raise InputError("an update has the types of the parameters, array by array")
        return np.concatenate([one.reshape(-1).astype(np.float64) for one in given])

    def arrays(self, vector: Vector) -> list[Array]:
        """The vector as arrays of this form."""
        pieces = np.split(floats(vector), np.cumsum(self.sizes)[:-1])
        return [
            piece.reshape(shape).astype(kind)
            for piece, shape, kind in zip(pieces, self.shapes, self.types, strict=True)
        ]


class UpdateOracle:
    """Answers with the bounded sum of a round.

    Guarantee: one client more or less, with any updates, moves `clipped_sum` by at most clip.bound, one
    replaced by at most twice that. A client's contribution depends on its own first answer, on public and on
    released values alone.
    """

    def __init__(self, dimension: int) -> None:
        self.dimension = dimension

    def clipped_sum(
        self,
        answers: Iterable[Answer],
        clients: Collection[Client],
        *,
        clip: Clip,
        origin: Vector | None = None,
        metric: Metric = None,
        relation: Relation,
    ) -> BoundedSum:
        """Σ_k f_k·M(u_k − o) over the first answer of each of `clients`, f_k = clip.factors(‖M(u_k − o)‖)."""
        center = np.zeros(self.dimension) if origin is None else checked_origin(origin, self.dimension)
        total = np.zeros_like(center if metric is None else floats(metric.apply(center)))
        with np.errstate(all="ignore"):  # a warning would be an output as well
            for updates in first_answers(answers, clients, self.dimension):
                apart = updates - center
                if metric is not None:
                    apart = np.stack([floats(metric.apply(row)) for row in apart])
                norms = row_norms(apart)
                factors = np.asarray(clip.factors(norms))
                drop = ~np.isfinite(norms)
                factors[drop], apart[drop] = 0, 0  # 0·∞ is not 0
                total += factors @ apart
        removed = check_relation(relation) == "add-or-remove-one"
        return BoundedSum(total, sensitivity=clip.bound * (1 if removed else 2), relation=relation)


def first_answers(answers: Iterable[Answer], clients: Collection[Client], dimension: int) -> Iterator[Floats]:
    """The usable first answers of these clients, as rows of matrices, of which few are unpacked at a time.

    Single answers are in the order of `clients`: that in which they arrive is of no effect.
    """
    waiting = set(clients)
    singles: dict[Client, object] = {}
    for answer in answers:
        if isinstance(answer, UpdateBlock):
            rows = [row for row, client in enumerate(answer.clients) if _first(client, waiting)]
            if (block := _block(answer, dimension)) is not None:
                yield block[rows]
        elif isinstance(answer, tuple) and len(answer) == 2 and _first(answer[0], waiting):
            singles[answer[0]] = answer[1]
    for client in clients:
        if client in singles and (row := _usable(singles.pop(client), dimension)) is not None:
            yield row


def _first(client: Client, waiting: set[Client]) -> bool:
    """Whether this client was asked and has not answered yet; from now on it has."""
    try:
        waiting.remove(client)
    except (KeyError, TypeError):  # TypeError: a name that cannot be one
        return False
    return True


def _block(given: UpdateBlock, dimension: int) -> Floats | None:
    """Its updates, if they are numbers, one row per client: a row of another width may be several."""
    updates: Floats | None = guarded(lambda one: np.asarray(one, dtype=np.float64), given.updates, None)
    return updates if updates is not None and updates.shape == (len(given.clients), dimension) else None


def _usable(given: object, dimension: int) -> Floats | None:
    """An update as a matrix of one row; None for whatever is not an update of this size."""
    vector = guarded(lambda make: make(), given, None) if callable(given) else given
    if type(vector) is not np.ndarray or vector.dtype not in (np.float64, np.float32):
        return None
    return None if vector.shape != (dimension,) else vector.astype(np.float64).reshape(1, -1)
