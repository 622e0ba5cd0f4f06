"""A million normals: sidelight's cryptographic source against NumPy's and torch's defaults, in one run.

    python -m benchmarks.noise

The goal is at most three times slower than either, in the type that each is used for, one thread each.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

import numpy as np

from sidelight.privacy.noise import Noise, discrete_gaussian

COUNT = 1_000_000


def best(function: Callable[[], object], repeats: int = 30) -> float:
    """The fastest of many runs, in milliseconds: the machine's other work only ever adds."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        function()
        times.append(time.perf_counter() - start)
    return 1e3 * min(times)


def main() -> None:
    noise, numpy = Noise(), np.random.default_rng()
    rows = []
    for dtype in (np.float64, np.float32):
        ours = best(partial(noise.normal, COUNT, std=2.0, dtype=dtype))
        peer = best(partial(numpy.standard_normal, COUNT, dtype=dtype))
        rows.append((f"NumPy default_rng, {dtype.__name__}", ours, peer))
    try:
        import torch

        torch.set_num_threads(1)
        for kind in (torch.float64, torch.float32):
            like = torch.zeros(COUNT, dtype=kind)
            ours = best(partial(noise.normal_like, like, std=2.0))
            rows.append(
                (f"torch.randn, {str(kind)[6:]}", ours, best(partial(torch.randn, COUNT, dtype=kind)))
            )
    except ImportError:
        print("torch is not installed: compared with NumPy only")
    print(f"{'peer':<32}{'sidelight':>12}{'peer':>12}{'ratio':>8}")
    for name, ours, peer in rows:
        print(f"{name:<32}{ours:>9.2f} ms{peer:>9.2f} ms{ours / peer:>7.2f}x")
    exact = best(lambda: discrete_gaussian(COUNT, scale=2**20, noise=noise), repeats=2)
    print(f"{'exact discrete Gaussian':<32}{exact:>9.0f} ms")


if __name__ == "__main__":
    main()
