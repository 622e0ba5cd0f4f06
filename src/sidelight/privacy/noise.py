"""The one source of randomness for noise and for the sampling of private records.

`Noise()` is an AES-128 counter stream keyed by the operating system, and its key is kept nowhere.

`Noise(random_state=7)` is reproducible, so whoever knows the seed can subtract the noise: it is for tests and
papers, and everything that used it carries the assumption "the seed stays secret" in its report. A seed is
also used again and again, and two mechanisms with the same noise give away the difference of what they hide.
So a source that can be repeated draws by a pseudo-random function of its key *and* of what it is asked for:
`bind` mixes in what a run is (method, plan, budget, records, ...), and `bound` gives one mechanism a stream
of its own, a function also of the exact value that the noise will hide. Other data, another scale or another
model then get independent noise; only what is the same in every bit gets the same noise, and tells nothing
new. It is how signatures choose their nonces without a source of randomness (RFC 6979, RFC 8032).

A fork holds the same memory as its parent: a source notices, and draws a new key in the child.

The default draws floating-point Gaussians. They are not exactly Gaussian in the last bits, and an attacker
who sees every bit of a released float can in principle tell two inputs apart by that (Mironov, CCS 2012).
`discrete_gaussian` draws an exact discrete Gaussian on the integers; `release.release_on_grid` uses it.
"""

from __future__ import annotations

import hashlib
import math
import operator
import os
import secrets
import sys
import threading
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, SupportsIndex, TypeAlias, TypeGuard

import numpy as np
from numpy.typing import DTypeLike, NDArray
from randomgen import AESCounter

from sidelight.arrays import Array, Floats, Json
from sidelight.errors import InputError
from sidelight.privacy.normals import float32_normals, kernels

if TYPE_CHECKING:
    import torch

SEED_ASSUMPTION = (
    "noise came from a seed that the user chose; the guarantee holds only while the seed stays secret, and "
    "cannot be guessed"
)


