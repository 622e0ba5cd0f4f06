"""How many records go through a model at a time.

Every pass of a call has the same number of rows, so that a record does not see how many others there are: the
last one is filled up with rows that count for nothing. Long passes leave more to fill up, short ones take the
work of a pass, whatever is in it, more often. The size is chosen for the least work on average, from public
numbers: the expected batch size, and what the model keeps for a row that is not private.
"""

from __future__ import annotations

import functools
import math

_MAX_ROWS = 4096  # rows of a pass
_MAX_WHOLE_NUMBERS, _MAX_KEPT_NUMBERS = (
    2.0**23,
    2.0**25,
)  # numbers kept, from which a pass has half a batch at most, and at most
_DEFAULT_ROW_NUMBERS = 2.0**12  # numbers that a model keeps for a row, where that is not known


def work_of_a_pass(dimension: int, operations: int, device: str) -> float:
    """What a pass takes however many rows it has, in numbers that a model keeps until its gradient."""
    return (2.0**19 + dimension / 4 + 2.0**10 * operations) * (1 if device == "cpu" else 32)


@functools.lru_cache(maxsize=1024)
def records_a_pass(
    expected: float, *, each: int = 1, kept: float = _DEFAULT_ROW_NUMBERS, fixed: float = 2.0**19
) -> int:
    """Records in a pass, for `expected` of them on average, of `each` rows, so that a call takes least.

    Passes have a multiple of 4 rows, beyond 32 of 32: kernels compute the rows left over at the end in
    another order, so that a record's last bits would depend on its place, and so on the others.
    """

    def work(size: int) -> float:
        return _passes(expected, size) * (size * each * kept + fixed)

    def fits(size: int) -> bool:
        held = size * each * kept
        return held <= _MAX_WHOLE_NUMBERS or (held <= _MAX_KEPT_NUMBERS and 2 * size <= expected)

    sizes = _sizes(expected, each)
    return min([size for size in sizes if fits(size)] or [min(sizes)], key=work)


def _sizes(expected: float, each: int) -> list[int]:
    """From one pass that mostly takes the whole batch to the shortest."""
    whole = math.ceil(expected if expected < 2 else expected + 1.5 * math.sqrt(expected))
    if whole * each <= 4:
        return [whole]
    few, many = (rows // math.gcd(rows, each) for rows in (4, 32))
    sizes = [size for size in range(few, 32 // each + 1, few) if size < whole + few]
    while True:
        size = math.ceil(whole / many) * many
        if size * each <= max(_MAX_ROWS, many * each) and size * each > 32:
            sizes.append(size)
        if whole <= many:
            return sizes
        whole = math.ceil(whole / 2)


def _passes(expected: float, size: int) -> float:
    """How many passes a batch takes on average: Σ_j P(N > j·size), N nearly Gaussian."""
    total, spread = 1.0, math.sqrt(2 * expected)
    for taken in range(size, math.ceil(expected + 6 * spread), size):
        total += 0.5 * math.erfc((taken + 0.5 - expected) / spread)
    return total
