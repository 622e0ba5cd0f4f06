"""Gaussian numbers in float32 from the bits of a cryptographic generator, many at a time.

Box and Muller (1958): for independent uniform u and θ, √(−2 ln u)·(cos θ, sin θ) is a pair of independent
standard Gaussians. NumPy takes each function of a whole block at once, in a third of the time of a ziggurat
number by number. Each pair takes 64 bits, half of them for u. That is as fine as float32, except near 0,
where u decides how far the tail goes, and near 1. There u gets 53 bits more: the tail reaches beyond 10.
"""

from __future__ import annotations

import functools
import math

import numpy as np
from numpy.typing import NDArray
from randomgen import AESCounter

_BLOCK = 2**15  # pairs at a time: they stay in the cache
_ENDS = 2**20  # of 2³² values of u, so many at either end get more bits
_MARGIN = 1 + 2.0**-20  # at least what the rounding of logarithm, root and cosine can take from the scale


def float32_normals(bits: AESCounter, count: int, scale: float = 1.0) -> NDArray[np.float32]:
    """Independent N(0, scale²) numbers; after rounding their scale is that or up to 3e-6 more."""
    values = np.empty(count + count % 2, dtype=np.float32)
    for low in range(0, values.size, 2 * _BLOCK):
        block = values[low : low + 2 * _BLOCK]
        half = block.size // 2
        words = bits.random_raw(half).view(np.uint32)
        _pairs(words[:half], words[half:], bits, np.float32(scale * _MARGIN), block[:half], block[half:])
    return values[:count]


def _pairs(
    places: NDArray[np.uint32],
    angles: NDArray[np.uint32],
    bits: AESCounter,
    scale: np.float32,
    first: NDArray[np.float32],
    second: NDArray[np.float32],
) -> None:
    """Write a pair of Gaussians for each place (u in steps of 2⁻³²) and each angle (2π in 2³² steps)."""
    rare = np.flatnonzero(places - np.uint32(_ENDS) >= np.uint32(2**32 - 2 * _ENDS))
    np.copyto(first, places, casting="unsafe")
    first *= np.float32(2.0**-32)
    with np.errstate(divide="ignore"):  # of a place of 0, which is among the rare ones
        np.log(first, out=first)
    if rare.size:
        below = (bits.random_raw(rare.size) >> np.uint64(11)) + 0.5
        first[rare] = np.log((places[rare] + below * 2.0**-53) * 2.0**-32)
    first *= np.float32(-2.0)
    np.sqrt(first, out=first)
    first *= scale
    np.copyto(second, angles.view(np.int32), casting="unsafe")
    second *= np.float32(math.pi * 2.0**-31)
    cosines = np.cos(second)
    np.sin(second, out=second)
    second *= first
    first *= cosines


@functools.cache
def kernels() -> bytes:
    """What tells processors apart that round these functions differently.

    A repeatable source must not draw the same noise twice but for its last bits: it mixes this into its key.
    """
    return float32_normals(AESCounter(key=0, counter=0), 2**13).tobytes()