class Noise:
    """Gaussian noise and private sampling from a cryptographic generator.

    Args:
        random_state: None draws a key from the operating system. An integer makes every draw reproducible
            and is recorded as an assumption.
        repeatable: whether `get_state` is allowed, so that the same draws may happen twice; always true for
            a seed.
    """

    def __init__(self, random_state: int | None = None, *, repeatable: bool = False) -> None:
        seed = _checked(random_state)
        self.reproducible = seed is not None
        self.repeatable = repeatable or self.reproducible
        self._key = secrets.token_bytes(32) if seed is None else _derived(b"", "seed", str(seed))[:32]
        self.witness: Callable[[str], None] | None = None
        self._ready()

    def _ready(self) -> None:
        self._stream: tuple[AESCounter, np.random.Generator] | None = None
        self._lock = threading.RLock()
        self._process = here()
        renew_after_fork(self)

    @property
    def generator(self) -> np.random.Generator:
        """The stream of this source; draw from it immediately, and do not keep it."""
        with self._lock:
            self._check_process()
            if self._stream is None:
                bits = _bits(self._key)
                self._stream = bits, np.random.Generator(bits)
            return self._stream[1]

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What a reader of the report must know about this source."""
        return (SEED_ASSUMPTION,) if self.reproducible else ()

    def bind(self, *about: object) -> Noise:
        """Let every draw from now on depend on these values too: texts, numbers, bytes, arrays or tensors."""
        if self.repeatable:
            self.bound(*about)
        return self

    def bound(self, *about: object) -> Noise:
        """A source for one mechanism, which depends on these values; this one continues with another key.

        A source that nobody can repeat is its own: none of its draws happens twice. Of one that can be
        repeated, `witness` (if there is one) is given a digest that only equal keys and values have.
        """
        if not self.repeatable:
            return self
        with self._lock:
            self._check_process()
            both = _derived(self._key, "bind", *about)
            self._key, self._stream = both[:32], None
        if self.witness is not None:
            self.witness(hashlib.blake2b(both[32:], digest_size=16, person=b"witness").hexdigest())
        child = object.__new__(type(self))
        child.__dict__.update(self.__dict__ | {"_key": both[32:], "witness": None})
        child._ready()
        return child

    def normal(
        self, size: int | tuple[int, ...], *, std: float = 1.0, dtype: DTypeLike = np.float64
    ) -> Array:
        """Independent N(0, std²), one draw per coordinate, in float64 or float32."""
        kind = np.dtype(dtype)
        if kind not in (np.float64, np.float32):
            raise InputError(f"noise is drawn in float64 or float32, not in {kind}, which would round it")
        if kind == np.float32:
            values: Array = float32_normals(self._bits(), math.prod(np.atleast_1d(size)), std)
            return values.reshape(size)
        values = np.asarray(self.generator.standard_normal(size))
        values *= std
        return values

    def _bits(self) -> AESCounter:
        """The bits of this source; of a repeatable one, others where a processor rounds otherwise."""
        bits: AESCounter = self.generator.bit_generator
        if not self.repeatable:
            return bits
        return _bits(_derived(self.generator.bytes(32), "float32", kernels()))

    def normal_like(self, value: Value, *, std: float = 1.0) -> Value:
        """The same, with the shape and type of an array, or the shape, type and device of a tensor."""
        if not is_tensor(value):
            return self.normal(value.shape, std=std, dtype=value.dtype)
        import torch

        kind = np.float32 if value.dtype is torch.float32 else str(value.dtype).removeprefix("torch.")
        drawn = torch.from_numpy(self.normal(tuple(value.shape), std=std, dtype=kind))
        return drawn if value.is_cpu else drawn.to(device=value.device)

    def seed(self) -> int:
        """A seed for random numbers that are not noise: dropout, transformations of records."""
        return int(self.generator.integers(2**63 - 1))

    def get_state(self) -> Json:
        """What the draws from now on depend on, as JSON-able values; nothing of the draws until now.

        It is as secret as the noise. Continuing twice from here repeats the same draws only for the same
        values.
        """
        if not self.repeatable:
            raise InputError("this source is not repeatable: its noise cannot be drawn twice")
        with self._lock:
            self._check_process()
            if self._stream is not None:  # it was drawn from: go on with a key that draws nothing of that
                self._key, self._stream = _derived(self._key, "state")[:32], None
            return {"reproducible": self.reproducible, "key": self._key.hex()}

    def set_state(self, state: Json) -> None:
        """Continue from what `get_state` returned."""
        with self._lock:
            self._key, self._stream = bytes.fromhex(state["key"]), None
            self.reproducible, self.repeatable = bool(state["reproducible"]), True
            self._process = here()

    def renew(self) -> None:
        """Take a new key in a forked child, since the parent draws from the old one."""
        self._process, self._lock = here(), threading.RLock()
        self._key = _derived(self._key, "fork", secrets.token_bytes(32))[:32]
        if self._stream is not None:  # somebody may hold the generator itself
            self._stream[0].state = _bits(self._key).state
            self._stream = None

    def _check_process(self) -> None:
        if self._process != here():  # a fork that Python did not hear of
            self.renew()

    def __repr__(self) -> str:
        return f"Noise({'reproducible' if self.reproducible else 'cryptographic'})"

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a noise source is not pickled: two copies would draw the same noise. Make a new one."
        )


def _checked(random_state: SupportsIndex | None) -> int | None:
    if random_state is None:
        return None
    try:
        seed = operator.index(random_state)
    except TypeError:
        seed = -1
    if seed < 0 or isinstance(random_state, bool | np.bool_):
        raise InputError("random_state must be None or a whole number of at least 0")
    return seed


def _bits(key: bytes) -> AESCounter:
    return AESCounter(key=int.from_bytes(key[:16], "little"), counter=0)


def keyed_generator(key: bytes, *about: object) -> np.random.Generator:
    """The stream that belongs to a secret key and these values, the same wherever and whenever it is made.

    For choices that are made apart from the `Noise` which drew the key, and that may be made again.
    """
    return np.random.Generator(_bits(_derived(key, "keyed", *about)[:32]))


def _derived(key: bytes, *about: object) -> bytes:
    """64 bytes that depend on the key and on every value, its type and its position."""
    digest = hashlib.blake2b(key=key, person=b"sidelight noise", digest_size=64)
    for value in about:
        kind, data = _bytes(value)
        digest.update(f"{kind} {data.nbytes}:".encode())
        digest.update(data)
    return digest.digest()


def _bytes(value: Value | bytes | str | float | None) -> tuple[str, memoryview]:
    if isinstance(value, bytes):
        return "bytes", memoryview(value)
    if isinstance(value, str | int | float | None):
        return type(value).__name__, memoryview(repr(value).encode())
    array = np.ascontiguousarray(_as_array(value))
    return f"{value.dtype}{tuple(value.shape)}", array.reshape(-1).view(np.uint8).data


def _as_array(value: Value) -> Array:
    if not is_tensor(value):
        return np.asarray(value)
    import torch

    flat = value.detach().contiguous().reshape(-1)
    return np.asarray((flat if flat.numel() else flat.to(torch.float32)).view(torch.uint8).cpu())


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


# ---------------------------------------------------------------------------------------------------
# Which process this is. A fork holds the same memory as its parent, and is another process all the same.
#
# What may exist once only (a stream of noise, a count of what was released) remembers where it was made. A
# process number alone can be used again after its process has ended, so forks are counted too.


class Renewable(Protocol):
    """What must not be shared with a fork."""

    def renew(self) -> None:
        """Replace what parent and child would share."""


_forks = 0
_to_renew: weakref.WeakSet[Renewable] = weakref.WeakSet()


def here() -> tuple[int, int]:
    """Equal in one process, and different in a fork of it."""
    return os.getpid(), _forks


def renew_after_fork(thing: Renewable) -> None:
    """Call `thing.renew()` in every child that is forked while it exists."""
    _to_renew.add(thing)


def _in_child() -> None:
    global _forks
    _forks += 1
    for thing in list(_to_renew):
        thing.renew()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)


# ---------------------------------------------------------------------------------------------------
# The number types in which a private sum is held and noise is added: float64 and float32, and no other.
#
# Noise that is cast to integers, or rounded to half precision, is not the Gaussian that was accounted: a
# count of 0 plus N(0, 100²) truncated toward 0 stays 0 twice as often as a count of 1 becomes 0. What can be
# converted without moving two neighboring sums further apart is converted; the rest is refused by its type,
# never by what it contains.

Value: TypeAlias = Any  # an array or a tensor: noise is added to either by what both can do
_EXACT = 2**53  # whole numbers up to this are exact in float64
_SMALL = ("bool", "int8", "int16", "int32", "uint8", "uint16", "uint32")


def as_floats(value: object) -> Value:
    """A private value as an array or a tensor of float64 or float32.

    Whole numbers and truth values become float64, limited to ±2⁵³, which is exact and brings no two values
    further apart; float16 and bfloat16 become float32, which is exact. Tensors are detached. Complex numbers,
    long doubles, floats of 8 bits, masked arrays, objects, texts, lists and sparse tensors are refused.
    """
    if is_tensor(value):
        return _tensor(value)
    if isinstance(value, int | float) and not isinstance(value, np.generic):
        return np.asarray(float(min(max(value, -_EXACT), _EXACT)) if isinstance(value, int) else value)
    if not isinstance(value, np.ndarray | np.generic) or isinstance(value, np.ma.MaskedArray):
        raise _refused(type(value).__name__)
    array = np.asarray(value)  # a subclass may define arithmetic of its own
    if array.dtype in (np.float64, np.float32):
        return array
    if array.dtype == np.float16:
        return array.astype(np.float32)
    if array.dtype == np.bool_:
        return array.astype(np.float64)
    if array.dtype.kind in "iu":
        low, high = (_EXACT * sign if array.dtype.itemsize == 8 else None for sign in (-1, 1))
        low = 0 if array.dtype.kind == "u" and low is not None else low
        return (array if high is None else np.clip(array, low, high)).astype(np.float64)
    raise _refused(f"an array of {array.dtype}")


def _tensor(value: torch.Tensor) -> torch.Tensor:
    import torch

    if value.layout is not torch.strided or value.is_quantized or value.is_nested or value.is_meta:
        raise _refused("a sparse, quantized, nested or meta tensor")
    value = value.detach()
    if value.dtype in (torch.float64, torch.float32):
        return value
    if value.dtype in (torch.float16, torch.bfloat16):
        return value.to(torch.float32)
    if value.dtype == torch.int64:
        return value.clamp(-_EXACT, _EXACT).to(torch.float64)
    if value.dtype == torch.uint64:  # which has neither clamp nor comparisons
        signed = value.view(torch.int64)
        return torch.where((signed < 0) | (signed > _EXACT), _EXACT, signed).to(torch.float64)
    if str(value.dtype).removeprefix("torch.") in _SMALL:
        return value.to(torch.float64)
    raise _refused(f"a tensor of {value.dtype}")


def _refused(what: str) -> InputError:
    return InputError(
        f"a private sum is an array or a dense tensor of float64, float32 or whole numbers, not {what}: "
        "noise must be added in floating point. Convert it first"
    )


def is_tensor(value: object) -> TypeGuard[torch.Tensor]:
    """Whether it is a tensor of PyTorch, without importing PyTorch."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def finite(value: Value) -> Value:
    """The value with 0 in place of NaN and infinities.

    Oracles answer with finite sums. If one did not, its sensitivity would be a false claim; what can still be
    prevented is that NaN is handed out as it is.
    """
    if is_tensor(value):
        if math.isfinite(float(value.sum())):  # one pass and no copy; a sum that overflows is looked at again
            return value
        return value.nan_to_num(nan=0.0, posinf=0.0, neginf=0.0)
    with np.errstate(all="ignore"):
        if math.isfinite(float(value.sum())):
            return value
    return np.nan_to_num(value, nan=0.0, posinf=0.0, neginf=0.0)


def on_host(value: Value) -> Floats:
    """The value as a float64 array in main memory."""
    return np.asarray(value.cpu() if is_tensor(value) else value, dtype=np.float64)
