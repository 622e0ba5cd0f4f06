"""The one source of randomness for noise and for the sampling of private records.

`Noise()` is an AES-128 counter stream keyed by the operating system. `Noise(random_state=7)` is
reproducible, so whoever knows the seed can subtract the noise: it is for tests and papers, and everything
that used it carries the assumption "the seed stays secret" in its report.

The default draws floating-point Gaussians. They are not exactly Gaussian in the last bits, and an attacker
who sees every bit of a released float can in principle tell two inputs apart by that (Mironov, CCS 2012).
`discrete_gaussian` draws an exact discrete Gaussian on the integers; `release.release_on_grid` uses it.
"""

from __future__ import annotations

import secrets
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray
from randomgen import AESCounter

from sidelight.errors import InputError
from sidelight.privacy.floats import is_tensor

SEED_ASSUMPTION = (
    "noise came from a seed that the user chose; the guarantee holds only while the seed stays secret"
)
_HALF_WORD = ("has_uint32", "uinteger")  # 32 bits that a draw of 32 left over from a word of 64


class Noise:
    """Gaussian noise and private sampling from a cryptographic generator.

    Args:
        random_state: None draws a 128-bit key from the operating system. An integer makes every draw
            reproducible and is recorded as an assumption.
    """

    def __init__(self, random_state: int | None = None) -> None:
        self.reproducible = random_state is not None
        # A key is used as it is; a seed is first spread over the key by NumPy's SeedSequence.
        if random_state is None:
            bits = AESCounter(key=secrets.randbits(128), counter=0)
        else:
            bits = AESCounter(seed=np.random.SeedSequence(int(random_state)))
        self._bits: Any = bits
        self.generator: np.random.Generator = np.random.Generator(bits)

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What a reader of the report must know about this source."""
        return (SEED_ASSUMPTION,) if self.reproducible else ()

    def normal(
        self, size: int | tuple[int, ...], *, std: float = 1.0, dtype: DTypeLike = np.float64
    ) -> NDArray[Any]:
        """Independent N(0, std²), one draw a coordinate, in float64 or float32."""
        kind = np.dtype(dtype)
        if kind not in (np.float64, np.float32):
            raise InputError(f"noise is drawn in float64 or float32, not in {kind}, which would round it")
        draw = np.float64 if kind == np.float64 else np.float32
        scale = draw(std)
        if float(scale) < std:  # in float32: rather a last bit too much than too little
            scale = np.nextafter(scale, draw(np.inf))
        values = self.generator.standard_normal(size, dtype=draw)
        values *= scale
        return values

    def normal_like(self, value: Any, *, std: float = 1.0) -> Any:
        """The same, with the shape and type of an array, or the shape, type and device of a tensor."""
        if not is_tensor(value):
            return self.normal(value.shape, std=std, dtype=value.dtype)
        import torch

        drawn = self.normal(tuple(value.shape), std=std, dtype=str(value.dtype).removeprefix("torch."))
        return torch.from_numpy(np.asarray(drawn)).to(device=value.device)

    def seed(self) -> int:
        """A seed for random numbers that are not noise: dropout, transformations of records."""
        return int(self.generator.integers(2**63 - 1))

    def get_state(self) -> dict[str, Any]:
        """The state of the stream as JSON-able values, to go on here. It is as secret as the noise."""
        state = self._bits.state
        stream = {k: np.asarray(v).tolist() for k, v in state["s"].items()}
        return {"reproducible": self.reproducible, "stream": stream, **{k: int(state[k]) for k in _HALF_WORD}}

    def set_state(self, state: dict[str, Any]) -> None:
        """Go on where `get_state` was taken."""
        current = self._bits.state
        for key, value in state["stream"].items():
            old = current["s"][key]
            current["s"][key] = np.asarray(value, dtype=old.dtype) if isinstance(old, np.ndarray) else value
        current.update({k: state[k] for k in _HALF_WORD})
        self._bits.state = current
        self.reproducible = bool(state["reproducible"])

    def __repr__(self) -> str:
        return f"Noise({'reproducible' if self.reproducible else 'cryptographic'})"

    def __reduce__(self) -> Any:
        raise TypeError(
            "a noise source is not pickled: two copies would draw the same noise. Make a new one."
        )


def discrete_gaussian(size: int, *, scale: int, noise: Noise) -> NDArray[np.int64]:
    """Exact samples of the discrete Gaussian N_Z(0, scale²), in integer arithmetic only.

    Rejection from a discrete Laplace of the same scale (Algorithm 3 of Canonne, Kamath & Steinke,
    arXiv:2004.00010v5, with t = σ, which the proof allows for any t > 0): accept Y with probability
    exp(−(|Y|−σ)²/2σ²). No floating-point number is involved, so there is no floating-point attack.
    """
    if not 1 <= scale <= 2**24:
        raise ValueError(f"scale must be an integer from 1 to 2**24, not {scale}")
    out = np.empty(0, dtype=np.int64)
    while out.size < size:
        y = _discrete_laplace(int((size - out.size) * 1.4) + 16, scale, noise)
        numerator = (np.abs(y) - scale) ** 2
        out = np.concatenate([out, y[_bernoulli_exp(numerator, 2 * scale * scale, noise)]])
    return np.asarray(out[:size])


def _discrete_laplace(size: int, scale: int, noise: Noise) -> NDArray[np.int64]:
    """Samples with probability proportional to exp(−|x|/scale); about `size` of them (Algorithm 2 there)."""
    u = noise.generator.integers(0, scale, size=size, dtype=np.int64)
    u = u[_bernoulli_exp(u, scale, noise)]
    v = _geometric(u.size, noise)
    x = u + scale * v
    negative = noise.generator.integers(0, 2, size=x.size, dtype=np.int64).astype(bool)
    keep = ~(negative & (x == 0))
    return np.asarray(np.where(negative, -x, x)[keep], dtype=np.int64)


def _geometric(size: int, noise: Noise) -> NDArray[np.int64]:
    """How many Bernoulli(1/e) trials succeed before the first failure."""
    counts = np.zeros(size, dtype=np.int64)
    alive = np.arange(size)
    while alive.size:
        alive = alive[_bernoulli_exp(np.ones(alive.size, dtype=np.int64), 1, noise)]
        counts[alive] += 1
    return counts


def _bernoulli_exp(numerator: NDArray[np.int64], denominator: int, noise: Noise) -> NDArray[np.bool_]:
    """Exact Bernoulli(exp(−numerator/denominator)) for non-negative integers (Algorithm 1 there)."""
    whole, rest = np.divmod(numerator, denominator)
    result = _bernoulli_exp_unit(rest, denominator, noise)
    pending = np.flatnonzero(result & (whole > 0))
    left = whole[pending]
    while pending.size:  # exp(−1) once for each whole unit
        ok = _bernoulli_exp_unit(np.full(pending.size, 1, dtype=np.int64), 1, noise)
        result[pending[~ok]] = False
        pending, left = pending[ok], left[ok] - 1
        pending, left = pending[left > 0], left[left > 0]
    return result


def _bernoulli_exp_unit(numerator: NDArray[np.int64], denominator: int, noise: Noise) -> NDArray[np.bool_]:
    """The same for a ratio of at most 1: count k while Bernoulli(ratio/k) succeeds, true if k ends odd."""
    k = np.ones(numerator.size, dtype=np.int64)
    alive = np.arange(numerator.size)
    while alive.size:
        high = denominator * k[alive]
        hit = noise.generator.integers(0, high, dtype=np.int64) < numerator[alive]
        alive = alive[hit]
        k[alive] += 1
    return np.asarray(k % 2 == 1)
