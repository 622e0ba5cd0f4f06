"""The pool of generated images, as small as one core can afford; the paper's took a V100 nine days."""

from __future__ import annotations

from pathlib import Path

from experiments.dope_table9.diffusion import Diffusion, Pool, generate_pool
from experiments.dope_table9.images import Pair

__all__ = ["SETTINGS", "pool"]

COUNT = 1_000
SETTINGS = Diffusion(
    channels=(16, 32, 32), layers=1, attention=False, steps=300, batch_size=64, learning_rate=1e-3,
    decay=0.99, sampling_steps=15, save_every=50,
)  # fmt: skip
QUICK = Diffusion(
    channels=(8, 8), layers=1, attention=False, steps=2, batch_size=8, sampling_steps=2, save_every=50
)


def pool(public: Pair, *, seed: int, quick: bool, out: Path) -> Pool:
    """Made once, in OUT/pools; a run that was stopped continues with it."""
    count, block = (20, 10) if quick else (COUNT, 200)
    folder = out / "pools" / str(seed)
    return generate_pool(
        folder, *public, count=count, seed=seed, settings=QUICK if quick else SETTINGS, block=block
    )
