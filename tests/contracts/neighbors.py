"""How far one record can move a private sum: the checker behind every sensitivity claim.

`make_sum` takes a list of records and returns a BoundedSum, or a plain array; `dataset` is such a list, and
`candidates` are records that may join it or take a place in it. Pick candidates that are as bad as an
adversary's: long, opposed to the rest, non-finite, wrongly labeled.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from sidelight.privacy.release import BoundedSum

Records = list[Any]


def value_of(total: Any) -> np.ndarray:
    """The private value; tests may look."""
    return np.asarray(total._value if isinstance(total, BoundedSum) else total, dtype=np.float64)


def neighbors(dataset: Sequence[Any], candidates: Sequence[Any], relation: str) -> Iterator[Records]:
    """Every neighbor of the dataset that removes a record, or that uses a candidate."""
    records = list(dataset)
    for i in range(len(records)):
        if relation == "add-or-remove-one":
            yield records[:i] + records[i + 1 :]
        else:
            yield from ([*records[:i], new, *records[i + 1 :]] for new in candidates)
    if relation == "add-or-remove-one":
        yield from ([*records, new] for new in candidates)


def largest_move(
    make_sum: Callable[[Records], Any],
    dataset: Sequence[Any],
    candidates: Sequence[Any],
    *,
    relation: str = "add-or-remove-one",
) -> float:
    """The largest ℓ2 distance from the sum of the dataset to a neighbor's; NaN if one is not finite."""
    start = value_of(make_sum(list(dataset)))
    moves = [
        np.linalg.norm(value_of(make_sum(other)) - start)
        for other in neighbors(dataset, candidates, relation)
    ]
    return float(np.max(moves))  # np.max keeps a NaN


def assert_bounded(
    make_sum: Callable[[Records], Any],
    dataset: Sequence[Any],
    candidates: Sequence[Any],
    *,
    relation: str,
    sensitivity: float | None = None,
) -> float:
    """One record moves the sum at most by its declared sensitivity (rounding aside). Returns the move."""
    declared = make_sum(list(dataset)).sensitivity if sensitivity is None else sensitivity
    moved = largest_move(make_sum, dataset, candidates, relation=relation)
    assert moved <= declared * (1 + 1e-9), f"one record moved the sum by {moved:.6g}, not {declared:.6g}"
    return moved


def rows_with_score(score: float, *, n: int = 3000, p: int = 1201) -> tuple[np.ndarray, np.ndarray]:
    """(w, X): a unit vector, and rows of norm about √(score² + ¼) with X w = score but for rounding.

    BLAS rounds the last rows of a block differently, so their last bits move with the number of rows.
    """
    rng = np.random.default_rng(0)
    w = rng.normal(size=p)
    w /= np.linalg.norm(w)
    X = rng.normal(size=(n, p)) / (2 * np.sqrt(p))
    for _ in range(4):
        X += (score - X @ w)[:, None] * w
    return w, X
