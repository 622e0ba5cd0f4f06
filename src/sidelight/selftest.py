"""Check an installation: `python -m sidelight.selftest`, for a privacy officer's installation record.

It takes about ten seconds, reads no data and needs no network. The exit code is 1 if a check failed.
"""

from __future__ import annotations

import math
import os
import platform
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

import numpy as np
from randomgen import AESCounter

from sidelight import BudgetExceeded, Ledger, __version__
from sidelight.accounting import Noise, epsilon, gaussian, poisson, repeat
from sidelight.arrays import Floats
from sidelight.audit import replay_neighbors
from sidelight.methods import dp_sgd
from sidelight.methods.parts import Flat

PACKAGES = ("numpy", "scipy", "scikit-learn", "dp-accounting", "randomgen", "torch", "pandas", "pyarrow")
METHODS = ("dp_sgd", "ppsgd", "dope_sgd", "output_perturbation", "auto")
WIDTH = 80
_DRAWS = 1_000_000


class Failed(Exception):
    """A check did not find what it must find; those that pass return what they saw."""


def _require(condition: bool, what: str) -> None:
    if not condition:
        raise Failed(what)


def versions() -> Iterator[str]:
    """What is installed, one line each."""
    yield f"sidelight {__version__}, Python {platform.python_version()}"
    yield f"{platform.system()} {platform.release()}, {platform.machine()}"
    for name in PACKAGES:
        try:
            yield f"{name} {metadata.version(name)}"
        except metadata.PackageNotFoundError:
            yield f"{name}: not installed"


def generator_is_aes() -> str:
    """The block cipher behind the noise, on the example of FIPS 197, appendix C.1."""
    key, plain = bytes(range(16)), bytes.fromhex("00112233445566778899aabbccddeeff")
    words = AESCounter(key=int.from_bytes(key, "little"), counter=int.from_bytes(plain, "little"))
    cipher = words.random_raw(2).astype("<u8").tobytes().hex()
    _require(cipher == "69c4e0d86a7b0430d8cdb78070b4c55a", f"AES-128 gives {cipher}")
    return "AES-128 gives the ciphertext of FIPS 197"


def keys_differ() -> str:
    """Each source takes a key of its own from the operating system."""
    first, second = Noise().normal(8), Noise().normal(8)
    _require(not np.isin(first, second).any(), "two sources draw the same noise")
    return "two sources draw different noise"


def noise_is_gaussian() -> str:
    """Moments and tail of a million draws, each within six standard errors."""
    draws = Noise().normal(_DRAWS)
    tail = math.erfc(3 / math.sqrt(2))
    expected = {
        "mean": (draws, 0.0, 1.0),
        "variance": (draws**2, 1.0, 2.0),
        "kurtosis": (draws**4, 3.0, 96.0),
        "share beyond 3 std": (np.abs(draws) > 3, tail, tail),
    }
    for name, (values, mean, variance) in expected.items():
        seen, error = float(values.mean()), 6 * math.sqrt(variance / _DRAWS)
        _require(abs(seen - mean) <= error, f"{name} of the noise is {seen:.6g} instead of {mean:.6g}")
    return f"mean, variance, kurtosis and tail of {_DRAWS:,} draws"


def floats_follow_ieee() -> str:
    """Round to nearest even, subnormal numbers and NaN, in both sizes."""
    for kind in (np.float64, np.float32):
        eps, small = np.finfo(kind).eps, np.finfo(kind).smallest_subnormal
        _require(kind(1) + eps / kind(2) == 1, f"{kind.__name__} does not round to nearest even")
        _require((np.array([small]) * kind(1))[0] > 0, f"{kind.__name__} flushes subnormal numbers to zero")
    _require(0.1 + 0.2 != 0.3 and math.fsum([0.1] * 10) == 1.0, "sums of doubles are not those of IEEE 754")
    with np.errstate(invalid="ignore"):
        _require(bool(np.isnan(np.array([np.inf]) - np.inf)[0]), "infinity - infinity is not NaN")
    return "IEEE 754 rounding, subnormal numbers, NaN"


