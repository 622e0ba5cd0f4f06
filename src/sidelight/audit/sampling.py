"""A sampler: whether its batches are those that its event describes.

Tests with exact or conservative p-values: an honest sampler is accused once in a million audits.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binom, chi2, norm

from sidelight.audit.result import Finding
from sidelight.privacy import events
from sidelight.privacy.events import Sampler
from sidelight.privacy.noise import Noise
from sidelight.privacy.turns import Places, Turns

_SIGNIFICANCE = 1e-6
PROMISE = "batches are drawn as the event says"


def performs_its_event(sampler: Sampler, n: int, *, draws: int = 400, seed: int = 0) -> list[Finding]:
    """Draw many batches and compare sizes, shares and overlaps with those of the event."""
    noise = Noise(seed)
    if isinstance(sampler, Turns):
        return _takes_turns(sampler, n, noise)
    batches = [sampler.indices(n, noise) for _ in range(draws)]
    members = np.zeros((draws, n), dtype=np.int64)
    for row, batch in zip(members, batches, strict=True):
        np.add.at(row, np.arange(n) if batch is None else np.asarray(batch), 1)
    event = sampler.event(n, 1.0)
    charged = events.describe(event)
    if members.max() > 1:
        return [Finding(PROMISE, f"charged as {charged}, and a record is in a batch twice")]
    seen = _departure(event, members, n)
    return [Finding(PROMISE, f"charged as {charged}, {seen}")] if seen else []


def _takes_turns(turns: Turns, n: int, noise: Noise) -> list[Finding]:
    """Places are even over many runs; a batch has its share of those whose turn it is, and nobody else."""
    keys = [noise.generator.bytes(32) for _ in range(max(1, 4000 // n))]
    runs = [Places(turns, n, key=key) for key in keys]
    drawn, longest = np.zeros((len(runs), turns.cycle, n), dtype=np.int64), 0
    for run, places in zip(drawn, runs, strict=True):
        for step in range(2 * turns.cycle):
            batch = places.turn(step).indices(n, noise)
            longest = max(longest, len(batch))
            np.add.at(run[step % turns.cycle], batch, 1)
    q, said = turns.sampling_probability, f"charged as {events.describe(turns.event(n, 1.0))}"
    if ((drawn > 0).sum(axis=1) > 1).any() or drawn.max() > 2:
        return [Finding(PROMISE, f"{said}, and a record is drawn when it is not its turn")]
    if turns.largest is not None and longest > turns.largest:
        return [Finding(PROMISE, f"{said}, but batches are larger than their limit")]
    total, expected = drawn.sum(), 2 * len(runs) * n * q
    away = total - expected if turns.largest is not None else abs(total - expected)  # a limit leaves some out
    if away > 6 * math.sqrt(expected * (1 - q)) + 1e-9:
        return [Finding(PROMISE, f"{said}, but batches have another share of those whose turn it is")]
    per_place = drawn.sum(axis=(0, 2)) * turns.cycle / max(total, 1) - 1
    if np.abs(per_place).max() > 8 * math.sqrt(turns.cycle / max(total, 1)) + 1e-9:
        return [Finding(PROMISE, f"{said}, but some places of the cycle have more records than others")]
    if not _places_are_independent(turns, n, noise):
        return [Finding(PROMISE, f"{said}, but places are dealt out: one record decides those of others")]
    return []


def _places_are_independent(turns: Turns, n: int, noise: Noise) -> bool:
    """How many records the first place has, in many runs: as coins make it, not as a shuffle does."""
    if not 1 < turns.cycle <= n:
        return True
    keys = [noise.generator.bytes(32) for _ in range(200)]
    sizes = np.array([len(Places(turns, n, key=key).turn(0).members) for key in keys])
    return _spread_as_poisson(sizes, n, 1 / turns.cycle)


def _departure(event: events.Event, members: NDArray[np.int64], n: int) -> str | None:
    sizes = members.sum(axis=1)
    match event:
        case events.Gaussian():
            return None if (sizes == n).all() else "and records are left out"
        case events.PoissonSampled(sampling_probability=q):
            if not _spread_as_poisson(sizes, n, q):
                return "but batch sizes do not vary as independent coins make them"
        case events.SampledWithoutReplacement(sample_size=size, source_dataset_size=m):
            q = size / m
            if m != n:
                return f"but the sampler draws from {n:,} records"
            if (sizes != size).any():
                return "but batch sizes differ"
        case _:
            return None  # no sampling that this check knows
    if not _even(members.sum(axis=0), len(members), q):
        return "but some records are drawn more often than others"
    return None if _independent(members, q) else "but a batch depends on the one before"


def _spread_as_poisson(sizes: NDArray[np.int64], n: int, q: float) -> bool:
    """Both tails of Σ(|B| − nq)²/nq(1−q), whose law is nearly χ²; the margin allows for 'nearly'."""
    spread = float(((sizes - n * q) ** 2).sum() / (n * q * (1 - q)))
    return bool(
        0.8 * chi2.ppf(_SIGNIFICANCE, len(sizes)) <= spread <= 1.25 * chi2.isf(_SIGNIFICANCE, len(sizes))
    )


def _even(counts: NDArray[np.int64], draws: int, q: float) -> bool:
    each = _SIGNIFICANCE / (2 * len(counts))
    low, high = binom.cdf(counts.min(), draws, q), binom.sf(counts.max() - 1, draws, q)
    return bool(min(low, high) > each)


def _independent(members: NDArray[np.int64], q: float) -> bool:
    """Records that are in two batches in a row: n·q² of them, if batches are fresh."""
    overlaps = (members[1:] * members[:-1]).sum(axis=1)
    expected = members.shape[1] * q * q
    # Overlaps in a row share a batch: the variance of their sum is at most n(q² + 2q³) each.
    spread = math.sqrt(3 * expected * len(overlaps))
    return bool(abs(float(overlaps.sum()) - expected * len(overlaps)) <= norm.isf(_SIGNIFICANCE / 2) * spread)