def accounting_is_known() -> str:
    """ε of plans whose value is known: in closed form, and 1.75298 by dp_accounting's PLD at 1e-5."""
    one = epsilon(gaussian(1.0), delta=1e-5, relation="add-or-remove-one")
    _require(abs(one - 4.377178095) < 1e-6, f"ε of one Gaussian release is {one:.9g}")
    many = epsilon(repeat(poisson(0.01, 1.1), 1000), delta=1e-6, relation="add-or-remove-one")
    _require(1.7529 < many < 1.754, f"ε of 1,000 sampled steps is {many:.6g}")
    return f"ε = {one:.4f} of one release, {many:.4f} of 1,000 sampled steps"


def ledger_refuses() -> str:
    """A charge within the budget is kept on disk, and one beyond it is refused."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "selftest.ledger"
        with Ledger.create(path) as book:
            book.register("selftest", epsilon=1.0, delta=1e-5, relation="add-or-remove-one")
            book.begin("selftest", gaussian(5.0), relation="add-or-remove-one", method="selftest")
            try:
                book.begin("selftest", gaussian(5.0), relation="add-or-remove-one", method="selftest")
            except BudgetExceeded:
                pass
            else:
                raise Failed("the ledger admitted a charge beyond its budget")
        with Ledger.open(path) as book:
            book.verify()
            _require(len(book.charges("selftest")) == 1, "the ledger lost a charge")
    return "one charge kept, one beyond the budget refused"


def replays_hold() -> str:
    """One record moves no private sum further than declared, and nothing else that leaves a run."""
    for name in METHODS:
        result = replay_neighbors(name, seeds=1, release_runs=100)
        _require(result.passed, str(result))
    return f"{len(METHODS)} methods on neighboring data sets"


@dataclass(frozen=True)
class _LongerThanStated(Flat):
    """A planted fault: contributions twice as long as the noise accounts for."""

    def begin(self, setting: object, params: object) -> _LongerThanStated:
        return _LongerThanStated(0.3)

    def factors(self, norms: Floats) -> Floats:  # type: ignore[override]
        return 2 * super().factors(norms)


def replay_sees_a_fault() -> str:
    """The replay above is worth something only if it finds a method that is broken."""
    broken = dp_sgd(steps=4, clip_norm=0.3).with_parts(name="planted fault", clip=_LongerThanStated(0.3))
    result = replay_neighbors(broken, seeds=1, release_runs=10)
    seen = [finding.promise for finding in result.findings]
    _require(
        any("private sum" in promise for promise in seen),
        "the replay did not notice contributions that are twice too long",
    )
    return "contributions twice too long were noticed"


CHECKS: dict[str, Callable[[], str]] = {
    "generator": generator_is_aes,
    "keys": keys_differ,
    "noise": noise_is_gaussian,
    "floats": floats_follow_ieee,
    "accounting": accounting_is_known,
    "ledger": ledger_refuses,
    "replay": replays_hold,
    "planted fault": replay_sees_a_fault,
}


def _lines() -> Iterator[tuple[bool, str]]:
    """Every line of the record, and whether it is good."""
    yield True, f"sidelight self-test, {datetime.now(UTC):%Y-%m-%d %H:%M} UTC"
    yield from ((True, f"  {line}") for line in versions())
    for name, check in CHECKS.items():
        try:
            good, seen = True, check()
        except Failed as failed:
            good, seen = False, str(failed)
        except Exception as error:  # a broken installation may raise anything
            good, seen = False, f"{type(error).__name__}: {error}"
        yield good, f"{'ok' if good else 'FAILED':<7} {name:<14} {seen}"


def main() -> int:
    """Print the record; 1 if a check failed."""
    failures = 0
    for good, line in _lines():
        failures += not good
        print(line if len(line) <= WIDTH else f"{line[: WIDTH - 3]}...", flush=True)
    print("passed" if not failures else f"{failures} of {len(CHECKS)} checks FAILED")
    return min(failures, 1)


if __name__ == "__main__":
    try:
        code = main()
    except BrokenPipeError:  # `| head` has read enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 1
    sys.exit(code)
